// Rows of a weight as signed 8-bit codes with their scales and offsets: `w = d · q + m`, in runs of
// 32 elements.
//
// The layouts are those of `ggml-common.h` and of MLX's `quantize`.
// `runner/cpu/src/int8/unpack.rs` has a table of the types for the CPU. Its codes are unsigned;
// some codes here are signed, with another `m`.
// Codes are in the order of elements, four in a word, the first in the lowest byte.
#pragma once

#include "machine.cuh"
#include "tables.cuh"

// A weight as it is stored, and the selected rows: row r is the stored row
// `row_first + r / row_block · row_stride + r % row_block`.
struct Weight {
    const uint8_t *codes;
    // Separate scales and biases: numbers of `float_type`, or one-byte codes.
    const uint8_t *scales;
    const uint8_t *biases;
    uint64_t row_bytes;
    // Factor of the whole weight.
    float global;
    uint32_t rows;
    uint32_t row_first;
    uint32_t row_block;
    uint32_t row_stride;
    // Number of scales in a row.
    uint32_t scales_in_row;
    // Numbers of rows and columns that share a scale.
    uint32_t group_rows;
    uint32_t group_columns;
    uint32_t float_type;
    uint32_t unused;
};

DEVICE uint64_t stored_row(const Weight &weight, uint32_t row) {
    return weight.row_first + (uint64_t)(row / weight.row_block) * weight.row_stride + row % weight.row_block;
}

// 32 codes; `d` and `m` of the first and of the second 16.
struct Run {
    uint32_t q[8];
    float d[2];
    float m[2];
};

// Loads a word from an address aligned to 4, 2 or 1 bytes.
template <int ALIGNED> DEVICE uint32_t word(const uint8_t *bytes) {
    if (ALIGNED == 4) return *(const uint32_t *)bytes;
    if (ALIGNED == 2) return (uint32_t)((const uint16_t *)bytes)[0] | (uint32_t)((const uint16_t *)bytes)[1] << 16;
    return (uint32_t)bytes[0] | (uint32_t)bytes[1] << 8 | (uint32_t)bytes[2] << 16 | (uint32_t)bytes[3] << 24;
}

// Loads words from an address aligned to 16 bytes, with the widest loads. Adjacent threads have
// adjacent runs, and the number of loads determines how long a warp waits.
template <int COUNT> DEVICE void words_at_16(const void *bytes, uint32_t *out) {
    static_assert(COUNT % 4 == 0, "whole loads");
#pragma unroll
    for (int i = 0; i < COUNT; i += 4) load_16((const uint8_t *)bytes + 4 * i, out + i);
}

// Loads words from an address aligned to 8 bytes.
template <int COUNT> DEVICE void words_at_8(const void *bytes, uint32_t *out) {
    static_assert(COUNT % 2 == 0, "whole loads");
#pragma unroll
    for (int i = 0; i < COUNT; i += 2) load_8((const uint8_t *)bytes + 4 * i, out + i);
}

// Loads words from an address aligned to 2 bytes, as whole words that are shifted if necessary.
// Reads up to 2 bytes before and behind them, which exist because memory is a multiple of 16 bytes.
template <int COUNT> DEVICE void words_at_2(const uint8_t *bytes, uint32_t *out) {
    const uint32_t before = (uint32_t)((uintptr_t)bytes & 2u), selector = before == 0 ? 0x3210u : 0x5432u;
    const uint32_t *from = (const uint32_t *)(bytes - before);
    uint32_t next = from[0];
#pragma unroll
    for (int i = 0; i < COUNT; i++) {
        const uint32_t own = next;
        next = i + 1 < COUNT || before != 0 ? from[i + 1] : 0u;
        out[i] = permute(own, next, selector);
    }
}

DEVICE float half_at(const uint8_t *bytes) { return half_to_float(*(const uint16_t *)bytes); }

// Spreads the four lowest bits to the lowest bits of four bytes.
DEVICE uint32_t spread(uint32_t bits) { return (bits & 15u) * 0x00204081u & 0x01010101u; }

