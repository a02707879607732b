package core_test

import (
	"errors"
	"fmt"

	"github.com/sternway/sternway/core"
)

// The gradient of y = a + 0.25 (b - a) for a row vector b that was broadcast over two rows: db sums
// over the rows.
func ExampleLerpBackward() {
	weight := core.Scalar(0.25)
	plan, err := core.Select(core.LerpBackward{
		Shape: []int64{2, 3}, DType: core.Float32, Weight: &weight, BShape: []int64{3},
	}, core.CPU, core.Preference{})
	if err != nil {
		panic(err)
	}
	dy := []float32{1, 2, 3, 4, 5, 6}
	da, db := make([]float32, 6), make([]float32, 3)
	err = plan.Run(0, core.Tensor{}, core.Args{"dy": core.Of(dy, 2, 3), "da": core.Of(da, 2, 3), "db": core.Of(db)})
	fmt.Println(da, db, err)
	// Output: [0.75 1.5 2.25 3 3.75 4.5] [1.25 1.75 2.25] <nil>
}

// Two tokens of two values, each with a scale.
func ExampleDequantizePerToken() {
	plan, err := core.Select(core.DequantizePerToken{
		Shape: []int64{2, 2}, DType: core.Float32, QDType: core.Int8,
	}, core.CPU, core.Preference{})
	if err != nil {
		panic(err)
	}
	y := make([]float32, 4)
	err = plan.Run(0, core.Tensor{}, core.Args{
		"q": core.Of([]int8{10, 20, -1, 1}, 2, 2), "scale": core.Of([]float32{0.5, 2}), "zero_point": core.Of([]int8{2, 0}), "y": core.Of(y, 2, 2),
	})
	fmt.Println(y, err)
	// Output: [4 9 -2 2] <nil>
}

// Two tokens of two values: dx = dy scale, dscale = sum dy q.
func ExampleDequantizePerTokenBackward() {
	plan, err := core.Select(core.DequantizePerTokenBackward{
		Shape: []int64{2, 2}, DType: core.Float64, QDType: core.Int8,
	}, core.CPU, core.Preference{})
	if err != nil {
		panic(err)
	}
	dx, dscale := make([]float64, 4), make([]float64, 2)
	err = plan.Run(0, core.Tensor{}, core.Args{
		"dy": core.Of([]float64{1, 2, 3, 4}, 2, 2), "scale": core.Of([]float64{0.5, 2}), "q": core.Of([]int8{10, 20, -1, 1}, 2, 2),
		"dx": core.Of(dx, 2, 2), "dscale": core.Of(dscale),
	})
	fmt.Println(dx, dscale, err)
	// Output: [0.5 1 6 8] [50 1] <nil>
}

// Each value becomes the nearest of the levels -4, -3.5, ..., 3.5.
func ExampleFakeQuantizePerToken() {
	plan, err := core.Select(core.FakeQuantizePerToken{
		Shape: []int64{1, 3}, DType: core.Float32, QuantMin: -8, QuantMax: 7,
	}, core.CPU, core.Preference{})
	if err != nil {
		panic(err)
	}
	x := []float32{0.6, 3.8, -100}
	err = plan.Run(0, core.Tensor{}, core.Args{"x": core.Of(x, 1, 3), "scale": core.Of([]float32{0.5}), "y": core.Of(x, 1, 3)})
	fmt.Println(x, err)
	// Output: [0.5 3.5 -4] <nil>
}

// Values outside the quantization range pass no gradient to x.
func ExampleFakeQuantizePerTokenBackward() {
	plan, err := core.Select(core.FakeQuantizePerTokenBackward{
		Shape: []int64{1, 3}, DType: core.Float32, QuantMin: -8, QuantMax: 7,
	}, core.CPU, core.Preference{})
	if err != nil {
		panic(err)
	}
	dx, dscale := make([]float32, 3), make([]float32, 1)
	err = plan.Run(0, core.Tensor{}, core.Args{
		"dy": core.Of([]float32{1, 1, 1}, 1, 3), "x": core.Of([]float32{0.5, 3.75, -100}, 1, 3), "scale": core.Of([]float32{0.5}),
		"dx": core.Of(dx, 1, 3), "dscale": core.Of(dscale),
	})
	fmt.Println(dx, dscale, err)
	// Output: [1 0 0] [-1] <nil>
}

// Two tokens of one pair: the second turns by one radian.
func ExampleRope() {
	plan, err := core.Select(core.Rope{
		BatchSize: 1, NumHeads: 1, SeqLen: 2, HeadDim: 2, DType: core.Float64,
	}, core.CPU, core.Preference{})
	if err != nil {
		panic(err)
	}
	x, y := []float64{1, 0, 1, 0}, make([]float64, 4)
	err = plan.Run(0, core.Tensor{}, core.Args{"x": core.Of(x, 1, 1, 2, 2), "y": core.Of(y, 1, 1, 2, 2)})
	fmt.Printf("%.3f %v\n", y, err)
	// Output: [1.000 0.000 0.540 0.841] <nil>
}

