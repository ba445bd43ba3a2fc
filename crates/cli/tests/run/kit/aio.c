/* Linux's asynchronous I/O by raw calls, in the working directory. Prints what a program sees,
   which is the same on every file system. usage: aio DIRECTORY_OF_ANOTHER_FILE_SYSTEM */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/aio_abi.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

static struct timespec no_time;
static long setup(unsigned count, aio_context_t *context) { return syscall(SYS_io_setup, count, context); }
static long destroy(aio_context_t context) { return syscall(SYS_io_destroy, context); }
static long submit(aio_context_t context, long count, struct iocb **list) {
    long result = syscall(SYS_io_submit, context, count, list);
    return result < 0 ? -errno : result;
}
static long events(aio_context_t context, long least, long most, struct io_event *into, struct timespec *time) {
    long result = syscall(SYS_io_getevents, context, least, most, into, time);
    return result < 0 ? -errno : result;
}

static struct iocb block(int code, int fd, const void *buffer, size_t bytes, off_t offset) {
    struct iocb made = {.aio_lio_opcode = code, .aio_fildes = fd, .aio_buf = (unsigned long)buffer, .aio_nbytes = bytes,
                        .aio_offset = offset, .aio_data = 77};
    return made;
}

/* One entry: io_submit's error or the completion's. */
static long once(aio_context_t context, struct iocb one) {
    struct iocb *list[] = {&one};
    struct iocb before = one;
    struct io_event event = {0};
    long submitted = submit(context, 1, list);
    if (submitted != 1) return submitted;
    one.aio_key = before.aio_key;
    if (memcmp(&one, &before, sizeof one)) return -9999;
    if (events(context, 1, 1, &event, NULL) != 1 || event.obj != (unsigned long)&one || event.data != 77 || event.res2)
        return -9998;
    return event.res;
}

static void transfers(aio_context_t context) {
    char bytes[8192], read_back[8192];
    for (int i = 0; i < sizeof bytes; i++) bytes[i] = i * 7;
    struct iovec out[] = {{bytes, 100}, {bytes + 100, 400}}, in[] = {{read_back, 250}, {read_back + 250, 250}};
    int fd = open("file", O_RDWR | O_CREAT | O_TRUNC, 0600);
    printf("write %ld\n", once(context, block(IOCB_CMD_PWRITE, fd, bytes, sizeof bytes, 4096)));
    printf("read %ld\n", once(context, block(IOCB_CMD_PREAD, fd, read_back, sizeof bytes, 4096)));
    printf("same %d\n", memcmp(bytes, read_back, sizeof bytes));
    printf("read across the end %ld\n", once(context, block(IOCB_CMD_PREAD, fd, read_back, sizeof bytes, 8192)));
    printf("read behind the end %ld\n", once(context, block(IOCB_CMD_PREAD, fd, read_back, 10, 1 << 20)));
    printf("writev %ld\n", once(context, block(IOCB_CMD_PWRITEV, fd, out, 2, 1)));
    printf("readv %ld\n", once(context, block(IOCB_CMD_PREADV, fd, in, 2, 1)));
    printf("same %d\n", memcmp(bytes, read_back, 500));
    printf("fsync %ld\n", once(context, block(IOCB_CMD_FSYNC, fd, NULL, 0, 0)));
    printf("fdatasync %ld\n", once(context, block(IOCB_CMD_FDSYNC, fd, NULL, 0, 0)));
    printf("poll %ld\n", once(context, block(IOCB_CMD_POLL, fd, (void *)1, 0, 0)));
    int append = open("file", O_WRONLY | O_APPEND);
    printf("append %ld, now %ld\n", once(context, block(IOCB_CMD_PWRITE, append, "tail", 4, 0)), lseek(fd, 0, SEEK_END));
    printf("nothing %ld\n", once(context, block(IOCB_CMD_PWRITE, fd, bytes, 0, 0)));
    printf("the position stays %ld\n", lseek(fd, 0, SEEK_CUR));
    close(append);
    close(fd);
}

