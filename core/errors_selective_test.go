package core_test

import (
	"github.com/stretchr/testify/require"

	"github.com/sternway/sternway/core"
	"github.com/sternway/sternway/core/internal/coretest"
	"github.com/sternway/sternway/core/internal/errs"
	"github.com/sternway/sternway/core/internal/ops"
	"github.com/sternway/sternway/core/internal/ops/selective"
	"github.com/sternway/sternway/core/internal/tensor"
)

// selectiveScans are refused for their fields and for operands that these contradict.
func (r *refusals) selectiveScans() {
	usual := selective.SelectiveScan{Batch: 2, Dim: 4, Length: 5, N: 3, DType: tensor.Float32}
	for _, row := range []struct {
		name   string
		change func(d *selective.SelectiveScan)
		kind   errs.Kind
	}{
		{"integer dtype", func(d *selective.SelectiveScan) { d.DType = tensor.Int32 }, errs.Unsupported},
		{"negative batch", func(d *selective.SelectiveScan) { d.Batch = -1 }, errs.InvalidProblem},
		{"too long", func(d *selective.SelectiveScan) { d.Length = 1<<20 + 1 }, errs.Unsupported},
		{"no states", func(d *selective.SelectiveScan) { d.N = 0 }, errs.InvalidProblem},
		{"too many states", func(d *selective.SelectiveScan) { d.N = 257 }, errs.Unsupported},
		{"no groups", func(d *selective.SelectiveScan) { d.Groups = coretest.Given[int64](0) }, errs.InvalidProblem},
		{"groups that do not divide", func(d *selective.SelectiveScan) { d.Groups = coretest.Given[int64](3) }, errs.InvalidProblem},
		{"a negative number of sequences", func(d *selective.SelectiveScan) { d.NumSequences = coretest.Given[int64](-1) }, errs.InvalidProblem},
		{"too many elements", func(d *selective.SelectiveScan) { d.Batch, d.Dim = 1<<30, 1<<30 }, errs.InvalidProblem},
	} {
		d := usual
		row.change(&d)
		_, err := core.Select(d, tensor.CPU, ops.Preference{})
		r.expect("selective scan: "+row.name, row.kind, err)
	}
	r.selectiveRuns(usual)
}

func (r *refusals) selectiveRuns(d selective.SelectiveScan) {
	d.HasD, d.NumSequences = true, coretest.Given[int64](2)
	row := func(shape ...int64) tensor.Tensor {
		n, _ := tensor.Product(shape)
		return tensor.Of(make([]float32, n), shape...)
	}
	for _, c := range []struct {
		name       string
		isBackward bool
		change     func(a core.Args)
	}{
		{"no D", false, func(a core.Args) { delete(a, "D") }},
		{"z as well", false, func(a core.Args) { a["z"] = row(2, 4, 5) }},
		{"no bounds", false, func(a core.Args) { delete(a, "cu_seqlens") }},
		{"bounds that end early", false, func(a core.Args) { a["cu_seqlens"] = tensor.Of([]int32{0, 1, 4}) }},
		{"B of another length", false, func(a core.Args) { a["B"] = row(2, 3, 4) }},
		{"A in 16 bits", false, func(a core.Args) { a["A"] = tensor.Of(make([]uint16, 12), 4, 3) }},
		{"y in the memory of u", false, func(a core.Args) { a["y"] = a["u"] }},
		{"no output", true, func(core.Args) {}},
		{"gradient of no operand", true, func(a core.Args) { a["dz"] = row(2, 4, 5) }},
		{"chunk states of another length", true, func(a core.Args) { a["du"], a["chunk_states"] = row(2, 4, 5), row(2, 4, 2, 3) }},
	} {
		a := core.Args{"u": row(2, 4, 5), "delta": row(2, 4, 5), "A": row(4, 3), "B": row(2, 3, 5), "C": row(2, 1, 3, 5), "D": row(4),
			"cu_seqlens": tensor.Of([]int32{0, 2, 5})}
		var descriptor ops.Descriptor = d
		if a["y"] = row(2, 4, 5); c.isBackward {
			a["dy"] = a["y"]
			delete(a, "y")
			descriptor = selective.SelectiveScanBackward(d)
		}
		c.change(a)
		plan, err := core.Select(descriptor, tensor.CPU, ops.Preference{})
		require.NoError(r.t, err)
		r.expect("selective scan: "+c.name, errs.InvalidProblem, plan.Run(0, tensor.Tensor{}, a))
	}
}
