// Package threads divides the work of a run on the CPU among the processors that the process may use.
package threads

// #cgo noescape sw_torch_threads
// #cgo nocallback sw_torch_threads
// #include "threads.h"
import "C"

import (
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
)

// Max is the largest number of threads that can be set.
const Max = 1 << 16

var (
	setByUser       atomic.Int64 // by Set
	fromEnvironment = parseThreads(os.Getenv("STERNWAY_NUM_THREADS"))
	fromOpenMP      = parseThreads(firstLevel(os.Getenv("OMP_NUM_THREADS")))
)

// firstOf is the first number of OMP_NUM_THREADS, which may have one for each level of nested parallel regions.
func firstLevel(list string) string {
	first, _, _ := strings.Cut(list, ",")
	return first
}

// numberIn reads a variable of the environment; 0: it is not set. One that is no number of threads is ignored, and the Python package logs a
// warning.
func parseThreads(text string) int {
	n, err := strconv.Atoi(strings.TrimSpace(text))
	if err != nil || n < 1 || n > Max {
		return 0
	}
	return n
}

// Number is the number of threads that one run may use; core.NumThreads says where it comes from.
func Number() int {
	if n := setByUser.Load(); n > 0 {
		return int(n)
	}
	if fromEnvironment > 0 {
		return fromEnvironment
	}
	if n := C.sw_torch_threads(); n > 0 {
		return int(n)
	}
	if fromOpenMP > 0 {
		return fromOpenMP
	}
	return processors()
}

// Set changes Number to one between 1 and Max.
func Set(n int) { setByUser.Store(int64(n)) }

var processorQuota = sync.OnceValue(cgroupQuota)

// processors is the number of processors that this thread may use at once: its affinity, or the quota of its control groups where that is
// smaller.
func processors() int {
	n := int(C.sw_affinity())
	if n < 1 {
		n = runtime.NumCPU()
	}
	if limit := processorQuota(); limit > 0 {
		n = min(n, limit)
	}
	return n
}

// threadTime is the processor time of this thread in nanoseconds.
func threadTime() int64 { return int64(C.sw_thread_time()) }
