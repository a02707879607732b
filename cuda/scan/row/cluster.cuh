// Cluster rows (row_cluster). A row is divided among the CTAs of a thread-block cluster; each keeps
// its slice in registers, so x and dy are read once. CTAs exchange slice aggregates through
// distributed shared memory (st.async + mbarrier) while cp.async prefetches the next row. Rows too
// long for a cluster use all resident CTAs and exchange aggregates through tile-status words
// (tile_status.cuh); this needs a cooperative launch.
//
// For kinds other than Indices. A fast path stores the rejections of each slice; the fallback pass
// recomputes rejected rows.
#pragma once

#include "common/async_copy.cuh"
#include "common/cluster.cuh"
#include "scan/state/exclusive.cuh"
#include "scan/state/tile_status.cuh"
#include "scan/state/warp_transpose.cuh"

constexpr int kLookBackWarps = kMaxResidentSplits / 32;  // warps of a CTA at most that look back, at 32 CTAs each

// A thread of a persistent CTA, which holds the same slice of every `stride`-th row. Preconditions:
// rows of all operands run in the same direction and consist of whole aligned vectors. Loads and
// stores are striped (lane l moves vectors u * 32 + l), ownership is blocked (lane l owns vectors
// l * U + u). The shared memory of a warp holds x, dy and dx.
template <typename K, typename T>
struct ClusterRow {
    using A = typename K::Number;
    using Prefix = typename K::Prefix;
    using Suffix = typename K::Suffix;
    static constexpr int V = 16 / sizeof(T), U = kRowClusterVectors, I = U * V;
    // When the quarters of the next row are prefetched. The first one: at once. PACED: the second
    // one in the first exchange, or at once if COMPUTE_BOUND and a cluster holds the row; the third
    // one in the second exchange (if there is none, in the first one if grid_resident(), else after
    // it); the last one after the exchanges. Not PACED: the second one after the first exchange,
    // the others after the second.
    static constexpr bool COMPUTE_BOUND = K::SUFFIX_NEEDS_PREFIX && sizeof(T) == 2;
    // Whether prefetches are issued while CTAs exchange states.
    static constexpr bool PACED = !COMPUTE_BOUND || K::KEEPS_ELEMENTS;
    static constexpr int RECOMPUTED_VECTORS = K::template RECOMPUTED_ELEMENTS<V, U> / V;  // vectors of x
    using ThreadScan = typename K::template ThreadScan<I, V, false>;
    using Vector = Words<T, V>;
    using Vectors = WarpTransposeIO<T, U, true>;  // their slots in shared memory

    // Shared memory of a CTA for one row.
    struct Shared {
        Uninitialized<Prefix, 32> warp_prefixes;  // totals of warps
        Uninitialized<Suffix, 32> warp_suffixes;
        Uninitialized<Prefix, kLookBackWarps> carry_prefix;  // carry-in of the slice: a partial state per 32 CTAs
        Uninitialized<Suffix, kLookBackWarps> carry_suffix;
        Uninitialized<Prefix, kMaxClusterCTAs> preceding;  // written by other CTAs of the cluster
        Uninitialized<Suffix, kMaxClusterCTAs> following;
        Barrier full_barrier[2];  // first exchange; second exchange, which depends on the first
    };

    const ScanArgs& args;
    uint4* smem;
    // A double buffer, which alternates between rows: a warp may still read the states of the row
    // before, and every CTA has read all slices of a row before it publishes the row after the
    // next.
    Shared* buffers;
    int slices = static_cast<int>(args.splits), lane = threadIdx.x % 32, warp = threadIdx.x / 32,
        warps = blockDim.x / 32;
    unsigned row = blockIdx.x / static_cast<unsigned>(slices), stride = gridDim.x / static_cast<unsigned>(slices),
             iteration = 0;
    int slice = static_cast<int>(blockIdx.x - row * slices);
    int vectors;          // vectors of the warp that exist
    int lane_offset;      // [bytes] from the first element of a row to the first striped vector of the lane
    uint4& first_vector;  // the vector with the first x of the row, for the warp

    __device__ ClusterRow(const ScanArgs& args, uint4* smem, Shared* buffers, uint4& first_vector)
        : args(args), smem(smem), buffers(buffers), first_vector(first_vector)
    {
        const int preceding = (slice * static_cast<int>(blockDim.x) + warp * 32) * I;
        vectors = keep_here(max(min(static_cast<int>(args.n) - preceding, 32 * I), 0) / V);
        lane_offset = keep_here(
            (backward() ? 1 - V - preceding - lane * V : preceding + lane * V) * static_cast<int>(sizeof(T)));
        Vector none;
#pragma unroll
        for (int v = 0; v < V; ++v) none.set(v, static_cast<T>(K::pad(args)));
#pragma unroll 1
        for (int m = vectors + lane; m < 32 * U; m += 32) {  // vectors that do not exist are never copied
            none.store(reinterpret_cast<T*>(smem + Vectors::swizzle(m)));
            smem[32 * U + Vectors::swizzle(m)] = uint4{0, 0, 0, 0};
        }
    }

