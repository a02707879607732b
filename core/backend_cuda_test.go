package core_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sternway/sternway/core"
	"github.com/sternway/sternway/core/driver"
	"github.com/sternway/sternway/core/internal/coretest"
	"github.com/sternway/sternway/core/internal/errs"
	"github.com/sternway/sternway/core/internal/ops"
	"github.com/sternway/sternway/core/internal/ops/elementwise"
	"github.com/sternway/sternway/core/internal/ops/scan"
	"github.com/sternway/sternway/core/internal/tensor"
)

func TestSelectLoadsKernels(t *testing.T) {
	fake := (&coretest.FakeCUDA{Devices: 2, NumSMs: 132}).Install(t)
	summed := elementwise.LerpBackward{Shape: []int64{8, 9}, DType: tensor.Float16, BShape: []int64{9}}
	plan, err := core.Select(summed, tensor.CUDA(1), ops.Preference{})
	require.NoError(t, err)
	require.Equal(t, []string{"lerp", "mapreduce"}, fake.Loaded)
	for _, symbol := range []string{"lerp_backward_map_f16", "lerp_backward_rows_f16", "lerp_backward_columns_f16", "combine_f32"} {
		require.Contains(t, fake.Symbols, symbol)
	}
	require.Equal(t, core.SKU{Category: "elementwise", Op: "lerp_backward", Element: "float16", Arch: "sm_90", Backend: "cuda", Kernel: "columns",
		Guarantee: core.PrecisionGuarantee{"float32", "float32", true, true}}, plan.SKU())

	summed.DType = tensor.Float64
	_, err = core.Select(summed, tensor.CUDA(1), ops.Preference{})
	require.NoError(t, err)
	require.Len(t, fake.Loaded, 2, "an image is loaded once for a device")
	require.Contains(t, fake.Symbols, "combine_f64")
	_, err = core.Select(summed, tensor.CUDA(0), ops.Preference{})
	require.NoError(t, err)
	require.Len(t, fake.Loaded, 4, "and again for another")

	fake = (&coretest.FakeCUDA{Devices: 1, NumSMs: 132}).Install(t)
	weight := ops.Scalar(0.5)
	_, err = core.Select(elementwise.LerpBackward{Shape: []int64{8, 9}, DType: tensor.BFloat16, Weight: &weight}, tensor.CUDA(0), ops.Preference{})
	require.NoError(t, err)
	require.Equal(t, []string{"lerp"}, fake.Loaded)
	require.NotEmpty(t, fake.Symbols)
	for _, symbol := range fake.Symbols {
		require.Regexp(t, `^lerp_(weight_)?backward_map_bf16$`, symbol, "a plan without sums loads no sums")
	}
}

func TestKernelsAreLookedUpOnce(t *testing.T) {
	fake := (&coretest.FakeCUDA{Devices: 1, NumSMs: 132}).Install(t)
	for range 3 {
		for _, kind := range []string{"cumsum", "cumprod"} {
			_, err := core.Select(scan.ScanBackward{Kind: kind, Shape: []int64{4, 8}, DType: tensor.Float32, Dim: -1}, tensor.CUDA(0), ops.Preference{})
			require.NoError(t, err)
		}
	}
	seen := map[string]int{}
	for _, symbol := range fake.Symbols {
		seen[symbol]++
		require.Equal(t, 1, seen[symbol], "lookups of %s", symbol)
	}
	require.NotEmpty(t, seen)
}

func TestCPUPlanNeedsNoDriver(t *testing.T) {
	(&coretest.FakeCUDA{Missing: errors.New("no driver")}).Install(t)
	plan, err := core.Select(elementwise.LerpBackward{Shape: []int64{2}, DType: tensor.BFloat16}, tensor.CPU, ops.Preference{})
	require.NoError(t, err)
	require.Equal(t, "cpu", plan.SKU().Backend)
	require.Equal(t, core.PrecisionGuarantee{"float32", "float64", true, true}, plan.PrecisionGuarantee())
}

