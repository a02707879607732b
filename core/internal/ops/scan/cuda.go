package scan

import (
	"fmt"

	"github.com/sternway/sternway/core/internal/errs"
	"github.com/sternway/sternway/core/internal/launch"
	"github.com/sternway/sternway/core/internal/num"
	"github.com/sternway/sternway/core/internal/ops"
	"github.com/sternway/sternway/core/internal/tensor"
)

// Launch geometry of cuda/scan*.cuh. It follows from the shape, the number of multiprocessors and their memory alone, but for the choice between
// rows and columns, which looks at where dx is dense.
const (
	ScanRowThreads    = 512     // of a block, at most: row, tiles
	ScanRowsThreads   = 256     // rows
	RowsVectors       = 4       // of 16 bytes that a thread owns: rows
	ScanColumnThreads = 512     // columns
	scanShortRow      = 16      // rows: a warp has so many times what a lane owns, at least two rows
	walkedWhole       = 2       // tiles of a row that a block does: launches that share them take longer
	scanFill          = 2       // blocks for each multiprocessor, so that strips need not be cut into parts
	narrowStrip       = 64      // bytes: strips that are narrower read less than memory hands out at once
	unitMemory        = 25396e6 // bytes of memory in a second for each multiprocessor of an H100 SXM5, on which all was measured first
)

const DxOperand = 3

// ScanShape is how the threads of a kernel share the rows: strips (rows, or columns that lie side by side) in parts, parts in tiles.
type ScanShape struct {
	Kernel               string
	Tiles, Parts, Strips int64
	Columns              int64 // of a strip
	Width, Height        int64 // as cuda/scan*.cuh says for each kernel
	Grid, Block          int64
	Beside               int64  // blocks with a ring that share a multiprocessor
	Shared               uint32 // bytes of the ring, or of what columns have in shared memory
	marks                int64  // bytes for what is known of rows or strips, ahead of the states
	marked               bool   // which strips cannot be done is said there
	held                 bool   // the blocks of a strip hold it all at once
}

// ScanRoom is what a device has for blocks that need much of it.
type ScanRoom struct {
	Shared   int                      // bytes of shared memory of a block
	Clusters func(g *ScanShape) int64 // how many clusters of g.parts blocks are on it at once
}

// hurries reports that memory is quicker than multiprocessors that have much to reckon for each byte, as that of an H200 is.
func (s *ScanProgram) hurries() bool { return 4*s.bandwidth > 5*unitMemory*int64(s.Units) }

// Code is what kernels call the kind.
func (s *ScanProgram) Code() string { return Scan.Kind(s.kind).SymbolName() }

// indexed reports that winners may be given instead of x.
func (s *ScanProgram) indexed() bool { return scanKinds[s.kind].indices }

func (s *ScanProgram) prepareCUDA(preference ops.Preference) (ops.Program, error) {
	s.cuda, s.forced = true, preference.Kernel != ""
	if s.Variant = preference.Kernel; s.forced && !s.holds(s.Code(), s.Variant) {
		return nil, errs.New(errs.Unsupported, Scan.Op(s.kind), "preference.kernel", "one for rows of this length", fmt.Sprintf("%q", s.Variant), "")
	}
	s.pick()
	if limit := preference.MaxWorkspace; limit != nil && s.bytes > *limit && !s.forced {
		s.plain = true // those without a ring leave less for others
		s.pick()
	}
	return s, nil
}

// pick takes the kernel for contiguous operands, unless one was asked for, and the workspace for whatever operands there are.
func (s *ScanProgram) pick() {
	if !s.forced {
		s.Variant = s.along(s.Code(), true)
		inner := s.Inner()
		if inner > 1 && s.Length() > 1 {
			s.Variant = "columns"
		}
		for _, quick := range s.quicker(inner) {
			if ScanKernels[quick].Instead == s.Variant {
				s.Variant = quick
				break
			}
		}
	}
	s.bytes = max(s.badBytes(), s.stateBytes())
}

// ownKernels are the kind's own: the first of its symbols.
func (s *ScanProgram) ownKernels() []string { return Scan.Kind(s.kind).Kernels }

