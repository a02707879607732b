package elementwise

import (
	"unsafe"

	"github.com/sternway/sternway/core/internal/cpu"
	"github.com/sternway/sternway/core/internal/num"
	"github.com/sternway/sternway/core/internal/tensor"
)

// This file computes outputs that are products of operands with the C loops of package cpu.

// multiply computes the outputs of n adjacent indices with the product loops in place. The sums of
// each run are left in Block.Sums of the output.
func (h *hostPass[A]) multiply(w *worker[A], start, n int64) {
	run := min(h.run, n)
	place := func(i int) uintptr { return h.args[i].Data + uintptr(start*h.args[i].DType.Size()) }
	w.products.Begin(place(0), n, run, run)
	for o := range h.op.outputs {
		switch i := h.op.inputs + o; {
		case h.stored>>o&1 != 0:
			h.append(w, o, cpu.Target{Out: place(i)}, start, n)
		case h.summed>>o&1 != 0:
			sums := w.blocks[i].Sums[:num.CeilDiv(n, run)]
			clear(sums)
			h.append(w, o, cpu.Target{Sums: addressOf(sums)}, start, n)
		}
	}
	w.products.Run(h.element)
}

// multiplyColumns computes the outputs of rows of a panel with the product loops in place, and adds
// column sums to w.leaf.
func (h *hostPass[A]) multiplyColumns(w *worker[A], t *columnTask, row, rows int64) {
	start := t.index + row*t.pitch
	place := func(i int) uintptr { return h.args[i].Data + uintptr(start*h.args[i].DType.Size()) }
	w.products.Begin(place(0), rows*t.width, t.width, t.pitch)
	w.products.SumColumns()
	for o := range h.op.outputs {
		switch i := h.op.inputs + o; {
		case h.stored>>o&1 != 0:
			h.append(w, o, cpu.Target{Out: place(i)}, start, rows*t.pitch)
		case h.summed>>o&1 != 0:
			h.append(w, o, cpu.Target{Sums: addressOf(w.leaf[o][:])}, start, rows*t.pitch)
		}
	}
	w.products.Run(h.element)
}

// multiplyWide computes the outputs of a block that was converted to the accumulator type.
func (h *hostPass[A]) multiplyWide(w *worker[A], n int64) {
	run := n
	if h.run > 0 {
		run = min(h.run, n)
	}
	w.products.Begin(addressOf(w.in[0]), n, run, run)
	for o := range h.op.outputs {
		switch {
		case h.stored>>o&1 != 0:
			h.append(w, o, cpu.Target{Out: addressOf(w.out[o])}, 0, n)
		case h.summed>>o&1 != 0:
			h.append(w, o, cpu.Target{Terms: addressOf(w.terms[o])}, 0, n)
		}
	}
	w.products.Run(cpu.TypeOf[A]())
}

// append adds output o to the products of a block.
func (h *hostPass[A]) append(w *worker[A], o int, to cpu.Target, start, n int64) {
	t := &h.products[o]
	w.products.Append(to, h.factor(w, &t.y, w.numbers[2*o][:], start, n), h.factor(w, &t.z, w.numbers[2*o+1][:], start, n))
}

// factor is the memory of a factor of a block. numbers is scratch for a constant or for one number
// per run.
func (h *hostPass[A]) factor(w *worker[A], f *factor, numbers []float64, start, n int64) cpu.FactorAt {
	i := f.input
	if i == 0 || h.inputs>>i&1 == 0 {
		numbers[0] = f.number
		return cpu.FactorAt{Data: addressOf(numbers), Kind: cpu.FactorNumber}
	}
	t := &h.args[i]
	switch {
	case h.runs[i]:
		if h.direct {
			h.load(w, i, start, n)
		}
		for k, value := range w.in[i] {
			numbers[k] = float64(value)
		}
		return cpu.FactorAt{Data: addressOf(numbers), Kind: cpu.FactorNumber, Step: 1}
	case !h.direct:
		return cpu.FactorAt{Data: addressOf(w.in[i]), Kind: cpu.FactorDense, Step: h.run}
	}
	kind := cpu.FactorDense
	switch t.DType {
	case tensor.Int8:
		kind = cpu.FactorInt8
	case tensor.Uint8:
		kind = cpu.FactorUint8
	}
	step := h.run
	if h.repeated[i] {
		start, step = start%h.run, 0
	}
	return cpu.FactorAt{Data: t.Data + uintptr(start*t.DType.Size()), Kind: kind, Step: step}
}

func addressOf[S any](s []S) uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(s))) }
