package core

import (
	"fmt"
)

// Launch geometry of cuda/scan*.cuh. It follows from the shape, the number of multiprocessors and their memory alone, but for the choice between
// rows and columns, which looks at where dx is dense.
const (
	scanRowThreads    = 512     // of a block, at most: row, tiles
	scanRowsThreads   = 256     // rows
	rowsVectors       = 4       // of 16 bytes that a thread owns: rows
	scanColumnThreads = 512     // columns
	scanShortRow      = 16      // rows: a warp has so many times what a lane owns, at least two rows
	walkedWhole       = 2       // tiles of a row that a block does: launches that share them take longer
	scanFill          = 2       // blocks for each multiprocessor, so that strips need not be cut into parts
	narrowStrip       = 64      // bytes: strips that are narrower read less than memory hands out at once
	unitMemory        = 25396e6 // bytes of memory in a second for each multiprocessor of an H100 SXM5, on which all was measured first
)

const dxOperand = 3

// scanShape is how the threads of a kernel share the rows: strips (rows, or columns that lie side by side) in parts, parts in tiles.
type scanShape struct {
	kernel               string
	tiles, parts, strips int64
	columns              int64 // of a strip
	width, height        int64 // as cuda/scan*.cuh says for each kernel
	grid, block          int64
	beside               int64  // blocks with a ring that share a multiprocessor
	shared               uint32 // bytes of the ring, or of what columns have in shared memory
	marks                int64  // bytes for what is known of rows or strips, ahead of the states
	marked               bool   // which strips cannot be done is said there
	held                 bool   // the blocks of a strip hold it all at once
}

// scanRoom is what a device has for blocks that need much of it.
type scanRoom struct {
	shared   int                      // bytes of shared memory of a block
	clusters func(g *scanShape) int64 // how many clusters of g.parts blocks are on it at once
}

// hurries reports that memory is quicker than multiprocessors that have much to reckon for each byte, as that of an H200 is.
func (s *scanProgram) hurries() bool { return 4*s.bandwidth > 5*unitMemory*int64(s.units) }

// code is what kernels call the kind.
func (s *scanProgram) code() string { return scan.kind(s.kind).code() }

// indexed reports that winners may be given instead of x.
func (s *scanProgram) indexed() bool { return scanKinds[s.kind].indices }

func (s *scanProgram) prepareCUDA(preference Preference) (program, error) {
	s.cuda, s.forced = true, preference.Kernel != ""
	if s.variant = preference.Kernel; s.forced && !s.holds(s.code(), s.variant) {
		return nil, refuse(Unsupported, scan.op(s.kind), "preference.kernel", "one for rows of this length", fmt.Sprintf("%q", s.variant), "")
	}
	s.pick()
	if limit := preference.MaxWorkspace; limit != nil && s.bytes > *limit && !s.forced {
		s.plain = true // those without a ring leave less for others
		s.pick()
	}
	return s, nil
}

// pick takes the kernel for contiguous operands, unless one was asked for, and the workspace for whatever operands there are.
func (s *scanProgram) pick() {
	if !s.forced {
		s.variant = s.along(s.code(), true)
		inner := s.inner()
		if inner > 1 && s.length() > 1 {
			s.variant = "columns"
		}
		for _, quick := range s.quicker(inner) {
			if scanKernels[quick].instead == s.variant {
				s.variant = quick
				break
			}
		}
	}
	s.bytes = max(s.badBytes(), s.stateBytes())
}

// ownKernels are the kind's own: the first of its symbols.
func (s *scanProgram) ownKernels() []string { return scan.kind(s.kind).Kernels }

// symbols are the kernels of the kind, then those for indices.
func (s *scanProgram) symbols() (list []symbol) {
	row := scan.kind(s.kind)
	for _, kernel := range s.ownKernels() {
		list = append(list, symbol{scan.image(s.kind), scan.Symbol(s.kind, kernel, s.element)})
	}
	if s.indexed() {
		for _, kernel := range kernelsOfIndices {
			list = append(list, symbol{scan.image(row.Name), scan.Name + "_indices_" + kernel + "_" + s.element.suffix()})
		}
		for _, kernel := range kernelsOfRecords {
			list = append(list, symbol{scan.image(row.Name), scan.Symbol(s.kind, "records_"+kernel, s.element)})
		}
	}
	return append(list, symbol{scan.Image, "scan_clear"})
}

