// ColumnTile: a tile of a panel of adjacent columns, scanned along rows. A thread owns W columns of
// R rows; `threads_across` threads are side by side, and `threads_down` of those groups are stacked
// to share a panel. A panel of more than a warp has a CTA for itself.
#pragma once

#include "scan/state/fallback.cuh"
#include "scan/state/heads.cuh"
#include "scan/state/warp_transpose.cuh"
#include "scan/tile/column_io.cuh"
#include "scan/tile/store_indices.cuh"

// Columns and rows that a thread owns: few columns, as each needs its own states.
template <typename K, typename T>
constexpr int kColumnsPerThread = K::Tuning::COLUMN_TILED_COLUMNS[sizeof(T) / 4];
template <typename K, typename T>
constexpr int kRowsPerThread = K::Tuning::COLUMN_TILED_ROWS[sizeof(T) / 4];

template <typename K, typename T>
struct ColumnTile : ColumnIO<T, kColumnsPerThread<K, T>, kRowsPerThread<K, T>> {
    static constexpr int N = sizeof(T) == 8 ? 2 : 4, W = kColumnsPerThread<K, T>, R = kRowsPerThread<K, T>,
                         COLUMNS = 32 * W;
    using A = typename K::Number;
    using Prefix = typename K::Prefix;
    using Suffix = typename K::Suffix;
    static constexpr bool READS_X = __is_same(typename K::Value, A), INDEX = __is_same(typename K::Value, i64);
    using ThreadScan = typename K::template ThreadScan<R, N, false>;
    using Vector = Words<T, W>;

    // Shared memory: the carry-in, then the totals of each warp. Thread c owns the prefix of column
    // c, and the thread c places before the last owns its suffix, so that both are computed at
    // once.
    struct CarryIn {  // carry-in of the tile, [column]
        Uninitialized<Prefix, K::NEEDS_PREFIX ? COLUMNS : 1> prefixes;
        Uninitialized<typename K::Carry, COLUMNS> suffixes;
    };
    struct WarpStates {  // totals of a warp, [column]; then what enters the warp
        Uninitialized<Prefix, K::NEEDS_PREFIX ? COLUMNS : 1> prefixes;
        Uninitialized<Suffix, COLUMNS> suffixes;
    };

    using Base = ColumnIO<T, W, R>;
    using Base::args, Base::x, Base::y, Base::segment, Base::offsets, Base::threads_across, Base::threads_down,
        Base::columns, Base::panel_in_warp, Base::has, Base::count;
    bool is_chunk;  // as of a Span
    CarryIn& carry_in;
    WarpStates* warp_states;  // [warp]

    __device__ ColumnTile(const ScanArgs& args, uint4* smem, bool is_chunk)
        : Base(args, item()),
          is_chunk(is_chunk),
          carry_in(*reinterpret_cast<CarryIn*>(smem)),
          warp_states(reinterpret_cast<WarpStates*>(smem + (sizeof(CarryIn) + 15) / 16))
    {
    }

    // The general kind behind a fast path runs in the fallback pass, on work items; any other kind
    // on its CTA's own item.
    static constexpr bool IS_FALLBACK = kHasFastPath<K> && !K::IS_FAST;
    static __device__ unsigned item() { return IS_FALLBACK ? work_item().item : blockIdx.x; }
    __device__ int phase() const
    {
        return IS_FALLBACK ? work_item().phase : static_cast<int>(args.flags) & (kUpsweepPrefix | kUpsweepSuffix);
    }

    // Whether this thread keeps the prefix carry of a column.
    __device__ bool owns_column() const { return threadIdx.x < columns(); }
    __device__ int suffix_column() const { return blockDim.x - 1 - threadIdx.x; }
    __device__ bool owns_suffix_column() const { return suffix_column() < columns(); }
    __device__ SplitState<K> split_state() const
    {
        return SplitState<K>(args, segment, item() - segment * args.splits, columns());
    }

    // The row that is column c of the panel, over all dims; and the last column that exists.
    __device__ i64 row_of_column(int c) const
    {
        const i64 panels_across = (args.extent[0] + columns() - 1) / columns(),
                  outer = panels_across == 1 ? segment : segment / panels_across;
        return outer * args.extent[0] + (segment - outer * panels_across) * columns() + c;
    }
    __device__ int last_column() const { return this->columns_present - 1; }

    // ---------------------------------------------------------------------- exchange between warps

