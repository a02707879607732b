package scan

import (
	"fmt"
	"math"
	"slices"

	"github.com/sternway/sternway/core/internal/cpu"
	"github.com/sternway/sternway/core/internal/errs"
	"github.com/sternway/sternway/core/internal/launch"
	"github.com/sternway/sternway/core/internal/ops"
	"github.com/sternway/sternway/core/internal/ops/scan/gpu"
	"github.com/sternway/sternway/core/internal/ops/scan/host"
	"github.com/sternway/sternway/core/internal/ops/scan/operand"
	"github.com/sternway/sternway/core/internal/tensor"
)

// linearProgram is a linear recurrence, or the gradient of one, that was compiled for a device.
type linearProgram struct {
	*linearProblem
	isBackward bool
	host       host.Linear
	gpu        *gpu.Scan // nil: compiled for the CPU
	kernel     string
	// Workspace [bytes]: in all, and without the terms of sums.
	workspace, scanWorkspace int64
}

// compiler returns the function that compiles the problem for a device.
func (p *linearProblem) compiler(isBackward bool) func(*ops.Problem, int, bool, ops.Preference) (ops.Program, error) {
	return func(problem *ops.Problem, numSMs int, cuda bool, preference ops.Preference) (ops.Program, error) {
		program := &linearProgram{linearProblem: p, isBackward: isBackward, kernel: host.Lanes, host: host.Linear{Scan: host.Scan{
			Op: p.op, Shape: p.Shape, Dim: p.dim, IsReversed: p.Reverse,
		}}}
		if cuda {
			return program, program.compileCUDA(problem, numSMs, preference)
		}
		if asked := preference.Kernel; asked != "" && asked != host.Lanes {
			return nil, errs.New(errs.Unsupported, p.op, "preference.kernel", fmt.Sprintf("%q for this problem", host.Lanes), fmt.Sprintf("%q", asked), "")
		}
		return program, nil
	}
}

// compileCUDA selects the kernel for contiguous operands, and a workspace that suffices for every
// layout, and for the terms of gradients that are summed.
func (l *linearProgram) compileCUDA(problem *ops.Problem, numSMs int, preference ops.Preference) error {
	kind, special := gpu.Linear, []*gpu.Kind{gpu.LinearOneFactor}
	if l.isBackward {
		switch kind = gpu.LinearBackward; {
		case l.DType.Size() == 2:
			special = append(special, gpu.LinearTerms)
		case l.DType == tensor.Float32 && l.NumSequences == nil:
			special = append(special, gpu.LinearRowSums)
		}
	}
	if l.NumSequences != nil {
		kind = gpu.Packed[kind]
		for i := range special {
			special[i] = gpu.Packed[special[i]]
		}
	}
	// Kernels scan from the last position to the first: those of the recurrence read it reversed.
	l.gpu = &gpu.Scan{
		Plain: problemOf(kind, problem, &l.host.Scan, numSMs, preference),
		Shape: l.Shape, Dim: l.dim, IsForward: !l.isBackward, IsReversed: l.Reverse == l.isBackward, Sums: l.sums(),
	}
	p := &l.gpu.Plain
	if asked := preference.Kernel; asked != "" && (!kind.HasKernel(asked) || !gpu.SupportsLength(p, asked)) {
		return errs.New(errs.Unsupported, l.op, "preference.kernel", "one for rows of this length", fmt.Sprintf("%q", asked), "")
	}
	if l.selectStatic(special); preference.MaxWorkspace != nil && l.workspace > *preference.MaxWorkspace && preference.Kernel == "" {
		p.GeneralOnly = true
		l.selectStatic(special)
	}
	if l.kernel = p.Kernel; l.kernel == "" {
		layout := gpu.ContiguousLayout(p)
		l.kernel = gpu.Select(p, &layout).Kernel
	}
	return nil
}

