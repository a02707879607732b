package gpu

// Kinds are all kinds. Each row says everything about one: its symbols and image, its traits, and
// its tuned numbers. Those were measured on an H100 SXM5.
var Kinds = []*Kind{Cumsum, Cumprod, Cumextremum, Logcumsumexp, Indices, ForwardCumprod, ForwardCumextremum, ForwardIndices, ForwardLogcumsumexp}

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
)
