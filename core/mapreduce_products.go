package core

import "unsafe"

// multiply computes the outputs of n adjacent indices of operands that the loop over products reads and writes where they lie. Sums
// are left in the blocks of their outputs, one for each run.
func (h *hostPass[A]) multiply(w *worker[A], start, n int64) {
	run := min(h.run, n)
	place := func(i int) uintptr { return h.args[i].Data + uintptr(start*h.args[i].DType.Size()) }
	w.products.begin(place(0), n, run, run)
	for o := range h.op.outputs {
		switch i := h.op.inputs + o; {
		case h.full>>o&1 != 0:
			h.append(w, o, target{out: place(i)}, start, n)
		case h.summed>>o&1 != 0:
			parts := w.blocks[i].sums[:ceil(n, run)]
			clear(parts)
			h.append(w, o, target{sums: address(parts)}, start, n)
		}
	}
	w.products.run(h.element)
}

// multiplyColumns does the same for some rows of a strip of columns, whose sums it adds to those of a leaf.
func (h *hostPass[A]) multiplyColumns(w *worker[A], t *columnTask, row, rows int64) {
	start := t.index + row*t.pitch
	place := func(i int) uintptr { return h.args[i].Data + uintptr(start*h.args[i].DType.Size()) }
	w.products.begin(place(0), rows*t.width, t.width, t.pitch)
	w.products.sumColumns()
	for o := range h.op.outputs {
		switch i := h.op.inputs + o; {
		case h.full>>o&1 != 0:
			h.append(w, o, target{out: place(i)}, start, rows*t.pitch)
		case h.summed>>o&1 != 0:
			h.append(w, o, target{sums: address(w.leaf[o][:])}, start, rows*t.pitch)
		}
	}
	w.products.run(h.element)
}

// multiplyWide computes the outputs of a block that was widened.
func (h *hostPass[A]) multiplyWide(w *worker[A], n int64) {
	run := n
	if h.run > 0 {
		run = min(h.run, n)
	}
	w.products.begin(address(w.in[0]), n, run, run)
	for o := range h.op.outputs {
		switch {
		case h.full>>o&1 != 0:
			h.append(w, o, target{out: address(w.out[o])}, 0, n)
		case h.summed>>o&1 != 0:
			h.append(w, o, target{terms: address(w.terms[o])}, 0, n)
		}
	}
	w.products.run(typeOf[A]())
}

// append adds output o to the products of a block.
func (h *hostPass[A]) append(w *worker[A], o int, to target, start, n int64) {
	t := &h.multiples[o]
	w.products.append(to, h.factor(w, &t.y, w.numbers[2*o][:], start, n), h.factor(w, &t.z, w.numbers[2*o+1][:], start, n))
}

// factor is where a factor of a block lies; numbers is room for a constant, or for one number of each run.
func (h *hostPass[A]) factor(w *worker[A], f *factor, numbers []float64, start, n int64) factorAt {
	i := f.input
	if i == 0 || h.inputs>>i&1 == 0 {
		numbers[0] = f.number
		return factorAt{data: address(numbers), kind: factorNumber}
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
		return factorAt{data: address(numbers), kind: factorNumber, step: 1}
	case !h.direct:
		return factorAt{data: address(w.in[i]), kind: factorDense, step: h.run}
	}
	kind := factorDense
	switch t.DType {
	case Int8:
		kind = factorInt8
	case Uint8:
		kind = factorUint8
	}
	step := h.run
	if h.repeats[i] {
		start, step = start%h.run, 0
	}
	return factorAt{data: t.Data + uintptr(start*t.DType.Size()), kind: kind, step: step}
}

func address[S any](s []S) uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(s))) }
