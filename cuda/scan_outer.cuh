// A tile along a dim while another one is adjacent in memory: a thread owns W columns of R rows, `width` threads lie side by side, `height`
// of them one above the other share a strip. A strip of more than a warp has a block for itself.
#pragma once

#include "scan_inner.cuh"
#include "scan_walk.cuh"

constexpr int kColumnThreads = 512;

// Bytes of a row that a thread owns, and rows: so that a thread has few columns to find the states of.
template <typename K, typename T>
constexpr int kAcross = sizeof(T) == 8 || !(K::HEAD || __is_same(typename K::Value, i64)) ? 8 : 4;
template <typename K, typename T>
constexpr int kDown = (sizeof(T) == 4 && (K::HEAD || __is_same(typename K::Value, i64))) || (sizeof(T) == 2 && K::HEAD && !kTamed<K>) ? 16 : 8;

template <typename K, typename T>
struct Outer {
    static constexpr int N = sizeof(T) == 8 ? 2 : 4, W = kAcross<K, T> / sizeof(T), R = kDown<K, T>, COLUMNS = 32 * W;
    using A = typename K::Number;
    using Head = typename K::Head;
    using Tail = typename K::Tail;
    static constexpr bool X = __is_same(typename K::Value, A), INDEX = __is_same(typename K::Value, i64);
    using Cell = typename K::template Cell<R, N, false>;
    using Vector = Words<T, W>;

    // In shared memory, as much as the block has warps. Thread c has charge of column c.
    struct Entering {  // what enters a tile, [column]
        Room<Head, K::HEAD ? COLUMNS : 1> heads;
        Room<typename K::Far, COLUMNS> tails;
    };
    struct Own {  // totals of a warp, [column]; then what enters it
        Room<Head, K::HEAD ? COLUMNS : 1> heads;
        Room<Tail, COLUMNS> tails;
    };

    const ScanArgs& args;
    Entering& entering;
    Own* own;  // [warp]
    int x, y;  // of the thread in its strip
    int held;  // columns of the strip
    i64 strip;
    Places at;  // the first element of the thread in tile 0

    __device__ Outer(const ScanArgs& args, uint4* room)
        : args(args), entering(*reinterpret_cast<Entering*>(room)), own(reinterpret_cast<Own*>(room + (sizeof(Entering) + 15) / 16))
    {
        const int above = threadIdx.x / width();
        x = threadIdx.x & (width() - 1), y = above & (height() - 1);
        if (alone())  // strips of a block
            strip = static_cast<i64>(blockIdx.x) * (blockDim.x / (width() * height())) + above / height();
        else
            strip = blockIdx.x / static_cast<unsigned>(args.parts);
        const i64 side = (args.extent[0] + across() - 1) / across(), outer = side == 1 ? strip : strip / side;
        const i64 column = (strip - outer * side) * across();
        held = strip < args.strips ? static_cast<int>(min(args.extent[0] - column, static_cast<i64>(across()))) : 0;
        const Places place = Places::of(args, 1, held > 0 ? outer : 0);
        const auto first = [&](const Strided& operand, i64 from) { return from + (column + x * W) * operand.stride[0] + y * R * operand.step; };
        at = {first(args.dy, place.dy), first(args.x, place.x), first(args.dx, place.dx)};
    }

    __device__ int width() const { return static_cast<int>(args.width); }
    __device__ int height() const { return static_cast<int>(args.height); }
    __device__ int across() const { return width() * W; }

    // Whether this thread has charge of a column.
    __device__ bool charged() const { return threadIdx.x < across(); }
    __device__ Walk<K> walk() const { return Walk<K>(args, strip, blockIdx.x - strip * args.parts, across()); }

    // Whether strips are parts of warps.
    __device__ bool alone() const { return width() * height() <= 32; }

    // Whether column v of the thread exists.
    __device__ bool has(int v) const { return x * W + v < held; }

    // How many rows of a tile the thread has.
    __device__ int count(i64 tile) const
    {
        return !has(0) ? 0 : static_cast<int>(max(min(args.n - (tile * height() + y) * R, static_cast<i64>(R)), i64(0)));
    }

    template <typename S>
    __device__ S* first(const Strided& operand, i64 from, i64 tile) const
    {
        return reinterpret_cast<S*>(operand.data) + from + tile * (height() * R) * operand.step;
    }

    // Whether the columns of this thread are one access in every row.
    __device__ bool wide(const Strided& operand, const T* q) const
    {
        return has(W - 1) && operand.stride[0] == 1 && aligned<W * sizeof(T)>(q) && operand.step % W == 0;
    }

