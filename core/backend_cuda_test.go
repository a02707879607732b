package core

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

	"github.com/sternway/sternway/core/driver"
	"github.com/sternway/sternway/core/internal/errs"
	"github.com/sternway/sternway/core/internal/ops"
	"github.com/sternway/sternway/core/internal/ops/elementwise"
	"github.com/sternway/sternway/core/internal/ops/scan"
	"github.com/sternway/sternway/core/internal/tensor"
)

// deviceTensor is a row-major tensor at an address of a device that is not there.
func deviceTensor(d tensor.DType, address uintptr, shape ...int64) tensor.Tensor {
	t := tensor.Tensor{Data: address, DType: d, Device: tensor.CUDA(0), NDim: int32(len(shape)), Present: 1}
	copy(t.Shape[:], shape)
	copy(t.Strides[:], tensor.Compact(shape))
	return t
}

// deviceArgs gives every operand of a plan memory of its own, 1 TiB apart.
func deviceArgs(plan *Plan, names ...string) (args []tensor.Tensor, workspace tensor.Tensor) {
	for i, o := range plan.problem.Operands {
		t := tensor.Tensor{}
		if slices.Contains(names, o.Name) {
			t = deviceTensor(o.Dtypes[0], uintptr(i+1)<<40, concrete(o.Shapes[0])...)
		}
		args = append(args, t)
	}
	if size := plan.WorkspaceSize(); size > 0 {
		workspace = deviceTensor(tensor.Uint8, 100<<40, size)
	}
	return args, workspace
}

func TestSelectLoadsKernels(t *testing.T) {
	fake := (&fakeCUDA{devices: 2, units: 132}).install(t)
	summed := elementwise.LerpBackward{Shape: []int64{8, 9}, DType: tensor.Float16, BShape: []int64{9}}
	plan, err := Select(summed, tensor.CUDA(1), ops.Preference{})
	require.NoError(t, err)
	require.Equal(t, []string{"lerp", "mapreduce"}, fake.loaded)
	for _, symbol := range []string{"lerp_backward_map_f16", "lerp_backward_rows_f16", "lerp_backward_columns_f16", "combine_f32"} {
		require.Contains(t, fake.symbols, symbol)
	}
	require.Equal(t, SKU{Category: "elementwise", Op: "lerp_backward", Element: "float16", Arch: "sm_90", Backend: "cuda", Kernel: "columns",
		Guarantee: PrecisionGuarantee{"float32", "float32", true, true}}, plan.SKU())

	summed.DType = tensor.Float64
	_, err = Select(summed, tensor.CUDA(1), ops.Preference{})
	require.NoError(t, err)
	require.Len(t, fake.loaded, 2, "an image is loaded once for a device")
	require.Contains(t, fake.symbols, "combine_f64")
	_, err = Select(summed, tensor.CUDA(0), ops.Preference{})
	require.NoError(t, err)
	require.Len(t, fake.loaded, 4, "and again for another")

	fake = (&fakeCUDA{devices: 1, units: 132}).install(t)
	weight := ops.Scalar(0.5)
	_, err = Select(elementwise.LerpBackward{Shape: []int64{8, 9}, DType: tensor.BFloat16, Weight: &weight}, tensor.CUDA(0), ops.Preference{})
	require.NoError(t, err)
	require.Equal(t, []string{"lerp"}, fake.loaded)
	require.NotEmpty(t, fake.symbols)
	for _, symbol := range fake.symbols {
		require.Regexp(t, `^lerp_(weight_)?backward_map_bf16$`, symbol, "a plan without sums loads no sums")
	}
}

func TestKernelsAreLookedUpOnce(t *testing.T) {
	fake := (&fakeCUDA{devices: 1, units: 132}).install(t)
	for range 3 {
		for _, kind := range []string{"cumsum", "cumprod"} {
			_, err := Select(scan.ScanBackward{Kind: kind, Shape: []int64{4, 8}, DType: tensor.Float32, Dim: -1}, tensor.CUDA(0), ops.Preference{})
			require.NoError(t, err)
		}
	}
	seen := map[string]int{}
	for _, symbol := range fake.symbols {
		seen[symbol]++
		require.Equal(t, 1, seen[symbol], "lookups of %s", symbol)
	}
	require.NotEmpty(t, seen)
}

