package gpu

// This file states the arguments of the kernels of scans: core/internal/generate writes
// cuda/scan/args.gen.cuh from it.

import (
	"github.com/sternway/sternway/core/internal/launch"
	"github.com/sternway/sternway/core/internal/tensor"
)

// Bits of the field `flags` of ScanArgs.
const (
	FlagFirst         = 1 << iota // of equal elements the first one wins (cummax, cummin)
	FlagMinimum                   // cummin
	FlagReversed                  // position k of a kernel has index n - 1 - k (matters for indices only)
	FlagUpsweepPrefix             // upsweep (prefix): compute the prefixes of splits and nothing else
	FlagUpsweepSuffix             // upsweep (suffix): compute the suffixes of splits, given the prefixes
	// All operands are read in aligned 16-byte vectors, with one row stride and fewer than 2^32
	// rows. Rows (row_packed: the rows of a warp together) are whole vectors unless FlagMisaligned
	// is set. dy may have stride 0.
	FlagVectorized
	FlagFallback // fallback pass: only the segments that reject_flags reject
	// With FlagVectorized, along rows: a row may begin and end inside a vector, at the same offset
	// in all operands.
	FlagMisaligned
	FlagLineAligned // with FlagMisaligned: at the same offset of a 128-byte cache line, too
	FlagSummary     // with carries: combine the suffixes of splits and store nothing but the carry
	// Gradients of linear recurrences: the result is left out and has the layout of another
	// operand.
	FlagNoResult
	// Linear recurrences: states of the type of accumulators, not of elements.
	FlagStateInWide
	FlagStateOutWide
	FlagInitialWide
	// Exclusive scans, in kernel order. Nothing is scanned at the last position of each row or
	// packed sequence, where the result of a gradient is 0.
	FlagExclusive
	FlagReadsNext // kernels of rows: position k reads element k + 1 of the scanned operand
	// Linear recurrences: a row has one factor, and it has the type of accumulators.
	FlagOneFactor
	FlagFactorWide
	// Results of a gradient of a linear recurrence are stored as accumulators.
	FlagResultWide
	FlagSecondWide
	// The second result is the sum of that of the elements of a row that a warp has, or of a column
	// that a thread has; these sums are its elements along the scanned dim.
	FlagSecondSummed
)

// Launches that prepare and finish a scan.
const (
	MaxHeadPositions = 32 << 10 // positions of a CTA of scan_heads, at most
	headPositionStep = 1 << 10  // they are a multiple of this
)

// Strided is an operand of a kernel in scan order. Offsets and strides are in elements.
type Strided struct {
	data        launch.Address            // 0: the run has no such operand
	first, step int64                     // offset of the first element; stride along the scanned dim
	stride      [tensor.MaxRank - 1]int64 // of the other dims
}

// ScanArgs is the argument of the kernels of scans. A field of the launch configuration is 0 for
// kernels that its comment does not name.
type ScanArgs struct {
	n, dims int64                     // extent of the scanned dim; number of other dims
	extent  [tensor.MaxRank - 1]int64 // of the other dims, fastest first
	// Tiles of a split; splits of a segment (row_cluster, column_cluster: its CTAs); segments.
	tilesPerSplit, splits, segments int64
	rowsPerWarp                     int64 // row_packed
	rowsPerCTA, warpsPerRow         int64 // row_resident
	flagsPerRow                     int64 // row_tiled as a fallback pass: reject flags of a row
	threadsAcross, threadsDown      int64 // column_tiled: threads of a CTA along a row of a panel and along a column
	stages                          int64 // row_pipelined, column_pipelined: tiles in the circular buffer
	statusOffset                    int64 // row_pipelined, row_cluster: [bytes] from `states` to the tile-status words
	flags                           int64 // the bits Flag...
	// [bytes] from `states` to the states of splits and tiles, and to the record flags (a bit for
	// each element, tile by tile).
	stateOffset, recordOffset int64
	states                    launch.Address
	// Indices: [0] whether any row is wrong, [1 + row] whether this row is (no scan produces its
	// indices). Fast paths: rejections, [segment] or, of row_cluster, [segment, slice]; after the
	// last one, the CTA count of grid_sync.
	rejectFlags launch.Address `cuda:"int*"`
	inputs      [numInputs]Strided
	outputs     [numOutputs]Strided
}

