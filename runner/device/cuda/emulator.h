// CUDA's threads and intrinsics on a CPU, for tests: computes the same as a GPU, block by block.
//
// The threads of a block are fibers with stacks of their own, which run one at a time. A fiber runs
// up to a barrier or a warp operation, then the next one runs. So kernels run as they are written,
// with their indices, barriers and fragments. The order of the fibers reveals missing barriers:
// they run from the first to the last, or (`lode_emulate` with `backwards`) from the last to the
// first.
//
// Not emulated: timing, caches, the memory model. Requires x86-64 with the System V ABI.
#pragma once

#include <assert.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DEVICE static inline
#define METHOD inline
#define TABLE static const
// Blocks run one after the other, so they can share static memory.
#define SHARED static

struct Words16 {
    uint32_t x, y, z, w;
};

namespace emulator {

// The stack size is not a power of two, so that stacks do not compete for the same cache lines.
static constexpr uint32_t MOST_THREADS_OF_BLOCK = 1024, STACK = (64 << 10) + 832, MOST_SHARED = 228 << 10;

// A barrier: threads of a block or of a warp wait for one another.
struct Meeting {
    // Number of threads that have not ended, and number of these that have arrived.
    uint32_t members, here;
    // Number of times that all threads have arrived.
    uint64_t count;

    void leave() {
        members--;
        if (here > 0) check();
    }
    void check() {
        if (here < members) return;
        here = 0;
        count++;
    }
};

struct Fiber {
    void *stack_pointer;
    bool is_over;
    // The barrier that it waits for, and the barrier's count on arrival.
    const Meeting *meeting;
    uint64_t before;
};

struct GpuRuntime {
    Fiber fibers[MOST_THREADS_OF_BLOCK];
    uint8_t *stacks;
    void *scheduler;
    uint32_t block[3], grid[3], threads, current;
    Meeting block_meeting, warp_meetings[MOST_THREADS_OF_BLOCK / 32];
    // Words that the lanes of a warp exchange.
    uint64_t shown[MOST_THREADS_OF_BLOCK][8];
    // Result of a warp operation, and the barrier count at which it was computed. The first lane to
    // continue computes it for all.
    float made[MOST_THREADS_OF_BLOCK / 32];
    uint64_t made_at[MOST_THREADS_OF_BLOCK / 32];
    alignas(16) uint8_t shared[MOST_SHARED];
    void (*body)(const void *);
    const void *arguments;
};
static GpuRuntime machine;

// Saves the callee-saved registers, and resumes another fiber.
extern "C" void lode_switch(void **save, void *load);
asm(R"(
.text
.type lode_switch,@function
lode_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
.size lode_switch,.-lode_switch
)");

static void leave() { lode_switch(&machine.fibers[machine.current].stack_pointer, machine.scheduler); }

static void begin() {
    machine.body(machine.arguments);
    machine.fibers[machine.current].is_over = true;
    // Barriers do not wait for threads that have ended.
    machine.block_meeting.leave();
    machine.warp_meetings[machine.current / 32].leave();
    leave();
    abort();
}

// Runs every fiber that can continue; returns whether any fiber has not ended.
static bool turn(bool backwards) {
    bool goes_on = false, has_moved = false;
    for (uint32_t at = 0; at < machine.threads; at++) {
        machine.current = backwards ? machine.threads - 1 - at : at;
        Fiber &fiber = machine.fibers[machine.current];
        if (fiber.is_over) continue;
        goes_on = true;
        if (fiber.meeting != nullptr && fiber.meeting->count == fiber.before) continue;
        has_moved = true;
        lode_switch(&machine.scheduler, fiber.stack_pointer);
    }
    if (goes_on && !has_moved) {
        fprintf(stderr, "emulator: threads wait for others that never come\n");
        abort();
    }
    return goes_on;
}

static void run_block(bool backwards) {
    machine.block_meeting = {machine.threads, 0, 0};
    for (uint32_t at = 0; at < machine.threads / 32; at++) machine.warp_meetings[at] = {32, 0, 0}, machine.made_at[at] = 0;
    for (uint32_t at = 0; at < machine.threads; at++) {
        // A stack as `lode_switch` leaves it: six registers and the return address. At function
        // entry, the stack pointer is 8 bytes off a multiple of 16.
        uint8_t *top = machine.stacks + (uint64_t)(at + 1) * STACK - 8;
        void **frame = (void **)top - 7;
        memset(frame, 0, 7 * sizeof *frame);
        frame[6] = (void *)begin;
        machine.fibers[at] = {frame, false, nullptr, 0};
    }
    while (turn(backwards)) {
    }
}

// Waits until all threads have arrived.
static void meet(Meeting &meeting) {
    Fiber &own = machine.fibers[machine.current];
    own.meeting = &meeting;
    own.before = meeting.count;
    meeting.here++;
    meeting.check();
    if (meeting.count == own.before) leave();
    own.meeting = nullptr;
}
static void meet_warp() { meet(machine.warp_meetings[machine.current / 32]); }

} // namespace emulator

