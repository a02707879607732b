package core_test

import (
	"encoding/json"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sternway/sternway/core"
	"github.com/sternway/sternway/core/internal/coretest"
	"github.com/sternway/sternway/core/internal/ops"
	"github.com/sternway/sternway/core/internal/ops/elementwise"
	"github.com/sternway/sternway/core/internal/ops/embedding"
	"github.com/sternway/sternway/core/internal/ops/rope"
	"github.com/sternway/sternway/core/internal/ops/scan"
	"github.com/sternway/sternway/core/internal/ops/selective"
	"github.com/sternway/sternway/core/internal/tensor"
	"github.com/sternway/sternway/core/internal/threads"
)

// The tests TestRace* are what the race detector runs: one problem for each way in which a run on
// the CPU divides its work among goroutines, and runs beside each other. The detector finds
// accesses without synchronization, whatever the values are; other tests compare values.

// twoThreads lets runs of a test use a worker.
func twoThreads(t *testing.T) {
	before := threads.Number()
	threads.Set(2)
	t.Cleanup(func() { threads.Set(before) })
}

// contiguous and mixed are layouts of operands.
var contiguous, mixed = &coretest.Schemes[0], &coretest.Schemes[1]

func zero(*rand.Rand) float64 { return 0 }

// below draws indices of n positions.
func below(n int64) func(*rand.Rand) float64 {
	return func(r *rand.Rand) float64 { return float64(r.Int64N(n)) }
}

// sequences is the number of packed sequences.
var sequences int64 = 70

// rising draws their bounds, one after the other: all but the last have three positions.
func rising(d ops.Descriptor) func(*rand.Rand) float64 {
	var fields struct {
		Shape       []int64
		Dim, Length int64
	}
	text, _ := json.Marshal(d)
	_ = json.Unmarshal(text, &fields)
	length := fields.Length
	if fields.Shape != nil {
		length = fields.Shape[fields.Dim]
	}
	k := int64(-1)
	return func(*rand.Rand) float64 {
		if k++; k == sequences {
			return float64(length)
		}
		return float64(3 * k)
	}
}

// raceOf runs a problem in a layout, with given values of indices.
func raceOf(t *testing.T, d ops.Descriptor, dtype tensor.DType, layout *coretest.Scheme, indices func(*rand.Rand) float64, without ...string) {
	t.Helper()
	twoThreads(t)
	if indices == nil {
		without = append(without, "indices")
	}
	trial := coretest.Trial{
		Descriptor: d,
		Without:    without,
		DTypes:     map[string]tensor.DType{"zero_point": tensor.Float32},
		Values:     map[string]func(*rand.Rand) float64{"indices": indices, "cu_seqlens": rising(d)},
	}
	plan, err := core.Select(coretest.WithDType(d, dtype), tensor.CPU, ops.Preference{})
	require.NoError(t, err)
	r := trial.Arrange(t, plan, layout)
	for range 2 {
		r.Run(t, r.Outputs)
	}
}

func TestRaceElementwise(t *testing.T) {
	weight := ops.Scalar(0.25)
	lerp := func(shape, b []int64) ops.Descriptor {
		return elementwise.LerpBackward{Shape: shape, BShape: b, Weight: &weight}
	}
	for name, d := range map[string]ops.Descriptor{
		"map":              lerp([]int64{400000}, nil),
		"sums of rows":     lerp([]int64{10000, 40}, []int64{10000, 1}),
		"sums of chunks":   lerp([]int64{3, 200000}, []int64{3, 1}),
		"sums of columns":  lerp([]int64{20000, 40}, []int64{40}),
		"sums per token":   elementwise.FakeQuantizePerTokenBackward{Shape: []int64{10000, 40}, QuantMin: -8, QuantMax: 7},
		"map per token":    elementwise.DequantizePerToken{Shape: []int64{10000, 40}, QDType: tensor.Int8},
		"products of sums": elementwise.DequantizePerTokenBackward{Shape: []int64{10000, 40}, QDType: tensor.Uint8},
	} {
		t.Run(name, func(t *testing.T) { raceOf(t, d, tensor.Float32, contiguous, nil, "weight", "dweight") })
		t.Run(name+", blocks", func(t *testing.T) { raceOf(t, d, tensor.BFloat16, mixed, nil, "weight", "dweight") })
	}
	t.Run("workers of float64", func(t *testing.T) {
		raceOf(t, lerp([]int64{20000, 40}, []int64{40}), tensor.Float64, mixed, nil, "weight", "dweight")
	})
}

