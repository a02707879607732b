// Map and reduce over an index space of up to eight dims: the loops; the mathematics of one element is a functor Op.
//
//     Op::IN, Op::OUT          numbers of inputs and outputs; an absent one has data == 0
//     Op::input(i)             storage of input i: Kind::Own, Kind::Byte or Kind::Side
//     Op::FIRST_SUM            outputs from this one on may be summed
//     Op::UNROLL               vectors that a thread loads before it uses the first
//     Op(args)                 reads its numbers once
//     op(in, out)              one element, in the accumulator
//
// Dim 0 is `inner`; dims 1..kept are kept, kept+1..dims are reduced. An output is stored at each element, or (its bit in `summed`)
// summed over the reduced dims in an order that the shape and the launch fix:
//
//     map       nothing is summed                     a thread owns a few vectors of one row
//     rows      inner is reduced too                  `group` threads share one kept index: shuffles, then one barrier
//     columns   inner is kept                         a thread owns V columns, the block shares the reduced index
//     combine   adds the partial sums of rows or columns that were cut into several chunks
#pragma once

#include "kernel.cuh"

enum class Kind {
    Own,   // the kernel's dtype
    Byte,  // int8 or uint8
    Side,  // any dtype; constant along inner, as a rule
};

constexpr i64 kUnit = 1, kConstant = 2;  // Operand::access: stride 1, stride 0 along inner
constexpr int kRun = 16;                 // a running sum goes to the next level after so many additions

struct Operand {
    char* data;
    i64 dtype, access, stride[8];  // strides in elements
};

struct Walk {
    i64 extent[8], kept, dims;
    i64 chunks, chunk;  // the reduced space is cut into `chunks` runs: of `chunk` units in rows, of `chunk` indices in columns
    i64 group;          // rows: threads that share one kept index
    i64 lanes;          // threads side by side along inner; a power of two, as group is
    i64 step;           // distance of a thread's elements: 1, or `lanes` where element accesses should coalesce
    i64 summed;
    void* partial;  // [sum][chunk][kept index] in the accumulator, when chunks > 1
    double scalar[4];
};

template <int INPUTS, int OUTPUTS>
struct MapReduceArgs {
    Walk walk;
    Operand in[INPUTS], out[OUTPUTS];
};

struct CombineArgs {
    Walk walk;
    Operand out[3];
};

__device__ inline i64 product(const i64* extent, i64 from, i64 to)
{
    i64 n = 1;
#pragma unroll 1
    for (i64 d = from; d < to; ++d) n *= extent[d];
    return n;
}

__device__ inline i64 ceil_div(i64 a, i64 b) { return (a + b - 1) / b; }
__device__ inline bool has(i64 bits, int i) { return bits >> i & 1; }

// What one thread does with V elements of one row: load, compute, store.
template <typename Op, typename T, typename A>
struct Worker {
    static constexpr int IN = Op::IN, OUT = Op::OUT, V = 16 / sizeof(T);
    using Args = MapReduceArgs<IN, OUT>;

    // How an operand is accessed along inner, two bits each in `ways`: inputs, then outputs.
    enum Way { Absent, Wide, Constant, Scattered };

    const Args& args;
    const Op op;
    unsigned ways = 0;

    __device__ explicit Worker(const Args& a) : args(a), op(a)
    {
#pragma unroll
        for (int i = 0; i < IN; ++i) ways |= way_of(args.in[i], false) << 2 * i;
#pragma unroll
        for (int o = 0; o < OUT; ++o) ways |= way_of(args.out[o], has(args.walk.summed, o)) << 2 * (IN + o);
    }

    __device__ unsigned way_of(const Operand& operand, bool summed) const
    {
        if (operand.data == nullptr || summed) return Absent;
        if (operand.access == kConstant) return Constant;
        return operand.access == kUnit && args.walk.step == 1 ? Wide : Scattered;
    }

    __device__ Way way(int operand) const { return static_cast<Way>(ways >> 2 * operand & 3); }

    // The first elements of one row of inner.
    struct Row {
        char *in[IN], *out[OUT];
    };

    __device__ Row first_row() const
    {
        Row row;
#pragma unroll
        for (int i = 0; i < IN; ++i) row.in[i] = args.in[i].data;
#pragma unroll
        for (int o = 0; o < OUT; ++o) row.out[o] = args.out[o].data;
        return row;
    }

