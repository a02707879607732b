package core

// #include "rounding.h"
import "C"

import "runtime"

// mode is the floating-point mode that a thread had: its rounding, its treatment of subnormal numbers, its traps.
type mode struct{ saved C.uint }

// enterDefaultMode makes the thread of this goroutine round to nearest, keep subnormal numbers and trap nothing. A caller may have
// chosen otherwise, and threads inherit from their makers; round(x / scale) would then be another function. The goroutine stays on its
// thread until leave.
func enterDefaultMode() mode {
	runtime.LockOSThread()
	return mode{C.sw_enter_default_mode()}
}

// leave restores the mode that the thread had.
func (m mode) leave() {
	if m.saved != C.SW_DEFAULT_MODE {
		C.sw_set_mode(m.saved)
	}
	runtime.UnlockOSThread()
}
