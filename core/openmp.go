package core

// #include "openmp.h"
import "C"

import "runtime/cgo"

// inTeam calls work on this thread and on n more of the team that an OpenMP runtime has for it, and reports whether there are so many.
func inTeam(n int, work func()) bool {
	job := cgo.NewHandle(work)
	defer job.Delete()
	return C.sw_openmp_team(C.uintptr_t(job), C.int(n)) != 0
}

//export swOpenMPMember
func swOpenMPMember(job C.uintptr_t) { cgo.Handle(job).Value().(func())() }