    static __device__ i64 bytes(Kind kind, const Operand& operand)
    {
        return kind == Kind::Own ? sizeof(T) : kind == Kind::Byte ? 1 : size_of(operand.dtype);
    }

    // Moves to `index` in the dims from..to-1, of which the first runs fastest.
    __device__ void advance(Row& row, i64 from, i64 to, i64 index) const
    {
#pragma unroll 1
        for (i64 d = from; d < to; ++d) {
            i64 n = index;
            if (d + 1 < to) {
                index = n / args.walk.extent[d];
                n -= index * args.walk.extent[d];
            }
#pragma unroll
            for (int i = 0; i < IN; ++i) row.in[i] += n * args.in[i].stride[d] * bytes(Op::input(i), args.in[i]);
#pragma unroll
            for (int o = 0; o < OUT; ++o) row.out[o] += n * args.out[o].stride[d] * size_of(args.out[o].dtype);
        }
    }

    // V elements, element v at inner index first + v * step; `count` of them exist.
    struct Slot {
        i64 first;
        int count;
    };

    // `vector` counts vectors from the start of the row and belongs to the thread at x.
    __device__ Slot slot(i64 vector, int x, bool exists) const
    {
        const i64 step = args.walk.step, first = step == 1 ? vector * V : (vector - x) * V + x;
        const i64 left = args.walk.extent[0] - first, fit = step == 1 ? left : ceil_div(left, step);
        return {first, !exists || fit <= 0 ? 0 : fit < V ? static_cast<int>(fit) : V};
    }

    struct Loaded {
        Pack<T, V> own[IN];
        Pack<unsigned char, V> byte[IN];
    };

    // Side inputs that are constant along inner, as bits.
    __device__ void load_sides(const Row& row, i64 (&bits)[IN]) const
    {
#pragma unroll
        for (int i = 0; i < IN; ++i) bits[i] = Op::input(i) == Kind::Side && way(i) != Absent ? load_bits(row.in[i], args.in[i].dtype) : 0;
    }

    template <typename S>
    __device__ void load_elements(int i, const char* row, Slot at, Pack<S, V>& pack) const
    {
        const S* p = reinterpret_cast<const S*>(row);
        if (way(i) == Wide && at.count == V && aligned<V * sizeof(S)>(p + at.first)) {
            pack = load_wide<V>(p + at.first);
        } else if (way(i) == Constant) {
            const S x = *p;
#pragma unroll
            for (int v = 0; v < V; ++v) pack.at[v] = x;
        } else if (way(i) != Absent) {
            const i64 stride = args.in[i].stride[opaque(0)], hop = stride * args.walk.step;
            p += at.first * stride;
#pragma unroll
            for (int v = 0; v < V; ++v, p += hop)
                if (v < at.count) pack.at[v] = *p;
        }
    }

    // Issues the loads; nothing waits for them here.
    __device__ Loaded load(const Row& row, Slot at) const
    {
        Loaded x = {};
        if (at.count == 0) return x;
#pragma unroll
        for (int i = 0; i < IN; ++i) {
            if (Op::input(i) == Kind::Own) load_elements(i, row.in[i], at, x.own[i]);
            if (Op::input(i) == Kind::Byte) load_elements(i, row.in[i], at, x.byte[i]);
        }
        return x;
    }

    // Computes each element, gives sink(o, v, y) what may be summed, and stores the rest.
    template <typename Sink>
    __device__ void finish(const Row& row, const i64 (&bits)[IN], Slot at, const Loaded& x, Sink sink) const
    {
        A side[IN];
#pragma unroll
        for (int i = 0; i < IN; ++i)
            if (Op::input(i) == Kind::Side) side[i] = from_bits<A>(bits[i], args.in[i].dtype);
        Pack<T, V> pack[OUT];
#pragma unroll
        for (int v = 0; v < V; v += 2) {
            A y[OUT][2];
#pragma unroll
            for (int w = v; w < v + 2; ++w) {
                A element[IN], result[OUT];
#pragma unroll
                for (int i = 0; i < IN; ++i) element[i] = value(i, w, side[i], x);
                op(element, result);
#pragma unroll
                for (int o = 0; o < OUT; ++o) {
                    y[o][w - v] = result[o];
                    if (o >= Op::FIRST_SUM) sink(o, w, result[o]);
                }
            }
#pragma unroll
            for (int o = 0; o < OUT; ++o) narrow(y[o], pack[o].at + v);
        }
#pragma unroll
        for (int o = 0; o < OUT; ++o)
            if (way(IN + o) != Absent) store(o, row.out[o], at, pack[o]);
    }

