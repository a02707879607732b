// Package driver calls the CUDA driver, which it opens with dlopen. It opens devices, loads images
// and launches kernels, and is independent of the operations. Nothing is loaded before Open is
// called. A machine without libcuda counts as a machine without devices.
package driver

/*
#cgo CFLAGS: -O2
#cgo noescape sw_launch_kernel
#cgo nocallback sw_launch_kernel
#include <stdlib.h>
#include "driver.h"
*/
import "C"

import (
	"errors"
	"fmt"
	"runtime"
	"unsafe"
)

// Driver lists devices. A fake stands in for it in tests.
type Driver interface {
	Version() int // as cuDriverGetVersion: 13000 for CUDA 13.0
	DeviceCount() int
	Device(ordinal int) (Device, error)
}

// Device is one GPU, through its primary context.
type Device interface {
	Name() string
	Arch() string // "sm_90"
	Multiprocessors() int
	Memory() int64     // bytes
	Bandwidth() int64  // peak memory bandwidth in bytes per second
	SharedMemory() int // largest dynamic shared memory of a block in bytes
	Load(image []byte) (Library, error)
	Launch(kernel Kernel, launch *Launch) error
	Clusters(kernel Kernel, launch *Launch) int // clusters of this launch that can be resident at once; 0: not supported
	Synchronize(stream uintptr) error
	Read(to []byte, from, stream uintptr) error // waits for the stream, then copies from the device
}

// Library is a loaded kernel image.
type Library interface {
	Kernel(symbol string) (Kernel, error)
}

// Kernel is a function of the device's primary context, a handle of the driver.
type Kernel uintptr

// MaxWords is the largest argument of a kernel, in 8-byte words.
const MaxWords = int(C.SW_MAX_WORDS)

// Launch is one kernel launch: a one-dimensional grid and one argument struct of 8-byte words.
type Launch struct {
	Grid, Block, Shared uint32 // blocks; threads per block; bytes of dynamic shared memory per block
	Cluster             uint32 // blocks per cluster; 0: no clusters
	Cooperative         bool   // cooperative launch: all blocks must be resident at once, because they wait for each other
	Stream              uintptr
	n                   int
	words               [MaxWords]uint64
}

// Reset removes all words of the argument.
func (l *Launch) Reset() { l.n = 0 }

// Put appends words to the argument.
func (l *Launch) Put(words ...uint64) { l.n += copy(l.words[l.n:], words) }

// Extend appends n words to the argument, all 0, and returns them.
func (l *Launch) Extend(n int) []uint64 {
	words := l.words[l.n : l.n+n]
	clear(words)
	l.n += n
	return words
}

// CopyFrom copies o to l, except the stream.
func (l *Launch) CopyFrom(o *Launch) {
	l.Grid, l.Block, l.Shared, l.Cluster, l.Cooperative, l.n = o.Grid, o.Block, o.Shared, o.Cluster, o.Cooperative, o.n
	copy(l.words[:o.n], o.words[:o.n])
}

// Words is the argument packed so far.
func (l *Launch) Words() []uint64 { return l.words[:l.n] }

// Status is an error of the driver.
type Status struct {
	Code int
	Name string // CUDA_ERROR_...
	Call string // the function that failed
}

func (s *Status) Error() string { return s.Name + " in " + s.Call }

// NoImage reports whether the error says that an image holds no code for the device.
func (s *Status) NoImage() bool { return s.Code == 209 || s.Code == 222 }

// Advice returns a hint for the user, or "".
func (s *Status) Advice() string {
	switch s.Code {
	case 2:
		return "free device memory"
	case 214, 220, 700, 702, 709, 710, 714, 715, 716, 717, 718, 719, 721: // each makes every later call in the context fail
		return "an earlier kernel of this process failed and its CUDA context is lost: restart the process, " +
			"with CUDA_LAUNCH_BLOCKING=1 and STERNWAY_CHECK=1 to find the kernel"
	case 900, 901, 906:
		return "a stream capture does not allow this call"
	}
	return ""
}

func check(status C.int, call string) error {
	if status == 0 {
		return nil
	}
	name := fmt.Sprintf("CUDA status %d", int(status))
	if text := C.sw_status_name(status); text != nil {
		name = C.GoString(text)
	}
	return &Status{int(status), name, call}
}

type libcuda struct{ version int }

// Open opens libcuda, or returns an error that says why it is not available.
func Open() (Driver, error) {
	var version C.int
	if missing := C.sw_open(&version); missing != nil {
		return nil, errors.New(C.GoString(missing))
	}
	return libcuda{int(version)}, nil
}

func (d libcuda) Version() int { return d.version }

