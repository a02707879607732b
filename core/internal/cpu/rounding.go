package cpu

// #include "rounding.h"
import "C"

import "runtime"

// This file sets the floating-point mode of a thread for the duration of a run.

// floatMode is a saved floating-point mode: rounding direction, flushing of subnormal numbers,
// traps.
type floatMode struct{ saved C.uint }

// EnterDefaultMode sets the floating-point mode of this thread: round to nearest, no flushing of
// subnormal numbers, no traps. The caller's mode may differ, and new threads inherit it; results
// would depend on it. The goroutine is locked to its thread until Leave.
func EnterDefaultMode() floatMode {
	runtime.LockOSThread()
	return floatMode{C.sw_enter_default_mode()}
}

// Leave restores the former mode and unlocks the goroutine.
func (m floatMode) Leave() {
	if m.saved != C.SW_DEFAULT_MODE {
		C.sw_set_mode(m.saved)
	}
	runtime.UnlockOSThread()
}
