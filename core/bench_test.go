package core_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sternway/sternway/core"
	"github.com/sternway/sternway/core/driver"
	"github.com/sternway/sternway/core/internal/coretest"
	"github.com/sternway/sternway/core/internal/ops"
	"github.com/sternway/sternway/core/internal/ops/elementwise"
	"github.com/sternway/sternway/core/internal/ops/scan"
	"github.com/sternway/sternway/core/internal/tensor"
)

// benchmarkProblems are tiny, so that what is measured is the way of one call.
var benchmarkProblems = []struct {
	name       string
	descriptor ops.Descriptor
	without    []string
}{
	{"lerp/da,db", elementwise.LerpBackward{Shape: []int64{4, 8}, DType: tensor.Float32}, []string{"a", "b", "dweight"}},
	{"lerp/sums", elementwise.LerpBackward{Shape: []int64{4, 8}, DType: tensor.Float32, BShape: []int64{8}, WeightShape: []int64{4, 1}}, nil},
	{"dequantize/dx", elementwise.DequantizePerTokenBackward{Shape: []int64{4, 8}, DType: tensor.BFloat16, QDType: tensor.Int8}, []string{"q", "zero_point", "dscale", "dzero_point"}},
	{"dequantize/dx,dscale", elementwise.DequantizePerTokenBackward{Shape: []int64{4, 8}, DType: tensor.BFloat16, QDType: tensor.Int8}, []string{"zero_point", "dzero_point"}},
	{"fake_quantize/dx,dscale", elementwise.FakeQuantizePerTokenBackward{Shape: []int64{4, 8}, DType: tensor.Float16, QuantMin: -8, QuantMax: 7}, []string{"zero_point", "dzero_point"}},
	{"scan/cumprod", scan.ScanBackward{Kind: "cumprod", Shape: []int64{4, 8}, DType: tensor.Float32, Dim: 1}, []string{"indices"}},
}

// tinyRun is a plan and operands that it accepts.
func tinyRun(t testing.TB, d ops.Descriptor, device tensor.Device, without []string) (*core.Plan, []tensor.Tensor) {
	plan, err := core.Select(d, device, ops.Preference{})
	require.NoError(t, err)
	require.Zero(t, plan.WorkspaceSize())
	c := coretest.Trial{Descriptor: d, Without: without}
	args := make([]tensor.Tensor, len(coretest.ProblemOf(plan).Operands))
	for i, m := range c.Arrange(t, plan, &coretest.Schemes[0]).Operands {
		if m != nil {
			args[i] = m.Tensor
		}
	}
	require.NoError(t, plan.RunOrdered(0, tensor.Tensor{}, args))
	return plan, args
}

func BenchmarkRunOrdered(b *testing.B) {
	(&coretest.FakeCUDA{Devices: 1, NumSMs: 132, Body: func(string, *driver.Launch) {}}).Install(b)
	for _, device := range []tensor.Device{tensor.CPU, tensor.CUDA(0)} {
		for _, p := range benchmarkProblems {
			b.Run(device.String()+"/"+p.name, func(b *testing.B) {
				plan, args := tinyRun(b, p.descriptor, device, p.without)
				b.ReportAllocs()
				for b.Loop() {
					if err := plan.RunOrdered(0, tensor.Tensor{}, args); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}

// The way to a launch allocates nothing.
func TestLaunchAllocatesNothing(t *testing.T) {
	(&coretest.FakeCUDA{Devices: 1, NumSMs: 132, Body: func(string, *driver.Launch) {}}).Install(t)
	for _, p := range benchmarkProblems {
		plan, args := tinyRun(t, p.descriptor, tensor.CUDA(0), p.without)
		require.Zero(t, testing.AllocsPerRun(100, func() { _ = plan.RunOrdered(0, tensor.Tensor{}, args) }), p.name)
	}
}
