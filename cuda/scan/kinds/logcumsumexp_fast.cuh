// logcumsumexp of rows that do not rise far, which are most: states are sums, joined by one addition.
#pragma once

#include "scan/kinds/logcumsumexp.cuh"

// exp_of also where the difference is a far exponent: what it loses is given back. NaN where it is infinite.
__device__ inline float exact_exp_of(float x, float from)
{
    asm("max.NaN.f32 %0, %0, %1;" : "+f"(x) : "f"(from - 150.0f));
    const float d = x - from, part = d - x, lost = (x - (d - part)) - (from + part);
    const float power = d * kLog2e, rest = fmaf(power, -0x1.62e43p-1f, d) + lost;
    float e;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(e) : "f"(power));
    return fmaf(e, fmaf(power, 0x1.05c610p-29f, rest), e);
}

constexpr double kWhole = 0x1.8p52;  // what is added to it is rounded to a whole number, and stands in its last bits

// e^x / 2^K to a place of itself, from = kWhole - K: in powers of two nothing is lost where x is far from K. 0 below 2^-1021, and infinite
// where that is no number. Of e^r = 1 + r + r^2 p(r), |r| <= log(2) / 2, p is the polynomial of degree 9 that is nearest at Chebyshev's points.
__device__ inline double exact_exp_of(double x, double from)
{
    const double t = fma(x, 0x1.71547652b82fep0, from), k = t - from, r = fma(-k, 0x1.abc9e3b39803fp-56, fma(-k, 0x1.62e42fefa39efp-1, x));
    const i64 exponent = __double_as_longlong(t) - __double_as_longlong(kWhole);
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
    const double power = __hiloint2double((static_cast<int>(exponent) + 1023) << 20, 0), e = fma(fma(r * r, p, r), power, power);
    const bool number = static_cast<unsigned>(__double2hiint(t)) <= 0xfff00000;
    return exponent > 1020 ? INFINITY : exponent < -1021 && number ? 0.0 : e;
}

// A call, where all of a thread's exponentials at once have no registers.
__device__ __noinline__ inline double called_exp_of(double x, double from) { return exact_exp_of(x, from); }

// e^x / 2^from, of what is no far exponent: to |x| places in 2^-24 of itself, which short results do not show.
__device__ inline float rough_exp_of(float x, float from)
{
    float e;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(e) : "f"(fmaf(x, kLog2e, -from)));
    return e;
}

template <typename A>
struct TameLogcumsumexpTail {
    A z;
};

// logcumsumexp of rows without an x far above their base, the first one or near it. All exponentials are taken from a place above that,
// o = base + c, so that there is as much room above it as below: S_i = sum_{j<=i} e^{x_j - o} and dx_k = e^{x_k - o} sum_{i>=k} dy_i / S_i,
// states are plain sums.
template <typename A, bool EXACT>
struct TameLogcumsumexp : SameTail<TameLogcumsumexpTail<A>> {
    static constexpr bool HEAD = true, ORDERED = true, TWO_WAYS = false;
    using Number = A;
    using Value = A;
    struct Head {
        A s;
    };
    using Tail = TameLogcumsumexpTail<A>;

    static __device__ Head empty() { return {A(0)}; }
    static __device__ Tail nothing() { return {A(0)}; }
    static __device__ Head join(const Head& l, const Head& r) { return {l.s + r.s}; }
    static __device__ Tail join(const Tail& l, const Tail& r) { return {l.z + r.z}; }
    static __device__ unsigned faults(const Head& h) { return h.s < A(INFINITY) ? 0 : kUndone; }
    static __device__ A pad(const ScanArgs&) { return -A(INFINITY); }

    // The base of a row by its first x and the largest of the first ones: above the first one as far as its exponential is still precise.
    static __device__ A base(A first, A largest) { return sizeof(A) == 8 ? first : fmin(largest, first + A(20)); }

    template <int I, int N, bool SEG>
    struct Cell {
        static constexpr bool DOUBLE = sizeof(A) == 8;
        static constexpr A kAbove = DOUBLE ? A(400) : EXACT ? A(39) : A(56);  // c; in powers of two, but in float32
        static constexpr A kMost = DOUBLE ? A(0x1p300) : A(0x1p40), kTiny = DOUBLE ? A(0x1p-800) : A(0x1p-118);
        static constexpr A kFar = DOUBLE ? A(0x1p900) : A(0x1p90);  // no number of threads adds such tails up to infinity
        A d[I], t[I];  // e^{x_i - o}, dy_i / S_i
        A base;        // of the first row of the thread
        unsigned faults;

