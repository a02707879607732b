// cumprod for all inputs: w_i = E_i, c_i = x_i, E_{i+1} = E_i x_i. Products between threads have an
// extended range, so that none overflows or underflows unless its result does.
//
// Within a thread products and sums are plain numbers. A segment whose numbers may leave the range
// takes products of extended range for every element instead. No bit of a segment depends on
// another one.
#pragma once

#include "scan/kinds/cumprod_extended.cuh"

// The least and the largest of several magnitudes. NaN is ignored; other checks find it.
template <typename A>
struct MagnitudeRange {
    A least = INFINITY, most = 0;

    __device__ void add(A x) { least = fmin(least, fabs(x)), most = fmax(most, fabs(x)); }
    __device__ bool at_least(int low) const { return least >= power_of_two<A>(low); }
    __device__ bool at_most(int high) const { return most <= power_of_two<A>(high); }
};

// Compares exponents, in integer arithmetic. A NaN counts as huge.
template <>
struct MagnitudeRange<double> {
    unsigned least = ~0u, most = 0;

    __device__ void add(double x)
    {
        const unsigned high = static_cast<unsigned>(__double2hiint(x)) << 1;
        least = min(least, high);
        most = max(most, high);
    }
    static __device__ unsigned of(int k) { return static_cast<unsigned>(k + 1023) << 21; }
    __device__ bool at_least(int low) const { return least >= of(low); }
    __device__ bool at_most(int high) const { return most < of(high); }
};

// A product between threads as m 2^e.
template <typename A>
struct SplitProduct {
    A m;
    std::conditional_t<sizeof(A) == 8, i64, int> e;

    static __device__ SplitProduct of(Product<float> p)
    {
        const int e = exponent_of(p.v);
        if (e == 1024) return {static_cast<A>(p.v), 0};
        return {static_cast<A>(e == -1023 ? 0.0 : mantissa_of(p.v)), e};
    }
    static __device__ SplitProduct of(Product<double> p) { return {p.m, p.e}; }
};

template <typename A, bool EXACT>
struct FastCumprod;

template <typename A>
struct Cumprod : SameCarry<ProductSuffix<A>> {
    static constexpr bool NEEDS_PREFIX = true, SUFFIX_NEEDS_PREFIX = false, LONG_COMBINE = true, HAS_EXCLUSIVE = true,
                          FLOAT = sizeof(A) == 4;
    // Limits of plain numbers, as exponents: of products within a thread, of dy + Q within a
    // thread, of the Q that enters, and of the product before the thread. Within them nothing
    // overflows unless dx does, and underflow changes dx by 2^-129 (2^-1053) at most.
    static constexpr int kMinProductExp = FLOAT ? -40 : -320, kMaxProductExp = FLOAT ? 20 : 160,
                         kMaxSumExp = FLOAT ? 80 : 640, kMaxSuffixExp = kMaxProductExp, kMaxPrefixExp = 20;
    template <typename T>
    using FastPathFor = FastCumprod<A, (sizeof(T) > 2)>;
    using Tuning = CumprodTuning;
    using Number = A;
    using Value = A;
    using Prefix = Product<A>;
    using Suffix = ProductSuffix<A>;

    static __device__ Prefix combine(const Prefix& l, const Prefix& r) { return l * r; }
    static __device__ Suffix combine(const Suffix& l, const Suffix& r)
    {
        const Suffix t = {l.a * r.a, l.b + ieee_product(l.a, r.b)};
        return t.a.is_infinite_or_nan() || t.b.is_infinite_or_nan() ? composed<A>(l, r) : t;
    }
    static __device__ A pad(const ScanArgs&) { return A(1); }

