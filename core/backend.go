package core

import (
	"github.com/sternway/sternway/core/internal/errs"
	"github.com/sternway/sternway/core/internal/launch"
	"github.com/sternway/sternway/core/internal/ops"
	"github.com/sternway/sternway/core/internal/tensor"
)

// This file is the interface of the two backends, and the choice between them.

// Backend runs programs on one kind of device. Both implementations pass the same conformance
// tests.
type Backend interface {
	Name() string     // "cpu" or "cuda"
	Arch() string     // "amd64", "sm_90"
	NumSMs() int      // streaming multiprocessors; 1 on the CPU, whose results must not depend on the number of threads
	Bandwidth() int64 // memory bandwidth of a GPU in bytes per second; 0 on the CPU
	// Load loads the kernels of a program onto the device, so that Launch never loads code.
	Load(p *ops.Problem, program ops.Program) ([]launch.Kernel, error)
	// Launch runs a plan. Either cached is nil and the operands passed every check, or cached
	// matches the operands.
	Launch(p *Plan, stream, workspace uintptr, args []tensor.Tensor, cached *launchCache) error
}

// backendFor returns the backend of a device, or an error that names the operation op.
func backendFor(device tensor.Device, op string) (Backend, error) {
	switch {
	case device == tensor.CPU:
		return cpuBackend{}, nil
	case device.Type == tensor.DeviceCUDA:
		d, err := launch.DeviceOf(device.Index, op)
		if err != nil {
			return nil, err
		}
		return cudaBackend{d}, nil
	}
	return nil, errs.New(errs.Unsupported, op, "device", "cpu or cuda:N", device.String(), "")
}
