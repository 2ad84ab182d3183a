// Operations on rows of activations: norms, elementwise maps, rounding to 8 bits.
#pragma once

#include "products.cuh"

enum NormKind : uint32_t { NO_NORM = 0, RMS = 1, LAYER = 2 };

struct NormArguments {
    // `[rows, width]`.
    const float *x;
    // `[weight_rows, width]`; rows alternate among the weights.
    const float *weight;
    // `[width]`, or null.
    const float *bias;
    // Normalized rows; null if only rounded rows are requested.
    float *out;
    // Rounded normalized rows and their factors, see `ProductArguments`; or null.
    int8_t *codes;
    float *factors;
    // Residual: the output is `residual + scale · normed`; or null.
    const float *residual;
    // `[width]`: weight of an RMS norm of that sum, which is computed in addition. Rounding then
    // applies to the result of this norm. Or null.
    const float *next_weight;
    // Rows of the second norm, or null.
    float *next_out;
    float epsilon;
    float scale;
    uint32_t kind;
    uint32_t width;
    uint32_t weight_rows;
    float next_epsilon;
};

enum MapKind : uint32_t {
    // `x + scale · y`.
    MAP_ADD = 0,
    // `scale · x`.
    MAP_SCALE = 1,
    // `min(max(x, scale), second)`.
    MAP_CLAMP = 2,
    // `scale · tanh(x / scale)`.
    MAP_SOFT_CAP = 3,
    // `x · y`.
    MAP_TIMES = 4,
    // `x · sigmoid(y)`.
    MAP_SIGMOID = 5,
    // `x · silu(y)`.
    MAP_SILU = 6,
    // `activation(x)`.
    MAP_ACTIVATE = 7,
    // `activation(x) · y`.
    MAP_GATE = 8,
    // `x · ln(1 + exp(y))`.
    MAP_SOFTPLUS = 9,
    MAP_XIELU = 10,
    MAP_SIGNED_ROOT = 11,
};

struct MapArguments {
    // `[rows, width]`.
    const float *x;
    // `[rows, width / shared]`, or null.
    const float *y;
    float *out;
    uint64_t count;
    float scale;
    // Factor for negative numbers, or the largest result of a clamp.
    float second;
    uint32_t kind;
    uint32_t activation;
    // Number of elements that share one of y.
    uint32_t shared;
};

static constexpr uint32_t MAP_THREADS = 256;

KERNEL(map_rows, MAP_THREADS, MapArguments) {
    const uint64_t at = (uint64_t)block_x() * MAP_THREADS + thread();
    if (at >= arguments.count) return;
    const float x = arguments.x[at], y = arguments.y != nullptr ? arguments.y[at / arguments.shared] : 0.0f, scale = arguments.scale;
    float out = x;
    switch (arguments.kind) {
    case MAP_ADD: out = x + scale * y; break;
    case MAP_SCALE: out = scale * x; break;
    // NaN stays NaN.
    case MAP_CLAMP: out = x < scale ? scale : x > arguments.second ? arguments.second : x; break;
    case MAP_SOFT_CAP: out = scale * tanhf(x / scale); break;
    case MAP_TIMES: out = x * y; break;
    case MAP_SIGMOID: out = x * sigmoid(y); break;
    case MAP_SILU: out = x * (y * sigmoid(y)); break;
    case MAP_ACTIVATE: out = activated(arguments.activation, x); break;
    case MAP_GATE: out = gated(arguments.activation, scale, x, y); break;
    case MAP_SOFTPLUS: out = x * softplus(y); break;
    case MAP_XIELU: out = 0.5f * x + (x > 0.0f ? scale * x * x : arguments.second * (expm1f(fminf(x, -1e-6f)) - x)); break;
    case MAP_SIGNED_ROOT: out = x == 0.0f ? 0.0f : copysignf(sqrtf(fmaxf(fabsf(x), scale)), x); break;
    }
    arguments.out[at] = out;
}

// A block has a row, a warp has runs of it.
KERNEL(norm_rows, 1024, NormArguments) {
    SHARED float shared[LANES];
    SHARED float shared_again[LANES];
    SHARED float shared_next[LANES];
    const uint32_t width = arguments.width, row = block_x();
    const uint64_t begin = (uint64_t)row * width;
    const float *x = arguments.x + begin;
    const bool has_next = arguments.next_weight != nullptr;
    const float *weight = arguments.weight + (uint64_t)(row % arguments.weight_rows) * width;
    float mean = 0.0f, factor = 1.0f;
    if (arguments.kind == RMS || arguments.kind == LAYER) {
        if (arguments.kind == LAYER) {
            float sum = 0.0f;
            for (uint32_t at = thread(); at < width; at += threads()) sum += x[at];
            mean = sum_of_block(sum, shared) / (float)width;
        }
        float squares = 0.0f;
        for (uint32_t at = thread(); at < width; at += threads()) squares += (x[at] - mean) * (x[at] - mean);
        factor = 1.0f / sqrtf(sum_of_block(squares, shared_again) / (float)width + arguments.epsilon);
    }
    float next_squares = 0.0f;
    // All lanes of a warp have the same run, so they take the same branches.
    for (uint32_t first = warp() * LANES; first < width; first += threads()) {
        uint32_t at = first + lane();
        float y = 0.0f;
        if (at < width) {
            y = arguments.kind == NO_NORM ? x[at] : (x[at] - mean) * factor * weight[at];
            if (arguments.bias != nullptr) y += arguments.bias[at];
            if (arguments.residual != nullptr) y = arguments.residual[begin + at] + arguments.scale * y;
            if (arguments.out != nullptr) arguments.out[begin + at] = y;
            next_squares += y * y;
        }
        if (arguments.codes != nullptr && !has_next) round_run(y, arguments.codes + begin + at, arguments.factors + (begin + at) / 32 * 4);
    }
    if (!has_next) return;
    const float next_factor = 1.0f / sqrtf(sum_of_block(next_squares, shared_next) / (float)width + arguments.next_epsilon);
    for (uint32_t first = warp() * LANES; first < width; first += threads()) {
        uint32_t at = first + lane();
        // The same thread has written this element.
        float y = at < width ? arguments.out[begin + at] * next_factor * arguments.next_weight[at] : 0.0f;
        if (at < width && arguments.next_out != nullptr) arguments.next_out[begin + at] = y;
        if (arguments.codes != nullptr) round_run(y, arguments.codes + begin + at, arguments.factors + (begin + at) / 32 * 4);
    }
}