// Negates the bytes whose bit among the four lowest is set.
DEVICE uint32_t with_signs(uint32_t bytes, uint32_t signs) {
    uint32_t mask = spread(signs) * 255u;
    return subtract4(bytes ^ mask, mask);
}

// The steps of IQ4, four in a word.
struct Steps {
    static constexpr uint32_t WORDS[4] = {0xbfad9881u, 0xf6eaddcfu, 0x26190d01u, 0x71594535u};
};
// Doubled E2M1 numbers.
struct E2M1 {
    static constexpr uint32_t WORDS[4] = {0x03020100u, 0x0c080604u, 0xfdfeff00u, 0xf4f8fafcu};
};

// Looks up four nibbles, those of the lower half of a word, in a table of 16 bytes.
template <class Table> DEVICE uint32_t look_up(uint32_t nibbles) {
    uint32_t index = nibbles & 0x7777u;
    uint32_t low = permute(Table::WORDS[0], Table::WORDS[1], index);
    uint32_t high = permute(Table::WORDS[2], Table::WORDS[3], index);
    return permute(low, high, 0x3210u | (nibbles & 0x8888u) >> 1);
}

// Returns the low nibbles of four bytes, and the high ones.
DEVICE void halves(uint32_t packed, uint32_t &low, uint32_t &high) {
    low = packed & 0x0f0f0f0fu;
    high = packed >> 4 & 0x0f0f0f0fu;
}
template <class Table> DEVICE void halves_of(uint32_t packed, uint32_t &low, uint32_t &high) {
    uint32_t first = look_up<Table>(packed), second = look_up<Table>(packed >> 16);
    low = permute(first, second, 0x6420u);
    high = permute(first, second, 0x7531u);
}

// Returns the eight nibbles of a word in order.
DEVICE void pairs(uint32_t packed, uint32_t &first, uint32_t &second) {
    uint32_t low, high;
    halves(packed, low, high);
    first = permute(low, high, 0x5140u);
    second = permute(low, high, 0x7362u);
}

DEVICE void scaled(Run &run, float d, float m) {
    run.d[0] = run.d[1] = d;
    run.m[0] = run.m[1] = m;
}

// Returns half of 2^(x - 127). For ggml, 255 is not NaN.
DEVICE float half_of_e8m0(uint32_t x) { return bits_to_float(x < 2u ? 0x00200000u << x : (x - 1u) << 23); }

// Returns half of an E4M3 number without its sign; 0x7f is 0.
DEVICE float half_of_ue4m3(uint32_t x) {
    uint32_t magnitude = x & 0x7fu;
    if (x == 0x7fu) return 0.0f;
    return magnitude < 8u ? (float)magnitude * 0.0009765625f : bits_to_float((magnitude << 20) + ((127u - 8u) << 23));
}

// Returns a block of 32 elements in BYTES bytes.
template <int BYTES> DEVICE const uint8_t *block_of(const Weight &weight, uint64_t row, uint32_t run) {
    return weight.codes + row * weight.row_bytes + (uint64_t)run * BYTES;
}

struct Q4_0 {
    static constexpr bool HALVES = false;
    static METHOD void load(const Weight &weight, uint64_t row, uint32_t run, Run &out) {
        const uint8_t *block = block_of<18>(weight, row, run);
        uint32_t words[4];
        words_at_2<4>(block + 2, words);
#pragma unroll
        for (int i = 0; i < 4; i++) halves(words[i], out.q[i], out.q[i + 4]);
        float d = half_at(block);
        scaled(out, d, -8.0f * d);
    }
};

struct Q4_1 {
    static constexpr bool HALVES = false;
    static METHOD void load(const Weight &weight, uint64_t row, uint32_t run, Run &out) {
        const uint8_t *block = block_of<20>(weight, row, run);
#pragma unroll
        for (int i = 0; i < 4; i++) halves(word<4>(block + 4 + 4 * i), out.q[i], out.q[i + 4]);
        scaled(out, half_at(block), half_at(block + 2));
    }
};

