// Pipelined columns (column_pipelined): long adjacent columns in aligned rows, prefetched by a
// multi-stage cp.async pipeline. A panel has W columns for each of 32 lanes; a warp owns R rows of
// a tile.
#pragma once

#include "common/async_copy.cuh"
#include "scan/pipeline/async_pipeline.cuh"

constexpr int kColumnPipelinedWarps = kColumnPipelinedThreads / 32;
constexpr int kBaseRows = 8;  // rows of a panel that its bases are found from

template <typename K, typename T>
struct PipelinedPanel : AsyncPipeline<PipelinedPanel<K, T>, K> {
    using Base = AsyncPipeline<PipelinedPanel, K>;
    using A = typename K::Number;
    using Prefix = typename K::Prefix;
    using Suffix = typename K::Suffix;
    using Carry = typename K::Carry;
    // x is read; both x and dy are read.
    static constexpr bool X = __is_same(typename K::Value, A), BOTH = X && !K::FINDS_RECORDS;
    static constexpr int COLUMNS = K::Tuning::COLUMN_PIPELINED_COLUMNS[sizeof(T) / 4], W = COLUMNS / 32,
                         R = K::Tuning::COLUMN_PIPELINED_ROWS[sizeof(T) / 4], N = sizeof(T) == 8 ? 2 : 4;
    static constexpr int ROWS = kColumnPipelinedWarps * R, BITS = ROWS * COLUMNS;
    // 16-byte vectors of a row; rows that the CTA copies at once.
    static constexpr int VECTORS_PER_ROW = COLUMNS * sizeof(T) / 16,
                         ROWS_PER_COPY = kColumnPipelinedThreads / VECTORS_PER_ROW;
    static constexpr int OPERAND = ROWS * VECTORS_PER_ROW,
                         STAGE = OPERAND * (BOTH ? 2 : 1) + (K::READS_RECORDS ? BITS / 128 : 0);
    using ThreadScan = typename K::template ThreadScan<R, N, false>;
    using Vector = Words<T, W>;
    template <typename S>
    struct alignas(W * sizeof(S)) PerColumn {  // a state for each column of a lane
        S at[W];
    };

    struct Shared {
        // Totals of warps, of two tiles, [warp][lane].
        Uninitialized<PerColumn<Prefix>, K::NEEDS_PREFIX ? 2 * kColumnPipelinedThreads : 1> prefixes;
        Uninitialized<PerColumn<Suffix>, kColumnPipelinedThreads> suffixes;
        Uninitialized<PerColumn<Prefix>, K::NEEDS_PREFIX ? 32 : 1> prefix;  // carry-in of the tile
        Uninitialized<PerColumn<Suffix>, 32> suffix;
    };

    using Base::args, Base::segment, Base::split, Base::prefix, Base::next, Base::suffix, Base::rejections;
    Shared& shared;
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const char *x, *y;    // producer: the first vector of the thread
    const char* records;  // producer: the first vector of the record flags
    int left;             // producer: rows from the first vector on; 0 if the thread has no column
    int held, rest;       // columns of the panel; rows of the split
    T* dx;                // the first element of the thread
    A base[W];
    PerColumn<Prefix> best;  // record pass: best element before the tile

    __device__ PipelinedPanel(const ScanArgs& args, Shared& s, uint4* buffer) : Base(args, buffer), shared(s) {}

    // Whether column v of the lane exists.
    __device__ bool has(int v) const { return lane * W + v < held; }

    __device__ int column() const { return threadIdx.x; }
    __device__ bool owns_column() const { return threadIdx.x < COLUMNS; }
    __device__ Prefix prefix_before_split() const { return this->split_state().prefix_before_split(threadIdx.x); }
    __device__ Carry suffix_after_split() const { return this->split_state().suffix_after_split(threadIdx.x); }

    // The position of a work item: offsets, columns of its panel, rows from its first one on.
    struct Item {
        i64 segment, split, column, row;
        Places place;
        int held, rest;
    };
    __device__ Item locate(unsigned number) const
    {
        Item item;
        const unsigned splits = static_cast<unsigned>(args.splits), segment = splits == 1 ? number : number / splits;
        const unsigned side = static_cast<unsigned>((args.extent[0] + COLUMNS - 1) / COLUMNS),
                       outer = args.dims == 1 ? 0 : segment / side;
        item.segment = segment;
        item.split = number - segment * splits;
        item.column = static_cast<i64>(segment - outer * side) * COLUMNS;
        item.row = item.split * args.tiles_per_split * ROWS;
        item.place = Places::of(args, 1, outer);
        item.held = static_cast<int>(min(args.extent[0] - item.column, static_cast<i64>(COLUMNS)));
        item.rest = static_cast<int>(args.n - item.row);
        return item;
    }

