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