// Launches go to the stream of the caller, as many as there are different sums, and none for
// nothing at all.
func TestLaunchesOfARun(t *testing.T) {
	half := ops.Scalar(0.5)
	for _, row := range []struct {
		name       string
		descriptor elementwise.LerpBackward
		operands   []string
		symbols    []string
	}{
		{"map", elementwise.LerpBackward{Shape: []int64{8, 33}, Weight: &half}, []string{"dy", "da", "db"}, []string{"map"}},
		{"nothing", elementwise.LerpBackward{Shape: []int64{0, 33}, Weight: &half}, []string{"dy", "da", "db"}, nil},
		{"a stored output rides on a sum", elementwise.LerpBackward{Shape: []int64{8, 33}, Weight: &half, BShape: []int64{33}}, []string{"dy", "da", "db"}, []string{"columns"}},
		{"sums nobody asks for", elementwise.LerpBackward{Shape: []int64{8, 33}, Weight: &half, BShape: []int64{33}}, []string{"dy", "da"}, []string{"map"}},
		{"two kinds of sums", elementwise.LerpBackward{Shape: []int64{8, 33}, Weight: &half, AShape: []int64{8, 1}, BShape: []int64{33}}, []string{"dy", "da", "db"}, []string{"rows", "columns"}},
		{"one sum for two", elementwise.LerpBackward{Shape: []int64{8, 33}, Weight: &half, AShape: []int64{33}, BShape: []int64{33}}, []string{"dy", "da", "db"}, []string{"columns"}},
		{"sums over nothing are written", elementwise.LerpBackward{Shape: []int64{0, 33}, Weight: &half, BShape: []int64{33}}, []string{"dy", "db"}, []string{"columns"}},
		{"a long sum in parts", elementwise.LerpBackward{Shape: []int64{1 << 20}, Weight: &half, BShape: []int64{}}, []string{"dy", "db"}, []string{"rows", "combine"}},
	} {
		t.Run(row.name, func(t *testing.T) {
			fake := (&coretest.FakeCUDA{Devices: 1, NumSMs: 132}).Install(t)
			row.descriptor.DType = tensor.Float32
			plan, err := core.Select(row.descriptor, tensor.CUDA(0), ops.Preference{})
			require.NoError(t, err)
			args, workspace := coretest.DeviceArgs(plan, row.operands...)
			require.NoError(t, plan.RunOrdered(77, workspace, args))
			require.Len(t, fake.Launches, len(row.symbols))
			for i, kernel := range row.symbols {
				l := fake.Launches[i]
				want := "lerp_backward_" + kernel + "_f32"
				if kernel == "combine" {
					want = "combine_f32"
				}
				require.Equal(t, want, l.Symbol)
				require.Equal(t, uintptr(77), l.Stream)
				require.Positive(t, l.Grid)
				require.Equal(t, map[string]uint32{"map": 128, "rows": 128, "columns": 256, "combine": 256}[kernel], l.Block)
				require.Zero(t, l.Shared)
			}
			require.Empty(t, fake.Waited, "a run waits for nothing")
		})
	}
}

