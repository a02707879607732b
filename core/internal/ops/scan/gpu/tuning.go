package gpu

// Tuned numbers of the kernels. Those that kernels are compiled with are generated to
// cuda/scan/tuning.gen.cuh. All were measured on an H100 SXM5 unless a comment names another card;
// the tables of the benchmark are in bench/results.

//go:generate go run ./tuninggen ../../../../../cuda/scan/tuning.gen.cuh

// Threads of a CTA.
const (
	RowResidentThreads     = 512 // row_resident, row_tiled: at most
	RowPackedThreads       = 256
	ColumnThreads          = 512 // column_tiled: at most
	RowPipelinedThreads    = 256
	ColumnPipelinedThreads = 512
	RowClusterThreads      = 512 // at most
	ColumnClusterThreads   = 512 // at most; a warp owns as many rows as it has threads
	minColumnCTAThreads    = 128 // column_tiled: CTAs of one-warp panels have several
	warpThreads            = 32
)

// Memory.
const (
	sectorBytes    = 32      // least transaction of device memory
	LineBytes      = 128     // bytes of a cache line. A panel of column_cluster is one line wide; see FlagLineAligned for row_pipelined
	minPanelBytes  = 64      // column_tiled: narrower panels read less than a transaction
	h100BytesPerSM = 25396e6 // bandwidth of an H100 SXM5 per SM [bytes/s]
)

// General kernels.
const (
	RowPackedVectors   = 4  // row_packed: 16-byte vectors of a thread, at most
	rowPackedThreshold = 16 // row_packed: rows of so many vectors or fewer, for each vector of a thread
	maxStridedPacked   = 64 // row_packed: elements of rows that do not lie end to end, less than
	fillCTAsPerSM      = 2  // CTAs per SM below which segments are split
	TiledCTAsPerSM     = 2  // row_tiled, column_tiled: CTAs that an SM has registers for, at least
	maxUnsplitTiles    = 2  // row_tiled: tiles of a row that is never split, as a split takes more launches
	fallbackMinTiles   = 16 // row_tiled as a fallback pass: tiles of a row that is split
	minFillingTiles    = 8  // row_tiled by indices: elements of a row for each thread of a CTA
	repairCTAsPerSM    = 8  // repair of rows by indices

	// With carries, row_tiled takes rows of at least this fraction (1 / 4) of its tile, and
	// column_tiled the shorter ones, of which its CTAs take several.
	minCarryTileFraction = 4
)

// Pipelined kernels.
const (
	ColumnPipelinedSmem = 32 << 10 // shared memory beside the stages, at most [bytes]
	maxStages           = 6
	maxPipelinedLength  = 1 << 30 // elements of a row are counted in 32 bits
	minSpecializedBytes = 1 << 20 // of an operand: general kernels finish smaller ones sooner
	saturatingRowsPerSM = 4       // rows per SM above which row_tiled keeps memory busy
)

// Cluster kernels.
const (
	MaxClusterCTAs         = 16 // CTAs of a cluster at most
	portableClusterCTAs    = 8  // every device with clusters takes these
	RowClusterVectors      = 8  // 16-byte vectors of each operand that a thread of row_cluster owns: many, as the scan within a thread needs no exchange
	RowClusterSmem         = 5 << 10
	MaxResidentSplits      = 256 // row_cluster without a cluster: most CTAs of a row; each CTA reads the status words of all others
	rowClusterFewRounds    = 4   // with fewer rounds over the grid, rows are divided evenly among them
	ColumnBaseRows         = 8   // column_cluster: first rows of a panel kept in shared memory, from which the bases of its columns are found
	RecomputedRows         = 20  // column_cluster: rows per lane whose x is kept in shared memory to recompute exponentials (16-bit logcumsumexp)
	minColumnClusterLength = 512 // shorter panels are in the level-2 cache when they are read again
)