// Unpacks a word of fifth bits and four words of nibbles.
DEVICE void five_bits(const uint32_t packed[5], Run &out) {
#pragma unroll
    for (int i = 0; i < 4; i++) {
        halves(packed[1 + i], out.q[i], out.q[i + 4]);
        out.q[i] |= spread(packed[0] >> (4 * i)) << 4;
        out.q[i + 4] |= spread(packed[0] >> (16 + 4 * i)) << 4;
    }
}

struct Q5_0 {
    static constexpr bool HALVES = false;
    static METHOD void load(const Weight &weight, uint64_t row, uint32_t run, Run &out) {
        const uint8_t *block = block_of<22>(weight, row, run);
        uint32_t words[5];
        words_at_2<5>(block + 2, words);
        five_bits(words, out);
        float d = half_at(block);
        scaled(out, d, -16.0f * d);
    }
};

struct Q5_1 {
    static constexpr bool HALVES = false;
    static METHOD void load(const Weight &weight, uint64_t row, uint32_t run, Run &out) {
        const uint8_t *block = block_of<24>(weight, row, run);
        // Loads a whole block at once.
        uint32_t words[6];
        words_at_8<6>(block, words);
        five_bits(words + 1, out);
        scaled(out, half_to_float((uint16_t)words[0]), half_to_float((uint16_t)(words[0] >> 16)));
    }
};

struct Q8_0 {
    static constexpr bool HALVES = false;
    static METHOD void load(const Weight &weight, uint64_t row, uint32_t run, Run &out) {
        const uint8_t *block = block_of<34>(weight, row, run);
        words_at_2<8>(block + 2, out.q);
        scaled(out, half_at(block), 0.0f);
    }
};

struct Iq4Nl {
    static constexpr bool HALVES = false;
    static METHOD void load(const Weight &weight, uint64_t row, uint32_t run, Run &out) {
        const uint8_t *block = block_of<18>(weight, row, run);
        uint32_t words[4];
        words_at_2<4>(block + 2, words);
#pragma unroll
        for (int i = 0; i < 4; i++) halves_of<Steps>(words[i], out.q[i], out.q[i + 4]);
        scaled(out, half_at(block), 0.0f);
    }
};

struct Mxfp4Blocks {
    static constexpr bool HALVES = false;
    static METHOD void load(const Weight &weight, uint64_t row, uint32_t run, Run &out) {
        const uint8_t *block = block_of<17>(weight, row, run);
#pragma unroll
        for (int i = 0; i < 4; i++) halves_of<E2M1>(word<1>(block + 1 + 4 * i), out.q[i], out.q[i + 4]);
        scaled(out, half_of_e8m0(block[0]), 0.0f);
    }
};

// Blocks of 64: four scales, each for 16 elements in 8 bytes.
struct Nvfp4Blocks {
    static constexpr bool HALVES = true;
    static METHOD void load(const Weight &weight, uint64_t row, uint32_t run, Run &out) {
        const uint8_t *block = block_of<36>(weight, row, run / 2);
        uint32_t half = run % 2;
#pragma unroll
        for (int part = 0; part < 2; part++) {
            const uint8_t *packed = block + 4 + 16 * half + 8 * part;
#pragma unroll
            for (int i = 0; i < 2; i++) halves_of<E2M1>(word<4>(packed + 4 * i), out.q[4 * part + i], out.q[4 * part + 2 + i]);
            out.d[part] = half_of_ue4m3(block[2 * half + part]);
            out.m[part] = 0.0f;
        }
    }
};

// Blocks of 256 are eight runs. Element l of run j in half n is bits 2j and 2j + 1 of byte 32n + l.
template <int ALIGNED> DEVICE void two_bits(const uint8_t *packed, uint32_t run, Run &out) {
    const uint8_t *from = packed + run / 4 * 32;
    if (ALIGNED == 2) words_at_2<8>(from, out.q);
#pragma unroll
    for (int i = 0; i < 8; i++) out.q[i] = (ALIGNED == 2 ? out.q[i] : word<4>(from + 4 * i)) >> (2 * (run % 4)) & 0x03030303u;
}

