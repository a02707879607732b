// The rows of dweight from the sorted entries, which Gradient stores, or the rows of a table, which
// Update updates. `lanes` threads share a slice of a row, V columns each, and add its entries in
// order.
//
//     rows       every row once, zeros included, except long ones, which hold a whole chunk;
//                other CTAs sum the smallest chunks
//     long_rows  the long ones, from chunks and the entries before and after them; other CTAs sum
//                larger chunks
//
// A chunk is kChunk aligned entries, or kChunk aligned chunks, all of one row, so the order of a
// sum follows from the entries alone.
#pragma once

#include "embedding/argmax_sum.cuh"

template <typename Base>
struct RowSum : Base {
    using T = typename Base::Element;
    using A = typename Base::Accumulator;
    using Base::Base, Base::args, Base::lanes, Base::lane, Base::unit, Base::column, Base::group, Base::entry,
        Base::reset, Base::add, Base::add_run;
    using Base::slice, Base::add_chunks, Base::store_chunk, Base::row_at, Base::store_row, Base::store_zeros;
    using Base::each_slice, Base::each_pass, Base::fetch_row;

    // The first entry from k on that is not of a row, if no whole chunk of the row is left there.
    __device__ u32 end_of_row(u32 row, u32 k) const
    {
        u32 end = k;
        for (u32 reach = 0; reach < kChunk; reach += lanes) {
            const u32 next = k + reach + lane;
            end += __popc(__ballot_sync(group(), next < static_cast<u32>(args.total) && entry(next).row == row));
        }
        return end;
    }

    // For a row with entry `first`: its first entry, if no whole chunk of it is before that, and
    // the first one after it.
    __device__ Range around(u32 row, u32 first, u32 k) const
    {
        u32 begin = first, end = k;
        for (u32 reach = 0; reach < kChunk; reach += lanes) {
            const u32 back = reach + lane + 1, next = k + reach + lane;
            const u32 left = back <= first ? entry(first - back).row : ~0u,
                right = next < static_cast<u32>(args.total) ? entry(next).row : ~0u;
            begin -= __popc(__ballot_sync(group(), left == row));
            end += __popc(__ballot_sync(group(), right == row));
        }
        return {begin, end};
    }

    __device__ void rows()
    {
        u32 row = unit * static_cast<u32>(args.unit), last =
            min(row + static_cast<u32>(args.unit), static_cast<u32>(args.rows)), k = 0, end = 0;
        if (args.total) {
            const Entry* bounds = at<const Entry>(args, args.bounds_at) + unit;
            row = bounds[0].row, k = bounds[0].tag, last = bounds[1].row, end = bounds[1].tag;
        }
        u32 begun = k;
        T* p = row_at(row);
        fetch_row(row);
        const auto finish = [&](u32 next, u32 here) {  // stores the rows before the next one
            if (row == next) return;
            store_row(p, row, here - begun);
            reset();
            begun = here;
            if constexpr (Base::ONLY_ENTRIES) {
                row = next;
                fetch_row(row);
                return;
            }
            p += args.dweight_row;
#pragma unroll 1
            for (++row; row < next; ++row, p += args.dweight_row) store_zeros(p);
        };
        while (k < end) {
            u32 stop = (k + kChunk - 1) / kChunk * kChunk;
            while (stop + kChunk <= end && entry(stop).row != entry(stop + kChunk - 1).row) stop += kChunk;
            const bool found = stop + kChunk <= end;  // a long row, which is not stored here
            add(k, found ? stop : end, finish);
            if (!found) break;
            finish(entry(stop).row, stop);
            k = begun = end_of_row(row, stop + chunk_lists(args).whole[stop / kChunk] * kChunk);
            reset();
            // The next row to store; none until one is fetched, if others are left alone.
            row = Base::ONLY_ENTRIES ? static_cast<u32>(args.rows) : row + 1;
            p += args.dweight_row;
        }
        if (row < last) finish(last, end);
    }

    // Signals that the group has stored its share. True for the last of n groups, which then reads
    // what all of them stored.
    __device__ bool last(u32* done, u32 n) const
    {
        u32 others = 0;
        __threadfence();
        __syncwarp(group());
        if (lane == 0) others = atomicAdd(done, 1);
        if (__shfl_sync(group(), others, 0, lanes) + 1 != n) return false;
        __threadfence();
        return true;
    }

    // Sums chunk `unit` of the second level, and each larger chunk that it completes.
    __device__ void larger_chunks(u32* done)
    {
        // Number of the chunk, its entries, chunks of the level below.
        i64 number = unit, size = i64(kChunk) * kChunk, many = args.total / kChunk;
        const A* sums = at<const A>(args, args.partial_at);
#pragma unroll 1
        for (i64 level = 2;; ++level) {
            if (level > 2 && entry(number * size).row != entry(number * size + size - 1).row) return;
            reset();
            add_chunks(sums, number * kChunk, (number + 1) * kChunk);
            sums += many * args.columns, done += many, many /= kChunk;
            store_chunk(sums, number);
            number /= kChunk, size *= kChunk;
            if (level == args.levels || number >= many / kChunk || !last(done + many + number, kChunk)) return;
        }
    }

    // Adds the chunks of first..end-1: up to the largest, and down again. Returns the first entry
    // after them.
    __device__ u32 add_levels(u32 first, u32 end)
    {
        i64 here = first, size = kChunk, level = 1;
        const A* sums = at<const A>(args, args.partial_at);
#pragma unroll 1
        for (bool up = true;;) {
            const i64 larger = size * kChunk;
            up = up && level < args.levels && here + larger <= end;
            const i64 stop = up ? (here + larger - 1) / larger * larger : max(here, end / size * size);
            add_chunks(sums, here / size, stop / size);
            here = stop;
            if (up) {
                sums += args.total / size * args.columns;
                size = larger, ++level;
            } else {
                if (level == 1) return static_cast<u32>(here);
                size /= kChunk, --level;
                sums -= args.total / size * args.columns;
            }
        }
    }

