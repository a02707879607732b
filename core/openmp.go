package core

// #include "openmp.h"
import "C"

import "runtime/cgo"

// inTeam calls work on this thread and on n more of the team that an OpenMP runtime has for it, and reports whether there are so many.
func inTeam(n int, work func(member int)) bool {
	job := cgo.NewHandle(work)
	defer job.Delete()
	return C.sw_openmp_team(C.uintptr_t(job), C.int(n)) != 0
}

//export swOpenMPMember
func swOpenMPMember(job C.uintptr_t, member C.int) { cgo.Handle(job).Value().(func(int))(int(member)) }
