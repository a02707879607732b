// scan/state/: what all scan kernels share: launch arguments, the algebra of a scan, loads and
// stores of a warp, and the states that tiles exchange through global memory.
//
// This file: the functor contract of a scan kind, and warp scans of its states.
//
// Element i of a row, in scan order, with the prefix E_i, the state of the elements before it:
//
//     (w_i, c_i, E_{i+1}) = step(E_i, x_i)      R_i = dy_i + c_{i+1} R_{i+1}      dx_i = w_i R_i
//
// A prefix aggregates x of preceding elements and scans forward. A suffix is the affine map
// Q -> c_i (dy_i + Q) of an element, or the composition of the maps of adjacent elements, and scans
// backward; Q = c_{i+1} R_{i+1} enters an element from the right. Both have an associative
// `combine`, applied in trees of fixed shape, so that results do not depend on timing. Each thread
// then walks its own elements by the plain recurrence.
//
// The functor contract. A kind K has:
//
//     Tuning                   its tuned numbers, a struct of args.gen.cuh
//     Number                   accumulator type
//     Value                    element type of x: Number, i64 (indices), or void if x is not read
//     Prefix, Suffix           states, trivially copyable, with static identity()
//     Carry                    suffix that crosses tiles; to_carry(Suffix), from_carry(Carry)
//     combine(left, right)     for Prefix, Suffix and Carry; associative up to rounding
//     NEEDS_PREFIX             elements need the prefix of everything before them
//     SUFFIX_NEEDS_PREFIX      suffixes can be computed only after `enter`
//     pad(args)                x of an element that does not exist
//     FastPathFor<T>           the kind to try first for storage type T, or void (see KindDefaults)
//     ThreadScan<I, N, SEG>    I elements of a thread, stored N at a time, with
//         begin(args)
//         prefix(x, segment_heads)                    -> Prefix since the last segment head
//         enter(prefix, x, y, segment_heads)          takes the prefix of all before the thread
//         suffix(x, y, segment_heads)                 -> Suffix up to the first segment head
//         finish(suffix, x, y, segment_heads, store)  takes the suffix of all after the thread;
//                                                     calls store(c, dx of elements c * N ..)
//
// KindDefaults has the optional members. Some kinds have more members, which only kernels of such
// kinds read:
//
//     IS_FAST              rejections(Prefix): why a prefix is out of range, as bits
//                          ThreadScan::rejections: the same of a thread, complete after `finish`,
//                          or after `suffix` with SUFFIX_NEEDS_PREFIX and without SEG
//                          ACCEPTS_BOUNDED: whether there are two ways to be accepted (RowTile)
//     ACCEPTS_BOUNDED      ThreadScan::begins_small(dx, segment_heads): whether a row begins with a
//                          dx that is too small (RowTile with SEG)
//     HAS_BASE             base(first, largest): the base of a row, given its first x and the
//                          largest of the first few (column_pipelined, column_cluster; the base of
//                          other kernels is the first x)
//                          ThreadScan::base: the base, which the kernel sets after `begin`
//     PREFIX_FROM_SUFFIX   ThreadScan::product: the prefix of the thread, set by `suffix`
//     READS_RECORDS        ThreadScan::records: record flags, which the kernel sets after `begin`
//     FINDS_RECORDS        ThreadScan::records: record flags, set by `enter`
//                          ThreadScan::wins, beats, prefix_of; Prefix::best (records.cuh)
//     STORES_INDICES       ThreadScan::position, end: the position of element 0, and the one from
//                          which on there are no elements; set by the kernel after `begin`. SEG:
//                          positions count from the first row of the warp on
//                          ThreadScan::set_row(args, row), called next by RowTile and ColumnTile;
//                          stores_indices(args): whether the run wants indices
//                          ThreadScan::records, carried_record: which elements are records, and
//                          the position of the record before the thread; set by `finish`
//                          (store_indices.cuh)
//     HAS_SEQUENCES        states enter and leave rows (linear.cuh): ThreadScan::locate<T>(row,
//                          position of element 0, whether the row exists), called after `begin`,
//                          or with SEG locate_rows<T>
//     READS_HEADS          the heads of packed sequences are read (heads.cuh); ThreadScan is that
//                          of a segmented scan, whatever SEG is
//     HAS_TWO_RESULTS      a third input kStates, z, and a second output kSecond;
//                          ThreadScan::before: the z before element 0; finish(.., store, z) calls
//                          store(c, results, second results)
//     HAS_WIDE_RESULTS     flags say whether a result is stored as a Number, not as an element
//     Value is i64         index_of(args, position), and ThreadScan::records or
//                          ThreadScan::find_records(...), which sets it from indices
//                          (indices.cuh, ColumnTile)
//
// Kernels load y from the input kScanned and x from kSaved, and store to the output kResult
// (operands.cuh). A kind may be a forward scan (kinds/forward.cuh): its state is the Suffix,
// NEEDS_PREFIX is false, and the operands are passed with their positions in reverse, so that the
// suffix runs from the first element. With Value void it has one input, and with Value Number two,
// such as h[k] = x[k] h[k-1] + y[k]. Rows begin with the identity. A kind with STORES_INDICES has a
// second output, kIndices.
//
// Bit i of `segment_heads` is set if element i begins a row. SEG: a segmented scan, where any
// element may; otherwise at most one does. x(i) and y(i) are elements by index; x and y of a fast
// path are Elements (elements.cuh), which also have exceeds(limit), has_zero(from) and
// with_local_copy(f). The order of calls is prefix, enter, suffix, finish if SUFFIX_NEEDS_PREFIX,
// else prefix, suffix, enter, finish. With PREFIX_FROM_SUFFIX, suffix also sets the prefix, and
// `prefix` is called only by walks that find nothing else.
#pragma once

