package core

// #include "openmp.h"
import "C"

import "runtime/cgo"

// inTeam calls work on this thread and on n more of the team that an OpenMP runtime has for it, and reports whether there are so many.
func inTeam(n int, work func()) bool {
	if int(C.sw_openmp_threads()) <= n {
		return false
	}
	job := cgo.NewHandle(work)
	defer job.Delete()
	C.sw_openmp_team(C.uintptr_t(job), C.int(n))
	return true
}

//export swOpenMPMember
func swOpenMPMember(job C.uintptr_t) { cgo.Handle(job).Value().(func())() }
