// Selection of the best logits of a token, after a generation's changes.
//
// A block has SLICE logits of a row: it applies changes, sorts them, and lists the best. The last
// block of a row to finish sorts the lists of all blocks. The sort key of a logit includes its
// token: the larger logit comes first, and among equal logits the smaller token.
#pragma once

#include "machine.cuh"

static constexpr uint32_t SELECT_THREADS = 256;
static constexpr uint32_t SLICE = 2048;

// A change of a token's logit x to `y - minus`, where y is x + bias, divided by `divisor` if
// positive, else multiplied by it.
struct Change {
    uint32_t token;
    float bias;
    float divisor;
    float minus;
};

// Selection parameters of a row.
struct SelectRow {
    // Row of the logits.
    uint32_t row;
    // Number of tokens to select.
    uint32_t count;
    uint32_t first_change;
    uint32_t changes;
    // Bit mask of allowed tokens, by words. Tokens beyond the last bit are not allowed. Without
    // words, all are.
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
    // Results of blocks for the last one: lists `[rows, blocks, most]`; and for each block its
    // largest logit, the sum of exp(x - largest), whether a logit is NaN, and padding.
    uint64_t *lists;
    float *sums;
    // For each row: the largest logit, the sum over all allowed tokens, whether a logit is NaN, the
    // number of tokens, then these tokens with their logits. `[rows, 4 + 2 · most]` words.
    uint32_t *out;
    // Number of blocks of a row that are done; 0 before and after.
    uint32_t *done;
    uint32_t vocabulary;
    uint32_t most;
};

// Converts to 32 bits with the same order as floats; never 0.
DEVICE uint32_t ordered(float x) {
    uint32_t bits = float_to_bits(x);
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}
DEVICE float from_ordered(uint32_t bits) { return bits_to_float(bits & 0x80000000u ? bits & 0x7fffffffu : ~bits); }

// Sorts bitonic runs of `size` of the SLICE keys. The directions alternate; the first run is
// descending.
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

// Sorts SLICE keys in descending order with Batcher's bitonic sort, 1968.
DEVICE void sort_slice(uint64_t *keys) {
    for (uint32_t size = 2; size <= SLICE; size *= 2) merge_runs(keys, size);
}

// Merges the sorted lists of all blocks, and keeps the best.
DEVICE void merge_lists(uint64_t *keys, const volatile uint64_t *lists, uint32_t blocks, uint32_t most) {
    if (2 * most == SLICE) {
        // The best so far, followed by a reversed list, are bitonic, and only need a merge.
        for (uint32_t at = thread(); at < most; at += SELECT_THREADS) keys[at] = lists[at];
        for (uint32_t block = 1; block < blocks; block++) {
            for (uint32_t at = thread(); at < most; at += SELECT_THREADS) keys[SLICE - 1 - at] = lists[block * most + at];
            barrier();
            merge_runs(keys, SLICE);
        }
        return;
    }
    // The best so far, and as many other keys as fit.
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

// Writes the result of a row.
DEVICE void tell(const SelectArguments &arguments, const uint64_t *keys, uint32_t count, float largest, float sum, bool is_broken) {
    uint32_t *out = arguments.out + (uint64_t)block_y() * (4 + 2 * arguments.most);
    SHARED uint32_t found;
    if (thread() == 0) found = 0;
    barrier();
    for (uint32_t at = thread(); at < count; at += SELECT_THREADS) {
        // Key 0 is no token. Such keys come last.
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
        // Adding 0 makes both zeros equal.
        keys[at] = (uint64_t)ordered(x + 0.0f) << 32 | (uint64_t)(uint32_t)~token;
    }
    largest = largest_of_block(largest, shared);
    float sum = 0.0f;
    for (uint32_t at = thread(); at < SLICE; at += SELECT_THREADS) {
        // The sum stays 0 if no token is allowed, or if all logits are minus infinity.
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
    // Volatile, because this block's cache may not have the writes of other blocks.
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
