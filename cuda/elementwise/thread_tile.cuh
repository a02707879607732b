// The arguments of the kernels of map_reduce.cuh, and the tile of a thread: load, compute and store
// V elements of one row.
#pragma once

#include "common/dtype.cuh"
#include "common/export.cuh"
#include "common/vec.cuh"
#include "elementwise/quantized.cuh"

enum class Kind {
    Own,        // the kernel's dtype
    Quantized,  // int8, uint8, float8, or packed int4 or uint4
    Side,       // any dtype, constant along inner
    Column,     // any dtype, a number for each column, of kernels along columns
};

constexpr int kRun = 16;  // additions of a running sum before it moves to the next level (blocked summation)

template <int INPUTS, int OUTPUTS>
struct MapReduceArgs {
    IterSpace space;
    Operand in[INPUTS], out[OUTPUTS];
};

struct CombineArgs {
    IterSpace space;
    Operand out[3];
};

__device__ inline int log2_of(i64 power) { return __ffs(static_cast<int>(power)) - 1; }

// Stores an element of a summed output: kept index k, and the index along inner if inner is kept.
template <typename A>
__device__ void store_kept(const IterSpace& space, const Operand& out, i64 k, i64 inner, A sum)
{
    i64 offset = inner * out.stride[0];
#pragma unroll 1
    for (i64 d = 1; d <= space.kept; ++d) {
        const i64 rest = d < space.kept ? k / space.extent[d] : 0;
        offset += (k - rest * space.extent[d]) * out.stride[d];
        k = rest;
    }
    store_any(out.data + offset * size_of(out.dtype), out.dtype, sum);
}

// Calls op.total if Op has it: the overload on int is preferred to the one on long.
template <typename Op, typename A>
__device__ auto total_of(const Op& op, int o, const typename Op::Common& common, A sum,
                         int) -> decltype(op.total(o, common, sum))
{
    return op.total(o, common, sum);
}

template <typename Op, typename A>
__device__ A total_of(const Op&, int, const typename Op::Common&, A sum, long)
{
    return sum;
}

template <i64 VALUE>
struct Constant {
    static constexpr i64 value = VALUE;
};

// Calls body with dtype as a compile-time constant, so that it branches once for many numbers.
template <typename Body>
__device__ void with_dtype(i64 dtype, Body body)
{
    switch (dtype) {
    case F32: return body(Constant<F32>());
    case F64: return body(Constant<F64>());
    case F16: return body(Constant<F16>());
    case BF16: return body(Constant<BF16>());
    case I8: return body(Constant<I8>());
    case U8: return body(Constant<U8>());
    case I32: return body(Constant<I32>());
    case I64: return body(Constant<I64>());
    }
}

// The tile of a thread: V elements of one row, loaded, computed and stored.
template <typename Op, typename T, typename A>
struct Worker {
    static constexpr int IN = Op::IN, OUT = Op::OUT, FULL = Op::FULL, WIDEST = 16 / sizeof(T),
        V = WIDEST < Op::MAX_VECTOR ? WIDEST : Op::MAX_VECTOR;
    using Args = MapReduceArgs<IN, OUT>;

    const Args& args;
    const Op op;
    unsigned uses;  // IterSpace::uses, with the second bit of the outputs: summed

    __device__ explicit Worker(const Args& a) : args(a), op(a), uses(static_cast<unsigned>(a.space.uses))
    {
#pragma unroll
        for (int o = Op::FIRST_SUM; o < OUT; ++o)
            uses |= (static_cast<unsigned>(a.space.summed) >> o & 1) << (2 * (IN + o) + 1);
    }

    __device__ bool used(int i) const { return i == 0 || uses >> 2 * i & 1; }  // dy is always used
    __device__ bool constant(int i) const { return uses >> 2 * i & 2; }
    __device__ bool stored(int o) const { return o < FULL && used(IN + o); }
    __device__ bool summed(int o) const { return o >= Op::FIRST_SUM && constant(IN + o); }

    // Addresses of the first elements of a row of inner: bytes, or half bytes of packed values.
    struct Row {
        char *in[IN], *out[FULL];
    };

