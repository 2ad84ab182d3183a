// The best of the logits of a token, after what a generation changes of them.
//
// A block has SLICE logits of a row, changes them, sorts them and tells the best; the last block that is done with a row sorts those of all
// blocks. A logit and its token are one number, by which they are sorted: the larger logit first, of equal ones the smaller token.
#pragma once

#include "machine.cuh"

static constexpr uint32_t SELECT_THREADS = 256;
static constexpr uint32_t SLICE = 2048;

// What is changed of a token's logit x: `y - minus`, where y is x + bias, divided where it is positive, else multiplied.
struct Change {
    uint32_t token;
    float bias;
    float divisor;
    float minus;
};

// What is wanted of a row.
struct SelectRow {
    // Which row of the logits.
    uint32_t row;
    // How many of the best.
    uint32_t count;
    uint32_t first_change;
    uint32_t changes;
    // A bit for each token, by words: those that may come. Tokens behind the last bit may not. Where there are no words, all may.
    uint32_t first_word;
    uint32_t words;
    uint32_t has_words;
    uint32_t unused;
};

struct SelectArguments {
    // `[rows, vocabulary]`.
    const float *logits;
    const SelectRow *rows;
    const Change *changes;
    const uint32_t *words;
    // What blocks tell the last one: `[rows, blocks, most]`, and of each block its largest logit, the sum of exp(x - largest), and
    // whether something is not a number, and nothing.
    uint64_t *lists;
    float *sums;
    // Of each row: the largest logit, the sum over all tokens that may come, whether something is not a number, how many are told; then
    // so many tokens with their logits. `[rows, 4 + 2 · most]` words.
    uint32_t *out;
    // How many blocks of a row are done, which is 0 before and after.
    uint32_t *done;
    uint32_t vocabulary;
    uint32_t most;
};

// A number of 32 bits that is larger where x is; it is never 0.
DEVICE uint32_t ordered(float x) {
    uint32_t bits = float_to_bits(x);
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}
DEVICE float from_ordered(uint32_t bits) { return bits_to_float(bits & 0x80000000u ? bits & 0x7fffffffu : ~bits); }

// Sorts runs of `size` of SLICE numbers, each of which falls and then rises; the first the largest first, and every second one the other way round.
DEVICE void merge_runs(uint64_t *keys, uint32_t size) {
    for (uint32_t distance = size / 2; distance > 0; distance /= 2) {
        for (uint32_t pair = thread(); pair < SLICE / 2; pair += SELECT_THREADS) {
            uint32_t at = pair / distance * 2 * distance + pair % distance;
            uint64_t a = keys[at], b = keys[at + distance];
            bool is_descending = (at & size) == 0;
            if (is_descending ? a < b : a > b) {
                keys[at] = b;
                keys[at + distance] = a;
            }
        }
        barrier();
    }
}

// Sorts SLICE numbers, the largest first. Batcher's bitonic sort, 1968.
DEVICE void sort_slice(uint64_t *keys) {
    for (uint32_t size = 2; size <= SLICE; size *= 2) merge_runs(keys, size);
}

// The best of the lists of all blocks, which are sorted.
DEVICE void merge_lists(uint64_t *keys, const volatile uint64_t *lists, uint32_t blocks, uint32_t most) {
    if (2 * most == SLICE) {
        // A list behind the best so far, the other way round, needs no more than to be merged.
        for (uint32_t at = thread(); at < most; at += SELECT_THREADS) keys[at] = lists[at];
        for (uint32_t block = 1; block < blocks; block++) {
            for (uint32_t at = thread(); at < most; at += SELECT_THREADS) keys[SLICE - 1 - at] = lists[block * most + at];
            barrier();
            merge_runs(keys, SLICE);
        }
        return;
    }
    // The best so far, and as many others as there is room for.
    const uint32_t others = blocks * most;
    for (uint32_t at = thread(); at < SLICE; at += SELECT_THREADS) keys[at] = at < others ? lists[at] : 0;
    barrier();
    sort_slice(keys);
    for (uint32_t next = SLICE; next < others; next += SLICE - most) {
        for (uint32_t at = most + thread(); at < SLICE; at += SELECT_THREADS) {
            const uint32_t other = next + at - most;
            keys[at] = other < others ? lists[other] : 0;
        }
        barrier();
        sort_slice(keys);
    }
}

