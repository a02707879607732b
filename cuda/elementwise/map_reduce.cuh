// elementwise/: operations that are a function of one element, summed over the dims that were
// broadcast. One engine runs them all; an operation is a functor and a line of export for each
// kernel.
//
// This file: the loops of map and reduce over an index space of up to eight dims. The mathematics
// of one element is a functor Op:
//
//     Op::IN, Op::OUT          numbers of inputs and outputs; an absent operand has data == 0
//     Op::input(i)             storage of input i: a Kind
//     Op::BY_COLUMN            whether there are inputs of Kind::Column
//     Op::MAX_VECTOR           the largest V: of an operation that keeps sums of columns, 4
//     Op::FULL, Op::FIRST_SUM  outputs below FULL may be stored at each element, those from
//                              FIRST_SUM on may be summed
//     Op::..._UNROLL, _BLOCKS  vectors a thread loads before it uses the first; resident CTAs for
//                              each SM
//     Op(args)                 reads its scalars once
//     op.common(side)          Op::Common: what the elements of a row share, from the Side inputs,
//                              or those of a column, from the Column inputs
//     op.shared(in, common)    what the outputs of an element share
//     op.output(o, in, common, shared)   output o of an element, in the accumulator type
//     op.total(o, common, sum)           optional, rows: the result of a sum, or of the sum of a
//                                        chunk
//
// Dim 0 is `inner`; dims 1..kept are kept, dims kept+1..dims are reduced. An output is stored at
// each element, or (its bit in `summed`) summed over the reduced dims, in an order that follows
// from the shape and the launch configuration:
//
//     map       nothing is summed          a thread owns V elements of one row
//     rows      inner is reduced too       `group` threads share a kept index: shuffles, then one
//                                          barrier
//     columns   inner is kept              a thread owns V columns, the CTA shares the reduced
//                                          index
//     combine   adds the partial sums of rows or columns that were split into chunks (mapreduce.cu)
//
// map and rows share the loop of short_rows.cuh. V elements fill 16 bytes, but are at most
// MAX_VECTOR. If every operand allows it (`wide`), they are adjacent and read and written in one
// vectorized access; otherwise they are `lanes` apart, so that accesses of a warp coalesce.
#pragma once

#include "elementwise/short_rows.cuh"

// --------------------------------------------------------------------------------------------- map

// A CTA covers a tile of lanes * U vectors in each of kSmallBlock / lanes rows.
template <typename Op, typename T, typename A>
__device__ void map(const MapReduceArgs<Op::IN, Op::OUT>& args)
{
    using W = Worker<Op, T, A>;
    constexpr int U = Op::MAP_UNROLL;
    const IterSpace& space = args.space;
    if (space.is_short) return short_rows<Op, T, A, false>(args);
    const int shift = log2_of(space.lanes), x = threadIdx.x & ((1 << shift) - 1);
    const unsigned tiles = static_cast<unsigned>(space.tiles), band = space.dims == 0 ? 0 : tiles == 1 ? blockIdx.x
        : blockIdx.x / tiles;
    const i64 vector = (static_cast<i64>(blockIdx.x - band * tiles) * U << shift) + x;
    const i64 r = (static_cast<i64>(band) << (log2_of(kSmallBlock) - shift)) + (threadIdx.x >> shift);
    if (r >= space.kept_size) return;

    const W work(args);
    typename W::Row row = work.first_row();
    work.advance(row, 1, static_cast<int>(space.dims) + 1, r);
    typename W::template Sides<1> side;
    work.load_sides(row, side);
    const auto nothing = [](int, int, A) {};
    if (!work.unsplit(vector + ((U - 1) << shift))) {
        work.convert_sides(side);
#pragma unroll 1
        for (int u = 0; u < U; ++u) work.elements(row, side.common, work.slot(vector + (u << shift), x), nothing);
        return;
    }
    const i64 end = space.extent[0];
    typename W::Loaded loaded[U];
#pragma unroll
    for (int u = 0; u < U; ++u) {
        const i64 first = (vector + (u << shift)) * W::V;
        if (first < end) work.template load<true>(row, {first}, loaded[u]);
    }
    work.convert_sides(side);
#pragma unroll
    for (int u = 0; u < U; ++u) {
        const i64 first = (vector + (u << shift)) * W::V;
        if (first < end) work.template finish<true>(row, side.common, {first}, loaded[u], nothing);
    }
}