func (s *scanProgram) geometry() string {
	rows := s.rowCount()
	text := fmt.Sprintf("%s, %d rows of %d", s.variant, rows, s.length())
	if !s.cuda || rows*s.length() == 0 {
		return text
	}
	g := s.share(s.code(), s.variant, rows, s.inner())
	return fmt.Sprintf("%s in %d blocks of %d threads, %d parts of %d tiles", text, g.grid, g.block, g.parts, g.tiles)
}

func (s *scanProgram) workspace() int64 { return s.bytes }

// workspaceFor says that rows of one tile need it for indices alone.
func (s *scanProgram) workspaceFor() int {
	if s.indexed() && s.bytes == s.badBytes() {
		return indicesOperand
	}
	return -1
}

// rowCount is the number of rows; 0 where there is nothing to do.
func (s *scanProgram) rowCount() int64 {
	all, _ := product(s.shape)
	return all / max(1, s.length())
}

// inner is the number of columns that lie side by side in a contiguous tensor.
func (s *scanProgram) inner() int64 {
	inner, _ := product(s.shape[min(s.dim+1, len(s.shape)):])
	return max(1, inner)
}

// lane is the number of elements of a row that a thread owns, up to 128 bytes; vector those of a 16-byte access.
func (s *scanProgram) lane(code string) int64 { return s.vectors(code) * s.vector() }
func (s *scanProgram) vector() int64          { return 16 / s.element.Size() }

// walked is the number of elements of a tile that a thread owns, as kWalkVectors of cuda/scan_inner.cuh says.
func (s *scanProgram) walked(code string) int64 {
	if code == "cumsum" {
		return 4 * s.vector()
	}
	return s.vectors(code) / 2 * s.vector()
}

// vectors is kVectors of cuda/scan_inner.cuh.
func (s *scanProgram) vectors(code string) int64 {
	switch short := s.element.Size() == 2; {
	case code == "logcumsumexp" && short:
		return 2
	case code == "cumsum" && !short:
		return 8
	}
	return 4
}

// padded is the length of a row with what may lie ahead of its first aligned vector.
func (s *scanProgram) padded() int64 {
	if s.length()%s.vector() != 0 {
		return s.length() + s.vector() - 1
	}
	return s.length()
}

// along is the kernel for a dense scanned dimension; flat says that rows lie end to end. Kinds that are tried first want whole vectors of a
// warp's rows, but can have leads in `row`.
func (s *scanProgram) along(code string, flat bool) string {
	n := s.length()
	whole := n * s.vector() / gcd(s.vector(), n) // elements of the fewest rows that are whole vectors
	switch {
	case n <= scanShortRow*rowsVectors*s.vector() && (flat || n < 64) && (whole <= 32*rowsVectors*s.vector() || !tamed(code)):
		return "rows"
	case s.holds(code, "row") && !s.tilesFill(code):
		return "row"
	}
	return "tiles"
}

// tilesFill reports that rows by indices have tiles enough, and are enough, for all threads. A thread then owns half as many of these large
// elements as in `row`, and waits for fewer.
func (s *scanProgram) tilesFill(code string) bool {
	return code == "indices" && s.element.Size() < 8 && s.length() >= 8*scanRowThreads && s.rowCount() >= scanFill*int64(s.units)
}

// holds reports that a kernel takes rows of this length.
func (s *scanProgram) holds(code, kernel string) bool {
	holds := scanKernels[kernel].holds
	return holds == nil || holds(s, code)
}

// share gives the rows to the threads of a kernel. Of columns, `columns` are side by side.
func (s *scanProgram) share(code, kernel string, rows, columns int64) scanShape {
	return scanKernels[kernel].share(s, code, rows, columns)
}

func gcd(a, b int64) int64 {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}
