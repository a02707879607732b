package core

// Geometry of cuda/scan_strips.cuh.
const (
	stripThreads = 512
	stripWarps   = stripThreads / 32
	stripStatic  = 32 << 10 // bytes of shared memory beside the ring, at most
	stripRing    = 6        // tiles of the ring, at most
	stripLongest = 1 << 30  // columns, so that rows are counted in 32 bits
	stripLeast   = 1 << 20  // bytes of an operand, at least: other kernels take less than their launches do
)

// tamed reports that the kind is tried in a simpler form first, which says what it cannot do.
func tamed(code string) bool { return code == "cumprod" || code == "logcumsumexp" }

// strip is how many columns and rows a tile has, and its bytes in the ring.
func (s *scanProgram) strip() (across, rows, bytes int64) {
	size, operands, down := s.element.Size(), int64(2), int64(16)
	across = 32
	if size == 2 || size == 4 && s.kind == "cumsum" {
		across = 64
	}
	if s.kind == "cumsum" {
		operands = 1
	}
	if size == 8 || s.kind == "cumsum" {
		down = 8
	}
	rows = stripWarps * down
	return across, rows, across * rows * size * operands
}

// suits reports that so many columns side by side are worth the kernel for strips: those of 128 rows, or fewer where the other kernel
// is the slow one that can do everything.
func (s *scanProgram) suits(columns int64) bool {
	across, _, _ := s.strip()
	shortest := int64(128)
	if tamed(s.code()) {
		shortest = 48
	}
	large := s.rowCount()*s.length()*s.element.Size() >= stripLeast
	return large && columns >= across && columns%s.vector() == 0 && s.length() >= shortest && s.length() <= stripLongest
}

// shareStrips gives columns to blocks. What strips cannot do is marked ahead of the states.
func (s *scanProgram) shareStrips(rows, columns int64) scanShape {
	across, down, _ := s.strip()
	g := scanShape{kernel: "strips", height: stripWarps, columns: across, strips: ceil(columns, across) * (rows / columns), block: stripThreads}
	g.cut(ceil(max(1, s.length()), down), int64(s.units))
	if g.grid = g.strips * g.parts; g.parts == 1 { // a block takes several strips, while the next tiles come
		g.grid = min(g.grid, int64(s.units))
	}
	if g.marked = tamed(s.code()); g.marked {
		g.marks = align16(4 * g.strips)
	}
	return g
}

// again is how the kernel for columns does strips that are marked: each in one block.
func (s *scanProgram) again(strips *scanShape) scanShape {
	_, down := s.own(s.code())
	g := *strips
	g.kernel, g.width, g.parts, g.grid, g.shared = "columns", 32, 1, g.strips, 0
	g.tiles = ceil(s.length(), down*g.height)
	return g
}

// ring takes as many tiles into the ring as fit into the shared memory of a block, and reports whether there are enough.
func (s *scanProgram) ring(g *scanShape, shared int) bool {
	_, _, bytes := s.strip()
	g.width = min((int64(shared)-stripStatic)/bytes, stripRing)
	g.shared = uint32(max(0, g.width*bytes))
	return g.width >= 2
}

// side reports that columns lie side by side in whole aligned vectors in every operand.
func (d *deviceScan) side(args []Tensor) bool {
	if d.code == "indices" || d.dims == 0 || d.extent[0]%d.vector() != 0 || d.length() > stripLongest {
		return false
	}
	for i, operand := range d.operands {
		if i == 1 && operand == 0 {
			continue
		}
		whole := args[operand].Data%16 == 0 && d.stride[i][0] == 1 && d.step[i]%d.vector() == 0
		for k := 1; k < d.dims; k++ {
			whole = whole && d.stride[i][k]%d.vector() == 0
		}
		if !whole {
			return false
		}
	}
	return true
}
