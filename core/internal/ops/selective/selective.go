// Package selective implements the selective scan of Mamba, a linear recurrence of n states for
// each channel whose decays depend on the input (Gu and Dao 2023).
package selective

import (
	"github.com/sternway/sternway/core/internal/ops"
	"github.com/sternway/sternway/core/internal/tensor"
)

// SelectiveScan is a recurrence along L = Length positions, for each batch and each of Dim
// channels, with N states. With d = delta + delta_bias, or d = log(1 + exp(delta + delta_bias)) if
// DeltaSoftplus,
//
//	h[t] = exp(d[t] A) h[t-1] + d[t] B[t] u[t]
//	y[t] = sum over states of C[t] h[t] + D u[t]
//
// and y is multiplied by z / (1 + exp(-z)) if there is a z. Without an initial state the first
// decay of a sequence is not applied. A decay of exactly 0 cuts off what came before, NaN included.
// Channel c has B and C of group c / (Dim / Groups).
//
// Operands: u and delta [Batch, Dim, L], A [Dim, N], B and C [Batch, Groups, N, L] or, with one
// group, [Batch, N, L] or, if constant, [Dim, N], D? [Dim], z? [Batch, Dim, L], delta_bias? [Dim],
// initial_state?, cu_seqlens? [NumSequences + 1] int32 or int64 -> y [Batch, Dim, L], last_state?,
// chunk_states? [Batch, Dim, ceil(L / Chunk), N]. A state has shape [Batch, Dim, N] or, with
// NumSequences, [Batch, NumSequences, Dim, N]. Sequence k has the positions cu_seqlens[k] to
// cu_seqlens[k+1] - 1 of every batch; the last state of an empty one is its initial state.
// chunk_states has the states that enter each chunk of positions, for the gradient: where a
// sequence begins with a chunk, its initial state or 0.
//
// u, delta, z, y, and B and C that are not constant have DType; all others float64 beside float64,
// and else float32.
type SelectiveScan struct {
	Batch         int64        `json:"batch"`
	Dim           int64        `json:"dim"` // channels
	Length        int64        `json:"length"`
	N             int64        `json:"n"` // states of a channel
	DType         tensor.DType `json:"dtype"`
	Groups        *int64       `json:"groups"` // nil: 1
	ConstantB     bool         `json:"constant_b"`
	ConstantC     bool         `json:"constant_c"`
	HasD          bool         `json:"has_d"`
	HasZ          bool         `json:"has_z"`
	HasBias       bool         `json:"has_bias"`
	DeltaSoftplus bool         `json:"delta_softplus"`
	NumSequences  *int64       `json:"num_sequences"` // nil: each batch is one sequence
}

// SelectiveScanBackward is the gradient of SelectiveScan. With dy' = dy z / (1 + exp(-z)), or dy
// without z, and a[t] = exp(d[t] A),
//
//	g[t] = C[t] dy'[t] + a[t+1] g[t+1]
//	dd[t] = sum over states of g[t] (B[t] u[t] + A a[t] h[t-1])
//	du[t] = D dy'[t] + d[t] sum over states of g[t] B[t]
//	dA = sum of g[t] d[t] a[t] h[t-1]    dB[t] = sum of g[t] d[t] u[t]    dC[t] = sum of dy'[t] h[t]
//
// where dlast_state is added to the last g of a sequence, dinitial_state = a[0] g[0], ddelta is dd
// times the derivative of softplus, ddelta_bias the sum of ddelta, and dD that of dy' u. Sums run
// over the indices that an operand lacks, in an order that depends on the shape and the device.
//
// Operands: dy [Batch, Dim, L], u, delta, A, B, C, D?, z?, delta_bias?, initial_state?,
// dlast_state?, cu_seqlens?, chunk_states? -> du?, ddelta?, dA?, dB?, dC?, dD?, dz?, ddelta_bias?,
// dinitial_state?, of the shapes and dtypes of their operands. At least one output is given.
type SelectiveScanBackward SelectiveScan

// Chunk is the number of positions from one of the chunk states to the next.
const Chunk = ChunkLength

// Limits of problems.
const (
	maxStates = 256
	maxLength = 1 << 20
)

// Kernel is the name of the variant on a GPU and on the CPU.
const Kernel = "chunked"

// The families of both descriptors.
var (
	forward  = register("selective_scan", ops.DecodeAs[SelectiveScan])
	backward = register("selective_scan_backward", ops.DecodeAs[SelectiveScanBackward])
)

func register(name string, decode ops.Decoder) *ops.Family {
	return ops.Register(&ops.Family{
		Name: name, Category: "scan", Image: "selective_scan", Kinds: []ops.KindRow{{Kernels: []string{Kernel}}},
		Required: []string{"batch", "dim", "length", "n", "dtype"}, Decode: decode,
		HostSums: ops.InAccumulator, Choices: []ops.Choice{ops.DTypes("dtype", tensor.Floats)},
	})
}

// Family is "selective_scan".
func (d SelectiveScan) Family() string { return forward.Name }

// Family is "selective_scan_backward".
func (d SelectiveScanBackward) Family() string { return backward.Name }

// Indices of the operands of a selective scan.
const (
	opU = iota
	opDelta
	opA
	opB
	opC
	opD
	opZ
	opBias
	opInitial
	opSeqlens
	opY
	opLast
	opChunks
)

// Indices of the operands of its gradient. The operands that both have come in the same order.
const (
	backDY = iota
	backU
	backDelta
	backA
	backB
	backC
	backD
	backZ
	backBias
	backInitial
	backDLast
	backSeqlens
	backChunks
	backDU
	backDDelta
	backDA
	backDB
	backDC
	backDD
	backDZ
	backDBias
	backDInitial
)
