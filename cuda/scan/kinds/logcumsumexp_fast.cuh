// logcumsumexp, fast path: states are plain sums, combined by one addition. It is right for rows
// whose x do not rise far above the first ones, as most do, and rejects the others.
#pragma once

#include "scan/kinds/logcumsumexp.cuh"

// exp_of for any difference: the rounding error of x - origin is compensated. NaN if the difference
// is infinite.
__device__ inline float exact_exp_of(float x, float origin)
{
    asm("max.NaN.f32 %0, %0, %1;" : "+f"(x) : "f"(origin - 150.0f));
    const float d = x - origin, shift = d - x, error = (x - (d - shift)) - (origin + shift);
    const float power = d * kLog2e, rest = fmaf(power, -0x1.62e43p-1f, d) + error;
    float e;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(e) : "f"(power));
    return fmaf(e, fmaf(power, 0x1.05c610p-29f, rest), e);
}

// A number added to it is rounded to an integer, which stands in the last bits.
constexpr double kRoundToInteger = 0x1.8p52;

// e^x 2^-K to an ulp; the caller passes kRoundToInteger - K. Scaling by 2^-K is exact,
// however far x is from K log 2. 0 below 2^-1021; infinity on overflow. p is the degree-9
// polynomial of e^r = 1 + r + r^2 p(r), |r| <= log(2) / 2, that interpolates at Chebyshev points.
__device__ inline double exact_exp_of(double x, double shifted_exponent)
{
    const double t = fma(x, 0x1.71547652b82fep0, shifted_exponent), k = t - shifted_exponent,
                 r = fma(-k, 0x1.abc9e3b39803fp-56, fma(-k, 0x1.62e42fefa39efp-1, x));
    const i64 exponent = __double_as_longlong(t) - __double_as_longlong(kRoundToInteger);
    double p = 0x1.af38a9b0ec855p-26;
    p = fma(p, r, 0x1.289185613a3d6p-22);
    p = fma(p, r, 0x1.71de0dae63bb3p-19);
    p = fma(p, r, 0x1.a019b90d2ae7ap-16);
    p = fma(p, r, 0x1.a01a01a7c41d5p-13);
    p = fma(p, r, 0x1.6c16c1788bd90p-10);
    p = fma(p, r, 0x1.11111111109b3p-7);
    p = fma(p, r, 0x1.5555555553d63p-5);
    p = fma(p, r, 0x1.5555555555556p-3);
    p = fma(p, r, 0x1.0000000000001p-1);
    const double power = __hiloint2double((static_cast<int>(exponent) + 1023) << 20, 0),
                 e = fma(fma(r * r, p, r), power, power);
    const bool number = static_cast<unsigned>(__double2hiint(t)) <= 0xfff00000;
    return exponent > 1020 ? INFINITY : exponent < -1021 && number ? 0.0 : e;
}

// Not inlined: all exponentials of a thread at once take too many registers.
__device__ __noinline__ inline double called_exp_of(double x, double shifted_exponent)
{
    return exact_exp_of(x, shifted_exponent);
}

// e^x / 2^log2_origin for an exponent in range, with a relative error of about |x| 2^-24: enough
// for 16-bit results.
__device__ inline float rough_exp_of(float x, float log2_origin)
{
    float e;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(e) : "f"(fmaf(x, kLog2e, -log2_origin)));
    return e;
}

template <typename A>
struct FastLogcumsumexpSuffix {
    A z;

    static __device__ FastLogcumsumexpSuffix identity() { return {A(0)}; }
};

// Exponentials are taken from an origin o that is kAbove above the base, the first x of the row or
// one near it; kAbove leaves as much range above the origin as below. S_i = sum_{j<=i} e^{x_j - o}
// and dx_k = e^{x_k - o} sum_{i>=k} dy_i / S_i, so states are plain sums.
template <typename A, bool EXACT>
struct FastLogcumsumexp : SameCarry<FastLogcumsumexpSuffix<A>> {
    static constexpr bool NEEDS_PREFIX = true, SUFFIX_NEEDS_PREFIX = true, ACCEPTS_BOUNDED = false;
    static constexpr bool IS_FAST = true, HAS_BASE = true, KEEPS_ELEMENTS = true, HAS_EXCLUSIVE = true;
    // Tuned for row_cluster (8 vectors of 8 elements) and column_cluster (32 words of 2).
    template <int WIDTH, int COUNT>
    static constexpr int RECOMPUTED_ELEMENTS = EXACT                       ? 0
                                               : WIDTH == 8 && COUNT == 8  ? 24
                                               : WIDTH == 2 && COUNT == 32 ? 2 * kRecomputedRows
                                                                           : 0;
    using Tuning = LogcumsumexpTuning;
    using Number = A;
    using Value = A;
    struct Prefix {
        A s;

        static __device__ Prefix identity() { return {A(0)}; }
    };
    using Suffix = FastLogcumsumexpSuffix<A>;

    static __device__ Prefix combine(const Prefix& l, const Prefix& r) { return {l.s + r.s}; }
    static __device__ Suffix combine(const Suffix& l, const Suffix& r) { return {l.z + r.z}; }
    static __device__ unsigned rejections(const Prefix& h) { return h.s < A(INFINITY) ? 0 : kRejected; }
    static __device__ A pad(const ScanArgs&) { return -A(INFINITY); }

