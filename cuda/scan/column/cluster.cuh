// Cluster columns (column_cluster). A panel of adjacent columns in aligned rows is divided among
// the CTAs of a thread-block cluster; each keeps its slice of rows in registers, so x and dy are
// read once. CTAs exchange the aggregates of their columns through distributed shared memory
// (st.async + mbarrier) while cp.async prefetches the slice of the next panel.
//
// For fast paths only. Each CTA adds its rejections to the flag of the panel; the fallback pass
// recomputes rejected panels.
#pragma once

#include "common/cluster.cuh"
#include "scan/state/warp_transpose.cuh"

// A thread of a persistent cluster. It owns R rows of PER columns: of the elements in a 32-bit
// word, or of one float64. The lanes that own the same rows are a group. The shared memory of a
// warp holds its x and dy, row by row, then the first rows of the panel (HAS_BASE), then the x from
// which exponentials are recomputed.
template <typename K, typename T>
struct ClusterPanel {
    using A = typename K::Number;
    static constexpr int COLUMNS = kLineBytes / sizeof(T), PER = Words<T, 2>::PER_WORD;
    static constexpr int LANES = COLUMNS / PER, GROUPS = 32 / LANES, ROWS = 32, R = ROWS / GROUPS, N = 8;
    // 16-byte vectors of a row; rows that a warp copies at once.
    static constexpr int VECTORS_PER_ROW = kLineBytes / 16, ROWS_PER_COPY = 32 / VECTORS_PER_ROW;
    static constexpr int RECOMPUTED_ROWS = K::template RECOMPUTED_ELEMENTS<PER, R> / PER;  // rows of a lane
    static constexpr int OPERAND = ROWS * VECTORS_PER_ROW,
                         BASE_VECTORS = K::HAS_BASE ? kColumnBaseRows * VECTORS_PER_ROW : 0,
                         WARP_VECTORS = 2 * OPERAND + BASE_VECTORS + RECOMPUTED_ROWS * GROUPS * VECTORS_PER_ROW;
    using ThreadScan = typename K::template ThreadScan<R, N, false>;
    using Word = Words<T, PER>;
    using Column = Elements<A, T, PER, R, true>;

    // A state for each column of a lane.
    template <typename S>
    struct alignas(PER * sizeof(S)) PerColumn {
        S at[PER];

        __device__ static PerColumn of(const S& s)
        {
            PerColumn each;
#pragma unroll
            for (int k = 0; k < PER; ++k) each.at[k] = s;
            return each;
        }
        __device__ friend PerColumn combined(const PerColumn& l, const PerColumn& r)
        {
            PerColumn each;
#pragma unroll
            for (int k = 0; k < PER; ++k) each.at[k] = K::combine(l.at[k], r.at[k]);
            return each;
        }
    };
    using Prefixes = PerColumn<typename K::Prefix>;
    using Suffixes = PerColumn<typename K::Suffix>;

    // Mailbox for the states of other CTAs, [CTA][lane]: prefixes of all but the last CTA, suffixes
    // of all but the first.
    struct Box {
        Uninitialized<Prefixes, (kMaxClusterCTAs - 1) * LANES> preceding;
        Uninitialized<Suffixes, (kMaxClusterCTAs - 1) * LANES> following;
        Barrier full_barrier[2];  // first exchange; second exchange, which depends on the first
    };
    struct Shared {
        Uninitialized<Prefixes, kColumnClusterThreads / 32 * LANES> warp_prefixes;  // of warps, [warp][lane]
        Uninitialized<Suffixes, kColumnClusterThreads / 32 * LANES> warp_suffixes;
        Uninitialized<Prefixes, LANES> carry_prefix;  // combined over other CTAs
        Uninitialized<Suffixes, LANES> carry_suffix;
        Box boxes[2];  // alternate between panels
    };

    const ScanArgs& args;
    Shared& shared;
    uint4* smem;
    int slices = static_cast<int>(args.splits), warp = threadIdx.x / 32, warps = blockDim.x / 32;
    int lane = threadIdx.x % 32, lane_in_group = lane % LANES, group = lane / LANES;
    unsigned panel = blockIdx.x / static_cast<unsigned>(slices), stride = gridDim.x / static_cast<unsigned>(slices),
             iteration = 0;
    int slice = static_cast<int>(blockIdx.x - panel * slices);
    int first, rows_present;  // first row of the warp; how many of its rows exist

