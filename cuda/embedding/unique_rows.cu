// Unique rows: the rows of a table that occur among indices, in rising order, and the inverse (the
// rank of each index). Rows are bits of a bitmap; the rank of a row is the number of set bits
// before it (prefix sum of popcounts). A launch does one stage, or all of them in a single CTA for
// small inputs. One kernel has every stage and reads both widths of indices, which keeps the image
// small.
#include "common/dtype.cuh"
#include "common/export.cuh"
#include "embedding/args.gen.cuh"

using u32 = unsigned;

// The bits of 32 rows, and the number of set bits in the words before.
struct alignas(8) BitmapWord {
    u32 bits, before;
};

constexpr u32 kNone = ~0u;

__device__ inline u32 lane() { return threadIdx.x % 32; }
__device__ inline u32 thread() { return blockIdx.x * blockDim.x + threadIdx.x; }
__device__ inline u32 threads() { return gridDim.x * blockDim.x; }

__device__ inline BitmapWord* words(const UniqueArgs& args) { return reinterpret_cast<BitmapWord*>(args.workspace); }
__device__ inline u32* totals(const UniqueArgs& args)
{
    return reinterpret_cast<u32*>(args.workspace + args.totals_at);
}
__device__ inline u32* counts(const UniqueArgs& args)
{
    return reinterpret_cast<u32*>(args.workspace + args.counts_at);
}

// The row at a position, or kNone. An index that is no row is too large as an unsigned number, or
// has more than 32 bits.
__device__ inline u32 row_at(const UniqueArgs& args, u32 position)
{
    const u32* index = reinterpret_cast<const u32*>(args.indices + position * args.index_step);
    const u32 row = index[0], high = index[args.index_wide] & -static_cast<u32>(args.index_wide);
    return high == 0 && row < static_cast<u32>(args.num_rows) ? row : kNone;
}

// Cells and totals are adjacent.
__device__ inline void clear(const UniqueArgs& args)
{
#pragma unroll 1
    for (u32 k = thread(); k < static_cast<u32>(args.counts_at / 16); k += threads())
        reinterpret_cast<uint4*>(args.workspace)[k] = uint4{0, 0, 0, 0};
}

// Sets the bits of the rows of N positions, from k on. A bit is read before it is set; a stale read
// only costs an atomic.
template <u32 N>
__device__ void set_some_bits(const UniqueArgs& args, u32 k)
{
    u32 row[N], bits[N];
#pragma unroll
    for (u32 u = 0; u < N; ++u) {
        const u32 position = k + u * threads();
        row[u] = position < static_cast<u32>(args.total) ? row_at(args, position) : kNone;
        if (row[u] == static_cast<u32>(args.padding)) row[u] = kNone;
    }
#pragma unroll
    for (u32 u = 0; u < N; ++u) bits[u] = row[u] == kNone ? ~0u : __ldcg(&words(args)[row[u] / 32].bits);
#pragma unroll
    for (u32 u = 0; u < N; ++u)
        if (!(bits[u] >> row[u] % 32 & 1)) atomicOr(&words(args)[row[u] / 32].bits, 1u << row[u] % 32);
}

// If few rows have most positions, atomics on their words would serialize. So there are few CTAs,
// and each thread begins with one position: later positions of such rows find the bit set.
__device__ inline void set_bits(const UniqueArgs& args)
{
    constexpr u32 kFlight = 4;
    set_some_bits<1>(args, thread());
#pragma unroll 1
    for (u32 k = thread() + threads(); k < static_cast<u32>(args.total); k += kFlight * threads())
        set_some_bits<kFlight>(args, k);
}

// A warp for each group: counts its set bits.
__device__ inline void count(const UniqueArgs& args)
{
#pragma unroll 1
    for (u32 base = blockIdx.x * blockDim.x; base < static_cast<u32>(args.words); base += threads()) {
        const u32 k = base + threadIdx.x, n = __reduce_add_sync(~0u, static_cast<u32>(__popc(words(args)[k].bits)));
        if (lane() == 0) {
            counts(args)[k / 32] = n;
            atomicAdd(totals(args) + (k / 32 >> args.shift), n);
        }
    }
}

// This lane's share of the sum of numbers first..end-1.
__device__ inline u32 part(const u32* from, u32 first, u32 end)
{
    u32 sum = 0;
#pragma unroll 1
    for (u32 k = first + lane(); k < end; k += 32) sum += from[k];
    return sum;
}

// A warp for each group: writes the rows, word by word.
__device__ inline void rows(const UniqueArgs& args)
{
#pragma unroll 1
    for (u32 base = blockIdx.x * blockDim.x; base < static_cast<u32>(args.words); base += threads()) {
        const u32 k = base + threadIdx.x, group = k / 32, total = group >> args.shift, bits = words(args)[k].bits;
        u32 place = __reduce_add_sync(~0u, part(totals(args), 0, total) + part(counts(args), total << args.shift,
            group)), before = 0;
#pragma unroll 1
        for (u32 j = 0; j < 32; ++j) {
            const u32 word = __shfl_sync(~0u, bits, j), own = place + __popc(word & ((1u << lane()) - 1));
            if (word >> lane() & 1)
                *reinterpret_cast<i64*>(args.rows + own * args.rows_step) = group * 1024 + j * 32 + lane();
            if (lane() == j) before = place;
            place += __popc(word);
        }
        words(args)[k].before = before;
    }
}

// The inverse: the rank of each index, or -1 after the rows that occur.
__device__ inline void inverse(const UniqueArgs& args)
{
#pragma unroll 1
    for (u32 k = thread(); k < static_cast<u32>(args.total); k += threads()) {
        const u32 row = row_at(args, k);
        int place = -1;
        if (row != kNone) {
            const BitmapWord word = words(args)[row / 32];
            place = word.before + __popc(word.bits & ((1u << row % 32) - 1)) + (args.padding >= 0);
            if (row == static_cast<u32>(args.padding)) place = 0;
        }
        *reinterpret_cast<int*>(args.inverse + k * args.inverse_step) = place;
    }
    const BitmapWord last = words(args)[static_cast<u32>(args.words) - 1];
    const u32 all = last.before + __popc(last.bits);
#pragma unroll 1
    for (u32 k = all + thread(); k < static_cast<u32>(args.most);
         k += threads()) *reinterpret_cast<i64*>(args.rows + k * args.rows_step) = -1;
    if (thread() == 0) *args.count = all;
}

__device__ inline void stages(const UniqueArgs& args)
{
#pragma unroll 1
    for (int stage = static_cast<int>(args.stage); stage < static_cast<int>(args.end); ++stage) {
        switch (stage) {
        case 0: clear(args); break;
        case 1: set_bits(args); break;
        case 2: count(args); break;
        case 3: rows(args); break;
        default: inverse(args);
        }
        __syncthreads();
    }
}

EXPORT_THREADS(unique_rows, kUniqueBlock, 2, UniqueArgs, stages(args))
