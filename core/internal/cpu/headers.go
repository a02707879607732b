package cpu

import "embed"

// Headers embeds the C headers that packages under ops include with -I. Go's build cache does not
// track headers of other packages. Embedding them makes a changed header a change of this package,
// which rebuilds its importers.
//
//go:embed *.h
var Headers embed.FS
