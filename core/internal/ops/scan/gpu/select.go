package gpu

// Kernel selection: a table of strategies, tried in order. select.go decides, tuning.go has the
// numbers.

import (
	"cmp"

	"github.com/sternway/sternway/core/internal/num"
)

// strategy is one kernel as selection sees it: what it supports, when it is the fastest, and how it
// is configured. `columns` is the number of adjacent columns, and 1 for rows.
type strategy struct {
	kernel         string
	baseline       string                // general kernel that it specializes; "": it is general
	takesColumns   bool                  // segments are panels of adjacent columns, not rows
	minBytes       int64                 // least size of an operand [bytes]
	supportsLength func(p *Problem) bool // nil: any length
	supportsLayout func(l *Layout) bool  // nil: any layout
	// isFaster reports whether the kernel is faster than its baseline; nil: the kernel is general.
	isFaster  func(p *Problem, columns int64) bool
	configure func(p *Problem, columns int64) Config
	// fitToDevice clips c to the device limits. false: too few CTAs fit. nil: the kernel is
	// general.
	fitToDevice func(p *Problem, c *Config) bool
	// fallback turns c into the fallback pass, and returns the number of CTAs that may share split
	// segments (0: no split). nil: the kernel is its own fallback.
	fallback func(p *Problem, c *Config) (ctas int64)
	tile     func(p *Problem) PipelinedTile // tile of a stage; nil: no pipeline
	vectors  vectorization                  // layouts that are read in 16-byte vectors
}

// vectorization says in which layouts a kernel reads whole aligned 16-byte vectors.
type vectorization struct {
	supported   bool                  // rows that begin with an aligned vector
	misaligned  func(kind *Kind) bool // rows that begin inside a vector, too; nil: of no kind
	lineAligned bool                  // tiles that begin with a cache line, too
}

// strategies are the kernels in the order in which selection tries them: specialized kernels,
// fastest first, then general ones.
//
//	kernel            lengths              layout             min bytes  device    baseline
//	column_cluster    512 to 8192          aligned panels     0          clusters  column_tiled
//	column_pipelined  at most 2^30         aligned panels     2^20       any       column_tiled
//	row_cluster       over row_resident's  aligned rows       2^20       clusters  row_tiled
//	row_pipelined     at most 2^30         equal row offsets  2^20       any       row_tiled
//	column_tiled      any                  any                0          any
//	row_packed        short                any                0          any
//	row_resident      a CTA's registers    any                0          any
//	row_tiled         any                  any                0          any
var strategies = [...]strategy{
	{
		kernel: ColumnCluster, baseline: ColumnTiled, takesColumns: true,
		supportsLength: supportsLengthColumnCluster, supportsLayout: columnsContiguous, isFaster: columnClusterIsFaster,
		configure: configureColumnCluster, fitToDevice: fitColumnCluster, fallback: fallbackColumnCluster,
		vectors: vectorization{supported: true},
	},
	{
		kernel: ColumnPipelined, baseline: ColumnTiled, takesColumns: true, minBytes: minSpecializedBytes,
		supportsLength: supportsLengthPipelined, supportsLayout: columnsContiguous, isFaster: columnPipelinedIsFaster,
		configure: configureColumnPipelined, fitToDevice: fitColumnPipelined, fallback: fallbackColumnPipelined,
		tile: columnPipelinedTile, vectors: vectorization{supported: true},
	},
	{
		kernel: RowCluster, baseline: RowTiled, minBytes: minSpecializedBytes,
		supportsLength: supportsLengthRowCluster, supportsLayout: rowsAligned, isFaster: rowClusterIsFaster,
		configure: configureRowCluster, fitToDevice: fitRowCluster, fallback: fallbackRow,
		vectors: vectorization{supported: true},
	},
	{
		kernel: RowPipelined, baseline: RowTiled, minBytes: minSpecializedBytes,
		supportsLength: supportsLengthPipelined, supportsLayout: rowsEquallyOffset, isFaster: rowPipelinedIsFaster,
		configure: configureRowPipelined, fitToDevice: fitRowPipelined, fallback: fallbackRow,
		tile: rowPipelinedTile, vectors: vectorization{supported: true, misaligned: anyKind, lineAligned: true},
	},
	{kernel: ColumnTiled, takesColumns: true, configure: configureColumnTiled},
	{
		kernel: RowPacked, supportsLength: supportsLengthRowPacked, configure: configureRowPacked,
		vectors: vectorization{supported: true},
	},
	{
		kernel: RowResident, supportsLength: supportsLengthRowResident, configure: configureRowResident,
		vectors: vectorization{supported: true, misaligned: (*Kind).HasFastPath},
	},
	{kernel: RowTiled, configure: configureRowTiled, vectors: vectorization{supported: true}},
}

