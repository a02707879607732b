package cuda

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// Machine code runs on devices of the same generation that are no older; PTX on what has none.
func TestChoiceOfCode(t *testing.T) {
	usual := []string{"compute_80", "sm_100", "sm_120", "sm_80", "sm_90"}
	for _, row := range []struct {
		codes          []string
		device, wanted string
	}{
		{usual, "sm_80", "sm_80"},
		{usual, "sm_86", "sm_80"},
		{usual, "sm_89", "sm_80"},
		{usual, "sm_90", "sm_90"},
		{usual, "sm_100", "sm_100"},
		{usual, "sm_103", "sm_100"},
		{usual, "sm_110", "compute_80"},
		{usual, "sm_121", "sm_120"},
		{usual, "sm_75", "compute_80"},
		{[]string{"sm_80", "sm_86", "compute_80"}, "sm_89", "sm_86"},
		{nil, "sm_90", ""},
		{usual, "", "compute_80"},
	} {
		require.Equal(t, row.wanted, choose(row.codes, row.device), row.device)
	}
}

func TestToolkitOfAManifest(t *testing.T) {
	require.Equal(t, 13, toolkitOf([]byte(`{"architectures": ["sm_90"], "nvcc": "13.0.88"}`)))
	require.Equal(t, 12, toolkitOf([]byte(`{"nvcc": "12.8"}`)))
	require.Zero(t, toolkitOf([]byte(`{}`)))
	require.Zero(t, toolkitOf(nil))
}
