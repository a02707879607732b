package core

import (
	"errors"
	"runtime"
	"slices"
	"sync/atomic"
	"unsafe"

	"github.com/sternway/sternway/core/internal/errs"
	"github.com/sternway/sternway/core/internal/launch"
	"github.com/sternway/sternway/core/internal/ops"
	"github.com/sternway/sternway/core/internal/tensor"
)

// cudaBackend is one CUDA device.
type cudaBackend struct{ device *launch.Device }

var checking atomic.Bool

// SetCheck makes every launch look at index values first and wait for its result, so that an error names the operation that caused it.
func SetCheck(on bool) { checking.Store(on) }

func (b cudaBackend) Name() string     { return "cuda" }
func (b cudaBackend) Arch() string     { return b.device.Arch() }
func (b cudaBackend) Units() int       { return b.device.Multiprocessors() }
func (b cudaBackend) Bandwidth() int64 { return b.device.Bandwidth() }

func (b cudaBackend) Load(p *ops.Problem, program ops.Program) ([]launch.Kernel, error) {
	return b.device.Kernels(program.Symbols(), p.Op())
}

// checkValues refuses wrong indices among the operands, of which it makes copies on the host.
func (b cudaBackend) checkValues(p *Plan, args []tensor.Tensor, stream uintptr) error {
	if p.problem.Values == nil {
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
	if refusal := p.problem.Values(args); refusal != nil {
		return refusal
	}
	runtime.KeepAlive(args)
	return nil
}

// Launch plays the plan's recipe where it fits, and otherwise works the launches out and keeps them as the new recipe.
func (b cudaBackend) Launch(p *Plan, stream, workspace uintptr, args []tensor.Tensor, known *recipe) error {
	if checking.Load() {
		if err := b.checkValues(p, args, stream); err != nil {
			return err
		}
	}
	q := launch.Queues.Get().(*launch.Queue)
	defer launch.Queues.Put(q)
	q.Kernels, q.Device, q.Launch.Stream = p.kernels, b.device, stream
	var err error
	if known != nil {
		err = known.replay(q, args, workspace)
	} else {
		fresh := newRecipe(p, args)
		if fresh != nil {
			q.Recorded = &fresh.launches
		}
		if err = p.program.Device(args, workspace, q); err == nil && fresh != nil {
			p.recipe.Store(fresh)
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
