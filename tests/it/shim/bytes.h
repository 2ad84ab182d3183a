/*
 * Hooks for the content of files: writing, reading, syncing, lengths, mapping. A part of `shim.c`.
 */
#ifndef BYTES_H
#define BYTES_H

/* The target of a write: the descriptor's position, or an explicit offset. */
struct place {
    bool named;
    off_t offset;
};

static const struct place HERE = {false, 0};

static uint64_t total(const struct iovec *buffers, int count)
{
    uint64_t bytes = 0;
    for (int i = 0; i < count; i++) {
        bytes += buffers[i].iov_len;
    }
    return bytes;
}

static ssize_t write_through(int fd, const struct iovec *buffers, int count, struct place place)
{
    return place.named ? syscall(SYS_pwritev, fd, buffers, (long)count, place.offset, 0L)
                       : syscall(SYS_writev, fd, buffers, (long)count);
}

/* Writes only the first `bytes` bytes of the buffers. */
static ssize_t write_part(int fd, const struct iovec *buffers, struct place place, uint64_t bytes)
{
    struct iovec part[IOV_MAX];
    int count = 0;
    for (; bytes > 0 && count < IOV_MAX; count++) {
        part[count] = buffers[count];
        if (part[count].iov_len > bytes) {
            part[count].iov_len = bytes;
        }
        bytes -= part[count].iov_len;
    }
    return write_through(fd, part, count, place);
}

/* The offset of the next write. With O_APPEND it is the end, even if the call has an offset. */
static off_t offset_of(int fd, struct place place)
{
    if (syscall(SYS_fcntl, fd, F_GETFL, 0L) & O_APPEND) {
        return look_at(fd).st_size;
    }
    return place.named ? place.offset : (off_t)syscall(SYS_lseek, fd, 0L, SEEK_CUR);
}

static ssize_t write_tracked(int fd, const struct iovec *buffers, int count, struct place place)
{
    struct call call = begin(KIND_WRITE);
    uint64_t bytes = count > 0 && count <= IOV_MAX ? total(buffers, count) : 0;
    if (refused(&call, 0, bytes)) {
        return end(&call, -1);
    }
    off_t offset = call.recorded ? offset_of(fd, place) : 0;
    ssize_t written = call.shortened ? write_part(fd, buffers, place, bytes / 2)
                                     : write_through(fd, buffers, count, place);
    if (written > 0 && call.recorded) {
        record_bytes(look_at(fd).st_ino, offset, buffers, (size_t)written);
    }
    return end(&call, written);
}

static ssize_t write_one(int fd, const void *bytes, size_t length, struct place place)
{
    struct iovec buffer = {(void *)bytes, length};
    return write_tracked(fd, &buffer, 1, place);
}

EXPORT ssize_t write(int fd, const void *bytes, size_t length)
{
    return tracked(fd) ? write_one(fd, bytes, length, HERE) : syscall(SYS_write, fd, bytes, length);
}

#define PWRITE(name, offset_type)                                                                                      \
    EXPORT ssize_t name(int fd, const void *bytes, size_t length, offset_type offset)                                  \
    {                                                                                                                  \
        return tracked(fd) ? write_one(fd, bytes, length, (struct place){true, offset})                                \
                           : syscall(SYS_pwrite64, fd, bytes, length, offset);                                         \
    }
PWRITE(pwrite, off_t)
PWRITE(pwrite64, off64_t)

EXPORT ssize_t writev(int fd, const struct iovec *buffers, int count)
{
    return tracked(fd) ? write_tracked(fd, buffers, count, HERE) : write_through(fd, buffers, count, HERE);
}

#define PWRITEV(name, offset_type)                                                                                     \
    EXPORT ssize_t name(int fd, const struct iovec *buffers, int count, offset_type offset)                            \
    {                                                                                                                  \
        struct place place = {true, offset};                                                                           \
        return tracked(fd) ? write_tracked(fd, buffers, count, place) : write_through(fd, buffers, count, place);      \
    }
PWRITEV(pwritev, off_t)
PWRITEV(pwritev64, off64_t)

/* Copies inside the kernel. They fail in record mode, so that callers read and write instead. */

/*
 * Limits `length` to the bytes that the file has from the offset, or from its position. Callers may
 * request more.
 */
static uint64_t available(int fd, const off_t *from, uint64_t length)
{
    struct stat found = look_at(fd);
    off_t start = from != NULL ? *from : (off_t)syscall(SYS_lseek, fd, 0L, SEEK_CUR);
    uint64_t rest = found.st_size > start ? (uint64_t)(found.st_size - start) : 0;
    return S_ISREG(found.st_mode) && rest < length ? rest : length;
}

