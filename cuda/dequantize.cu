// Per-token dequantisation, x_hat = (q - zero_point) * scale, and fake quantisation.
#include "mapreduce.cuh"

// dx = dy * scale,  dscale = sum dy * (q - zero_point),  dzero_point = sum -scale * dy.
// in: dy, scale, q?, zero_point?   out: dx?, dscale?, dzero_point?
template <typename A>
struct DequantizeBackward {
    static constexpr int IN = 4, OUT = 3, FIRST_SUM = 1, UNROLL = DU;
    using Args = MapReduceArgs<IN, OUT>;
    static constexpr __device__ Kind input(int i) { return i == 0 ? Kind::Own : i == 2 ? Kind::Byte : Kind::Side; }

    __device__ explicit DequantizeBackward(const Args&) {}

    __device__ void operator()(const A (&in)[IN], A (&out)[OUT]) const
    {
        const A dy = in[0], scale = in[1], q = in[2], zero_point = in[3];
        out[0] = dy * scale;
        out[1] = dy * (q - zero_point);
        out[2] = -scale * dy;
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
    static constexpr int IN = 4, OUT = 3, FIRST_SUM = 1, UNROLL = DU;
    using Args = MapReduceArgs<IN, OUT>;
    static constexpr __device__ Kind input(int i) { return i < 2 ? Kind::Own : Kind::Side; }

    A least, most;
    bool floating;

    __device__ explicit FakeQuantizeBackward(const Args& args)
        : least(static_cast<A>(args.walk.scalar[0])), most(static_cast<A>(args.walk.scalar[1])), floating(args.in[3].dtype <= BF16)
    {
    }

    __device__ A clamp(A t) const { return t < least ? least : t > most ? most : t; }

    __device__ void operator()(const A (&in)[IN], A (&out)[OUT]) const
    {
        const A dy = in[0], scale = in[2], zero_point = floating ? clamp(rint(in[3])) : in[3];
        const A ratio = in[1] / scale, rounded = rint(ratio), t = rounded + zero_point;
        const bool inside = least <= t && t <= most;
        out[0] = inside ? dy : A(0);
        out[1] = dy * (inside ? rounded - ratio : clamp(t) - zero_point);
        out[2] = inside ? A(0) : -scale * dy;
    }
};

FOR_EACH_FLOAT(EXPORT_MAP_ROWS, dequantize_per_token_backward, DequantizeBackward)
FOR_EACH_FLOAT(EXPORT_MAP_ROWS, fake_quantize_per_token_backward, FakeQuantizeBackward)
