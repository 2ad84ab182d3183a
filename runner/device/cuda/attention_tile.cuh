// Softmax attention of many queries at a time with tensor cores, for prompts.
//
// A thread block has a key head and up to TILE_QUERIES of the queries that share it, 16 for each
// warp. Positions are loaded into shared memory in tiles of TILE_KEYS. Queries, keys, values and
// weights are rounded to TF32; sums and the softmax are float32.
//
// Formula: FlashAttention-2 (Dao, 2023). `machine.cuh` describes the fragments of lanes.
#pragma once

#include "attention.cuh"

static constexpr uint32_t TILE_QUERIES = 64;
static constexpr uint32_t TILE_KEYS = 32;

// Loads rows of keys or values as TF32, padded with zeros. Padding words after each row avoid bank
// conflicts of lanes that read a column.
template <uint32_t TYPE, uint32_t DIM, class Row> DEVICE void load_rows(uint32_t *tile, uint32_t count, uint32_t width, Row row) {
    for (uint32_t at = thread(); at < TILE_KEYS * DIM / 8; at += ATTEND_THREADS) {
        uint32_t own = at / (DIM / 8), d = at % (DIM / 8) * 8;
        float x[8] = {};
        if (own < count && d < width) cached_8<TYPE>(row(own), d, x);
        uint32_t *to = tile + own * (DIM + 4) + d, rounded[8];
#pragma unroll
        for (uint32_t i = 0; i < 8; i++) rounded[i] = float_to_tf32(x[i]);
        store_16(to, rounded);
        store_16(to + 4, rounded + 4);
    }
}

// A row of queries, of which a lane has a part.
struct QueryRow {
    // Null if there is no such row.
    const float *query;
    float *out;
    uint32_t from;
    uint32_t to;
    float largest;
    // Sum over the positions of this lane.
    float sum;
};

// Loads the operand of 16 queries for eight of their elements.
DEVICE void load_queries(const AttendArguments &arguments, const QueryRow rows[2], uint32_t d, uint32_t a[4]) {
    const uint32_t t = lane() % 4;
#pragma unroll
    for (uint32_t i = 0; i < 4; i++) {
        const float *query = rows[i % 2].query;
        uint32_t at = d + i / 2 * 4 + t;
        a[i] = query != nullptr && at < arguments.cache.key_dim ? float_to_tf32(query[at] * arguments.scale) : 0;
    }
}

// Converts scores to weights, and computes the factors of previous results.
DEVICE void weigh(const AttendArguments &arguments, QueryRow rows[2], uint32_t tile, float scores[TILE_KEYS / 8][4], float factors[2]) {
    const uint32_t t = lane() % 4;
    float most[2] = {rows[0].largest, rows[1].largest};
#pragma unroll
    for (uint32_t n = 0; n < TILE_KEYS / 8; n++) {
#pragma unroll
        for (uint32_t i = 0; i < 4; i++) {
            const QueryRow &row = rows[i / 2];
            const uint32_t position = tile + 8 * n + 2 * t + i % 2;
            float s = scores[n][i];
            if (arguments.soft_cap > 0.0f) s = arguments.soft_cap * tanhf(s / arguments.soft_cap);
            scores[n][i] = position >= row.from && position < row.to ? s : -INFINITY;
            most[i / 2] = fmaxf(most[i / 2], scores[n][i]);
        }
    }
#pragma unroll
    for (uint32_t i = 0; i < 2; i++) {
        most[i] = largest_of_four(most[i]);
        // A maximum of minus infinity means that no position has been visible yet.
        factors[i] = most[i] == -INFINITY ? 1.0f : expf(rows[i].largest - most[i]);
        rows[i].largest = most[i];
        rows[i].sum *= factors[i];
    }
#pragma unroll
    for (uint32_t n = 0; n < TILE_KEYS / 8; n++) {
#pragma unroll
        for (uint32_t i = 0; i < 4; i++) {
            float weight = most[i / 2] == -INFINITY ? 0.0f : expf(scores[n][i] - most[i / 2]);
            rows[i / 2].sum += weight;
            scores[n][i] = weight;
        }
    }
}