func TestDeviceRefusals(t *testing.T) {
	illegal := &driver.Status{Code: 700, Name: "CUDA_ERROR_ILLEGAL_ADDRESS", Call: "cuStreamSynchronize"}
	fake := (&coretest.FakeCUDA{Devices: 1, NumSMs: 132, Refusals: map[string]error{}}).Install(t)
	plan, err := core.Select(elementwise.LerpBackward{Shape: []int64{1 << 20}, DType: tensor.Float32, BShape: []int64{1}}, tensor.CUDA(0), ops.Preference{})
	require.NoError(t, err)
	args, workspace := coretest.DeviceArgs(plan, "dy", "weight", "db")

	core.SetCheck(true)
	t.Cleanup(func() { core.SetCheck(false) })
	require.NoError(t, plan.RunOrdered(5, workspace, args))
	require.Equal(t, []uintptr{5}, fake.Waited, "a checked run waits for its stream")
	fake.Refusals["synchronize"] = illegal
	requireDeviceError(t, plan.RunOrdered(5, workspace, args), illegal)
	core.SetCheck(false)
	require.NoError(t, plan.RunOrdered(5, workspace, args))

	fake.Launches = nil
	fake.Refusals["launch"] = &driver.Status{Code: 701, Name: "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES", Call: "cuLaunchKernel"}
	requireDeviceError(t, plan.RunOrdered(5, workspace, args), fake.Refusals["launch"])
	require.Len(t, fake.Launches, 1, "nothing follows a launch that was refused")
	fake.Refusals["launch"] = errors.New("a refusal without a status")
	require.ErrorIs(t, plan.RunOrdered(5, workspace, args), errs.ErrDevice)
}

func requireDeviceError(t *testing.T, err, cause error) {
	t.Helper()
	var refusal *errs.Error
	var status *driver.Status
	require.ErrorAs(t, err, &refusal)
	require.ErrorAs(t, cause, &status)
	require.ErrorIs(t, err, errs.ErrDevice)
	require.Equal(t, errs.Error{Kind: errs.DeviceFailure, Op: "lerp_backward", Operand: "launch", Wanted: "accepted by the driver",
		Got: status.Name + " in " + status.Call, Hint: status.Advice(), Status: status.Name}, *refusal)
}

// A grid of more than 2^31 - 1 blocks is refused, and nothing is launched.
func TestTooManyBlocks(t *testing.T) {
	fake := (&coretest.FakeCUDA{Devices: 1, NumSMs: 132}).Install(t)
	weight := ops.Scalar(0.5)
	for _, shape := range [][]int64{{1 << 45}, {1 << 40, 3}} {
		plan, err := core.Select(elementwise.LerpBackward{Shape: shape, DType: tensor.Float64, Weight: &weight}, tensor.CUDA(0), ops.Preference{})
		require.NoError(t, err)
		args, workspace := coretest.DeviceArgs(plan, "dy", "da")
		for i := range args {
			args[i].Data *= 1 << 9 // apart
		}
		err = plan.RunOrdered(0, workspace, args)
		require.ErrorIs(t, err, errs.ErrUnsupported)
		require.ErrorContains(t, err, "lerp_backward: launch must be of at most 2147483647 blocks")
		require.Empty(t, fake.Launches)
	}
}

// Less workspace means fewer parts, down to none.
func TestWorkspaceLimits(t *testing.T) {
	(&coretest.FakeCUDA{Devices: 1, NumSMs: 132}).Install(t)
	descriptor := elementwise.LerpBackward{Shape: []int64{4, 1 << 20}, DType: tensor.BFloat16, AShape: []int64{4, 1}, BShape: []int64{4, 1}}
	free, err := core.Select(descriptor, tensor.CUDA(0), ops.Preference{})
	require.NoError(t, err)
	require.Positive(t, free.WorkspaceSize())
	last := int64(math.MaxInt64)
	for _, limit := range []int64{free.WorkspaceSize(), free.WorkspaceSize() - 1, free.WorkspaceSize() / 3, 33, 1, 0} {
		plan, err := core.Select(descriptor, tensor.CUDA(0), ops.Preference{MaxWorkspace: &limit})
		require.NoError(t, err)
		require.LessOrEqual(t, plan.WorkspaceSize(), limit)
		require.LessOrEqual(t, plan.WorkspaceSize(), last)
		last = plan.WorkspaceSize()
		args, workspace := coretest.DeviceArgs(plan, "dy", "weight", "da", "db")
		require.NoError(t, plan.RunOrdered(0, workspace, args))
	}
}