func (d libcuda) DeviceCount() int {
	var count C.int
	if C.sw_device_count(&count) != 0 {
		return 0
	}
	return int(count)
}

// Attributes of cuDeviceGetAttribute.
const (
	attributeMultiprocessors = 16
	attributeMemoryClock     = 36 // kHz, of a bus that moves data twice in each cycle
	attributeMemoryBus       = 37 // bits
	attributeSharedMemory    = 97 // MAX_SHARED_MEMORY_PER_BLOCK_OPTIN [bytes]
	attributeMajor           = 75
	attributeMinor           = 76
)

func (d libcuda) Device(ordinal int) (Device, error) {
	g := &gpu{}
	var context C.uintptr_t
	if err := check(C.sw_device_open(C.int(ordinal), &g.id, &context), "cuDevicePrimaryCtxRetain"); err != nil {
		return nil, err
	}
	g.context = context
	var name [128]C.char
	C.sw_device_name(g.id, &name[0], C.int(len(name)))
	g.name = C.GoString(&name[0])
	var memory C.size_t
	C.sw_device_memory(g.id, &memory)
	g.memory = int64(memory)
	g.arch = fmt.Sprintf("sm_%d%d", g.attribute(attributeMajor), g.attribute(attributeMinor))
	g.multiprocessors = g.attribute(attributeMultiprocessors)
	g.shared = g.attribute(attributeSharedMemory)
	g.bandwidth = 2 * 1000 * int64(g.attribute(attributeMemoryClock)) * int64(g.attribute(attributeMemoryBus)) / 8
	return g, nil
}

type gpu struct {
	id              C.int
	context         C.uintptr_t
	graphs          *C.sw_graphs
	name, arch      string
	multiprocessors int
	shared          int
	memory          int64
	bandwidth       int64
}

func (g *gpu) attribute(which C.int) int {
	var value C.int
	C.sw_device_attribute(g.id, which, &value)
	return int(value)
}

func (g *gpu) Name() string         { return g.name }
func (g *gpu) Arch() string         { return g.arch }
func (g *gpu) Multiprocessors() int { return g.multiprocessors }
func (g *gpu) Memory() int64        { return g.memory }
func (g *gpu) Bandwidth() int64     { return g.bandwidth }
func (g *gpu) SharedMemory() int    { return g.shared }

type library struct {
	gpu    *gpu
	handle C.uintptr_t
}

func (g *gpu) Load(image []byte) (Library, error) {
	l := &library{gpu: g}
	err := check(C.sw_library_load(unsafe.Pointer(&image[0]), &l.handle), "cuLibraryLoadData")
	runtime.KeepAlive(image)
	return l, err
}

func (l *library) Kernel(symbol string) (Kernel, error) {
	name := C.CString(symbol)
	defer C.free(unsafe.Pointer(name))
	var function C.uintptr_t
	err := check(C.sw_kernel_get(l.handle, name, l.gpu.context, C.int(l.gpu.shared), &function, &l.gpu.graphs), "cuLibraryGetKernel "+symbol)
	return Kernel(function), err
}

func (g *gpu) launch(kernel Kernel, l *Launch) C.sw_launch {
	return C.sw_launch{
		grid: C.uint32_t(l.Grid), block: C.uint32_t(l.Block), shared: C.uint32_t(l.Shared), cluster: C.uint32_t(l.Cluster),
		stream: C.uintptr_t(l.Stream), function: C.uintptr_t(kernel), context: g.context, graphs: g.graphs, words: C.size_t(l.n),
	}
}

func (g *gpu) Clusters(kernel Kernel, l *Launch) int {
	c := g.launch(kernel, l)
	return int(C.sw_clusters(&c))
}

func (g *gpu) Launch(kernel Kernel, l *Launch) error {
	c := g.launch(kernel, l)
	call := "cuLaunchKernel"
	switch {
	case l.Cluster > 0:
		call = "cuLaunchKernelEx"
	case l.Cooperative:
		c.cooperative, call = 1, "cuLaunchCooperativeKernel"
	}
	if status := C.sw_launch_kernel(&c, (*C.uint64_t)(&l.words[0])); status != 0 {
		return check(status, call)
	}
	return nil
}

func (g *gpu) Synchronize(stream uintptr) error {
	return check(C.sw_synchronize(g.context, C.uintptr_t(stream)), "cuStreamSynchronize")
}

func (g *gpu) Read(to []byte, from, stream uintptr) error {
	return check(C.sw_read_device(g.context, C.uintptr_t(stream), unsafe.Pointer(&to[0]), C.uintptr_t(from), C.size_t(len(to))), "cuMemcpyDtoHAsync")
}
