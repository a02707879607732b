package launch

// This file has the constants that all kernels share with Go: core/internal/generate writes
// cuda/common/constants.gen.cuh from it.

const BlockThreads = 256 // threads of a CTA of most kernels
