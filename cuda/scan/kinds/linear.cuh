// Linear recurrences, in scan order h[t] = a[t] h[t-1] + b[t], and their gradients
//
//     g[t] = dh[t] + u[t+1]    u[t] = a[t] g[t]    db[t] = g[t]    da[t] = g[t] h[t-1]
//
// where u is the gradient of the state before a position. Both are kinds without a prefix: their
// suffix is the map of the state that enters elements on the right, which is h for the recurrence,
// whose positions run against scan order (forward.cuh), and u for the gradient. x is a; y is b, or
// dh.
#pragma once

#include "scan/kinds/cumprod_extended.cuh"

// State -> m 2^e state + b, where m is 0, an infinity, NaN, or has 1 <= |m| < 2. The factor of many
// elements leaves the range of float64 long before states do.
template <typename A>
struct LinearMap {
    using Exponent = std::conditional_t<sizeof(A) == 8, i64, int>;  // without padding after it

    double m;
    A b;
    Exponent e;

    static constexpr Exponent kMost = 1 << 29;  // exponents are clamped: sums of two fit an int

    static __device__ LinearMap identity() { return {1.0, A(0), 0}; }

    // Precondition: m is 0, infinite, NaN or normal.
    __device__ void normalize()
    {
        const int f = exponent_of(m);
        const bool is_normal = f != -1023 && f != 1024;
        e = is_normal ? max(min(e + f, kMost), -kMost) : 0;
        m = is_normal ? mantissa_of(m) : m;
    }

    // The state after the map. Products in float64 are exact for float32 states; a state of float64
    // is scaled in two steps, so that no power of two leaves the range.
    __device__ A operator()(A state) const
    {
        A sum;
        if constexpr (sizeof(A) == 4) {
            sum = static_cast<A>(m * state * power_of_two<double>(max(min(e, 600), -600)) + b);
        } else {
            const int k = static_cast<int>(max(min(e, Exponent(2040)), Exponent(-2040))), half = k / 2;
            sum = fma(m * power_of_two<double>(half), state * power_of_two<double>(k - half), b);
        }
        return m == 0.0 ? b : sum;
    }
};

// The element of a row in a state. The host refuses rows that 32 bits do not number: a 64-bit
// division is a call, which spills registers.
__device__ inline i64 state_offset(const ScanArgs& args, const Strided& state, i64 row)
{
    if (args.dims <= 1) return state.first + row * state.stride[0];
    i64 offset = state.first;
    unsigned index = static_cast<unsigned>(row);
#pragma unroll 1
    for (int d = 0; d < args.dims; ++d) {
        const unsigned extent = static_cast<unsigned>(args.extent[d]), rest = index / extent;
        offset += (index - rest * extent) * state.stride[d];
        index = rest;
    }
    return offset;
}

// The state of a row, of type A or of the type S of elements.
template <typename A, typename S>
__device__ A load_state(const ScanArgs& args, const Strided& state, i64 row, bool is_wide)
{
    const i64 at = state_offset(args, state, row);
    return is_wide ? reinterpret_cast<const A*>(state.data)[at]
                   : widen<A>(reinterpret_cast<const S*>(state.data)[at]);
}

template <typename A, typename S>
__device__ void store_state(const ScanArgs& args, const Strided& to, i64 row, bool is_wide, A state)
{
    const i64 at = state_offset(args, to, row);
    if (is_wide)
        reinterpret_cast<A*>(to.data)[at] = state;
    else
        reinterpret_cast<S*>(to.data)[at] = static_cast<S>(state);
}

// Not inlined where a thread has a state for each of its elements.
template <typename A, typename S>
__device__ __noinline__ A load_some_state(const ScanArgs& args, const Strided& state, i64 row, bool is_wide)
{
    return load_state<A, S>(args, state, row, is_wide);
}
template <typename A, typename S>
__device__ __noinline__ void store_some_state(const ScanArgs& args, const Strided& to, i64 row, bool is_wide, A state)
{
    store_state<A, S>(args, to, row, is_wide, state);
}

template <typename A, bool GRADIENT>
struct Linear : SameCarry<LinearMap<A>> {
    static constexpr bool NEEDS_PREFIX = false, SUFFIX_NEEDS_PREFIX = false, IS_FORWARD = true, HAS_SEQUENCES = true,
                          HAS_TWO_RESULTS = GRADIENT;
    using Args = LinearArgs;
    using Tuning = std::conditional_t<GRADIENT, LinearBackwardTuning, LinearTuning>;
    using Number = A;
    using Value = A;
    using Prefix = NoPrefix;
    using Suffix = LinearMap<A>;

    static __device__ A pad(const ScanArgs&) { return A(1); }

    // The right map first.
    static __device__ Suffix combine(const Suffix& l, const Suffix& r)
    {
        const double m = l.m == 0.0 || r.m == 0.0 ? 0.0 : l.m * r.m;
        const bool is_two = fabs(m) >= 2.0;  // a product of two numbers from 1 to 2
        const auto e = l.e + r.e + is_two;
        return {is_two ? m * 0.5 : m, l(r.b), max(min(e, Suffix::kMost), -Suffix::kMost)};
    }

    // The state after an element.
    static __device__ A step(A x, A y, A state)
    {
        if (GRADIENT) return x == A(0) ? A(0) : x * (y + state);
        return x == A(0) ? y : fma(x, state, y);
    }

    // Where states enter and leave. Elements that do not exist pass states on, so without SEG the
    // state enters before the last element of a thread, and leaves after the first.
    template <int I, int N, bool SEG>
    struct ThreadScan {
        static_assert(I <= 32);
        const LinearArgs* args;
        // Bits of elements: those at the first and the last position of a row of the kernel. States
        // leave at heads and enter at tails.
        unsigned heads, tails;
        i64 row;     // of element 0
        i64 offset;  // SEG: elements of the row, and of rows before it in the warp, before element 0
        A before;    // gradient: h of the element before element 0

