// Softmax attention of the tokens of a pass to the cached positions of their sequences.
//
// A thread block has a key head, up to ROWS of the queries that share it (heads of a token, then of
// the next token), and a share of the positions, in tiles of TILE_POSITIONS. A thread scores a
// position for all queries; a warp converts a query's scores to weights; a thread mixes some
// elements of values. The last block to finish combines the shares.
//
// Formula: the online softmax of Milakov and Gimelshein, 2018.
#pragma once

#include "cache.cuh"

static constexpr uint32_t ATTEND_THREADS = 128;
static constexpr uint32_t TILE_POSITIONS = ATTEND_THREADS;
// Greatest number of value elements of a thread: for values of up to 640.
static constexpr uint32_t MOST_ELEMENTS = 5;

// Number of positions whose values are loaded at once.
static constexpr uint32_t AT_A_TIME = 16;

// Some queries of a sequence.
struct Queries {
    uint32_t sequence;
    // First row of the `tokens · heads of a key head` rows.
    uint32_t first;
};

struct AttendArguments {
    Cache cache;
    const Span *spans;
    uint8_t *const *blocks;
    const Queries *items;
    const float *queries;
    // `[heads]`, or null.
    const float *sinks;
    // `[tokens, heads · value width]`.
    float *out;
    // The output rounded for the next product, see `ProductArguments`; or null. Values are then
    // whole runs.
    int8_t *codes;
    float *factors;
    // For each item, key head and share: its rows, and the largest score and sum of each row. And
    // the number of shares that are done; 0 before and after.
    float *shares;
    uint32_t *done;
    float scale;
    float soft_cap;
    uint32_t heads;
    // Number of value elements that are mixed.
    uint32_t value_width;
    // 0 without a window.
    uint32_t window;
    // 0 without chunks.
    uint32_t chunk;
    uint32_t is_causal;
};

// Computes the range of positions that a token sees.
DEVICE void seen(const AttendArguments &arguments, const Span &span, uint32_t token, uint32_t &from, uint32_t &to) {
    uint32_t own = span.position + token, end = span.position + span.tokens, window = arguments.window;
    from = window != 0 && own + 1 > window ? own + 1 - window : 0;
    if (arguments.chunk != 0) from = max(from, own - own % arguments.chunk);
    to = arguments.is_causal ? own + 1 : window != 0 ? min(end, own + window) : end;
}

// Rounds the rows that the block has written.
DEVICE void round_mixed(const AttendArguments &arguments, const Span &span, uint32_t head, uint32_t first, uint32_t rows) {
    const uint32_t group = arguments.heads / arguments.cache.kv_heads, width = arguments.value_width, runs = width / 32;
    fence();
    barrier();
    for (uint32_t at = warp(); at < rows * runs; at += threads() / LANES) {
        uint32_t row = first + at / runs, token = span.first + row / group, of = head * group + row % group;
        uint64_t place = ((uint64_t)token * arguments.heads + of) * width + at % runs * 32;
        round_run(arguments.out[place + lane()], arguments.codes + place + lane(), arguments.factors + place / 32 * 4);
    }
}

