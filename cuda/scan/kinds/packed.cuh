// Packed<K>: the kind K on rows of packed sequences. Any element of a thread may begin a sequence,
// as in a segmented scan, and a state of several elements is closed if one of them does: nothing
// from beyond it enters.
#pragma once

#include "scan/kinds/cumextremum.cuh"
#include "scan/kinds/cumprod.cuh"
#include "scan/kinds/forward_cumextremum.cuh"
#include "scan/kinds/forward_cumprod.cuh"
#include "scan/kinds/forward_logcumsumexp.cuh"
#include "scan/state/heads.cuh"

// A prefix since the last head of some elements, or a suffix before their first one.
template <typename S, bool IS_SUFFIX>
struct Closable {
    using Flag = std::conditional_t<alignof(S) == 8, i64, int>;  // without padding after it

    S state;
    Flag closed;  // whether there is a head

    static __device__ Closable identity() { return {S::identity(), 0}; }
};

template <typename K>
struct Packed : K {
    static constexpr bool READS_HEADS = true, STRIPED_ROWS = false;
    // Sums of segments are closed by heads already, which are records.
    static constexpr bool CLOSES_SUFFIX = !K::SEGMENTED_SUM;
    template <typename T>
    using FastPathFor = void;
    using Tuning = typename K::Tuning::Packed;
    using Prefix = std::conditional_t<K::NEEDS_PREFIX, Closable<typename K::Prefix, false>, NoPrefix>;
    using Suffix = std::conditional_t<CLOSES_SUFFIX, Closable<typename K::Suffix, true>, typename K::Suffix>;
    using Carry = std::conditional_t<CLOSES_SUFFIX, Closable<typename K::Carry, true>, typename K::Carry>;

    using K::combine;
    template <typename S>
    static __device__ Closable<S, false> combine(const Closable<S, false>& l, const Closable<S, false>& r)
    {
        return {r.closed ? r.state : K::combine(l.state, r.state), l.closed | r.closed};
    }
    template <typename S>
    static __device__ Closable<S, true> combine(const Closable<S, true>& l, const Closable<S, true>& r)
    {
        return {l.closed ? l.state : K::combine(l.state, r.state), l.closed | r.closed};
    }
    static __device__ Carry to_carry(const Suffix& t)
    {
        if constexpr (CLOSES_SUFFIX)
            return {K::to_carry(t.state), t.closed != 0};
        else
            return K::to_carry(t);
    }
    static __device__ Suffix from_carry(const Carry& t)
    {
        if constexpr (CLOSES_SUFFIX)
            return {K::from_carry(t.state), t.closed != 0};
        else
            return K::from_carry(t);
    }

    template <int I, int N, bool SEG>
    struct ThreadScan : K::template ThreadScan<I, N, true> {
        using Base = typename K::template ThreadScan<I, N, true>;

        template <typename X>
        __device__ Prefix prefix(const X& x, unsigned heads)
        {
            return {Base::prefix(x, heads), heads != 0};
        }

        template <typename X, typename Y>
        __device__ Suffix suffix(const X& x, const Y& y, unsigned heads)
        {
            if constexpr (CLOSES_SUFFIX)
                return {Base::suffix(x, y, heads), heads != 0};
            else
                return Base::suffix(x, y, heads);
        }

        template <typename X, typename Y>
        __device__ void enter(const Prefix& before, const X& x, const Y& y, unsigned heads)
        {
            Base::enter(before.state, x, y, heads);
        }

        template <typename X, typename Y, typename Store>
        __device__ void finish(const Suffix& after, const X& x, const Y& y, unsigned heads, const Store& store)
        {
            if constexpr (CLOSES_SUFFIX)
                Base::finish(after.state, x, y, heads, store);
            else
                Base::finish(after, x, y, heads, store);
        }
    };
};

// CTAs of row_tiled and column_tiled, of the most threads, that an SM has registers for, at least:
// one of a kind with a prefix, whose threads have many elements.
template <typename K>
constexpr int kPackedTiledCTAsPerSM = K::NEEDS_PREFIX ? 1 : kTiledCTAsPerSM;
