package main

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestHeaderIsGenerated(t *testing.T) {
	want, err := header("..")
	require.NoError(t, err)
	committed, err := os.ReadFile("../../../../../../cuda/scan/tuning.gen.cuh")
	require.NoError(t, err)
	require.Equal(t, want, string(committed), "make generate writes it")
}
