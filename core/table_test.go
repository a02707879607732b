package core

import (
	"bytes"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sternway/sternway/core/internal/errs"
	"github.com/sternway/sternway/core/internal/launch"
	"github.com/sternway/sternway/core/internal/ops"
	"github.com/sternway/sternway/core/internal/ops/elementwise"
	"github.com/sternway/sternway/core/internal/ops/embedding"
	"github.com/sternway/sternway/core/internal/ops/rope"
	"github.com/sternway/sternway/core/internal/ops/scan"
	"github.com/sternway/sternway/core/internal/tensor"
	"github.com/sternway/sternway/cuda"
)

// samples are problems of every family, among which every kernel of the family is the right one for some.
func samples() []ops.Descriptor {
	weight, single, heads := ops.Scalar(0.25), tensor.Float32, int64(1)
	shape := []int64{4, 6}
	return []ops.Descriptor{
		elementwise.LerpBackward{Shape: shape, Weight: &weight},
		elementwise.LerpBackward{Shape: shape, BShape: []int64{6}},
		elementwise.LerpBackward{Shape: shape, AShape: []int64{4, 1}, BShape: []int64{}, WeightShape: []int64{1, 6}},
		elementwise.DequantizePerTokenBackward{Shape: []int64{4, 1}, QDType: tensor.Uint8},
		elementwise.DequantizePerTokenBackward{Shape: shape, QDType: tensor.Int8, ScaleDType: &single},
		elementwise.FakeQuantizePerTokenBackward{Shape: []int64{4, 1}, QuantMax: 15},
		elementwise.FakeQuantizePerTokenBackward{Shape: shape, QuantMin: -8, QuantMax: 7, ScaleDType: &single},
		rope.RopeBackward{BatchSize: 2, NumHeads: 3, SeqLen: 4, HeadDim: 6},
		rope.RopeBackward{BatchSize: 2, NumHeads: 3, SeqLen: 4, HeadDim: 8, Pairing: "half", Layout: "bshd", NumKeyHeads: &heads},
		scan.ScanBackward{Kind: "cumsum", Shape: shape, Dim: 1},
		scan.ScanBackward{Kind: "cumprod", Shape: shape, Dim: -1, Reverse: true},
		scan.ScanBackward{Kind: "cummax", Shape: shape, Tie: "first"},
		scan.ScanBackward{Kind: "cummin", Shape: shape, Dim: 1, Tie: "last"},
		scan.ScanBackward{Kind: "logcumsumexp", Shape: []int64{}},
		bagOf("sum", 5, 3, 2, 7), bagOf("mean", 9, 8, 3, 5000), bagOf("max", 4, 2, 6, 9),
		embedding.UniqueRows{NumRows: 9, Total: 7}, embedding.UniqueRows{NumRows: 1 << 20, Total: 5}, embedding.UniqueRows{NumRows: 5, Total: 12000},
	}
}

// elementsOf are the dtypes that a sample is instantiated in.
func elementsOf(d ops.Descriptor) []tensor.DType { return elementsOfFamily(ops.ByName[d.Family()]) }

func elementsOfFamily(f *ops.Family) []tensor.DType {
	if f.Elements == nil {
		return tensor.Floats
	}
	return f.Elements
}

// loadedSymbols are the kernels that the plans of all samples load, by every kernel that they can be asked for.
func loadedSymbols(t *testing.T) map[string]bool {
	fake := (&fakeCUDA{devices: 1, units: 4, exports: exportsOfKernels(t)}).install(t)
	for _, sample := range samples() {
		for _, dtype := range elementsOf(sample) {
			d, _ := instantiate(sample, dtype)
			_, err := Select(d, tensor.CUDA(0), ops.Preference{})
			require.NoError(t, err)
		}
	}
	loaded := map[string]bool{}
	for _, symbol := range fake.symbols {
		loaded[symbol] = true
	}
	return loaded
}

