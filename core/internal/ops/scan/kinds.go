package scan

import (
	"github.com/sternway/sternway/core/internal/ops"
	"github.com/sternway/sternway/core/internal/ops/scan/gpu"
	"github.com/sternway/sternway/core/internal/ops/scan/host"
)

// Family is the table of the cumulative operations and their kernels. On the CPU, the kernel names
// gpu.RowResident and gpu.ColumnTiled say only whether the scanned dimension is innermost.
var Family = ops.Register(&ops.Family{
	Name: "scan_backward", Category: "scan", Image: "scan",
	Kinds: []ops.KindRow{
		{Name: "cumsum", Kernels: gpu.Cumsum.Kernels()},
		{Name: "cumprod", Kernels: gpu.Cumprod.Kernels(), Image: "scan_cumprod"},
		{Name: "cummax", Kernels: gpu.Cumextremum.Kernels(), Code: "cumextremum"},
		{Name: "cummin", Kernels: gpu.Cumextremum.Kernels(), Code: "cumextremum"},
		{Name: "logcumsumexp", Kernels: gpu.Logcumsumexp.Kernels(), Image: "scan_logcumsumexp"},
	},
	Required: []string{"shape", "dtype"}, Decode: ops.DecodeAs[ScanBackward],
})

// ForwardFamily is the table of the cumulative operations themselves.
var ForwardFamily = ops.Register(&ops.Family{
	Name: "scan", Category: "scan", Image: "scan_forward",
	Kinds: []ops.KindRow{
		{Name: "cumsum", Kernels: gpu.Cumsum.Kernels(), SymbolPrefix: Family.Name, Image: Family.Image}, // the kernels of its gradient
		{Name: "cumprod", Kernels: gpu.ForwardCumprod.Kernels()},
		{Name: "cummax", Kernels: gpu.ForwardCumextremum.Kernels(), Code: "cumextremum"},
		{Name: "cummin", Kernels: gpu.ForwardCumextremum.Kernels(), Code: "cumextremum"},
		{Name: "logcumsumexp", Kernels: gpu.ForwardLogcumsumexp.Kernels()},
	},
	Required: []string{"shape", "dtype"}, Decode: ops.DecodeAs[Scan],
})

// kinds are the operands of each kind, its kernels, and its recurrence on the CPU.
var kinds = map[string]struct {
	x, indices bool // operands that the kind may have; both: exactly one of them
	gpu        gpu.Kind
	forward    gpu.Kind // of the forward scan, without indices
	isMinimum  bool
	recurrence *host.Recurrence
}{
	"cumsum":       {gpu: gpu.Cumsum, forward: gpu.Cumsum, recurrence: &host.Sums},
	"cumprod":      {x: true, gpu: gpu.Cumprod, forward: gpu.ForwardCumprod, recurrence: &host.Products},
	"cummax":       {x: true, indices: true, gpu: gpu.Cumextremum, forward: gpu.ForwardCumextremum, recurrence: &host.Maxima},
	"cummin":       {x: true, indices: true, gpu: gpu.Cumextremum, forward: gpu.ForwardCumextremum, isMinimum: true, recurrence: &host.Minima},
	"logcumsumexp": {x: true, gpu: gpu.Logcumsumexp, forward: gpu.ForwardLogcumsumexp, recurrence: &host.LogSums},
}
