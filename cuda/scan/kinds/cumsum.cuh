// scan/kinds/: the operations, as functors that kernels are instantiated with; the contract is at
// the head of state/prefix_suffix.cuh. A file _fast has the fast path of a kind.
//
// This file: kinds whose suffix is a sum: of everything after an element (cumsum), or of a segment
// that begins at a record (the base class of cummax, cummin and indices).
#pragma once

#include "scan/state/prefix_suffix.cuh"

// ------------------------------------------------------------------------------ cumsum:  w = c = 1

template <typename A>
struct SumSuffix {
    A sum;

    static __device__ SumSuffix identity() { return {A(0)}; }
};

template <typename A>
struct Cumsum : KindDefaults {
    static constexpr bool NEEDS_PREFIX = false, SUFFIX_NEEDS_PREFIX = false, HAS_EXCLUSIVE = true;
    using Tuning = CumsumTuning;
    using Number = A;
    using Value = void;
    using Prefix = NoPrefix;
    using Suffix = SumSuffix<A>;
    using Carry = SumSuffix<double>;

    static __device__ A pad(const ScanArgs&) { return A(0); }
    static __device__ Carry to_carry(const Suffix& t) { return {t.sum}; }
    static __device__ Suffix from_carry(const Carry& t) { return {static_cast<A>(t.sum)}; }
    template <typename B>
    static __device__ SumSuffix<B> combine(const SumSuffix<B>& l, const SumSuffix<B>& r)
    {
        return {l.sum + r.sum};
    }

    template <int I, int N, bool SEG>
    struct ThreadScan {
        __device__ void begin(const ScanArgs&) {}

        template <typename X, typename Y>
        __device__ Suffix suffix(const X&, const Y& y, unsigned segment_heads) const
        {
            A sum = A(0);
#pragma unroll
            for (int c = I - N; c >= 0; c -= N) {
                A partial = A(0);
#pragma unroll
                for (int i = c + N - 1; i >= c; --i) {
                    partial += y(i);
                    if (SEG && segment_heads & 1u << i) partial = sum = A(0);
                }
                sum += partial;
            }
            return {sum};
        }

        template <typename X, typename Y, typename Store>
        __device__ void finish(
            const Suffix& after, const X&, const Y& y, unsigned segment_heads, const Store& store) const
        {
            A q = after.sum;
#pragma unroll
            for (int c = I - N; c >= 0; c -= N) {
                A dx[N], partial = A(0);
#pragma unroll
                for (int i = N - 1; i >= 0; --i) {
                    partial += y(c + i);
                    dx[i] = partial + q;
                    if (SEG && segment_heads >> (c + i) & 1) partial = q = A(0);
                }
                q += partial;
                store(c / N, dx);
            }
        }
    };
};

// ----------------------------------------------------- segmented sums:  w = r, c = !r, r: a record

// The sum of the elements of a range before its first record. They belong to a record further left.
// `open`: the range has no record, so its sum goes on to the right.
template <typename A>
struct SegmentedSumSuffix {
    A sum;
    int open;

    static __device__ SegmentedSumSuffix identity() { return {A(0), 1}; }
};

// Segmented sums given the record flags. A record is the first element of a row, or one that wins
// over all before it.
template <typename A>
struct SegmentedSum : SameCarry<SegmentedSumSuffix<A>> {
    static constexpr bool NEEDS_PREFIX = false, SUFFIX_NEEDS_PREFIX = false, SEGMENTED_SUM = true;
    using Tuning = CumextremumTuning;
    using Number = A;
    using Prefix = NoPrefix;
    using Suffix = SegmentedSumSuffix<A>;

    static __device__ A pad(const ScanArgs&) { return A(0); }
    static __device__ Suffix combine(const Suffix& l, const Suffix& r)
    {
        return {l.open ? l.sum + r.sum : l.sum, l.open & r.open};
    }

    template <int I, int N, bool SEG>
    struct ThreadScan {
        using Bits = std::conditional_t<(I > 32), unsigned long long, unsigned>;
        static constexpr Bits ONE = 1;
        Bits records;  // bit i: element i is a record

        __device__ void begin(const ScanArgs&) {}

        template <typename X, typename Y>
        __device__ Suffix suffix(const X&, const Y& y, unsigned) const
        {
            A sum = A(0);
            // No lane of the warp has a record: a shorter loop.
            if (!SEG && !__any_sync(0xffffffff, records != 0)) {
#pragma unroll
                for (int c = I - N; c >= 0; c -= N) {
                    A partial = A(0);
#pragma unroll
                    for (int i = c + N - 1; i >= c; --i) partial += y(i);
                    sum += partial;
                }
                return {sum, 1};
            }
            const Bits preceding = bits_below_lowest(records);
#pragma unroll
            for (int c = I - N; c >= 0; c -= N) {
                A partial = A(0);
#pragma unroll
                for (int i = c + N - 1; i >= c; --i)
                    if (preceding & ONE << i) partial += y(i);
                sum += partial;
            }
            return {sum, records == 0};
        }

        template <typename X, typename Y, typename Store>
        __device__ void finish(const Suffix& after, const X&, const Y& y, unsigned, const Store& store) const
        {
            if (records == 0) {  // dx is 0 outside records
                const A none[N] = {};
#pragma unroll
                for (int c = I - N; c >= 0; c -= N) store(c / N, none);
                return;
            }
            A q = after.sum;
#pragma unroll
            for (int c = I - N; c >= 0; c -= N) {
                A dx[N], partial = A(0);
#pragma unroll
                for (int i = N - 1; i >= 0; --i) {
                    partial += y(c + i);
                    const bool record = records & ONE << (c + i);
                    dx[i] = record ? partial + q : A(0);
                    if (record) partial = q = A(0);
                }
                q += partial;
                store(c / N, dx);
            }
        }
    };
};

// Record flags are read from an earlier launch (RecordPass).
template <typename A>
struct FromRecordFlags : SegmentedSum<A> {
    static constexpr bool READS_RECORDS = true;
    using Value = void;
};

// An index names its record. The kind also checks that the indices come from a scan: each is its
// own position or repeats the one before.
template <typename A>
struct Indices : SegmentedSum<A> {
    using Tuning = IndicesTuning;
    using Value = i64;

    // The index of position k.
    static __device__ i64 index_of(const ScanArgs& args, i64 k) { return args.flags & kReversed ? args.n - 1 - k : k; }

    template <int I, int N, bool SEG>
    struct ThreadScan : SegmentedSum<A>::template ThreadScan<I, N, SEG> {
        // Finds the records among `count` elements of scan `row`, from position k on. `before` is
        // the index at k - 1, unused if a row begins at k. Sets the flags of wrong rows, clears
        // none.
        template <typename Index>
        __device__ void find_records(
            const ScanArgs& args, const Index& index, int count, unsigned segment_heads, i64 row, i64 k, i64 before)
        {
            this->records = segment_heads;
            bool wrong = false;
#pragma unroll 4
            for (int i = 0; i < count; ++i, ++k) {
                const i64 record = index(i);
                if (record == index_of(args, k))
                    this->records |= 1u << i;
                else if (segment_heads & 1u << i || record != before)
                    args.reject_flags[1 + row] = 1, wrong = true;
                before = record;
            }
            if (wrong) args.reject_flags[0] = 1;
        }
    };
};
