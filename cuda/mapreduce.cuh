// Map and reduce over an index space of up to eight dims: the loops; the mathematics of one element is a functor Op.
//
//     Op::IN, Op::OUT          numbers of inputs and outputs; an absent one has data == 0
//     Op::input(i)             storage of input i: Kind::Own, Kind::Byte or Kind::Side
//     Op::FULL, Op::FIRST_SUM  the first FULL outputs may be stored at each element, those from FIRST_SUM on may be summed
//     Op::..._UNROLL, _BLOCKS  vectors that a thread loads before it uses the first, blocks at once on a multiprocessor
//     Op(args)                 reads its numbers once
//     op.common(side)          Op::Common: what the elements of one row share, from the Side inputs
//     op.shared(in, common)    what the outputs of one element share
//     op.output(o, in, common, shared)   output o of one element, in the accumulator
//
// Dim 0 is `inner`; dims 1..kept are kept, kept+1..dims are reduced. An output is stored at each element, or (its bit in `summed`)
// summed over the reduced dims in an order that the shape and the launch fix:
//
//     map       nothing is summed          a thread owns V elements of one row
//     rows      inner is reduced too       `group` threads share one kept index: shuffles, then one barrier
//     columns   inner is kept              a thread owns V columns, the block shares the reduced index
//     combine   adds the partial sums of rows or columns that were cut into several chunks
//
// V elements fill 16 bytes. Where every operand allows it (`wide`) they are neighbours, read and written in one access; otherwise they
// lie `lanes` apart, so that the threads of a warp touch neighbours.
#pragma once

#include "kernel.cuh"

enum class Kind {
    Own,   // the kernel's dtype
    Byte,  // int8 or uint8
    Side,  // any dtype, constant along inner
};

constexpr int kRun = 16;  // a running sum goes to the next level after so many additions

struct Operand {
    char* data;
    i64 dtype, stride[8];  // strides in elements
};

struct Walk {
    i64 extent[8], kept, dims;
    i64 kept_size, reduced_size;  // products of the extents of dims 1..kept and kept+1..dims
    i64 group;                    // rows: threads that share one kept index
    i64 lanes;                    // threads side by side along inner; a power of two, as group is
    i64 tiles;                    // tiles of lanes * U vectors along inner
    i64 chunks, chunk;            // the reduced space is cut into `chunks` runs: of `chunk` units in rows, of `chunk` indices in columns
    i64 wide;                     // 1: every access along inner is aligned and has stride 1, or has stride 0
    i64 uses;                     // two bits for each operand, inputs first: loaded, or stored at each element; input constant along inner
    i64 summed;                   // one bit for each output
    void* partial;                // [sum][chunk][kept index] in the accumulator, when chunks > 1
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

__device__ inline int log2_of(i64 power) { return __ffs(static_cast<int>(power)) - 1; }

// Stores an element of a summed output: kept index k, and the index along inner where that is kept too.
template <typename A>
__device__ void store_kept(const Walk& walk, const Operand& out, i64 k, i64 inner, A sum)
{
    i64 offset = inner * out.stride[0];
#pragma unroll 1
    for (i64 d = 1; d <= walk.kept; ++d) {
        const i64 rest = d < walk.kept ? k / walk.extent[d] : 0;
        offset += (k - rest * walk.extent[d]) * out.stride[d];
        k = rest;
    }
    store_any(out.data + offset * size_of(out.dtype), out.dtype, sum);
}

// What one thread does with V elements of one row: load, compute, store.
template <typename Op, typename T, typename A>
struct Worker {
    static constexpr int IN = Op::IN, OUT = Op::OUT, FULL = Op::FULL, V = 16 / sizeof(T);
    using Args = MapReduceArgs<IN, OUT>;

    const Args& args;
    const Op op;
    unsigned uses;  // Walk::uses, with the second bit of the outputs: summed

    __device__ explicit Worker(const Args& a) : args(a), op(a), uses(static_cast<unsigned>(a.walk.uses))
    {
#pragma unroll
        for (int o = Op::FIRST_SUM; o < OUT; ++o) uses |= (static_cast<unsigned>(a.walk.summed) >> o & 1) << (2 * (IN + o) + 1);
    }

