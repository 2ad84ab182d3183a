// Routing of tokens to experts, and combination of the experts' results.
//
// - `route_experts`: a warp selects the experts of a token by their logits. The last block to
//   finish groups the routes of each expert, ordered by expert and token, for the products.
// - `mix_experts`: a thread has an element of a token, for all of its experts.
#pragma once

#include "products.cuh"

static constexpr uint32_t ROUTE_THREADS = 256;
static constexpr uint32_t ROUTE_WARPS = ROUTE_THREADS / LANES;
static constexpr uint32_t MOST_EXPERTS = 512;
// Number of routes in shared memory at a time.
static constexpr uint32_t ROUTES_AT_A_TIME = 1024;

enum RouterScores : uint32_t { SOFTMAX = 0, SIGMOID = 1, SOFTMAX_OF_CHOSEN = 2, ROOT_OF_SOFTPLUS = 3 };

struct RouteArguments {
    // `[tokens, experts]`.
    const float *logits;
    // `[experts]`, added to scores for the selection only; or null.
    const float *bias;
    // `[tokens, top_k]`: the experts of a token, the best first; their shares; their rows.
    uint32_t *chosen;
    float *weights;
    uint32_t *places;
    // The token of each row.
    uint32_t *tokens_of_rows;
    // Rows of each expert. Unused groups have no rows.
    Group *groups;
    // Number of blocks that are done; 0 before and after.
    uint32_t *done;
    float scale;
    uint32_t tokens;
    uint32_t experts;
    uint32_t top_k;
    uint32_t most_groups;
    uint32_t scores;
    uint32_t is_normalized;
    // Number of groups of experts. Only `kept` of them are considered, ranked by the sum of the
    // `best` scores of each. 0 if there are no groups.
    uint32_t group_count;
    uint32_t kept;
    uint32_t best;
};

// Shared memory of a warp: scores, ranks for the selection, and worths of groups.
struct RouteScratch {
    float scores[MOST_EXPERTS];
    float ranks[MOST_EXPERTS];
    float worths[LANES];
};

// Experts that are already selected have the rank NaN.
DEVICE bool is_taken(float rank) { return rank != rank; }

// Excludes all groups but the best from the selection; each lane has a group.
DEVICE void keep_groups(const RouteArguments &arguments, RouteScratch &scratch) {
    const uint32_t size = arguments.experts / arguments.group_count;
    float *own = scratch.ranks + lane() * size;
    if (lane() < arguments.group_count) {
        // Finds the best scores one after the other: each is below the previous one, or equal and
        // behind it.
        float sum = 0.0f, last = INFINITY;
        uint32_t last_at = 0;
        for (uint32_t i = 0; i < arguments.best; i++) {
            float best = -INFINITY;
            uint32_t best_at = size;
            for (uint32_t at = 0; at < size; at++) {
                bool is_after = i == 0 || own[at] < last || (own[at] == last && at > last_at);
                if (is_after && (best_at == size || own[at] > best)) best = own[at], best_at = at;
            }
            if (best_at == size) break;
            sum += best;
            last = best;
            last_at = best_at;
        }
        scratch.worths[lane()] = sum;
    }
    barrier_of_warp();
    if (lane() < arguments.group_count) {
        uint32_t better = 0;
        for (uint32_t other = 0; other < arguments.group_count; other++) {
            float worth = scratch.worths[other], mine = scratch.worths[lane()];
            if (worth > mine || (worth == mine && other < lane())) better++;
        }
        if (better >= arguments.kept) {
            for (uint32_t at = 0; at < size; at++) own[at] = -INFINITY;
        }
    }
    barrier_of_warp();
}

// Selects the best remaining expert, the first among equals; every lane gets it.
DEVICE uint32_t take_best(const RouteArguments &arguments, RouteScratch &scratch) {
    float best = -INFINITY;
    uint32_t at = MOST_EXPERTS;
    for (uint32_t expert = lane(); expert < arguments.experts; expert += LANES) {
        float rank = scratch.ranks[expert];
        if (!is_taken(rank) && (at == MOST_EXPERTS || rank > best)) best = rank, at = expert;
    }
    float largest = largest_of_warp(best);
    // Expert indices are exact in float32.
    bool has_it = at < MOST_EXPERTS && best == largest;
    uint32_t taken = (uint32_t)-largest_of_warp(has_it ? -(float)at : -(float)MOST_EXPERTS);
    if (lane() == 0 && taken < arguments.experts) scratch.ranks[taken] = bits_to_float(0x7fc00000u);
    barrier_of_warp();
    return min(taken, arguments.experts - 1);
}

