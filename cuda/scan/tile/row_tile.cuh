// scan/tile/: one tile in registers, from load to store, along rows or along columns.
//
// This file: RowTile, a tile of a row, or several whole rows in a warp (segmented scan). Each
// thread owns I adjacent elements.
#pragma once

#include <type_traits>

#include "scan/state/exclusive.cuh"
#include "scan/state/heads.cuh"
#include "scan/state/warp_transpose.cuh"
#include "scan/tile/row_scan.cuh"
#include "scan/tile/store_indices.cuh"

// 16-byte vectors of each operand that a thread of row_packed owns. A fast path owns the most; the
// general kind behind it, whose code is long and seldom run, half as many unless T is float64.
template <typename K, typename T>
constexpr int kPackedVectors = K::IS_FAST ? kRowPackedVectors : K::Tuning::ROW_PACKED_VECTORS[sizeof(T) / 4];

// Whether the operands satisfy kVectorized, as the host says. Indices never do.
template <typename K>
__device__ bool is_vectorized(const ScanArgs& args)
{
    return !__is_same(typename K::Value, i64) && args.flags & kVectorized;
}

template <typename K, typename T, bool SEG, bool TILED, bool VECTORIZED = false, bool PARTIAL_ENDS = false>
struct RowTile {
    using A = typename K::Number;
    using Prefix = typename K::Prefix;
    using Suffix = typename K::Suffix;
    static constexpr int V = 16 / sizeof(T),
                         U = TILED ? K::Tuning::ROW_TILED_VECTORS[sizeof(T) / 4]
                             : SEG ? kPackedVectors<K, T>
                                   : K::Tuning::ROW_RESIDENT_VECTORS[sizeof(T) / 4],
                         I = U * V;
    static constexpr bool READS_X = __is_same(typename K::Value, A), INDEX = __is_same(typename K::Value, i64);
    // Kinds that do not read x: row_resident scans most of them in striped order, without shared
    // memory.
    static constexpr bool READS_Y_ALONE = !READS_X && !INDEX,
                          STRIPED = READS_Y_ALONE && K::STRIPED_ROWS && !K::STORES_INDICES;
    using IO = WarpTransposeIO<T, U, VECTORIZED, PARTIAL_ENDS>;
    using ThreadScan = typename K::template ThreadScan<I, V, SEG>;
    using Vector = Words<T, V>;

    const ScanArgs& args;
    RowScan<K, SEG, TILED> scan;
    RunningCarry<K>* carry_in;  // in shared memory

    // The first x of the row in which the thread begins.
    template <typename X>
    __device__ A base_of(const IO& x, const X& xv, unsigned segment_heads, unsigned lane_heads, i64 offset) const
    {
        if (!SEG) return widen<A>(reinterpret_cast<const T*>(args.inputs[kSaved].data)[offset]);
        const unsigned lane = threadIdx.x % 32, preceding = lane_heads & ((1u << lane) - 1);
        A last = A(0);
        if constexpr (sizeof(T) == 2) {  // read again: selecting among this many registers takes longer
            if (segment_heads) last = widen<A>(*x.element(lane * I + 31 - __clz(segment_heads)));
        } else {
#pragma unroll
            for (int i = 0; i < I; ++i)
                if (segment_heads >> i & 1) last = xv(i);
        }
        return __shfl_sync(0xffffffff, last, preceding ? 31 - __clz(preceding) : lane);
    }

    // Barrier of the CTA (of the warp if SEG) that returns whether its rows are accepted by the
    // fast path. With ACCEPTS_BOUNDED there are two ways to be accepted: kRejectRange rules out
    // one, kRejectMagnitude the other, and kRejected, which has both bits, rules out both.
    template <typename DX>
    __device__ static bool is_fast(const ThreadScan& thread, const Span& span, const DX& dx, unsigned segment_heads)
    {
        const unsigned own = span.lo < span.hi ? thread.rejections : 0;
        const auto some = [](bool rejection) {
            return SEG ? __any_sync(0xffffffff, rejection) : __syncthreads_or(rejection);
        };
        if constexpr (!K::ACCEPTS_BOUNDED)
            return !some(own);
        else if constexpr (SEG)
            return !some(own & kRejectRange) ||
                   !some(own & kRejectMagnitude || ThreadScan::begins_small(dx, segment_heads));
        else
            return !some(own & kRejectMagnitude) || !some(own & kRejectRange);
    }