#include <type_traits>

#include "scan/state/operands.cuh"
#include "scan/state/elements.cuh"

// The bits from `begin` to end - 1, which are at most 32.
__device__ inline unsigned bits_between(int begin, int end)
{
    return static_cast<unsigned>((i64(1) << end) - (i64(1) << begin));
}

// The bits below the lowest set bit; all bits if none is set.
template <typename B>
__device__ B bits_below_lowest(B bits)
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
__device__ S shuffle_up(const S& s, int distance)
{
    return shuffled(s, [=](unsigned w) { return __shfl_up_sync(0xffffffff, w, distance); });
}

template <typename S>
__device__ S shuffle_down(const S& s, int distance)
{
    return shuffled(s, [=](unsigned w) { return __shfl_down_sync(0xffffffff, w, distance); });
}

template <typename S>
__device__ S from_lane(const S& s, int lane)
{
    return shuffled(s, [=](unsigned w) { return __shfl_sync(0xffffffff, w, lane); });
}

// Inclusive warp scan of prefixes over this lane and the `reach` lanes below it.
template <typename K>
__device__ typename K::Prefix inclusive_prefix(typename K::Prefix prefix, int reach)
{
#pragma unroll (K::LONG_COMBINE ? 1 : 5)
    for (int d = 1; d < 32; d *= 2) {
        const auto left = shuffle_up(prefix, d);
        if (d <= reach) prefix = K::combine(left, prefix);
    }
    return prefix;
}

// Inclusive warp scan of suffixes over this lane and the `reach` lanes above it.
template <typename K>
__device__ typename K::Suffix inclusive_suffix(typename K::Suffix suffix, int reach)
{
    if constexpr (K::SEGMENTED_SUM) {
        // The lanes from this one to `reach` above it whose suffix is closed. 2u << 31 is 0, so a
        // reach of 31 gives all bits. Sums beyond the first closed lane are not added.
        const unsigned closed = __ballot_sync(0xffffffff, !suffix.open) >> threadIdx.x % 32 & (2u << reach) - 1;
        const int last = closed ? __ffs(closed) - 1 : reach;
#pragma unroll
        for (int d = 1; d < 32; d *= 2) {
            const auto right = shuffle_down(suffix.sum, d);
            if (d <= last) suffix.sum += right;
        }
        suffix.open = closed == 0;
    } else {
#pragma unroll (K::LONG_COMBINE ? 1 : 5)
        for (int d = 1; d < 32; d *= 2) {
            const auto right = shuffle_down(suffix, d);
            if (d <= reach) suffix = K::combine(suffix, right);
        }
    }
    return suffix;
}

// Shared memory for N states, without running constructors.
template <typename S, int N>
struct Uninitialized {
    alignas(16) char bytes[N * sizeof(S)];
    __device__ S& operator[](int i) { return reinterpret_cast<S*>(bytes)[i]; }
};

