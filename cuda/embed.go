// Package cuda carries the compiled kernels: an image for each family of operations and each
// architecture, made from the .cu files in the folders beside it by tools/kernels.py. A build for a
// machine without a GPU has none, and core then runs on the CPU alone.
package cuda

import (
	"bytes"
	"embed"
	"encoding/json"
	"fmt"
	"io"
	"path"
	"strings"

	"github.com/ulikunitz/xz/lzma"
)

//go:embed all:image
var files embed.FS

// ArchitectureError says that the package was built for other devices.
type ArchitectureError struct {
	Codes []string // the architectures that it was built for
}

func (e *ArchitectureError) Error() string {
	return "no kernels for this device, only for " + strings.Join(e.Codes, ", ")
}

// Image is the code of a family, "lerp" for example, for a device, "sm_90". It is nil when the
// package was built without kernels, and the error is an [ArchitectureError] when it was built for
// other devices.
func Image(family, device string) ([]byte, error) {
	var codes []string
	names, err := files.ReadDir("image")
	if err != nil {
		return nil, err
	}
	for _, file := range names {
		if code, found := strings.CutPrefix(strings.TrimSuffix(file.Name(), ".lzma"), family+"."); found {
			codes = append(codes, code)
		}
	}
	code := choose(codes, device)
	switch {
	case len(codes) == 0:
		return nil, nil
	case code == "":
		return nil, &ArchitectureError{codes}
	}
	packed, err := files.ReadFile(path.Join("image", family+"."+code+".lzma"))
	if err != nil {
		return nil, err
	}
	image, err := lzma.NewReader(bytes.NewReader(packed))
	if err != nil {
		return nil, err
	}
	return io.ReadAll(image)
}

// choose takes the code that a device runs: machine code of its own generation (sm_86 and sm_89 run
// that of sm_80), the newest that it is not too old for, or else PTX, which the driver compiles.
func choose(codes []string, device string) string {
	var wanted, have, newest int
	_, _ = fmt.Sscanf(device, "sm_%d", &wanted) // 0, which nothing fits, where the driver names none
	chosen := ""
	for _, code := range codes {
		switch machine, _ := fmt.Sscanf(code, "sm_%d", &have); {
		case machine == 0 && newest == 0:
			chosen = code
		case machine == 1 && have/10 == wanted/10 && have <= wanted && have > newest:
			chosen, newest = code, have
		}
	}
	return chosen
}

// Manifest says in JSON what was built: architectures, nvcc, and the hash of every family's images;
// nil when there is none.
func Manifest() []byte {
	data, err := files.ReadFile("image/manifest.json")
	if err != nil {
		return nil
	}
	return data
}

// Toolkit is the major version of the CUDA toolkit that compiled the images, 13 for example; 0 when
// there are none. A driver that supports no CUDA of this version loads none of them.
func Toolkit() int { return toolkitOf(Manifest()) }

func toolkitOf(manifest []byte) int {
	var made struct{ NVCC string }
	if json.Unmarshal(manifest, &made) != nil {
		return 0
	}
	var major int
	_, _ = fmt.Sscanf(made.NVCC, "%d", &major) // 0 where there is none
	return major
}
