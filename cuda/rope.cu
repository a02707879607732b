// Rotary position embedding: each pair of elements of a token is turned by an angle that all heads share. Backward:
//
//     dx_i = c_i dy_i + s_j dy_j      dx_j = c_j dy_j - s_i dy_i
//
// The forward is the transpose. A thread owns one unit of one place: the pairs that one or two vectors of V elements hold, at a token.
// It makes their sines and cosines once and turns `run` rows with them, heads of batches. Elements outside the rotated part are units
// that are copied. Places are tokens, or tokens of each batch where batches have angles of their own.
#include "kernel.cuh"

constexpr int kVectors = 8;  // that a thread has in flight
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
    double fine[64], coarse[13];  // frequencies of the first pairs, factors of the bits of pair / kFine
};

struct RopeOperand {
    char *in, *out;
    i64 heads, in_stride[4], out_stride[4];  // batch, head, token, element
};

struct RopeArgs {
    RopeWalk walk;
    RopeOperand operand[2];
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

// out_i = a in_i + b in_j, out_j = c in_j + d in_i
template <typename A>
struct Factors {
    A a, b, c, d;
};

// The row of the tables for a token, or its position; negative where the tables have no such row.
__device__ inline i64 position_of(const RopeWalk& walk, i64 batch, i64 token)
{
    if (!walk.positions) return token;
    const i64 at = batch * walk.position_stride[0] + token * walk.position_stride[1];
    return load_bits(walk.positions + at * size_of(walk.position_dtype), walk.position_dtype);
}

template <typename A>
__device__ Factors<A> computed(const RopeWalk& walk, const double* frequency, i64 position, i64 pair)
{
    double f = frequency[pair & (kFine - 1)];
    for (int rest = static_cast<int>(pair / kFine), k = 0; rest; rest >>= 1, ++k)
        if (rest & 1) f *= walk.coarse[k];
    const double angle =
        walk.single ? static_cast<double>(__fmul_rn(__ll2float_rn(position), static_cast<float>(f))) : static_cast<double>(position) * f;
    A sine, cosine;
    if (fabs(angle) < 0x1p40) {
        sine_cosine(angle, sine, cosine);
    } else {
        const double2 both = sine_cosine_far(angle);
        sine = static_cast<A>(both.x), cosine = static_cast<A>(both.y);
    }
    return {cosine, sine, cosine, -sine};
}

template <typename A>
__device__ A entry(const char* table, i64 dtype, const i64 (&stride)[3], i64 batch, i64 row, i64 column)
{
    return from_bits<A>(load_bits(table + (batch * stride[0] + row * stride[1] + column * stride[2]) * size_of(dtype), dtype), dtype);
}

template <typename A>
__device__ Factors<A> looked_up(const RopeWalk& walk, i64 batch, i64 row, i64 pair)
{
    const i64 i = pair * walk.hop, j = i + walk.partner;
    const A cos_i = entry<A>(walk.cos, walk.cos_dtype, walk.cos_stride, batch, row, i);
    const A sin_i = entry<A>(walk.sin, walk.sin_dtype, walk.sin_stride, batch, row, i);
    if (!walk.partner) return {cos_i, sin_i, cos_i, -sin_i};
    const A cos_j = entry<A>(walk.cos, walk.cos_dtype, walk.cos_stride, batch, row, j);
    return {cos_i, entry<A>(walk.sin, walk.sin_dtype, walk.sin_stride, batch, row, j), cos_j, -sin_i};
}

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
    static constexpr int PAIRS = TWO ? V : V / 2, VECTORS = TWO ? 2 : 1, ROWS = kVectors / VECTORS;
    using Vector = Words<T, V>;

    Factors<A> factor[PAIRS];
    bool turns;
    Vector x[ROWS][VECTORS];  // some rows
    i64 first, second;        // elements of a row

