package core_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/sternway/sternway/core"
	"github.com/sternway/sternway/core/internal/coretest"
	"github.com/sternway/sternway/core/internal/errs"
	"github.com/sternway/sternway/core/internal/ops"
	"github.com/sternway/sternway/core/internal/ops/elementwise"
	"github.com/sternway/sternway/core/internal/ops/embedding"
	"github.com/sternway/sternway/core/internal/ops/rope"
	"github.com/sternway/sternway/core/internal/ops/scan"
	"github.com/sternway/sternway/core/internal/tensor"
	"github.com/stretchr/testify/require"
)

// refusals collects the complete sentence of every refusal, for testdata/errors.golden.
type refusals struct {
	t    *testing.T
	text strings.Builder
}

var addresses = regexp.MustCompile(`0x[0-9a-f]{4,}`)

// expect checks what holds of every error and writes its sentence down.
func (r *refusals) expect(name string, kind errs.Kind, err error) {
	r.t.Helper()
	var refusal *errs.Error
	require.ErrorAs(r.t, err, &refusal, name)
	require.Equal(r.t, kind, refusal.Kind, "%s: %v", name, err)
	sentinels := map[errs.Kind]error{errs.Unsupported: errs.ErrUnsupported, errs.InvalidProblem: errs.ErrInvalidProblem, errs.BufferTooSmall: errs.ErrBufferTooSmall,
		errs.Misaligned: errs.ErrMisaligned, errs.WorkspaceTooSmall: errs.ErrWorkspaceTooSmall, errs.DeviceFailure: errs.ErrDevice}
	for k, sentinel := range sentinels {
		require.Equal(r.t, k == kind, errors.Is(err, sentinel), name)
	}
	require.NotEmpty(r.t, refusal.Op, name)
	require.NotEmpty(r.t, refusal.Operand, name)
	require.NotContains(r.t, err.Error(), "\n", name)
	fmt.Fprintf(&r.text, "%s\n  %s: %s\n", name, kind, addresses.ReplaceAllString(err.Error(), "ADDRESS"))
}

func TestRefusals(t *testing.T) {
	r := &refusals{t: t}
	r.descriptors()
	r.problems()
	r.preferences()
	r.runs()
	r.selectiveScans()
	r.devices()
	const golden = "testdata/errors.golden"
	if *coretest.Update {
		require.NoError(t, os.WriteFile(golden, []byte(r.text.String()), 0o600))
	}
	want, err := os.ReadFile(golden)
	require.NoError(t, err, "go test -update writes it")
	require.Equal(t, string(want), r.text.String(), "go test -update rewrites %s", golden)
}

// descriptors are refused while they are read.
func (r *refusals) descriptors() {
	long := strings.Repeat("x", 1000)
	for _, row := range []struct {
		name, text string
		kind       errs.Kind
	}{
		{"no JSON", `lerp`, errs.InvalidProblem},
		{"no object", `[1]`, errs.InvalidProblem},
		{"no family", `{"shape": [2]}`, errs.InvalidProblem},
		{"unknown family", `{"family": "softmax_backward"}`, errs.InvalidProblem},
		{"family of another type", `{"family": 3}`, errs.InvalidProblem},
		{"unknown field", `{"family": "lerp_backward", "shap": [2]}`, errs.InvalidProblem},
		{"field of another type", `{"family": "lerp_backward", "shape": "2"}`, errs.InvalidProblem},
		{"fractional extent", `{"family": "lerp_backward", "shape": [2.5]}`, errs.InvalidProblem},
		{"weight in words", `{"family": "lerp_backward", "weight": "half"}`, errs.InvalidProblem},
		{"unknown dtype", `{"family": "lerp_backward", "dtype": "float24"}`, errs.Unsupported},
		{"a dtype that goes on and on", `{"family": "lerp_backward", "dtype": "` + long + `"}`, errs.Unsupported},
		{"no shape", `{"family": "lerp_backward", "dtype": "float32"}`, errs.InvalidProblem},
		{"no upper bound", `{"family": "fake_quantize_per_token_backward", "shape": [2, 3], "dtype": "float32", "quant_min": -8, "quant_max": null}`, errs.InvalidProblem},
		{"reverse in words", `{"family": "scan_backward", "reverse": "yes"}`, errs.InvalidProblem},
		{"fractional bound", `{"family": "fake_quantize_per_token_backward", "quant_min": -0.5}`, errs.InvalidProblem},
	} {
		_, err := ops.ParseDescriptor(row.text)
		r.expect("descriptor: "+row.name, row.kind, err)
	}
}