// Selects the experts of a token, and computes their shares.
DEVICE void choose_experts(const RouteArguments &arguments, RouteScratch &scratch, uint32_t token) {
    const float *logits = arguments.logits + (uint64_t)token * arguments.experts;
    float largest = -INFINITY, check = 0.0f;
    for (uint32_t expert = lane(); expert < arguments.experts; expert += LANES) {
        largest = fmaxf(largest, logits[expert]);
        // `fmaxf` drops NaN.
        if (logits[expert] != logits[expert]) check = 1.0f;
    }
    largest = largest_of_warp(largest);
    // Infinite logits would give NaN scores.
    const bool is_finite = largest > -INFINITY && largest < INFINITY;
    const bool is_broken = largest_of_warp(check) > 0.0f || !is_finite;
    float sum = 0.0f;
    for (uint32_t expert = lane(); expert < arguments.experts; expert += LANES) {
        float logit = is_broken ? 0.0f : logits[expert], score = logit;
        if (arguments.scores == SOFTMAX) score = is_broken ? 1.0f : expf(logit - largest);
        if (arguments.scores == SIGMOID) score = sigmoid(logit);
        if (arguments.scores == ROOT_OF_SOFTPLUS) score = sqrtf(softplus(logit));
        scratch.scores[expert] = score;
        sum += score;
    }
    if (arguments.scores == SOFTMAX) sum = sum_of_warp(sum);
    for (uint32_t expert = lane(); expert < arguments.experts; expert += LANES) {
        if (arguments.scores == SOFTMAX) scratch.scores[expert] /= sum;
        float rank = scratch.scores[expert] + (arguments.bias != nullptr ? arguments.bias[expert] : 0.0f);
        // NaN in the bias must not exclude an expert, or select it twice.
        scratch.ranks[expert] = is_taken(rank) ? -INFINITY : rank;
    }
    barrier_of_warp();
    if (arguments.group_count > 0) keep_groups(arguments, scratch);
    uint32_t *chosen = arguments.chosen + (uint64_t)token * arguments.top_k;
    float *weights = arguments.weights + (uint64_t)token * arguments.top_k;
    float first = 0.0f, all = 0.0f;
    for (uint32_t i = 0; i < arguments.top_k; i++) {
        uint32_t expert = take_best(arguments, scratch);
        if (lane() != 0) continue;
        float score = scratch.scores[expert];
        // With a bias, the first expert may not have the largest score, so the maximum is computed.
        first = i == 0 ? score : fmaxf(first, score);
        chosen[i] = expert;
        weights[i] = score;
    }
    if (lane() != 0) return;
    const bool is_softmax = arguments.scores == SOFTMAX_OF_CHOSEN;
    for (uint32_t i = 0; i < arguments.top_k; i++) {
        if (is_softmax) weights[i] = expf(weights[i] - first);
        all += weights[i];
    }
    // Scores that are all 0 stay 0.
    float factor = arguments.is_normalized || is_softmax ? arguments.scale / fmaxf(all, 1e-20f) : arguments.scale;
    // Damaged weights give NaN shares, which show up in the model's logits.
    if (is_broken) factor = bits_to_float(0x7fc00000u);
    for (uint32_t i = 0; i < arguments.top_k; i++) weights[i] *= factor;
}

