// Rotary position embedding: each pair of elements of a token is turned by an angle that all heads share. Backward:
//
//     dx_i = c_i dy_i + s_j dy_j      dx_j = c_j dy_j - s_i dy_i
//
// The forward is the transpose. A thread owns one unit of one place: the pairs that one or two vectors of V elements hold, at a token.
// It makes their sines and cosines once, while the first rows are under way, and turns `run` rows with them, heads of batches. Elements
// outside the rotated part are units that are copied. Places are tokens, or tokens of each batch where batches have angles of their own.
#include "kernel.cuh"

using u32 = unsigned;
using u64 = unsigned long long;

// Blocks at once on a multiprocessor, and rows that a thread has under way: as many as registers hold beside the angles.
constexpr int kBlocks_f32 = 4, kBlocks_f64 = 3, kBlocks_f16 = 4, kBlocks_bf16 = 4;
constexpr int kRows = 4;
constexpr int kHalfBlocks_f32 = 4, kHalfBlocks_f64 = 3, kHalfBlocks_f16 = 2, kHalfBlocks_bf16 = 2;
constexpr int kHalfRows_f32 = 2, kHalfRows_f64 = 4, kHalfRows_f16 = 4, kHalfRows_bf16 = 4;
constexpr int kTableBlocks_f32 = 4, kTableBlocks_f64 = 4, kTableBlocks_f16 = 3, kTableBlocks_bf16 = 3;
constexpr int kTableRows_f32 = 2, kTableRows_f64 = 2, kTableRows_f16 = 4, kTableRows_bf16 = 4;
constexpr int kHalfTableBlocks_f32 = 4, kHalfTableBlocks_f64 = 3, kHalfTableBlocks_f16 = 2, kHalfTableBlocks_bf16 = 2;
constexpr int kHalfTableRows_f32 = 1, kHalfTableRows_f64 = 2, kHalfTableRows_f16 = 4, kHalfTableRows_bf16 = 4;
constexpr int kFine = 64;  // frequencies that are given; each further power of two of them has a factor of its own

struct RopeWalk {
    i64 start, pairs;             // the rotated part: its first element, half its length
    i64 units, rotating, copied;  // of a token; those that rotate; vectors outside the rotated part
    i64 tokens, places;           // tokens, or tokens of each batch
    i64 lanes, tiles;             // threads side by side over units and places, 2^lanes; blocks over them
    i64 run, chunks;              // rows of a thread; blocks over the rows of the first operand, before those of the second
    i64 vector;                   // elements of an access
    i64 by_units[2], by_tokens[2], by_tiles[2];  // divisors
    i64 forward, single;          // the transpose; the angle is formed in float32
    double fastest;               // the largest frequency
    i64 rows, hop, partner;       // of a table: rows, columns from a pair to the next, from its first member to its second
    char *positions, *cos, *sin;  // or null
    i64 position_dtype, position_stride[2];                  // bytes: batch, token
    i64 cos_dtype, cos_stride[3], sin_dtype, sin_stride[3];  // bytes: batch, row, column
    double fine[64], coarse[14];         // frequencies of the first pairs, factors of the bits of pair / kFine
    float fine_low[64], coarse_low[14];  // how far the power exceeds each, relative to it
};

// Rows that share their angles are numbered by two of batch and head: those of a group, one thread's all of one group, and the groups.
struct RopeOperand {
    char *in, *out;
    i64 rows, chunks, by_chunks[2];   // of a group
    i64 in_stride[5], out_stride[5];  // bytes: batch, group, row, token, element
};

struct RopeArgs {
    RopeWalk walk;
    RopeOperand operand[2];
};

// n / d for n below 2^63: by[0] is 2^(63 + by[1]) / d, rounded up.
__device__ inline i64 quotient(i64 n, const i64 (&by)[2])
{
    return static_cast<i64>(__umul64hi(2 * static_cast<u64>(n), static_cast<u64>(by[0])) >> by[1]);
}

// n / d for n below 2^31: by[0] is 2^(31 + by[1]) / d, rounded up.
__device__ inline u32 quotient(u32 n, const i64 (&by)[2])
{
    return static_cast<u32>((2 * static_cast<u64>(n) * static_cast<u32>(by[0]) >> 32) >> by[1]);
}

// The frequencies of the first pairs, where lanes that differ read them fast.
struct Fine {
    double high[kFine];
    float low[kFine];  // set where there are more pairs

