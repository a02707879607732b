// scan/state/: what all kernels of scans share: launch arguments, states and how they are combined, how a warp loads the elements of a row,
// and what the tiles of a row leave for each other in global memory.
//
// This file: the states that scans are made of.
//
// Element i of a row, in scan order, with E what is known of the elements before it:
//
//     (w_i, c_i, E') = step(E, x_i)         R_i = dy_i + c_{i+1} R_{i+1}         dx_i = w_i R_i
//
// A head is the state E, which runs forward over x. A tail is the affine map Q -> c_i (dy_i + Q), or several of them one after another;
// Q = c_{i+1} R_{i+1} is what an element gets from the right. Heads and tails are joined by fixed trees to find what enters a thread;
// the thread then walks its own elements by the plain recurrence.
#pragma once

#include "scan/state/args.cuh"
#include "scan/state/elements.cuh"

// The bits below the lowest one of some; all of them where there is none.
template <typename B>
__device__ B ahead_of(B bits)
{
    return (bits & -bits) - 1;
}

template <typename S, typename Shuffle>
__device__ S shuffled(const S& s, Shuffle shuffle)
{
    static_assert(sizeof(S) % 4 == 0);
    unsigned word[sizeof(S) / 4];
    memcpy(word, &s, sizeof s);
#pragma unroll
    for (unsigned i = 0; i < sizeof(S) / 4; ++i) word[i] = shuffle(word[i]);
    S t;
    memcpy(&t, word, sizeof t);
    return t;
}

template <typename S>
__device__ S from_below(const S& s, int distance)
{
    return shuffled(s, [=](unsigned w) { return __shfl_up_sync(0xffffffff, w, distance); });
}

template <typename S>
__device__ S from_above(const S& s, int distance)
{
    return shuffled(s, [=](unsigned w) { return __shfl_down_sync(0xffffffff, w, distance); });
}

template <typename S>
__device__ S from_lane(const S& s, int lane)
{
    return shuffled(s, [=](unsigned w) { return __shfl_sync(0xffffffff, w, lane); });
}

// Whether joins of a state are long, so that loops over them are not written out.
template <typename S>
constexpr bool kLong = false;

// Each lane gets the join of the `reach` lanes ahead of it, and its own.
template <typename K>
__device__ typename K::Head heads_up_to(typename K::Head head, int reach)
{
#pragma unroll (kLong<typename K::Head> ? 1 : 5)
    for (int d = 1; d < 32; d *= 2) {
        const auto left = from_below(head, d);
        if (d <= reach) head = K::join(left, head);
    }
    return head;
}

// Whether a tail is a sum, open or closed: one vote then says how far those of lanes reach.
template <typename S>
constexpr bool kRuns = false;

// Each lane gets the join of its own and of the `reach` lanes behind it.
template <typename K>
__device__ typename K::Tail tails_down_to(typename K::Tail tail, int reach)
{
    if constexpr (kRuns<typename K::Tail>) {
        const unsigned closed = __ballot_sync(0xffffffff, !tail.open) >> threadIdx.x % 32 & (2u << reach) - 1;
        const int last = closed ? __ffs(closed) - 1 : reach;
#pragma unroll
        for (int d = 1; d < 32; d *= 2) {
            const auto right = from_above(tail.sum, d);
            if (d <= last) tail.sum += right;
        }
        tail.open = closed == 0;
    } else {
#pragma unroll (kLong<typename K::Tail> ? 1 : 5)
        for (int d = 1; d < 32; d *= 2) {
            const auto right = from_above(tail, d);
            if (d <= reach) tail = K::join(tail, right);
        }
    }
    return tail;
}

// Room in shared memory for states without constructors.
template <typename S, int N>
struct Room {
    alignas(16) char bytes[N * sizeof(S)];
    __device__ S& operator[](int i) { return reinterpret_cast<S*>(bytes)[i]; }
};

// The head of a kind that needs none.
struct Nothing {};

// ---------------------------------------------------------------------------------------------------- kinds

// The tails that tiles hand on are those of threads.
template <typename T>
struct SameTail {
    using Far = T;
    static __device__ T far(const T& t) { return t; }
    static __device__ T near(const T& t) { return t; }
};

// The kind that is tried first: it does only some rows. Whether they were such its cells know in the end or, where tails are ORDERED and a
// block does one row, with these. See kinds/cumprod_fast.cuh.
template <typename K, typename T>
struct TameOf {
    using Kind = K;
};
template <typename K, typename T>
using TameKind = typename TameOf<K, T>::Kind;
template <typename K>
constexpr bool kTame = false;
template <typename K>
constexpr bool kTamed = kTame<TameKind<K, float>>;

// A row is done in one of two ways: its products stay in range, or its numbers are moderate. Faults say what is against each in the elements
// of a thread; where there is none against one of them in the whole row, it is done.
constexpr unsigned kLeavesRange = 1, kExtreme = 2, kUndone = 3;

__device__ inline unsigned faults_of_block(unsigned faults)
{
    return (__syncthreads_or(faults & kLeavesRange) ? kLeavesRange : 0) | (__syncthreads_or(faults & kExtreme) ? kExtreme : 0);
}

// What enters a tile, or leaves it.
template <typename Head, typename Tail>
struct Passing {
    Head head;
    Tail tail;
};
template <typename K>
using Passed = Passing<typename K::Head, typename K::Far>;

// Whether the tail of a cell has its head found as well.
template <typename K>
constexpr bool kTogether = false;

// Whether nothing but records is found: a bit for each element that wins over all before it; whether these are known, so that x is not.
template <typename K>
constexpr bool kFinds = false;
template <typename K>
constexpr bool kRecorded = false;

// Whether cells hold numbers of every element; whether their states have a base, as a rule the first x of a row.
template <typename K>
constexpr bool kHolds = false;
template <typename K>
constexpr bool kBased = false;

// Of the elements of a thread in so many words of so many each, the first ones whose x is read again at the end, as there are no registers
// for what is held of them.
template <typename K, int WIDTH, int COUNT>
constexpr int kAgain = 0;
