// logcumsumexp:  w = e^{x_i - y_i}, c = e^{y_{i-1} - y_i}
#pragma once

#include "scan/state/prefix_suffix.cuh"

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

// To a place of itself: also what x - from loses, which is the more the farther they are apart, is given back.
__device__ __noinline__ inline double exp_of(double x, double from)
{
    const double d = x - from, part = d - x, lost = (x - (d - part)) - (from + part), e = exp(d), rest = e * lost;
    return rest - rest == 0.0 ? e + rest : e;
}

__device__ inline float inverse(float s)  // a normal number or NaN
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
constexpr bool kHolds<Logcumsumexp<A>> = true;