    __device__ A value(int i, int v, A side, const Loaded& x) const
    {
        if (Op::input(i) == Kind::Own) return widen<A>(x.own[i].at[v]);
        if (Op::input(i) == Kind::Byte) return byte_value<A>(x.byte[i].at[v], args.in[i].dtype);
        return side;
    }

    __device__ void store(int o, char* row, Slot at, const Pack<T, V>& pack) const
    {
        T* p = reinterpret_cast<T*>(row);
        if (way(IN + o) == Wide && at.count == V && aligned<16>(p + at.first)) {
            store_wide(p + at.first, pack);
            return;
        }
        const i64 stride = args.out[o].stride[opaque(0)], hop = stride * args.walk.step;
        p += at.first * stride;
#pragma unroll
        for (int v = 0; v < V; ++v, p += hop)
            if (v < at.count) *p = pack.at[v];
    }

    // A sum at its place: the output itself, or its place among the partial sums.
    __device__ void store_sum(int o, char* place, i64 c, i64 k, i64 kept_size, A sum) const
    {
        const Walk& walk = args.walk;
        if (walk.chunks > 1) {
            const int ordinal = __popcll(walk.summed & ((1ll << o) - 1));
            static_cast<A*>(walk.partial)[(ordinal * walk.chunks + c) * kept_size + k] = sum;
        } else {
            store_any<A>(place, args.out[o].dtype, sum);
        }
    }
};

// ---------------------------------------------------------------------------------------------------- map

// A block covers a tile of lanes * U vectors in each of kBlock / lanes rows.
template <typename Op, typename T, typename A>
__device__ void map(const MapReduceArgs<Op::IN, Op::OUT>& args)
{
    using W = Worker<Op, T, A>;
    constexpr int U = Op::UNROLL;
    const Walk& walk = args.walk;
    const int lanes = static_cast<int>(walk.lanes), x = threadIdx.x & (lanes - 1);
    const i64 tiles = ceil_div(walk.extent[0], lanes * U * W::V);
    const i64 band = blockIdx.x / tiles, tile = blockIdx.x - band * tiles;
    const i64 r = band * (kBlock / lanes) + threadIdx.x / lanes;
    if (r >= product(walk.extent, 1, walk.dims + 1)) return;

    const W work(args);
    typename W::Row row = work.first_row();
    work.advance(row, 1, walk.dims + 1, r);
    i64 bits[W::IN];
    work.load_sides(row, bits);
    typename W::Slot slot[U];
    typename W::Loaded loaded[U];
#pragma unroll
    for (int u = 0; u < U; ++u) {
        slot[u] = work.slot((tile * U + u) * lanes + x, x, true);
        loaded[u] = work.load(row, slot[u]);
    }
#pragma unroll
    for (int u = 0; u < U; ++u)
        if (slot[u].count > 0) work.finish(row, bits, slot[u], loaded[u], [](int, int, A) {});
}

// ---------------------------------------------------------------------------------------------------- rows

// The sum over `group` adjacent threads, part of a warp or the whole block, in the first of them.
template <typename A, int N>
__device__ void sum_group(A (&sum)[N], int group)
{
    __shared__ A of_warp[N][kBlock / 32];
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
        sum[o] = of_warp[o][0];
        for (int w = 1; w < group / 32; ++w) sum[o] += of_warp[o][w];
    }
}