// CompiledTuning are the tuned numbers that the kernels of a kind are compiled with.
type CompiledTuning struct {
	RowPackedVectors       int64
	RowPackedCTAsPerSM     int64
	RowResidentVectors     int64
	RowResidentCTAsPerSM   int64
	RowTiledVectors        int64
	RowPipelinedVectors    int64
	RowPipelinedCTAsPerSM  int64
	CooperativeRows        bool
	ColumnTiledColumns     int64
	ColumnTiledRows        int64
	ColumnPipelinedColumns int64
	ColumnPipelinedRows    int64
}

// CompiledTuningOf are those of a kind for elements of a size [bytes].
func CompiledTuningOf(kind Kind, elementSize int64) CompiledTuning {
	p := &Problem{Kind: kind, ElementSize: elementSize}
	tiled, pipelined := columnTiledItems.of(p), columnPipelinedItems.of(p)
	return CompiledTuning{
		RowPackedVectors: rowPackedVectors.of(p), RowPackedCTAsPerSM: rowPackedCTAsPerSM.of(p),
		RowResidentVectors: rowResidentVectors.of(p), RowResidentCTAsPerSM: rowResidentCTAsPerSM.of(p), RowTiledVectors: rowTiledVectors.of(p),
		RowPipelinedVectors: rowPipelinedVectors.of(p), RowPipelinedCTAsPerSM: rowPipelinedLimits.of(p).CTAsPerSM, CooperativeRows: cooperativeRows.of(p),
		ColumnTiledColumns: tiled.Columns, ColumnTiledRows: tiled.Rows,
		ColumnPipelinedColumns: pipelined.columns, ColumnPipelinedRows: pipelined.rowsPerWarp,
	}
}

// perSize is one number for elements of 2, 4 and 8 bytes.
type perSize[T any] [3]T

// perKind is a table of numbers by kind and element size.
type perKind[T any] [numKinds]perSize[T]

func (t *perSize[T]) of(p *Problem) T { return t[p.ElementSize/4] }
func (t *perKind[T]) of(p *Problem) T { return t[p.Kind].of(p) }

// rowPackedVectors is the number of vectors of a thread of row_packed. The fallback of a kind with
// a fast path packs the fewest, and sets the number.
var rowPackedVectors = perKind[int64]{
	Cumsum: {4, 4, 4}, Cumprod: {2, 2, 4}, Cumextremum: {4, 4, 4}, Logcumsumexp: {2, 2, 4}, Indices: {4, 4, 4},
	ForwardCumprod: {4, 4, 4}, ForwardCumextremum: {4, 4, 4}, ForwardIndices: {4, 4, 4}, ForwardLogcumsumexp: {4, 4, 4},
}

// rowPackedCTAsPerSM and rowResidentCTAsPerSM are the numbers of CTAs of row_packed and of
// row_resident that an SM has registers for, at least.
var (
	rowPackedCTAsPerSM = perKind[int64]{
		Cumsum: {5, 5, 5}, Cumprod: {2, 3, 3}, Cumextremum: {3, 3, 3}, Logcumsumexp: {3, 4, 4}, Indices: {3, 3, 3},
		ForwardCumprod: {4, 4, 4}, ForwardCumextremum: {4, 4, 4}, ForwardIndices: {3, 3, 3}, ForwardLogcumsumexp: {2, 3, 3},
	}
	rowResidentCTAsPerSM = perKind[int64]{
		Cumsum: {3, 2, 2}, Cumprod: {2, 2, 2}, Cumextremum: {2, 2, 2}, Logcumsumexp: {2, 2, 2}, Indices: {2, 2, 2},
		ForwardCumprod: {2, 2, 2}, ForwardCumextremum: {3, 2, 2}, ForwardIndices: {2, 2, 2}, ForwardLogcumsumexp: {2, 2, 2},
	}
)

