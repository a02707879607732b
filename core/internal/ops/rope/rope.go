// Package rope implements rotary position embedding (RoPE): pairs of elements are rotated by angles
// proportional to the position.
package rope

import (
	"fmt"
	"math"
	"slices"

	"github.com/sternway/sternway/core/internal/errs"
	"github.com/sternway/sternway/core/internal/launch"
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

// The families of both descriptors. Their kernels are the same: an argument tells the direction.
var (
	backward = ops.Register(&ops.Family{
		Name: "rope_backward", Category: "attention", Image: "rope",
		Kinds:    []ops.KindRow{{Kernels: []string{"interleaved", "half"}}},
		Required: []string{"batch_size", "num_heads", "seq_len", "head_dim", "dtype"}, Decode: ops.DecodeAs[RopeBackward],
	})
	forward = ops.Register(&ops.Family{
		Name: "rope", SymbolPrefix: backward.Name, Category: backward.Category, Image: backward.Image,
		Kinds: backward.Kinds, Required: backward.Required, Decode: ops.DecodeAs[Rope],
	})
)

// Family is "rope".
func (d Rope) Family() string { return forward.Name }

// Family is "rope_backward".
func (d RopeBackward) Family() string { return backward.Name }

// maxHeadDim bounds the memory for the frequencies of a plan.
const maxHeadDim = 1 << 20

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

func (d *problem) check() error {
	heads := d.NumHeads
	invalid := func(field, wanted string, got any) error {
		return errs.New(errs.InvalidProblem, d.family.Name, field, wanted, fmt.Sprint(got), "")
	}
	for _, extent := range []struct {
		field string
		value int64
	}{{"batch_size", d.BatchSize}, {"num_heads", d.NumHeads}, {"seq_len", d.SeqLen}} {
		if extent.value < 0 {
			return invalid(extent.field, "not negative", extent.value)
		}
	}
	if d.NumKeyHeads != nil {
		if *d.NumKeyHeads < 0 {
			return invalid("num_key_heads", "not negative", *d.NumKeyHeads)
		}
		heads = max(heads, *d.NumKeyHeads)
	}
	base := float64(*d.Base)
	switch {
	case d.HeadDim < 0 || d.HeadDim%2 != 0:
		return invalid("head_dim", "even and not negative", d.HeadDim)
	case d.HeadDim > maxHeadDim:
		return errs.New(errs.Unsupported, d.family.Name, "head_dim", fmt.Sprintf("at most %d", maxHeadDim), fmt.Sprint(d.HeadDim), "")
	case *d.RotaryDim < 0 || *d.RotaryDim%2 != 0 || *d.RotaryDim > d.HeadDim:
		return invalid("rotary_dim", fmt.Sprintf("even and between 0 and head_dim %d", d.HeadDim), *d.RotaryDim)
	case d.RotaryStart < 0 || d.RotaryStart > d.HeadDim-*d.RotaryDim:
		return invalid("rotary_start", fmt.Sprintf("between 0 and %d, so that the rotated part ends inside head_dim", d.HeadDim-*d.RotaryDim), d.RotaryStart)
	case !(base > 0) || math.IsInf(base, 1):
		return invalid("base", "positive and finite", base)
	case d.Layout == "thd" && d.BatchSize != 1:
		return invalid("batch_size", "1 in the layout thd", d.BatchSize)
	}
	return ops.FirstError(
		d.checkWord("pairing", d.Pairing, d.family.Kinds[0].Kernels...),
		d.checkWord("angle", d.Angle, "float64", "float32"),
		d.checkWord("layout", d.Layout, "bhsd", "bshd", "thd"),
		ops.CheckElement(d.family.Name, "dtype", d.DType, tensor.Floats),
		ops.CheckShape(d.family.Name, "shape", d.Shape(heads)),
	)
}

// checkWord refuses an unknown word.
func (d *problem) checkWord(field, word string, known ...string) error {
	if slices.Contains(known, word) {
		return nil
	}
	return errs.New(errs.Unsupported, d.family.Name, field, errs.OrList(known), fmt.Sprintf("%q", errs.Clip(word)), "")
}

// checkPresence refuses one table without the other, tables of different shapes, and tables that
// are too short for the default positions.
func (d *problem) checkPresence(args []tensor.Tensor) *errs.Error {
	positions, cos, sin := &args[Positions], &args[Cos], &args[Sin]
	switch {
	case cos.Given() && !sin.Given():
		return errs.New(errs.InvalidProblem, d.family.Name, "sin", "given beside cos", "nothing", "")
	case sin.Given() && !cos.Given():
		return errs.New(errs.InvalidProblem, d.family.Name, "cos", "given beside sin", "nothing", "")
	case !cos.Given() || cos.NDim < 2 || cos.NDim > 3:
		return nil // a wrong rank is refused with the shape
	case cos.NDim != sin.NDim || cos.Shape != sin.Shape:
		return errs.New(errs.InvalidProblem, d.family.Name, "sin", "of the shape of cos", "another one", "")
	}
	if rows := cos.Shape[cos.NDim-2]; !positions.Given() && rows < d.SeqLen {
		return errs.New(errs.InvalidProblem, d.family.Name, "cos", fmt.Sprintf("a table of at least seq_len %d rows where no positions are given", d.SeqLen), fmt.Sprint(rows), "")
	}
	return nil
}

// Program is a compiled problem.
type Program struct {
	*problem
	numSMs    int       // multiprocessors
	pairs     int64     // RotaryDim / 2
	Frequency []float64 // radians per position, by pair
	fastest   float64   // largest frequency
	Powers    []uint64  // kernel arguments of powersOfLaunch
}

func (d *problem) compile(numSMs int, preference ops.Preference) (*Program, error) {
	if k := preference.Kernel; k != "" && k != d.Pairing {
		return nil, errs.New(errs.Unsupported, d.family.Name, "preference.kernel", fmt.Sprintf("%q for this problem", d.Pairing), fmt.Sprintf("%q", k), "")
	}
	p := &Program{problem: d, numSMs: numSMs, pairs: *d.RotaryDim / 2}
	list := Powers(float64(*d.Base), p.pairs)
	p.Frequency = make([]float64, len(list))
	for i, f := range list {
		p.Frequency[i] = f.High
		p.fastest = max(p.fastest, f.High)
	}
	p.Powers = powersOfLaunch(list)
	return p, nil
}

// Kernel implements ops.Program.
func (p *Program) Kernel() string { return p.Pairing }

// Workspace implements ops.Program.
func (p *Program) Workspace() int64 { return 0 }

// Symbols implements ops.Program.
func (p *Program) Symbols() (list []launch.Symbol) {
	for _, kernel := range []string{"", "_tables", "_tokens"} {
		list = append(list, launch.Symbol{Image: p.family.Image, Name: p.family.Symbol("", p.Pairing+kernel, p.DType)})
	}
	return list
}

// Geometry implements ops.Program.
func (p *Program) Geometry() string {
	return fmt.Sprintf("%d of %d elements of each head from %d on, %s, over %s", *p.RotaryDim, p.HeadDim, p.RotaryStart, p.Pairing, tensor.ShapeText(p.Shape(p.NumHeads)))
}

// InPlace allows an output to be its input: each pair is read by the thread that writes it.
func (p *Program) InPlace(args []tensor.Tensor, o int) bool {
	own, other := X, xK
	if o == len(args)-1 && p.NumKeyHeads != nil {
		own, other = other, own
	}
	return args[o].Same(&args[own]) && !(p.NumKeyHeads != nil && args[o].Same(&args[other]))
}

// hasTables reports whether angles come from the operands cos and sin.
func (p *Program) hasTables(args []tensor.Tensor) bool { return args[Cos].Given() }

// checkValues refuses positions outside of the tables.
func (d *problem) checkValues(args []tensor.Tensor) *errs.Error {
	if !args[Cos].Given() || !args[Positions].Given() || args[Positions].Empty() {
		return nil
	}
	cos := &args[Cos]
	rows, at := cos.Shape[cos.NDim-2], positionsOf(&args[Positions])
	for b := range max(1, at.batches) {
		for s := range d.SeqLen {
			if row := at.position(b, s); row < 0 || row >= rows {
				place := fmt.Sprintf("positions[%d]", s)
				if args[Positions].NDim == 2 {
					place = fmt.Sprintf("positions[%d, %d]", b, s)
				}
				return errs.New(errs.InvalidProblem, d.family.Name, "positions", fmt.Sprintf("rows of the tables, from 0 to %d", rows-1), fmt.Sprintf("%s = %d", place, row), "")
			}
		}
	}
	return nil
}
