// Products of activations with weights as they are stored: `y = x · Wᵀ`, with an operation on y
// before it is written.
//
// Integer types are multiplied with activations that are rounded to 8 bits in runs of 32,
// `x = e · p`, as on the CPU: `y = Σ e · (d · Σ q·p + m · Σ p)` over runs. Plain types and E4M3 are
// multiplied with float32 for few rows of x, and with BF16 or TF32 in tiles. Scales of E4M3 are
// applied to float32 sums.
//
// - `few`: a thread block has FEW_ROWS rows of the weights and a few rows of x; its threads have
//   runs of them. For small batches, where memory bandwidth is the limit.
// - `tile`: a block of 128 threads has 64 rows of the weights and 64 of x, multiplied by tensor
//   cores.
#pragma once

#include "formats.cuh"

static constexpr uint32_t MOST_WEIGHTS = 4;
// Number of rows of weights in a block of `few`, and greatest number of rows of x.
static constexpr uint32_t FEW_ROWS = 4;
static constexpr uint32_t FEW_TOKENS = 8;
static constexpr uint32_t MOST_THREADS = 256;
static constexpr uint32_t TILE = 64;
static constexpr uint32_t TILE_THREADS = 128;

// Operation on y.
enum Purpose : uint32_t {
    // None: y is written.
    WRITE = 0,
    // `activation(y)`.
    ACTIVATE = 1,
    // `activation(y of the first weight) · y of the second`.
    GATE = 2,
    // `residual + scale · y`.
    ADD = 3,
};

enum Activation : uint32_t {
    SILU = 0,
    GELU_TANH = 1,
    GELU = 2,
    RELU = 3,
    CLAMPED_SILU = 4,
    RELU_SQUARED = 5,
    BOUNDED_SILU = 6,
    GELU_QUICK = 7
};

// A set of weights, such as an expert, and its rows of x.
struct Group {
    // Index of the set of weights.
    uint32_t set;
    // Rows of x and of y.
    uint32_t first;
    uint32_t count;
    uint32_t unused;
};

// Weights with their float32 biases.
struct WeightSet {
    Weight weights[MOST_WEIGHTS];
    const float *biases[MOST_WEIGHTS];
};

struct ProductArguments {
    WeightSet set;
    // Sets of the groups, in place of the one above, or null. The third dimension of the grid
    // counts groups.
    const WeightSet *sets;
    const Group *groups;
    // Rows of x: float32, `[tokens, columns]`.
    const float *x;
    // x rounded to 8 bits, and for each run: `e`, `Σ p` of the first and of the second 16, padding.
    const int8_t *codes;
    const float *factors;
    // Row of x for each row of y; if null, they have the same index.
    const uint32_t *rows_of_x;
    // Rows of y for each weight, `[tokens, rows]`; only one result if they are gated.
    float *out[MOST_WEIGHTS];
    const float *residual;
    // `out[0]` rounded for the next product, or null; and counters for the blocks of a run, which
    // are 0 before and after.
    int8_t *out_codes;
    float *out_factors;
    uint32_t *counters;
    float scale;
    float limit;
    uint32_t count;
    uint32_t tokens;
    uint32_t columns;
    uint32_t purpose;
    uint32_t activation;
    uint32_t unused;
};

DEVICE float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }

DEVICE float softplus(float x) { return x > 20.0f ? x : log1pf(expf(x)); }

DEVICE float activated(uint32_t activation, float x) {
    switch (activation) {
    case GELU_TANH: return 0.5f * x * (1.0f + tanhf(0.7978845608028654f * (x + 0.044715f * x * x * x)));
    case GELU: return 0.5f * x * (1.0f + erff(x * 0.7071067811865476f));
    case GELU_QUICK: return x * sigmoid(1.702f * x);
    case RELU: return fmaxf(x, 0.0f);
    case RELU_SQUARED: return fmaxf(x, 0.0f) * fmaxf(x, 0.0f);
    default: return x * sigmoid(x);
    }
}

DEVICE float gated(uint32_t activation, float limit, float gate, float up) {
    if (activation == CLAMPED_SILU || activation == BOUNDED_SILU) {
        gate = fminf(gate, limit);
        up = fminf(fmaxf(up, -limit), limit);
        if (activation == CLAMPED_SILU) return gate * sigmoid(1.702f * gate) * (up + 1.0f);
    }
    return activated(activation, gate) * up;
}

