// The angles of rotary position embedding (RoPE): from positions and frequencies, or from tables.
#pragma once

#include "common/dtype.cuh"
#include "common/export.cuh"
#include "common/vec.cuh"
#include "rope/args.gen.cuh"

using u32 = unsigned;
using u64 = unsigned long long;

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

// The frequencies of the first pairs in shared memory, which serves lanes that read different ones.
struct Fine {
    double high[kFineFrequencies];
    float low[kFineFrequencies];  // set if there are more pairs

    // Each warp fills a part; all threads of the CTA must call it.
    __device__ void fill(const RopeProblem& problem)
    {
        constexpr u32 part = kFineFrequencies / (kBlockThreads / 32);
        const u32 lane = threadIdx.x % 32, k = threadIdx.x / 32 * part + lane;
        if (lane < part) high[k] = problem.fine[k];
        if (lane < part && problem.pairs > kFineFrequencies) low[k] = problem.fine_low[k];
        __syncthreads();
    }
};

// Sine and cosine of an angle below 2^40 in float64, rounded to the accumulator. Cody-Waite
// reduction: the nearest multiple of a quarter turn, of 106 bits, is subtracted in float64; the
// rest is evaluated by Taylor series.
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

// Sine and cosine of any angle.
__device__ __noinline__ double2 sine_cosine_far(double angle)
{
    double2 both;
    sincos(angle, &both.x, &both.y);
    return both;
}

// A storage type of tables shorter than the accumulator of T; T if there is none.
template <typename T> struct Shorter { using type = T; };
template <> struct Shorter<double> { using type = float; };

// N numbers of a table of float32, float64 or T. Loading is separate from converting, so that no
// load waits for another.
template <typename T, typename A, int N>
struct TableNumbers {
    using Short = typename Shorter<T>::type;
    Words<A, N> words;  // numbers, or unconverted shorter ones

    // `step`: bytes from one number to the next.
    __device__ void load(const char* p, i64 dtype, i64 step)
    {
        if (dtype == F32)
            load<float>(p, step);
        else if (dtype == F64)
            load<double>(p, step);
        else if constexpr (sizeof(T) == 2)
            load<T>(p, step);
    }

    template <typename S>
    __device__ void load(const char* p, i64 step)
    {
        constexpr int W = N < 16 / sizeof(S) ? N : 16 / sizeof(S);
        if (sizeof(S) <= sizeof(A) && step == sizeof(S) && aligned<W * sizeof(S)>(p)) {
#pragma unroll
            for (int n = 0; n < N; n += W) {
                Words<S, W> part;
                part.load(reinterpret_cast<const S*>(p) + n);
                memcpy(words.word + n * sizeof(S) / 4, part.word, sizeof part.word);
            }
        } else {
#pragma unroll
            for (int n = 0; n < N; ++n) put(n, *reinterpret_cast<const S*>(p + n * step));
        }
    }

    template <typename S>
    __device__ void put(int n, S x)
    {
        if constexpr (sizeof(S) < sizeof(A)) {
            Words<Short, N> shorts = as_shorts();
            shorts.set(n, x);
            memcpy(words.word, shorts.word, sizeof shorts.word);
        } else {
            words.set(n, static_cast<A>(x));
        }
    }

    __device__ Words<Short, N> as_shorts() const
    {
        Words<Short, N> shorts;
        memcpy(shorts.word, words.word, sizeof shorts.word);
        return shorts;
    }

    __device__ void convert(i64 dtype, A (&x)[N]) const
    {
        const Words<Short, N> shorts = as_shorts();
        const bool is_short = sizeof(T) == 8 ? dtype == F32 : sizeof(T) == 2 && dtype != F32 && dtype != F64;
#pragma unroll
        for (int n = 0; n < N; ++n) x[n] = is_short ? shorts.template value<A>(n) : words.get(n);
    }
};

// Extends the frequencies of the first pairs to any pairs, with more precision than float64, as a
// position multiplies their error. Preconditions: N divides kFineFrequencies and `pair`, so that
// all share a coarse factor. A product whose rounding error is added must not be contracted to an
// FMA.
template <int N>
__device__ void refine(const RopeProblem& problem, const Fine& fine, u32 pair, double (&frequency)[N])
{
    double coarse = 1, low = 0, relative = 0;  // (coarse + low) (1 + relative)
    for (int rest = static_cast<int>(pair / kFineFrequencies), k = 0; rest; rest >>= 1, ++k) {
        if (!(rest & 1)) continue;
        const double factor = problem.coarse[k], product = __dmul_rn(coarse, factor);
        low = fma(low, factor, fma(coarse, factor, -product));
        coarse = product, relative += problem.coarse_low[k];
    }
#pragma unroll
    for (int n = 0; n < N; ++n) {
        const double product = __dmul_rn(frequency[n], coarse),
            rest = fma(frequency[n], low, fma(frequency[n], coarse, -product));
        frequency[n] = product + fma(product, relative + fine.low[(pair + n) % kFineFrequencies], rest);
    }
}

