// Scans along a dim while another one is adjacent in memory: a thread owns W columns of R rows, `width` threads lie side by side, `height`
// of them one above the other share a strip. A strip of more than a warp has a block for itself, which walks its tiles.
#pragma once

#include "scan_inner.cuh"
#include "scan_walk.cuh"

constexpr int kColumnThreads = 512;

// Bytes of a row that a thread owns, and rows: so that a thread has few columns to find the states of.
template <typename K, typename T>
constexpr int kAcross = sizeof(T) == 8 || !(K::HEAD || __is_same(typename K::Value, i64)) ? 8 : 4;
template <typename K, typename T>
constexpr int kDown = sizeof(T) == 8 || (sizeof(T) == 2 && kTamed<K>) || !(K::HEAD || __is_same(typename K::Value, i64)) ? 8 : 16;

template <typename K, typename T>
struct Outer {
    static constexpr int N = sizeof(T) == 8 ? 2 : 4, W = kAcross<K, T> / sizeof(T), R = kDown<K, T>, ROOM = kColumnThreads * W;
    using A = typename K::Number;
    using Head = typename K::Head;
    using Tail = typename K::Tail;
    using FarHead = typename K::FarHead;
    using Far = typename K::Far;
    static constexpr bool X = __is_same(typename K::Value, A), INDEX = __is_same(typename K::Value, i64);
    using Cell = typename K::template Cell<R, N, false>;
    using Vector = Words<T, W>;

    struct Shared {  // totals of warps, [warp][column]; then what enters the warp
        Room<Head, K::HEAD ? ROOM : 1> heads;
        Room<Tail, ROOM> tails;
    };

    const ScanArgs& args;
    Shared& shared;
    i64 strip;
    int width, height, lane, x, y;
    i64 outer, column;
    int columns;
    i64 row0;  // of the tile
    int count;

    __device__ Outer(const ScanArgs& a, Shared& s, i64 strip) : args(a), shared(s), strip(strip)
    {
        width = static_cast<int>(args.width), height = static_cast<int>(args.height), lane = threadIdx.x % 32;
        x = threadIdx.x & (width - 1);
        const int above = threadIdx.x / width;
        y = above & (height - 1);
        if (alone()) this->strip += above / height;  // strips of a block
        const i64 across = (args.extent[0] + width * W - 1) / (width * W);
        outer = across == 1 ? this->strip : this->strip / across;
        column = (this->strip - outer * across) * width * W + x * W;
        const i64 wide = this->strip < args.strips ? args.extent[0] - column : 0;
        columns = static_cast<int>(max(min(wide, static_cast<i64>(W)), i64(0)));
    }

    __device__ void move_to(i64 tile)
    {
        row0 = (tile * height + y) * R;
        count = columns == 0 ? 0 : static_cast<int>(max(min(args.n - row0, static_cast<i64>(R)), i64(0)));
    }

    // Whether strips are parts of warps.
    __device__ bool alone() const { return width * height <= 32; }

    template <typename S>
    __device__ S* first(const Strided& operand, i64 outside) const
    {
        return reinterpret_cast<S*>(operand.data) + outside + column * operand.stride[0] + row0 * operand.step;
    }

    // Whether the columns of this thread are one access in every row.
    __device__ bool wide(const Strided& operand, const T* q) const
    {
        return columns == W && operand.stride[0] == 1 && aligned<W * sizeof(T)>(q) && operand.step % W == 0;
    }

    __device__ void load(const Strided& operand, i64 outside, Vector (&word)[R], T pad) const
    {
        const T* q = first<T>(operand, outside);
        const bool all = wide(operand, q);
        if (all && count == R) {
#pragma unroll
            for (int r = 0; r < R; ++r) word[r].load(q + r * operand.step);
            return;
        }
#pragma unroll
        for (int r = 0; r < R; ++r) {
#pragma unroll
            for (int v = 0; v < W; ++v) word[r].set(v, r < count && v < columns ? q[r * operand.step + v * operand.stride[0]] : pad);
        }
    }

    __device__ void store(const Vector (&word)[R], i64 outside) const
    {
        T* q = first<T>(args.dx, outside);
        const bool all = wide(args.dx, q);
#pragma unroll
        for (int r = 0; r < R; ++r) {
            if (r >= count) continue;
            if (all) {
                word[r].store(q + r * args.dx.step);
            } else {
#pragma unroll
                for (int v = 0; v < W; ++v)
                    if (v < columns) q[r * args.dx.step + v * args.dx.stride[0]] = word[r].get(v);
            }
        }
    }

    // ------------------------------------------------------------------------------------------------ what enters

    __device__ int across() const { return width * W; }
    __device__ int slot(int warp, int c) const { return warp * across() + c; }

    // Thread c takes column c: the totals of the warps become what enters each of them, `before` what enters the first.
    __device__ void pass_heads(const FarHead& before, A base) const
    {
        const int c = threadIdx.x, warps = blockDim.x / 32;
        Head sum = K::near(before, base);
        __syncthreads();
        if (c < across())
#pragma unroll (kLong<Head> ? 1 : 4)
            for (int w = 0; w < warps; ++w) {
                const Head own = shared.heads[slot(w, c)];
                shared.heads[slot(w, c)] = sum;
                sum = K::join(sum, own);
            }
        __syncthreads();
    }

