package scan

import "github.com/sternway/sternway/core/internal/num"

// stateSizes are the sizes of what is handed from part to part: of a head and of a tail, for float32 and for float64 accumulators.
var stateSizes = map[string][2]struct{ head, tail int64 }{
	"cumsum":       {{0, 8}, {0, 8}},
	"cumprod":      {{8, 16}, {16, 32}},
	"cumextremum":  {{4, 8}, {8, 16}},
	"logcumsumexp": {{8, 8}, {16, 16}},
	"indices":      {{0, 8}, {0, 16}},
}

// WorkspaceBytes is the number of bytes of what launches leave for others.
func (s *Program) WorkspaceBytes(code string, g *Config) int64 {
	bytes := s.statesEnd(code, g) + s.recordBytes(g)
	if g.needsFallback && Strategies[g.Kernel].Baseline != "" {
		again := s.Fallback(g)
		bytes = max(bytes, s.WorkspaceBytes(code, &again))
	}
	return bytes
}

// statesEnd is that of marks, and of what parts and tiles leave: heads of parts, heads before tiles, tails of parts. Records come behind.
func (s *Program) statesEnd(code string, g *Config) int64 {
	if g.TilesPerSplit*g.Splits == 1 || g.resident {
		return g.flagBytes + s.statusTotalBytes(g)
	}
	size, all := stateSizes[code][s.element.Size()/8], g.Segments*g.Splits*g.Columns
	return g.flagBytes + s.statusTotalBytes(g) + num.Align16(all*size.head) + num.Align16(all*g.TilesPerSplit*size.head) + num.Align16(all*size.tail)
}

// indexFlagBytes is the room for what is known of each row of indices, and of all.
func (s *Program) indexFlagBytes() int64 {
	if !s.hasIndices() {
		return 0
	}
	return num.Align16(4 * (1 + s.RowCount()))
}

// maxWorkspaceBytes is enough for rows and for columns, whatever dimension dx is dense along.
func (s *Program) maxWorkspaceBytes() (most int64) {
	rows := s.RowCount()
	if rows == 0 || s.Length() == 0 {
		return 0
	}
	codes := []string{s.Code()}
	if s.hasIndices() {
		codes = append(codes, "indices")
	}
	for _, code := range codes {
		need := func(kernel string, columns int64) {
			g := s.Configure(code, kernel, rows, columns)
			most = max(most, s.WorkspaceBytes(code, &g))
			candidates := []string{s.Variant}
			if !s.forced {
				candidates = s.candidates(columns)
			}
			for _, quick := range candidates {
				if Strategies[quick].Baseline != kernel || code != s.Code() {
					continue
				}
				g = s.Configure(code, quick, rows, columns)
				most = max(most, s.WorkspaceBytes(code, &g))
				for quick == "long" && g.CTAsPerSM > 1 && s.Cooperative(&g) { // or of smaller teams
					g.CTAsPerSM--
					s.shareAmongCTAs(&g)
					most = max(most, s.WorkspaceBytes(code, &g))
				}
			}
		}
		if !s.forced || s.Variant == "tiles" || Strategies[s.Variant].Baseline == "tiles" {
			if s.forced || s.baselineFor(code, false) == "tiles" {
				need("tiles", 1)
			}
		}
		if s.forced && s.Variant != "columns" && Strategies[s.Variant].Baseline != "columns" {
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

// statusPrefixBytes and toldBytes are the room for what blocks tell each other: heads of parts, and behind them tails of tiles.
func (s *Program) statusPrefixBytes(g *Config) int64 {
	return statusBytes * g.Segments * g.Splits * num.CeilDiv(stateSizes[s.Code()][s.element.Size()/8].head, statusPayload)
}

func (s *Program) statusTotalBytes(g *Config) int64 {
	if !s.Cooperative(g) {
		return 0
	}
	tail := stateSizes[s.Code()][s.element.Size()/8].tail
	return s.statusPrefixBytes(g) + statusBytes*g.Segments*g.Splits*g.TilesPerSplit*num.CeilDiv(tail, statusPayload)
}

// recordBytes is the room for a bit of each element, in whole tiles.
func (s *Program) recordBytes(g *Config) int64 {
	if g.resident || Strategies[g.Kernel].Baseline == "" || !s.hasRecords() {
		return 0
	}
	columns, length, _ := s.PipelinedTile(g.Kernel)
	return g.Segments * g.Splits * g.TilesPerSplit * columns * length / 8
}
