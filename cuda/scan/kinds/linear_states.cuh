// The states of linear recurrences that enter and leave rows and sequences.
#pragma once

#include "scan/sequences.cuh"
#include "scan/state/elements.cuh"

// A state of an operand: of a row and, if rows are packed, of a sequence.
struct StateNumber {
    i64 row, sequence;
};

// The sequence of a position. Wrong bounds give some sequence.
__device__ inline i64 sequence_of(const LinearArgs& args, i64 position)
{
    if (args.flags & kReversed) position = args.n - 1 - position;
    i64 begin = 0, end = args.bounds.count - 1;  // bounds[begin] <= position < bounds[end], if they rise
#pragma unroll 1
    while (end - begin > 1) {
        const i64 middle = begin + (end - begin) / 2;
        (bound_at(args.bounds, middle) <= position ? begin : end) = middle;
    }
    return begin;
}

// `offset` plus that of a row in an operand, over dims of some extents. The host refuses rows that
// 32 bits do not number: a 64-bit division is a call, which spills registers.
__device__ inline i64 row_offset(i64 offset, const Strided& operand, i64 dims, const i64 (&extents)[7], i64 row)
{
    if (dims <= 1) return offset + row * operand.stride[0];
    unsigned index = static_cast<unsigned>(row);
#pragma unroll 1
    for (int d = 0; d < dims; ++d) {
        const unsigned extent = static_cast<unsigned>(extents[d]), rest = index / extent;
        offset += (index - rest * extent) * operand.stride[d];
        index = rest;
    }
    return offset;
}

// The element of a state.
__device__ inline i64 state_offset(const ScanArgs& args, const Strided& state, StateNumber number)
{
    return row_offset(state.first + number.sequence * state.step, state, args.dims, args.extent, number.row);
}

// A state, of type A or of the type S of elements.
template <typename A, typename S>
__device__ A load_state(const ScanArgs& args, const Strided& state, StateNumber number, bool is_wide)
{
    const i64 at = state_offset(args, state, number);
    return is_wide ? reinterpret_cast<const A*>(state.data)[at]
                   : widen<A>(reinterpret_cast<const S*>(state.data)[at]);
}

template <typename A, typename S>
__device__ void store_state(const ScanArgs& args, const Strided& to, StateNumber number, bool is_wide, A state)
{
    const i64 at = state_offset(args, to, number);
    if (is_wide)
        reinterpret_cast<A*>(to.data)[at] = state;
    else
        reinterpret_cast<S*>(to.data)[at] = static_cast<S>(state);
}

// Passes on the states of sequences without positions. A thread has one.
template <typename A, typename S>
__device__ void pass_states(const LinearArgs& args)
{
    const i64 i = static_cast<i64>(blockIdx.x) * kBlockThreads + threadIdx.x, sequence = i / args.rows,
              row = i - sequence * args.rows;
    if (sequence >= max(args.bounds.count - 1, i64(1))) return;
    const bool is_empty = args.bounds.count
                              ? bound_at(args.bounds, sequence) == bound_at(args.bounds, sequence + 1)
                              : args.n == 0;
    if (!is_empty) return;
    const A state = args.state_in.data
                        ? load_state<A, S>(args, args.state_in, {row, sequence}, args.flags & kStateInWide)
                        : A(0);
    store_state<A, S>(args, args.state_out, {row, sequence}, args.flags & kStateOutWide, state);
}

// Not inlined where a thread has a state for each of its elements.
template <typename A, typename S>
__device__ __noinline__ A load_some_state(const ScanArgs& args, const Strided& state, StateNumber number, bool is_wide)
{
    return load_state<A, S>(args, state, number, is_wide);
}
template <typename A, typename S>
__device__ __noinline__ void store_some_state(
    const ScanArgs& args, const Strided& to, StateNumber number, bool is_wide, A state)
{
    store_state<A, S>(args, to, number, is_wide, state);
}
