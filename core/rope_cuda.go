package core

import "math"

// The launch of cuda/rope.cu.

const (
	ropeFine   = 64 // frequencies that a launch gives
	ropeCoarse = 14 // factors of the bits of the number of a pair above those, and one that evens their number
	ropeBlock  = 256
)

// ropeLaunch says how threads share the work.
type ropeLaunch struct {
	vector           int64 // elements of an access
	units, rotating  int64 // of a token, and those that rotate
	copied           int64 // vectors outside the rotated part
	places, batches  int64 // tokens of all batches that have angles of their own; batches that share theirs
	lanes, tiles     int64
	run              int64 // rows of a thread
	chunks, chunksOf int64 // blocks over the rows of dy, and of both
}

func (p *ropeProgram) device(args []Tensor, _ uintptr, q *queue) error {
	if p.nothing() {
		return nil
	}
	rotations, n := p.rotations(args)
	l := p.launch(args, rotations[:n])
	q.begin()
	p.packWalk(q, args, &l)
	for i := range rotations {
		r := &rotations[i]
		if i == n {
			var none [11]uint64
			q.launch.Put(none[:]...)
			break
		}
		q.address(r.input, r.in.data)
		q.address(r.output, r.out.data)
		q.launch.Put(uint64(r.heads))
		for _, rows := range []*ropeRows{&r.in, &r.out} {
			q.launch.Put(uint64(rows.batch), uint64(rows.head), uint64(rows.token), uint64(rows.step))
		}
	}
	return q.submit(0, l.tiles*l.chunksOf, ropeBlock)
}

func (p *ropeProgram) launch(args []Tensor, rotations []ropePair) ropeLaunch {
	l := ropeLaunch{vector: p.vector(args, rotations), places: p.SeqLen, batches: p.BatchSize}
	if p.anglesDiffer(args) {
		l.places, l.batches = p.SeqLen*p.BatchSize, 1
	}
	l.rotating = p.pairs / l.vector
	l.copied = (p.HeadDim - 2*p.pairs) / l.vector
	l.units = l.rotating + ceil(l.copied, 2) // a unit is two vectors,
	if p.Pairing == "interleaved" && l.vector > 1 {
		l.rotating = 2 * p.pairs / l.vector // or one
		l.units = l.rotating + l.copied
	}
	for l.lanes = 1; l.lanes < min(ropeBlock, l.units*l.places); l.lanes *= 2 {
	}
	l.tiles = ceil(l.units*l.places, l.lanes)
	least := int64(p.units) * 4 // blocks
	l.run = 8
	if p.DType.Size() == 2 {
		least *= 2 // with half the bytes each
		if p.Pairing == "half" {
			l.run = 16 // a thread has twice the angles for each vector
		}
	}
	for ; ; l.run /= 2 {
		l.chunksOf = 0
		for i := range rotations {
			if i == 1 {
				l.chunks = l.chunksOf
			}
			l.chunksOf += ceil(l.batches*rotations[i].heads, l.run*ropeBlock/l.lanes)
		}
		if len(rotations) == 1 {
			l.chunks = l.chunksOf
		}
		if l.run == 1 || l.tiles*l.chunksOf >= least {
			return l
		}
	}
}

// vector is the longest access, of 16 or 8 bytes or of one element, by which every row can be cut.
func (p *ropeProgram) vector(args []Tensor, rotations []ropePair) int64 {
	size := p.DType.Size()
	whole := p.pairs
	if p.Pairing == "interleaved" {
		whole *= 2
	}
	for _, bytes := range []int64{16, 8} {
		v := bytes / size
		fits := v > 1 && p.RotaryStart%v == 0 && whole%v == 0 && p.HeadDim%v == 0
		for i := range rotations {
			r := &rotations[i]
			fits = fits && p.cuts(&args[r.input], &r.in, v, true) && p.cuts(&args[r.output], &r.out, v, false)
		}
		if fits {
			return v
		}
	}
	return 1
}

// cuts reports that rows consist of vectors of v elements at multiples of their size; an expanded input is one element.
func (p *ropeProgram) cuts(t *Tensor, rows *ropeRows, v int64, input bool) bool {
	if input && rows.step == 0 {
		return true
	}
	for d, extent := range t.shape() {
		last := d == int(t.NDim)-1
		if last && t.Strides[d] != 1 || !last && extent > 1 && t.Strides[d]%v != 0 {
			return false
		}
	}
	return t.Data%uintptr(v*p.DType.Size()) == 0
}

// packWalk packs RopeWalk.
func (p *ropeProgram) packWalk(q *queue, args []Tensor, l *ropeLaunch) {
	flag := func(on bool) uint64 {
		if on {
			return 1
		}
		return 0
	}
	positions, cos, sin := positionsOf(&args[ropePositions]), ropeTable{dtype: Float32}, ropeTable{dtype: Float32}
	rows, hop, partner := int64(0), int64(0), int64(0)
	if p.hasTables(args) {
		table := &args[ropeCos]
		cos, sin, rows = tableOf(table), tableOf(&args[ropeSin]), table.Shape[table.NDim-2]
		hop, partner = p.columns(table)
	}
	for _, v := range []int64{p.RotaryStart, p.pairs, l.units, l.rotating, l.copied, p.SeqLen, l.places, l.batches, l.lanes, l.tiles, l.run, l.chunks, l.vector} {
		q.launch.Put(uint64(v))
	}
	q.launch.Put(flag(p.Direction == "forward"), flag(p.Angle == "float32"), math.Float64bits(p.fastest), uint64(rows), uint64(hop), uint64(partner))
	for _, operand := range []int{ropePositions, ropeCos, ropeSin} {
		if args[operand].present() {
			q.address(operand, args[operand].Data)
		} else {
			q.launch.Put(0)
		}
	}
	dtype := Int64
	if positions.tensor != nil {
		dtype = positions.tensor.DType
	}
	q.launch.Put(uint64(dtype.row()), uint64(positions.batch), uint64(positions.token))
	for _, t := range []*ropeTable{&cos, &sin} {
		q.launch.Put(uint64(t.dtype.row()), uint64(t.batch), uint64(t.row), uint64(t.column))
	}
	q.launch.Put(p.powers...)
}

// powersOfLaunch are the frequencies of the first pairs, the factors of the bits of a pair's number above those, and how far the power
// exceeds each, relative to it, as float32.
func powersOfLaunch(list []double) (words []uint64) {
	var low [ropeFine + ropeCoarse]uint64
	for i := range low {
		at, power := i, double{high: 1}
		if i >= ropeFine {
			at = ropeFine << (i - ropeFine)
		}
		if at < len(list) {
			power = list[at]
		}
		words = append(words, math.Float64bits(power.high))
		low[i] = uint64(math.Float32bits(float32(power.low / power.high)))
	}
	for i := 0; i < len(low); i += 2 {
		words = append(words, low[i]|low[i+1]<<32)
	}
	return words
}
