/* io_uring by raw calls, in the working directory. Prints what a program sees, which is the same on
   every file system. usage: rings PART DIRECTORY_OF_ANOTHER_FILE_SYSTEM */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/io_uring.h>
#include <linux/openat2.h>
#include <linux/stat.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#define INJECT_RESULT 1
#define NO_MMAP (1 << 14)
#define NO_ARRAY (1 << 16)
#define FTRUNCATE 55
#define FD_INSTALL 54
#define BIND 56
#define ANY (-1U)

struct ring {
    int fd, large;
    struct io_uring_params parameters;
    char *queue;
    struct io_uring_sqe *entries;
    unsigned filled;
    /* Whether entries are held back, and how many are. */
    unsigned holds, held;
};

static long enter(int fd, unsigned count, unsigned least, unsigned flags) {
    long result = syscall(SYS_io_uring_enter, fd, count, least, flags, NULL, 0);
    return result < 0 ? -errno : result;
}

static long reg(int fd, unsigned what, void *argument, unsigned count) {
    long result = syscall(SYS_io_uring_register, fd, what, argument, count);
    return result < 0 ? -errno : result;
}

static int make(struct ring *ring, unsigned count, unsigned flags) {
    memset(ring, 0, sizeof *ring);
    ring->parameters.flags = flags;
    if (flags & NO_MMAP) {
        char *memory = mmap(NULL, 1 << 16, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
        ring->queue = memory;
        ring->entries = mmap(NULL, 1 << 16, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
        /* user_addr, which older headers do not have. */
        ((unsigned long *)(&ring->parameters.cq_off + 1))[-1] = (unsigned long)ring->queue;
        ((unsigned long *)(&ring->parameters.sq_off + 1))[-1] = (unsigned long)ring->entries;
    }
    ring->fd = syscall(SYS_io_uring_setup, count, &ring->parameters);
    if (ring->fd < 0) return -errno;
    ring->large = flags & IORING_SETUP_SQE128 ? 2 : 1;
    if (!(flags & NO_MMAP)) {
        unsigned completions = ring->parameters.cq_off.cqes + ring->parameters.cq_entries * (flags & IORING_SETUP_CQE32 ? 32 : 16);
        unsigned bytes = ring->parameters.sq_off.array + ring->parameters.sq_entries * 4;
        bytes = bytes > completions ? bytes : completions;
        ring->queue = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, ring->fd, IORING_OFF_SQ_RING);
        ring->entries = mmap(NULL, ring->parameters.sq_entries * 64 * ring->large, PROT_READ | PROT_WRITE,
                             MAP_SHARED | MAP_POPULATE, ring->fd, IORING_OFF_SQES);
    }
    return ring->queue == MAP_FAILED || ring->entries == MAP_FAILED ? -1 : 0;
}

static unsigned *word(struct ring *ring, unsigned offset) { return (unsigned *)(ring->queue + offset); }

/* Shows the kernel the entries that were filled. */
static void publish(struct ring *ring) {
    unsigned *tail = word(ring, ring->parameters.sq_off.tail);
    __atomic_store_n(tail, *tail + ring->held, __ATOMIC_RELEASE);
    ring->held = 0;
}

static struct io_uring_sqe *add(struct ring *ring, int code, int fd, const void *address, unsigned length, unsigned long offset) {
    unsigned tail = *word(ring, ring->parameters.sq_off.tail) + ring->held++, mask = ring->parameters.sq_entries - 1;
    struct io_uring_sqe *entry = &ring->entries[(tail & mask) * ring->large];
    memset(entry, 0, 64 * ring->large);
    entry->opcode = code, entry->fd = fd, entry->addr = (unsigned long)address, entry->len = length, entry->off = offset;
    entry->user_data = ++ring->filled;
    if (!(ring->parameters.flags & NO_ARRAY)) word(ring, ring->parameters.sq_off.array)[tail & mask] = tail & mask;
    if (!ring->holds) publish(ring);
    return entry;
}

/* Submits what was added, and prints the completions in the order of the entries. */
static int submit(struct ring *ring, const char *what, int expected) {
    unsigned count = ring->filled, head, tail, large = ring->parameters.flags & IORING_SETUP_CQE32 ? 2 : 1;
    int results[256] = {0}, flags[256] = {0};
    long submitted = enter(ring->fd, count, expected, IORING_ENTER_GETEVENTS);
    head = *word(ring, ring->parameters.cq_off.head);
    tail = __atomic_load_n(word(ring, ring->parameters.cq_off.tail), __ATOMIC_ACQUIRE);
    printf("%s: submitted %ld, completed %u:", what, submitted, tail - head);
    for (; head != tail; head++) {
        struct io_uring_cqe *all = (void *)(ring->queue + ring->parameters.cq_off.cqes);
        struct io_uring_cqe *one = &all[(head & (ring->parameters.cq_entries - 1)) * large];
        results[one->user_data & 255] = one->res, flags[one->user_data & 255] = one->flags;
    }
    __atomic_store_n(word(ring, ring->parameters.cq_off.head), head, __ATOMIC_RELEASE);
    int sum = 0;
    for (unsigned i = 1; i <= count; i++) sum += results[i];
    if (count > 16) printf(" sum %d", sum);
    for (unsigned i = 1; i <= count && count <= 16; i++) printf(flags[i] ? " %d flags %x" : " %d", results[i], flags[i]);
    printf("\n");
    ring->filled = 0;
    return results[1];
}

static void transfers(struct ring *ring) {
    char bytes[8192], back[8192];
    for (int i = 0; i < sizeof bytes; i++) bytes[i] = i * 7;
    struct iovec out[] = {{bytes, 100}, {bytes + 100, 400}}, in[] = {{back, 250}, {back + 250, 250}};
    int fd = open("file", O_RDWR | O_CREAT | O_TRUNC, 0600);
    add(ring, IORING_OP_WRITE, fd, bytes, sizeof bytes, 4096);
    submit(ring, "write", 1);
    add(ring, IORING_OP_READ, fd, back, sizeof bytes, 4096);
    submit(ring, "read", 1);
    printf("same %d\n", memcmp(bytes, back, sizeof bytes));
    add(ring, IORING_OP_WRITEV, fd, out, 2, 1);
    add(ring, IORING_OP_FSYNC, fd, NULL, 0, 0);
    add(ring, IORING_OP_FSYNC, fd, NULL, 0, 0)->fsync_flags = IORING_FSYNC_DATASYNC;
    submit(ring, "writev and fsync", 3);
    add(ring, IORING_OP_READV, fd, in, 2, 1);
    add(ring, IORING_OP_READ, fd, back + 500, 100, 12200);
    add(ring, IORING_OP_READ, fd, back + 600, 100, 1 << 20);
    submit(ring, "reads, to the end and behind it", 3);
    printf("same %d\n", memcmp(bytes, back, 500));
    add(ring, IORING_OP_WRITE, fd, "position", 8, -1L)->flags = IOSQE_IO_LINK;
    add(ring, IORING_OP_WRITE, fd, "after", 5, -1L);
    submit(ring, "at the position", 2);
    printf("position %ld\n", lseek(fd, 0, SEEK_CUR));
    add(ring, IORING_OP_FALLOCATE, fd, (void *)65536, 0, 0);
    add(ring, IORING_OP_FADVISE, fd, NULL, 4096, 0)->fadvise_advice = POSIX_FADV_WILLNEED;
    add(ring, IORING_OP_SYNC_FILE_RANGE, fd, NULL, 4096, 0);
    submit(ring, "fallocate, fadvise, sync_file_range", 3);
    printf("size %ld\n", lseek(fd, 0, SEEK_END));
    add(ring, FTRUNCATE, fd, NULL, 0, 100);
    submit(ring, "ftruncate", 1);
    printf("size %ld\n", lseek(fd, 0, SEEK_END));
    struct iovec whole = {bytes, sizeof bytes};
    printf("buffers %ld\n", reg(ring->fd, IORING_REGISTER_BUFFERS, &whole, 1));
    add(ring, IORING_OP_WRITE_FIXED, fd, bytes + 10, 1000, 0);
    submit(ring, "write of a registered buffer", 1);
    memset(bytes, 0, 1100);
    add(ring, IORING_OP_READ_FIXED, fd, bytes, 1000, 0);
    submit(ring, "read into it", 1);
    printf("bytes %d %d\n", bytes[0], bytes[999]);
    add(ring, IORING_OP_WRITE_FIXED, fd, bytes + 8000, 193, 0);
    add(ring, IORING_OP_WRITE_FIXED, fd, bytes - 1, 10, 0);
    add(ring, IORING_OP_READ_FIXED, fd, back, 10, 0);
    add(ring, IORING_OP_READ_FIXED, fd, bytes, 10, 0)->buf_index = 1;
    submit(ring, "beyond it", 4);
    reg(ring->fd, IORING_UNREGISTER_BUFFERS, NULL, 0);
    add(ring, IORING_OP_READ_FIXED, fd, bytes, 10, 0);
    submit(ring, "of no buffer", 1);
    int pipes[2];
    pipe(pipes);
    add(ring, IORING_OP_SPLICE, pipes[1], NULL, 100, -1L)->splice_fd_in = fd;
    submit(ring, "spliced into a pipe", 1);
    struct io_uring_sqe *entry = add(ring, IORING_OP_SPLICE, fd, (void *)-1L, 100, 300);
    entry->splice_fd_in = pipes[0];
    submit(ring, "and from it", 1);
    pread(fd, back, 100, 300), pread(fd, bytes, 100, 0);
    printf("same %d\n", memcmp(bytes, back, 100));
    reg(ring->fd, IORING_REGISTER_FILES, &fd, 1);
    entry = add(ring, IORING_OP_SPLICE, pipes[1], (void *)200, 10, -1L);
    entry->splice_fd_in = 0, entry->splice_flags = 1U << 31;
    submit(ring, "from a registered file", 1);
    reg(ring->fd, IORING_UNREGISTER_FILES, NULL, 0);
    add(ring, IORING_OP_SPLICE, fd, (void *)-1L, 100, 0)->splice_fd_in = fd;
    submit(ring, "between files", 1);
    add(ring, IORING_OP_CLOSE, ring->fd, NULL, 0, 0);
    submit(ring, "close of a ring", 1);
    close(pipes[0]), close(pipes[1]);
    int append = open("file", O_WRONLY | O_APPEND);
    add(ring, IORING_OP_WRITE, append, "tail", 4, 0);
    submit(ring, "append", 1);
    printf("size %ld\n", lseek(fd, 0, SEEK_END));
    add(ring, IORING_OP_POLL_ADD, fd, NULL, 0, 0)->poll32_events = POLLIN;
    submit(ring, "poll", 1);
    close(append), close(fd);
}

static void names(struct ring *ring) {
    struct statx found = {0};
    struct open_how how = {.flags = O_RDONLY};
    char value[16] = {0};
    int fd;
    add(ring, IORING_OP_MKDIRAT, AT_FDCWD, "d", 0700, 0);
    submit(ring, "mkdirat", 1);
    add(ring, IORING_OP_OPENAT, AT_FDCWD, "d/a", 0600, 0)->open_flags = O_RDWR | O_CREAT | O_EXCL;
    fd = submit(ring, "openat", 1);
    add(ring, IORING_OP_OPENAT, AT_FDCWD, "d/a", 0600, 0)->open_flags = O_RDWR | O_CREAT | O_EXCL;
    submit(ring, "openat again", 1);
    add(ring, IORING_OP_WRITE, fd, "twelve bytes", 12, 0);
    submit(ring, "write", 1);
    add(ring, IORING_OP_CLOSE, fd, NULL, 0, 0);
    submit(ring, "close", 1);
    printf("closed %d\n", fcntl(fd, F_GETFD) < 0 ? errno : 0);
    add(ring, IORING_OP_OPENAT2, AT_FDCWD, "d/a", sizeof how, (unsigned long)&how);
    printf("the same number %d\n", submit(ring, "openat2", 1) == fd);
    add(ring, IORING_OP_STATX, AT_FDCWD, "d/a", STATX_BASIC_STATS, (unsigned long)&found);
    submit(ring, "statx", 1);
    printf("size %lld\n", (long long)found.stx_size);
    add(ring, IORING_OP_SYMLINKAT, AT_FDCWD, "a", 0, (unsigned long)"d/s")->flags = IOSQE_IO_LINK;
    add(ring, IORING_OP_LINKAT, AT_FDCWD, "d/a", AT_FDCWD, (unsigned long)"d/l")->flags = IOSQE_IO_LINK;
    add(ring, IORING_OP_RENAMEAT, AT_FDCWD, "d/l", AT_FDCWD, (unsigned long)"d/r")->flags = IOSQE_IO_LINK;
    add(ring, IORING_OP_UNLINKAT, AT_FDCWD, "d/a", 0, 0);
    submit(ring, "symlinkat, linkat, renameat, unlinkat", 4);
    printf("there %d %d %d\n", access("d/a", F_OK), access("d/r", F_OK), faccessat(AT_FDCWD, "d/s", F_OK, AT_SYMLINK_NOFOLLOW));
    add(ring, IORING_OP_SETXATTR, 0, "user.x", 3, (unsigned long)"abc")->addr3 = (unsigned long)"d/r";
    submit(ring, "setxattr", 1);
    add(ring, IORING_OP_GETXATTR, 0, "user.x", 16, (unsigned long)value)->addr3 = (unsigned long)"d/r";
    submit(ring, "getxattr", 1);
    add(ring, IORING_OP_FSETXATTR, fd, "user.y", 2, (unsigned long)"yz");
    add(ring, IORING_OP_FGETXATTR, fd, "user.y", 16, (unsigned long)(value + 8));
    submit(ring, "fsetxattr, fgetxattr", 2);
    printf("values %.3s %.2s\n", value, value + 8);
    add(ring, IORING_OP_UNLINKAT, AT_FDCWD, "d", 0, 0);
    add(ring, IORING_OP_UNLINKAT, AT_FDCWD, "d/none", 0, 0);
    submit(ring, "unlinkat of a directory, of nothing", 2);
    close(fd);
}

static void errors(struct ring *ring) {
    char bytes[16];
    int reader = open("file", O_RDONLY), writer = open("file", O_WRONLY), directory = open(".", O_RDONLY), path = open("file", O_PATH);
    add(ring, IORING_OP_WRITE, reader, bytes, 4, 0);
    add(ring, IORING_OP_READ, writer, bytes, 4, 0);
    add(ring, IORING_OP_READ, directory, bytes, 4, 0);
    add(ring, IORING_OP_READ, path, bytes, 4, 0);
    add(ring, IORING_OP_READ, reader, (void *)16, 4, 0);
    add(ring, IORING_OP_READV, reader, (void *)16, 1, 0);
    add(ring, IORING_OP_READ, 987654, bytes, 4, 0);
    add(ring, IORING_OP_OPENAT, AT_FDCWD, (void *)16, 0, 0);
    add(ring, IORING_OP_OPENAT, AT_FDCWD, "none", 0, 0);
    add(ring, 250, reader, bytes, 4, 0);
    for (int left = 10; left > 0;) {
        /* A kernel may stop at an invalid entry. */
        ring->filled = left;
        long taken = enter(ring->fd, left, 0, 0);
        left -= taken > 0 ? taken : left;
    }
    ring->filled = 10;
    enter(ring->fd, 0, 10, IORING_ENTER_GETEVENTS);
    submit(ring, "errors", 0);
    close(path), close(directory), close(writer);
    int open_ones = 0;
    for (int other = 0; other < 4096; other++) {
        if (fcntl(other, F_GETFD) >= 0) continue;
        add(ring, IORING_OP_READ, other, bytes, 4, 0);
        enter(ring->fd, 1, 1, IORING_ENTER_GETEVENTS);
        unsigned *head = word(ring, ring->parameters.cq_off.head);
        struct io_uring_cqe *all = (void *)(ring->queue + ring->parameters.cq_off.cqes);
        open_ones += all[(*head & (ring->parameters.cq_entries - 1)) * (ring->parameters.flags & IORING_SETUP_CQE32 ? 2 : 1)].res != -EBADF;
        __atomic_store_n(head, *head + 1, __ATOMIC_RELEASE);
        ring->filled = 0;
    }
    printf("closed descriptors that can be read %d\n", open_ones);
    close(reader);
}

/* Entries of two file systems in one chain, and chains that break. */
static void chains(struct ring *ring, const char *elsewhere) {
    char where[4096], bytes[64] = {0}, other[64] = {0};
    snprintf(where, sizeof where, "%s/rings-other-%d", elsewhere, getpid());
    int fd = open("file", O_RDWR | O_TRUNC), host = open(where, O_RDWR | O_CREAT | O_TRUNC, 0600);
    add(ring, IORING_OP_WRITE, host, "from elsewhere", 14, 0)->flags = IOSQE_IO_LINK;
    add(ring, IORING_OP_READ, host, bytes, 14, 0)->flags = IOSQE_IO_LINK;
    add(ring, IORING_OP_WRITE, fd, bytes, 14, 0)->flags = IOSQE_IO_LINK;
    add(ring, IORING_OP_READ, fd, other, 14, 0)->flags = IOSQE_IO_LINK;
    add(ring, IORING_OP_WRITE, host, other, 14, 14);
    submit(ring, "there and back", 5);
    printf("%.14s, size %ld\n", other, lseek(host, 0, SEEK_END));
    add(ring, IORING_OP_READ, fd, bytes, 64, 0)->flags = IOSQE_IO_LINK;
    add(ring, IORING_OP_WRITE, fd, "lost", 4, 0)->flags = IOSQE_IO_LINK;
    add(ring, IORING_OP_WRITE, host, "lost", 4, 0);
    add(ring, IORING_OP_WRITE, fd, "kept", 4, 20);
    submit(ring, "a short read breaks a chain", 4);
    add(ring, IORING_OP_READ, fd, bytes, 64, 0)->flags = IOSQE_IO_HARDLINK;
    add(ring, IORING_OP_WRITE, fd, "kept", 4, 30);
    submit(ring, "but not a hard one", 2);
    add(ring, IORING_OP_OPENAT, AT_FDCWD, "none", 0, 0)->flags = IOSQE_IO_LINK;
    add(ring, IORING_OP_WRITE, fd, "lost", 4, 0)->flags = IOSQE_IO_LINK;
    add(ring, IORING_OP_WRITE, host, "lost", 4, 0);
    submit(ring, "so does an error", 3);
    struct __kernel_timespec { long long seconds, nanoseconds; } second = {1, 0};
    add(ring, IORING_OP_WRITE, fd, "kept", 4, 40)->flags = IOSQE_IO_LINK;
    add(ring, IORING_OP_LINK_TIMEOUT, -1, &second, 1, 0);
    submit(ring, "in time", 2);
    add(ring, IORING_OP_WRITE, fd, "kept", 4, 50);
    add(ring, IORING_OP_FSYNC, fd, NULL, 0, 0)->flags = IOSQE_IO_DRAIN;
    submit(ring, "drained", 2);
    pread(fd, bytes, 54, 0);
    for (int i = 0; i < 54; i++) putchar(bytes[i] ? bytes[i] : '.');
    printf("\n");
    unlink(where);
    close(fd), close(host);
}

static void skipped(struct ring *ring) {
    char bytes[64];
    int fd = open("file", O_RDWR | O_TRUNC);
    /* What follows a write that says nothing must not overtake it. */
    add(ring, IORING_OP_WRITE, fd, "twelve bytes", 12, 0)->flags = IOSQE_CQE_SKIP_SUCCESS | IOSQE_IO_LINK;
    add(ring, IORING_OP_WRITE, fd, "more", 4, 12);
    submit(ring, "without a completion", 1);
    add(ring, IORING_OP_READ, fd, bytes, 64, 0)->flags = IOSQE_CQE_SKIP_SUCCESS | IOSQE_IO_LINK;
    add(ring, IORING_OP_WRITE, fd, "lost", 4, 0);
    submit(ring, "an incomplete one has one", 1);
    /* An entry that the program fills once. */
    struct io_uring_sqe *entry = add(ring, IORING_OP_WRITE, fd, "again", 5, 20), before = *entry;
    submit(ring, "once", 1);
    printf("entry changed %d\n", memcmp(entry, &before, sizeof before) != 0);
    /* More entries than one call of the kernel takes. */
    for (int i = 0; i < 200; i++) add(ring, IORING_OP_WRITE, fd, "0123456789" + i % 10, 1, 100 + i);
    submit(ring, "many", 200);
    printf("size %ld\n", lseek(fd, 0, SEEK_END));
    for (int i = 0; i < 150; i++) add(ring, IORING_OP_WRITE, fd, "0123456789" + i % 10, 1, 300 + i)->flags = i < 149 ? IOSQE_IO_LINK : 0;
    submit(ring, "a long chain", 150);
    printf("size %ld\n", lseek(fd, 0, SEEK_END));
    close(fd);
}

static struct io_uring_sqe *fixed(struct io_uring_sqe *entry) { return entry->flags |= IOSQE_FIXED_FILE, entry; }

/* Registered files, and opens into their table. */
static void registered(struct ring *ring, const char *elsewhere) {
    char where[4096], bytes[64] = {0};
    snprintf(where, sizeof where, "%s/rings-other-%d", elsewhere, getpid());
    int fd = open("file", O_RDWR | O_CREAT | O_TRUNC, 0600), host = open(where, O_RDWR | O_CREAT | O_TRUNC, 0600);
    int place = open("file", O_PATH), files[] = {fd, -1, host, -1}, wrong[] = {place};
    struct iovec in[] = {{bytes, 2}, {bytes + 8, 10}};
    add(ring, IORING_OP_OPENAT, AT_FDCWD, "file", 0, 0)->file_index = 1;
    submit(ring, "an open into no table", 1);
    printf("a path %ld\n", reg(ring->fd, IORING_REGISTER_FILES, wrong, 1));
    printf("registered %ld\n", reg(ring->fd, IORING_REGISTER_FILES, files, 4));
    printf("again %ld\n", reg(ring->fd, IORING_REGISTER_FILES, files, 4));
    flock(fd, LOCK_EX);
    close(fd), close(host), close(place);
    int other = open("file", O_RDWR);
    printf("lock %d\n", flock(other, LOCK_EX | LOCK_NB));
    fixed(add(ring, IORING_OP_WRITE, 0, "first", 5, 0));
    fixed(add(ring, IORING_OP_WRITE, 2, "second", 6, 0));
    fixed(add(ring, IORING_OP_WRITE, 1, "none", 4, 0));
    fixed(add(ring, IORING_OP_WRITE, 9, "none", 4, 0));
    fixed(add(ring, IORING_OP_FSYNC, 0, NULL, 0, 0));
    submit(ring, "by index", 5);
    fixed(add(ring, IORING_OP_READV, 0, in, 2, 0))->flags |= IOSQE_IO_LINK;
    fixed(add(ring, IORING_OP_READ, 2, bytes + 20, 6, 0));
    submit(ring, "reads", 2);
    printf("%.2s %.3s %.6s\n", bytes, bytes + 8, bytes + 20);
    fixed(add(ring, FTRUNCATE, 0, NULL, 0, 3));
    fixed(add(ring, IORING_OP_FALLOCATE, 0, (void *)100, 0, 0));
    fixed(add(ring, IORING_OP_WRITE, 0, "tail", 4, 96));
    submit(ring, "other operations", 3);
    printf("size %ld\n", lseek(other, 0, SEEK_END));
    add(ring, IORING_OP_OPENAT, AT_FDCWD, "file", 0, 0)->file_index = 2;
    submit(ring, "an open into the table", 1);
    fixed(add(ring, IORING_OP_READ, 1, bytes, 3, 0));
    submit(ring, "a read by it", 1);
    add(ring, IORING_OP_OPENAT, AT_FDCWD, "none", 0, 0)->file_index = 2;
    add(ring, IORING_OP_OPENAT, AT_FDCWD, "file", 0, 0)->file_index = 100;
    add(ring, IORING_OP_OPENAT, AT_FDCWD, where, 0, 0)->file_index = 4;
    submit(ring, "of nothing, behind the end, elsewhere", 3);
    fixed(add(ring, IORING_OP_READ, 3, bytes, 6, 0));
    submit(ring, "a read elsewhere", 1);
    struct io_uring_sqe *entry = add(ring, IORING_OP_OPENAT, AT_FDCWD, "direct", 0600, 0);
    entry->open_flags = O_RDWR | O_CREAT | O_EXCL, entry->file_index = 4, entry->flags = IOSQE_IO_LINK;
    fixed(add(ring, IORING_OP_WRITE, 3, "in a chain", 10, 0))->flags |= IOSQE_IO_LINK;
    fixed(add(ring, IORING_OP_READ, 3, bytes, 10, 0))->flags |= IOSQE_IO_LINK;
    add(ring, IORING_OP_CLOSE, 0, NULL, 0, 0)->file_index = 4;
    submit(ring, "open, write, read, close", 4);
    printf("%.10s\n", bytes);
    fixed(add(ring, IORING_OP_READ, 3, bytes, 10, 0));
    submit(ring, "after the close", 1);
    int changed[] = {-2, other}, none = -1;
    struct { unsigned offset, reserved; unsigned long fds; } update = {0, 0, (unsigned long)changed};
    printf("update %ld\n", reg(ring->fd, IORING_REGISTER_FILES_UPDATE, &update, 2));
    fixed(add(ring, IORING_OP_READ, 0, bytes, 3, 0));
    fixed(add(ring, IORING_OP_WRITE, 1, "x", 1, 0));
    submit(ring, "kept and replaced", 2);
    add(ring, IORING_OP_FILES_UPDATE, -1, &none, 1, 0);
    submit(ring, "update by an entry", 1);
    printf("lock %d\n", flock(other, LOCK_EX | LOCK_NB));
    fixed(add(ring, IORING_OP_READ, 0, bytes, 3, 0));
    submit(ring, "removed", 1);
    add(ring, IORING_OP_FILES_UPDATE, -1, &other, 1, 3);
    submit(ring, "update with a file", 1);
    fixed(add(ring, FD_INSTALL, 3, NULL, 0, 0));
    int installed = submit(ring, "installed", 1);
    printf("a descriptor of it %d %zd\n", fcntl(installed, F_GETFD), pread(installed, bytes, 3, 0));
    fflush(stdout);
    /* A ring of one thread refuses a child. */
    if (!(ring->parameters.flags & IORING_SETUP_SINGLE_ISSUER) && fork() == 0) {
        fixed(add(ring, IORING_OP_WRITE, 3, "child", 5, 200));
        submit(ring, "in a child", 1);
        fflush(stdout);
        _exit(0);
    }
    wait(NULL);
    printf("size %ld\n", lseek(other, 0, SEEK_END));
    close(installed), close(other);
    other = open("file", O_RDWR);
    printf("lock %d\n", flock(other, LOCK_EX | LOCK_NB));
    printf("unregistered %ld\n", reg(ring->fd, IORING_UNREGISTER_FILES, NULL, 0));
    printf("lock %d\n", flock(other, LOCK_EX | LOCK_NB));
    fixed(add(ring, IORING_OP_READ, 3, bytes, 3, 0));
    submit(ring, "without a table", 1);
    printf("unregistered %ld\n", reg(ring->fd, IORING_UNREGISTER_FILES, NULL, 0));
    close(other), unlink(where), unlink("direct");
}

/* A table without files, for a while. */
static long sparse(struct ring *ring, unsigned count) {
    struct { unsigned count, flags; unsigned long reserved, list, tags; } table = {count, 1, 0, 0, 0};
    return reg(ring->fd, 13, &table, sizeof table);
}

static void open_any(struct ring *ring, const char *path, int flags) {
    struct io_uring_sqe *entry = add(ring, IORING_OP_OPENAT, AT_FDCWD, path, 0600, 0);
    entry->open_flags = flags, entry->file_index = ANY;
}

/* Files at indexes that the kernel chooses. */
static void chosen(struct ring *ring, const char *elsewhere) {
    char where[4096], bytes[64] = {0};
    struct ring other;
    snprintf(where, sizeof where, "%s/rings-other-%d", elsewhere, getpid());
    int fd = open("file", O_RDWR | O_CREAT | O_TRUNC, 0600), host = open(where, O_RDWR | O_CREAT | O_TRUNC, 0600);
    write(fd, "of the file", 11), write(host, "elsewhere", 9);
    open_any(ring, "file", O_RDWR);
    submit(ring, "an open into no table", 1);
    printf("sparse %ld\n", sparse(ring, 8));
    open_any(ring, "file", O_RDWR), open_any(ring, where, O_RDWR), open_any(ring, "none", O_RDWR), open_any(ring, "file", O_RDONLY);
    submit(ring, "opens to any index", 4);
    fixed(add(ring, IORING_OP_READ, 0, bytes, 11, 0)), fixed(add(ring, IORING_OP_READ, 1, bytes + 16, 9, 0));
    fixed(add(ring, IORING_OP_WRITE, 2, "x", 1, 0)), fixed(add(ring, IORING_OP_READ, 3, bytes, 1, 0));
    submit(ring, "by their indexes", 4);
    printf("%.11s %.9s\n", bytes, bytes + 16);
    add(ring, IORING_OP_SOCKET, AF_UNIX, NULL, 0, SOCK_STREAM)->file_index = ANY;
    submit(ring, "a socket", 1);
    int list[] = {fd, host, -1, fd};
    add(ring, IORING_OP_FILES_UPDATE, -1, list, 4, ANY);
    submit(ring, "an update", 1);
    printf("indexes %d %d %d %d\n", list[0], list[1], list[2], list[3] == fd);
    fixed(add(ring, IORING_OP_READ, 4, bytes, 2, 3)), fixed(add(ring, IORING_OP_READ, 5, bytes + 2, 3, 0));
    submit(ring, "by those", 2);
    printf("%.5s\n", bytes);
    open_any(ring, "file", O_RDWR), open_any(ring, "file", O_RDWR), open_any(ring, "file", O_RDWR);
    submit(ring, "more than there is room for", 3);
    add(ring, IORING_OP_CLOSE, 0, NULL, 0, 0)->file_index = 3;
    submit(ring, "a close", 1);
    flock(fd, LOCK_EX), close(fd);
    open_any(ring, "file", O_RDWR);
    submit(ring, "an open in its place", 1);
    add(ring, IORING_OP_FILES_UPDATE, -1, (void *)16, 1, ANY), list[0] = 987654;
    add(ring, IORING_OP_FILES_UPDATE, -1, list, 1, ANY), add(ring, IORING_OP_FILES_UPDATE, -1, list, 0, ANY);
    submit(ring, "updates of nothing", 3);
    struct { unsigned first, count; unsigned long reserved; } range = {6, 2, 0};
    printf("range %ld\n", reg(ring->fd, 25, &range, 0));
    open_any(ring, "file", O_RDWR);
    submit(ring, "in a full range", 1);
    for (int i = 1; i <= 8; i += 2) add(ring, IORING_OP_CLOSE, 0, NULL, 0, 0)->file_index = i;
    submit(ring, "closes", 4);
    open_any(ring, "file", O_RDWR), open_any(ring, "file", O_RDWR);
    submit(ring, "in a range", 2);
    /* A chain across both. */
    range.first = 0, reg(ring->fd, 25, &range, 0);
    open_any(ring, where, O_RDWR), ring->entries[(*word(ring, ring->parameters.sq_off.tail) - 1 & ring->parameters.sq_entries - 1) * ring->large].flags = IOSQE_IO_LINK;
    fixed(add(ring, IORING_OP_WRITE, 6, "elsewhere", 9, 0));
    submit(ring, "a chain", 2);
    /* To another ring. */
    int made = make(&other, 8, ring->parameters.flags & ~NO_MMAP);
    printf("another ring %d %ld\n", made, sparse(&other, 4));
    for (int i = 0; i < 4; i++) {
        struct io_uring_sqe *entry = add(ring, IORING_OP_MSG_RING, other.fd, (void *)1, 0, 70 + i);
        entry->addr3 = i == 2 ? 9 : 6, entry->file_index = i == 1 ? 3 : ANY, entry->rw_flags = i == 3;
        submit(ring, "a file to it", 1);
    }
    enter(other.fd, 0, 1, IORING_ENTER_GETEVENTS);
    unsigned *head = word(&other, other.parameters.cq_off.head), tail = *word(&other, other.parameters.cq_off.tail);
    for (; *head != tail; ++*head) {
        struct io_uring_cqe *all = (void *)(other.queue + other.parameters.cq_off.cqes);
        struct io_uring_cqe *one = &all[(*head & (other.parameters.cq_entries - 1)) * (other.parameters.flags & IORING_SETUP_CQE32 ? 2 : 1)];
        printf("completion %lld: %d\n", (long long)one->user_data, one->res);
    }
    for (int i = 0; i < 4; i++) fixed(add(&other, IORING_OP_READ, i, bytes, 9, 0));
    submit(&other, "by that ring", 4);
    printf("%.9s\n", bytes);
    reg(ring->fd, IORING_UNREGISTER_FILES, NULL, 0);
    int again = open("file", O_RDWR);
    printf("lock %d\n", flock(again, LOCK_EX | LOCK_NB));
    fixed(add(&other, IORING_OP_WRITE, 0, "last", 4, 0));
    submit(&other, "after the first table", 1);
    close(other.fd), close(again), close(host), unlink(where);
}

static struct io_uring_sqe *select_from(struct io_uring_sqe *entry, int group) {
    return entry->flags |= IOSQE_BUFFER_SELECT, entry->buf_group = group, entry;
}

struct ring_buffer { unsigned long address; unsigned length; unsigned short id, tail; };

/* Reads into buffers that the kernel selects. */
static void selected(struct ring *ring, const char *elsewhere) {
    static char bytes[16][64], large[1 << 16];
    char where[4096], text[200];
    for (int i = 0; i < sizeof text; i++) text[i] = 'a' + i % 26;
    snprintf(where, sizeof where, "%s/rings-other-%d", elsewhere, getpid());
    int fd = open("file", O_RDWR | O_CREAT | O_TRUNC, 0600), host = open(where, O_RDWR | O_CREAT | O_TRUNC, 0600);
    write(fd, text, sizeof text), write(host, text, sizeof text);
    lseek(fd, 0, SEEK_SET);
    select_from(add(ring, IORING_OP_READ, fd, NULL, 10, 0), 7);
    submit(ring, "from no group", 1);
    add(ring, IORING_OP_PROVIDE_BUFFERS, 16, bytes, 64, 0)->buf_group = 7;
    submit(ring, "provided", 1);
    select_from(add(ring, IORING_OP_READ, fd, NULL, 10, 3), 7);
    select_from(add(ring, IORING_OP_READ, fd, NULL, 0, 0), 7);
    select_from(add(ring, IORING_OP_READ, fd, NULL, 1000, 100), 7);
    select_from(add(ring, IORING_OP_READ, fd, NULL, 64, 190), 7);
    select_from(add(ring, IORING_OP_READ, fd, NULL, 64, 500), 7);
    select_from(add(ring, IORING_OP_READ, host, NULL, 20, 0), 7);
    submit(ring, "reads", 6);
    for (int i = 0; i < 16; i++) printf("%.64s\n", bytes[i]);
    select_from(add(ring, IORING_OP_READ, fd, NULL, 100, -1), 7);
    submit(ring, "at the position", 1);
    printf("position %ld\n", lseek(fd, 0, SEEK_CUR));
    select_from(add(ring, IORING_OP_READ, fd, NULL, 20, -1), 7);
    select_from(add(ring, IORING_OP_READ, fd, NULL, 20, -1), 9);
    submit(ring, "and again, and from no group", 2);
    printf("position %ld\n", lseek(fd, 0, SEEK_CUR));
    /* At one of these the kernel stops. */
    struct iovec list[] = {{NULL, 30}, {NULL, 40}};
    select_from(add(ring, IORING_OP_WRITE, fd, text, 20, 0), 7);
    submit(ring, "a write", 1);
    select_from(add(ring, IORING_OP_READ_FIXED, fd, text, 20, 0), 7);
    submit(ring, "a registered buffer", 1);
    select_from(add(ring, IORING_OP_FSYNC, fd, NULL, 0, 0), 7);
    submit(ring, "another operation", 1);
    select_from(add(ring, IORING_OP_READV, fd, list, 2, 0), 7);
    submit(ring, "a list of two", 1);
    select_from(add(ring, IORING_OP_READV, fd, list, 1, 0), 7);
    select_from(add(ring, IORING_OP_READ, fd, NULL, 5, 20), 7)->flags |= IOSQE_ASYNC;
    submit(ring, "a list, and by a thread of the kernel", 2);
    printf("registered %ld\n", reg(ring->fd, IORING_REGISTER_FILES, &fd, 1));
    select_from(fixed(add(ring, IORING_OP_READ, 0, NULL, 5, 10)), 7);
    submit(ring, "a registered file", 1);
    reg(ring->fd, IORING_UNREGISTER_FILES, NULL, 0);
    select_from(add(ring, IORING_OP_READ, fd, NULL, 20, 0), 7)->flags |= IOSQE_IO_LINK;
    add(ring, IORING_OP_NOP, -1, NULL, 0, 0);
    select_from(add(ring, IORING_OP_READ, fd, NULL, 20, 190), 7)->flags |= IOSQE_IO_LINK;
    add(ring, IORING_OP_NOP, -1, NULL, 0, 0);
    select_from(add(ring, IORING_OP_READ, fd, NULL, 20, 0), 7);
    submit(ring, "chains", 5);
    add(ring, IORING_OP_REMOVE_BUFFERS, 100, NULL, 0, 0)->buf_group = 7;
    submit(ring, "what was left", 1);
    /* A ring of buffers. */
    for (int kind = 0; kind < 2; kind++) {
        struct ring_buffer *buffers = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        struct { unsigned long address; unsigned count; unsigned short group, flags; unsigned long reserved[3]; } ring_of = {(unsigned long)buffers, 4, 11, kind * 2};
        printf("a ring of buffers %ld\n", reg(ring->fd, 22, &ring_of, 1));
        for (int i = 0; i < 4; i++) buffers[i] = (struct ring_buffer){(unsigned long)(large + 100 * i), 100, 40 + i, buffers[i].tail};
        __atomic_store_n(&buffers[0].tail, 4, __ATOMIC_RELEASE);
        memset(large, '.', 400);
        select_from(add(ring, IORING_OP_READ, fd, NULL, 30, 0), 11);
        select_from(add(ring, IORING_OP_READ, fd, NULL, 0, 26), 11);
        select_from(add(ring, IORING_OP_READ, fd, NULL, 500, -1), 11);
        submit(ring, "reads", 3);
        printf("%.400s position %ld\n", large, lseek(fd, 0, SEEK_CUR));
        for (int i = 0; i < 4; i++) select_from(add(ring, IORING_OP_READ, fd, NULL, 0, 0), 11);
        submit(ring, "until there are none", 4);
        printf("%.400s\n", large);
        printf("removed %ld\n", reg(ring->fd, 23, &ring_of, 1));
        munmap(buffers, 4096), lseek(fd, 0, SEEK_SET);
    }
    close(fd), close(host), unlink(where);
}

/* Processes that are killed while their rings work, with a locked file that only a ring keeps. */
static void killed(void) {
    int held = 0;
    for (int round = 0; round < 20; round++) {
        int ready[2], child;
        char byte;
        pipe(ready);
        fflush(stdout);
        if ((child = fork()) == 0) {
            struct ring ring;
            int fd = open("file", O_RDWR | O_CREAT, 0600);
            make(&ring, 8, 0);
            flock(fd, LOCK_EX);
            reg(ring.fd, IORING_REGISTER_FILES, &fd, 1);
            close(fd);
            write(ready[1], "", 1);
            for (;;) {
                for (int i = 0; i < 4; i++) fixed(add(&ring, IORING_OP_WRITE, 0, "killed", 6, i * 6));
                add(&ring, IORING_OP_OPENAT, AT_FDCWD, "file", 0, 0)->file_index = 1;
                enter(ring.fd, 5, 5, IORING_ENTER_GETEVENTS);
                *word(&ring, ring.parameters.cq_off.head) += 5;
            }
        }
        read(ready[0], &byte, 1);
        usleep(round * 300);
        kill(child, SIGKILL);
        waitpid(child, NULL, 0);
        int fd = open("file", O_RDWR);
        /* A kernel ends its rings a little later. */
        for (int look = 0; look < 600000 && flock(fd, LOCK_EX | LOCK_NB); look++) usleep(1000);
        held += flock(fd, LOCK_EX | LOCK_NB) != 0;
        close(fd), close(ready[0]), close(ready[1]);
    }
    printf("held after a death %d\n", held);
    unlink("file");
}

static int kind(unsigned flags, const char *what, const char *elsewhere) {
    struct ring ring;
    int made = make(&ring, 256, flags);
    printf("-- %s: %d\n", what, made);
    if (made) return 1;
    transfers(&ring);
    names(&ring);
    errors(&ring);
    selected(&ring, elsewhere);
    chains(&ring, elsewhere);
    skipped(&ring);
    registered(&ring, elsewhere);
    chosen(&ring, elsewhere);
    close(ring.fd);
    unlink("d/r"), unlink("d/s"), rmdir("d"), unlink("file");
    return 0;
}

static struct ring shared;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_barrier_t submitted, completed;

/* Threads fill one ring under a lock, and enter it without one. */
static void *thread(void *number) {
    char name[32];
    snprintf(name, sizeof name, "thread-%ld", (long)number);
    int fd = open(name, O_RDWR | O_CREAT, 0600);
    for (int i = 0; i < 500; i++) {
        pthread_mutex_lock(&lock);
        add(&shared, IORING_OP_WRITE, fd, "x", 1, i);
        pthread_mutex_unlock(&lock);
        enter(shared.fd, 1, 0, 0);
    }
    /* The end of a thread cancels what it has submitted. */
    pthread_barrier_wait(&submitted), pthread_barrier_wait(&completed);
    return (void *)(long)fd;
}

/* Entries that no kernel takes: those before are submitted, those behind wait. */
static void invalid(void) {
    struct ring ring;
    int fd = open("file", O_RDWR | O_CREAT, 0600);
    make(&ring, 8, 0);
    add(&ring, IORING_OP_WRITE, fd, "x", 1, 0);
    add(&ring, 250, fd, "x", 1, 0);
    add(&ring, FTRUNCATE, fd, "x", 1, 0);
    add(&ring, IORING_OP_UNLINKAT, AT_FDCWD, "file", 1, 0);
    add(&ring, IORING_OP_WRITE, fd, "y", 1, 1);
    for (int left = 5; left > 0;) {
        ring.filled = left;
        long taken = enter(ring.fd, left, 0, 0);
        printf("taken %ld of %d\n", taken, left);
        left -= taken > 0 ? taken : left;
    }
    ring.filled = 5;
    enter(ring.fd, 0, 5, IORING_ENTER_GETEVENTS);
    submit(&ring, "invalid", 0);
    printf("size %ld\n", lseek(fd, 0, SEEK_END));
    close(ring.fd), close(fd), unlink("file");
}

/* Many rings, of which every other one is closed. */
static void many(void) {
    struct ring ring;
    int fd = open("file", O_RDWR | O_CREAT, 0600), wrong = 0;
    for (int i = 0; i < 300; i++) {
        if (make(&ring, 2, 0)) { wrong++; continue; }
        add(&ring, IORING_OP_WRITE, fd, "x", 1, i);
        wrong += enter(ring.fd, 1, 1, IORING_ENTER_GETEVENTS) != 1;
        if (i % 2) close(ring.fd);
    }
    printf("wrong %d, size %ld\n", wrong, lseek(fd, 0, SEEK_END));
    close(fd), unlink("file");
}

/* A ring with a thread of the kernel, which may sleep. */
static void polled(void) {
    struct ring ring;
    char bytes[8] = {0};
    int fd = open("file", O_RDWR | O_CREAT, 0600);
    printf("with other forms of completion %d\n", make(&ring, 8, IORING_SETUP_SQPOLL | IORING_SETUP_COOP_TASKRUN));
    printf("polled %d", make(&ring, 8, IORING_SETUP_SQPOLL));
    printf(" %d\n", ring.parameters.flags & IORING_SETUP_SQPOLL);
    close(ring.fd);
    /* The thread of the kernel is the only one that submits. */
    printf("one submits %d\n", make(&ring, 8, IORING_SETUP_SQPOLL | IORING_SETUP_SINGLE_ISSUER));
    fflush(stdout);
    if (fork() == 0) {
        add(&ring, IORING_OP_NOP, -1, NULL, 0, 0);
        printf("in a child %ld\n", enter(ring.fd, 1, 0, IORING_ENTER_SQ_WAKEUP));
        fflush(stdout);
        _exit(0);
    }
    wait(NULL);
    unsigned *last = word(&ring, ring.parameters.cq_off.tail);
    while (__atomic_load_n(last, __ATOMIC_ACQUIRE) == 0) sched_yield();
    *word(&ring, ring.parameters.cq_off.head) += 1;
    for (int round = 0; round < 20; round++) {
        /* A thread of the kernel takes what is there, and a chain ends with that. */
        ring.holds = 1;
        add(&ring, IORING_OP_WRITE, fd, "abcdefgh" + round % 4, 4, 0)->flags = IOSQE_IO_LINK;
        add(&ring, IORING_OP_READ, fd, bytes, 4, 0);
        add(&ring, round % 3 ? IORING_OP_NOP : 250, -1, NULL, 0, 0);
        add(&ring, IORING_OP_NOP, -1, NULL, 0, 0);
        ring.holds = 0, publish(&ring);
        __sync_synchronize();
        if (*word(&ring, ring.parameters.sq_off.flags) & IORING_SQ_NEED_WAKEUP)
            if (enter(ring.fd, round % 2 ? 4 : 0, 0, IORING_ENTER_SQ_WAKEUP) != (round % 2 ? 4 : 0)) printf("not entered\n");
        unsigned *head = word(&ring, ring.parameters.cq_off.head), *tail = word(&ring, ring.parameters.cq_off.tail);
        while (__atomic_load_n(tail, __ATOMIC_ACQUIRE) - *head < 4) sched_yield();
        if (round == 19) ring.filled = 4, submit(&ring, "seen", 0);
        else *head += 4, ring.filled = 0;
    }
    printf("%.4s\n", bytes);
    close(ring.fd), close(fd), unlink("file");
}

static void processes(void) {
    struct ring ring;
    int status, fd = open("file", O_RDWR | O_CREAT, 0600);
    make(&ring, 8, 0);
    fflush(stdout);
    if (fork() == 0) {
        add(&ring, IORING_OP_WRITE, fd, "child", 5, 0);
        submit(&ring, "in a child", 1);
        fflush(stdout);
        _exit(0);
    }
    wait(&status);
    add(&ring, IORING_OP_WRITE, fd, "parent", 6, 5);
    submit(&ring, "in its parent", 1);
    printf("size %ld\n", lseek(fd, 0, SEEK_END));
    close(ring.fd);
    int number = ring.fd;
    make(&ring, 8, 0);
    printf("the same number %d\n", ring.fd == number);
    add(&ring, IORING_OP_WRITE, fd, "next", 4, 11);
    submit(&ring, "of the next ring", 1);
    pthread_t threads[4];
    make(&shared, 4096, 0);
    pthread_barrier_init(&submitted, NULL, 5), pthread_barrier_init(&completed, NULL, 5);
    for (long i = 0; i < 4; i++) pthread_create(&threads[i], NULL, thread, (void *)i);
    pthread_barrier_wait(&submitted);
    enter(shared.fd, 2000, 2000, IORING_ENTER_GETEVENTS);
    pthread_barrier_wait(&completed);
    long fds[4];
    for (int i = 0; i < 4; i++) pthread_join(threads[i], (void **)&fds[i]);
    for (int i = 0; i < 4; i++) printf("thread: %ld\n", lseek(fds[i], 0, SEEK_END));
    shared.filled = 0;
    submit(&shared, "of the threads", 2000);
}

/* What `directfs run` refuses, and a kernel does not. */
static void refused(void) {
    struct ring ring;
    int fd = open("file", O_RDWR | O_CREAT, 0600), sockets[2], own[] = {fd, -1}, index;
    if (make(&ring, 8, 0) == -ENOSYS) { printf("no rings\n"); return; }
    close(ring.fd);
    printf("only registered %d\n", make(&ring, 8, NO_MMAP | 1 << 15));
    printf("unknown flag %d\n", make(&ring, 8, 1 << 30));
    make(&ring, 8, 0);
    printf("files %ld\n", reg(ring.fd, IORING_REGISTER_FILES, own, 2));
    struct { unsigned offset, reserved; void *ring; } name = {-1U, 0, (void *)(long)ring.fd};
    printf("descriptor %ld\n", reg(ring.fd, 20, &name, 1));
    printf("by a registered descriptor %ld\n", enter(0, 0, 0, 1 << 4));
    printf("no descriptor %ld\n", reg(ring.fd, 21, &name, 1));
    add(&ring, IORING_OP_MSG_RING, dup(ring.fd), (void *)1, 0, 0)->file_index = ANY;
    submit(&ring, "a file to a ring of another process", 1);
    fixed(add(&ring, IORING_OP_SPLICE, 0, NULL, 4, 0))->splice_fd_in = fd;
    submit(&ring, "splice by index", 1);
    add(&ring, IORING_OP_SPLICE, fd, NULL, 4, 0)->splice_fd_in = fd;
    submit(&ring, "splice", 1);
    socketpair(AF_UNIX, SOCK_STREAM, 0, sockets);
    char control[CMSG_SPACE(4)] = {0}, byte = 'x';
    struct iovec one = {&byte, 1};
    struct msghdr message = {.msg_iov = &one, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    struct cmsghdr *head = CMSG_FIRSTHDR(&message);
    head->cmsg_level = SOL_SOCKET, head->cmsg_type = SCM_RIGHTS, head->cmsg_len = CMSG_LEN(4);
    memcpy(CMSG_DATA(head), &fd, 4);
    add(&ring, IORING_OP_SENDMSG, sockets[0], &message, 1, 0);
    submit(&ring, "a descriptor in a message", 1);
    message.msg_control = NULL, message.msg_controllen = 0;
    add(&ring, IORING_OP_SENDMSG, sockets[0], &message, 1, 0);
    add(&ring, IORING_OP_RECVMSG, sockets[1], &message, 1, 0);
    submit(&ring, "messages without", 2);
    int pipes[2];
    if (pipe(pipes)) return;
    add(&ring, IORING_OP_POLL_ADD, pipes[1], NULL, 0, 0)->poll32_events = POLLOUT;
    ring.entries[(*word(&ring, ring.parameters.sq_off.tail) - 1) & 7].flags = IOSQE_IO_LINK;
    add(&ring, IORING_OP_WRITE, fd, "x", 1, 0);
    submit(&ring, "after a poll", 2);
    static char buffer[64];
    int writer = open("file", O_WRONLY), directory = open(".", O_RDONLY);
    add(&ring, IORING_OP_PROVIDE_BUFFERS, 1, buffer, 64, 0)->buf_group = 7;
    select_from(add(&ring, IORING_OP_READ, writer, NULL, 1, 0), 7);
    select_from(add(&ring, IORING_OP_READ, directory, NULL, 1, 0), 7);
    submit(&ring, "errors take no buffer", 3);
    select_from(add(&ring, IORING_OP_READ, fd, NULL, 1, 0), 7)->flags |= IOSQE_IO_HARDLINK;
    add(&ring, IORING_OP_WRITE, fd, "x", 1, 0);
    submit(&ring, "after a selected buffer", 2);
    add(&ring, IORING_OP_NOP, -1, NULL, 0, 0)->flags = IOSQE_IO_LINK;
    select_from(add(&ring, IORING_OP_READ, fd, NULL, 1, 0), 7);
    submit(&ring, "a selected buffer in a chain", 2);
    add(&ring, IORING_OP_NOP, -1, NULL, 0, 0)->flags = IOSQE_IO_DRAIN;
    select_from(add(&ring, IORING_OP_READ, fd, NULL, 1, 0), 7);
    submit(&ring, "a selected buffer after a barrier", 2);
    printf("of a duplicate %ld\n", enter(dup(ring.fd), 1, 0, 0));
    printf("of no ring %ld %ld\n", enter(fd, 1, 0, 0), enter(999, 1, 0, 0));
    printf("size %ld\n", lseek(fd, 0, SEEK_END));
}

int main(int count, char **arguments) {
    struct ring ring;
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (!strcmp(arguments[1], "refused")) return refused(), 0;
    /* `directfs run` serves rings of Linux 6.12 and later. */
    if (make(&ring, 8, 0) || !(ring.parameters.features & 1 << 15)) return printf("no rings here\n"), 0;
    close(ring.fd);
    int failed = kind(0, "plain", arguments[2]);
    failed += kind(IORING_SETUP_SQE128 | IORING_SETUP_CQE32, "large", arguments[2]);
    failed += kind(NO_ARRAY | IORING_SETUP_SUBMIT_ALL, "no array", arguments[2]);
    failed += kind(NO_MMAP, "memory of the program", arguments[2]);
    failed += kind(IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN, "deferred", arguments[2]);
    failed += kind(IORING_SETUP_COOP_TASKRUN, "cooperative", arguments[2]);
    invalid();
    polled();
    many();
    processes();
    killed();
    return failed;
}