func TestRaceRope(t *testing.T) {
	heads := int64(2)
	raceOf(t, rope.Rope{BatchSize: 2, NumHeads: 4, SeqLen: 500, HeadDim: 64, NumKeyHeads: &heads}, tensor.Float32, contiguous, nil, "positions", "cos", "sin")
	raceOf(t, rope.RopeBackward{BatchSize: 1, NumHeads: 1, SeqLen: 5000, HeadDim: 64, Layout: "bshd"}, tensor.BFloat16, mixed, nil, "positions", "cos", "sin")
}

func TestRaceForwardScan(t *testing.T) {
	for name, c := range map[string]struct {
		d      scan.Scan
		layout *coretest.Scheme
		finds  func(*rand.Rand) float64 // not nil: the indices are stored
	}{
		"rows in vectors":          {d: scan.Scan{Kind: "cumsum", Shape: []int64{200, 1000}, Dim: 1}},
		"rows in lanes":            {d: scan.Scan{Kind: "cumprod", Shape: []int64{1000, 200}}},
		"short rows":               {d: scan.Scan{Kind: "cumsum", Shape: []int64{20000, 10}, Dim: 1}},
		"splits in vectors":        {d: scan.Scan{Kind: "cumsum", Shape: []int64{3, 100000}, Dim: 1}},
		"splits of alternating":    {d: scan.Scan{Kind: "cumprod", Shape: []int64{100000, 2}}},
		"splits in lanes":          {d: scan.Scan{Kind: "logcumsumexp", Shape: []int64{30000, 5}}},
		"splits with indices":      {d: scan.Scan{Kind: "cummax", Shape: []int64{3, 100000}, Dim: 1}, finds: zero},
		"rows with indices":        {d: scan.Scan{Kind: "cummin", Shape: []int64{200, 1000}, Dim: 1, Reverse: true}, finds: zero},
		"sequences":                {d: scan.Scan{Kind: "cummax", Shape: []int64{3, 100000}, Dim: 1, NumSequences: &sequences}, finds: zero},
		"sequences of many rows":   {d: scan.Scan{Kind: "cumprod", Shape: []int64{1000, 200}, NumSequences: &sequences}},
		"exclusive":                {d: scan.Scan{Kind: "cumsum", Shape: []int64{3, 100000}, Dim: 1, NumSequences: &sequences, Exclusive: true}},
		"chunks":                   {d: scan.Scan{Kind: "cumprod", Shape: []int64{3, 100000}, Dim: 1, Carries: true}},
		"rows in irregular memory": {d: scan.Scan{Kind: "cumsum", Shape: []int64{30, 20, 300}, Dim: 1}, layout: mixed},
	} {
		t.Run(name, func(t *testing.T) {
			if c.layout == nil {
				c.layout = contiguous
			}
			raceOf(t, c.d, tensor.Float32, c.layout, c.finds)
		})
	}
}

func TestRaceScanGradient(t *testing.T) {
	const long = 100000
	for name, c := range map[string]struct {
		d       scan.ScanBackward
		layout  *coretest.Scheme
		indices func(*rand.Rand) float64
	}{
		"rows":                    {d: scan.ScanBackward{Kind: "cumprod", Shape: []int64{200, 1000}, Dim: 1}},
		"splits of sums":          {d: scan.ScanBackward{Kind: "cumsum", Shape: []int64{3, long}, Dim: 1}},
		"splits with checkpoints": {d: scan.ScanBackward{Kind: "logcumsumexp", Shape: []int64{3, long}, Dim: 1}},
		"splits with records":     {d: scan.ScanBackward{Kind: "cummax", Shape: []int64{3, long}, Dim: 1}},
		"sequences":               {d: scan.ScanBackward{Kind: "logcumsumexp", Shape: []int64{3, long}, Dim: 1, NumSequences: &sequences}},
		"chunks":                  {d: scan.ScanBackward{Kind: "cumprod", Shape: []int64{3, long}, Dim: 1, Carries: true}},
		"scatter":                 {d: scan.ScanBackward{Kind: "cummax", Shape: []int64{20000, 10}, Dim: 1}, indices: below(10)},
		"gather":                  {d: scan.ScanBackward{Kind: "cummax", Shape: []int64{10, 20000}}, indices: below(10)},
		"rows by indices":         {d: scan.ScanBackward{Kind: "cummin", Shape: []int64{300, 1000}, Dim: 1}, indices: zero},
		"rows by any indices":     {d: scan.ScanBackward{Kind: "cummin", Shape: []int64{300, 1000}, Dim: 1}, layout: mixed, indices: below(1000)},
		"splits by indices":       {d: scan.ScanBackward{Kind: "cummax", Shape: []int64{10, long}, Dim: 1}, indices: zero},
		"splits by any indices":   {d: scan.ScanBackward{Kind: "cummax", Shape: []int64{10, long}, Dim: 1}, indices: below(long)},
	} {
		t.Run(name, func(t *testing.T) {
			if c.layout == nil {
				c.layout = contiguous
			}
			var without []string
			if c.indices != nil || !scan.ByName[c.d.Kind].ReadsX {
				without = []string{"x"}
			}
			raceOf(t, c.d, tensor.Float32, c.layout, c.indices, without...)
		})
	}
}

