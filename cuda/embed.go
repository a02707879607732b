// Package cuda carries the compiled kernels.
package cuda

import "embed"

//go:embed all:image
var images embed.FS

// Image is the fatbin of cuda/<name>.cu, or nil when the package was built without kernels.
func Image(name string) []byte {
	code, err := images.ReadFile("image/" + name + ".fatbin")
	if err != nil {
		return nil
	}
	return code
}

// Manifest is the JSON that describes the images, or nil.
func Manifest() []byte {
	text, err := images.ReadFile("image/manifest.json")
	if err != nil {
		return nil
	}
	return text
}
