package core_test

import (
	"encoding/json"
	"errors"
	"slices"
	"testing"
	"unicode/utf8"
	"unsafe"

	"github.com/sternway/sternway/core"
	"github.com/sternway/sternway/core/internal/coretest"
	"github.com/sternway/sternway/core/internal/errs"
	"github.com/sternway/sternway/core/internal/ops"
	"github.com/sternway/sternway/core/internal/tensor"
	"github.com/stretchr/testify/require"
)

// requireRefusal holds of every error that leaves the package.
func requireRefusal(t *testing.T, err error) {
	t.Helper()
	var refusal *errs.Error
	require.True(t, errors.As(err, &refusal), "%T: %v", err, err)
	require.NotEqual(t, errs.Internal, refusal.Kind)
	require.True(t, utf8.ValidString(errs.ErrorJSON(err)) && json.Valid([]byte(errs.ErrorJSON(err))))
	require.Less(t, len(err.Error()), 2000)
}

// Whatever the text, a descriptor is refused, or makes a plan for the CPU that tells what it is and
// refuses to run on nothing.
func FuzzParseDescriptor(f *testing.F) {
	for _, sample := range coretest.Samples() {
		dtypes := coretest.ElementsOf(sample)
		d := coretest.WithDType(sample, dtypes[len(dtypes)-1])
		text, err := json.Marshal(d)
		require.NoError(f, err)
		f.Add(`{"family": "` + d.Family() + `", ` + string(text[1:]))
	}
	for _, text := range []string{``, `{}`, `[]`, `null`, `{"family": "lerp_backward", "weight": "nan", "dtype": "float64", "shape": []}`,
		`{"family": "lerp_backward", "dtype": "float32", "shape": [0, 9223372036854775807, 9223372036854775807]}`,
		`{"family": "lerp_backward", "dtype": "float64", "shape": [144115188075855871]}`} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		d, err := ops.ParseDescriptor(text)
		if err != nil {
			requireRefusal(t, err)
			return
		}
		plan, err := core.Select(d, tensor.CPU, ops.Preference{})
		if err != nil {
			requireRefusal(t, err)
			return
		}
		require.True(t, json.Valid([]byte(plan.DescribeJSON())))
		require.Zero(t, plan.WorkspaceSize())
		require.GreaterOrEqual(t, coretest.ProblemOf(plan).Traffic, int64(0), "bytes moved")
		requireRefusal(t, plan.RunOrdered(0, tensor.Tensor{}, make([]tensor.Tensor, len(plan.Operands()))))
	})
}

// bytesOf hands out numbers from the input of a fuzz test, zeros when it is used up.
type bytesOf []byte

func (b *bytesOf) next() int64 {
	if len(*b) == 0 {
		return 0
	}
	v := (*b)[0]
	*b = (*b)[1:]
	return int64(v)
}

// extreme numbers stand for some of the bytes.
var extreme = []int64{-1 << 63, 1<<63 - 1, -1 << 62, 1 << 61, 1 << 40, -1 << 31, 9, -9}

func (b *bytesOf) stride() int64 {
	v := b.next()
	if v >= 248 {
		return extreme[v-248]
	}
	return v%32 - 12
}

// tensor is mostly the operand that is wanted, of some layout and somewhere in an arena; now and
// then anything.
func (b *bytesOf) tensor(o *ops.Operand, arena []byte) tensor.Tensor {
	flags := b.next()
	t := tensor.Tensor{DType: o.DTypes[b.next()%int64(len(o.DTypes))], Device: tensor.CPU, Present: 1, ReadOnly: int32(flags >> 7 & flags >> 6 & 1)}
	t.Pin = unsafe.Pointer(&arena[0])
	shape := coretest.Concrete(o.Shapes[b.next()%int64(len(o.Shapes))])
	t.NDim = int32(len(shape))
	copy(t.Shape[:], shape)
	copy(t.Strides[:], tensor.Compact(shape))
	if flags&1 != 0 {
		for d := range t.Strides {
			t.Strides[d] = b.stride()
		}
	}
	switch flags >> 1 & 15 {
	case 0:
		t.Present = 0
	case 1:
		t.NDim = int32(b.stride())
	case 2:
		t.DType = tensor.DType{Code: uint8(b.next()), Bits: uint8(b.next()), Lanes: uint16(b.next())}
	case 3:
		t.Shape[b.next()%tensor.MaxRank] = b.stride()
	case 4:
		t.Device = tensor.Device{Type: int32(b.next() % 15), Index: int32(b.next() % 2)}
	case 5:
		t.Data = uintptr(b.stride())
		return t
	}
	t.Data = uintptr(unsafe.Pointer(&arena[0])) + uintptr(b.next()*8+b.next()%8*(flags>>5&1))
	return t
}

