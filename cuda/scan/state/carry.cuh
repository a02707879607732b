// Carries: the states that enter and leave rows, so that rows can be scanned in chunks, and by
// several devices. In memory a carry is some numbers of 8 bytes for each row.
#pragma once

#include "scan/state/heads.cuh"

// A kind whose rows have carries. There is no fast path, as its states cannot leave a row.
template <typename K>
struct WithCarries : K {
    static constexpr bool HAS_CARRIES = true;
    template <typename T>
    using FastPathFor = void;
};

// What the form of a state may depend on besides its numbers.
struct CarriedRow {
    const ScanArgs& args;
    // The index of its first position in the whole row that it is a chunk of. Kernels run against
    // the order of the indices with kReversed.
    i64 first_index;
};

// The numbers of the carry of a row.
struct CarryNumbers {
    double* first;
    i64 step;

    __device__ CarryNumbers(const ScanArgs& args, const Strided& operand, i64 row, i64 offset = 0)
        : first(reinterpret_cast<double*>(operand.data) + offset_of(args, operand, row) + offset), step(operand.step)
    {
    }
    __device__ double& operator[](int i) const { return first[i * step]; }
};

// How a state is stored: CarryForm<State> has read(numbers, row) and write(state, numbers, row).
template <typename State>
struct CarryForm;

// States that are stored as they are: structs of 8-byte numbers.
template <typename State>
struct SameForm {
    static constexpr int COUNT = sizeof(State) / 8;

    static __device__ State read(const CarryNumbers& from, const CarriedRow&)
    {
        double word[COUNT];
#pragma unroll
        for (int i = 0; i < COUNT; ++i) word[i] = from[i];
        State state;
        memcpy(&state, word, sizeof state);
        return state;
    }
    static __device__ void write(const State& state, const CarryNumbers& to, const CarriedRow&)
    {
        double word[COUNT];
        memcpy(word, &state, sizeof state);
#pragma unroll
        for (int i = 0; i < COUNT; ++i) to[i] = word[i];
    }
};

// The index of the first position of a row in the whole row that it is a chunk of; 0 for kinds
// without indices. cummax and cummin carry the boundary between the chunk and the one before it in
// scan order.
template <typename K>
__device__ i64 first_index_of_row(const ScanArgs& args, i64 row)
{
    const CarryArgs& carry = static_cast<const CarryArgs&>(args);
    if (!K::STORES_INDICES || carry.suffix_parts == 0) return 0;
    const i64 boundary = static_cast<i64>(CarryNumbers(args, carry.suffix_in, row)[2]);
    return args.flags & kReversed ? boundary : boundary - args.n;
}

// The prefix that enters a row, and the suffix; the identity without carries.
template <typename K>
__device__ typename K::Prefix prefix_of_row(const ScanArgs& args, i64 row)
{
    using Prefix = typename K::Prefix;
    Prefix sum = Prefix::identity();
    if constexpr (K::HAS_CARRIES) {
        const CarryArgs& carry = static_cast<const CarryArgs&>(args);
#pragma unroll 1
        for (i64 part = 0; part < carry.prefix_parts; ++part) {
            const CarryNumbers from(args, carry.prefix_in, row, part * carry.prefix_part_stride);
            sum = K::combine(sum, CarryForm<Prefix>::read(from, {args, 0}));
        }
    }
    return sum;
}

template <typename K>
__device__ typename K::Carry suffix_of_row(const ScanArgs& args, i64 row)
{
    using Carry = typename K::Carry;
    Carry sum = K::to_carry(K::Suffix::identity());
    // No state enters the row if a sequence begins at the position after it.
    if constexpr (K::READS_HEADS) {
        if (heads_at<1>(args, args.n)) return sum;
    }
    if constexpr (K::HAS_CARRIES) {
        const CarryArgs& carry = static_cast<const CarryArgs&>(args);
        const CarriedRow own = {args, first_index_of_row<K>(args, row)};
#pragma unroll 1
        for (i64 part = carry.suffix_parts - 1; part >= 0; --part) {
            const CarryNumbers from(args, carry.suffix_in, row, part * carry.suffix_part_stride);
            sum = K::combine(CarryForm<Carry>::read(from, own), sum);
        }
    }
    return sum;
}

// Stores the suffix of a whole row, with what entered it.
template <typename K>
__device__ void store_suffix_of_row(const ScanArgs& args, i64 row, const typename K::Carry& suffix)
{
    const CarryArgs& carry = static_cast<const CarryArgs&>(args);
    if (!carry.suffix_out.data) return;
    const CarriedRow own = {args, first_index_of_row<K>(args, row)};
    CarryForm<typename K::Carry>::write(suffix, CarryNumbers(args, carry.suffix_out, row), own);
}