// rowResidentVectors and rowTiledVectors are the numbers of vectors of a thread of row_resident and
// of row_tiled: fewer if two arrays of numbers are made of them, more if only dy is read. row_tiled
// has half as many to save registers, unless the kind reads dy alone.
var (
	rowResidentVectors = perKind[int64]{
		Cumsum: {4, 8, 8}, Cumprod: {4, 4, 4}, Cumextremum: {4, 4, 4}, Logcumsumexp: {2, 4, 4}, Indices: {4, 4, 4},
		ForwardCumprod: {4, 4, 4}, ForwardCumextremum: {4, 8, 4}, ForwardIndices: {4, 4, 4}, ForwardLogcumsumexp: {2, 4, 4},
	}
	rowTiledVectors = perKind[int64]{
		Cumsum: {4, 4, 4}, Cumprod: {2, 2, 2}, Cumextremum: {2, 2, 2}, Logcumsumexp: {1, 2, 2}, Indices: {2, 2, 2},
		ForwardCumprod: {4, 4, 4}, ForwardCumextremum: {4, 4, 4}, ForwardIndices: {4, 4, 4}, ForwardLogcumsumexp: {2, 4, 4},
	}
)

// rowTiledFills marks kinds whose long rows are faster in row_tiled than in row_resident if they
// fill the device: by indices a thread of row_tiled has half as many elements, so that it waits for
// fewer of them.
var rowTiledFills = perKind[bool]{Indices: {true, true, false}}

// ThreadTile is the tile of a thread of column_tiled.
type ThreadTile struct{ Columns, Rows int64 }

var columnTiledItems = perKind[ThreadTile]{
	Cumsum:       {{4, 8}, {2, 8}, {1, 8}},
	Cumprod:      {{2, 8}, {1, 16}, {1, 8}},
	Cumextremum:  {{2, 16}, {1, 16}, {1, 8}},
	Logcumsumexp: {{2, 8}, {1, 16}, {1, 8}},
	Indices:      {{2, 8}, {1, 16}, {1, 8}},

	ForwardCumprod:      {{4, 8}, {2, 8}, {1, 8}},
	ForwardCumextremum:  {{4, 8}, {2, 8}, {1, 8}},
	ForwardIndices:      {{2, 16}, {1, 16}, {1, 8}},
	ForwardLogcumsumexp: {{2, 8}, {2, 8}, {1, 8}},
}

// rowPipelinedVectors is the number of vectors of a thread of row_pipelined.
var rowPipelinedVectors = perKind[int64]{
	Cumsum: {8, 8, 8}, Cumprod: {4, 4, 4}, Cumextremum: {4, 4, 4}, Logcumsumexp: {4, 4, 4},
	ForwardCumprod: {4, 8, 8}, ForwardCumextremum: {8, 8, 8}, ForwardIndices: {4, 8, 8}, ForwardLogcumsumexp: {4, 8, 4},
}

// columnPipelinedItems are the columns of a panel and the rows of a warp in a tile of
// column_pipelined.
var columnPipelinedItems = perKind[struct{ columns, rowsPerWarp int64 }]{
	Cumsum:       {{64, 8}, {64, 8}, {32, 8}},
	Cumprod:      {{64, 16}, {32, 16}, {32, 8}},
	Cumextremum:  {{64, 16}, {64, 8}, {32, 8}},
	Logcumsumexp: {{64, 16}, {32, 16}, {32, 8}},

	ForwardCumprod:      {{64, 16}, {64, 8}, {32, 8}},
	ForwardCumextremum:  {{64, 16}, {64, 8}, {32, 8}},
	ForwardIndices:      {{64, 16}, {32, 16}, {32, 8}},
	ForwardLogcumsumexp: {{64, 16}, {32, 16}, {32, 8}},
}

// RowPipelinedLimits are the limits of row_pipelined.
type RowPipelinedLimits struct {
	CTAsPerSM int64
	SmemBytes int64 // shared memory of a CTA beside the stages, at most [bytes]
	MaxSplits int64 // CTAs of a cooperative row, whose status a CTA reads
}

var rowPipelinedLimits = perKind[RowPipelinedLimits]{
	Cumsum:       {{2, 12 << 10, 256}, {2, 12 << 10, 256}, {2, 12 << 10, 256}},
	Cumprod:      {{2, 12 << 10, 256}, {2, 12 << 10, 256}, {2, 12 << 10, 256}},
	Cumextremum:  {{3, 7 << 10, 512}, {3, 7 << 10, 512}, {3, 7 << 10, 512}},
	Logcumsumexp: {{2, 12 << 10, 256}, {2, 12 << 10, 256}, {2, 12 << 10, 256}},

	ForwardCumprod:      {{2, 12 << 10, 256}, {2, 12 << 10, 256}, {2, 12 << 10, 256}},
	ForwardCumextremum:  {{2, 12 << 10, 256}, {2, 12 << 10, 256}, {2, 12 << 10, 256}},
	ForwardIndices:      {{2, 12 << 10, 256}, {2, 12 << 10, 256}, {2, 12 << 10, 256}},
	ForwardLogcumsumexp: {{2, 12 << 10, 256}, {2, 12 << 10, 256}, {2, 12 << 10, 256}},
}

