package embedding

// #include "bag.h"
import "C"

import "math"

// This file describes the update of rows on the CPU to the C loops.

// advance counts a run on the CPU in options, and forms the step size of Adam.
func advance(options []float64) {
	options[OptionStep]++
	options[OptionDraw]++
	t := options[OptionStep]
	correction := math.Sqrt(1-math.Pow(options[OptionBeta2], t)) / (1 - math.Pow(options[OptionBeta1], t))
	options[OptionStepSize] = options[OptionLr] * correction
}

// randomStream is where the random numbers of a run begin: seed and draw are hashed, so that the
// numbers of two runs have nothing in common.
func randomStream(options []float64) C.uint64_t {
	return C.sw_hash(0, C.uint64_t(options[OptionSeed])<<32^C.uint64_t(options[OptionDraw]))
}

// setUpdate describes the optimizer of adjacent rows, of which `row` is the first, to the C loops.
func (h *hostBags[N]) setUpdate(w *bagWorker[N], row int64) {
	o := optionsOf(h.args)
	state := func(i int) C.uintptr_t {
		t := &h.args[i]
		if !t.Given() {
			return 0
		}
		return C.uintptr_t(t.Data + uintptr(row*t.Strides[0]*t.DType.Size()))
	}
	w.update = C.sw_bag_update{
		lr: C.double(o[OptionLr]), eps: C.double(o[OptionEps]), weight_decay: C.double(o[OptionWeightDecay]),
		beta1: C.double(o[OptionBeta1]), beta2: C.double(o[OptionBeta2]),
		grad_scale: C.double(o[OptionGradScale]), step_size: C.double(o[OptionStepSize]),
		state: state(bagState), state2: state(bagState2), scratch: addressOf(w.wide),
		stream: randomStream(o), first: C.long(h.firstElement + row*h.EmbeddingDim),
		by_row: C.long(flagWord(h.isRowwise())), stochastic: C.long(flagWord(h.StochasticRounding)),
	}
}
