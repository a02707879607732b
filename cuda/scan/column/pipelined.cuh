// Pipelined columns (column_pipelined): long adjacent columns in aligned rows, prefetched by a
// multi-stage cp.async pipeline. A panel has W columns for each of 32 lanes; a warp owns R rows of
// a tile.
#pragma once

#include "common/async_copy.cuh"
#include "scan/pipeline/async_pipeline.cuh"
#include "scan/state/heads.cuh"
#include "scan/tile/store_indices.cuh"

constexpr int kColumnPipelinedWarps = kColumnPipelinedThreads / 32;

template <typename K, typename T>
struct PipelinedPanel : AsyncPipeline<PipelinedPanel<K, T>, K> {
    using Base = AsyncPipeline<PipelinedPanel, K>;
    using A = typename K::Number;
    using Prefix = typename K::Prefix;
    using Suffix = typename K::Suffix;
    using Carry = typename K::Carry;
    // x is read; both x and dy are read.
    static constexpr bool READS_X = __is_same(typename K::Value, A), READS_BOTH = READS_X && !K::FINDS_RECORDS;
    static constexpr int COLUMNS = K::Tuning::COLUMN_PIPELINED_COLUMNS[sizeof(T) / 4], W = COLUMNS / 32,
                         R = K::Tuning::COLUMN_PIPELINED_ROWS[sizeof(T) / 4], N = sizeof(T) == 8 ? 2 : 4;
    static constexpr int ROWS = kColumnPipelinedWarps * R, TILE_ELEMENTS = ROWS * COLUMNS;
    // 16-byte vectors of a row; rows that the CTA copies at once.
    static constexpr int VECTORS_PER_ROW = COLUMNS * sizeof(T) / 16,
                         ROWS_PER_COPY = kColumnPipelinedThreads / VECTORS_PER_ROW;
    static constexpr int OPERAND = ROWS * VECTORS_PER_ROW,
                         STAGE_VECTORS = OPERAND * ((READS_BOTH ? 2 : 1) + K::HAS_TWO_RESULTS) +
                                         (K::READS_RECORDS ? TILE_ELEMENTS / 128 : 0);
    using ThreadScan = typename K::template ThreadScan<R, N, false>;
    using Vector = Words<T, W>;
    template <typename S>
    struct alignas(W * (sizeof(S) & -sizeof(S))) PerColumn {  // a state for each column of a lane
        S at[W];
    };

    struct Shared {
        // Totals of warps, of two tiles, [warp][lane].
        Uninitialized<PerColumn<Prefix>, K::NEEDS_PREFIX ? 2 * kColumnPipelinedThreads : 1> warp_prefixes;
        Uninitialized<PerColumn<Suffix>, kColumnPipelinedThreads> warp_suffixes;
        Uninitialized<PerColumn<Prefix>, K::NEEDS_PREFIX ? 32 : 1> carry_prefix;  // carry-in of the tile
        Uninitialized<PerColumn<Suffix>, 32> carry_suffix;
    };

    using Base::args, Base::segment, Base::split, Base::prefix, Base::prefix_in_split, Base::suffix, Base::rejections;
    Shared& shared;
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const char *x, *y;       // producer: the first vector of the thread
    const char* z;           // producer: of HAS_TWO_RESULTS, that of the row before
    bool has_no_z;           // producer: there is no row before the first one of the thread
    const char* records;     // producer: the first vector of the record flags
    int producer_rows_left;  // producer: rows from the first vector on; 0 without a column
    int columns_present;     // columns of the panel that exist
    int rows_left;           // rows from the first one of the split to the end
    T* dx;                   // the first element of the thread
    T* second;               // of HAS_TWO_RESULTS; null: it is left out
    i64* indices;            // of forward cummax and cummin: its index
    i64 first_row;           // the row that is the first column of the thread
    A base[W];
    PerColumn<Prefix> best;  // record pass: best element before the tile

    __device__ PipelinedPanel(const ScanArgs& args, Shared& s, uint4* buffer) : Base(args, buffer), shared(s) {}

    // Whether column v of the lane exists.
    __device__ bool has(int v) const { return lane * W + v < columns_present; }

    __device__ int column() const { return threadIdx.x; }
    __device__ bool owns_column() const { return threadIdx.x < COLUMNS; }
    __device__ Prefix prefix_before_split() const { return this->split_state().prefix_before_split(threadIdx.x); }
    __device__ Carry suffix_after_split() const { return this->split_state().suffix_after_split(threadIdx.x); }