func TestRaceLinearRecurrence(t *testing.T) {
	for _, shape := range [][]int64{{100000, 3}, {1000, 200}} {
		for _, count := range []*int64{nil, &sequences} {
			d := scan.LinearRecurrence{Shape: shape, NumSequences: count}
			raceOf(t, d, tensor.Float32, contiguous, nil)
			raceOf(t, scan.LinearRecurrenceBackward(d), tensor.Float32, contiguous, nil)
			d.AShape = []int64{1, shape[1]} // whose gradient is summed by each task
			raceOf(t, scan.LinearRecurrenceBackward(d), tensor.Float32, contiguous, nil)
		}
	}
}

// Tasks share B and C, and the sums of tasks and batches are added up afterwards.
func TestRaceSelectiveScan(t *testing.T) {
	for _, count := range []*int64{nil, &sequences} {
		for _, areConstant := range []bool{false, true} {
			d := selective.SelectiveScan{Batch: 2, Dim: 200, Length: 600, N: 4, Groups: coretest.Given[int64](2), HasD: true, HasZ: true, HasBias: true,
				ConstantB: areConstant, ConstantC: areConstant, NumSequences: count}
			raceOf(t, d, tensor.Float32, contiguous, nil)
			raceOf(t, selective.SelectiveScanBackward(d), tensor.Float32, contiguous, nil)
			raceOf(t, selective.SelectiveScanBackward(d), tensor.BFloat16, mixed, nil, "chunk_states")
		}
	}
}

// Buckets are counted, filled and summed by several goroutines, in 32 and in 64 bits.
func TestRaceEmbedding(t *testing.T) {
	twoThreads(t)
	for _, mode := range embedding.BagModes {
		d := coretest.BagOf(mode, 3000, 20, 3000, 90000)
		d.DType = tensor.Float32
		for name, prepare := range map[string]func(*testing.T){"": func(*testing.T) {}, ", wide": coretest.WideNumbers} {
			t.Run(mode+name, func(t *testing.T) {
				prepare(t)
				plan, err := core.Select(d, tensor.CPU, ops.Preference{})
				require.NoError(t, err)
				require.NoError(t, plan.Run(0, tensor.Tensor{}, coretest.NewBagCall(d, coretest.Contiguous).Args))
			})
		}
	}
	t.Run("without bags", func(t *testing.T) {
		d := embedding.EmbeddingBackward{NumEmbeddings: 3000, EmbeddingDim: 20, NumIndices: 90000, DType: tensor.Float32, IndexDType: tensor.Int32}
		plan, err := core.Select(d, tensor.CPU, ops.Preference{})
		require.NoError(t, err)
		require.NoError(t, plan.Run(0, tensor.Tensor{}, coretest.NewEmbeddingCall(d, coretest.Contiguous).Args))
	})
	t.Run("unique rows", func(t *testing.T) {
		d := embedding.UniqueRows{NumRows: 300000, Total: 200000, IndexDType: tensor.Int64}
		coretest.NewUniqueCall(d, func(k int64) int64 { return k * 7919 % d.NumRows }, coretest.Contiguous, coretest.Contiguous).Run(t)
	})
}