// problems are descriptors that contradict themselves.
func (r *refusals) problems() {
	half, weight, shape := tensor.Float16, ops.Scalar(0.5), []int64{2, 3}
	for _, row := range []struct {
		name       string
		descriptor ops.Descriptor
		kind       errs.Kind
	}{
		{"no dtype", elementwise.LerpBackward{Shape: shape}, errs.Unsupported},
		{"integer dtype", elementwise.LerpBackward{Shape: shape, DType: tensor.Int32}, errs.Unsupported},
		{"rank 9", elementwise.LerpBackward{Shape: make([]int64, 9), DType: tensor.Float32}, errs.Unsupported},
		{"negative extent", elementwise.LerpBackward{Shape: []int64{2, -3}, DType: tensor.Float32}, errs.InvalidProblem},
		{"too many elements", elementwise.LerpBackward{Shape: []int64{1 << 40, 1 << 40}, DType: tensor.Float32}, errs.InvalidProblem},
		{"a bit too many elements", elementwise.LerpBackward{Shape: []int64{math.MaxInt64 / 16, 2}, DType: tensor.Float32}, errs.InvalidProblem},
		{"a_shape that does not broadcast", elementwise.LerpBackward{Shape: shape, AShape: []int64{2}, DType: tensor.Float32}, errs.InvalidProblem},
		{"b_shape of higher rank", elementwise.LerpBackward{Shape: shape, BShape: []int64{1, 2, 3}, DType: tensor.Float32}, errs.InvalidProblem},
		{"weight_shape of extent 0", elementwise.LerpBackward{Shape: shape, WeightShape: []int64{0}, DType: tensor.Float32}, errs.InvalidProblem},
		{"weight_shape beside a number", elementwise.LerpBackward{Shape: shape, Weight: &weight, WeightShape: []int64{3}, DType: tensor.Float32}, errs.InvalidProblem},
		{"qdtype", elementwise.DequantizePerTokenBackward{Shape: shape, DType: tensor.Float32, QDType: tensor.Int32}, errs.Unsupported},
		{"scale_dtype", elementwise.DequantizePerTokenBackward{Shape: shape, DType: tensor.Float64, QDType: tensor.Int8, ScaleDType: &half}, errs.Unsupported},
		{"rank 9", elementwise.DequantizePerTokenBackward{Shape: make([]int64, 9), DType: tensor.Float32, QDType: tensor.Int8}, errs.Unsupported},
		{"dtype", elementwise.FakeQuantizePerTokenBackward{Shape: shape, DType: tensor.Uint8, QuantMax: 1}, errs.Unsupported},
		{"qdtype", elementwise.DequantizePerToken{Shape: shape, DType: tensor.Float32, QDType: tensor.Int32}, errs.Unsupported},
		{"dtype", elementwise.DequantizePerToken{Shape: shape, DType: tensor.Int8, QDType: tensor.Int8}, errs.Unsupported},
		{"rank 9", elementwise.FakeQuantizePerToken{Shape: make([]int64, 9), DType: tensor.Float32, QuantMax: 1}, errs.Unsupported},
		{"pairing", rope.RopeBackward{HeadDim: 4, DType: tensor.Float32, Pairing: "thirds"}, errs.Unsupported},
		{"angle", rope.RopeBackward{HeadDim: 4, DType: tensor.Float32, Angle: "degrees"}, errs.Unsupported},
		{"layout", rope.RopeBackward{HeadDim: 4, DType: tensor.Float32, Layout: "sbhd"}, errs.Unsupported},
		{"pairing of the forward", rope.Rope{HeadDim: 4, DType: tensor.Float32, Pairing: "thirds"}, errs.Unsupported},
		{"negative extent", rope.RopeBackward{BatchSize: -1, HeadDim: 4, DType: tensor.Float32}, errs.InvalidProblem},
		{"negative heads", rope.RopeBackward{HeadDim: 4, DType: tensor.Float32, NumKeyHeads: coretest.Given(int64(-1))}, errs.InvalidProblem},
		{"odd head_dim", rope.RopeBackward{HeadDim: 5, DType: tensor.Float32}, errs.InvalidProblem},
		{"huge head_dim", rope.RopeBackward{HeadDim: 1<<20 + 2, DType: tensor.Float32}, errs.Unsupported},
		{"odd rotary_dim", rope.RopeBackward{HeadDim: 8, RotaryDim: coretest.Given(int64(3)), DType: tensor.Float32}, errs.InvalidProblem},
		{"rotary_dim beyond head_dim", rope.RopeBackward{HeadDim: 8, RotaryDim: coretest.Given(int64(10)), DType: tensor.Float32}, errs.InvalidProblem},
		{"rotary_start", rope.RopeBackward{HeadDim: 8, RotaryDim: coretest.Given(int64(6)), RotaryStart: 3, DType: tensor.Float32}, errs.InvalidProblem},
		{"base", rope.RopeBackward{HeadDim: 8, Base: coretest.Given(ops.Scalar(0)), DType: tensor.Float32}, errs.InvalidProblem},
		{"base that is no number", rope.RopeBackward{HeadDim: 8, Base: coretest.Given(ops.Scalar(math.NaN())), DType: tensor.Float32}, errs.InvalidProblem},
		{"a batch of thd", rope.RopeBackward{BatchSize: 2, HeadDim: 8, Layout: "thd", DType: tensor.Float32}, errs.InvalidProblem},
		{"integer dtype", rope.RopeBackward{HeadDim: 8, DType: tensor.Int8}, errs.Unsupported},
		{"too many elements", rope.RopeBackward{BatchSize: 1 << 30, NumHeads: 1 << 30, SeqLen: 1 << 30, HeadDim: 8, DType: tensor.Float32}, errs.InvalidProblem},
		{"no kind", scan.ScanBackward{Shape: shape, DType: tensor.Float32}, errs.Unsupported},
		{"unknown kind", scan.ScanBackward{Kind: "cumall", Shape: shape, DType: tensor.Float32}, errs.Unsupported},
		{"dtype", scan.ScanBackward{Kind: "cumsum", Shape: shape, DType: tensor.Int64}, errs.Unsupported},
		{"rank 9", scan.ScanBackward{Kind: "cumsum", Shape: make([]int64, 9), DType: tensor.Float32}, errs.Unsupported},
		{"dim", scan.ScanBackward{Kind: "cumprod", Shape: shape, DType: tensor.Float32, Dim: 2}, errs.InvalidProblem},
		{"dim of a number", scan.ScanBackward{Kind: "cumprod", DType: tensor.Float32, Dim: -2}, errs.InvalidProblem},
		{"tie", scan.ScanBackward{Kind: "cummax", Shape: shape, DType: tensor.Float32, Tie: "middle"}, errs.Unsupported},
		{"no kind", scan.Scan{Shape: shape, DType: tensor.Float32}, errs.Unsupported},
		{"dtype", scan.Scan{Kind: "cumsum", Shape: shape, DType: tensor.Int64}, errs.Unsupported},
		{"dim", scan.Scan{Kind: "cumprod", Shape: shape, DType: tensor.Float32, Dim: 2}, errs.InvalidProblem},
		{"tie", scan.Scan{Kind: "cummax", Shape: shape, DType: tensor.Float32, Tie: "middle"}, errs.Unsupported},
		{"exclusive maximum", scan.Scan{Kind: "cummax", Shape: shape, DType: tensor.Float32, Exclusive: true}, errs.Unsupported},
		{"exclusive with carries", scan.ScanBackward{Kind: "cumsum", Shape: shape, DType: tensor.Float32, Exclusive: true, Carries: true}, errs.Unsupported},
		{"sequences of a number", scan.Scan{Kind: "cumsum", DType: tensor.Float32, NumSequences: coretest.Given[int64](1)}, errs.InvalidProblem},
		{"a negative number of sequences", scan.Scan{Kind: "cumsum", Shape: shape, DType: tensor.Float32, NumSequences: coretest.Given[int64](-1)}, errs.InvalidProblem},
		{"mode", coretest.BagWith(func(d *embedding.EmbeddingBagBackward) { d.Mode = "min" }), errs.Unsupported},
		{"index_dtype", embedding.EmbeddingBagBackward{DType: tensor.Float32, Mode: "sum", IndexDType: tensor.Int8}, errs.Unsupported},
		{"negative extent", coretest.BagWith(func(d *embedding.EmbeddingBagBackward) { d.NumBags = -1 }), errs.InvalidProblem},
		{"too many rows", coretest.BagWith(func(d *embedding.EmbeddingBagBackward) { d.NumEmbeddings = 1 << 56 }), errs.InvalidProblem},
		{"too many rows without columns", coretest.BagWith(func(d *embedding.EmbeddingBagBackward) { d.NumEmbeddings, d.EmbeddingDim = 1<<60, 0 }), errs.InvalidProblem},
		{"too many bags without columns", coretest.BagWith(func(d *embedding.EmbeddingBagBackward) { d.NumBags, d.EmbeddingDim = math.MaxInt64, 0 }), errs.InvalidProblem},
		{"too many indices", coretest.BagWith(func(d *embedding.EmbeddingBagBackward) { d.TotalIndices = 1 << 58 }), errs.InvalidProblem},
		{"padding_idx", coretest.BagWith(func(d *embedding.EmbeddingBagBackward) { d.PaddingIdx = &d.TotalIndices }), errs.InvalidProblem},
		{"max by frequency", coretest.BagWith(func(d *embedding.EmbeddingBagBackward) { d.Mode, d.ScaleGradByFreq = "max", true }), errs.Unsupported},
		{"index_dtype", embedding.EmbeddingBackward{NumEmbeddings: 5, EmbeddingDim: 3, NumIndices: 7, DType: tensor.Float32, IndexDType: tensor.Uint8}, errs.Unsupported},
		{"dtype", embedding.EmbeddingBackward{NumEmbeddings: 5, EmbeddingDim: 3, NumIndices: 7, DType: tensor.Int8, IndexDType: tensor.Int64}, errs.Unsupported},
		{"negative extent", embedding.EmbeddingBackward{NumEmbeddings: 5, EmbeddingDim: 3, NumIndices: -1, DType: tensor.Float32, IndexDType: tensor.Int64}, errs.InvalidProblem},
		{"too many rows", embedding.EmbeddingBackward{NumEmbeddings: 1 << 60, NumIndices: 7, DType: tensor.Float32, IndexDType: tensor.Int64}, errs.InvalidProblem},
		{"padding_idx", embedding.EmbeddingBackward{NumEmbeddings: 5, EmbeddingDim: 3, NumIndices: 7, DType: tensor.Float32, IndexDType: tensor.Int64, PaddingIdx: coretest.Given(int64(-6))}, errs.InvalidProblem},
		{"index_dtype", embedding.UniqueRows{NumRows: 5, Total: 3, IndexDType: tensor.Float32}, errs.Unsupported},
		{"negative extent", embedding.UniqueRows{NumRows: -1, Total: 3, IndexDType: tensor.Int32}, errs.InvalidProblem},
		{"too many rows", embedding.UniqueRows{NumRows: 1 << 58, Total: 3, IndexDType: tensor.Int32}, errs.InvalidProblem},
		{"too many indices", embedding.UniqueRows{NumRows: 3, Total: 1 << 58, IndexDType: tensor.Int32}, errs.InvalidProblem},
		{"padding_idx", embedding.UniqueRows{NumRows: 3, Total: 5, IndexDType: tensor.Int32, PaddingIdx: coretest.Given(int64(3))}, errs.InvalidProblem},
		{"padding_idx of no rows", embedding.UniqueRows{IndexDType: tensor.Int32, PaddingIdx: coretest.Given(int64(0))}, errs.InvalidProblem},
		{"scale_shape of another rank", elementwise.FakeQuantize{Shape: shape, DType: tensor.Float32, ScaleShape: []int64{3}}, errs.InvalidProblem},
		{"scale_shape that does not divide", elementwise.DequantizeBackward{Shape: shape, DType: tensor.Float32, QDType: tensor.Int8, ScaleShape: []int64{2, 2}}, errs.InvalidProblem},
		{"scale_shape of extent 0", elementwise.Dequantize{Shape: shape, DType: tensor.Float32, QDType: tensor.Int8, ScaleShape: []int64{0, 1}}, errs.InvalidProblem},
		{"scale_shape of too many blocks", elementwise.FakeQuantizeBackward{Shape: []int64{4, 4, 4, 4, 4}, DType: tensor.Float32, ScaleShape: []int64{2, 2, 2, 2, 1}}, errs.Unsupported},
		{"bounds out of order", elementwise.FakeQuantizePerTokenBackward{Shape: shape, DType: tensor.Float32, QuantMin: 7, QuantMax: -8}, errs.InvalidProblem},
		{"bounds out of order", elementwise.FakeQuantizePerToken{Shape: shape, DType: tensor.Float32, QuantMin: 7, QuantMax: -8}, errs.InvalidProblem},
	} {
		_, err := core.Select(row.descriptor, tensor.CPU, ops.Preference{})
		r.expect(fmt.Sprintf("%s: %s", row.descriptor.Family(), row.name), row.kind, err)
	}
}

