package core_test

import (
	"bytes"
	"encoding/json"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sternway/sternway/core"
	"github.com/sternway/sternway/core/internal/coretest"
	"github.com/sternway/sternway/core/internal/errs"
	"github.com/sternway/sternway/core/internal/ops"
	"github.com/sternway/sternway/core/internal/ops/scan"
	"github.com/sternway/sternway/core/internal/ops/selective"
	"github.com/sternway/sternway/core/internal/tensor"
	"github.com/sternway/sternway/cuda"
)

// loadedSymbols are the kernels that the plans of all samples load, each of which must be exported.
func loadedSymbols(t *testing.T) map[string]bool {
	fake := (&coretest.FakeCUDA{Devices: 1, NumSMs: 4, Exports: coretest.ExportsOfKernels(t)}).Install(t)
	for _, sample := range append(coretest.Samples(), packedSamples()...) {
		for _, dtype := range coretest.ElementsOf(sample) {
			d := coretest.WithDType(sample, dtype)
			_, err := core.Select(d, tensor.CUDA(0), ops.Preference{})
			require.NoError(t, err)
		}
	}
	loaded := map[string]bool{}
	for _, symbol := range fake.Symbols {
		loaded[symbol] = true
	}
	return loaded
}

// packedSamples are scans of packed sequences, which the samples for runs are not: their bounds are
// no random numbers.
func packedSamples() (samples []ops.Descriptor) {
	two, shape := coretest.Given[int64](2), []int64{4, 6}
	for _, kind := range scan.Kinds {
		for _, areCut := range []bool{false, true} {
			d := scan.Scan{Kind: kind.Name, Shape: shape, NumSequences: two, Carries: areCut}
			samples = append(samples, d, scan.ScanBackward(d))
		}
	}
	d := scan.LinearRecurrence{Shape: shape, NumSequences: two}
	s := selective.SelectiveScan{Batch: 2, Dim: 4, Length: 6, N: 3, NumSequences: two}
	return append(samples, d, scan.LinearRecurrenceBackward(d), s, selective.SelectiveScanBackward(s))
}

// Every sample has a plan on the CPU for each dtype.
func TestEveryDTypeHasAPlan(t *testing.T) {
	for _, d := range coretest.Samples() {
		for _, dtype := range coretest.ElementsOf(d) {
			d = coretest.WithDType(d, dtype)
			_, err := core.Select(d, tensor.CPU, ops.Preference{})
			require.NoError(t, err)
		}
	}
}

// A kernel that is asked for is the one that is chosen, or the request is refused.
func TestPreferredKernels(t *testing.T) {
	(&coretest.FakeCUDA{Devices: 1, NumSMs: 4}).Install(t)
	for _, sample := range coretest.Samples() {
		d := coretest.WithDType(sample, coretest.ElementsOf(sample)[0])
		for _, device := range []tensor.Device{tensor.CPU, tensor.CUDA(0)} {
			chosen, err := core.Select(d, device, ops.Preference{})
			require.NoError(t, err)
			again, err := core.Select(d, device, ops.Preference{Kernel: chosen.SKU().Kernel})
			require.NoError(t, err)
			require.Equal(t, chosen.SKU(), again.SKU())
			for _, kernel := range coretest.ProblemOf(chosen).Family.Kind(coretest.ProblemOf(chosen).Kind).Kernels {
				plan, err := core.Select(d, device, ops.Preference{Kernel: kernel})
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
	for name, symbols := range coretest.ExportsOfKernels(t) {
		for _, symbol := range symbols {
			require.True(t, loaded[symbol], "cuda/%s.cu exports %s, which nothing loads", name, symbol)
		}
		require.Equal(t, len(slices.Compact(slices.Sorted(slices.Values(symbols)))), len(symbols), "a symbol twice")
	}
}

// Floats come first: kernels ask for floats by a comparison of rows, and C indexes tables by them.
func TestDTypeRows(t *testing.T) {
	floats := 0
	for i, row := range tensor.DTypeRows {
		require.Equal(t, i, row.DType.Row())
		if row.DType.Floating() {
			require.Equal(t, floats, i)
			floats++
		}
	}
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
	for _, sample := range coretest.Samples() {
		for _, dtype := range coretest.ElementsOf(sample) {
			d := coretest.WithDType(sample, dtype)
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

// Images are searched for the names of their kernels.
func TestImagesHoldTheirSymbols(t *testing.T) {
	for _, name := range coretest.CudaImages(t) {
		for _, device := range []string{"sm_80", "sm_90", "sm_100", "sm_120", "sm_999"} {
			t.Run(name+" "+device, func(t *testing.T) {
				code, err := cuda.Image(name, device)
				require.NoError(t, err)
				if code == nil {
					t.Skipf("this build carries no %s: it was made without nvcc", name)
				}
				for _, symbol := range coretest.ExportedSymbols(t, name) {
					require.True(t, bytes.Contains(code, []byte(symbol)), "%s is not in %s", symbol, name)
				}
			})
		}
	}
}
