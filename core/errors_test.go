package core

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"math"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

var update = flag.Bool("update", false, "rewrite testdata/errors.golden")

// refusals collects the complete sentence of every refusal, for testdata/errors.golden.
type refusals struct {
	t    *testing.T
	text strings.Builder
}

var addresses = regexp.MustCompile(`0x[0-9a-f]{4,}`)

// expect checks what holds of every error and writes its sentence down.
func (r *refusals) expect(name string, kind Kind, err error) {
	r.t.Helper()
	var refusal *Error
	require.ErrorAs(r.t, err, &refusal, name)
	require.Equal(r.t, kind, refusal.Kind, "%s: %v", name, err)
	sentinels := map[Kind]error{Unsupported: ErrUnsupported, InvalidProblem: ErrInvalidProblem, BufferTooSmall: ErrBufferTooSmall,
		Misaligned: ErrMisaligned, WorkspaceTooSmall: ErrWorkspaceTooSmall, DeviceFailure: ErrDevice}
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
	r.devices()
	const golden = "testdata/errors.golden"
	if *update {
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
		kind       Kind
	}{
		{"no JSON", `lerp`, InvalidProblem},
		{"no object", `[1]`, InvalidProblem},
		{"no family", `{"shape": [2]}`, InvalidProblem},
		{"unknown family", `{"family": "softmax_backward"}`, InvalidProblem},
		{"family of another type", `{"family": 3}`, InvalidProblem},
		{"unknown field", `{"family": "lerp_backward", "shap": [2]}`, InvalidProblem},
		{"field of another type", `{"family": "lerp_backward", "shape": "2"}`, InvalidProblem},
		{"fractional extent", `{"family": "lerp_backward", "shape": [2.5]}`, InvalidProblem},
		{"weight in words", `{"family": "lerp_backward", "weight": "half"}`, InvalidProblem},
		{"unknown dtype", `{"family": "lerp_backward", "dtype": "float24"}`, Unsupported},
		{"a dtype that goes on and on", `{"family": "lerp_backward", "dtype": "` + long + `"}`, Unsupported},
		{"no shape", `{"family": "lerp_backward", "dtype": "float32"}`, InvalidProblem},
		{"no upper bound", `{"family": "fake_quantize_per_token_backward", "shape": [2, 3], "dtype": "float32", "quant_min": -8, "quant_max": null}`, InvalidProblem},
		{"reverse in words", `{"family": "scan_backward", "reverse": "yes"}`, InvalidProblem},
		{"fractional bound", `{"family": "fake_quantize_per_token_backward", "quant_min": -0.5}`, InvalidProblem},
	} {
		_, err := ParseDescriptor(row.text)
		r.expect("descriptor: "+row.name, row.kind, err)
	}
}

