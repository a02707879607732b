package selective

import "github.com/sternway/sternway/core/internal/launch"

// This file states the argument and the constants of the CUDA kernels of the selective scan:
// core/internal/generate writes cuda/selective/args.gen.cuh from it.

const (
	Positions    = 8   // adjacent positions of a lane
	LaneSums     = 3   // sums over states that a lane keeps for each of its positions
	ForwardRows  = 4   // rows of positions of a channel of the scan: u, delta, z, y
	BackwardRows = 7   // and of its gradient: u, delta, z, dy, du, ddelta, dz
	StateRows    = 2   // numbers of each state and channel that a CTA of the gradient keeps, beside sums
	ChannelSums  = 2   // and sums of each channel
	Warps        = 8   // warps of a CTA, each of which scans a channel
	ChunkLength  = 256 // positions between the states that a forward scan keeps for its gradient
	StateBytes   = 64  // of B at one position, over the states whose B and C are in shared memory at once
)

// Bits of the field `flags` of SelectiveArgs.
const (
	FlagSoftplus  = 1 << iota // the step size is softplus(delta + bias)
	FlagConstantB             // B has no positions and no batch, but channels
	FlagConstantC
)

// SelectiveOperand is an array with some of the dimensions batch, channel (of B and C, group),
// state and position; the stride of another one is 0. Without data it is not given.
type SelectiveOperand struct {
	data                            launch.Address
	batch, channel, state, position int64 // strides [elements]
}

// SelectiveArgs is the argument of the scan, and a part of that of its gradient. The position of
// initial and last states is the number of a sequence, that of chunk states the number of a chunk.
type SelectiveArgs struct {
	u, delta, a, b, c, d, z, bias, initial SelectiveOperand
	y, last, chunks                        SelectiveOperand
	channels, groups, length, states       int64
	flags                                  int64
	firstChunk                             int64          // from the address of chunk states to the first one [elements]
	bounds                                 launch.Address // of packed sequences, or null
	boundCount, boundStep, boundsAreWide   int64          // numbers; step [elements]; whether they have 64 bits, not 32
}

// SelectiveBackwardArgs is the argument of the kernel of the gradient. Its CTAs take `rounds` times
// Warps channels of a group. Sums over batches and CTAs are left to selective_sum: of each batch
// [batch, channel, state] or [batch, channel], those of B and C that have positions of each CTA of
// a group [CTA, batch, group, state, position].
type SelectiveBackwardArgs struct {
	SelectiveArgs
	dy, dlast                SelectiveOperand
	du, ddelta, dz, dinitial SelectiveOperand
	workspace                launch.Address
	// Where sums begin in the workspace, -1 if they are not wanted; with more states than a CTA
	// holds at once: where sums of positions do [CTA, channel, lane, sum, position].
	aSums, bSums, cSums, dSums, biasSums, lanes int64
	batches, rounds                             int64
}

// SumArgs is the argument of selective_sum: the sum of `count` arrays of numbers, one after another
// from number `first` of the workspace on, each of which has the dimensions of the result [batch,
// channel or group, state, position].
type SumArgs struct {
	workspace launch.Address
	first     int64
	to        SelectiveOperand
	count     int64
	extent    [4]int64
}