// CarryArgs is the argument of kernels with carries. Of a carry, the step is that of its numbers.
type CarryArgs struct {
	ScanArgs
	prefixIn, suffixIn, suffixOut Strided // without data: nothing enters, or the state is not stored
	// Carries of adjacent chunks, which are combined, and their stride [numbers]. The nearest chunk
	// is the last of a prefix and the first of a suffix.
	prefixParts, prefixPartStride int64
	suffixParts, suffixPartStride int64
}

// LinearArgs is the argument of kernels of linear recurrences. States have a number for each row;
// one without data is left out. A state enters a row of a kernel at its end.
type LinearArgs struct {
	ScanArgs
	stateIn  Strided // the initial state; of a gradient that of the final state
	stateOut Strided // the final state; of a gradient that of the initial state
	initial  Strided // of a gradient: the initial state
	bounds   Bounds
	rows     int64 // linear_pass: rows of the operands
	// The factor of a row, if FlagOneFactor is set. It has dims of its own, in the order of the
	// operands, so that it does not keep theirs from being merged.
	factor       Strided
	factorDims   int64
	factorExtent [tensor.MaxRank - 1]int64
}

// Bounds are those of packed sequences, in the order of memory. Without data there are none.
type Bounds struct {
	data                launch.Address
	count, step, isWide int64 // of numbers; step [elements]; whether they have 64 bits, not 32
}

// HeadsArgs is the argument of scan_heads. A bound b is position b in kernel order or, reversed,
// n - b.
type HeadsArgs struct {
	bounds              Bounds
	n, positions        int64          // positions: of a CTA, a multiple of 32
	isReversed, isChunk int64          // isChunk: the first position is a head only if it is a bound
	heads               launch.Address `cuda:"unsigned*"`
}

// SumArgs is the argument of scan_sum, which sums terms over some of their dims. Terms and partial
// sums are accumulators in the workspace; dims are in the order of the terms, fastest first.
type SumArgs struct {
	workspace      launch.Address
	terms, partial int64          // where they begin [accumulators]
	to             launch.Address // the sums [elements]; 0: partial sums are stored, [chunk][kept]
	kept, reduced  int64          // sums; terms of a sum
	chunk, chunks  int64          // terms of a sum that a CTA adds; their number
	across         int64          // sums of a CTA; the other threads of a sum take adjacent terms of it
	keptIsInner    int64          // adjacent threads take adjacent sums, not terms of a sum
	keptDims       int64
	keptExtent     [tensor.MaxRank]int64
	keptStride     [tensor.MaxRank]int64 // of terms
	toStride       [tensor.MaxRank]int64
	reducedDims    int64
	reducedExtent  [tensor.MaxRank]int64
	reducedStride  [tensor.MaxRank]int64
}

// FillArgs is the argument of scan_fill: ScanArgs with n, dims, extent and the output alone, in the
// order of memory.
type FillArgs struct {
	ScanArgs
	bounds      Bounds
	rows, atEnd int64 // atEnd: the last position of each sequence in memory, else the first
	value       float64
}

// ClearArgs is the argument of scan_clear.
type ClearArgs struct {
	data  launch.Address `cuda:"uint4*"`
	words int64          // of 16 bytes
}

// pack writes the argument of a launch. `status` moves the tile-status words that it uses, in
// bytes.
func (r *run) pack(c *Config, flags, status int64) {
	p, o, q := &r.problem, &r.operands, r.queue
	q.Begin()
	q.Launch.Shared = c.SmemBytes
	switch {
	case p.Kind.isLinear:
		a := launch.Append[LinearArgs](q)
		r.fill(&a.ScanArgs, c, flags|r.stateFlags(), status)
		r.setOperand(&a.stateIn, suffixIn)
		r.setOperand(&a.stateOut, suffixOut)
		r.setOperand(&a.initial, prefixIn)
		r.setBounds(&a.bounds)
		a.rows = r.rowsOfShape()
		r.setFactor(a)
		return
	case !p.Carries:
		r.fill(launch.Append[ScanArgs](q), c, flags, status)
		return
	}
	a := launch.Append[CarryArgs](q)
	r.fill(&a.ScanArgs, c, flags, status)
	r.setOperand(&a.prefixIn, prefixIn)
	r.setOperand(&a.suffixIn, suffixIn)
	r.setOperand(&a.suffixOut, suffixOut)
	a.prefixParts, a.prefixPartStride = o.chunks[prefixIn], o.chunkStride[prefixIn]
	a.suffixParts, a.suffixPartStride = o.chunks[suffixIn], o.chunkStride[suffixIn]
}