// Every family x kind x kernel x dtype has an exported symbol that some plan loads, and a plan on the CPU.
func TestTheTableIsTotal(t *testing.T) {
	exports, loaded := exportsOfKernels(t), loadedSymbols(t)
	for _, f := range ops.Families() {
		require.NotEmpty(t, f.Kinds, f.Name)
		for _, kind := range f.Kinds {
			require.NotEmpty(t, kind.Kernels, f.Name)
			for _, dtype := range elementsOfFamily(f) {
				for _, kernel := range kind.Kernels {
					symbol := f.Symbol(kind.Name, kernel, dtype)
					require.Contains(t, exports[f.ImageOf(kind.Name)], symbol, "cuda/%s.cu exports every kernel of %s", f.ImageOf(kind.Name), f.Name)
					require.True(t, loaded[symbol], "no plan loads %s", symbol)
				}
			}
		}
	}
	for _, d := range samples() {
		for _, dtype := range elementsOf(d) {
			d, _ = instantiate(d, dtype)
			_, err := Select(d, tensor.CPU, ops.Preference{})
			require.NoError(t, err)
		}
	}
}

// A kernel that is asked for is the one that is chosen, or the request is refused.
func TestPreferredKernels(t *testing.T) {
	(&fakeCUDA{devices: 1, units: 4}).install(t)
	for _, sample := range samples() {
		d, _ := instantiate(sample, elementsOf(sample)[0])
		for _, device := range []tensor.Device{tensor.CPU, tensor.CUDA(0)} {
			chosen, err := Select(d, device, ops.Preference{})
			require.NoError(t, err)
			again, err := Select(d, device, ops.Preference{Kernel: chosen.SKU().Kernel})
			require.NoError(t, err)
			require.Equal(t, chosen.SKU(), again.SKU())
			for _, kernel := range chosen.problem.Family.Kind(chosen.problem.Kind).Kernels {
				plan, err := Select(d, device, ops.Preference{Kernel: kernel})
				if err != nil {
					require.ErrorIs(t, err, errs.ErrUnsupported)
					continue
				}
				require.Equal(t, kernel, plan.SKU().Kernel)
			}
		}
	}
}

// No exported symbol is an orphan: some plan loads it.
func TestNoSymbolIsAnOrphan(t *testing.T) {
	loaded := loadedSymbols(t)
	for name, symbols := range exportsOfKernels(t) {
		for _, symbol := range symbols {
			require.True(t, loaded[symbol], "cuda/%s.cu exports %s, which nothing loads", name, symbol)
		}
		require.Equal(t, len(slices.Compact(slices.Sorted(slices.Values(symbols)))), len(symbols), "a symbol twice")
	}
}

// Rows are numbered alike in Go and in the kernels, and the floating ones come first.
func TestDTypeRows(t *testing.T) {
	enum := regexp.MustCompile(`enum DType[^{]*\{([^}]*)\}`).FindStringSubmatch(cudaSource(t, "mapreduce"))
	require.NotNil(t, enum)
	var suffixes []string
	for i, row := range tensor.DtypeRows {
		suffixes = append(suffixes, strings.ToUpper(row.Suffix))
		require.Equal(t, i, row.Dtype.Row())
		require.Equal(t, i < len(tensor.Floats), row.Dtype.Floating())
	}
	require.Equal(t, strings.Join(suffixes, ", "), strings.Join(strings.FieldsFunc(enum[1], func(r rune) bool { return r == ',' || r == ' ' || r == '\n' }), ", "))
	require.Equal(t, -1, tensor.DType{Code: tensor.CodeComplex, Bits: 64, Lanes: 1}.Row())
}

