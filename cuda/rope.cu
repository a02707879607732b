// Rotary position embedding: each pair of elements of a token is turned by an angle that all heads share. Backward:
//
//     dx_i = c_i dy_i + s_j dy_j      dx_j = c_j dy_j - s_i dy_i
//
// The forward is the transpose. A thread owns one unit of one place: the pairs that one or two vectors of V elements hold, at a token.
// It makes their sines and cosines once and turns `run` rows with them, heads of batches. Elements outside the rotated part are units
// that are copied. Places are tokens, or tokens of each batch where batches have angles of their own.
#include "kernel.cuh"

// Blocks at once on a multiprocessor: many rows at once meet in few banks of memory, so that the wider types want few; the narrow ones
// have more angles for each byte, and in halves twice as many for each vector.
constexpr int kBlocks_f32 = 3, kBlocks_f64 = 3, kBlocks_f16 = 4, kBlocks_bf16 = 4;
constexpr int kHalfBlocks_f32 = 3, kHalfBlocks_f64 = 3, kHalfBlocks_f16 = 2, kHalfBlocks_bf16 = 2;
constexpr int kFine = 64;  // frequencies that are given; each further power of two of them has a factor of its own

struct RopeWalk {
    i64 start, pairs;         // the rotated part: its first element, half its length
    i64 units, rotating, copied;  // of a token; those that rotate; vectors outside the rotated part
    i64 tokens, places, batches;  // batches share their angles
    i64 lanes, tiles;         // threads side by side over units and places, a power of two; blocks over them
    i64 run, chunks;          // rows of a thread; blocks over the rows of the first operand, before those of the second
    i64 vector;               // elements of an access
    i64 forward, single;      // the transpose; the angle is formed in float32
    double fastest;           // the largest frequency
    i64 rows, hop, partner;   // of a table: rows, columns from a pair to the next, from its first member to its second
    char *positions, *cos, *sin;  // or null
    i64 position_dtype, position_stride[2];                           // batch, token
    i64 cos_dtype, cos_stride[3], sin_dtype, sin_stride[3];           // batch, row, column
    double fine[64], coarse[14];  // frequencies of the first pairs, factors of the bits of pair / kFine
    float fine_low[64], coarse_low[14];  // how far the power exceeds each, relative to it
};

struct RopeOperand {
    char *in, *out;
    i64 heads, in_stride[4], out_stride[4];  // batch, head, token, element
};

struct RopeArgs {
    RopeWalk walk;
    RopeOperand operand[2];
};

// The frequencies of the first pairs, where lanes that differ read them fast.
struct Fine {
    double high[kFine];
    float low[kFine];  // set where there are more pairs
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

// out_i = a in_i + b in_j, out_j = c in_j + d in_i; or nothing is turned.
template <typename A, int N>
struct Rotation {
    A a[N], b[N], c[N], d[N];
    bool turns;

    // The pairs from `pair` on, at a token of a batch.
    __device__ void make(const RopeWalk& walk, const Fine& fine, i64 batch, i64 token, i64 pair)
    {
        i64 position = token;
        if (walk.positions) {
            const i64 at = batch * walk.position_stride[0] + token * walk.position_stride[1];
            position = load_bits(walk.positions + at * size_of(walk.position_dtype), walk.position_dtype);
        }
        if (!walk.cos)
            compute(walk, fine, position, pair);
        else if ((turns = position >= 0 && position < walk.rows))
            look_up(walk, batch, position, pair);
        if (!walk.forward) return;
#pragma unroll
        for (int n = 0; n < N; ++n) {  // the transpose
            const A other = b[n];
            b[n] = d[n], d[n] = other;
        }
    }

    __device__ void compute(const RopeWalk& walk, const Fine& fine, i64 position, i64 pair)
    {
        double angle[N];
        const int first = static_cast<int>(pair) & (kFine - 1);
#pragma unroll
        for (int n = 0; n < N; ++n) angle[n] = fine.high[first + n];
        if (walk.pairs > kFine) refine(walk, fine, pair, angle);
        const double p = static_cast<double>(position);
        const float single = __ll2float_rn(position);
#pragma unroll
        for (int n = 0; n < N; ++n)
            angle[n] = walk.single ? static_cast<double>(__fmul_rn(single, static_cast<float>(angle[n]))) : p * angle[n];
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
#pragma unroll
        for (int n = 0; n < N; ++n) c[n] = a[n], d[n] = -b[n];
    }