static void errors(aio_context_t context) {
    char bytes[16];
    int fd = open("file", O_RDONLY), directory = open(".", O_RDONLY), path = open("file", O_PATH), writer = open("file", O_WRONLY);
    printf("write to a reader %ld\n", once(context, block(IOCB_CMD_PWRITE, fd, bytes, 4, 0)));
    printf("read from a writer %ld\n", once(context, block(IOCB_CMD_PREAD, writer, bytes, 4, 0)));
    printf("directory %ld\n", once(context, block(IOCB_CMD_PREAD, directory, bytes, 4, 0)));
    printf("path %ld\n", once(context, block(IOCB_CMD_PREAD, path, bytes, 4, 0)));
    printf("negative offset %ld\n", once(context, block(IOCB_CMD_PREAD, fd, bytes, 4, -1)));
    printf("fsync with a buffer %ld\n", once(context, block(IOCB_CMD_FSYNC, fd, bytes, 4, 0)));
    printf("no operation %ld\n", once(context, block(IOCB_CMD_NOOP, fd, bytes, 4, 0)));
    printf("unknown %ld\n", once(context, block(99, fd, bytes, 4, 0)));
    printf("bad buffer %ld\n", once(context, block(IOCB_CMD_PREAD, fd, (void *)16, 4, 0)));
    printf("bad list %ld\n", once(context, block(IOCB_CMD_PREADV, fd, (void *)16, 1, 0)));
    struct iocb reserved = block(IOCB_CMD_PREAD, fd, bytes, 4, 0), flagged = reserved, event = reserved;
    reserved.aio_reserved2 = 1;
    flagged.aio_rw_flags = 1 << 30;
    event.aio_flags = IOCB_FLAG_RESFD;
    event.aio_resfd = fd;
    printf("reserved %ld\n", once(context, reserved));
    printf("flags %ld\n", once(context, flagged));
    printf("no eventfd %ld\n", once(context, event));
    close(fd);
    printf("closed %ld\n", once(context, block(IOCB_CMD_PREAD, fd, bytes, 4, 0)));
    fd = open("file", O_RDWR);
    struct iocb good = block(IOCB_CMD_PREAD, fd, bytes, 4, 0), bad = block(IOCB_CMD_PREAD, -1, bytes, 4, 0);
    struct iocb *list[] = {&good, &good, &bad, &good}, *nowhere[] = {&good, (void *)16};
    struct io_event found[8];
    printf("up to a bad one %ld", submit(context, 4, list));
    printf(", completed %ld\n", events(context, 2, 8, found, NULL));
    printf("up to a bad pointer %ld", submit(context, 2, nowhere));
    printf(", completed %ld\n", events(context, 1, 8, found, NULL));
    printf("none %ld, less %ld\n", submit(context, 0, list), submit(context, -1, list));
    printf("a bad list %ld\n", submit(context, 1, (void *)16));
    printf("no context %ld %ld\n", submit(0, 1, list), submit(context + 4096, 1, list));
    for (int other = 0; other < 4096; other++)
        if (fcntl(other, F_GETFD) < 0 && once(context, block(IOCB_CMD_PREAD, other, bytes, 4, 0)) != -EBADF)
            printf("descriptor %d is open\n", other);
    close(writer), close(path), close(directory), close(fd);
}

/* Files of two file systems in one call, and a completion that comes later. */
static void mixed(aio_context_t context, const char *elsewhere) {
    char path[4096], bytes[4], other[4];
    snprintf(path, sizeof path, "%s/aio-other", elsewhere);
    int fd = open("file", O_RDWR | O_TRUNC), host = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600), pipes[2], counter = eventfd(0, 0);
    if (pipe(pipes)) return;
    struct iocb list[] = {block(IOCB_CMD_PWRITE, fd, "here", 4, 0), block(IOCB_CMD_PWRITE, host, "host", 4, 0),
                          block(IOCB_CMD_POLL, pipes[0], (void *)1, 0, 0), block(IOCB_CMD_PREAD, fd, bytes, 4, 0),
                          block(IOCB_CMD_PREAD, host, other, 4, 0)};
    struct iocb *pointers[5];
    for (int i = 0; i < 5; i++) {
        pointers[i] = &list[i];
        list[i].aio_flags = IOCB_FLAG_RESFD;
        list[i].aio_resfd = counter;
    }
    struct io_event found[8];
    printf("mixed %ld", submit(context, 5, pointers));
    long count = events(context, 4, 8, found, NULL), sum = 0;
    for (long i = 0; i < count; i++) sum += found[i].res;
    unsigned long completed;
    printf(", completed %ld, sum %ld, %.4s %.4s", count, sum, bytes, other);
    printf(", eventfd %d", read(counter, &completed, 8) == 8 ? (int)completed : -1);
    printf(", then %ld", events(context, 1, 8, found, &no_time));
    printf(", written %ld", write(pipes[1], "x", 1));
    printf(", then %ld\n", events(context, 1, 8, found, NULL));
    unlink(path);
    close(fd), close(host), close(counter), close(pipes[0]), close(pipes[1]);
}