// Rounds the 32 numbers of a warp's lanes to 8 bits.
DEVICE void round_run(float x, int8_t *code, float *factors) {
    float largest = largest_of_warp(fabsf(x));
    // `fmaxf` drops NaN, but the sum keeps it.
    float check = sum_of_warp(x);
    float e = check != check ? check : largest / 127.0f;
    float inverse = 1.0f / e;
    if (!(e > 0.0f) || inverse > 3.4e38f) inverse = 0.0f;
    float p = round_to_even(x * inverse);
    *code = (int8_t)p;
    float first = sum_of_warp(lane() < 16 ? p : 0.0f), all = sum_of_warp(p);
    if (lane() == 0) {
        factors[0] = e;
        factors[1] = first;
        factors[2] = all - first;
        factors[3] = 0.0f;
    }
}

// Operations on integer formats, from which `few` and `tile` are composed.
template <class Format> struct Integers {
    typedef Run Part;
    static constexpr bool ROUNDED = true;
    static METHOD uint32_t parts(uint32_t columns) { return columns / 32; }
    template <bool WHOLE> static METHOD void load(const Weight &weight, uint64_t row, uint32_t run, uint32_t columns, Part &part) {
        Format::load(weight, row, run, part);
    }
    struct X {
        uint32_t p[8];
        float factors[3];
        template <bool WHOLE> METHOD void load(const ProductArguments &arguments, uint64_t token, uint32_t run) {
            const int8_t *from = arguments.codes + token * arguments.columns + (uint64_t)run * 32;
            load_16(from, p);
            load_16(from + 16, p + 4);
            uint32_t words[4];
            load_16(arguments.factors + (token * (arguments.columns / 32) + run) * 4, words);
#pragma unroll
            for (int i = 0; i < 3; i++) factors[i] = bits_to_float(words[i]);
        }
    };
    static METHOD float dot(const Part &w, const X &x) {
        int32_t first = 0, second = 0;
#pragma unroll
        for (int i = 0; i < 4; i++) first = dot4(w.q[i], x.p[i], first);
#pragma unroll
        for (int i = 4; i < 8; i++) second = dot4(w.q[i], x.p[i], second);
        const float *s = x.factors;
        if (!Format::HALVES) return s[0] * (w.d[0] * (float)(first + second) + w.m[0] * (s[1] + s[2]));
        return s[0] * (w.d[0] * (float)first + w.m[0] * s[1] + w.d[1] * (float)second + w.m[1] * s[2]);
    }
};

template <uint32_t TYPE> struct Floats {
    typedef Eight<TYPE> Part;
    static constexpr bool ROUNDED = false;
    static METHOD uint32_t parts(uint32_t columns) { return (columns + 7) / 8; }
    template <bool WHOLE> static METHOD void load(const Weight &weight, uint64_t row, uint32_t at, uint32_t columns, Part &part) {
        part.template load<WHOLE>(weight, row, at * 8, columns);
        if (TYPE != PLAIN_E4M3) return;
        if (weight.group_columns % 8 == 0) {
            float scale = scale_at(weight, row, at * 8);
#pragma unroll
            for (int i = 0; i < 8; i++) part.x[i] *= scale;
            return;
        }
#pragma unroll
        for (int i = 0; i < 8; i++) {
            uint32_t column = at * 8 + i;
            if (column < columns) part.x[i] *= scale_at(weight, row, column);
        }
    }
    struct X {
        float x[8];
        template <bool WHOLE> METHOD void load(const ProductArguments &arguments, uint64_t token, uint32_t at) {
            const float *from = arguments.x + token * arguments.columns + (uint64_t)at * 8;
            if (!WHOLE) {
#pragma unroll
                for (int i = 0; i < 8; i++) x[i] = at * 8 + i < arguments.columns ? from[i] : 0.0f;
                return;
            }
            uint32_t words[8];
            load_16(from, words);
            load_16(from + 4, words + 4);
#pragma unroll
            for (int i = 0; i < 8; i++) x[i] = bits_to_float(words[i]);
        }
    };
    static METHOD float dot(const Part &w, const X &x) {
        float sum = 0.0f;
#pragma unroll
        for (int i = 0; i < 8; i++) sum = fmaf(w.x[i], x.x[i], sum);
        return sum;
    }
};

