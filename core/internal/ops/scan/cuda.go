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
	RowThreads        = 512     // of a block, at most: row, tiles
	RowPackedThreads  = 256     // rows
	RowPackedVectors  = 4       // of 16 bytes that a thread owns: rows
	ColumnThreads     = 512     // columns
	rowPackedShortRow = 16      // rows: a warp has so many times what a lane owns, at least two rows
	maxUnsplitTiles   = 2       // tiles of a row that a block does: launches that share them take longer
	fillCTAsPerSM     = 2       // blocks for each multiprocessor, so that strips need not be cut into parts
	minPanelBytes     = 64      // bytes: strips that are narrower read less than memory hands out at once
	h100BytesPerSM    = 25396e6 // bytes of memory in a second for each multiprocessor of an H100 SXM5, on which all was measured first
)

const DxOperand = 3

// Config is how the threads of a kernel share the rows: strips (rows, or columns that lie side by side) in parts, parts in tiles.
type Config struct {
	Kernel                          string
	TilesPerSplit, Splits, Segments int64
	Columns                         int64 // of a strip
	Width, Height                   int64 // as cuda/scan*.cuh says for each kernel
	Grid, Block                     int64
	CTAsPerSM                       int64  // blocks with a ring that share a multiprocessor
	SmemBytes                       uint32 // bytes of the ring, or of what columns have in shared memory
	flagBytes                       int64  // bytes for what is known of rows or strips, ahead of the states
	needsFallback                   bool   // which strips cannot be done is said there
	resident                        bool   // the blocks of a strip hold it all at once
}

// DeviceLimits is what a device has for blocks that need much of it.
type DeviceLimits struct {
	SmemBytes int                   // bytes of shared memory of a block
	Clusters  func(g *Config) int64 // how many clusters of g.parts blocks are on it at once
}

// bandwidthRich reports that memory is quicker than multiprocessors that have much to reckon for each byte, as that of an H200 is.
func (s *Program) bandwidthRich() bool { return 4*s.bandwidth > 5*h100BytesPerSM*int64(s.NumSMs) }

// Code is what kernels call the kind.
func (s *Program) Code() string { return Family.Kind(s.kind).SymbolName() }

// hasIndices reports that winners may be given instead of x.
func (s *Program) hasIndices() bool { return kinds[s.kind].indices }

func (s *Program) prepareCUDA(preference ops.Preference) (ops.Program, error) {
	s.cuda, s.forced = true, preference.Kernel != ""
	if s.Variant = preference.Kernel; s.forced && !s.supportsLength(s.Code(), s.Variant) {
		return nil, errs.New(errs.Unsupported, Family.Op(s.kind), "preference.kernel", "one for rows of this length", fmt.Sprintf("%q", s.Variant), "")
	}
	s.selectStatic()
	if limit := preference.MaxWorkspace; limit != nil && s.bytes > *limit && !s.forced {
		s.generalOnly = true // those without a ring leave less for others
		s.selectStatic()
	}
	return s, nil
}

// selectStatic takes the kernel for contiguous operands, unless one was asked for, and the workspace for whatever operands there are.
func (s *Program) selectStatic() {
	if !s.forced {
		s.Variant = s.baselineFor(s.Code(), true)
		inner := s.Inner()
		if inner > 1 && s.Length() > 1 {
			s.Variant = "columns"
		}
		for _, quick := range s.candidates(inner) {
			if Strategies[quick].Baseline == s.Variant {
				s.Variant = quick
				break
			}
		}
	}
	s.bytes = max(s.indexFlagBytes(), s.maxWorkspaceBytes())
}

// kindKernels are the kind's own: the first of its symbols.
func (s *Program) kindKernels() []string { return Family.Kind(s.kind).Kernels }

// Symbols are the kernels of the kind, then those for indices.
func (s *Program) Symbols() (list []launch.Symbol) {
	row := Family.Kind(s.kind)
	for _, kernel := range s.kindKernels() {
		list = append(list, launch.Symbol{Image: Family.ImageOf(s.kind), Name: Family.Symbol(s.kind, kernel, s.element)})
	}
	if s.hasIndices() {
		for _, kernel := range indexKernels {
			list = append(list, launch.Symbol{Image: Family.ImageOf(row.Name), Name: Family.Name + "_indices_" + kernel + "_" + s.element.Suffix()})
		}
		for _, kernel := range recordKernels {
			list = append(list, launch.Symbol{Image: Family.ImageOf(row.Name), Name: Family.Symbol(s.kind, "records_"+kernel, s.element)})
		}
	}
	return append(list, launch.Symbol{Image: Family.Image, Name: "scan_clear"})
}

