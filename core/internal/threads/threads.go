// Package threads runs the tasks of a CPU run in parallel. It holds the worker pool, the number of
// threads and processors that a run may use, and the way to an OpenMP runtime that is already
// loaded.
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

// Max is the largest number of threads that Set and the environment variables accept.
const Max = 1 << 16

// The sources of Number, in the order of precedence; 0: not set. PyTorch comes between the last
// two.
var (
	setByUser       atomic.Int64 // by Set
	fromEnvironment = parseThreads(os.Getenv("STERNWAY_NUM_THREADS"))
	fromOpenMP      = parseThreads(firstLevel(os.Getenv("OMP_NUM_THREADS")))
)

// firstLevel is the first number of OMP_NUM_THREADS, which may list one number per level of nested
// parallel regions.
func firstLevel(list string) string {
	first, _, _ := strings.Cut(list, ",")
	return first
}

// parseThreads reads a number of threads; 0: the text is empty or invalid. An invalid value is
// ignored here; the Python package logs a warning.
func parseThreads(text string) int {
	n, err := strconv.Atoi(strings.TrimSpace(text))
	if err != nil || n < 1 || n > Max {
		return 0
	}
	return n
}

// Number is the number of threads that one run may use. core.NumThreads documents its sources.
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

// Set makes Number return n, which is between 1 and Max.
func Set(n int) { setByUser.Store(int64(n)) }

var processorQuota = sync.OnceValue(cgroupQuota)

// processors is the number of processors that this thread may use at once: the size of its affinity
// mask, or the CPU quota of its control groups if that is smaller.
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

// threadTime is the CPU time that this thread has used, in nanoseconds.
func threadTime() int64 { return int64(C.sw_thread_time()) }