    __device__ void load(const Strided& operand, i64 from, i64 tile, Vector (&word)[R], T pad) const
    {
        const T* q = first<T>(operand, from, tile);
        const bool all = wide(operand, q);
        const int n = count(tile);
        if (all && n == R) {
#pragma unroll
            for (int r = 0; r < R; ++r, q += operand.step) word[r].load(q);
            return;
        }
#pragma unroll
        for (int r = 0; r < R; ++r, q += operand.step) {
#pragma unroll
            for (int v = 0; v < W; ++v) word[r].set(v, r < n && has(v) ? q[v * operand.stride[0]] : pad);
        }
    }

    static __device__ void clear(Vector (&word)[R])
    {
#pragma unroll
        for (int r = 0; r < R; ++r)
#pragma unroll
            for (int v = 0; v < W; ++v) word[r].set(v, T());
    }

    __device__ void store(const Vector (&word)[R], i64 tile) const
    {
        T* q = first<T>(args.dx, at.dx, tile);
        const bool all = wide(args.dx, q);
        const int n = count(tile);
#pragma unroll
        for (int r = 0; r < R; ++r, q += args.dx.step) {
            if (r >= n) continue;
            if (all) {
                word[r].store(q);
            } else {
#pragma unroll
                for (int v = 0; v < W; ++v)
                    if (has(v)) q[v * args.dx.stride[0]] = word[r].get(v);
            }
        }
    }

    // ------------------------------------------------------------------------------------------------ what enters

    // The totals of the warps become what enters each of them, `before` what enters the first.
    __device__ void pass_heads(const Head& before) const
    {
        const int c = threadIdx.x, warps = blockDim.x / 32;
        __syncthreads();
        if (charged()) {
            Head sum = before;
#pragma unroll (kLong<Head> ? 1 : 4)
            for (int w = 0; w < warps; ++w) {
                const Head total = own[w].heads[c];
                own[w].heads[c] = sum;
                sum = K::join(sum, total);
            }
        }
        __syncthreads();
    }

    // The same for tails; returns the join of the totals.
    __device__ Tail pass_tails() const
    {
        const int c = threadIdx.x, warps = blockDim.x / 32;
        Tail all = K::nothing();
        __syncthreads();
        if (charged()) {
            Tail sum = K::near(entering.tails[c]);
#pragma unroll (kLong<Tail> ? 1 : 4)
            for (int w = warps - 1; w >= 0; --w) {
                const Tail last = own[w].tails[c];
                own[w].tails[c] = sum;
                all = K::join(last, all);
                sum = K::join(last, sum);
            }
        }
        __syncthreads();
        return all;
    }

    // ------------------------------------------------------------------------------------------------ a tile

    // The join of the threads of a column that are ahead in the warp, without this one; the total of the warp goes to shared memory.
    __device__ Head head_of_lanes(const Head& head, int v) const
    {
        const int lane = threadIdx.x % 32;
        const Head all = heads_up_to<K>(head, width(), alone() ? y * width() : lane);
        if (!alone() && lane >= 32 - width()) own[threadIdx.x / 32].heads[x * W + v] = all;
        const Head next = from_below(all, width());
        return width() == 32 || (alone() ? y == 0 : lane < width()) ? K::empty() : next;
    }

    __device__ Tail tail_of_lanes(const Tail& tail, int v) const
    {
        const int lane = threadIdx.x % 32;
        const Tail all = tails_down_to<K>(tail, width(), alone() ? (height() - 1 - y) * width() : 31 - lane);
        if (!alone() && lane < width()) own[threadIdx.x / 32].tails[x * W + v] = all;
        const Tail next = from_above(all, width());
        return width() == 32 || (alone() ? y == height() - 1 : lane >= 32 - width()) ? K::nothing() : next;
    }

    // Thread c takes column c: what the totals of the warps add to the heads before them.
    __device__ void add_heads() const
    {
        const int c = threadIdx.x, warps = blockDim.x / 32;
        if (!alone()) __syncthreads();
        if (charged()) {
            Head sum = entering.heads[c];
#pragma unroll 4
            for (int w = 0; w < warps; ++w) sum = K::join(sum, own[w].heads[c]);
            entering.heads[c] = sum;
        }
        __syncthreads();
    }

