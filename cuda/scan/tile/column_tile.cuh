// A tile along a dim while another one is adjacent in memory: a thread owns W columns of R rows, `width` threads lie side by side, `height`
// of them one above the other share a strip. A strip of more than a warp has a block for itself.
#pragma once

#include "scan/state/fallback.cuh"
#include "scan/tile/column_io.cuh"
#include "scan/tile/row_tile.cuh"

constexpr int kColumnThreads = 512;

// Bytes of a row that a thread owns, and rows: so that a thread has few columns to find the states of.
template <typename K, typename T>
constexpr int kAcross = sizeof(T) == 8 || !(K::HEAD || __is_same(typename K::Value, i64)) ? 8 : 4;
template <typename K, typename T>
constexpr int kDown = (sizeof(T) == 4 && (K::HEAD || __is_same(typename K::Value, i64))) || (sizeof(T) == 2 && K::HEAD && !kTamed<K>) ? 16 : 8;

template <typename K, typename T>
struct Outer : OuterLine<T, kAcross<K, T> / sizeof(T), kDown<K, T>> {
    static constexpr int N = sizeof(T) == 8 ? 2 : 4, W = kAcross<K, T> / sizeof(T), R = kDown<K, T>, COLUMNS = 32 * W;
    using A = typename K::Number;
    using Head = typename K::Head;
    using Tail = typename K::Tail;
    static constexpr bool X = __is_same(typename K::Value, A), INDEX = __is_same(typename K::Value, i64);
    using Cell = typename K::template Cell<R, N, false>;
    using Vector = Words<T, W>;

    // In shared memory, as much as the block has warps. Thread c has charge of the heads of column c, the c-th from the last one of its tails.
    struct Entering {  // what enters a tile, [column]
        Room<Head, K::HEAD ? COLUMNS : 1> heads;
        Room<typename K::Far, COLUMNS> tails;
    };
    struct Own {  // totals of a warp, [column]; then what enters it
        Room<Head, K::HEAD ? COLUMNS : 1> heads;
        Room<Tail, COLUMNS> tails;
    };

    using Base = OuterLine<T, W, R>;
    using Base::args, Base::x, Base::y, Base::strip, Base::at, Base::width, Base::height, Base::across, Base::alone, Base::has, Base::count;
    Entering& entering;
    Own* own;  // [warp]

    __device__ Outer(const ScanArgs& args, uint4* room)
        : Base(args, item()), entering(*reinterpret_cast<Entering*>(room)), own(reinterpret_cast<Own*>(room + (sizeof(Entering) + 15) / 16))
    {
    }

    // What the block does. A kind that is not the one which is tried first does what that one could not.
    static constexpr bool AGAIN = kTamed<K> && !kTame<K>;
    static __device__ unsigned item() { return AGAIN ? turn().item : blockIdx.x; }
    __device__ int phase() const { return AGAIN ? turn().phase : static_cast<int>(args.flags) & (kHeads | kTails); }

    // Whether this thread has charge of a column.
    __device__ bool charged() const { return threadIdx.x < across(); }
    __device__ int tail_column() const { return blockDim.x - 1 - threadIdx.x; }
    __device__ bool charged_tails() const { return tail_column() < across(); }
    __device__ Walk<K> walk() const { return Walk<K>(args, strip, item() - strip * args.parts, across()); }

    // ------------------------------------------------------------------------------------------------ what enters

    // The totals of the warps become what enters each of them, `before` what precedes the tile in its part. Returns the join of those of
    // tails, to those who have charge of them.
    template <bool HEADS, bool TAILS, bool ONE>
    __device__ Tail pass(const Head& before) const
    {
        const int warps = blockDim.x / 32;
        Tail all = K::nothing();
        if (alone()) return all;
        __syncthreads();
        if constexpr (HEADS) {
            if (const int c = threadIdx.x; charged()) {
                Head sum = ONE ? before : K::join(entering.heads[c], before);
#pragma unroll (kLong<Head> ? 1 : 4)
                for (int w = 0; w < warps; ++w) {
                    const Head total = own[w].heads[c];
                    own[w].heads[c] = sum;
                    sum = K::join(sum, total);
                }
            }
        }
        if constexpr (TAILS) {
            if (const int c = tail_column(); charged_tails()) {
                Tail sum = ONE ? K::nothing() : K::near(entering.tails[c]);
#pragma unroll (kLong<Tail> ? 1 : 4)
                for (int w = warps - 1; w >= 0; --w) {
                    const Tail last = own[w].tails[c];
                    own[w].tails[c] = sum;
                    if (!ONE) all = K::join(last, all);
                    sum = K::join(last, sum);
                }
            }
        }
        __syncthreads();
        return all;
    }