    // Each warp fills a part; all of the block come here.
    __device__ void fill(const RopeWalk& walk)
    {
        constexpr u32 part = kFine / (kBlock / 32);
        const u32 lane = threadIdx.x % 32, k = threadIdx.x / 32 * part + lane;
        if (lane < part) high[k] = walk.fine[k];
        if (lane < part && walk.pairs > kFine) low[k] = walk.fine_low[k];
        __syncthreads();
    }
};

// Sine and cosine of an angle below 2^40 in float64, to the accumulator. The nearest quarter of a turn is taken off in float64, with a
// quarter of 106 bits; the rest is small: Taylor series.
template <typename A>
__device__ void sine_cosine(double angle, A& sine, A& cosine)
{
    const double shifted = fma(angle, 0x1.45f306dc9c883p-1, 0x1.8p52), turns = shifted - 0x1.8p52;
    const unsigned quarter = static_cast<unsigned>(__double2loint(shifted));
    const A x = static_cast<A>(fma(-turns, 0x1.1a62633145c07p-54, fma(-turns, 0x1.921fb54442d18p0, angle))), z = x * x;
    A s, c;
    if constexpr (sizeof(A) == 8) {
        s = A(1.0 / 355687428096000), c = A(1.0 / 20922789888000);
        s = fma(s, z, A(-1.0 / 1307674368000)), c = fma(c, z, A(-1.0 / 87178291200));
        s = fma(s, z, A(1.0 / 6227020800)), c = fma(c, z, A(1.0 / 479001600));
        s = fma(s, z, A(-1.0 / 39916800)), c = fma(c, z, A(-1.0 / 3628800));
        s = fma(s, z, A(1.0 / 362880)), c = fma(c, z, A(1.0 / 40320));
    } else {
        s = A(1.0 / 362880), c = fma(A(-1.0 / 3628800), z, A(1.0 / 40320));
    }
    s = fma(s, z, A(-1.0 / 5040)), c = fma(c, z, A(-1.0 / 720));
    s = fma(s, z, A(1.0 / 120)), c = fma(c, z, A(1.0 / 24));
    s = fma(s, z, A(-1.0 / 6)), c = fma(c, z, A(-0.5));
    s = fma(x * z, s, x), c = fma(c, z, A(1));
    sine = quarter & 1 ? c : s, cosine = quarter & 1 ? s : c;
    if (quarter & 2) sine = -sine;
    if (quarter + 1 & 2) cosine = -cosine;
}

// The same for any angle.
__device__ __noinline__ double2 sine_cosine_far(double angle)
{
    double2 both;
    sincos(angle, &both.x, &both.y);
    return both;
}

// N numbers of a table, `step` bytes apart.
template <typename S, typename A, int N>
__device__ void load_row(const char* p, i64 step, A (&x)[N])
{
    constexpr int W = 16 / sizeof(S);
    if (N % W == 0 && step == sizeof(S) && aligned<16>(p)) {
#pragma unroll
        for (int n = 0; n < N; n += W) {
            Words<S, W> words;
            words.load(reinterpret_cast<const S*>(p) + n);
#pragma unroll
            for (int k = 0; k < W && n + k < N; ++k) x[n + k] = words.template value<A>(k);
        }
    } else {
#pragma unroll
        for (int n = 0; n < N; ++n) x[n] = widen<A>(*reinterpret_cast<const S*>(p + n * step));
    }
}

template <typename A, int N>
__device__ void load_row(const char* p, i64 dtype, i64 step, A (&x)[N])
{
    switch (dtype) {
    case F32: load_row<float>(p, step, x); break;
    case F64: load_row<double>(p, step, x); break;
    case F16: load_row<__half>(p, step, x); break;
    default: load_row<__nv_bfloat16>(p, step, x);
    }
}

// Makes frequencies of any pairs of those of the first. They are formed to more places than those of a float64: a position multiplies
// their error. N divides kFine and `pair`, so that the coarse factor is that of all. A product whose rounding is added must not become
// one instruction with a sum.
template <int N>
__device__ void refine(const RopeWalk& walk, const Fine& fine, u32 pair, double (&frequency)[N])
{
    double coarse = 1, low = 0, relative = 0;  // (coarse + low) (1 + relative)
    for (int rest = static_cast<int>(pair / kFine), k = 0; rest; rest >>= 1, ++k) {
        if (!(rest & 1)) continue;
        const double factor = walk.coarse[k], product = __dmul_rn(coarse, factor);
        low = fma(low, factor, fma(coarse, factor, -product));
        coarse = product, relative += walk.coarse_low[k];
    }
#pragma unroll
    for (int n = 0; n < N; ++n) {
        const double product = __dmul_rn(frequency[n], coarse), rest = fma(frequency[n], low, fma(frequency[n], coarse, -product));
        frequency[n] = product + fma(product, relative + fine.low[(pair + n) % kFine], rest);
    }
}