// A unit is lanes * U vectors in each of group / lanes reduced rows. A group of threads adds up one chunk of units for one kept index.
template <typename Op, typename T, typename A>
__device__ void rows(const MapReduceArgs<Op::IN, Op::OUT>& args)
{
    using W = Worker<Op, T, A>;
    constexpr int U = Op::UNROLL, SUMS = W::OUT - Op::FIRST_SUM;
    const Walk& walk = args.walk;
    const int group = static_cast<int>(walk.group), lanes = static_cast<int>(walk.lanes), height = group / lanes;
    const int member = threadIdx.x & (group - 1), x = member & (lanes - 1), y = member / lanes;
    const i64 index = static_cast<i64>(blockIdx.x) * (blockDim.x / group) + threadIdx.x / group;
    const i64 kept_size = product(walk.extent, 1, walk.kept + 1);
    const i64 c = index / kept_size, k = index - c * kept_size;
    const i64 reduced = product(walk.extent, walk.kept + 1, walk.dims + 1);
    const i64 tiles = ceil_div(walk.extent[0], lanes * U * W::V), units = tiles * ceil_div(reduced, height);
    const i64 begin = c * walk.chunk, cut = begin + walk.chunk, end = c >= walk.chunks ? begin : cut < units ? cut : units;

    const W work(args);
    A sum[SUMS] = {}, run[SUMS] = {};
    int length = 0;
    for (i64 unit = begin; unit < end; ++unit) {
        const i64 band = walk.dims > walk.kept ? unit / tiles : 0, tile = unit - band * tiles, r = band * height + y;
        typename W::Row row = work.first_row();
        work.advance(row, 1, walk.kept + 1, k);
        work.advance(row, walk.kept + 1, walk.dims + 1, r < reduced ? r : 0);
        i64 bits[W::IN];
        work.load_sides(row, bits);
        typename W::Slot slot[U];
        typename W::Loaded loaded[U];
#pragma unroll
        for (int u = 0; u < U; ++u) {
            slot[u] = work.slot((tile * U + u) * lanes + x, x, r < reduced);
            loaded[u] = work.load(row, slot[u]);
        }
#pragma unroll
        for (int u = 0; u < U; ++u) {
            if (slot[u].count == 0) continue;
            A part[SUMS] = {};
            work.finish(row, bits, slot[u], loaded[u], [&](int o, int v, A y) {
                if (v < slot[u].count) part[o - Op::FIRST_SUM] += y;
            });
#pragma unroll
            for (int s = 0; s < SUMS; ++s) run[s] += part[s];
        }
        if ((length += U) % kRun != 0) continue;
#pragma unroll
        for (int s = 0; s < SUMS; ++s) {
            sum[s] += run[s];
            run[s] = A(0);
        }
    }
#pragma unroll
    for (int s = 0; s < SUMS; ++s) sum[s] += run[s];
    sum_group(sum, group);
    if (member != 0 || c >= walk.chunks) return;
    typename W::Row row = work.first_row();
    work.advance(row, 1, walk.kept + 1, k);
#pragma unroll
    for (int s = 0; s < SUMS; ++s) {
        const int o = Op::FIRST_SUM + s;
        if (has(walk.summed, o)) work.store_sum(o, row.out[o], c, k, kept_size, sum[s]);
    }
}

// ---------------------------------------------------------------------------------------------------- columns

