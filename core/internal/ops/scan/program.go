package scan

import (
	"fmt"
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

// Program is a scan, or the gradient of one, that was compiled for a device: the kernel for
// contiguous operands, and a workspace that suffices for every layout.
type Program struct {
	family              *ops.Family
	kind                string
	element             tensor.DType
	host                host.Scan
	gpu                 *gpu.Scan // nil: compiled for the CPU
	kernel              string
	workspace           int64 // bytes
	contiguousNeedsNone bool  // runs without indices whose operands are contiguous need no workspace
}

// compiler returns the function that compiles a checked problem for a device.
func compiler(s *host.Scan) func(p *ops.Problem, numSMs int, cuda bool, preference ops.Preference) (ops.Program, error) {
	return func(p *ops.Problem, numSMs int, cuda bool, preference ops.Preference) (ops.Program, error) {
		if cuda {
			return compileCUDA(p, s, numSMs, preference)
		}
		return compileCPU(p, s, preference)
	}
}

func compileCPU(p *ops.Problem, s *host.Scan, preference ops.Preference) (ops.Program, error) {
	kernel := s.Kernel(p.Family == ForwardFamily)
	if asked := preference.Kernel; asked != "" && asked != kernel {
		return nil, errs.New(errs.Unsupported, s.Op, "preference.kernel", fmt.Sprintf("%q for this problem", kernel), fmt.Sprintf("%q", asked), "")
	}
	return &Program{family: p.Family, kind: p.Kind, element: p.Element, host: *s, kernel: kernel}, nil
}

func compileCUDA(p *ops.Problem, s *host.Scan, numSMs int, preference ops.Preference) (ops.Program, error) {
	kind := ByName[p.Kind]
	scan := &gpu.Scan{
		Plain: problemOf(kind.backward, p, s, numSMs, preference),
		Shape: s.Shape, Dim: s.Dim, IsReversed: s.IsReversed, FirstWins: s.FirstWins, IsMinimum: kind.IsMinimum,
	}
	if p.Family == ForwardFamily { // kernels carry their state from the last position to the first
		scan.Plain.Kind, scan.IsForward, scan.IsReversed, scan.Identity = kind.forward, true, !s.IsReversed, kind.recurrence.Identity()
	}
	var kernels []string // those that the caller may ask for, if that is not for Problem to say
	condition := ""
	if s.Carries && scan.IsForward && kind.ReadsIndices { // a carry has the index
		scan.Plain.Kind = gpu.ForwardIndices
	}
	if s.IsPacked {
		scan.Plain.Kind = gpu.Packed[scan.Plain.Kind]
		kernels, condition = scan.Plain.Kind.Kernels(), " for packed sequences"
	}
	if s.Carries {
		kernels, condition = gpu.CarryKernels, " with carries"
	}
	if asked := preference.Kernel; asked != "" && kernels != nil && !slices.Contains(kernels, asked) {
		return nil, errs.New(errs.Unsupported, s.Op, "preference.kernel", errs.OrList(kernels)+condition, fmt.Sprintf("%q", asked), "")
	}
	program := &Program{family: p.Family, kind: p.Kind, element: p.Element, host: *s, gpu: scan}
	if asked := preference.Kernel; asked != "" && !gpu.SupportsLength(&program.gpu.Plain, asked) {
		return nil, errs.New(errs.Unsupported, s.Op, "preference.kernel", "one for rows of this length", fmt.Sprintf("%q", asked), "")
	}
	program.selectStatic()
	if limit := preference.MaxWorkspace; limit != nil && program.workspace > *limit && preference.Kernel == "" {
		program.gpu.Plain.GeneralOnly = true
		program.selectStatic()
	}
	return program, nil
}

// problemOf is a problem as kernel selection sees it.
func problemOf(kind *gpu.Kind, p *ops.Problem, s *host.Scan, numSMs int, preference ops.Preference) gpu.Problem {
	inner, _ := tensor.Product(innerExtents(s))
	rows := s.Rows()
	if s.Carries { // an empty chunk has rows
		rows, _ = tensor.Product(slices.Delete(slices.Clone(s.Shape), s.Dim, min(s.Dim+1, len(s.Shape))))
	}
	return gpu.Problem{
		Kind: kind, ElementSize: p.Element.Size(), Rows: rows, Carries: s.Carries, Length: s.Length(), Inner: max(1, inner), IsExclusive: s.IsExclusive,
		Device: gpu.DeviceOf(p.Arch, numSMs, p.Bandwidth), Kernel: preference.Kernel,
	}
}

// innerExtents are the extents of the dimensions after the scanned one.
func innerExtents(s *host.Scan) []int64 { return s.Shape[min(s.Dim+1, len(s.Shape)):] }

// selectStatic sets the kernel that contiguous operands use, or the one that the caller asks for,
// and a workspace that suffices for operands of any layout. Each run selects again, by the layout
// of its operands (gpu.Select).
func (s *Program) selectStatic() {
	p := &s.gpu.Plain
	if s.kernel = p.Kernel; s.kernel == "" {
		s.kernel = gpu.SelectContiguous(p).Kernel
	}
	var others []int64
	for d, extent := range s.host.Shape {
		if d != s.host.Dim {
			others = append(others, extent)
		}
	}
	if s.workspace = gpu.MaxWorkspaceBytes(p, others); p.Carries {
		p.Workspace = s.workspace
		return
	}
	s.contiguousNeedsNone = p.Kernel == "" && gpu.ContiguousWorkspaceBytes(p) == gpu.IndexFlagBytes(p)
	withIndices := *p
	if withIndices.Kind = s.indexKind(); ByName[s.kind].ReadsIndices {
		s.workspace = max(s.workspace, gpu.MaxWorkspaceBytes(&withIndices, others))
	}
	if s.gpu.IsForward && ByName[s.kind].ReadsIndices {
		s.contiguousNeedsNone = s.contiguousNeedsNone && gpu.ContiguousWorkspaceBytes(&withIndices) == 0
	}
	p.Workspace, withIndices.Workspace = s.workspace, s.workspace
	s.gpu.WithIndices = withIndices
}

// indexKind is the kind of runs with indices.
func (s *Program) indexKind() *gpu.Kind {
	switch {
	case !s.gpu.IsForward: // bounds do not matter
		return gpu.Indices
	case s.host.IsPacked:
		return gpu.Packed[gpu.ForwardIndices]
	}
	return gpu.ForwardIndices
}

// Problem is the problem without indices as kernel selection sees it.
func (s *Program) Problem() gpu.Problem { return s.gpu.Plain }

func (s *Program) Kernel() string   { return s.kernel }
func (s *Program) Workspace() int64 { return s.workspace }

// WorkspaceNeed implements ops.ConditionalWorkspace. Runs without indices need none if the
// workspace only has the flags of runs with them, or if operands are contiguous and
// Program.contiguousNeedsNone says so.
func (s *Program) WorkspaceNeed(given uint, contiguous bool) int64 {
	if s.gpu == nil {
		return 0
	}
	hasIndices := !s.gpu.IsForward && given>>operand.Indices&1 == 1
	hasOnlyFlags := !s.gpu.IsForward && ByName[s.kind].ReadsIndices && s.workspace == gpu.IndexFlagBytes(&s.gpu.Plain)
	if !hasIndices && (hasOnlyFlags || s.contiguousNeedsNone && contiguous) {
		return 0
	}
	return s.workspace
}

// Tasks implements ops.Program.
func (s *Program) Tasks(args []tensor.Tensor) int64 {
	return s.host.Tasks(args, s.family == ForwardFamily)
}

// carryImages are the kernel images of scans with carries, and of those that are packed.
var carryImages = map[bool]string{false: "scan_carry", true: "scan_packed_carry"}

// Symbols are the kernels of the kind, then its kernels with indices, its record passes, and
// gpu.LastKernels. The program is one for a GPU.
func (s *Program) Symbols() (list []launch.Symbol) {
	add := func(image, prefix string, kernels []string) {
		for _, kernel := range kernels {
			list = append(list, launch.Symbol{Image: image, Name: prefix + kernel + "_" + s.element.Suffix()})
		}
	}
	kind := s.gpu.Plain.Kind
	last := lastSymbols(gpu.Cumsum.Image, "scan_fill_", s.element)
	if s.gpu.Plain.Carries {
		add(carryImages[s.host.IsPacked], kind.SymbolPrefix+"_carry_", gpu.CarryKernels)
		return append(list, last...)
	}
	add(kind.Image, kind.SymbolPrefix+"_", kind.Kernels())
	if ByName[s.kind].ReadsIndices {
		add(s.indexKind().Image, s.indexKind().SymbolPrefix+"_", s.indexKind().Kernels())
		if !s.gpu.IsForward && !s.host.IsPacked {
			add(kind.Image, kind.SymbolPrefix+"_records_", gpu.RecordKernels)
		}
	}
	return append(list, last...)
}

// lastSymbols are those of gpu.LastKernels, the first of which has a data type and an image.
func lastSymbols(image, first string, element tensor.DType) []launch.Symbol {
	return []launch.Symbol{{Image: image, Name: first + element.Suffix()}, {Image: gpu.Cumsum.Image, Name: "scan_heads"}, {Image: gpu.Cumsum.Image, Name: "scan_clear"}}
}

// Host computes the outputs on the CPU.
func (s *Program) Host(args []tensor.Tensor) {
	if s.family == ForwardFamily {
		s.host.RunForward(args, cpu.BoundsOf(&args[operand.ForwardSeqlens]))
		return
	}
	s.host.RunBackward(args, cpu.BoundsOf(&args[operand.Seqlens]))
}

// Device launches the kernels that compute the outputs.
func (s *Program) Device(args []tensor.Tensor, workspace uintptr, q *launch.Queue) error {
	return s.gpu.Run(args, workspace, q)
}

// InPlace refuses: rows are read again after parts of them are written.
func (s *Program) InPlace([]tensor.Tensor, int) bool { return false }