// Whatever the tensors, a run is refused with every byte in place, or is safe: its outputs repeat
// no byte and share none with another operand, except one that is exactly an input, and nothing
// else is written.
func FuzzTensorCheck(f *testing.F) {
	f.Add([]byte{})
	f.Add(slices.Repeat([]byte{32, 0, 0}, 20))
	f.Add([]byte{0, 200, 0, 0, 10, 200, 0, 0, 20, 200, 0, 0, 30, 200, 0, 0, 40, 200, 0, 0, 50, 200, 0, 0, 60, 200, 0, 0, 70})
	f.Add([]byte{1, 200, 0, 0, 10, 201, 0, 0, 13, 1, 14, 15, 200, 0, 0, 30})
	f.Fuzz(func(t *testing.T, input []byte) {
		b := bytesOf(input)
		all := coretest.Samples()
		sample := all[b.next()%int64(len(all))]
		dtypes := coretest.ElementsOf(sample)
		d := coretest.WithDType(sample, dtypes[b.next()%int64(len(dtypes))])
		plan, err := core.Select(d, tensor.CPU, ops.Preference{})
		require.NoError(t, err)
		words := make([]uint64, 1024)
		arena := unsafe.Slice((*byte)(unsafe.Pointer(&words[0])), 8*len(words))
		args := make([]tensor.Tensor, len(coretest.ProblemOf(plan).Operands))
		for i := range args {
			args[i] = b.tensor(&coretest.ProblemOf(plan).Operands[i], arena[2048:])
			if args[i].NDim >= 0 && args[i].NDim <= tensor.MaxRank {
				require.True(t, json.Valid([]byte(args[i].DescribeJSON())))
			}
		}
		workspace := tensor.Tensor{}
		if b.next()%4 == 0 {
			workspace = b.tensor(&ops.Operand{DTypes: []tensor.DType{tensor.Uint8}, Shapes: [][]int64{{b.next()}}}, arena)
		}
		if coretest.ProblemOf(plan).CheckValues != nil && !insideArena(args, arena) {
			return // its values would be looked at
		}
		if err := plan.CanImplementOrdered(workspace, args); err != nil {
			requireRefusal(t, err)
			before := slices.Clone(arena)
			require.Equal(t, err, plan.RunOrdered(0, workspace, args))
			require.True(t, slices.Equal(before, arena), "a refused run writes")
			return
		}
		requireSafe(t, plan, workspace, args, arena)
	})
}

// insideArena reports whether every operand that has a span lies in the arena. One of an odd rank
// has none and is refused.
func insideArena(args []tensor.Tensor, arena []byte) bool {
	base := int64(uintptr(unsafe.Pointer(&arena[0])))
	for i := range args {
		if args[i].NDim < 0 || args[i].NDim > tensor.MaxRank {
			continue
		}
		low, high, ok := args[i].Span()
		if at := int64(args[i].Data) - base; args[i].Given() && ok && !args[i].Empty() && (at+low < 0 || at+high > int64(len(arena))) {
			return false
		}
	}
	return true
}

// requireSafe runs a plan whose operands lie in the arena, after a look at every byte of them.
func requireSafe(t *testing.T, plan *core.Plan, workspace tensor.Tensor, args []tensor.Tensor, arena []byte) {
	base, inside := uintptr(unsafe.Pointer(&arena[0])), true
	owner := map[int64]int{} // of each byte of an output
	for i := range args {
		if !args[i].Given() || args[i].Empty() {
			continue
		}
		require.Less(t, args[i].Data, uintptr(1)<<62)
		for at, count := range coretest.ByteCounts(&args[i]) {
			inside = inside && at >= int64(base) && at < int64(base)+int64(len(arena))
			if coretest.ProblemOf(plan).Operands[i].Out {
				require.Equal(t, 1, count, "%s repeats bytes", plan.Operands()[i])
				require.Zero(t, owner[at], "two outputs share bytes")
				owner[at] = i
			}
		}
	}
	for i := range args {
		if !args[i].Given() || coretest.ProblemOf(plan).Operands[i].Out {
			continue
		}
		for at := range coretest.ByteCounts(&args[i]) {
			if o := owner[at]; o != 0 {
				require.True(t, args[o].Same(&args[i]), "%s shares bytes with %s", plan.Operands()[o], plan.Operands()[i])
			}
		}
	}
	if !inside {
		return
	}
	before := slices.Clone(arena)
	require.NoError(t, plan.RunOrdered(0, workspace, args))
	for k := range arena {
		if owner[int64(base)+int64(k)] == 0 && before[k] != arena[k] {
			require.Failf(t, "wild write", "byte %d of the arena", k)
		}
	}
}
