package gpu

// Tuned numbers of the kernels. Those that kernels are compiled with are generated to
// cuda/scan/args.gen.cuh. All were measured on an H100 SXM5 unless a comment names another card;
// the tables of the benchmark are in bench/results.

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
	RowPackedVectors   = 4   // row_packed: 16-byte vectors of a thread, at most
	rowPackedThreshold = 16  // row_packed: rows of so many vectors or fewer, for each vector of a thread
	maxStridedPacked   = 64  // row_packed: elements of rows that do not lie end to end, less than
	fillCTAsPerSM      = 2   // CTAs per SM below which segments are split
	TransposedVectors  = 4   // row_resident: vectors of each of RowResidentThreads that are transposed in shared memory
	PackedTiledThreads = 256 // row_tiled, column_tiled: threads of a CTA, of packed sequences of kinds with a prefix
	TiledCTAsPerSM     = 2   // row_tiled, column_tiled: CTAs that an SM has registers for, at least
	maxUnsplitTiles    = 2   // row_tiled: tiles of a row that is never split, as a split takes more launches
	fallbackMinTiles   = 16  // row_tiled as a fallback pass: tiles of a row that is split
	minFillingTiles    = 8   // row_tiled by indices: elements of a row for each thread of a CTA
	repairCTAsPerSM    = 8   // repair of rows by indices

	// With carries, row_tiled takes rows of at least this fraction (1 / 4) of its tile, and
	// column_tiled the shorter ones, of which its CTAs take several.
	minCarryTileFraction = 4
	minPackedRow         = 128 // elements of a row of packed sequences in a CTA of its own, at least
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

// perSize is a number for elements of 2, 4 and 8 bytes.
type perSize[T any] [3]T

func (t *perSize[T]) Of(p *Problem) T { return t[p.ElementSize/4] }

type (
	ints  = perSize[int64]
	bools = perSize[bool]
)

// each is one number for elements of every size.
func each(n int64) ints { return ints{n, n, n} }

// Tuning are the tuned numbers of a kind. Its kernels are compiled with the exported ones: the tag
// names the kernel.
type Tuning struct {
	// Vectors (16 bytes) of a thread of row_packed. The fallback of a kind with a fast path packs
	// the fewest, and sets the number.
	RowPackedVectors   ints `kernel:"row_packed"`
	RowPackedCTAsPerSM ints `kernel:"row_packed"` // CTAs that an SM has registers for, at least

	// Vectors of a thread: fewer if two arrays of numbers are made of them, more if only dy is
	// read. row_tiled has half as many to save registers, unless the kind reads dy alone.
	RowResidentVectors   ints `kernel:"row_resident"`
	RowResidentCTAsPerSM ints `kernel:"row_resident"`
	RowTiledVectors      ints `kernel:"row_tiled"`
	// Long rows that fill the device are faster in row_tiled than in row_resident: by indices a
	// thread of row_tiled has half as many elements, so that it waits for fewer of them.
	rowTiledFills bools

	RowPipelinedVectors   ints  `kernel:"row_pipelined"` // vectors of a thread
	RowPipelinedCTAsPerSM ints  `kernel:"row_pipelined"`
	CooperativeRows       bools `kernel:"row_pipelined"` // the others lack registers for cooperative rows
	RowPipelinedSmem      ints  // shared memory of a CTA beside the stages, at most [bytes]
	MaxCooperativeSplits  ints  // CTAs of a cooperative row, whose status a CTA reads

	ColumnTiledColumns ints `kernel:"column_tiled"` // tile of a thread
	ColumnTiledRows    ints `kernel:"column_tiled"`

	ColumnPipelinedColumns ints `kernel:"column_pipelined"` // columns of a panel
	ColumnPipelinedRows    ints `kernel:"column_pipelined"` // rows of a warp in a tile

	// Size of an operand up to which column_tiled is fastest for panels that fit one CTA, as the
	// level-2 cache holds the operands [bytes].
	maxCachedBytes ints
	// Rows are faster in the registers of all CTAs of the device than in row_pipelined. For float64
	// cummax and cummin, a record pass is faster than an exchange of prefixes without a cluster.
	gridResidentRows bools
	rowsInFlight     perSize[saturation] // of row_cluster
	// Cache lines of shared memory of a warp of column_cluster: one for each row of both operands,
	// the rows of the bases, and the rows whose x is kept for recomputation.
	columnClusterLines ints
	// Large column clusters compute for longer than a bandwidth-rich device takes to read the
	// operands.
	columnClusterComputeBound bools
}

// saturation gives the number of rows of row_cluster that saturates memory: rows of `threads`
// threads per SM, plus `slack` because some clusters wait for a neighbour. Fewer leave memory idle,
// more delay the exchange. By Little's law the count scales with bandwidth; 16-bit rows are
// compute-bound, and scale with it twice (squared).
type saturation struct {
	threads, slack int64
	squared        bool
}

// rowClusterSizes are the limits of clusters of rows. sharedThreads is the size of the largest CTA
// that leaves space for another on its SM; maxCTAs is the number of CTAs of a row that fits fewer.
var rowClusterSizes = perSize[struct{ sharedThreads, maxCTAs int64 }]{{192, MaxClusterCTAs}, {192, MaxClusterCTAs}, {256, portableClusterCTAs}}