    // A work item: its first column and row, the offsets of its outer index, the columns of its
    // panel that exist, and the rows from its first one to the end.
    struct Item {
        i64 segment, split, column, row;
        Offsets offsets;
        int columns_present, rows_left;
    };
    __device__ Item locate(unsigned number) const
    {
        Item item;
        const unsigned splits = static_cast<unsigned>(args.splits), segment = splits == 1 ? number : number / splits;
        const unsigned panels_across = static_cast<unsigned>((args.extent[0] + COLUMNS - 1) / COLUMNS),
                       outer = args.dims == 1 ? 0 : segment / panels_across;
        item.segment = segment;
        item.split = number - segment * splits;
        item.column = static_cast<i64>(segment - outer * panels_across) * COLUMNS;
        item.row = item.split * args.tiles_per_split * ROWS;
        item.offsets = Offsets::of(args, 1, outer);
        item.columns_present = static_cast<int>(min(args.extent[0] - item.column, static_cast<i64>(COLUMNS)));
        item.rows_left = static_cast<int>(args.n - item.row);
        return item;
    }

    __device__ void set_work_item(unsigned number)
    {
        const Item item = locate(number);
        const int row = threadIdx.x / VECTORS_PER_ROW, byte_in_row = threadIdx.x % VECTORS_PER_ROW * 16;
        const auto first = [&](const Strided& operand, i64 from) {
            return operand.data + (from + item.column + (item.row + row) * operand.step) * sizeof(T) + byte_in_row;
        };
        if constexpr (READS_X) x = first(args.inputs[kSaved], item.offsets.inputs[kSaved]);
        y = first(args.inputs[kScanned], item.offsets.inputs[kScanned]);
        if constexpr (K::HAS_TWO_RESULTS) {
            const Strided& states = args.inputs[kStates];
            z = first(states, item.offsets.inputs[kStates]) - states.step * static_cast<i64>(sizeof(T));
            has_no_z = item.row + row == 0;
        }
        if constexpr (K::READS_RECORDS) records = this->records_of(number * args.tiles_per_split) + threadIdx.x * 16;
        producer_rows_left = keep_here(
            byte_in_row < item.columns_present * static_cast<int>(sizeof(T)) ? item.rows_left - row : 0);
    }

    __device__ void fetch(int t, bool prefix_only, unsigned to) const
    {
        const auto operand = [&](const char* from, const Strided& operand, unsigned to, bool skips_first = false) {
            const i64 stride = operand.step * static_cast<i64>(sizeof(T));
            from += t * ROWS * stride;
#pragma unroll
            for (int k = 0; k < ROWS / ROWS_PER_COPY; ++k, from += ROWS_PER_COPY * stride)
                if (k * ROWS_PER_COPY < producer_rows_left - t * ROWS && !(k == 0 && skips_first))
                    cp_async_16(to + k * kColumnPipelinedThreads * 16, from);
        };
        if constexpr (READS_X) operand(x, args.inputs[kSaved], to);
        if (!K::FINDS_RECORDS && !prefix_only) operand(y, args.inputs[kScanned], to + (READS_X ? OPERAND * 16 : 0));
        if constexpr (K::HAS_TWO_RESULTS) {
            if (args.outputs[kSecond].data && this->phase() == kDownsweep)
                operand(z, args.inputs[kStates], to + 2 * OPERAND * 16, t == 0 && has_no_z);
        }
        if (K::READS_RECORDS && threadIdx.x < TILE_ELEMENTS / 128)
            cp_async_16(to + OPERAND * 16, records + t * (TILE_ELEMENTS / 8));
    }