// cooperativeRows marks kinds of which row_pipelined has cooperative rows; the others lack
// registers for them.
var cooperativeRows = perKind[bool]{
	Cumsum: {true, true, true}, Cumprod: {true, true, false}, Cumextremum: {true, true, true}, Logcumsumexp: {false, true, false},
	ForwardCumprod: {true, true, true}, ForwardCumextremum: {true, true, true}, ForwardIndices: {true, true, true}, ForwardLogcumsumexp: {true, true, true},
}

// maxCachedBytes is the size of an operand up to which column_tiled is fastest for panels that fit
// one CTA, as the level-2 cache holds the operands [bytes].
var maxCachedBytes = perKind[int64]{
	Cumsum: {8 << 20, 8 << 20, 8 << 20}, Cumprod: {16 << 20, 16 << 20, 16 << 20}, Cumextremum: {16 << 20, 16 << 20, 16 << 20},
	Logcumsumexp: {16 << 20, 16 << 20, 16 << 20}, Indices: {16 << 20, 16 << 20, 16 << 20},
	ForwardCumprod: {8 << 20, 8 << 20, 8 << 20}, ForwardCumextremum: {8 << 20, 8 << 20, 8 << 20},
	ForwardIndices: {8 << 20, 8 << 20, 8 << 20}, ForwardLogcumsumexp: {8 << 20, 8 << 20, 8 << 20},
}

// gridResidentRows marks kinds whose rows are faster in the registers of all CTAs of the device
// than in row_pipelined. For float64 cummax and cummin, a record pass is faster than an exchange of
// prefixes without a cluster.
var gridResidentRows = perKind[bool]{
	Cumprod: {true, true, true}, Cumextremum: {true, true, false}, Logcumsumexp: {true, true, true},
}

// rowClusterSizes are the limits of clusters of rows. sharedThreads is the size of the largest CTA
// that leaves space for another on its SM; maxCTAs is the number of CTAs of a row that fits fewer.
var rowClusterSizes = perSize[struct{ sharedThreads, maxCTAs int64 }]{{192, MaxClusterCTAs}, {192, MaxClusterCTAs}, {256, portableClusterCTAs}}

// clusterRows gives the number of rows in flight that saturates memory: rows of `threads` threads
// per SM, plus `slack` because some clusters wait for a neighbour. Fewer leave memory idle, more
// delay the exchange. By Little's law the count scales with bandwidth; 16-bit rows are
// compute-bound, and scale with it twice (squared).
var clusterRows = perKind[struct {
	threads, slack int64
	squared        bool
}]{
	Cumprod:      {{250, 4, true}, {228, 4, false}, {225, 6, false}},
	Cumextremum:  {{300, 2, true}, {245, 4, false}, {280, 5, false}},
	Logcumsumexp: {{290, 5, true}, {262, 5, false}, {310, 6, false}},
}

// columnClusterLines is the number of cache lines of shared memory of a warp of column_cluster: one
// for each row of both operands, the rows of the bases, and the rows whose x is kept for
// recomputation.
var columnClusterLines = perKind[int64]{
	Cumprod:      {2 * warpThreads, 2 * warpThreads, 2 * warpThreads},
	Logcumsumexp: {2*warpThreads + ColumnBaseRows + RecomputedRows, 2*warpThreads + ColumnBaseRows, 2*warpThreads + ColumnBaseRows},
}

// columnClusterComputeBound marks kinds whose large column clusters compute for longer than a
// bandwidth-rich device takes to read the operands.
var columnClusterComputeBound = perKind[bool]{Logcumsumexp: {true, false, false}}