    // Where the unit lies in a row; the pairs that it holds begin with number unit * PAIRS.
    __device__ void place(const RopeWalk& walk, i64 unit)
    {
        turns = unit < walk.rotating;
        if (turns) {
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
        if (!turns) return;
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
                const A turned_i = factor[p].a * i[p] + factor[p].b * j[p], turned_j = factor[p].c * j[p] + factor[p].d * i[p];
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

// The threads of a block stand in lines: those of a line side by side over units and places, the lines over rows. All lines need the
// same factors, so each makes a share of them.
template <bool HALF, typename T, typename A, int V>
__device__ void rotate(const RopeArgs& args, const double* frequency, char* memory)
{
    const RopeWalk& walk = args.walk;
    const int lanes = static_cast<int>(walk.lanes), lines = kBlock / lanes, lane = threadIdx.x & (lanes - 1);
    const int line = static_cast<int>(threadIdx.x) / lanes;
    const unsigned tiles = static_cast<unsigned>(walk.tiles);
    i64 chunk = blockIdx.x / tiles;
    const RopeOperand& o = args.operand[chunk >= walk.chunks];
    if (chunk >= walk.chunks) chunk -= walk.chunks;
    const i64 index = static_cast<i64>(blockIdx.x % tiles) * lanes + lane, place = index / walk.units, unit = index - place * walk.units;
    const i64 batch = walk.places == walk.tokens ? 0 : place / walk.tokens, token = place - batch * walk.tokens;
    const i64 row = (chunk * lines + line) * walk.run, rows = walk.batches * o.heads;
    const i64 above = row / o.heads, head = row - above * o.heads;
    i64 count = place >= walk.places || row >= rows ? 0 : rows - row < walk.run ? rows - row : walk.run;

    using Unit = Turner<HALF, T, A, V>;
    Unit turner;
    turner.place(walk, unit);
    Rows in(o.in, o.in_stride, sizeof(T), o.heads, batch + above, head, token, turner.first);
    Rows out(o.out, o.out_stride, sizeof(T), o.heads, batch + above, head, token, turner.first);
    turner.load(in, count, o.in_stride[3]);  // under way while the factors are made

    A* shared = reinterpret_cast<A*>(memory) + lane;
    const bool turns = place < walk.places && turner.turns;
    const i64 position = turns ? position_of(walk, batch, token) : 0;
    if (walk.cos && (position < 0 || position >= walk.rows)) turner.turns = false;
    if (turns && turner.turns) {
        for (int p = line; p < Unit::PAIRS; p += lines) {
            const i64 pair = unit * Unit::PAIRS + p;
            const Factors<A> f = walk.cos ? looked_up<A>(walk, batch, position, pair) : computed<A>(walk, frequency, position, pair);
            A* to = shared + 4 * p * lanes;
            to[0] = f.a, to[lanes] = walk.forward ? f.d : f.b, to[2 * lanes] = f.c, to[3 * lanes] = walk.forward ? f.b : f.d;
        }
    }
    __syncthreads();
#pragma unroll
    for (int p = 0; p < Unit::PAIRS; ++p) {
        const A* from = shared + 4 * p * lanes;
        turner.factor[p] = {from[0], from[lanes], from[2 * lanes], from[3 * lanes]};
    }
    while (count > 0) {
        turner.turn(count);
        turner.store(out, count, o.out_stride[3]);
        count -= Unit::ROWS;
        turner.load(in, count, o.in_stride[3]);
    }
}

template <bool HALF, typename T, typename A>
__device__ void rotate_any(const RopeArgs& args)
{
    constexpr int WIDE = 16 / sizeof(T), NARROW = 8 / sizeof(T), PAIRS = HALF ? WIDE : WIDE > 2 ? WIDE / 2 : 1;
    __shared__ double frequency[kFine];  // an argument is slow to read where lanes differ
    __shared__ __align__(16) char factors[4 * PAIRS * kBlock * sizeof(A)];
    if (threadIdx.x < kFine) frequency[threadIdx.x] = args.walk.fine[threadIdx.x];
    __syncthreads();
    if (args.walk.vector == WIDE)
        rotate<HALF, T, A, WIDE>(args, frequency, factors);
    else if (NARROW > 1 && args.walk.vector == NARROW)
        rotate<HALF, T, A, NARROW>(args, frequency, factors);
    else
        rotate<HALF, T, A, 1>(args, frequency, factors);
}

#define EXPORT_ROPE(suffix, T, A, ...)                                                               \
    EXPORT(rope_backward_interleaved_##suffix, 2, RopeArgs, rotate_any<false, T, A>(args))           \
    EXPORT(rope_backward_half_##suffix, 2, RopeArgs, rotate_any<true, T, A>(args))
FOR_EACH_FLOAT(EXPORT_ROPE, )