// `DIM`: greatest number of elements of keys and of values. Both are multiples of eight.
template <uint32_t TYPE, uint32_t DIM> DEVICE void attend_tile(const AttendArguments &arguments) {
    constexpr uint32_t STRIDE = DIM + 4;
    // Narrow heads: keys and values have separate buffers, and queries stay in registers.
    constexpr bool IS_SMALL = DIM <= 128;
    alignas(16) SHARED uint32_t memory[(IS_SMALL ? 2 : 1) * TILE_KEYS * STRIDE];
    uint32_t *const keys = memory, *const values = memory + (IS_SMALL ? TILE_KEYS * STRIDE : 0);
    const Cache cache = arguments.cache;
    const uint32_t group = arguments.heads / cache.kv_heads, width = arguments.value_width, head = block_z();
    const uint32_t g = lane() / 4, t = lane() % 4;
    const Queries own = arguments.items[block_x()];
    const Span span = arguments.spans[own.sequence];
    const uint32_t count = min(TILE_QUERIES, span.tokens * group - own.first);
    uint8_t *const *blocks = arguments.blocks + span.block;

    QueryRow rows[2];
#pragma unroll
    for (uint32_t i = 0; i < 2; i++) {
        const uint32_t at = warp() * 16 + g + 8 * i, row = own.first + min(at, count - 1);
        const uint64_t place = (uint64_t)(span.first + row / group) * arguments.heads + head * group + row % group;
        const bool has_sink = arguments.sinks != nullptr;
        rows[i].query = at < count ? arguments.queries + place * cache.key_dim : nullptr;
        rows[i].out = arguments.out + place * width;
        seen(arguments, span, row / group, rows[i].from, rows[i].to);
        if (at >= count) rows[i].to = 0;
        // A sink takes its share of the softmax and has no value; one of the four lanes of a row
        // counts it.
        rows[i].largest = has_sink ? arguments.sinks[head * group + row % group] : -INFINITY;
        rows[i].sum = has_sink && t == 0 ? 1.0f : 0.0f;
    }
    // Positions that any of the block's queries sees.
    uint32_t from, to, last_from, last_to;
    seen(arguments, span, own.first / group, from, to);
    seen(arguments, span, (own.first + count - 1) / group, last_from, last_to);
    from = max(from, span.start);
    to = max(to, last_to);
    // Aligned, so that a tile is within one cache block.
    from -= (from - span.start) % TILE_KEYS;

    uint32_t queries[IS_SMALL ? DIM / 8 : 1][4];
    if (IS_SMALL) {
#pragma unroll
        for (uint32_t k = 0; k < DIM / 8; k++) load_queries(arguments, rows, 8 * k, queries[IS_SMALL ? k : 0]);
    }
    float mixed[DIM / 8][4] = {};
    for (uint32_t tile = from; tile < to; tile += TILE_KEYS) {
        const uint32_t first = (tile - span.start) % POSITIONS, in_tile = min(TILE_KEYS, to - tile);
        uint8_t *const block = blocks[(tile - span.start) / POSITIONS];
        auto key = [&](uint32_t at) { return key_row<TYPE>(cache, block, head, first + at); };
        auto value = [&](uint32_t at) { return value_row<TYPE>(cache, block, head, first + at); };
        load_rows<TYPE, DIM>(keys, in_tile, cache.key_dim, key);
        if (IS_SMALL) load_rows<TYPE, DIM>(values, in_tile, width, value);
        barrier();
        float scores[TILE_KEYS / 8][4] = {};
#pragma unroll
        for (uint32_t k = 0; k < DIM / 8; k++) {
            if (8 * k >= cache.key_dim) break;
            uint32_t a[4];
            if (!IS_SMALL) load_queries(arguments, rows, 8 * k, a);
#pragma unroll
            for (uint32_t n = 0; n < TILE_KEYS / 8; n++) {
                const uint32_t *from_key = keys + (8 * n + g) * STRIDE + 8 * k + t;
                uint32_t b[2] = {from_key[0], from_key[4]};
                multiply_tf32(scores[n], IS_SMALL ? queries[IS_SMALL ? k : 0] : a, b);
            }
        }
        float factors[2];
        weigh(arguments, rows, tile, scores, factors);
        if (!IS_SMALL) {
            barrier();
            load_rows<TYPE, DIM>(values, in_tile, width, value);
            barrier();
        }
        // Weights are used as operands without moving them. Of eight positions, a lane has 2t and
        // 2t + 1 instead of t and t + 4, so the values are loaded in the same order.
        uint32_t weights[TILE_KEYS / 8][4];
#pragma unroll
        for (uint32_t n = 0; n < TILE_KEYS / 8; n++) {
            weights[n][0] = float_to_tf32(scores[n][0]);
            weights[n][1] = float_to_tf32(scores[n][2]);
            weights[n][2] = float_to_tf32(scores[n][1]);
            weights[n][3] = float_to_tf32(scores[n][3]);
        }
#pragma unroll
        for (uint32_t d = 0; d < DIM / 8; d++) {
            if (8 * d >= width) break;
#pragma unroll
            for (uint32_t i = 0; i < 4; i++) mixed[d][i] *= factors[i / 2];
#pragma unroll
            for (uint32_t n = 0; n < TILE_KEYS / 8; n++) {
                const uint32_t *from_value = values + (8 * n + 2 * t) * STRIDE + 8 * d + g;
                uint32_t b[2] = {from_value[0], from_value[STRIDE]};
                multiply_tf32(mixed[d], weights[n], b);
            }
        }
        barrier();
    }
#pragma unroll
    for (uint32_t i = 0; i < 2; i++) {
        const float sum = sum_of_four(rows[i].sum);
        if (rows[i].query == nullptr) continue;
#pragma unroll
        for (uint32_t d = 0; d < DIM / 8; d++) {
            if (8 * d >= width) break;
            rows[i].out[8 * d + 2 * t] = mixed[d][2 * i] / sum;
            rows[i].out[8 * d + 2 * t + 1] = mixed[d][2 * i + 1] / sum;
        }
    }
    if (arguments.codes != nullptr) round_mixed(arguments, span, head, own.first, count);
}
