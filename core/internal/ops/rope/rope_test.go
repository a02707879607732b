package rope_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sternway/sternway/core/driver"
	"github.com/sternway/sternway/core/internal/errs"
	"github.com/sternway/sternway/core/internal/ops"
	"github.com/sternway/sternway/core/internal/ops/rope"

	"github.com/sternway/sternway/core"
	"github.com/sternway/sternway/core/internal/coretest"
	tensorpkg "github.com/sternway/sternway/core/internal/tensor"
)

// ropeTrial is one problem, with how its operands lie.
type ropeTrial struct {
	reason    string
	d         rope.Rope
	forward   bool
	positions []int64         // shape; nil: none
	index     tensorpkg.DType // of the positions
	table     []int64         // shape; nil: none
	tables    tensorpkg.DType
	furthest  int64 // the largest position
	in, out   coretest.Layout
}

// ropeTrials is every convention, at sizes around vectors (4, 8, 16 elements) and a tile of the CPU
// (2048 pairs).
func ropeTrials() (list []ropeTrial) {
	usual := ropeTrial{in: coretest.Contiguous, out: coretest.Contiguous, furthest: 8, index: tensorpkg.Int64, tables: tensorpkg.Float32}
	add := func(reason string, change func(*ropeTrial)) {
		for _, pairing := range []string{"interleaved", "half"} {
			t := usual
			t.reason, t.d = reason+", "+pairing, rope.Rope{BatchSize: 2, NumHeads: 3, SeqLen: 5, HeadDim: 16, Pairing: pairing}
			change(&t)
			list = append(list, t)
		}
	}
	for _, dim := range []int64{0, 2, 6, 8, 16, 72, 80, 96, 128, 258, 4096, 4098} {
		add(fmt.Sprint("head_dim ", dim), func(t *ropeTrial) { t.d.HeadDim = dim })
	}
	for _, layout := range []string{"bshd", "thd"} {
		add(layout, func(t *ropeTrial) {
			if t.d.Layout = layout; layout == "thd" {
				t.d.BatchSize = 1
			}
		})
	}
	for _, part := range [][2]int64{{0, 0}, {8, 0}, {8, 8}, {8, 4}, {6, 1}, {2, 13}, {16, 0}} {
		add(fmt.Sprint("part ", part), func(t *ropeTrial) { t.d.RotaryDim, t.d.RotaryStart = coretest.Given(part[0]), part[1] })
	}
	add("float32 angle, far", func(t *ropeTrial) { t.d.Angle, t.positions, t.furthest = "float32", []int64{5}, 1<<20 })
	add("another base", func(t *ropeTrial) { t.d.Base = coretest.Given(ops.Scalar(500000)) })
	add("growing frequencies", func(t *ropeTrial) { t.d.Base = coretest.Given(ops.Scalar(0.01)) })
	add("far out", func(t *ropeTrial) { t.positions, t.furthest = []int64{5}, 1<<31 })
	add("positions of each batch", func(t *ropeTrial) { t.positions, t.index = []int64{2, 5}, tensorpkg.Int32 })
	add("positions of one batch for all", func(t *ropeTrial) { t.positions, t.index = []int64{1, 5}, tensorpkg.Int32 })
	for _, table := range [][]int64{{9, 8}, {9, 16}, {2, 9, 8}, {2, 9, 16}, {1, 9, 16}} {
		for _, dtype := range []tensorpkg.DType{tensorpkg.Float32, tensorpkg.Float64, tensorpkg.DType{}} { // the last: that of dy
			add(fmt.Sprint("table ", table, dtype), func(t *ropeTrial) { t.table, t.tables, t.positions = table, dtype, []int64{5} })
		}
	}
	add("table without positions", func(t *ropeTrial) { t.table = []int64{5, 8} })
	add("tables and positions of each batch", func(t *ropeTrial) { t.table, t.positions = []int64{2, 9, 16}, []int64{2, 5} })
	for _, l := range []coretest.Layout{coretest.Behind, coretest.Permuted, coretest.Padded, coretest.Gapped, coretest.Flipped, coretest.Expanded, coretest.Striped} {
		add("input "+l.Name, func(t *ropeTrial) { t.in, t.positions = l, []int64{2, 5} })
		if l.Name != "expanded" && l.Name != "striped" {
			add("output "+l.Name, func(t *ropeTrial) { t.out, t.d.RotaryDim = l, coretest.Given(int64(8)) })
		}
	}
	for _, keys := range []int64{0, 1, 7} {
		add(fmt.Sprint("keys of heads ", keys), func(t *ropeTrial) { t.d.NumKeyHeads = coretest.Given(keys) })
	}
	add("keys in bshd", func(t *ropeTrial) {
		t.d.NumKeyHeads, t.d.Layout, t.positions = coretest.Given(int64(2)), "bshd", []int64{2, 5}
	})
	add("many heads", func(t *ropeTrial) { t.d.NumHeads, t.d.SeqLen = 150, 2 })
	add("more batches than heads, apart", func(t *ropeTrial) { t.d.BatchSize, t.d.NumHeads, t.d.Layout = 7, 2, "bshd" })
	for _, heads := range []int64{1, 2} { // so many tokens that threads have several, on the 3 multiprocessors of the model
		add(fmt.Sprint("few rows of each token, heads ", heads), func(t *ropeTrial) {
			t.d.BatchSize, t.d.NumHeads, t.d.SeqLen, t.positions, t.furthest = 1, heads, 3001, []int64{3001}, 1<<31
		})
	}
	add("few rows of a part of each token", func(t *ropeTrial) {
		t.d.BatchSize, t.d.NumHeads, t.d.SeqLen, t.d.HeadDim, t.d.RotaryDim, t.d.RotaryStart = 1, 1, 1999, 48, coretest.Given(int64(16)), 8
	})
	add("one row of each query and key", func(t *ropeTrial) {
		t.d.BatchSize, t.d.NumHeads, t.d.SeqLen, t.d.NumKeyHeads, t.d.Layout = 1, 1, 2999, coretest.Given(int64(1)), "bshd"
	})
	add("few rows, expanded", func(t *ropeTrial) { t.d.BatchSize, t.d.NumHeads, t.d.SeqLen, t.in = 1, 1, 300, coretest.Expanded })
	add("few rows in batches with positions of their own", func(t *ropeTrial) {
		t.d.NumHeads, t.d.SeqLen, t.positions = 1, 300, []int64{2, 300}
	})
	add("many tokens", func(t *ropeTrial) { t.d.SeqLen, t.d.NumHeads = 300, 1 })
	for _, empty := range [][3]int64{{0, 3, 5}, {2, 0, 5}, {2, 3, 0}} {
		add(fmt.Sprint("nothing ", empty), func(t *ropeTrial) {
			t.d.BatchSize, t.d.NumHeads, t.d.SeqLen = empty[0], empty[1], empty[2]
			t.positions = []int64{empty[0], empty[2]}
		})
	}
	return list
}

