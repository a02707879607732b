package core

// scanStates are the sizes of what is handed from part to part: of a head and of a tail, for float32 and for float64 accumulators.
var scanStates = map[string][2]struct{ head, tail int64 }{
	"cumsum":       {{0, 8}, {0, 8}},
	"cumprod":      {{8, 16}, {16, 32}},
	"cumextremum":  {{4, 8}, {8, 16}},
	"logcumsumexp": {{8, 8}, {16, 16}},
	"indices":      {{0, 8}, {0, 16}},
}

// needs is the number of bytes of what launches leave for others.
func (s *scanProgram) needs(code string, g *scanShape) int64 {
	bytes := s.statesEnd(code, g) + s.recordBytes(g)
	if g.marked && scanKernels[g.kernel].instead != "" {
		again := s.again(g)
		bytes = max(bytes, s.needs(code, &again))
	}
	return bytes
}

// statesEnd is that of marks, and of what parts and tiles leave: heads of parts, heads before tiles, tails of parts. Records come behind.
func (s *scanProgram) statesEnd(code string, g *scanShape) int64 {
	if g.tiles*g.parts == 1 || g.held {
		return g.marks + s.toldBytes(g)
	}
	size, all := scanStates[code][s.element.Size()/8], g.strips*g.parts*g.columns
	return g.marks + s.toldBytes(g) + align16(all*size.head) + align16(all*g.tiles*size.head) + align16(all*size.tail)
}

// badBytes is the room for what is known of each row of indices, and of all.
func (s *scanProgram) badBytes() int64 {
	if !s.indexed() {
		return 0
	}
	return align16(4 * (1 + s.rowCount()))
}

// stateBytes is enough for rows and for columns, whatever dimension dx is dense along.
func (s *scanProgram) stateBytes() (most int64) {
	rows := s.rowCount()
	if rows == 0 || s.length() == 0 {
		return 0
	}
	codes := []string{s.code()}
	if s.indexed() {
		codes = append(codes, "indices")
	}
	for _, code := range codes {
		need := func(kernel string, columns int64) {
			g := s.share(code, kernel, rows, columns)
			most = max(most, s.needs(code, &g))
			quicker := []string{s.variant}
			if !s.forced {
				quicker = s.quicker(columns)
			}
			for _, quick := range quicker {
				if scanKernels[quick].instead != kernel || code != s.code() {
					continue
				}
				g = s.share(code, quick, rows, columns)
				most = max(most, s.needs(code, &g))
				for quick == "long" && g.beside > 1 && s.together(&g) { // or of smaller teams
					g.beside--
					s.team(&g)
					most = max(most, s.needs(code, &g))
				}
			}
		}
		if !s.forced || s.variant == "tiles" || scanKernels[s.variant].instead == "tiles" {
			if s.forced || s.along(code, false) == "tiles" {
				need("tiles", 1)
			}
		}
		if s.forced && s.variant != "columns" && scanKernels[s.variant].instead != "columns" {
			continue
		}
		need("columns", s.inner())
		for d, extent := range s.shape {
			if d != s.dim {
				need("columns", extent)
			}
		}
		if s.forced {
			need("columns", 1)
		}
	}
	return most
}

func align16(n int64) int64 { return ceil(n, 16) * 16 }

// toldHeads and toldBytes are the room for what blocks tell each other: heads of parts, and behind them tails of tiles.
func (s *scanProgram) toldHeads(g *scanShape) int64 {
	return packet * g.strips * g.parts * ceil(scanStates[s.code()][s.element.Size()/8].head, told)
}

func (s *scanProgram) toldBytes(g *scanShape) int64 {
	if !s.together(g) {
		return 0
	}
	tail := scanStates[s.code()][s.element.Size()/8].tail
	return s.toldHeads(g) + packet*g.strips*g.parts*g.tiles*ceil(tail, told)
}

// recordBytes is the room for a bit of each element, in whole tiles.
func (s *scanProgram) recordBytes(g *scanShape) int64 {
	if g.held || scanKernels[g.kernel].instead == "" || !s.recorded() {
		return 0
	}
	columns, length, _ := s.ringTile(g.kernel)
	return g.strips * g.parts * g.tiles * columns * length / 8
}