    // The elements of a thread that are in segments whose products, or sums of y unless y is null,
    // leave the limits.
    static __device__ __noinline__ unsigned out_of_range(const A* x, const A* y, int n, unsigned segment_heads)
    {
        unsigned all = 0, segment = 0;
        bool is_out = false;
        A p = A(1);
#pragma unroll 1
        for (int i = 0; i < n; ++i) {
            if (segment_heads >> i & 1) segment = 0, is_out = false, p = A(1);
            p *= x[i];
            segment |= 1u << i;
            is_out = is_out || fabs(p) < power_of_two<A>(kMinProductExp) ||
                     fabs(p) > power_of_two<A>(kMaxProductExp);
            if (is_out) all |= segment;
        }
        if (!y) return all;
        segment = 0, is_out = false;
        A r = A(0);
#pragma unroll 1
        for (int i = n - 1; i >= 0; --i) {
            r = i == n - 1 || segment_heads >> (i + 1) & 1 ? y[i] : fma(x[i + 1], r, y[i]);
            segment |= 1u << i;
            is_out = is_out || fabs(r) > power_of_two<A>(kMaxSumExp);
            if (is_out) all |= segment;
            if (segment_heads >> i & 1) segment = 0, is_out = false;
        }
        return all;
    }

    // The product of n elements of a thread since their last segment head.
    static __device__ __noinline__ Prefix product_of(const A* x, int n, unsigned segment_heads)
    {
        Prefix p = Prefix::one();
#pragma unroll 1
        for (int i = 0; i < n; ++i) p = segment_heads >> i & 1 ? Prefix::of(x[i]) : p * Prefix::of(x[i]);
        return p;
    }

    // The dx of n elements of a thread, given the product before them and the Q that enters.
    static __device__ __noinline__ void extended_dx(
        Prefix w, Prefix q, const A* x, const A* y, A* dx, int n, unsigned segment_heads)
    {
        Prefix before[32];
#pragma unroll 1
        for (int i = 0; i < n; ++i) {
            before[i] = segment_heads >> i & 1 ? Prefix::one() : w;
            w = before[i] * Prefix::of(x[i]);
        }
#pragma unroll 1
        for (int i = n - 1; i >= 0; --i) {
            const Prefix r = Prefix::of(y[i]) + q;
            dx[i] = times(before[i], r).value();
            q = segment_heads >> i & 1 ? Prefix::zero() : times(Prefix::of(x[i]), r);
        }
    }

    template <int I, int N, bool SEG>
    struct ThreadScan {
        static_assert(I <= 32);
        A vector_product[I / N];  // of the elements of the segment before every N elements, in the thread
        Prefix product;           // since the last segment head
        SplitProduct<A> before;   // of everything before the thread
        unsigned extended;         // elements of segments that take products of extended range

        __device__ void begin(const ScanArgs&) {}

        static __device__ bool begins(unsigned segment_heads, int i) { return segment_heads & 1u << i; }

        template <typename X>
        __device__ Prefix prefix(const X& x, unsigned segment_heads)
        {
            A p = A(1), rounding_error = A(0);
            MagnitudeRange<A> range;
#pragma unroll
            for (int i = 0; i < I; ++i) {
                if (i % N == 0) vector_product[i / N] = p;
                if (begins(segment_heads, i)) p = A(1), rounding_error = A(0);
                const A q = p * x(i);
                if (!kIs16Bit<X>) rounding_error = fma(rounding_error, x(i), fma(p, x(i), -q));
                p = q;
                range.add(p);
            }
            extended = 0;
            product = sum(p, rounding_error);
            if (!range.at_least(kMinProductExp) || !range.at_most(kMaxProductExp)) {
                A xs[I];
#pragma unroll
                for (int i = 0; i < I; ++i) xs[i] = x(i);
                extended = out_of_range(xs, nullptr, I, segment_heads);
                if (extended >> (I - 1) & 1) product = product_of(xs, I, segment_heads);
            }
            return product;
        }

        static __device__ Prefix sum(A p, A rounding_error)
        {
            if constexpr (FLOAT)
                return {static_cast<double>(p) + rounding_error};
            else
                return Prefix::of(p + rounding_error);
        }