    __device__ void set_work_item(unsigned number)
    {
        const Item item = locate(number);
        const int row = threadIdx.x / VECTORS_PER_ROW, side = threadIdx.x % VECTORS_PER_ROW * 16;
        const auto first = [&](const Strided& operand, i64 from) {
            return operand.data + (from + item.column + (item.row + row) * operand.step) * sizeof(T) + side;
        };
        if constexpr (X) x = first(args.x, item.place.x);
        y = first(args.dy, item.place.dy);
        if constexpr (K::READS_RECORDS) records = this->records_of(number * args.tiles_per_split) + threadIdx.x * 16;
        left = keep_here(side < item.held * static_cast<int>(sizeof(T)) ? item.rest - row : 0);
    }

    __device__ void fetch(int t, bool prefix_only, unsigned to) const
    {
        const auto operand = [&](const char* from, const Strided& operand, unsigned to) {
            const i64 stride = operand.step * static_cast<i64>(sizeof(T));
            from += t * ROWS * stride;
#pragma unroll
            for (int k = 0; k < ROWS / ROWS_PER_COPY; ++k, from += ROWS_PER_COPY * stride)
                if (k * ROWS_PER_COPY < left - t * ROWS) cp_async_16(to + k * kColumnPipelinedThreads * 16, from);
        };
        if constexpr (X) operand(x, args.x, to);
        if (!K::FINDS_RECORDS && !prefix_only) operand(y, args.dy, to + (X ? OPERAND * 16 : 0));
        if (K::READS_RECORDS && threadIdx.x < BITS / 128) cp_async_16(to + OPERAND * 16, records + t * (BITS / 8));
    }

    __device__ void start_work_item(unsigned number)
    {
        const Item item = locate(number);
        segment = item.segment;
        split = item.split;
        held = item.held;
        rest = keep_here(item.rest);
        dx = reinterpret_cast<T*>(args.dx.data) + item.place.dx + item.column + lane * W +
             (item.row + warp * R) * args.dx.step;
        if constexpr (K::FINDS_RECORDS) {
#pragma unroll
            for (int v = 0; v < W; ++v)
                best.at[v] = this->phase() == 0 ? this->split_state().prefix_before_split(lane * W + v)
                                                : K::Prefix::identity();
            if (warp == 0) shared.prefix[lane] = best;
        }
        if constexpr (K::HAS_BASE) {
            const T* from = reinterpret_cast<const T*>(args.x.data) + item.place.x + item.column + lane * W;
#pragma unroll
            for (int v = 0; v < W; ++v) {
                const A first = has(v) ? widen<A>(from[v]) : A(0);
                A largest = first;
#pragma unroll
                for (int r = 1; r < kBaseRows; ++r)
                    if (has(v) && r < args.n) largest = fmax(largest, widen<A>(from[r * args.x.step + v]));
                base[v] = K::base(first, largest);
            }
        }
    }

    // The elements of the thread in a tile of `rows` rows.
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

    // The combined prefixes of all warps, for the column that the thread owns.
    __device__ Prefix tile_prefix(int parity)
    {
        Prefix sum = K::Prefix::identity();
#pragma unroll 4
        for (int w = 0; w < kColumnPipelinedWarps; ++w)
            sum = K::combine(
                sum, shared.prefixes[parity * kColumnPipelinedThreads + w * 32 + threadIdx.x / W].at[threadIdx.x % W]);
        return sum;
    }

    __device__ Carry tile_suffix()
    {
        Suffix sum = K::Suffix::identity();
#pragma unroll 4
        for (int w = kColumnPipelinedWarps - 1; w >= 0; --w)
            sum = K::combine(shared.suffixes[w * 32 + threadIdx.x / W].at[threadIdx.x % W], sum);
        return K::to_carry(sum);
    }

    // Extends the prefix before the tile to the prefix before this warp.
    template <int UNROLL>
    __device__ void combine_preceding(PerColumn<Prefix>& prefixes) const
    {
#pragma unroll UNROLL
        for (int w = 0; w < warp; ++w) {
            const PerColumn<Prefix> preceding = shared.prefixes[w * 32 + lane];
#pragma unroll
            for (int v = 0; v < W; ++v) prefixes.at[v] = K::combine(prefixes.at[v], preceding.at[v]);
        }
    }

    __device__ void find_prefix(int t, uint4* stage, int parity)
    {
        Vector xs[R];
        read(stage, xs, rest - t * ROWS, static_cast<T>(K::pad(args)));
        PerColumn<Prefix> own;
#pragma unroll
        for (int v = 0; v < W; ++v) {
            ThreadScan thread;
            thread.begin(args);
            if constexpr (K::HAS_BASE) thread.base = base[v];
            own.at[v] = thread.prefix(Elements<A, T, W, R, true>{xs, v}, split == 0 && t == 0 && warp == 0);
            if constexpr (K::IS_FAST) rejections |= thread.rejections | K::rejections(own.at[v]);
        }
        shared.prefixes[parity * kColumnPipelinedThreads + threadIdx.x] = own;
    }