/*
 * Counts a copy to a tracked file. Returns false if the copy must fail; otherwise limits `length`
 * to the bytes that may be copied.
 */
static bool copy_allowed(int from, const off_t *offset, size_t *length)
{
    if (word(WORD_MODE) == MODE_RECORD) {
        errno = EINVAL;
        return false;
    }
    struct call call = begin(KIND_WRITE);
    uint64_t bytes = available(from, offset, *length);
    bool allowed = !refused(&call, 0, bytes);
    *length = call.shortened ? bytes / 2 : *length;
    end(&call, 0);
    return allowed;
}

EXPORT ssize_t copy_file_range(int from, off64_t *offset, int to, off64_t *to_offset, size_t length, unsigned flags)
{
    if (tracked(to) && !copy_allowed(from, offset, &length)) {
        return -1;
    }
    return syscall(SYS_copy_file_range, from, offset, to, to_offset, length, flags);
}

EXPORT ssize_t splice(int from, off64_t *offset, int to, off64_t *to_offset, size_t length, unsigned flags)
{
    if (tracked(to) && !copy_allowed(from, offset, &length)) {
        return -1;
    }
    return syscall(SYS_splice, from, offset, to, to_offset, length, flags);
}

#define SENDFILE(name, offset_type)                                                                                    \
    EXPORT ssize_t name(int to, int from, offset_type *offset, size_t length)                                          \
    {                                                                                                                  \
        if (tracked(to) && !copy_allowed(from, offset, &length)) {                                                 \
            return -1;                                                                                                 \
        }                                                                                                              \
        return syscall(SYS_sendfile, to, from, offset, length);                                                        \
    }
SENDFILE(sendfile, off_t)
SENDFILE(sendfile64, off64_t)

/* Reading: counted only if the mask includes it. */

static bool read_refused(int fd)
{
    if (!tracked(fd)) {
        return false;
    }
    struct call call = begin(KIND_READ);
    return refused(&call, 0, 0);
}

EXPORT ssize_t read(int fd, void *bytes, size_t length)
{
    return read_refused(fd) ? -1 : syscall(SYS_read, fd, bytes, length);
}

EXPORT ssize_t pread(int fd, void *bytes, size_t length, off_t offset)
{
    return read_refused(fd) ? -1 : syscall(SYS_pread64, fd, bytes, length, offset);
}

EXPORT ssize_t pread64(int fd, void *bytes, size_t length, off64_t offset)
{
    return read_refused(fd) ? -1 : syscall(SYS_pread64, fd, bytes, length, offset);
}

EXPORT ssize_t readv(int fd, const struct iovec *buffers, int count)
{
    return read_refused(fd) ? -1 : syscall(SYS_readv, fd, buffers, (long)count);
}

EXPORT ssize_t preadv(int fd, const struct iovec *buffers, int count, off_t offset)
{
    return read_refused(fd) ? -1 : syscall(SYS_preadv, fd, buffers, (long)count, offset, 0L);
}

EXPORT ssize_t preadv64(int fd, const struct iovec *buffers, int count, off64_t offset)
{
    return read_refused(fd) ? -1 : syscall(SYS_preadv, fd, buffers, (long)count, offset, 0L);
}

/* Syncing */

static void record_sync(int fd, const char *path)
{
    struct stat found = look_at(fd);
    if (S_ISDIR(found.st_mode)) {
        record_folder_sync(found.st_ino, path);
    } else {
        record_inode("S", found.st_ino);
    }
}

static int sync_by(int fd, long number)
{
    char path[PATH_MAX];
    if (!path_of(fd, path)) {
        return (int)syscall(number, fd);
    }
    struct call call = begin(KIND_SYNC);
    int result = refused(&call, 0, 0) ? -1 : (int)syscall(number, fd);
    if (result == 0 && call.recorded && number == SYS_syncfs) {
        record_unsaid("a whole file system was synced");
    } else if (result == 0 && call.recorded) {
        record_sync(fd, path);
    }
    return (int)end(&call, result);
}

EXPORT int fsync(int fd) { return sync_by(fd, SYS_fsync); }
EXPORT int fdatasync(int fd) { return sync_by(fd, SYS_fdatasync); }
EXPORT int syncfs(int fd) { return sync_by(fd, SYS_syncfs); }

