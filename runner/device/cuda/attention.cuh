// Softmax attention of the tokens of a pass to the positions that are kept of their sequences.
//
// A block of threads has a key head, up to ROWS of the queries that share it (heads of a token, then of the next), and a share
// of the positions, by tiles of TILE_POSITIONS: a thread scores a position for all queries, a warp makes weights of a query's scores, a thread
// mixes some elements of values. Shares of the positions are put together by the last block that is done with one.
// Formula: the online softmax of Milakov and Gimelshein, 2018.
#pragma once

#include "cache.cuh"

static constexpr uint32_t ATTEND_THREADS = 128;
static constexpr uint32_t TILE_POSITIONS = ATTEND_THREADS;
// Elements of values that a thread has, at most: values of 640.
static constexpr uint32_t MOST_ELEMENTS = 5;

// Positions whose values are loaded at a time.
static constexpr uint32_t AT_A_TIME = 16;

// Some of a sequence's queries.
struct Queries {
    uint32_t sequence;
    // The first row, of `tokens · heads of a key head`.
    uint32_t first;
};

struct AttendArguments {
    Cache cache;
    const Span *spans;
    uint8_t *const *blocks;
    const Queries *items;
    const float *queries;
    // `[heads]`, or nothing.
    const float *sinks;
    // `[tokens, heads · value width]`.
    float *out;
    // The same rounded for the next product, see `ProductArguments`; or nothing. Values are whole runs then.
    int8_t *codes;
    float *factors;
    // Of each share of each item and key head the rows, each with its largest score and its sum; and how many shares are done, which is 0
    // before and after.
    float *shares;
    uint32_t *done;
    float scale;
    float soft_cap;
    uint32_t heads;
    // Elements of values that are mixed.
    uint32_t value_width;
    // 0 where there is none.
    uint32_t window;
    uint32_t is_causal;
};

// The positions that a token sees.
DEVICE void seen(const AttendArguments &arguments, const Span &span, uint32_t token, uint32_t &from, uint32_t &to) {
    uint32_t own = span.position + token, end = span.position + span.tokens, window = arguments.window;
    from = window != 0 && own + 1 > window ? own + 1 - window : 0;
    to = arguments.is_causal ? own + 1 : window != 0 ? min(end, own + window) : end;
}

// Rounds what the block has written of some rows.
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

    // Which positions any of the rows sees, and this block's share of them.
    uint32_t from, to, last_from, last_to;
    seen(arguments, span, own.first / group, from, to);
    seen(arguments, span, (own.first + rows - 1) / group, last_from, last_to);
    from = max(from, span.start);
    to = max(to, last_to);
    // So that a tile lies in one block; what is seen by nobody has no weight.
    from -= (from - span.start) % TILE_POSITIONS;
    const uint32_t tiles = (to - from + TILE_POSITIONS - 1) / TILE_POSITIONS, each = (tiles + shares - 1) / shares;
    const uint32_t first = from + share * each * TILE_POSITIONS, last = min(to, first + each * TILE_POSITIONS);

    for (uint32_t at = thread(); at < rows * key_dim; at += ATTEND_THREADS) {
        uint32_t row = own.first + at / key_dim, token = span.first + row / group, of = head * group + row % group;
        queries[at] = arguments.queries[((uint64_t)token * arguments.heads + of) * key_dim + at % key_dim] * arguments.scale;
    }
    if (thread() < ROWS) {
        // A sink takes its share and mixes nothing.
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
                // Nothing is seen yet where the largest is minus infinity.
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
    // A share: rows of mixed values, then the largest score and the sum of each.
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
    // What other blocks wrote is not in this one's cache.
    const volatile float *all = arguments.shares + place * shares * size;
    // A warp finds what the shares of a row are multiplied with; there are fewer than positions of a tile.
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
