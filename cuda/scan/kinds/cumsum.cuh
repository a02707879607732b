// scan/kinds/: the operations, as the states and recurrences that kernels are instantiated with. A file _fast has the arithmetic that is tried
// first and is right while numbers stay in range.
//
// Sums: of all that follows, or of the run of positions that one element won.
//
//     Kind::Head, Kind::Tail                    states
//     Kind::HEAD                                elements need the head of everything before them
//     Kind::ORDERED                             tails need that head too
//     Kind::Value                               what x holds; void: there is no x
//     Kind::Far                                 the tail in which tiles are joined; far and near turn one into the other
//     Kind::Cell<I, N, SEG>                     I elements of one row, N of which are stored together;
//                                               with SEG bit i of `starts` says that i is the first of a row
//         head(x, starts)                       head of the elements since the last start
//         enter(head, x, y, starts)             given the head of everything before
//         tail(x, y, starts)                    tail of the elements up to the first start
//         finish(tail, x, y, starts, store)     given the tail of everything after: store(c, dx of elements c * N..)
//     x and y give an element by its number
#pragma once

#include "scan/state/prefix_suffix.cuh"

// ---------------------------------------------------------------------------------------------------- cumsum:  w = c = 1

template <typename A>
struct SumTail {
    A sum;
};

template <typename A>
struct Cumsum {
    static constexpr bool HEAD = false, ORDERED = false;
    using Number = A;
    using Value = void;
    using Head = Nothing;
    using Tail = SumTail<A>;
    using Far = SumTail<double>;

    static __device__ A pad(const ScanArgs&) { return A(0); }
    static __device__ Tail nothing() { return {A(0)}; }
    static __device__ Far far(const Tail& t) { return {t.sum}; }
    static __device__ Tail near(const Far& t) { return {static_cast<A>(t.sum)}; }
    template <typename B>
    static __device__ SumTail<B> join(const SumTail<B>& l, const SumTail<B>& r)
    {
        return {l.sum + r.sum};
    }

    template <int I, int N, bool SEG>
    struct Cell {
        __device__ void begin(const ScanArgs&) {}

        template <typename X, typename Y>
        __device__ Tail tail(const X&, const Y& y, unsigned starts) const
        {
            A sum = A(0);
#pragma unroll
            for (int c = I - N; c >= 0; c -= N) {
                A part = A(0);
#pragma unroll
                for (int i = c + N - 1; i >= c; --i) {
                    part += y(i);
                    if (SEG && starts & 1u << i) part = sum = A(0);
                }
                sum += part;
            }
            return {sum};
        }

        template <typename X, typename Y, typename Store>
        __device__ void finish(const Tail& after, const X&, const Y& y, unsigned starts, const Store& store) const
        {
            A q = after.sum;
#pragma unroll
            for (int c = I - N; c >= 0; c -= N) {
                A dx[N], part = A(0);
#pragma unroll
                for (int i = N - 1; i >= 0; --i) {
                    part += y(c + i);
                    dx[i] = part + q;
                    if (SEG && starts >> (c + i) & 1) part = q = A(0);
                }
                q += part;
                store(c / N, dx);
            }
        }
    };
};

// ---------------------------------------------------------------------------------------------------- runs:  w = r, c = !r, r: a record

// What a run of positions that one element won adds up to; `open` if it reaches further to the left.
template <typename A>
struct RunTail {
    A sum;
    int open;
};

template <typename A>
constexpr bool kRuns<RunTail<A>> = true;

// The tails of runs, given which elements are records: the first of a row, and those that win over all before them.
template <typename A>
struct Runs : SameTail<RunTail<A>> {
    static constexpr bool HEAD = false, ORDERED = false;
    using Number = A;
    using Head = Nothing;
    using Tail = RunTail<A>;

    static __device__ A pad(const ScanArgs&) { return A(0); }
    static __device__ Tail nothing() { return {A(0), 1}; }
    static __device__ Tail join(const Tail& l, const Tail& r) { return {l.open ? l.sum + r.sum : l.sum, l.open & r.open}; }

    template <int I, int N, bool SEG>
    struct Cell {
        using Bits = std::conditional_t<(I > 32), unsigned long long, unsigned>;
        static constexpr Bits ONE = 1;
        Bits records;  // which elements are

        __device__ void begin(const ScanArgs&) {}

        template <typename X, typename Y>
        __device__ Tail tail(const X&, const Y& y, unsigned) const
        {
            A sum = A(0);
            if (!SEG && !__any_sync(0xffffffff, records != 0)) {
#pragma unroll
                for (int c = I - N; c >= 0; c -= N) {
                    A part = A(0);
#pragma unroll
                    for (int i = c + N - 1; i >= c; --i) part += y(i);
                    sum += part;
                }
                return {sum, 1};
            }
            const Bits ahead = ahead_of(records);
#pragma unroll
            for (int c = I - N; c >= 0; c -= N) {
                A part = A(0);
#pragma unroll
                for (int i = c + N - 1; i >= c; --i)
                    if (ahead & ONE << i) part += y(i);
                sum += part;
            }
            return {sum, records == 0};
        }

        template <typename X, typename Y, typename Store>
        __device__ void finish(const Tail& after, const X&, const Y& y, unsigned, const Store& store) const
        {
            if (records == 0) {
                const A none[N] = {};
#pragma unroll
                for (int c = I - N; c >= 0; c -= N) store(c / N, none);
                return;
            }
            A q = after.sum;
#pragma unroll
            for (int c = I - N; c >= 0; c -= N) {
                A dx[N], part = A(0);
#pragma unroll
                for (int i = N - 1; i >= 0; --i) {
                    part += y(c + i);
                    const bool record = records & ONE << (c + i);
                    dx[i] = record ? part + q : A(0);
                    if (record) part = q = A(0);
                }
                q += part;
                store(c / N, dx);
            }
        }
    };
};

// Where the records are known from an earlier launch.
template <typename A>
struct Recorded : Runs<A> {
    using Value = void;
};
template <typename A>
constexpr bool kRecorded<Recorded<A>> = true;

// The record is the position that an index names. Whether the indices are those of a scan is checked on the way: each one is its own
// position or repeats the one before.
template <typename A>
struct Indices : Runs<A> {
    using Value = i64;

    // The index of what is at position k.
    static __device__ i64 index_of(const ScanArgs& args, i64 k) { return args.flags & kReversed ? args.n - 1 - k : k; }

    template <int I, int N, bool SEG>
    struct Cell : Runs<A>::template Cell<I, N, SEG> {
        // The first `count` elements of a column, which begin at position k of the row; `before` is the index ahead of them, if they do not
        // begin it.
        template <typename Index>
        __device__ void take(const ScanArgs& args, const Index& index, int count, unsigned starts, i64 row, i64 k, i64 before)
        {
            this->records = starts;
            bool bad = false;
#pragma unroll 4
            for (int i = 0; i < count; ++i, ++k) {
                const i64 winner = index(i);
                if (winner == index_of(args, k))
                    this->records |= 1u << i;
                else if (starts & 1u << i || winner != before)
                    args.bad[1 + row] = 1, bad = true;
                before = winner;
            }
            if (bad) args.bad[0] = 1;
        }
    };
};
