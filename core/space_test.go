package core

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

const walkers = 3 // operands with strides in these tests

// point is where each operand has its element for one index.
type point [walkers]int64

// points lists the indices of some dimensions of a space in row-major order, counted from a point.
func (s *space) points(dims []int, from point) []point {
	list := []point{from}
	for _, d := range dims {
		var next []point
		for _, p := range list {
			for i := range s.extent[d] {
				q := p
				for o := range q {
					q[o] += i * s.stride[o][d]
				}
				next = append(next, q)
			}
		}
		list = next
	}
	return list
}

// randomSpace has neighbours that merge, broadcast operands, extents of 1 and now and then of 0.
func randomSpace(r *rand.Rand) space {
	s := space{n: r.IntN(6)}
	s.kept = s.n
	for d := range s.n {
		s.extent[d] = []int64{1, 2, 3, 2, 4, 1, 3, 0}[r.IntN(7+r.IntN(2))]
	}
	for o := range walkers {
		step := int64(1 + r.IntN(2))
		for d := s.n - 1; d >= 0; d-- {
			switch r.IntN(5) {
			case 0: // broadcast
			case 1:
				s.stride[o][d] = -step
			case 2:
				s.stride[o][d] = step + 1
			default:
				s.stride[o][d] = step
				step *= max(s.extent[d], 1)
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

// A reduction keeps the order of the shape: sum k takes the same elements in the same order whatever the strides.
func TestArrangedReductionsKeepTheOrder(t *testing.T) {
	random := rand.New(rand.NewPCG(2, 9))
	for range 20000 {
		s := randomSpace(random)
		reduced := uint8(random.IntN(1 << s.n))
		if reduced == 0 {
			continue
		}
		columns := random.IntN(2) == 0
		a := s.arrange(reduced, true, columns, 0)

		kept, sums := s.points(pick(s.n, func(d int) bool { return reduced>>d&1 == 0 }), point{}), [][]point{}
		for _, from := range kept {
			sums = append(sums, s.points(pick(s.n, func(d int) bool { return reduced>>d&1 != 0 }), from))
		}
		isKept := func(d int) bool { return d < a.kept || a.columns && d == a.n-1 }
		got := [][]point{}
		for _, from := range a.points(pick(a.n, isKept), point{}) {
			got = append(got, a.points(pick(a.n, func(d int) bool { return !isKept(d) }), from))
		}
		require.Equal(t, sums, got, "%+v reduced over %b", s, reduced)

		before, along, wide := a.counts()
		require.Equal(t, int64(len(kept)), before*wide)
		require.Equal(t, int64(len(s.points(pick(s.n, func(d int) bool { return reduced>>d&1 != 0 }), point{}))), along)
		require.LessOrEqual(t, a.n, s.n)
		require.False(t, a.columns && !columns)
	}
}

// A map may walk in any order, as long as every index is met once.
func TestArrangedMapsMeetEveryIndexOnce(t *testing.T) {
	random := rand.New(rand.NewPCG(4, 1))
	order := func(p, q point) int { return slices.Compare(p[:], q[:]) }
	for range 20000 {
		s := randomSpace(random)
		first := random.IntN(walkers)
		a := s.arrange(0, false, false, first)
		require.Equal(t, a.n, a.kept)
		every := func(int) bool { return true }
		want, got := s.points(pick(s.n, every), point{}), a.points(pick(a.n, every), point{})
		slices.SortFunc(want, order)
		slices.SortFunc(got, order)
		require.Equal(t, want, got, "%+v", s)
		for d := 1; d < a.n; d++ {
			require.GreaterOrEqual(t, max(a.stride[first][d-1], -a.stride[first][d-1]), max(a.stride[first][d], -a.stride[first][d]),
				"%+v is not walked in the order of its output", s)
		}
	}
}

// A map whose last dimensions are marked walks along them fastest, and otherwise in the order of the shape.
func TestArrangedMapsOfTokens(t *testing.T) {
	random := rand.New(rand.NewPCG(8, 3))
	for range 5000 {
		s := randomSpace(random)
		marked := uint8(random.IntN(1 << s.n))
		if marked == 0 {
			continue
		}
		a := s.arrange(marked, false, false, 0)
		require.Equal(t, a.n, a.kept)
		front, back := pick(s.n, func(d int) bool { return marked>>d&1 == 0 }), pick(s.n, func(d int) bool { return marked>>d&1 != 0 })
		every := func(int) bool { return true }
		require.Equal(t, s.points(append(front, back...), point{}), a.points(pick(a.n, every), point{}), "%+v marked %b", s, marked)
	}
}

func TestMergedDimensions(t *testing.T) {
	row := func(extents []int64, strides ...[]int64) space {
		s := space{n: len(extents), kept: len(extents)}
		copy(s.extent[:], extents)
		for o := range strides {
			copy(s.stride[o][:], strides[o])
		}
		return s
	}
	for _, c := range []struct {
		name    string
		space   space
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
		a := c.space.arrange(c.reduced, true, c.columns, 0)
		require.Equal(t, c.extents, a.extent[:a.n], c.name)
		require.Equal(t, c.kept, a.kept, c.name)
	}
}

// Pieces of a view are its elements in row-major order, from any start.
func TestPiecesAgainstBruteForce(t *testing.T) {
	random := rand.New(rand.NewPCG(6, 6))
	for range 20000 {
		s := randomSpace(random)
		operand, low := random.IntN(walkers), random.IntN(s.n+1)
		high := low + random.IntN(s.n-low+1)
		fastest := random.IntN(2) == 0
		v := s.view(operand, low, high, fastest)
		all := s.points(pick(s.n, func(d int) bool { return d >= low && d < high || fastest && d == s.n-1 && d >= low }), point{})
		if len(all) == 0 {
			continue
		}
		start := random.IntN(len(all))
		n := 1 + random.IntN(len(all)-start)
		var got, want []int64
		v.pieces(int64(start), int64(n), func(at, offset, count, step int64) {
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