// The weights, their rows, and the rows of x of a block.
struct Place {
    const WeightSet *set;
    // Index of the weight, and of the one that it gates.
    uint32_t first;
    uint32_t second;
    // First row of the weight.
    uint32_t row;
    uint32_t first_token;
    uint32_t tokens;
};

// Returns the place of a block, with `rows` rows of a weight; if gated, half of them are of each of
// the two weights.
DEVICE Place place_of(const ProductArguments &arguments, uint32_t rows, uint32_t tokens) {
    Place place;
    place.set = &arguments.set;
    place.first_token = block_y() * tokens;
    uint32_t end = arguments.tokens;
    if (arguments.groups != nullptr) {
        const Group group = arguments.groups[block_z()];
        place.set = arguments.sets + group.set;
        place.first_token += group.first;
        end = group.first + group.count;
    }
    place.tokens = place.first_token >= end ? 0 : min(tokens, end - place.first_token);
    place.first = place.second = 0;
    uint32_t block = block_x();
    if (arguments.purpose == GATE) {
        place.second = 1;
        place.row = block * (rows / 2);
        return place;
    }
    while (place.first + 1 < arguments.count) {
        uint32_t own = (place.set->weights[place.first].rows + rows - 1) / rows;
        if (block < own) break;
        block -= own;
        place.first++;
    }
    place.second = place.first;
    place.row = block * rows;
    return place;
}

// Returns the row of x for a row of y.
DEVICE uint32_t row_of_x(const ProductArguments &arguments, uint32_t row) {
    return arguments.rows_of_x != nullptr ? arguments.rows_of_x[row] : row;
}

// Applies the operation to y and writes it; `up` is the product of the second weight if they are
// gated.
DEVICE void finish(const ProductArguments &arguments, const Place &place, uint32_t row, uint32_t token, float y, float up) {
    const Weight &weight = place.set->weights[place.first];
    const float *bias = place.set->biases[place.first];
    if (bias != nullptr) y += bias[row];
    uint64_t at = (uint64_t)(place.first_token + token) * weight.rows + row;
    if (arguments.purpose == GATE) {
        const float *second = place.set->biases[place.second];
        if (second != nullptr) up += second[row];
        y = gated(arguments.activation, arguments.limit, y, up);
    } else if (arguments.purpose == ACTIVATE) {
        y = activated(arguments.activation, y);
    } else if (arguments.purpose == ADD) {
        y = arguments.residual[at] + arguments.scale * y;
    }
    arguments.out[place.first][at] = y;
}

// Rounds y for the next product, in the last of the blocks that have rows of a run. Weights have
// whole runs of rows; `rows` is the number of them in a block.
DEVICE void round_out(const ProductArguments &arguments, const Place &place, uint32_t rows) {
    SHARED uint32_t is_last;
    const uint32_t width = place.set->weights[place.first].rows, run = place.row / 32, runs = width / 32;
    uint32_t *counter = arguments.counters + (uint64_t)(block_z() * blocks_y() + block_y()) * runs + run;
    if (!is_last_of(counter, 32 / rows, &is_last)) return;
    for (uint32_t token = warp(); token < place.tokens; token += threads() / LANES) {
        uint64_t own = place.first_token + token, at = own * width + run * 32;
        // Volatile, because this block's cache may not have the writes of other blocks.
        const volatile float *y = arguments.out[0] + at;
        round_run(y[lane()], arguments.out_codes + at + lane(), arguments.out_factors + (own * runs + run) * 4);
    }
}