// preferences of Select, and everything else that arrives as text.
func (r *refusals) preferences() {
	const lerp = `{"family": "lerp_backward", "shape": [3, 4], "dtype": "float32", "weight": 0.5, "b_shape": [%s]}`
	for _, row := range []struct {
		name, b, device, preference string
		kind                        errs.Kind
	}{
		{"unknown device", "3, 4", "tpu", "{}", errs.Unsupported},
		{"negative ordinal", "3, 4", "cuda:-1", "{}", errs.Unsupported},
		{"ordinal in words", "3, 4", "cuda:one", "{}", errs.Unsupported},
		{"a second CPU", "3, 4", "cpu:1", "{}", errs.Unsupported},
		{"preference that is no object", "3, 4", "cpu", "3", errs.InvalidProblem},
		{"unknown preference", "3, 4", "cpu", `{"speed": 11}`, errs.InvalidProblem},
		{"unknown kernel", "3, 4", "cpu", `{"kernel": "tiles"}`, errs.Unsupported},
		{"kernel that sums nothing", "4", "cpu", `{"kernel": "map"}`, errs.Unsupported},
		{"kernel that sums", "3, 4", "cpu", `{"kernel": "rows"}`, errs.Unsupported},
		{"columns of one number", "1", "cpu", `{"kernel": "columns"}`, errs.Unsupported},
		{"negative workspace", "3, 4", "cpu", `{"max_workspace": -1}`, errs.InvalidProblem},
	} {
		_, err := core.SelectJSON(fmt.Sprintf(lerp, row.b), row.device, row.preference)
		r.expect("select: "+row.name, row.kind, err)
	}
	_, err := core.Select(embedding.UniqueRows{NumRows: 5, Total: 1 << 20, IndexDType: tensor.Int32}, tensor.CPU, ops.Preference{Kernel: "single"})
	r.expect("select: one block for many indices", errs.Unsupported, err)
	_, err = core.Select(elementwise.LerpBackward{Shape: []int64{2}, DType: tensor.Float32}, tensor.Device{Type: 10}, ops.Preference{})
	r.expect("select: a device of another maker", errs.Unsupported, err)
	r.expect("threads: none", errs.InvalidProblem, core.SetNumThreads(0))
	r.expect("threads: too many", errs.InvalidProblem, core.SetNumThreads(1<<20))
}