    // ------------------------------------------------------------------------------------------------ a tile

    // The join of the threads of a column that are ahead in the warp, without this one; the total of the warp goes to shared memory.
    __device__ Head head_of_lanes(const Head& head, int v) const
    {
        const int lane = threadIdx.x % 32, reach = alone() ? y * width() : lane;  // of lanes ahead that share its strip
        Head all = head, next = K::empty();
#pragma unroll 1
        for (int d = width(); d < 32; d *= 2) {
            const Head left = from_below(all, d);
            if (d <= reach) all = K::join(left, all);
        }
        if (width() < 32) next = from_below(all, width());
        if (reach < width()) next = K::empty();
        if (!alone() && lane >= 32 - width()) own[threadIdx.x / 32].heads[x * W + v] = all;
        return next;
    }

    __device__ Tail tail_of_lanes(const Tail& tail, int v) const
    {
        const int lane = threadIdx.x % 32, reach = alone() ? (height() - 1 - y) * width() : 31 - lane;
        Tail all = tail, next = K::nothing();
#pragma unroll 1
        for (int d = width(); d < 32; d *= 2) {
            const Tail right = from_above(all, d);
            if (d <= reach) all = K::join(all, right);
        }
        if (width() < 32) next = from_above(all, width());
        if (reach < width()) next = K::nothing();
        if (!alone() && lane < width()) own[threadIdx.x / 32].tails[x * W + v] = all;
        return next;
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
    // Returns the faults of the thread. ONE tile, which is all of the strip: those of the block; where both ways have some, nothing is stored.
    template <bool ONE>
    __device__ unsigned run(i64 tile, int t, int phase) const
    {
        const bool walks = !ONE && args.parts * args.tiles > 1, heads_only = K::HEAD && phase == kHeads;
        const int n = count(tile);
        Vector xs[R], ys[R];
        if constexpr (X) this->load(args.x, at.x, tile, n, xs, static_cast<T>(K::pad(args)));
        if (!heads_only)
            this->load(args.dy, at.dy, tile, n, ys, T());
        else if (kTogether<K>)
            Base::clear(ys);
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
        Tail all = pass<K::HEAD, !K::ORDERED, ONE>(before);
        if constexpr (K::HEAD) {
            renew(xs);
#pragma unroll
            for (int v = 0; v < W; ++v) {
                if (!alone()) head[v] = K::join(own[threadIdx.x / 32].heads[x * W + v], head[v]);
                cell[v].enter(head[v], xv(v), yv(v), starts);
            }
        }
        if constexpr (K::ORDERED) {
            find_tails();
            all = pass<false, true, ONE>(before);
        }
        unsigned faults = 0;
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
            if constexpr (ONE && kTame<K>) {
                faults = __syncthreads_or(faults & kExtreme) ? faults_of_block(faults) : 0;
                if (faults == kUndone) return faults;
            }
            this->store(ys, tile, n);
        }
        if (!ONE && !alone() && charged_tails()) entering.tails[tail_column()] = K::join(K::far(all), entering.tails[tail_column()]);
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
        const i64* q = Base::template first<i64>(args.x, at.x, tile) + v * args.x.stride[0];
        const int n = has(v) ? count(tile) : 0;
        const i64 row0 = (tile * height() + y) * R, before = n > 0 && row0 > 0 ? *(q - args.x.step) : 0;
        const i64 side = (args.extent[0] + across() - 1) / across(), outer = side == 1 ? strip : strip / side;
        const i64 column = (strip - outer * side) * across() + x * W + v;
        cell.take(args, [&](int r) { return q[r * args.x.step]; }, n, starts, outer * args.extent[0] + column, row0, before);
    }
};