    __device__ void start_work_item(unsigned number)
    {
        const Item item = locate(number);
        segment = item.segment;
        split = item.split;
        columns_present = item.columns_present;
        rows_left = keep_here(item.rows_left);
        if constexpr (K::HAS_SEQUENCES) {
            const i64 panels_across = (args.extent[0] + COLUMNS - 1) / COLUMNS;
            first_row = item.segment / panels_across * args.extent[0] + item.column + lane * W;
        }
        const Strided &result = args.outputs[kResult], &index = args.outputs[kIndices];
        dx = reinterpret_cast<T*>(result.data) + item.offsets.outputs[kResult] + item.column + lane * W +
             (item.row + warp * R) * result.step;
        if constexpr (K::HAS_TWO_RESULTS) {
            const Strided& other = args.outputs[kSecond];
            second = other.data ? reinterpret_cast<T*>(other.data) + item.offsets.outputs[kSecond] + item.column +
                                      lane * W + (item.row + warp * R) * other.step
                                : nullptr;
        }
        if constexpr (K::STORES_INDICES)
            indices = reinterpret_cast<i64*>(index.data) + item.offsets.outputs[kIndices] +
                      (item.column + lane * W) * index.stride[0] + (item.row + warp * R) * index.step;
        if constexpr (K::FINDS_RECORDS) {
#pragma unroll
            for (int v = 0; v < W; ++v)
                best.at[v] = this->phase() == kDownsweep ? this->split_state().prefix_before_split(lane * W + v)
                                                         : K::Prefix::identity();
            if (warp == 0) shared.carry_prefix[lane] = best;
        }
        if constexpr (K::HAS_BASE) {
            const Strided& saved = args.inputs[kSaved];
            const i64 first_column = item.offsets.inputs[kSaved] + item.column + lane * W;
            const T* from = reinterpret_cast<const T*>(saved.data) + first_column;
#pragma unroll
            for (int v = 0; v < W; ++v) {
                const A first = has(v) ? widen<A>(from[v]) : A(0);
                A largest = first;
#pragma unroll
                for (int r = 1; r < kColumnBaseRows; ++r)
                    if (has(v) && r < args.n) largest = fmax(largest, widen<A>(from[r * saved.step + v]));
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
                sum,
                shared.warp_prefixes[parity * kColumnPipelinedThreads + w * 32 + threadIdx.x / W].at[threadIdx.x % W]);
        return sum;
    }

    __device__ Carry tile_suffix()
    {
        Suffix sum = K::Suffix::identity();
#pragma unroll 4
        for (int w = kColumnPipelinedWarps - 1; w >= 0; --w)
            sum = K::combine(shared.warp_suffixes[w * 32 + threadIdx.x / W].at[threadIdx.x % W], sum);
        return K::to_carry(sum);
    }

    // Extends the prefix before the tile to the prefix before this warp.
    template <int UNROLL>
    __device__ void combine_preceding(PerColumn<Prefix>& prefixes) const
    {
#pragma unroll UNROLL
        for (int w = 0; w < warp; ++w) {
            const PerColumn<Prefix> preceding = shared.warp_prefixes[w * 32 + lane];
#pragma unroll
            for (int v = 0; v < W; ++v) prefixes.at[v] = K::combine(prefixes.at[v], preceding.at[v]);
        }
    }

    __device__ void find_prefix(int t, uint4* stage, int parity)
    {
        Vector xs[R];
        read(stage, xs, rows_left - t * ROWS, static_cast<T>(K::pad(args)));
        PerColumn<Prefix> own;
#pragma unroll
        for (int v = 0; v < W; ++v) {
            ThreadScan thread;
            thread.begin(args);
            if constexpr (K::HAS_BASE) thread.base = base[v];
            own.at[v] = thread.prefix(Elements<A, T, W, R, true>{xs, v}, split == 0 && t == 0 && warp == 0);
            if constexpr (K::IS_FAST) rejections |= thread.rejections | K::rejections(own.at[v]);
        }
        shared.warp_prefixes[parity * kColumnPipelinedThreads + threadIdx.x] = own;
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
        const int rows = rows_left - t * ROWS;
        unsigned segment_heads = split == 0 && t == 0 && warp == 0;
        if constexpr (K::READS_HEADS) segment_heads = heads_at<R>(args, args.n - rows + warp * R);
        if (owns_column()) {
            if constexpr (K::NEEDS_PREFIX)
                shared.carry_prefix[threadIdx.x / W].at[threadIdx.x % W] = K::combine(prefix, prefix_in_split);
            shared.carry_suffix[threadIdx.x / W].at[threadIdx.x % W] = K::from_carry(suffix);
        }
        Vector xs[R], ys[R];
        if constexpr (READS_X) read(stage, xs, rows, static_cast<T>(K::pad(args)));
        read(stage + (READS_X ? OPERAND : 0), ys, rows, K::template pad_y<T>(args));
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
            if constexpr (K::HAS_SEQUENCES) {
                thread[v].template locate<T>(first_row + v, args.n - rows + warp * R, has(v));
                if constexpr (READS_X) {
                    if (v == 0 && thread[v].without_decay()) replace_rows(xs, thread[v].without_decay(), T());
                }
            }
            if constexpr (K::STORES_INDICES) thread[v].position = args.n - rows + warp * R, thread[v].end = args.n;
            if constexpr (!K::SUFFIX_NEEDS_PREFIX) suffixes.at[v] = thread[v].suffix(xv(v), yv(v), segment_heads);
            if constexpr (K::PREFIX_FROM_SUFFIX)
                prefixes.at[v] = thread[v].product;
            else if constexpr (K::NEEDS_PREFIX)
                prefixes.at[v] = thread[v].prefix(xv(v), segment_heads);
        }
        if constexpr (K::NEEDS_PREFIX) shared.warp_prefixes[threadIdx.x] = prefixes;
        if constexpr (!K::SUFFIX_NEEDS_PREFIX) shared.warp_suffixes[threadIdx.x] = suffixes;
        __syncthreads();
        if constexpr (K::NEEDS_PREFIX) {
            this->load_tile_prefix(t - 1);
            prefixes = shared.carry_prefix[lane];
            combine_preceding<4>(prefixes);
#pragma unroll
            for (int v = 0; v < W; ++v) thread[v].enter(prefixes.at[v], xv(v), yv(v), segment_heads);
        }
        if constexpr (K::SUFFIX_NEEDS_PREFIX) {
#pragma unroll
            for (int v = 0; v < W; ++v) suffixes.at[v] = thread[v].suffix(xv(v), yv(v), segment_heads);
            shared.warp_suffixes[threadIdx.x] = suffixes;
            __syncthreads();
        }
        if (owns_column()) suffix = K::combine(tile_suffix(), suffix);
        if (this->phase() == kUpsweepSuffix) return;
        suffixes = shared.carry_suffix[lane];
#pragma unroll 4
        for (int w = kColumnPipelinedWarps - 1; w > warp; --w) {
            const PerColumn<Suffix> following = shared.warp_suffixes[w * 32 + lane];
#pragma unroll
            for (int v = 0; v < W; ++v) suffixes.at[v] = K::combine(following.at[v], suffixes.at[v]);
        }
        A out[R][W];
        Vector zs[K::HAS_TWO_RESULTS ? R : 1];  // z of the row before each; then second results
        if constexpr (K::HAS_TWO_RESULTS) {
            if (second) read(stage + 2 * OPERAND, zs, rows, T());
        }
#pragma unroll
        for (int v = 0; v < W; ++v) {
            const auto keep = [&](int c, const A(&some)[N], const auto&... others) {
#pragma unroll
                for (int r = 0; r < N; ++r) {
                    out[c * N + r][v] = some[r];
                    (zs[c * N + r].replace(v, static_cast<T>(others[r])), ...);
                }
            };
            // Columns that do not exist must not be rejected for a small first dx.
            const unsigned heads = K::IS_FAST && !has(v) ? 0 : segment_heads;
            if constexpr (K::HAS_TWO_RESULTS) {
                thread[v].before = zs[0].template value<A>(v);
                thread[v].finish(
                    suffixes.at[v], xv(v), yv(v), heads, keep, [&](int r) { return zs[r + 1].template value<A>(v); });
            } else {
                thread[v].finish(suffixes.at[v], xv(v), yv(v), heads, keep);
            }
            if constexpr (K::IS_FAST) rejections |= thread[v].rejections;
        }
        const int left = has(0) ? rows - warp * R : 0;
        if constexpr (K::STORES_INDICES)
            store_column_indices<W>(
                args, thread, columns_present - lane * W, min(max(left, 0), R),
                indices + t * ROWS * args.outputs[kIndices].step);
        if constexpr (K::HAS_TWO_RESULTS) {
            if (second) {
                const i64 step = args.outputs[kSecond].step;
                T* q = second + t * ROWS * step;
#pragma unroll
                for (int r = 0; r < R; ++r, q += step)
                    if (r < left) zs[r].store(q);
            }
            if (args.flags & kNoResult) return;
        }
        const i64 step = args.outputs[kResult].step;
        T* q = dx + t * ROWS * step;
        if (left >= R) {
#pragma unroll
            for (int r = 0; r < R; ++r, q += step) store(q, out[r]);
        } else {
#pragma unroll
            for (int r = 0; r < R; ++r, q += step)
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
