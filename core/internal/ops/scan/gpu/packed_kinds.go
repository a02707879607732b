package gpu

// The kinds of packed sequences, which are made of the general kinds (cuda/scan/kinds/packed.cuh).

// packedKernels are the kernels of packed kinds, in the order of a plan's symbols. Kinds with a
// prefix and those of special linear recurrences have the first three, and all but linear
// recurrences the first four.
var packedKernels = []string{RowTiled, RowResident, ColumnTiled, RowPipelined, ColumnPipelined}

// packed is a general kind on rows of packed sequences, with states that may be closed.
func packed(kind *Kind, states [2]stateSizes) *Kind {
	k := *kind
	k.SymbolPrefix += "_packed"
	k.kernels, k.states, k.isPacked = packedKernels, states, true
	k.RowPipelinedVectors[0] = min(k.RowPipelinedVectors[0], 4) // heads of a thread are one word
	for i := range k.RowResidentVectors {
		k.RowResidentVectors[i] = min(k.RowResidentVectors[i], TransposedVectors)
	}
	switch {
	case kind.hasPrefix || kind.hasOneFactor || kind.hasWide:
		k.kernels = packedKernels[:3]
	case !kind.isLinear: // column_tiled is as fast
		k.kernels = packedKernels[:4]
	}
	if kind.hasPrefix {
		k.tuneForLongStates()
	}
	k.hasFastPath, k.hasRecords, k.hasRowFlags = false, false, false
	if !k.isLinear {
		k.Image = "scan_packed"
	}
	return &k
}

// tuneForLongStates sets tuned numbers for states that take long to combine, measured on an H200:
// threads have many elements, up to one for each bit of a word of heads, and registers for them.
// CTAs have PackedTiledThreads, so that one computes while another waits for its warps.
func (k *Kind) tuneForLongStates() {
	k.RowResidentVectors, k.RowResidentCTAsPerSM = ints{4, 8, 4}, each(1)
	k.RowTiledVectors, k.ColumnTiledRows = each(4), ints{16, 32, 8}
	if k.hasRecords { // its states are short, and 16-bit elements need few registers
		k.RowResidentCTAsPerSM[0] = 2
	}
}

// Kinds of packed sequences, by the kind of other rows.
var Packed = map[*Kind]*Kind{
	Cumsum:              packed(Cumsum, [2]stateSizes{{0, 16}, {0, 16}}),
	Cumprod:             packed(Cumprod, [2]stateSizes{{16, 24}, {24, 40}}),
	Cumextremum:         packed(Cumextremum, [2]stateSizes{{8, 8}, {16, 16}}),
	Logcumsumexp:        packed(Logcumsumexp, [2]stateSizes{{12, 12}, {24, 24}}),
	ForwardCumprod:      packed(ForwardCumprod, [2]stateSizes{{0, 16}, {0, 24}}),
	ForwardCumextremum:  packed(ForwardCumextremum, [2]stateSizes{{0, 8}, {0, 16}}),
	ForwardIndices:      packed(ForwardIndices, [2]stateSizes{{0, 16}, {0, 24}}),
	ForwardLogcumsumexp: packed(ForwardLogcumsumexp, [2]stateSizes{{0, 12}, {0, 24}}),
	Linear:              packed(Linear, Linear.states),
	LinearBackward:      packed(LinearBackward, LinearBackward.states),
	LinearOneFactor:     packed(LinearOneFactor, LinearOneFactor.states),
	LinearTerms:         packed(LinearTerms, LinearTerms.states),
}