func TestCPUPlanNeedsNoDriver(t *testing.T) {
	(&fakeCUDA{missing: errors.New("no driver")}).install(t)
	plan, err := Select(elementwise.LerpBackward{Shape: []int64{2}, DType: tensor.BFloat16}, tensor.CPU, ops.Preference{})
	require.NoError(t, err)
	require.Equal(t, "cpu", plan.SKU().Backend)
	require.Equal(t, PrecisionGuarantee{"float32", "float64", true, true}, plan.PrecisionGuarantee())
}

// Launches go to the stream of the caller, as many as there are different sums, and none for nothing at all.
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
			fake := (&fakeCUDA{devices: 1, units: 132}).install(t)
			row.descriptor.DType = tensor.Float32
			plan, err := Select(row.descriptor, tensor.CUDA(0), ops.Preference{})
			require.NoError(t, err)
			args, workspace := deviceArgs(plan, row.operands...)
			require.NoError(t, plan.RunOrdered(77, workspace, args))
			require.Len(t, fake.launches, len(row.symbols))
			for i, kernel := range row.symbols {
				l := fake.launches[i]
				want := "lerp_backward_" + kernel + "_f32"
				if kernel == "combine" {
					want = "combine_f32"
				}
				require.Equal(t, want, l.symbol)
				require.Equal(t, uintptr(77), l.stream)
				require.Positive(t, l.grid)
				require.Equal(t, map[string]uint32{"map": 128, "rows": 128, "columns": 256, "combine": 256}[kernel], l.block)
				require.Zero(t, l.shared)
			}
			require.Empty(t, fake.waited, "a run waits for nothing")
		})
	}
}

func TestDeviceRefusals(t *testing.T) {
	illegal := &driver.Status{Code: 700, Name: "CUDA_ERROR_ILLEGAL_ADDRESS", Call: "cuStreamSynchronize"}
	fake := (&fakeCUDA{devices: 1, units: 132, refusals: map[string]error{}}).install(t)
	plan, err := Select(elementwise.LerpBackward{Shape: []int64{1 << 20}, DType: tensor.Float32, BShape: []int64{1}}, tensor.CUDA(0), ops.Preference{})
	require.NoError(t, err)
	args, workspace := deviceArgs(plan, "dy", "weight", "db")

	SetCheck(true)
	t.Cleanup(func() { SetCheck(false) })
	require.NoError(t, plan.RunOrdered(5, workspace, args))
	require.Equal(t, []uintptr{5}, fake.waited, "a checked run waits for its stream")
	fake.refusals["synchronize"] = illegal
	requireDeviceError(t, plan.RunOrdered(5, workspace, args), illegal)
	SetCheck(false)
	require.NoError(t, plan.RunOrdered(5, workspace, args))

	fake.launches = nil
	fake.refusals["launch"] = &driver.Status{Code: 701, Name: "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES", Call: "cuLaunchKernel"}
	requireDeviceError(t, plan.RunOrdered(5, workspace, args), fake.refusals["launch"])
	require.Len(t, fake.launches, 1, "nothing follows a launch that was refused")
	fake.refusals["launch"] = errors.New("a refusal without a status")
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
	fake := (&fakeCUDA{devices: 1, units: 132}).install(t)
	weight := ops.Scalar(0.5)
	for _, shape := range [][]int64{{1 << 45}, {1 << 40, 3}} {
		plan, err := Select(elementwise.LerpBackward{Shape: shape, DType: tensor.Float64, Weight: &weight}, tensor.CUDA(0), ops.Preference{})
		require.NoError(t, err)
		args, workspace := deviceArgs(plan, "dy", "da")
		for i := range args {
			args[i].Data *= 1 << 9 // apart
		}
		err = plan.RunOrdered(0, workspace, args)
		require.ErrorIs(t, err, errs.ErrUnsupported)
		require.ErrorContains(t, err, "lerp_backward: launch must be of at most 2147483647 blocks")
		require.Empty(t, fake.launches)
	}
}

