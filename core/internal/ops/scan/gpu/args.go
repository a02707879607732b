package gpu

// The words of ScanArgs, the argument of every kernel of scans.

import (
	"github.com/sternway/sternway/core/internal/launch"
	"github.com/sternway/sternway/core/internal/tensor"
)

// Bits of the word `flags` of ScanArgs.
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
)

// pack writes the words of ScanArgs in cuda/scan. `status` moves the tile-status words that a
// launch uses, in bytes.
func (r *run) pack(c *Config, flags, status int64) {
	p, o, q := &r.problem, &r.operands, r.queue
	q.Begin()
	q.Launch.Shared = c.SmemBytes
	put := func(words ...int64) {
		for _, w := range words {
			q.Launch.Put(uint64(w))
		}
	}
	put(p.Length, int64(o.dims))
	for k := range tensor.MaxRank - 1 {
		put(max(1, o.extent[k]))
	}
	flags |= o.vectorFlags(p, c) | flagIf(r.FirstWins, FlagFirst) | flagIf(r.IsMinimum, FlagMinimum) | flagIf(r.IsReversed, FlagReversed)
	put(c.TilesPerSplit, c.Splits, c.Segments)
	put(c.RowsPerWarp, c.RowsPerCTA, c.WarpsPerRow, c.FlagsPerRow, c.ThreadsAcross, c.ThreadsDown, c.Stages, c.StatusOffset+status)
	put(flags, c.FlagBytes+statusTotalBytes(p, c), statesEnd(p, c))
	hasStates := c.TilesPerSplit*c.Splits > 1 || hasRecordPass(p, c)
	hasFlags := p.Kind.readsIndices || c.NeedsFallback
	for _, isUsed := range [...]bool{hasStates, hasFlags} { // the members workspace and reject_flags
		if isUsed {
			q.Address(launch.WorkspaceOperand, r.workspace)
		} else {
			put(0)
		}
	}
	roles := numElementRoles
	if p.Carries {
		roles = numRoles
	}
	for i, number := range o.numbers[:roles] {
		if number < 0 {
			put(0)
		} else {
			q.Address(number, o.data[i])
		}
		put(o.first[i], o.step[i])
		put(o.stride[i][:tensor.MaxRank-1]...)
	}
	if p.Carries {
		put(o.chunks[prefixIn], o.chunkStride[prefixIn], o.chunks[suffixIn], o.chunkStride[suffixIn])
	}
}