    __device__ ClusterPanel(const ScanArgs& args, Shared& shared, uint4* block_smem)
        : args(args), shared(shared), smem(block_smem + threadIdx.x / 32 * WARP_VECTORS)
    {
        first = keep_here((slice * warps + warp) * ROWS);
        rows_present = keep_here(max(min(static_cast<int>(args.n) - first, ROWS), 0));
        Words<T, 16 / sizeof(T)> none;
#pragma unroll
        for (int v = 0; v < 16 / static_cast<int>(sizeof(T)); ++v) none.set(v, static_cast<T>(K::pad(args)));
#pragma unroll 1
        for (int m = lane; m < OPERAND; m += 32) {  // vectors that do not exist are never copied
            if (slot_of_row(m / VECTORS_PER_ROW) < rows_present) continue;
            none.store(reinterpret_cast<T*>(smem + m));
            smem[OPERAND + m] = uint4{0, 0, 0, 0};
        }
        if constexpr (K::HAS_BASE) {
            for (int m = lane; m < kColumnBaseRows * VECTORS_PER_ROW; m += 32)
                none.store(reinterpret_cast<T*>(smem + 2 * OPERAND + m));
        }
    }

    // The swizzle of rows: the slot of a row in shared memory, and the row in a slot. Rows of the
    // second group are swapped in pairs (row ^ 1), so that groups hit different banks.
    static __device__ constexpr int slot_of_row(int row) { return row ^ row / R; }

    // The offsets of a panel, and how many of its columns exist.
    struct Item {
        Offsets offsets;
        int columns_present;
    };
    __device__ Item locate(unsigned panel) const
    {
        const unsigned panels_across = static_cast<unsigned>((args.extent[0] + COLUMNS - 1) / COLUMNS),
                       outer = args.dims == 1 ? 0 : panel / panels_across;
        const i64 column = static_cast<i64>(panel - outer * panels_across) * COLUMNS;
        Offsets offsets = Offsets::of(args, 1, outer);
        offsets.for_each(args, [&](const Strided&, i64& offset) { offset += column; });
        return {offsets, static_cast<int>(min(args.extent[0] - column, static_cast<i64>(COLUMNS)))};
    }

    // Whether all rows and columns of the warp exist. Computed without `rows_present`: ptxas
    // 13.0.88 miscompiles a comparison of a value that is both a min and a max with one of its
    // bounds.
    __device__ bool whole(const Item& item) const
    {
        return item.columns_present == COLUMNS && first + ROWS <= static_cast<int>(args.n);
    }

    __device__ void prefetch_tile(unsigned panel) const;
    template <int M>
    static __device__ void prefetch_whole(unsigned even, unsigned odd, const char* from, i64 stride);
    __device__ void read(Word (&word)[R], const uint4* from) const;
    __device__ void stash_x(const Word (&word)[R]) const;
    __device__ void reload_x(Word (&word)[R]) const;
    __device__ void write(const Word (&word)[R], const Item& item) const;
    __device__ T* stashed_x(int r) const
    {
        return reinterpret_cast<T*>(smem + 2 * OPERAND + BASE_VECTORS) + (r * 32 + lane) * PER;
    }

    // Copies a 16-byte vector and prefetches its whole cache line: if rows do not begin at a line,
    // the next panel needs the rest.
    template <int TO = 0>
    static __device__ void fetch(unsigned to, const char* from)
    {
        asm volatile("cp.async.cg.shared.global.L2::128B [%0 + %2], [%1], 16;" ::"r"(to), "l"(from), "n"(TO)
                     : "memory");
    }

