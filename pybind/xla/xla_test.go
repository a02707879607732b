package xla

import (
	"errors"
	"fmt"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sternway/sternway/core"
)

// The C part is tested in python/tests/test_jax.py, through JAX.

const lerp = `{"descriptor":{"family":"lerp_backward","shape":[2,3],"dtype":"float32","weight":0.25},"operands":["dy","da","db"]}`

const onCPU = -1

func TestRun(t *testing.T) {
	dy, da, db := []float32{1, 2, 3, 4, 5, 6}, make([]float32, 6), make([]float32, 6)
	buffers := []core.Tensor{core.Of(dy, 2, 3), core.Of(da, 2, 3), core.Of(db, 2, 3)}
	require.NoError(t, run(lerp, onCPU, false, buffers, 0))
	require.Equal(t, []float32{0.75, 1.5, 2.25, 3, 3.75, 4.5}, da)
	require.Equal(t, []float32{0.25, 0.5, 0.75, 1, 1.25, 1.5}, db)
}

func TestProgramsAreFoundWithoutAllocation(t *testing.T) {
	require.NoError(t, run(lerp, onCPU, true, nil, 0))
	require.Zero(t, testing.AllocsPerRun(100, func() { _, _ = programOf(lerp, onCPU) }))
}

func TestManyThreadsMakeOneProgram(t *testing.T) {
	var group sync.WaitGroup
	for range 8 {
		group.Go(func() {
			p, err := programOf(lerp, onCPU)
			require.NoError(t, err)
			require.Equal(t, 3, len(p.places))
		})
	}
	group.Wait()
}

func TestProgramsAreDroppedWhenThereAreMany(t *testing.T) {
	for n := range maxPrograms + 10 {
		text := fmt.Sprintf(`{"descriptor":{"family":"lerp_backward","shape":[%d],"dtype":"float32","weight":0.25},"operands":["dy","da"]}`, n)
		_, err := programOf(text, onCPU)
		require.NoError(t, err)
	}
	require.LessOrEqual(t, len(programs.bySite), maxPrograms)
}

func TestRunRefuses(t *testing.T) {
	for text, code := range map[string]int{
		`no JSON`: codeInternal,
		`{"descriptor":{"family":"lerp_backward","shape":[3],"dtype":"int8","weight":1},"operands":["dy"]}`:           codeUnimplemented,
		`{"descriptor":{"family":"lerp_backward","shape":[3],"dtype":"float32","weight":1},"operands":["dy","dz"]}`:   codeInternal,
		`{"descriptor":{"family":"lerp_backward","shape":[3],"dtype":"float32","weight":1},"operands":["dy","dy"]}`:   codeInternal,
		`{"descriptor":{"family":"lerp_backward","shape":[3,2],"dtype":"float32","weight":1},"operands":["dy","da"]}`: codeInvalidArgument, // another shape
		`{"descriptor":{"family":"lerp_backward","shape":[3],"dtype":"float32","weight":1},"operands":["dy"]}`:        codeInternal,        // fewer names
		`{"descriptor":{"family":"lerp_backward","shape":[-3],"dtype":"float32","weight":1},"operands":["dy","da"]}`:  codeInvalidArgument,
		`{"descriptor":{"family":"scan_backward","kind":"cumsum","shape":[3],"dtype":"f"},"operands":["dy","dx"]}`:    codeUnimplemented,
	} {
		err := run(text, onCPU, false, []core.Tensor{core.Of(make([]float32, 3)), core.Of(make([]float32, 3))}, 0)
		require.Error(t, err, text)
		require.Equal(t, code, codeOf(err), "%s: %v", text, err)
	}
}

func TestAPanicIsAnError(t *testing.T) {
	programs.bySite[site{"broken", onCPU}] = &program{places: []int{99}}
	defer delete(programs.bySite, site{"broken", onCPU})
	err := run("broken", onCPU, false, make([]core.Tensor, 1), 0)
	require.ErrorContains(t, err, "a panic")
	var refusal *core.Error
	require.False(t, errors.As(err, &refusal))
}

func TestAlign(t *testing.T) {
	for _, address := range []uintptr{0, 1, 128, 255, 256} {
		w := core.Tensor{Data: address, NDim: 1}
		w.Shape[0] = 1000
		align(&w)
		require.Zero(t, w.Data%workspaceAlignment)
		require.Equal(t, int64(1000), w.Shape[0]+int64(w.Data-address))
	}
}

func TestHandlers(t *testing.T) {
	require.NotZero(t, Handler("cpu", 3))
	require.NotZero(t, Handler("CUDA", 3))
	require.NotEqual(t, Handler("cpu", 3), Handler("CUDA", 3))
	require.Zero(t, Handler("abacus", 3))
}