// problems are descriptors that contradict themselves.
func (r *refusals) problems() {
	half, weight, shape := Float16, Scalar(0.5), []int64{2, 3}
	for _, row := range []struct {
		name       string
		descriptor Descriptor
		kind       Kind
	}{
		{"no dtype", LerpBackward{Shape: shape}, Unsupported},
		{"integer dtype", LerpBackward{Shape: shape, DType: Int32}, Unsupported},
		{"rank 9", LerpBackward{Shape: make([]int64, 9), DType: Float32}, Unsupported},
		{"negative extent", LerpBackward{Shape: []int64{2, -3}, DType: Float32}, InvalidProblem},
		{"too many elements", LerpBackward{Shape: []int64{1 << 40, 1 << 40}, DType: Float32}, InvalidProblem},
		{"a bit too many elements", LerpBackward{Shape: []int64{math.MaxInt64 / 16, 2}, DType: Float32}, InvalidProblem},
		{"a_shape that does not broadcast", LerpBackward{Shape: shape, AShape: []int64{2}, DType: Float32}, InvalidProblem},
		{"b_shape of higher rank", LerpBackward{Shape: shape, BShape: []int64{1, 2, 3}, DType: Float32}, InvalidProblem},
		{"weight_shape of extent 0", LerpBackward{Shape: shape, WeightShape: []int64{0}, DType: Float32}, InvalidProblem},
		{"weight_shape beside a number", LerpBackward{Shape: shape, Weight: &weight, WeightShape: []int64{3}, DType: Float32}, InvalidProblem},
		{"qdtype", DequantizePerTokenBackward{Shape: shape, DType: Float32, QDType: Int32}, Unsupported},
		{"scale_dtype", DequantizePerTokenBackward{Shape: shape, DType: Float64, QDType: Int8, ScaleDType: &half}, Unsupported},
		{"rank 9", DequantizePerTokenBackward{Shape: make([]int64, 9), DType: Float32, QDType: Int8}, Unsupported},
		{"dtype", FakeQuantizePerTokenBackward{Shape: shape, DType: Uint8, QuantMax: 1}, Unsupported},
		{"pairing", RopeBackward{HeadDim: 4, DType: Float32, Pairing: "thirds"}, Unsupported},
		{"angle", RopeBackward{HeadDim: 4, DType: Float32, Angle: "degrees"}, Unsupported},
		{"layout", RopeBackward{HeadDim: 4, DType: Float32, Layout: "sbhd"}, Unsupported},
		{"direction", RopeBackward{HeadDim: 4, DType: Float32, Direction: "sideways"}, Unsupported},
		{"negative extent", RopeBackward{BatchSize: -1, HeadDim: 4, DType: Float32}, InvalidProblem},
		{"negative heads", RopeBackward{HeadDim: 4, DType: Float32, NumKeyHeads: given(int64(-1))}, InvalidProblem},
		{"odd head_dim", RopeBackward{HeadDim: 5, DType: Float32}, InvalidProblem},
		{"huge head_dim", RopeBackward{HeadDim: 1<<20 + 2, DType: Float32}, Unsupported},
		{"odd rotary_dim", RopeBackward{HeadDim: 8, RotaryDim: given(int64(3)), DType: Float32}, InvalidProblem},
		{"rotary_dim beyond head_dim", RopeBackward{HeadDim: 8, RotaryDim: given(int64(10)), DType: Float32}, InvalidProblem},
		{"rotary_start", RopeBackward{HeadDim: 8, RotaryDim: given(int64(6)), RotaryStart: 3, DType: Float32}, InvalidProblem},
		{"base", RopeBackward{HeadDim: 8, Base: given(Scalar(0)), DType: Float32}, InvalidProblem},
		{"base that is no number", RopeBackward{HeadDim: 8, Base: given(Scalar(math.NaN())), DType: Float32}, InvalidProblem},
		{"a batch of thd", RopeBackward{BatchSize: 2, HeadDim: 8, Layout: "thd", DType: Float32}, InvalidProblem},
		{"integer dtype", RopeBackward{HeadDim: 8, DType: Int8}, Unsupported},
		{"too many elements", RopeBackward{BatchSize: 1 << 30, NumHeads: 1 << 30, SeqLen: 1 << 30, HeadDim: 8, DType: Float32}, InvalidProblem},
		{"no kind", ScanBackward{Shape: shape, DType: Float32}, Unsupported},
		{"unknown kind", ScanBackward{Kind: "cumall", Shape: shape, DType: Float32}, Unsupported},
		{"dtype", ScanBackward{Kind: "cumsum", Shape: shape, DType: Int64}, Unsupported},
		{"rank 9", ScanBackward{Kind: "cumsum", Shape: make([]int64, 9), DType: Float32}, Unsupported},
		{"dim", ScanBackward{Kind: "cumprod", Shape: shape, DType: Float32, Dim: 2}, InvalidProblem},
		{"dim of a number", ScanBackward{Kind: "cumprod", DType: Float32, Dim: -2}, InvalidProblem},
		{"tie", ScanBackward{Kind: "cummax", Shape: shape, DType: Float32, Tie: "middle"}, Unsupported},
		{"mode", bagWith(func(d *EmbeddingBagBackward) { d.Mode = "min" }), Unsupported},
		{"index_dtype", EmbeddingBagBackward{DType: Float32, Mode: "sum", IndexDType: Int8}, Unsupported},
		{"negative extent", bagWith(func(d *EmbeddingBagBackward) { d.NumBags = -1 }), InvalidProblem},
		{"too many rows", bagWith(func(d *EmbeddingBagBackward) { d.NumEmbeddings = 1 << 56 }), InvalidProblem},
		{"too many rows without columns", bagWith(func(d *EmbeddingBagBackward) { d.NumEmbeddings, d.EmbeddingDim = 1<<60, 0 }), InvalidProblem},
		{"too many bags without columns", bagWith(func(d *EmbeddingBagBackward) { d.NumBags, d.EmbeddingDim = math.MaxInt64, 0 }), InvalidProblem},
		{"too many indices", bagWith(func(d *EmbeddingBagBackward) { d.TotalIndices = 1 << 58 }), InvalidProblem},
		{"padding_idx", bagWith(func(d *EmbeddingBagBackward) { d.PaddingIdx = &d.TotalIndices }), InvalidProblem},
		{"max by frequency", bagWith(func(d *EmbeddingBagBackward) { d.Mode, d.ScaleGradByFreq = "max", true }), Unsupported},
		{"index_dtype", UniqueRows{NumRows: 5, Total: 3, IndexDType: Float32}, Unsupported},
		{"negative extent", UniqueRows{NumRows: -1, Total: 3, IndexDType: Int32}, InvalidProblem},
		{"too many rows", UniqueRows{NumRows: 1 << 58, Total: 3, IndexDType: Int32}, InvalidProblem},
		{"too many indices", UniqueRows{NumRows: 3, Total: 1 << 58, IndexDType: Int32}, InvalidProblem},
		{"padding_idx", UniqueRows{NumRows: 3, Total: 5, IndexDType: Int32, PaddingIdx: given(int64(3))}, InvalidProblem},
		{"padding_idx of no rows", UniqueRows{IndexDType: Int32, PaddingIdx: given(int64(0))}, InvalidProblem},
		{"bounds out of order", FakeQuantizePerTokenBackward{Shape: shape, DType: Float32, QuantMin: 7, QuantMax: -8}, InvalidProblem},
	} {
		_, err := Select(row.descriptor, CPU, Preference{})
		r.expect(fmt.Sprintf("%s: %s", row.descriptor.Family(), row.name), row.kind, err)
	}
}

