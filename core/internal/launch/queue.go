// Package launch drives CUDA devices for the operations: it loads kernel images, packs kernel
// arguments, submits launches to a stream, and records them so that a later run can replay them
// with other addresses.
package launch

import (
	"fmt"
	"math"
	"slices"
	"sync"
	"unsafe"

	"github.com/sternway/sternway/core/driver"
	"github.com/sternway/sternway/core/internal/errs"
)

// Kernel is a loaded kernel of one device.
type Kernel = driver.Kernel

// Queue receives the launches of one run. For each launch: Begin, pack arguments, Submit.
type Queue struct {
	Launch   driver.Launch
	Kernels  []Kernel
	Device   driver.Device
	slots    []addressSlot
	Recorded *[]RecordedLaunch // nil: the run is not recorded
}

// Queues recycles queues between runs.
var Queues = sync.Pool{New: func() any { return new(Queue) }}

// Begin starts the next launch with no arguments packed.
func (q *Queue) Begin() {
	q.Launch.Reset()
	q.Launch.Shared, q.Launch.Cluster, q.Launch.Cooperative = 0, 0, false
	q.slots = q.slots[:0]
}

// Address is a pointer in an argument of a kernel.
type Address uint64

// Append appends a T, all of whose words are 0, to the argument of the next launch. T is a struct
// of 8-byte fields and even numbers of float32; core/internal/generate writes its declaration in
// CUDA. The pointer is valid until Submit.
func Append[T any](q *Queue) *T {
	return (*T)(unsafe.Pointer(unsafe.SliceData(q.Launch.Extend(int(unsafe.Sizeof(*new(T)) / wordBytes)))))
}

const wordBytes = 8

// SetAddress stores the address of an operand of the plan, by index, or of the workspace
// (WorkspaceOperand), in a field of the argument.
func (q *Queue) SetAddress(field *Address, operand int, value uintptr) {
	*field = Address(value)
	offset := uintptr(unsafe.Pointer(field)) - uintptr(unsafe.Pointer(unsafe.SliceData(q.Launch.Words())))
	q.slots = append(q.slots, addressSlot{int(offset / wordBytes), operand})
}

// Submit launches kernel i of the plan with the arguments packed since Begin. An empty grid is
// skipped.
func (q *Queue) Submit(i int, grid int64, block uint32) error {
	if grid == 0 {
		return nil
	}
	if grid > math.MaxInt32 {
		return errs.New(errs.Unsupported, "", "launch", fmt.Sprintf("of at most %d blocks", math.MaxInt32), fmt.Sprint(grid), "split the tensor")
	}
	q.Launch.Grid, q.Launch.Block = uint32(grid), block
	if q.Recorded != nil {
		*q.Recorded = append(*q.Recorded, RecordedLaunch{i, q.Launch, slices.Clone(q.slots)})
	}
	return q.Device.Launch(q.Kernels[i], &q.Launch)
}

// Clusters is the number of thread-block clusters of kernel i that can be resident at once. blocks
// is the number of blocks per cluster, block the number of threads per block, shared the dynamic
// shared memory per block in bytes.
func (q *Queue) Clusters(i int, blocks int64, block, shared uint32) int64 {
	l := driver.Launch{Grid: uint32(blocks), Block: block, Shared: shared, Cluster: uint32(blocks)}
	return int64(q.Device.Clusters(q.Kernels[i], &l))
}

// RecordedLaunch is a submitted launch: the kernel's index in the plan, its configuration and
// arguments, and the arguments that are addresses.
type RecordedLaunch struct {
	Kernel int
	Launch driver.Launch
	Slots  []addressSlot
}

// addressSlot is an argument word that holds the address of an operand, or of the workspace.
type addressSlot struct{ Word, Operand int }

// WorkspaceOperand stands for the workspace where an operand index is expected.
const WorkspaceOperand = -1

// WorkspaceAlignment is the required alignment of a workspace in bytes. Allocators of device memory
// provide it.
const WorkspaceAlignment = 256

// ThreadsPerSM is the number of threads per SM below which work is divided more finely. A full SM
// of compute capability 8.0, 9.0 or 10.0 holds as many; 8.6, 8.9 and 12.0 hold 1536, and there
// division goes on a little longer than occupancy needs. It is no limit: launches of any size are
// valid. Another value would change the order of sums, and so their bits.
const ThreadsPerSM = 2048
