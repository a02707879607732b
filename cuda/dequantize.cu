// Per-token dequantisation, x_hat = (q - zero_point) * scale, and fake quantisation.
#include "mapreduce.cuh"

// dx = dy * scale,  dscale = sum dy * (q - zero_point),  dzero_point = sum -scale * dy.
// in: dy, scale, q?, zero_point?   out: dx?, dscale?, dzero_point?
template <typename A>
struct DequantizeBackward {
    static constexpr int IN = 4, OUT = 3, FULL = 1, FIRST_SUM = 1, MAP_UNROLL = 2, ROWS_UNROLL = 4, ROWS_BLOCKS = 3;
    using Args = MapReduceArgs<IN, OUT>;
    static constexpr __device__ Kind input(int i) { return i == 0 ? Kind::Own : i == 2 ? Kind::Byte : Kind::Side; }

    __device__ explicit DequantizeBackward(const Args&) {}

    __device__ A shared(const A (&)[IN]) const { return A(0); }

    __device__ A output(int o, const A (&in)[IN], A) const
    {
        const A dy = in[0], scale = in[1], q = in[2], zero_point = in[3];
        if (o == 0) return dy * scale;
        if (o == 1) return dy * (q - zero_point);
        return -scale * dy;
    }
};

// t = round_half_even(x / scale) + zero_point, q = clamp(t, quant_min, quant_max); inside means t == q.
//   dx           dy                                             inside, else 0
//   dscale       sum of dy * ((q - zero_point) - x / scale)     inside, else of dy * (q - zero_point)
//   dzero_point  sum of 0                                       inside, else of -scale * dy
// A floating zero_point is rounded and clamped first. A NaN in x lies outside and is not clamped.
// in: dy, x, scale, zero_point?   out: dx?, dscale?, dzero_point?   scalar: quant_min, quant_max
template <typename A>
struct FakeQuantizeBackward {
    static constexpr int IN = 4, OUT = 3, FULL = 1, FIRST_SUM = 1, MAP_UNROLL = 4, ROWS_UNROLL = 2, ROWS_BLOCKS = 2;
    using Args = MapReduceArgs<IN, OUT>;
    static constexpr __device__ Kind input(int i) { return i < 2 ? Kind::Own : Kind::Side; }

    A least, most;
    bool floating;

    __device__ explicit FakeQuantizeBackward(const Args& args)
        : least(opaque(static_cast<A>(args.walk.scalar[0]))), most(opaque(static_cast<A>(args.walk.scalar[1]))), floating(args.in[3].dtype <= BF16)
    {
    }

    __device__ A clamp(A t) const { return t < least ? least : t > most ? most : t; }

    __device__ A shared(const A (&in)[IN]) const { return in[1] / in[2]; }

    __device__ A output(int o, const A (&in)[IN], A ratio) const
    {
        const A dy = in[0], scale = in[2], zero_point = floating ? clamp(rint(in[3])) : in[3];
        const A rounded = rint(ratio), t = rounded + zero_point;
        const bool inside = least <= t && t <= most;
        if (o == 0) return inside ? dy : A(0);
        if (o == 1) return dy * (inside ? rounded - ratio : clamp(t) - zero_point);
        return inside ? A(0) : -scale * dy;
    }
};

FOR_EACH_FLOAT(EXPORT_MAP_ROWS, dequantize_per_token_backward, DequantizeBackward)
FOR_EACH_FLOAT(EXPORT_MAP_ROWS, fake_quantize_per_token_backward, FakeQuantizeBackward)