    __device__ Row first_row() const
    {
        Row row;
#pragma unroll
        for (int i = 0; i < IN; ++i) {
            row.in[i] = args.in[i].data;
            if (Op::input(i) == Kind::Quantized && Quantized<V>::packed(args.in[i].dtype))
                row.in[i] += reinterpret_cast<i64>(row.in[i]);
        }
#pragma unroll
        for (int o = 0; o < FULL; ++o) row.out[o] = args.out[o].data;
        return row;
    }

    // From one element of an operand to the next in dim d: bytes, or half bytes of packed values.
    __device__ i64 in_step(int i, int d) const
    {
        return args.in[i].stride[d] * (Op::input(i) == Kind::Own ? sizeof(T) : Op::input(i) == Kind::Quantized ? 1
                                       : size_of(args.in[i].dtype));
    }
    __device__ i64 out_step(int o, int d) const { return args.out[o].stride[d] * static_cast<i64>(sizeof(T)); }

    // Advances by n in dim d.
    __device__ void move(Row& row, int d, i64 n) const
    {
#pragma unroll
        for (int i = 0; i < IN; ++i)
            if (used(i)) row.in[i] += n * in_step(i, d);
#pragma unroll
        for (int o = 0; o < FULL; ++o)
            if (stored(o)) row.out[o] += n * out_step(o, d);
    }

    // Advances to `index` in the dims from..to-1, the first being fastest. An index along the last
    // one stands for `times` positions.
    __device__ void advance(Row& row, int from, int to, i64 index, int times = 1) const
    {
#pragma unroll 1
        for (int d = from; d < to; ++d) {
            const bool is_last = d + 1 == to;
            const i64 rest = is_last ? 0 : index / args.space.extent[d];
            move(row, d, is_last ? index * times : index - rest * args.space.extent[d]);
            index = rest;
        }
    }

    // Up to V elements of a row: element v is at inner index first + v * step, `count` of them
    // exist.
    struct Slot {
        i64 first;
        int count, step;
    };

    // The vector of the thread at x, in the tile that begins with vector - x. Its elements are
    // adjacent if the access is wide, `lanes` apart otherwise.
    __device__ Slot slot(i64 vector, int x) const
    {
        const int step = args.space.wide ? 1 : static_cast<int>(args.space.lanes);
        const i64 first = step == 1 ? vector * V : (vector - x) * V + x, left = args.space.extent[0] - first;
        return {first, left >= V * step ? V : left <= 0 ? 0 : (static_cast<int>(left) + step - 1) >> log2_of(step),
                step};
    }

    // Whether accesses are wide and no vector up to this one is cut by the end of the row.
    __device__ bool unsplit(i64 vector) const
    {
        const i64 extent = args.space.extent[0];
        return args.space.wide && (extent % V == 0 || (vector + 1) * V <= extent);
    }

