/*
 * A library for LD_PRELOAD that intercepts a program's calls of the C library's file functions. It
 * makes a chosen call fail, or records changes, so that a test can build each state that a power
 * cut could leave.
 *
 * A control file, which the test shares, sets the mode (`control.h`). A root folder limits the
 * files that count (`paths.h`). Changes are written to a log (`record.h`). The paths of the three
 * come from LODE_SHIM_CONTROL, LODE_SHIM_ROOT and LODE_SHIM_LOG. These variables and LD_PRELOAD are
 * removed from the environment: children of the program run without the shim, and between fork and
 * exec their calls pass through.
 *
 * The real calls are system calls made here, so the shim never calls itself. Direct system calls of
 * the program (as in rustix), shared writable mappings and io_uring are not observed; such mappings
 * are recorded with `!`. Sockets, pipes and files outside the root cost one table lookup.
 *
 * Threads: any call may be made at any time. In record mode, calls that change files are
 * serialized.
 */
#define _GNU_SOURCE
#include "control.h"
#include "paths.h"
#include "record.h"

#include <dirent.h>
#include <dlfcn.h>
#include <linux/close_range.h>
#include <linux/falloc.h>
#include <sys/mman.h>
#include <sys/sendfile.h>

#define EXPORT __attribute__((visibility("default")))

/* The next definition of a function that does more than a system call. */
#define NEXT(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

/* Moves a descriptor to a high number, because the program may expect low ones. */
static int out_of_the_way(int fd)
{
    int high = (int)syscall(SYS_fcntl, fd, F_DUPFD_CLOEXEC, 900L);
    if (fd < 0 || high < 0) {
        fatal("a file of the shim cannot be opened, or not as descriptor 900");
    }
    syscall(SYS_close, fd);
    return high;
}

static uint64_t *map_control(const char *path)
{
    int fd = out_of_the_way((int)syscall(SYS_openat, AT_FDCWD, path, O_RDWR | O_CLOEXEC, 0));
    size_t size = KINDS_OFFSET + KINDS_LENGTH;
    if (look_at(fd).st_size < (off_t)size) {
        fatal("the control file is too short");
    }
    void *mapped = (void *)syscall(SYS_mmap, NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0L);
    if (mapped == MAP_FAILED) {
        fatal("the control file cannot be mapped");
    }
    syscall(SYS_close, fd);
    return mapped;
}

__attribute__((constructor)) static void start_up(void)
{
    const char *path = getenv("LODE_SHIM_CONTROL"), *below = getenv("LODE_SHIM_ROOT"), *log = getenv("LODE_SHIM_LOG");
    if (path != NULL) {
        if (below == NULL || below[0] != '/' || !normalise(below, root)) {
            fatal("LODE_SHIM_ROOT is not an absolute path");
        }
        root_length = strlen(root);
        if (log != NULL) {
            int flags = O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC;
            log_descriptor = out_of_the_way((int)syscall(SYS_openat, AT_FDCWD, log, flags, 0644));
        }
        owner = getpid();
        control = map_control(path);
    }
    unsetenv("LD_PRELOAD");
    unsetenv("LODE_SHIM_CONTROL");
    unsetenv("LODE_SHIM_ROOT");
    unsetenv("LODE_SHIM_LOG");
}

/* Opening */

static void record_opening(int fd, const char *full, int flags, bool existed)
{
    struct stat found = look_at(fd);
    if ((flags & O_TMPFILE) == O_TMPFILE) {
        record_unsaid("a file without a name");
    } else if (!existed) {
        record_path("C", full, found.st_ino);
    } else if ((flags & O_TRUNC) && S_ISREG(found.st_mode)) {
        record_length(found.st_ino, 0);
    }
}

static int open_at(int folder, const char *path, int flags, mode_t mode)
{
    char full[PATH_MAX];
    if (!below_root(folder, path, full)) {
        int fd = (int)syscall(SYS_openat, folder, path, flags, mode);
        track(fd, NULL);
        return fd;
    }
    struct call call = begin(KIND_OPEN);
    struct stat before;
    bool unnamed = (flags & O_TMPFILE) == O_TMPFILE;
    bool existed = !(flags & O_CREAT) || look(folder, path, 0, &before);
    bool changes = (flags & O_ACCMODE) != O_RDONLY || (flags & O_TRUNC);
    unsigned traits = (existed && !unnamed ? 0 : TRAIT_CREATES) | (changes ? TRAIT_CHANGES : 0);
    if (refused(&call, traits, 0)) {
        return (int)end(&call, -1);
    }
    int fd = (int)syscall(SYS_openat, folder, path, flags, mode);
    track(fd, full);
    if (fd >= 0 && call.recorded) {
        record_opening(fd, full, flags, existed);
    }
    return (int)end(&call, fd);
}

