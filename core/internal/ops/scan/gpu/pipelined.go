package gpu

import "github.com/sternway/sternway/core/internal/num"

// The pipelined kernels prefetch tiles into a circular buffer in shared memory by cp.async
// (multi-stage pipeline). column_pipelined takes panels of adjacent columns; row_pipelined takes
// rows, of which a few are cooperative: several resident CTAs share a row, and exchange prefixes by
// tile status (decoupled look-back).

// PipelinedTile is a tile of a pipelined kernel.
type PipelinedTile struct {
	Columns int64
	Length  int64 // elements of a column, or of a row
	Bytes   int64 // in a stage
}

func rowPipelinedTile(p *Problem) PipelinedTile {
	return tileOf(p, 1, RowPipelinedThreads*p.Kind.RowPipelinedVectors.Of(p)*p.Vector())
}

func columnPipelinedTile(p *Problem) PipelinedTile {
	return tileOf(p, p.Kind.ColumnPipelinedColumns.Of(p), ColumnPipelinedThreads/warpThreads*p.Kind.ColumnPipelinedRows.Of(p))
}

func tileOf(p *Problem, columns, length int64) PipelinedTile {
	kind := p.Kind
	bytes := columns * length * p.ElementSize * kind.tileOperands
	if kind.hasRecords {
		bytes += columns * length / 8
	}
	return PipelinedTile{columns, length, bytes}
}

// TileOf is the tile of a pipelined kernel.
func TileOf(p *Problem, kernel string) PipelinedTile { return strategyOf(kernel).tile(p) }

func supportsLengthPipelined(p *Problem) bool { return p.Length <= maxPipelinedLength }

func configureColumnPipelined(p *Problem, columns int64) Config {
	tile := columnPipelinedTile(p)
	c := Config{Kernel: ColumnPipelined, PanelColumns: tile.Columns, Block: ColumnPipelinedThreads, CTAsPerSM: 1}
	c.Segments = num.CeilDiv(columns, tile.Columns) * (p.Rows / columns)
	c.reserveFlags(p, c.Segments)
	c.split(num.CeilDiv(max(1, p.Length), tile.Length), p.Device.NumSMs)
	c.Grid = c.Segments * c.Splits
	c.makePersistent(p.Device.NumSMs)
	return c
}

func configureRowPipelined(p *Problem, _ int64) Config {
	c := Config{Kernel: RowPipelined, PanelColumns: 1, Block: RowPipelinedThreads, Segments: p.Rows, CTAsPerSM: p.Kind.RowPipelinedCTAsPerSM.Of(p)}
	c.reserveFlags(p, c.Segments)
	if p.Kind.CooperativeRows.Of(p) {
		c.cooperate(p)
	} else {
		c.split(num.CeilDiv(max(1, p.lineAlignedLength()), rowPipelinedTile(p).Length), c.CTAsPerSM*p.Device.NumSMs)
		c.Grid = c.Segments * c.Splits
	}
	c.makePersistent(p.Device.NumSMs)
	return c
}

// makePersistent lets CTAs loop over segments that are not split, and prefetch the next one
// meanwhile. It takes one CTA less per SM if that shortens the last round.
func (c *Config) makePersistent(numSMs int64) {
	if c.Splits > 1 {
		return
	}
	rounds := func(ctasPerSM int64) int64 { return ctasPerSM * num.CeilDiv(c.Segments, ctasPerSM*numSMs) }
	if c.CTAsPerSM > 2 && rounds(c.CTAsPerSM-1) < rounds(c.CTAsPerSM) {
		c.CTAsPerSM--
	}
	c.Grid = min(c.Segments, c.CTAsPerSM*numSMs)
}

// cooperate gives a few rows several CTAs each, all of which are resident at once.
func (c *Config) cooperate(p *Problem) {
	tiles, ctas := num.CeilDiv(max(1, p.lineAlignedLength()), rowPipelinedTile(p).Length), c.CTAsPerSM*p.Device.NumSMs
	c.Splits = num.Clamp(ctas/max(1, c.Segments), 1, min(tiles, p.Kind.MaxCooperativeSplits.Of(p)))
	c.balance(tiles)
	c.Cooperative = c.Splits > 1
	c.Grid, c.StatusOffset = min(c.Segments*c.Splits, ctas), c.FlagBytes
}

func fitColumnPipelined(p *Problem, c *Config) bool {
	return c.fillStages(p.Device.Limits.SmemBytes-ColumnPipelinedSmem, columnPipelinedTile(p).Bytes, minStages(c))
}

// fitRowPipelined takes as many CTAs per SM as have shared memory for their pipelines.
func fitRowPipelined(p *Problem, c *Config) bool {
	static, bytes, smem := p.Kind.RowPipelinedSmem.Of(p), rowPipelinedTile(p).Bytes, p.Device.Limits.SmemBytes
	stages, most := minStages(c), c.CTAsPerSM
	for smem/c.CTAsPerSM-static < stages*bytes && c.CTAsPerSM > 1 {
		c.CTAsPerSM--
	}
	if c.CTAsPerSM < most && p.Kind.CooperativeRows.Of(p) {
		c.cooperate(p)
	}
	return c.fillStages(smem/c.CTAsPerSM-static, bytes, stages)
}

// minStages is the smallest number of stages. A cooperative row keeps one tile for its next phase.
func minStages(c *Config) int64 {
	if c.Cooperative {
		return 3
	}
	return 2
}

// fillStages takes as many stages as fit into the shared memory of a CTA, and reports whether there
// are enough.
func (c *Config) fillStages(smem, tileBytes, least int64) bool {
	c.Stages = min(smem/tileBytes, maxStages)
	c.SmemBytes = uint32(max(0, c.Stages*tileBytes))
	return c.Stages >= least
}
