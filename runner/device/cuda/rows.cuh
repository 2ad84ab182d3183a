// What is done to rows of activations by themselves: norms, rounding to 8 bits.
#pragma once

#include "products.cuh"

enum NormKind : uint32_t { NO_NORM = 0, RMS = 1, LAYER = 2 };

struct NormArguments {
    // `[rows, width]`.
    const float *x;
    // `[turns, width]`: rows take turns.
    const float *weight;
    // `[width]`, or nothing.
    const float *bias;
    // Normed rows; or nothing, where only rounded ones are wanted.
    float *out;
    // Normed rows that are rounded, and their factors: see `ProductArguments`. Or nothing.
    int8_t *codes;
    float *factors;
    float epsilon;
    uint32_t kind;
    uint32_t width;
    uint32_t turns;
};

// A block has a row, a warp has runs of it.
KERNEL(norm_rows, 1024, NormArguments) {
    SHARED float shared[LANES];
    SHARED float shared_again[LANES];
    const uint32_t width = arguments.width, row = block_x();
    const float *x = arguments.x + (uint64_t)row * width;
    const float *weight = arguments.weight + (uint64_t)(row % arguments.turns) * width;
    float mean = 0.0f, factor = 1.0f;
    if (arguments.kind != NO_NORM) {
        if (arguments.kind == LAYER) {
            float sum = 0.0f;
            for (uint32_t at = thread(); at < width; at += threads()) sum += x[at];
            mean = sum_of_block(sum, shared) / (float)width;
        }
        float squares = 0.0f;
        for (uint32_t at = thread(); at < width; at += threads()) squares += (x[at] - mean) * (x[at] - mean);
        factor = 1.0f / sqrtf(sum_of_block(squares, shared_again) / (float)width + arguments.epsilon);
    }
    // Lanes of a warp have the same run, so that all of them take the same way.
    for (uint32_t first = warp() * LANES; first < width; first += threads()) {
        uint32_t at = first + lane();
        float y = 0.0f;
        if (at < width) {
            y = arguments.kind == NO_NORM ? x[at] : (x[at] - mean) * factor * weight[at];
            if (arguments.bias != nullptr) y += arguments.bias[at];
            if (arguments.out != nullptr) arguments.out[(uint64_t)row * width + at] = y;
        }
        if (arguments.codes != nullptr) {
            uint64_t place = (uint64_t)row * width + at;
            round_run(y, arguments.codes + place, arguments.factors + place / 32 * 4);
        }
    }
}