// preferences of Select, and everything else that arrives as text.
func (r *refusals) preferences() {
	const lerp = `{"family": "lerp_backward", "shape": [3, 4], "dtype": "float32", "weight": 0.5, "b_shape": [%s]}`
	for _, row := range []struct {
		name, b, device, preference string
		kind                        Kind
	}{
		{"unknown device", "3, 4", "tpu", "{}", Unsupported},
		{"negative ordinal", "3, 4", "cuda:-1", "{}", Unsupported},
		{"ordinal in words", "3, 4", "cuda:one", "{}", Unsupported},
		{"a second CPU", "3, 4", "cpu:1", "{}", Unsupported},
		{"preference that is no object", "3, 4", "cpu", "3", InvalidProblem},
		{"unknown preference", "3, 4", "cpu", `{"speed": 11}`, InvalidProblem},
		{"unknown kernel", "3, 4", "cpu", `{"kernel": "tiles"}`, Unsupported},
		{"kernel that sums nothing", "4", "cpu", `{"kernel": "map"}`, Unsupported},
		{"kernel that sums", "3, 4", "cpu", `{"kernel": "rows"}`, Unsupported},
		{"columns of one number", "1", "cpu", `{"kernel": "columns"}`, Unsupported},
		{"negative workspace", "3, 4", "cpu", `{"max_workspace": -1}`, InvalidProblem},
	} {
		_, err := SelectJSON(fmt.Sprintf(lerp, row.b), row.device, row.preference)
		r.expect("select: "+row.name, row.kind, err)
	}
	_, err := Select(UniqueRows{NumRows: 5, Total: 1 << 20, IndexDType: Int32}, CPU, Preference{Kernel: "single"})
	r.expect("select: one block for many indices", Unsupported, err)
	_, err = Select(LerpBackward{Shape: []int64{2}, DType: Float32}, Device{Type: 10}, Preference{})
	r.expect("select: a device of another maker", Unsupported, err)
	r.expect("threads: none", InvalidProblem, SetNumThreads(0))
	r.expect("threads: too many", InvalidProblem, SetNumThreads(1<<20))
}

func TestErrorJSON(t *testing.T) {
	refusal := &Error{Kind: WorkspaceTooSmall, Op: "f", Operand: "workspace", Wanted: "at least 8 bytes", Got: "4", Hint: "see plan.workspace_size",
		Needed: 8, GotSize: 4, Status: "CUDA_ERROR_X"}
	require.JSONEq(t, `{"kind": "workspace_too_small", "op": "f", "operand": "workspace", "wanted": "at least 8 bytes", "got": "4",
		"hint": "see plan.workspace_size", "needed": 8, "got_bytes": 4, "status": "CUDA_ERROR_X",
		"message": "f: workspace must be at least 8 bytes, got 4; see plan.workspace_size"}`, ErrorJSON(refusal))
	var fields map[string]any
	require.NoError(t, json.Unmarshal([]byte(ErrorJSON(fmt.Errorf("while packing: %w", refusal))), &fields))
	require.Equal(t, "workspace_too_small", fields["kind"], "a wrapped refusal keeps its kind")
	require.NoError(t, json.Unmarshal([]byte(ErrorJSON(errors.New("index out of range"))), &fields))
	require.Equal(t, "internal", fields["kind"])
	require.Equal(t, "sternway: the call must be answered, got index out of range; please report this", fields["message"])
	require.Equal(t, "f: x must be y, got z", (&Error{Op: "f", Operand: "x", Wanted: "y", Got: "z"}).Error())
}