    // Record flags of the thread's elements, one word a column.
    using Bits = std::conditional_t<R == 8, unsigned char, unsigned short>;
    struct alignas(W * sizeof(Bits)) Records {
        Bits at[W];
    };

    __device__ void find_record_flags(int t, uint4* stage);

    // Publishes the prefix of a split.
    __device__ void publish_prefix(const Prefix& all)
    {
        if constexpr (K::FINDS_RECORDS) {
            if (warp > 0) return;
#pragma unroll
            for (int v = 0; v < W; ++v) this->split_state().prefix(lane * W + v) = best.at[v];
        } else {
            Base::publish_prefix(all);
        }
    }

    __device__ void find_suffix(int t, uint4* stage)
    {
        const int rows = rest - t * ROWS;
        const unsigned segment_heads = split == 0 && t == 0 && warp == 0;
        if (owns_column()) {
            if constexpr (K::NEEDS_PREFIX)
                shared.prefix[threadIdx.x / W].at[threadIdx.x % W] = K::combine(prefix, next);
            shared.suffix[threadIdx.x / W].at[threadIdx.x % W] = K::from_carry(suffix);
        }
        Vector xs[R], ys[R];
        if constexpr (X) read(stage, xs, rows, static_cast<T>(K::pad(args)));
        read(stage + (X ? OPERAND : 0), ys, rows, pad_y<K, T>());
        Records known;
        if constexpr (K::READS_RECORDS) known = reinterpret_cast<const Records*>(stage + OPERAND)[threadIdx.x];
        const auto xv = [&](int v) { return Elements<A, T, W, R, true>{xs, v}; };
        const auto yv = [&](int v) { return Elements<A, T, W, R, true>{ys, v}; };
        ThreadScan thread[W];
        PerColumn<Prefix> prefixes;
        PerColumn<Suffix> suffixes;
#pragma unroll
        for (int v = 0; v < W; ++v) {
            thread[v].begin(args);
            if constexpr (K::HAS_BASE) thread[v].base = base[v];
            if constexpr (K::READS_RECORDS) thread[v].records = known.at[v];
            if constexpr (!K::SUFFIX_NEEDS_PREFIX) suffixes.at[v] = thread[v].suffix(xv(v), yv(v), segment_heads);
            if constexpr (K::PREFIX_FROM_SUFFIX)
                prefixes.at[v] = thread[v].product;
            else if constexpr (K::NEEDS_PREFIX)
                prefixes.at[v] = thread[v].prefix(xv(v), segment_heads);
        }
        if constexpr (K::NEEDS_PREFIX) shared.prefixes[threadIdx.x] = prefixes;
        if constexpr (!K::SUFFIX_NEEDS_PREFIX) shared.suffixes[threadIdx.x] = suffixes;
        __syncthreads();
        if constexpr (K::NEEDS_PREFIX) {
            this->load_tile_prefix(t - 1);
            prefixes = shared.prefix[lane];
            combine_preceding<4>(prefixes);
#pragma unroll
            for (int v = 0; v < W; ++v) thread[v].enter(prefixes.at[v], xv(v), yv(v), segment_heads);
        }
        if constexpr (K::SUFFIX_NEEDS_PREFIX) {
#pragma unroll
            for (int v = 0; v < W; ++v) suffixes.at[v] = thread[v].suffix(xv(v), yv(v), segment_heads);
            shared.suffixes[threadIdx.x] = suffixes;
            __syncthreads();
        }
        if (owns_column()) suffix = K::combine(tile_suffix(), suffix);
        if (this->phase() == kUpsweepSuffix) return;
        suffixes = shared.suffix[lane];
#pragma unroll 4
        for (int w = kColumnPipelinedWarps - 1; w > warp; --w) {
            const PerColumn<Suffix> following = shared.suffixes[w * 32 + lane];
#pragma unroll
            for (int v = 0; v < W; ++v) suffixes.at[v] = K::combine(following.at[v], suffixes.at[v]);
        }
        A out[R][W];
#pragma unroll
        for (int v = 0; v < W; ++v) {
            thread[v].finish(
                suffixes.at[v], xv(v), yv(v), K::IS_FAST && !has(v) ? 0 : segment_heads, [&](int c, const A(&some)[N]) {
#pragma unroll
                    for (int r = 0; r < N; ++r) out[c * N + r][v] = some[r];
                });
            if constexpr (K::IS_FAST) rejections |= thread[v].rejections;
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
__device__ void column_pipelined(const ScanArgs& args)
{
    using First = FastPath<K, T>;
    extern __shared__ __align__(128) uint4 buffer[];
    __shared__ typename PipelinedPanel<First, T>::Shared shared;
    PipelinedPanel<First, T>(args, shared, buffer).run();
}