    // Exclusive scan of the totals of the warps, in shared memory; `before` is the prefix before
    // the tile in its split. Returns the combined suffix of the tile to threads with
    // owns_suffix_column().
    template <bool PREFIXES, bool SUFFIXES, bool ONE>
    __device__ Suffix exchange(const Prefix& before) const
    {
        const int warps = blockDim.x / 32;
        Suffix all = K::Suffix::identity();
        if (panel_in_warp()) return all;
        __syncthreads();
        if constexpr (PREFIXES) {
            if (const int c = threadIdx.x; owns_column()) {
                Prefix sum = ONE ? before : K::combine(carry_in.prefixes[c], before);
#pragma unroll (K::LONG_COMBINE ? 1 : 4)
                for (int w = 0; w < warps; ++w) {
                    const Prefix total = warp_states[w].prefixes[c];
                    warp_states[w].prefixes[c] = sum;
                    sum = K::combine(sum, total);
                }
            }
        }
        if constexpr (SUFFIXES) {
            if (const int c = suffix_column(); owns_suffix_column()) {
                Suffix sum = ONE ? K::Suffix::identity() : K::from_carry(carry_in.suffixes[c]);
#pragma unroll (K::LONG_COMBINE ? 1 : 4)
                for (int w = warps - 1; w >= 0; --w) {
                    const Suffix last = warp_states[w].suffixes[c];
                    warp_states[w].suffixes[c] = sum;
                    if (!ONE) all = K::combine(last, all);
                    sum = K::combine(last, sum);
                }
            }
        }
        __syncthreads();
        return all;
    }

    // -------------------------------------------------------------------------------------- a tile

    // Exclusive warp scan over the threads of a column; the total of the warp goes to shared
    // memory.
    __device__ Prefix exclusive_prefix(const Prefix& prefix, int v) const
    {
        // Lanes before this one that share its panel.
        const int lane = threadIdx.x % 32, reach = panel_in_warp() ? y * threads_across() : lane;
        Prefix all = prefix, next = K::Prefix::identity();
#pragma unroll 1
        for (int d = threads_across(); d < 32; d *= 2) {
            const Prefix left = shuffle_up(all, d);
            if (d <= reach) all = K::combine(left, all);
        }
        if (threads_across() < 32) next = shuffle_up(all, threads_across());
        if (reach < threads_across()) next = K::Prefix::identity();
        if (!panel_in_warp() && lane >= 32 - threads_across()) warp_states[threadIdx.x / 32].prefixes[x * W + v] = all;
        return next;
    }

    __device__ Suffix exclusive_suffix(const Suffix& suffix, int v) const
    {
        const int lane = threadIdx.x % 32,
                  reach = panel_in_warp() ? (threads_down() - 1 - y) * threads_across() : 31 - lane;
        Suffix all = suffix, next = K::Suffix::identity();
#pragma unroll 1
        for (int d = threads_across(); d < 32; d *= 2) {
            const Suffix right = shuffle_down(all, d);
            if (d <= reach) all = K::combine(all, right);
        }
        if (threads_across() < 32) next = shuffle_down(all, threads_across());
        if (reach < threads_across()) next = K::Suffix::identity();
        if (!panel_in_warp() && lane < threads_across()) warp_states[threadIdx.x / 32].suffixes[x * W + v] = all;
        return next;
    }

    // Advances the prefix carry of each column by the totals of the warps. Thread c takes column c.
    __device__ void advance_prefix() const
    {
        const int c = threadIdx.x, warps = blockDim.x / 32;
        if (!panel_in_warp()) __syncthreads();
        if (owns_column()) {
            Prefix sum = carry_in.prefixes[c];
#pragma unroll 4
            for (int w = 0; w < warps; ++w) sum = K::combine(sum, warp_states[w].prefixes[c]);
            carry_in.prefixes[c] = sum;
        }
        __syncthreads();
    }

    // Whether an output has the type of accumulators.
    __device__ bool is_wide(int output) const
    {
        return K::HAS_WIDE_RESULTS && args.flags & (output == kResult ? kResultWide : kSecondWide);
    }

    // Stores a number of row r, of n, and column v of the thread as an accumulator.
    __device__ void store_accumulator(int output, i64 tile, int n, int r, int v, A x) const
    {
        const Strided& to = args.outputs[output];
        if (r < n && has(v))
            Base::template first<A>(to, offsets.outputs[output], tile)[r * to.step + v * to.stride[0]] = x;
    }

    // Whether the second result is summed over the elements of a column that a thread has.
    __device__ bool sums_second() const { return K::HAS_WIDE_RESULTS && args.flags & kSecondSummed; }

    // Stores the sums of the second results of the thread, which has a part of each of its columns.
    __device__ void store_sums(i64 tile, const A (&sum)[W]) const
    {
        const Strided& to = args.outputs[kSecond];
        const i64 part = tile * threads_down() + y;
        A* q = reinterpret_cast<A*>(to.data) + offsets.outputs[kSecond] + (part - y * R) * to.step;
#pragma unroll
        for (int v = 0; v < W; ++v)
            if (has(v)) q[v * to.stride[0]] = sum[v];
    }

