package scan

import "github.com/sternway/sternway/core/internal/num"

// againLeast is the number of tiles of a row that blocks share where it is done again; fewer are for one.
const againLeast = 16

// Tamed reports that the kind is tried in a simpler form first, which says what it cannot do.
func Tamed(code string) bool { return code == "cumprod" || code == "logcumsumexp" }

// mark makes room for so many words that say what a kind that is tried first cannot do, and for how often blocks met that do it again.
func (s *ScanProgram) mark(g *ScanShape, words int64) {
	if g.marked = Tamed(s.Code()); g.marked {
		g.marks = num.Align16(4 * (words + 1))
	}
}

// Again is how strips that are marked are done by a kernel that can do everything, of which few blocks look at all marks: each strip in one
// block, or in parts where it was in some.
func (s *ScanProgram) Again(first *ScanShape) ScanShape {
	g := *first
	if instead := ScanKernels[g.Kernel].Instead; instead != "" {
		g.Kernel, g.Shared, g.Parts, g.held = instead, 0, 1, false
		if g.Kernel == "columns" {
			across, down := s.Own(s.Code())
			g.Block, g.Width = ScanColumnThreads, g.Columns/across
			g.Height = g.Block / g.Width
			g.Tiles = num.CeilDiv(s.Length(), down*g.Height)
			g.Shared = s.columnRoom(s.Code(), g.Block)
		} else {
			g.Block, g.Height, g.Width = ScanRowThreads, ScanRowThreads/32, 1 // words of marks
			if first.held {
				g.Width = first.Parts
			}
			g.Tiles = s.walkedTiles(s.Code())
		}
		if first.Parts > 1 && (g.Kernel == "columns" || g.Tiles >= againLeast) {
			blocks := scanFill * int64(s.Units)
			if first.Kernel == "slabs" { // so few strips that all of them are done sooner in parts
				blocks = int64(s.Units)
			}
			g.cut(g.Tiles, blocks)
		}
	}
	g.Grid = min(g.Strips*g.Parts, scanFill*int64(s.Units))
	return g
}
