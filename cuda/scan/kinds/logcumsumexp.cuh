// logcumsumexp, general path: w = e^{x_i - y_i}, c = e^{y_{i-1} - y_i}.
#pragma once

#include "scan/state/prefix_suffix.cuh"

constexpr float kLog2e = 1.44269504f;

// e^{x - from} with a relative error of a few 2^-23 for small x - from; 0 below e^-87. The
// rounding error of the product with log2 e is compensated.
__device__ inline float exp_of(float x, float from)
{
    x -= from;
    asm("max.NaN.f32 %0, %0, 0fC3160000;" : "+f"(x));  // -150
    const float power = x * kLog2e, rest = fmaf(power, -0x1.62e43p-1f, x);
    float e;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(e) : "f"(power));
    return fmaf(e, fmaf(power, 0x1.05c610p-29f, rest), e);
}

// Relative error of about an ulp: the rounding error of x - from, which grows with their distance,
// is compensated.
__device__ __noinline__ inline double exp_of(double x, double from)
{
    const double d = x - from, shift = d - x, error = (x - (d - shift)) - (from + shift), e = exp(d), rest = e * error;
    return rest - rest == 0.0 ? e + rest : e;
}

__device__ inline float inverse(float s)  // of a normal number or NaN
{
    float r;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(s));
    return r;
}
__device__ inline double inverse(double s)
{
    double r;
    asm("rcp.approx.ftz.f64 %0, %1;" : "=d"(r) : "d"(s));
    const double e = fma(-s, r, 1.0);
    return fma(r, fma(e, e, e), r);
}

template <typename A, bool EXACT>
struct FastLogcumsumexp;

template <typename A>
struct LogcumsumexpPrefix {
    static __device__ LogcumsumexpPrefix identity() { return {-A(INFINITY), A(0)}; }

    A m, s;  // the largest x, and the sum of e^{x - m}; the count of such x if m is +inf, 0 if m is -inf
};

template <typename A>
struct LogcumsumexpSuffix {
    static __device__ LogcumsumexpSuffix identity() { return {A(NAN), A(0)}; }

    A m, z;  // z = sum dy_i e^{m - y_i}, where m is the largest x before these elements; NaN in the identity
};

// Within a thread all exponentials share an anchor: S_i = sum_{j<=i} e^{x_j - anchor}, and
// dx_k = e^{x_k - anchor} Z_k with Z_k = sum_{i>=k} dy_i / S_i, so that errors do not accumulate
// along the row. Between threads, Z is relative to the largest x so far. If no anchor suits all
// sums of a thread, each element uses the largest x so far:
//     S_i = S_{i-1} e_i + e^{x_i - m_i},  Z_k = dy_k / S_k + e_{k+1} Z_{k+1},
//     e_i = e^{m_{i-1} - m_i}
// APART: the elements of a thread in which a segment begins share no anchor, so that no bit of one
// segment depends on another.
template <typename A, bool APART = false>
struct Logcumsumexp : SameCarry<LogcumsumexpSuffix<A>> {
    static constexpr bool NEEDS_PREFIX = true, SUFFIX_NEEDS_PREFIX = true, KEEPS_ELEMENTS = true, HAS_EXCLUSIVE = true;
    template <typename T>
    using FastPathFor = FastLogcumsumexp<A, (sizeof(T) > 2)>;
    using Tuning = LogcumsumexpTuning;
    using Number = A;
    using Value = A;
    using Prefix = LogcumsumexpPrefix<A>;
    using Suffix = LogcumsumexpSuffix<A>;

    static __device__ A ratio(A low, A high) { return low == high ? A(1) : exp_of(low, high); }

    static __device__ Prefix combine(const Prefix& l, const Prefix& r)
    {
        const bool right = r.m > l.m;
        const A f = ratio(right ? l.m : r.m, right ? r.m : l.m);
        return {right ? r.m : l.m, right ? r.s + l.s * f : l.s + r.s * f};
    }
    static __device__ Suffix combine(const Suffix& l, const Suffix& r)
    {
        if (l.m != l.m) return r;
        return {l.m, r.z == A(0) ? l.z : l.z + r.z * ratio(l.m, r.m)};
    }
    static __device__ A pad(const ScanArgs&) { return -A(INFINITY); }

