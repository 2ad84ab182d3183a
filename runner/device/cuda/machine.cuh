// Machine interface of the kernels: CUDA's intrinsics, or the emulator's if a C++ compiler for the
// CPU builds them.
//
// Fragments of matrices are those of the PTX ISA ("Matrix Fragments for mma"). A warp holds them,
// with `g = lane / 4` and `t = lane % 4`. Of C, a lane has the rows `g` and `g + 8`, and the
// columns `2t` and `2t + 1`.
#pragma once

#include <stdint.h>

#ifdef __CUDACC__
#include <cuda_fp16.h>

typedef uint4 Words16;
#define DEVICE static __device__ __forceinline__
#define METHOD __device__ __forceinline__
#define TABLE static __device__ const
#define SHARED __shared__

// A kernel takes one argument, a structure that is passed by value.
#define KERNEL(name, threads, Arguments)                                                                  \
    extern "C" __global__ void __launch_bounds__(threads) name(const __grid_constant__ Arguments arguments)

DEVICE uint32_t block_x() { return blockIdx.x; }
DEVICE uint32_t block_y() { return blockIdx.y; }
DEVICE uint32_t block_z() { return blockIdx.z; }
DEVICE uint32_t blocks_x() { return gridDim.x; }
DEVICE uint32_t blocks_y() { return gridDim.y; }
DEVICE uint32_t thread() { return threadIdx.x; }
DEVICE uint32_t threads() { return blockDim.x; }
DEVICE void barrier() { __syncthreads(); }
DEVICE void barrier_of_warp() { __syncwarp(); }
// Makes earlier writes visible to each thread that sees a later write of this thread.
DEVICE void fence() { __threadfence(); }
DEVICE uint32_t count_up(uint32_t *counter) { return atomicAdd(counter, 1u); }
// Returns the sum over a warp to every lane.
DEVICE float sum_of_warp(float x) {
#pragma unroll
    for (uint32_t mask = 16; mask > 0; mask /= 2) x += __shfl_xor_sync(0xffffffffu, x, mask);
    return x;
}
// Returns the maximum over a warp to every lane.
DEVICE float largest_of_warp(float x) {
#pragma unroll
    for (uint32_t mask = 16; mask > 0; mask /= 2) x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, mask));
    return x;
}
// The same for the four lanes that share a row of a fragment.
DEVICE float sum_of_four(float x) {
    x += __shfl_xor_sync(0xffffffffu, x, 2);
    return x + __shfl_xor_sync(0xffffffffu, x, 1);
}
DEVICE float largest_of_four(float x) {
    x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 2));
    return fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 1));
}

// Returns dynamic shared memory, aligned to 16 bytes.
DEVICE uint8_t *shared_memory() {
    extern __shared__ uint4 memory[];
    return (uint8_t *)memory;
}

DEVICE float bits_to_float(uint32_t bits) { return __uint_as_float(bits); }
DEVICE uint32_t float_to_bits(float x) { return __float_as_uint(x); }
DEVICE float half_to_float(uint16_t bits) { return __half2float(__ushort_as_half(bits)); }
DEVICE uint16_t float_to_half(float x) { return __half_as_ushort(__float2half_rn(x)); }
DEVICE float round_to_even(float x) { return rintf(x); }

// Returns `sum` plus the dot product of four pairs of signed bytes.
DEVICE int32_t dot4(uint32_t a, uint32_t b, int32_t sum) { return __dp4a((int32_t)a, (int32_t)b, sum); }
// Subtracts bytes a - b separately.
DEVICE uint32_t subtract4(uint32_t a, uint32_t b) { return __vsub4(a, b); }
// Selects four of the eight bytes of two words with four nibbles. A nibble of 8 or more replicates
// the sign bit of its byte eight times.
DEVICE uint32_t permute(uint32_t low, uint32_t high, uint32_t selector) { return __byte_perm(low, high, selector); }