    // The first chunk of a long row that is ready to be summed, or ~0. After the chunks of the
    // second level, units are long rows without such a chunk; other long rows are summed by the
    // group that completes their last chunk.
    __device__ u32 ready(const ChunkLists& lists, u32 large)
    {
        const bool chunk = unit < large;
        const u32 begin = chunk ? unit * kChunk * kChunk : 0, end = chunk ? begin + kChunk * kChunk : 1;
        const u32 row = entry(begin).row, other = entry(end - 1).row;
        const u32 first = chunk ? lists.first[unit * kChunk] : lists.head[unit - large];
        if (chunk && (row >= args.rows || row != other)) return ~0u;
        const u32 chunks_end = first + lists.whole[first];
        const u32 before = (first + kChunk - 1) / kChunk, has_larger = args.levels > 1 && chunks_end / kChunk > before
            ? chunks_end / kChunk - before : 0;
        if (!chunk) return has_larger ? ~0u : first;
        const auto done = [&] { return lists.done + slice() * args.chunk_capacity; };
        each_slice([&] { larger_chunks(done()); });
        return last(done() + first, has_larger) ? first : ~0u;
    }

    // Sums the row that is the unit or that it completes.
    __device__ void long_row(const ChunkLists& lists, u32 large)
    {
        const u32 head = ready(lists, large);
        if (head == ~0u) return;
        const u32 first = head * kChunk, row = entry(first).row;
        const Range all = around(row, first, first + lists.whole[head] * kChunk);
        const u32 begin = all.first, end = all.last;
        each_pass([&] {
            u32 from = begin, to = first;
            reset();
#pragma unroll 1
            while (true) {
                add_run(from, to);
                if (to == end) break;
                from = add_levels(first, end), to = end;
            }
            fetch_row(row);
            store_row(row_at(row), row, end - begin);
        });
    }
};

// The smallest chunks. A function of its own leaves all registers to the rows.
template <typename Rows>
__device__ __noinline__ void chunks(const BagArgs& args)
{
    Rows sum(args);
    const ChunkLists lists = chunk_lists(args);
    sum.share(lists.count[0], args.slices, args.chunk_blocks, [&] {
        sum.unit = lists.chunk[sum.unit];
        sum.add_run(sum.unit * kChunk, (sum.unit + 1) * kChunk);
        sum.store_chunk(at<const typename Rows::A>(args, args.partial_at), sum.unit);
    });
}

constexpr int kLongFlight = 8;  // loads of dy that a thread has in flight for a long row

template <typename Base>
__device__ void rows_and_chunks(const BagArgs& args)
{
    using Rows = RowSum<Base>;
    if (blockIdx.x < args.chunk_blocks) return chunks<RowSum<typename Base::Chunks>>(args);
    Rows sum(args);
    if (sum.take(sum.before(blockIdx.x - args.chunk_blocks), units(args), sum.row_slices()))
        sum.each_pass([&] { sum.rows(); });
}

template <typename Base>
__device__ void long_rows(const BagArgs& args)
{
    RowSum<Base> sum(args);
    const ChunkLists lists = chunk_lists(args);
    if (lists.count[1] == 0) return;
    const u32 large = args.levels > 1 && lists.count[0] >= kChunk ? static_cast<u32>(args.total / (kChunk * kChunk))
        : 0;
    sum.share(large + lists.count[1], sum.row_slices(), gridDim.x, [&] { sum.long_row(lists, large); });
}

// 16 bytes of columns for each thread if the operands allow it, else one column.
template <typename T>
constexpr int kWide = 16 / sizeof(T);

// Sorted rows of the kind that the operands need; Sink is Gradient or Update.
template <template <typename, typename, int, Kind, int> class Sink, typename T, typename A, int FLIGHT>
__device__ void sorted(const BagArgs& args)
{
    if (args.plain)
        rows_and_chunks<Sink<T, A, kWide<T>, Kind::Plain, FLIGHT>>(args);
    else if (args.wide)
        rows_and_chunks<Sink<T, A, kWide<T>, Kind::Scaled, FLIGHT>>(args);
    else
        rows_and_chunks<Sink<T, A, 1, Kind::Scaled, FLIGHT>>(args);
}

template <template <typename, typename, int, Kind, int> class Sink, typename T, typename A, int FLIGHT>
__device__ void sorted_argmax(const BagArgs& args)
{
    if (args.wide)
        rows_and_chunks<Sink<T, A, kWide<T>, Kind::Argmax, FLIGHT>>(args);
    else
        rows_and_chunks<Sink<T, A, 1, Kind::Argmax, FLIGHT>>(args);
}

template <template <typename, typename, int, Kind, int> class Sink, typename T, typename A>
__device__ void long_rows_of_kind(const BagArgs& args)
{
    if (args.max_indices && args.wide)
        long_rows<Sink<T, A, kWide<T>, Kind::Argmax, kLongFlight>>(args);
    else if (args.max_indices)
        long_rows<Sink<T, A, 1, Kind::Argmax, kLongFlight>>(args);
    else if (args.wide)
        long_rows<Sink<T, A, kWide<T>, Kind::Scaled, kLongFlight>>(args);
    else
        long_rows<Sink<T, A, 1, Kind::Scaled, kLongFlight>>(args);
}
