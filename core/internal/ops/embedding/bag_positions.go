package embedding

import "slices"

// This file reads the positions of a run on the CPU: their bags, rows and weights.

// readOffsets sets h.first.
func (h *hostBags[N]) readOffsets() {
	h.first = grow(h.first, h.NumBags+1)
	h.first[h.NumBags] = 0
	readIntegers(h.first[:h.args[bagOffsets].Shape[0]], &h.args[bagOffsets], 0)
	if !h.IncludeLastOffset && h.NumBags > 0 {
		h.first[h.NumBags] = N(h.TotalIndices)
	}
}

// counted is the number of positions in bags, padding included.
func (h *hostBags[N]) counted() int64 {
	if h.bagless() {
		return h.TotalIndices
	}
	return int64(h.first[h.NumBags])
}

// readRows sets rows to the rows of the positions from first on; noRow if a position does not
// count.
func (h *hostBags[N]) readRows(rows []N, first int64) []N {
	readIntegers(rows, &h.args[bagIndices], first)
	for k := max(0, h.counted()-first); k < int64(len(rows)); k++ {
		rows[k] = noRow[N]()
	}
	return h.withoutPadding(rows)
}

// withoutPadding replaces the padding row by noRow.
func (h *hostBags[N]) withoutPadding(rows []N) []N {
	if h.padding >= 0 {
		for k, row := range rows {
			if row == N(h.padding) {
				rows[k] = noRow[N]()
			}
		}
	}
	return rows
}

// readBags sets bags to the bags of the positions from first on. Positions after the last bag are
// left unset.
func (h *hostBags[N]) readBags(bags []N, first int64) []N {
	if h.bagless() {
		for k := range bags {
			bags[k] = N(first + int64(k))
		}
		return bags
	}
	bag, _ := slices.BinarySearch(h.first[1:], N(first)+1)
	end := min(h.counted()-first, int64(len(bags)))
	for k := int64(0); k < end; bag++ {
		for stop := min(int64(h.first[bag+1])-first, end); k < stop; k++ {
			bags[k] = N(bag)
		}
	}
	return bags
}

// countOf is the number of counted positions of a bag.
func (h *hostBags[N]) countOf(bag int64) int64 {
	first, end := int64(h.first[bag]), int64(h.first[bag+1])
	n := end - first
	for i := first; i < end && h.padding >= 0; i++ {
		if h.index(i) == h.padding {
			n--
		}
	}
	return n
}

// readScales reads per_sample_weights from position first on, in float64.
func (h *hostBags[N]) readScales(w *bagWorker[N], out []float64, first int64) []float64 {
	readNumbers(&w.block64, out, &h.args[BagSampleWeights], first)
	return out
}