// C += A · B for signed bytes, [16, 32] · [32, 8].
DEVICE void multiply_s8_32(int32_t c[4], const uint32_t a[4], const uint32_t b[2]) {
    asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
                 : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
// C += A · B for signed bytes, [16, 16] · [16, 8].
DEVICE void multiply_s8_16(int32_t c[4], const uint32_t a[2], uint32_t b) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 {%0,%1,%2,%3},{%4,%5},{%6},{%0,%1,%2,%3};"
                 : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(b));
}
// C += A · B for BF16, [16, 16] · [16, 8].
DEVICE void multiply_bf16(float c[4], const uint32_t a[4], const uint32_t b[2]) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
// C += A · B for TF32, [16, 8] · [8, 8]. The operands are float32; their low 13 bits are ignored.
DEVICE void multiply_tf32(float c[4], const uint32_t a[4], const uint32_t b[2]) {
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
#else
#include "emulator.h"
#endif

static constexpr uint32_t LANES = 32;

// Returns whether this block is the last of `count` blocks that call this. The last one sees all
// writes of the other blocks. The counter is 0 before and after; `is_last` is in shared memory.
// This is a release and acquire pattern of the PTX ISA ("Release and Acquire Patterns"): barriers
// put the writes and reads of all threads before and after those of the counting thread.
DEVICE bool is_last_of(uint32_t *counter, uint32_t count, uint32_t *is_last) {
    barrier();
    if (thread() == 0) {
        fence();
        *is_last = count_up(counter) + 1 == count;
        if (*is_last) *counter = 0;
        fence();
    }
    barrier();
    return *is_last != 0;
}

DEVICE uint32_t lane() { return thread() % LANES; }
DEVICE uint32_t warp() { return thread() / LANES; }

// Returns the sum over a block of whole warps to every thread. `shared` has 32 numbers, and may be
// reused after the next barrier.
DEVICE float sum_of_block(float x, float *shared) {
    x = sum_of_warp(x);
    if (lane() == 0) shared[warp()] = x;
    barrier();
    float sum = 0.0f;
    for (uint32_t at = 0; at < threads() / LANES; at++) sum += shared[at];
    return sum;
}

// Returns the maximum over a block, in the same way.
DEVICE float largest_of_block(float x, float *shared) {
    x = largest_of_warp(x);
    if (lane() == 0) shared[warp()] = x;
    barrier();
    float largest = -INFINITY;
    for (uint32_t at = 0; at < threads() / LANES; at++) largest = fmaxf(largest, shared[at]);
    return largest;
}

// Loads words from an address aligned to 8 or 16 bytes.
DEVICE void load_8(const void *from, uint32_t words[2]) {
    uint64_t both = *(const uint64_t *)from;
    words[0] = (uint32_t)both;
    words[1] = (uint32_t)(both >> 32);
}
DEVICE void load_16(const void *from, uint32_t words[4]) {
    Words16 all = *(const Words16 *)from;
    words[0] = all.x;
    words[1] = all.y;
    words[2] = all.z;
    words[3] = all.w;
}

DEVICE void store_16(void *to, const uint32_t words[4]) {
    Words16 all = {words[0], words[1], words[2], words[3]};
    *(Words16 *)to = all;
}

DEVICE float bf16_to_float(uint16_t bits) { return bits_to_float((uint32_t)bits << 16); }

// Rounds to nearest, ties to even; NaN stays NaN.
DEVICE uint16_t float_to_bf16(float x) {
    uint32_t bits = float_to_bits(x);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return (uint16_t)(bits >> 16 | 0x40u);
    return (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

// Rounds to nearest with 10 mantissa bits, ties to even; NaN stays NaN.
DEVICE uint32_t float_to_tf32(float x) {
    uint32_t bits = float_to_bits(x);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return bits | 0x00400000u;
    return (bits + 0xfffu + (bits >> 13 & 1u)) & 0xffffe000u;
}

// Converts E4M3; 0x7f is NaN, with either sign.
DEVICE float e4m3_to_float(uint32_t code) {
    // As float16, the exponent is 8 too small, for subnormal numbers too.
    float x = half_to_float((uint16_t)((code & 0x7fu) << 7 | (code & 0x80u) << 8)) * 256.0f;
    return (code & 0x7fu) == 0x7fu ? bits_to_float(0x7fc00000u) : x;
}

// Converts a power of two, 2^(x - 127); 255 is infinity, as in MLX.
DEVICE float e8m0_to_float(uint32_t x) {
    return bits_to_float(x == 0u ? 0x00400000u : x << 23);
}

// Storage types of numbers.
enum FloatType : uint32_t { FLOAT32 = 0, FLOAT16 = 1, BFLOAT16 = 2, BLOCKS_Q8_0 = 3, POWERS = 4 };

// Loads a number without branches, so that several loads can overlap: loads the word that contains
// it, and selects its half for 16-bit types.
DEVICE float number_at(const uint8_t *numbers, uint32_t type, uint64_t at) {
    uint64_t byte = type == FLOAT32 ? 4 * at : 2 * at;
    uint32_t own = *(const uint32_t *)(numbers + (byte & ~3ull));
    uint16_t bits = (uint16_t)(own >> (8 * (byte & 2)));
    float half = half_to_float(bits), bf16 = bf16_to_float(bits);
    return type == FLOAT32 ? bits_to_float(own) : type == FLOAT16 ? half : bf16;
}
