package cpu_test

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/sternway/sternway/core/internal/cpu"
	"github.com/stretchr/testify/require"
)

const walkers = 3 // operands with strides in these tests

// point is where each operand has its element for one index.
type point [walkers]int64

// points lists the indices of some dimensions of a space in row-major order, counted from a point.
func points(s *cpu.Space, dims []int, from point) []point {
	list := []point{from}
	for _, d := range dims {
		var next []point
		for _, p := range list {
			for i := range s.Extent[d] {
				q := p
				for o := range q {
					q[o] += i * s.Stride[o][d]
				}
				next = append(next, q)
			}
		}
		list = next
	}
	return list
}

// randomSpace has neighbours that merge, broadcast operands, extents of 1 and now and then of 0.
func randomSpace(r *rand.Rand) cpu.Space {
	s := cpu.Space{N: r.IntN(6)}
	s.Kept = s.N
	for d := range s.N {
		s.Extent[d] = []int64{1, 2, 3, 2, 4, 1, 3, 0}[r.IntN(7+r.IntN(2))]
	}
	for o := range walkers {
		step := int64(1 + r.IntN(2))
		for d := s.N - 1; d >= 0; d-- {
			switch r.IntN(5) {
			case 0: // broadcast
			case 1:
				s.Stride[o][d] = -step
			case 2:
				s.Stride[o][d] = step + 1
			default:
				s.Stride[o][d] = step
				step *= max(s.Extent[d], 1)
			}
		}
	}
	return s
}

func pick(n int, choose func(d int) bool) (dims []int) {
	for d := range n {
		if choose(d) {
			dims = append(dims, d)
		}
	}
	return dims
}

// A reduction keeps the order of the shape: sum k takes the same elements in the same order
// whatever the strides.
func TestArrangedReductionsKeepTheOrder(t *testing.T) {
	random := rand.New(rand.NewPCG(2, 9))
	for range 20000 {
		s := randomSpace(random)
		reduced := uint8(random.IntN(1 << s.N))
		if reduced == 0 {
			continue
		}
		columns := random.IntN(2) == 0
		a := s.Arrange(reduced, true, columns, 0)

		kept, sums := points(&s, pick(s.N, func(d int) bool { return reduced>>d&1 == 0 }), point{}), [][]point{}
		for _, from := range kept {
			sums = append(sums, points(&s, pick(s.N, func(d int) bool { return reduced>>d&1 != 0 }), from))
		}
		isKept := func(d int) bool { return d < a.Kept || a.Columns && d == a.N-1 }
		got := [][]point{}
		for _, from := range points(&a, pick(a.N, isKept), point{}) {
			got = append(got, points(&a, pick(a.N, func(d int) bool { return !isKept(d) }), from))
		}
		require.Equal(t, sums, got, "%+v reduced over %b", s, reduced)

		before, along, wide := a.Counts()
		require.Equal(t, int64(len(kept)), before*wide)
		require.Equal(t, int64(len(points(&s, pick(s.N, func(d int) bool { return reduced>>d&1 != 0 }), point{}))), along)
		require.LessOrEqual(t, a.N, s.N)
		require.False(t, a.Columns && !columns)
	}
}

// A map may walk in any order, as long as every index is met once.
func TestArrangedMapsMeetEveryIndexOnce(t *testing.T) {
	random := rand.New(rand.NewPCG(4, 1))
	order := func(p, q point) int { return slices.Compare(p[:], q[:]) }
	for range 20000 {
		s := randomSpace(random)
		first := random.IntN(walkers)
		a := s.Arrange(0, false, false, first)
		require.Equal(t, a.N, a.Kept)
		every := func(int) bool { return true }
		want, got := points(&s, pick(s.N, every), point{}), points(&a, pick(a.N, every), point{})
		slices.SortFunc(want, order)
		slices.SortFunc(got, order)
		require.Equal(t, want, got, "%+v", s)
		for d := 1; d < a.N; d++ {
			require.GreaterOrEqual(t, max(a.Stride[first][d-1], -a.Stride[first][d-1]), max(a.Stride[first][d], -a.Stride[first][d]),
				"%+v is not walked in the order of its output", s)
		}
	}
}