// out_i = a in_i + b in_j, out_j = c in_j + d in_i, where c and d follow from a and b unless they come from tables.
template <typename A, int N, bool TABLES>
struct Rotation {
    static constexpr int M = TABLES ? N : 1;
    A a[N], b[N], c_[M], d_[M];

    __device__ A c(int n) const { return TABLES ? c_[n % M] : a[n]; }
    __device__ A d(int n) const { return TABLES ? d_[n % M] : -b[n]; }

    __device__ void compute(const RopeWalk& walk, const Fine& fine, i64 position, u32 pair)
    {
        double angle[N];
        const u32 first = pair % kFine;
#pragma unroll
        for (int n = 0; n < N; ++n) angle[n] = fine.high[first + n];
        if (walk.pairs > kFine) refine(walk, fine, pair, angle);
        const double p = static_cast<double>(position);
        if (walk.single) {
            const float single = __ll2float_rn(position);
#pragma unroll
            for (int n = 0; n < N; ++n) angle[n] = static_cast<double>(__fmul_rn(single, static_cast<float>(angle[n])));
        } else {
#pragma unroll
            for (int n = 0; n < N; ++n) angle[n] *= p;
        }
        if (fabs(p) * walk.fastest < 0x1p40) {
#pragma unroll
            for (int n = 0; n < N; ++n) sine_cosine(angle[n], b[n], a[n]);
        } else {
#pragma unroll
            for (int n = 0; n < N; ++n) {
                const double2 both = sine_cosine_far(angle[n]);
                b[n] = static_cast<A>(both.x), a[n] = static_cast<A>(both.y);
            }
        }
        if (!walk.forward) return;
#pragma unroll
        for (int n = 0; n < N; ++n) b[n] = -b[n];
    }

    __device__ void look_up(const RopeWalk& walk, i64 batch, i64 row, u32 pair)
    {
        const i64 cos_step = walk.cos_stride[2], sin_step = walk.sin_stride[2];
        const char* cos = walk.cos + batch * walk.cos_stride[0] + row * walk.cos_stride[1] + pair * walk.hop * cos_step;
        const char* sin = walk.sin + batch * walk.sin_stride[0] + row * walk.sin_stride[1] + pair * walk.hop * sin_step;
        if (walk.hop == 2) {  // both members side by side
            A cosines[2 * N], sines[2 * N];
            load_row(cos, walk.cos_dtype, cos_step, cosines);
            load_row(sin, walk.sin_dtype, sin_step, sines);
#pragma unroll
            for (int n = 0; n < N; ++n) a[n] = cosines[2 * n], c_[n] = cosines[2 * n + 1], b[n] = sines[2 * n + 1], d_[n] = -sines[2 * n];
        } else {
            load_row(cos, walk.cos_dtype, cos_step, a);
            load_row(sin, walk.sin_dtype, sin_step, b);
#pragma unroll
            for (int n = 0; n < N; ++n) c_[n] = a[n], d_[n] = -b[n];
            if (walk.partner) {
                load_row(cos + walk.partner * cos_step, walk.cos_dtype, cos_step, c_);
                load_row(sin + walk.partner * sin_step, walk.sin_dtype, sin_step, b);
            }
        }
        if (!walk.forward) return;
#pragma unroll
        for (int n = 0; n < N; ++n) {  // the transpose
            const A other = b[n];
            b[n] = d_[n], d_[n] = other;
        }
    }
};

// What is a thread's: a unit of a place, and `count` rows of a group from one on.
struct Share {
    i64 place, row;
    u32 unit, group;
    int count;  // 0 where there is nothing to do
};

// HALF: members of a pair lie in two vectors, otherwise side by side in one; single elements always in two.
template <bool HALF, bool TABLES, int ROWS, typename T, typename A, int V>
struct Turner {
    static constexpr bool TWO = HALF || V == 1;
    static constexpr int PAIRS = TWO ? V : V / 2, VECTORS = TWO ? 2 : 1;
    using Vector = Words<T, V>;

    Rotation<A, PAIRS, TABLES> rotation;
    bool turns;
    Vector x[ROWS][VECTORS];  // some rows
    u32 first, apart;         // elements of a row

