// Package rope implements rotary position embedding (RoPE): pairs of elements are rotated by angles
// proportional to the position.
package rope

import (
	"slices"

	"github.com/sternway/sternway/core/internal/ops"
	"github.com/sternway/sternway/core/internal/tensor"
)

// Rope is rotary position embedding. A token at position p turns each pair (x_i, x_j) of its
// rotated part, RotaryDim elements from RotaryStart on, by an angle; elements outside are copied:
//
//	y_i = c_i x_i - s_i x_j
//	y_j = c_j x_j + s_j x_i
//
// Pair k is elements 2k and 2k+1 ("interleaved"), or k and k + RotaryDim/2 ("half"). Without tables
// c and s are the cosine and sine of p Base^(-2k/RotaryDim); with tables they are rows of cos and
// sin, of RotaryDim/2 columns, or of one for each element.
//
// Operands: x, positions? [SeqLen] or [BatchSize, SeqLen] of int32 or int64 (absent: 0, 1, ...),
// cos? and sin? [P, columns] or [BatchSize, P, columns] of float32, float64 or DType, x_k? -> y,
// y_k?. An extent of 1 stands for every batch. x and y have the shape of the layout: [B, H, S, D],
// [B, S, H, D] or [S, H, D]. The same launch rotates x_k, of NumKeyHeads heads, into y_k.
type Rope struct {
	BatchSize   int64        `json:"batch_size"`
	NumHeads    int64        `json:"num_heads"`
	SeqLen      int64        `json:"seq_len"`
	HeadDim     int64        `json:"head_dim"`
	DType       tensor.DType `json:"dtype"`
	Base        *ops.Scalar  `json:"base"`       // nil: 10000
	Pairing     string       `json:"pairing"`    // "interleaved" (also when empty) or "half"
	RotaryDim   *int64       `json:"rotary_dim"` // nil: HeadDim
	RotaryStart int64        `json:"rotary_start"`
	Angle       string       `json:"angle"`         // "float64" (also when empty): formed in float64; "float32": as most models form it, in float32
	Layout      string       `json:"layout"`        // "bhsd" (also when empty), "bshd" or "thd", which has tokens for S and no batch
	NumKeyHeads *int64       `json:"num_key_heads"` // nil: there is no x_k
}

// RopeBackward is the gradient of Rope, the exact transpose of the rotation:
//
//	dx_i = c_i dy_i + s_j dy_j
//	dx_j = c_j dy_j - s_i dy_i
//
// Operands: those of Rope, with dy and dy_k? for x and x_k, and dx and dx_k? for y and y_k.
type RopeBackward Rope

// The words of the options.
var (
	pairings = []string{"interleaved", "half"}
	angles   = []string{"float64", "float32"}
	layouts  = []string{"bhsd", "bshd", "thd"}
)

// The families of both descriptors. Their kernels are the same: an argument tells the direction.
var (
	backward = ops.Register(&ops.Family{
		Name: "rope_backward", Category: "attention", Image: "rope",
		Kinds:    []ops.KindRow{{Kernels: pairings}},
		Required: []string{"batch_size", "num_heads", "seq_len", "head_dim", "dtype"},
		Choices:  []ops.Choice{ops.DTypes("dtype", tensor.Floats), ops.Words("pairing", pairings...), ops.Words("angle", angles...), ops.Words("layout", layouts...)},
		Decode:   ops.DecodeAs[RopeBackward],
	})
	forward = ops.Register(&ops.Family{
		Name: "rope", Category: backward.Category, Image: backward.Image,
		Kinds: backward.Kinds, Required: backward.Required, Choices: backward.Choices, Decode: ops.DecodeAs[Rope],
	})
)

// Family is "rope".
func (d Rope) Family() string { return forward.Name }

// Family is "rope_backward".
func (d RopeBackward) Family() string { return backward.Name }

// Indices of the inputs: X is x or dy, xK is x_k or dy_k. Outputs are indexed from the end of the
// operands.
const (
	X = iota
	Positions
	Cos
	Sin
	xK
)

// problem is a descriptor of either family, with defaults filled in.
type problem struct {
	Rope
	family    *ops.Family
	in, out   string // names of the operands that are rotated, and of the results
	isForward bool
}

