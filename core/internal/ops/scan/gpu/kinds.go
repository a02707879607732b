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
	IndexKernels    = []string{RowPacked, RowResident, RowTiled, ColumnTiled, Repair}
	RecordKernels   = []string{ColumnPipelined, RowPipelined} // record passes of kinds that have indices
)

// Kind is the arithmetic of a kernel. The kinds of gradients carry a prefix over x (cumsum has
// none) and a suffix over dy. cummax and cummin are both Cumextremum by x, and both Indices by the
// indices of their forward. A forward kind computes a scan itself: its running value is the suffix
// of a scan in the other direction, and it has no prefix. The forward of cumsum is Cumsum.
type Kind int

// The kinds.
const (
	Cumsum Kind = iota
	Cumprod
	Cumextremum
	Logcumsumexp
	Indices
	ForwardCumprod
	ForwardCumextremum // values alone
	ForwardIndices     // values and indices
	ForwardLogcumsumexp
	numKinds
)

// traits are the properties of a kind that decide which kernels and passes it has.
type traits struct {
	kernels      []string
	hasPrefix    bool          // elements depend on a prefix over x; without one, row_tiled reads its operands once
	hasFastPath  bool          // rows outside of the range of the fast path are recomputed by a fallback pass
	hasRecords   bool          // a record pass over x leaves one bit per element to the passes over dy
	hasRowFlags  bool          // the workspace has a flag for each row, set if its indices cannot be those of a cummax or cummin
	tileOperands int64         // operands staged in each tile of a pipeline
	states       [2]stateSizes // with float32 and with float64 accumulators
	// The kind computes so much that row_pipelined is faster than row_tiled also for many rows that
	// are read once (1024 rows of 65536 on an H200).
	pipelinesManyRows bool
}

var kindTraits = [numKinds]traits{
	Cumsum:       {kernels: commonKernels, tileOperands: 1, states: [2]stateSizes{{0, 8}, {0, 8}}},
	Cumprod:      {kernels: FastPathKernels, hasPrefix: true, hasFastPath: true, tileOperands: 2, states: [2]stateSizes{{8, 16}, {16, 32}}},
	Cumextremum:  {kernels: prefixKernels, hasPrefix: true, hasRecords: true, hasRowFlags: true, tileOperands: 1, states: [2]stateSizes{{4, 8}, {8, 16}}},
	Logcumsumexp: {kernels: FastPathKernels, hasPrefix: true, hasFastPath: true, tileOperands: 2, states: [2]stateSizes{{8, 8}, {16, 16}}},
	Indices:      {kernels: IndexKernels, hasRowFlags: true, states: [2]stateSizes{{0, 8}, {0, 16}}},

	ForwardCumprod:      {kernels: commonKernels, tileOperands: 1, states: [2]stateSizes{{0, 12}, {0, 16}}, pipelinesManyRows: true},
	ForwardCumextremum:  {kernels: commonKernels, tileOperands: 1, states: [2]stateSizes{{0, 4}, {0, 8}}},
	ForwardIndices:      {kernels: commonKernels, tileOperands: 1, states: [2]stateSizes{{0, 12}, {0, 16}}},
	ForwardLogcumsumexp: {kernels: commonKernels, tileOperands: 1, states: [2]stateSizes{{0, 8}, {0, 16}}, pipelinesManyRows: true},
}

// Kernels are the names of the kernels of the kind.
func (k Kind) Kernels() []string { return kindTraits[k].kernels }

// HasFastPath reports whether the kind is tried first in arithmetic that is right only while
// numbers stay in range.
func (k Kind) HasFastPath() bool { return kindTraits[k].hasFastPath }

// HasKernel reports whether the kind has a kernel of this name.
func (k Kind) HasKernel(name string) bool { return slices.Contains(kindTraits[k].kernels, name) }

// isByIndices reports whether the kind reads indices in place of x, element by element.
func (k Kind) isByIndices() bool { return k == Indices }

// storesIndices reports whether the kind stores indices beside its result, element by element.
func (k Kind) storesIndices() bool { return k == ForwardIndices }
