package main

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"
)

// It alone finds a name that was added to the core and not to Python.
func TestModuleIsGenerated(t *testing.T) {
	committed, err := os.ReadFile("../../python/sternway/_choices.py")
	require.NoError(t, err)
	require.Equal(t, module(), string(committed), "make generate writes it")
}