// A map whose last dimensions are marked walks along them fastest, and otherwise in the order of
// the shape.
func TestArrangedMapsOfTokens(t *testing.T) {
	random := rand.New(rand.NewPCG(8, 3))
	for range 5000 {
		s := randomSpace(random)
		marked := uint8(random.IntN(1 << s.N))
		if marked == 0 {
			continue
		}
		a := s.Arrange(marked, false, false, 0)
		require.Equal(t, a.N, a.Kept)
		front, back := pick(s.N, func(d int) bool { return marked>>d&1 == 0 }), pick(s.N, func(d int) bool { return marked>>d&1 != 0 })
		every := func(int) bool { return true }
		require.Equal(t, points(&s, append(front, back...), point{}), points(&a, pick(a.N, every), point{}), "%+v marked %b", s, marked)
	}
}

func TestMergedDimensions(t *testing.T) {
	row := func(extents []int64, strides ...[]int64) cpu.Space {
		s := cpu.Space{N: len(extents), Kept: len(extents)}
		copy(s.Extent[:], extents)
		for o := range strides {
			copy(s.Stride[o][:], strides[o])
		}
		return s
	}
	for _, c := range []struct {
		name    string
		space   cpu.Space
		reduced uint8
		columns bool
		extents []int64 // of the result
		kept    int
	}{
		{"contiguous is one dimension", row([]int64{2, 3, 4}, []int64{12, 4, 1}), 0, false, []int64{24}, 1},
		{"permuted alike is one dimension", row([]int64{2, 3, 4}, []int64{1, 2, 6}, []int64{1, 2, 6}), 0, false, []int64{24}, 1},
		{"one operand breaks it", row([]int64{2, 3, 4}, []int64{12, 4, 1}, []int64{0, 4, 1}), 0, false, []int64{2, 12}, 2},
		{"extents of 1 vanish", row([]int64{1, 3, 1}, []int64{7, 1, 9}), 0, false, []int64{3}, 1},
		{"0-d", row(nil), 0, false, []int64{}, 0},
		{"rows", row([]int64{2, 3, 4}, []int64{12, 4, 1}), 0b100, false, []int64{6, 4}, 1},
		{"rows of two dimensions", row([]int64{2, 3, 4}, []int64{12, 4, 1}), 0b110, false, []int64{2, 12}, 1},
		{"columns", row([]int64{2, 3, 4}, []int64{12, 4, 1}), 0b001, true, []int64{2, 12}, 0},
		{"columns inside rows", row([]int64{2, 3, 4}, []int64{12, 4, 1}), 0b010, true, []int64{2, 3, 4}, 1},
		{"the same by rows", row([]int64{2, 3, 4}, []int64{12, 4, 1}), 0b010, false, []int64{2, 4, 3}, 2},
		{"all of it has no columns", row([]int64{2, 3, 4}, []int64{12, 4, 1}), 0b111, true, []int64{24}, 0},
	} {
		a := c.space.Arrange(c.reduced, true, c.columns, 0)
		require.Equal(t, c.extents, a.Extent[:a.N], c.name)
		require.Equal(t, c.kept, a.Kept, c.name)
	}
}

// VisitRuns of a view are its elements in row-major order, from any start.
func TestPiecesAgainstBruteForce(t *testing.T) {
	random := rand.New(rand.NewPCG(6, 6))
	for range 20000 {
		s := randomSpace(random)
		operand, low := random.IntN(walkers), random.IntN(s.N+1)
		high := low + random.IntN(s.N-low+1)
		fastest := random.IntN(2) == 0
		v := s.View(operand, low, high, fastest)
		all := points(&s, pick(s.N, func(d int) bool { return d >= low && d < high || fastest && d == s.N-1 && d >= low }), point{})
		if len(all) == 0 {
			continue
		}
		start := random.IntN(len(all))
		n := 1 + random.IntN(len(all)-start)
		var got, want []int64
		v.VisitRuns(int64(start), int64(n), func(at, offset, count, step int64) {
			require.Equal(t, int64(len(got)), at)
			require.Positive(t, count)
			for i := range count {
				got = append(got, offset+i*step)
			}
		})
		for _, p := range all[start : start+n] {
			want = append(want, p[operand])
		}
		require.Equal(t, want, got, "%+v", v)
	}
}