    // k / n, exact for k < 2^11.
    static __device__ int rows_before(int k, int n) { return static_cast<int>(__fdividef(k + 0.5f, n)); }

    // Bit mask of segment heads: bit i is set if element i of this thread begins a row.
    __device__ unsigned segment_heads_of(const Span& span) const
    {
        const int own = threadIdx.x % 32 * I;
        if constexpr (K::READS_HEADS) return heads_at<I>(args, span.first + own);
        if (!SEG) {
            const int start = span.lo - own;
            return span.first <= 0 && span.first > -32 * I && start >= 0 && start < I ? 1u << start : 0;
        }
        const int n = static_cast<int>(args.n), k = own - span.lo;
        const int rest = k > 0 ? k - n * rows_before(k, n) : 0;
        unsigned segment_heads = 0;
#pragma unroll 1
        for (int i = k < 0 ? -k : rest == 0 ? 0 : n - rest; i < min(I, span.hi - own); i += n) segment_heads |= 1u << i;
        return segment_heads;
    }

    // Bit mask of the elements of this thread that end a row of several in the warp.
    __device__ unsigned segment_tails_of(const Span& span) const
    {
        const int own = threadIdx.x % 32 * I, n = static_cast<int>(args.n), k = own - span.lo;
        const int rest = k > 0 ? k - n * rows_before(k, n) : k;
        unsigned tails = 0;
#pragma unroll 1
        for (int i = n - 1 - rest; i < min(I, span.hi - own); i += n) tails |= 1u << i;
        return tails;
    }

    // Tells a thread which rows its elements are in.
    __device__ void locate(ThreadScan& thread, const Span& span, unsigned heads) const
    {
        const int own = threadIdx.x % 32 * I;
        const bool exists = span.lo < span.hi;
        if constexpr (SEG)
            thread.template locate_rows<T>(
                span.row0, own - span.lo, from_lane(heads, threadIdx.x % 32),
                from_lane(segment_tails_of(span), threadIdx.x % 32), existing_elements(span), exists);
        else
            thread.template locate<T>(span.row0, span.first + own, exists);
    }

    // Bit mask of the elements of this thread that exist.
    __device__ unsigned existing_elements(const Span& span) const
    {
        const int own = threadIdx.x % 32 * I, end = max(min(span.hi - own, I), 0);
        return bits_between(min(max(span.lo - own, 0), end), end);
    }

    // Whether an output has the type of accumulators.
    __device__ bool is_wide(int output) const
    {
        return K::HAS_WIDE_RESULTS && args.flags & (output == kResult ? kResultWide : kSecondWide);
    }

    // Stores vector u of a thread as accumulators.
    __device__ void store_accumulators(int output, const Span& span, i64 offset, int u, const A (&x)[V]) const
    {
        const WarpTransposeIO<A, 1> to(args, args.outputs[output], span, offset);
        constexpr int W = 16 / sizeof(A);  // a vector has as many accumulators, or fewer
        const int first = static_cast<int>(threadIdx.x % 32) * I + u * V;
        if (to.vectorizable && first >= span.lo && first + V <= span.hi) {
#pragma unroll
            for (int k = 0; k < V; k += W) {
                Words<A, W> word;
#pragma unroll
                for (int v = 0; v < W; ++v) word.set(v, x[k + (to.backward() ? W - 1 - v : v)]);
                word.store(to.vector((first + k) / W));
            }
            return;
        }
#pragma unroll
        for (int v = 0; v < V; ++v)
            if (first + v >= span.lo && first + v < span.hi) *to.element(first + v) = x[v];
    }

    // In an exclusive scan, replaces the last element of each row or packed sequence.
    __device__ void leave_out_ends(const Span& span, Vector (&word)[U], T value) const
    {
        if constexpr (K::HAS_EXCLUSIVE) {
            const int own = threadIdx.x % 32 * I;
            if (!(args.flags & kExclusive)) return;
            if constexpr (K::READS_HEADS)
                replace_elements(word, heads_at<I>(args, span.first + own + 1), value);
            else if constexpr (SEG)
                replace_elements(word, segment_tails_of(span), value);
            else
                replace_from(word, args.n - 1 - span.first - own, value);
        }
    }