// fill sets the fields of an argument that kernels with and without carries share. All are 0
// before.
func (r *run) fill(a *ScanArgs, c *Config, flags, status int64) {
	p, o := &r.problem, &r.operands
	a.n, a.dims = p.Length, int64(o.dims)
	for k := range a.extent {
		a.extent[k] = max(1, o.extent[k])
	}
	a.tilesPerSplit, a.splits, a.segments = c.TilesPerSplit, c.Splits, c.Segments
	a.rowsPerWarp, a.rowsPerCTA, a.warpsPerRow = c.RowsPerWarp, c.RowsPerCTA, c.WarpsPerRow
	a.flagsPerRow, a.threadsAcross, a.threadsDown = c.FlagsPerRow, c.ThreadsAcross, c.ThreadsDown
	a.stages, a.statusOffset = c.Stages, c.StatusOffset+status
	// vectorFlags of the selected kernel; layoutOf asked for those of row_cluster and
	// row_pipelined.
	a.flags = flags | o.vectorFlags(p, c) | flagIf(r.FirstWins, FlagFirst) | flagIf(r.IsMinimum, FlagMinimum) | flagIf(r.IsReversed, FlagReversed) | r.exclusiveFlags()
	// Both are 0 for a kernel without flags, status words and states, such as row_resident of
	// cumprod.
	a.stateOffset, a.recordOffset = c.FlagBytes+statusTotalBytes(p, c), statesEnd(p, c)
	if c.TilesPerSplit*c.Splits > 1 || hasRecordPass(p, c) || p.Kind.isPacked {
		r.queue.SetAddress(&a.states, launch.WorkspaceOperand, r.workspace)
	}
	if p.Kind.readsIndices || c.NeedsFallback {
		r.queue.SetAddress(&a.rejectFlags, launch.WorkspaceOperand, r.workspace)
	}
	for i := range a.inputs {
		r.setOperand(&a.inputs[i], i)
	}
	for i := range a.outputs {
		r.setOperand(&a.outputs[i], numInputs+i)
	}
}

// exclusiveFlags are the flags of an exclusive scan.
func (r *run) exclusiveFlags() int64 {
	switch {
	case !r.Plain.IsExclusive:
		return 0
	case !r.leavesOneOut:
		return FlagExclusive | FlagReadsNext
	}
	return flagIf(r.problem.Kind.isPacked, FlagExclusive) // else rows end before that position
}

// stateFlags are the flags of a linear recurrence.
func (r *run) stateFlags() (flags int64) {
	for _, state := range [...]struct{ role, flag int64 }{{suffixIn, FlagStateInWide}, {suffixOut, FlagStateOutWide}, {prefixIn, FlagInitialWide}} {
		if number := r.operands.numbers[state.role]; number >= 0 && r.args[number].DType.Size() > 2 {
			flags |= state.flag
		}
	}
	return flags | r.linearFlags()
}

// setOperand fills the operand of a role; one that the run does not have stays 0.
func (r *run) setOperand(to *Strided, role int) {
	o := &r.operands
	switch number := o.numbers[role]; {
	case number < 0:
	case r.termsOf(number) != nil:
		r.queue.SetAddress(&to.data, launch.WorkspaceOperand, o.data[role])
	default:
		r.queue.SetAddress(&to.data, number, o.data[role])
	}
	to.first, to.step = o.first[role], o.step[role]
	copy(to.stride[:], o.stride[role][:])
}

// setBounds describes the bounds of packed sequences, if the run has any.
func (r *run) setBounds(to *Bounds) {
	if number := r.boundsNumber(r.args); number >= 0 {
		t := &r.args[number]
		r.queue.SetAddress(&to.data, number, t.Data)
		to.count, to.step = t.Shape[0], t.ElementStrides()[0]
		if t.DType == tensor.Int64 {
			to.isWide = 1
		}
	}
}

func flagIf(set bool, flag int64) int64 {
	if set {
		return flag
	}
	return 0
}