    __device__ Shared& shared() const { return buffers[iteration & 1]; }
    // Element 0 of the thread begins a row.
    __device__ unsigned segment_heads() const { return slice == 0 && threadIdx.x == 0; }
    // The row is shared by more CTAs than a cluster has.
    __device__ bool grid_resident() const { return slices > kMaxClusterCTAs; }
    __device__ bool backward() const { return args.outputs[kResult].step < 0; }
    __device__ bool repeats() const { return args.inputs[kScanned].step == 0; }  // one number for all dy of a row
    __device__ bool all_whole() const { return vectors == 32 * U && args.inputs[kScanned].step > 0; }
    // Bytes from a striped vector to the next of the lane.
    __device__ int bytes_apart() const { return backward() ? -32 * 16 : 32 * 16; }

    // The position of the first element of the thread.
    __device__ int position() const
    {
        return (slice * static_cast<int>(blockDim.x) + static_cast<int>(threadIdx.x)) * I;
    }
    // The dy after those of the warp. Prefetches the one of the next row.
    __device__ T element_after_warp() const
    {
        const Strided& dy = args.inputs[kScanned];
        const i64 position = (slice * static_cast<int>(blockDim.x) + (warp + 1) * 32) * static_cast<i64>(I);
        const char* from = begin(dy, row) + position * dy.step * static_cast<i64>(sizeof(T));
        if (position >= args.n) return T();
        if (row + stride < args.segments)
            asm volatile("prefetch.global.L1 [%0];" ::"l"(from + stride * dy.stride[0] * static_cast<i64>(sizeof(T))));
        return *reinterpret_cast<const T*>(from);
    }

    // The first element of a row.
    __device__ char* begin(const Strided& operand, unsigned row) const
    {
        return operand.data + (operand.first + row * operand.stride[0]) * static_cast<i64>(sizeof(T));
    }

    template <int FIRST, int END>
    __device__ void prefetch_tile(unsigned row);
    template <int M, int END>
    __device__ void prefetch_whole(unsigned even, unsigned odd, const char* from) const;
    __device__ void read(Vector (&word)[U], uint4* from) const;
    __device__ void repeat(Vector (&word)[U]) const;
    __device__ void stash_x(Vector (&word)[U]) const;
    __device__ void reload_x(Vector (&word)[U]) const;
    __device__ void write(Vector (&word)[U]) const;
    __device__ void flip(Vector (&word)[U]) const;

    // Lane 0 gets the combined states of `count` lanes.
    template <bool PREFIXES, bool SUFFIXES>
    __device__ void combine(Prefix& prefix, Suffix& suffix, int count) const
    {
#pragma unroll 1
        for (int d = 1; d < count; d *= 2) {
            if (PREFIXES) prefix = K::combine(prefix, shuffle_down(prefix, d));
            if (SUFFIXES) suffix = K::combine(suffix, shuffle_down(suffix, d));
        }
    }

    // Exclusive warp scans; the totals of the warp go to shared memory.
    __device__ Prefix exclusive_prefix(const Prefix& own) const
    {
        const Prefix all = inclusive_prefix<K>(own, lane);
        if (lane == 31) shared().warp_prefixes[warp] = all;
        const Prefix next = shuffle_up(all, 1);
        return lane == 0 ? K::Prefix::identity() : next;
    }
    __device__ Suffix exclusive_suffix(const Suffix& own) const
    {
        const Suffix all = inclusive_suffix<K>(own, 31 - lane);
        if (lane == 0) shared().warp_suffixes[warp] = all;
        const Suffix next = shuffle_down(all, 1);
        return lane == 31 ? K::Suffix::identity() : next;
    }

    // Prefetches half of the next row before the exchange.
    __device__ bool prefetches_early() const { return COMPUTE_BOUND && PACED && !grid_resident(); }

