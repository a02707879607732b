// logcumsumexp:  w = e^{x_i - y_i}, c = e^{y_{i-1} - y_i}
#pragma once

#include "scan.cuh"

constexpr float kLog2e = 1.44269504f;

// e^{x - from}: to a few places in 2^-23 of itself for a difference that is no far exponent, 0 below e^-87; the rest of the product with
// log2 e is given back at the end.
__device__ inline float exp_of(float x, float from)
{
    x -= from;
    asm("max.NaN.f32 %0, %0, 0fC3160000;" : "+f"(x));  // -150
    const float power = x * kLog2e, rest = fmaf(power, -0x1.62e43p-1f, x);
    float e;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(e) : "f"(power));
    return fmaf(e, fmaf(power, 0x1.05c610p-29f, rest), e);
}

// The same also where the difference is a far exponent: what it loses is given back. NaN where it is infinite.
__device__ inline float exact_exp_of(float x, float from)
{
    asm("max.NaN.f32 %0, %0, %1;" : "+f"(x) : "f"(from - 150.0f));
    const float d = x - from, part = d - x, lost = (x - (d - part)) - (from + part);
    const float power = d * kLog2e, rest = fmaf(power, -0x1.62e43p-1f, d) + lost;
    float e;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(e) : "f"(power));
    return fmaf(e, fmaf(power, 0x1.05c610p-29f, rest), e);
}

// To a place of itself: also what x - from loses, which is the more the farther they are apart, is given back.
__device__ __noinline__ inline double exp_of(double x, double from)
{
    const double d = x - from, part = d - x, lost = (x - (d - part)) - (from + part), e = exp(d), rest = e * lost;
    return rest - rest == 0.0 ? e + rest : e;
}

__device__ inline double exact_exp_of(double x, double from) { return exp_of(x, from); }

// e^x / 2^from, of what is no far exponent: to |x| places in 2^-24 of itself, which short results do not show.
__device__ inline float rough_exp_of(float x, float from)
{
    float e;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(e) : "f"(fmaf(x, kLog2e, -from)));
    return e;
}

__device__ inline float inverse(float s)  // a normal number or NaN
{
    float r;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(s));
    return r;
}
__device__ inline double inverse(double s) { return 1.0 / s; }

template <typename A>
struct LogcumsumexpHead {
    A m, s;  // the largest x, and the sum of e^{x - m}; its number if m is +inf, 0 if m is -inf
};

template <typename A>
struct LogcumsumexpTail {
    A m, z;  // z = sum dy_i e^{m - y_i}, where m is the largest x before these elements; NaN: nothing yet
};

// Within a thread all exponentials have one anchor: S_i = sum_{j<=i} e^{x_j - anchor}, and dx_k = e^{x_k - anchor} Z_k with
// Z_k = sum_{i>=k} dy_i / S_i, so that errors do not build up along the row. Between threads, Z is relative to the largest x so far.
// A thread that has no anchor near all its sums takes the largest x so far for each element:
//     S_i = S_{i-1} e_i + e^{x_i - m_i},  Z_k = dy_k / S_k + e_{k+1} Z_{k+1},  e_i = e^{m_{i-1} - m_i}
template <typename A>
struct Logcumsumexp : SameTail<LogcumsumexpTail<A>> {
    static constexpr bool HEAD = true, ORDERED = true;
    using Number = A;
    using Value = A;
    using Head = LogcumsumexpHead<A>;
    using Tail = LogcumsumexpTail<A>;

    static __device__ A ratio(A low, A high) { return low == high ? A(1) : exp_of(low, high); }

    static __device__ Head empty() { return {-A(INFINITY), A(0)}; }
    static __device__ Head join(const Head& l, const Head& r)
    {
        const bool right = r.m > l.m;
        const A f = ratio(right ? l.m : r.m, right ? r.m : l.m);
        return {right ? r.m : l.m, right ? r.s + l.s * f : l.s + r.s * f};
    }
    static __device__ Tail nothing() { return {A(NAN), A(0)}; }
    static __device__ Tail join(const Tail& l, const Tail& r)
    {
        if (l.m != l.m) return r;
        return {l.m, r.z == A(0) ? l.z : l.z + r.z * ratio(l.m, r.m)};
    }
    static __device__ A pad(const ScanArgs&) { return -A(INFINITY); }

    // The next largest x, and the sum; e^{x - m}, and what the last sum is multiplied by. A call, for it is long and seldom needed.
    struct Step {
        Head h;
        A d, e;
    };
    static __device__ __noinline__ Step step(Head h, A x)
    {
        const A m = fmax(h.m, x), d = x == -A(INFINITY) ? A(0) : ratio(x, m), e = ratio(h.m, m);
        return {{m, h.s * e + d}, d, e};
    }

    template <int I, int N, bool SEG>
    struct Cell {
        static constexpr A kSmall = A(0x1p-60);  // of the anchor's exponential; double has the range to stay above 1
        static constexpr A kBelow = sizeof(A) == 8 ? A(40) : A(0), kLeast = sizeof(A) == 8 ? A(1) : kSmall;
        A d[I], t[I], e[I];  // e^{x_i - anchor}, dy_i / S_i; without an anchor e_i as well
        A first, anchor;     // the largest x before; that so far, or kBelow under it
        bool anchored;

