// Rows of keys and values as stored in a cache: float32, float16, BF16, or blocks of 32 signed
// bytes with a float16 scale.
//
// A cache block has room for POSITIONS positions. The keys come first, head after head, with a row
// for each position. The values follow in the same layout, unless they are the first elements of
// keys.
#pragma once

#include "products.cuh"

static constexpr uint32_t POSITIONS = 256;

// Returns the size of a row in bytes.
template <uint32_t TYPE> DEVICE uint32_t cache_row(uint32_t width) {
    if (TYPE == FLOAT32) return width * 4;
    if (TYPE == BLOCKS_Q8_0) return (width + 31) / 32 * 34;
    return width * 2;
}

template <uint32_t TYPE> DEVICE float cached(const uint8_t *row, uint32_t at) {
    if (TYPE == FLOAT32) return ((const float *)row)[at];
    if (TYPE == FLOAT16) return half_to_float(((const uint16_t *)row)[at]);
    if (TYPE == BFLOAT16) return bf16_to_float(((const uint16_t *)row)[at]);
    const uint8_t *block = row + at / 32 * 34;
    return half_at(block) * (float)(int8_t)block[2 + at % 32];
}

// Loads eight elements from index `at` on, a multiple of 8, of a row.
template <uint32_t TYPE> DEVICE void cached_8(const uint8_t *row, uint32_t at, float x[8]) {
    uint32_t words[8];
    if (TYPE == FLOAT32) {
        load_16(row + 4 * at, words);
        load_16(row + 4 * at + 16, words + 4);
    } else if (TYPE != BLOCKS_Q8_0) {
        load_16(row + 2 * at, words);
    } else {
        const uint8_t *block = row + at / 32 * 34;
        words[0] = word<2>(block + 2 + at % 32);
        words[1] = word<2>(block + 6 + at % 32);
        words[2] = float_to_bits(half_at(block));
    }
#pragma unroll
    for (int i = 0; i < 8; i++) {
        if (TYPE == FLOAT32) x[i] = bits_to_float(words[i]);
        if (TYPE == FLOAT16) x[i] = half_to_float((uint16_t)(words[i / 2] >> (16 * (i % 2))));
        if (TYPE == BFLOAT16) x[i] = bf16_to_float((uint16_t)(words[i / 2] >> (16 * (i % 2))));
        if (TYPE == BLOCKS_Q8_0) x[i] = bits_to_float(words[2]) * (float)(int8_t)(words[i / 4] >> (8 * (i % 4)));
    }
}

// Shape of the cache of a layer.
struct Cache {
    uint32_t kv_heads;
    uint32_t key_dim;
    // Number of elements of value rows; 0 if values are the first elements of keys.
    uint32_t value_dim;
    uint32_t unused;
};

template <uint32_t TYPE> DEVICE uint8_t *key_row(const Cache &cache, uint8_t *block, uint32_t head, uint32_t row) {
    return block + (uint64_t)(head * POSITIONS + row) * cache_row<TYPE>(cache.key_dim);
}
template <uint32_t TYPE> DEVICE uint8_t *value_row(const Cache &cache, uint8_t *block, uint32_t head, uint32_t row) {
    if (cache.value_dim == 0) return key_row<TYPE>(cache, block, head, row);
    uint64_t keys = (uint64_t)cache.kv_heads * POSITIONS * cache_row<TYPE>(cache.key_dim);
    return block + keys + (uint64_t)(head * POSITIONS + row) * cache_row<TYPE>(cache.value_dim);
}

// Tokens of a sequence in a pass.
struct Span {
    // Index of the first token in the pass, and number of tokens.
    uint32_t first;
    uint32_t tokens;
    // Position of the first token in its sequence, and of the first row of the first block.
    uint32_t position;
    uint32_t start;
    // Index of the sequence's first block among the blocks of all sequences.
    uint32_t block;
    uint32_t unused;
};

// Heads of queries, keys or values before attention: `[tokens, heads · width]`.
struct Heads {
    const float *x;
    // Norm weights of heads: `[weight_rows, width]`, heads alternate among them; or null.
    const float *norm;
    // Rotary embedding of a part of each head, `[tokens, half]`; or null.
    const float *cosines;
    const float *sines;
    float epsilon;
    uint32_t count;
    uint32_t width;
    uint32_t weight_rows;
    uint32_t rotary_first;
    uint32_t half;
    // Whether the two elements of a pair are adjacent.
    uint32_t is_interleaved;
    uint32_t unused;
};

