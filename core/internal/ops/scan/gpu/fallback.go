package gpu

import "github.com/sternway/sternway/core/internal/num"

// Fallback is the configuration of the fallback pass after a launch of c: it recomputes the
// segments that the fast path rejected, in arithmetic that is right for all inputs. Usually there
// are none, so a few persistent CTAs read all flags. A segment that was split is split again.
func Fallback(p *Problem, c *Config) Config {
	f := *c
	if fallback := strategyOf(c.Kernel).fallback; fallback != nil {
		f.Kernel, f.SmemBytes, f.Splits, f.Resident, f.Cooperative = strategyOf(c.Kernel).baseline, 0, 1, false, false
		f.Stages, f.StatusOffset = 0, 0
		if ctas := fallback(p, &f); c.Splits > 1 && ctas > 0 {
			f.split(f.TilesPerSplit, ctas)
		}
		if c.Resident && c.PanelColumns == 1 {
			f.FlagsPerRow = c.Splits
		}
	}
	f.Grid = min(f.Segments*f.Splits, fillCTAsPerSM*p.Device.NumSMs)
	return f
}

// fallbackRow recomputes rows by row_tiled, and splits long ones.
func fallbackRow(p *Problem, f *Config) (ctas int64) {
	f.Block, f.FlagsPerRow, f.TilesPerSplit = RowResidentThreads, 1, tilesPerRow(p)
	if f.TilesPerSplit < fallbackMinTiles {
		return 0
	}
	return fillCTAsPerSM * p.Device.NumSMs
}

// fallbackColumnPipelined recomputes panels by column_tiled.
func fallbackColumnPipelined(p *Problem, f *Config) (ctas int64) {
	f.Block, f.ThreadsAcross = ColumnThreads, f.PanelColumns/p.Kind.ColumnTiledColumns.Of(p)
	f.ThreadsDown = f.Block / f.ThreadsAcross
	f.TilesPerSplit = num.CeilDiv(p.Length, p.Kind.ColumnTiledRows.Of(p)*f.ThreadsDown)
	f.SmemBytes = columnTiledSmem(p, f.Block)
	return fillCTAsPerSM * p.Device.NumSMs
}

// fallbackColumnCluster splits panels only if there are fewer of them than SMs.
func fallbackColumnCluster(p *Problem, f *Config) (ctas int64) {
	fallbackColumnPipelined(p, f)
	return p.Device.NumSMs
}