    // The element after those of the warp, if an exclusive scan reads it.
    template <typename Y>
    __device__ T element_after_warp(const Span& span, const Y& y) const
    {
        const bool exists = !SEG && span.hi > 0 && span.first + 32 * I < args.n;
        return reads_next<K>(args) && exists ? *y.element(32 * I) : K::template pad_y<T>(args);
    }

    // The elements of a thread and their scan. References to locals of `run`: as members of one
    // struct they cost 5 to 10 % in single rows of 16 bits on an H200.
    struct Thread {
        const RowTile& tile;
        const Span& span;
        const IO& y;
        uint4* smem;
        Vector (&xs)[U], (&ys)[U];
        T after_warp;  // the element after those of the warp, which an exclusive scan reads
        ThreadScan& scan;
        unsigned first_heads, lane_heads;  // elements that begin a row; lanes that have such elements

        __device__ Elements<A, T, V, U> xv() const { return {xs}; }
        __device__ Elements<A, T, V, U> yv() const { return {ys}; }

        // The compiler would keep a predicate for each bit of a mask whose origin it sees. A
        // shuffle hides the origin, so that the mask stays in one register.
        __device__ unsigned segment_heads() const
        {
            if constexpr (K::READS_HEADS) return keep_here(first_heads);
            return SEG ? from_lane(first_heads, threadIdx.x % 32) : first_heads;
        }
        __device__ void finish_y() const
        {
            const T pad = K::template pad_y<T>(tile.args);
            y.finish(ys, smem, pad);
            if (reads_next<K>(tile.args)) take_next(ys, after_warp);
            if constexpr (SEG || K::READS_HEADS) tile.leave_out_ends(span, ys, pad);  // else pad is there
        }
        __device__ void rematerialize_x() const
        {
            if constexpr (READS_X) rematerialize(xs);
        }
        __device__ Prefix prefix() const { return scan.prefix(xv(), segment_heads()); }
        __device__ Suffix suffix() const { return scan.suffix(xv(), yv(), segment_heads()); }
    };

    // The order in which prefixes and suffixes are found; each has a function of its own.
    struct SuffixAlone {};         // no prefix
    struct SuffixBesidePrefix {};  // both from the elements alone
    struct PrefixFromSuffix {};    // finding the suffix of a thread finds its prefix; never TILED
    struct SuffixAfterPrefix {};   // a suffix needs the prefix of everything before it
    using Order = std::conditional_t<
        !K::NEEDS_PREFIX, SuffixAlone,
        std::conditional_t<
            K::PREFIX_FROM_SUFFIX, PrefixFromSuffix,
            std::conditional_t<K::SUFFIX_NEEDS_PREFIX, SuffixAfterPrefix, SuffixBesidePrefix>>>;

    // find_suffix: takes the prefix of the lanes before this one and finds the suffix of the lanes
    // after it; between them a barrier of the CTA, after which all warps see the totals of all.
    // Returns false if the fast path rejects a row already.
    __device__ bool find_suffix(SuffixAlone, const Thread& thread, const Prefix&, Suffix& suffix) const
    {
        thread.rematerialize_x();
        thread.finish_y();
        suffix = scan.exclusive_suffix(thread.suffix(), thread.lane_heads);
        barrier();
        return true;
    }

    __device__ bool find_suffix(
        SuffixBesidePrefix, const Thread& thread, const Prefix& prefix, Suffix& suffix) const
    {
        find_suffix(SuffixAlone(), thread, prefix, suffix);
        enter(thread, prefix);
        return true;
    }

    __device__ bool find_suffix(PrefixFromSuffix, const Thread& thread, const Prefix&, Suffix& suffix) const
    {
        thread.rematerialize_x();
        thread.finish_y();
        const Suffix own = thread.suffix();
        const Prefix prefix = scan.exclusive_prefix(thread.scan.product, thread.lane_heads);
        suffix = scan.exclusive_suffix(own, thread.lane_heads);
        barrier();
        enter(thread, prefix);
        return true;
    }

