// cumprod of rows that are as most are: states are one or two numbers, joined by as many instructions. Whether a row is one shows on the way.
//
// A product of n numbers has n - 1 roundings, however it is joined; most of them are in threads. EXACT, which short results need not be,
// keeps what those took: the first of them is left out at the end.
#pragma once

#include "scan/kinds/cumprod.cuh"

// x 2^e, rounded once, where e is no large exponent; 0 where it is a far one.
template <typename A>
__device__ A scaled(A x, int e)
{
    constexpr int far = sizeof(A) == 4 ? -254 : -2046;
    const int all = max(e, far), half = all >> 1;
    return x * power_of_two<A>(half) * power_of_two<A>(all - half);
}

constexpr int kNone = -(1 << 29);  // the exponent of 0: nothing brings it back

// A product of threads, m * 2^e, so that it does not leave the range however many they are: |m| is from 1 to 2.
template <typename A>
struct Factor {
    A m;
    int e;

    static __device__ Factor one() { return {A(1), 0}; }

    // Of 0, or of what is not less than normal.
    static __device__ Factor of(A product, A rest = A(0))
    {
        product += rest;
        const int e = exponent_of(product);
        return {mantissa_of(product), e == exponent_of(A(0)) ? kNone : e};
    }

    __device__ A value() const { return scaled(m, e); }
    __device__ A apply(A x) const { return value() * x; }
    __device__ Factor operator*(const Factor& r) const
    {
        Factor all = {m * r.m, max(e + r.e, kNone)};
        if (fabs(all.m) >= A(2)) all.m *= A(0.5), ++all.e;
        return all;
    }
};

// In float64, where results are as long as it is, it goes on keeping what roundings took.
template <>
struct Factor<double> {
    double m;
    float rest;
    int e;

    static __device__ Factor one() { return {1.0, 0.0f, 0}; }
    static __device__ Factor of(double product, double rest = 0.0)
    {
        const int e = exponent_of(product);
        return {mantissa_of(product), static_cast<float>(rest * power_of_two<double>(-e)), e == exponent_of(0.0) ? kNone : e};
    }

    __device__ double value() const { return scaled(m + rest, e); }
    __device__ double apply(double x) const { return fma(scaled(m, e), x, scaled(static_cast<double>(rest), e) * x); }
    __device__ Factor operator*(const Factor& r) const
    {
        const double p = m * r.m, lost = fma(m, static_cast<double>(r.rest), fma(static_cast<double>(rest), r.m, fma(m, r.m, -p)));
        Factor all = {p, static_cast<float>(lost), max(e + r.e, kNone)};
        if (fabs(p) >= 2.0) all.m *= 0.5, all.rest *= 0.5f, ++all.e;
        return all;
    }
};

// The product of n elements since their last start, however small it is.
template <typename A, typename T>
__device__ __noinline__ Factor<A> product_of(const T* x, int apart, int n, unsigned starts)
{
    constexpr int up = sizeof(A) == 4 ? 127 : 1023;
    Factor<A> all = Factor<A>::one();
#pragma unroll 1
    for (int i = 0; i < n; ++i, x += apart, starts >>= 1) {
        if (starts & 1) all = Factor<A>::one();
        const A one = widen<A>(*x);
        const bool small = exponent_of(one) == -up;  // less than normal
        Factor<A> next = Factor<A>::of(small ? one * power_of_two<A>(up) : one);
        if (small) next.e -= up;
        all = all * next;
    }
    return all;
}

// The least and the largest of some magnitudes. What is no number is left to others.
template <typename A>
struct Extent {
    A least = INFINITY, most = 0;

    __device__ void add(A x) { least = fmin(least, fabs(x)), most = fmax(most, fabs(x)); }
    __device__ bool from(int low) const { return least >= power_of_two<A>(low); }
    __device__ bool to(int high) const { return most <= power_of_two<A>(high); }
};

// By exponents.
template <>
struct Extent<double> {
    unsigned least = ~0u, most = 0;