// Two tokens of one pair: the second turned by one radian, so its gradient turns back.
func ExampleRopeBackward() {
	plan, err := core.Select(core.RopeBackward{
		BatchSize: 1, NumHeads: 1, SeqLen: 2, HeadDim: 2, DType: core.Float64,
	}, core.CPU, core.Preference{})
	if err != nil {
		panic(err)
	}
	dy, dx := []float64{1, 0, 1, 0}, make([]float64, 4)
	err = plan.Run(0, core.Tensor{}, core.Args{"dy": core.Of(dy, 1, 1, 2, 2), "dx": core.Of(dx, 1, 1, 2, 2)})
	fmt.Printf("%.3f %v\n", dx, err)
	// Output: [1.000 0.000 0.540 -0.841] <nil>
}

// A zero among the factors needs no care: dx[1] is what the product of the others makes of it.
func ExampleScanBackward() {
	plan, err := core.Select(core.ScanBackward{Kind: "cumprod", Shape: []int64{4}, DType: core.Float32}, core.CPU, core.Preference{})
	if err != nil {
		panic(err)
	}
	dx := make([]float32, 4)
	err = plan.Run(0, core.Tensor{}, core.Args{
		"dy": core.Of([]float32{1, 1, 1, 1}), "x": core.Of([]float32{2, 0, 3, 4}), "dx": core.Of(dx),
	})
	fmt.Println(dx, err)
	// Output: [1 32 0 0] <nil>
}

// A running maximum and its position; of equal values the last wins.
func ExampleScan() {
	plan, err := core.Select(core.Scan{Kind: "cummax", Shape: []int64{5}, DType: core.Float32}, core.CPU, core.Preference{})
	if err != nil {
		panic(err)
	}
	y, indices := make([]float32, 5), make([]int64, 5)
	err = plan.Run(0, core.Tensor{}, core.Args{
		"x": core.Of([]float32{1, 3, 2, 3, 0}), "y": core.Of(y), "indices": core.Of(indices),
	})
	fmt.Println(y, indices, err)
	// Output: [1 3 3 3 3] [0 1 1 3 3] <nil>
}

// Errors say what was wanted and what came, and have a kind.
func ExampleError() {
	_, err := core.Select(core.LerpBackward{Shape: []int64{2}, DType: core.Int64}, core.CPU, core.Preference{})
	fmt.Println(err)
	fmt.Println(errors.Is(err, core.ErrUnsupported))
	// Output:
	// lerp_backward: dtype must be float32, float64, float16 or bfloat16, got int64
	// true
}

// Two bags, [2, 0] and [2]: row 2 is the sum of both gradients.
func ExampleEmbeddingBagBackward() {
	plan, err := core.Select(core.EmbeddingBagBackward{
		NumEmbeddings: 3, EmbeddingDim: 2, NumBags: 2, TotalIndices: 3, DType: core.Float32, Mode: "sum", IndexDType: core.Int64,
	}, core.CPU, core.Preference{})
	if err != nil {
		panic(err)
	}
	dweight := make([]float32, 6)
	err = plan.Run(0, core.Tensor{}, core.Args{
		"dy": core.Of([]float32{1, 2, 10, 20}, 2, 2), "indices": core.Of([]int64{2, 0, 2}), "offsets": core.Of([]int64{0, 2}),
		"dweight": core.Of(dweight, 3, 2),
	})
	fmt.Println(dweight, err)
	// Output: [1 2 0 0 11 22] <nil>
}

// Row 2 is looked up twice: its gradient is the sum of both.
func ExampleEmbeddingBackward() {
	plan, err := core.Select(core.EmbeddingBackward{
		NumEmbeddings: 3, EmbeddingDim: 2, NumIndices: 3, DType: core.Float32, IndexDType: core.Int64,
	}, core.CPU, core.Preference{})
	if err != nil {
		panic(err)
	}
	dweight := make([]float32, 6)
	err = plan.Run(0, core.Tensor{}, core.Args{
		"dy": core.Of([]float32{1, 2, 10, 20, 100, 200}, 3, 2), "indices": core.Of([]int64{2, 0, 2}), "dweight": core.Of(dweight, 3, 2),
	})
	fmt.Println(dweight, err)
	// Output: [10 20 0 0 101 202] <nil>
}

// Rows 1, 4 and 7 occur; each index has its place among them.
func ExampleUniqueRows() {
	plan, err := core.Select(core.UniqueRows{NumRows: 9, Total: 5, IndexDType: core.Int64}, core.CPU, core.Preference{})
	if err != nil {
		panic(err)
	}
	rows, inverse, count := make([]int64, 5), make([]int32, 5), make([]int64, 1)
	err = plan.Run(0, core.Tensor{}, core.Args{
		"indices": core.Of([]int64{7, 1, 7, 4, 1}), "rows": core.Of(rows), "inverse": core.Of(inverse), "count": core.Of(count),
	})
	fmt.Println(rows, inverse, count, err)
	// Output: [1 4 7 -1 -1] [2 0 2 1 0] [3] <nil>
}
