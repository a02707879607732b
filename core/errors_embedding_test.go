package core_test

import (
	"github.com/stretchr/testify/require"

	"github.com/sternway/sternway/core"
	"github.com/sternway/sternway/core/internal/coretest"
	"github.com/sternway/sternway/core/internal/cpu"
	"github.com/sternway/sternway/core/internal/errs"
	"github.com/sternway/sternway/core/internal/ops"
	"github.com/sternway/sternway/core/internal/ops/embedding"
	"github.com/sternway/sternway/core/internal/tensor"
)

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
		{"sum", "max_indices as well", func(a core.Args) { a["max_indices"] = a["dy"] }},
		{"mean", "weights of samples", func(a core.Args) { a["per_sample_weights"] = a["indices"] }},
		{"mean", "gradient of weights of samples", func(a core.Args) { a["d_per_sample_weights"] = a["indices"] }},
		{"max", "no max_indices", without("max_indices")},
		{"sum", "dtype of indices", edit("indices", func(t *tensor.Tensor) { t.DType = tensor.Int32 })},
		{"sum", "an offset too many", edit("offsets", func(t *tensor.Tensor) { t.Shape[0] = 3 })},
		{"sum", "index at the end", integer("indices", 3, 5)},
		{"sum", "negative index", integer("indices", 6, -1)},
		{"sum", "first offset", integer("offsets", 0, 1)},
		{"sum", "offsets that fall", func(a core.Args) { integer("offsets", 0, 0)(a); integer("offsets", 1, -3)(a) }},
		{"sum", "offset behind the indices", integer("offsets", 1, 8)},
		{"max", "max_indices at the end", integer("max_indices", 4, 5)},
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
