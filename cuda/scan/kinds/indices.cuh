// Record flags of rows from indices; and the repair of rows whose indices no scan gives: dx[j] is
// the sum of dy over indices[i] == j, for any indices.
#pragma once

#include "scan/tile/row_tile.cuh"

// Adjacent lanes read adjacent indices (striped), BATCH at a time, and vote for the record flags of
// the lane that owns the elements (blocked). A ballot has 32 / I lanes' flags: each lane keeps
// those I bits of the ballot with its elements. `before` of lane 0 is the last index of the ballot
// before.
template <typename K, typename T, bool SEG, bool TILED, bool VECTORIZED, bool PARTIAL_ENDS>
__device__ void RowTile<K, T, SEG, TILED, VECTORIZED, PARTIAL_ENDS>::find_records(
    ThreadScan& thread, const Span& span, i64 offset) const
{
    constexpr int BATCH = I < 8 ? I : 8;
    static_assert(I <= 32);
    const WarpTransposeIO<i64, 1> x(args, args.inputs[kSaved], span, offset);
    const int lane = threadIdx.x % 32, n = SEG ? static_cast<int>(args.n) : 1;
    const bool contiguous = x.contiguous();
    const i64 stride = 32 * args.inputs[kSaved].step, *own = x.p + lane * args.inputs[kSaved].step;
    i64 before = lane == 0 && span.lo == 0 && span.first > 0 && span.hi > 0 ? *x.element(-1) : 0;
    bool found_wrong = false;
    thread.records = 0;
#pragma unroll 1
    for (int j = 0; j < I; j += BATCH, own += BATCH * stride) {
        const int first = j * 32 + lane;
        i64 record[BATCH];
#pragma unroll
        for (int k = 0; k < BATCH; ++k) {
            const int e = first + 32 * k;
            record[k] = e < span.lo || e >= span.hi ? 0 : contiguous ? own[k * stride] : *x.element(e);
        }
        __syncwarp();  // keeps the compiler from delaying the loads
#pragma unroll
        for (int k = 0; k < BATCH; ++k) {
            const int e = first + 32 * k, row = SEG ? rows_before(e - span.lo, n) : 0;
            const bool there = e >= span.lo && e < span.hi;
            const i64 position = SEG ? e - span.lo - row * n : span.first + e,
                      last = __shfl_sync(0xffffffff, record[k], (lane + 31) % 32);
            const bool wins = record[k] == K::index_of(args, position);
            const bool wrong = there && !wins && (position == 0 || record[k] != (lane == 0 ? before : last));
            if (SEG && wrong) args.reject_flags[1 + span.row0 + row] = 1;
            found_wrong = found_wrong || wrong;
            const unsigned records = __ballot_sync(0xffffffff, there && (wins || position == 0));
            if (lane * I / 32 == j + k) thread.records = records >> lane * I % 32 & ~0u >> (32 - I);
            before = last;
        }
    }
    if (found_wrong) args.reject_flags[0] = 1;
    if (!SEG && found_wrong) args.reject_flags[1 + span.row0] = 1;
}

constexpr int kRepairThreads = 256, kSums = 2048;  // sums in shared memory

// Recomputes the rows with wrong indices. A thread owns every kRepairThreads-th position of a
// window of the row and goes through all indices in order, so the result is deterministic. Indices
// out of range are ignored.
template <typename T>
__device__ void repair(const ScanArgs& args)
{
    __shared__ double sum[kSums], error[kSums];  // error: sum of rounding errors (compensated summation)
    __shared__ int index[kRepairThreads];
    __shared__ double value[kRepairThreads];
    if (args.reject_flags[0] == 0) return;
    i64 rows = 1;
    for (int d = 0; d < args.dims; ++d) rows *= args.extent[d];
    for (i64 row = blockIdx.x; row < rows; row += gridDim.x) {
        if (args.reject_flags[1 + row] == 0) continue;
        const Offsets offsets = Offsets::of(args, 0, row);
        const T* dy = reinterpret_cast<const T*>(args.inputs[kScanned].data) + offsets.inputs[kScanned];
        const i64* x = reinterpret_cast<const i64*>(args.inputs[kSaved].data) + offsets.inputs[kSaved];
        const i64 step = args.inputs[kSaved].step;
        T* dx = reinterpret_cast<T*>(args.outputs[kResult].data) + offsets.outputs[kResult];
        for (i64 window = 0; window < args.n; window += kSums) {
#pragma unroll 1
            for (int j = threadIdx.x; j < kSums; j += kRepairThreads) sum[j] = error[j] = 0.0;
            for (i64 begin = 0; begin < args.n; begin += kRepairThreads) {
                __syncthreads();
                const i64 i = begin + threadIdx.x;
                index[threadIdx.x] = -1;
                if (i < args.n) {
                    const i64 j = (args.flags & kReversed ? args.n - 1 - x[i * step] : x[i * step]) - window;
                    if (j >= 0 && j < kSums) index[threadIdx.x] = static_cast<int>(j);
                    value[threadIdx.x] = widen<double>(dy[i * args.inputs[kScanned].step]);
                }
                __syncthreads();
#pragma unroll 1
                for (int k = 0; k < kRepairThreads; ++k) {
                    const int j = index[k];
                    if (j < 0 || j % kRepairThreads != static_cast<int>(threadIdx.x)) continue;
                    const double a = sum[j], b = value[k], s = a + b, kept = s - a;  // Knuth's two-sum
                    sum[j] = s;
                    error[j] += (a - (s - kept)) + (b - kept);
                }
            }
#pragma unroll 1
            for (int j = threadIdx.x; j < kSums && window + j < args.n; j += kRepairThreads)
                dx[(window + j) * args.outputs[kResult].step] =
                    static_cast<T>(isfinite(sum[j]) ? sum[j] + error[j] : sum[j]);
            __syncthreads();
        }
    }
}
