// Pipelined rows (row_pipelined): rows longer than a CTA holds, prefetched by a multi-stage
// cp.async pipeline in aligned vectors; the first and the last vector may hold elements of other
// rows. A thread owns U adjacent vectors of a tile. If rows do not begin at a sector, tiles begin
// at a cache line, provided that all operands have the same offset in a line.
#pragma once

#include "common/async_copy.cuh"
#include "scan/pipeline/cooperative_row.cuh"
#include "scan/state/exclusive.cuh"
#include "scan/state/heads.cuh"
#include "scan/state/warp_transpose.cuh"
#include "scan/tile/store_indices.cuh"

constexpr int kRowPipelinedWarps = kRowPipelinedThreads / 32;

template <typename K, typename T>
struct PipelinedRow : CooperativeRow<PipelinedRow<K, T>, K> {
    using Base = CooperativeRow<PipelinedRow, K>;
    using A = typename K::Number;
    using Prefix = typename K::Prefix;
    using Suffix = typename K::Suffix;
    using Carry = typename K::Carry;
    // x is read; both x and dy are read.
    static constexpr bool READS_X = __is_same(typename K::Value, A), READS_BOTH = READS_X && !K::FINDS_RECORDS;
    static constexpr int V = 16 / sizeof(T), SECTOR = 32 / sizeof(T),
                         U = K::Tuning::ROW_PIPELINED_VECTORS[sizeof(T) / 4], I = U * V,
                         TILE = kRowPipelinedThreads * I, TILE_ELEMENTS = TILE;
    static constexpr bool COOPERATIVE = K::Tuning::COOPERATIVE_ROWS[sizeof(T) / 4];
    static constexpr int COLUMNS = 1, WARPS = kRowPipelinedWarps, OPERAND = kRowPipelinedThreads * U;
    static constexpr int STAGE_VECTORS = OPERAND * ((READS_BOTH ? 2 : 1) + K::HAS_TWO_RESULTS) +
                                         (K::READS_RECORDS ? TILE_ELEMENTS / 128 : 0);
    using ThreadScan = typename K::template ThreadScan<I, V, false>;
    using Vector = Words<T, V>;
    using Memory = WarpTransposeIO<T, U, true>;

    // What a thread retains of a tile until its turn: the prefix before its elements, and the
    // suffix of the tile after them.
    struct Retained {
        Prefix prefix;
        Suffix suffix;
    };

    struct Shared {
        // Totals of warps, of two tiles.
        Uninitialized<Prefix, K::NEEDS_PREFIX ? 2 * kRowPipelinedWarps : 1> warp_prefixes;
        Uninitialized<Suffix, kRowPipelinedWarps> warp_suffixes;
        // Look-back results of warps.
        alignas(16) char warp_states
            [kRowPipelinedWarps * (sizeof(Prefix) > sizeof(Carry) ? sizeof(Prefix) : sizeof(Carry))];
        Uninitialized<Retained, kRowPipelinedThreads> retained;
        Uninitialized<Prefix, 1> carry_prefix;  // carry-in of the tile
        Uninitialized<Suffix, 1> carry_suffix;
    };

    using Base::args, Base::segment, Base::prefix, Base::prefix_in_split, Base::suffix, Base::rejections,
        Base::retained_stages, Base::ctas_per_row, Base::tiles, Base::combined;
    Shared& shared;
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const char *x, *y, *z;  // producer: the first vector of the thread in the first tile
    const char* records;   // producer: its record flags
    char* found;           // record flags of the thread in the first tile
    const char* first_dy;  // of the row; with stride 0 it is all of dy
    // Misalignment plus n: of the row being prefetched; of the row being computed.
    int producer_end, row_end;
    char* dx;      // the first vector of the lane in its first tile
    char* second;  // of HAS_TWO_RESULTS the same; null: it is left out
    const T* row_of_z;  // of HAS_TWO_RESULTS: the first z of the row
    i64* indices;  // of forward cummax and cummin: the index of the first element of the row
    A base;

    __device__ PipelinedRow(const ScanArgs& args, Shared& s, uint4* buffer) : Base(args, buffer), shared(s)
    {
        this->vector = keep_here(static_cast<unsigned>(__cvta_generic_to_shared(buffer + Memory::swizzle(own()))));
    }