    // Where a unit lies in a row; the pairs that it holds begin with number unit * PAIRS.
    __device__ Turner(const RopeWalk& walk, u32 unit)
    {
        if (unit < static_cast<u32>(walk.rotating)) {
            first = static_cast<u32>(walk.start) + unit * (HALF ? V : 2 * PAIRS);
            apart = HALF ? static_cast<u32>(walk.pairs) : 1;
        } else {
            const u32 vector = (unit - static_cast<u32>(walk.rotating)) * VECTORS;
            first = copied(walk, vector);
            apart = vector + 1 < static_cast<u32>(walk.copied) ? copied(walk, vector + 1) - first : 0;
        }
    }

    // The first element of a vector outside the rotated part.
    __device__ static u32 copied(const RopeWalk& walk, u32 vector)
    {
        return vector * V < static_cast<u32>(walk.start) ? vector * V : vector * V + 2 * static_cast<u32>(walk.pairs);
    }

    __device__ void load(int k, const char* in, i64 apart)
    {
        x[k][0].load(reinterpret_cast<const T*>(in));
        if constexpr (TWO) x[k][1].load(reinterpret_cast<const T*>(in + apart));
    }

    __device__ void store(int k, char* out, i64 apart) const
    {
        x[k][0].store(reinterpret_cast<T*>(out));
        if constexpr (TWO) x[k][1].store(reinterpret_cast<T*>(out + apart));
    }

    // Some rows, `step` bytes apart.
    __device__ void load(const char* in, i64 step, int count, i64 apart, bool expanded)
    {
        if (V > 1 && expanded) {
#pragma unroll
            for (int k = 0; k < ROWS; ++k, in += step) {
                if (k >= count) continue;
                const T same = *reinterpret_cast<const T*>(in);
#pragma unroll
                for (int v = 0; v < V * VECTORS; ++v) x[k][v / V].set(v % V, same);
            }
            return;
        }
#pragma unroll
        for (int k = 0; k < ROWS; ++k, in += step)
            if (k < count) load(k, in, apart);
    }

    __device__ void turn_and_store(char* out, i64 step, int count, i64 apart)
    {
#pragma unroll
        for (int k = 0; k < ROWS; ++k, out += step) {
            if (turns) turn(k);
            if (k < count) store(k, out, apart);
        }
    }

    __device__ void turn(int k)
    {
        Vector &low = x[k][0], &high = x[k][VECTORS - 1];
        if constexpr (V == 1) {
            A i = low.template value<A>(0), j = high.template value<A>(0);
            T both[2];
            turn(0, i, j);
            narrow({i, j}, both);
            low.set(0, both[0]), high.set(0, both[1]);
        } else if constexpr (TWO) {
#pragma unroll
            for (int p = 0; p < V; p += 2) {
                A i = low.template value<A>(p), j = high.template value<A>(p), k = low.template value<A>(p + 1), l = high.template value<A>(p + 1);
                turn(p, i, j), turn(p + 1, k, l);
                put(low, p, i, k), put(high, p, j, l);
            }
        } else {
#pragma unroll
            for (int p = 0; p < V; p += 2) {
                A i = low.template value<A>(p), j = low.template value<A>(p + 1);
                turn(p / 2, i, j);
                put(low, p, i, j);
            }
        }
    }

    __device__ void turn(int pair, A& i, A& j) const
    {
        const A turned = fma(rotation.b[pair], j, rotation.a[pair] * i);
        j = fma(rotation.d(pair), i, rotation.c(pair) * j);
        i = turned;
    }

    // Two neighbours of a vector.
    __device__ static void put(Vector& y, int v, A low, A high)
    {
        T pair[2];
        narrow({low, high}, pair);
        y.set(v, pair[0]), y.set(v + 1, pair[1]);
    }

    // The factors of the place; leaves a copy where the tables have no row.
    __device__ void make(const RopeWalk& walk, const Fine& fine, i64 batch, i64 token, u32 unit)
    {
        turns = unit < static_cast<u32>(walk.rotating);
        if (!turns) return;
        i64 position = token;
        if (walk.positions) {
            const char* from = walk.positions + batch * walk.position_stride[0] + token * walk.position_stride[1];
            position = walk.position_dtype == I64 ? *reinterpret_cast<const i64*>(from) : *reinterpret_cast<const int*>(from);
        }
        if constexpr (!TABLES)
            rotation.compute(walk, fine, position, unit * PAIRS);
        else if ((turns = position >= 0 && position < walk.rows))
            rotation.look_up(walk, batch, position, unit * PAIRS);
    }

    // Where the first row lies.
    __device__ i64 offset(const i64 (&stride)[5], const Share& share, i64 batch, i64 token) const
    {
        i64 at = share.group * stride[1] + share.row * stride[2] + token * stride[3];
        if (V == 1 || stride[4]) at += first * (V == 1 ? stride[4] : static_cast<i64>(sizeof(T)));
        return batch ? at + batch * stride[0] : at;
    }