    // Makes frequencies of any pairs of those of the first. They are formed to more places than those of a float64: a position
    // multiplies their error. N divides kFine and `pair`, so that the coarse factor is that of all. A product whose rounding is
    // added must not become one instruction with a sum.
    __device__ static void refine(const RopeWalk& walk, const Fine& fine, i64 pair, double (&frequency)[N])
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
            frequency[n] = product + fma(product, relative + fine.low[(pair + n) & (kFine - 1)], rest);
        }
    }

    __device__ void look_up(const RopeWalk& walk, i64 batch, i64 row, i64 pair)
    {
        const i64 cos_step = walk.cos_stride[2] * size_of(walk.cos_dtype), sin_step = walk.sin_stride[2] * size_of(walk.sin_dtype);
        const char* cos = walk.cos + (batch * walk.cos_stride[0] + row * walk.cos_stride[1]) * size_of(walk.cos_dtype) + pair * walk.hop * cos_step;
        const char* sin = walk.sin + (batch * walk.sin_stride[0] + row * walk.sin_stride[1]) * size_of(walk.sin_dtype) + pair * walk.hop * sin_step;
        if (walk.hop == 2) {  // both members side by side
            A cosines[2 * N], sines[2 * N];
            load_row(cos, walk.cos_dtype, cos_step, cosines);
            load_row(sin, walk.sin_dtype, sin_step, sines);
#pragma unroll
            for (int n = 0; n < N; ++n) a[n] = cosines[2 * n], c[n] = cosines[2 * n + 1], b[n] = sines[2 * n + 1], d[n] = -sines[2 * n];
            return;
        }
        load_row(cos, walk.cos_dtype, cos_step, a);
        load_row(sin, walk.sin_dtype, sin_step, b);
#pragma unroll
        for (int n = 0; n < N; ++n) c[n] = a[n], d[n] = -b[n];
        if (walk.partner) {
            load_row(cos + walk.partner * cos_step, walk.cos_dtype, cos_step, c);
            load_row(sin + walk.partner * sin_step, walk.sin_dtype, sin_step, b);
        }
    }
};

// Goes from row to row of an operand: the heads of a batch, then those of the next.
struct Rows {
    char* at;
    i64 head, heads, step, wrap;  // bytes from a head to the next, and more after the last

    __device__ Rows(char* data, const i64 (&stride)[4], i64 size, i64 heads, i64 batch, i64 head, i64 token, i64 element)
        : at(data + (batch * stride[0] + head * stride[1] + token * stride[2] + element * stride[3]) * size),
          head(head), heads(heads), step(stride[1] * size), wrap((stride[0] - heads * stride[1]) * size)
    {
    }

    __device__ void next()
    {
        at += step;
        if (++head == heads) head = 0, at += wrap;
    }
};

// A thread's unit. HALF: members of a pair lie in two vectors, otherwise side by side in one; single elements always in two.
template <bool HALF, typename T, typename A, int V>
struct Turner {
    static constexpr bool TWO = HALF || V == 1;
    static constexpr int PAIRS = TWO ? V : V / 2, VECTORS = TWO ? 2 : 1, ROWS = sizeof(T) == 2 ? 4 : 4 / VECTORS;
    using Vector = Words<T, V>;

    Rotation<A, PAIRS> rotation;
    Vector x[ROWS][VECTORS];  // some rows
    i64 first, second;        // elements of a row

    // Where the unit lies in a row; the pairs that it holds begin with number unit * PAIRS.
    __device__ void place(const RopeWalk& walk, i64 unit)
    {
        rotation.turns = unit < walk.rotating;
        if (rotation.turns) {
            first = walk.start + unit * (HALF ? V : 2 * PAIRS);
            second = first + (HALF ? walk.pairs : 1);
        } else {
            const i64 vector = (unit - walk.rotating) * VECTORS;
            first = copied(walk, vector), second = copied(walk, vector + 1 < walk.copied ? vector + 1 : vector);
        }
    }

    // The first element of a vector outside the rotated part.
    __device__ static i64 copied(const RopeWalk& walk, i64 vector)
    {
        return vector * V < walk.start ? vector * V : vector * V + 2 * walk.pairs;
    }

    __device__ void load(Rows& in, i64 count, i64 step)
    {
        const i64 apart = (second - first) * step * static_cast<i64>(sizeof(T));
        if (V > 1 && step == 0) {  // expanded
            T same[ROWS];
#pragma unroll
            for (int k = 0; k < ROWS; ++k)
                if (k < count) same[k] = *reinterpret_cast<const T*>(in.at), in.next();
#pragma unroll
            for (int k = 0; k < ROWS; ++k)
#pragma unroll
                for (int v = 0; v < V * VECTORS; ++v) x[k][v / V].set(v % V, same[k]);
            return;
        }
#pragma unroll
        for (int k = 0; k < ROWS; ++k) {
            if (k >= count) break;
            x[k][0].load(reinterpret_cast<const T*>(in.at));
            if constexpr (TWO) x[k][1].load(reinterpret_cast<const T*>(in.at + apart));
            in.next();
        }
    }

    __device__ void store(Rows& out, i64 count, i64 step) const
    {
        const i64 apart = (second - first) * step * static_cast<i64>(sizeof(T));
#pragma unroll
        for (int k = 0; k < ROWS; ++k) {
            if (k >= count) break;
            x[k][0].store(reinterpret_cast<T*>(out.at));
            if constexpr (TWO) x[k][1].store(reinterpret_cast<T*>(out.at + apart));
            out.next();
        }
    }