    __device__ bool used(int i) const { return i == 0 || uses >> 2 * i & 1; }  // dy always is
    __device__ bool constant(int i) const { return uses >> 2 * i & 2; }
    __device__ bool stored(int o) const { return o < FULL && used(IN + o); }
    __device__ bool summed(int o) const { return o >= Op::FIRST_SUM && constant(IN + o); }

    // The first elements of one row of inner.
    struct Row {
        char *in[IN], *out[FULL];
    };

    __device__ Row first_row() const
    {
        Row row;
#pragma unroll
        for (int i = 0; i < IN; ++i) row.in[i] = args.in[i].data;
#pragma unroll
        for (int o = 0; o < FULL; ++o) row.out[o] = args.out[o].data;
        return row;
    }

    // Bytes from one element of an operand to the next in dim d.
    __device__ i64 in_step(int i, int d) const
    {
        return args.in[i].stride[d] * (Op::input(i) == Kind::Own ? sizeof(T) : Op::input(i) == Kind::Byte ? 1 : size_of(args.in[i].dtype));
    }
    __device__ i64 out_step(int o, int d) const { return args.out[o].stride[d] * static_cast<i64>(sizeof(T)); }

    // Moves by n in dim d.
    __device__ void move(Row& row, int d, i64 n) const
    {
#pragma unroll
        for (int i = 0; i < IN; ++i)
            if (used(i)) row.in[i] += n * in_step(i, d);
#pragma unroll
        for (int o = 0; o < FULL; ++o)
            if (stored(o)) row.out[o] += n * out_step(o, d);
    }

    // Moves to `index` in the dims from..to-1, of which the first runs fastest.
    __device__ void advance(Row& row, int from, int to, i64 index) const
    {
#pragma unroll 1
        for (int d = from; d < to; ++d) {
            const i64 rest = d + 1 < to ? index / args.walk.extent[d] : 0;
            move(row, d, index - rest * args.walk.extent[d]);
            index = rest;
        }
    }

    // Up to V elements of a row: element v is at inner index first + v * step, `count` of them exist.
    struct Slot {
        i64 first;
        int count, step;
    };

    // The vector of the thread at x, which lies in the tile that begins with vector - x. Neighbours in wide walks, `lanes` apart in others.
    __device__ Slot slot(i64 vector, int x) const
    {
        const int step = args.walk.wide ? 1 : static_cast<int>(args.walk.lanes);
        const i64 first = step == 1 ? vector * V : (vector - x) * V + x, left = args.walk.extent[0] - first;
        return {first, left >= V * step ? V : left <= 0 ? 0 : (static_cast<int>(left) + step - 1) >> log2_of(step), step};
    }

    // Whether the walk is wide and no vector up to this one is cut by the end of the row.
    __device__ bool uncut(i64 vector) const
    {
        const i64 extent = args.walk.extent[0];
        return args.walk.wide && (extent % V == 0 || (vector + 1) * V <= extent);
    }

    struct Loaded {
        Words<T, V> own[IN];
        Words<unsigned char, V> byte[IN];
    };

    template <bool WHOLE, typename S>
    __device__ void load_operand(int i, const char* row, const Slot& at, Words<S, V>& x) const
    {
        const S* p = reinterpret_cast<const S*>(row);
        if (constant(i)) {
            const S same = *p;
#pragma unroll
            for (int v = 0; v < V; ++v) x.set(v, same);
        } else if constexpr (WHOLE) {
            x.load(p + at.first);
        } else {
            const i64 stride = args.in[i].stride[opaque(0)], hop = stride * at.step;
            p += at.first * stride;
#pragma unroll
            for (int v = 0; v < V; ++v, p += hop) x.set(v, v < at.count ? *p : S(0));
        }
    }