    // The first warp keeps the carry of the row.
    __device__ int column() const { return 0; }
    __device__ bool owns_column() const { return warp == 0; }
    __device__ void set_carry_in(const Carry& all) { shared.carry_suffix[0] = K::from_carry(all); }
    // Whether all operands run against scan order; whether one number is all of dy.
    __device__ bool back() const { return static_cast<int>(args.outputs[kResult].step) < 0; }
    __device__ bool repeats() const { return static_cast<int>(args.inputs[kScanned].step) == 0; }
    // Whether a tile lies entirely in the row; `all` is its length plus misalignment.
    __device__ bool whole(int t, int all) const
    {
        return (t + 1) * TILE <= all && (t > 0 || all == static_cast<int>(args.n));
    }
    // Vector m of a row.
    __device__ char* vector_of(const Strided& operand, i64 from, int m) const
    {
        return operand.data + (back() ? from - m * V - (V - 1) : from + m * V) * static_cast<i64>(sizeof(T));
    }
    // Misalignment: elements between the last vector or line boundary and the row, which begins at
    // element `from` of dx.
    __device__ int misalignment_of(i64 from) const
    {
        return args.flags & kMisaligned
                   ? alignment_offset<T>(args, from, args.flags & kLineAligned ? kLineBytes : 16)
                   : 0;
    }
    // The first byte of tile 0 in memory. If memory runs backward this is the last vector of the
    // tile, and v vectors further is vector OPERAND - 1 - v.
    __device__ char* address_of_tiles(const Strided& operand, i64 from, int misalignment) const
    {
        return vector_of(operand, back() ? from + misalignment : from - misalignment, back() ? OPERAND - 1 : 0);
    }
    // The thread copies vectors own(), own() + kRowPipelinedThreads, ... of a tile.
    __device__ int own() const
    {
        return back() ? kRowPipelinedThreads - 1 - static_cast<int>(threadIdx.x) : static_cast<int>(threadIdx.x);
    }
    // Elements of a tile before the row.
    __device__ int misalignment_at(int t) const { return t == 0 ? row_end - static_cast<int>(args.n) : 0; }

    __device__ void set_work_item(unsigned item)
    {
        const Offsets offsets = Offsets::of_single_dim(args, 0, this->row_of(item));
        const int misalignment = misalignment_of(offsets.outputs[kResult]);
        producer_end = static_cast<int>(args.n) + misalignment;
        if constexpr (READS_X)
            x = address_of_tiles(args.inputs[kSaved], offsets.inputs[kSaved], misalignment) + threadIdx.x * 16;
        y = address_of_tiles(args.inputs[kScanned], offsets.inputs[kScanned], misalignment) + threadIdx.x * 16;
        if constexpr (K::HAS_TWO_RESULTS)
            z = address_of_tiles(args.inputs[kStates], offsets.inputs[kStates], misalignment) + threadIdx.x * 16;
        if constexpr (K::READS_RECORDS)
            records = this->records_of(static_cast<i64>(this->row_of(item)) * tiles()) + threadIdx.x * 16;
    }

    __device__ void fetch(int t, bool prefix_only, unsigned to) const;
    template <int M = 0>
    __device__ void fetch_whole(unsigned to, const char* from) const;
    __device__ void fetch_back(unsigned to, const char* from) const;
    __device__ void fetch_some(int t, unsigned to, const char* from) const;
    __device__ void pad_outside_row(uint4* tile, int t, T pad) const;
    __device__ void read(uint4* tile, Vector (&word)[U], int t, T pad) const;
    __device__ void read_dy(uint4* tile, Vector (&word)[U], int t) const;
    __device__ void store(uint4* smem, Vector (&word)[U], int t, char* first_vector) const;

    __device__ void start_work_item(unsigned item)
    {
        segment = this->row_of(item);
        const Offsets offsets = Offsets::of_single_dim(args, 0, segment);
        const int misalignment = misalignment_of(offsets.outputs[kResult]);
        row_end = keep_here(static_cast<int>(args.n) + misalignment);
        const int own = ((back() ? kRowPipelinedWarps - 1 - warp : warp) * 32 * U + lane) * 16;
        dx = keep_here(address_of_tiles(args.outputs[kResult], offsets.outputs[kResult], misalignment) + own);
        if constexpr (K::HAS_TWO_RESULTS) {
            const Strided& other = args.outputs[kSecond];
            second = other.data ? address_of_tiles(other, offsets.outputs[kSecond], misalignment) + own : nullptr;
            row_of_z = reinterpret_cast<const T*>(args.inputs[kStates].data) + offsets.inputs[kStates];
        }
        first_dy = args.inputs[kScanned].data + offsets.inputs[kScanned] * sizeof(T);
        if constexpr (K::STORES_INDICES)
            indices = reinterpret_cast<i64*>(args.outputs[kIndices].data) + offsets.outputs[kIndices];
        if constexpr (K::FINDS_RECORDS) {
            if (threadIdx.x == 0) shared.carry_prefix[0] = K::Prefix::identity();
            found = keep_here(this->records_of(static_cast<i64>(segment) * tiles()) + threadIdx.x * sizeof(Bits));
        }
        if constexpr (K::HAS_BASE)
            base = widen<A>(reinterpret_cast<const T*>(args.inputs[kSaved].data)[offsets.inputs[kSaved]]);
    }

