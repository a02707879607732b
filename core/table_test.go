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

	"github.com/sternway/sternway/cuda"
)

// samples are problems of every family, among which every kernel of the family is the right one for some.
func samples() []Descriptor {
	weight, single, heads := Scalar(0.25), Float32, int64(1)
	shape := []int64{4, 6}
	return []Descriptor{
		LerpBackward{Shape: shape, Weight: &weight},
		LerpBackward{Shape: shape, BShape: []int64{6}},
		LerpBackward{Shape: shape, AShape: []int64{4, 1}, BShape: []int64{}, WeightShape: []int64{1, 6}},
		DequantizePerTokenBackward{Shape: []int64{4, 1}, QDType: Uint8},
		DequantizePerTokenBackward{Shape: shape, QDType: Int8, ScaleDType: &single},
		FakeQuantizePerTokenBackward{Shape: []int64{4, 1}, QuantMax: 15},
		FakeQuantizePerTokenBackward{Shape: shape, QuantMin: -8, QuantMax: 7, ScaleDType: &single},
		RopeBackward{BatchSize: 2, NumHeads: 3, SeqLen: 4, HeadDim: 6},
		RopeBackward{BatchSize: 2, NumHeads: 3, SeqLen: 4, HeadDim: 8, Pairing: "half", Layout: "bshd", NumKeyHeads: &heads},
		ScanBackward{Kind: "cumsum", Shape: shape, Dim: 1},
		ScanBackward{Kind: "cumprod", Shape: shape, Dim: -1, Reverse: true},
		ScanBackward{Kind: "cummax", Shape: shape, Tie: "first"},
		ScanBackward{Kind: "cummin", Shape: shape, Dim: 1, Tie: "last"},
		ScanBackward{Kind: "logcumsumexp", Shape: []int64{}},
		bagOf("sum", 5, 3, 2, 7), bagOf("mean", 9, 8, 3, 5000), bagOf("max", 4, 2, 6, 9),
		UniqueRows{NumRows: 9, Total: 7}, UniqueRows{NumRows: 1 << 20, Total: 5}, UniqueRows{NumRows: 5, Total: 12000},
	}
}

// elementsOf are the dtypes that a sample is instantiated in.
func elementsOf(d Descriptor) []DType { return families[d.Family()].elements() }

func (f *Family) elements() []DType {
	if f.Elements == nil {
		return Floats
	}
	return f.Elements
}

// loadedSymbols are the kernels that the plans of all samples load, by every kernel that they can be asked for.
func loadedSymbols(t *testing.T) map[string]bool {
	fake := (&fakeCUDA{devices: 1, units: 4, exports: exportsOfKernels(t)}).install(t)
	for _, sample := range samples() {
		for _, dtype := range elementsOf(sample) {
			d, _ := instantiate(sample, dtype)
			_, err := Select(d, CUDA(0), Preference{})
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
	for _, f := range Families() {
		require.NotEmpty(t, f.Kinds, f.Name)
		for _, kind := range f.Kinds {
			require.NotEmpty(t, kind.Kernels, f.Name)
			for _, dtype := range f.elements() {
				for _, kernel := range kind.Kernels {
					symbol := f.Symbol(kind.Name, kernel, dtype)
					require.Contains(t, exports[f.image(kind.Name)], symbol, "cuda/%s.cu exports every kernel of %s", f.image(kind.Name), f.Name)
					require.True(t, loaded[symbol], "no plan loads %s", symbol)
				}
			}
		}
	}
	for _, d := range samples() {
		for _, dtype := range elementsOf(d) {
			d, _ = instantiate(d, dtype)
			_, err := Select(d, CPU, Preference{})
			require.NoError(t, err)
		}
	}
}

// A kernel that is asked for is the one that is chosen, or the request is refused.
func TestPreferredKernels(t *testing.T) {
	(&fakeCUDA{devices: 1, units: 4}).install(t)
	for _, sample := range samples() {
		d, _ := instantiate(sample, elementsOf(sample)[0])
		for _, device := range []Device{CPU, CUDA(0)} {
			chosen, err := Select(d, device, Preference{})
			require.NoError(t, err)
			again, err := Select(d, device, Preference{Kernel: chosen.SKU().Kernel})
			require.NoError(t, err)
			require.Equal(t, chosen.SKU(), again.SKU())
			for _, kernel := range chosen.problem.family.kind(chosen.problem.kind).Kernels {
				plan, err := Select(d, device, Preference{Kernel: kernel})
				if err != nil {
					require.ErrorIs(t, err, ErrUnsupported)
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
	for i, row := range dtypeRows {
		suffixes = append(suffixes, strings.ToUpper(row.suffix))
		require.Equal(t, i, row.dtype.row())
		require.Equal(t, i < len(Floats), row.dtype.floating())
	}
	require.Equal(t, strings.Join(suffixes, ", "), strings.Join(strings.FieldsFunc(enum[1], func(r rune) bool { return r == ',' || r == ' ' || r == '\n' }), ", "))
	require.Equal(t, -1, DType{codeComplex, 64, 1}.row())
}

func TestDTypesHaveNames(t *testing.T) {
	for name, d := range map[string]DType{
		"float32": Float32, "float64": Float64, "float16": Float16, "bfloat16": BFloat16, "int8": Int8, "uint8": Uint8, "int32": Int32, "int64": Int64,
		"bool": {codeBool, 8, 1}, "complex64": {codeComplex, 64, 1}, "uint16": {codeUint, 16, 1}, "float32x4": {codeFloat, 32, 4},
		"float8_e4m3fn": {codeFloat8E4, 8, 1}, "float8_e5m2": {codeFloat8E5, 8, 1}, "dtype code 77 of 8 bits": {77, 8, 1},
	} {
		require.Equal(t, name, d.String())
		parsed, err := ParseDType(name)
		if d.Lanes == 1 && codeNames[d.Code] != "" {
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
			back, err := ParseDescriptor(string(text))
			require.NoError(t, err)
			require.Equal(t, d, back)
			fields["surprise"] = 1
			text, err = json.Marshal(fields)
			require.NoError(t, err)
			_, err = ParseDescriptor(string(text))
			require.ErrorIs(t, err, ErrInvalidProblem)
		}
	}
	for _, f := range Families() {
		require.True(t, families[f.Name], "%s has no sample", f.Name)
	}
}

// What Select knows of the kernels of an element operation is what they are compiled with.
func TestConstantsOfKernels(t *testing.T) {
	for _, row := range []struct {
		family *Family
		op     *elementOp
	}{{lerp, &lerpOp}, {dequantize, &dequantizeOp}, {fakeQuantize, &fakeQuantizeOp}} {
		for _, set := range row.op.sets {
			for _, kernel := range row.family.Kinds[0].Kernels {
				constants := kernelConstants(t, row.family.Image, set.name+"_"+kernel+"_f32")
				unrolled := map[string]int64{"map": set.unroll.mapped, "rows": set.unroll.rows, "columns": set.unroll.columns}[kernel]
				require.EqualValues(t, constants[strings.ToUpper(kernel)+"_UNROLL"], unrolled, "%s of %s", kernel, set.name)
				require.Equal(t, constants["IN"], len(set.in), set.name)
				require.Equal(t, constants["OUT"], len(set.out), set.name)
			}
		}
	}
	source := cudaSource(t, "lerp")
	for name, threads := range map[string]int{"kBlock": blockThreads, "kSmallBlock": smallBlock} {
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
