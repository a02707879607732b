package coretest

import (
	"math/bits"
	"slices"

	"github.com/sternway/sternway/core/internal/num"
	"github.com/sternway/sternway/core/internal/tensor"
)

// requireGeometry checks what the kernels take for granted of their argument and of their grid:
// that the derived fields agree with the extents, that tiles, units and chunks cover every element
// once, and that wide accesses are aligned.
func (m *kernelModel) requireGeometry() {
	t, e := m.t, m.extents
	is := func(name string, want int64) {
		t.Helper()
		if got := m.word(name); got != want {
			t.Fatalf("%s: %s is %d, not %d", m.symbol, name, got, want)
		}
	}
	holds := func(ok bool, what string) {
		t.Helper()
		if !ok {
			t.Fatalf("%s: %s: grid %d, %v", m.symbol, what, m.launch.Grid, m.words[:m.header])
		}
	}
	kept, dims := int(m.word("kept")), int(m.word("dims"))
	holds(0 <= kept && kept <= dims && dims < tensor.MaxRank, "kept dimensions, then reduced ones")
	for d := dims + 1; d < tensor.MaxRank; d++ {
		holds(e[d] == 1, "extents that are not used are 1")
	}
	block := int64(256)
	if m.kernel == "map" || m.kernel == "rows" {
		block = 128
	}
	holds(int64(m.launch.Block) == block && m.launch.Shared == 0, "threads of a block")
	inner, keptSize, reduced := e[0], extentOf(e, dimsFrom(1, kept+1)), extentOf(e, dimsFrom(kept+1, dims+1))
	lanes, tiles, chunks, grid := m.word("lanes"), m.word("tiles"), m.word("chunks"), int64(m.launch.Grid)
	holds(lanes > 0 && lanes <= block && bits.OnesCount64(uint64(lanes)) == 1, "lanes are a power of two")
	holds(chunks >= 1, "at least one chunk")
	sums := int64(bits.OnesCount64(uint64(m.word("summed"))))
	if m.kernel == "combine" {
		size := inner * keptSize
		is("keptSize", size)
		is("dims", int64(kept))
		is("tiles", num.CeilDiv(size, lanes))
		holds(grid == tiles*sums && chunks > 1, "a tile of every sum")
		return
	}
	is("keptSize", keptSize)
	if inner*reduced > 0 {
		is("reducedSize", reduced)
	}
	vector, unroll := m.vector, m.unroll
	holds(unroll > 0, "a constant of the kernel says how many vectors a thread has in flight")
	vectors := num.CeilDiv(inner, vector)
	switch m.kernel {
	case "map":
		holds(kept == dims, "a map keeps every dimension")
		rows := block / lanes // of a CTA
		if m.word("isShort") != 0 {
			unroll, rows = 1, rows*m.short
			holds(tiles == 1 && m.word("wide") != 0, "a vector of each short row")
			holds(dims == 1 || e[dims]%m.short == 0, "whole bands of rows along the slowest dimension")
		}
		holds(tiles*lanes*unroll >= vectors, "tiles of a row")
		holds(grid == tiles*num.CeilDiv(keptSize, rows), "a tile of every band of rows")
	case "rows":
		if m.word("isShort") != 0 {
			holds(kept == 1 && dims == 1 && vectors >= m.short, "a thread with a vector for each sum of its rows")
			holds(reduced == 1 && chunks == 1 && lanes <= 32 && m.word("wide") != 0, "a sum is a short row")
			holds(lanes*vector >= inner && inner%vector == 0, "a vector of each short row")
			holds(grid == num.CeilDiv(keptSize, block/lanes*m.short), "a thread for a vector of every row")
			break
		}
		group, chunk := m.word("group"), m.word("chunk")
		holds(lanes <= group && group <= block && bits.OnesCount64(uint64(group)) == 1, "groups of lanes")
		holds(tiles*lanes*unroll >= vectors, "tiles of a row")
		units := tiles * num.CeilDiv(reduced, group/lanes)
		holds(chunks*chunk >= units && (chunks == 1 || (chunks-1)*chunk < units), "chunks of units")
		holds(grid == num.CeilDiv(keptSize*chunks*group, block), "a group for every chunk")
	case "columns":
		chunk := m.word("chunk")
		is("tiles", num.CeilDiv(vectors, lanes))
		holds(chunks*chunk >= reduced && (chunks == 1 || (chunks-1)*chunk < reduced), "chunks of reduced indices")
		holds(grid == tiles*chunks*keptSize, "a tile of every chunk")
	}
	m.requireOperands(vector)
}

// sideInputs are the inputs with one number for each token, of any dtype, by family.
var sideInputs = map[string][]int{
	"dequantize_per_token": {1, 2}, "dequantize_per_channel": {1, 2},
	"fake_quantize_per_token": {1, 2}, "fake_quantize_per_channel": {1, 2},
	"dequantize_per_token_backward": {1, 3}, "dequantize_per_channel_backward": {1, 3},
	"fake_quantize_per_token_backward": {2, 3}, "fake_quantize_per_channel_backward": {2, 3},
}

// requireOperands checks the bits of uses and wide against the operands. Operands of a side dtype,
// one number for each token, must not move along the fastest dimension.
func (m *kernelModel) requireOperands(vector int64) {
	uses, wide := m.word("uses"), m.word("wide") != 0
	for i := range m.operands {
		o := &m.operands[i]
		output := i >= m.inputs
		stored := o.address != 0 && !(output && m.summed(i-m.inputs))
		side := slices.Contains(sideInputs[m.family], i)
		constant := stored && !output && !side && o.strides[0] == 0
		for bit, want := range []bool{stored, constant} {
			if uses>>(2*i+bit)&1 != 0 != want {
				m.t.Fatalf("%s: bit %d of operand %d in uses is not %v", m.symbol, bit, i, want)
			}
		}
		if !stored {
			continue
		}
		if m.extents[0] == 1 || side {
			if o.strides[0] != 0 {
				m.t.Fatalf("%s: operand %d moves along the fastest dimension", m.symbol, i)
			}
		}
		if wide && !side && !constant {
			m.requireAligned(o, vector)
		}
	}
}

// requireAligned visits the first element of every row.
func (m *kernelModel) requireAligned(o *deviceOperand, vector int64) {
	if o.strides[0] != 1 && m.extents[0] != 1 {
		m.t.Fatalf("%s: a wide access with stride %d", m.symbol, o.strides[0])
	}
	rows := dimsFrom(1, tensor.MaxRank)
	for k := range extentOf(m.extents, rows) {
		if address := int64(o.address) + o.offset(m.extents, rows, k)*o.dtype.Size(); address%(vector*o.dtype.Size()) != 0 {
			m.t.Fatalf("%s: a wide access at %#x", m.symbol, address)
		}
	}
}