    // The bits of the elements of the thread that begin the row, or a packed sequence.
    __device__ unsigned segment_heads(int t) const
    {
        if constexpr (K::READS_HEADS) return heads_at<I>(args, first_position(t) + static_cast<int>(threadIdx.x) * I);
        const int misalignment = row_end - static_cast<int>(args.n);
        return t == 0 && static_cast<int>(threadIdx.x) == misalignment / I ? 1u << misalignment % I : 0;
    }

    __device__ void flip(Vector (&word)[U]) const
    {
        if (!back()) return;
#pragma unroll
        for (int u = 0; u < U; ++u) word[u] = Memory::flipped(word[u]);
    }

    __device__ Prefix tile_prefix(int parity)
    {
        return combined(&shared.warp_prefixes[parity * kRowPipelinedWarps], kRowPipelinedWarps, K::Prefix::identity());
    }
    __device__ Carry tile_suffix()
    {
        return K::to_carry(combined(&shared.warp_suffixes[0], kRowPipelinedWarps, K::Suffix::identity()));
    }

    __device__ void find_prefix(int t, uint4* stage, int parity)
    {
        Vector xs[U];
        read(stage, xs, t, static_cast<T>(K::pad(args)));
        ThreadScan thread;
        thread.begin(args);
        if constexpr (K::HAS_BASE) thread.base = base;
        const Prefix own = thread.prefix(Elements<A, T, V, U>{xs}, segment_heads(t)),
                     all = inclusive_prefix<K>(own, lane);
        if constexpr (K::IS_FAST) rejections |= thread.rejections | K::rejections(all);
        if (lane == 31) shared.warp_prefixes[parity * kRowPipelinedWarps + warp] = all;
    }

    // Record flags of the elements of a thread.
    using Bits = std::conditional_t<I == 8, unsigned char, std::conditional_t<I == 16, unsigned short, unsigned>>;

    __device__ void find_record_flags(int t, uint4* stage);
    __device__ void filter_records(const Prefix& preceding);

    // The elements of a thread in a tile.
    struct ThreadTile {
        Vector xs[U], ys[U];
        ThreadScan thread;
        Retained retained;
        unsigned heads;  // READS_HEADS

        __device__ auto x() const { return Elements<A, T, V, U>{xs}; }
        __device__ auto y() const { return Elements<A, T, V, U>{ys}; }
        __device__ void rematerialize_all()
        {
            if constexpr (READS_X) rematerialize(xs);
            rematerialize(ys);
        }
    };

    __device__ unsigned heads_of(const ThreadTile& own, int t) const
    {
        return K::READS_HEADS ? own.heads : segment_heads(t);
    }

    __device__ void load(ThreadTile& own, int t, uint4* stage) const
    {
        if constexpr (K::READS_HEADS) {
            if constexpr (!K::HAS_SEQUENCES) own.heads = segment_heads(t);
            prefetch_heads(args, first_position(t - ctas_per_row()) + static_cast<int>(threadIdx.x) * I);
        }
        if constexpr (READS_X) read(stage, own.xs, t, static_cast<T>(K::pad(args)));
        read_dy(stage + (READS_X ? OPERAND : 0), own.ys, t);
        if (reads_next<K>(args)) {
            take_next(own.ys, element_after_warp(t));
            leave_out_end(own.ys, t, K::template pad_y<T>(args));
            if constexpr (READS_X) leave_out_end(own.xs, t, static_cast<T>(K::pad(args)));
        }
        own.thread.begin(args);
        if constexpr (K::READS_RECORDS)
            own.thread.records = reinterpret_cast<const Bits*>(stage + OPERAND)[threadIdx.x];
        if constexpr (K::HAS_BASE) own.thread.base = base;
        if constexpr (K::HAS_SEQUENCES) {
            own.thread.template locate<T>(segment, first_position(t) + static_cast<int>(threadIdx.x) * I, true);
            if constexpr (READS_X) {
                if (const unsigned bits = own.thread.without_decay()) replace_elements(own.xs, bits, T());
            }
        }
        if constexpr (K::STORES_INDICES) {
            own.thread.position = first_position(t) + static_cast<int>(threadIdx.x) * I;
            own.thread.end = args.n;
        }
    }