// selectStatic sets the workspace, and the problems of special kinds.
func (l *linearProgram) selectStatic(special []*gpu.Kind) {
	p, others := &l.gpu.Plain, slices.Delete(slices.Clone(l.Shape), l.dim, min(l.dim+1, len(l.Shape)))
	l.scanWorkspace = gpu.MaxWorkspaceBytes(p, others)
	l.gpu.Special = nil
	for _, kind := range special {
		s := *p
		if s.Kind = kind; s.Kernel != "" && (!kind.HasKernel(s.Kernel) || !gpu.SupportsLength(&s, s.Kernel)) {
			s.Kernel = ""
		}
		l.scanWorkspace = max(l.scanWorkspace, gpu.MaxWorkspaceBytes(&s, others))
		l.gpu.Special = append(l.gpu.Special, s)
	}
	p.Workspace = l.scanWorkspace
	for i := range l.gpu.Special {
		l.gpu.Special[i].Workspace = l.scanWorkspace
	}
	l.workspace = gpu.PlaceSums(l.gpu.Sums, l.Shape, l.scanWorkspace, l.DType.Accumulator().Size(), p.Device.NumSMs)
}

// sums are the gradients of operands that were broadcast.
func (l *linearProgram) sums() (sums []gpu.Sum) {
	if !l.isBackward {
		return nil
	}
	n, _ := tensor.Product(l.Shape)
	for _, s := range []gpu.Sum{{Operand: operand.LinearDA, Shape: l.aShape}, {Operand: operand.LinearDB, Shape: l.bShape}} {
		if own, _ := tensor.Product(s.Shape); own != n {
			sums = append(sums, s)
		}
	}
	return sums
}

// WorkspaceNeed implements ops.ConditionalWorkspace: terms take workspace if they are summed.
func (l *linearProgram) WorkspaceNeed(given uint, _ bool) int64 {
	if l.gpu == nil {
		return 0
	}
	for i := range l.gpu.Sums {
		if given>>l.gpu.Sums[i].Operand&1 == 1 {
			return l.workspace
		}
	}
	return l.scanWorkspace
}

func (l *linearProgram) Kernel() string                    { return l.kernel }
func (l *linearProgram) Workspace() int64                  { return l.workspace }
func (l *linearProgram) InPlace([]tensor.Tensor, int) bool { return false }

// Tasks implements ops.Program.
func (l *linearProgram) Tasks(args []tensor.Tensor) int64 {
	if l.isBackward {
		return l.host.Tasks(args[operand.LinearBackwardH], &args[operand.LinearBackwardSeqlens])
	}
	return l.host.Tasks(args[operand.LinearH], &args[operand.LinearSeqlens])
}

// Symbols are the kernels of the kind, those of special kinds, scan_sum if gradients are summed,
// and gpu.LastKernels.
func (l *linearProgram) Symbols() (list []launch.Symbol) {
	kinds := []*gpu.Kind{l.gpu.Plain.Kind}
	for i := range l.gpu.Special {
		kinds = append(kinds, l.gpu.Special[i].Kind)
	}
	for _, kind := range kinds {
		for _, kernel := range kind.Kernels() {
			list = append(list, launch.Symbol{Image: kind.Image, Name: kind.SymbolPrefix + "_" + kernel + "_" + l.DType.Suffix()})
		}
	}
	if len(l.gpu.Sums) > 0 {
		list = append(list, launch.Symbol{Image: gpu.Cumsum.Image, Name: "scan_sum_" + l.DType.Suffix()})
	}
	return append(list, lastSymbols(gpu.Linear.Image, "linear_pass_", l.DType)...)
}

// Device launches the kernels that compute the outputs.
func (l *linearProgram) Device(args []tensor.Tensor, workspace uintptr, q *launch.Queue) error {
	args = slices.Clone(args)
	elements, states := []int{operand.LinearA, operand.LinearB}, []int{operand.LinearInitial, operand.LinearFinal}
	if l.isBackward {
		elements = []int{operand.LinearBackwardA}
		states = []int{operand.LinearBackwardInitial, operand.LinearDFinal, operand.LinearDInitial}
		for _, i := range []int{operand.LinearDA, operand.LinearDB} {
			if !l.isSummed(i) {
				elements = append(elements, i)
			}
		}
	}
	for _, i := range elements {
		args[i] = l.expanded(&args[i])
	}
	for _, i := range states {
		if args[i].Given() && l.gpu.Plain.Rows > math.MaxUint32 {
			return errs.New(errs.Unsupported, l.op, "states", "of at most 2^32 rows on a GPU", tensor.ShapeText(l.Shape), "")
		}
		args[i] = l.alongDim(&args[i])
	}
	return l.gpu.Run(args, workspace, q)
}

