// Columns that lie side by side in aligned rows, and are long. A strip of them is a lane's W columns, 32 times; a warp owns R rows of a tile.
#pragma once

#include "common/async_copy.cuh"
#include "scan/pipeline/async_pipeline.cuh"

constexpr int kStripThreads = 512, kStripWarps = kStripThreads / 32;
constexpr int kSeen = 8;  // rows whose numbers make a base

template <typename K, typename T>
struct Strip : Ring<Strip<K, T>, K> {
    using Base = Ring<Strip, K>;
    using A = typename K::Number;
    using Head = typename K::Head;
    using Tail = typename K::Tail;
    using Far = typename K::Far;
    static constexpr bool X = __is_same(typename K::Value, A), BOTH = X && !kFinds<K>;  // x is there; dy too
    static constexpr int W = sizeof(T) == 2 ? 2 : sizeof(T) == 4 && !BOTH ? 2 : 1, R = sizeof(T) == 8 || !X && !kRecorded<K> || sizeof(T) == 4 && !BOTH ? 8 : 16, N = sizeof(T) == 8 ? 2 : 4;
    static constexpr int ROWS = kStripWarps * R, COLUMNS = 32 * W, BITS = ROWS * COLUMNS;
    static constexpr int SIDE = COLUMNS * sizeof(T) / 16, DOWN = kStripThreads / SIDE;  // vectors of a row; rows of one for each thread
    static constexpr int OPERAND = ROWS * SIDE, STAGE = OPERAND * (BOTH ? 2 : 1) + (kRecorded<K> ? BITS / 128 : 0);
    using Cell = typename K::template Cell<R, N, false>;
    using Vector = Words<T, W>;
    template <typename S>
    struct alignas(W * sizeof(S)) Own {  // of the columns of a lane
        S at[W];
    };

    struct Shared {
        Room<Own<Head>, K::HEAD ? 2 * kStripThreads : 1> heads;  // totals of warps, of two tiles; [warp][lane]
        Room<Own<Tail>, kStripThreads> tails;
        Room<Own<Head>, K::HEAD ? 32 : 1> head;  // what enters the tile
        Room<Own<Tail>, 32> tail;
    };

    using Base::args, Base::strip, Base::part, Base::head, Base::next, Base::tail, Base::faults;
    Shared& shared;
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const char *x, *y;    // what is asked for: the first vector of the thread,
    const char* records;  // of all of them,
    int left;             // and the rows from there on; 0 if it has no column
    int held, rest;       // columns of the strip, rows of the part
    T* dx;                // the first element of the thread
    A base[W];
    Own<Head> best;           // what precedes the tile, where records are found

    __device__ Strip(const ScanArgs& args, Shared& s, uint4* ring) : Base(args, ring), shared(s) {}

    // Whether column v of the lane exists.
    __device__ bool has(int v) const { return lane * W + v < held; }

    __device__ int column() const { return threadIdx.x; }
    __device__ bool charged() const { return threadIdx.x < COLUMNS; }
    __device__ Head ahead_of_part() const { return this->walk().ahead(threadIdx.x); }
    __device__ Far behind() const { return this->walk().behind(threadIdx.x); }

    // Where an item is; the columns of its strip, and the rows from its first one on.
    struct Item {
        i64 strip, part, column, row;
        Places place;
        int held, rest;
    };
    __device__ Item locate(unsigned number) const
    {
        Item item;
        const unsigned parts = static_cast<unsigned>(args.parts), strip = parts == 1 ? number : number / parts;
        const unsigned side = static_cast<unsigned>((args.extent[0] + COLUMNS - 1) / COLUMNS), outer = args.dims == 1 ? 0 : strip / side;
        item.strip = strip, item.part = number - strip * parts;
        item.column = static_cast<i64>(strip - outer * side) * COLUMNS, item.row = item.part * args.tiles * ROWS;
        item.place = Places::of(args, 1, outer);
        item.held = static_cast<int>(min(args.extent[0] - item.column, static_cast<i64>(COLUMNS)));
        item.rest = static_cast<int>(args.n - item.row);
        return item;
    }

    __device__ void aim(unsigned number)
    {
        const Item item = locate(number);
        const int row = threadIdx.x / SIDE, side = threadIdx.x % SIDE * 16;
        const auto first = [&](const Strided& operand, i64 from) {
            return operand.data + (from + item.column + (item.row + row) * operand.step) * sizeof(T) + side;
        };
        if constexpr (X) x = first(args.x, item.place.x);
        y = first(args.dy, item.place.dy);
        if constexpr (kRecorded<K>) records = this->records_of(number * args.tiles) + threadIdx.x * 16;
        left = opaque(side < item.held * static_cast<int>(sizeof(T)) ? item.rest - row : 0);
    }