/* The mode argument only exists if the call may create a file. */
#define OPEN_WITH_MODE(folder, path, flags)                                                                            \
    mode_t mode = 0;                                                                                                   \
    if ((flags) & (O_CREAT | (O_TMPFILE & ~O_DIRECTORY))) {                                                            \
        va_list values;                                                                                                \
        va_start(values, flags);                                                                                       \
        mode = va_arg(values, mode_t);                                                                                 \
        va_end(values);                                                                                                \
    }                                                                                                                  \
    return open_at(folder, path, flags, mode)

EXPORT int open(const char *path, int flags, ...) { OPEN_WITH_MODE(AT_FDCWD, path, flags); }
EXPORT int open64(const char *path, int flags, ...) { OPEN_WITH_MODE(AT_FDCWD, path, flags); }
EXPORT int openat(int folder, const char *path, int flags, ...) { OPEN_WITH_MODE(folder, path, flags); }
EXPORT int openat64(int folder, const char *path, int flags, ...) { OPEN_WITH_MODE(folder, path, flags); }
EXPORT int creat(const char *path, mode_t mode) { return open(path, O_CREAT | O_WRONLY | O_TRUNC, mode); }
EXPORT int creat64(const char *path, mode_t mode) { return open(path, O_CREAT | O_WRONLY | O_TRUNC, mode); }

EXPORT DIR *opendir(const char *path)
{
    char full[PATH_MAX];
    struct call call = {.kind = KIND_OPENDIR};
    bool below = below_root(AT_FDCWD, path, full);
    if (below) {
        call = begin(KIND_OPENDIR);
        if (refused(&call, 0, 0)) {
            end(&call, -1);
            return NULL;
        }
    }
    DIR *folder = NEXT(opendir)(path);
    if (folder != NULL) {
        track(dirfd(folder), below ? full : NULL);
    }
    end(&call, 0);
    return folder;
}

/* Closing and duplicating. An entry is removed before the kernel can reuse its number. */

EXPORT int close(int fd)
{
    track(fd, NULL);
    return (int)syscall(SYS_close, fd);
}

EXPORT int closedir(DIR *folder)
{
    track(dirfd(folder), NULL);
    return NEXT(closedir)(folder);
}

EXPORT int fclose(FILE *file)
{
    track(fileno(file), NULL);
    return NEXT(fclose)(file);
}

EXPORT int close_range(unsigned first, unsigned last, int flags)
{
    for (unsigned fd = first; !(flags & CLOSE_RANGE_CLOEXEC) && fd <= last && fd < DESCRIPTORS; fd++) {
        track((int)fd, NULL);
    }
    return (int)syscall(SYS_close_range, first, last, flags);
}

static int duplicated(int from, int to)
{
    track_duplicate(from, to);
    return to;
}

EXPORT int dup(int fd) { return duplicated(fd, (int)syscall(SYS_dup, fd)); }
EXPORT int dup2(int fd, int to) { return duplicated(fd, (int)syscall(SYS_dup2, fd, to)); }
EXPORT int dup3(int fd, int to, int flags) { return duplicated(fd, (int)syscall(SYS_dup3, fd, to, flags)); }

#define FCNTL(fd, command)                                                                                             \
    va_list values;                                                                                                    \
    va_start(values, command);                                                                                         \
    long argument = va_arg(values, long);                                                                              \
    va_end(values);                                                                                                    \
    int result = (int)syscall(SYS_fcntl, fd, command, argument);                                                       \
    return (command) == F_DUPFD || (command) == F_DUPFD_CLOEXEC ? duplicated(fd, result) : result

EXPORT int fcntl(int fd, int command, ...) { FCNTL(fd, command); }
EXPORT int fcntl64(int fd, int command, ...) { FCNTL(fd, command); }

#include "bytes.h" /* content of files */
#include "names.h" /* names and metadata */
