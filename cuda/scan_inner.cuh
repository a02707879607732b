// Scans along a dim whose elements a block can walk: each thread owns I adjacent elements, in registers.
//
//     row     `height` warps own a row
//     tiles   a block walks the tiles of a row, or of a part of one
//     rows    a warp owns `width` whole rows, laid end to end; row boundaries cut heads and tails
#pragma once

#include "scan_walk.cuh"

// Threads of a block of `row`, at most; one of `rows` has half as many.
constexpr int kRowThreads = 512, kRowsThreads = 256;

// Vectors of 16 bytes of each operand that a thread owns. Two arrays of numbers are what a thread of logcumsumexp has room for.
template <typename K, typename T>
constexpr int kVectors = kHolds<K> && sizeof(T) == 2 ? 2 : 4;

template <typename K>
struct RowShared {
    Room<typename K::Head, 32> heads;  // totals of warps
    Room<typename K::Tail, 32> tails;
};

template <typename K, typename T, bool SEG, bool WALK, bool PLAIN = false>
struct Inner {
    using A = typename K::Number;
    using Head = typename K::Head;
    using Tail = typename K::Tail;
    using FarHead = typename K::FarHead;
    using Far = typename K::Far;
    static constexpr int V = 16 / sizeof(T), U = kVectors<K, T>, I = U * V;
    static constexpr bool X = __is_same(typename K::Value, A), INDEX = __is_same(typename K::Value, i64);
    static constexpr bool STRIPED = !X && !INDEX;  // a row needs no room
    using Cell = typename K::template Cell<I, V, SEG>;
    using Vector = Words<T, V>;

    const ScanArgs& args;
    RowShared<K>* shared;
    int from, to;  // the warps that share the row
    Passed<K>* entering;  // in shared memory

