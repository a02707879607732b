// Forward scans: kinds that return the running value itself, not a gradient. Their state is the
// Suffix, so that positions run against scan order: y(i) with the largest i comes first. They read
// one input. cumsum has no kind here: it is its own gradient in the other direction.
#pragma once

#include "scan/state/prefix_suffix.cuh"

template <typename A, typename S>
struct ForwardKind : SameCarry<S> {
    static constexpr bool NEEDS_PREFIX = false, SUFFIX_NEEDS_PREFIX = false, IS_FORWARD = true;
    using Number = A;
    using Value = void;
    using Prefix = NoPrefix;
    using Suffix = S;

    static __device__ A pad(const ScanArgs&) { return A(0); }
};
