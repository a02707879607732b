package core_test

import (
	"errors"
	"math"
	"math/rand/v2"
	"slices"

	"github.com/stretchr/testify/require"

	"github.com/sternway/sternway/core"
	"github.com/sternway/sternway/core/driver"
	"github.com/sternway/sternway/core/internal/coretest"
	"github.com/sternway/sternway/core/internal/cpu"
	"github.com/sternway/sternway/core/internal/errs"
	"github.com/sternway/sternway/core/internal/ops"
	"github.com/sternway/sternway/core/internal/ops/elementwise"
	"github.com/sternway/sternway/core/internal/ops/embedding"
	"github.com/sternway/sternway/core/internal/ops/rope"
	"github.com/sternway/sternway/core/internal/ops/scan"
	"github.com/sternway/sternway/core/internal/tensor"
)

// runs are refused for their operands: no byte of any operand may change, and CanImplement says the
// same.
func (r *refusals) runs() {
	weight := ops.Scalar(0.5)
	shape := []int64{2, 3}
	dequantise := elementwise.DequantizePerTokenBackward{Shape: shape, QDType: tensor.Int8}
	fake := elementwise.FakeQuantizePerTokenBackward{Shape: shape, QuantMin: -8, QuantMax: 7}
	lerp := coretest.Trial{Reason: "lerp", Descriptor: elementwise.LerpBackward{Shape: shape}}
	number := coretest.Trial{Reason: "lerp by a number", Descriptor: elementwise.LerpBackward{Shape: shape, Weight: &weight}, Without: []string{"weight", "dweight"}}
	square := coretest.Trial{Reason: "lerp of a square", Descriptor: elementwise.LerpBackward{Shape: []int64{3, 3}, Weight: &weight}, Without: []string{"weight", "db", "dweight"}}
	tokens := coretest.Trial{Reason: "dequantise", Descriptor: dequantise, DTypes: map[string]tensor.DType{"zero_point": tensor.Float32, "dzero_point": tensor.Float32}}
	fixed := coretest.Trial{Reason: "dequantise by fixed zero points", Descriptor: dequantise, Without: []string{"dzero_point"}}
	whole := coretest.Trial{Reason: "dequantise by whole zero points", Descriptor: dequantise, DTypes: map[string]tensor.DType{"zero_point": tensor.Int8, "dzero_point": tensor.Float32}}
	faked := coretest.Trial{Reason: "fake quantise", Descriptor: fake, DTypes: map[string]tensor.DType{"zero_point": tensor.Float64, "dzero_point": tensor.Float64}}
	turned := coretest.Trial{Reason: "rope", Descriptor: rope.RopeBackward{BatchSize: 2, NumHeads: 3, SeqLen: 4, HeadDim: 6, NumKeyHeads: coretest.Given(int64(3))},
		Values: map[string]func(*rand.Rand) float64{"positions": func(*rand.Rand) float64 { return 3 }}}
	dequantised := coretest.Trial{Reason: "dequantise forward", Descriptor: elementwise.DequantizePerToken{Shape: shape, QDType: tensor.Int8}}
	level := coretest.Trial{Reason: "fake quantise forward", Descriptor: elementwise.FakeQuantizePerToken{Shape: shape, QuantMin: -8, QuantMax: 7}}
	ahead := coretest.Trial{Reason: "rope forward", Descriptor: rope.Rope{BatchSize: 2, NumHeads: 3, SeqLen: 4, HeadDim: 6},
		Values: map[string]func(*rand.Rand) float64{"positions": func(*rand.Rand) float64 { return 3 }}}
	chosen := func(index float64) coretest.Trial {
		values := map[string]func(*rand.Rand) float64{"indices": func(*rand.Rand) float64 { return index }}
		return coretest.Trial{Reason: "cummax", Descriptor: scan.ScanBackward{Kind: "cummax", Shape: shape, Dim: -1}, Without: []string{"x"}, Values: values}
	}
	sums := coretest.Trial{Reason: "cumsum", Descriptor: scan.ScanBackward{Kind: "cumsum", Shape: shape}, Without: []string{"x", "indices"}}
	products := coretest.Trial{Reason: "cumprod", Descriptor: scan.ScanBackward{Kind: "cumprod", Shape: shape}, Without: []string{"indices"}}
	byIndices := chosen(0)
	forward := coretest.Trial{Reason: "cummin forward", Descriptor: scan.Scan{Kind: "cummin", Shape: shape, Dim: -1}}
	forwardSums := coretest.Trial{Reason: "cumsum forward", Descriptor: scan.Scan{Kind: "cumsum", Shape: shape}, Without: []string{"indices"}}
	for _, row := range []struct {
		trial  coretest.Trial
		name   string
		kind   errs.Kind
		change func(a core.Args)
	}{
		{lerp, "no dy", errs.InvalidProblem, without("dy")},
		{lerp, "no output", errs.InvalidProblem, without("da", "db", "dweight")},
		{lerp, "da without weight", errs.InvalidProblem, without("weight", "dweight")},
		{lerp, "dweight without a", errs.InvalidProblem, without("a")},
		{lerp, "dweight without b", errs.InvalidProblem, without("b")},
		{lerp, "an unexpected operand", errs.InvalidProblem, func(a core.Args) { a["end"] = a["b"] }},
		{number, "weight as well", errs.InvalidProblem, func(a core.Args) { a["weight"] = a["dy"] }},
		{number, "dweight as well", errs.InvalidProblem, func(a core.Args) { a["dweight"] = a["da"] }},
		{tokens, "no dx", errs.InvalidProblem, without("dx")},
		{tokens, "no scale", errs.InvalidProblem, without("scale")},
		{tokens, "dscale without q", errs.InvalidProblem, without("q")},
		{tokens, "dzero_point without zero_point", errs.InvalidProblem, without("zero_point")},
		{whole, "dzero_point of whole zero points", errs.InvalidProblem, func(core.Args) {}},
		{tokens, "dzero_point of another dtype", errs.InvalidProblem, edit("dzero_point", func(t *tensor.Tensor) { t.DType = tensor.Float16 })},
		{faked, "no x", errs.InvalidProblem, without("x")},
		{sums, "x as well", errs.InvalidProblem, func(a core.Args) { a["x"] = a["dy"] }},
		{products, "no x", errs.InvalidProblem, without("x")},
		{products, "indices as well", errs.InvalidProblem, func(a core.Args) { a["indices"] = a["x"] }},
		{products, "in place", errs.InvalidProblem, func(a core.Args) { a["dx"] = a["dy"] }},
		{byIndices, "x and indices", errs.InvalidProblem, func(a core.Args) { a["x"] = a["dy"] }},
		{byIndices, "neither x nor indices", errs.InvalidProblem, without("indices")},
		{byIndices, "indices of 32 bits", errs.InvalidProblem, edit("indices", func(t *tensor.Tensor) { t.DType = tensor.Int32 })},
		{chosen(3), "an index too large", errs.InvalidProblem, func(core.Args) {}},
		{chosen(-1), "a negative index", errs.InvalidProblem, func(core.Args) {}},
		{forward, "no x", errs.InvalidProblem, without("x")},
		{forward, "no y", errs.InvalidProblem, without("y")},
		{forward, "in place", errs.InvalidProblem, func(a core.Args) { a["y"] = a["x"] }},
		{forward, "y one element after x", errs.InvalidProblem, func(a core.Args) { a["y"] = shift(a["x"], 1) }},
		{forward, "indices in x", errs.InvalidProblem, func(a core.Args) { a["x"] = within(a["x"], a["indices"]) }},
		{forward, "indices of 32 bits", errs.InvalidProblem, edit("indices", func(t *tensor.Tensor) { t.DType = tensor.Int32 })},
		{forward, "expanded indices", errs.InvalidProblem, edit("indices", func(t *tensor.Tensor) { t.Strides[1] = 0 })},
		{forwardSums, "indices as well", errs.InvalidProblem, func(a core.Args) { a["indices"] = a["x"] }},
		{forwardSums, "y of another dtype", errs.InvalidProblem, edit("y", func(t *tensor.Tensor) { t.DType = tensor.Float64 })},
		{faked, "dzero_point of another dtype", errs.InvalidProblem, edit("dzero_point", func(t *tensor.Tensor) { t.DType = tensor.Float32 })},

		{turned, "cos without sin", errs.InvalidProblem, without("sin")},
		{turned, "sin without cos", errs.InvalidProblem, without("cos")},
		{turned, "tables of two shapes", errs.InvalidProblem, edit("sin", func(t *tensor.Tensor) { t.Shape[1] = 6 })},
		{turned, "a short table", errs.InvalidProblem, func(a core.Args) {
			delete(a, "positions")
			edit("cos", func(t *tensor.Tensor) { t.Shape[1] = 3 })(a)
			edit("sin", func(t *tensor.Tensor) { t.Shape[1] = 3 })(a)
		}},
		{turned, "columns", errs.InvalidProblem, func(a core.Args) {
			edit("cos", func(t *tensor.Tensor) { t.Shape[2] = 4 })(a)
			edit("sin", func(t *tensor.Tensor) { t.Shape[2] = 4 })(a)
		}},
		{turned, "dtype of a table", errs.InvalidProblem, edit("cos", func(t *tensor.Tensor) { t.DType = tensor.Float16 })},
		{turned, "floating positions", errs.InvalidProblem, edit("positions", func(t *tensor.Tensor) { t.DType = tensor.Float32 })},
		{turned, "positions of another length", errs.InvalidProblem, edit("positions", func(t *tensor.Tensor) { t.Shape[1] = 3 })},
		{turned, "a position behind the tables", errs.InvalidProblem, func(a core.Args) { a["positions"] = tensor.Of([]int64{0, 1, 2, 7, 0, 0, 0, 0}, 2, 4) }},
		{turned, "a negative position in a table", errs.InvalidProblem, func(a core.Args) { a["positions"] = tensor.Of([]int32{0, 1, 2, 3, 0, -1, 0, 0}, 2, 4) }},
		{turned, "dx in the memory of dy_k", errs.InvalidProblem, func(a core.Args) { a["dx"] = a["dy_k"] }},
		{turned, "expanded dx", errs.InvalidProblem, edit("dx", func(t *tensor.Tensor) { t.Strides[1] = 0 })},

		{dequantised, "no q", errs.InvalidProblem, without("q")},
		{dequantised, "no y", errs.InvalidProblem, without("y")},
		{dequantised, "uint8 in place of int8", errs.InvalidProblem, edit("q", func(t *tensor.Tensor) { t.DType = tensor.Uint8 })},
		{dequantised, "y in the memory of q", errs.InvalidProblem, func(a core.Args) { a["y"] = within(a["y"], a["q"]) }},
		{level, "no scale", errs.InvalidProblem, without("scale")},
		{level, "shape of a value per token", errs.InvalidProblem, edit("scale", func(t *tensor.Tensor) { t.Shape[1] = 3 })},
		{level, "y one element after x", errs.InvalidProblem, func(a core.Args) { a["y"] = shift(a["x"], 1) }},
		{ahead, "no x", errs.InvalidProblem, without("x")},
		{ahead, "cos without sin", errs.InvalidProblem, without("sin")},
		{ahead, "a position behind the tables", errs.InvalidProblem, func(a core.Args) { a["positions"] = tensor.Of([]int64{0, 1, 2, 7, 0, 0, 0, 0}, 2, 4) }},
		{ahead, "shape of y", errs.InvalidProblem, edit("y", func(t *tensor.Tensor) { t.Shape[1] = 2 })},

		{lerp, "dtype", errs.InvalidProblem, edit("b", func(t *tensor.Tensor) { t.DType = tensor.Float64 })},
		{lerp, "a dtype that nobody knows", errs.InvalidProblem, edit("b", func(t *tensor.Tensor) { t.DType = tensor.DType{Code: 99, Bits: 3, Lanes: 2} })},
		{tokens, "float32 in place of q", errs.InvalidProblem, edit("q", func(t *tensor.Tensor) { t.DType = tensor.Float32 })},
		{tokens, "uint8 in place of int8", errs.InvalidProblem, edit("q", func(t *tensor.Tensor) { t.DType = tensor.Uint8 })},
		{fixed, "bool", errs.InvalidProblem, edit("zero_point", func(t *tensor.Tensor) { t.DType = tensor.DType{Code: tensor.CodeBool, Bits: 8, Lanes: 1} })},
		{lerp, "a CUDA tensor", errs.InvalidProblem, edit("a", func(t *tensor.Tensor) { t.Device = tensor.CUDA(1) })},
		{lerp, "another device", errs.InvalidProblem, edit("a", func(t *tensor.Tensor) { t.Device = tensor.Device{Type: 7, Index: 0} })},
		{lerp, "shape", errs.InvalidProblem, edit("dy", func(t *tensor.Tensor) { t.Shape[1] = 2 })},
		{lerp, "rank", errs.InvalidProblem, edit("da", func(t *tensor.Tensor) { t.NDim = 1 })},
		{tokens, "shape of a value per token", errs.InvalidProblem, edit("scale", func(t *tensor.Tensor) { t.Shape[1] = 3 })},
		{lerp, "rank 9", errs.Unsupported, edit("dy", func(t *tensor.Tensor) { t.NDim = 9 })},
		{lerp, "rank -1", errs.Unsupported, edit("dy", func(t *tensor.Tensor) { t.NDim = -1 })},
		{lerp, "read-only output", errs.InvalidProblem, edit("db", func(t *tensor.Tensor) { t.ReadOnly = 1 })},
		{lerp, "expanded output", errs.InvalidProblem, edit("db", func(t *tensor.Tensor) { t.Strides[0] = 0 })},
		{lerp, "output that overlaps itself", errs.InvalidProblem, edit("db", func(t *tensor.Tensor) { t.Strides[0] = 1 })},
		{lerp, "no memory", errs.InvalidProblem, edit("dy", func(t *tensor.Tensor) { t.Data = 0 })},
		{lerp, "odd address", errs.Misaligned, edit("dy", func(t *tensor.Tensor) { t.Data++ })},
		{lerp, "address space", errs.InvalidProblem, edit("dy", func(t *tensor.Tensor) { t.Strides[0] = math.MaxInt64 / 2 })},
		{lerp, "address below 0", errs.InvalidProblem, edit("dy", func(t *tensor.Tensor) { t.Strides[0] = -1 << 59 })},
		{lerp, "output that leaves the address space", errs.InvalidProblem, edit("da", func(t *tensor.Tensor) { t.Strides[0] = math.MaxInt64 / 4 })},

		{lerp, "two outputs in one memory", errs.InvalidProblem, func(a core.Args) { a["db"] = a["da"] }},
		{lerp, "outputs that overlap", errs.InvalidProblem, func(a core.Args) { a["db"] = shift(a["da"], 1) }},
		{lerp, "output one element after an input", errs.InvalidProblem, func(a core.Args) { a["da"] = shift(a["dy"], 1) }},
		{lerp, "several outputs in place", errs.InvalidProblem, func(a core.Args) { a["da"] = a["dy"] }},
		{square, "in place, transposed", errs.InvalidProblem, func(a core.Args) {
			a["da"] = a["dy"]
			edit("da", func(t *tensor.Tensor) { t.Strides[0], t.Strides[1] = t.Strides[1], t.Strides[0] })(a)
		}},
		{tokens, "sums beside in place", errs.InvalidProblem, func(a core.Args) { a["dx"] = a["dy"] }},
		{tokens, "dscale in q", errs.InvalidProblem, func(a core.Args) { a["dscale"] = within(a["dscale"], a["q"]) }},
	} {
		r.expect(row.trial.Reason+": "+row.name, row.kind, r.run(row.trial, row.change))
	}
	r.bags()
	r.embeddings()
	r.uniqueRows()
	plan, err := core.Select(elementwise.LerpBackward{Shape: shape, DType: tensor.Float32}, tensor.CPU, ops.Preference{})
	require.NoError(r.t, err)
	r.expect("lerp: a wrong number of operands", errs.InvalidProblem, plan.RunOrdered(0, tensor.Tensor{}, make([]tensor.Tensor, 3)))
}

