package pybind

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sternway/sternway/core"
)

// Runs need a Python process: python/tests/test_seam.py makes them.

const descriptor = `{"family":"lerp_backward","shape":[2,3],"dtype":"float32","weight":0.25}`

// crossed reads an error as Python does.
func crossed(t *testing.T, err error) core.Error {
	t.Helper()
	require.Error(t, err)
	var e core.Error
	require.NoError(t, json.Unmarshal([]byte(err.Error()), &e), err.Error())
	return e
}

func TestHandles(t *testing.T) {
	first, err := Select(descriptor, "cpu", "{}")
	require.NoError(t, err)
	second, err := Select(descriptor, "cpu", "{}")
	require.NoError(t, err)
	require.Greater(t, second, first)

	text, err := Describe(first)
	require.NoError(t, err)
	require.True(t, json.Valid([]byte(text)), text)

	for _, want := range []int64{1, 0} {
		count, err := Release(first)
		require.NoError(t, err)
		require.Equal(t, want, count)
	}
	_, err = Describe(first)
	require.Contains(t, crossed(t, err).Got, "released")
	_, err = Run(first, 1, 0)
	require.Contains(t, crossed(t, err).Got, "released")
	_, err = Describe(second)
	require.NoError(t, err)
}

func TestErrorsCross(t *testing.T) {
	_, err := Select(`{"family":"nothing"}`, "cpu", "{}")
	require.Equal(t, core.InvalidProblem, crossed(t, err).Kind)
	_, err = Select(descriptor, "abacus", "{}")
	require.Equal(t, core.Unsupported, crossed(t, err).Kind)
	_, err = SetNumThreads(-1)
	require.Error(t, err)

	plan, err := Select(descriptor, "cpu", "{}")
	require.NoError(t, err)
	_, err = CanImplement(plan, 1) // no Python here
	e := crossed(t, err)
	require.Equal(t, core.Internal, e.Kind)
	require.Equal(t, "lerp_backward", e.Op)
	require.Equal(t, "workspace", e.Operand)
	_, err = Inspect(1)
	require.Equal(t, core.Internal, crossed(t, err).Kind)
}

func TestPanicsCross(t *testing.T) {
	faulty := func() (err error) {
		defer recoverTo(&err)
		var none []int
		none[3]++
		return nil
	}
	e := crossed(t, faulty())
	require.Equal(t, core.Internal, e.Kind)
	require.Contains(t, e.Got, "index out of range [3]")
}

func TestInfo(t *testing.T) {
	text, err := Info()
	require.NoError(t, err)
	require.True(t, json.Valid([]byte(text)), text)
	before, err := GetNumThreads()
	require.NoError(t, err)
	require.Positive(t, before)
	_, err = SetNumThreads(3)
	require.NoError(t, err)
	now, err := GetNumThreads()
	require.NoError(t, err)
	require.EqualValues(t, 3, now)
	_, err = SetNumThreads(before)
	require.NoError(t, err)
}
