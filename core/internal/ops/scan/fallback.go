package scan

import "github.com/sternway/sternway/core/internal/num"

// fallbackMinTiles is the number of tiles of a row that blocks share where it is done again; fewer are for one.
const fallbackMinTiles = 16

// HasFastPath reports that the kind is tried in a simpler form first, which says what it cannot do.
func HasFastPath(code string) bool { return code == "cumprod" || code == "logcumsumexp" }

// reserveFlags makes room for so many words that say what a kind that is tried first cannot do, and for how often blocks met that do it again.
func (s *Program) reserveFlags(g *Config, words int64) {
	if g.needsFallback = HasFastPath(s.Code()); g.needsFallback {
		g.flagBytes = num.Align16(4 * (words + 1))
	}
}

// Fallback is how strips that are marked are done by a kernel that can do everything, of which few blocks look at all marks: each strip in one
// block, or in parts where it was in some.
func (s *Program) Fallback(first *Config) Config {
	g := *first
	if instead := Strategies[g.Kernel].Baseline; instead != "" {
		g.Kernel, g.SmemBytes, g.Splits, g.resident = instead, 0, 1, false
		if g.Kernel == "columns" {
			across, down := s.ThreadTile(s.Code())
			g.Block, g.Width = ColumnThreads, g.Columns/across
			g.Height = g.Block / g.Width
			g.TilesPerSplit = num.CeilDiv(s.Length(), down*g.Height)
			g.SmemBytes = s.columnSmemBytes(s.Code(), g.Block)
		} else {
			g.Block, g.Height, g.Width = RowThreads, RowThreads/32, 1 // words of marks
			if first.resident {
				g.Width = first.Splits
			}
			g.TilesPerSplit = s.tilesPerRow(s.Code())
		}
		if first.Splits > 1 && (g.Kernel == "columns" || g.TilesPerSplit >= fallbackMinTiles) {
			blocks := fillCTAsPerSM * int64(s.NumSMs)
			if first.Kernel == "slabs" { // so few strips that all of them are done sooner in parts
				blocks = int64(s.NumSMs)
			}
			g.split(g.TilesPerSplit, blocks)
		}
	}
	g.Grid = min(g.Segments*g.Splits, fillCTAsPerSM*int64(s.NumSMs))
	return g
}