func TestDTypesHaveNames(t *testing.T) {
	for name, d := range map[string]tensor.DType{
		"float32": tensor.Float32, "float64": tensor.Float64, "float16": tensor.Float16, "bfloat16": tensor.BFloat16, "int8": tensor.Int8, "uint8": tensor.Uint8, "int32": tensor.Int32, "int64": tensor.Int64,
		"bool": {Code: tensor.CodeBool, Bits: 8, Lanes: 1}, "complex64": {Code: tensor.CodeComplex, Bits: 64, Lanes: 1}, "uint16": {Code: tensor.CodeUint, Bits: 16, Lanes: 1}, "float32x4": {Code: tensor.CodeFloat, Bits: 32, Lanes: 4},
		"float8_e4m3fn": {Code: tensor.CodeFloat8E4, Bits: 8, Lanes: 1}, "float8_e5m2": {Code: tensor.CodeFloat8E5, Bits: 8, Lanes: 1}, "dtype code 77 of 8 bits": {Code: 77, Bits: 8, Lanes: 1},
	} {
		require.Equal(t, name, d.String())
		parsed, err := tensor.ParseDType(name)
		if d.Lanes == 1 && tensor.CodeNames[d.Code] != "" {
			require.Equal(t, d, parsed)
		} else {
			require.Error(t, err)
		}
	}
}

// A descriptor comes back from its JSON as it was, and unknown fields do not.
func TestDescriptorsThroughJSON(t *testing.T) {
	families := map[string]bool{}
	for _, sample := range samples() {
		for _, dtype := range elementsOf(sample) {
			d, _ := instantiate(sample, dtype)
			families[d.Family()] = true
			text, err := json.Marshal(d)
			require.NoError(t, err)
			var fields map[string]any
			require.NoError(t, json.Unmarshal(text, &fields))
			fields["family"] = d.Family()
			text, err = json.Marshal(fields)
			require.NoError(t, err)
			back, err := ops.ParseDescriptor(string(text))
			require.NoError(t, err)
			require.Equal(t, d, back)
			fields["surprise"] = 1
			text, err = json.Marshal(fields)
			require.NoError(t, err)
			_, err = ops.ParseDescriptor(string(text))
			require.ErrorIs(t, err, errs.ErrInvalidProblem)
		}
	}
	for _, f := range ops.Families() {
		require.True(t, families[f.Name], "%s has no sample", f.Name)
	}
}

// What Select knows of the kernels of an element operation is what they are compiled with.
func TestConstantsOfKernels(t *testing.T) {
	for _, row := range []struct {
		family *ops.Family
		op     *elementwise.ElementOp
	}{{elementwise.Lerp, &elementwise.LerpOp}, {elementwise.Dequantize, &elementwise.DequantizeOp}, {elementwise.FakeQuantize, &elementwise.FakeQuantizeOp}} {
		for _, set := range row.op.Sets {
			for _, kernel := range row.family.Kinds[0].Kernels {
				constants := kernelConstants(t, row.family.Image, set.Name+"_"+kernel+"_f32")
				unrolled := map[string]int64{"map": set.Unroll.Mapped, "rows": set.Unroll.Rows, "columns": set.Unroll.Columns}[kernel]
				require.EqualValues(t, constants[strings.ToUpper(kernel)+"_UNROLL"], unrolled, "%s of %s", kernel, set.Name)
				require.Equal(t, constants["IN"], len(set.In), set.Name)
				require.Equal(t, constants["OUT"], len(set.Out), set.Name)
			}
		}
	}
	source := cudaSource(t, "lerp")
	for name, threads := range map[string]int{"kBlock": launch.BlockThreads, "kSmallBlock": elementwise.SmallBlock} {
		require.Contains(t, source, fmt.Sprintf("%s = %d;", name, threads))
	}
}

// Images are searched for the names of their kernels.
func TestImagesHoldTheirSymbols(t *testing.T) {
	for _, name := range cudaImages(t) {
		for _, device := range []string{"sm_80", "sm_90", "sm_100", "sm_120", "sm_999"} {
			t.Run(name+" "+device, func(t *testing.T) {
				code, err := cuda.Image(name, device)
				require.NoError(t, err)
				if code == nil {
					t.Skipf("this build carries no %s: it was made without nvcc", name)
				}
				for _, symbol := range exportedSymbols(t, name) {
					require.True(t, bytes.Contains(code, []byte(symbol)), "%s is not in %s", symbol, name)
				}
			})
		}
	}
}
