package threads

// #include "openmp.h"
import "C"

import "runtime/cgo"

// This file runs tasks on the threads of an OpenMP runtime that the process has loaded.

// teamBodies are the functions that the members of an OpenMP team call.
type teamBodies struct {
	others func(number int)
	mine   func()
}

// hasOpenMPTeam reports whether this thread has an OpenMP team with n other members.
func hasOpenMPTeam(n int) bool { return C.sw_openmp_has_team(C.int(n)) != 0 }

// runOnOpenMP calls mine on this thread and others(k) on member k of its OpenMP team for 1 <= k <=
// n. It returns when all calls have returned.
func runOnOpenMP(n int, others func(number int), mine func()) {
	handle := cgo.NewHandle(teamBodies{others, mine})
	defer handle.Delete()
	C.sw_openmp_run(C.uintptr_t(handle), C.int(n))
}

//export swOpenMPMember
func swOpenMPMember(handle C.uintptr_t, number C.int) {
	t := cgo.Handle(handle).Value().(teamBodies)
	if number == 0 {
		t.mine()
	} else {
		t.others(int(number))
	}
}
