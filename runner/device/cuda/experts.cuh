// Which experts tokens are computed by, and what those make of them.
//
// `route_experts`: a warp chooses the experts of a token by their logits; the last block that is done puts the routes of each expert together, in the
// order of experts and of tokens, as groups for products. `mix_experts`: a thread has an element of a token, of all experts that were chosen for it.
#pragma once

#include "products.cuh"

static constexpr uint32_t ROUTE_THREADS = 256;
static constexpr uint32_t ROUTE_WARPS = ROUTE_THREADS / LANES;
static constexpr uint32_t MOST_EXPERTS = 512;
// Routes that are in shared memory at a time.
static constexpr uint32_t ROUTES_AT_A_TIME = 1024;

enum RouterScores : uint32_t { SOFTMAX = 0, SIGMOID = 1, SOFTMAX_OF_CHOSEN = 2 };

struct RouteArguments {
    // `[tokens, experts]`.
    const float *logits;
    // `[experts]`, added to scores for the choice only; or nothing.
    const float *bias;
    // `[tokens, top_k]`: the experts of a token, the best first; what each has a share of; where its row is among those of all.
    uint32_t *chosen;
    float *weights;
    uint32_t *places;
    // The token of each row.
    uint32_t *tokens_of_rows;
    // Those behind the last that is needed have no rows.
    Group *groups;
    // How many blocks are done, which is 0 before and after.
    uint32_t *done;
    float scale;
    uint32_t tokens;
    uint32_t experts;
    uint32_t top_k;
    uint32_t most_groups;
    uint32_t scores;
    uint32_t is_normalized;
    // Groups of experts of which `kept` count, by the sum of the `best` of each; 0 where all count.
    uint32_t group_count;
    uint32_t kept;
    uint32_t best;
};

// What a warp has in shared memory: scores, ranks by which it chooses, and what groups are worth.
struct RouteScratch {
    float scores[MOST_EXPERTS];
    float ranks[MOST_EXPERTS];
    float worths[LANES];
};

// What is chosen already is marked by what is not a number.
DEVICE bool is_taken(float rank) { return rank != rank; }

// Takes all but the best groups out of the choice; a lane has a group.
DEVICE void keep_groups(const RouteArguments &arguments, RouteScratch &scratch) {
    const uint32_t size = arguments.experts / arguments.group_count;
    float *own = scratch.ranks + lane() * size;
    if (lane() < arguments.group_count) {
        // The few best: found one after the other, each below the one before it or behind it.
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

// The best that is not taken, the first of equals; every lane has it.
DEVICE uint32_t take_best(const RouteArguments &arguments, RouteScratch &scratch) {
    float best = -INFINITY;
    uint32_t at = MOST_EXPERTS;
    for (uint32_t expert = lane(); expert < arguments.experts; expert += LANES) {
        float rank = scratch.ranks[expert];
        if (!is_taken(rank) && (at == MOST_EXPERTS || rank > best)) best = rank, at = expert;
    }
    float largest = largest_of_warp(best);
    // Numbers of experts are exact as float32.
    bool has_it = at < MOST_EXPERTS && best == largest;
    uint32_t taken = (uint32_t)-largest_of_warp(has_it ? -(float)at : -(float)MOST_EXPERTS);
    if (lane() == 0 && taken < arguments.experts) scratch.ranks[taken] = bits_to_float(0x7fc00000u);
    barrier_of_warp();
    return min(taken, arguments.experts - 1);
}

// Chooses the experts of a token, and what shares they have.
DEVICE void choose_experts(const RouteArguments &arguments, RouteScratch &scratch, uint32_t token) {
    const float *logits = arguments.logits + (uint64_t)token * arguments.experts;
    float largest = -INFINITY, check = 0.0f;
    for (uint32_t expert = lane(); expert < arguments.experts; expert += LANES) {
        largest = fmaxf(largest, logits[expert]);
        // What is not a number is lost by `fmaxf`.
        if (logits[expert] != logits[expert]) check = 1.0f;
    }
    largest = largest_of_warp(largest);
    // Infinite ones would make scores that are none.
    const bool is_finite = largest > -INFINITY && largest < INFINITY;
    const bool is_broken = largest_of_warp(check) > 0.0f || !is_finite;
    float sum = 0.0f;
    for (uint32_t expert = lane(); expert < arguments.experts; expert += LANES) {
        float logit = is_broken ? 0.0f : logits[expert], score = logit;
        if (arguments.scores == SOFTMAX) score = is_broken ? 1.0f : expf(logit - largest);
        if (arguments.scores == SIGMOID) score = sigmoid(logit);
        scratch.scores[expert] = score;
        sum += score;
    }
    if (arguments.scores == SOFTMAX) sum = sum_of_warp(sum);
    for (uint32_t expert = lane(); expert < arguments.experts; expert += LANES) {
        if (arguments.scores == SOFTMAX) scratch.scores[expert] /= sum;
        float rank = scratch.scores[expert] + (arguments.bias != nullptr ? arguments.bias[expert] : 0.0f);
        // A bias that is damaged: a token still goes to an expert once.
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
        // With a bias the first chosen may not have the largest score; it is found below.
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
    // Scores that are all 0 stay so.
    float factor = arguments.is_normalized || is_softmax ? arguments.scale / fmaxf(all, 1e-20f) : arguments.scale;
    // Weights that are damaged are told by the logits of the model.
    if (is_broken) factor = bits_to_float(0x7fc00000u);
    for (uint32_t i = 0; i < arguments.top_k; i++) weights[i] *= factor;
}

// Hands each route of a tile of all to `each`, with its number: all threads see all routes.
template <class Each> DEVICE void over_routes(const RouteArguments &arguments, uint32_t *tile, Each each) {
    // What other blocks wrote is not in this one's cache.
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

// Puts the routes of each expert together; a thread has experts that are ROUTE_THREADS apart.
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
    // Nobody needs scores any more.
    uint32_t *shared = (uint32_t *)scratch;
    group_routes(arguments, shared, shared + ROUTES_AT_A_TIME);
}

struct MixArguments {
    // What experts made, `[rows, width]`.
    const float *made;
    // See `RouteArguments`.
    const uint32_t *places;
    const float *weights;
    // `[tokens, width]`: what is there without them, or nothing.
    const float *sum;
    // `residual + scale · y`, or nothing.
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
