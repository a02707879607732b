// Package gpu selects, configures and launches the CUDA kernels of scans. Selection is a pure
// function of a Problem and a Layout (select.go); its tuned numbers are in tuning.go.
package gpu

import "slices"

// Names of the kernels of scans: a direction and a strategy.
const (
	RowPacked       = "row_packed"       // several short rows in a warp
	RowResident     = "row_resident"     // one row in the registers of a few warps
	RowTiled        = "row_tiled"        // one row, tile by tile; any layout
	RowPipelined    = "row_pipelined"    // one row, tiles prefetched by a cp.async pipeline
	RowCluster      = "row_cluster"      // one row in the registers of a thread-block cluster
	ColumnTiled     = "column_tiled"     // a panel of adjacent columns, tile by tile; any layout
	ColumnPipelined = "column_pipelined" // a panel, tiles prefetched by a cp.async pipeline
	ColumnCluster   = "column_cluster"   // a panel in the registers of a thread-block cluster
	Repair          = "repair"           // recomputes rows whose indices cannot be those of a cummax or cummin
)

// Kernels of the kinds, in the order of a plan's symbols.
var (
	commonKernels   = []string{RowPacked, RowResident, RowTiled, ColumnTiled, ColumnPipelined, RowPipelined}
	prefixKernels   = append(slices.Clone(commonKernels), RowCluster)
	FastPathKernels = append(slices.Clone(prefixKernels), ColumnCluster)
	generalKernels  = []string{RowPacked, RowResident, RowTiled, ColumnTiled}
	indexKernels    = append(slices.Clone(generalKernels), Repair)
	RecordKernels   = []string{ColumnPipelined, RowPipelined} // record passes of kinds that have indices
)

// Kind is the arithmetic of a kernel. The kinds of gradients carry a prefix over x (cumsum has
// none) and a suffix over dy. A forward kind computes a scan itself: its running value is the
// suffix of a scan in the other direction, and it has no prefix.
type Kind struct {
	Name         string // of the tuned numbers in CUDA, such as CumprodTuning
	SymbolPrefix string // of the kernels: the rest of a symbol is the kernel and the dtype
	Image        string // the kernel image that holds them

	kernels      []string
	hasPrefix    bool          // elements depend on a prefix over x; without one, row_tiled reads its operands once
	hasFastPath  bool          // rows outside of the range of the fast path are recomputed by a fallback pass
	hasRecords   bool          // a record pass over x leaves one bit per element to the passes over dy
	hasRowFlags  bool          // the workspace has a flag for each row, set if its indices cannot be those of a cummax or cummin
	readsIndices bool          // in place of x, element by element
	tileOperands int64         // operands staged in each tile of a pipeline
	states       [2]stateSizes // with float32 and with float64 accumulators
	isLinear     bool          // a linear recurrence, or its gradient
	hasOneFactor bool          // of all elements of a row of a linear recurrence, which is read in place of a
	hasWide      bool          // results may be accumulators or sums of groups of elements, and a row may have one factor
	isPacked     bool          // rows are packed sequences
	// The kind computes so much that row_pipelined is faster than row_tiled also for many rows that
	// are read once (1024 rows of 65536 on an H200).
	pipelinesManyRows bool

	Tuning
}

// Kernels are the names of the kernels of the kind.
func (k *Kind) Kernels() []string { return k.kernels }

// HasFastPath reports whether the kind is tried first in arithmetic that is right only while
// numbers stay in range.
func (k *Kind) HasFastPath() bool { return k.hasFastPath }

// HasKernel reports whether the kind has a kernel of this name.
func (k *Kind) HasKernel(name string) bool { return slices.Contains(k.kernels, name) }

// Kinds are all kinds. Each row says everything about one: its symbols and image, its traits, and
// its tuned numbers. Those were measured on an H100 SXM5, except for linear recurrences, which have
// numbers of kinds with as many operands.
var Kinds = []*Kind{Cumsum, Cumprod, Cumextremum, Logcumsumexp, Indices, ForwardCumprod, ForwardCumextremum, ForwardIndices, ForwardLogcumsumexp, Linear, LinearBackward, LinearOneFactor}