        __device__ void begin(const ScanArgs&) {}

        template <typename X>
        __device__ Head head(const X& x, unsigned starts)
        {
            anchor = -A(INFINITY);
#pragma unroll
            for (int i = 0; i < I; ++i) anchor = fmax(anchor, x(i));
            const bool none = anchor == -A(INFINITY);
            const A base = none ? A(0) : anchor;
            A s = A(0);
#pragma unroll
            for (int i = 0; i < I; ++i) {
                if (SEG && starts & 1u << i) s = A(0);
                s += exp_of(x(i), base);
            }
            if (anchor < A(INFINITY) && (!SEG || none || s >= kSmall)) return {anchor, s};
            Head h = empty();
#pragma unroll
            for (int i = 0; i < I; ++i) {
                if (SEG && starts & 1u << i) h = empty();
                h = step(h, x(i)).h;
            }
            return h;
        }

        template <typename X, typename Y>
        __device__ void enter(const Head& before, const X& x, const Y& y, unsigned starts)
        {
            Head h = SEG && starts & 1 ? empty() : before;
            first = h.m;
            anchor = fmax(h.m, anchor) - kBelow;
            A s = h.s * ratio(h.m, anchor), least = s + exp_of(x(0), anchor);
            if (SEG) {
#pragma unroll
                for (int i = 1; i < I; ++i)
                    if (starts & 1u << i) least = fmin(least, exp_of(x(i), anchor));
            }
            anchored = fabs(anchor) < A(INFINITY) && least >= kLeast;
            if (anchored) {
#pragma unroll
                for (int i = 0; i < I; ++i) {
                    if (SEG && starts & 1u << i) s = A(0);
                    d[i] = exp_of(x(i), anchor);
                    s += d[i];
                    t[i] = y(i) * inverse(s);
                }
                return;
            }
#pragma unroll
            for (int i = 0; i < I; ++i) {
                if (SEG && starts & 1u << i) h = empty();
                const Step next = step(h, x(i));
                h = next.h, d[i] = next.d, e[i] = next.e;
                t[i] = h.s == A(0) ? A(0) : y(i) / h.s;
            }
            anchor = h.m;
        }

        template <typename X, typename Y>
        __device__ Tail tail(const X&, const Y&, unsigned starts) const
        {
            A z = A(0);
#pragma unroll
            for (int i = I - 1; i >= 0; --i) {
                z += t[i];
                if (!anchored) z *= e[i];
                if (SEG && starts & 1u << i) z = A(0);
            }
            return {first, anchored ? z * ratio(first, anchor) : z};
        }

        template <typename X, typename Y, typename Store>
        __device__ void finish(const Tail& after, const X&, const Y&, unsigned starts, const Store& store)
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
                    if (SEG && starts & 1u << i) z = A(0);
                }
                store(c, dx);
            }
        }
    };
};

template <typename A>
struct TameLogcumsumexpTail {
    A z;
};

// logcumsumexp of rows without an x far above the first one. All exponentials are taken from a place above that, o = x_0 + c, so that
// there is as much room above it as below: S_i = sum_{j<=i} e^{x_j - o} and dx_k = e^{x_k - o} sum_{i>=k} dy_i / S_i, states are plain sums.
template <typename A, bool EXACT>
struct TameLogcumsumexp : SameTail<TameLogcumsumexpTail<A>> {
    static constexpr bool HEAD = true, ORDERED = true, FALLS = false;
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

    template <int I, int N, bool SEG>
    struct Cell {
        static constexpr bool DOUBLE = sizeof(A) == 8;
        static constexpr A kAbove = DOUBLE ? A(277) : EXACT ? A(39) : A(56);  // c; where !EXACT in powers of two
        static constexpr A kMost = DOUBLE ? A(0x1p300) : A(0x1p40), kTiny = DOUBLE ? A(0x1p-800) : A(0x1p-100);
        static constexpr A kFar = DOUBLE ? A(0x1p900) : A(0x1p90);  // no number of threads adds such tails up to infinity
        A d[I], t[I];  // e^{x_i - o}, dy_i / S_i
        A base;        // x_0, of the first row of the thread
        unsigned faults;

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
            const auto origin = [](A x) { return EXACT ? x + kAbove : fma(x, A(kLog2e), kAbove); };
            A from = origin(base);
#pragma unroll
            for (int i = 0; i < I; ++i) {
                if (SEG && starts & 1u << i) from = origin(x(i));
                if constexpr (EXACT)
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
        __device__ void finish(const Tail& after, const X&, const Y&, unsigned starts, const Store& store)
        {
            A z = after.z, wrong = A(0);
#pragma unroll
            for (int c = I / N - 1; c >= 0; --c) {
                A dx[N];
#pragma unroll
                for (int v = N - 1; v >= 0; --v) {
                    const int i = c * N + v;
                    z += t[i];
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
constexpr bool kHolds<Logcumsumexp<A>> = true;