// bags are runs of embedding bags with one thing wrong.
func (r *refusals) bags() {
	integer := func(name string, at int64, value int64) func(core.Args) {
		return func(a core.Args) { t := a[name]; cpu.Elements[int64](&t, 0, at+1, 1)[at] = value }
	}
	for _, row := range []struct {
		mode, name string
		change     func(core.Args)
	}{
		{"sum", "no output", without("dweight", "d_per_sample_weights")},
		{"sum", "no indices", without("indices")},
		{"sum", "no weight", without("weight")},
		{"sum", "winners", func(a core.Args) { a["max_indices"] = a["dy"] }},
		{"mean", "weights of samples", func(a core.Args) { a["per_sample_weights"] = a["indices"] }},
		{"mean", "gradient of weights of samples", func(a core.Args) { a["d_per_sample_weights"] = a["indices"] }},
		{"max", "no winners", without("max_indices")},
		{"sum", "dtype of indices", edit("indices", func(t *tensor.Tensor) { t.DType = tensor.Int32 })},
		{"sum", "an offset too many", edit("offsets", func(t *tensor.Tensor) { t.Shape[0] = 3 })},
		{"sum", "index at the end", integer("indices", 3, 5)},
		{"sum", "negative index", integer("indices", 6, -1)},
		{"sum", "first offset", integer("offsets", 0, 1)},
		{"sum", "offsets that fall", func(a core.Args) { integer("offsets", 0, 0)(a); integer("offsets", 1, -3)(a) }},
		{"sum", "offset behind the indices", integer("offsets", 1, 8)},
		{"max", "winner at the end", integer("max_indices", 4, 5)},
	} {
		c := coretest.NewBagCall(coretest.BagWith(func(d *embedding.EmbeddingBagBackward) { d.Mode = row.mode }), coretest.Contiguous)
		plan, err := core.Select(c.D, tensor.CPU, ops.Preference{})
		require.NoError(r.t, err)
		row.change(c.Args)
		for _, m := range c.Memory {
			m.Seal()
		}
		err = plan.Run(0, tensor.Tensor{}, c.Args)
		require.Error(r.t, err, row.name)
		require.Equal(r.t, err, plan.CanImplement(c.Args))
		for name, m := range c.Memory {
			m.RequireUntouched(r.t, name)
		}
		r.expect("embedding bag, "+row.mode+": "+row.name, errs.InvalidProblem, err)
	}
}