template <class Kind, int TOKENS, bool WHOLE> DEVICE void few_of(const ProductArguments &arguments) {
    SHARED float sums_of_warps[MOST_THREADS / LANES][FEW_ROWS * TOKENS];
    SHARED uint32_t x_rows[TOKENS];
    const Place place = place_of(arguments, FEW_ROWS, TOKENS);
    const bool is_gated = arguments.purpose == GATE;
    // Copies, so that nothing of them is loaded again between loads of rows.
    const Weight first = place.set->weights[place.first], second = place.set->weights[place.second];
    uint64_t rows[FEW_ROWS];
#pragma unroll
    for (uint32_t i = 0; i < FEW_ROWS; i++) {
        // Results of rows beyond the end are ignored.
        uint32_t row = place.row + (is_gated ? i / 2 : i);
        rows[i] = stored_row(first, min(row, first.rows - 1));
        if (is_gated && i % 2 == 1) rows[i] = stored_row(second, min(row, second.rows - 1));
    }
    // In shared memory, to save registers.
    if (thread() < place.tokens) x_rows[thread()] = row_of_x(arguments, place.first_token + thread());
    barrier();
    float sums[FEW_ROWS][TOKENS] = {};
    const uint32_t parts = Kind::parts(arguments.columns);
    for (uint32_t part = thread(); part < parts && place.tokens > 0; part += threads()) {
        typename Kind::Part w[FEW_ROWS];
#pragma unroll
        for (uint32_t i = 0; i < FEW_ROWS; i++) {
            if (is_gated && i % 2 == 1) Kind::template load<WHOLE>(second, rows[i], part, arguments.columns, w[i]);
            else Kind::template load<WHOLE>(first, rows[i], part, arguments.columns, w[i]);
        }
#pragma unroll
        for (uint32_t token = 0; token < TOKENS; token++) {
            if (token < place.tokens) {
                typename Kind::X x;
                x.template load<WHOLE>(arguments, x_rows[token], part);
#pragma unroll
                for (uint32_t i = 0; i < FEW_ROWS; i++) sums[i][token] += Kind::dot(w[i], x);
            }
        }
    }
#pragma unroll
    for (uint32_t i = 0; i < FEW_ROWS; i++) {
#pragma unroll
        for (uint32_t token = 0; token < TOKENS; token++) {
            // The condition is the same for all threads.
            if (token >= place.tokens) break;
            float sum = sum_of_warp(sums[i][token]);
            if (lane() == 0) sums_of_warps[warp()][i * TOKENS + token] = sum;
        }
    }
    barrier();
    for (uint32_t at = thread(); at < FEW_ROWS * TOKENS; at += threads()) {
        uint32_t i = at / TOKENS, token = at % TOKENS, row = place.row + (is_gated ? i / 2 : i);
        if (token >= place.tokens || row >= first.rows || (is_gated && i % 2 == 1)) continue;
        float y = 0.0f, up = 0.0f;
        for (uint32_t own = 0; own < threads() / LANES; own++) {
            y += sums_of_warps[own][at];
            if (is_gated) up += sums_of_warps[own][at + TOKENS];
        }
        finish(arguments, place, row, token, y, up);
    }
    if (arguments.out_codes != nullptr) round_out(arguments, place, is_gated ? FEW_ROWS / 2 : FEW_ROWS);
}

template <class Kind, int TOKENS> DEVICE void few(const ProductArguments &arguments) {
    if (arguments.columns % 8 == 0) few_of<Kind, TOKENS, true>(arguments);
    else if (!Kind::ROUNDED) few_of<Kind, TOKENS, false>(arguments);
}

// Returns the row of a weight for row `at` of a block's tile, and whether it is of the second
// weight. If gated, each 16 rows have eight of either weight.
DEVICE uint32_t tile_row(const ProductArguments &arguments, const Place &place, uint32_t at, bool &is_second) {
    is_second = arguments.purpose == GATE && at % 16 >= 8;
    if (arguments.purpose != GATE) return place.row + at;
    return place.row + at / 16 * 8 + at % 8;
}

// Writes the sums of a warp's fragments, for 16 rows of weights and 64 of x.
DEVICE void finish_tile(const ProductArguments &arguments, const Place &place, const float sums[8][4]) {
    const uint32_t g = lane() / 4, t = lane() % 4, own = warp() * 16;
    const uint32_t rows = place.set->weights[place.first].rows;
    bool is_second;
#pragma unroll
    for (uint32_t n = 0; n < 8; n++) {
#pragma unroll
        for (uint32_t i = 0; i < 2; i++) {
            uint32_t token = 8 * n + 2 * t + i;
            if (token >= place.tokens) continue;
            uint32_t upper = tile_row(arguments, place, own + g, is_second);
            if (upper < rows) finish(arguments, place, upper, token, sums[n][i], sums[n][i + 2]);
            if (arguments.purpose == GATE) continue;
            uint32_t lower = tile_row(arguments, place, own + g + 8, is_second);
            if (lower < rows) finish(arguments, place, lower, token, sums[n][i + 2], 0.0f);
        }
    }
}

// Number of runs of a row in shared memory. Rows are padded by 16 bytes to avoid bank conflicts.
static constexpr uint32_t TILE_RUNS = 4;
static constexpr uint32_t TILE_STRIDE = TILE_RUNS * 32 + 16;