    // Thread c takes column c: what the totals of the warps make of `sum`.
    __device__ FarHead add_heads(FarHead sum, A base) const
    {
        const int c = threadIdx.x, warps = blockDim.x / 32;
        if (c < across())
#pragma unroll 4
            for (int w = 0; w < warps; ++w) sum = K::join(sum, K::far(shared.heads[slot(w, c)], base));
        __syncthreads();
        return sum;
    }

    // The same for tails; returns the join of the totals.
    __device__ Tail pass_tails(const Far& after, A base) const
    {
        const int c = threadIdx.x, warps = blockDim.x / 32;
        Tail own = K::nothing(), sum = K::near(after, base);
        __syncthreads();
        if (c < across())
#pragma unroll (kLong<Tail> ? 1 : 4)
            for (int w = warps - 1; w >= 0; --w) {
                const Tail last = shared.tails[slot(w, c)];
                shared.tails[slot(w, c)] = sum;
                own = K::join(last, own);
                sum = K::join(last, sum);
            }
        __syncthreads();
        return own;
    }

    // ------------------------------------------------------------------------------------------------ a tile

    // The join of the threads of a column that are ahead in the warp, without this one; the total of the warp goes to shared memory.
    __device__ Head head_of_lanes(const Head& own, int v) const
    {
        const Head all = heads_up_to<K>(own, width, alone() ? y * width : lane);
        if (!alone() && lane >= 32 - width) shared.heads[slot(threadIdx.x / 32, x * W + v)] = all;
        const Head next = from_below(all, width);
        return width == 32 || (alone() ? y == 0 : lane < width) ? K::empty() : next;
    }

    __device__ Tail tail_of_lanes(const Tail& own, int v) const
    {
        const Tail all = tails_down_to<K>(own, width, alone() ? (height - 1 - y) * width : 31 - lane);
        if (!alone() && lane < width) shared.tails[slot(threadIdx.x / 32, x * W + v)] = all;
        const Tail next = from_above(all, width);
        return width == 32 || (alone() ? y == height - 1 : lane >= 32 - width) ? K::nothing() : next;
    }

    // Waits for the block, or the warp where it has strips of its own; whether none of the columns is too much for the kind.
    __device__ bool all_tame(bool tame) const
    {
        if (alone()) return !kTame<K> || __all_sync(0xffffffff, tame);
        if (kTame<K>) return !__syncthreads_or(!tame);
        __syncthreads();
        return true;
    }

    // The first x of column c of the strip.
    __device__ A base_of(i64 outside, int c) const
    {
        const i64 at = column - x * W + c;
        if (!kBased<K> || at >= args.extent[0] || strip >= args.strips) return A(0);
        return widen<A>(reinterpret_cast<const T*>(args.x.data)[outside + at * args.x.stride[0]]);
    }

