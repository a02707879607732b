// scan_sum: sums of terms over some of their dims, for the gradients of operands that were
// broadcast. Terms are added in an order that follows from the shapes and the device alone: those
// of a thread in blocks, those of a CTA in a tree, and the chunks of a sum in another launch.
#pragma once

#include "common/dtype.cuh"
#include "scan/args.gen.cuh"

// The offset of a linear index over dims, fastest first.
__device__ inline i64 offset_over(i64 dims, const i64 (&extents)[8], const i64 (&strides)[8], i64 index)
{
    if (dims <= 1) return index * strides[0];
    i64 offset = 0;
#pragma unroll 1
    for (int d = 0; d < dims; ++d) {
        const i64 extent = extents[d];
        const bool small = index >> 31 == 0 && extent >> 31 == 0;  // a 32-bit division suffices
        const i64 rest = small ? static_cast<unsigned>(index) / static_cast<unsigned>(extent) : index / extent;
        offset += (index - rest * extent) * strides[d];
        index = rest;
    }
    return offset;
}

// The sum of term(begin), term(begin + apart), .. before `end`. Blocked summation bounds the
// rounding error: sums of BLOCK terms, of BLOCK of these, and of all.
template <typename A, typename Term>
__device__ A blocked_sum(i64 begin, i64 end, int apart, const Term& term)
{
    constexpr int BLOCK = 8;
    A total = A(0);
    for (i64 r = begin; r < end;) {
        A run = A(0);
        for (int b = 0; b < BLOCK && r < end; ++b, r += BLOCK * apart) {
            A some[BLOCK], block = A(0);
#pragma unroll
            for (int i = 0; i < BLOCK; ++i) some[i] = r + i * apart < end ? term(r + i * apart) : A(0);
#pragma unroll
            for (int i = 0; i < BLOCK; ++i) block += some[i];
            run += block;
        }
        total += run;
    }
    return total;
}

// A CTA adds a chunk of the terms of args.across sums.
template <typename T, typename A>
__device__ void sum_terms(const SumArgs& args)
{
    __shared__ A sums[kBlockThreads];  // [thread of a sum][sum]
    const int across = static_cast<int>(args.across), down = kBlockThreads / across,
              thread = static_cast<int>(threadIdx.x);
    const int x = args.kept_is_inner ? thread % across : thread / down,
              y = args.kept_is_inner ? thread / across : thread % down;
    const unsigned tiles = static_cast<unsigned>((args.kept + across - 1) / across), chunk = blockIdx.x / tiles;
    const i64 k = static_cast<i64>(blockIdx.x - chunk * tiles) * across + x, begin = chunk * args.chunk;
    A* workspace = reinterpret_cast<A*>(args.workspace);
    A sum = A(0);
    if (k < args.kept) {
        const A* terms = workspace + args.terms + offset_over(args.kept_dims, args.kept_extent, args.kept_stride, k);
        const i64 end = min(begin + args.chunk, args.reduced), stride = args.reduced_stride[0];
        if (args.reduced_dims <= 1)
            sum = blocked_sum<A>(begin + y, end, down, [&](i64 r) { return terms[r * stride]; });
        else
            sum = blocked_sum<A>(begin + y, end, down, [&](i64 r) {
                return terms[offset_over(args.reduced_dims, args.reduced_extent, args.reduced_stride, r)];
            });
    }
    A* own = sums + y * across + x;
    *own = sum;
    for (int half = down / 2; half > 0; half /= 2) {
        __syncthreads();
        if (y < half) *own += own[half * across];
    }
    if (y > 0 || k >= args.kept) return;
    if (args.to)
        reinterpret_cast<T*>(args.to)[offset_over(args.kept_dims, args.kept_extent, args.to_stride, k)] =
            static_cast<T>(*own);
    else
        workspace[args.partial + chunk * args.kept + k] = *own;
}