// Writes what is told of a row.
DEVICE void tell(const SelectArguments &arguments, const uint64_t *keys, uint32_t count, float largest, float sum, bool is_broken) {
    uint32_t *out = arguments.out + (uint64_t)block_y() * (4 + 2 * arguments.most);
    SHARED uint32_t found;
    if (thread() == 0) found = 0;
    barrier();
    for (uint32_t at = thread(); at < count; at += SELECT_THREADS) {
        // 0 is no token. They come last.
        if (keys[at] == 0) continue;
        if (at + 1 == count || keys[at + 1] == 0) found = at + 1;
        out[4 + 2 * at] = ~(uint32_t)keys[at];
        out[4 + 2 * at + 1] = float_to_bits(from_ordered((uint32_t)(keys[at] >> 32)));
    }
    barrier();
    if (thread() != 0) return;
    out[0] = float_to_bits(largest);
    out[1] = float_to_bits(sum);
    out[2] = is_broken ? 1 : 0;
    out[3] = found;
}

KERNEL(select_best, SELECT_THREADS, SelectArguments) {
    SHARED uint64_t keys[SLICE];
    SHARED float values[SLICE];
    SHARED float shared[LANES], shared_again[LANES];
    SHARED uint32_t is_last;
    const SelectRow row = arguments.rows[block_y()];
    const uint32_t first = block_x() * SLICE, count = min(SLICE, arguments.vocabulary - first), blocks = blocks_x();
    const float *logits = arguments.logits + (uint64_t)row.row * arguments.vocabulary + first;
    for (uint32_t at = thread(); at < count; at += SELECT_THREADS) values[at] = logits[at];
    barrier();
    for (uint32_t at = thread(); at < row.changes; at += SELECT_THREADS) {
        const Change change = arguments.changes[row.first_change + at];
        if (change.token < first || change.token - first >= count) continue;
        float x = values[change.token - first] + change.bias;
        values[change.token - first] = (x > 0.0f ? x / change.divisor : x * change.divisor) - change.minus;
    }
    barrier();
    float largest = -INFINITY, broken = 0.0f;
    for (uint32_t at = thread(); at < SLICE; at += SELECT_THREADS) {
        const uint32_t token = first + at;
        bool may_come = at < count;
        if (row.has_words) {
            may_come = may_come && token / 32 < row.words && (arguments.words[row.first_word + token / 32] >> (token % 32) & 1u) != 0;
        }
        keys[at] = 0;
        if (!may_come) continue;
        float x = values[at];
        if (x != x) broken = 1.0f;
        largest = fmaxf(largest, x);
        // Zeros are equal, whatever their sign.
        keys[at] = (uint64_t)ordered(x + 0.0f) << 32 | (uint64_t)(uint32_t)~token;
    }
    largest = largest_of_block(largest, shared);
    float sum = 0.0f;
    for (uint32_t at = thread(); at < SLICE; at += SELECT_THREADS) {
        // Nothing may come, or nothing but what is minus infinity.
        if (keys[at] != 0 && largest > -INFINITY) sum += expf(values[at] - largest);
    }
    sum = sum_of_block(sum, shared_again);
    barrier();
    const bool is_broken = largest_of_block(broken, shared) > 0.0f;
    sort_slice(keys);
    if (blocks == 1) {
        tell(arguments, keys, min(row.count, SLICE), largest, sum, is_broken);
        return;
    }
    const uint32_t most = arguments.most;
    const uint64_t place = (uint64_t)block_y() * blocks;
    for (uint32_t at = thread(); at < most; at += SELECT_THREADS) arguments.lists[(place + block_x()) * most + at] = keys[at];
    if (thread() == 0) {
        float *own = arguments.sums + (place + block_x()) * 4;
        own[0] = largest;
        own[1] = sum;
        own[2] = is_broken ? 1.0f : 0.0f;
        own[3] = 0.0f;
    }
    if (!is_last_of(arguments.done + block_y(), blocks, &is_last)) return;
    // What other blocks wrote is not in this one's cache.
    const volatile uint64_t *lists = arguments.lists + place * most;
    const volatile float *sums = arguments.sums + place * 4;
    float best = -INFINITY, all = 0.0f, any_broken = 0.0f;
    for (uint32_t block = 0; block < blocks; block++) {
        best = fmaxf(best, sums[block * 4]);
        any_broken = fmaxf(any_broken, sums[block * 4 + 2]);
    }
    for (uint32_t block = 0; block < blocks && best > -INFINITY; block++) all += sums[block * 4 + 1] * expf(sums[block * 4] - best);
    merge_lists(keys, lists, blocks, most);
    tell(arguments, keys, min(row.count, most), best, all, any_broken > 0.0f);
}