// embeddings are runs of embeddings without bags with one thing wrong.
func (r *refusals) embeddings() {
	index := func(at, value int64) func(core.Args) {
		return func(a core.Args) { t := a["indices"]; cpu.Elements[int64](&t, 0, at+1, 1)[at] = value }
	}
	for _, row := range []struct {
		name   string
		change func(core.Args)
	}{
		{"no output", without("dweight")},
		{"no indices", without("indices")},
		{"offsets", func(a core.Args) { a["offsets"] = a["indices"] }},
		{"dtype of indices", edit("indices", func(t *tensor.Tensor) { t.DType = tensor.Int32 })},
		{"an index too many", edit("indices", func(t *tensor.Tensor) { t.Shape[0] = 8 })},
		{"dweight in place of dy", func(a core.Args) { a["dweight"] = within(a["dweight"], a["dy"]) }},
		{"index at the end", index(3, 5)},
		{"negative index", index(6, -1)},
	} {
		d := embedding.EmbeddingBackward{NumEmbeddings: 5, EmbeddingDim: 3, NumIndices: 7, DType: tensor.Float32, IndexDType: tensor.Int64}
		c := coretest.NewEmbeddingCall(d, coretest.Contiguous)
		plan, err := core.Select(d, tensor.CPU, ops.Preference{})
		require.NoError(r.t, err)
		row.change(c.Args)
		for _, m := range c.Memory {
			m.Seal()
		}
		err = plan.Run(0, tensor.Tensor{}, c.Args)
		require.Error(r.t, err, row.name)
		require.Equal(r.t, err, plan.CanImplement(c.Args))
		for name, m := range c.Memory {
			m.RequireUntouched(r.t, name)
		}
		r.expect("embedding: "+row.name, errs.InvalidProblem, err)
	}
}