    // Bytes between the two vectors of a row.
    __device__ static i64 distance(const i64 (&stride)[5], u32 apart)
    {
        return V == 1 ? apart * stride[4] : static_cast<i64>(apart * static_cast<u32>(sizeof(T)));
    }

    __device__ void run(const RopeWalk& walk, const RopeOperand& o, Fine& fine, const Share& share)
    {
        const i64 batch = walk.places == walk.tokens ? 0 : quotient(share.place, walk.by_tokens), token = share.place - batch * walk.tokens;
        const i64 in_step = o.in_stride[2], out_step = o.out_stride[2], in_apart = distance(o.in_stride, apart), out_apart = distance(o.out_stride, apart);
        const bool expanded = o.in_stride[4] == 0;
        int count = share.count;
        const char* in = o.in + offset(o.in_stride, share, batch, token);
        load(in, in_step, count, in_apart, expanded);  // under way while the angles are made
        if constexpr (!TABLES) fine.fill(walk);
        if (count == 0) return;
        make(walk, fine, batch, token, share.unit);
        char* out = o.out + offset(o.out_stride, share, batch, token);
        while (true) {
            turn_and_store(out, out_step, count, out_apart);
            if ((count -= ROWS) <= 0) return;
            in += ROWS * in_step, out += ROWS * out_step;
            load(in, in_step, count, in_apart, expanded);
        }
    }
};

// What is the thread's, of the operand that is its block's. All of it comes from few multiplications: nothing else is between the
// start of a block and its first load.
__device__ inline const RopeOperand& divide(const RopeArgs& args, Share& share)
{
    const RopeWalk& walk = args.walk;
    const u32 chunks = static_cast<u32>(walk.chunks);
    u32 chunk = quotient(blockIdx.x, walk.by_tiles);
    const u32 tile = blockIdx.x - chunk * static_cast<u32>(walk.tiles);
    const RopeOperand& o = args.operand[chunk >= chunks];
    if (chunk >= chunks) chunk -= chunks;
    const int lanes = static_cast<int>(walk.lanes);
    const i64 index = (static_cast<i64>(tile) << lanes) + (threadIdx.x & (1u << lanes) - 1);
    share.place = quotient(index, walk.by_units);
    share.unit = static_cast<u32>(index) - static_cast<u32>(share.place) * static_cast<u32>(walk.units);
    share.group = quotient(chunk, o.by_chunks);
    chunk -= share.group * static_cast<u32>(o.chunks);
    share.row = ((static_cast<i64>(chunk) << 8 - lanes) + (threadIdx.x >> lanes)) * walk.run;
    share.count = share.place < walk.places ? static_cast<int>(min(walk.run, max(o.rows - share.row, i64(0)))) : 0;
    return o;
}

template <bool HALF, bool TABLES, int ROWS, typename T, typename A>
__device__ void rotate(const RopeArgs& args)
{
    constexpr int WIDE = 16 / sizeof(T), NARROW = 8 / sizeof(T);
    __shared__ Fine fine;
    const RopeWalk& walk = args.walk;
    Share share;
    const RopeOperand& o = divide(args, share);
    if (walk.vector == WIDE)
        Turner<HALF, TABLES, ROWS, T, A, WIDE>(walk, share.unit).run(walk, o, fine, share);
    else if (NARROW > 1 && walk.vector == NARROW)
        Turner<HALF, TABLES, ROWS, T, A, NARROW>(walk, share.unit).run(walk, o, fine, share);
    else
        Turner<HALF, TABLES, ROWS, T, A, 1>(walk, share.unit).run(walk, o, fine, share);
}

#define EXPORT_ROPE(suffix, T, A, ...)                                                                                                       \
    EXPORT(rope_backward_interleaved_##suffix, kBlocks_##suffix, RopeArgs, rotate<false, false, kRows, T, A>(args))                          \
    EXPORT(rope_backward_half_##suffix, kHalfBlocks_##suffix, RopeArgs, rotate<true, false, kHalfRows_##suffix, T, A>(args))                 \
    EXPORT(rope_backward_interleaved_tables_##suffix, kTableBlocks_##suffix, RopeArgs, rotate<false, true, kTableRows_##suffix, T, A>(args)) \
    EXPORT(rope_backward_half_tables_##suffix, kHalfTableBlocks_##suffix, RopeArgs, rotate<true, true, kHalfTableRows_##suffix, T, A>(args))
FOR_EACH_FLOAT(EXPORT_ROPE, )