template <class Format> DEVICE void integer_tile(const ProductArguments &arguments) {
    SHARED uint32_t w_codes[TILE * TILE_STRIDE / 4];
    SHARED uint32_t x_codes[TILE * TILE_STRIDE / 4];
    // `d` and `m` of both halves; `e` and both sums.
    SHARED float w_factors[TILE][TILE_RUNS][4];
    SHARED float x_factors[TILE][TILE_RUNS][4];
    SHARED uint32_t x_rows[TILE];
    const Place place = place_of(arguments, TILE, TILE);
    if (place.tokens == 0) return;
    if (thread() < place.tokens) x_rows[thread()] = row_of_x(arguments, place.first_token + thread());
    barrier();
    const Weight &first = place.set->weights[place.first], &second = place.set->weights[place.second];
    const uint32_t runs = arguments.columns / 32, g = lane() / 4, t = lane() % 4, own = warp() * 16;
    float sums[8][4] = {};
    for (uint32_t from = 0; from < runs; from += TILE_RUNS) {
        for (uint32_t at = thread(); at < TILE * TILE_RUNS; at += TILE_THREADS) {
            uint32_t tile = at / TILE_RUNS, run = at % TILE_RUNS;
            bool is_second;
            uint32_t row = tile_row(arguments, place, tile, is_second);
            const Weight &weight = is_second ? second : first;
            Run part = {};
            if (row < weight.rows && from + run < runs) Format::load(weight, stored_row(weight, row), from + run, part);
#pragma unroll
            for (uint32_t i = 0; i < 8; i++) w_codes[(tile * TILE_STRIDE + run * 32) / 4 + i] = part.q[i];
#pragma unroll
            for (uint32_t i = 0; i < 2; i++) {
                w_factors[tile][run][i] = part.d[i];
                w_factors[tile][run][i + 2] = part.m[i];
            }
            typename Integers<Format>::X x = {};
            if (tile < place.tokens && from + run < runs) x.template load<true>(arguments, x_rows[tile], from + run);
#pragma unroll
            for (uint32_t i = 0; i < 8; i++) x_codes[(tile * TILE_STRIDE + run * 32) / 4 + i] = x.p[i];
#pragma unroll
            for (uint32_t i = 0; i < 3; i++) x_factors[tile][run][i] = x.factors[i];
        }
        barrier();
        for (uint32_t run = 0; run < TILE_RUNS && from + run < runs; run++) {
            uint32_t a[4];
#pragma unroll
            for (uint32_t i = 0; i < 4; i++) {
                a[i] = w_codes[((own + g + i % 2 * 8) * TILE_STRIDE + run * 32 + i / 2 * 16) / 4 + t];
            }
            const float *upper = w_factors[own + g][run], *lower = w_factors[own + g + 8][run];
#pragma unroll
            for (uint32_t n = 0; n < 8; n++) {
                // The number of rows of x is the same for all threads.
                if (8 * n >= place.tokens) break;
                const uint32_t *from_x = x_codes + ((8 * n + g) * TILE_STRIDE + run * 32) / 4 + t;
                uint32_t b[2] = {from_x[0], from_x[4]};
                int32_t c[4] = {}, c2[4] = {};
                if (Format::HALVES) {
                    uint32_t a2[2] = {a[2], a[3]};
                    multiply_s8_16(c, a, b[0]);
                    multiply_s8_16(c2, a2, b[1]);
                } else {
                    multiply_s8_32(c, a, b);
                }
#pragma unroll
                for (uint32_t i = 0; i < 4; i++) {
                    const float *w = i < 2 ? upper : lower, *x = x_factors[8 * n + 2 * t + i % 2][run];
                    if (Format::HALVES) {
                        sums[n][i] += x[0] * (w[0] * (float)c[i] + w[2] * x[1] + w[1] * (float)c2[i] + w[3] * x[2]);
                    } else {
                        sums[n][i] += x[0] * (w[0] * (float)c[i] + w[2] * (x[1] + x[2]));
                    }
                }
            }
        }
        barrier();
    }
    finish_tile(arguments, place, sums);
}

// Number of columns in shared memory.
static constexpr uint32_t TILE_COLUMNS = 32;

