package core_test

import (
	"math"
	"math/rand/v2"

	"github.com/stretchr/testify/require"

	"github.com/sternway/sternway/core"
	"github.com/sternway/sternway/core/internal/coretest"
	"github.com/sternway/sternway/core/internal/errs"
	"github.com/sternway/sternway/core/internal/ops"
	"github.com/sternway/sternway/core/internal/ops/elementwise"
	"github.com/sternway/sternway/core/internal/ops/rope"
	"github.com/sternway/sternway/core/internal/ops/scan"
	"github.com/sternway/sternway/core/internal/tensor"
)

// runs are refused for their operands: no byte of any operand may change, and CanImplement says the
// same.
func (r *refusals) runs() {
	weight := ops.Scalar(0.5)
	shape := []int64{2, 3}
	dequantize := elementwise.DequantizePerTokenBackward{Shape: shape, QDType: tensor.Int8}
	fake := elementwise.FakeQuantizePerTokenBackward{Shape: shape, QuantMin: -8, QuantMax: 7}
	lerp := coretest.Trial{Reason: "lerp", Descriptor: elementwise.LerpBackward{Shape: shape}}
	number := coretest.Trial{Reason: "lerp by a number", Descriptor: elementwise.LerpBackward{Shape: shape, Weight: &weight}, Without: []string{"weight", "dweight"}}
	square := coretest.Trial{Reason: "lerp of a square", Descriptor: elementwise.LerpBackward{Shape: []int64{3, 3}, Weight: &weight}, Without: []string{"weight", "db", "dweight"}}
	tokens := coretest.Trial{Reason: "dequantize", Descriptor: dequantize, DTypes: map[string]tensor.DType{"zero_point": tensor.Float32, "dzero_point": tensor.Float32}}
	fixed := coretest.Trial{Reason: "dequantize by fixed zero points", Descriptor: dequantize, Without: []string{"dzero_point"}}
	whole := coretest.Trial{Reason: "dequantize by whole zero points", Descriptor: dequantize, DTypes: map[string]tensor.DType{"zero_point": tensor.Int8, "dzero_point": tensor.Float32}}
	faked := coretest.Trial{Reason: "fake quantize", Descriptor: fake, DTypes: map[string]tensor.DType{"zero_point": tensor.Float64, "dzero_point": tensor.Float64}}
	turned := coretest.Trial{Reason: "rope", Descriptor: rope.RopeBackward{BatchSize: 2, NumHeads: 3, SeqLen: 4, HeadDim: 6, NumKeyHeads: coretest.Given(int64(3))},
		Values: map[string]func(*rand.Rand) float64{"positions": func(*rand.Rand) float64 { return 3 }}}
	dequantized := coretest.Trial{Reason: "dequantize forward", Descriptor: elementwise.DequantizePerToken{Shape: shape, QDType: tensor.Int8}}
	level := coretest.Trial{Reason: "fake quantize forward", Descriptor: elementwise.FakeQuantizePerToken{Shape: shape, QuantMin: -8, QuantMax: 7}}
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
	chunk := coretest.Trial{Reason: "chunk of cummin", Descriptor: scan.Scan{Kind: "cummin", Shape: shape, Dim: -1, Carries: true}}
	chunkSums := coretest.Trial{Reason: "gradient of a chunk of cumsum", Descriptor: scan.ScanBackward{Kind: "cumsum", Shape: shape, Carries: true},
		Without: []string{"x", "indices", "carry_in"}}
	chunkProducts := coretest.Trial{Reason: "gradient of a chunk of cumprod", Descriptor: scan.ScanBackward{Kind: "cumprod", Shape: shape, Carries: true},
		Without: []string{"indices"}}
	chunkRecords := coretest.Trial{Reason: "gradient of a chunk of cummax", Descriptor: scan.ScanBackward{Kind: "cummax", Shape: shape, Carries: true},
		Without: []string{"indices"}}
	carry := func(names ...string) func(core.Args) {
		return func(a core.Args) {
			for _, name := range names {
				a[name] = tensor.Of(make([]float64, 6), 2, 3)
			}
		}
	}
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
		{tokens, "no output", errs.InvalidProblem, without("dx", "dscale", "dzero_point")},
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

		{forward, "carry_in without carries", errs.InvalidProblem, carry("carry_in")},
		{forward, "carry_out without carries", errs.InvalidProblem, carry("carry_out")},
		{products, "carry_in without carries", errs.InvalidProblem, carry("carry_in")},
		{products, "dcarry_out without carries", errs.InvalidProblem, carry("dcarry_out")},
		{products, "dcarry_in without carries", errs.InvalidProblem, carry("dcarry_in")},
		{chunk, "no output", errs.InvalidProblem, without("y", "indices", "carry_out")},
		{chunk, "indices without y", errs.InvalidProblem, without("y")},
		{chunk, "no y, no carry_out", errs.InvalidProblem, without("y", "carry_out")},
		{chunk, "float32 carry", errs.InvalidProblem, edit("carry_in", func(t *tensor.Tensor) { t.DType = tensor.Float32 })},
		{chunk, "carry of another size", errs.InvalidProblem, edit("carry_in", func(t *tensor.Tensor) { t.Shape[2] = 2 })},
		{chunk, "carry of other rows", errs.InvalidProblem, edit("carry_in", func(t *tensor.Tensor) { t.Shape[1] = 3 })},
		{chunk, "several carries as an output", errs.InvalidProblem, func(a core.Args) { a["carry_out"] = a["carry_in"] }},
		{chunk, "carry_out in carry_in", errs.InvalidProblem, func(a core.Args) { a["carry_out"] = within(a["carry_out"], a["carry_in"]) }},
		{chunk, "expanded carry_out", errs.InvalidProblem, edit("carry_out", func(t *tensor.Tensor) { t.Strides[0] = 0 })},
		{chunkSums, "carry_in as well", errs.InvalidProblem, carry("carry_in")},
		{chunkProducts, "no output", errs.InvalidProblem, without("dx", "dcarry_in")},
		{chunkProducts, "dcarry_out of another size", errs.InvalidProblem, edit("dcarry_out", func(t *tensor.Tensor) { t.Shape[2] = 4 })},
		{chunkRecords, "indices in place of x", errs.InvalidProblem, func(a core.Args) {
			delete(a, "x")
			a["indices"] = tensor.Of(make([]int64, 6), 2, 3)
		}},

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

		{dequantized, "no q", errs.InvalidProblem, without("q")},
		{dequantized, "no y", errs.InvalidProblem, without("y")},
		{dequantized, "uint8 in place of int8", errs.InvalidProblem, edit("q", func(t *tensor.Tensor) { t.DType = tensor.Uint8 })},
		{dequantized, "y in the memory of q", errs.InvalidProblem, func(a core.Args) { a["y"] = within(a["y"], a["q"]) }},
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
	plan, err := core.Select(coretest.WithDType(c.Descriptor, tensor.Float32), tensor.CPU, ops.Preference{})
	require.NoError(r.t, err)
	operands := c.Arrange(r.t, plan, &coretest.Schemes[0])
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
