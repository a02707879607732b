package gpu

// The words of ScanArgs, the argument of every kernel of scans.

import (
	"github.com/sternway/sternway/core/internal/launch"
	"github.com/sternway/sternway/core/internal/tensor"
)

// Bits of the word `flags` of ScanArgs.
const (
	FlagFirst           = 1 << iota // the first of equal values wins
	FlagMinimum                     // cummin
	FlagReversed                    // the scan runs from the last position to the first
	FlagPrefixPhase                 // upsweep of the prefixes
	FlagSuffixPhase                 // upsweep of the suffixes
	FlagVectorized                  // every operand is read in whole aligned 16-byte vectors
	FlagFallback                    // segments with a reject flag are recomputed
	FlagMisaligned                  // rows begin inside a vector, at equal offsets in all operands
	FlagLineAligned                 // tiles begin with a cache line
	FlagPrefetchNextRow             // a CTA prefetches the row of the next one to the level-2 cache
)

// pack writes the words of ScanArgs in cuda/scan. `status` moves the tile-status words that a launch uses, in bytes.
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
	flags |= flagIf(prefetchesNextRow(p, c), FlagPrefetchNextRow)
	width, height := packGeometry(c, status)
	put(c.TilesPerSplit, c.Splits, c.Segments, width, height, flags, c.FlagBytes+statusTotalBytes(p, c), statesEnd(p, c))
	for _, isUsed := range [...]bool{c.TilesPerSplit*c.Splits > 1 || hasRecordPass(p, c), p.Kind.isByIndices() || c.NeedsFallback} {
		if isUsed {
			q.Address(launch.WorkspaceOperand, r.workspace)
		} else {
			put(0)
		}
	}
	for i, number := range o.numbers {
		if number < 0 {
			put(0)
		} else {
			q.Address(number, o.data[i])
		}
		put(o.first[i], o.step[i])
		put(o.stride[i][:tensor.MaxRank-1]...)
	}
}

// packGeometry gives the words `width` and `height` of ScanArgs, which each kernel reads in its own way.
func packGeometry(c *Config, status int64) (width, height int64) {
	switch c.Kernel {
	case RowPacked:
		return c.RowsPerWarp, 0
	case RowResident:
		return c.RowsPerCTA, c.WarpsPerRow
	case RowTiled:
		return c.FlagsPerRow, c.WarpsPerRow
	case ColumnTiled:
		return c.ThreadsAcross, c.ThreadsDown
	case RowPipelined, ColumnPipelined:
		return c.Stages, c.StatusOffset + status
	case RowCluster:
		return 0, c.StatusOffset
	}
	return 0, 0
}

// prefetchesNextRow reports large CTAs, of which an SM has few, on a device whose memory waits for them.
func prefetchesNextRow(p *Problem, c *Config) bool {
	return c.RowsPerCTA > 0 && c.Block > RowThreads/2 && p.Device.bandwidthRich()
}