struct KeepArguments {
    // Queries, keys, values. There may be no values.
    Heads heads[3];
    Cache cache;
    const Span *spans;
    uint8_t *const *blocks;
    // Queries after norm and rotary embedding, `[tokens, heads · width]`.
    float *queries;
    uint32_t tokens;
    uint32_t unused;
};

// Returns an element of a head after its norm.
DEVICE float normed_element(const Heads &heads, const float *x, const float *weight, float factor, uint32_t at) {
    return heads.norm == nullptr ? x[at] : x[at] * factor * weight[at];
}

// Returns an element of a head after its norm and RoPE.
DEVICE float turned_element(const Heads &heads, const float *x, const float *weight, float factor, uint64_t token, uint32_t at) {
    float own = normed_element(heads, x, weight, factor, at);
    uint32_t in_part = at - heads.rotary_first;
    if (heads.cosines == nullptr || at < heads.rotary_first || in_part >= 2 * heads.half) return own;
    uint32_t pair = heads.is_interleaved ? in_part / 2 : in_part % heads.half;
    bool is_second = heads.is_interleaved ? in_part % 2 == 1 : in_part >= heads.half;
    uint32_t distance = heads.is_interleaved ? 1 : heads.half;
    float other = normed_element(heads, x, weight, factor, is_second ? at - distance : at + distance);
    float cosine = heads.cosines[token * heads.half + pair], sine = heads.sines[token * heads.half + pair];
    return is_second ? own * cosine + other * sine : own * cosine - other * sine;
}

// Writes 32 elements of a row, one from each lane.
template <uint32_t TYPE> DEVICE void keep_run(uint8_t *row, uint32_t first, uint32_t width, float x) {
    uint32_t at = first + lane();
    if (TYPE == BLOCKS_Q8_0) {
        uint8_t *block = row + first / 32 * 34;
        float d = largest_of_warp(at < width ? fabsf(x) : 0.0f) / 127.0f, inverse = d > 0.0f ? 1.0f / d : 0.0f;
        // NaN is stored in the scale.
        float check = sum_of_warp(at < width ? x : 0.0f);
        if (lane() == 0) *(uint16_t *)block = float_to_half(check != check ? check : d);
        block[2 + lane()] = at < width ? (uint8_t)(int8_t)round_to_even(x * inverse) : 0;
        return;
    }
    if (at >= width) return;
    if (TYPE == FLOAT32) ((float *)row)[at] = x;
    if (TYPE == FLOAT16) ((uint16_t *)row)[at] = float_to_half(x);
    if (TYPE == BFLOAT16) ((uint16_t *)row)[at] = float_to_bf16(x);
}

// Applies norm and RoPE to heads, and stores keys and values in their sequences. A warp has a head
// of a token.
template <uint32_t TYPE> DEVICE void keep(const KeepArguments &arguments) {
    const Heads *all = arguments.heads;
    const uint32_t heads = all[0].count + all[1].count + all[2].count;
    const uint32_t own = block_x() * (threads() / LANES) + warp();
    if (own >= heads * arguments.tokens) return;
    const uint64_t token = own / heads;
    uint32_t head = own % heads, kind = 0;
    while (head >= all[kind].count) head -= all[kind++].count;
    const Heads &of = all[kind];
    const float *x = of.x + (token * of.count + head) * of.width;
    const float *weight = of.norm == nullptr ? nullptr : of.norm + (uint64_t)(head % of.weight_rows) * of.width;
    float factor = 1.0f;
    if (of.norm != nullptr) {
        float squares = 0.0f;
        for (uint32_t at = lane(); at < of.width; at += LANES) squares += x[at] * x[at];
        factor = 1.0f / sqrtf(sum_of_warp(squares) / (float)of.width + of.epsilon);
    }
    uint8_t *row = nullptr;
    if (kind > 0) {
        uint32_t sequence = 0;
        while (token >= arguments.spans[sequence].first + arguments.spans[sequence].tokens) sequence++;
        const Span span = arguments.spans[sequence];
        uint32_t at = span.position + (uint32_t)token - span.first - span.start;
        uint8_t *block = arguments.blocks[span.block + at / POSITIONS];
        row = kind == 1 ? key_row<TYPE>(arguments.cache, block, head, at % POSITIONS)
                        : value_row<TYPE>(arguments.cache, block, head, at % POSITIONS);
    }
    for (uint32_t first = 0; first < of.width; first += LANES) {
        uint32_t at = first + lane();
        float y = at < of.width ? turned_element(of, x, weight, factor, token, at) : 0.0f;
        if (kind > 0) {
            keep_run<TYPE>(row, first, of.width, y);
        } else if (at < of.width) {
            arguments.queries[(token * of.count + head) * of.width + at] = y;
        }
    }
}
