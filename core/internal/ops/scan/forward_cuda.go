package scan

import (
	"github.com/sternway/sternway/core/internal/errs"
	"github.com/sternway/sternway/core/internal/ops"
	"github.com/sternway/sternway/core/internal/ops/scan/gpu"
	"github.com/sternway/sternway/core/internal/ops/scan/host"
)

// forwardKernels are the kernels of forward scans. On the CPU the names say only whether the
// scanned dimension is innermost.
var forwardKernels = []string{gpu.RowResident, gpu.ColumnTiled}

// compileForwardCUDA refuses: forward scans have no CUDA kernels.
func compileForwardCUDA(_ string, p *ops.Problem, _ *host.Scan, _ int, _ ops.Preference) (ops.Program, error) {
	return nil, errs.New(errs.Unsupported, p.Op(), "device", "the CPU", "a GPU", "no CUDA kernels of forward scans")
}