    __device__ bool find_suffix(
        SuffixAfterPrefix, const Thread& thread, const Prefix& prefix, Suffix& suffix) const
    {
        barrier();
        thread.finish_y();
        enter(thread, prefix);
        suffix = scan.exclusive_suffix(thread.suffix(), thread.lane_heads);
        if constexpr (K::IS_FAST && !SEG) return is_fast(thread.scan, thread.span, thread.yv(), 0);
        barrier();
        return true;
    }

    static __device__ void barrier()
    {
        if (!SEG) __syncthreads();
    }

    __device__ void enter(const Thread& thread, const Prefix& prefix) const
    {
        thread.rematerialize_x();
        rematerialize(thread.ys);
        thread.scan.enter(scan.prefix_before(prefix), thread.xv(), thread.yv(), thread.segment_heads());
        if constexpr (K::SEGMENTED_SUM && TILED) {
            if (thread.span.is_chunk) thread.scan.records &= existing_elements(thread.span);
        }
    }

    // Whether the second result is summed over the elements of a row that a warp has.
    __device__ bool sums_second() const { return K::HAS_WIDE_RESULTS && !SEG && args.flags & kSecondSummed; }

    // Stores the sum of the second results of the warp, which has a whole part of the row.
    __device__ void store_sum(const Span& span, i64 offset, A sum) const
    {
#pragma unroll
        for (int d = 16; d > 0; d /= 2) sum += __shfl_down_sync(0xffffffff, sum, d);
        const Strided& to = args.outputs[kSecond];
        // Element 0 of the warp may be up to a vector before the part.
        const i64 part = (span.first + (32 * I - 1)) / (32 * I);
        if (threadIdx.x % 32 == 0 && span.row0 < args.segments)
            reinterpret_cast<A*>(to.data)[offset + part * to.step] = sum;
    }