// Scales of E4M3 are applied to sums of 32 columns, so groups must have a multiple of 32 columns,
// or span the whole row.
template <uint32_t TYPE> DEVICE void float_tile(const ProductArguments &arguments) {
    constexpr bool IS_TF32 = TYPE == PLAIN_F32 || TYPE == PLAIN_F16;
    // Words of a row, padded by four to avoid bank conflicts.
    constexpr uint32_t STRIDE = (IS_TF32 ? TILE_COLUMNS : TILE_COLUMNS / 2) + 4;
    SHARED uint32_t w_numbers[TILE * STRIDE];
    SHARED uint32_t x_numbers[TILE * STRIDE];
    SHARED float w_scales[TILE];
    SHARED uint32_t x_rows[TILE];
    const Place place = place_of(arguments, TILE, TILE);
    if (place.tokens == 0) return;
    if (thread() < place.tokens) x_rows[thread()] = row_of_x(arguments, place.first_token + thread());
    barrier();
    const Weight &first = place.set->weights[place.first], &second = place.set->weights[place.second];
    const uint32_t columns = arguments.columns, g = lane() / 4, t = lane() % 4, own = warp() * 16;
    float sums[8][4] = {};
    for (uint32_t from = 0; from < columns; from += TILE_COLUMNS) {
        for (uint32_t at = thread(); at < TILE * TILE_COLUMNS / 8; at += TILE_THREADS) {
            uint32_t tile = at / (TILE_COLUMNS / 8), eight = at % (TILE_COLUMNS / 8), column = from + 8 * eight;
            bool is_second;
            uint32_t row = tile_row(arguments, place, tile, is_second);
            const Weight &weight = is_second ? second : first;
            Eight<TYPE> w = {};
            const bool is_whole = columns % 8 == 0;
            if (row < weight.rows && column < columns) {
                uint64_t stored = stored_row(weight, row);
                if (is_whole) w.template load<true>(weight, stored, column, columns);
                else w.template load<false>(weight, stored, column, columns);
            }
            if (TYPE == PLAIN_E4M3 && eight == 0) {
                w_scales[tile] = row < weight.rows ? scale_at(weight, stored_row(weight, row), from) : 0.0f;
            }
            typename Floats<TYPE>::X x = {};
            if (tile < place.tokens && column < columns) {
                if (is_whole) x.template load<true>(arguments, x_rows[tile], column / 8);
                else x.template load<false>(arguments, x_rows[tile], column / 8);
            }
#pragma unroll
            for (uint32_t i = 0; i < (IS_TF32 ? 8 : 4); i++) {
                uint32_t w_word, x_word;
                if (IS_TF32) {
                    // Rounds to nearest with 10 mantissa bits.
                    w_word = float_to_tf32(w.x[i]);
                    x_word = float_to_tf32(x.x[i]);
                } else {
                    w_word = (uint32_t)float_to_bf16(w.x[2 * i % 8]) | (uint32_t)float_to_bf16(w.x[(2 * i + 1) % 8]) << 16;
                    x_word = (uint32_t)float_to_bf16(x.x[2 * i % 8]) | (uint32_t)float_to_bf16(x.x[(2 * i + 1) % 8]) << 16;
                }
                w_numbers[tile * STRIDE + eight * (IS_TF32 ? 8 : 4) + i] = w_word;
                x_numbers[tile * STRIDE + eight * (IS_TF32 ? 8 : 4) + i] = x_word;
            }
        }
        barrier();
        float parts[8][4] = {};
#pragma unroll
        for (uint32_t step = 0; step < (IS_TF32 ? 4 : 2); step++) {
            uint32_t a[4];
#pragma unroll
            for (uint32_t i = 0; i < 4; i++) a[i] = w_numbers[(own + g + i % 2 * 8) * STRIDE + 8 * step + i / 2 * 4 + t];
#pragma unroll
            for (uint32_t n = 0; n < 8; n++) {
                if (8 * n >= place.tokens) break;
                const uint32_t *from_x = x_numbers + (8 * n + g) * STRIDE + 8 * step + t;
                uint32_t b[2] = {from_x[0], from_x[4]};
                if (IS_TF32) multiply_tf32(parts[n], a, b);
                else multiply_bf16(parts[n], a, b);
            }
        }
#pragma unroll
        for (uint32_t n = 0; n < 8; n++) {
#pragma unroll
            for (uint32_t i = 0; i < 4; i++) {
                float scale = TYPE == PLAIN_E4M3 ? w_scales[own + g + i / 2 * 8] : 1.0f;
                sums[n][i] += scale * parts[n][i];
            }
        }
        barrier();
    }
    finish_tile(arguments, place, sums);
}
