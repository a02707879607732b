package gpu

// Problem and Device are the input of kernel selection besides the layout (layout.go); Config is
// its output.

import (
	"fmt"

	"github.com/sternway/sternway/core/internal/num"
)

// Problem is everything but the layout of the operands that kernel selection depends on.
type Problem struct {
	Kind        *Kind
	ElementSize int64 // bytes
	Rows        int64
	Length      int64 // elements of a row
	Inner       int64 // adjacent columns of a contiguous tensor; 1: the scanned dimension is innermost
	Device      Device
	Kernel      string // kernel that the caller asks for; "": selection is free
	GeneralOnly bool   // only general kernels, which need the least workspace
	Carries     bool   // rows have carries
	IsExclusive bool
	Workspace   int64 // bytes of workspace of a run
}

// withoutLast is an exclusive scan as kernels of columns run it: an inclusive one of all positions
// but one, whose operands lie apart by a position. Kernels of rows would not find them aligned, and
// read the next element themselves.
func (p Problem) withoutLast() Problem {
	p.Length = max(0, p.Length-1)
	return p
}

// Device is what selection depends on of a GPU.
type Device struct {
	NumSMs            int64
	Bandwidth         int64 // of memory [bytes/s]; 0: unknown
	HasClusters       bool  // thread-block clusters
	HasColumnClusters bool  // clusters whose CTAs have shared memory for column_cluster
	Limits            *DeviceLimits
}

// DeviceLimits are the limits of a launch, which are known at run time. Selection without them, at
// plan time, assumes that kernels fit.
type DeviceLimits struct {
	SmemBytes        int64                 // shared memory of a CTA [bytes]
	ResidentClusters func(c *Config) int64 // clusters of c.Splits CTAs that are resident at once
}

// Compute capabilities.
const (
	clusterCapability   = 90  // thread-block clusters from here on
	smallSmemCapability = 120 // too little shared memory for column_cluster from here on
)

// DeviceOf describes a device of an architecture, such as "sm_90".
func DeviceOf(arch string, numSMs int, bandwidth int64) Device {
	capability := 0
	_, _ = fmt.Sscanf(arch, "sm_%d", &capability)
	d := Device{NumSMs: int64(numSMs), Bandwidth: bandwidth, HasClusters: capability >= clusterCapability}
	d.HasColumnClusters = d.HasClusters && capability < smallSmemCapability
	return d
}

// bandwidthRich reports whether the device has over 1.25 times the memory bandwidth per SM of an
// H100, as an H200 has: more than compute-bound kernels use.
func (d *Device) bandwidthRich() bool { return 4*d.Bandwidth > 5*h100BytesPerSM*d.NumSMs }

// Vector is the number of elements of a 16-byte access.
func (p *Problem) Vector() int64 { return 16 / p.ElementSize }

// PaddedLength is the length of a row with the elements ahead of its first aligned vector
// [elements].
func (p *Problem) PaddedLength() int64 {
	if p.Length%p.Vector() != 0 {
		return p.Length + p.Vector() - 1
	}
	return p.Length
}

// lineAlignedLength is the length of a row with the elements ahead of it in its first cache line
// [elements].
func (p *Problem) lineAlignedLength() int64 {
	if p.Length*p.ElementSize%sectorBytes != 0 {
		return p.Length + LineBytes/p.ElementSize - 1
	}
	return p.Length
}

// operandBytes is the size of x [bytes].
func (p *Problem) operandBytes() int64 { return p.Rows * p.Length * p.ElementSize }

// Config is a launch configuration: how CTAs share the segments, which are rows or panels of
// adjacent columns.
type Config struct {
	Kernel        string
	Segments      int64
	PanelColumns  int64 // columns of a segment; 1: a row
	Splits        int64 // CTAs that share a segment
	TilesPerSplit int64
	Grid          int64 // CTAs
	Block         int64 // threads of a CTA
	CTAsPerSM     int64 // resident CTAs of a pipelined kernel
	SmemBytes     uint32

	RowsPerWarp   int64 // rows per warp of row_packed; 0 for other kernels
	RowsPerCTA    int64 // row_resident
	WarpsPerRow   int64 // row_resident
	ThreadsAcross int64 // column_tiled: threads of a CTA along a panel
	ThreadsDown   int64 // column_tiled: threads of a CTA along a column
	Stages        int64 // tiles in the circular buffer of a pipelined kernel

	FlagBytes     int64 // size of the flags at the start of the workspace: of rejected segments, or of rows by indices
	FlagsPerRow   int64 // row_tiled as a fallback pass: reject flags per row
	StatusOffset  int64 // bytes from the start of the workspace to the tile-status words of a cooperative launch
	NeedsFallback bool  // the fast path leaves reject flags, which a fallback pass reads
	Resident      bool  // a segment is in the registers of its CTAs all at once
	Cooperative   bool  // CTAs wait for each other, so that all CTAs of the grid must be resident
}

// InCluster reports whether the CTAs of a segment are a thread-block cluster.
func (c *Config) InCluster() bool { return c.Resident && c.Splits <= MaxClusterCTAs }

// split divides segments of `tiles` tiles among CTAs, as split-K does, if there are fewer segments
// than CTAs. Splitting adds launches that read the inputs again, so segments are not split if there
// are about as many as CTAs.
func (c *Config) split(tiles, ctas int64) {
	c.Splits = num.Clamp((ctas+c.Segments/2)/max(1, c.Segments), 1, tiles)
	c.balance(tiles)
}

// balance gives the splits of a segment equally many tiles, and drops splits that would be empty.
func (c *Config) balance(tiles int64) {
	c.TilesPerSplit = num.CeilDiv(tiles, c.Splits)
	c.Splits = num.CeilDiv(tiles, c.TilesPerSplit)
}

// distribute divides a resident segment of `items` items, of `threads` threads each, equally among
// about `splits` CTAs.
func (c *Config) distribute(items, splits, threads int64) {
	itemsPerCTA := num.CeilDiv(items, splits)
	c.Splits, c.Block, c.Resident = num.CeilDiv(items, itemsPerCTA), threads*itemsPerCTA, true
	c.Grid = c.Segments * c.Splits
}

// reserveFlags reserves workspace for heads of packed sequences or, if the kind has a fast path,
// for reject flags and the counter of the grid barrier of the fallback pass.
func (c *Config) reserveFlags(p *Problem, flags int64) {
	if p.Kind.isPacked {
		c.FlagBytes = headBytes(p)
	}
	if c.NeedsFallback = p.Kind.HasFastPath() && !p.Carries; c.NeedsFallback {
		c.FlagBytes = num.Align16(4 * (flags + 1))
	}
}
