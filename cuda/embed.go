// Package cuda carries the compiled kernels: one fatbin for each family of operations, made from the .cu files beside it by
// tools/kernels.py. A build without a CUDA compiler has none, and core then runs on the CPU alone.
package cuda

import "embed"

//go:embed all:image
var files embed.FS

// Image is the fatbin of a family, "lerp" for example; nil when the package was built without it.
func Image(family string) []byte { return read(family + ".fatbin") }

// Manifest says in JSON what was built: architectures, nvcc, and the hash of every image; nil when there is none.
func Manifest() []byte { return read("manifest.json") }

func read(name string) []byte {
	data, err := files.ReadFile("image/" + name)
	if err != nil {
		return nil
	}
	return data
}