struct Q2K {
    static constexpr bool HALVES = true;
    static METHOD void load(const Weight &weight, uint64_t row, uint32_t index, Run &out) {
        const uint8_t *block = block_of<84>(weight, row, index / 8);
        uint32_t run = index % 8;
        two_bits<4>(block + 16, run, out);
        float d = half_at(block + 80), least = half_at(block + 82);
#pragma unroll
        for (int part = 0; part < 2; part++) {
            uint32_t scale = block[2 * run + part];
            out.d[part] = d * (float)(scale & 15u);
            out.m[part] = -least * (float)(scale >> 4);
        }
    }
};

struct Q3K {
    static constexpr bool HALVES = true;
    static METHOD void load(const Weight &weight, uint64_t row, uint32_t index, Run &out) {
        const uint8_t *block = block_of<110>(weight, row, index / 8);
        uint32_t run = index % 8;
        two_bits<2>(block + 32, run, out);
        uint32_t third[8];
        words_at_2<8>(block, third);
#pragma unroll
        for (int i = 0; i < 8; i++) out.q[i] |= (third[i] >> run & 0x01010101u) << 2;
        float d = half_at(block + 108);
#pragma unroll
        for (int part = 0; part < 2; part++) {
            uint32_t at = 2 * run + part, four = at / 4;
            uint32_t low = block[96 + 4 * (four % 2) + at % 4] >> (four / 2 * 4) & 15u;
            uint32_t high = block[104 + at % 4] >> (2 * four) & 3u;
            out.d[part] = d * ((float)(low | high << 4) - 32.0f);
            out.m[part] = -4.0f * out.d[part];
        }
    }
};

// The low nibbles of each 32 bytes are a run, the high ones the next run.
DEVICE void four_bits(const uint8_t *nibbles, uint32_t run, Run &out) {
    words_at_16<8>(nibbles + run / 2 * 32, out.q);
#pragma unroll
    for (int i = 0; i < 8; i++) out.q[i] = out.q[i] >> (4 * (run % 2)) & 0x0f0f0f0fu;
}

// Computes `d` and `m` from `d`, `dmin`, and eight scales and offsets of six bits.
DEVICE void six_bits(const uint8_t *block, uint32_t run, Run &out) {
    const uint8_t *packed = block + 4;
    uint32_t scale, offset;
    if (run < 4) {
        scale = packed[run] & 63u;
        offset = packed[run + 4] & 63u;
    } else {
        scale = (packed[run + 4] & 15u) | (uint32_t)(packed[run - 4] >> 6) << 4;
        offset = (uint32_t)(packed[run + 4] >> 4) | (uint32_t)(packed[run] >> 6) << 4;
    }
    scaled(out, half_at(block) * (float)scale, -half_at(block + 2) * (float)offset);
}

struct Q4K {
    static constexpr bool HALVES = false;
    static METHOD void load(const Weight &weight, uint64_t row, uint32_t index, Run &out) {
        const uint8_t *block = block_of<144>(weight, row, index / 8);
        four_bits(block + 16, index % 8, out);
        six_bits(block, index % 8, out);
    }
};

struct Q5K {
    static constexpr bool HALVES = false;
    static METHOD void load(const Weight &weight, uint64_t row, uint32_t index, Run &out) {
        const uint8_t *block = block_of<176>(weight, row, index / 8);
        uint32_t run = index % 8;
        four_bits(block + 48, run, out);
        uint32_t fifth[8];
        words_at_16<8>(block + 16, fifth);
#pragma unroll
        for (int i = 0; i < 8; i++) out.q[i] |= (fifth[i] >> run & 0x01010101u) << 4;
        six_bits(block, run, out);
    }
};

