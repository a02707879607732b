package core

import (
	"errors"
	"math"
	"runtime"
	"slices"
	"sync/atomic"
	"unsafe"

	"github.com/sternway/sternway/core/internal/errs"
	"github.com/sternway/sternway/core/internal/launch"
	"github.com/sternway/sternway/core/internal/ops"
	"github.com/sternway/sternway/core/internal/tensor"
	"github.com/sternway/sternway/core/internal/threads"
)

// This file is the CUDA backend: devices, kernels and launches of a run.

// cudaBackend is one CUDA device.
type cudaBackend struct{ device *launch.Device }

// checking is set by SetCheck.
var checking atomic.Bool

// SetCheck turns debug checks of GPU runs on or off. With checks on, every run first validates
// index values and then synchronizes, so that an error names the operation that caused it.
func SetCheck(on bool) { checking.Store(on) }

func (b cudaBackend) Name() string     { return "cuda" }
func (b cudaBackend) Arch() string     { return b.device.Arch() }
func (b cudaBackend) NumSMs() int      { return b.device.Multiprocessors() }
func (b cudaBackend) Bandwidth() int64 { return b.device.Bandwidth() }

func (b cudaBackend) Load(p *ops.Problem, program ops.Program) ([]launch.Kernel, error) {
	return b.device.Kernels(program.Symbols(), p.Op())
}

// checkValues validates the index operands on host copies of them. It synchronizes the stream.
func (b cudaBackend) checkValues(p *Plan, args []tensor.Tensor, stream uintptr) error {
	if p.problem.CheckValues == nil {
		return nil
	}
	args = slices.Clone(args)
	for i := range args {
		t := &args[i]
		if p.problem.Operands[i].Out || t.DType != tensor.Int32 && t.DType != tensor.Int64 || t.Empty() {
			continue
		}
		low, high, _ := t.Span()
		words := make([]uint64, (high-low+7)/8)
		copied := unsafe.Slice((*byte)(unsafe.Pointer(&words[0])), high-low)
		if err := b.device.Read(copied, uintptr(int64(t.Data)+low), stream); err != nil {
			return launch.DeviceError(p.op, p.problem.Operands[i].Name, err)
		}
		t.Pin = unsafe.Pointer(&words[0])
		t.Data = uintptr(int64(uintptr(t.Pin)) - low)
	}
	if refusal := p.problem.CheckValues(args); refusal != nil {
		return refusal
	}
	runtime.KeepAlive(args)
	return nil
}

// Launch replays the cached launches if there are any. Otherwise the program computes its launches,
// and they replace the plan's launch cache unless newLaunchCache declines the run.
func (b cudaBackend) Launch(p *Plan, stream, workspace uintptr, args []tensor.Tensor, cached *launchCache) error {
	if checking.Load() {
		if err := b.checkValues(p, args, stream); err != nil {
			return err
		}
	}
	q := launch.Queues.Get().(*launch.Queue)
	defer launch.Queues.Put(q)
	q.Kernels, q.Device, q.Launch.Stream = p.kernels, b.device, stream
	var err error
	if cached != nil {
		err = cached.replay(q, args, workspace)
	} else {
		defer threads.EnterDefaultMode().Leave() // arguments of kernels are computed on the host
		fresh := newLaunchCache(p, args)
		if fresh != nil {
			q.Recorded = &fresh.launches
		}
		if err = p.program.Device(args, workspace, q); err == nil && fresh != nil {
			p.cached.Store(fresh)
		}
		q.Recorded = nil
	}
	if err == nil && checking.Load() {
		err = b.device.Synchronize(stream)
	}
	if err == nil {
		return nil
	}
	var refusal *errs.Error
	if errors.As(err, &refusal) {
		return err
	}
	return launch.DeviceError(p.op, "launch", err)
}

// launchCache holds the kernel launches of the last run of a plan that was recorded. A later run
// whose operands differ only in their addresses, with the same alignment, replays the launches with
// its own addresses. Of the checks, those of addresses, overlaps and the workspace are repeated.
type launchCache struct {
	args     []tensor.Tensor         // cacheKey each operand of the recorded run
	spans    [][2]int64              // byte range of each operand, relative to its address
	outputs  []int                   // indices of the outputs among the operands
	launches []launch.RecordedLaunch // in the order of submission
}

// alignmentMask selects the low bits of an address, which decide how kernels may access memory.
const alignmentMask = launch.WorkspaceAlignment - 1

// cacheKey is a tensor reduced to the properties that launches depend on: of its address, only the
// alignment.
func cacheKey(t tensor.Tensor) tensor.Tensor {
	t.Data &= alignmentMask
	t.Pin = nil
	return t
}

// newLaunchCache returns an empty cache for a run whose operands passed every check. It returns nil
// if an output may share memory with another operand, as an in-place run does: such runs are not
// cached.
func newLaunchCache(p *Plan, args []tensor.Tensor) *launchCache {
	c := &launchCache{}
	for i := range args {
		low, high, _ := args[i].Span() // checkOperand found it in the address space
		if !args[i].Given() {
			low, high = 0, 0
		}
		c.args = append(c.args, cacheKey(args[i]))
		c.spans = append(c.spans, [2]int64{low, high})
		if p.problem.Operands[i].Out && args[i].Given() {
			c.outputs = append(c.outputs, i)
		}
	}
	if !c.disjointOutputs(args) {
		return nil
	}
	return c
}

// matches reports whether the recorded launches are valid for these operands once addresses are
// patched.
func (c *launchCache) matches(args []tensor.Tensor) bool {
	if len(args) != len(c.args) {
		return false
	}
	for i := range args {
		if args[i].Present|c.args[i].Present == 0 { // absent in both runs
			continue
		}
		low, high, address := c.spans[i][0], c.spans[i][1], int64(args[i].Data)
		if cacheKey(args[i]) != c.args[i] || address == 0 && high > 0 || address < -low || address > math.MaxInt64-high {
			return false
		}
	}
	return c.disjointOutputs(args)
}

// disjointOutputs reports whether no output span intersects the span of another operand.
// Interleaved views are disjoint too, but only the full check can tell; here they count as
// overlapping.
func (c *launchCache) disjointOutputs(args []tensor.Tensor) bool {
	for _, o := range c.outputs {
		low, high := int64(args[o].Data)+c.spans[o][0], int64(args[o].Data)+c.spans[o][1]
		for i := range args {
			if i != o && int64(args[i].Data)+c.spans[i][0] < high && low < int64(args[i].Data)+c.spans[i][1] {
				return false
			}
		}
	}
	return true
}

// replay submits the recorded launches with the addresses of this run.
func (c *launchCache) replay(q *launch.Queue, args []tensor.Tensor, workspace uintptr) error {
	for i := range c.launches {
		recorded := &c.launches[i]
		q.Launch.CopyFrom(&recorded.Launch)
		for _, slot := range recorded.Slots {
			address := workspace
			if slot.Operand != launch.WorkspaceOperand {
				address = args[slot.Operand].Data
			}
			q.Launch.Words()[slot.Word] = uint64(address)
		}
		if err := q.Device.Launch(q.Kernels[recorded.Kernel], &q.Launch); err != nil {
			return err
		}
	}
	return nil
}