    __device__ void add(double x)
    {
        const unsigned high = static_cast<unsigned>(__double2hiint(x)) << 1;
        least = min(least, high), most = max(most, high);
    }
    static __device__ unsigned of(int k) { return static_cast<unsigned>(k + 1023) << 21; }
    __device__ bool from(int low) const { return least >= of(low); }
    __device__ bool to(int high) const { return most < of(high); }
};

// Q -> a Q + b.
template <typename A>
struct TameProductTail {
    A a, b;
};

// A row is done if, in each of its threads, its numbers stay in range, or are moderate.
//
// In range: products from the start of the row and of a thread to any of their elements are far from the ends of the range, so that those of
// what lies between, which are quotients of two of them, are within it.
//
// Moderate: x, dy, R and L, from the start of the row and of a thread on, are not great. Then products may be as small as they like: L has an
// exponent of its own between threads, and what is less than the range loses 2^-149 of what it is multiplied by, L R, which is at most 2^85.
// That is small beside the first dx of the row, which is not small.
template <typename A, bool EXACT>
struct TameCumprod : SameTail<TameProductTail<A>> {
    static constexpr bool HEAD = true, ORDERED = false, TWO_WAYS = true, FLOAT = sizeof(A) == 4;
    // Exponents of products in range: in a thread, of threads.
    static constexpr int kLow = FLOAT ? -42 : -320, kHigh = FLOAT ? 18 : 192, kLowest = FLOAT ? -80 : -600, kHighest = FLOAT ? 40 : 400;
    // Below it the product of a thread is found anew; the same where its end alone is known, or those of four chains.
    static constexpr int kDeep = FLOAT ? -126 : -1022, kEnd = !FLOAT ? -480 : EXACT ? -60 : -31;
    // What is moderate: an exponent of L of threads; x, dy, R at every fourth element at least, and the first dx.
    static constexpr int kRaised = FLOAT ? 26 : 150;
    static constexpr A kSteep = FLOAT ? A(8) : A(0x1p32), kGreat = FLOAT ? A(0x1p18) : A(0x1p200), kRight = FLOAT ? A(0x1p29) : A(0x1p230);
    static constexpr A kFirst = FLOAT ? A(0x1p-40) : A(0x1p-300);
    using Number = A;
    using Value = A;
    using Head = Factor<A>;
    using Tail = TameProductTail<A>;

    static __device__ Head empty() { return Head::one(); }
    static __device__ Tail nothing() { return {A(1), A(0)}; }
    static __device__ Head join(const Head& l, const Head& r) { return l * r; }
    static __device__ Tail join(const Tail& l, const Tail& r) { return {l.a * r.a, fma(l.a, r.b, l.b)}; }
    static __device__ A pad(const ScanArgs&) { return A(1); }
    static __device__ unsigned faults(const Head& h) { return h.e >= kLowest && h.e < kHighest ? 0 : kLeavesRange; }

    template <int I, int N, bool SEG>
    struct Cell {
        A chunk[I / N];  // the product of what precedes every N elements: in the thread, then in the row
        Head product;    // since the last start
        unsigned faults;

        __device__ void begin(const ScanArgs&) {}

        // The product since the last start where one on the way is next to nothing.
        template <typename X>
        static __device__ Head deep_product(const X& x, unsigned starts)
        {
            if (x.some_zero(SEG && starts ? 31 - __clz(starts) : 0)) return Head::of(A(0));
            return x.apart([=](const auto* first, int apart) { return product_of<A>(first, apart, I, SEG ? starts : 0); });
        }

        // Whether its elements are tame is left to the walk that finds tails.
        template <typename X>
        __device__ Head head(const X& x, unsigned)
        {
            static_assert(!SEG);
            constexpr int CHAINS = EXACT ? 1 : 4;  // so that none is long
            faults = x.beyond(kSteep) ? kExtreme : 0;
            A p[CHAINS], rest = A(0);
#pragma unroll
            for (int i = 0; i < I; ++i) {
                A& chain = p[i % CHAINS];
                const A q = i < CHAINS ? x(i) : chain * x(i);
                if (EXACT && i > 0) rest = fma(rest, x(i), fma(chain, x(i), -q));
                chain = q;
            }
            A least = fabs(p[0]);
#pragma unroll
            for (int k = 1; k < CHAINS; ++k) least = fmin(least, fabs(p[k]));
            if (faults || !(least >= power_of_two<A>(kEnd))) return deep_product(x, 0);
            if constexpr (EXACT)
                return Head::of(p[0], rest);
            else
                return Head::of((p[0] * p[1]) * (p[2] * p[3]));
        }