// Symbols are the kernels of the kind, then those for indices.
func (s *ScanProgram) Symbols() (list []launch.Symbol) {
	row := Scan.Kind(s.kind)
	for _, kernel := range s.ownKernels() {
		list = append(list, launch.Symbol{Image: Scan.ImageOf(s.kind), Name: Scan.Symbol(s.kind, kernel, s.element)})
	}
	if s.indexed() {
		for _, kernel := range kernelsOfIndices {
			list = append(list, launch.Symbol{Image: Scan.ImageOf(row.Name), Name: Scan.Name + "_indices_" + kernel + "_" + s.element.Suffix()})
		}
		for _, kernel := range kernelsOfRecords {
			list = append(list, launch.Symbol{Image: Scan.ImageOf(row.Name), Name: Scan.Symbol(s.kind, "records_"+kernel, s.element)})
		}
	}
	return append(list, launch.Symbol{Image: Scan.Image, Name: "scan_clear"})
}

func (s *ScanProgram) Geometry() string {
	rows := s.RowCount()
	text := fmt.Sprintf("%s, %d rows of %d", s.Variant, rows, s.Length())
	if !s.cuda || rows*s.Length() == 0 {
		return text
	}
	g := s.Share(s.Code(), s.Variant, rows, s.Inner())
	return fmt.Sprintf("%s in %d blocks of %d threads, %d parts of %d tiles", text, g.Grid, g.Block, g.Parts, g.Tiles)
}

func (s *ScanProgram) Workspace() int64 { return s.bytes }

// WorkspaceOperand says that rows of one tile need it for indices alone.
func (s *ScanProgram) WorkspaceOperand() int {
	if s.indexed() && s.bytes == s.badBytes() {
		return IndicesOperand
	}
	return -1
}

// RowCount is the number of rows; 0 where there is nothing to do.
func (s *ScanProgram) RowCount() int64 {
	all, _ := tensor.Product(s.shape)
	return all / max(1, s.Length())
}

// Inner is the number of columns that lie side by side in a contiguous tensor.
func (s *ScanProgram) Inner() int64 {
	inner, _ := tensor.Product(s.shape[min(s.dim+1, len(s.shape)):])
	return max(1, inner)
}

// Lane is the number of elements of a row that a thread owns, up to 128 bytes; vector those of a 16-byte access.
func (s *ScanProgram) Lane(code string) int64 { return s.vectors(code) * s.Vector() }
func (s *ScanProgram) Vector() int64          { return 16 / s.element.Size() }

// Walked is the number of elements of a tile that a thread owns, as kWalkVectors of cuda/scan_inner.cuh says.
func (s *ScanProgram) Walked(code string) int64 {
	if code == "cumsum" {
		return 4 * s.Vector()
	}
	return s.vectors(code) / 2 * s.Vector()
}

// vectors is kVectors of cuda/scan_inner.cuh.
func (s *ScanProgram) vectors(code string) int64 {
	switch short := s.element.Size() == 2; {
	case code == "logcumsumexp" && short:
		return 2
	case code == "cumsum" && !short:
		return 8
	}
	return 4
}

// Padded is the length of a row with what may lie ahead of its first aligned vector.
func (s *ScanProgram) Padded() int64 {
	if s.Length()%s.Vector() != 0 {
		return s.Length() + s.Vector() - 1
	}
	return s.Length()
}

// along is the kernel for a dense scanned dimension; flat says that rows lie end to end. Kinds that are tried first want whole vectors of a
// warp's rows, but can have leads in `row`.
func (s *ScanProgram) along(code string, flat bool) string {
	n := s.Length()
	whole := n * s.Vector() / num.GCD(s.Vector(), n) // elements of the fewest rows that are whole vectors
	switch {
	case n <= scanShortRow*RowsVectors*s.Vector() && (flat || n < 64) && (whole <= 32*RowsVectors*s.Vector() || !Tamed(code)):
		return "rows"
	case s.holds(code, "row") && !s.tilesFill(code):
		return "row"
	}
	return "tiles"
}

// tilesFill reports that rows by indices have tiles enough, and are enough, for all threads. A thread then owns half as many of these large
// elements as in `row`, and waits for fewer.
func (s *ScanProgram) tilesFill(code string) bool {
	return code == "indices" && s.element.Size() < 8 && s.Length() >= 8*ScanRowThreads && s.RowCount() >= scanFill*int64(s.Units)
}

// holds reports that a kernel takes rows of this length.
func (s *ScanProgram) holds(code, kernel string) bool {
	holds := ScanKernels[kernel].holds
	return holds == nil || holds(s, code)
}

// Share gives the rows to the threads of a kernel. Of columns, `columns` are side by side.
func (s *ScanProgram) Share(code, kernel string, rows, columns int64) ScanShape {
	return ScanKernels[kernel].share(s, code, rows, columns)
}