// uniqueRows are runs that look for rows, with one thing wrong.
func (r *refusals) uniqueRows() {
	for _, row := range []struct {
		name   string
		index  int64 // the last one
		change func(core.Args)
	}{
		{"no count", 0, without("count")},
		{"dtype of indices", 0, edit("indices", func(t *tensor.Tensor) { t.DType = tensor.Int32 })},
		{"dtype of inverse", 0, edit("inverse", func(t *tensor.Tensor) { t.DType = tensor.Int64 })},
		{"rows for every index", 0, edit("rows", func(t *tensor.Tensor) { t.Shape[0] = 7 })},
		{"inverse in place of indices", 0, func(a core.Args) { a["inverse"] = within(a["inverse"], a["indices"]) }},
		{"index at the end", 5, func(core.Args) {}},
		{"negative index", -1, func(core.Args) {}},
	} {
		c := coretest.NewUniqueCall(embedding.UniqueRows{NumRows: 5, Total: 7, IndexDType: tensor.Int64}, func(k int64) int64 { return k / 6 * row.index }, coretest.Contiguous, coretest.Contiguous)
		plan, err := core.Select(c.D, tensor.CPU, ops.Preference{})
		require.NoError(r.t, err)
		row.change(c.Args)
		err = plan.Run(0, tensor.Tensor{}, c.Args)
		require.Error(r.t, err, row.name)
		require.Equal(r.t, err, plan.CanImplement(c.Args))
		for name, m := range c.Memory {
			m.RequireUntouched(r.t, name)
		}
		r.expect("unique rows: "+row.name, errs.InvalidProblem, err)
	}
}

