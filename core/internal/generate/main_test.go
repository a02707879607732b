package main

import (
	"os"
	"path/filepath"
	"reflect"
	"testing"

	"github.com/stretchr/testify/require"
)

// It alone finds a field whose size would differ between Go and CUDA.
func TestUnknownTypesAreRefused(t *testing.T) {
	field := reflect.TypeFor[struct{ flag bool }]().Field(0)
	require.PanicsWithValue(t, "field flag has a type that kernels do not take: bool", func() { cType(field) })
}

// It alone finds a fact that was changed in Go, and not in the files that repeat it.
func TestFilesAreGenerated(t *testing.T) {
	const root = "../../.."
	want, err := files(root)
	require.NoError(t, err)
	for path, text := range want {
		committed, err := os.ReadFile(filepath.Join(root, path))
		require.NoError(t, err)
		require.Equal(t, text, string(committed), "make generate writes %s", path)
	}
}
