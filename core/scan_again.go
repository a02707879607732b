package core

// againLeast is the number of tiles of a row that blocks share where it is done again; fewer are for one.
const againLeast = 16

// tamed reports that the kind is tried in a simpler form first, which says what it cannot do.
func tamed(code string) bool { return code == "cumprod" || code == "logcumsumexp" }

// mark makes room for so many words that say what a kind that is tried first cannot do, and for how often blocks met that do it again.
func (s *scanProgram) mark(g *scanShape, words int64) {
	if g.marked = tamed(s.code()); g.marked {
		g.marks = align16(4 * (words + 1))
	}
}

// again is how strips that are marked are done by a kernel that can do everything, of which few blocks look at all marks: each strip in one
// block, or in parts where it was in some.
func (s *scanProgram) again(first *scanShape) scanShape {
	g := *first
	if instead := scanKernels[g.kernel].instead; instead != "" {
		g.kernel, g.shared, g.parts, g.held = instead, 0, 1, false
		if g.kernel == "columns" {
			across, down := s.own(s.code())
			g.block, g.width = scanColumnThreads, g.columns/across
			g.height = g.block / g.width
			g.tiles = ceil(s.length(), down*g.height)
			g.shared = s.columnRoom(s.code(), g.block)
		} else {
			g.block, g.height, g.width = scanRowThreads, scanRowThreads/32, 1 // words of marks
			if first.held {
				g.width = first.parts
			}
			g.tiles = s.walkedTiles(s.code())
		}
		if first.parts > 1 && (g.kernel == "columns" || g.tiles >= againLeast) {
			blocks := scanFill * int64(s.units)
			if first.kernel == "slabs" { // so few strips that all of them are done sooner in parts
				blocks = int64(s.units)
			}
			g.cut(g.tiles, blocks)
		}
	}
	g.grid = min(g.strips*g.parts, scanFill*int64(s.units))
	return g
}
