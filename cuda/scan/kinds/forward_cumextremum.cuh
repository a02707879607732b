// cummax and cummin as forward scans: y is the element that wins over all before it, and the index
// is its position. NaN wins over numbers; of equal elements, and of NaN, the last one wins, or the
// first with kFirst.
#pragma once

#include "scan/kinds/forward.cuh"

// The winner of some elements. `value` is negated by cummin, so that the largest wins.
template <typename A>
struct Winner {
    A value;

    static __device__ Winner identity() { return {-A(INFINITY)}; }
};

// The winner with its rank among equal elements: the one of the highest rank wins. 0 if there are
// no elements.
template <typename A>
struct RankedWinner {
    A value;
    unsigned low, high;  // halves of the rank: 12 bytes fit a tile-status word

    static __device__ RankedWinner identity() { return {-A(INFINITY), 0, 0}; }
    static __device__ RankedWinner of(A value, i64 rank)
    {
        return {value, static_cast<unsigned>(rank), static_cast<unsigned>(rank >> 32)};
    }
    __device__ i64 rank() const { return static_cast<i64>(static_cast<unsigned long long>(high) << 32 | low); }
};

// INDEXED: stores indices as well. Without them, of 0 and -0 in different threads the last wins.
template <typename A, bool INDEXED>
struct ForwardCumextremum : ForwardKind<A, std::conditional_t<INDEXED, RankedWinner<A>, Winner<A>>> {
    static constexpr bool STORES_INDICES = INDEXED, STRIPED_ROWS = !INDEXED;
    using Tuning = std::conditional_t<INDEXED, ForwardIndicesTuning, ForwardCumextremumTuning>;
    using Suffix = std::conditional_t<INDEXED, RankedWinner<A>, Winner<A>>;

    static __device__ Winner<A> combine(const Winner<A>& l, const Winner<A>& r)
    {
        return l.value >= r.value || l.value != l.value ? l : r;
    }
    static __device__ RankedWinner<A> combine(const RankedWinner<A>& l, const RankedWinner<A>& r)
    {
        const bool left_is_nan = l.value != l.value, right_is_nan = r.value != r.value;
        if (left_is_nan != right_is_nan) return left_is_nan ? l : r;
        if (l.value < r.value || r.value < l.value) return l.value > r.value ? l : r;
        return l.rank() > r.rank() ? l : r;
    }

    template <typename T>
    static __device__ T pad_y(const ScanArgs& args)
    {
        return static_cast<T>(args.flags & kMinimum ? INFINITY : -INFINITY);
    }

    template <int I, int N, bool SEG>
    struct ThreadScan {
        A sign;
        bool last_wins;     // of equal elements
        i64 position, end;  // INDEXED: of element 0; elements from position `end` on do not exist
        unsigned records;   // INDEXED: bit i: element i wins over all before it
        i64 entering;       // INDEXED: position of the winner before the thread

        __device__ void begin(const ScanArgs& args)
        {
            sign = args.flags & kMinimum ? A(-1) : A(1);
            last_wins = !(args.flags & kFirst);
        }

        // The rank of a position and its inverse; ranks of elements are at least 1.
        __device__ i64 rank_of(i64 p) const { return last_wins ? end - p : p + 1; }
        __device__ i64 position_of(i64 rank) const { return last_wins ? end - rank : rank - 1; }

        // Whether an element wins over those before it, of which `best` wins.
        __device__ bool wins(A one, A best) const
        {
            return (last_wins ? one >= best : one > best) || (one != one && (last_wins || best == best));
        }
        // Elements of the thread that exist.
        __device__ int count() const { return INDEXED ? static_cast<int>(min(end - position, i64(I))) : I; }

        template <typename X, typename Y>
        __device__ Suffix suffix(const X&, const Y& y, unsigned segment_heads) const
        {
            A best = -A(INFINITY);
            int winner = -1;
            const int some = count();
#pragma unroll
            for (int i = I - 1; i >= 0; --i) {
                const A one = y(i) * sign;
                if (INDEXED ? i < some && (winner < 0 || wins(one, best)) : wins(one, best)) best = one, winner = i;
                if (SEG && segment_heads & 1u << i) best = -A(INFINITY), winner = -1;
            }
            if constexpr (INDEXED)
                return winner < 0 ? Suffix::identity() : Suffix::of(best, rank_of(position + winner));
            else
                return {best};
        }

        template <typename X, typename Y, typename Store>
        __device__ void finish(const Suffix& after, const X&, const Y& y, unsigned segment_heads, const Store& store)
        {
            A best = after.value;
            bool none = false;
            if constexpr (INDEXED) {
                none = after.rank() == 0;
                entering = position_of(after.rank());
                records = 0;
            }
            const int some = count();
#pragma unroll
            for (int c = I / N - 1; c >= 0; --c) {
                A winners[N];
#pragma unroll
                for (int v = N - 1; v >= 0; --v) {
                    const int i = c * N + v;
                    const A one = y(i) * sign;
                    if (INDEXED ? i < some && (none || wins(one, best)) : wins(one, best)) {
                        best = one;
                        if constexpr (INDEXED) records |= 1u << i, none = false;
                    }
                    winners[v] = best * sign;
                    if (SEG && segment_heads & 1u << i) best = -A(INFINITY), none = INDEXED;
                }
                store(c, winners);
            }
        }
    };
};

template <typename A>
using ForwardValues = ForwardCumextremum<A, false>;
template <typename A>
using ForwardIndices = ForwardCumextremum<A, true>;
