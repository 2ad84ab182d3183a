// Every kernel, under the name by which it is launched.

#include "products.cuh"
#include "rows.cuh"
#include "experts.cuh"
#include "select.cuh"
#include "attention_tile.cuh"

#define PRODUCTS(name, Kind, tile)                                                                        \
    KERNEL(few_1_##name, MOST_THREADS, ProductArguments) { few<Kind, 1>(arguments); }                     \
    KERNEL(few_8_##name, MOST_THREADS, ProductArguments) { few<Kind, FEW_TOKENS>(arguments); }            \
    KERNEL(tile_##name, TILE_THREADS, ProductArguments) { tile(arguments); }

#define INTEGERS(name, ...) PRODUCTS(name, Integers<__VA_ARGS__>, integer_tile<__VA_ARGS__>)
#define FLOATS(name, TYPE) PRODUCTS(name, Floats<TYPE>, float_tile<TYPE>)

FLOATS(f32, PLAIN_F32)
FLOATS(f16, PLAIN_F16)
FLOATS(bf16, PLAIN_BF16)
FLOATS(e4m3, PLAIN_E4M3)
INTEGERS(q4_0, Q4_0)
INTEGERS(q4_1, Q4_1)
INTEGERS(q5_0, Q5_0)
INTEGERS(q5_1, Q5_1)
INTEGERS(q8_0, Q8_0)
INTEGERS(q2_k, Q2K)
INTEGERS(q3_k, Q3K)
INTEGERS(q4_k, Q4K)
INTEGERS(q5_k, Q5K)
INTEGERS(q6_k, Q6K)
INTEGERS(iq4_nl, Iq4Nl)
INTEGERS(iq4_xs, Iq4Xs)
INTEGERS(iq2_xxs, Iq2Xxs)
INTEGERS(iq2_xs, Iq2Xs)
INTEGERS(iq2_s, Iq2S)
INTEGERS(iq3_xxs, Iq3Xxs)
INTEGERS(iq3_s, Iq3S)
INTEGERS(iq1_s, Iq1S)
INTEGERS(iq1_m, Iq1M)
INTEGERS(tq1_0, Tq1)
INTEGERS(tq2_0, Tq2)
INTEGERS(mxfp4_blocks, Mxfp4Blocks)
INTEGERS(nvfp4_blocks, Nvfp4Blocks)
INTEGERS(int2, Affine<2>)
INTEGERS(int3, Affine<3>)
INTEGERS(int4, Affine<4>)
INTEGERS(int5, Affine<5>)
INTEGERS(int6, Affine<6>)
INTEGERS(int8, Affine<8>)
INTEGERS(mxfp4, Mxfp4)
INTEGERS(nvfp4, Nvfp4)

#define CACHES(name, TYPE)                                                                                \
    KERNEL(keep_##name, ATTEND_THREADS, KeepArguments) { keep<TYPE>(arguments); }                         \
    KERNEL(attend_1_##name, ATTEND_THREADS, AttendArguments) { attend<TYPE, 1>(arguments); }              \
    KERNEL(attend_4_##name, ATTEND_THREADS, AttendArguments) { attend<TYPE, 4>(arguments); }              \
    KERNEL(attend_16_##name, ATTEND_THREADS, AttendArguments) { attend<TYPE, 16>(arguments); }            \
    KERNEL(attend_tile_64_##name, ATTEND_THREADS, AttendArguments) { attend_tile<TYPE, 64>(arguments); }  \
    KERNEL(attend_tile_128_##name, ATTEND_THREADS, AttendArguments) { attend_tile<TYPE, 128>(arguments); } \
    KERNEL(attend_tile_256_##name, ATTEND_THREADS, AttendArguments) { attend_tile<TYPE, 256>(arguments); }

CACHES(f32, FLOAT32)
CACHES(f16, FLOAT16)
CACHES(bf16, BFLOAT16)
CACHES(q8_0, BLOCKS_Q8_0)
