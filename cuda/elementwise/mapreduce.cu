// The second pass of sums that were split into chunks, for each accumulator type.
#include "elementwise/thread_tile.cuh"

// out[k] = sum over c of partial[c][k], for each summed output; the threads of a CTA that share k
// take every height-th chunk. Here kept_size counts all values of k, inner included.
template <typename A>
__device__ void combine(const CombineArgs& args)
{
    constexpr int U = 4;
    const IterSpace& space = args.space;
    const int lanes = static_cast<int>(space.lanes), shift = log2_of(lanes), height = kBlockThreads >> shift;
    const int thread = threadIdx.x, x = thread & (lanes - 1), y = thread >> shift;
    const unsigned ordinal = blockIdx.x / static_cast<unsigned>(space.tiles),
        tile = blockIdx.x - ordinal * static_cast<unsigned>(space.tiles);
    const i64 size = space.kept_size, k = static_cast<i64>(tile) * lanes + x;
    const A* partial = static_cast<const A*>(space.partial) + ordinal * space.chunks * size + k;

    A sum = 0;
    if (k < size)
        for (i64 c = y; c < space.chunks; c += U * height) {
            A part[U];
#pragma unroll
            for (int u = 0; u < U; ++u)
                part[u] = c + u * height < space.chunks ? partial[(c + u * height) * size] : A(0);
            sum += (part[0] + part[1]) + (part[2] + part[3]);
        }
    __shared__ A total[kBlockThreads];
    total[thread] = sum;
    for (int half = height / 2; half > 0; half /= 2) {
        __syncthreads();
        if (y < half) total[thread] += total[thread + half * lanes];
    }
    if (y != 0 || k >= size) return;

    int o = 0;
    for (int before = ordinal; !(space.summed >> o & 1) || before-- > 0;) ++o;
    const i64 rest = k / space.extent[0];
    store_kept(space, args.out[o], rest, k - rest * space.extent[0], total[thread]);
}

EXPORT(combine_f32, 1, CombineArgs, combine<float>(args))
EXPORT(combine_f64, 1, CombineArgs, combine<double>(args))
