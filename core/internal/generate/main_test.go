package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

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