static inline uint32_t min(uint32_t a, uint32_t b) { return a < b ? a : b; }
static inline uint32_t max(uint32_t a, uint32_t b) { return a > b ? a : b; }
DEVICE uint32_t block_x() { return emulator::machine.block[0]; }
DEVICE uint32_t block_y() { return emulator::machine.block[1]; }
DEVICE uint32_t block_z() { return emulator::machine.block[2]; }
DEVICE uint32_t blocks_x() { return emulator::machine.grid[0]; }
DEVICE uint32_t blocks_y() { return emulator::machine.grid[1]; }
DEVICE uint32_t thread() { return emulator::machine.current; }
DEVICE uint32_t threads() { return emulator::machine.threads; }
DEVICE void barrier() { emulator::meet(emulator::machine.block_meeting); }
DEVICE void barrier_of_warp() { emulator::meet_warp(); }
DEVICE void fence() {}
DEVICE uint32_t count_up(uint32_t *counter) { return (*counter)++; }
DEVICE uint8_t *shared_memory() { return emulator::machine.shared; }

// Exchanges `count` words within the warp; `lanes()[lane]` are those of a lane. No further exchange
// may start before `shown_to_all`.
DEVICE uint64_t (*show(const uint32_t *words, int count))[8] {
    uint32_t own = thread(), first = own / 32 * 32;
    for (int i = 0; i < count; i++) emulator::machine.shown[own][i] = words[i];
    emulator::meet_warp();
    return emulator::machine.shown + first;
}
DEVICE void shown_to_all() { emulator::meet_warp(); }

DEVICE float bits_to_float(uint32_t bits) {
    float x;
    memcpy(&x, &bits, 4);
    return x;
}
DEVICE uint32_t float_to_bits(float x) {
    uint32_t bits;
    memcpy(&bits, &x, 4);
    return bits;
}
DEVICE float half_to_float(uint16_t bits) {
    uint32_t sign = (bits & 0x8000u) << 16, magnitude = bits & 0x7fffu;
    if (magnitude >= 0x7c00u) return bits_to_float(sign | 0x7f800000u | (magnitude & 0x3ffu) << 13);
    if (magnitude >= 0x400u) return bits_to_float(sign | ((magnitude << 13) + (112u << 23)));
    return bits_to_float(float_to_bits((float)magnitude / 16777216.0f) | sign);
}
DEVICE uint16_t float_to_half(float x) {
    uint32_t bits = float_to_bits(x), sign = bits >> 16 & 0x8000u, magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u) return (uint16_t)(sign | 0x7e00u);
    // 65520 and more become infinity.
    if (magnitude >= 0x477ff000u) return (uint16_t)(sign | 0x7c00u);
    if (magnitude < 0x38800000u) return (uint16_t)(sign | (uint32_t)rintf(bits_to_float(magnitude) * 16777216.0f));
    return (uint16_t)(sign | ((magnitude - (112u << 23) + 0xfffu + (magnitude >> 13 & 1u)) >> 13));
}
DEVICE float round_to_even(float x) { return rintf(x); }