// Calls `each` with the index and expert of every route, in tiles; all threads see all routes.
template <class Each> DEVICE void over_routes(const RouteArguments &arguments, uint32_t *tile, Each each) {
    // Volatile, because this block's cache may not have the writes of other blocks.
    const volatile uint32_t *chosen = arguments.chosen;
    const uint32_t routes = arguments.tokens * arguments.top_k;
    for (uint32_t from = 0; from < routes; from += ROUTES_AT_A_TIME) {
        const uint32_t count = min(ROUTES_AT_A_TIME, routes - from);
        for (uint32_t at = thread(); at < count; at += ROUTE_THREADS) tile[at] = chosen[from + at];
        barrier();
        for (uint32_t at = 0; at < count; at++) each(from + at, tile[at]);
        barrier();
    }
}

// Groups the routes by expert; a thread has experts that are ROUTE_THREADS apart.
DEVICE void group_routes(const RouteArguments &arguments, uint32_t *tile, uint32_t *counts) {
    constexpr uint32_t EACH = MOST_EXPERTS / ROUTE_THREADS;
    uint32_t own[EACH] = {}, next[EACH];
    over_routes(arguments, tile, [&](uint32_t, uint32_t expert) {
#pragma unroll
        for (uint32_t i = 0; i < EACH; i++) own[i] += expert == thread() + i * ROUTE_THREADS ? 1 : 0;
    });
#pragma unroll
    for (uint32_t i = 0; i < EACH; i++) counts[thread() + i * ROUTE_THREADS] = own[i];
    barrier();
    uint32_t used = 0;
    for (uint32_t expert = 0; expert < arguments.experts; expert++) used += counts[expert] > 0 ? 1 : 0;
#pragma unroll
    for (uint32_t i = 0; i < EACH; i++) {
        const uint32_t expert = thread() + i * ROUTE_THREADS;
        uint32_t group = 0;
        next[i] = 0;
        for (uint32_t before = 0; before < min(expert, arguments.experts); before++) {
            next[i] += counts[before];
            group += counts[before] > 0 ? 1 : 0;
        }
        if (own[i] > 0) arguments.groups[group] = {expert, next[i], own[i], 0};
    }
    for (uint32_t at = used + thread(); at < arguments.most_groups; at += ROUTE_THREADS) arguments.groups[at] = {0, 0, 0, 0};
    over_routes(arguments, tile, [&](uint32_t route, uint32_t expert) {
#pragma unroll
        for (uint32_t i = 0; i < EACH; i++) {
            if (expert != thread() + i * ROUTE_THREADS) continue;
            arguments.places[route] = next[i];
            arguments.tokens_of_rows[next[i]] = route / arguments.top_k;
            next[i]++;
        }
    });
}

KERNEL(route_experts, ROUTE_THREADS, RouteArguments) {
    SHARED RouteScratch scratch[ROUTE_WARPS];
    SHARED uint32_t is_last;
    const uint32_t token = block_x() * ROUTE_WARPS + warp();
    if (token < arguments.tokens) choose_experts(arguments, scratch[warp()], token);
    if (!is_last_of(arguments.done, blocks_x(), &is_last)) return;
    // The scores are not needed any more.
    uint32_t *shared = (uint32_t *)scratch;
    group_routes(arguments, shared, shared + ROUTES_AT_A_TIME);
}

struct MixArguments {
    // Results of experts, `[rows, width]`.
    const float *made;
    // See `RouteArguments`.
    const uint32_t *places;
    const float *weights;
    // `[tokens, width]`, added to the experts' results; or null.
    const float *sum;
    // Residual: the output is `residual + scale · y`; or null.
    const float *residual;
    float *out;
    float scale;
    uint32_t width;
    uint32_t top_k;
    uint32_t unused;
};

static constexpr uint32_t MIX_THREADS = 256;

KERNEL(mix_experts, MIX_THREADS, MixArguments) {
    const uint32_t width = arguments.width, at = block_x() * MIX_THREADS + thread();
    const uint64_t token = block_y();
    if (at >= width) return;
    float y = arguments.sum != nullptr ? arguments.sum[token * width + at] : 0.0f;
    for (uint32_t i = 0; i < arguments.top_k; i++) {
        const uint64_t route = token * arguments.top_k + i;
        y += arguments.weights[route] * arguments.made[(uint64_t)arguments.places[route] * width + at];
    }
    if (arguments.residual != nullptr) y = arguments.residual[token * width + at] + arguments.scale * y;
    arguments.out[token * width + at] = y;
}
