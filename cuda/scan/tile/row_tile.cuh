// scan/tile/: one tile in registers, from load to store, along rows or along columns.
//
// A tile along a dim whose elements a block can walk, or several whole rows: each thread owns I adjacent elements, in registers.
#pragma once

#include <type_traits>

#include "common/async_copy.cuh"
#include "scan/state/direct_load.cuh"

// Vectors of 16 bytes of each operand that a thread owns: two where it holds two arrays of numbers made of them, more where it reads dy alone.
template <typename K, typename T>
constexpr int kVectors = kHolds<K> && sizeof(T) == 2 ? 2 : __is_same(typename K::Value, void) && sizeof(T) > 2 ? 8 : 4;

// Of several rows: half of four where the code of a kind that is seldom needed would be long. In float64 it is short.
template <typename K, typename T>
constexpr int kRowsVectors = kTamed<K> && !kTame<K> && sizeof(T) < 8 ? 2 : 4;

// In the tiles of long rows: half of that, lest registers be short, unless the kind reads dy alone.
template <typename K, typename T>
constexpr int kWalkVectors = __is_same(typename K::Value, void) ? 4 : kVectors<K, T> / 2;

// Whether a kind has much to reckon for each byte: where memory may be quick, full warps are then worth code of their own.
template <typename K, typename T>
constexpr bool kSlow = kTame<K> && kHolds<K> && sizeof(T) == 2;
#if defined(__CUDA_ARCH__) && (__CUDA_ARCH__ < 900 || __CUDA_ARCH__ >= 1200)
constexpr bool kQuickMemory = false;
#else
constexpr bool kQuickMemory = true;
#endif

// Threads of a block of `row`, at most; one of `rows` has half as many.
constexpr int kRowThreads = 512, kRowsThreads = 256;
constexpr int kSlowThreads = 2 * kRowThreads;  // of a multiprocessor, of a kind that is slow

template <typename K>
struct RowShared {
    Room<typename K::Head, 32> heads;  // totals of warps
    Room<typename K::Tail, 32> tails;
    Room<typename K::Head, 1> head;  // what enters the tile
    Room<typename K::Tail, 1> tail;
};

template <typename K, typename T, bool SEG, bool WALK, bool DENSE = false, bool LEADS = false, bool FULL = false>
struct Inner {
    using A = typename K::Number;
    using Head = typename K::Head;
    using Tail = typename K::Tail;
    static constexpr int V = 16 / sizeof(T), U = WALK ? kWalkVectors<K, T> : SEG ? kRowsVectors<K, T> : kVectors<K, T>, I = U * V;
    static constexpr bool X = __is_same(typename K::Value, A), INDEX = __is_same(typename K::Value, i64);
    static constexpr bool STRIPED = !X && !INDEX;  // a row needs no room
    using Input = std::conditional_t<X && DENSE && !LEADS && U * 16 == 32, OwnLine<T, U, FULL>, Line<T, U, DENSE, LEADS, FULL>>;
    using Cell = typename K::template Cell<I, V, SEG>;
    using Vector = Words<T, V>;

    const ScanArgs& args;
    RowShared<K>* shared;
    int from, to;  // the warps that share the row
    Passed<K>* entering;  // in shared memory

    // The join of what the warps of the block hold, in every lane of a warp.
    template <typename S>
    static __device__ S total(Room<S, 32>& room)
    {
        const int lane = threadIdx.x % 32, warps = blockDim.x / 32;
        S s = room[min(lane, warps - 1)];
#pragma unroll (kLong<S> ? 1 : 5)
        for (int d = 1; d < 32; d *= 2) {
            const S next = from_above(s, d);
            if (lane + d < warps) s = K::join(s, next);
        }
        return from_lane(s, 0);
    }