func without(names ...string) func(core.Args) {
	return func(a core.Args) {
		for _, name := range names {
			delete(a, name)
		}
	}
}

func edit(name string, change func(*tensor.Tensor)) func(core.Args) {
	return func(a core.Args) {
		t := a[name]
		change(&t)
		a[name] = t
	}
}

func shift(t tensor.Tensor, elements int64) tensor.Tensor {
	t.Data += uintptr(elements * t.DType.Size())
	return t
}

// within puts a view to the first aligned address of another's memory.
func within(t, other tensor.Tensor) tensor.Tensor {
	size := uintptr(t.DType.Size())
	t.Data = (other.Data + size - 1) / size * size
	return t
}

// run runs a trial with one thing wrong.
func (r *refusals) run(c coretest.Trial, change func(core.Args)) error {
	descriptor, shape := coretest.Instantiate(c.Descriptor, tensor.Float32)
	plan, err := core.Select(descriptor, tensor.CPU, ops.Preference{})
	require.NoError(r.t, err)
	operands := c.Arrange(r.t, plan, shape, &coretest.Schemes[0])
	args := core.Args{}
	for i, name := range plan.Operands() {
		if m := operands.Operands[i]; m != nil {
			args[name] = m.Tensor
		}
	}
	change(args)
	err = plan.Run(0, tensor.Tensor{}, args)
	require.Error(r.t, err)
	require.Equal(r.t, err, plan.CanImplement(args))
	for i, m := range operands.Operands {
		if m != nil {
			m.RequireUntouched(r.t, operands.OperandName(i))
		}
	}
	return err
}

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
	small := int64(100)
	limited, err := core.Select(plan.Descriptor(), tensor.CUDA(0), ops.Preference{MaxWorkspace: &small})
	require.NoError(r.t, err, "fewer parts fit a smaller workspace")
	require.LessOrEqual(r.t, limited.WorkspaceSize(), small)
}