        // What exponentials of a row are taken from.
        static __device__ A origin(A base)
        {
            if constexpr (DOUBLE)
                return fabs(base) < 0x1p40 ? fma(base, -0x1.71547652b82fep0, kWhole - kAbove) : A(NAN);
            else
                return EXACT ? base + kAbove : fma(base, A(kLog2e), kAbove);
        }

        // In four chains, so that none is long.
        static __device__ A sum(const A (&x)[I])
        {
            A s[4] = {x[0], x[1], x[2], x[3]};
#pragma unroll
            for (int i = 4; i < I; ++i) s[i % 4] += x[i];
            return (s[0] + s[1]) + (s[2] + s[3]);
        }

        __device__ void begin(const ScanArgs&) {}

        template <typename X>
        __device__ Head head(const X& x, unsigned starts)
        {
            A from = origin(base);
#pragma unroll
            for (int i = 0; i < I; ++i) {
                if (SEG && starts & 1u << i) from = origin(x(i));
                if constexpr (DOUBLE && SEG)
                    d[i] = called_exp_of(x(i), from);
                else if constexpr (EXACT)
                    d[i] = exact_exp_of(x(i), from);
                else
                    d[i] = rough_exp_of(x(i), from);
            }
            const A all = sum(d);
            faults = all <= kMost ? 0 : kUndone;
            if (!SEG) return {all};
            const unsigned since = starts ? ~0u << (31 - __clz(starts)) : ~0u;  // the last start
            A s = A(0);
#pragma unroll
            for (int i = 0; i < I; ++i)
                if (since & 1u << i) s += d[i];
            return {s};
        }

        template <typename X, typename Y>
        __device__ void enter(const Head& before, const X&, const Y& y, unsigned starts)
        {
            A s = fmax(before.s, kTiny);  // nothing is divided by 0 ahead of a row
#pragma unroll
            for (int i = 0; i < I; ++i) {
                if (SEG && starts & 1u << i) s = A(0);
                s += d[i];
                t[i] = y(i) * inverse(s);
            }
            faults |= TameLogcumsumexp::faults(Head{s});
        }

        template <typename X, typename Y>
        __device__ Tail tail(const X&, const Y&, unsigned starts)
        {
            A z = A(0);
            const unsigned ahead = ahead_of(starts);
#pragma unroll
            for (int i = I - 1; i >= 0; --i)
                if (!SEG || ahead & 1u << i) z += t[i];
            if (!SEG && !(fabs(z) < kFar)) faults = kUndone;  // known here, it saves a block a barrier; what is no number stays so up to the start
            return {z};
        }

        template <typename X, typename Y, typename Store>
        __device__ void finish(const Tail& after, const X& x, const Y&, unsigned starts, const Store& store)
        {
            constexpr int again = kAgain<TameLogcumsumexp, X::WIDTH, X::COUNT> * I / (X::WIDTH * X::COUNT);
            const A from = origin(base);
            A z = after.z, wrong = A(0);
#pragma unroll
            for (int c = I / N - 1; c >= 0; --c) {
                A dx[N];
#pragma unroll
                for (int v = N - 1; v >= 0; --v) {
                    const int i = c * N + v;
                    z += t[i];
                    if constexpr (again > 0)
                        dx[v] = (i < again ? rough_exp_of(x(i), from) : d[i]) * z;
                    else
                        dx[v] = d[i] * z;
                    if (SEG && starts & 1u << i) wrong = fma(z, A(0), wrong), z = A(0);  // what is no number stays so
                }
                store(c, dx);
            }
            if (SEG && !(fma(z, A(0), wrong) == A(0))) faults = kUndone;
        }
    };
};

template <typename A, typename T>
struct TameOf<Logcumsumexp<A>, T> {
    using Kind = TameLogcumsumexp<A, (sizeof(T) > 2)>;
};
template <typename A, bool EXACT>
constexpr bool kTame<TameLogcumsumexp<A, EXACT>> = true;
template <typename A, bool EXACT>
constexpr bool kBased<TameLogcumsumexp<A, EXACT>> = true;
template <typename A, bool EXACT>
constexpr bool kHolds<TameLogcumsumexp<A, EXACT>> = true;
template <typename A>
constexpr int kAgain<TameLogcumsumexp<A, false>, 8, 8> = 24;  // of pieces
template <typename A>
constexpr int kAgain<TameLogcumsumexp<A, false>, 2, 32> = 40;  // of slabs