    // The base of a row: the largest of the first x, but at most 20 above the first one, whose
    // exponential would lose precision. For float64 the first x.
    static __device__ A base(A first, A largest) { return sizeof(A) == 8 ? first : fmin(largest, first + A(20)); }

    template <int I, int N, bool SEG>
    struct ThreadScan {
        static constexpr bool DOUBLE = sizeof(A) == 8;
        static constexpr A kAbove = DOUBLE ? A(400) : EXACT ? A(39) : A(56);  // in powers of two except in float32
        // kMaxThreadSum: the largest sum of the exponentials of a thread that is accepted.
        static constexpr A kMaxThreadSum = DOUBLE ? A(0x1p300) : A(0x1p40), kTiny = DOUBLE ? A(0x1p-800) : A(0x1p-118);
        // Sums of suffixes below it stay finite in a row of any length.
        static constexpr A kMaxAbsSuffix = DOUBLE ? A(0x1p900) : A(0x1p90);
        A d[I], t[I];  // e^{x_i - o}, dy_i / S_i
        A base;        // of the first row of the thread
        unsigned rejections;

        // The origin of the exponentials of a row.
        static __device__ A origin(A base)
        {
            if constexpr (DOUBLE)
                return fabs(base) < 0x1p40 ? fma(base, -0x1.71547652b82fep0, kRoundToInteger - kAbove) : A(NAN);
            else
                return EXACT ? base + kAbove : fma(base, A(kLog2e), kAbove);
        }

        // In four chains, to shorten the dependency.
        static __device__ A sum(const A (&x)[I])
        {
            A s[4] = {x[0], x[1], x[2], x[3]};
#pragma unroll
            for (int i = 4; i < I; ++i) s[i % 4] += x[i];
            return (s[0] + s[1]) + (s[2] + s[3]);
        }

        __device__ void begin(const ScanArgs&) {}

        template <typename X>
        __device__ Prefix prefix(const X& x, unsigned segment_heads)
        {
            A from = origin(base);
#pragma unroll
            for (int i = 0; i < I; ++i) {
                if (SEG && segment_heads & 1u << i) from = origin(x(i));
                if constexpr (DOUBLE && SEG)
                    d[i] = called_exp_of(x(i), from);
                else if constexpr (EXACT)
                    d[i] = exact_exp_of(x(i), from);
                else
                    d[i] = rough_exp_of(x(i), from);
            }
            const A all = sum(d);
            rejections = all <= kMaxThreadSum ? 0 : kRejected;
            if (!SEG) return {all};
            // From the last segment head on.
            const unsigned since = segment_heads ? ~0u << (31 - __clz(segment_heads)) : ~0u;
            A s = A(0);
#pragma unroll
            for (int i = 0; i < I; ++i)
                if (since & 1u << i) s += d[i];
            return {s};
        }

        template <typename X, typename Y>
        __device__ void enter(const Prefix& before, const X&, const Y& y, unsigned segment_heads)
        {
            A s = fmax(before.s, kTiny);  // avoids a division by 0 before the row begins
#pragma unroll
            for (int i = 0; i < I; ++i) {
                if (SEG && segment_heads & 1u << i) s = A(0);
                s += d[i];
                t[i] = y(i) * inverse(s);
            }
            rejections |= FastLogcumsumexp::rejections(Prefix{s});
        }

        template <typename X, typename Y>
        __device__ Suffix suffix(const X&, const Y&, unsigned segment_heads)
        {
            A z = A(0);
            const unsigned preceding = bits_below_lowest(segment_heads);
#pragma unroll
            for (int i = I - 1; i >= 0; --i)
                if (!SEG || preceding & 1u << i) z += t[i];
            // Checking it here instead of in `finish` saves a barrier of the CTA. A NaN or infinity
            // of z persists to the start of the row.
            if (!SEG && !(fabs(z) < kMaxAbsSuffix)) rejections = kRejected;
            return {z};
        }

        template <typename X, typename Y, typename Store>
        __device__ void finish(const Suffix& after, const X& x, const Y&, unsigned segment_heads, const Store& store)
        {
            constexpr int recomputed = RECOMPUTED_ELEMENTS<X::WIDTH, X::COUNT> * I / (X::WIDTH * X::COUNT);
            const A from = origin(base);
            A z = after.z, wrong = A(0);
#pragma unroll
            for (int c = I / N - 1; c >= 0; --c) {
                A dx[N];
#pragma unroll
                for (int v = N - 1; v >= 0; --v) {
                    const int i = c * N + v;
                    z += t[i];
                    if constexpr (recomputed > 0)
                        dx[v] = (i < recomputed ? rough_exp_of(x(i), from) : d[i]) * z;
                    else
                        dx[v] = d[i] * z;
                    // NaN and infinities stay, as NaN.
                    if (SEG && segment_heads & 1u << i) wrong = fma(z, A(0), wrong), z = A(0);
                }
                store(c, dx);
            }
            if (SEG && !(fma(z, A(0), wrong) == A(0))) rejections = kRejected;
        }
    };
};