    // Runs a tile, number t of the split: stores dx, or only advances the prefixes or suffixes
    // (upsweeps). Returns the rejections of the thread. ONE: the tile is the whole panel; returns
    // the rejections of the CTA, and stores nothing if they are kRejected.
    template <bool ONE>
    __device__ unsigned run(i64 tile, int t, int phase) const
    {
        const bool walks = !ONE && args.splits * args.tiles_per_split > 1,
                   prefix_only = K::NEEDS_PREFIX && phase == kUpsweepPrefix;
        const int n = count(tile);
        Vector xs[R], ys[R], zs[K::HAS_TWO_RESULTS ? R : 1];
        const bool has_second = K::HAS_TWO_RESULTS && args.outputs[kSecond].data;
        if constexpr (K::HAS_TWO_RESULTS) {  // z of the row before each
            if (has_second && phase == kDownsweep)
                this->load_preceding(
                    args.inputs[kStates], offsets.inputs[kStates], tile, tile == 0 && y == 0, n, zs);
        }
        if constexpr (READS_X)
            this->load(args.inputs[kSaved], offsets.inputs[kSaved], tile, n, xs, static_cast<T>(K::pad(args)));
        if (!prefix_only)
            this->load(args.inputs[kScanned], offsets.inputs[kScanned], tile, n, ys, K::template pad_y<T>(args));
        else if (K::PREFIX_FROM_SUFFIX)
            Base::clear(ys);
        const i64 first_row = (tile * threads_down() + y) * R;
        if constexpr (K::READS_HEADS && K::HAS_EXCLUSIVE) {
            if (args.flags & kExclusive) {
                const unsigned bits = heads_at<R>(args, first_row + 1);
                if constexpr (READS_X) replace_rows(xs, bits, static_cast<T>(K::pad(args)));
                replace_rows(ys, bits, K::template pad_y<T>(args));
            }
        }
        Prefix before;  // of the column that the thread owns
        if constexpr (K::NEEDS_PREFIX) {
            before = K::Prefix::identity();
            if (!prefix_only && walks && owns_column()) before = split_state().prefix_before(t, threadIdx.x);
        }
        const auto xv = [&](int v) { return Elements<A, T, W, R, true>{xs, v}; };
        const auto yv = [&](int v) { return Elements<A, T, W, R, true>{ys, v}; };
        unsigned segment_heads = !is_chunk && first_row == 0;
        if constexpr (K::READS_HEADS) segment_heads = heads_at<R>(args, first_row);
        // Of packed sequences, as of RowTile::Thread.
        const auto heads = [&] { return K::READS_HEADS ? keep_here(segment_heads) : segment_heads; };
        ThreadScan thread[W];
        Prefix prefix[W];
        Suffix suffix[W];
#pragma unroll
        for (int v = 0; v < W; ++v) {
            thread[v].begin(args);
            if constexpr (INDEX) find_records(thread[v], v, tile, segment_heads);
            if constexpr (K::STORES_INDICES) {
                thread[v].position = first_row;
                thread[v].end = args.n;
                thread[v].set_row(args, row_of_column(min(x * W + v, last_column())));
            }
            if constexpr (K::HAS_BASE) thread[v].base = base_of(v);
            if constexpr (K::HAS_SEQUENCES) {
                thread[v].template locate<T>(row_of_column(min(x * W + v, last_column())), first_row, has(v));
                if constexpr (READS_X) {
                    if (v == 0 && thread[v].without_decay()) replace_rows(xs, thread[v].without_decay(), T());
                }
            }
            if constexpr (K::PREFIX_FROM_SUFFIX)
                suffix[v] = exclusive_suffix(thread[v].suffix(xv(v), yv(v), segment_heads), v);
            if constexpr (K::PREFIX_FROM_SUFFIX)
                prefix[v] = exclusive_prefix(thread[v].product, v);
            else if constexpr (K::NEEDS_PREFIX)
                prefix[v] = exclusive_prefix(thread[v].prefix(xv(v), heads()), v);
        }
        if constexpr (K::NEEDS_PREFIX) {
            if (prefix_only) {
                advance_prefix();
                return 0;
            }
        }
        const auto find_suffixes = [&] {
#pragma unroll
            for (int v = 0; v < W; ++v) suffix[v] = exclusive_suffix(thread[v].suffix(xv(v), yv(v), heads()), v);
        };
        if constexpr (!K::SUFFIX_NEEDS_PREFIX && !K::PREFIX_FROM_SUFFIX) find_suffixes();
        Suffix all = exchange<K::NEEDS_PREFIX, !K::SUFFIX_NEEDS_PREFIX, ONE>(before);
        if constexpr (K::NEEDS_PREFIX) {
            rematerialize(xs);
#pragma unroll
            for (int v = 0; v < W; ++v) {
                if (!panel_in_warp())
                    prefix[v] = K::combine(warp_states[threadIdx.x / 32].prefixes[x * W + v], prefix[v]);
                thread[v].enter(prefix[v], xv(v), yv(v), heads());
                if constexpr (K::SEGMENTED_SUM) {
                    if (is_chunk) thread[v].records &= (1u << n) - 1;
                }
            }
        }
        if constexpr (K::SUFFIX_NEEDS_PREFIX) {
            find_suffixes();
            all = exchange<false, true, ONE>(before);
        }
        unsigned rejections = 0;
        if (phase != kUpsweepSuffix) {
            if constexpr (READS_X) rematerialize(xs);
            rematerialize(ys);
            A sum[W] = {};  // of second results
#pragma unroll
            for (int v = 0; v < W; ++v) {
                if (!panel_in_warp())
                    suffix[v] = K::combine(suffix[v], warp_states[threadIdx.x / 32].suffixes[x * W + v]);
                // Columns that do not exist must not be rejected for a small first dx.
                const auto store = [&](int c, const A(&dx)[N], const auto&... second) {
#pragma unroll
                    for (int r = 0; r < N; ++r) {
                        if (is_wide(kResult)) store_accumulator(kResult, tile, n, c * N + r, v, dx[r]);
                        if (sums_second())
                            ((sum[v] += c * N + r < n ? second[r] : A(0)), ...);
                        else if (is_wide(kSecond))
                            (store_accumulator(kSecond, tile, n, c * N + r, v, second[r]), ...);
                        ys[c * N + r].replace(v, static_cast<T>(dx[r]));
                        (zs[c * N + r].replace(v, static_cast<T>(second[r])), ...);
                    }
                };
                const unsigned own_heads = K::IS_FAST && !has(v) ? 0 : heads();
                if constexpr (K::HAS_TWO_RESULTS) {
                    thread[v].before = zs[0].template value<A>(v);
                    thread[v].finish(suffix[v], xv(v), yv(v), own_heads, store, [&](int r) {
                        return zs[r + 1].template value<A>(v);
                    });
                } else {
                    thread[v].finish(suffix[v], xv(v), yv(v), own_heads, store);
                }
                if constexpr (K::IS_FAST) rejections |= thread[v].rejections;
            }
            // Without kRejectMagnitude in any thread the first barrier alone accepts the panel.
            if constexpr (ONE && K::IS_FAST) {
                rejections = __syncthreads_or(rejections & kRejectMagnitude) ? block_rejections(rejections) : 0;
                if (rejections == kRejected) return rejections;
            }
            if (!K::HAS_TWO_RESULTS || !(args.flags & kNoResult) && !is_wide(kResult)) this->store(ys, tile, n);
            if constexpr (K::HAS_TWO_RESULTS) {
                if (sums_second()) store_sums(tile, sum);
                if (has_second && !is_wide(kSecond)) this->store(zs, tile, n, kSecond);
            }
            if constexpr (K::STORES_INDICES) {
                i64* to = Base::template first<i64>(args.outputs[kIndices], offsets.outputs[kIndices], tile);
                if (ThreadScan::stores_indices(args))
                    store_column_indices<W>(args, thread, this->columns_present - x * W, n, to);
            }
        }
        if (!ONE && !panel_in_warp() && owns_suffix_column())
            carry_in.suffixes[suffix_column()] = K::combine(K::to_carry(all), carry_in.suffixes[suffix_column()]);
        return rejections;
    }

    // The first x of column v of the thread.
    __device__ A base_of(int v) const
    {
        const Strided& saved = args.inputs[kSaved];
        const i64 offset = offsets.inputs[kSaved] - y * R * saved.step + v * saved.stride[0];
        return has(v) ? widen<A>(reinterpret_cast<const T*>(saved.data)[offset]) : A(0);
    }

    __device__ void find_records(ThreadScan& thread, int v, i64 tile, unsigned segment_heads) const
    {
        const Strided& saved = args.inputs[kSaved];
        const i64* q = Base::template first<i64>(saved, offsets.inputs[kSaved], tile) + v * saved.stride[0];
        const int n = has(v) ? count(tile) : 0;
        const i64 row0 = (tile * threads_down() + y) * R, before = n > 0 && row0 > 0 ? *(q - saved.step) : 0;
        thread.find_records(
            args, [&](int r) { return q[r * saved.step]; }, n, segment_heads, row_of_column(x * W + v), row0, before);
    }
};
