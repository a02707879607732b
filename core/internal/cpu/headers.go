package cpu

import "embed"

// Headers are the C headers that packages under ops include with -I. Go's build cache does not see headers of other packages: embedded, a
// change of one is a change of this package, and rebuilds the packages that import it.
//
//go:embed *.h
var Headers embed.FS