    __device__ void turn(i64 count)
    {
        if (!rotation.turns) return;
#pragma unroll
        for (int k = 0; k < ROWS; ++k) {
            if (k >= count) break;
            A i[PAIRS], j[PAIRS];
#pragma unroll
            for (int p = 0; p < PAIRS; ++p) {
                i[p] = TWO ? x[k][0].template value<A>(p) : x[k][0].template value<A>(2 * p);
                j[p] = TWO ? x[k][VECTORS - 1].template value<A>(p) : x[k][0].template value<A>(2 * p + 1);
            }
#pragma unroll
            for (int p = 0; p < PAIRS; ++p) {
                const A turned_i = rotation.a[p] * i[p] + rotation.b[p] * j[p], turned_j = rotation.c[p] * j[p] + rotation.d[p] * i[p];
                i[p] = turned_i, j[p] = turned_j;
            }
#pragma unroll
            for (int p = 0; p < PAIRS; p += TWO ? 2 : 1) {
                if constexpr (V == 1) {
                    T both[2];
                    narrow({i[0], j[0]}, both);
                    x[k][0].set(0, both[0]), x[k][VECTORS - 1].set(0, both[1]);
                } else if constexpr (TWO) {
                    put(x[k][0], p, i[p], i[p + 1]), put(x[k][VECTORS - 1], p, j[p], j[p + 1]);
                } else {
                    put(x[k][0], 2 * p, i[p], j[p]);
                }
            }
        }
    }

    // Two neighbours of a vector.
    __device__ static void put(Vector& y, int v, A low, A high)
    {
        T pair[2];
        narrow({low, high}, pair);
        y.set(v, pair[0]), y.set(v + 1, pair[1]);
    }
};

template <bool HALF, typename T, typename A, int V>
__device__ void rotate(const RopeArgs& args, const Fine& fine)
{
    const RopeWalk& walk = args.walk;
    const int lanes = static_cast<int>(walk.lanes), lane = threadIdx.x & (lanes - 1), line = static_cast<int>(threadIdx.x) / lanes;
    const unsigned tiles = static_cast<unsigned>(walk.tiles);
    i64 chunk = blockIdx.x / tiles;
    const i64 index = static_cast<i64>(blockIdx.x % tiles) * lanes + lane, place = index / walk.units;
    if (place >= walk.places) return;
    i64 batch = walk.places == walk.tokens ? 0 : place / walk.tokens;
    const i64 token = place - batch * walk.tokens;
    const RopeOperand& o = args.operand[chunk >= walk.chunks];
    if (chunk >= walk.chunks) chunk -= walk.chunks;
    const i64 row = (chunk * (kBlock / lanes) + line) * walk.run, rows = walk.batches * o.heads;
    if (row >= rows) return;

    Turner<HALF, T, A, V> turner;
    const i64 unit = index - place * walk.units, above = row / o.heads, head = row - above * o.heads;
    turner.place(walk, unit);
    Rows in(o.in, o.in_stride, sizeof(T), o.heads, batch + above, head, token, turner.first);
    Rows out(o.out, o.out_stride, sizeof(T), o.heads, batch + above, head, token, turner.first);
    i64 count = rows - row < walk.run ? rows - row : walk.run;
    turner.load(in, count, o.in_stride[3]);  // under way while the angles are made
    if (turner.rotation.turns) turner.rotation.make(walk, fine, batch, token, unit * turner.PAIRS);
    while (true) {
        turner.turn(count);
        turner.store(out, count, o.out_stride[3]);
        if ((count -= turner.ROWS) <= 0) return;
        turner.load(in, count, o.in_stride[3]);
    }
}

template <bool HALF, typename T, typename A>
__device__ void rotate_any(const RopeArgs& args)
{
    constexpr int WIDE = 16 / sizeof(T), NARROW = 8 / sizeof(T);
    __shared__ Fine fine;
    if (threadIdx.x < kFine) fine.high[threadIdx.x] = args.walk.fine[threadIdx.x];
    if (threadIdx.x < kFine && args.walk.pairs > kFine) fine.low[threadIdx.x] = args.walk.fine_low[threadIdx.x];
    __syncthreads();
    if (args.walk.vector == WIDE)
        rotate<HALF, T, A, WIDE>(args, fine);
    else if (NARROW > 1 && args.walk.vector == NARROW)
        rotate<HALF, T, A, NARROW>(args, fine);
    else
        rotate<HALF, T, A, 1>(args, fine);
}

#define EXPORT_ROPE(suffix, T, A, ...)                                                                    \
    EXPORT(rope_backward_interleaved_##suffix, kBlocks_##suffix, RopeArgs, rotate_any<false, T, A>(args)) \
    EXPORT(rope_backward_half_##suffix, kHalfBlocks_##suffix, RopeArgs, rotate_any<true, T, A>(args))
FOR_EACH_FLOAT(EXPORT_ROPE, )
