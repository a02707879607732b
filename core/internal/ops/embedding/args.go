package embedding

import "github.com/sternway/sternway/core/internal/launch"

// This file states the arguments and the constants of the CUDA kernels of embeddings:
// core/internal/generate writes cuda/embedding/args.gen.cuh from it.

// Constants of the kernels.
const (
	BagChunk            = 32   // entries of the smallest chunk, and chunks of a larger one
	BagTile             = 2048 // entries that a CTA sorts at once
	BagDigitBits        = 8    // bits of a digit of the radix sort
	BagGroup            = 32   // adjacent CTAs of the sort whose histograms are added up
	BagStretch          = 32   // adjacent positions that a warp looks up at once
	BagGathered         = 4    // entries in flight per thread
	BagSingleLaunchRows = 255  // single launch: rows of a CTA at most
	ForwardFlight       = 4    // forward: rows in flight per thread, and threads of a bag at least
	UniqueBlock         = 1024 // unique rows: threads of a CTA at most
)

// Indices of the numbers of an optimizer, in the order of Options.
const (
	OptionLr = iota
	OptionEps
	OptionWeightDecay
	OptionBeta1
	OptionBeta2
	OptionGradScale
	OptionStep
	OptionStepSize
	OptionSeed
	OptionDraw
)

// BagArgs is the argument of all kernels of embedding bags. Strides and steps are in elements,
// fields `..._at` are byte offsets into the workspace, absent operands are 0.
type BagArgs struct {
	dy                          launch.Address `cuda:"const char*"`
	dyBag, dyColumn             int64
	dyStep                      int64          // bytes from a bag to the next; of several tables, of V elements
	indices                     launch.Address `cuda:"const char*"`
	indexStep, indexWide        int64          // 1: 64 bits, 0: 32 bits
	offsets                     launch.Address `cuda:"const char*"`
	offsetStep, offsetWide      int64
	sampleWeights               launch.Address `cuda:"const char*"`
	sampleWeightStep            int64
	sampleWeightSingle          int64          // 1: float32 beside any T
	maxIndices                  launch.Address `cuda:"const char*"`
	maxBag, maxColumn, maxWide  int64
	weight                      launch.Address `cuda:"const char*"`
	weightRow, weightColumn     int64
	dweight                     launch.Address
	dweightRow, dweightColumn   int64
	dsample                     launch.Address
	dsampleRow, dsampleColumn   int64
	dsampleWidth, dsampleSingle int64 // width: columns of its rows, 0 if it is a vector
	workspace                   launch.Address
	rows, columns, bags, total  int64 // rows and columns of weight, rows of dy, number of indices
	padding                     int64 // the row that is not counted, or -1
	last, mean, byFrequency     int64 // flags; last: offsets include the end of the last bag
	positions                   int64 // 1: an entry carries its position through the sort, 0: its bag
	fromAt, toAt                int64 // entries: input, output of a pass
	countsAt, totalsAt          int64 // of a sort pass: [CTA][digit], [group of CTAs][digit]
	// Of a sort pass: the digit, and the tiles of a CTA; clear: number of 16-byte words; single
	// launch: rows of a CTA.
	shift, bits, tiles int64
	tail               int64 // clear: bytes after the words
	bagsAt             int64 // bag of each position
	countedAt          int64 // mean: number of counted indices of each bag
	// Max: a bit for each column whose argmax it is, for each position; for each sorted entry.
	argmaxAt, sortedArgmaxAt int64
	// Rows plus entries that a group of threads handles; row and entry where each unit begins
	// (merge path).
	unit, boundsAt        int64
	partialAt             int64 // sums of chunks, one level after the other
	chunkCapacity, levels int64 // chunks on all levels; number of levels
	lanes, slices         int64 // threads that share a row; slices that a row is cut into
	wide, plain           int64 // 16-byte accesses; a summand is dy alone
	chunkBlocks           int64 // CTAs of the row kernel that sum chunks
	listsAt               int64 // ChunkLists
	// 1: there are no offsets, and each position is a bag of its own. The flag is uniform and read
	// once per tile, so bags and plain embeddings share all kernels.
	bagless int64
	// 1: rows without entries are left alone.
	onlyEntries int64
	// Several tables: [numTables + 1][first row, first element, first column]. Rows count on from
	// table to table; bags are those of the first table, then those of the second; columns is the
	// largest width. Absent: one table.
	tables               launch.Address `cuda:"const i64*"`
	numTables, tableBags int64          // tableBags: bags of a table
	// An optimizer's: dweight is the tables themselves, contiguous. options: float64 numbers, or 0:
	// there is no optimizer. Adam has both states, SGD none; byRow: the state has one number for
	// each row.
	options           launch.Address `cuda:"double*"`
	state, state2     launch.Address
	byRow, stochastic int64
}

// UniqueArgs is the argument of the kernel of unique rows. Steps are in bytes, as are offsets into
// the workspace, which begins with the words.
type UniqueArgs struct {
	indices              launch.Address `cuda:"const char*"`
	indexStep, indexWide int64          // wide: 64 bits
	rows                 launch.Address
	rowsStep             int64
	inverse              launch.Address
	inverseStep          int64
	count                launch.Address `cuda:"i64*"`
	workspace            launch.Address
	numRows, total       int64
	padding              int64 // the row that is not counted, or -1
	most                 int64 // elements of rows
	words                int64 // a multiple of any CTA size
	totalsAt, countsAt   int64 // set bits in 2^shift groups of 32 words; in each group
	shift                int64
	stage, end           int64 // the stages stage..end-1
}

// BagForwardArgs is the argument of the kernels of embedding bags forward. Strides and steps are in
// elements; absent operands are 0.
type BagForwardArgs struct {
	weight                  launch.Address `cuda:"const char*"`
	weightRow, weightColumn int64          // of one table
	indices                 launch.Address `cuda:"const char*"`
	indexStep, indexWide    int64          // 1: 64 bits, 0: 32 bits
	offsets                 launch.Address `cuda:"const char*"`
	offsetStep, offsetWide  int64
	sampleWeights           launch.Address `cuda:"const char*"`
	sampleWeightStep        int64
	sampleWeightSingle      int64          // 1: float32 beside any T
	tables                  launch.Address `cuda:"const i64*"` // 0: one table
	y                       launch.Address
	yRow, yColumn           int64
	maxIndices              launch.Address
	maxRow, maxColumn       int64
	maxWide, maxVector      int64 // vector: 16-byte accesses, if y has them, too
	rows, columns           int64 // of one table
	bags, total             int64 // bags of a table, number of indices
	padding                 int64 // the row that is not counted, or -1
	last, mean              int64 // flags; last: offsets include the end of the last bag
	wide                    int64 // 16-byte accesses
	blocks                  int64 // CTAs of each table
}