    // Issues the loads; nothing waits for them here.
    template <bool WHOLE>
    __device__ void load(const Row& row, const Slot& at, Loaded& x) const
    {
#pragma unroll
        for (int i = 0; i < IN; ++i) {
            if (!used(i)) continue;
            if (Op::input(i) == Kind::Own) load_operand<WHOLE>(i, row.in[i], at, x.own[i]);
            if (Op::input(i) == Kind::Byte) load_operand<WHOLE>(i, row.in[i], at, x.byte[i]);
        }
    }

    // Side inputs: loaded as bits with the first loads of a row, converted behind them.
    struct Sides {
        i64 bits[IN];
        typename Op::Common common;
    };

    __device__ void load_sides(const Row& row, Sides& side) const
    {
#pragma unroll
        for (int i = 0; i < IN; ++i)
            if (Op::input(i) == Kind::Side) side.bits[i] = used(i) ? load_bits(row.in[i], args.in[i].dtype) : 0;
    }

    __device__ void convert_sides(Sides& side) const
    {
        A value[IN];
#pragma unroll
        for (int i = 0; i < IN; ++i) value[i] = Op::input(i) == Kind::Side ? from_bits<A>(side.bits[i], args.in[i].dtype) : A(0);
        side.common = op.common(value);
    }

    // Element v. The sign bit of a signed byte was flipped, which adds 128: the value without sign extension.
    __device__ void element(const Loaded& x, int v, A (&in)[IN]) const
    {
#pragma unroll
        for (int i = 0; i < IN; ++i) {
            if (Op::input(i) == Kind::Own) in[i] = x.own[i].template value<A>(v);
            if (Op::input(i) == Kind::Byte) in[i] = x.byte[i].template value<A>(v) - A(args.in[i].dtype == I8 ? 128 : 0);
        }
    }

    // Output by output: computes the elements, then stores them, or gives sink(o, v, y) those that are summed.
    template <bool WHOLE, typename Sink>
    __device__ void finish(const Row& row, const Sides& side, const Slot& at, Loaded& x, Sink sink) const
    {
#pragma unroll
        for (int i = 0; i < IN; ++i)
            if (Op::input(i) == Kind::Byte)
#pragma unroll
                for (unsigned& word : x.byte[i].word) word ^= args.in[i].dtype == I8 ? 0x80808080 : 0;
        A shared[V];
#pragma unroll
        for (int v = 0; v < V; ++v) {
            A in[IN];
            element(x, v, in);
            shared[v] = op.shared(in, side.common);
        }
#pragma unroll
        for (int o = 0; o < OUT; ++o) {
            if (!stored(o) && !summed(o)) continue;
            A y[V];
#pragma unroll
            for (int v = 0; v < V; ++v) {
                A in[IN];
                element(x, v, in);
                y[v] = op.output(o, in, side.common, shared[v]);
            }
            if (stored(o)) store<WHOLE>(o, row.out[o], at, y);
            if (!summed(o)) continue;
#pragma unroll
            for (int v = 0; v < V; ++v)
                if (WHOLE || v < at.count) sink(o, v, y[v]);
        }
    }

    template <bool WHOLE>
    __device__ void store(int o, char* row, const Slot& at, const A (&y)[V]) const
    {
        T* p = reinterpret_cast<T*>(row);
        Words<T, V> pack;
#pragma unroll
        for (int v = 0; v < V; v += 2) {
            T pair[2];
            narrow({y[v], y[v + 1]}, pair);
            pack.set(v, pair[0]);
            pack.set(v + 1, pair[1]);
        }
        if constexpr (WHOLE) {
            pack.store(p + at.first);
        } else {
            const i64 stride = args.out[o].stride[opaque(0)], hop = stride * at.step;
            p += at.first * stride;
#pragma unroll
            for (int v = 0; v < V; ++v, p += hop)
                if (v < at.count) *p = pack.get(v);
        }
    }

    // Element by element: the tail of a row, and walks that are not wide.
    template <typename Sink>
    __device__ void elements(const Row& row, const Sides& side, const Slot& at, Sink sink) const
    {
        Loaded x = {};
        if (at.count == 0) return;
        load<false>(row, at, x);
        finish<false>(row, side, at, x, sink);
    }