/* Completions that a program reads in the ring itself. */
static void ring(void) {
    struct { unsigned id, nr, head, tail, magic, compatible, incompatible, header; struct io_event events[]; } volatile *ring;
    aio_context_t context = 0;
    char bytes[64] = "what is written through the ring";
    int fd = open("file", O_RDWR | O_CREAT, 0600), wrong = 0, most = 0;
    setup(16, &context);
    ring = (void *)context;
    printf("magic %x\n", ring->magic);
    struct iocb one = block(IOCB_CMD_PWRITE, fd, bytes, 13, 0), *list[] = {&one};
    for (int i = 0; i < 1000; i++) {
        if (submit(context, 1, list) != 1 || ring->head == ring->tail) wrong++;
        if (ring->events[ring->head].obj != (unsigned long)&one || ring->events[ring->head].res != 13) wrong++;
        ring->head = (ring->head + 1) % ring->nr;
    }
    printf("read in the ring, wrong %d\n", wrong);
    while (submit(context, 1, list) == 1) most++;
    struct io_event found[8];
    printf("full after enough %d with %ld", most >= 16, submit(context, 1, list));
    for (long now; (now = events(context, 0, 8, found, &no_time)) > 0;)
        for (most -= now; now--;) wrong += found[now].res != 13;
    printf(", missing %d, wrong %d\n", most, wrong);
    close(fd);
    destroy(context);
}

static void nothing(int signal) {}

static void waiting(aio_context_t context) {
    struct io_event found[2];
    struct timespec short_time = {0, 2000000};
    struct itimerval soon = {{0, 0}, {0, 2000}}, again = {{0, 2000}, {0, 2000}};
    struct sigaction action = {.sa_handler = nothing};
    sigaction(SIGALRM, &action, NULL);
    printf("in time %ld\n", events(context, 1, 2, found, &short_time));
    setitimer(ITIMER_REAL, &again, NULL);
    printf("interrupted %ld\n", events(context, 1, 2, found, NULL));
    memset(&again, 0, sizeof again);
    setitimer(ITIMER_REAL, &again, NULL);
    int fd = open("file", O_RDWR), status;
    struct iocb one = block(IOCB_CMD_PWRITE, fd, "x", 1, 0), *list[] = {&one};
    fflush(stdout);
    if (fork() == 0) {
        aio_context_t own = 0;
        long inherited = submit(context, 1, list);
        _exit(inherited == -EINVAL && setup(4, &own) == 0 && once(own, one) == 1 ? 0 : 1);
    }
    wait(&status);
    printf("in a child %d\n", status);
    printf("destroyed %ld", destroy(context));
    printf(", then %ld\n", submit(context, 1, list));
    close(fd);
}

static void *thread(void *number) {
    char name[32], bytes[512], found[512];
    aio_context_t context = 0;
    long wrong = setup(32, &context) != 0;
    snprintf(name, sizeof name, "thread-%ld", (long)number);
    memset(bytes, 'a' + (long)number, sizeof bytes);
    int fd = open(name, O_RDWR | O_CREAT, 0600);
    for (int i = 0; i < 200; i++) {
        struct iocb list[] = {block(IOCB_CMD_PWRITE, fd, bytes, 512, 512 * i), block(IOCB_CMD_PREAD, fd, found, 512, 512 * i)};
        struct iocb *pointers[] = {&list[0], &list[1]};
        struct io_event two[2];
        wrong += submit(context, 2, pointers) != 2 || events(context, 2, 2, two, NULL) != 2;
        wrong += two[0].res != 512 || two[1].res != 512 || memcmp(bytes, found, 512);
    }
    return (void *)wrong;
}

int main(int count, char **arguments) {
    aio_context_t context = 0;
    printf("setup %ld\n", setup(16, &context));
    transfers(context);
    errors(context);
    mixed(context, arguments[1]);
    ring();
    pthread_t threads[4];
    void *wrong;
    for (long i = 0; i < 4; i++) pthread_create(&threads[i], NULL, thread, (void *)i);
    for (int i = 0; i < 4; i++) pthread_join(threads[i], &wrong), printf("thread: wrong %ld\n", (long)wrong);
    waiting(context);
    return 0;
}
