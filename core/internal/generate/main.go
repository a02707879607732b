// Generate writes the files of CUDA and Python that repeat facts of the Go core, and the public
// names of its descriptors: `make generate` runs it. Each fact has one statement, in Go, and the
// compilers of the other languages see a copy.
package main

//go:generate go run . ../../..

import (
	"log"
	"os"
	"path/filepath"

	"github.com/sternway/sternway/core/internal/ops/elementwise"
	"github.com/sternway/sternway/core/internal/ops/embedding"
	"github.com/sternway/sternway/core/internal/ops/rope"
	"github.com/sternway/sternway/core/internal/ops/scan/gpu"
	"github.com/sternway/sternway/core/internal/ops/selective"
)

// headers are the generated headers of CUDA, by their paths.
var headers = map[string]header{
	"cuda/common/constants.gen.cuh": {sources: []string{"core/internal/launch/constants.go"}},
	"cuda/elementwise/args.gen.cuh": {
		sources: []string{"core/internal/ops/elementwise/args.go"},
		structs: []any{elementwise.Operand{}, elementwise.IterSpace{}}, tail: elementTuning,
	},
	"cuda/embedding/args.gen.cuh": {
		sources: []string{"core/internal/ops/embedding/args.go"}, prefix: "Bag",
		structs: []any{embedding.BagArgs{}, embedding.UniqueArgs{}, embedding.BagForwardArgs{}},
	},
	"cuda/rope/args.gen.cuh": {
		sources: []string{"core/internal/ops/rope/args.go"},
		structs: []any{rope.RopeProblem{}, rope.RopeOperand{}, rope.RopeArgs{}},
	},
	"cuda/selective/args.gen.cuh": {
		sources: []string{"core/internal/ops/selective/args.go"},
		structs: []any{selective.SelectiveOperand{}, selective.SelectiveArgs{}, selective.SelectiveBackwardArgs{}, selective.SumArgs{}},
	},
	"cuda/scan/args.gen.cuh": {
		sources: []string{"core/internal/ops/scan/gpu/tuning.go", "core/internal/ops/scan/gpu/args.go"},
		structs: []any{gpu.Strided{}, gpu.ScanArgs{}, gpu.CarryArgs{}, gpu.Bounds{}, gpu.LinearArgs{}, gpu.HeadsArgs{}, gpu.SumArgs{}, gpu.FillArgs{}, gpu.ClearArgs{}}, tail: scanTuning,
	},
}

// files are the contents of the generated files, by their paths from the root of the repository.
func files(root string) (map[string]string, error) {
	texts := map[string]string{
		"core/internal/cpu/dtypes.gen.h":     cDTypes(),
		"core/internal/cpu/each_float.gen.h": cEachFloat(),
		"cuda/common/dtypes.gen.cuh":         cudaDTypes(),
		"pybind/xla/dtypes.gen.h":            xlaDTypes(),
		"python/sternway/_choices.py":        choicesModule(),
		"python/sternway/_dtypes.py":         dtypesModule(),
		"python/sternway/_kinds.py":          kindsModule(),
	}
	descriptors, err := descriptorTypes()
	if err != nil {
		return nil, err
	}
	texts["core/descriptors.gen.go"] = descriptors
	for path, h := range headers {
		text, err := h.text(root)
		if err != nil {
			return nil, err
		}
		texts[path] = text
	}
	return texts, nil
}

func main() {
	texts, err := files(os.Args[1])
	if err != nil {
		log.Fatal(err)
	}
	for path, text := range texts {
		if err := os.WriteFile(filepath.Join(os.Args[1], path), []byte(text), 0o644); err != nil {
			log.Fatal(err)
		}
	}
}