func (s *Program) Geometry() string {
	rows := s.RowCount()
	text := fmt.Sprintf("%s, %d rows of %d", s.Variant, rows, s.Length())
	if !s.cuda || rows*s.Length() == 0 {
		return text
	}
	g := s.Configure(s.Code(), s.Variant, rows, s.Inner())
	return fmt.Sprintf("%s in %d blocks of %d threads, %d parts of %d tiles", text, g.Grid, g.Block, g.Splits, g.TilesPerSplit)
}

func (s *Program) Workspace() int64 { return s.bytes }

// WorkspaceOperand says that rows of one tile need it for indices alone.
func (s *Program) WorkspaceOperand() int {
	if s.hasIndices() && s.bytes == s.indexFlagBytes() {
		return IndicesOperand
	}
	return -1
}

// RowCount is the number of rows; 0 where there is nothing to do.
func (s *Program) RowCount() int64 {
	all, _ := tensor.Product(s.shape)
	return all / max(1, s.Length())
}

// Inner is the number of columns that lie side by side in a contiguous tensor.
func (s *Program) Inner() int64 {
	inner, _ := tensor.Product(s.shape[min(s.dim+1, len(s.shape)):])
	return max(1, inner)
}

// ItemsPerThread is the number of elements of a row that a thread owns, up to 128 bytes; vector those of a 16-byte access.
func (s *Program) ItemsPerThread(code string) int64 { return s.vectorsPerThread(code) * s.Vector() }
func (s *Program) Vector() int64                    { return 16 / s.element.Size() }

// TiledItemsPerThread is the number of elements of a tile that a thread owns, as kWalkVectors of cuda/scan_inner.cuh says.
func (s *Program) TiledItemsPerThread(code string) int64 {
	if code == "cumsum" {
		return 4 * s.Vector()
	}
	return s.vectorsPerThread(code) / 2 * s.Vector()
}

// vectorsPerThread is kVectors of cuda/scan_inner.cuh.
func (s *Program) vectorsPerThread(code string) int64 {
	switch short := s.element.Size() == 2; {
	case code == "logcumsumexp" && short:
		return 2
	case code == "cumsum" && !short:
		return 8
	}
	return 4
}

// PaddedLength is the length of a row with what may lie ahead of its first aligned vector.
func (s *Program) PaddedLength() int64 {
	if s.Length()%s.Vector() != 0 {
		return s.Length() + s.Vector() - 1
	}
	return s.Length()
}

// baselineFor is the kernel for a dense scanned dimension; flat says that rows lie end to end. Kinds that are tried first want whole vectors of a
// warp's rows, but can have leads in `row`.
func (s *Program) baselineFor(code string, flat bool) string {
	n := s.Length()
	whole := n * s.Vector() / num.GCD(s.Vector(), n) // elements of the fewest rows that are whole vectors
	switch {
	case n <= rowPackedShortRow*RowPackedVectors*s.Vector() && (flat || n < 64) && (whole <= 32*RowPackedVectors*s.Vector() || !HasFastPath(code)):
		return "rows"
	case s.supportsLength(code, "row") && !s.tiledFillsDevice(code):
		return "row"
	}
	return "tiles"
}

// tiledFillsDevice reports that rows by indices have tiles enough, and are enough, for all threads. A thread then owns half as many of these large
// elements as in `row`, and waits for fewer.
func (s *Program) tiledFillsDevice(code string) bool {
	return code == "indices" && s.element.Size() < 8 && s.Length() >= 8*RowThreads && s.RowCount() >= fillCTAsPerSM*int64(s.NumSMs)
}

// supportsLength reports that a kernel takes rows of this length.
func (s *Program) supportsLength(code, kernel string) bool {
	supportsLength := Strategies[kernel].supportsLength
	return supportsLength == nil || supportsLength(s, code)
}

// Configure gives the rows to the threads of a kernel. Of columns, `columns` are side by side.
func (s *Program) Configure(code, kernel string, rows, columns int64) Config {
	return Strategies[kernel].configure(s, code, rows, columns)
}