// The prefix of a kind that needs none.
struct NoPrefix {};

// ------------------------------------------------------------------------------------------- kinds

// The optional members of a kind.
struct KindDefaults {
    using Args = ScanArgs;  // of its kernels, ScanArgs or a struct that begins with it
    static constexpr bool IS_FAST = false;  // the kind is the fast path of another one and may reject rows
    static constexpr bool PREFIX_FROM_SUFFIX = false;  // ThreadScan::suffix also computes the prefix, in `product`
    static constexpr bool FINDS_RECORDS = false;  // record pass: the output is a bit for each element
    static constexpr bool READS_RECORDS = false;  // record flags are read in place of x
    static constexpr bool KEEPS_ELEMENTS = false;  // ThreadScan keeps numbers of every element in registers
    static constexpr bool HAS_BASE = false;  // ThreadScan::base is an x near the beginning of the row
    static constexpr bool LONG_COMBINE = false;  // combine is long code: loops over it are not unrolled
    static constexpr bool SEGMENTED_SUM = false;  // a suffix is a sum that is open or closed: one vote finds segments
    static constexpr bool IS_FORWARD = false;  // a forward scan (kinds/forward.cuh)
    static constexpr bool STRIPED_ROWS = true;  // of kinds without x: row_resident leaves vectors in striped order
    static constexpr bool STORES_INDICES = false;  // a forward scan that stores indices as well
    static constexpr bool HAS_CARRIES = false;  // states enter and leave rows (carry.cuh)
    static constexpr bool HAS_SEQUENCES = false;  // states enter and leave the sequences of a row (linear.cuh)
    static constexpr bool READS_HEADS = false;  // heads of packed sequences (heads.cuh)
    static constexpr bool HAS_EXCLUSIVE = false;  // the scan may be exclusive (exclusive.cuh)
    static constexpr bool HAS_TWO_RESULTS = false;  // a third input and a second output of elements
    static constexpr bool HAS_WIDE_RESULTS = false;  // outputs may have the type of accumulators

    // How many elements of a thread with COUNT vectors of WIDTH elements are recomputed from x in
    // `finish`, to save registers.
    template <int WIDTH, int COUNT>
    static constexpr int RECOMPUTED_ELEMENTS = 0;

    // y of an element that does not exist. T() for 0, as compilers do not fold the conversion to
    // 16-bit types.
    template <typename T>
    static __device__ T pad_y(const ScanArgs&)
    {
        return T();
    }

    // The fast path for storage type T; void if there is none.
    template <typename T>
    using FastPathFor = void;
};

// A kind whose carry is its suffix.
template <typename T>
struct SameCarry : KindDefaults {
    using Carry = T;
    static __device__ T to_carry(const T& t) { return t; }
    static __device__ T from_carry(const T& t) { return t; }
};

// The fast path of a kind: arithmetic that is right only while numbers stay in range, tried before
// K. K itself if there is none. Its ThreadScan reports rejections; rows that are rejected are
// recomputed by K (fallback).
template <typename K, typename T>
using FastPath = std::conditional_t<
    std::is_void<typename K::template FastPathFor<T>>::value, K, typename K::template FastPathFor<T>>;
// Whether K has a fast path, or is one.
template <typename K>
constexpr bool kHasFastPath = FastPath<K, float>::IS_FAST;

// Rejections by a fast path, as bits. A row has up to two ways to be accepted: its products stay in
// range, or its inputs are bounded. Each bit rules out one way for the elements of a thread; a row
// is rejected if both bits are set among its threads. A fast path with one way sets both at once.
constexpr unsigned kRejectRange = 1, kRejectMagnitude = 2, kRejected = 3;

__device__ inline unsigned block_rejections(unsigned rejections)
{
    return (__syncthreads_or(rejections & kRejectRange) ? kRejectRange : 0) |
           (__syncthreads_or(rejections & kRejectMagnitude) ? kRejectMagnitude : 0);
}

// A prefix and a suffix that cross tiles: either the totals of the tiles that a CTA has walked so
// far, or the carry-in of one tile. After the walk forward, `prefix` of the totals begins anew,
// with the prefix before the split.
template <typename K>
struct RunningCarry {
    typename K::Prefix prefix;
    typename K::Carry suffix;
};