// Less workspace means fewer parts, down to none.
func TestWorkspaceLimits(t *testing.T) {
	(&fakeCUDA{devices: 1, units: 132}).install(t)
	descriptor := elementwise.LerpBackward{Shape: []int64{4, 1 << 20}, DType: tensor.BFloat16, AShape: []int64{4, 1}, BShape: []int64{4, 1}}
	free, err := Select(descriptor, tensor.CUDA(0), ops.Preference{})
	require.NoError(t, err)
	require.Positive(t, free.WorkspaceSize())
	last := int64(math.MaxInt64)
	for _, limit := range []int64{free.WorkspaceSize(), free.WorkspaceSize() - 1, free.WorkspaceSize() / 3, 33, 1, 0} {
		plan, err := Select(descriptor, tensor.CUDA(0), ops.Preference{MaxWorkspace: &limit})
		require.NoError(t, err)
		require.LessOrEqual(t, plan.WorkspaceSize(), limit)
		require.LessOrEqual(t, plan.WorkspaceSize(), last)
		last = plan.WorkspaceSize()
		args, workspace := deviceArgs(plan, "dy", "weight", "da", "db")
		require.NoError(t, plan.RunOrdered(0, workspace, args))
	}
}

// A plan may run from many threads at once, on either backend.
func TestConcurrentRuns(t *testing.T) {
	const runs = 50
	for _, device := range []tensor.Device{tensor.CPU, tensor.CUDA(0)} {
		var launches atomic.Int64
		(&fakeCUDA{devices: 1, units: 132, body: func(string, *driver.Launch) { launches.Add(1) }}).install(t)
		plan, err := Select(elementwise.LerpBackward{Shape: []int64{8, 50}, DType: tensor.Float32, BShape: []int64{50}}, device, ops.Preference{})
		require.NoError(t, err)
		c := trial{descriptor: plan.Descriptor(), without: []string{"a", "b", "dweight"}}
		want := c.arrange(t, plan, []int64{8, 50}, &schemes[0])
		want.run(t, want.outputs)
		var group sync.WaitGroup
		failures := make(chan error, 8)
		for range 8 {
			r := c.arrange(t, plan, []int64{8, 50}, &schemes[0])
			group.Go(func() {
				for range runs {
					args := make([]tensor.Tensor, len(r.operands))
					for i, m := range r.operands {
						if m != nil {
							args[i] = m.Tensor
						}
					}
					if err := plan.RunOrdered(0, r.workspace.Tensor, args); err != nil {
						failures <- err
						return
					}
				}
				if !slices.EqualFunc(want.bits(), r.bits(), slices.Equal[[]byte]) {
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
	(&fakeCUDA{devices: 2, units: 132}).install(t)
	plan, err := SelectJSON(`{"family": "dequantize_per_token_backward", "shape": [4, 8], "dtype": "bfloat16", "qdtype": "int8"}`,
		"cuda:1", `{"deterministic": true}`)
	require.NoError(t, err)
	var told struct {
		Operands []struct {
			Name          string
			Out, Optional bool
		}
		Device        string
		WorkspaceSize int64 `json:"workspace_size"`
		SKU           SKU
		Geometry      string
		Bytes         int64
	}
	require.NoError(t, json.Unmarshal([]byte(plan.DescribeJSON()), &told))
	names := make([]string, len(told.Operands))
	for i, o := range told.Operands {
		names[i] = o.Name
		require.Equal(t, o.Name == "dx" || o.Name == "dscale" || o.Name == "dzero_point", o.Out, o.Name)
		require.Equal(t, o.Name != "dy" && o.Name != "scale" && o.Name != "dx", o.Optional, o.Name)
	}
	require.Equal(t, plan.Operands(), names)
	require.Equal(t, []string{"dy", "scale", "q", "zero_point", "dx", "dscale", "dzero_point"}, names)
	require.Equal(t, "cuda:1", told.Device)
	require.Equal(t, plan.SKU(), told.SKU)
	require.Equal(t, "int8", told.SKU.AuxElement)
	require.Equal(t, "quantization", told.SKU.Category)
	require.Contains(t, told.Geometry, "[4, 8]")
	require.Equal(t, int64(2*4*8*2), told.Bytes)

	var info map[string]any
	require.NoError(t, json.Unmarshal([]byte(InfoJSON()), &info))
	require.Equal(t, "CUDA 13.0", info["driver"])
	require.Len(t, info["devices"], 2)
	require.Len(t, info["families"], len(ops.Families()))
	require.EqualValues(t, NumThreads(), info["threads"])
	(&fakeCUDA{missing: errors.New("no driver here")}).install(t)
	require.NoError(t, json.Unmarshal([]byte(InfoJSON()), &info))
	require.Equal(t, "no driver here", info["driver"])
	require.Equal(t, []any{"cpu"}, info["backends"])
	require.Empty(t, info["devices"])
}
