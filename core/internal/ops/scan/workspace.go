package scan

import "github.com/sternway/sternway/core/internal/num"

// scanStates are the sizes of what is handed from part to part: of a head and of a tail, for float32 and for float64 accumulators.
var scanStates = map[string][2]struct{ head, tail int64 }{
	"cumsum":       {{0, 8}, {0, 8}},
	"cumprod":      {{8, 16}, {16, 32}},
	"cumextremum":  {{4, 8}, {8, 16}},
	"logcumsumexp": {{8, 8}, {16, 16}},
	"indices":      {{0, 8}, {0, 16}},
}

// Needs is the number of bytes of what launches leave for others.
func (s *ScanProgram) Needs(code string, g *ScanShape) int64 {
	bytes := s.statesEnd(code, g) + s.recordBytes(g)
	if g.marked && ScanKernels[g.Kernel].Instead != "" {
		again := s.Again(g)
		bytes = max(bytes, s.Needs(code, &again))
	}
	return bytes
}

// statesEnd is that of marks, and of what parts and tiles leave: heads of parts, heads before tiles, tails of parts. Records come behind.
func (s *ScanProgram) statesEnd(code string, g *ScanShape) int64 {
	if g.Tiles*g.Parts == 1 || g.held {
		return g.marks + s.toldBytes(g)
	}
	size, all := scanStates[code][s.element.Size()/8], g.Strips*g.Parts*g.Columns
	return g.marks + s.toldBytes(g) + num.Align16(all*size.head) + num.Align16(all*g.Tiles*size.head) + num.Align16(all*size.tail)
}

// badBytes is the room for what is known of each row of indices, and of all.
func (s *ScanProgram) badBytes() int64 {
	if !s.indexed() {
		return 0
	}
	return num.Align16(4 * (1 + s.RowCount()))
}

// stateBytes is enough for rows and for columns, whatever dimension dx is dense along.
func (s *ScanProgram) stateBytes() (most int64) {
	rows := s.RowCount()
	if rows == 0 || s.Length() == 0 {
		return 0
	}
	codes := []string{s.Code()}
	if s.indexed() {
		codes = append(codes, "indices")
	}
	for _, code := range codes {
		need := func(kernel string, columns int64) {
			g := s.Share(code, kernel, rows, columns)
			most = max(most, s.Needs(code, &g))
			quicker := []string{s.Variant}
			if !s.forced {
				quicker = s.quicker(columns)
			}
			for _, quick := range quicker {
				if ScanKernels[quick].Instead != kernel || code != s.Code() {
					continue
				}
				g = s.Share(code, quick, rows, columns)
				most = max(most, s.Needs(code, &g))
				for quick == "long" && g.Beside > 1 && s.Together(&g) { // or of smaller teams
					g.Beside--
					s.team(&g)
					most = max(most, s.Needs(code, &g))
				}
			}
		}
		if !s.forced || s.Variant == "tiles" || ScanKernels[s.Variant].Instead == "tiles" {
			if s.forced || s.along(code, false) == "tiles" {
				need("tiles", 1)
			}
		}
		if s.forced && s.Variant != "columns" && ScanKernels[s.Variant].Instead != "columns" {
			continue
		}
		need("columns", s.Inner())
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

// toldHeads and toldBytes are the room for what blocks tell each other: heads of parts, and behind them tails of tiles.
func (s *ScanProgram) toldHeads(g *ScanShape) int64 {
	return packet * g.Strips * g.Parts * num.CeilDiv(scanStates[s.Code()][s.element.Size()/8].head, told)
}

func (s *ScanProgram) toldBytes(g *ScanShape) int64 {
	if !s.Together(g) {
		return 0
	}
	tail := scanStates[s.Code()][s.element.Size()/8].tail
	return s.toldHeads(g) + packet*g.Strips*g.Parts*g.Tiles*num.CeilDiv(tail, told)
}

// recordBytes is the room for a bit of each element, in whole tiles.
func (s *ScanProgram) recordBytes(g *ScanShape) int64 {
	if g.held || ScanKernels[g.Kernel].Instead == "" || !s.recorded() {
		return 0
	}
	columns, length, _ := s.RingTile(g.Kernel)
	return g.Strips * g.Parts * g.Tiles * columns * length / 8
}
