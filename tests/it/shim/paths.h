/*
 * Paths and descriptors below the root.
 *
 * The table has an entry for each open descriptor of a file or folder below the root: the path at
 * the time of opening. A later rename of a folder does not update it. The check for an entry takes
 * no lock, because a signal handler may write to a pipe while this thread holds the lock. Only
 * operations on tracked descriptors take it.
 */
#ifndef PATHS_H
#define PATHS_H

#include "control.h"

#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

enum { DESCRIPTORS = 65536 };

static char root[PATH_MAX];
static size_t root_length;
static char *opened[DESCRIPTORS];
static pthread_mutex_t opened_lock = PTHREAD_MUTEX_INITIALIZER;

/* Whether the descriptor belongs to a file below the root, in the observed process. */
static bool tracked(int fd)
{
    return fd >= 0 && fd < DESCRIPTORS && __atomic_load_n(&opened[fd], __ATOMIC_ACQUIRE) != NULL && at_work();
}

/* Sets the path of a new descriptor; null removes the entry of its number. */
static void track(int fd, const char *path)
{
    if (fd < 0 || fd >= DESCRIPTORS || (path == NULL && __atomic_load_n(&opened[fd], __ATOMIC_ACQUIRE) == NULL)
        || !at_work()) {
        return;
    }
    int error = errno;
    char *copy = path == NULL ? NULL : strdup(path);
    pthread_mutex_lock(&opened_lock);
    char *before = __atomic_exchange_n(&opened[fd], copy, __ATOMIC_ACQ_REL);
    pthread_mutex_unlock(&opened_lock);
    free(before);
    errno = error;
}

static bool path_of(int fd, char path[PATH_MAX])
{
    path[0] = '\0';
    if (tracked(fd)) {
        pthread_mutex_lock(&opened_lock);
        if (opened[fd] != NULL) {
            snprintf(path, PATH_MAX, "%s", opened[fd]);
        }
        pthread_mutex_unlock(&opened_lock);
    }
    return path[0] != '\0';
}

/* Sets the path of `to`, which is now a duplicate of `from`. */
static void track_duplicate(int from, int to)
{
    char path[PATH_MAX];
    if (to >= 0 && to != from) {
        track(to, path_of(from, path) ? path : NULL);
    }
}

/* Determines the folder that a relative path starts from. */
static bool start_of(int folder, char path[PATH_MAX])
{
    if (folder == AT_FDCWD) {
        return syscall(SYS_getcwd, path, PATH_MAX) > 0 && path[0] == '/';
    }
    if (path_of(folder, path)) {
        return true;
    }
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", folder);
    long length = syscall(SYS_readlink, link, path, PATH_MAX - 1);
    path[length < 0 ? 0 : length] = '\0';
    return path[0] == '/';
}

/* Resolves `.`, `..` and doubled slashes textually. */
static bool normalise(const char *path, char full[PATH_MAX])
{
    size_t length = 0;
    while (*path != '\0') {
        path += strspn(path, "/");
        size_t part = strcspn(path, "/");
        if (part == 2 && path[0] == '.' && path[1] == '.') {
            while (length > 0 && full[--length] != '/') {
            }
        } else if (part > 0 && !(part == 1 && path[0] == '.')) {
            if (length + part + 2 > PATH_MAX) {
                return false;
            }
            full[length++] = '/';
            memcpy(full + length, path, part);
            length += part;
        }
        path += part;
    }
    if (length == 0) {
        full[length++] = '/';
    }
    full[length] = '\0';
    return true;
}

/*
 * The headers declare paths as nonnull, so the compiler would remove a plain check. Callers do pass
 * null, and expect EFAULT.
 */
static inline bool is_null(const char *path)
{
    __asm__("" : "+r"(path));
    return path == NULL;
}

static bool absolute(int folder, const char *path, char full[PATH_MAX])
{
    static const char own[] = "/proc/self/fd/";
    full[0] = '\0';
    if (is_null(path) || strlen(path) >= PATH_MAX) {
        return false;
    }
    if (path[0] == '/') {
        bool is_own = strncmp(path, own, sizeof own - 1) == 0;
        return (is_own && path_of(atoi(path + sizeof own - 1), full)) || normalise(path, full);
    }
    char start[PATH_MAX], joined[2 * PATH_MAX + 1];
    if (!start_of(folder, start)) {
        return false;
    }
    snprintf(joined, sizeof joined, "%s/%s", start, path);
    return normalise(joined, full);
}

/*
 * Writes the full path. Returns whether it is the root or below it, and the shim is active in this
 * process.
 */
static bool below_root(int folder, const char *path, char full[PATH_MAX])
{
    full[0] = '\0';
    if (!at_work()) {
        return false;
    }
    int error = errno;
    bool below = absolute(folder, path, full) && strncmp(full, root, root_length) == 0
                 && (full[root_length] == '\0' || full[root_length] == '/');
    errno = error;
    return below;
}

/* Stats a path without following a link. Returns false if nothing is there. Keeps `errno`. */
static bool look(int folder, const char *path, int flags, struct stat *found)
{
    int error = errno;
    memset(found, 0, sizeof *found);
    bool there = syscall(SYS_newfstatat, folder, path, found, flags) == 0;
    errno = error;
    return there;
}

static struct stat look_at(int fd)
{
    struct stat found;
    look(fd, "", AT_EMPTY_PATH, &found);
    return found;
}

#endif