    // One element: the next state; d = e^{x - m}, and e, the factor of the previous sum. Not
    // inlined: long and seldom run.
    struct Step {
        Prefix h;
        A d, e;
    };
    static __device__ __noinline__ Step step(Prefix h, A x)
    {
        const A m = fmax(h.m, x), d = x == -A(INFINITY) ? A(0) : ratio(x, m), e = ratio(h.m, m);
        return {{m, h.s * e + d}, d, e};
    }

    template <int I, int N, bool SEG>
    struct ThreadScan {
        // The least sum, relative to e^anchor, that is still accurate. For float64 the anchor is
        // kBelow lower, so that sums are at least 1.
        static constexpr A kSmall = A(0x1p-60);
        static constexpr A kBelow = sizeof(A) == 8 ? A(40) : A(0), kLeast = sizeof(A) == 8 ? A(1) : kSmall;
        A d[I], t[I], e[I];    // e^{x_i - anchor}, dy_i / S_i; without an anchor e_i as well
        A max_before, anchor;  // the largest x before the thread; the largest so far, or kBelow less
        bool anchored;

        __device__ void begin(const ScanArgs&) {}

        template <typename X>
        __device__ Prefix prefix(const X& x, unsigned segment_heads)
        {
            anchor = -A(INFINITY);
#pragma unroll
            for (int i = 0; i < I; ++i) anchor = fmax(anchor, x(i));
            const bool none = anchor == -A(INFINITY);
            const A base = none ? A(0) : anchor;
            A s = A(0);
#pragma unroll
            for (int i = 0; i < I; ++i) {
                if (SEG && segment_heads & 1u << i) s = A(0);
                s += exp_of(x(i), base);
            }
            const bool is_apart = APART && segment_heads >> 1;
            if (anchor < A(INFINITY) && !is_apart && (!SEG || none || s >= kSmall)) return {anchor, s};
            Prefix h = Prefix::identity();
#pragma unroll
            for (int i = 0; i < I; ++i) {
                if (SEG && segment_heads & 1u << i) h = Prefix::identity();
                h = step(h, x(i)).h;
            }
            return h;
        }

        template <typename X, typename Y>
        __device__ void enter(const Prefix& before, const X& x, const Y& y, unsigned segment_heads)
        {
            Prefix h = SEG && segment_heads & 1 ? Prefix::identity() : before;
            max_before = h.m;
            anchor = fmax(h.m, anchor) - kBelow;
            A s = h.s * ratio(h.m, anchor), least = s + exp_of(x(0), anchor);
            if (SEG) {
#pragma unroll
                for (int i = 1; i < I; ++i)
                    if (segment_heads & 1u << i) least = fmin(least, exp_of(x(i), anchor));
            }
            anchored = fabs(anchor) < A(INFINITY) && least >= kLeast && !(APART && segment_heads >> 1);
            if (anchored) {
#pragma unroll
                for (int i = 0; i < I; ++i) {
                    if (SEG && segment_heads & 1u << i) s = A(0);
                    d[i] = exp_of(x(i), anchor);
                    s += d[i];
                    t[i] = y(i) * inverse(s);
                }
                return;
            }
#pragma unroll
            for (int i = 0; i < I; ++i) {
                if (SEG && segment_heads & 1u << i) h = Prefix::identity();
                const Step next = step(h, x(i));
                h = next.h;
                d[i] = next.d;
                e[i] = next.e;
                t[i] = h.s == A(0) ? A(0) : y(i) / h.s;
            }
            anchor = h.m;
        }

        template <typename X, typename Y>
        __device__ Suffix suffix(const X&, const Y&, unsigned segment_heads) const
        {
            A z = A(0);
#pragma unroll
            for (int i = I - 1; i >= 0; --i) {
                z += t[i];
                if (!anchored) z *= e[i];
                if (SEG && segment_heads & 1u << i) z = A(0);
            }
            return {max_before, anchored ? z * ratio(max_before, anchor) : z};
        }

        template <typename X, typename Y, typename Store>
        __device__ void finish(const Suffix& after, const X&, const Y&, unsigned segment_heads, const Store& store)
        {
            A z = after.m != after.m ? A(0) : after.z;
            if (z != A(0)) z *= ratio(anchor, after.m);
#pragma unroll
            for (int c = I / N - 1; c >= 0; --c) {
                A dx[N];
#pragma unroll
                for (int v = N - 1; v >= 0; --v) {
                    const int i = c * N + v;
                    z += t[i];
                    dx[v] = d[i] * z;
                    if (!anchored) z *= e[i];
                    if (SEG && segment_heads & 1u << i) z = A(0);
                }
                store(c, dx);
            }
        }
    };
};
