/*
 * The record: changes below the root, in the order in which the kernel made them.
 *
 * A record is an ASCII line of fields separated by tabs. Paths are relative to the root (`.` is the
 * root, a path outside is absolute), with `%XX` for bytes below 0x21, 0x7f and `%`. Inode numbers
 * identify files and folders. Each record is one write to the log, which is opened for appending.
 * Callers of these functions hold the record lock. Objects of unobserved calls (such as the socket
 * of a server) may be unlinked or changed without a preceding `C`.
 *
 *   C path ino              a file was created            R from to ino      renamed
 *   M path ino              a folder was created          L from to ino      linked
 *   W ino offset length     and the bytes and a newline   Y target path ino  a symlink was created
 *   T ino length            truncated or extended         U path ino         unlinked
 *   S ino                   a file was synced             X path ino         a folder was removed
 *   D ino path              a folder was synced           P ino mode         mode in octal
 *   ! text                  a change that the other records cannot express; do not trust a replay
 */
#ifndef RECORD_H
#define RECORD_H

#include "paths.h"

#include <stdarg.h>
#include <sys/uio.h>

struct line {
    size_t length;
    char text[6 * PATH_MAX + 256]; /* two paths, each byte encoded */
};

static void append(struct line *line, const char *format, ...)
{
    va_list values;
    va_start(values, format);
    line->length += vsnprintf(line->text + line->length, sizeof line->text - line->length, format, values);
    va_end(values);
}

static void start(struct line *line, const char *tag)
{
    line->length = 0;
    append(line, "%s", tag);
}

static void append_encoded(struct line *line, const char *text)
{
    append(line, "\t");
    for (const unsigned char *byte = (const unsigned char *)text; *byte != '\0'; byte++) {
        bool plain = *byte >= 0x21 && *byte != 0x7f && *byte != '%';
        append(line, plain ? "%c" : "%%%02X", *byte);
    }
}

static void append_path(struct line *line, const char *full)
{
    bool inside = strncmp(full, root, root_length) == 0;
    const char *rest = full + root_length;
    append_encoded(line, inside && *rest == '\0' ? "." : inside && *rest == '/' ? rest + 1 : full);
}

/* Appends bytes to the log; aborts the program if the log cannot be written. */
static void put(const char *bytes, size_t length)
{
    int error = errno;
    while (length > 0) {
        long written = syscall(SYS_write, log_descriptor, bytes, length);
        if (written == 0 || (written < 0 && errno != EINTR)) {
            fatal("the record log cannot be written");
        }
        bytes += written > 0 ? written : 0;
        length -= written > 0 ? (size_t)written : 0;
    }
    errno = error;
}

static void put_line(struct line *line)
{
    append(line, "\n");
    put(line->text, line->length);
}

static void record_inode(const char *tag, ino_t inode)
{
    struct line line;
    start(&line, tag);
    append(&line, "\t%ju", (uintmax_t)inode);
    put_line(&line);
}

static void record_path(const char *tag, const char *full, ino_t inode)
{
    struct line line;
    start(&line, tag);
    append_path(&line, full);
    append(&line, "\t%ju", (uintmax_t)inode);
    put_line(&line);
}

static void record_pair(const char *tag, const char *from, const char *to, ino_t inode)
{
    struct line line;
    start(&line, tag);
    append_path(&line, from);
    append_path(&line, to);
    append(&line, "\t%ju", (uintmax_t)inode);
    put_line(&line);
}

static void record_symlink(const char *target, const char *full, ino_t inode)
{
    struct line line;
    start(&line, "Y");
    append_encoded(&line, target);
    append_path(&line, full);
    append(&line, "\t%ju", (uintmax_t)inode);
    put_line(&line);
}

static void record_folder_sync(ino_t inode, const char *full)
{
    struct line line;
    start(&line, "D");
    append(&line, "\t%ju", (uintmax_t)inode);
    append_path(&line, full);
    put_line(&line);
}

static void record_length(ino_t inode, off_t length)
{
    struct line line;
    start(&line, "T");
    append(&line, "\t%ju\t%jd", (uintmax_t)inode, (intmax_t)length);
    put_line(&line);
}

static void record_mode(ino_t inode, mode_t mode)
{
    struct line line;
    start(&line, "P");
    append(&line, "\t%ju\t%o", (uintmax_t)inode, (unsigned)(mode & 07777));
    put_line(&line);
}

static void record_unsaid(const char *text)
{
    struct line line;
    start(&line, "!");
    append_encoded(&line, text);
    put_line(&line);
}

/* Records the first `length` bytes of the buffers, which the kernel has written at `offset`. */
static void record_bytes(ino_t inode, off_t offset, const struct iovec *buffers, size_t length)
{
    struct line line;
    start(&line, "W");
    append(&line, "\t%ju\t%jd\t%zu\n", (uintmax_t)inode, (intmax_t)offset, length);
    char *bytes = malloc(line.length + length + 1);
    if (bytes == NULL) {
        fatal("no memory for a record");
    }
    memcpy(bytes, line.text, line.length);
    size_t end = line.length;
    for (size_t left = length; left > 0; buffers++) {
        size_t part = buffers->iov_len < left ? buffers->iov_len : left;
        memcpy(bytes + end, buffers->iov_base, part);
        end += part;
        left -= part;
    }
    bytes[end++] = '\n';
    put(bytes, end);
    free(bytes);
}

#endif