    // A sum at its place: the output itself, or its place among the partial sums, which are `size` to a chunk.
    __device__ void store_sum(int o, i64 c, i64 k, i64 size, i64 inner, A sum) const
    {
        const Walk& walk = args.walk;
        if (walk.chunks > 1) {
            const int ordinal = __popcll(walk.summed & ((1ll << o) - 1));
            static_cast<A*>(walk.partial)[(ordinal * walk.chunks + c) * size + k * (size / walk.kept_size) + inner] = sum;
        } else {
            store_kept(walk, args.out[o], k, inner, sum);
        }
    }
};

// ---------------------------------------------------------------------------------------------------- map

// A block covers a tile of lanes * U vectors in each of kBlock / lanes rows.
template <typename Op, typename T, typename A>
__device__ void map(const MapReduceArgs<Op::IN, Op::OUT>& args)
{
    using W = Worker<Op, T, A>;
    constexpr int U = Op::MAP_UNROLL;
    const Walk& walk = args.walk;
    const int shift = log2_of(walk.lanes), x = threadIdx.x & ((1 << shift) - 1);
    const unsigned tiles = static_cast<unsigned>(walk.tiles), band = walk.dims == 0 ? 0 : tiles == 1 ? blockIdx.x : blockIdx.x / tiles;
    const i64 vector = (static_cast<i64>(blockIdx.x - band * tiles) * U << shift) + x;
    const i64 r = (static_cast<i64>(band) << (log2_of(kBlock) - shift)) + (threadIdx.x >> shift);
    if (r >= walk.kept_size) return;

    const W work(args);
    typename W::Row row = work.first_row();
    work.advance(row, 1, static_cast<int>(walk.dims) + 1, r);
    typename W::Sides side;
    work.load_sides(row, side);
    const auto nothing = [](int, int, A) {};
    if (!work.uncut(vector + ((U - 1) << shift))) {
        work.convert_sides(side);
#pragma unroll 1
        for (int u = 0; u < U; ++u) work.elements(row, side, work.slot(vector + (u << shift), x), nothing);
        return;
    }
    const i64 end = walk.extent[0];
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
        if (first < end) work.template finish<true>(row, side, {first}, loaded[u], nothing);
    }
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
        const A* mine = of_warp[o] + (warp & ~(group / 32 - 1));
        sum[o] = mine[0];
        for (int w = 1; w < group / 32; ++w) sum[o] += mine[w];
    }
}