    // The join of `count` states of warps from `room` on.
    template <typename S, typename Join>
    __device__ S joined(S* room, int count, S nothing, Join join) const
    {
        const int lane = threadIdx.x % 32;
        S s = lane < count ? room[lane] : nothing;
#pragma unroll (kTame<K> && kHolds<K> ? 5 : 1)
        for (int d = 1; d < (kTame<K> && kHolds<K> ? kRowThreads / 32 : to - from); d *= 2) {
            const S next = from_above(s, d);
            s = lane + d < 32 ? join(s, next) : s;
        }
        return from_lane(s, 0);
    }

    // What the warps of the row ahead of one hold, and those behind it.
    __device__ Head heads_of_warps(int warp) const
    {
        return joined(&shared->heads[from], warp - from, K::empty(), [](const Head& l, const Head& r) { return K::join(l, r); });
    }
    __device__ Tail tails_of_warps(int warp) const
    {
        return joined(&shared->tails[warp + 1], to - 1 - warp, K::nothing(), [](const Tail& l, const Tail& r) { return K::join(l, r); });
    }

    // What enters this thread, given what the lanes ahead of it hold.
    __device__ Head head_before(const Head& in_warp) const
    {
        if (SEG || (!WALK && to - from == 1)) return in_warp;
        const Head ahead = heads_of_warps(threadIdx.x / 32);
        return K::join(WALK ? K::join(shared->head[0], ahead) : ahead, in_warp);
    }

    __device__ Tail tail_after(const Tail& in_warp) const
    {
        if (SEG || (!WALK && to - from == 1)) return in_warp;
        const Tail behind = tails_of_warps(threadIdx.x / 32);
        return K::join(in_warp, WALK ? K::join(behind, shared->tail[0]) : behind);
    }

    __device__ Tail tails_of_lanes(const Tail& own, unsigned cuts) const
    {
        const int lane = threadIdx.x % 32;
        const unsigned above = cuts & ~((1u << lane) - 1);
        const Tail all = tails_down_to<K>(own, SEG && above ? __ffs(above) - 1 - lane : 31 - lane);
        if (!SEG && lane == 0) shared->tails[threadIdx.x / 32] = all;
        const Tail next = from_above(all, 1);
        return lane == 31 ? K::nothing() : next;
    }

    __device__ Head heads_of_lanes(const Head& own, unsigned cuts) const
    {
        const int lane = threadIdx.x % 32;
        const unsigned below = cuts & (2u << lane) - 1;
        const Head all = heads_up_to<K>(own, SEG && below ? lane - (31 - __clz(below)) : lane);
        if (!SEG && lane == 31) shared->heads[threadIdx.x / 32] = all;
        const Head next = from_below(all, 1);
        return lane == 0 ? K::empty() : next;
    }

    // The first x of the row in which the thread begins.
    template <typename X>
    __device__ A base_of(const Input& x, const X& xv, unsigned starts, unsigned cuts, i64 place) const
    {
        if (!SEG) return widen<A>(reinterpret_cast<const T*>(args.x.data)[place]);
        const unsigned lane = threadIdx.x % 32, ahead = cuts & ((1u << lane) - 1);
        A last = A(0);
        if constexpr (sizeof(T) == 2) {  // read once more, where choosing among so many would take longer
            if (starts) last = widen<A>(*x.element(lane * I + 31 - __clz(starts)));
        } else {
#pragma unroll
            for (int i = 0; i < I; ++i)
                if (starts >> i & 1) last = xv(i);
        }
        return __shfl_sync(0xffffffff, last, ahead ? 31 - __clz(ahead) : lane);
    }

    // Waits for the block, or with SEG the warp; whether it can do its rows in one of the two ways.
    template <typename DX>
    __device__ static bool all_tame(const Cell& cell, const Span& at, const DX& dx, unsigned starts)
    {
        const unsigned own = FULL || at.lo < at.hi ? cell.faults : 0;
        const auto some = [](bool fault) { return SEG ? __any_sync(0xffffffff, fault) : __syncthreads_or(fault); };
        if constexpr (!K::TWO_WAYS)
            return !some(own);
        else if constexpr (SEG)
            return !some(own & kLeavesRange) || !some(own & kExtreme || Cell::begins_small(dx, starts));
        else
            return !some(own & kExtreme) || !some(own & kLeavesRange);
    }