// isSummed reports whether the operand of a gradient was broadcast.
func (l *linearProgram) isSummed(number int) bool {
	return slices.ContainsFunc(l.gpu.Sums, func(s gpu.Sum) bool { return s.Operand == number })
}

// Host computes the outputs on the CPU.
func (l *linearProgram) Host(args []tensor.Tensor) {
	if !l.isBackward {
		l.host.RunForward(&host.LinearOperands{
			A: l.expanded(&args[operand.LinearA]), B: l.expanded(&args[operand.LinearB]), H: args[operand.LinearH],
			InitialState: l.alongDim(&args[operand.LinearInitial]), FinalState: l.alongDim(&args[operand.LinearFinal]),
		}, cpu.BoundsOf(&args[operand.LinearSeqlens]))
		return
	}
	o := host.LinearOperands{
		DH: args[operand.LinearDH], A: l.expanded(&args[operand.LinearBackwardA]), H: args[operand.LinearBackwardH],
		InitialState: l.alongDim(&args[operand.LinearBackwardInitial]), DFinalState: l.alongDim(&args[operand.LinearDFinal]),
		DInitialState: l.alongDim(&args[operand.LinearDInitial]),
	}
	sumDA := func() {}
	var sumDB func()
	o.DB, sumDB = l.unsummed(&args[operand.LinearDB])
	summed := &args[operand.LinearDA]
	if !l.isConstantAlongDim(summed) {
		o.DA, sumDA = l.unsummed(summed)
		summed = nil
	}
	l.host.RunBackward(&o, cpu.BoundsOf(&args[operand.LinearBackwardSeqlens]), summed)
	sumDA()
	sumDB()
}

// isConstantAlongDim reports whether the operand of a gradient is broadcast along the scanned
// dimension: the loops sum its terms.
func (l *linearProgram) isConstantAlongDim(t *tensor.Tensor) bool {
	d := l.dim - len(l.Shape) + int(t.NDim)
	return t.Given() && len(l.Shape) > 0 && l.Shape[l.dim] > 1 && (d < 0 || t.Shape[d] == 1)
}

// expanded is an operand as one of the whole shape, with stride 0 where it is broadcast.
func (l *linearProgram) expanded(t *tensor.Tensor) tensor.Tensor {
	if !t.Given() {
		return *t
	}
	e, lead := *t, len(l.Shape)-int(t.NDim)
	e.NDim = int32(len(l.Shape))
	for d, extent := range l.Shape {
		e.Shape[d], e.Strides[d] = extent, 0
		if d >= lead && (t.Shape[d-lead] == extent) {
			e.Strides[d] = t.Strides[d-lead]
		}
	}
	return e
}

// alongDim is a state as an operand of the whole shape, whose stride along the scanned dimension is
// that of its sequences.
func (l *linearProgram) alongDim(t *tensor.Tensor) tensor.Tensor {
	if !t.Given() || len(l.Shape) == 0 {
		return *t
	}
	s, strides := *t, t.ElementStrides()
	if l.NumSequences == nil {
		strides = slices.Insert(slices.Clone(strides), l.dim, 0)
	}
	s.NDim = int32(len(l.Shape))
	copy(s.Shape[:], l.Shape)
	copy(s.Strides[:], strides)
	return s
}

// unsummed is what the loops write for a gradient: the gradient itself or, if its operand was
// broadcast, float64 terms, which finish sums.
func (l *linearProgram) unsummed(t *tensor.Tensor) (terms tensor.Tensor, finish func()) {
	n, _ := tensor.Product(l.Shape)
	if own, _ := tensor.Product(t.Extents()); !t.Given() || own == n {
		return l.expanded(t), func() {}
	}
	numbers := make([]float64, n)
	return tensor.Of(numbers, l.Shape...), func() { host.SumTo(t, numbers, l.Shape) }
}
