// Rotary position embedding: each pair of elements of a token is turned by an angle that all heads share. Backward:
//
//     dx_i = c_i dy_i + s_j dy_j      dx_j = c_j dy_j - s_i dy_i
//
// The forward is the transpose. A thread owns one unit of one place: the pairs that one or two vectors of V elements hold, at a token.
// It makes their sines and cosines once and turns `run` rows with them, heads of batches. Elements outside the rotated part are units
// that are copied. Places are tokens, or tokens of each batch where batches have angles of their own.
#include "kernel.cuh"

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

    // The pairs from `pair` on, at a token of a batch; frequency is where those of the first pairs are.
    __device__ void make(const RopeWalk& walk, const double* frequency, i64 batch, i64 token, i64 pair)
    {
        i64 position = token;
        if (walk.positions) {
            const i64 at = batch * walk.position_stride[0] + token * walk.position_stride[1];
            position = load_bits(walk.positions + at * size_of(walk.position_dtype), walk.position_dtype);
        }
        if (!walk.cos)
            compute(walk, frequency, position, pair);
        else if ((turns = position >= 0 && position < walk.rows))
            look_up(walk, batch, position, pair);
        if (!walk.forward) return;
#pragma unroll
        for (int n = 0; n < N; ++n) {  // the transpose
            const A other = b[n];
            b[n] = d[n], d[n] = other;
        }
    }

    __device__ void compute(const RopeWalk& walk, const double* frequency, i64 position, i64 pair)
    {
        const double p = static_cast<double>(position);
        const bool far = !(fabs(p) * walk.fastest < 0x1p40);
#pragma unroll
        for (int n = 0; n < N; ++n) {
            double f = frequency[(pair + n) & (kFine - 1)];
            if (walk.pairs > kFine) {
                int k = 0;
                for (int rest = static_cast<int>(pair + n) / kFine; rest; rest >>= 1, ++k)
                    if (rest & 1) f *= walk.coarse[k];
            }
            double angle = p * f;
            if (walk.single) angle = __fmul_rn(__ll2float_rn(position), static_cast<float>(f));
            if (far) {
                const double2 both = sine_cosine_far(angle);
                b[n] = static_cast<A>(both.x), a[n] = static_cast<A>(both.y);
            } else {
                sine_cosine(angle, b[n], a[n]);
            }
            c[n] = a[n], d[n] = -b[n];
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

// HALF: members of a pair lie in two vectors, otherwise side by side in one; single elements always in two.
template <bool HALF, typename T, typename A, int V>
struct Turner {
    static constexpr bool TWO = HALF || V == 1;
    static constexpr int PAIRS = TWO ? V : V / 2, ROWS = TWO ? 4 : 8;
    using Vector = Words<T, V>;

    const RopeWalk& walk;
    Rotation<A, PAIRS> rotation;
    i64 first, second;  // elements of a row

    __device__ void load(const char* row, i64 element, i64 step, Vector& x) const
    {
        const T* p = reinterpret_cast<const T*>(row) + element * step;
        if (V == 1 || step != 0) {
            x.load(p);
        } else {  // expanded
            const T same = *p;
#pragma unroll
            for (int v = 0; v < V; ++v) x.set(v, same);
        }
    }

    __device__ static void put(Vector& y, int v, A low, A high)
    {
        if constexpr (V > 1) {
            T pair[2];
            narrow({low, high}, pair);
            y.set(v, pair[0]), y.set(v + 1, pair[1]);
        }
    }

    __device__ static T rounded(A x)
    {
        T pair[2];
        narrow({x, x}, pair);
        return pair[0];
    }

    __device__ void turn(Vector& x, Vector& y) const
    {
        if (!rotation.turns) return;
        const Rotation<A, PAIRS>& r = rotation;
        if constexpr (V == 1) {
            const A i = x.template value<A>(0), j = y.template value<A>(0);
            x.set(0, rounded(r.a[0] * i + r.b[0] * j)), y.set(0, rounded(r.c[0] * j + r.d[0] * i));
        } else if constexpr (HALF) {
            Vector new_x, new_y;
#pragma unroll
            for (int v = 0; v < V; v += 2) {
                const A i = x.template value<A>(v), j = y.template value<A>(v);
                const A k = x.template value<A>(v + 1), l = y.template value<A>(v + 1);
                put(new_x, v, r.a[v] * i + r.b[v] * j, r.a[v + 1] * k + r.b[v + 1] * l);
                put(new_y, v, r.c[v] * j + r.d[v] * i, r.c[v + 1] * l + r.d[v + 1] * k);
            }
            x = new_x, y = new_y;
        } else {
            Vector turned;
#pragma unroll
            for (int p = 0; p < PAIRS; ++p) {
                const A i = x.template value<A>(2 * p), j = x.template value<A>(2 * p + 1);
                put(turned, 2 * p, r.a[p] * i + r.b[p] * j, r.c[p] * j + r.d[p] * i);
            }
            x = turned;
        }
    }

    // `count` rows that begin with head `head` of the batch that row and out point to.
    __device__ void rows(const RopeOperand& o, const char* in, char* out, i64 head, i64 count) const
    {
        const i64 in_head = o.in_stride[1] * sizeof(T), in_wrap = o.in_stride[0] * sizeof(T) - o.heads * in_head;
        const i64 out_head = o.out_stride[1] * sizeof(T), out_wrap = o.out_stride[0] * sizeof(T) - o.heads * out_head;
        const bool both = TWO && second >= 0;
        for (; count > 0; count -= ROWS) {
            Vector x[ROWS], y[TWO ? ROWS : 1];
            char* target[ROWS];
#pragma unroll
            for (int k = 0; k < ROWS; ++k) {
                if (k >= count) break;
                load(in, first, o.in_stride[3], x[k]);
                if (both) load(in, second, o.in_stride[3], y[TWO ? k : 0]);
                target[k] = out;
                in += in_head, out += out_head;
                if (++head == o.heads) head = 0, in += in_wrap, out += out_wrap;
            }
#pragma unroll
            for (int k = 0; k < ROWS; ++k) {
                if (k >= count) break;
                turn(x[k], y[TWO ? k : 0]);
                T* p = reinterpret_cast<T*>(target[k]);
                x[k].store(p + first * o.out_stride[3]);
                if (both) y[TWO ? k : 0].store(p + second * o.out_stride[3]);
            }
        }
    }

    __device__ void unit(const double* frequency, i64 batch, i64 token, i64 unit)
    {
        second = -1;
        rotation.turns = false;
        if (unit < walk.rotating) {
            first = walk.start + unit * (HALF ? V : 2 * PAIRS);
            if (TWO) second = first + (HALF ? walk.pairs : 1);
            rotation.turns = true;
            rotation.make(walk, frequency, batch, token, unit * PAIRS);
        } else if constexpr (TWO) {
            const i64 vector = 2 * (unit - walk.rotating);
            first = copied(vector);
            if (vector + 1 < walk.copied) second = copied(vector + 1);
        } else {
            first = copied(unit - walk.rotating);
        }
    }

    // The first element of a vector outside the rotated part.
    __device__ i64 copied(i64 vector) const { return vector * V < walk.start ? vector * V : vector * V + 2 * walk.pairs; }
};

template <bool HALF, typename T, typename A, int V>
__device__ void rotate(const RopeArgs& args, const double* frequency)
{
    const RopeWalk& walk = args.walk;
    const int lane = threadIdx.x & static_cast<int>(walk.lanes - 1), height = kBlock / static_cast<int>(walk.lanes);
    i64 chunk = blockIdx.x / walk.tiles;
    const i64 index = (blockIdx.x - chunk * walk.tiles) * walk.lanes + lane, place = index / walk.units;
    if (place >= walk.places) return;
    const i64 batch = place / walk.tokens, token = place - batch * walk.tokens;
    const RopeOperand& o = args.operand[chunk >= walk.chunks];
    if (chunk >= walk.chunks) chunk -= walk.chunks;
    const i64 row = (chunk * height + threadIdx.x / static_cast<int>(walk.lanes)) * walk.run, rows = walk.batches * o.heads;
    if (row >= rows) return;
    Turner<HALF, T, A, V> turner{walk};
    turner.unit(frequency, batch, token, index - place * walk.units);
    const i64 above = row / o.heads, head = row - above * o.heads, b = batch + above;
    const i64 in = b * o.in_stride[0] + head * o.in_stride[1] + token * o.in_stride[2];
    const i64 out = b * o.out_stride[0] + head * o.out_stride[1] + token * o.out_stride[2];
    const i64 count = rows - row < walk.run ? rows - row : walk.run;
    turner.rows(o, o.in + in * sizeof(T), o.out + out * sizeof(T), head, count);
}

template <bool HALF, typename T, typename A>
__device__ void rotate_any(const RopeArgs& args)
{
    constexpr int WIDE = 16 / sizeof(T), NARROW = 8 / sizeof(T);
    __shared__ double frequency[kFine];  // an argument is slow to read where lanes differ
    if (threadIdx.x < kFine) frequency[threadIdx.x] = args.walk.fine[threadIdx.x];
    __syncthreads();
    if (args.walk.vector == WIDE)
        rotate<HALF, T, A, WIDE>(args, frequency);
    else if (NARROW > 1 && args.walk.vector == NARROW)
        rotate<HALF, T, A, NARROW>(args, frequency);
    else
        rotate<HALF, T, A, 1>(args, frequency);
}

#define EXPORT_ROPE(suffix, T, A, ...)                                                               \
    EXPORT(rope_backward_interleaved_##suffix, 2, RopeArgs, rotate_any<false, T, A>(args))           \
    EXPORT(rope_backward_half_##suffix, 2, RopeArgs, rotate_any<true, T, A>(args))
FOR_EACH_FLOAT(EXPORT_ROPE, )