// A unit is lanes * U vectors in each of group / lanes reduced rows. A group of threads adds up one chunk of units for one kept index.
template <typename Op, typename T, typename A>
__device__ void rows(const MapReduceArgs<Op::IN, Op::OUT>& args)
{
    using W = Worker<Op, T, A>;
    constexpr int U = Op::ROWS_UNROLL, SUMS = W::OUT - Op::FIRST_SUM;
    const Walk& walk = args.walk;
    const int group = static_cast<int>(walk.group), shift = log2_of(walk.lanes), rise = log2_of(group) - shift;
    const int member = threadIdx.x & (group - 1), x = member & ((1 << shift) - 1), y = member >> shift;
    const int kept = static_cast<int>(walk.kept), dims = static_cast<int>(walk.dims), tiles = static_cast<int>(walk.tiles);
    const i64 index = (static_cast<i64>(blockIdx.x) * kBlock + threadIdx.x) >> (shift + rise);
    const auto chunk_of = [&] { return walk.chunks == 1 ? 0 : index / walk.kept_size; };
    const i64 row_vectors = static_cast<i64>(tiles) * U << shift;
    i64 r = y, vector = x;  // of this thread: reduced index, vector in its row
    int left = index < walk.kept_size * walk.chunks ? static_cast<int>(walk.chunk) : 0;
    if (walk.chunks > 1) {
        const i64 begin = chunk_of() * walk.chunk, units = tiles * ((walk.reduced_size + (1 << rise) - 1) >> rise), band = begin / tiles;
        r += band << rise;
        vector += (begin - band * tiles) * U << shift;
        if (units - begin < left) left = static_cast<int>(units - begin);
    }

    W work(args);
    const unsigned uses = work.uses;
    typename W::Row row;
    typename W::Sides side;
    A sum[SUMS] = {}, run[SUMS] = {};
    bool arrives = true, exists = false;
    while (left-- > 0) {
        work.uses = opaque(uses);
        if (arrives) {
            exists = r < walk.reduced_size;
            row = work.first_row();
            work.advance(row, 1, kept + 1, index - chunk_of() * walk.kept_size);
            if (exists) work.advance(row, kept + 1, dims + 1, r);
            work.load_sides(row, side);
        }
        const bool convert = arrives;
        A part[SUMS] = {};
        const auto sink = [&](int o, int, A y) { part[o - Op::FIRST_SUM] += y; };
        const auto add = [&] {
#pragma unroll
            for (int s = 0; s < SUMS; ++s) {
                run[s] += part[s];
                part[s] = A(0);
            }
        };
        if (work.uncut(vector + ((U - 1) << shift))) {
            typename W::Loaded loaded[U];
#pragma unroll
            for (int u = 0; u < U; ++u) {
                const i64 first = vector * W::V + u * (W::V << shift);
                if (exists && first < walk.extent[0]) work.template load<true>(row, {first}, loaded[u]);
            }
            if (convert) work.convert_sides(side);
#pragma unroll
            for (int u = 0; u < U; ++u) {
                const i64 first = vector * W::V + u * (W::V << shift);
                if (!exists || first >= walk.extent[0]) continue;
                work.template finish<true>(row, side, {first}, loaded[u], sink);
                add();
            }
        } else {
            if (convert) work.convert_sides(side);
#pragma unroll 1
            for (int u = 0; u < U && exists; ++u) {
                work.elements(row, side, work.slot(vector + (u << shift), x), sink);
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
    if (member != 0 || index >= walk.kept_size * walk.chunks) return;
    const i64 c = chunk_of(), k = index - c * walk.kept_size;
#pragma unroll
    for (int s = 0; s < SUMS; ++s)
        if (work.summed(Op::FIRST_SUM + s)) work.store_sum(Op::FIRST_SUM + s, c, k, walk.kept_size, 0, sum[s]);
}

// ---------------------------------------------------------------------------------------------------- columns

// A block covers `lanes` vectors of columns; its kBlock / lanes threads of a column share one chunk of the reduced index. Running sums
// go to shared memory every kRun rows, so that no long row of additions loses digits.
template <typename Op, typename T, typename A>
__device__ void columns(const MapReduceArgs<Op::IN, Op::OUT>& args)
{
    using W = Worker<Op, T, A>;
    constexpr int U = Op::COLUMNS_UNROLL, OUT = W::OUT, SUMS = OUT - Op::FIRST_SUM, V = W::V;
    const Walk& walk = args.walk;
    const int lanes = static_cast<int>(walk.lanes), shift = log2_of(lanes), height = kBlock >> shift;
    const int thread = threadIdx.x, x = thread & (lanes - 1), y = thread >> shift;
    const int kept = static_cast<int>(walk.kept), dims = static_cast<int>(walk.dims);
    const unsigned rest = blockIdx.x / static_cast<unsigned>(walk.tiles), tile = blockIdx.x - rest * static_cast<unsigned>(walk.tiles);
    const unsigned k = rest / static_cast<unsigned>(walk.chunks), c = rest - k * static_cast<unsigned>(walk.chunks);
    const i64 begin = c * walk.chunk, size = walk.reduced_size - begin < walk.chunk ? walk.reduced_size - begin : walk.chunk;
    const i64 vector = (static_cast<i64>(tile) << shift) + x;

    W work(args);
    typename W::Slot slot = work.slot(vector, x);
    int left = slot.count == 0 || y >= size ? 0 : static_cast<int>((size - y + height - 1) >> (log2_of(kBlock) - shift));
    typename W::Row row = work.first_row();
    work.move(row, 0, slot.first);
    work.advance(row, 1, kept + 1, k);
    slot.first = 0;

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
    const auto sink = [&](int o, int v, A y) { run[o - Op::FIRST_SUM][v] += y; };
    const unsigned uses = work.uses;
    typename W::Sides side;  // without Side inputs there is nothing to load
    work.convert_sides(side);

    if (dims == kept + 1 && work.uncut(vector)) {
        // The rows of one reduced dim lie at a fixed distance.
        work.move(row, dims, begin + y);
        i64 in_hop[W::IN], out_hop[W::FULL];
#pragma unroll
        for (int i = 0; i < W::IN; ++i) in_hop[i] = height * work.in_step(i, dims);
#pragma unroll
        for (int o = 0; o < W::FULL; ++o) out_hop[o] = height * work.out_step(o, dims);
        for (; left > 0; left -= U) {
            work.uses = opaque(uses);
            typename W::Loaded loaded[U];
#pragma unroll
            for (int u = 0; u < U; ++u) {
                if (u < left) work.template load<true>(row, slot, loaded[u]);
#pragma unroll
                for (int i = 0; i < W::IN; ++i) row.in[i] += in_hop[i];
            }
#pragma unroll
            for (int u = 0; u < U; ++u) {
                if (u < left) work.template finish<true>(row, side, slot, loaded[u], sink);
#pragma unroll
                for (int o = 0; o < W::FULL; ++o) row.out[o] += out_hop[o];
            }
            if (left / U % (kRun / U) == 0) flush();
        }
    } else {
        const typename W::Row base = row;
        for (i64 r = begin + y; left > 0; r += height, --left) {
            work.uses = opaque(uses);
            row = base;
            work.advance(row, kept + 1, dims + 1, r);
            work.elements(row, side, slot, sink);
            if (left % kRun == 0) flush();
        }
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

    const i64 kept_size = walk.kept_size * walk.extent[0];
    for (int column = thread; column < lanes * V; column += kBlock) {
        const i64 inner = static_cast<i64>(tile) * lanes * V + column;
        if (inner >= walk.extent[0]) break;
        const int owner = walk.wide ? column / V : column & (lanes - 1), v = walk.wide ? column % V : column >> shift;
#pragma unroll
        for (int s = 0; s < SUMS; ++s)
            if (work.summed(Op::FIRST_SUM + s)) work.store_sum(Op::FIRST_SUM + s, c, k, kept_size, inner, total[s][owner][v]);
    }
}

// ---------------------------------------------------------------------------------------------------- combine

// out[k] = sum over c of partial[c][k], for each summed output; the threads of a block that share k take every height-th chunk. Here
// kept_size counts all of k, inner included.
template <typename A>
__device__ void combine(const CombineArgs& args)
{
    constexpr int U = 4;
    const Walk& walk = args.walk;
    const int lanes = static_cast<int>(walk.lanes), shift = log2_of(lanes), height = kBlock >> shift;
    const int thread = threadIdx.x, x = thread & (lanes - 1), y = thread >> shift;
    const unsigned ordinal = blockIdx.x / static_cast<unsigned>(walk.tiles), tile = blockIdx.x - ordinal * static_cast<unsigned>(walk.tiles);
    const i64 size = walk.kept_size, k = static_cast<i64>(tile) * lanes + x;
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
    for (int before = ordinal; !(walk.summed >> o & 1) || before-- > 0;) ++o;
    const i64 rest = k / walk.extent[0];
    store_kept(walk, args.out[o], rest, k - rest * walk.extent[0], total[thread]);
}

// ---------------------------------------------------------------------------------------------------- exported names

#define EXPORT_MAP_ROWS(dtype, T, A, family, Op)                                         \
    EXPORT(family##_map_##dtype, 1, Op<A>::Args, map<Op<A>, T, A>(args))                 \
    EXPORT(family##_rows_##dtype, Op<A>::ROWS_BLOCKS, Op<A>::Args, rows<Op<A>, T, A>(args))

#define EXPORT_MAP_ROWS_COLUMNS(dtype, T, A, family, Op) \
    EXPORT_MAP_ROWS(dtype, T, A, family, Op)             \
    EXPORT(family##_columns_##dtype, Op<A>::COLUMNS_BLOCKS, Op<A>::Args, columns<Op<A>, T, A>(args))