struct Q6K {
    static constexpr bool HALVES = true;
    static METHOD void load(const Weight &weight, uint64_t row, uint32_t index, Run &out) {
        const uint8_t *block = block_of<210>(weight, row, index / 8);
        uint32_t half = index % 8 / 4, run = index % 4;
        const uint8_t *low = block + 64 * half + 32 * (run % 2), *high = block + 128 + 32 * half;
        uint32_t twos[8];
        words_at_2<8>(low, out.q);
        words_at_2<8>(high, twos);
#pragma unroll
        for (int i = 0; i < 8; i++) {
            uint32_t four = out.q[i] >> (run / 2 * 4) & 0x0f0f0f0fu;
            out.q[i] = four | (twos[i] >> (2 * run) & 0x03030303u) << 4;
        }
        float d = half_at(block + 208);
#pragma unroll
        for (int part = 0; part < 2; part++) {
            out.d[part] = d * (float)(int8_t)block[192 + 2 * (index % 8) + part];
            out.m[part] = -32.0f * out.d[part];
        }
    }
};

struct Iq4Xs {
    static constexpr bool HALVES = false;
    static METHOD void load(const Weight &weight, uint64_t row, uint32_t index, Run &out) {
        const uint8_t *block = block_of<136>(weight, row, index / 8);
        uint32_t run = index % 8;
        uint32_t words[4];
        words_at_8<4>(block + 8 + 16 * run, words);
#pragma unroll
        for (int i = 0; i < 4; i++) halves_of<Steps>(words[i], out.q[i], out.q[i + 4]);
        uint32_t high = *(const uint16_t *)(block + 2);
        uint32_t scale = (uint32_t)(block[4 + run / 2] >> (run % 2 * 4) & 15) | (high >> (2 * run) & 3u) << 4;
        scaled(out, half_at(block) * ((float)scale - 32.0f), 0.0f);
    }
};

// The first 160 of 256 base-3 digits are five runs of 32 bytes, the next 80 are five runs of 16,
// and the rest are four runs of 4.
struct Tq1 {
    static constexpr bool HALVES = false;
    static METHOD void load(const Weight &weight, uint64_t row, uint32_t index, Run &out) {
        const uint8_t *block = block_of<54>(weight, row, index / 8);
        uint32_t run = index % 8;
#pragma unroll
        for (int i = 0; i < 8; i++) {
            uint32_t four = 0;
#pragma unroll
            for (int j = 0; j < 4; j++) {
                uint32_t element = 32 * run + 4 * i + j, digit, byte;
                if (element < 160) {
                    digit = element / 32, byte = block[element % 32];
                } else if (element < 240) {
                    digit = (element - 160) / 16, byte = block[32 + element % 16];
                } else {
                    digit = (element - 240) / 4, byte = block[48 + element % 4];
                }
                uint32_t power = digit == 0 ? 1u : digit == 1 ? 3u : digit == 2 ? 9u : digit == 3 ? 27u : 81u;
                four |= ((byte * power & 255u) * 3u >> 8) << (8 * j);
            }
            out.q[i] = four;
        }
        float d = half_at(block + 52);
        scaled(out, d, -d);
    }
};

struct Tq2 {
    static constexpr bool HALVES = false;
    static METHOD void load(const Weight &weight, uint64_t row, uint32_t index, Run &out) {
        const uint8_t *block = block_of<66>(weight, row, index / 8);
        two_bits<2>(block, index % 8, out);
        float d = half_at(block + 64);
        scaled(out, d, -d);
    }
};

// Grids: elements are coordinates of points. The tables have 8 or 4 coordinates for each point.
DEVICE void eight(const uint8_t *point, uint32_t signs, uint32_t *q) {
    q[0] = with_signs(word<4>(point), signs);
    q[1] = with_signs(word<4>(point + 4), signs >> 4);
}

// Returns the signs of eight elements from seven stored bits: the number of set signs is even.
DEVICE uint32_t seven_signs(uint32_t bits) {
    bits &= 127u;
    uint32_t odd = bits ^ bits >> 4;
    odd ^= odd >> 2;
    odd ^= odd >> 1;
    return bits | (odd & 1u) << 7;
}

DEVICE void scaled_by_sixteen(Run &out, float d, const uint8_t *nibbles, uint32_t run) {
#pragma unroll
    for (int part = 0; part < 2; part++) {
        out.d[part] = d * (0.5f + (float)(nibbles[run] >> (4 * part) & 15)) * 0.25f;
        out.m[part] = 0.0f;
    }
}