// -------------------------------------------------------------------------------------------- rows

// Sums over `group` adjacent threads (part of a warp, or the whole CTA); the first of them gets the
// result.
template <typename A, int N>
__device__ void sum_group(A (&sum)[N], int group)
{
    __shared__ A of_warp[N][kSmallBlock / 32];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
#pragma unroll
    for (int o = 0; o < N; ++o) {
        for (int d = (group < 32 ? group : 32) / 2; d > 0; d /= 2) sum[o] += __shfl_xor_sync(0xffffffff, sum[o], d);
        if (lane == 0) of_warp[o][warp] = sum[o];
    }
    if (group <= 32) return;
    __syncthreads();
#pragma unroll
    for (int o = 0; o < N; ++o) {
        const A* mine = of_warp[o] + (warp & ~(group / 32 - 1));
        sum[o] = mine[0];
        for (int w = 1; w < group / 32; ++w) sum[o] += mine[w];
    }
}

// A unit is lanes * U vectors in each of group / lanes reduced rows. A group of threads sums one
// chunk of units for one kept index.
template <typename Op, typename T, typename A>
__device__ void rows(const MapReduceArgs<Op::IN, Op::OUT>& args)
{
    using W = Worker<Op, T, A>;
    constexpr int U = Op::ROWS_UNROLL, SUMS = W::OUT - Op::FIRST_SUM;
    const IterSpace& space = args.space;
    if (space.is_short) return short_rows<Op, T, A, true>(args);
    const int group = static_cast<int>(space.group), shift = log2_of(space.lanes), rise = log2_of(group) - shift;
    const int member = threadIdx.x & (group - 1), x = member & ((1 << shift) - 1), y = member >> shift;
    const int kept = static_cast<int>(space.kept), dims = static_cast<int>(space.dims),
        tiles = static_cast<int>(space.tiles);
    const i64 index = (static_cast<i64>(blockIdx.x) * kSmallBlock + threadIdx.x) >> (shift + rise);
    const auto chunk_of = [&] { return space.chunks == 1 ? 0 : index / space.kept_size; };
    const i64 row_vectors = static_cast<i64>(tiles) * U << shift;
    i64 r = y, vector = x;  // of this thread: reduced index; vector in its row
    int left = index < space.kept_size * space.chunks ? static_cast<int>(space.chunk) : 0;
    if (space.chunks > 1) {
        const i64 begin = chunk_of() * space.chunk, units = tiles * ((space.reduced_size + (1 << rise) - 1) >> rise),
            band = begin / tiles;
        r += band << rise;
        vector += (begin - band * tiles) * U << shift;
        if (units - begin < left) left = static_cast<int>(units - begin);
    }

    W work(args);
    const unsigned uses = work.uses;
    typename W::Row row = work.first_row();
    typename W::template Sides<1> side = {};  // an empty chunk loads none
    A sum[SUMS] = {}, run[SUMS] = {};
    bool arrives = true, exists = false, convert = true;
    while (left-- > 0) {
        work.uses = keep_here(uses);
        if (arrives) {
            exists = r < space.reduced_size;
            if (convert || dims != kept + 1) {
                row = work.first_row();
                work.advance(row, 1, kept + 1, index - chunk_of() * space.kept_size);
                if (exists) work.advance(row, kept + 1, dims + 1, r);
            } else {
                work.move(row, dims, i64(1) << rise);
            }
            if (convert) work.load_sides(row, side);
        }
        A part[SUMS] = {};
        const auto sink = [&](int o, int, A y) { part[o - Op::FIRST_SUM] += y; };
        const auto add = [&] {
#pragma unroll
            for (int s = 0; s < SUMS; ++s) {
                run[s] += part[s];
                part[s] = A(0);
            }
        };
        if (work.unsplit(vector + ((U - 1) << shift))) {
            typename W::Loaded loaded[U];
#pragma unroll
            for (int u = 0; u < U; ++u) {
                const i64 first = vector * W::V + u * (W::V << shift);
                if (exists && first < space.extent[0]) work.template load<true>(row, {first}, loaded[u]);
            }
            if (convert) work.convert_sides(side);
            convert = false;
#pragma unroll
            for (int u = 0; u < U; ++u) {
                const i64 first = vector * W::V + u * (W::V << shift);
                if (!exists || first >= space.extent[0]) continue;
                work.template finish<true>(row, side.common, {first}, loaded[u], sink);
                add();
            }
        } else {
            if (convert) work.convert_sides(side);
            convert = false;
#pragma unroll 1
            for (int u = 0; u < U && exists; ++u) {
                work.elements(row, side.common, work.slot(vector + (u << shift), x), sink);
                add();
            }
        }
        vector += U << shift;
        arrives = vector >= row_vectors;
        if (arrives) {
            vector = x;
            r += 1 << rise;
        }
        if (left % (kRun / U) != 0) continue;
#pragma unroll
        for (int s = 0; s < SUMS; ++s) {
            sum[s] += run[s];
            run[s] = A(0);
        }
    }
#pragma unroll
    for (int s = 0; s < SUMS; ++s) sum[s] += run[s];
    sum_group(sum, group);
    if (member != 0 || index >= space.kept_size * space.chunks) return;
    const i64 c = chunk_of(), k = index - c * space.kept_size;
#pragma unroll
    for (int s = 0; s < SUMS; ++s)
        if (work.summed(Op::FIRST_SUM + s))
            work.store_sum(Op::FIRST_SUM + s, c, k, space.kept_size, 0,
                           total_of(work.op, Op::FIRST_SUM + s, side.common[0], sum[s], 0));
}

