package threads

// #include "floatmode.h"
import "C"

import "runtime"

// This file sets the floating-point mode of a thread for the duration of a run.

// FloatMode is a saved floating-point mode of a thread: rounding direction, flushing of subnormal
// numbers, traps.
type FloatMode struct{ saved C.uint }

// EnterDefaultMode sets the floating-point mode of this thread: round to nearest, no flushing of
// subnormal numbers, no traps. The mode of the caller may differ (torch.set_flush_denormal,
// fesetround), and threads inherit it from the one that starts them; results would depend on it.
// The goroutine is locked to its thread until Leave.
func EnterDefaultMode() FloatMode {
	runtime.LockOSThread()
	return FloatMode{C.sw_enter_default_mode()}
}

// Leave restores the former mode and unlocks the goroutine.
func (m FloatMode) Leave() {
	if m.saved != C.SW_DEFAULT_MODE {
		C.sw_set_mode(m.saved)
	}
	runtime.UnlockOSThread()
}