struct Iq2Xxs {
    static constexpr bool HALVES = false;
    static METHOD void load(const Weight &weight, uint64_t row, uint32_t index, Run &out) {
        const uint8_t *block = block_of<66>(weight, row, index / 8), *group = block + 2 + 8 * (index % 8);
        uint32_t signs = word<2>(group + 4);
#pragma unroll
        for (int i = 0; i < 4; i++) eight(TABLE_IQ2_XXS + 8 * group[i], seven_signs(signs >> (7 * i)), out.q + 2 * i);
        scaled(out, half_at(block) * (0.5f + (float)(signs >> 28)) * 0.25f, 0.0f);
    }
};

struct Iq2Xs {
    static constexpr bool HALVES = true;
    static METHOD void load(const Weight &weight, uint64_t row, uint32_t index, Run &out) {
        const uint8_t *block = block_of<74>(weight, row, index / 8);
        const uint16_t *codes = (const uint16_t *)(block + 2 + 8 * (index % 8));
#pragma unroll
        for (int i = 0; i < 4; i++) eight(TABLE_IQ2_XS + 8 * (codes[i] & 511), seven_signs(codes[i] >> 9), out.q + 2 * i);
        scaled_by_sixteen(out, half_at(block), block + 66, index % 8);
    }
};

struct Iq2S {
    static constexpr bool HALVES = true;
    static METHOD void load(const Weight &weight, uint64_t row, uint32_t index, Run &out) {
        const uint8_t *block = block_of<82>(weight, row, index / 8);
        uint32_t run = index % 8, high = block[66 + run];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            uint32_t point = block[2 + 4 * run + i] | (high >> (2 * i) & 3u) << 8;
            eight(TABLE_IQ2_S + 8 * point, block[34 + 4 * run + i], out.q + 2 * i);
        }
        scaled_by_sixteen(out, half_at(block), block + 74, run);
    }
};

struct Iq3Xxs {
    static constexpr bool HALVES = false;
    static METHOD void load(const Weight &weight, uint64_t row, uint32_t index, Run &out) {
        const uint8_t *block = block_of<98>(weight, row, index / 8);
        uint32_t run = index % 8, signs = word<2>(block + 66 + 4 * run);
#pragma unroll
        for (int i = 0; i < 8; i++) {
            uint32_t own = seven_signs(signs >> (7 * (i / 2))) >> (4 * (i % 2));
            out.q[i] = with_signs(word<4>(TABLE_IQ3_XXS + 4 * block[2 + 8 * run + i]), own);
        }
        scaled(out, half_at(block) * (0.5f + (float)(signs >> 28)) * 0.5f, 0.0f);
    }
};

struct Iq3S {
    static constexpr bool HALVES = false;
    static METHOD void load(const Weight &weight, uint64_t row, uint32_t index, Run &out) {
        const uint8_t *block = block_of<110>(weight, row, index / 8);
        uint32_t run = index % 8, high = block[66 + run];
#pragma unroll
        for (int i = 0; i < 8; i++) {
            uint32_t point = block[2 + 8 * run + i] | (high >> i & 1u) << 8;
            out.q[i] = with_signs(word<4>(TABLE_IQ3_S + 4 * point), block[74 + 4 * run + i / 2] >> (4 * (i % 2)));
        }
        uint32_t scale = block[106 + run / 2] >> (4 * (run % 2)) & 15;
        scaled(out, half_at(block) * (1.0f + 2.0f * (float)scale), 0.0f);
    }
};

// Codes are coordinates plus 1; the offset includes a shift by an eighth.
struct Iq1S {
    static constexpr bool HALVES = false;
    static METHOD void load(const Weight &weight, uint64_t row, uint32_t index, Run &out) {
        const uint8_t *block = block_of<50>(weight, row, index / 8);
        uint32_t run = index % 8, high = *(const uint16_t *)(block + 34 + 2 * run);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const uint8_t *point = TABLE_IQ1_S + 8 * (block[2 + 4 * run + i] | (high >> (3 * i) & 7u) << 8);
            out.q[2 * i] = word<4>(point);
            out.q[2 * i + 1] = word<4>(point + 4);
        }
        float d = half_at(block) * (float)(2u * (high >> 12 & 7u) + 1u);
        scaled(out, d, d * (high & 0x8000u ? -1.125f : -0.875f));
    }
};