func anyKind(*Kind) bool { return true }

// Select returns the launch configuration for a problem whose operands have a layout. A specialized
// kernel is taken if it fits the device and the workspace. At plan time, without device limits,
// both are assumed. If the workspace does not suffice for the general kernel of the layout, the
// general kernel for rows is used.
func Select(p *Problem, l *Layout) Config {
	baseline, columns := baselineFor(p, l)
	if p.Carries {
		baseline, columns = carryBaseline(p, l)
		return Configure(p, baseline, columns)
	}
	atRunTime := p.Device.Limits != nil
	for i := range strategies {
		s := &strategies[i]
		if s.baseline != baseline || !s.supportsLayout(l) || !isCandidate(p, s, columns) {
			continue
		}
		c := s.configure(p, columns)
		if !atRunTime || s.fitToDevice(p, &c) && WorkspaceBytes(p, &c) <= p.Workspace {
			return c
		}
	}
	c := Configure(p, baseline, columns)
	if atRunTime && WorkspaceBytes(p, &c) > p.Workspace {
		c = Configure(p, rowBaseline(p, false), 1)
	}
	return c
}

// SelectContiguous is the configuration for contiguous operands.
func SelectContiguous(p *Problem) Config {
	layout := ContiguousLayout(p)
	c := Select(p, &layout)
	if p.IsExclusive && strategyOf(c.Kernel).takesColumns {
		columns := p.withoutLast()
		layout = ContiguousLayout(&columns)
		return Select(&columns, &layout)
	}
	return c
}

// baselineFor is the general kernel for a layout, or the one of a kernel that is asked for; and the
// number of adjacent columns that it takes.
func baselineFor(p *Problem, l *Layout) (kernel string, columns int64) {
	switch {
	case p.Kernel == "" && l.AlongColumns:
		return ColumnTiled, l.Columns
	case p.Kernel == "":
		if kernel = rowBaseline(p, l.RowsAdjacent); strategyOf(kernel).takesColumns {
			return kernel, l.Columns
		}
		return kernel, 1
	case !SupportsLength(p, p.Kernel):
		return RowTiled, 1
	}
	if kernel = baselineOf(p.Kernel); strategyOf(kernel).takesColumns {
		return kernel, l.Columns
	}
	return kernel, 1
}

// baselineOf is the general kernel that a kernel specializes, or the kernel itself if it is
// general.
func baselineOf(kernel string) string { return cmp.Or(strategyOf(kernel).baseline, kernel) }

// rowBaseline is the general kernel for rows. Kinds with a fast path use row_packed only if the
// rows of a warp are a whole number of vectors, because their row_resident also reads misaligned
// rows.
func rowBaseline(p *Problem, rowsAdjacent bool) string {
	if p.Kind.isPacked {
		return packedRowBaseline(p)
	}
	n, v := p.Length, p.Vector()
	alignedRows := n * v / num.GCD(v, n) // elements of the fewest rows that are whole vectors
	isShort := n <= rowPackedThreshold*RowPackedVectors*v && (rowsAdjacent || n < maxStridedPacked)
	switch {
	case isShort && (alignedRows <= warpThreads*RowPackedVectors*v || !p.Kind.HasFastPath()):
		return RowPacked
	case supportsLengthRowResident(p) && !tiledFillsDevice(p):
		return RowResident
	}
	return RowTiled
}

// packedRowBaseline is the general kernel for rows of packed sequences.
func packedRowBaseline(p *Problem) string {
	switch {
	case p.Length < minPackedRow: // CTAs of column_tiled take several
		return ColumnTiled
	case supportsLengthRowResident(p):
		return RowResident
	}
	return RowTiled
}

// tiledFillsDevice reports whether row_tiled keeps all threads of the device busy and is then
// faster than row_resident.
func tiledFillsDevice(p *Problem) bool {
	return p.Kind.rowTiledFills.Of(p) && p.Length >= minFillingTiles*RowResidentThreads && p.Rows >= fillCTAsPerSM*p.Device.NumSMs
}