    // The join of what the warps of the block hold, in every lane of a warp.
    template <typename S>
    static __device__ auto total(Room<S, 32>& room, A base)
    {
        const int lane = threadIdx.x % 32, warps = blockDim.x / 32;
        auto s = K::far(room[min(lane, warps - 1)], base);
#pragma unroll
        for (int d = 1; d < 32; d *= 2) {
            const auto next = from_above(s, d);
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
#pragma unroll 1
        for (int d = 1; d < to - from; d *= 2) {
            const S next = from_above(s, d);
            s = lane + d < 32 ? join(s, next) : s;
        }
        return from_lane(s, 0);
    }

    // What enters this thread, given what the lanes ahead of it hold.
    __device__ Head head_before(const Head& in_warp, A base) const
    {
        if (SEG || (!WALK && to - from == 1)) return in_warp;
        const int warp = threadIdx.x / 32;
        const Head ahead = joined(&shared->heads[from], warp - from, K::empty(), [](const Head& l, const Head& r) { return K::join(l, r); });
        return K::join(WALK ? K::join(K::near(entering->head, base), ahead) : ahead, in_warp);
    }

    __device__ Tail tail_after(const Tail& in_warp, A base) const
    {
        if (SEG || (!WALK && to - from == 1)) return in_warp;
        const int warp = threadIdx.x / 32;
        const Tail behind = joined(&shared->tails[warp + 1], to - 1 - warp, K::nothing(), [](const Tail& l, const Tail& r) { return K::join(l, r); });
        return K::join(in_warp, WALK ? K::join(behind, K::near(entering->tail, base)) : behind);
    }

    __device__ Tail tails_of_lanes(const Tail& own, unsigned cuts) const
    {
        const int lane = threadIdx.x % 32;
        const unsigned above = cuts & ~((1u << lane) - 1);
        const Tail all = tails_down_to<K>(own, 1, SEG && above ? __ffs(above) - 1 - lane : 31 - lane);
        if (!SEG && lane == 0) shared->tails[threadIdx.x / 32] = all;
        const Tail next = from_above(all, 1);
        return lane == 31 ? K::nothing() : next;
    }

    __device__ Head heads_of_lanes(const Head& own, unsigned cuts) const
    {
        const int lane = threadIdx.x % 32;
        const unsigned below = cuts & (2u << lane) - 1;
        const Head all = heads_up_to<K>(own, 1, SEG && below ? lane - (31 - __clz(below)) : lane);
        if (!SEG && lane == 31) shared->heads[threadIdx.x / 32] = all;
        const Head next = from_below(all, 1);
        return lane == 0 ? K::empty() : next;
    }

    // The first x of the row in which the thread begins.
    template <typename X>
    __device__ A base_of(const X& x, unsigned starts, unsigned cuts, i64 place) const
    {
        if (!SEG) return widen<A>(reinterpret_cast<const T*>(args.x.data)[place]);
        A last = A(0);
#pragma unroll
        for (int i = 0; i < I; ++i)
            if (starts >> i & 1) last = x(i);
        const unsigned lane = threadIdx.x % 32, ahead = cuts & ((1u << lane) - 1);
        return __shfl_sync(0xffffffff, last, ahead ? 31 - __clz(ahead) : lane);
    }

    // Waits for the block, or with SEG the warp; whether none of its rows is too much for the kind.
    __device__ static bool all_tame(bool tame)
    {
        if (kTame<K>) return SEG ? __all_sync(0xffffffff, tame) : !__syncthreads_or(!tame);
        if (!SEG) __syncthreads();
        return true;
    }

    // A tile, or several whole rows. Of a walk: `passed` is the totals of the tiles so far; `phase` says what is wanted.
    // Returns false, and has done nothing, where the kind cannot do a row.
    __device__ bool run(Passed<K>& passed, const Span& at, unsigned starts, const Places& place, uint4* room, i64 phase) const
    {
        const Line<T, U, PLAIN> y(args, args.dy, at, place.dy), x(args, X ? args.x : args.dy, at, X ? place.x : place.dy);
        const bool heads_only = K::HEAD && WALK && phase == kHeads;
        Vector xs[U], ys[U];
        const auto xv = [&](int i) { return xs[i / V].template value<A>(i % V); };
        const auto yv = [&](int i) { return ys[i / V].template value<A>(i % V); };
        const T pad = static_cast<T>(X ? K::pad(args) : A(0));
        if constexpr (X) x.start(xs, pad);
        if (!heads_only) y.start(ys, T());
        Cell cell;
        cell.begin(args);
        if constexpr (X) x.finish(xs, room, pad);
        if constexpr (INDEX) take(cell, at, place.x, starts);
        const unsigned cuts = SEG ? __ballot_sync(0xffffffff, starts != 0) : 0;
        A base = A(0);
        if constexpr (kBased<K>) cell.base = base = base_of(xv, starts, cuts, place.x);
        Head head;
        if constexpr (K::HEAD) head = heads_of_lanes(cell.head(xv, starts), cuts);
        if constexpr (K::HEAD && WALK) {
            if (heads_only) {
                bool tame = true;
                if constexpr (kTame<K>) tame = at.hi <= at.lo || (cell.tame && K::tame(head));
                if (!all_tame(tame)) return false;
                if (threadIdx.x < 32) passed.head = K::join(passed.head, total(shared->heads, base));
                return true;
            }
        }
        Tail tail;
        if constexpr (!K::ORDERED) {
            if constexpr (X) renew(xs);
            y.finish(ys, room, T());
            tail = tails_of_lanes(cell.tail(xv, yv, starts), cuts);
        }
        if (!SEG) __syncthreads();
        if constexpr (K::ORDERED) y.finish(ys, room, T());
        if constexpr (X) renew(xs);
        renew(ys);
        if constexpr (K::HEAD) cell.enter(head_before(head, base), xv, yv, starts);
        if constexpr (K::ORDERED) {
            tail = tails_of_lanes(cell.tail(xv, yv, starts), cuts);
            if (!SEG) __syncthreads();
        }
        const auto add_tail = [&] {
            if (!WALK || threadIdx.x >= 32) return;
            passed.tail = K::join(total(shared->tails, base), passed.tail);
        };
        if constexpr (!kTame<K>) add_tail();
        if (!kTame<K> && WALK && phase == kTails) return true;
        if constexpr (X) renew(xs);
        renew(ys);
        const Line<T, U, PLAIN> out(args, args.dx, at, place.dx);
        cell.finish(tail_after(tail, base), xv, yv, starts, [&](int u, const A(&dx)[V]) { ys[u] = out.packed(dx); });
        if constexpr (kTame<K>) {
            if (!all_tame(cell.tame || at.hi <= at.lo)) return false;
            add_tail();
            if (WALK && phase == kTails) return true;
        }
        out.store(ys, room);
        return true;
    }

    // A row of a kind without x: vectors stay where they come from, vector u of lane l being elements (u * 32 + l) * V.. of the warp.
    __device__ void run_striped(const Span& at, const Places& place) const
    {
        const Line<T, U, PLAIN> y(args, args.dy, at, place.dy), out(args, args.dx, at, place.dx);
        using Cell = typename K::template Cell<V, V, false>;
        const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
        const auto join = [](const Tail& l, const Tail& r) { return K::join(l, r); };
        const auto none = [](int) { return A(0); };
        Vector ys[U];
        Tail tail[U];
        Cell cell;
        y.fetch(ys, T());
#pragma unroll
        for (int u = 0; u < U; ++u)
            tail[u] = tails_down_to<K>(cell.tail(none, [&](int i) { return ys[u].template value<A>(i); }, 0), 1, 31 - lane);
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

    __device__ void take(Cell& cell, const Span& at, i64 place, unsigned starts) const
    {
        const Line<i64, 1> x(args, args.x, at, place);
        const int own = threadIdx.x % 32 * I, lo = min(max(at.lo - own, 0), I), hi = min(max(at.hi - own, 0), I);
        i64 k = at.first + own + lo, row = at.row0;
        if (SEG) row += k / args.n, k %= args.n;
        const i64 before = lo < hi && !(starts >> lo & 1) ? *x.element(own + lo - 1) : 0;
        cell.take(args, [&](int i) { return *x.element(own + i); }, lo, hi, starts, row, k, before);
    }
};

// How far the first element of dx is from one that begins an aligned vector.
template <typename T>
__device__ int lead_of(const ScanArgs& args, i64 place)
{
    constexpr int V = 16 / sizeof(T);
    const i64 address = reinterpret_cast<i64>(args.dx.data) / static_cast<i64>(sizeof(T)) + place;
    return static_cast<int>((args.dx.step < 0 ? V - 1 - address : address) & (V - 1));
}

// The part of a tile, or of a row, that a warp owns, its element 0 being at `first`.
template <int I>
__device__ Span span_of(i64 row, i64 first, i64 n, int lead)
{
    return {row, first, first < 0 ? lead : 0, static_cast<int>(max(min(n - first, static_cast<i64>(32 * I)), i64(0))), false};
}

template <int I>
__device__ unsigned start_of(const Span& at)
{
    const int start = at.lo - static_cast<int>(threadIdx.x % 32) * I;
    return at.first <= 0 && at.first > -32 * I && start >= 0 && start < I ? 1u << start : 0;
}

// Whether the one row of a block is so many elements that lie aligned and forward in every operand.
template <typename K, typename T>
__device__ bool whole_row(const ScanArgs& args, const Places& place, int capacity)
{
    constexpr bool X = __is_same(typename K::Value, typename K::Number);
    const auto lies = [](const Strided& operand, i64 at) { return operand.step == 1 && aligned<16>(reinterpret_cast<T*>(operand.data) + at); };
    return args.width == 1 && args.n == capacity && lies(args.dy, place.dy) && lies(args.dx, place.dx) &&
           (!X || lies(args.x, place.x));
}

template <typename K, typename T>
__device__ bool row(const ScanArgs& args, uint4* room)
{
    using Scan = Inner<K, T, false, false>;
    constexpr int I = Scan::I;
    __shared__ RowShared<K> shared;
    const int warp = threadIdx.x / 32, team = static_cast<int>(args.height);
    int from = 0;
    i64 strip = blockIdx.x;
    if (args.width > 1) {  // rows of a block; a team is a power of two then
        const int shift = __ffs(team) - 1, mine = warp >> shift;
        from = mine << shift;
        strip = strip * args.width + mine;
    }
    const bool real = strip < args.strips;
    const Places place(args, 0, real ? strip : 0);
    int lead = lead_of<T>(args, place.dx);
    if (args.n + lead > team * 32 * I) lead = 0;
    const Span at = span_of<I>(strip, (warp - from) * 32 * I - lead, real ? args.n : -lead, lead);
    Passed<K> passed;
    const auto run = [&](const auto& scan) {
        if constexpr (Scan::STRIPED) {
            scan.run_striped(at, place);
            return true;
        } else {
            return scan.run(passed, at, start_of<I>(at), place, room + warp * 32 * Scan::U, 0);
        }
    };
    if constexpr (!Scan::INDEX && kTame<K> == kTamed<K>) {
        if (whole_row<K, T>(args, place, team * 32 * I)) return run(Inner<K, T, false, false, true>{args, &shared, from, from + team, nullptr});
    }
    return run(Scan{args, &shared, from, from + team, nullptr});
}

template <typename K, typename T>
__device__ __noinline__ void row_apart(const ScanArgs& args, uint4* room)
{
    row<K, T>(args, room);
}

// A kind and the one that is tried first agree on how threads share the elements.
template <typename K, typename T>
__device__ void row(const ScanArgs& args)
{
    using Scan = Inner<K, T, false, false>;
    __shared__ uint4 room[Scan::STRIPED ? 1 : kRowThreads * Scan::U];
    if constexpr (!kTamed<K>)
        row<K, T>(args, room);
    else if (!row<TameKind<K>, T>(args, room))
        row_apart<K, T>(args, room);
}

template <typename K, typename T>
__device__ void tiles(const ScanArgs& args)
{
    using Scan = Inner<K, T, false, true>;
    using Tame = TameKind<K>;
    constexpr int I = Scan::I;
    __shared__ RowShared<K> shared;
    __shared__ RowShared<Tame> tame_shared;
    __shared__ Room<Passed<K>, 1> entering;
    __shared__ uint4 room[kRowThreads * Scan::U];
    const int warp = threadIdx.x / 32, warps = blockDim.x / 32, count = static_cast<int>(args.tiles);
    const i64 strip = blockIdx.x / static_cast<unsigned>(args.parts), part = blockIdx.x - strip * args.parts, phase = args.flags & (kHeads | kTails);
    const Walk<K> walk(args, strip, part, 1);
    const Places place(args, 0, strip);
    const int capacity = blockDim.x * I;
    int lead = lead_of<T>(args, place.dx);
    if (args.n + lead > args.parts * count * capacity) lead = 0;
    typename K::Head head;
    Passed<Tame> passed;
    passed.tail = K::far(K::nothing(), typename K::Number());
    const auto tile = [&](int t, i64 phase) {
        const Span at = span_of<I>(strip, (part * count + t) * capacity + warp * 32 * I - lead, args.n, lead);
        const unsigned starts = start_of<I>(at);
        const Scan scan{args, &shared, 0, warps, &entering[0]};
        uint4* own_room = room + warp * 32 * Scan::U;
        if constexpr (!kTamed<K>)
            scan.run(passed, at, starts, place, own_room, phase);
        else if (!Inner<Tame, T, false, true>{args, &tame_shared, 0, warps, &entering[0]}.run(passed, at, starts, place, own_room, phase))
            passed = apart(scan, passed, at, starts, place, own_room, phase);
        __syncthreads();
    };
    if constexpr (K::HEAD) {
        passed.head = K::empty();
        if (phase == kHeads || (phase == 0 && args.parts == 1)) {
#pragma unroll 1
            for (int t = 0; t < count; ++t) {
                if (threadIdx.x == 0) walk.head_before(t, 0) = passed.head;
                tile(t, kHeads);
            }
            if (phase == kHeads) {
                if (threadIdx.x == 0) walk.head(0) = passed.head;
                return;
            }
        }
        passed.head = K::empty();
        if (args.parts > 1 && warp == 0) passed.head = walk.ahead_by_warp();
    }
    if (args.parts > 1 && phase == 0 && warp == 0) passed.tail = walk.behind_by_warp();
#pragma unroll 1
    for (int t = count - 1; t >= 0; --t) {
        if (threadIdx.x == 0) {
            if constexpr (K::HEAD) entering[0].head = K::join(passed.head, walk.head_before(t, 0));
            entering[0].tail = passed.tail;
        }
        tile(t, phase);
    }
    if (phase == kTails && threadIdx.x == 0) walk.tail(0) = passed.tail;
}

// Returns false if the kind cannot do the rows of this warp.
template <typename K, typename T>
__device__ bool rows(const ScanArgs& args, uint4* room)
{
    using Scan = Inner<K, T, true, false>;
    constexpr int I = Scan::I, warps = kRowsThreads / 32;
    const int n = static_cast<int>(args.n), warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const i64 row0 = (static_cast<i64>(blockIdx.x) * warps + warp) * args.width;
    const int count = static_cast<int>(max(min(args.width, args.strips - row0), i64(0))) * n;
    if (count == 0) return true;
    const Places place(args, 0, row0);
    int lead = lead_of<T>(args, place.dx);
    if (count + lead > 32 * I) lead = 0;
    const Span at = {row0, -lead, lead, count + lead, true};
    const int k = lane * I - lead, rest = k > 0 ? k % n : 0;
    unsigned starts = 0;
    for (int i = k < 0 ? -k : rest == 0 ? 0 : n - rest; i < min(I, at.hi - lane * I); i += n) starts |= 1u << i;
    Passed<K> passed;
    return Scan{args, nullptr, 0, 0, nullptr}.run(passed, at, starts, place, room + warp * 32 * Scan::U, 0);
}

template <typename K, typename T>
__device__ __noinline__ void rows_apart(const ScanArgs& args, uint4* room)
{
    rows<K, T>(args, room);
}

template <typename K, typename T>
__device__ void rows(const ScanArgs& args)
{
    __shared__ uint4 room[kRowsThreads * kVectors<K, T>];
    if constexpr (!kTamed<K>)
        rows<K, T>(args, room);
    else if (!rows<TameKind<K>, T>(args, room))
        rows_apart<K, T>(args, room);
}