// The kinds.
var (
	// The forward of cumsum has these kernels, too: the gradient of a cumsum is a cumsum in the
	// other direction.
	Cumsum = &Kind{
		Name: "Cumsum", SymbolPrefix: "scan_backward_cumsum", Image: "scan",
		kernels: commonKernels, tileOperands: 1, states: [2]stateSizes{{0, 8}, {0, 8}},
		Tuning: Tuning{
			RowPackedVectors:       each(4),
			RowPackedCTAsPerSM:     each(5),
			RowResidentVectors:     ints{4, 8, 8},
			RowResidentCTAsPerSM:   ints{3, 2, 2},
			RowTiledVectors:        each(4),
			RowPipelinedVectors:    each(8),
			RowPipelinedCTAsPerSM:  each(2),
			RowPipelinedSmem:       each(12 << 10),
			MaxCooperativeSplits:   each(256),
			CooperativeRows:        bools{true, true, true},
			ColumnTiledColumns:     ints{4, 2, 1},
			ColumnTiledRows:        each(8),
			ColumnPipelinedColumns: ints{64, 64, 32},
			ColumnPipelinedRows:    each(8),
			maxCachedBytes:         each(8 << 20),
		},
	}

	Cumprod = &Kind{
		Name: "Cumprod", SymbolPrefix: "scan_backward_cumprod", Image: "scan_cumprod",
		kernels: FastPathKernels, hasPrefix: true, hasFastPath: true, tileOperands: 2, states: [2]stateSizes{{8, 16}, {16, 32}},
		Tuning: Tuning{
			RowPackedVectors:       ints{2, 2, 4},
			RowPackedCTAsPerSM:     ints{2, 3, 3},
			RowResidentVectors:     each(4),
			RowResidentCTAsPerSM:   each(2),
			RowTiledVectors:        each(2),
			RowPipelinedVectors:    each(4),
			RowPipelinedCTAsPerSM:  each(2),
			RowPipelinedSmem:       each(12 << 10),
			MaxCooperativeSplits:   each(256),
			CooperativeRows:        bools{true, true, false},
			ColumnTiledColumns:     ints{2, 1, 1},
			ColumnTiledRows:        ints{8, 16, 8},
			ColumnPipelinedColumns: ints{64, 32, 32},
			ColumnPipelinedRows:    ints{16, 16, 8},
			maxCachedBytes:         each(16 << 20),
			gridResidentRows:       bools{true, true, true},
			rowsInFlight:           perSize[saturation]{{250, 4, true}, {228, 4, false}, {225, 6, false}},
			columnClusterLines:     each(2 * warpThreads),
		},
	}

	// Cumextremum is cummax and cummin by x.
	Cumextremum = &Kind{
		Name: "Cumextremum", SymbolPrefix: "scan_backward_cumextremum", Image: "scan",
		kernels: prefixKernels, hasPrefix: true, hasRecords: true, hasRowFlags: true, tileOperands: 1, states: [2]stateSizes{{4, 8}, {8, 16}},
		Tuning: Tuning{
			RowPackedVectors:       each(4),
			RowPackedCTAsPerSM:     each(3),
			RowResidentVectors:     each(4),
			RowResidentCTAsPerSM:   each(2),
			RowTiledVectors:        each(2),
			RowPipelinedVectors:    each(4),
			RowPipelinedCTAsPerSM:  each(3),
			RowPipelinedSmem:       each(7 << 10),
			MaxCooperativeSplits:   each(512),
			CooperativeRows:        bools{true, true, true},
			ColumnTiledColumns:     ints{2, 1, 1},
			ColumnTiledRows:        ints{16, 16, 8},
			ColumnPipelinedColumns: ints{64, 64, 32},
			ColumnPipelinedRows:    ints{16, 8, 8},
			maxCachedBytes:         each(16 << 20),
			gridResidentRows:       bools{true, true, false},
			rowsInFlight:           perSize[saturation]{{300, 2, true}, {245, 4, false}, {280, 5, false}},
		},
	}

	Logcumsumexp = &Kind{
		Name: "Logcumsumexp", SymbolPrefix: "scan_backward_logcumsumexp", Image: "scan_logcumsumexp",
		kernels: FastPathKernels, hasPrefix: true, hasFastPath: true, tileOperands: 2, states: [2]stateSizes{{8, 8}, {16, 16}},
		Tuning: Tuning{
			RowPackedVectors:          ints{2, 2, 4},
			RowPackedCTAsPerSM:        ints{3, 4, 4},
			RowResidentVectors:        ints{2, 4, 4},
			RowResidentCTAsPerSM:      each(2),
			RowTiledVectors:           ints{1, 2, 2},
			RowPipelinedVectors:       each(4),
			RowPipelinedCTAsPerSM:     each(2),
			RowPipelinedSmem:          each(12 << 10),
			MaxCooperativeSplits:      each(256),
			CooperativeRows:           bools{false, true, false},
			ColumnTiledColumns:        ints{2, 1, 1},
			ColumnTiledRows:           ints{8, 16, 8},
			ColumnPipelinedColumns:    ints{64, 32, 32},
			ColumnPipelinedRows:       ints{16, 16, 8},
			maxCachedBytes:            each(16 << 20),
			gridResidentRows:          bools{true, true, true},
			rowsInFlight:              perSize[saturation]{{290, 5, true}, {262, 5, false}, {310, 6, false}},
			columnClusterLines:        ints{2*warpThreads + ColumnBaseRows + RecomputedRows, 2*warpThreads + ColumnBaseRows, 2*warpThreads + ColumnBaseRows},
			columnClusterComputeBound: bools{true, false, false},
		},
	}

	// Indices is cummax and cummin by the indices of their forward.
	Indices = &Kind{
		Name: "Indices", SymbolPrefix: "scan_backward_indices", Image: "scan",
		kernels: indexKernels, readsIndices: true, hasRowFlags: true, states: [2]stateSizes{{0, 8}, {0, 16}},
		Tuning: Tuning{
			RowPackedVectors:     each(4),
			RowPackedCTAsPerSM:   each(3),
			RowResidentVectors:   each(4),
			RowResidentCTAsPerSM: each(2),
			RowTiledVectors:      each(2),
			rowTiledFills:        bools{true, true, false},
			ColumnTiledColumns:   ints{2, 1, 1},
			ColumnTiledRows:      ints{8, 16, 8},
			maxCachedBytes:       each(16 << 20),
		},
	}

	ForwardCumprod = &Kind{
		Name: "ForwardCumprod", SymbolPrefix: "scan_cumprod", Image: "scan_forward",
		kernels: commonKernels, tileOperands: 1, states: [2]stateSizes{{0, 12}, {0, 16}}, pipelinesManyRows: true,
		Tuning: Tuning{
			RowPackedVectors:       each(4),
			RowPackedCTAsPerSM:     each(4),
			RowResidentVectors:     each(4),
			RowResidentCTAsPerSM:   each(2),
			RowTiledVectors:        each(4),
			RowPipelinedVectors:    ints{4, 8, 8},
			RowPipelinedCTAsPerSM:  each(2),
			RowPipelinedSmem:       each(12 << 10),
			MaxCooperativeSplits:   each(256),
			CooperativeRows:        bools{true, true, true},
			ColumnTiledColumns:     ints{4, 2, 1},
			ColumnTiledRows:        each(8),
			ColumnPipelinedColumns: ints{64, 64, 32},
			ColumnPipelinedRows:    ints{16, 8, 8},
			maxCachedBytes:         each(8 << 20),
		},
	}

	// ForwardCumextremum computes values alone.
	ForwardCumextremum = &Kind{
		Name: "ForwardCumextremum", SymbolPrefix: "scan_cumextremum", Image: "scan_forward",
		kernels: commonKernels, tileOperands: 1, states: [2]stateSizes{{0, 4}, {0, 8}},
		Tuning: Tuning{
			RowPackedVectors:       each(4),
			RowPackedCTAsPerSM:     each(4),
			RowResidentVectors:     ints{4, 8, 4},
			RowResidentCTAsPerSM:   ints{3, 2, 2},
			RowTiledVectors:        each(4),
			RowPipelinedVectors:    each(8),
			RowPipelinedCTAsPerSM:  each(2),
			RowPipelinedSmem:       each(12 << 10),
			MaxCooperativeSplits:   each(256),
			CooperativeRows:        bools{true, true, true},
			ColumnTiledColumns:     ints{4, 2, 1},
			ColumnTiledRows:        each(8),
			ColumnPipelinedColumns: ints{64, 64, 32},
			ColumnPipelinedRows:    ints{16, 8, 8},
			maxCachedBytes:         each(8 << 20),
		},
	}

	// ForwardIndices computes values and indices.
	ForwardIndices = &Kind{
		Name: "ForwardIndices", SymbolPrefix: "scan_indices", Image: "scan_forward",
		kernels: commonKernels, tileOperands: 1, states: [2]stateSizes{{0, 12}, {0, 16}},
		Tuning: Tuning{
			RowPackedVectors:       each(4),
			RowPackedCTAsPerSM:     each(3),
			RowResidentVectors:     each(4),
			RowResidentCTAsPerSM:   each(2),
			RowTiledVectors:        each(4),
			RowPipelinedVectors:    ints{4, 8, 8},
			RowPipelinedCTAsPerSM:  each(2),
			RowPipelinedSmem:       each(12 << 10),
			MaxCooperativeSplits:   each(256),
			CooperativeRows:        bools{true, true, true},
			ColumnTiledColumns:     ints{2, 1, 1},
			ColumnTiledRows:        ints{16, 16, 8},
			ColumnPipelinedColumns: ints{64, 32, 32},
			ColumnPipelinedRows:    ints{16, 16, 8},
			maxCachedBytes:         each(8 << 20),
		},
	}

	ForwardLogcumsumexp = &Kind{
		Name: "ForwardLogcumsumexp", SymbolPrefix: "scan_logcumsumexp", Image: "scan_forward",
		kernels: commonKernels, tileOperands: 1, states: [2]stateSizes{{0, 8}, {0, 16}}, pipelinesManyRows: true,
		Tuning: Tuning{
			RowPackedVectors:       each(4),
			RowPackedCTAsPerSM:     ints{2, 3, 3},
			RowResidentVectors:     ints{2, 4, 4},
			RowResidentCTAsPerSM:   each(2),
			RowTiledVectors:        ints{2, 4, 4},
			RowPipelinedVectors:    ints{4, 8, 4},
			RowPipelinedCTAsPerSM:  each(2),
			RowPipelinedSmem:       each(12 << 10),
			MaxCooperativeSplits:   each(256),
			CooperativeRows:        bools{true, true, true},
			ColumnTiledColumns:     ints{2, 2, 1},
			ColumnTiledRows:        each(8),
			ColumnPipelinedColumns: ints{64, 32, 32},
			ColumnPipelinedRows:    ints{16, 16, 8},
			maxCachedBytes:         each(8 << 20),
		},
	}

	Linear = &Kind{
		Name: "Linear", SymbolPrefix: "linear_recurrence", Image: "scan_linear",
		kernels: commonKernels, isLinear: true, tileOperands: 2, states: [2]stateSizes{{0, 16}, {0, 24}},
		Tuning: Tuning{
			RowPackedVectors:       each(4),
			RowPackedCTAsPerSM:     each(3),
			RowResidentVectors:     each(4),
			RowResidentCTAsPerSM:   each(2),
			RowTiledVectors:        each(2),
			RowPipelinedVectors:    ints{2, 4, 4},
			RowPipelinedCTAsPerSM:  each(2),
			RowPipelinedSmem:       each(16 << 10),
			MaxCooperativeSplits:   each(256),
			CooperativeRows:        bools{true, true, true},
			ColumnTiledColumns:     ints{2, 1, 1},
			ColumnTiledRows:        ints{8, 16, 8},
			ColumnPipelinedColumns: ints{64, 32, 32},
			ColumnPipelinedRows:    ints{16, 16, 8},
			maxCachedBytes:         each(16 << 20),
		},
	}

	LinearBackward = &Kind{
		Name: "LinearBackward", SymbolPrefix: "linear_recurrence_backward", Image: "scan_linear",
		kernels: commonKernels, isLinear: true, tileOperands: 3, states: [2]stateSizes{{0, 16}, {0, 24}},
		Tuning: Tuning{
			RowPackedVectors:       each(4),
			RowPackedCTAsPerSM:     each(2),
			RowResidentVectors:     each(4),
			RowResidentCTAsPerSM:   each(1),
			RowTiledVectors:        each(2),
			RowPipelinedVectors:    each(2),
			RowPipelinedCTAsPerSM:  each(2),
			RowPipelinedSmem:       each(16 << 10),
			MaxCooperativeSplits:   each(256),
			CooperativeRows:        bools{true, true, true},
			ColumnTiledColumns:     ints{2, 1, 1},
			ColumnTiledRows:        ints{8, 16, 8},
			ColumnPipelinedColumns: ints{64, 32, 32},
			ColumnPipelinedRows:    each(8),
			maxCachedBytes:         each(16 << 20),
		},
	}

	// LinearOneFactor is a linear recurrence whose rows have one factor each, or all the same one.
	LinearOneFactor = &Kind{
		Name: "LinearOneFactor", SymbolPrefix: "linear_recurrence_one", Image: "scan_linear_one",
		kernels: commonKernels, isLinear: true, hasOneFactor: true, tileOperands: 1, states: [2]stateSizes{{0, 16}, {0, 24}},
		Tuning: Tuning{
			RowPackedVectors:       each(4),
			RowPackedCTAsPerSM:     each(3),
			RowResidentVectors:     each(4),
			RowResidentCTAsPerSM:   each(2),
			RowTiledVectors:        ints{2, 4, 2},
			RowPipelinedVectors:    ints{4, 8, 4},
			RowPipelinedCTAsPerSM:  each(2),
			RowPipelinedSmem:       each(16 << 10),
			MaxCooperativeSplits:   each(256),
			CooperativeRows:        bools{true, true, true},
			ColumnTiledColumns:     ints{2, 1, 1},
			ColumnTiledRows:        ints{8, 16, 8},
			ColumnPipelinedColumns: ints{64, 32, 32},
			ColumnPipelinedRows:    ints{16, 16, 8},
			maxCachedBytes:         each(8 << 20),
		},
	}

	// LinearTerms is the gradient of a linear recurrence of 16 bits whose results may be terms of
	// sums, or whose factor is a number of 32 bits.
	LinearTerms = linearTerms(generalKernels)

	// LinearRowSums is LinearTerms of float32, for sums along rows.
	LinearRowSums = linearTerms(generalKernels[1:])
)

func linearTerms(kernels []string) *Kind {
	k := *LinearBackward
	k.SymbolPrefix, k.Image, k.kernels, k.hasWide = "linear_recurrence_terms", "scan_linear_terms", kernels, true
	return &k
}