// Codes are eighths of coordinates plus 1, plus 2 if shifted up.
struct Iq1M {
    static constexpr bool HALVES = true;
    static METHOD void load(const Weight &weight, uint64_t row, uint32_t index, Run &out) {
        const uint8_t *block = block_of<56>(weight, row, index / 8);
        uint32_t run = index % 8, high = *(const uint16_t *)(block + 32 + 2 * run);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const uint8_t *point = TABLE_IQ1_S + 8 * (block[4 * run + i] | (high >> (4 * i) & 7u) << 8);
            uint32_t up = high >> (4 * i + 3) & 1u ? 0u : 0x02020202u;
            out.q[2 * i] = word<4>(point) << 3 | up;
            out.q[2 * i + 1] = word<4>(point + 4) << 3 | up;
        }
        const uint16_t *words = (const uint16_t *)(block + 48);
        uint32_t bits = words[0] >> 12 | (words[1] >> 12) << 4 | (words[2] >> 12) << 8 | (words[3] >> 12) << 12;
        float d = half_to_float((uint16_t)bits) * 0.125f;
#pragma unroll
        for (int part = 0; part < 2; part++) {
            uint32_t at = 2 * run + part;
            out.d[part] = d * (float)(2u * (words[at / 4] >> (at % 4 * 3) & 7u) + 1u);
            out.m[part] = -9.0f * out.d[part];
        }
    }
};

// MLX's unsigned codes, a stream of bits. Arrays of their own have the scale of each group, and the
// value of code 0.
template <int BITS> struct Affine {
    static constexpr bool HALVES = false;
    static METHOD void load(const Weight &weight, uint64_t row, uint32_t run, Run &out) {
        const uint32_t *packed = (const uint32_t *)(weight.codes + row * weight.row_bytes) + (uint64_t)run * BITS;
        // Rows are whole runs.
        uint32_t words[BITS];
        if (BITS % 4 == 0) words_at_16<BITS / 4 * 4>(packed, words);
        else if (BITS % 2 == 0) words_at_8<BITS / 2 * 2>(packed, words);
#pragma unroll
        for (int i = 0; i < BITS && BITS % 2 == 1; i++) words[i] = packed[i];
#pragma unroll
        for (int i = 0; i < 8; i++) {
            if (BITS == 4) {
                if (i % 2 == 0) pairs(words[i / 2 % BITS], out.q[i], out.q[(i + 1) % 8]);
            } else if (BITS == 8) {
                out.q[i] = words[i % BITS] ^ 0x80808080u;
            } else {
                // The bits of four codes, which may span two words.
                const int first = 4 * BITS * i, at = first / 32, shift = first % 32;
                uint64_t both = words[at % BITS];
                if (shift + 4 * BITS > 32) both |= (uint64_t)words[(at + 1) % BITS] << 32;
                uint32_t four = (uint32_t)(both >> shift), codes = 0;
#pragma unroll
                for (int j = 0; j < 4; j++) codes |= (four >> (BITS * j) & ((1u << BITS) - 1u)) << (8 * j);
                out.q[i] = codes;
            }
        }
        uint64_t at = row * weight.scales_in_row + run * 32u / weight.group_columns;
        float d = number_at(weight.scales, weight.float_type, at), m = number_at(weight.biases, weight.float_type, at);
        // Codes of 8 bits are stored less 128.
        scaled(out, d, BITS == 8 ? m + 128.0f * d : m);
    }
};

// E2M1 numbers with a power-of-two scale for each 32.
struct Mxfp4 {
    static constexpr bool HALVES = false;
    static METHOD void load(const Weight &weight, uint64_t row, uint32_t run, Run &out) {
        uint32_t packed[4];
        words_at_16<4>(weight.codes + row * weight.row_bytes + (uint64_t)run * 16, packed);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            uint32_t eight = packed[i];
            out.q[2 * i] = look_up<E2M1>(eight);
            out.q[2 * i + 1] = look_up<E2M1>(eight >> 16);
        }
        scaled(out, 0.5f * (e8m0_to_float(weight.scales[row * weight.scales_in_row + run]) * weight.global), 0.0f);
    }
};