    // The element after those of the warp in a tile.
    __device__ T element_after_warp(int t) const
    {
        const int position = first_position(t) + (warp + 1) * 32 * I;
        return position < args.n
                   ? reinterpret_cast<const T*>(first_dy)[position * args.inputs[kScanned].step]
                   : T();
    }

    // In an exclusive scan, replaces the last element of the row or of each packed sequence.
    __device__ void leave_out_end(Vector (&word)[U], int t, T value) const
    {
        const int position = first_position(t) + static_cast<int>(threadIdx.x) * I;
        if constexpr (K::READS_HEADS) replace_elements(word, heads_at<I>(args, position + 1), value);
        replace_from(word, args.n - 1 - position, value);
    }

    // The position of the first element of a tile; negative before the row.
    __device__ int first_position(int t) const { return t * TILE - (row_end - static_cast<int>(args.n)); }

    // Stores the indices of the elements of a warp in a tile.
    __device__ void store_indices(const ThreadScan& thread, int t) const
    {
        const int first = first_position(t) + warp * 32 * I;
        for_each_record<I>(thread, first, [&](int e, i64 position) {
            if (first + e < 0 || first + e >= static_cast<int>(args.n)) return;
            indices[(first + e) * args.outputs[kIndices].step] = index_of_position(args, position);
        });
    }

    // Exclusive warp scan of suffixes; the total of the warp goes to shared memory.
    __device__ void exclusive_suffix(Suffix& own)
    {
        const Suffix all = inclusive_suffix<K>(own, 31 - lane);
        if (lane == 0) shared.warp_suffixes[warp] = all;
        own = shuffle_down(all, 1);
        if (lane == 31) own = K::Suffix::identity();
    }

    // Scans a tile: finds the prefix before the thread and the suffix of the tile after it. The
    // suffix of the tile is published (cooperative rows) or added to the carry.
    __device__ void scan_tile(ThreadTile& own, int t)
    {
        Prefix& prefix_of_thread = own.retained.prefix;
        Suffix& suffix_of_thread = own.retained.suffix;
        if (threadIdx.x == 0) {
            if constexpr (K::NEEDS_PREFIX) shared.carry_prefix[0] = K::combine(prefix, prefix_in_split);
            shared.carry_suffix[0] = K::from_carry(suffix);
        }
        if constexpr (!K::SUFFIX_NEEDS_PREFIX) suffix_of_thread = own.thread.suffix(own.x(), own.y(), heads_of(own, t));
        if constexpr (K::NEEDS_PREFIX) {
            if constexpr (K::PREFIX_FROM_SUFFIX)
                prefix_of_thread = own.thread.product;
            else
                prefix_of_thread = own.thread.prefix(own.x(), heads_of(own, t));
            const Prefix all = inclusive_prefix<K>(prefix_of_thread, lane);
            if (lane == 31) shared.warp_prefixes[warp] = all;
            prefix_of_thread = shuffle_up(all, 1);
            if (lane == 0) prefix_of_thread = K::Prefix::identity();
        }
        if constexpr (!K::SUFFIX_NEEDS_PREFIX) exclusive_suffix(suffix_of_thread);
        __syncthreads();
        own.rematerialize_all();
        if constexpr (K::NEEDS_PREFIX) {
            this->load_tile_prefix(t - ctas_per_row());
            prefix_of_thread = K::combine(
                K::combine(shared.carry_prefix[0], combined(&shared.warp_prefixes[0], warp, K::Prefix::identity())),
                prefix_of_thread);
            own.thread.enter(prefix_of_thread, own.x(), own.y(), heads_of(own, t));
        }
        if constexpr (K::SUFFIX_NEEDS_PREFIX) {
            suffix_of_thread = own.thread.suffix(own.x(), own.y(), heads_of(own, t));
            exclusive_suffix(suffix_of_thread);
            __syncthreads();
        }
        if (owns_column()) {
            if (retained_stages)
                TileStatus<K>::publish(this->suffix_status(t), tile_suffix());
            else
                suffix = K::combine(tile_suffix(), suffix);
        }
        suffix_of_thread = K::combine(
            suffix_of_thread,
            combined(&shared.warp_suffixes[0] + warp + 1, kRowPipelinedWarps - 1 - warp, K::Suffix::identity()));
    }