    // A tile. `passed` is what enters it, and becomes what leaves it. In the last phase dx is stored. Returns false, and
    // has done nothing, where the kind cannot do a column.
    __device__ bool run(Passed<K>& passed, const Places& place, i64 phase) const
    {
        const A base = base_of(place.x, threadIdx.x);  // of the column whose states this thread passes
        bool tame = true;
        Vector xs[R], ys[R];
        const bool heads_only = K::HEAD && phase == kHeads;
        if constexpr (X) load(args.x, place.x, xs, static_cast<T>(K::pad(args)));
        if (!heads_only) load(args.dy, place.dy, ys, T());
        const auto xv = [&](int v) { return [&xs, v](int r) { return xs[r].template value<A>(v); }; };
        const auto yv = [&](int v) { return [&ys, v](int r) { return ys[r].template value<A>(v); }; };
        const unsigned starts = row0 == 0;
        Cell cell[W];
        Head head[W];
        Tail tail[W];
#pragma unroll
        for (int v = 0; v < W; ++v) {
            cell[v].begin(args);
            if constexpr (kBased<K>) cell[v].base = base_of(place.x, x * W + v);
            if constexpr (INDEX) take(cell[v], v, place.x, starts);
            if (kTogether<K> && !heads_only) tail[v] = cell[v].tail(xv(v), yv(v), starts);
            if constexpr (kTogether<K>)
                head[v] = head_of_lanes(heads_only ? cell[v].head(xv(v), starts) : cell[v].product, v);
            else if constexpr (K::HEAD)
                head[v] = head_of_lanes(cell[v].head(xv(v), starts), v);
        }
        const auto find_tails = [&] {
#pragma unroll
            for (int v = 0; v < W; ++v) tail[v] = tail_of_lanes(kTogether<K> ? tail[v] : cell[v].tail(xv(v), yv(v), starts), v);
        };
        if constexpr (!K::ORDERED) {
            if (!heads_only) find_tails();
        }
        if constexpr (K::HEAD) {
            if (heads_only) {
                if constexpr (kTame<K>) {
#pragma unroll
                    for (int v = 0; v < W; ++v) tame = tame && cell[v].tame && K::tame(head[v]);
                }
                if (!all_tame(tame)) return false;
                passed.head = add_heads(passed.head, base);
                return true;
            }
            if (!alone()) pass_heads(passed.head, base);
            renew(xs);
#pragma unroll
            for (int v = 0; v < W; ++v) {
                if (!alone()) head[v] = K::join(shared.heads[slot(threadIdx.x / 32, x * W + v)], head[v]);
                cell[v].enter(head[v], xv(v), yv(v), starts);
            }
        }
        if constexpr (K::ORDERED) find_tails();
        Tail own = K::nothing();
        if (!alone()) own = pass_tails(passed.tail, base);
        const auto leave = [&] {
            if (threadIdx.x < across()) passed.tail = K::join(K::far(own, base), passed.tail);
        };
        if (!kTame<K> && phase == kTails) {
            leave();
            return true;
        }
        if constexpr (X) renew(xs);
        renew(ys);
#pragma unroll
        for (int v = 0; v < W; ++v) {
            if (!alone()) tail[v] = K::join(tail[v], shared.tails[slot(threadIdx.x / 32, x * W + v)]);
            cell[v].finish(tail[v], xv(v), yv(v), starts, [&](int c, const A(&dx)[N]) {
#pragma unroll
                for (int r = 0; r < N; ++r) ys[c * N + r].replace(v, static_cast<T>(dx[r]));
            });
        }
        if constexpr (kTame<K>) {
#pragma unroll
            for (int v = 0; v < W; ++v) tame = tame && cell[v].tame;
            if (!alone() && threadIdx.x < across()) tame = tame && K::tame(K::far(own, base));
            if (!all_tame(tame)) return false;
        }
        if (phase != kTails) store(ys, place.dx);
        if (!alone()) leave();
        return true;
    }

    __device__ void take(Cell& cell, int v, i64 outside, unsigned starts) const
    {
        const i64* q = first<i64>(args.x, outside) + v * args.x.stride[0];
        const bool here = v < columns && count > 0;
        const i64 before = here && row0 > 0 ? *(q - args.x.step) : 0;
        cell.take(args, [&](int r) { return q[r * args.x.step]; }, 0, here ? count : 0, starts, outer * args.extent[0] + column + v, row0, before);
    }
};

template <typename K, typename T>
__device__ void columns(const ScanArgs& args)
{
    using Scan = Outer<K, T>;
    using Tame = TameKind<K, T>;
    __shared__ union {
        typename Scan::Shared own;
        typename Outer<Tame, T>::Shared tame;
    } shared;
    i64 strip = blockIdx.x, part = 0;
    if (args.parts > 1) {
        part = blockIdx.x % static_cast<unsigned>(args.parts);
        strip = blockIdx.x / static_cast<unsigned>(args.parts);
    } else if (args.width * args.height <= 32) {
        strip = static_cast<i64>(blockIdx.x) * (blockDim.x / (args.width * args.height));
    }
    Scan scan(args, shared.own, strip);
    Outer<Tame, T> tame(args, shared.tame, strip);
    const Places place = Places::of(args, 1, scan.columns > 0 ? scan.outer : 0);
    const Walk<K> walk(args, strip, part, scan.across());
    const i64 phase = args.flags & (kHeads | kTails), first = part * args.tiles;
    const int c = threadIdx.x, count = static_cast<int>(args.tiles);
    const bool has = c < scan.across(), walks = args.parts * count > 1;
    typename K::FarHead ahead;
    Passed<K> passed;
    passed.tail = K::far(K::nothing(), typename K::Number());
    const auto tile = [&](i64 t, i64 phase) {
        tame.move_to(t), scan.move_to(t);
        if constexpr (!kTamed<K>)
            scan.run(passed, place, phase);
        else if (!tame.run(passed, place, phase))
            passed = apart(scan, passed, place, phase);
    };
    if constexpr (K::HEAD) {
        passed.head = ahead = K::empty();
        if (walks && (phase == kHeads || (phase == 0 && args.parts == 1))) {
#pragma unroll 1
            for (int t = 0; t < count; ++t) {
                if (has) walk.head_before(t, c) = passed.head;
                tile(first + t, kHeads);
            }
            if (phase == kHeads) {
                if (has) walk.head(c) = passed.head;
                return;
            }
        }
        if (args.parts > 1 && has) ahead = walk.ahead(c);
    }
    if (args.parts > 1 && phase == 0 && has) passed.tail = walk.behind(c);
#pragma unroll 1
    for (int t = count - 1; t >= 0; --t) {
        if constexpr (K::HEAD) {
            if (has) passed.head = walks ? K::join(ahead, walk.head_before(t, c)) : ahead;
        }
        tile(first + t, phase);
        if (count > 1) __syncthreads();
    }
    if (phase == kTails && has) walk.tail(c) = passed.tail;
}