    // Exclusive scan over the CTA and the row: extends the states before a lane in its warp to the
    // states before it in the row. Kinds that are PACED prefetch a quarter of the next row
    // meanwhile, and another one if the only exchange is through global memory, which is slow.
    template <bool PREFIXES, bool SUFFIXES, int FIRST>
    __device__ void exchange(Prefix& prefix, Suffix& suffix)
    {
        Shared& s = shared();
        __syncthreads();
        if (warp == 0) publish<PREFIXES, SUFFIXES>();
        Prefix preceding = PREFIXES && lane < warp ? s.warp_prefixes[lane] : K::Prefix::identity();
        Suffix following = SUFFIXES && warp + 1 + lane < warps ? s.warp_suffixes[warp + 1 + lane]
                                                               : K::Suffix::identity();
        combine<PREFIXES, SUFFIXES>(preceding, following, warps);
        if (PREFIXES) prefix = K::combine(from_lane(preceding, 0), prefix);
        if (SUFFIXES) suffix = K::combine(suffix, from_lane(following, 0));
        if (warp * 32 < slices)
            receive<PREFIXES, SUFFIXES>();
        else if (PACED && grid_resident())
            asm volatile("cp.async.wait_all;" ::: "memory");  // published words do not queue behind the copies
        if (PACED && !(PREFIXES && prefetches_early())) prefetch_tile<FIRST, FIRST + U / 4>(row + stride);
        if (!K::SUFFIX_NEEDS_PREFIX && grid_resident()) prefetch_tile<U / 2, U * 3 / 4>(row + stride);
        __syncthreads();
        preceding = s.carry_prefix[0];
        following = s.carry_suffix[0];
#pragma unroll 1
        for (int w = 1; w * 32 < slices; ++w) {
            if (PREFIXES) preceding = K::combine(preceding, s.carry_prefix[w]);
            if (SUFFIXES) following = K::combine(following, s.carry_suffix[w]);
        }
        if (PREFIXES) prefix = K::combine(preceding, prefix);
        if (SUFFIXES) suffix = K::combine(suffix, following);
    }

    // The status words of a slice of the row.
    __device__ uint4* prefix_status(int slice) const
    {
        return TileStatus<K>(args).prefixes +
               (static_cast<i64>(row) * slices + slice) * TileStatus<K>::template WORDS<Prefix>;
    }
    __device__ uint4* suffix_status(int slice) const
    {
        return TileStatus<K>(args).suffixes +
               (static_cast<i64>(row) * slices + slice) * TileStatus<K>::template WORDS<Suffix>;
    }

    // Publishes the combined states of this CTA: to the mailboxes of the cluster, or in its status
    // words.
    template <bool PREFIXES, bool SUFFIXES>
    __device__ void publish()
    {
        Shared& s = shared();
        Prefix prefix = PREFIXES && lane < warps ? s.warp_prefixes[lane] : K::Prefix::identity();
        Suffix suffix = SUFFIXES && lane < warps ? s.warp_suffixes[lane] : K::Suffix::identity();
        combine<PREFIXES, SUFFIXES>(prefix, suffix, warps);
        if (grid_resident()) {
            if (PREFIXES && lane == 0) TileStatus<K>::publish(prefix_status(slice), prefix);
            if (SUFFIXES && lane == 0) TileStatus<K>::publish(suffix_status(slice), suffix);
            return;
        }
        if (PREFIXES) prefix = from_lane(prefix, 0);
        if (SUFFIXES) suffix = from_lane(suffix, 0);
        if (PREFIXES && lane > slice && lane < slices)
            s.full_barrier[!PREFIXES].st_async(lane, s.preceding[slice], prefix);
        if (SUFFIXES && lane < slice) s.full_barrier[!PREFIXES].st_async(lane, s.following[slice], suffix);
    }

    // Receives the states of the other CTAs and combines them: lane l of warp w waits for slice
    // 32 * w + l.
    template <bool PREFIXES, bool SUFFIXES>
    __device__ void receive()
    {
        Shared& s = shared();
        const int other = warp * 32 + lane;
        const bool preceding = PREFIXES && other < slice, following = SUFFIXES && other > slice && other < slices;
        Prefix prefix = K::Prefix::identity();
        Suffix suffix = K::Suffix::identity();
        if (grid_resident()) {
            if (preceding) prefix = TileStatus<K>::template wait<Prefix>(prefix_status(other));
            if (following) suffix = TileStatus<K>::template wait<Suffix>(suffix_status(other));
        } else {
            const int prefixes = PREFIXES ? slice : 0, suffixes = SUFFIXES ? slices - 1 - slice : 0;
            if (lane == 0)
                s.full_barrier[!PREFIXES].arrive_expect_tx(
                    prefixes * static_cast<int>(sizeof(Prefix)) + suffixes * static_cast<int>(sizeof(Suffix)));
            s.full_barrier[!PREFIXES].wait(iteration >> 1);
            if (preceding) prefix = s.preceding[lane];
            if (following) suffix = s.following[lane];
        }
        __syncwarp();
        combine<PREFIXES, SUFFIXES>(prefix, suffix, min(slices, 32));
        if (PREFIXES && lane == 0) s.carry_prefix[warp] = prefix;
        if (SUFFIXES && lane == 0) s.carry_suffix[warp] = suffix;
    }