func TestRope(t *testing.T) {
	for i, c := range ropeTrials() {
		t.Run(c.reason, func(t *testing.T) {
			modelRope(t)
			for k, dtype := range tensorpkg.Floats { // one direction in each, so that every two values of two axes meet
				c.d.DType, c.forward = dtype, (i+k)%2 == 0
				for _, device := range []tensorpkg.Device{tensorpkg.CPU, tensorpkg.CUDA(0)} {
					c.run(t, device, false)
					if c.in.Name == c.out.Name {
						c.run(t, device, true)
					}
				}
			}
		})
	}
}

// run compares a plan with the definition; in place, each output is its input.
func (c *ropeTrial) run(t *testing.T, device tensorpkg.Device, inPlace bool) {
	t.Helper()
	var descriptor ops.Descriptor = rope.RopeBackward(c.d)
	input, output := "dy", "dx"
	if c.forward {
		descriptor, input, output = c.d, "x", "y"
	}
	plan, err := core.Select(descriptor, device, ops.Preference{})
	require.NoError(t, err)
	random, args, memories := rand.New(rand.NewPCG(1, 2)), core.Args{}, map[string]*coretest.Memory{}
	give := func(name string, d tensorpkg.DType, shape []int64, l coretest.Layout, value func() float64) {
		m := coretest.NewMemory(d, device, shape, l).Fill(func(int64) float64 { return value() })
		args[name], memories[name] = m.Tensor, m
	}
	names := map[string]string{input: output}
	if c.d.NumKeyHeads != nil {
		names[input+"_k"] = output + "_k"
	}
	for _, o := range coretest.ProblemOf(plan).Operands {
		if o.Out {
			m := coretest.NewMemory(c.d.DType, device, o.Shapes[0], c.out).Poison()
			args[o.Name], memories[o.Name] = m.Tensor, m
		} else if names[o.Name] != "" {
			give(o.Name, c.d.DType, o.Shapes[0], c.in, random.NormFloat64)
		}
	}
	if c.positions != nil {
		give("positions", c.index, c.positions, coretest.Contiguous, func() float64 { return float64(random.Int64N(c.furthest)) })
	}
	if dtype := c.tables; c.table != nil {
		if dtype == (tensorpkg.DType{}) {
			dtype = c.d.DType
		}
		give("cos", dtype, c.table, coretest.Gapped, random.NormFloat64)
		give("sin", dtype, c.table, coretest.Permuted, random.NormFloat64)
	}
	wants := map[string][]coretest.Term{}
	for in, out := range names {
		wants[out] = c.definition(memories, in)
		if inPlace {
			args[out], memories[out] = args[in], memories[in]
		}
	}
	require.NoError(t, plan.Run(0, tensorpkg.Tensor{}, args))
	for _, out := range names {
		memories[out].RequireOnlyElementsWritten(t, out)
		for k, got := range memories[out].Values() {
			want := wants[out][k]
			scratch := coretest.Tolerance(c.d.DType, c.d.DType.Accumulator(), 2, want.Value, want.Size)
			if !(math.Abs(got-want.Value) <= scratch) {
				t.Fatalf("%s of %s on %s, element %d: want %v, got %v", out, c.d.DType, device, k, want.Value, got)
			}
		}
	}
	for name, m := range memories {
		if !inPlace && name != output && name != output+"_k" {
			m.RequireUntouched(t, name)
		}
	}
}