template <uint32_t TYPE, uint32_t ROWS> DEVICE void attend(const AttendArguments &arguments) {
    const Cache cache = arguments.cache;
    const uint32_t key_dim = cache.key_dim, group = arguments.heads / cache.kv_heads, width = arguments.value_width;
    const uint32_t item = block_x(), head = block_z(), share = block_y(), shares = blocks_y();
    const Queries own = arguments.items[item];
    const Span span = arguments.spans[own.sequence];
    const uint32_t rows = min(ROWS, span.tokens * group - own.first);
    uint8_t *const *blocks = arguments.blocks + span.block;

    float *queries = (float *)shared_memory();
    alignas(16) SHARED float scores[ROWS][TILE_POSITIONS];
    SHARED float largest[ROWS], sums[ROWS], factors[ROWS];
    SHARED uint32_t is_last;

    // Positions that any of the rows sees, and this block's share of them.
    uint32_t from, to, last_from, last_to;
    seen(arguments, span, own.first / group, from, to);
    seen(arguments, span, (own.first + rows - 1) / group, last_from, last_to);
    from = max(from, span.start);
    to = max(to, last_to);
    // Aligned, so that a tile is within one cache block; positions that no row sees have no weight.
    from -= (from - span.start) % TILE_POSITIONS;
    const uint32_t tiles = (to - from + TILE_POSITIONS - 1) / TILE_POSITIONS, each = (tiles + shares - 1) / shares;
    const uint32_t first = from + share * each * TILE_POSITIONS, last = min(to, first + each * TILE_POSITIONS);

    for (uint32_t at = thread(); at < rows * key_dim; at += ATTEND_THREADS) {
        uint32_t row = own.first + at / key_dim, token = span.first + row / group, of = head * group + row % group;
        queries[at] = arguments.queries[((uint64_t)token * arguments.heads + of) * key_dim + at % key_dim] * arguments.scale;
    }
    if (thread() < ROWS) {
        // A sink takes its share of the softmax and has no value.
        bool has_sink = arguments.sinks != nullptr && share == 0 && thread() < rows;
        largest[thread()] = has_sink ? arguments.sinks[head * group + (own.first + thread()) % group] : -INFINITY;
        sums[thread()] = has_sink ? 1.0f : 0.0f;
    }
    float mixed[ROWS][MOST_ELEMENTS] = {};
    barrier();
    for (uint32_t tile = first; tile < last; tile += TILE_POSITIONS) {
        uint32_t position = tile + thread(), tile_row = (tile - span.start) % POSITIONS;
        uint8_t *const block = blocks[(tile - span.start) / POSITIONS];
        float score[ROWS] = {};
        if (position < last) {
            const uint8_t *key = key_row<TYPE>(cache, block, head, tile_row + thread());
            const uint32_t eights = key_dim % 8 == 0 ? key_dim : 0;
            for (uint32_t d = 0; d < eights; d += 8) {
                float k[8];
                cached_8<TYPE>(key, d, k);
#pragma unroll
                for (uint32_t row = 0; row < ROWS; row++) {
                    if (row >= rows) break;
                    uint32_t q[8];
                    load_16(queries + row * key_dim + d, q);
                    load_16(queries + row * key_dim + d + 4, q + 4);
#pragma unroll
                    for (uint32_t i = 0; i < 8; i++) score[row] = fmaf(bits_to_float(q[i]), k[i], score[row]);
                }
            }
            for (uint32_t d = eights; d < key_dim; d++) {
                float k = cached<TYPE>(key, d);
#pragma unroll
                for (uint32_t row = 0; row < ROWS; row++) {
                    if (row < rows) score[row] = fmaf(queries[row * key_dim + d], k, score[row]);
                }
            }
        }
#pragma unroll
        for (uint32_t row = 0; row < ROWS; row++) {
            if (row >= rows) break;
            uint32_t seen_from, seen_to;
            seen(arguments, span, (own.first + row) / group, seen_from, seen_to);
            float s = score[row];
            if (arguments.soft_cap > 0.0f) s = arguments.soft_cap * tanhf(s / arguments.soft_cap);
            scores[row][thread()] = position < last && position >= seen_from && position < seen_to ? s : -INFINITY;
        }
        barrier();
        for (uint32_t row = warp(); row < rows; row += ATTEND_THREADS / LANES) {
            float most = -INFINITY;
            for (uint32_t at = lane(); at < TILE_POSITIONS; at += LANES) most = fmaxf(most, scores[row][at]);
            most = fmaxf(largest_of_warp(most), largest[row]);
            float sum = 0.0f;
            for (uint32_t at = lane(); at < TILE_POSITIONS; at += LANES) {
                // A maximum of minus infinity means that no position has been visible yet.
                float weight = most == -INFINITY ? 0.0f : expf(scores[row][at] - most);
                scores[row][at] = weight;
                sum += weight;
            }
            sum = sum_of_warp(sum);
            if (lane() == 0) {
                float factor = most == -INFINITY ? 1.0f : expf(largest[row] - most);
                factors[row] = factor;
                largest[row] = most;
                sums[row] = sums[row] * factor + sum;
            }
        }
        barrier();
        const uint32_t positions = min(TILE_POSITIONS, last - tile);
#pragma unroll
        for (uint32_t i = 0; i < MOST_ELEMENTS; i++) {
            uint32_t d = thread() + i * ATTEND_THREADS;
            if (d >= width) break;
#pragma unroll
            for (uint32_t row = 0; row < ROWS; row++) mixed[row][i] *= row < rows ? factors[row] : 0.0f;
            for (uint32_t at = 0; at < positions; at += AT_A_TIME) {
                float v[AT_A_TIME];
#pragma unroll
                for (uint32_t j = 0; j < AT_A_TIME; j++) {
                    v[j] = cached<TYPE>(value_row<TYPE>(cache, block, head, tile_row + min(at + j, positions - 1)), d);
                }
#pragma unroll
                for (uint32_t row = 0; row < ROWS; row++) {
                    if (row >= rows) break;
#pragma unroll
                    for (uint32_t four = 0; four < AT_A_TIME; four += 4) {
                        // The weights of positions behind the last are 0.
                        uint32_t weights[4];
                        load_16(&scores[row][at + four], weights);
#pragma unroll
                        for (uint32_t j = 0; j < 4; j++) mixed[row][i] = fmaf(bits_to_float(weights[j]), v[four + j], mixed[row][i]);
                    }
                }
            }
        }
        barrier();
    }
    if (shares == 1) {
#pragma unroll
        for (uint32_t row = 0; row < ROWS; row++) {
            if (row >= rows) break;
            uint32_t token = span.first + (own.first + row) / group, of = head * group + (own.first + row) % group;
#pragma unroll
            for (uint32_t i = 0; i < MOST_ELEMENTS; i++) {
                uint32_t d = thread() + i * ATTEND_THREADS;
                if (d < width) arguments.out[((uint64_t)token * arguments.heads + of) * width + d] = mixed[row][i] / sums[row];
            }
        }
        if (arguments.codes != nullptr) round_mixed(arguments, span, head, own.first, rows);
        return;
    }
    // Writes a share: rows of mixed values, then the largest score and the sum of each row.
    const uint64_t size = (uint64_t)ROWS * (width + 2), place = (uint64_t)item * cache.kv_heads + head;
    float *share_out = arguments.shares + (place * shares + share) * size;
#pragma unroll
    for (uint32_t row = 0; row < ROWS; row++) {
        if (row >= rows) break;
#pragma unroll
        for (uint32_t i = 0; i < MOST_ELEMENTS; i++) {
            uint32_t d = thread() + i * ATTEND_THREADS;
            if (d < width) share_out[row * width + d] = mixed[row][i];
        }
    }
    if (thread() < rows) {
        share_out[ROWS * width + 2 * thread()] = largest[thread()];
        share_out[ROWS * width + 2 * thread() + 1] = sums[thread()];
    }
    if (!is_last_of(arguments.done + place, shares, &is_last)) return;
    // Volatile, because this block's cache may not have the writes of other blocks.
    const volatile float *all = arguments.shares + place * shares * size;
    // A warp computes the factors of a row's shares. There are fewer shares than positions in a
    // tile.
    for (uint32_t row = warp(); row < rows; row += ATTEND_THREADS / LANES) {
        float most = -INFINITY, sum = 0.0f;
        for (uint32_t at = lane(); at < shares; at += LANES) most = fmaxf(most, all[at * size + ROWS * width + 2 * row]);
        most = largest_of_warp(most);
        for (uint32_t at = lane(); at < shares; at += LANES) {
            float factor = expf(all[at * size + ROWS * width + 2 * row] - most);
            scores[row][at] = factor;
            sum += all[at * size + ROWS * width + 2 * row + 1] * factor;
        }
        sum = sum_of_warp(sum);
        if (lane() == 0) sums[row] = sum;
    }
    barrier();
    for (uint32_t at = thread(); at < rows * width; at += ATTEND_THREADS) {
        uint32_t row = at / width, token = span.first + (own.first + row) / group, of = head * group + (own.first + row) % group;
        float y = 0.0f;
#pragma unroll 4
        for (uint32_t share = 0; share < shares; share++) y += all[share * size + at] * scores[row][share];
        arguments.out[((uint64_t)token * arguments.heads + of) * width + at % width] = y / sums[row];
    }
    if (arguments.codes != nullptr) round_mixed(arguments, span, head, own.first, rows);
}
