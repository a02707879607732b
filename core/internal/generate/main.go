// Generate writes the files of CUDA and Python that repeat facts of the Go core: `make generate`
// runs it. Each fact has one statement, in Go, and the compilers of the other languages see a copy.
package main

//go:generate go run . ../../..

import (
	"log"
	"os"
	"path/filepath"
)

// files are the contents of the generated files, by their paths from the root of the repository.
func files(root string) (map[string]string, error) {
	scan, err := scanHeader(filepath.Join(root, "core/internal/ops/scan/gpu"))
	if err != nil {
		return nil, err
	}
	return map[string]string{
		"cuda/scan/tuning.gen.cuh":    scan,
		"python/sternway/_choices.py": choicesModule(),
		"python/sternway/_kinds.py":   kindsModule(),
	}, nil
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
