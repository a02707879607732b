// Package gpu selects, configures and launches the CUDA kernels of scans. Selection is a pure
// function of a Problem and a Layout (select.go); its tuned numbers are in tuning.go.
package gpu

import "slices"

// Names of the kernels of scans: a direction and a strategy.
const (
	RowPacked       = "row_packed"       // several short rows in a warp
	RowResident     = "row_resident"     // one row in the registers of a few warps
	RowTiled        = "row_tiled"        // one row, tile by tile; any layout
	RowPipelined    = "row_pipelined"    // one row, tiles prefetched by a cp.async pipeline
	RowCluster      = "row_cluster"      // one row in the registers of a thread-block cluster
	ColumnTiled     = "column_tiled"     // a panel of adjacent columns, tile by tile; any layout
	ColumnPipelined = "column_pipelined" // a panel, tiles prefetched by a cp.async pipeline
	ColumnCluster   = "column_cluster"   // a panel in the registers of a thread-block cluster
	Repair          = "repair"           // recomputes rows whose indices cannot be those of a cummax or cummin
)

// Kernels of the kinds, in the order of a plan's symbols.
var (
	commonKernels   = []string{RowPacked, RowResident, RowTiled, ColumnTiled, ColumnPipelined, RowPipelined}
	prefixKernels   = append(slices.Clone(commonKernels), RowCluster)
	FastPathKernels = append(slices.Clone(prefixKernels), ColumnCluster)
	indexKernels    = []string{RowPacked, RowResident, RowTiled, ColumnTiled, Repair}
	RecordKernels   = []string{ColumnPipelined, RowPipelined} // record passes of kinds that have indices
)

// Kind is the arithmetic of a kernel. The kinds of gradients carry a prefix over x (cumsum has
// none) and a suffix over dy. A forward kind computes a scan itself: its running value is the
// suffix of a scan in the other direction, and it has no prefix.
type Kind struct {
	Name         string // of the tuned numbers in CUDA, such as CumprodTuning
	SymbolPrefix string // of the kernels: the rest of a symbol is the kernel and the dtype
	Image        string // the kernel image that holds them

	kernels      []string
	hasPrefix    bool          // elements depend on a prefix over x; without one, row_tiled reads its operands once
	hasFastPath  bool          // rows outside of the range of the fast path are recomputed by a fallback pass
	hasRecords   bool          // a record pass over x leaves one bit per element to the passes over dy
	hasRowFlags  bool          // the workspace has a flag for each row, set if its indices cannot be those of a cummax or cummin
	readsIndices bool          // in place of x, element by element
	tileOperands int64         // operands staged in each tile of a pipeline
	states       [2]stateSizes // with float32 and with float64 accumulators
	// The kind computes so much that row_pipelined is faster than row_tiled also for many rows that
	// are read once (1024 rows of 65536 on an H200).
	pipelinesManyRows bool

	Tuning
}

// Kernels are the names of the kernels of the kind.
func (k *Kind) Kernels() []string { return k.kernels }

// HasFastPath reports whether the kind is tried first in arithmetic that is right only while
// numbers stay in range.
func (k *Kind) HasFastPath() bool { return k.hasFastPath }

// HasKernel reports whether the kind has a kernel of this name.
func (k *Kind) HasKernel(name string) bool { return slices.Contains(k.kernels, name) }
