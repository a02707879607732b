// Backward of lerp, y = a + w (b - a):  da = (1 - w) dy,  db = w dy,  dweight = dy (b - a).
#include "elementwise/map_reduce.cuh"

// The weight is a number. Inputs: dy. Outputs: da?, db?. Scalars: w, 1 - w.
template <typename A>
struct LerpBackward : LerpBackwardTuning {
    static constexpr int FULL = 2, FIRST_SUM = 0;
    static constexpr int MAP_BLOCKS = 16, ROWS_BLOCKS = 6, COLUMNS_BLOCKS = 3;
    using Args = MapReduceArgs<IN, OUT>;
    static constexpr __device__ Kind input(int) { return Kind::Own; }

    A w, rest;

    __device__ explicit LerpBackward(const Args& args)
        : w(keep_here(static_cast<A>(args.space.scalar[0]))), rest(keep_here(static_cast<A>(args.space.scalar[1])))
    {
    }

    struct Common {};
    __device__ Common common(const A (&)[IN]) const { return {}; }
    __device__ A shared(const A (&)[IN], Common) const { return A(0); }
    __device__ A output(int o, const A (&in)[IN], Common, A) const { return (o == 0 ? rest : w) * in[0]; }
};

// The weight is a tensor. Inputs: dy, weight, a?, b?. Outputs: da?, db?, dweight?.
template <typename A>
struct LerpWeightBackward : LerpWeightBackwardTuning {
    static constexpr int FULL = 3, FIRST_SUM = 0;
    static constexpr int MAP_BLOCKS = 8, ROWS_BLOCKS = 4, COLUMNS_BLOCKS = 2;
    using Args = MapReduceArgs<IN, OUT>;
    static constexpr __device__ Kind input(int) { return Kind::Own; }

    __device__ explicit LerpWeightBackward(const Args&) {}

    struct Common {};
    __device__ Common common(const A (&)[IN]) const { return {}; }
    __device__ A shared(const A (&)[IN], Common) const { return A(0); }
    __device__ A output(int o, const A (&in)[IN], Common, A) const
    {
        const A dy = in[0], w = in[1], a = in[2], b = in[3];
        if (o == 0) return (A(1) - w) * dy;
        if (o == 1) return w * dy;
        return dy * (b - a);
    }
};

FOR_EACH_FLOAT(EXPORT_MAP_ROWS_COLUMNS, lerp_backward, LerpBackward)
FOR_EACH_FLOAT(EXPORT_MAP_ROWS_COLUMNS, lerp_weight_backward, LerpWeightBackward)