    // k / n, exact, for k is below 2^11.
    static __device__ int rows_before(int k, int n) { return static_cast<int>(__fdividef(k + 0.5f, n)); }

    // Bit i: element i of this thread begins a row.
    __device__ unsigned starts_of(const Span& at) const
    {
        const int own = threadIdx.x % 32 * I;
        if (!SEG) {
            const int start = at.lo - own;
            return at.first <= 0 && at.first > -32 * I && start >= 0 && start < I ? 1u << start : 0;
        }
        const int n = static_cast<int>(args.n), k = own - at.lo;
        const int rest = k > 0 ? k - n * rows_before(k, n) : 0;
        unsigned starts = 0;
#pragma unroll 1
        for (int i = k < 0 ? -k : rest == 0 ? 0 : n - rest; i < min(I, at.hi - own); i += n) starts |= 1u << i;
        return starts;
    }

    // Brings near the row that is done when those are done of which the device has room for so many. The first ones are wanted sooner.
    __device__ void bring_next(unsigned row) const
    {
        if (!(args.flags & kForesee) || threadIdx.x != from * 32) return;
        unsigned units;
        asm("mov.u32 %0, %%nsmid;" : "=r"(units));
        const unsigned room = units * (kSlowThreads / blockDim.x) * static_cast<unsigned>(args.width);
        if (row < room || args.strips <= row + room) return;
        const Places next = Places::at_stride(args, 0, row + room);
        const int n = static_cast<int>(args.n), size = sizeof(T);
        foresee(args.x.data + (next.x - (args.x.step < 0 ? n - 1 : 0)) * size, n * size);
        if (args.dy.step != 0) foresee(args.dy.data + (next.dy - (args.dy.step < 0 ? n - 1 : 0)) * size, n * size);
    }