    // Runs a tile, or several whole rows. TILED: advances `running`, the totals of the tiles walked
    // so far, and `phase` selects an upsweep. Returns kRejected, without having stored anything, if
    // the fast path rejects a row.
    __device__ unsigned run(
        RunningCarry<K>& running, const Span& span, const Offsets& offsets, uint4* smem, i64 phase) const
    {
        constexpr int X = READS_X ? kSaved : kScanned;
        const IO y(args, args.inputs[kScanned], span, offsets.inputs[kScanned]),
            x(args, args.inputs[X], span, offsets.inputs[X]);
        const bool prefix_only = K::NEEDS_PREFIX && TILED && phase == kUpsweepPrefix;
        Vector xs[U], ys[U];
        const T pad = static_cast<T>(READS_X ? K::pad(args) : A(0));
        if constexpr (READS_X) {
            if (K::HAS_SEQUENCES && x.repeats())
                x.repeat(xs, pad);
            else
                x.start(xs, pad);
        }
        if (!prefix_only && y.repeats())
            y.repeat(ys, K::template pad_y<T>(args));
        else if (!prefix_only)
            y.start(ys, K::template pad_y<T>(args));
        Vector zs[K::HAS_TWO_RESULTS ? U : 1];
        const bool has_second = K::HAS_TWO_RESULTS && args.outputs[kSecond].data;
        const IO z(args, args.inputs[K::HAS_TWO_RESULTS ? kStates : X], span, offsets.inputs[kStates]);
        if constexpr (K::HAS_TWO_RESULTS) {
            if (has_second && phase == kDownsweep) z.start(zs, T());
        }
        ThreadScan thread_scan;
        const T after_warp = prefix_only ? T() : element_after_warp(span, y);
        Thread thread = {
            *this, span, y, smem, xs, ys, after_warp, thread_scan,
            TILED && span.is_chunk && !K::READS_HEADS ? 0 : segment_heads_of(span)};
        thread_scan.begin(args);
        if constexpr (K::HAS_SEQUENCES) locate(thread_scan, span, thread.first_heads);
        if constexpr (READS_X) x.finish(xs, smem, pad);
        if constexpr (READS_X) leave_out_ends(span, xs, pad);
        if constexpr (K::HAS_SEQUENCES && READS_X) {
            if (const unsigned bits = thread_scan.without_decay()) replace_elements(xs, bits, T());
        }
        if constexpr (INDEX) find_records(thread_scan, span, offsets.inputs[kSaved]);
        if constexpr (K::STORES_INDICES) {  // SEG: positions from the first row of the warp on
            const int own = threadIdx.x % 32 * I;
            thread_scan.position = SEG ? own - span.lo : span.first + own;
            thread_scan.end = SEG ? span.hi - span.lo : args.n;
            thread_scan.set_row(args, span.row0);
        }
        thread.lane_heads = SEG ? __ballot_sync(0xffffffff, thread.first_heads != 0) : 0;
        if constexpr (K::HAS_BASE)
            thread_scan.base =
                base_of(x, thread.xv(), thread.segment_heads(), thread.lane_heads, offsets.inputs[kSaved]);
        if (TILED && !prefix_only && threadIdx.x == 0) {
            if constexpr (K::NEEDS_PREFIX) scan.shared->carry_prefix[0] = carry_in->prefix;
            scan.shared->carry_suffix[0] = K::from_carry(carry_in->suffix);
        }
        Prefix prefix;
        if constexpr (K::NEEDS_PREFIX && !K::PREFIX_FROM_SUFFIX) {
            prefix = scan.exclusive_prefix(thread.prefix(), thread.lane_heads);
            if (prefix_only) {
                __syncthreads();
                if (threadIdx.x < 32)
                    running.prefix = K::combine(running.prefix, scan.total(scan.shared->warp_prefixes));
                return 0;
            }
        }
        Suffix suffix;
        if (!find_suffix(Order(), thread, prefix, suffix)) return kRejected;
        const auto advance_suffix = [&] {
            if (!TILED || threadIdx.x >= 32) return;
            running.suffix = K::combine(K::to_carry(scan.total(scan.shared->warp_suffixes)), running.suffix);
        };
        if (TILED && phase == kUpsweepSuffix) {
            advance_suffix();
            return 0;
        }
        thread.rematerialize_x();
        rematerialize(ys);
        const IO out(args, args.outputs[kResult], span, offsets.outputs[kResult]);
        if constexpr (K::HAS_TWO_RESULTS) {
            const Elements<A, T, V, U> zv{zs};
            if (has_second) {
                z.finish(zs, smem, T());
                thread_scan.before = __shfl_up_sync(0xffffffff, zv(I - 1), 1);
                if (out.lane() == 0 && span.first > 0 && span.hi > 0) thread_scan.before = widen<A>(*z.element(-1));
            }
            A sum = A(0);  // of second results
            thread_scan.finish(
                scan.suffix_after(suffix), thread.xv(), thread.yv(), thread.segment_heads(),
                [&](int u, const A(&dx)[V], const A(&second)[V]) {
                    if (is_wide(kResult)) store_accumulators(kResult, span, offsets.outputs[kResult], u, dx);
                    if (sums_second()) {
                        if constexpr (K::HAS_WIDE_RESULTS) sum += thread_scan.template sum_of<V>(u * V, second);
                    } else if (is_wide(kSecond)) {
                        store_accumulators(kSecond, span, offsets.outputs[kSecond], u, second);
                    }
                    ys[u] = out.packed(dx);
                    zs[u] = out.packed(second);
                },
                zv);
            if (sums_second()) store_sum(span, offsets.outputs[kSecond], sum);
            if (has_second && !is_wide(kSecond))
                IO(args, args.outputs[kSecond], span, offsets.outputs[kSecond]).store(zs, smem);
        } else {
            thread_scan.finish(
                scan.suffix_after(suffix), thread.xv(), thread.yv(), thread.segment_heads(),
                [&](int u, const A(&dx)[V]) { ys[u] = out.packed(dx); });
        }
        if constexpr (K::IS_FAST && (SEG || !K::SUFFIX_NEEDS_PREFIX)) {
            if (!is_fast(thread_scan, span, thread.yv(), thread.segment_heads())) return kRejected;  // ys holds dx
        }
        if constexpr (READS_X) leave_out_ends(span, ys, T());  // of a gradient, the last result is 0
        if (!K::HAS_TWO_RESULTS || !(args.flags & kNoResult) && !is_wide(kResult))
            out.store(ys, smem, SEG ? out.lane() : keep_here(out.lane()));
        if constexpr (K::STORES_INDICES) {
            if (ThreadScan::stores_indices(args)) store_indices(thread_scan, span, offsets.outputs[kIndices]);
        }
        advance_suffix();
        return 0;
    }