// A plan may run from many threads at once, on either backend.
func TestRaceOfConcurrentRuns(t *testing.T) {
	const runs = 50
	for _, device := range []tensor.Device{tensor.CPU, tensor.CUDA(0)} {
		var launches atomic.Int64
		(&coretest.FakeCUDA{Devices: 1, NumSMs: 132, Body: func(string, *driver.Launch) { launches.Add(1) }}).Install(t)
		plan, err := core.Select(elementwise.LerpBackward{Shape: []int64{8, 50}, DType: tensor.Float32, BShape: []int64{50}}, device, ops.Preference{})
		require.NoError(t, err)
		c := coretest.Trial{Descriptor: plan.Descriptor(), Without: []string{"a", "b", "dweight"}}
		want := c.Arrange(t, plan, &coretest.Schemes[0])
		want.Run(t, want.Outputs)
		var group sync.WaitGroup
		failures := make(chan error, 8)
		for range 8 {
			r := c.Arrange(t, plan, &coretest.Schemes[0])
			group.Go(func() {
				for range runs {
					args := make([]tensor.Tensor, len(r.Operands))
					for i, m := range r.Operands {
						if m != nil {
							args[i] = m.Tensor
						}
					}
					if err := plan.RunOrdered(0, r.Workspace.Tensor, args); err != nil {
						failures <- err
						return
					}
				}
				if !slices.EqualFunc(want.Bits(), r.Bits(), slices.Equal[[]byte]) {
					failures <- fmt.Errorf("other bits on %s", device)
				}
			})
		}
		group.Wait()
		close(failures)
		require.NoError(t, <-failures)
		if device != tensor.CPU {
			require.Equal(t, int64(8*runs+1), launches.Load())
		}
	}
}

func TestWhatPythonIsTold(t *testing.T) {
	(&coretest.FakeCUDA{Devices: 2, NumSMs: 132}).Install(t)
	plan, err := core.SelectJSON(`{"family": "dequantize_per_token_backward", "shape": [4, 8], "dtype": "bfloat16", "qdtype": "int8"}`,
		"cuda:1", `{"deterministic": true}`)
	require.NoError(t, err)
	var description struct {
		Operands []struct {
			Name          string
			Out, Optional bool
		}
		Device        string
		WorkspaceSize int64 `json:"workspace_size"`
		SKU           core.SKU
		Geometry      string
		Bytes         int64
	}
	require.NoError(t, json.Unmarshal([]byte(plan.DescribeJSON()), &description))
	names := make([]string, len(description.Operands))
	for i, o := range description.Operands {
		names[i] = o.Name
		require.Equal(t, o.Name == "dx" || o.Name == "dscale" || o.Name == "dzero_point", o.Out, o.Name)
		require.Equal(t, o.Name != "dy" && o.Name != "scale", o.Optional, o.Name)
	}
	require.Equal(t, plan.Operands(), names)
	require.Equal(t, []string{"dy", "scale", "q", "zero_point", "dx", "dscale", "dzero_point"}, names)
	require.Equal(t, "cuda:1", description.Device)
	require.Equal(t, plan.SKU(), description.SKU)
	require.Equal(t, "int8", description.SKU.AuxElement)
	require.Equal(t, "quantization", description.SKU.Category)
	require.Equal(t, "dequantize_per_token_backward_rows_bf16: grid 1, block 128", description.Geometry)
	require.Equal(t, int64(2*4*8*2), description.Bytes)

	var info map[string]any
	require.NoError(t, json.Unmarshal([]byte(core.InfoJSON()), &info))
	require.Equal(t, "CUDA 13.0", info["driver"])
	require.Len(t, info["devices"], 2)
	require.Len(t, info["families"], len(ops.Families()))
	require.EqualValues(t, core.NumThreads(), info["threads"])
	(&coretest.FakeCUDA{Missing: errors.New("no driver here")}).Install(t)
	require.NoError(t, json.Unmarshal([]byte(core.InfoJSON()), &info))
	require.Equal(t, "no driver here", info["driver"])
	require.Equal(t, []any{"cpu"}, info["backends"])
	require.Empty(t, info["devices"])
}
