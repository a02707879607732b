package core_test

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/sternway/sternway/core/internal/ops"
	"github.com/sternway/sternway/core/internal/ops/elementwise"
	"github.com/sternway/sternway/core/internal/ops/embedding"
	"github.com/sternway/sternway/core/internal/tensor"
	"github.com/stretchr/testify/require"

	"github.com/sternway/sternway/core"
	"github.com/sternway/sternway/core/internal/coretest"
	scanpkg "github.com/sternway/sternway/core/internal/ops/scan"
)

// recorded is a plan with a run behind it, and one without, for the same descriptor.
func recorded(t *testing.T, d ops.Descriptor, names ...string) (fake *coretest.FakeCUDA, plan, fresh *core.Plan, args []tensor.Tensor, workspace tensor.Tensor) {
	fake = (&coretest.FakeCUDA{Devices: 1, NumSMs: 132}).Install(t)
	plan, err := core.Select(d, tensor.CUDA(0), ops.Preference{})
	require.NoError(t, err)
	fresh, err = core.Select(d, tensor.CUDA(0), ops.Preference{})
	require.NoError(t, err)
	args, workspace = coretest.DeviceArgs(plan, names...)
	require.NoError(t, plan.RunOrdered(1, workspace, args))
	return fake, plan, fresh, args, workspace
}

// requireSameRun runs a plan that has run before and a fresh one: the same launches, or the same
// refusal.
func requireSameRun(t *testing.T, fake *coretest.FakeCUDA, plan, fresh *core.Plan, args []tensor.Tensor, workspace tensor.Tensor, what string) {
	t.Helper()
	fake.Launches = nil
	got := plan.RunOrdered(9, workspace, args)
	first := slices.Clone(fake.Launches)
	fake.Launches = nil
	want := fresh.RunOrdered(9, workspace, args)
	require.Equal(t, want, got, what)
	require.Equal(t, fake.Launches, first, what)
	for _, l := range first {
		require.Equal(t, uintptr(9), l.Stream)
	}
}

// A second run launches what a first run would have, wherever its operands lie and however they are
// aligned.
func TestSecondRunAtOtherAddresses(t *testing.T) {
	for _, sample := range coretest.Samples() {
		d := coretest.WithDType(sample, coretest.ElementsOf(sample)[0])
		plan, err := core.Select(d, tensor.CPU, ops.Preference{})
		require.NoError(t, err)
		names := plan.Operands()
		if l, ok := d.(elementwise.LerpBackward); ok && l.Weight != nil {
			names = []string{"dy", "da", "db"}
		}
		if strings.Contains(d.Family(), "quantize") {
			names = slices.DeleteFunc(names, func(name string) bool { return name == "zero_point" || name == "dzero_point" })
		}
		if mode := bagMode(d); mode != "" {
			names = slices.DeleteFunc(names, func(name string) bool {
				return name == "max_indices" && mode != "max" || strings.Contains(name, "sample_weights") && mode != "sum"
			})
		}
		if scan, ok := d.(scanpkg.ScanBackward); ok {
			names = slices.DeleteFunc(names, func(name string) bool { return name == "indices" || name == "x" && !scanpkg.ByName[scan.Kind].ReadsX })
		}
		names = slices.DeleteFunc(names, func(name string) bool { return strings.Contains(name, "carry_") || name == "cu_seqlens" })
		if scan, ok := d.(scanpkg.Scan); ok && !scanpkg.ByName[scan.Kind].ReadsIndices {
			names = []string{"x", "y"}
		}
		for _, move := range []uintptr{1 << 30, 256, 16, 4, 8, 128} {
			fake, plan, fresh, args, workspace := recorded(t, d, names...)
			for i := range args {
				if args[i].Given() {
					args[i].Data += move
				}
			}
			requireSameRun(t, fake, plan, fresh, args, workspace, fmt.Sprintf("%s moved by %d", d.Family(), move))
		}
	}
}

// bagMode is the mode of a problem of embedding bags; empty for others.
func bagMode(d ops.Descriptor) string {
	switch d := d.(type) {
	case embedding.EmbeddingBagBackward:
		return d.Mode
	case embedding.EmbeddingBag:
		return d.Mode
	case embedding.EmbeddingBags:
		return d.Mode
	case embedding.EmbeddingBagsBackward:
		return d.Mode
	}
	return ""
}

