/* Preloaded into a process and its children: writes down every call that changes files below DISK_TRACE_FOLDER.
 *
 * Each record is one write() to the file DISK_TRACE_FILE (opened with O_APPEND), so the records of several processes
 * have one order, in which what happened before something else stands before it:
 *
 *     kind u32, result i32, inode u64, offset u64, path length u32, data length u32, path, data
 *
 * DISK_TRACE_FAIL_SYNC=N: the Nth sync below the folder, counted over this process only, fails with EIO and syncs nothing.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

enum { CREATE = 1, WRITE, TRUNCATE, SYNC_BEGIN, SYNC_END, RENAME, UNLINK };

struct record { uint32_t kind; int32_t result; uint64_t inode, offset; uint32_t path_length, data_length; };

static int trace = -1;
static long syncs;
static const char *folder;

#define REAL(name) ((__typeof__(&name)) real(#name))

static void *real(const char *name) {
    void *found = dlsym(RTLD_NEXT, name);
    if (!found) { fprintf(stderr, "disk_trace: no %s\n", name); abort(); }
    return found;
}

__attribute__((constructor)) static void begin(void) {
    const char *path = getenv("DISK_TRACE_FILE");
    folder = getenv("DISK_TRACE_FOLDER");
    if (!path || !folder) return;
    trace = ((int (*)(const char *, int, ...)) real("open"))(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
}

static int below(const char *path) {
    size_t length = folder ? strlen(folder) : 0;
    return trace >= 0 && !strncmp(path, folder, length) && (!path[length] || path[length] == '/');
}

static int traced(int fd) {
    char link[64], path[4096];
    if (trace < 0 || fd < 0 || fd == trace) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length < 0) return 0;
    path[length] = 0;
    return below(path);
}

static uint64_t inode_of(int fd) {
    struct stat found;
    return fstat(fd, &found) ? 0 : S_ISDIR(found.st_mode) ? 0 : found.st_ino;
}

static void tell(uint32_t kind, int32_t result, uint64_t inode, uint64_t offset, const char *path,
                 const struct iovec *data, int count, size_t length) {
    struct record head = {kind, result, inode, offset, (uint32_t) strlen(path), (uint32_t) length};
    char *whole = malloc(sizeof head + head.path_length + length), *at = whole;
    memcpy(at, &head, sizeof head), at += sizeof head;
    memcpy(at, path, head.path_length), at += head.path_length;
    for (int i = 0; i < count && length; i++) {
        size_t some = data[i].iov_len < length ? data[i].iov_len : length;
        memcpy(at, data[i].iov_base, some), at += some, length -= some;
    }
    if (((ssize_t (*)(int, const void *, size_t)) real("write"))(trace, whole, at - whole) != at - whole) abort();
    free(whole);
}

static ssize_t wrote(int fd, ssize_t done, const struct iovec *data, int count, off_t offset) {
    int saved = errno;
    if (done > 0 && traced(fd)) tell(WRITE, 0, inode_of(fd), offset, "", data, count, done);
    errno = saved;
    return done;
}

static int opened(int fd, const char *path, int flags) {
    int saved = errno;
    if (fd >= 0 && (flags & O_CREAT) && below(path)) tell(CREATE, !!(flags & O_TRUNC), inode_of(fd), 0, path, 0, 0, 0);
    errno = saved;
    return fd;
}

#define OPEN(name) \
    int name(const char *path, int flags, ...) { \
        va_list more; va_start(more, flags); mode_t mode = va_arg(more, mode_t); va_end(more); \
        return opened(((int (*)(const char *, int, ...)) real(#name))(path, flags, mode), path, flags); }
OPEN(open)
OPEN(open64)

#define WRITES(name, offset_type) \
    ssize_t name(int fd, const void *data, size_t size, offset_type offset) { \
        struct iovec one = {(void *) data, size}; \
        return wrote(fd, ((ssize_t (*)(int, const void *, size_t, offset_type)) real(#name))(fd, data, size, offset), \
                     &one, 1, offset); }
WRITES(pwrite, off_t)
WRITES(pwrite64, off64_t)

#define WRITES_MANY(name, offset_type) \
    ssize_t name(int fd, const struct iovec *data, int count, offset_type offset) { \
        return wrote(fd, ((ssize_t (*)(int, const struct iovec *, int, offset_type)) real(#name))(fd, data, count, offset), \
                     data, count, offset); }
WRITES_MANY(pwritev, off_t)
WRITES_MANY(pwritev64, off64_t)

#define WRITES_FLAGS(name, offset_type) \
    ssize_t name(int fd, const struct iovec *data, int count, offset_type offset, int flags) { \
        return wrote(fd, ((ssize_t (*)(int, const struct iovec *, int, offset_type, int)) real(#name))( \
                     fd, data, count, offset, flags), data, count, offset); }
WRITES_FLAGS(pwritev2, off_t)
WRITES_FLAGS(pwritev64v2, off64_t)

#define TRUNCATES(name, offset_type) \
    int name(int fd, offset_type size) { \
        int done = ((int (*)(int, offset_type)) real(#name))(fd, size), saved = errno; \
        if (!done && traced(fd)) tell(TRUNCATE, 0, inode_of(fd), size, "", 0, 0, 0); \
        errno = saved; return done; }
TRUNCATES(ftruncate, off_t)
TRUNCATES(ftruncate64, off64_t)

#define SYNCS(name) \
    int name(int fd) { \
        int (*call)(int) = (int (*)(int)) real(#name); \
        if (!traced(fd)) return call(fd); \
        const char *fail = getenv("DISK_TRACE_FAIL_SYNC"); \
        uint64_t inode = inode_of(fd); \
        tell(SYNC_BEGIN, 0, inode, 0, "", 0, 0, 0); \
        int failed = fail && ++syncs == atol(fail), done = failed ? -1 : call(fd), saved = failed ? EIO : errno; \
        tell(SYNC_END, done ? saved : 0, inode, 0, "", 0, 0, 0); \
        errno = saved; return done; }
SYNCS(fsync)
SYNCS(fdatasync)

int rename(const char *old, const char *new) {
    int done = REAL(rename)(old, new), saved = errno;
    if (!done && below(new)) {
        struct iovec target = {(void *) new, strlen(new)};
        tell(RENAME, 0, 0, 0, old, &target, 1, target.iov_len);
    }
    errno = saved;
    return done;
}

int unlink(const char *path) {
    int done = REAL(unlink)(path), saved = errno;
    if (!done && below(path)) tell(UNLINK, 0, 0, 0, path, 0, 0, 0);
    errno = saved;
    return done;
}
