package gpu

import "github.com/sternway/sternway/core/internal/num"

// The workspace of a run: flags or heads, tile-status words of cooperative launches, the states
// that splits and tiles pass on (prefixes of splits, prefixes before tiles, suffixes of splits),
// and record flags.

// stateSizes are the sizes of a prefix and of a suffix [bytes].
type stateSizes struct{ prefix, suffix int64 }

const (
	statusBytes   = 16 // size of a tile-status word [bytes]
	statusPayload = 12 // bytes of a state in a tile-status word
)

// statesOf are the sizes of the states of a kind: accumulators are float64 for float64 elements,
// and float32 for others.
func statesOf(p *Problem) stateSizes { return p.Kind.states[p.ElementSize/8] }

// StateBytes are the sizes of a prefix and of a suffix in the workspace, with accumulators of
// float32 and of float64 [bytes].
func (k *Kind) StateBytes() (bytes [2][2]int64) {
	for i, s := range k.states {
		bytes[i] = [2]int64{s.prefix, s.suffix}
	}
	return bytes
}

// WorkspaceBytes is the workspace of a configuration, with that of its fallback pass.
func WorkspaceBytes(p *Problem, c *Config) int64 {
	bytes := statesEnd(p, c) + recordBytes(p, c)
	if c.NeedsFallback && IsSpecialized(c.Kernel) {
		fallback := Fallback(p, c)
		bytes = max(bytes, WorkspaceBytes(p, &fallback))
	}
	return bytes
}

// statesEnd is the offset of the record flags, which follow the states [bytes].
func statesEnd(p *Problem, c *Config) int64 {
	begin := c.FlagBytes + statusTotalBytes(p, c)
	if c.TilesPerSplit*c.Splits == 1 || c.Resident {
		return begin
	}
	size, all := statesOf(p), c.Segments*c.Splits*c.PanelColumns
	return begin + num.Align16(all*size.prefix) + num.Align16(all*c.TilesPerSplit*size.prefix) + num.Align16(all*size.suffix)
}

// IndexFlagBytes is the room for a flag of each row by indices, and one of all rows.
func IndexFlagBytes(p *Problem) int64 {
	if !p.Kind.hasRowFlags {
		return 0
	}
	return num.Align16(4 * (1 + p.Rows))
}

// headBytes is the room for the heads of packed sequences: a bit for each position of a row, and
// for the one behind it. Kernels read two words of 32 bits at once.
func headBytes(p *Problem) int64 {
	if !p.Kind.isPacked {
		return 0
	}
	return num.Align16(4 * (p.Length/32 + 2))
}

// statusPrefixBytes is the room for the status words of the prefixes of splits.
func statusPrefixBytes(p *Problem, c *Config) int64 {
	return statusBytes * c.Segments * c.Splits * num.CeilDiv(statesOf(p).prefix, statusPayload)
}

// statusTotalBytes is the room for all status words: those of the prefixes of splits, then those of
// the suffixes of tiles.
func statusTotalBytes(p *Problem, c *Config) int64 {
	if !c.Cooperative {
		return 0
	}
	return statusPrefixBytes(p, c) + statusBytes*c.Segments*c.Splits*c.TilesPerSplit*num.CeilDiv(statesOf(p).suffix, statusPayload)
}

// recordBytes is the room for the record flags: a bit for each element, in whole tiles of a
// pipelined kernel.
func recordBytes(p *Problem, c *Config) int64 {
	if !hasRecordPass(p, c) {
		return 0
	}
	tile := strategyOf(c.Kernel).tile(p)
	return c.Segments * c.Splits * c.TilesPerSplit * tile.Columns * tile.Length / 8
}

// hasRecordPass reports whether a pass over x writes record flags for the passes over dy.
func hasRecordPass(p *Problem, c *Config) bool {
	return p.Kind.hasRecords && strategyOf(c.Kernel).tile != nil
}

// MaxWorkspaceBytes suffices for the runs of a problem with any layout of dx. `others` are the
// extents of the dimensions that are not scanned, along each of which dx may be dense.
func MaxWorkspaceBytes(p *Problem, others []int64) int64 {
	most := IndexFlagBytes(p)
	switch {
	case p.Rows > 0 && p.Length == 0 && p.Carries:
		return headBytes(p)
	case p.Rows == 0 || p.Length == 0:
		return most
	}
	if p.IsExclusive {
		columns := p.withoutLast()
		columns.IsExclusive = false
		most = MaxWorkspaceBytes(&columns, others)
	}
	kernels, columns := []string{rowBaseline(p, false), ColumnTiled}, append([]int64{p.Inner}, others...)
	switch {
	case p.Carries: // column_tiled takes the rows of several dimensions as columns
		kernels, columns = CarryKernels, append(columns, p.Rows)
	case p.Kind.isPacked:
		columns = append(columns, p.Rows)
	}
	if p.Kernel != "" {
		kernels, columns = []string{baselineOf(p.Kernel)}, append(columns, 1)
	}
	for _, kernel := range kernels {
		if !strategyOf(kernel).takesColumns {
			most = max(most, maxBytesOf(p, kernel, 1))
			continue
		}
		for _, adjacent := range columns {
			most = max(most, maxBytesOf(p, kernel, adjacent))
		}
	}
	return most
}

// ContiguousWorkspaceBytes suffices for the runs of a problem with contiguous operands.
func ContiguousWorkspaceBytes(p *Problem) int64 {
	if p.Rows == 0 || p.Length == 0 {
		return IndexFlagBytes(p)
	}
	layout := ContiguousLayout(p)
	baseline, columns := baselineFor(p, &layout)
	if short := p.withoutLast(); p.IsExclusive && short.Length > 0 && strategyOf(baseline).takesColumns {
		return maxBytesOf(&short, baseline, columns)
	}
	return maxBytesOf(p, baseline, columns)
}

// maxBytesOf is enough for a general kernel and for the candidates that specialize it.
func maxBytesOf(p *Problem, kernel string, columns int64) int64 {
	c := Configure(p, kernel, columns)
	most := WorkspaceBytes(p, &c)
	for i := range strategies {
		s := &strategies[i]
		if s.baseline != kernel || !isCandidate(p, s, columns) {
			continue
		}
		c := s.configure(p, columns)
		most = max(most, WorkspaceBytes(p, &c))
		for c.CTAsPerSM > 1 && c.Cooperative { // devices with less shared memory have fewer CTAs per SM
			c.CTAsPerSM--
			c.cooperate(p)
			most = max(most, WorkspaceBytes(p, &c))
		}
	}
	return most
}
