// Asynchronous copies to shared memory: cp.async.
#pragma once

// Copies 16 bytes to shared memory by cp.async; TO and FROM are offsets in bytes. Both addresses
// are aligned to 16 bytes.
template <int TO = 0, int FROM = TO>
__device__ void cp_async_16(unsigned to, const void* from)
{
    asm volatile("cp.async.cg.shared.global [%0 + %2], [%1 + %3], 16;" ::"r"(to), "l"(from), "n"(TO), "n"(FROM)
                 : "memory");
}
