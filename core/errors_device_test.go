package core_test

import (
	"errors"
	"slices"

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

// devices are refusals of a machine: its driver, its devices, its kernels, the workspace of a run.
func (r *refusals) devices() {
	large := elementwise.LerpBackward{Shape: []int64{1 << 20}, DType: tensor.Float32, BShape: []int64{1}}
	refused := func(name string) error { return &driver.Status{Code: 999, Name: name, Call: "cuCall"} }
	for _, row := range []struct {
		name    string
		fake    coretest.FakeCUDA
		ordinal int
		kind    errs.Kind
	}{
		{"no driver", coretest.FakeCUDA{Missing: errors.New("no NVIDIA driver (libcuda.so.1 was not found)")}, 0, errs.Unsupported},
		{"no device", coretest.FakeCUDA{}, 0, errs.Unsupported},
		{"ordinal", coretest.FakeCUDA{Devices: 2, NumSMs: 4}, 2, errs.Unsupported},
		{"device", coretest.FakeCUDA{Devices: 2, Refusals: map[string]error{"device": refused("CUDA_ERROR_OUT_OF_MEMORY")}}, 1, errs.DeviceFailure},
		{"load", coretest.FakeCUDA{Devices: 1, Refusals: map[string]error{"load": refused("CUDA_ERROR_INVALID_IMAGE")}}, 0, errs.DeviceFailure},
		{"architecture", coretest.FakeCUDA{Devices: 1, Refusals: map[string]error{"load": &driver.Status{Code: 209, Name: "CUDA_ERROR_NO_BINARY_FOR_GPU"}}}, 0, errs.Unsupported},
		{"driver of an older CUDA", coretest.FakeCUDA{Devices: 1, CUDA: 12040, Refusals: map[string]error{"load": &driver.Status{Code: 209, Name: "CUDA_ERROR_NO_BINARY_FOR_GPU"}}}, 0, errs.Unsupported},
		{"symbol", coretest.FakeCUDA{Devices: 1, Exports: map[string][]string{}}, 0, errs.DeviceFailure},
	} {
		row.fake.Install(r.t)
		_, err := core.Select(large, tensor.CUDA(row.ordinal), ops.Preference{})
		r.expect("device: "+row.name, row.kind, err)
	}
	(&coretest.FakeCUDA{Devices: 1, NumSMs: 132}).Install(r.t)
	plan, err := core.Select(large, tensor.CUDA(0), ops.Preference{})
	require.NoError(r.t, err)
	r.workspaces(plan)
	(&coretest.FakeCUDA{Devices: 1, NumSMs: 132, Bare: true}).Install(r.t)
	_, err = core.Select(large, tensor.CUDA(0), ops.Preference{})
	r.expect("device: no kernels", errs.Unsupported, err)
	(&coretest.FakeCUDA{Devices: 1, NumSMs: 132, Built: "sm_80"}).Install(r.t)
	_, err = core.Select(large, tensor.CUDA(0), ops.Preference{})
	r.expect("device: kernels for another architecture", errs.Unsupported, err)
}

func (r *refusals) workspaces(plan *core.Plan) {
	size := plan.WorkspaceSize()
	require.Greater(r.t, size, int64(256))
	dy := tensor.Tensor{Data: 1 << 30, DType: tensor.Float32, Device: tensor.CUDA(0), NDim: 1, Present: 1, Shape: [tensor.MaxRank]int64{1 << 20}, Strides: [tensor.MaxRank]int64{1}}
	db := dy
	db.Data, db.Shape[0] = 1<<40, 1
	args := make([]tensor.Tensor, len(plan.Operands()))
	args[slices.Index(plan.Operands(), "dy")], args[slices.Index(plan.Operands(), "weight")] = dy, dy
	args[slices.Index(plan.Operands(), "db")] = db
	right := tensor.Tensor{Data: 1 << 41, DType: tensor.Uint8, Device: tensor.CUDA(0), NDim: 1, Present: 1, Shape: [tensor.MaxRank]int64{size}, Strides: [tensor.MaxRank]int64{1}}
	require.NoError(r.t, plan.RunOrdered(0, right, args))
	for _, row := range []struct {
		name   string
		kind   errs.Kind
		change func(w *tensor.Tensor)
	}{
		{"none", errs.WorkspaceTooSmall, func(w *tensor.Tensor) { *w = tensor.Tensor{} }},
		{"one byte short", errs.WorkspaceTooSmall, func(w *tensor.Tensor) { w.Shape[0]-- }},
		{"dtype", errs.InvalidProblem, func(w *tensor.Tensor) { w.DType = tensor.Float32 }},
		{"rank 2", errs.InvalidProblem, func(w *tensor.Tensor) { w.NDim = 2 }},
		{"rank 9", errs.InvalidProblem, func(w *tensor.Tensor) { w.NDim = 9 }},
		{"gaps", errs.InvalidProblem, func(w *tensor.Tensor) { w.Strides[0] = 2 }},
		{"on the CPU", errs.InvalidProblem, func(w *tensor.Tensor) { w.Device = tensor.CPU }},
		{"no memory", errs.InvalidProblem, func(w *tensor.Tensor) { w.Data = 0 }},
		{"read-only", errs.InvalidProblem, func(w *tensor.Tensor) { w.ReadOnly = 1 }},
		{"alignment", errs.Misaligned, func(w *tensor.Tensor) { w.Data += 128 }},
		{"over dy", errs.InvalidProblem, func(w *tensor.Tensor) { w.Data = dy.Data + 1<<16 }},
		{"over db", errs.InvalidProblem, func(w *tensor.Tensor) { w.Data = db.Data - 256 }},
	} {
		w := right
		row.change(&w)
		err := plan.RunOrdered(0, w, args)
		r.expect("workspace: "+row.name, row.kind, err)
		require.Equal(r.t, err, plan.CanImplementOrdered(w, args))
		var refusal *errs.Error
		if errors.As(err, &refusal) && row.kind == errs.WorkspaceTooSmall {
			require.Equal(r.t, size, refusal.Needed)
			require.Equal(r.t, w.Shape[0], refusal.GotSize)
		}
	}
	r.lessWorkspace()
	small := int64(100)
	limited, err := core.Select(plan.Descriptor(), tensor.CUDA(0), ops.Preference{MaxWorkspace: &small})
	require.NoError(r.t, err, "fewer parts fit a smaller workspace")
	require.LessOrEqual(r.t, limited.WorkspaceSize(), small)
}

// lessWorkspace runs a gradient whose plan sums da, but which is asked for db alone: there are no
// terms of da, which would need workspace.
func (r *refusals) lessWorkspace() {
	shape := []int64{64, 1024}
	plan, err := core.Select(scan.LinearRecurrenceBackward{Shape: shape, DType: tensor.Float32, Dim: -1, AShape: []int64{64, 1}}, tensor.CUDA(0), ops.Preference{})
	require.NoError(r.t, err)
	args, given := make([]tensor.Tensor, len(plan.Operands())), uint(0)
	for i, name := range []string{"dh", "a", "h", "db"} {
		at := slices.Index(plan.Operands(), name)
		args[at] = tensor.Tensor{Data: uintptr(i+1) << 30, DType: tensor.Float32, Device: tensor.CUDA(0), NDim: 2, Present: 1}
		copy(args[at].Shape[:], shape)
		copy(args[at].Strides[:], tensor.Compact(shape))
		given |= 1 << at
	}
	size := plan.WorkspaceNeed(given, true)
	require.Less(r.t, size, plan.WorkspaceSize())
	workspace := tensor.Tensor{Data: 1 << 41, DType: tensor.Uint8, Device: tensor.CUDA(0), NDim: 1, Present: 1, Shape: [tensor.MaxRank]int64{size}, Strides: [tensor.MaxRank]int64{1}}
	require.NoError(r.t, plan.RunOrdered(0, workspace, args))
}