    __device__ void fetch(int t, bool heads, unsigned to) const
    {
        const auto operand = [&](const char* from, const Strided& operand, unsigned to) {
            const i64 apart = operand.step * static_cast<i64>(sizeof(T));
            from += t * ROWS * apart;
#pragma unroll
            for (int k = 0; k < ROWS / DOWN; ++k, from += DOWN * apart)
                if (k * DOWN < left - t * ROWS) fetch_vector(to + k * kStripThreads * 16, from);
        };
        if constexpr (X) operand(x, args.x, to);
        if (!kFinds<K> && !heads) operand(y, args.dy, to + (X ? OPERAND * 16 : 0));
        if (kRecorded<K> && threadIdx.x < BITS / 128) fetch_vector(to + OPERAND * 16, records + t * (BITS / 8));
    }

    __device__ void enter(unsigned number)
    {
        const Item item = locate(number);
        strip = item.strip, part = item.part, held = item.held, rest = opaque(item.rest);
        dx = reinterpret_cast<T*>(args.dx.data) + item.place.dx + item.column + lane * W + (item.row + warp * R) * args.dx.step;
        if constexpr (kFinds<K>) {
#pragma unroll
            for (int v = 0; v < W; ++v) best.at[v] = this->phase() == 0 ? this->walk().ahead(lane * W + v) : K::empty();
            if (warp == 0) shared.head[lane] = best;
        }
        if constexpr (kBased<K>) {
            const T* from = reinterpret_cast<const T*>(args.x.data) + item.place.x + item.column + lane * W;
#pragma unroll
            for (int v = 0; v < W; ++v) {
                const A first = has(v) ? widen<A>(from[v]) : A(0);
                A largest = first;
#pragma unroll
                for (int r = 1; r < kSeen; ++r)
                    if (has(v) && r < args.n) largest = fmax(largest, widen<A>(from[r * args.x.step + v]));
                base[v] = K::base(first, largest);
            }
        }
    }

    // The elements of the thread in a tile of so many rows.
    __device__ void read(uint4* from, Vector (&word)[R], int rows, T pad) const
    {
        T* q = reinterpret_cast<T*>(from) + warp * R * COLUMNS + lane * W;
        if (warp * R + R > rows || !has(W - 1)) {
#pragma unroll 1
            for (int r = 0; r < R; ++r)
                for (int v = 0; v < W; ++v)
                    if (warp * R + r >= rows || !has(v)) q[r * COLUMNS + v] = pad;
        }
#pragma unroll
        for (int r = 0; r < R; ++r) word[r].load(q + r * COLUMNS);
    }

    // The join of the heads of all warps, of the column that the thread has charge of.
    __device__ Head all_heads(int parity)
    {
        Head sum = K::empty();
#pragma unroll 4
        for (int w = 0; w < kStripWarps; ++w) sum = K::join(sum, shared.heads[parity * kStripThreads + w * 32 + threadIdx.x / W].at[threadIdx.x % W]);
        return sum;
    }

    __device__ Far all_tails()
    {
        Tail sum = K::nothing();
#pragma unroll 4
        for (int w = kStripWarps - 1; w >= 0; --w) sum = K::join(shared.tails[w * 32 + threadIdx.x / W].at[threadIdx.x % W], sum);
        return K::far(sum);
    }

    // What precedes the tile becomes what precedes the warp.
    template <int UNROLL>
    __device__ void join_ahead(Own<Head>& heads) const
    {
#pragma unroll UNROLL
        for (int w = 0; w < warp; ++w) {
            const Own<Head> ahead = shared.heads[w * 32 + lane];
#pragma unroll
            for (int v = 0; v < W; ++v) heads.at[v] = K::join(heads.at[v], ahead.at[v]);
        }
    }

    __device__ void find_head(int t, uint4* stage, int parity)
    {
        Vector xs[R];
        read(stage, xs, rest - t * ROWS, static_cast<T>(K::pad(args)));
        Own<Head> own;
#pragma unroll
        for (int v = 0; v < W; ++v) {
            Cell cell;
            cell.begin(args);
            if constexpr (kBased<K>) cell.base = base[v];
            own.at[v] = cell.head(Elements<A, T, W, R, true>{xs, v}, part == 0 && t == 0 && warp == 0);
            if constexpr (kTame<K>) faults |= cell.faults | K::faults(own.at[v]);
        }
        shared.heads[parity * kStripThreads + threadIdx.x] = own;
    }