    // Continues with a retained tile whose carry-in has arrived: reloads its elements from the
    // stage.
    __device__ void resume(ThreadTile& own, int t, uint4* stage)
    {
        this->read_carry(t);
        load(own, t, stage);
        if constexpr (K::NEEDS_PREFIX) {
            if constexpr (K::PREFIX_FROM_SUFFIX)
                own.thread.suffix(own.x(), own.y(), heads_of(own, t));
            else
                own.thread.prefix(own.x(), heads_of(own, t));
            own.thread.enter(own.retained.prefix, own.x(), own.y(), heads_of(own, t));
        } else if constexpr (K::KEEPS_ELEMENTS) {
            own.thread.suffix(own.x(), own.y(), heads_of(own, t));
        }
    }

    // Reads z of the elements of the thread, and of the one before them.
    __device__ void load_z(ThreadScan& thread, Vector (&zs)[U], int t, uint4* stage) const
    {
        read(stage, zs, t, T());
        thread.before = __shfl_up_sync(0xffffffff, zs[U - 1].template value<A>(V - 1), 1);
        if (lane > 0) return;
        if (warp > 0) {  // the last vector of the warp before
            Vector last;
            last.load(Memory::blocked(stage, U - 1, threadIdx.x - 1));
            if (back()) last = Memory::flipped(last);
            thread.before = last.template value<A>(V - 1);
        } else if (const int first = first_position(t); first > 0) {
            thread.before = widen<A>(row_of_z[(first - 1) * args.inputs[kStates].step]);
        }
    }

    __device__ void find_suffix(int t, uint4* stage)
    {
        ThreadTile own;
        if (!COOPERATIVE || t >= 0) {
            load(own, t, stage);
            scan_tile(own, t);
        }
        if (!COOPERATIVE && this->phase() == kUpsweepSuffix) return;
        // Cooperative: this tile is retained for one turn, and the one before it is finished.
        if (COOPERATIVE && retained_stages) {
            if constexpr (K::IS_FAST) rejections |= own.thread.rejections;
            const Retained retained = own.retained;
            own.retained = shared.retained[threadIdx.x];
            shared.retained[threadIdx.x] = retained;
            t += ctas_per_row();
            stage = stage == this->buffer ? stage + (this->stages - 1) * STAGE_VECTORS : stage - STAGE_VECTORS;
            if (t >= tiles()) return;
            resume(own, t, stage);
        }
        own.rematerialize_all();
        Vector(&out)[U] = own.ys;
        const Suffix after = K::combine(own.retained.suffix, shared.carry_suffix[0]);
        if constexpr (K::HAS_TWO_RESULTS) {
            Vector zs[U];
            if (second) load_z(own.thread, zs, t, stage + 2 * OPERAND);
            own.thread.finish(
                after, own.x(), own.y(), heads_of(own, t),
                [&](int u, const A(&result)[V], const A(&other)[V]) {
                    out[u] = Memory::packed(result);
                    zs[u] = Memory::packed(other);
                },
                Elements<A, T, V, U>{zs});
            if (second) store(stage, zs, t, second);
            if (args.flags & kNoResult) return;
        } else {
            own.thread.finish(
                after, own.x(), own.y(), heads_of(own, t),
                [&](int u, const A(&result)[V]) { out[u] = Memory::packed(result); });
        }
        if constexpr (K::IS_FAST) rejections |= own.thread.rejections;
        if (READS_X && reads_next<K>(args)) leave_out_end(out, t, T());  // of a gradient, the last result is 0
        store(stage + (READS_X ? OPERAND : 0), out, t, dx);
        if constexpr (K::STORES_INDICES) store_indices(own.thread, t);
    }
};

template <typename K, typename T>
__device__ void row_pipelined(const ScanArgs& args)
{
    using First = FastPath<K, T>;
    extern __shared__ __align__(128) uint4 buffer[];
    __shared__ typename PipelinedRow<First, T>::Shared shared;
    // Resets the CTA count of grid_sync for the fallback pass.
    if (kHasFastPath<K> && blockIdx.x + threadIdx.x == 0) args.reject_flags[args.segments] = 0;
    PipelinedRow<First, T>(args, shared, buffer).run();
}
