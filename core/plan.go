package core

import (
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
)

// Preference steers Select. The zero value asks for a deterministic kernel with any workspace.
type Preference struct {
	Nondeterministic bool   // an atomic kernel may be picked where it is faster
	MaxWorkspace     *int64 // bytes; nil: no limit
	Kernel           string // one variant by name, for tests and tuning; empty: Select chooses
}

// SKU names what Select chose.
type SKU struct {
	Category   string             `json:"category"`
	Op         string             `json:"op"`
	Element    string             `json:"element"`
	AuxElement string             `json:"aux_element"`
	Arch       string             `json:"arch"`
	Backend    string             `json:"backend"`
	Kernel     string             `json:"kernel"`
	Guarantee  PrecisionGuarantee `json:"precision_guarantee"`
}

// PrecisionGuarantee says what a plan promises of its numbers.
type PrecisionGuarantee struct {
	MathPrecision           string `json:"math_precision"`
	Accumulator             string `json:"accumulator"`
	BitStableOnSameHardware bool   `json:"bit_stable_on_same_hardware"`
	Deterministic           bool   `json:"deterministic"`
}

// Plan is a selected kernel for one descriptor on one device. It is immutable and safe for concurrent runs.
type Plan struct {
	descriptor Descriptor
	problem    *problem
	op         string // as messages call it
	device     Device
	backend    Backend
	program    program
	kernels    []Kernel // loaded symbols of the program, in its order; empty on the CPU
	recipe     atomic.Pointer[recipe]
}

// Args are the operands of a run by name.
type Args map[string]Tensor

// Select checks a descriptor and chooses a kernel for a device. It may be slow; it loads what the plan needs.
func Select(descriptor Descriptor, device Device, preference Preference) (*Plan, error) {
	problem, err := descriptor.problem()
	if err != nil {
		return nil, err
	}
	if err := checkPreference(problem, preference); err != nil {
		return nil, err
	}
	backend, err := backendFor(device, problem.op())
	if err != nil {
		return nil, err
	}
	problem.arch, problem.bandwidth = backend.Arch(), backend.Bandwidth()
	program, err := problem.compile(problem, backend.Units(), device.Type == deviceCUDA, preference)
	if err != nil {
		return nil, err
	}
	if limit := preference.MaxWorkspace; limit != nil && program.workspace() > *limit {
		return nil, refuse(Unsupported, problem.op(), "max_workspace",
			fmt.Sprintf("at least %d bytes", program.workspace()), fmt.Sprint(*limit), "")
	}
	p := &Plan{descriptor: descriptor, problem: problem, op: problem.op(), device: device, backend: backend, program: program}
	p.kernels, err = backend.Load(problem, program)
	return p, err
}

func checkPreference(p *problem, preference Preference) error {
	known := p.family.kind(p.kind).Kernels
	if preference.Kernel != "" && !slices.Contains(known, preference.Kernel) {
		return refuse(Unsupported, p.op(), "preference.kernel", orList(known), fmt.Sprintf("%q", preference.Kernel), "")
	}
	if limit := preference.MaxWorkspace; limit != nil && *limit < 0 {
		return refuse(InvalidProblem, p.op(), "preference.max_workspace", "a number of bytes", fmt.Sprint(*limit), "")
	}
	return nil
}

// Descriptor is the problem that the plan was selected for.
func (p *Plan) Descriptor() Descriptor { return p.descriptor }

// WorkspaceSize is the number of bytes of device memory that a run needs from its caller.
func (p *Plan) WorkspaceSize() int64 { return p.program.workspace() }

// WorkspaceFor is the operand without which a run needs no workspace; "" where every run needs it.
func (p *Plan) WorkspaceFor() string {
	if i := p.workspaceFor(); i >= 0 {
		return p.problem.operands[i].name
	}
	return ""
}

// workspaceFor is the number of that operand, or -1.
func (p *Plan) workspaceFor() int {
	if s, ok := p.program.(sparing); ok {
		return s.workspaceFor()
	}
	return -1
}

// PrecisionGuarantee says what the plan promises of its numbers.
func (p *Plan) PrecisionGuarantee() PrecisionGuarantee {
	math := p.problem.element.Accumulator()
	accumulator := math
	switch {
	case !p.problem.element.floating(): // integers are counted as what they are
		math, accumulator = p.problem.element, p.problem.element
	case p.device.Type == deviceCPU:
		accumulator = Float64 // sums on the host are carried in float64
	}
	return PrecisionGuarantee{
		MathPrecision: math.String(), Accumulator: accumulator.String(), BitStableOnSameHardware: true, Deterministic: true,
	}
}

// SKU names the chosen kernel.
func (p *Plan) SKU() SKU {
	return SKU{
		Category: p.problem.family.Category, Op: p.op, Element: p.problem.element.String(),
		AuxElement: p.problem.aux, Arch: p.backend.Arch(), Backend: p.backend.Name(),
		Kernel: p.program.kernel(), Guarantee: p.PrecisionGuarantee(),
	}
}

// CanImplement returns nil, or the error that Run would return for these operands.
func (p *Plan) CanImplement(args Args) error {
	ordered, err := p.order(args)
	if err != nil {
		return err
	}
	return p.check(ordered)
}

// Run checks the operands and launches the plan on a stream, an opaque driver handle (0 on the CPU). The workspace is a
// uint8 tensor of at least WorkspaceSize bytes on the plan's device, 256-byte aligned; the zero Tensor where none is needed.
// On the CPU the outputs are complete when Run returns. Run allocates nothing on the device and never synchronises.
func (p *Plan) Run(stream uintptr, workspace Tensor, args Args) error {
	ordered, err := p.order(args)
	if err != nil {
		return err
	}
	return p.RunOrdered(stream, workspace, ordered)
}

// RunOrdered is Run with the operands in the order of Operands, absent ones as zero Tensors.
func (p *Plan) RunOrdered(stream uintptr, workspace Tensor, args []Tensor) error {
	known := p.recipe.Load()
	if known != nil && !known.fits(args) {
		known = nil
	}
	if known == nil {
		if err := p.check(args); err != nil {
			return err
		}
	}
	if err := p.checkWorkspace(&workspace, args); err != nil {
		return err
	}
	err := p.backend.Launch(p, stream, workspace.Data, args, known)
	if err == nil {
		return nil
	}
	var refusal *Error
	if errors.As(err, &refusal) {
		refusal.Op = p.op
	}
	return err
}

// CanImplementOrdered returns nil, or the error that RunOrdered would return.
func (p *Plan) CanImplementOrdered(workspace Tensor, args []Tensor) error {
	if err := p.check(args); err != nil {
		return err
	}
	return p.checkWorkspace(&workspace, args)
}

// Operands lists the operands of a run in order: inputs, then outputs.
func (p *Plan) Operands() []string {
	names := make([]string, len(p.problem.operands))
	for i := range p.problem.operands {
		names[i] = p.problem.operands[i].name
	}
	return names
}

func (p *Plan) order(args Args) ([]Tensor, error) {
	ordered := make([]Tensor, len(p.problem.operands))
	names := p.Operands()
	for i, name := range names {
		ordered[i] = args[name]
	}
	for name := range args {
		if !slices.Contains(names, name) {
			return nil, refuse(InvalidProblem, p.op, name, "one of "+orList(names), "an unexpected operand", "")
		}
	}
	return ordered, nil
}
