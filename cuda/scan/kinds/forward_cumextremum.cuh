// cummax and cummin as forward scans: y is the element that wins over all before it, and the index
// is its position. NaN wins over numbers; of equal elements, and of NaN, the last one wins, or the
// first with kFirst.
#pragma once

#include "scan/kinds/cumextremum.cuh"
#include "scan/kinds/forward.cuh"
#include "scan/state/carry.cuh"
#include "scan/tile/store_indices.cuh"

// The extremum of some elements. `value` is negated by cummin, so that the largest wins.
template <typename A>
struct Extremum {
    A value;

    static __device__ Extremum identity() { return {-A(INFINITY)}; }
};

// The extremum with its rank among equal elements: the one of the highest rank wins. The rank is at
// least 1, or less if there are no elements.
template <typename A>
struct RankedExtremum {
    A value;
    unsigned low, high;  // halves of the rank: 12 bytes fit a tile-status word

    static __device__ RankedExtremum identity() { return {-A(INFINITY), 0, 0}; }
    static __device__ RankedExtremum of(A value, i64 rank)
    {
        return {value, static_cast<unsigned>(rank), static_cast<unsigned>(rank >> 32)};
    }
    __device__ i64 rank() const { return static_cast<i64>(static_cast<unsigned long long>(high) << 32 | low); }
};

// The rank of position p among those of a row of n elements, and its inverse; ranks of elements are
// at least 1. CARRIED: elements before the row, at positions from n on, have ranks as well.
constexpr i64 kMostCarried = i64(1) << 61;

template <bool CARRIED>
__device__ i64 rank_of_position(i64 p, i64 n, bool last_wins)
{
    return last_wins ? n + (CARRIED ? kMostCarried : 0) - p : p + 1;
}
template <bool CARRIED>
__device__ i64 position_of_rank(i64 rank, i64 n, bool last_wins)
{
    return last_wins ? n + (CARRIED ? kMostCarried : 0) - rank : rank - 1;
}

// CARRIED: rows have carries. INDEXED: stores indices as well; without them a record that is 0 or
// -0 is returned as either.
template <typename A, bool INDEXED, bool CARRIED = false>
struct ForwardCumextremum : ForwardKind<A, std::conditional_t<INDEXED, RankedExtremum<A>, Extremum<A>>> {
    static constexpr bool STORES_INDICES = INDEXED;
    using Tuning = std::conditional_t<INDEXED, ForwardIndicesTuning, ForwardCumextremumTuning>;
    using Suffix = std::conditional_t<INDEXED, RankedExtremum<A>, Extremum<A>>;

    static __device__ Extremum<A> combine(const Extremum<A>& l, const Extremum<A>& r)
    {
        return {largest(l.value, r.value)};
    }
    static __device__ RankedExtremum<A> combine(const RankedExtremum<A>& l, const RankedExtremum<A>& r)
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
        unsigned records;   // INDEXED: bit i: element i is a record
        i64 carried_record;  // INDEXED: position of the record before the thread
        i64 first_index;  // CARRIED: of the row in the whole row that it is a chunk of

        __device__ void begin(const ScanArgs& args)
        {
            sign = args.flags & kMinimum ? A(-1) : A(1);
            last_wins = !(args.flags & kFirst);
        }

        __device__ void set_row(const ScanArgs& args, i64 row)
        {
            if constexpr (CARRIED) first_index = first_index_of_row<ForwardCumextremum>(args, row);
        }
        // With carries, indices may go unused.
        static __device__ bool stores_indices(const ScanArgs& args)
        {
            return !CARRIED || args.outputs[kIndices].data;
        }

        __device__ i64 rank_of(i64 p) const { return rank_of_position<CARRIED>(p, end, last_wins); }
        __device__ i64 position_of(i64 rank) const { return position_of_rank<CARRIED>(rank, end, last_wins); }

        // The index that is stored for a position.
        __device__ i64 index_of(const ScanArgs& args, i64 position) const
        {
            const i64 index = index_of_position(args, position);
            return CARRIED ? first_index + index : index;
        }

