package core

// maxOperands is the largest number of operands of an element operation.
const maxOperands = 7

// space is the index space of one pass over the operands, slowest dimension first: kept dimensions, then reduced ones, and for
// columns one more kept dimension, the fastest. strides[i] belongs to the operand number i of the plan, 0 where it is broadcast.
type space struct {
	n       int // dimensions in use
	kept    int // how many lead
	columns bool
	extent  [MaxRank]int64
	stride  [maxOperands][MaxRank]int64
}

// append adds dimension d of another space as the fastest one.
func (s *space) append(from *space, d int) {
	s.extent[s.n] = from.extent[d]
	for i := range s.stride {
		s.stride[i][s.n] = from.stride[i][d]
	}
	s.n++
}

// merges reports that dimensions d and d+1 walk like one for every operand.
func (s *space) merges(d int) bool {
	for i := range s.stride {
		if s.stride[i][d] != s.stride[i][d+1]*s.extent[d+1] {
			return false
		}
	}
	return true
}

// size is the number of indices of dimensions low..high-1.
func (s *space) size(low, high int) int64 {
	n := int64(1)
	for _, e := range s.extent[low:high] {
		n *= e
	}
	return n
}

// counts are the numbers of kept indices in front, of reduced indices, and of kept columns.
func (s *space) counts() (kept, reduced, columns int64) {
	last := s.n
	columns = 1
	if s.columns {
		last--
		columns = s.extent[last]
	}
	return s.size(0, s.kept), s.size(s.kept, last), columns
}

// arrange orders the dimensions of a row-major space for one pass. marked is the set of dimensions that the pass sums over, or that
// must stay the fastest for another reason; reduces says which. A map walks in the order of its first output; a reduction keeps the
// order of the shape.
func (s *space) arrange(marked uint8, reduces, columns bool, firstOut int) space {
	if marked == 0 {
		a, _ := s.sorted(firstOut).merged(0)
		a.kept = a.n
		return a
	}
	natural, marked := s.merged(marked)
	var a space
	last := -1 // columns: the kept dimension that becomes the fastest
	for d := range natural.n {
		if columns && marked>>d&1 == 0 {
			last = d
		}
	}
	for d := range natural.n {
		if marked>>d&1 == 0 && d != last {
			a.append(&natural, d)
		}
	}
	a.kept = a.n
	for d := range natural.n {
		if marked>>d&1 != 0 {
			a.append(&natural, d)
		}
	}
	if a.columns = last >= 0; a.columns {
		a.append(&natural, last)
	}
	if !reduces {
		a.kept = a.n
	}
	return a
}

// merged drops extents of 1 that are not marked and joins neighbours of one class that walk like one; it answers with the set of
// marked dimensions of the result.
func (s *space) merged(marked uint8) (space, uint8) {
	var m space
	var marks uint8
	for d := range s.n {
		mark := marked >> d & 1
		if s.extent[d] == 1 && mark == 0 {
			continue
		}
		m.append(s, d)
		k := m.n - 1
		if k > 0 && marks>>(k-1)&1 == mark && m.merges(k-1) {
			m.extent[k-1] *= m.extent[k]
			for i := range m.stride {
				m.stride[i][k-1] = m.stride[i][k]
			}
			m.n--
			continue
		}
		marks |= mark << k
	}
	return m, marks
}

// sorted orders dimensions by falling stride of operand o, so that the fastest dimension is the one that o stores densely.
func (s *space) sorted(o int) *space {
	var a space
	order := make([]int, 0, MaxRank)
	for d := range s.n {
		at := len(order)
		order = append(order, d)
		for at > 0 && magnitude(s.stride[o][order[at-1]]) < magnitude(s.stride[o][d]) {
			order[at] = order[at-1]
			at--
		}
		order[at] = d
	}
	for _, d := range order {
		a.append(s, d)
	}
	return &a
}

func magnitude(v int64) int64 { return max(v, -v) }

// view is how one operand lies under some of the dimensions of a space.
type view struct {
	n       int
	extent  [MaxRank]int64
	stride  [MaxRank]int64
	regular bool  // the k-th element lies at k * step
	step    int64 // elements
}

// view selects the dimensions low..high-1, and the fastest one as well when fastest is set.
func (s *space) view(operand, low, high int, fastest bool) view {
	var v view
	for d := low; d < s.n; d++ {
		if d < high || fastest && d == s.n-1 {
			v.extent[v.n], v.stride[v.n] = s.extent[d], s.stride[operand][d]
			v.n++
		}
	}
	v.regular = true
	if v.n > 0 {
		v.step = v.stride[v.n-1]
	}
	for d := 0; d+1 < v.n; d++ {
		v.regular = v.regular && v.stride[d] == v.stride[d+1]*v.extent[d+1]
	}
	return v
}

// pieces visits the elements start..start+n-1 in runs of one stride: at counts from start, offset is in elements of the operand.
func (v *view) pieces(start, n int64, visit func(at, offset, count, step int64)) {
	if v.regular {
		visit(0, start*v.step, n, v.step)
		return
	}
	var index [MaxRank]int64
	offset, rest := int64(0), start
	for d := v.n - 1; d >= 0; d-- {
		index[d] = rest % v.extent[d]
		rest /= v.extent[d]
		offset += index[d] * v.stride[d]
	}
	last := v.n - 1
	for at := int64(0); at < n; {
		count := min(v.extent[last]-index[last], n-at)
		visit(at, offset, count, v.stride[last])
		at += count
		index[last] += count
		offset += count * v.stride[last]
		for d := last; d > 0 && index[d] == v.extent[d]; d-- {
			offset += v.stride[d-1] - index[d]*v.stride[d]
			index[d] = 0
			index[d-1]++
		}
	}
}