    // Bits of the thread's elements, a column after the other.
    using Bits = std::conditional_t<R == 8, unsigned char, unsigned short>;
    struct alignas(W * sizeof(Bits)) Records {
        Bits at[W];
    };

    __device__ void find_records(int t, uint4* stage);

    // Of a part, for others.
    __device__ void leave(const Head& all)
    {
        if constexpr (kFinds<K>) {
            if (warp > 0) return;
#pragma unroll
            for (int v = 0; v < W; ++v) this->walk().head(lane * W + v) = best.at[v];
        } else {
            Base::leave(all);
        }
    }

    __device__ void find_tail(int t, uint4* stage)
    {
        const int rows = rest - t * ROWS;
        const unsigned starts = part == 0 && t == 0 && warp == 0;
        if (charged()) {
            if constexpr (K::HEAD) shared.head[threadIdx.x / W].at[threadIdx.x % W] = K::join(head, next);
            shared.tail[threadIdx.x / W].at[threadIdx.x % W] = K::near(tail);
        }
        Vector xs[R], ys[R];
        if constexpr (X) read(stage, xs, rows, static_cast<T>(K::pad(args)));
        read(stage + (X ? OPERAND : 0), ys, rows, T());
        Records known;
        if constexpr (kRecorded<K>) known = reinterpret_cast<const Records*>(stage + OPERAND)[threadIdx.x];
        const auto xv = [&](int v) { return Elements<A, T, W, R, true>{xs, v}; };
        const auto yv = [&](int v) { return Elements<A, T, W, R, true>{ys, v}; };
        Cell cell[W];
        Own<Head> heads;
        Own<Tail> tails;
#pragma unroll
        for (int v = 0; v < W; ++v) {
            cell[v].begin(args);
            if constexpr (kBased<K>) cell[v].base = base[v];
            if constexpr (kRecorded<K>) cell[v].records = known.at[v];
            if constexpr (!K::ORDERED) tails.at[v] = cell[v].tail(xv(v), yv(v), starts);
            if constexpr (kTogether<K>)
                heads.at[v] = cell[v].product;
            else if constexpr (K::HEAD)
                heads.at[v] = cell[v].head(xv(v), starts);
        }
        if constexpr (K::HEAD) shared.heads[threadIdx.x] = heads;
        if constexpr (!K::ORDERED) shared.tails[threadIdx.x] = tails;
        __syncthreads();
        if constexpr (K::HEAD) {
            this->foresee(t - 1);
            heads = shared.head[lane];
            join_ahead<4>(heads);
#pragma unroll
            for (int v = 0; v < W; ++v) cell[v].enter(heads.at[v], xv(v), yv(v), starts);
        }
        if constexpr (K::ORDERED) {
#pragma unroll
            for (int v = 0; v < W; ++v) tails.at[v] = cell[v].tail(xv(v), yv(v), starts);
            shared.tails[threadIdx.x] = tails;
            __syncthreads();
        }
        if (charged()) tail = K::join(all_tails(), tail);
        if (this->phase() == kTails) return;
        tails = shared.tail[lane];
#pragma unroll 4
        for (int w = kStripWarps - 1; w > warp; --w) {
            const Own<Tail> behind = shared.tails[w * 32 + lane];
#pragma unroll
            for (int v = 0; v < W; ++v) tails.at[v] = K::join(behind.at[v], tails.at[v]);
        }
        A out[R][W];
#pragma unroll
        for (int v = 0; v < W; ++v) {
            cell[v].finish(tails.at[v], xv(v), yv(v), kTame<K> && !has(v) ? 0 : starts, [&](int c, const A(&some)[N]) {
#pragma unroll
                for (int r = 0; r < N; ++r) out[c * N + r][v] = some[r];
            });
            if constexpr (kTame<K>) faults |= cell[v].faults;
        }
        const int left = has(0) ? rows - warp * R : 0;
        T* q = dx + t * ROWS * args.dx.step;
        if (left >= R) {
#pragma unroll
            for (int r = 0; r < R; ++r, q += args.dx.step) store(q, out[r]);
        } else {
#pragma unroll
            for (int r = 0; r < R; ++r, q += args.dx.step)
                if (r < left) store(q, out[r]);
        }
    }

    static __device__ void store(T* q, const A (&out)[W])
    {
        if constexpr (W == 1)
            *q = static_cast<T>(out[0]);
        else
            store_wide<T, W>(q, narrowed<T, W>(out));
    }
};

template <typename K, typename T>
__device__ void strips(const ScanArgs& args)
{
    using First = TameKind<K, T>;
    extern __shared__ __align__(128) uint4 ring[];
    __shared__ typename Strip<First, T>::Shared shared;
    Strip<First, T>(args, shared, ring).run();
}
