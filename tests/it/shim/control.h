/*
 * The control file: the test's commands to the shim, and the calls that the shim has counted.
 *
 * Layout: little-endian u64 words from offset 0 (`enum word`), then from offset 4096 one byte for
 * each counted call, its kind. The test and the program share the file, so every access is atomic.
 * The index of a call is the value of the counter before it. In record mode a call is counted under
 * the record lock, so indices and records have the same order.
 */
#ifndef CONTROL_H
#define CONTROL_H

#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

enum kind {
    KIND_OPEN = 1, KIND_WRITE, KIND_SYNC, KIND_RENAME, KIND_LINK, KIND_UNLINK, KIND_MKDIR, KIND_MMAP, KIND_RMDIR,
    KIND_TRUNCATE, KIND_READ, KIND_CHMOD, KIND_OPENDIR, KIND_UTIMENS, KIND_STAT
};

enum word { WORD_MODE, WORD_COUNTER, WORD_TARGET, WORD_STICKY, WORD_ERROR, WORD_HITS, WORD_MASK, WORD_LAST_KIND };

enum mode { MODE_PASS, MODE_COUNT, MODE_INJECT, MODE_RECORD };

/* Effects of an open call, on which the possible errors depend. */
enum trait { TRAIT_CREATES = 1, TRAIT_CHANGES = 2 };

enum { KINDS_OFFSET = 4096, KINDS_LENGTH = 1 << 20, SHORT_WRITE = 100000 };

#define BIT(kind) (1ull << (kind))
#define COUNTED_BY_DEFAULT (((BIT(KIND_UTIMENS + 1) - 1) & ~BIT(0)) & ~BIT(KIND_READ))

static uint64_t *control;       /* null: the shim is inactive */
static pid_t owner;             /* forked and vforked children are ignored */
static int log_descriptor = -1; /* -1: record mode only counts */
static pthread_mutex_t record_lock = PTHREAD_MUTEX_INITIALIZER;

/*
 * A call in progress, from `begin` to `end`. While `recorded` is true, this thread holds the record
 * lock.
 */
struct call {
    enum kind kind;
    enum mode mode;
    bool recorded;
    bool shortened;
};

static inline uint64_t word(enum word which) { return __atomic_load_n(&control[which], __ATOMIC_SEQ_CST); }

/*
 * Whether the shim is active in this process. A vforked child shares the memory, so `getpid`
 * distinguishes it.
 */
static inline bool at_work(void) { return control != NULL && getpid() == owner; }

__attribute__((noreturn)) static void fatal(const char *what)
{
    /* A test that continues with an incomplete record would pass for the wrong reason. */
    struct { const char *text; size_t length; } parts[] = {{"shim: ", 6}, {what, strlen(what)}, {"\n", 1}};
    for (size_t i = 0; i < 3; i++) {
        syscall(SYS_write, 2, parts[i].text, parts[i].length);
    }
    _exit(97);
}

/* Whether a file system could return this error for this kind of call. */
static bool applies(uint64_t error, enum kind kind, unsigned traits)
{
    const uint64_t names = BIT(KIND_MKDIR) | BIT(KIND_LINK) | BIT(KIND_RENAME);
    switch (error) {
    case ENOSPC:
    case EDQUOT:
        return kind == KIND_OPEN ? (traits & TRAIT_CREATES) != 0
                                 : BIT(kind) & (names | BIT(KIND_WRITE) | BIT(KIND_TRUNCATE) | BIT(KIND_SYNC));
    case EROFS:
        return kind == KIND_OPEN ? (traits & (TRAIT_CREATES | TRAIT_CHANGES)) != 0
                                 : BIT(kind) & (names | BIT(KIND_UNLINK) | BIT(KIND_RMDIR) | BIT(KIND_CHMOD)
                                                | BIT(KIND_TRUNCATE) | BIT(KIND_UTIMENS));
    case EMFILE:
    case ENFILE:
        return BIT(kind) & (BIT(KIND_OPEN) | BIT(KIND_OPENDIR) | BIT(KIND_MMAP));
    case EACCES:
    case EPERM:
        return !(BIT(kind) & (BIT(KIND_WRITE) | BIT(KIND_SYNC) | BIT(KIND_READ) | BIT(KIND_MMAP)));
    case SHORT_WRITE:
        return kind == KIND_WRITE;
    default:
        return true;
    }
}

static struct call begin(enum kind kind)
{
    struct call call = {.kind = kind, .mode = word(WORD_MODE)};
    call.recorded = call.mode == MODE_RECORD && log_descriptor >= 0 && kind != KIND_READ && kind != KIND_STAT;
    if (call.recorded) {
        pthread_mutex_lock(&record_lock);
    }
    return call;
}

/* Ends the call and returns its result; preserves the call's `errno`. */
static long end(const struct call *call, long result)
{
    if (call->recorded) {
        int error = errno;
        pthread_mutex_unlock(&record_lock);
        errno = error;
    }
    return result;
}

static void write_down_hit(enum kind kind)
{
    __atomic_store_n(&control[WORD_LAST_KIND], kind, __ATOMIC_SEQ_CST);
    __atomic_fetch_add(&control[WORD_HITS], 1, __ATOMIC_SEQ_CST);
}

/*
 * Treats a write of `bytes` bytes as a full disk does: the first write is cut to its half, later
 * ones fail.
 */
static bool refuse_short(struct call *call, uint64_t bytes)
{
    if (bytes == 0) {
        return false;
    }
    bool first = __atomic_load_n(&control[WORD_HITS], __ATOMIC_SEQ_CST) == 0;
    write_down_hit(call->kind);
    call->shortened = first && bytes > 1;
    errno = ENOSPC;
    return !call->shortened;
}

/*
 * Counts the call. Returns whether it must fail, with the error in `errno`. A write, whose length
 * is `bytes`, may be marked `shortened` instead.
 */
static bool refused(struct call *call, unsigned traits, uint64_t bytes)
{
    uint64_t mask = word(WORD_MASK);
    if (call->mode == MODE_PASS || !((mask ? mask : COUNTED_BY_DEFAULT) & BIT(call->kind))) {
        return false;
    }
    uint64_t index = __atomic_fetch_add(&control[WORD_COUNTER], 1, __ATOMIC_SEQ_CST);
    if (index < KINDS_LENGTH) {
        __atomic_store_n((uint8_t *)control + KINDS_OFFSET + index, (uint8_t)call->kind, __ATOMIC_SEQ_CST);
    }
    uint64_t target = word(WORD_TARGET), error = word(WORD_ERROR);
    bool meant = word(WORD_STICKY) ? index >= target : index == target;
    if (call->mode != MODE_INJECT || !meant || !applies(error, call->kind, traits)) {
        return false;
    }
    if (error == SHORT_WRITE) {
        return refuse_short(call, bytes);
    }
    write_down_hit(call->kind);
    errno = call->kind == KIND_MMAP && error == EMFILE ? ENOMEM : (int)error;
    return true;
}

#endif