    // Exclusive scan over the groups of the warp; stores the total of the warp for the other warps.
    __device__ Prefixes exclusive_in_warp(Prefixes prefix) const
    {
#pragma unroll
        for (int d = LANES; d < 32; d *= 2) {
            const Prefixes left = shuffle_up(prefix, d);
            if (lane >= d) prefix = combined(left, prefix);
        }
        if (group == GROUPS - 1) shared.warp_prefixes[warp * LANES + lane_in_group] = prefix;
        if (GROUPS > 1) prefix = shuffle_up(prefix, LANES);
        return group == 0 ? Prefixes::of(K::Prefix::identity()) : prefix;
    }
    __device__ Suffixes exclusive_in_warp(Suffixes suffix) const
    {
#pragma unroll
        for (int d = LANES; d < 32; d *= 2) {
            const Suffixes right = shuffle_down(suffix, d);
            if (lane + d < 32) suffix = combined(suffix, right);
        }
        if (group == 0) shared.warp_suffixes[warp * LANES + lane_in_group] = suffix;
        if (GROUPS > 1) suffix = shuffle_down(suffix, LANES);
        return group == GROUPS - 1 ? Suffixes::of(K::Suffix::identity()) : suffix;
    }

    // Exclusive scan over the CTA and the cluster: extends the states before a group in its warp to
    // the states before it in its CTA. The state that enters the CTA goes to shared.carry_prefix
    // and shared.carry_suffix.
    template <bool PREFIXES, bool SUFFIXES>
    __device__ void exchange(Prefixes& prefix, Suffixes& suffix)
    {
        Box& box = shared.boxes[iteration & 1];
        const Barrier& barrier = box.full_barrier[!PREFIXES];
        const Prefixes prefix_identity = Prefixes::of(K::Prefix::identity());
        const Suffixes suffix_identity = Suffixes::of(K::Suffix::identity());
        __syncthreads();
#pragma unroll 1
        for (int other = warp * GROUPS + group; other < slices; other += warps * GROUPS) {
            if (PREFIXES && other > slice)
                barrier.st_async(
                    other, box.preceding[slice * LANES + lane_in_group],
                    fold(&shared.warp_prefixes[0], 0, warps, prefix_identity));
            if (SUFFIXES && other < slice)
                barrier.st_async(
                    other, box.following[(slice - 1) * LANES + lane_in_group],
                    fold(&shared.warp_suffixes[0], 0, warps, suffix_identity));
        }
        __syncwarp();
        if (threadIdx.x == 0) {
            const int states = (PREFIXES ? slice : 0) * static_cast<int>(sizeof(Prefixes)) +
                               (SUFFIXES ? slices - 1 - slice : 0) * static_cast<int>(sizeof(Suffixes));
            barrier.arrive_expect_tx(LANES * states);
        }
        if (PREFIXES) prefix = combined(fold(&shared.warp_prefixes[0], 0, warp, prefix_identity), prefix);
        if (SUFFIXES) suffix = combined(suffix, fold(&shared.warp_suffixes[0], warp + 1, warps, suffix_identity));
        if (PREFIXES && warp == 0) {
            barrier.wait(iteration >> 1);
            shared.carry_prefix[lane_in_group] = fold(&box.preceding[0], 0, slice, prefix_identity);
        }
        if (SUFFIXES && warp == warps - 1) {
            barrier.wait(iteration >> 1);
            shared.carry_suffix[lane_in_group] = fold(&box.following[0], slice, slices - 1, suffix_identity);
        }
        __syncthreads();
    }

    // The combined states of warps, or CTAs, from..to-1, for the columns of this lane.
    template <typename S>
    __device__ S fold(const S* smem, int from, int to, S all) const
    {
#pragma unroll 4
        for (int i = from; i < to; ++i) all = combined(all, smem[i * LANES + lane_in_group]);
        return all;
    }