// out_i = a in_i + b in_j, out_j = c in_j - d in_i; c is a and d is b unless they come from tables.
template <typename A, int N, bool TABLES>
struct Rotation {
    static constexpr int M = TABLES ? N : 1;
    A a[N], b[N], c_[M], d_[M];

    __device__ A c(int n) const { return TABLES ? c_[n % M] : a[n]; }
    __device__ A d(int n) const { return TABLES ? d_[n % M] : b[n]; }

    // [radians for each position]
    __device__ static void frequencies(const RopeProblem& problem, const Fine& fine, u32 pair, double (&frequency)[N])
    {
        const u32 first = pair % kFineFrequencies;
#pragma unroll
        for (int n = 0; n < N; ++n) frequency[n] = fine.high[first + n];
        if (problem.pairs > kFineFrequencies) refine(problem, fine, pair, frequency);
        if (!problem.forward) return;
#pragma unroll
        for (int n = 0; n < N; ++n) frequency[n] = -frequency[n];  // the transpose
    }

    __device__ void compute(const RopeProblem& problem, const double (&frequency)[N], i64 position)
    {
        double angle[N];
        const double p = static_cast<double>(position);
        if (problem.single) {
            const float single = __ll2float_rn(position);
#pragma unroll
            for (int n = 0; n < N; ++n)
                angle[n] = static_cast<double>(__fmul_rn(single, static_cast<float>(frequency[n])));
        } else {
#pragma unroll
            for (int n = 0; n < N; ++n) angle[n] = frequency[n] * p;
        }
        if (fabs(p) * problem.fastest < 0x1p40) {
#pragma unroll
            for (int n = 0; n < N; ++n) sine_cosine(angle[n], b[n], a[n]);
        } else {
#pragma unroll
            for (int n = 0; n < N; ++n) {
                const double2 both = sine_cosine_far(angle[n]);
                b[n] = static_cast<A>(both.x), a[n] = static_cast<A>(both.y);
            }
        }
    }

    // The members of a pair have adjacent columns, columns partner_offset apart, or share one.
    template <bool SIDE_BY_SIDE, typename T>
    __device__ void look_up(const RopeProblem& problem, i64 batch, i64 row, u32 pair)
    {
        const i64 cos_step = problem.cos_stride[2], sin_step = problem.sin_stride[2];
        const char* cos = problem.cos + batch * problem.cos_stride[0] + row * problem.cos_stride[1]
            + pair * problem.pair_stride * cos_step;
        const char* sin = problem.sin + batch * problem.sin_stride[0] + row * problem.sin_stride[1]
            + pair * problem.pair_stride * sin_step;
        if (SIDE_BY_SIDE && problem.partner_offset) {
            TableNumbers<T, A, 2 * N> cosines, sines;
            A cosine[2 * N], sine[2 * N];
            cosines.load(cos, problem.cos_dtype, cos_step), sines.load(sin, problem.sin_dtype, sin_step);
            cosines.convert(problem.cos_dtype, cosine), sines.convert(problem.sin_dtype, sine);
#pragma unroll
            for (int n = 0; n < N; ++n)
                a[n] = cosine[2 * n], c_[n] = cosine[2 * n + 1], d_[n] = sine[2 * n], b[n] = sine[2 * n + 1];
        } else {
            TableNumbers<T, A, N> cosines[2], sines[2];
#pragma unroll
            for (int k = 0; k < 2; ++k) {
                cosines[k].load(cos + k * problem.partner_offset * cos_step, problem.cos_dtype, cos_step);
                sines[k].load(sin + k * problem.partner_offset * sin_step, problem.sin_dtype, sin_step);
            }
            cosines[0].convert(problem.cos_dtype, a), cosines[1].convert(problem.cos_dtype, c_);
            sines[0].convert(problem.sin_dtype, d_), sines[1].convert(problem.sin_dtype, b);
        }
        if (!problem.forward) return;
#pragma unroll
        for (int n = 0; n < N; ++n) {  // the transpose
            const A other = b[n];
            b[n] = -d_[n], d_[n] = -other;
        }
    }
};