        // Finds the head on the way: Q -> sum_i p_i dy_i + p Q, where p_i are the products so far, up to the first start.
        template <typename X, typename Y>
        __device__ Tail tail(const X& x, const Y& y, unsigned starts)
        {
            A p = A(1), rest = A(0), sum = A(0);
            Extent<A> extent;
            const unsigned ahead = ahead_of(starts);
#pragma unroll
            for (int i = 0; i < I; ++i) {
                if (i % N == 0) chunk[i / N] = p;
                if (SEG && starts & 1u << i) p = A(1), rest = A(0);
                const A q = i == 0 ? x(i) : p * x(i);
                if (EXACT && i > 0) rest = fma(rest, x(i), fma(p, x(i), -q));
                p = q;
                extent.add(p);
                if (!SEG || ahead & 1u << i) sum = fma(p, y(i), sum);
            }
            faults = !extent.to(kHigh) ? kUndone : extent.from(kLow) ? 0 : kLeavesRange;
            product = Head::of(p, rest);
            if (extent.from(kDeep)) return {p + rest, sum};
            product = deep_product(x, starts);
            return {product.value(), sum};
        }

        template <typename X, typename Y>
        __device__ void enter(const Head& before, const X&, const Y& y, unsigned starts)
        {
            faults |= TameCumprod::faults(before) | (y.beyond(kGreat) || before.e > kRaised ? kExtreme : 0);
            const unsigned ahead = ahead_of(starts);
#pragma unroll
            for (int c = 0; c < I / N; ++c)
                if (!SEG || c == 0 || ahead & 1u << (c * N - 1)) chunk[c] = before.apply(chunk[c]);
        }

        // Whether a row begins with a dx that is 0 or next to it.
        template <typename DX>
        static __device__ bool begins_small(const DX& dx, unsigned starts)
        {
            bool some = false;
#pragma unroll
            for (int i = 0; i < I; ++i) some = some || (starts & 1u << i && fabs(dx(i)) < kFirst);
            return some;
        }

        template <typename X, typename Y, typename Store>
        __device__ void finish(const Tail& after, const X& x, const Y& y, unsigned starts, const Store& store)
        {
            A t = after.b, first = A(0), right = fabs(t);
#pragma unroll
            for (int c = I / N - 1; c >= 0; --c) {
                A w[N], dx[N], p = chunk[c];
#pragma unroll
                for (int i = 0; i < N; ++i) {
                    if (SEG && starts & 1u << (c * N + i)) p = A(1);
                    w[i] = p;
                    p *= x(c * N + i);
                }
#pragma unroll
                for (int i = N - 1; i >= 0; --i) {
                    const A r = y(c * N + i) + t;
                    dx[i] = w[i] * r;
                    t = x(c * N + i) * r;
                    if (i % 4 == 0) right = fmax(right, fabs(t));
                    if (!SEG && c == 0) first = fmax(first, fabs(dx[i]));
                    if (SEG && starts & 1u << (c * N + i)) t *= A(0);  // what is no number stays so
                }
                store(c, dx);
            }
            if (x.beyond(kSteep) || !(right <= kRight) || (!SEG && starts && first < kFirst)) faults |= kExtreme;
            if (!(t * A(0) == A(0))) faults = kUndone;
        }
    };
};

template <typename A, typename T>
struct TameOf<Cumprod<A>, T> {
    using Kind = TameCumprod<A, (sizeof(T) > 2)>;
};
template <typename A, bool EXACT>
constexpr bool kTame<TameCumprod<A, EXACT>> = true;
template <typename A, bool EXACT>
constexpr bool kTogether<TameCumprod<A, EXACT>> = true;
