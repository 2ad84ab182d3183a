/*
 * Hooks for names and metadata of files: renaming, linking, removing, folders, modes, times.
 * A part of `shim.c`.
 */
#ifndef NAMES_H
#define NAMES_H

/* The two paths of a call; the call counts if either is below the root. */
struct names {
    char from[PATH_MAX], to[PATH_MAX];
};

static bool either_below_root(int from_folder, const char *from, int to_folder, const char *to, struct names *names)
{
    bool from_below = below_root(from_folder, from, names->from);
    return below_root(to_folder, to, names->to) || from_below;
}

static int rename_at(int from_folder, const char *from, int to_folder, const char *to, unsigned flags)
{
    struct names names;
    if (!either_below_root(from_folder, from, to_folder, to, &names)) {
        return (int)syscall(SYS_renameat2, from_folder, from, to_folder, to, flags);
    }
    struct call call = begin(KIND_RENAME);
    struct stat moved = {0}, replaced = {0};
    if (call.recorded) {
        look(from_folder, from, AT_SYMLINK_NOFOLLOW, &moved);
        look(to_folder, to, AT_SYMLINK_NOFOLLOW, &replaced);
    }
    int result = refused(&call, 0, 0) ? -1 : (int)syscall(SYS_renameat2, from_folder, from, to_folder, to, flags);
    if (result == 0 && call.recorded && flags & ~(unsigned)RENAME_NOREPLACE) {
        record_unsaid("two names were exchanged");
    } else if (result == 0 && call.recorded && moved.st_ino != replaced.st_ino) {
        record_pair("R", names.from, names.to, moved.st_ino); /* rename does nothing if both are links of one file */
    }
    return (int)end(&call, result);
}

EXPORT int rename(const char *from, const char *to) { return rename_at(AT_FDCWD, from, AT_FDCWD, to, 0); }

EXPORT int renameat(int from_folder, const char *from, int to_folder, const char *to)
{
    return rename_at(from_folder, from, to_folder, to, 0);
}

EXPORT int renameat2(int from_folder, const char *from, int to_folder, const char *to, unsigned flags)
{
    return rename_at(from_folder, from, to_folder, to, flags);
}

static int link_at(int from_folder, const char *from, int to_folder, const char *to, int flags)
{
    struct names names;
    if (!either_below_root(from_folder, from, to_folder, to, &names)) {
        return (int)syscall(SYS_linkat, from_folder, from, to_folder, to, flags);
    }
    struct call call = begin(KIND_LINK);
    int result = refused(&call, 0, 0) ? -1 : (int)syscall(SYS_linkat, from_folder, from, to_folder, to, flags);
    struct stat found;
    if (result == 0 && call.recorded && look(to_folder, to, AT_SYMLINK_NOFOLLOW, &found)) {
        record_pair("L", names.from, names.to, found.st_ino);
    }
    return (int)end(&call, result);
}

EXPORT int link(const char *from, const char *to) { return link_at(AT_FDCWD, from, AT_FDCWD, to, 0); }

EXPORT int linkat(int from_folder, const char *from, int to_folder, const char *to, int flags)
{
    return link_at(from_folder, from, to_folder, to, flags);
}

EXPORT int symlinkat(const char *target, int folder, const char *path)
{
    char full[PATH_MAX];
    if (!below_root(folder, path, full)) {
        return (int)syscall(SYS_symlinkat, target, folder, path);
    }
    struct call call = begin(KIND_LINK);
    int result = refused(&call, 0, 0) ? -1 : (int)syscall(SYS_symlinkat, target, folder, path);
    struct stat found;
    if (result == 0 && call.recorded && look(folder, path, AT_SYMLINK_NOFOLLOW, &found)) {
        record_symlink(target, full, found.st_ino);
    }
    return (int)end(&call, result);
}

EXPORT int symlink(const char *target, const char *path) { return symlinkat(target, AT_FDCWD, path); }

static int unlink_at(int folder, const char *path, int flags)
{
    char full[PATH_MAX];
    if (!below_root(folder, path, full)) {
        return (int)syscall(SYS_unlinkat, folder, path, flags);
    }
    bool is_folder = flags & AT_REMOVEDIR;
    struct call call = begin(is_folder ? KIND_RMDIR : KIND_UNLINK);
    struct stat before = {0};
    if (call.recorded) {
        look(folder, path, AT_SYMLINK_NOFOLLOW, &before);
    }
    int result = refused(&call, 0, 0) ? -1 : (int)syscall(SYS_unlinkat, folder, path, flags);
    if (result == 0 && call.recorded) {
        record_path(is_folder ? "X" : "U", full, before.st_ino);
    }
    return (int)end(&call, result);
}

