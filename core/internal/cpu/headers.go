package cpu

import "embed"

// Headers embeds the C headers that packages under ops include, as ../../cpu/vector.h. Go's build
// cache does not track headers of other packages. Embedding them makes a changed header a change of
// this package, which rebuilds its importers.
//
// An option -I${SRCDIR}/../../cpu would shorten the includes, but would make the path of the source
// tree a part of the cache's key, so that no other clone would find what this one compiled.
//
//go:embed *.h
var Headers embed.FS