    // A tile, number t of the part: stores dx, or finds its heads or tails alone, for the tile after or before it.
    // Returns the faults of the block; where both ways have some, nothing is stored.
    __device__ unsigned run(i64 tile, int t, i64 phase) const
    {
        const bool walks = args.parts * args.tiles > 1, heads_only = K::HEAD && phase == kHeads;
        Vector xs[R], ys[R];
        if constexpr (X) load(args.x, at.x, tile, xs, static_cast<T>(K::pad(args)));
        if (!heads_only)
            load(args.dy, at.dy, tile, ys, T());
        else if (kTogether<K>)
            clear(ys);
        Head before;  // of the column that the thread has charge of
        if constexpr (K::HEAD) {
            before = K::empty();
            if (!heads_only && walks && charged()) before = walk().head_before(t, threadIdx.x);
        }
        const auto of = [](const Vector (&word)[R], int v) {
            if constexpr (kTame<K>)
                return Elements<A, T, W, R, true>{word, v};
            else
                return [&word, v](int r) { return word[r].template value<A>(v); };
        };
        const auto xv = [&](int v) { return of(xs, v); };
        const auto yv = [&](int v) { return of(ys, v); };
        const unsigned starts = tile == 0 && y == 0;
        Cell cell[W];
        Head head[W];
        Tail tail[W];
#pragma unroll
        for (int v = 0; v < W; ++v) {
            cell[v].begin(args);
            if constexpr (INDEX) take(cell[v], v, tile, starts);
            if constexpr (kBased<K>) cell[v].base = base_of(v);
            if constexpr (kTogether<K>) tail[v] = tail_of_lanes(cell[v].tail(xv(v), yv(v), starts), v);
            if constexpr (kTogether<K>)
                head[v] = head_of_lanes(cell[v].product, v);
            else if constexpr (K::HEAD)
                head[v] = head_of_lanes(cell[v].head(xv(v), starts), v);
        }
        if constexpr (K::HEAD) {
            if (heads_only) {
                add_heads();
                return 0;
            }
        }
        const auto find_tails = [&] {
#pragma unroll
            for (int v = 0; v < W; ++v) tail[v] = tail_of_lanes(cell[v].tail(xv(v), yv(v), starts), v);
        };
        if constexpr (!K::ORDERED && !kTogether<K>) find_tails();
        if constexpr (K::HEAD) {
            if (!alone()) pass_heads(charged() ? K::join(entering.heads[threadIdx.x], before) : before);
            renew(xs);
#pragma unroll
            for (int v = 0; v < W; ++v) {
                if (!alone()) head[v] = K::join(own[threadIdx.x / 32].heads[x * W + v], head[v]);
                cell[v].enter(head[v], xv(v), yv(v), starts);
            }
        }
        if constexpr (K::ORDERED) find_tails();
        Tail all = K::nothing();
        unsigned faults = 0;
        if (!alone()) all = pass_tails();
        if (phase != kTails) {
            if constexpr (X) renew(xs);
            renew(ys);
#pragma unroll
            for (int v = 0; v < W; ++v) {
                if (!alone()) tail[v] = K::join(tail[v], own[threadIdx.x / 32].tails[x * W + v]);
                cell[v].finish(tail[v], xv(v), yv(v), kTame<K> && !has(v) ? 0 : starts, [&](int c, const A(&dx)[N]) {
#pragma unroll
                    for (int r = 0; r < N; ++r) ys[c * N + r].replace(v, static_cast<T>(dx[r]));
                });
                if constexpr (kTame<K>) faults |= cell[v].faults;
            }
            if constexpr (kTame<K>) faults = walks || __syncthreads_or(faults & kLeavesRange) ? faults_of_block(faults) : 0;
            if (faults == kUndone) return faults;
            store(ys, tile);
        }
        if (!alone() && charged()) entering.tails[threadIdx.x] = K::join(K::far(all), entering.tails[threadIdx.x]);
        return faults;
    }

    // The first x of column v of the thread.
    __device__ A base_of(int v) const
    {
        const i64 place = at.x - y * R * args.x.step + v * args.x.stride[0];
        return has(v) ? widen<A>(reinterpret_cast<const T*>(args.x.data)[place]) : A(0);
    }

    __device__ void take(Cell& cell, int v, i64 tile, unsigned starts) const
    {
        const i64* q = first<i64>(args.x, at.x, tile) + v * args.x.stride[0];
        const int n = has(v) ? count(tile) : 0;
        const i64 row0 = (tile * height() + y) * R, before = n > 0 && row0 > 0 ? *(q - args.x.step) : 0;
        const i64 side = (args.extent[0] + across() - 1) / across(), outer = side == 1 ? strip : strip / side;
        const i64 column = (strip - outer * side) * across() + x * W + v;
        cell.take(args, [&](int r) { return q[r * args.x.step]; }, 0, n, starts, outer * args.extent[0] + column, row0, before);
    }
};