    // Runs the slice of a panel and returns the rejections of this thread.
    __device__ unsigned run()
    {
        asm volatile("cp.async.wait_all;" ::: "memory");
        __syncwarp();
        Word xs[R], ys[R];
        read(xs, smem);
        read(ys, smem + OPERAND);
        ThreadScan thread[PER];
        const auto each = [&](auto visit) {
#pragma unroll
            for (int k = 0; k < PER; ++k) visit(k, thread[k], Column{xs, k}, Column{ys, k});
        };
        each([&](int k, ThreadScan& thread, const Column&, const Column&) {
            thread.begin(args);
            if constexpr (K::HAS_BASE) thread.base = base(k);
        });
        stash_x(xs);
        __syncwarp();
        prefetch_tile(panel + stride);
        const unsigned segment_heads = slice == 0 && warp == 0 && group == 0;
        Prefixes prefix;
        Suffixes suffix;
        each([&](int k, ThreadScan& thread, const Column& x, const Column& y) {
            if constexpr (K::PREFIX_FROM_SUFFIX)
                suffix.at[k] = thread.suffix(x, y, segment_heads), prefix.at[k] = thread.product;
            else
                prefix.at[k] = thread.prefix(x, segment_heads);
        });
        prefix = exclusive_in_warp(prefix);
        if constexpr (K::PREFIX_FROM_SUFFIX) suffix = exclusive_in_warp(suffix);
        exchange<true, !K::SUFFIX_NEEDS_PREFIX>(prefix, suffix);
        rematerialize(xs);
        rematerialize(ys);
        prefix = combined(shared.carry_prefix[lane_in_group], prefix);
        each([&](int k, ThreadScan& thread, const Column& x, const Column& y) {
            thread.enter(prefix.at[k], x, y, segment_heads);
        });
        if constexpr (K::SUFFIX_NEEDS_PREFIX) {
            each([&](int k, ThreadScan& thread, const Column& x, const Column& y) {
                suffix.at[k] = thread.suffix(x, y, segment_heads);
            });
            suffix = exclusive_in_warp(suffix);
            exchange<false, true>(prefix, suffix);
        }
        reload_x(xs);
        rematerialize(ys);
        suffix = combined(suffix, shared.carry_suffix[lane_in_group]);
        const Item item = locate(panel);
        unsigned rejections = 0;
        each([&](int k, ThreadScan& thread, const Column& x, const Column& y) {
            thread.finish(suffix.at[k], x, y, segment_heads, [&](int c, const A(&dx)[N]) {
                const Pack<T, N> pack = narrowed<T, N>(dx);
#pragma unroll
                for (int i = 0; i < N; ++i) ys[c * N + i].replace(k, pack.at[i]);
            });
            if (lane_in_group * PER + k < item.columns_present) rejections |= thread.rejections;
        });
        write(ys, item);
        return group * R < rows_present ? rejections : 0;
    }

    __device__ A base(int k) const
    {
        const T* seen = reinterpret_cast<const T*>(smem + 2 * OPERAND) + lane_in_group * PER + k;
        A largest = seen[0];
#pragma unroll
        for (int r = 1; r < kColumnBaseRows; ++r) largest = fmax(largest, seen[r * COLUMNS]);
        return K::base(seen[0], largest);
    }
};

// SMs of compute capability 12 have too little shared memory.
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ < 1200
constexpr bool kColumnClusters = kClusters;
#else
constexpr bool kColumnClusters = false;
#endif

template <typename K, typename T>
__device__ void column_cluster(const ScanArgs& args)
{
    if constexpr (kColumnClusters) {
        using Own = ClusterPanel<FastPath<K, T>, T>;
        extern __shared__ __align__(128) uint4 block_smem[];
        __shared__ typename Own::Shared shared;
        Own own(args, shared, block_smem);
        __syncwarp();
        own.prefetch_tile(own.panel);
        if (threadIdx.x < 4) shared.boxes[threadIdx.x / 2].full_barrier[threadIdx.x % 2].init();
        if (own.slice == 0)  // clears the flags of its panels, and the CTA count of grid_sync for the fallback pass
            for (unsigned i = own.panel + threadIdx.x * own.stride; i <= args.segments; i += blockDim.x * own.stride)
                args.reject_flags[i] = 0;
        __syncthreads();
        cluster_sync();
#pragma unroll 1
        for (; own.panel < args.segments; own.panel += own.stride, ++own.iteration) {
            const unsigned rejections = __reduce_or_sync(0xffffffff, own.run());
            if (rejections && own.lane == 0) atomicOr(&args.reject_flags[own.panel], static_cast<int>(rejections));
        }
        cluster_sync();
    }
}