    // A tile, or several whole rows. Of a walk: `passed` is the totals of the tiles so far; `phase` says what is wanted.
    // Returns kUndone, and has done nothing, where the kind cannot do a row.
    __device__ unsigned run(Passed<K>& passed, const Span& at, const Places& place, uint4* room, i64 phase) const
    {
        const Input y(args, args.dy, at, place.dy), x(args, X ? args.x : args.dy, at, X ? place.x : place.dy);
        const bool heads_only = K::HEAD && WALK && phase == kHeads;
        Vector xs[U], ys[U];
        const Elements<A, T, V, U> xv{xs}, yv{ys};
        const T pad = static_cast<T>(X ? K::pad(args) : A(0));
        if constexpr (X) x.start(xs, pad);
        if (!heads_only && y.repeats())
            y.repeat(ys);
        else if (!heads_only)
            y.start(ys, T());
        const unsigned first = starts_of(at);
        const auto starts = [=] { return SEG ? from_lane(first, threadIdx.x % 32) : first; };  // lest its bits be kept one by one
        Cell cell;
        cell.begin(args);
        if constexpr (X) x.finish(xs, room, pad);
        if constexpr (INDEX) take(cell, at, place.x);
        const unsigned cuts = SEG ? __ballot_sync(0xffffffff, first != 0) : 0;
        if constexpr (kBased<K>) cell.base = base_of(x, xv, starts(), cuts, place.x);
        if constexpr (kSlow<K, T> && kQuickMemory && DENSE && !LEADS && !SEG && !WALK) bring_next(static_cast<unsigned>(at.row0));
        if (WALK && !heads_only && threadIdx.x == 0) {
            if constexpr (K::HEAD) shared->head[0] = entering->head;
            shared->tail[0] = K::near(entering->tail);
        }
        Head head;
        Tail tail;
        const auto find_tail = [&] {
            if constexpr (X) renew(xs);
            y.finish(ys, room, T());
            tail = cell.tail(xv, yv, starts());
        };
        if constexpr (kTogether<K>) {  // and walks nothing
            find_tail();
            head = heads_of_lanes(cell.product, cuts);
        } else if constexpr (K::HEAD) {
            head = heads_of_lanes(cell.head(xv, starts()), cuts);
        }
        if constexpr (K::HEAD && WALK) {
            if (heads_only) {
                __syncthreads();
                if (threadIdx.x < 32) passed.head = K::join(passed.head, total(shared->heads));
                return 0;
            }
        }
        if constexpr (!K::ORDERED) {
            if (!kTogether<K>) find_tail();
            tail = tails_of_lanes(tail, cuts);
        }
        if (!SEG) __syncthreads();
        if constexpr (K::ORDERED) y.finish(ys, room, T());
        if constexpr (X) renew(xs);
        renew(ys);
        if constexpr (K::HEAD) cell.enter(head_before(head), xv, yv, starts());
        if constexpr (K::ORDERED) {
            tail = tails_of_lanes(cell.tail(xv, yv, starts()), cuts);
            if constexpr (kTame<K> && !SEG) {
                if (!all_tame(cell, at, yv, 0)) return kUndone;
            } else if (!SEG) {
                __syncthreads();
            }
        }
        const auto add_tail = [&] {
            if (!WALK || threadIdx.x >= 32) return;
            passed.tail = K::join(K::far(total(shared->tails)), passed.tail);
        };
        if (WALK && phase == kTails) {
            add_tail();
            return 0;
        }
        if constexpr (X) renew(xs);
        renew(ys);
        const Line<T, U, DENSE, LEADS, FULL> out(args, args.dx, at, place.dx);
        cell.finish(tail_after(tail), xv, yv, starts(), [&](int u, const A(&dx)[V]) { ys[u] = out.packed(dx); });
        if constexpr (kTame<K> && (SEG || !K::ORDERED)) {
            if (!all_tame(cell, at, yv, starts())) return kUndone;  // ys is dx
        }
        out.store(ys, room, SEG ? out.lane() : opaque(out.lane()));
        add_tail();
        return 0;
    }

    // A row of a kind without x: vectors stay where they come from, vector u of lane l being elements (u * 32 + l) * V.. of the warp.
    __device__ void run_striped(const Span& at, const Places& place) const
    {
        const Line<T, U, DENSE> y(args, args.dy, at, place.dy), out(args, args.dx, at, place.dx);
        using Cell = typename K::template Cell<V, V, false>;
        const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
        const auto join = [](const Tail& l, const Tail& r) { return K::join(l, r); };
        const auto none = [](int) { return A(0); };
        Vector ys[U];
        Tail tail[U];
        Cell cell;
        if (y.repeats())
            y.repeat(ys);
        else
            y.fetch(ys, T());
#pragma unroll
        for (int u = 0; u < U; ++u)
            tail[u] = tails_down_to<K>(cell.tail(none, [&](int i) { return ys[u].template value<A>(i); }, 0), 31 - lane);
        Tail after = K::nothing();
#pragma unroll
        for (int u = U - 1; u >= 0; --u) {
            const Tail all = from_lane(tail[u], 0), next = from_above(tail[u], 1);
            tail[u] = lane == 31 ? after : K::join(next, after);
            after = K::join(all, after);
        }
        if (to - from > 1) {
            if (lane == 0) shared->tails[warp] = after;
            __syncthreads();
            after = joined(&shared->tails[warp + 1], to - 1 - warp, K::nothing(), join);
#pragma unroll
            for (int u = 0; u < U; ++u) tail[u] = K::join(tail[u], after);
        }
        renew(ys);
#pragma unroll
        for (int u = U - 1; u >= 0; --u) {
            const auto yv = [&](int i) { return ys[u].template value<A>(i); };
            cell.finish(tail[u], none, yv, 0, [&](int, const A(&dx)[V]) { out.put(out.packed(dx), u); });
        }
    }

    __device__ void take(Cell& cell, const Span& at, i64 place) const;
};