    // Runs the slice of a row and returns the rejections of this thread.
    __device__ unsigned run()
    {
        asm volatile("cp.async.wait_all;" ::: "memory");
        __syncwarp();
        Vector xs[U], ys[U];
        const Elements<A, T, V, U> x{xs}, y{ys};
        read(xs, smem);
        if (repeats())
            repeat(ys);
        else
            read(ys, smem + 32 * U);
        if (reads_next<K>(args)) {
            take_next(ys, element_after_warp());
            replace_from(xs, args.n - 1 - position(), static_cast<T>(K::pad(args)));
        }
        ThreadScan thread;
        thread.begin(args);
        if constexpr (K::HAS_BASE)
            thread.base = widen<A>(reinterpret_cast<const T*>(&first_vector)[backward() ? V - 1 : 0]);
        stash_x(xs);
        __syncwarp();
        prefetch_tile<0, U / 4>(row + stride);
        if (prefetches_early()) prefetch_tile<U / 4, U / 2>(row + stride);
        Prefix prefix;
        Suffix suffix;
        if constexpr (K::PREFIX_FROM_SUFFIX) {
            suffix = thread.suffix(x, y, segment_heads());
            prefix = exclusive_prefix(thread.product);
            suffix = exclusive_suffix(suffix);
        } else {
            prefix = exclusive_prefix(thread.prefix(x, segment_heads()));
        }
        exchange<true, !K::SUFFIX_NEEDS_PREFIX, U / 4>(prefix, suffix);
        if (!PACED) prefetch_tile<U / 4, U / 2>(row + stride);
        rematerialize(xs);
        rematerialize(ys);
        thread.enter(prefix, x, y, segment_heads());
        if constexpr (K::SUFFIX_NEEDS_PREFIX) {
            suffix = exclusive_suffix(thread.suffix(x, y, segment_heads()));
            exchange<false, true, U / 2>(prefix, suffix);
        }
        if (!K::SUFFIX_NEEDS_PREFIX && !grid_resident()) prefetch_tile<U / 2, U * 3 / 4>(row + stride);
        prefetch_tile<PACED ? U * 3 / 4 : U / 2, U>(row + stride);
        reload_x(xs);
        rematerialize(ys);
        thread.finish(suffix, x, y, segment_heads(), [&](int u, const A(&dx)[V]) { ys[u] = Vectors::packed(dx); });
        if (reads_next<K>(args)) replace_from(ys, args.n - 1 - position(), T());
        write(ys);
        if constexpr (K::IS_FAST) return lane * U < vectors ? thread.rejections : 0;
        return 0;
    }
};

template <typename K, typename T>
__device__ void row_cluster(const ScanArgs& args)
{
    if constexpr (kClusters) {
        using Own = ClusterRow<FastPath<K, T>, T>;
        extern __shared__ __align__(128) uint4 block_smem[];
        __shared__ typename Own::Shared rows[2];
        __shared__ unsigned found[2];  // rejections of the current row and of the previous one
        __shared__ uint4 firsts[kRowClusterThreads / 32];
        Own own(args, block_smem + threadIdx.x / 32 * 32 * 3 * Own::U, rows, firsts[threadIdx.x / 32]);
        own.template prefetch_tile<0, Own::U>(own.row);
        if (threadIdx.x < 2) found[threadIdx.x] = 0;
        // Resets the CTA count of grid_sync for the fallback pass.
        if (kHasFastPath<K> && blockIdx.x + threadIdx.x == 0) args.reject_flags[args.segments * args.splits] = 0;
        if (threadIdx.x < 4) rows[threadIdx.x / 2].full_barrier[threadIdx.x % 2].init();
        __syncthreads();
        cluster_sync();
        const auto flush_rejections = [&](unsigned& rejections, unsigned row) {
            if (threadIdx.x != 0 || own.iteration == 0) return;
            args.reject_flags[static_cast<i64>(row) * own.slices + own.slice] = static_cast<int>(rejections);
            rejections = 0;
        };
#pragma unroll 1
        for (; args.segments > own.row; own.row += own.stride, ++own.iteration) {
            const unsigned rejections = own.run();
            if constexpr (!kHasFastPath<K>) continue;
            const int k = own.iteration & 1;
            const unsigned all = __reduce_or_sync(0xffffffff, rejections);
            if (all && own.lane == 0) atomicOr(&found[k], all);
            flush_rejections(found[k ^ 1], own.row - own.stride);  // all warps are done with that row
        }
        __syncthreads();
        if constexpr (kHasFastPath<K>) flush_rejections(found[own.iteration + 1 & 1], own.row - own.stride);
        cluster_sync();
    }
}