    struct Loaded {
        Words<T, V> own[IN];
        Quantized<V> quantized[IN];
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
            const i64 stride = args.in[i].stride[keep_here(0)], advance_by = stride * at.step;
            p += at.first * stride;
#pragma unroll
            for (int v = 0; v < V; ++v, p += advance_by) x.set(v, v < at.count ? *p : S(0));
        }
    }

    template <bool WHOLE>
    __device__ void load_quantized(int i, const char* row, const Slot& at, Quantized<V>& x) const
    {
        const i64 dtype = args.in[i].dtype;
        if (WHOLE && !constant(i)) return x.load(row, at.first, dtype);
        const i64 stride = args.in[i].stride[keep_here(0)];
#pragma unroll
        for (int v = 0; v < V; ++v)
            if (WHOLE || v < at.count) x.load_one(row, (at.first + v * at.step) * stride, v, dtype);
    }

    // Issues the loads and does not wait for them.
    template <bool WHOLE>
    __device__ void load(const Row& row, const Slot& at, Loaded& x) const
    {
#pragma unroll
        for (int i = 0; i < IN; ++i) {
            if (!used(i)) continue;
            if (Op::input(i) == Kind::Own) load_operand<WHOLE>(i, row.in[i], at, x.own[i]);
            if (Op::input(i) == Kind::Quantized) load_quantized<WHOLE>(i, row.in[i], at, x.quantized[i]);
        }
    }

    // N numbers of each Side or Column input: loaded as bits with the first loads of a row, and
    // converted later.
    template <int N>
    struct Sides {
        i64 bits[IN][N];
        typename Op::Common common[N];
    };

    // Loads the numbers n < count; number n is n * step elements along dim d from the row.
    template <int N>
    __device__ void load_sides(const Row& row, Sides<N>& side, int d = 0, int step = 0, i64 count = 1) const
    {
#pragma unroll
        for (int i = 0; i < IN; ++i) {
            if (!is_side(i) || !used(i)) continue;
            const i64 advance_by = step * in_step(i, d);
            with_dtype(args.in[i].dtype, [&](auto dtype) {
#pragma unroll
                for (int n = 0; n < N; ++n)
                    if (n < count) side.bits[i][n] = load_bits(row.in[i] + n * advance_by, dtype.value);
            });
        }
    }

    template <int N>
    __device__ void convert_sides(Sides<N>& side) const
    {
        A value[IN][N] = {};
#pragma unroll
        for (int i = 0; i < IN; ++i) {
            if (!is_side(i) || !used(i)) continue;
            with_dtype(args.in[i].dtype, [&](auto dtype) {
#pragma unroll
                for (int n = 0; n < N; ++n) value[i][n] = from_bits<A>(side.bits[i][n], dtype.value);
            });
        }
#pragma unroll
        for (int n = 0; n < N; ++n) {
            A in[IN];
#pragma unroll
            for (int i = 0; i < IN; ++i) in[i] = value[i][n];
            side.common[n] = op.common(in);
        }
    }

    // What element v shares with its column if BY_COLUMN, otherwise with its row.
    static __device__ const typename Op::Common& common_of(const typename Op::Common* common, int v)
    {
        return common[Op::BY_COLUMN ? v : 0];
    }

    static __device__ constexpr bool is_side(int i)
    {
        return Op::input(i) == Kind::Side || Op::input(i) == Kind::Column;
    }

    // Element v; quantized is its decoded value.
    __device__ void element(const Loaded& x, int v, A quantized, A (&in)[IN]) const
    {
#pragma unroll
        for (int i = 0; i < IN; ++i) {
            if (Op::input(i) == Kind::Own) in[i] = x.own[i].template value<A>(v);
            if (Op::input(i) == Kind::Quantized) in[i] = quantized;
        }
    }

    // Computes the elements, output by output, and stores them, or passes summed ones to sink(o, v,
    // y).
    template <bool WHOLE, typename Sink>
    __device__ void finish(const Row& row, const typename Op::Common* common, const Slot& at, Loaded& x,
                           Sink sink) const
    {
        A shared[V], quantized[V] = {};
#pragma unroll
        for (int i = 0; i < IN; ++i)
            if (Op::input(i) == Kind::Quantized && used(i)) x.quantized[i].decode(args.in[i].dtype, quantized);
#pragma unroll
        for (int v = 0; v < V; ++v) {
            A in[IN];
            element(x, v, quantized[v], in);
            shared[v] = op.shared(in, common_of(common, v));
        }
#pragma unroll
        for (int o = 0; o < OUT; ++o) {
            if (!stored(o) && !summed(o)) continue;
            A y[V];
#pragma unroll
            for (int v = 0; v < V; ++v) {
                A in[IN];
                element(x, v, quantized[v], in);
                y[v] = op.output(o, in, common_of(common, v), shared[v]);
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
            const i64 stride = args.out[o].stride[keep_here(0)], advance_by = stride * at.step;
            p += at.first * stride;
#pragma unroll
            for (int v = 0; v < V; ++v, p += advance_by)
                if (v < at.count) *p = pack.get(v);
        }
    }

    // Element by element: the end of a row, and accesses that are not wide.
    template <typename Sink>
    __device__ void elements(const Row& row, const typename Op::Common* common, const Slot& at, Sink sink) const
    {
        Loaded x = {};
        if (at.count == 0) return;
        load<false>(row, at, x);
        finish<false>(row, common, at, x, sink);
    }

    // Where a sum is stored: in the output, or among the partial sums, `size` of them for each
    // chunk.
    __device__ void store_sum(int o, i64 c, i64 k, i64 size, i64 inner, A sum) const
    {
        const IterSpace& space = args.space;
        if (space.chunks > 1) {
            const int ordinal = __popcll(space.summed & ((1ll << o) - 1));
            const i64 at = (ordinal * space.chunks + c) * size + k * (size / space.kept_size) + inner;
            static_cast<A*>(space.partial)[at] = sum;
        } else {
            store_kept(space, args.out[o], k, inner, sum);
        }
    }
};