EXPORT int unlink(const char *path) { return unlink_at(AT_FDCWD, path, 0); }
EXPORT int unlinkat(int folder, const char *path, int flags) { return unlink_at(folder, path, flags); }
EXPORT int rmdir(const char *path) { return unlink_at(AT_FDCWD, path, AT_REMOVEDIR); }

EXPORT int mkdirat(int folder, const char *path, mode_t mode)
{
    char full[PATH_MAX];
    if (!below_root(folder, path, full)) {
        return (int)syscall(SYS_mkdirat, folder, path, mode);
    }
    struct call call = begin(KIND_MKDIR);
    int result = refused(&call, 0, 0) ? -1 : (int)syscall(SYS_mkdirat, folder, path, mode);
    struct stat found;
    if (result == 0 && call.recorded && look(folder, path, AT_SYMLINK_NOFOLLOW, &found)) {
        record_path("M", full, found.st_ino);
    }
    return (int)end(&call, result);
}

EXPORT int mkdir(const char *path, mode_t mode) { return mkdirat(AT_FDCWD, path, mode); }

/* Modes and times */

EXPORT int fchmod(int fd, mode_t mode)
{
    if (!tracked(fd)) {
        return (int)syscall(SYS_fchmod, fd, mode);
    }
    struct call call = begin(KIND_CHMOD);
    int result = refused(&call, 0, 0) ? -1 : (int)syscall(SYS_fchmod, fd, mode);
    if (result == 0 && call.recorded) {
        record_mode(look_at(fd).st_ino, mode);
    }
    return (int)end(&call, result);
}

EXPORT int fchmodat(int folder, const char *path, mode_t mode, int flags)
{
    char full[PATH_MAX];
    if (!below_root(folder, path, full)) {
        return NEXT(fchmodat)(folder, path, mode, flags);
    }
    struct call call = begin(KIND_CHMOD);
    int result = refused(&call, 0, 0) ? -1 : NEXT(fchmodat)(folder, path, mode, flags);
    struct stat found;
    if (result == 0 && call.recorded && look(folder, path, flags & AT_SYMLINK_NOFOLLOW, &found)) {
        record_mode(found.st_ino, mode);
    }
    return (int)end(&call, result);
}

EXPORT int chmod(const char *path, mode_t mode) { return fchmodat(AT_FDCWD, path, mode, 0); }

/* Changes of times are counted but not recorded: tests of power cuts ignore times. */
static bool times_refused(bool counts)
{
    if (!counts) {
        return false;
    }
    struct call call = begin(KIND_UTIMENS);
    bool fails = refused(&call, 0, 0);
    end(&call, 0);
    return fails;
}

EXPORT int utimensat(int folder, const char *path, const struct timespec times[2], int flags)
{
    char full[PATH_MAX];
    if (times_refused(is_null(path) ? tracked(folder) : below_root(folder, path, full))) {
        return -1;
    }
    return (int)syscall(SYS_utimensat, folder, path, times, flags);
}

EXPORT int futimens(int fd, const struct timespec times[2])
{
    return times_refused(tracked(fd)) ? -1 : (int)syscall(SYS_utimensat, fd, NULL, times, 0);
}

/* Metadata reads: counted by path, and only if the mask includes them. */

static bool look_refused(int folder, const char *path)
{
    char full[PATH_MAX];
    if (control == NULL || !(word(WORD_MASK) & BIT(KIND_STAT)) || is_null(path) || path[0] == '\0'
        || !below_root(folder, path, full)) {
        return false;
    }
    struct call call = begin(KIND_STAT);
    return refused(&call, 0, 0);
}

static int stat_at(int folder, const char *path, void *found, int flags)
{
    return look_refused(folder, path) ? -1 : (int)syscall(SYS_newfstatat, folder, path, found, flags);
}

EXPORT int stat(const char *path, struct stat *found) { return stat_at(AT_FDCWD, path, found, 0); }
EXPORT int stat64(const char *path, struct stat64 *found) { return stat_at(AT_FDCWD, path, found, 0); }
EXPORT int lstat(const char *path, struct stat *found) { return stat_at(AT_FDCWD, path, found, AT_SYMLINK_NOFOLLOW); }
EXPORT int lstat64(const char *path, struct stat64 *found)
{
    return stat_at(AT_FDCWD, path, found, AT_SYMLINK_NOFOLLOW);
}

EXPORT int fstatat(int folder, const char *path, struct stat *found, int flags)
{
    return stat_at(folder, path, found, flags);
}

EXPORT int fstatat64(int folder, const char *path, struct stat64 *found, int flags)
{
    return stat_at(folder, path, found, flags);
}

EXPORT int statx(int folder, const char *path, int flags, unsigned wanted, struct statx *found)
{
    return look_refused(folder, path) ? -1 : (int)syscall(SYS_statx, folder, path, flags, wanted, found);
}

#endif