// WithDefaults sets the fields that were left out to their defaults.
func (d Rope) WithDefaults() Rope {
	for _, field := range []struct {
		value *string
		usual string
	}{{&d.Pairing, "interleaved"}, {&d.Angle, "float64"}, {&d.Layout, "bhsd"}} {
		if *field.value == "" {
			*field.value = field.usual
		}
	}
	if d.Base == nil {
		base := ops.Scalar(10000)
		d.Base = &base
	}
	if d.RotaryDim == nil {
		dim := d.HeadDim
		d.RotaryDim = &dim
	}
	return d
}

// Shape is the shape of an operand with a number of heads, in the layout.
func (d Rope) Shape(heads int64) []int64 {
	switch d.Layout {
	case "bshd":
		return []int64{d.BatchSize, d.SeqLen, heads, d.HeadDim}
	case "thd":
		return []int64{d.SeqLen, heads, d.HeadDim}
	}
	return []int64{d.BatchSize, heads, d.SeqLen, d.HeadDim}
}

// Problem checks the descriptor. It implements ops.Descriptor.
func (d Rope) Problem() (*ops.Problem, error) {
	return (&problem{Rope: d.WithDefaults(), family: forward, in: "x", out: "y", isForward: true}).checked()
}

// Problem checks the descriptor. It implements ops.Descriptor.
func (d RopeBackward) Problem() (*ops.Problem, error) {
	return (&problem{Rope: Rope(d).WithDefaults(), family: backward, in: "dy", out: "dx"}).checked()
}

// checked is the problem of a descriptor that contradicts nothing.
func (d *problem) checked() (*ops.Problem, error) {
	if err := d.check(); err != nil {
		return nil, err
	}
	floats := []tensor.DType{tensor.Float32, tensor.Float64}
	if !slices.Contains(floats, d.DType) {
		floats = append(floats, d.DType)
	}
	row := func(name string, out bool, heads int64) ops.Operand {
		like := "like " + d.in
		if name == d.in {
			like = "as the descriptor says"
		}
		return ops.Operand{Name: name, Out: out, DTypes: []tensor.DType{d.DType}, Like: like, Shapes: [][]int64{d.Shape(heads)}}
	}
	table := func(name string) ops.Operand {
		half, full := *d.RotaryDim/2, *d.RotaryDim
		o := ops.Operand{Name: name, Optional: true, DTypes: floats, Shapes: [][]int64{{ops.AnyExtent, half}, {ops.AnyExtent, full}}}
		for _, batch := range d.batches() {
			o.Shapes = append(o.Shapes, []int64{batch, ops.AnyExtent, half}, []int64{batch, ops.AnyExtent, full})
		}
		return o
	}
	positions := ops.Operand{Name: "positions", Optional: true, DTypes: []tensor.DType{tensor.Int64, tensor.Int32}, Shapes: [][]int64{{d.SeqLen}}}
	for _, batch := range d.batches() {
		positions.Shapes = append(positions.Shapes, []int64{batch, d.SeqLen})
	}
	operands, heads := []ops.Operand{row(d.in, false, d.NumHeads), positions, table("cos"), table("sin")}, d.NumHeads
	if d.NumKeyHeads != nil {
		operands = append(operands, row(d.in+"_k", false, *d.NumKeyHeads), row(d.out, true, d.NumHeads), row(d.out+"_k", true, *d.NumKeyHeads))
		heads += *d.NumKeyHeads
	} else {
		operands = append(operands, row(d.out, true, d.NumHeads))
	}
	moved, _ := tensor.Product(d.Shape(heads))
	return &ops.Problem{
		Family: d.family, Element: d.DType, Traffic: 2 * moved * d.DType.Size(), Operands: operands, CheckPresence: d.checkPresence, CheckValues: d.checkValues,
		Compile: func(_ *ops.Problem, numSMs int, _ bool, preference ops.Preference) (ops.Program, error) {
			return d.compile(numSMs, preference)
		},
	}, nil
}

// batches are the accepted leading extents of positions and tables.
func (d *problem) batches() []int64 {
	if d.BatchSize == 1 {
		return []int64{1}
	}
	return []int64{d.BatchSize, 1}
}
