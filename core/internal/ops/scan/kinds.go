package scan

import (
	"github.com/sternway/sternway/core/internal/ops"
	"github.com/sternway/sternway/core/internal/ops/scan/gpu"
	"github.com/sternway/sternway/core/internal/ops/scan/host"
	"github.com/sternway/sternway/core/internal/tensor"
)

// ties are the rules for equal values.
var ties = []string{"last", "first"}

var choices = []ops.Choice{ops.DTypes("dtype", tensor.Floats), ops.Words("tie", ties...)}

// BackwardFamily is the table of the gradients of scans and their kernels. On the CPU, the kernel
// names gpu.RowResident and gpu.ColumnTiled say only whether the scanned dimension is innermost.
var BackwardFamily = ops.Register(&ops.Family{
	Name: "scan_backward", Category: "scan", Image: "scan",
	Kinds: []ops.KindRow{
		{Name: "cumsum", Kernels: gpu.Cumsum.Kernels()},
		{Name: "cumprod", Kernels: gpu.Cumprod.Kernels(), Image: "scan_cumprod"},
		{Name: "cummax", Kernels: gpu.Cumextremum.Kernels(), Code: "cumextremum"},
		{Name: "cummin", Kernels: gpu.Cumextremum.Kernels(), Code: "cumextremum"},
		{Name: "logcumsumexp", Kernels: gpu.Logcumsumexp.Kernels(), Image: "scan_logcumsumexp"},
	},
	Required: []string{"shape", "dtype"}, Choices: choices, Decode: ops.DecodeAs[ScanBackward],
})

// ForwardFamily is the table of the scans themselves. Cumsum has no kernels of its own: the
// gradient of a cumsum is a cumsum in the other direction.
var ForwardFamily = ops.Register(&ops.Family{
	Name: "scan", Category: "scan", Image: "scan_forward",
	Kinds: []ops.KindRow{
		{Name: "cumsum", Kernels: gpu.Cumsum.Kernels(), SymbolPrefix: BackwardFamily.Name, Image: BackwardFamily.Image},
		{Name: "cumprod", Kernels: gpu.ForwardCumprod.Kernels()},
		{Name: "cummax", Kernels: gpu.ForwardCumextremum.Kernels(), Code: "cumextremum"},
		{Name: "cummin", Kernels: gpu.ForwardCumextremum.Kernels(), Code: "cumextremum"},
		{Name: "logcumsumexp", Kernels: gpu.ForwardLogcumsumexp.Kernels()},
	},
	Required: []string{"shape", "dtype"}, Choices: choices, Decode: ops.DecodeAs[Scan],
})

// kinds are the operands of each kind, its kernels, and its recurrence on the CPU.
var kinds = map[string]struct {
	x, indices        bool     // operands that the gradient may have; both: exactly one of them
	backward, forward gpu.Kind // of the gradient by x, and of the scan without indices
	isMinimum         bool
	recurrence        *host.Recurrence
}{
	"cumsum":       {backward: gpu.Cumsum, forward: gpu.Cumsum, recurrence: &host.Sums},
	"cumprod":      {x: true, backward: gpu.Cumprod, forward: gpu.ForwardCumprod, recurrence: &host.Products},
	"cummax":       {x: true, indices: true, backward: gpu.Cumextremum, forward: gpu.ForwardCumextremum, recurrence: &host.Maxima},
	"cummin":       {x: true, indices: true, backward: gpu.Cumextremum, forward: gpu.ForwardCumextremum, isMinimum: true, recurrence: &host.Minima},
	"logcumsumexp": {x: true, backward: gpu.Logcumsumexp, forward: gpu.ForwardLogcumsumexp, recurrence: &host.LogSums},
}