        __device__ void begin(const ScanArgs& a) { args = &static_cast<const LinearArgs&>(a); }

        static __device__ unsigned bit_at(i64 i) { return i >= 0 && i < I ? 1u << i : 0; }
        // Element 0 has this position in a row.
        __device__ void locate(i64 in_row, i64 position)
        {
            row = in_row;
            heads = bit_at(-position);
            tails = bit_at(args->n - 1 - position);
        }
        __device__ i64 row_of(int i) const { return SEG ? row + (offset + i) / static_cast<int>(args->n) : row; }

        template <typename S>
        __device__ A load(const Strided& state, int i, bool is_wide) const
        {
            return SEG ? load_some_state<A, S>(*args, state, row_of(i), is_wide)
                       : load_state<A, S>(*args, state, row, is_wide);
        }

        // Without an initial state the first decay is not applied: as a factor of 0 it also stops
        // NaN.
        __device__ unsigned without_decay() const { return GRADIENT || args->state_in.data ? 0 : tails; }

        // The state that enters the row of element i. Without one it is 0.
        template <typename S>
        __device__ A state_in(int i) const
        {
            return args->state_in.data
                       ? load<S>(args->state_in, i, args->flags & kStateInWide)
                       : A(0);
        }
        template <typename S>
        __device__ void store_out(int i, A state) const
        {
            if (!args->state_out.data) return;
            const bool is_wide = args->flags & kStateOutWide;
            if (SEG)
                store_some_state<A, S>(*args, args->state_out, row_of(i), is_wide, state);
            else
                store_state<A, S>(*args, args->state_out, row, is_wide, state);
        }
        // h before the first position of a row, with an initial state.
        template <typename S>
        __device__ A initial(int i) const
        {
            return load<S>(args->initial, i, args->flags & kInitialWide);
        }

        template <typename X, typename Y>
        __device__ Suffix suffix(const X& x, const Y& y, unsigned) const
        {
            return SEG && args->state_in.data ? map<true>(x, y) : map<false>(x, y);
        }

        template <bool HAS_STATE_IN, typename X, typename Y>
        __device__ Suffix map(const X& x, const Y& y) const
        {
            using S = typename X::Stored;
            constexpr int REACH = sizeof(A) == 4 ? 4 : 1;  // factors whose product stays in the range of float64
            Suffix all = Suffix::identity();
            bool resets = tails != 0;
            if (!SEG && tails) all.b = state_in<S>(0);
#pragma unroll
            for (int i = I - 1; i >= 0; --i) {
                const A factor = x(i);
                if (SEG && tails >> i & 1) all.b = HAS_STATE_IN ? state_in<S>(i) : A(0);
                resets = resets || factor == A(0);
                all.b = step(factor, y(i), all.b);
                if constexpr (REACH == 1) {
                    Suffix one = {factor, A(0), 0};
                    if (fabs(factor) < A(0x1p-1022)) one = {factor * 0x1p64, A(0), -64};
                    one.normalize();
                    all.m *= one.m, all.e += one.e;
                } else {
                    all.m *= factor;
                }
                if (i % REACH == 0) all.normalize();
            }
            if (resets) all.m = 0.0, all.e = 0;
            return all;
        }

        // Calls store(c, results of elements c * N ..), of a gradient store(c, db, da). z(i) is h
        // of an element.
        template <typename X, typename Y, typename Store, typename Z = int>
        __device__ void finish(
            const Suffix& after, const X& x, const Y& y, unsigned, const Store& store, const Z& z = Z()) const
        {
            if (SEG && (args->state_in.data || args->state_out.data || args->initial.data))
                apply<true>(after.b, x, y, z, store);
            else
                apply<false>(after.b, x, y, z, store);
        }

        // STATES: of SEG, whether any state enters or leaves rows.
        template <bool STATES, typename X, typename Y, typename Z, typename Store>
        __device__ void apply(A state, const X& x, const Y& y, const Z& z, const Store& store) const
        {
            using S = typename X::Stored;
            const bool has_initial = (!SEG || STATES) && args->initial.data;
            A h_before = before;
            const int first = __ffs(heads) - 1;
            if (!SEG && tails) state = state_in<S>(0);
            if (GRADIENT && !SEG && heads && has_initial) h_before = initial<S>(0);
#pragma unroll
            for (int c = I / N - 1; c >= 0; --c) {
                A result[N], second[N];
#pragma unroll
                for (int v = N - 1; v >= 0; --v) {
                    const int i = c * N + v;
                    if (SEG && tails >> i & 1) state = STATES ? state_in<S>(i) : A(0);
                    if constexpr (GRADIENT) {
                        const bool is_first = SEG ? heads >> i & 1 : i == first;
                        result[v] = y(i) + state;
                        A h = i == 0 || !SEG && is_first ? h_before : z(i - 1);
                        if (SEG && STATES && is_first && has_initial) h = initial<S>(i);
                        second[v] = is_first && !has_initial ? A(0) : result[v] * h;
                    }
                    state = step(x(i), y(i), state);
                    if constexpr (!GRADIENT) result[v] = state;
                    if (SEG && STATES && heads >> i & 1) store_out<S>(i, state);
                }
                if constexpr (GRADIENT)
                    store(c, result, second);
                else
                    store(c, result);
            }
            if (!SEG && heads) store_out<S>(0, state);
        }
    };
};

template <typename A>
using LinearForward = Linear<A, false>;
template <typename A>
using LinearBackward = Linear<A, true>;
