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
constexpr int kVectors = K::ORDERED && sizeof(typename K::Head) == 2 * sizeof(typename K::Number) && sizeof(T) == 2 ? 2 : 4;

template <typename K>
struct RowShared {
    Room<typename K::Head, 32> heads;  // totals of warps
    Room<typename K::Tail, 32> tails;
    Room<typename K::Head, 1> head;  // what enters the tile
    Room<typename K::Far, 1> tail;
};

template <typename K, typename T, bool SEG, bool WALK, bool PLAIN = false>
struct Inner {
    using A = typename K::Number;
    using Head = typename K::Head;
    using Tail = typename K::Tail;
    using Far = typename K::Far;
    static constexpr int V = 16 / sizeof(T), U = kVectors<K, T>, I = U * V;
    static constexpr bool X = __is_same(typename K::Value, A), INDEX = __is_same(typename K::Value, i64);
    static constexpr bool STRIPED = !X && !INDEX;  // a row needs no room
    using Cell = typename K::template Cell<I, V, SEG>;
    using Vector = Words<T, V>;

    const ScanArgs& args;
    RowShared<K>* shared;
    int from, to;  // the warps that share the row

    // The join of what the warps of the block hold, in every lane of a warp.
    template <typename S, typename Join>
    static __device__ S total(Room<S, 32>& room, S nothing, Join join)
    {
        const int lane = threadIdx.x % 32;
        S s = lane < static_cast<int>(blockDim.x / 32) ? room[lane] : nothing;
#pragma unroll
        for (int d = 1; d < 32; d *= 2) {
            const S next = from_above(s, d);
            if (lane + d < 32) s = join(s, next);
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
    __device__ Head head_before(const Head& in_warp) const
    {
        if (SEG || (!WALK && to - from == 1)) return in_warp;
        const int warp = threadIdx.x / 32;
        const Head ahead = joined(&shared->heads[from], warp - from, K::empty(), [](const Head& l, const Head& r) { return K::join(l, r); });
        return K::join(WALK ? K::join(shared->head[0], ahead) : ahead, in_warp);
    }

    __device__ Tail tail_after(const Tail& in_warp) const
    {
        if (SEG || (!WALK && to - from == 1)) return in_warp;
        const int warp = threadIdx.x / 32;
        const Tail behind = joined(&shared->tails[warp + 1], to - 1 - warp, K::nothing(), [](const Tail& l, const Tail& r) { return K::join(l, r); });
        return K::join(in_warp, WALK ? K::join(behind, K::near(shared->tail[0])) : behind);
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

    // A tile, or several whole rows. Of a walk: `head` and `tail` are the totals of the tiles so far; `phase` says what is wanted.
    __device__ void run(const Span& at, unsigned starts, const Places& place, uint4* room, i64 phase, Head& head_so_far, Far& tail_so_far) const
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
        cell.begin(args, reinterpret_cast<A*>(room) + threadIdx.x % 32 * (U * 16 / sizeof(A)));
        if constexpr (X) x.finish(xs, room, pad);
        if constexpr (INDEX) take(cell, at, place.x, starts);
        const unsigned cuts = SEG ? __ballot_sync(0xffffffff, starts != 0) : 0;
        Head head;
        if constexpr (K::HEAD) head = heads_of_lanes(cell.head(xv, starts), cuts);
        if constexpr (K::HEAD && WALK) {
            if (heads_only) {
                __syncthreads();
                if (threadIdx.x < 32) {
                    const auto join = [](const Head& l, const Head& r) { return K::join(l, r); };
                    head_so_far = K::join(head_so_far, total(shared->heads, K::empty(), join));
                }
                return;
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
        if constexpr (K::HEAD) cell.enter(head_before(head), xv, yv, starts);
        if constexpr (K::ORDERED) {
            tail = tails_of_lanes(cell.tail(xv, yv, starts), cuts);
            if (!SEG) __syncthreads();
        }
        if (WALK && threadIdx.x < 32) {
            const Tail own = total(shared->tails, K::nothing(), [](const Tail& l, const Tail& r) { return K::join(l, r); });
            tail_so_far = K::join(K::far(own), tail_so_far);
        }
        if (WALK && phase == kTails) return;
        if constexpr (X) renew(xs);
        renew(ys);
        const Line<T, U, PLAIN> out(args, args.dx, at, place.dx);
        cell.finish(tail_after(tail), xv, yv, starts, [&](int u, const A(&dx)[V]) { ys[u] = out.packed(dx); });
        out.store(ys, room);
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

// Whether the one row of a block is so many elements that lie aligned and forward in every operand. Kinds that step aside to shared memory
// lack the registers for a second body.
template <typename K, typename T>
__device__ bool whole_row(const ScanArgs& args, const Places& place, int capacity)
{
    constexpr bool X = __is_same(typename K::Value, typename K::Number);
    const auto lies = [](const Strided& operand, i64 at) { return operand.step == 1 && aligned<16>(reinterpret_cast<T*>(operand.data) + at); };
    return args.width == 1 && args.n == capacity && lies(args.dy, place.dy) && lies(args.dx, place.dx) &&
           (!X || lies(args.x, place.x));
}

template <typename K, typename T>
__device__ void row(const ScanArgs& args)
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
    typename K::Head head;
    typename K::Far tail;
    __shared__ uint4 room[Scan::STRIPED ? 1 : kRowThreads * Scan::U];
    const auto run = [&](const auto& scan) {
        if constexpr (Scan::STRIPED) {
            scan.run_striped(at, place);
        } else {
            scan.run(at, start_of<I>(at), place, room + warp * 32 * Scan::U, 0, head, tail);
        }
    };
    if constexpr (!K::ROOM && !Scan::INDEX) {
        if (whole_row<K, T>(args, place, team * 32 * I)) return run(Inner<K, T, false, false, true>{args, &shared, from, from + team});
    }
    run(Scan{args, &shared, from, from + team});
}

template <typename K, typename T>
__device__ void tiles(const ScanArgs& args)
{
    using Scan = Inner<K, T, false, true>;
    using Head = typename K::Head;
    constexpr int I = Scan::I;
    __shared__ RowShared<K> shared;
    __shared__ uint4 room[kRowThreads * Scan::U];
    const int warp = threadIdx.x / 32, warps = blockDim.x / 32, count = static_cast<int>(args.tiles);
    const i64 strip = blockIdx.x / static_cast<unsigned>(args.parts), part = blockIdx.x - strip * args.parts, phase = args.flags & (kHeads | kTails);
    const Walk<K> walk(args, strip, part, 1);
    const Places place(args, 0, strip);
    const int capacity = blockDim.x * I;
    int lead = lead_of<T>(args, place.dx);
    if (args.n + lead > args.parts * count * capacity) lead = 0;
    const Scan scan{args, &shared, 0, warps};
    Head head;
    typename K::Far tail = K::far(K::nothing());
    const auto tile = [&](int t, i64 phase) {
        const Span at = span_of<I>(strip, (part * count + t) * capacity + warp * 32 * I - lead, args.n, lead);
        scan.run(at, start_of<I>(at), place, room + warp * 32 * Scan::U, phase, head, tail);
        __syncthreads();
    };
    if constexpr (K::HEAD) {
        head = K::empty();
        if (phase == kHeads || (phase == 0 && args.parts == 1)) {
#pragma unroll 1
            for (int t = 0; t < count; ++t) {
                if (threadIdx.x == 0) walk.head_before(t, 0) = head;
                tile(t, kHeads);
            }
            if (phase == kHeads) {
                if (threadIdx.x == 0) walk.head(0) = head;
                return;
            }
        }
        head = K::empty();
        if (args.parts > 1 && warp == 0) head = walk.ahead_by_warp();
    }
    if (args.parts > 1 && phase == 0 && warp == 0) tail = walk.behind_by_warp();
#pragma unroll 1
    for (int t = count - 1; t >= 0; --t) {
        if (threadIdx.x == 0) {
            if constexpr (K::HEAD) shared.head[0] = K::join(head, walk.head_before(t, 0));
            shared.tail[0] = tail;
        }
        tile(t, phase);
    }
    if (phase == kTails && threadIdx.x == 0) walk.tail(0) = tail;
}

template <typename K, typename T>
__device__ void rows(const ScanArgs& args)
{
    using Scan = Inner<K, T, true, false>;
    constexpr int I = Scan::I, warps = kRowsThreads / 32;
    __shared__ uint4 room[kRowsThreads * Scan::U];
    const int n = static_cast<int>(args.n), warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const i64 row0 = (static_cast<i64>(blockIdx.x) * warps + warp) * args.width;
    const int count = static_cast<int>(max(min(args.width, args.strips - row0), i64(0))) * n;
    if (count == 0) return;
    const Places place(args, 0, row0);
    int lead = lead_of<T>(args, place.dx);
    if (count + lead > 32 * I) lead = 0;
    const Span at = {row0, -lead, lead, count + lead, true};
    const int k = lane * I - lead, rest = k > 0 ? k % n : 0;
    unsigned starts = 0;
    for (int i = k < 0 ? -k : rest == 0 ? 0 : n - rest; i < I; i += n) starts |= 1u << i;
    typename K::Head head;
    typename K::Far tail;
    Scan{args, nullptr, 0, 0}.run(at, starts, place, room + warp * 32 * Scan::U, 0, head, tail);
}