// A block covers `lanes` vectors of columns; its kBlock / lanes threads of a column share one chunk of the reduced index. Running sums
// go to shared memory every kRun rows, so that no long row of additions loses digits.
template <typename Op, typename T, typename A>
__device__ void columns(const MapReduceArgs<Op::IN, Op::OUT>& args)
{
    using W = Worker<Op, T, A>;
    constexpr int U = Op::UNROLL, OUT = W::OUT, SUMS = OUT - Op::FIRST_SUM, V = W::V;
    const Walk& walk = args.walk;
    const int lanes = static_cast<int>(walk.lanes), height = kBlock / lanes;
    const int thread = threadIdx.x, x = thread & (lanes - 1), y = thread / lanes;
    const i64 tiles = ceil_div(walk.extent[0], lanes * V);
    const i64 rest = blockIdx.x / tiles, tile = blockIdx.x - rest * tiles;
    const i64 k = rest / walk.chunks, c = rest - k * walk.chunks;
    const i64 reduced = product(walk.extent, walk.kept + 1, walk.dims + 1);
    const i64 begin = c * walk.chunk, cut = begin + walk.chunk, end = cut < reduced ? cut : reduced;

    const W work(args);
    typename W::Row base = work.first_row();
    work.advance(base, 1, walk.kept + 1, k);
    const auto row_at = [&](i64 r) {
        typename W::Row row = base;
        work.advance(row, walk.kept + 1, walk.dims + 1, r);
        return row;
    };

    __shared__ A total[SUMS][kBlock][V];
    A run[SUMS][V] = {};
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

    int length = 0;
    for (i64 r = begin + y; r < end; r += U * height) {
        typename W::Slot slot[U];
        typename W::Loaded loaded[U];
        i64 bits[U][W::IN];
#pragma unroll
        for (int u = 0; u < U; ++u) {
            const bool exists = r + u * height < end;
            const typename W::Row row = row_at(exists ? r + u * height : r);
            slot[u] = work.slot(tile * lanes + x, x, exists);
            work.load_sides(row, bits[u]);
            loaded[u] = work.load(row, slot[u]);
        }
#pragma unroll
        for (int u = 0; u < U; ++u) {
            if (slot[u].count == 0) continue;
            const typename W::Row row = row_at(r + u * height);
            work.finish(row, bits[u], slot[u], loaded[u], [&](int o, int v, A y) { run[o - Op::FIRST_SUM][v] += y; });
        }
        if ((length += U) % kRun == 0) flush();
    }
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

    const i64 kept_size = product(walk.extent, 0, walk.kept + 1);
    for (int column = thread; column < lanes * V; column += kBlock) {
        const i64 inner = tile * lanes * V + column;
        if (inner >= walk.extent[0]) break;
        const int owner = walk.step == 1 ? column / V : column & (lanes - 1), v = walk.step == 1 ? column % V : column / lanes;
#pragma unroll
        for (int s = 0; s < SUMS; ++s) {
            const int o = Op::FIRST_SUM + s;
            if (!has(walk.summed, o)) continue;
            char* place = base.out[o] + inner * args.out[o].stride[0] * size_of(args.out[o].dtype);
            work.store_sum(o, place, c, k * walk.extent[0] + inner, kept_size, total[s][owner][v]);
        }
    }
}

// ---------------------------------------------------------------------------------------------------- combine

// out[k] = sum over c of partial[c][k], for each summed output; the threads of a block that share k take every height-th chunk.
template <typename A>
__device__ void combine(const CombineArgs& args)
{
    constexpr int U = 4;
    const Walk& walk = args.walk;
    const int lanes = static_cast<int>(walk.lanes), height = kBlock / lanes;
    const int thread = threadIdx.x, x = thread & (lanes - 1), y = thread / lanes;
    const i64 size = product(walk.extent, 0, walk.kept + 1), tiles = ceil_div(size, lanes);
    const int ordinal = static_cast<int>(blockIdx.x / tiles);
    const i64 k = (blockIdx.x - ordinal * tiles) * lanes + x;
    const A* partial = static_cast<const A*>(walk.partial) + ordinal * walk.chunks * size + k;

    A sum = 0;
    if (k < size)
        for (i64 c = y; c < walk.chunks; c += U * height) {
            A part[U];
#pragma unroll
            for (int u = 0; u < U; ++u) part[u] = c + u * height < walk.chunks ? partial[(c + u * height) * size] : A(0);
            sum += (part[0] + part[1]) + (part[2] + part[3]);
        }
    __shared__ A total[kBlock];
    total[thread] = sum;
    for (int half = height / 2; half > 0; half /= 2) {
        __syncthreads();
        if (y < half) total[thread] += total[thread + half * lanes];
    }
    if (y != 0 || k >= size) return;

    int o = 0;
    for (int before = ordinal; !has(walk.summed, o) || before-- > 0;) ++o;
    const Operand& out = args.out[o];
    i64 offset = 0, index = k;
    for (i64 d = 0; d <= walk.kept; ++d) {
        offset += index % walk.extent[d] * out.stride[d];
        index /= walk.extent[d];
    }
    store_any<A>(out.data + offset * size_of(out.dtype), out.dtype, total[thread]);
}

// ---------------------------------------------------------------------------------------------------- exported names

#define EXPORT_MAP_ROWS(dtype, T, A, family, Op)                      \
    EXPORT(family##_map_##dtype, Op<A>::Args, map<Op<A>, T, A>(args)) \
    EXPORT(family##_rows_##dtype, Op<A>::Args, rows<Op<A>, T, A>(args))

#define EXPORT_MAP_ROWS_COLUMNS(dtype, T, A, family, Op) \
    EXPORT_MAP_ROWS(dtype, T, A, family, Op)             \
    EXPORT(family##_columns_##dtype, Op<A>::Args, columns<Op<A>, T, A>(args))