// ----------------------------------------------------------------------------------------- columns

// A CTA covers `lanes` vectors of columns; its kBlockThreads / lanes threads of a column share one
// chunk of the reduced index. Blocked summation: running sums go to shared memory every kRun rows,
// which bounds the rounding error.
template <typename Op, typename T, typename A>
__device__ void columns(const MapReduceArgs<Op::IN, Op::OUT>& args)
{
    using W = Worker<Op, T, A>;
    constexpr int U = Op::COLUMNS_UNROLL, OUT = W::OUT, SUMS = OUT - Op::FIRST_SUM, V = W::V;
    constexpr int HELD = SUMS ? SUMS : 1;  // no array is empty
    const IterSpace& space = args.space;
    const int lanes = static_cast<int>(space.lanes), shift = log2_of(lanes), height = kBlockThreads >> shift;
    const int thread = threadIdx.x, x = thread & (lanes - 1), y = thread >> shift;
    const int kept = static_cast<int>(space.kept), dims = static_cast<int>(space.dims);
    const unsigned rest = blockIdx.x / static_cast<unsigned>(space.tiles),
        tile = blockIdx.x - rest * static_cast<unsigned>(space.tiles);
    const unsigned k = rest / static_cast<unsigned>(space.chunks), c = rest - k * static_cast<unsigned>(space.chunks);
    const i64 begin = c * space.chunk, size = space.reduced_size - begin < space.chunk ? space.reduced_size - begin
        : space.chunk;
    const i64 vector = (static_cast<i64>(tile) << shift) + x;

    W work(args);
    typename W::Slot slot = work.slot(vector, x);
    int left = slot.count == 0 || y >= size ? 0
        : static_cast<int>((size - y + height - 1) >> (log2_of(kBlockThreads) - shift));
    typename W::Row row = work.first_row();
    work.move(row, 0, slot.first);
    work.advance(row, 1, kept + 1, k);
    slot.first = 0;

    __shared__ A total[HELD][SUMS ? kBlockThreads : 1][V];
    A run[HELD][V] = {};
#pragma unroll
    for (int s = 0; s < SUMS; ++s)
#pragma unroll
        for (int v = 0; v < V; ++v) total[s][thread][v] = A(0);
    const auto flush = [&] {
#pragma unroll
        for (int s = 0; s < SUMS; ++s)
#pragma unroll
            for (int v = 0; v < V; ++v) {
                total[s][thread][v] += run[s][v];
                run[s][v] = A(0);
            }
    };
    const auto sink = [&](int o, int v, A y) { run[o - Op::FIRST_SUM][v] += y; };
    const unsigned uses = work.uses;
    typename W::template Sides<V> side;
    work.load_sides(row, side, 0, slot.step, slot.count);
    work.convert_sides(side);

    if (dims == kept + 1 && work.unsplit(vector)) {
        // The rows of one reduced dim have a constant stride.
        work.move(row, dims, begin + y);
        i64 in_advance[W::IN], out_advance[W::FULL];
#pragma unroll
        for (int i = 0; i < W::IN; ++i) in_advance[i] = height * work.in_step(i, dims);
#pragma unroll
        for (int o = 0; o < W::FULL; ++o) out_advance[o] = height * work.out_step(o, dims);
        for (; left > 0; left -= U) {
            work.uses = keep_here(uses);
            typename W::Loaded loaded[U];
#pragma unroll
            for (int u = 0; u < U; ++u) {
                if (u < left) work.template load<true>(row, slot, loaded[u]);
#pragma unroll
                for (int i = 0; i < W::IN; ++i) row.in[i] += in_advance[i];
            }
#pragma unroll
            for (int u = 0; u < U; ++u) {
                if (u < left) work.template finish<true>(row, side.common, slot, loaded[u], sink);
#pragma unroll
                for (int o = 0; o < W::FULL; ++o) row.out[o] += out_advance[o];
            }
            if (left / U % (kRun / U) == 0) flush();
        }
    } else {
        const typename W::Row base = row;
        for (i64 r = begin + y; left > 0; r += height, --left) {
            work.uses = keep_here(uses);
            row = base;
            work.advance(row, kept + 1, dims + 1, r);
            if (work.unsplit(vector)) {
                typename W::Loaded loaded;
                work.template load<true>(row, slot, loaded);
                work.template finish<true>(row, side.common, slot, loaded, sink);
            } else {
                work.elements(row, side.common, slot, sink);
            }
            if (left % kRun == 0) flush();
        }
    }
    if (SUMS == 0) return;
    flush();
    for (int half = height / 2; half > 0; half /= 2) {
        __syncthreads();
        if (y >= half) continue;
#pragma unroll
        for (int s = 0; s < SUMS; ++s)
#pragma unroll
            for (int v = 0; v < V; ++v) total[s][thread][v] += total[s][thread + half * lanes][v];
    }
    __syncthreads();

    const i64 kept_size = space.kept_size * space.extent[0];
    for (int column = thread; column < lanes * V; column += kBlockThreads) {
        const i64 inner = static_cast<i64>(tile) * lanes * V + column;
        if (inner >= space.extent[0]) break;
        const int owner = space.wide ? column / V : column & (lanes - 1), v = space.wide ? column % V : column >> shift;
#pragma unroll
        for (int s = 0; s < SUMS; ++s)
            if (work.summed(Op::FIRST_SUM + s))
                work.store_sum(Op::FIRST_SUM + s, c, k, kept_size, inner, total[s][owner][v]);
    }
}

// ---------------------------------------------------------------------------------- exported names

#define EXPORT_MAP(dtype, T, A, family, Op) \
    EXPORT_THREADS(family##_map_##dtype, kSmallBlock, Op<A>::MAP_BLOCKS, Op<A>::Args, map<Op<A>, T, A>(args))

#define EXPORT_MAP_ROWS(dtype, T, A, family, Op) \
    EXPORT_MAP(dtype, T, A, family, Op)          \
    EXPORT_THREADS(family##_rows_##dtype, kSmallBlock, Op<A>::ROWS_BLOCKS, Op<A>::Args, rows<Op<A>, T, A>(args))

#define EXPORT_COLUMNS(dtype, T, A, family, Op) \
    EXPORT(family##_columns_##dtype, Op<A>::COLUMNS_BLOCKS, Op<A>::Args, columns<Op<A>, T, A>(args))

#define EXPORT_MAP_ROWS_COLUMNS(dtype, T, A, family, Op) \
    EXPORT_MAP_ROWS(dtype, T, A, family, Op)             \
    EXPORT_COLUMNS(dtype, T, A, family, Op)