/* Not recorded: it neither writes the length nor flushes the drive's cache, so it syncs nothing. */
EXPORT int sync_file_range(int fd, off64_t offset, off64_t length, unsigned flags)
{
    if (tracked(fd)) {
        struct call call = begin(KIND_SYNC);
        bool fails = refused(&call, 0, 0);
        end(&call, 0);
        if (fails) {
            return -1;
        }
    }
    return (int)syscall(SYS_sync_file_range, fd, offset, length, flags);
}

/* Lengths */

static int truncate_fd(int fd, off_t length)
{
    if (!tracked(fd)) {
        return (int)syscall(SYS_ftruncate, fd, length);
    }
    struct call call = begin(KIND_TRUNCATE);
    int result = refused(&call, 0, 0) ? -1 : (int)syscall(SYS_ftruncate, fd, length);
    if (result == 0 && call.recorded) {
        record_length(look_at(fd).st_ino, length);
    }
    return (int)end(&call, result);
}

static int truncate_path(const char *path, off_t length)
{
    char full[PATH_MAX];
    if (!below_root(AT_FDCWD, path, full)) {
        return (int)syscall(SYS_truncate, path, length);
    }
    struct call call = begin(KIND_TRUNCATE);
    int result = refused(&call, 0, 0) ? -1 : (int)syscall(SYS_truncate, path, length);
    struct stat found;
    if (result == 0 && call.recorded && look(AT_FDCWD, path, 0, &found)) {
        record_length(found.st_ino, length);
    }
    return (int)end(&call, result);
}

static int allocate(int fd, int mode, off_t offset, off_t length)
{
    if (!tracked(fd)) {
        return (int)syscall(SYS_fallocate, fd, mode, offset, length);
    }
    struct call call = begin(KIND_TRUNCATE);
    off_t before = look_at(fd).st_size;
    int result = refused(&call, 0, 0) ? -1 : (int)syscall(SYS_fallocate, fd, mode, offset, length);
    struct stat after = look_at(fd);
    if (result == 0 && call.recorded && (mode & ~FALLOC_FL_KEEP_SIZE)) {
        record_unsaid("a part of a file was cut out or zeroed");
    } else if (result == 0 && call.recorded && after.st_size != before) {
        record_length(after.st_ino, after.st_size);
    }
    return (int)end(&call, result);
}

/*
 * Unlike the C library, does not fall back to writing zeros if the file system cannot allocate.
 * Returns the error, not -1.
 */
static int allocate_or_error(int fd, off_t offset, off_t length)
{
    int before = errno;
    int error = allocate(fd, 0, offset, length) == 0 ? 0 : errno;
    errno = before;
    return error;
}

EXPORT int ftruncate(int fd, off_t length) { return truncate_fd(fd, length); }
EXPORT int ftruncate64(int fd, off64_t length) { return truncate_fd(fd, length); }
EXPORT int truncate(const char *path, off_t length) { return truncate_path(path, length); }
EXPORT int truncate64(const char *path, off64_t length) { return truncate_path(path, length); }
EXPORT int fallocate(int fd, int mode, off_t offset, off_t length) { return allocate(fd, mode, offset, length); }
EXPORT int fallocate64(int fd, int mode, off64_t offset, off64_t length) { return allocate(fd, mode, offset, length); }
EXPORT int posix_fallocate(int fd, off_t offset, off_t length) { return allocate_or_error(fd, offset, length); }
EXPORT int posix_fallocate64(int fd, off64_t offset, off64_t length) { return allocate_or_error(fd, offset, length); }

/* Mapping */

static void *map(void *address, size_t length, int protection, int flags, int fd, off_t offset)
{
    if ((flags & MAP_ANONYMOUS) || !tracked(fd)) {
        return (void *)syscall(SYS_mmap, address, length, protection, flags, fd, offset);
    }
    struct call call = begin(KIND_MMAP);
    bool fails = refused(&call, 0, 0);
    long mapped = fails ? -1 : syscall(SYS_mmap, address, length, protection, flags, fd, offset);
    if (mapped != -1 && call.recorded && (flags & MAP_SHARED) && (protection & PROT_WRITE)) {
        record_unsaid("a file was mapped for writing");
    }
    return (void *)end(&call, mapped);
}

EXPORT void *mmap(void *address, size_t length, int protection, int flags, int fd, off_t offset)
{
    return map(address, length, protection, flags, fd, offset);
}

EXPORT void *mmap64(void *address, size_t length, int protection, int flags, int fd, off64_t offset)
{
    return map(address, length, protection, flags, fd, offset);
}

#endif