DEVICE int32_t dot4(uint32_t a, uint32_t b, int32_t sum) {
    for (int i = 0; i < 4; i++) sum += (int32_t)(int8_t)(a >> (8 * i)) * (int32_t)(int8_t)(b >> (8 * i));
    return sum;
}
DEVICE uint32_t subtract4(uint32_t a, uint32_t b) {
    uint32_t c = 0;
    for (int i = 0; i < 4; i++) c |= (((a >> (8 * i)) - (b >> (8 * i))) & 255u) << (8 * i);
    return c;
}
DEVICE uint32_t permute(uint32_t low, uint32_t high, uint32_t selector) {
    uint64_t bytes = (uint64_t)high << 32 | low;
    uint32_t out = 0;
    for (int i = 0; i < 4; i++) {
        uint32_t from = selector >> (4 * i) & 15u, byte = (uint32_t)(bytes >> (8 * (from & 7u))) & 255u;
        if (from & 8u) byte = byte & 128u ? 255u : 0u;
        out |= byte << (8 * i);
    }
    return out;
}

// Reduces the numbers of all lanes pairwise, in the order of shuffles.
template <class Both> DEVICE float over_warp(float x, Both both) {
    uint32_t bits = float_to_bits(x);
    uint64_t (*lanes)[8] = show(&bits, 1);
    uint32_t own = thread() / 32;
    uint64_t now = emulator::machine.warp_meetings[own].count;
    if (emulator::machine.made_at[own] != now) {
        float all[32];
        for (uint32_t lane = 0; lane < 32; lane++) all[lane] = bits_to_float((uint32_t)lanes[lane][0]);
        for (uint32_t width = 16; width > 0; width /= 2) {
            for (uint32_t lane = 0; lane < width; lane++) all[lane] = both(all[lane], all[lane + width]);
        }
        emulator::machine.made[own] = all[0];
        emulator::machine.made_at[own] = now;
    }
    float made = emulator::machine.made[own];
    shown_to_all();
    return made;
}
DEVICE float sum_of_warp(float x) {
    return over_warp(x, [](float a, float b) { return a + b; });
}
DEVICE float largest_of_warp(float x) {
    return over_warp(x, [](float a, float b) { return fmaxf(a, b); });
}

// The same for four lanes.
template <class Both> DEVICE float over_four(float x, Both both) {
    uint32_t bits = float_to_bits(x);
    uint64_t (*lanes)[8] = show(&bits, 1);
    uint32_t first = thread() % 32 / 4 * 4;
    float all[4];
    for (uint32_t lane = 0; lane < 4; lane++) all[lane] = bits_to_float((uint32_t)lanes[first + lane][0]);
    shown_to_all();
    return both(both(all[0], all[2]), both(all[1], all[3]));
}
DEVICE float sum_of_four(float x) {
    return over_four(x, [](float a, float b) { return a + b; });
}
DEVICE float largest_of_four(float x) {
    return over_four(x, [](float a, float b) { return fmaxf(a, b); });
}