        template <typename X, typename Y>
        __device__ Suffix suffix(const X& x, const Y& y, unsigned segment_heads)
        {
            A r = A(0), most = A(0);
#pragma unroll
            for (int i = I - 1; i >= 0; --i) {
                r = i == I - 1 || begins(segment_heads, i + 1) ? y(i) : fma(x(i + 1), r, y(i));
                most = fmax(most, fabs(r));
            }
            const A b = begins(segment_heads, 0) ? A(0) : x(0) * r;
            if (most <= power_of_two<A>(kMaxSumExp) && !(extended & 1) && fabs(b) < A(INFINITY))
                return {segment_heads ? Prefix::zero() : product, Prefix::of(b)};
            A xs[I], ys[I];
#pragma unroll
            for (int i = 0; i < I; ++i) xs[i] = x(i);
#pragma unroll
            for (int i = 0; i < I; ++i) ys[i] = y(i);
            extended |= out_of_range(xs, ys, I, segment_heads);
            if (begins(segment_heads, 0) || (!(extended & 1) && fabs(b) < A(INFINITY)))
                return {segment_heads ? Prefix::zero() : product, Prefix::of(b)};
            return of_elements(xs, ys, I, segment_heads);
        }

        template <typename X, typename Y>
        __device__ void enter(const Prefix& all_before, const X&, const Y&, unsigned segment_heads)
        {
            before = SplitProduct<A>::of(all_before);
            if (fabs(before.m) == A(INFINITY) || before.e > kMaxPrefixExp) extended |= bits_below_lowest(segment_heads);
        }

        template <typename X, typename Y, typename Store>
        __device__ void finish(
            const Suffix& after, const X& x, const Y& y, unsigned segment_heads, const Store& store)
        {
            const Prefix carry_in = after.at_zero();
            A t = carry_in.value(), results[I];
            const unsigned last_segment = segment_heads ? ~0u << (31 - __clz(segment_heads)) : ~0u;
            if (fabs(t) > power_of_two<A>(kMaxSuffixExp)) extended |= last_segment;
            if (extended) {
                A xs[I], ys[I];
#pragma unroll
                for (int i = 0; i < I; ++i) xs[i] = x(i);
#pragma unroll
                for (int i = 0; i < I; ++i) ys[i] = y(i);
                extended_dx(product_before(), carry_in, xs, ys, results, I, segment_heads);
            }
            // The product before the thread, in two factors, the last of which makes numbers
            // subnormal.
            constexpr int least = FLOAT ? -126 : -1022;
            const auto limited = before.e < 2 * least ? 2 * least : before.e > kMaxPrefixExp ? kMaxPrefixExp : before.e;
            const int e = static_cast<int>(limited);
            const A carry = before.m * power_of_two<A>(max(e, least)), scale = power_of_two<A>(min(e - least, 0));
            const unsigned preceding = bits_below_lowest(segment_heads);
#pragma unroll
            for (int c = I / N - 1; c >= 0; --c) {
                A w[N], dx[N], p = vector_product[c];
#pragma unroll
                for (int i = 0; i < N; ++i) {
                    if (begins(segment_heads, c * N + i)) p = A(1);
                    w[i] = p;
                    p *= x(c * N + i);
                }
#pragma unroll
                for (int i = N - 1; i >= 0; --i) {
                    const int k = c * N + i;
                    const A r = y(k) + t;
                    dx[i] = w[i] * r;
                    if (preceding & 1u << k) dx[i] = dx[i] * carry * scale;
                    t = begins(segment_heads, k) ? A(0) : x(k) * r;
                    if (extended & 1u << k) dx[i] = results[k];
                }
                store(c, dx);
            }
        }

        __device__ Prefix product_before() const
        {
            if constexpr (FLOAT)
                return {static_cast<double>(before.m) * power_of_two<double>(before.e)};
            else
                return Prefix::of(before.m, before.e);
        }
    };
};
