// Linear recurrences, in scan order h[t] = a[t] h[t-1] + b[t], and their gradients
//
//     g[t] = dh[t] + u[t+1]    u[t] = a[t] g[t]    db[t] = g[t]    da[t] = g[t] h[t-1]
//
// where u is the gradient of the state before a position. Both are kinds without a prefix: their
// suffix is the map of the state that enters elements on the right, which is h for the recurrence,
// whose positions run against scan order (forward.cuh), and u for the gradient. x is a; y is b, or
// dh. A kind with one factor for all elements of a row reads it in place of x.
#pragma once

#include "scan/kinds/cumprod_extended.cuh"
#include "scan/kinds/linear_states.cuh"
#include "scan/state/heads.cuh"

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
    // is scaled in three steps, so that no power of two leaves the range.
    __device__ A operator()(A state) const
    {
        A sum;
        if constexpr (sizeof(A) == 4) {
            sum = static_cast<A>(m * state * power_of_two<double>(max(min(e, 600), -600)) + b);
        } else {
            // From the least subnormal number to the largest number there are 2098 powers of two.
            const int k = static_cast<int>(max(min(e, Exponent(2100)), Exponent(-2100))), third = k / 3;
            sum = fma(
                m * power_of_two<double>(third),
                state * power_of_two<double>(third) * power_of_two<double>(k - 2 * third), b);
        }
        return m == 0.0 ? b : sum;
    }
};

// One factor of all elements of a thread.
template <typename A, typename S>
struct OneFactor {
    using Stored = S;
    A factor;

    __device__ A operator()(int) const { return factor; }
};

// The same, but 1 for elements that do not exist, which pass states on, and 0 for those that cut.
template <typename A, typename S>
struct MaskedFactor {
    using Stored = S;
    A factor;
    unsigned existing, zeros;  // bits of elements

    __device__ A operator()(int i) const
    {
        return zeros >> i & 1 ? A(0) : existing >> i & 1 ? factor : A(1);
    }
};

// One factor, or one for each element.
template <typename A, typename X>
struct EitherFactor {
    using Stored = typename X::Stored;
    MaskedFactor<A, Stored> one;
    const X& x;
    bool is_one;

    __device__ A operator()(int i) const { return is_one ? one(i) : x(i); }
};

// Where factors are: x has one for each element; a row has one; or args.flags say which, and also
// whether results are stored as accumulators.
enum class Factors { EACH, ONE, EITHER_WIDE };

// PACKED: rows are packed sequences, each with states of its own. The step of a state is the
// distance of sequences.
template <typename A, bool GRADIENT, bool PACKED = false, Factors FACTORS = Factors::EACH>
struct Linear : SameCarry<LinearMap<A>> {
    static constexpr bool HAS_ONE = FACTORS == Factors::ONE, MAY_HAVE_ONE = FACTORS != Factors::EACH;
    static constexpr bool NEEDS_PREFIX = false, SUFFIX_NEEDS_PREFIX = false, IS_FORWARD = true, HAS_SEQUENCES = true,
                          HAS_TWO_RESULTS = GRADIENT, READS_HEADS = PACKED, STRIPED_ROWS = false,
                          HAS_WIDE_RESULTS = FACTORS == Factors::EITHER_WIDE;
    using Args = LinearArgs;
    using GeneralTuning = std::conditional_t<
        HAS_ONE, LinearOneFactorTuning, std::conditional_t<GRADIENT, LinearBackwardTuning, LinearTuning>>;
    using Tuning = std::conditional_t<PACKED, typename GeneralTuning::Packed, GeneralTuning>;
    using Number = A;
    using Value = std::conditional_t<HAS_ONE, void, A>;
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
    template <int I, int N, bool IS_SEGMENTED>
    struct ThreadScan {
        static_assert(I <= 32);
        static constexpr bool SEG = IS_SEGMENTED || PACKED;
        const LinearArgs* args;
        // Bits of elements: those at the first and the last position of a row of the kernel. States
        // leave at heads and enter at tails.
        unsigned heads, tails;
        i64 row;     // of element 0
        // SEG: elements of the row, and of rows before it in the warp, before element 0; PACKED:
        // the position of element 0.
        i64 offset;
        A before;    // gradient: h of the element before element 0
        A factor;           // MAY_HAVE_ONE: of all elements
        unsigned existing;  // MAY_HAVE_ONE: bits of elements that exist

        static constexpr unsigned ALL = ~0u >> (32 - I);

        __device__ void begin(const ScanArgs& a) { args = &static_cast<const LinearArgs&>(a); }

        static __device__ unsigned bit_at(i64 i) { return i >= 0 && i < I ? 1u << i : 0; }
        // Element 0 has this position in a row of elements of type T.
        template <typename T>
        __device__ void locate(i64 in_row, i64 position, bool exists)
        {
            row = in_row;
            unsigned own = 0;  // that exist
            if constexpr (PACKED || MAY_HAVE_ONE)
                own = bits_between(
                    static_cast<int>(min(max(-position, i64(0)), i64(I))),
                    static_cast<int>(min(max(args->n - position, i64(0)), i64(I))));
            if constexpr (MAY_HAVE_ONE) existing = own;
            if constexpr (PACKED) {
                offset = position;
                heads = heads_at<I>(*args, position) & own;
                tails = heads_at<I>(*args, position + 1) & own;
            } else {
                heads = bit_at(-position);
                tails = bit_at(args->n - 1 - position);
            }
            if (!exists) heads = tails = 0;
            load_factor<T>(exists);
        }