// Elements of the operands by row and column, from the lanes that hold them. `bytes` is the size of
// an element, `deep` the length of the sum.
namespace emulator {
static uint32_t element(const uint32_t word, uint32_t bytes, uint32_t at) {
    return bytes == 4 ? word : word >> (8 * bytes * at) & ((1u << (8 * bytes)) - 1u);
}
// A: rows g and g + 8, then the same rows for the next columns, after the words of four lanes.
static uint32_t of_a(uint64_t (*lanes)[8], uint32_t row, uint32_t k, uint32_t bytes) {
    uint32_t in_word = 4 / bytes, in_four = 4 * in_word;
    uint64_t *lane = lanes[row % 8 * 4 + k % in_four / in_word];
    return element((uint32_t)lane[row / 8 + 2 * (k / in_four)], bytes, k % in_word);
}
static uint32_t of_b(uint64_t (*lanes)[8], uint32_t k, uint32_t column, uint32_t bytes) {
    uint32_t in_word = 4 / bytes, in_four = 4 * in_word;
    uint64_t *lane = lanes[column * 4 + k % in_four / in_word];
    return element((uint32_t)lane[4 + k / in_four], bytes, k % in_word);
}
template <class Sum, class Product>
static void multiply(Sum c[4], const uint32_t *a, int a_words, const uint32_t *b, int b_words, uint32_t deep, uint32_t bytes, Product product) {
    uint32_t words[8] = {};
    for (int i = 0; i < a_words; i++) words[i] = a[i];
    for (int i = 0; i < b_words; i++) words[4 + i] = b[i];
    uint64_t (*lanes)[8] = show(words, 8);
    uint32_t g = thread() % 32 / 4, t = thread() % 4;
    for (uint32_t i = 0; i < 4; i++) {
        Sum sum = c[i];
        for (uint32_t k = 0; k < deep; k++) sum += product(of_a(lanes, g + i / 2 * 8, k, bytes), of_b(lanes, k, 2 * t + i % 2, bytes));
        c[i] = sum;
    }
    shown_to_all();
}
} // namespace emulator

DEVICE void multiply_s8_32(int32_t c[4], const uint32_t a[4], const uint32_t b[2]) {
    emulator::multiply(c, a, 4, b, 2, 32, 1, [](uint32_t x, uint32_t y) { return (int32_t)(int8_t)x * (int32_t)(int8_t)y; });
}
DEVICE void multiply_s8_16(int32_t c[4], const uint32_t a[2], uint32_t b) {
    emulator::multiply(c, a, 2, &b, 1, 16, 1, [](uint32_t x, uint32_t y) { return (int32_t)(int8_t)x * (int32_t)(int8_t)y; });
}
DEVICE void multiply_bf16(float c[4], const uint32_t a[4], const uint32_t b[2]) {
    emulator::multiply(c, a, 4, b, 2, 16, 2, [](uint32_t x, uint32_t y) { return bits_to_float(x << 16) * bits_to_float(y << 16); });
}
DEVICE void multiply_tf32(float c[4], const uint32_t a[4], const uint32_t b[2]) {
    emulator::multiply(c, a, 4, b, 2, 8, 4, [](uint32_t x, uint32_t y) {
        return bits_to_float(x & 0xffffe000u) * bits_to_float(y & 0xffffe000u);
    });
}

// A kernel becomes a symbol that is found by name: the size of its argument, and its body.
struct EmulatedKernel {
    uint64_t size;
    void (*body)(const void *);
};
#define KERNEL(name, threads, Arguments)                                                                  \
    static void body_of_##name(const Arguments &arguments);                                               \
    extern "C" EmulatedKernel kernel_##name;                                                              \
    EmulatedKernel kernel_##name = {                                                                      \
        sizeof(Arguments), [](const void *arguments) { body_of_##name(*(const Arguments *)arguments); }}; \
    static void body_of_##name(const Arguments &arguments)

// Runs all blocks of a grid one after the other.
extern "C" void lode_emulate(const EmulatedKernel *kernel, const uint32_t grid[3], uint32_t threads, const void *arguments, bool backwards) {
    using namespace emulator;
    assert(threads > 0 && threads <= MOST_THREADS_OF_BLOCK && threads % 32 == 0);
    if (machine.stacks == nullptr) machine.stacks = (uint8_t *)aligned_alloc(4096, (uint64_t)MOST_THREADS_OF_BLOCK * STACK);
    machine.threads = threads;
    machine.body = kernel->body;
    machine.arguments = arguments;
    memcpy(machine.grid, grid, sizeof machine.grid);
    // NaN reveals shared memory that was not written.
    memset(machine.shared, 0xff, sizeof machine.shared);
    for (uint32_t z = 0; z < grid[2]; z++) {
        for (uint32_t y = 0; y < grid[1]; y++) {
            for (uint32_t x = 0; x < grid[0]; x++) {
                machine.block[0] = x, machine.block[1] = y, machine.block[2] = z;
                run_block(backwards);
            }
        }
    }
}
