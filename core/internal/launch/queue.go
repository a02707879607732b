// Package launch packs the arguments of CUDA kernels, submits them to a stream, and records a run's launches so that the next run can replay
// them on other addresses.
package launch

import (
	"fmt"
	"math"
	"slices"
	"sync"

	"github.com/sternway/sternway/core/driver"
	"github.com/sternway/sternway/core/internal/errs"
)

// Kernel is a loaded kernel of one device.
type Kernel = driver.Kernel

// Queue receives the launches of one run.
type Queue struct {
	Launch   driver.Launch
	Kernels  []Kernel
	Device   driver.Device
	slots    []addressSlot
	Recorded *[]RecordedLaunch // nil: the run is not recorded
}

var Queues = sync.Pool{New: func() any { return new(Queue) }}

// Begin forgets the words of the last launch.
func (q *Queue) Begin() {
	q.Launch.Reset()
	q.Launch.Shared, q.Launch.Cluster, q.Launch.Together = 0, 0, false
	q.slots = q.slots[:0]
}

// Address packs the address of an operand of the plan, or of the workspace.
func (q *Queue) Address(operand int, value uintptr) {
	q.slots = append(q.slots, addressSlot{len(q.Launch.Words()), operand})
	q.Launch.Put(uint64(value))
}

// Submit launches kernel number i of the plan with the words packed so far. Empty grids are left out.
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

// Clusters is how many clusters of so many blocks of kernel number i the device holds at once.
func (q *Queue) Clusters(i int, blocks int64, block, shared uint32) int64 {
	l := driver.Launch{Grid: uint32(blocks), Block: block, Shared: shared, Cluster: uint32(blocks)}
	return int64(q.Device.Clusters(q.Kernels[i], &l))
}

type RecordedLaunch struct {
	Kernel int
	Launch driver.Launch
	Slots  []addressSlot
}

// patch is a word that holds the address of an operand, or of the workspace.
type addressSlot struct{ Word, Operand int }

const WorkspaceOperand = -1

// WorkspaceAlignment is what allocators of device memory give, and what 16-byte accesses and atomics need at the least.
const WorkspaceAlignment = 256

const (
	BlockThreads = 256  // of columns, and of kernels elsewhere
	ThreadsPerSM = 2048 // that fill a multiprocessor
)