        // Several rows, of which the first one begins `from_row` elements before element 0; bits of
        // the elements that begin and end them, and that exist.
        template <typename T>
        __device__ void locate_rows(
            i64 first_row, int from_row, unsigned beginning, unsigned ending, unsigned that_exist, bool exists)
        {
            row = first_row, offset = from_row;
            heads = beginning, tails = ending, existing = that_exist;
            load_factor<T>(exists);
        }

        __device__ bool has_one_factor() const { return HAS_ONE || args->flags & kOneFactor; }

        // Several rows have the same factor.
        template <typename T>
        __device__ void load_factor(bool exists)
        {
            if constexpr (MAY_HAVE_ONE) {
                factor = A(1);
                if (!exists || !has_one_factor()) return;
                const i64 at = row_offset(0, args->factor, args->factor_dims, args->factor_extent, row);
                factor = args->flags & kFactorWide ? reinterpret_cast<const A*>(args->factor.data)[at]
                                                   : widen<A>(reinterpret_cast<const T*>(args->factor.data)[at]);
            }
        }

        // The sum of numbers of elements first .. that exist.
        template <int COUNT>
        __device__ A sum_of(int first, const A (&x)[COUNT]) const
        {
            A sum = A(0);
#pragma unroll
            for (int i = 0; i < COUNT; ++i)
                if (existing >> (first + i) & 1) sum += x[i];
            return sum;
        }

        // Calls f(factors of elements), which x gives unless the row has one.
        template <typename X, typename F>
        __device__ auto with_factors(const X& x, const F& f) const
        {
            using S = typename X::Stored;
            if constexpr (!MAY_HAVE_ONE) {
                return f(x);
            } else {
                const MaskedFactor<A, S> masked = {factor, existing, without_decay()};
                if constexpr (HAS_ONE) {
                    if (!SEG && existing == ALL && !masked.zeros) return f(OneFactor<A, S>{factor});  // most threads
                    return f(masked);
                } else {
                    return f(EitherFactor<A, X>{masked, x, has_one_factor()});
                }
            }
        }

        // The state of an element.
        __device__ StateNumber number_of(int i) const
        {
            if constexpr (PACKED) return {row, sequence_of(*args, offset + i)};
            return {SEG ? row + (offset + i) / static_cast<int>(args->n) : row, 0};
        }

        template <typename S>
        __device__ A load(const Strided& state, int i, bool is_wide) const
        {
            return SEG ? load_some_state<A, S>(*args, state, number_of(i), is_wide)
                       : load_state<A, S>(*args, state, number_of(i), is_wide);
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
                store_some_state<A, S>(*args, args->state_out, number_of(i), is_wide, state);
            else
                store_state<A, S>(*args, args->state_out, number_of(i), is_wide, state);
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
            return with_factors(x, [&](const auto& factors) {
                return SEG && args->state_in.data ? map<true>(factors, y) : map<false>(factors, y);
            });
        }

        // The map of I elements that have one factor, without their terms.
        static __device__ Suffix power(A factor)
        {
            Suffix all = {factor, A(0), 0};
            if (sizeof(A) == 8 && fabs(factor) < A(0x1p-1022)) all = {factor * 0x1p64, A(0), -64};
            all.normalize();
#pragma unroll
            for (int count = 1; count < I; count *= 2) {
                all.m *= all.m, all.e += all.e;
                all.normalize();
            }
            return all;
        }

        template <bool HAS_STATE_IN, typename X, typename Y>
        __device__ Suffix map(const X& x, const Y& y) const
        {
            using S = typename X::Stored;
            constexpr int REACH = sizeof(A) == 4 ? 4 : 1;  // factors whose product stays in the range of float64
            constexpr bool IS_ONE = __is_same(X, OneFactor<A, S>);
            Suffix all = Suffix::identity();
            if constexpr (IS_ONE) all = power(x(0));
            bool resets = tails != 0;
            if (!SEG && tails) all.b = state_in<S>(0);
#pragma unroll
            for (int i = I - 1; i >= 0; --i) {
                const A factor = x(i);
                if (SEG && tails >> i & 1) all.b = HAS_STATE_IN ? state_in<S>(i) : A(0);
                resets = resets || factor == A(0);
                all.b = step(factor, y(i), all.b);
                if constexpr (IS_ONE) continue;
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
            with_factors(x, [&](const auto& factors) {
                if (SEG && (args->state_in.data || args->state_out.data || args->initial.data))
                    apply<true>(after.b, factors, y, z, store);
                else
                    apply<false>(after.b, factors, y, z, store);
            });
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
template <typename A>
using PackedLinear = Linear<A, false, true>;
template <typename A>
using PackedLinearBackward = Linear<A, true, true>;
template <typename A>
using LinearOneFactor = Linear<A, false, false, Factors::ONE>;
template <typename A>
using PackedLinearOneFactor = Linear<A, false, true, Factors::ONE>;
template <typename A>
using LinearTerms = Linear<A, true, false, Factors::EITHER_WIDE>;
template <typename A>
using PackedLinearTerms = Linear<A, true, true, Factors::EITHER_WIDE>;