// Under SetCheck a launch reads the positions first.
func TestRopePositionsAreCheckedOnRequest(t *testing.T) {
	core.SetCheck(true)
	defer core.SetCheck(false)
	fake := modelRope(t)
	positions := []byte{2, 0, 0, 0, 9, 0, 0, 0}
	plan, err := core.Select(rope.RopeBackward{BatchSize: 1, NumHeads: 1, SeqLen: 2, HeadDim: 2, DType: tensorpkg.Float32}, tensorpkg.CUDA(0), ops.Preference{})
	require.NoError(t, err)
	args := core.Args{}
	for name, tensor := range map[string]tensorpkg.Tensor{"dy": tensorpkg.Of(make([]float32, 4), 1, 1, 2, 2), "dx": tensorpkg.Of(make([]float32, 4), 1, 1, 2, 2),
		"positions": tensorpkg.Of([]int32{0, 0}), "cos": tensorpkg.Of(make([]float32, 9), 9, 1), "sin": tensorpkg.Of(make([]float32, 9), 9, 1)} {
		tensor.Device = tensorpkg.CUDA(0)
		args[name] = tensor
	}
	fake.Memory = map[uintptr][]byte{args["positions"].Data: positions}
	err = plan.Run(5, tensorpkg.Tensor{}, args)
	require.ErrorIs(t, err, errs.ErrInvalidProblem)
	require.Contains(t, err.Error(), "positions[1] = 9")
	require.Equal(t, []uintptr{args["positions"].Data}, fake.Reads)
	positions[4] = 8
	require.NoError(t, plan.Run(5, tensorpkg.Tensor{}, args))
	fake.Refusals = map[string]error{"read": &driver.Status{Code: 700, Name: "CUDA_ERROR_ILLEGAL_ADDRESS", Call: "cuMemcpyDtoHAsync"}}
	require.ErrorIs(t, plan.Run(5, tensorpkg.Tensor{}, args), errs.ErrDevice)
}

// On the CPU a position that is no row of the tables is refused before anything is written; on a
// GPU its token is copied.
func TestRopePositionsOutsideTheTables(t *testing.T) {
	modelRope(t)
	for _, device := range []tensorpkg.Device{tensorpkg.CPU, tensorpkg.CUDA(0)} {
		plan, err := core.Select(rope.RopeBackward{BatchSize: 1, NumHeads: 2, SeqLen: 3, HeadDim: 4, DType: tensorpkg.Float32}, device, ops.Preference{})
		require.NoError(t, err)
		for _, wrong := range []int64{-1, 7, math.MaxInt64, math.MinInt64} {
			on := func(x tensorpkg.Tensor) tensorpkg.Tensor { x.Device = device; return x }
			dy, dx := make([]float32, 24), make([]float32, 24)
			for i := range dy {
				dy[i] = float32(i + 1)
			}
			cos, sin := make([]float32, 14), make([]float32, 14)
			err := plan.Run(0, tensorpkg.Tensor{}, core.Args{"dy": on(tensorpkg.Of(dy, 1, 2, 3, 4)), "dx": on(tensorpkg.Of(dx, 1, 2, 3, 4)), "positions": on(tensorpkg.Of([]int64{0, wrong, 6})),
				"cos": on(tensorpkg.Of(cos, 7, 2)), "sin": on(tensorpkg.Of(sin, 7, 2))})
			if device == tensorpkg.CPU {
				require.ErrorIs(t, err, errs.ErrInvalidProblem)
				require.Contains(t, err.Error(), fmt.Sprintf("positions[1] = %d", wrong))
				require.Equal(t, make([]float32, 24), dx)
				continue
			}
			require.NoError(t, err)
			require.Equal(t, dy[4:8], dx[4:8], "copied")
			require.Equal(t, make([]float32, 4), dx[:4], "a row of zeros")
		}
	}
}
