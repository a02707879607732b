// Rows whose indices are not those of a scan: dx[j] is the sum of dy over indices[i] == j, whatever they are.
#pragma once

#include "scan.cuh"

constexpr int kRepairThreads = 256, kSums = 2048;  // sums in shared memory

// A thread owns every kRepairThreads-th position of a part of the row and goes through all indices in order. Positions out of range belong to nobody.
template <typename T>
__device__ void repair(const ScanArgs& args)
{
    __shared__ double sum[kSums], lost[kSums];  // what rounding took from the sum
    __shared__ int index[kRepairThreads];
    __shared__ double value[kRepairThreads];
    if (args.bad[0] == 0) return;
    i64 rows = 1;
    for (int d = 0; d < args.dims; ++d) rows *= args.extent[d];
    for (i64 row = blockIdx.x; row < rows; row += gridDim.x) {
        if (args.bad[1 + row] == 0) continue;
        const Places place = Places::of(args, 0, row);
        const T* dy = reinterpret_cast<const T*>(args.dy.data) + place.dy;
        const i64* x = reinterpret_cast<const i64*>(args.x.data) + place.x;
        T* dx = reinterpret_cast<T*>(args.dx.data) + place.dx;
        for (i64 part = 0; part < args.n; part += kSums) {
#pragma unroll 1
            for (int j = threadIdx.x; j < kSums; j += kRepairThreads) sum[j] = lost[j] = 0.0;
            for (i64 begin = 0; begin < args.n; begin += kRepairThreads) {
                __syncthreads();
                const i64 i = begin + threadIdx.x;
                index[threadIdx.x] = -1;
                if (i < args.n) {
                    const i64 j = (args.flags & kReversed ? args.n - 1 - x[i * args.x.step] : x[i * args.x.step]) - part;
                    if (j >= 0 && j < kSums) index[threadIdx.x] = static_cast<int>(j);
                    value[threadIdx.x] = widen<double>(dy[i * args.dy.step]);
                }
                __syncthreads();
#pragma unroll 1
                for (int k = 0; k < kRepairThreads; ++k) {
                    const int j = index[k];
                    if (j < 0 || j % kRepairThreads != static_cast<int>(threadIdx.x)) continue;
                    const double a = sum[j], b = value[k], s = a + b, kept = s - a;  // Knuth's exact sum
                    sum[j] = s;
                    lost[j] += (a - (s - kept)) + (b - kept);
                }
            }
#pragma unroll 1
            for (int j = threadIdx.x; j < kSums && part + j < args.n; j += kRepairThreads) dx[(part + j) * args.dx.step] = static_cast<T>(isfinite(sum[j]) ? sum[j] + lost[j] : sum[j]);
            __syncthreads();
        }
    }
}
