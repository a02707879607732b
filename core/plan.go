package core

import (
	"errors"
	"fmt"
	"slices"
	"sync/atomic"

	"github.com/sternway/sternway/core/internal/errs"
	"github.com/sternway/sternway/core/internal/launch"
	"github.com/sternway/sternway/core/internal/ops"
	"github.com/sternway/sternway/core/internal/tensor"
	"github.com/sternway/sternway/core/internal/threads"
)

// This file is the plan: selection, description and run.

// SKU identifies the kernel of a plan among all kernels (stock keeping unit), by operation, dtype,
// architecture and backend.
type SKU struct {
	Category   string             `json:"category"`    // of the family: "scan"
	Op         string             `json:"op"`          // as in messages: "scan_backward(cumprod)"
	Element    string             `json:"element"`     // dtype of dy
	AuxElement string             `json:"aux_element"` // a second dtype, such as that of q or of indices; may be empty
	Arch       string             `json:"arch"`        // "amd64", "sm_90"
	Backend    string             `json:"backend"`     // "cpu" or "cuda"
	Kernel     string             `json:"kernel"`      // for contiguous operands; other layouts may run another kernel
	Guarantee  PrecisionGuarantee `json:"precision_guarantee"`
}

// PrecisionGuarantee states the numerical properties that a plan guarantees.
type PrecisionGuarantee struct {
	MathPrecision           string `json:"math_precision"` // type of elementwise arithmetic
	Accumulator             string `json:"accumulator"`    // type in which sums are carried
	BitStableOnSameHardware bool   `json:"bit_stable_on_same_hardware"`
	Deterministic           bool   `json:"deterministic"`
}

// Plan is a checked descriptor on one device, with its loaded kernels and the size of its
// workspace. It is immutable and safe for concurrent runs.
type Plan struct {
	descriptor ops.Descriptor
	problem    *ops.Problem
	op         string // name of the operation in messages
	device     tensor.Device
	backend    Backend
	program    ops.Program
	kernels    []launch.Kernel // loaded kernels, in the order of program.Symbols; empty on the CPU
	cached     atomic.Pointer[launchCache]
}

// Args are the operands of a run by name.
type Args map[string]tensor.Tensor

// Select checks a descriptor, compiles its program for a device and loads the kernels. It may be
// slow.
func Select(descriptor ops.Descriptor, device tensor.Device, preference ops.Preference) (*Plan, error) {
	defer threads.EnterDefaultMode().Leave()
	problem, err := descriptor.Problem()
	if err != nil {
		return nil, err
	}
	if err := checkPreference(problem, device, preference); err != nil {
		return nil, err
	}
	backend, err := backendFor(device, problem.Op())
	if err != nil {
		return nil, err
	}
	problem.Arch, problem.Bandwidth = backend.Arch(), backend.Bandwidth()
	program, err := problem.Compile(problem, backend.NumSMs(), device.Type == tensor.DeviceCUDA, preference)
	if err != nil {
		return nil, err
	}
	if limit := preference.MaxWorkspace; limit != nil && program.Workspace() > *limit {
		return nil, errs.New(errs.Unsupported, problem.Op(), "max_workspace",
			fmt.Sprintf("at least %d bytes", program.Workspace()), fmt.Sprint(*limit), "")
	}
	p := &Plan{descriptor: descriptor, problem: problem, op: problem.Op(), device: device, backend: backend, program: program}
	p.kernels, err = backend.Load(problem, program)
	return p, err
}

// checkPreference refuses a kernel name that the kind does not have and a negative workspace limit.
func checkPreference(p *ops.Problem, device tensor.Device, preference ops.Preference) error {
	known := p.Family.Kind(p.Kind).Kernels
	if device.Type == tensor.DeviceCPU && p.Family.HostKernels != nil {
		known = p.Family.HostKernels
	}
	if preference.Kernel != "" && !slices.Contains(known, preference.Kernel) {
		return errs.New(errs.Unsupported, p.Op(), "preference.kernel", errs.OrList(known), fmt.Sprintf("%q", preference.Kernel), "")
	}
	if limit := preference.MaxWorkspace; limit != nil && *limit < 0 {
		return errs.New(errs.InvalidProblem, p.Op(), "preference.max_workspace", "a number of bytes", fmt.Sprint(*limit), "")
	}
	return nil
}

// Descriptor is the problem that the plan was selected for.
func (p *Plan) Descriptor() ops.Descriptor { return p.descriptor }