func TestErrorJSON(t *testing.T) {
	refusal := &errs.Error{Kind: errs.WorkspaceTooSmall, Op: "f", Operand: "workspace", Wanted: "at least 8 bytes", Got: "4", Hint: "see plan.workspace_size",
		Needed: 8, GotSize: 4, Status: "CUDA_ERROR_X"}
	require.JSONEq(t, `{"kind": "workspace_too_small", "op": "f", "operand": "workspace", "wanted": "at least 8 bytes", "got": "4",
		"hint": "see plan.workspace_size", "needed": 8, "got_bytes": 4, "status": "CUDA_ERROR_X",
		"message": "f: workspace must be at least 8 bytes, got 4; see plan.workspace_size"}`, errs.ErrorJSON(refusal))
	var fields map[string]any
	require.NoError(t, json.Unmarshal([]byte(errs.ErrorJSON(fmt.Errorf("while packing: %w", refusal))), &fields))
	require.Equal(t, "workspace_too_small", fields["kind"], "a wrapped refusal keeps its kind")
	require.NoError(t, json.Unmarshal([]byte(errs.ErrorJSON(errors.New("index out of range"))), &fields))
	require.Equal(t, "internal", fields["kind"])
	require.Equal(t, "sternway: the call must be answered, got index out of range; please report this", fields["message"])
	require.Equal(t, "f: x must be y, got z", (&errs.Error{Op: "f", Operand: "x", Wanted: "y", Got: "z"}).Error())
}
