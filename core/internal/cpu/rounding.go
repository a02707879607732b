package cpu

// #include "rounding.h"
import "C"

import "runtime"

// mode is the floating-point mode that a thread had: its rounding, its treatment of subnormal numbers, its traps.
type floatMode struct{ saved C.uint }

// EnterDefaultMode makes the thread of this goroutine round to nearest, keep subnormal numbers and trap nothing. A caller may have
// chosen otherwise, and threads inherit from their makers; round(x / scale) would then be another function. The goroutine stays on its
// thread until leave.
func EnterDefaultMode() floatMode {
	runtime.LockOSThread()
	return floatMode{C.sw_enter_default_mode()}
}

// Leave restores the mode that the thread had.
func (m floatMode) Leave() {
	if m.saved != C.SW_DEFAULT_MODE {
		C.sw_set_mode(m.saved)
	}
	runtime.UnlockOSThread()
}