// Device is the device that the plan was selected for.
func (p *Plan) Device() Device { return p.device }

// WorkspaceSize is the number of bytes of device memory that suffice for every run.
func (p *Plan) WorkspaceSize() int64 { return p.program.Workspace() }

// WorkspaceNeed is the number of bytes of device memory that suffices for a run. Bit i of given
// says that operand i of Operands is given; contiguous, that all these are.
func (p *Plan) WorkspaceNeed(given uint, contiguous bool) int64 {
	if s, ok := p.program.(ops.ConditionalWorkspace); ok {
		return s.WorkspaceNeed(given, contiguous)
	}
	return p.program.Workspace()
}

// PrecisionGuarantee states the numerical properties that the plan guarantees.
func (p *Plan) PrecisionGuarantee() PrecisionGuarantee {
	math := p.problem.Element.Accumulator()
	accumulator := math
	switch {
	case !p.problem.Element.Floating(): // integer results are exact
		math, accumulator = p.problem.Element, p.problem.Element
	case p.device.Type == tensor.DeviceCPU && p.problem.Family.HostSums == ops.InFloat64:
		accumulator = tensor.Float64
	}
	return PrecisionGuarantee{
		MathPrecision: math.String(), Accumulator: accumulator.String(), BitStableOnSameHardware: true, Deterministic: true,
	}
}

// SKU identifies the selected kernel.
func (p *Plan) SKU() SKU {
	return SKU{
		Category: p.problem.Family.Category, Op: p.op, Element: p.problem.Element.String(),
		AuxElement: p.problem.Aux, Arch: p.backend.Arch(), Backend: p.backend.Name(),
		Kernel: p.program.Kernel(), Guarantee: p.PrecisionGuarantee(),
	}
}

// CanImplement returns nil, or the error that Run would return for these operands. It checks no
// workspace; CanImplementOrdered does.
func (p *Plan) CanImplement(args Args) error {
	ordered, err := p.order(args)
	if err != nil {
		return err
	}
	return p.check(ordered)
}

// Run checks the operands and launches the plan on a stream, an opaque driver handle (0 on the
// CPU). The workspace is a uint8 tensor of at least WorkspaceSize bytes on the plan's device,
// 256-byte aligned; the zero Tensor where none is needed. On the CPU the outputs are complete when
// Run returns. Run allocates nothing on the device and never synchronizes.
func (p *Plan) Run(stream uintptr, workspace tensor.Tensor, args Args) error {
	ordered, err := p.order(args)
	if err != nil {
		return err
	}
	return p.RunOrdered(stream, workspace, ordered)
}

// RunOrdered is Run with the operands in the order of Operands, absent ones as zero Tensors.
func (p *Plan) RunOrdered(stream uintptr, workspace tensor.Tensor, args []tensor.Tensor) error {
	cached := p.cached.Load()
	if cached != nil && !cached.matches(args) {
		cached = nil
	}
	if cached == nil {
		if err := p.check(args); err != nil {
			return err
		}
	}
	if err := p.checkWorkspace(&workspace, args); err != nil {
		return err
	}
	err := p.backend.Launch(p, stream, workspace.Data, args, cached)
	if err == nil {
		return nil
	}
	var refusal *errs.Error
	if errors.As(err, &refusal) {
		refusal.Op = p.op
	}
	return err
}

// CanImplementOrdered returns nil, or the error that RunOrdered would return.
func (p *Plan) CanImplementOrdered(workspace tensor.Tensor, args []tensor.Tensor) error {
	if err := p.check(args); err != nil {
		return err
	}
	return p.checkWorkspace(&workspace, args)
}

// Operands lists the operands of a run in order: inputs, then outputs.
func (p *Plan) Operands() []string {
	names := make([]string, len(p.problem.Operands))
	for i := range p.problem.Operands {
		names[i] = p.problem.Operands[i].Name
	}
	return names
}

// order puts named operands in the order of Operands and refuses unknown names.
func (p *Plan) order(args Args) ([]tensor.Tensor, error) {
	ordered := make([]tensor.Tensor, len(p.problem.Operands))
	names := p.Operands()
	for i, name := range names {
		ordered[i] = args[name]
	}
	for name := range args {
		if !slices.Contains(names, name) {
			return nil, errs.New(errs.InvalidProblem, p.op, name, "one of "+errs.OrList(names), "an unexpected operand", "")
		}
	}
	return ordered, nil
}