        // The running extremum within the thread.
        struct Running {
            A value;    // of the last record, as it is stored
            A best;     // the same for comparisons: times the sign, and 0 for -0
            bool none;  // there is no element yet

            // Takes an element, and returns whether it is a record. SIMPLE: the last of equal
            // elements wins, so that any element wins over those that do not exist, which are
            // passed before it.
            template <bool SIMPLE>
            __device__ bool take(const ThreadScan& scan, A x, int i, int count)
            {
                const A one = fma(x, scan.sign, A(0));
                bool wins = false;
                if constexpr (!INDEXED) {
                    best = largest(best, one);
                    value = best * scan.sign;
                    return false;
                } else if constexpr (SIMPLE && sizeof(A) == 4) {  // `one` and `largest` have one NaN
                    best = largest(best, one);
                    wins = __float_as_int(best) == __float_as_int(one);
                } else {
                    if constexpr (SIMPLE)
                        wins = one >= best || one != one;
                    else
                        wins = i < count && (none || (scan.last_wins ? one >= best : one > best) ||
                                             (one != one && (scan.last_wins || best == best)));
                    none = none && !wins;
                    best = wins ? one : best;
                }
                value = wins ? x : value;
                return wins;
            }
            __device__ void reset() { best = -A(INFINITY), none = true; }
        };

        // Calls visit(i, whether element i is a record, the extremum up to it) in scan order.
        template <bool SIMPLE, typename Y, typename Visit>
        __device__ void scan_elements(
            Running& running, const Y& y, unsigned segment_heads, int count, const Visit& visit) const
        {
#pragma unroll
            for (int i = I - 1; i >= 0; --i) {
                const bool wins = running.template take<SIMPLE>(*this, y(i), i, count);
                visit(i, wins, running.value);
                if (SEG && segment_heads & 1u << i) running.reset();
            }
        }

        // Whether `take` may be SIMPLE. Elements that do not exist would win over a carry of -inf.
        __device__ bool is_simple() const { return !INDEXED || (last_wins && !CARRIED); }
        // How many elements of the thread exist.
        __device__ int count() const { return INDEXED ? static_cast<int>(min(end - position, i64(I))) : I; }

        template <typename X, typename Y>
        __device__ Suffix suffix(const X&, const Y& y, unsigned segment_heads) const
        {
            Running running = {-A(INFINITY) * sign, -A(INFINITY), true};
            int record = -1;  // since the last segment head
            const auto visit = [&](int i, bool wins, A) {
                if constexpr (INDEXED) record = wins ? i : record;
                if (INDEXED && SEG && segment_heads & 1u << i) record = -1;
            };
            if (is_simple())
                scan_elements<true>(running, y, segment_heads, I, visit);
            else
                scan_elements<false>(running, y, segment_heads, count(), visit);
            if constexpr (INDEXED)
                return record < 0 ? Suffix::identity() : Suffix::of(running.value * sign, rank_of(position + record));
            else
                return {running.best};
        }

        template <typename X, typename Y, typename Store>
        __device__ void finish(const Suffix& after, const X&, const Y& y, unsigned segment_heads, const Store& store)
        {
            Running running = {after.value * sign, fma(after.value, A(1), A(0)), false};
            if constexpr (INDEXED) {
                running.none = after.rank() <= 0;
                carried_record = position_of(after.rank());
                records = 0;
            }
            A values[N];
            const auto visit = [&](int i, bool wins, A value) {
                if constexpr (INDEXED) {
                    if (wins) records |= 1u << i;
                }
                values[i % N] = value;
                if (i % N == 0) store(i / N, values);
            };
            if (is_simple())
                scan_elements<true>(running, y, segment_heads, I, visit);
            else
                scan_elements<false>(running, y, segment_heads, count(), visit);
        }
    };
};

template <typename A>
using ForwardValues = ForwardCumextremum<A, false>;
template <typename A>
using ForwardIndices = ForwardCumextremum<A, true>;
template <typename A>
using CarriedIndices = ForwardCumextremum<A, true, true>;