// Whatever changes between two runs, the second is judged as if it were the first.
func TestSecondRunIsCheckedLikeTheFirst(t *testing.T) {
	d := elementwise.LerpBackward{Shape: []int64{1 << 12, 40}, DType: tensor.Float32, BShape: []int64{40}}
	for _, row := range []struct {
		name   string
		change func(args []tensor.Tensor, workspace *tensor.Tensor)
	}{
		{"nothing", func([]tensor.Tensor, *tensor.Tensor) {}},
		{"another weight_shape", func(args []tensor.Tensor, _ *tensor.Tensor) { args[1].Shape[1] = 1 }},
		{"strides", func(args []tensor.Tensor, _ *tensor.Tensor) { args[0].Strides[0] = 48 }},
		{"transposed", func(args []tensor.Tensor, _ *tensor.Tensor) { args[0].Strides[0], args[0].Strides[1] = 1, 1<<12 }},
		{"expanded", func(args []tensor.Tensor, _ *tensor.Tensor) { args[0].Strides[0] = 0 }},
		{"expanded output", func(args []tensor.Tensor, _ *tensor.Tensor) { args[4].Strides[0] = 0 }},
		{"dtype", func(args []tensor.Tensor, _ *tensor.Tensor) { args[0].DType = tensor.Float64 }},
		{"device", func(args []tensor.Tensor, _ *tensor.Tensor) { args[0].Device = tensor.CUDA(1) }},
		{"read-only output", func(args []tensor.Tensor, _ *tensor.Tensor) { args[4].ReadOnly = 1 }},
		{"no dy", func(args []tensor.Tensor, _ *tensor.Tensor) { args[0] = tensor.Tensor{} }},
		{"no da", func(args []tensor.Tensor, _ *tensor.Tensor) { args[4] = tensor.Tensor{} }},
		{"no memory", func(args []tensor.Tensor, _ *tensor.Tensor) { args[0].Data = 0 }},
		{"odd address", func(args []tensor.Tensor, _ *tensor.Tensor) { args[0].Data++ }},
		{"da in dy", func(args []tensor.Tensor, _ *tensor.Tensor) { args[4].Data = args[0].Data }},
		{"da inside dy", func(args []tensor.Tensor, _ *tensor.Tensor) { args[4].Data = args[0].Data + 256 }},
		{"db inside da", func(args []tensor.Tensor, _ *tensor.Tensor) { args[5].Data = args[4].Data + 1<<14 }},
		{"da just behind dy", func(args []tensor.Tensor, _ *tensor.Tensor) { args[4].Data = args[0].Data + 4*40<<12 }},
		{"da ends in dy", func(args []tensor.Tensor, _ *tensor.Tensor) { args[4].Data = args[0].Data - 256 }},
		{"the end of the address space", func(args []tensor.Tensor, _ *tensor.Tensor) { args[0].Data = math.MaxInt64 &^ 255 }},
		{"behind the address space", func(args []tensor.Tensor, _ *tensor.Tensor) { args[4].Data = 1<<63 + 1<<40 }},
		{"a wrong number of operands", nil},
		{"no workspace", func(_ []tensor.Tensor, w *tensor.Tensor) { *w = tensor.Tensor{} }},
		{"another workspace", func(_ []tensor.Tensor, w *tensor.Tensor) { w.Data += 1 << 20 }},
		{"a small workspace", func(_ []tensor.Tensor, w *tensor.Tensor) { w.Shape[0]-- }},
		{"workspace in dy", func(args []tensor.Tensor, w *tensor.Tensor) { w.Data = args[0].Data }},
	} {
		fake, plan, fresh, args, workspace := recorded(t, d, "dy", "weight", "da", "db")
		require.Positive(t, plan.WorkspaceSize())
		if row.change == nil {
			args = args[1:]
		} else {
			row.change(args, &workspace)
		}
		requireSameRun(t, fake, plan, fresh, args, workspace, row.name)
		args, workspace = coretest.DeviceArgs(plan, "dy", "weight", "da", "db")
		requireSameRun(t, fake, plan, fresh, args, workspace, "and back from "+row.name)
	}
}