    // Runs a row of a kind without x. Vectors stay in striped order (vector u of lane l holds
    // elements (u * 32 + l) * V ..), which saves the transpose: a warp scan for each u.
    __device__ void run_striped(const Span& span, const Offsets& offsets) const
    {
        const WarpTransposeIO<T, U, VECTORIZED> y(args, args.inputs[kScanned], span, offsets.inputs[kScanned]),
            out(args, args.outputs[kResult], span, offsets.outputs[kResult]);
        using ThreadScan = typename K::template ThreadScan<V, V, false>;
        const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
        const auto none = [](int) { return A(0); };
        Vector ys[U];
        Suffix suffix[U];
        ThreadScan thread;
        thread.begin(args);
        if (reads_next<K>(args))
            fetch_next(ys, span, y, offsets.inputs[kScanned]);
        else if (y.repeats())
            y.repeat(ys, K::template pad_y<T>(args));
        else
            y.fetch(ys, K::template pad_y<T>(args));
#pragma unroll
        for (int u = 0; u < U; ++u)
            suffix[u] = inclusive_suffix<K>(
                thread.suffix(none, [&](int i) { return ys[u].template value<A>(i); }, 0), 31 - lane);
        Suffix after = K::Suffix::identity();
#pragma unroll
        for (int u = U - 1; u >= 0; --u) {
            const Suffix all = from_lane(suffix[u], 0), next = shuffle_down(suffix[u], 1);
            suffix[u] = lane == 31 ? after : K::combine(next, after);
            after = K::combine(all, after);
        }
        if (scan.end_warp - scan.first_warp > 1) {
            if (lane == 0) scan.shared->warp_suffixes[warp] = after;
            __syncthreads();
            after = scan.suffix_of_warps(warp);
#pragma unroll
            for (int u = 0; u < U; ++u) suffix[u] = K::combine(suffix[u], after);
        }
        rematerialize(ys);
#pragma unroll
        for (int u = U - 1; u >= 0; --u) {
            const auto yv = [&](int i) { return ys[u].template value<A>(i); };
            thread.finish(suffix[u], none, yv, 0, [&](int, const A(&dx)[V]) { out.put(out.packed(dx), u); });
        }
    }

    // Fetches, in striped order, the element after each one: of 16 bits in vectors. Others would be
    // spilled then, and memory takes longer than single accesses to them.
    template <typename Y>
    __device__ void fetch_next(Vector (&ys)[U], const Span& span, const Y& y, i64 offset) const
    {
        const T pad = K::template pad_y<T>(args);
        if (y.repeats() || sizeof(T) > 2) {
            Span next = span;
            next.hi = static_cast<int>(min(static_cast<i64>(span.hi), args.n - 1 - span.first));
            const Strided& operand = args.inputs[kScanned];
            return WarpTransposeIO<T, U>(args, operand, next, offset + operand.step).fetch(ys, pad);
        }
        y.fetch(ys, pad);
#pragma unroll
        for (int u = 0; u < U; ++u) {
            const int next = (u * 32 + y.lane()) * V + V;
            append_to(ys[u], span.first + next < args.n && next <= span.hi ? *y.element(next) : pad);
        }
    }

    __device__ void store_indices(const ThreadScan& thread, const Span& span, i64 offset) const
    {
        const WarpTransposeIO<i64, 1> to(args, args.outputs[kIndices], span, offset);
        const bool contiguous = to.contiguous();
        const int n = SEG ? static_cast<int>(args.n) : 1;
        for_each_record<I>(thread, SEG ? -span.lo : span.first, [&](int e, i64 position) {
            if (e < span.lo || e >= span.hi) return;
            if (SEG) position -= rows_before(static_cast<int>(position), n) * n;
            *(contiguous ? to.p + e * args.outputs[kIndices].step : to.element(e)) = thread.index_of(args, position);
        });
    }

    // Record flags from indices: kinds/indices.cuh.
    __device__ void find_records(ThreadScan& thread, const Span& span, i64 offset) const;
};