// E2M1 numbers with an E4M3 scale for each 16.
struct Nvfp4 {
    static constexpr bool HALVES = true;
    static METHOD void load(const Weight &weight, uint64_t row, uint32_t run, Run &out) {
        uint32_t packed[4];
        words_at_16<4>(weight.codes + row * weight.row_bytes + (uint64_t)run * 16, packed);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            uint32_t eight = packed[i];
            out.q[2 * i] = look_up<E2M1>(eight);
            out.q[2 * i + 1] = look_up<E2M1>(eight >> 16);
        }
#pragma unroll
        for (int part = 0; part < 2; part++) {
            uint32_t scale = weight.scales[row * weight.scales_in_row + 2 * run + part];
            out.d[part] = 0.5f * (e4m3_to_float(scale) * weight.global);
            out.m[part] = 0.0f;
        }
    }
};

// Types that are multiplied as floats: eight elements at a time, from a column that is a multiple
// of 8.
enum PlainType : uint32_t { PLAIN_F32 = 0, PLAIN_F16 = 1, PLAIN_BF16 = 2, PLAIN_E4M3 = 3 };

// The elements from `column` on.
template <uint32_t TYPE> struct Eight {
    static constexpr int BYTES = TYPE == PLAIN_F32 ? 4 : TYPE == PLAIN_E4M3 ? 1 : 2;
    float x[8];
    // Loads numbers without their scale, with zeros behind the end of the row. WHOLE, a multiple of
    // eight columns, is decided at the start of the kernel, so that loads of several rows can
    // overlap.
    template <bool WHOLE> METHOD void load(const Weight &weight, uint64_t row, uint32_t column, uint32_t columns) {
        const uint8_t *from = weight.codes + row * weight.row_bytes + (uint64_t)column * BYTES;
        if (!WHOLE) {
#pragma unroll
            for (int i = 0; i < 8; i++) x[i] = column + i < columns ? one(from + i * BYTES) : 0.0f;
            return;
        }
        uint32_t words[2 * BYTES];
        if (BYTES == 1) load_8(from, words);
        else load_16(from, words);
        if (BYTES == 4) load_16(from + 16, words + 4 % (2 * BYTES));
#pragma unroll
        for (int i = 0; i < 8; i++) {
            if (TYPE == PLAIN_F32) x[i] = bits_to_float(words[i % (2 * BYTES)]);
            if (TYPE == PLAIN_F16) x[i] = half_to_float((uint16_t)(words[i / 2 % (2 * BYTES)] >> (16 * (i % 2))));
            if (TYPE == PLAIN_BF16) x[i] = bf16_to_float((uint16_t)(words[i / 2 % (2 * BYTES)] >> (16 * (i % 2))));
            if (TYPE == PLAIN_E4M3) x[i] = e4m3_to_float(words[i / 4 % (2 * BYTES)] >> (8 * (i % 4)) & 255u);
        }
    }
    static METHOD float one(const uint8_t *from) {
        if (TYPE == PLAIN_F32) return *(const float *)from;
        if (TYPE == PLAIN_F16) return half_at(from);
        if (TYPE == PLAIN_BF16) return bf16_to_float(*(const uint16_t *)from);
        return e4m3_to_float(*from);
    }
};

// Returns the scale of an E4M3 element: a power of two for each group of a row, or a number for
// each block of the matrix.
DEVICE float scale_at(const Weight &weight, uint64_t row, uint32_t column) {
    if (weight.scales == nullptr) return 1.0f;
    uint64_t at = row / weight.group_rows * weight.scales_in_row + column / weight.group_columns;
    if (weight.float_type == POWERS) return e8m0_to_float(weight.scales[at]);
    return number_at(weight.scales, weight.float_type, at);
}