// isCandidate reports whether a specialized kernel of the kind is tried before its baseline:
// because the caller asks for it, or because it is faster.
func isCandidate(p *Problem, s *strategy, columns int64) bool {
	switch {
	case s.isFaster == nil || !p.Kind.HasKernel(s.kernel):
		return false
	case p.Kernel != "":
		return p.Kernel == s.kernel
	case p.GeneralOnly || p.Length > maxPipelinedLength || p.operandBytes() < s.minBytes:
		return false
	}
	return s.isFaster(p, columns)
}

// arePanels reports whether adjacent columns fill a panel with whole vectors, and are longer than
// ColumnThreads/32 thread tiles of column_tiled.
func arePanels(p *Problem, columns int64) bool {
	return columns >= columnPipelinedTile(p).Columns && columns%p.Vector() == 0 && p.Length > p.Kind.ColumnTiledRows.Of(p)*ColumnThreads/warpThreads
}

// fitsOneCTA reports whether one CTA of column_tiled takes whole columns and the level-2 cache
// holds the operands. No kernel is faster then.
func fitsOneCTA(p *Problem, tiled *Config) bool {
	return tiled.TilesPerSplit*tiled.Splits == 1 && p.operandBytes() <= p.Kind.maxCachedBytes.Of(p)
}

func columnClusterIsFaster(p *Problem, columns int64) bool {
	if !arePanels(p, columns) || !p.Device.HasColumnClusters || !supportsLengthColumnCluster(p) || p.Length < minColumnClusterLength {
		return false
	}
	if tiled := configureColumnTiled(p, columns); fitsOneCTA(p, &tiled) {
		return false
	}
	c := configureColumnCluster(p, columns)
	computeBound := p.Kind.columnClusterComputeBound.Of(p) && c.Splits > MaxClusterCTAs/2
	return !computeBound || !p.Device.bandwidthRich() || 2*c.Segments < p.Device.NumSMs
}

// columnPipelinedIsFaster leaves to column_tiled the columns that it does unsplit where
// column_pipelined takes several launches.
func columnPipelinedIsFaster(p *Problem, columns int64) bool {
	if !arePanels(p, columns) {
		return false
	}
	tiled, pipelined := configureColumnTiled(p, columns), configureColumnPipelined(p, columns)
	return !fitsOneCTA(p, &tiled) && (tiled.Splits > 1 || pipelined.Splits == 1)
}

// areLongRows reports whether rows do not fit the registers of a CTA. Panels have kernels of their
// own.
func areLongRows(p *Problem, columns int64) bool {
	return columns == 1 && !supportsLengthRowResident(p)
}

func rowClusterIsFaster(p *Problem, columns int64) bool {
	if !areLongRows(p, columns) || minSplits(p) > MaxClusterCTAs && !p.Kind.gridResidentRows.Of(p) {
		return false
	}
	return p.Device.HasClusters && supportsLengthRowCluster(p) && p.Length%p.Vector() == 0
}

// rowPipelinedIsFaster leaves to row_tiled the rows that it, too, reads once, if there are enough
// of them or they are short.
func rowPipelinedIsFaster(p *Problem, columns int64) bool {
	kind := p.Kind
	leavesToTiled := !kind.hasPrefix && !kind.pipelinesManyRows && (p.Rows > saturatingRowsPerSM*p.Device.NumSMs || tilesPerRow(p) <= maxUnsplitTiles)
	return areLongRows(p, columns) && !leavesToTiled
}

// SupportsLength reports whether a kernel takes rows of this length. A cluster kernel must also be
// one of the kind.
func SupportsLength(p *Problem, kernel string) bool {
	supports := strategyOf(kernel).supportsLength
	return supports == nil || supports(p)
}

// Configure is the launch configuration of a kernel, before it is fitted to the device.
func Configure(p *Problem, kernel string, columns int64) Config {
	return strategyOf(kernel).configure(p, columns)
}

// FitToDevice clips the configuration of a specialized kernel to the limits of the device, and
// reports whether it is worthwhile.
func FitToDevice(p *Problem, c *Config) bool { return strategyOf(c.Kernel).fitToDevice(p, c) }

// IsSpecialized reports whether a kernel specializes a general one.
func IsSpecialized(kernel string) bool {
	s := strategyOf(kernel)
	return s != nil && s.baseline != ""
}

func strategyOf(kernel string) *strategy {
	for i := range strategies {
		if strategies[i].kernel == kernel {
			return &strategies[i]
		}
	}
	return nil
}
