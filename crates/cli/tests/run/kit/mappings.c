/* Mappings whose pages come later: files that grow, holes, bytes that are requested again, moves.
   The same lines appear in every file system. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/shm.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#define PAGE 4096L
/* Linux 6.13, and for files 6.15. */
#define GUARD_INSTALL 102
#define GUARD_REMOVE 103
/* Linux 6.10. */
#define SYSTEM_CALL_MSEAL 462

static void check(const char *what, long is, long wanted) {
    if (is == wanted) printf("%s: %ld\n", what, is);
    else printf("%s: %ld, not %ld (%s)\n", what, is, wanted, strerror(errno));
}

static int file(const char *name, long pages, char byte) {
    int fd = open(name, O_RDWR | O_CREAT | O_TRUNC, 0600);
    char page[PAGE];
    memset(page, byte, PAGE);
    for (long i = 0; i < pages; i++) pwrite(fd, page, PAGE, i * PAGE);
    return fd;
}

static char *map(int fd, long pages, int protection, int flags) {
    char *start = mmap(0, pages * PAGE, protection, flags, fd, 0);
    if (start == MAP_FAILED) { perror("mmap"); exit(1); }
    return start;
}

static sigjmp_buf back;
static volatile long fault_code, fault_offset;
static char *fault_base;
static void on_fault(int signal, siginfo_t *info, void *context) {
    fault_code = signal * 1000 + info->si_code;
    fault_offset = (char *)info->si_addr - fault_base;
    siglongjmp(back, 1);
}

/* The signal of an access, as 1000 * signal + code; 0: none. */
static long access_of(char *start, long offset, int store) {
    fault_base = start;
    fault_code = 0;
    if (!sigsetjmp(back, 1)) {
        volatile char *at = start + offset;
        if (store) *at = 's';
        else (void)*at;
        return 0;
    }
    return fault_offset == offset ? fault_code : -1;
}

static void grow(void) {
    int fd = file("grow", 1, 'a');
    char *start = map(fd, 64, PROT_READ | PROT_WRITE, MAP_SHARED);
    char *loads = map(fd, 64, PROT_READ, MAP_SHARED);
    char *own = map(fd, 64, PROT_READ | PROT_WRITE, MAP_PRIVATE);
    check("behind the end", access_of(start, 5 * PAGE + 7, 0), SIGBUS * 1000 + BUS_ADRERR);
    check("store behind the end", access_of(start, 5 * PAGE + 7, 1), SIGBUS * 1000 + BUS_ADRERR);
    check("private behind the end", access_of(own, 5 * PAGE, 0), SIGBUS * 1000 + BUS_ADRERR);
    ftruncate(fd, 6 * PAGE);
    check("after ftruncate", start[5 * PAGE + 7], 0);
    check("store", access_of(start, 5 * PAGE + 7, 1), 0);
    char byte = 0;
    pread(fd, &byte, 1, 5 * PAGE + 7);
    check("the store is in the file", byte, 's');
    check("the other mapping", loads[5 * PAGE + 7], 's');
    check("the private mapping", own[5 * PAGE + 7], 's');
    own[5 * PAGE + 7] = 'p';
    check("its own store", start[5 * PAGE + 7], 's');
    if (fork() == 0) {
        char page[PAGE];
        memset(page, 'c', PAGE);
        for (int i = 6; i < 40; i++) pwrite(fd, page, PAGE, i * PAGE);
        _exit(0);
    }
    wait(0);
    long sum = 0;
    for (int i = 6; i < 40; i++) sum += loads[i * PAGE + i] == 'c';
    check("pages of a child", sum, 34);
    check("still behind the end", access_of(loads, 40 * PAGE, 0), SIGBUS * 1000 + BUS_ADRERR);
    pwrite(fd, "end", 3, 50 * PAGE);
    /* The kernel reads pages that the program has not used. */
    int ends[2];
    pipe(ends);
    check("write from an unused page", write(ends[1], loads + 50 * PAGE, 3), 3);
    struct iovec pieces[2] = {{loads + 45 * PAGE, 1}, {start + 50 * PAGE, 3}};
    check("writev", writev(ends[1], pieces, 2), 4);
    check("write behind the end", write(ends[1], loads + 60 * PAGE, 3), -1);
    check("its errno", errno, EFAULT);
    char text[8] = "";
    read(ends[0], text, 7);
    check("what was written", memcmp(text, "end\0end", 7), 0);
    pwrite(fd, "x", 1, 58 * PAGE);
    write(ends[1], "pipe", 4);
    check("read into an unused page", read(ends[0], start + 57 * PAGE + 1, 4), 4);
    check("what was read", memcmp(loads + 57 * PAGE + 1, "pipe", 4), 0);
    int other = file("other", 1, 'o');
    check("read of a file into an unused page", pread(other, start + 55 * PAGE, 5, 0), 5);
    check("its bytes", memcmp(loads + 55 * PAGE, "ooooo", 5), 0);
}

static void sparse(void) {
    int fd = file("sparse", 0, 0);
    ftruncate(fd, 8L << 30);
    char *start = map(fd, (8L << 30) / PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE);
    struct stat status;
    fstat(fd, &status);
    check("blocks of a mapped hole", status.st_blocks, 0);
    check("a byte of the hole", start[3L << 30], 0);
    start[5L << 30] = 'y';
    char byte = 0;
    pread(fd, &byte, 1, 5L << 30);
    check("a store into the hole", byte, 'y');
    fstat(fd, &status);
    check("few blocks", status.st_blocks < 1000 && status.st_blocks > 0, 1);
    pwrite(fd, "z", 1, 6L << 30);
    check("a write into the hole", start[6L << 30], 'z');
    mprotect(start + (7L << 30), 64 * PAGE, PROT_READ);
    check("store without the right", access_of(start, 7L << 30, 1), SIGSEGV * 1000 + SEGV_ACCERR);
    check("load with the right", access_of(start, (7L << 30) + PAGE, 0), 0);
    check("store beside", access_of(start, (7L << 30) + PAGE, 1), SIGSEGV * 1000 + SEGV_ACCERR);
    mprotect(start + (7L << 30), 64 * PAGE, PROT_NONE);
    check("no right", access_of(start, (7L << 30) + 9 * PAGE, 0), SIGSEGV * 1000 + SEGV_ACCERR);
    mprotect(start + (7L << 30), 64 * PAGE, PROT_READ | PROT_WRITE);
    check("the right again", access_of(start, (7L << 30) + 9 * PAGE, 1), 0);
    check("mlock", mlock(start + (4L << 30), 2 * PAGE), 0);
    munmap(start, 8L << 30);
    /* One page at a time, over a hole. */
    int copy = file("copied", 0, 0);
    ftruncate(copy, 700 * PAGE);
    start = map(copy, 700, PROT_READ | PROT_WRITE, MAP_SHARED);
    for (long i = 0; i < 700; i++) start[i * PAGE + 1] = 'a' + i % 26;
    long right = 0;
    for (long i = 0; i < 700; i++) right += pread(copy, &byte, 1, i * PAGE + 1) == 1 && byte == 'a' + i % 26;
    check("stores page by page", right, 700);
    check("MADV_REMOVE", madvise(start + 10 * PAGE, 5 * PAGE, MADV_REMOVE), 0);
    pread(copy, &byte, 1, 12 * PAGE + 1);
    check("the removed range", byte, 0);
    check("in the mapping", start[12 * PAGE + 1], 0);
    pread(copy, &byte, 1, 15 * PAGE + 1);
    check("behind it", byte, 'a' + 15);
}

static char *shared_start;
static void *store_some(void *argument) {
    long first = (long)argument;
    for (long i = first; i < 2000; i += 4) shared_start[i * PAGE + first] = 'a' + first;
    return 0;
}

static void threads(void) {
    int fd = file("threads", 0, 0);
    ftruncate(fd, 2000 * PAGE);
    shared_start = map(fd, 2000, PROT_READ | PROT_WRITE, MAP_SHARED);
    pthread_t all[4];
    for (long i = 0; i < 4; i++) pthread_create(&all[i], 0, store_some, (void *)i);
    for (int i = 0; i < 4; i++) pthread_join(all[i], 0);
    long right = 0;
    for (long i = 0; i < 2000; i++) {
        char byte = 0;
        right += pread(fd, &byte, 1, i * PAGE + i % 4) == 1 && byte == 'a' + i % 4;
    }
    check("stores of four threads", right, 2000);
}

/* Bytes of a private mapping that are requested again. */
static void again(long pages) {
    int fd = file("again", pages, 'f');
    char *start = map(fd, pages, PROT_READ | PROT_WRITE, MAP_PRIVATE);
    memset(start, 'w', pages * PAGE);
    check("MADV_DONTNEED of pages", madvise(start + PAGE, 2 * PAGE, MADV_DONTNEED), 0);
    check("before them", start[0], 'w');
    check("the first", start[PAGE], 'f');
    check("the last", start[3 * PAGE - 1], 'f');
    check("behind them", start[3 * PAGE], 'w');
    mprotect(start, PAGE, PROT_READ);
    madvise(start, PAGE, MADV_DONTNEED);
    check("of a page that cannot be written", start[0], 'f');
    check("MADV_FREE", madvise(start, PAGE, MADV_FREE), -1);
    check("its errno", errno, EINVAL);
    check("MADV_REMOVE of a private mapping", madvise(start, PAGE, MADV_REMOVE), -1);
    check("its errno", errno, EACCES);
    if (fork() == 0) {
        madvise(start + 3 * PAGE, PAGE, MADV_DONTNEED);
        _exit(start[3 * PAGE] != 'f');
    }
    int status;
    wait(&status);
    check("in a child", status, 0);
    check("and not here", start[3 * PAGE], 'w');
}

/* Advice to the process itself by its pidfd. */
static void by_pidfd(long pages) {
    int fd = file("by-pidfd", pages, 'f'), own = syscall(SYS_pidfd_open, getpid(), 0);
    char *start = map(fd, pages, PROT_READ | PROT_WRITE, MAP_PRIVATE);
    char *memory = map(-1, 1, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS);
    memset(start, 'w', pages * PAGE);
    memory[0] = 'w';
    struct iovec ranges[] = {{start + PAGE, 2 * PAGE}, {memory, PAGE}, {start + 4 * PAGE, PAGE}};
    check("process_madvise", syscall(SYS_process_madvise, own, ranges, 3L, MADV_DONTNEED, 0), 4 * PAGE);
    check("before", start[0], 'w');
    check("its first page", start[PAGE], 'f');
    check("its second page", start[3 * PAGE - 1], 'f');
    check("between", start[3 * PAGE], 'w');
    check("anonymous memory", memory[0], 0);
    check("its last page", start[4 * PAGE], 'f');
    check("with flags", syscall(SYS_process_madvise, own, ranges, 3L, MADV_DONTNEED, 1), -1);
    check("their errno", errno, EINVAL);
    ranges[0].iov_base = start + 1;
    check("within a page", syscall(SYS_process_madvise, own, ranges, 1L, MADV_DONTNEED, 0), -1);
    check("its errno", errno, EINVAL);
    pid_t child = fork();
    if (child == 0) pause();
    int other = syscall(SYS_pidfd_open, child, 0);
    ranges[0].iov_base = start;
    check("another process", syscall(SYS_process_madvise, other, ranges, 1L, MADV_DONTNEED, 0), -1);
    check("its errno", errno, EINVAL);
    check("the page here", start[0], 'w');
    kill(child, SIGKILL);
    wait(0);
}

/* Guards are refused, or they last and leave what the file has. */
static void guarded(const char *what, long pages, int flags) {
    int fd = file("guarded", pages, 'f');
    ftruncate(fd, 2 * pages * PAGE);
    char *start = map(fd, 2 * pages, PROT_READ | PROT_WRITE, flags);
    int guards = !madvise(start + PAGE, PAGE, GUARD_INSTALL);
    check(what, guards ? access_of(start, PAGE, 0) / 1000 == SIGSEGV : errno == EINVAL, 1);
    guards = !madvise(start + (pages + 1) * PAGE, PAGE, GUARD_INSTALL);
    start[(pages + 2) * PAGE] = 's';
    check("a store beside", start[(pages + 2) * PAGE], 's');
    check("a guarded hole", guards ? access_of(start, (pages + 1) * PAGE, 1) / 1000 == SIGSEGV : errno == EINVAL, 1);
    madvise(start, 2 * pages * PAGE, GUARD_REMOVE);
    check("without guards", start[PAGE], 'f');
}

/* A seal is refused, or all pages stay usable. */
static void sealed(void) {
    int fd = file("sealed", 0, 0);
    ftruncate(fd, 600 * PAGE);
    char *start = map(fd, 600, PROT_READ | PROT_WRITE, MAP_SHARED), byte = 0;
    check("mseal", syscall(SYSTEM_CALL_MSEAL, start, 600 * PAGE, 0L) == 0 || errno == EPERM || errno == ENOSYS, 1);
    check("a store into a hole", access_of(start, 500 * PAGE, 1), 0);
    pread(fd, &byte, 1, 500 * PAGE);
    check("its byte", byte, 's');
    close(fd);
    fd = file("sealed-private", 8, 'f');
    start = map(fd, 8, PROT_READ | PROT_WRITE, MAP_PRIVATE);
    int is_sealed = syscall(SYSTEM_CALL_MSEAL, start, 8 * PAGE, 0L) == 0;
    check("munmap of what is sealed", munmap(start, 8 * PAGE) == (is_sealed ? -1 : 0), 1);
    if (is_sealed) start[PAGE] = 'w';
    check("a private page", is_sealed ? start[PAGE] : 'w', 'w');
}

/* A private mapping that grows and moves. */
static void moved(long pages) {
    int fd = file("moved", pages + 4, 'f');
    char *start = map(fd, pages, PROT_READ | PROT_WRITE, MAP_PRIVATE);
    start[0] = 'w';
    start[(pages - 1) * PAGE] = 'w';
    char *anew = mremap(start, pages * PAGE, (pages + 3) * PAGE, MREMAP_MAYMOVE);
    check("mremap", anew != MAP_FAILED, 1);
    if (anew == MAP_FAILED) return;
    check("a written page", anew[0], 'w');
    check("another", anew[(pages - 1) * PAGE], 'w');
    check("one that was not written", anew[PAGE], 'f');
    check("a new page", anew[(pages + 2) * PAGE], 'f');
    char *place = mmap(0, (pages + 8) * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    char *there = mremap(anew, (pages + 3) * PAGE, (pages + 3) * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, place + PAGE);
    check("mremap to an address", there - place, PAGE);
    check("the written page there", there[0], 'w');
    check("the new page there", there[(pages + 2) * PAGE], 'f');
    madvise(there, PAGE, MADV_DONTNEED);
    check("the file's bytes there", there[0], 'f');
    check("mremap without room", (long)mremap(there, PAGE, 2 * PAGE, 0), -1);
    check("its errno", errno, ENOMEM);
    check("smaller", mremap(there, (pages + 3) * PAGE, PAGE, 0) == there, 1);
    check("behind it", access_of(there, PAGE, 0), SIGSEGV * 1000 + SEGV_MAPERR);
}

static void shared_moved(void) {
    int fd = file("shared-moved", 2, 'f');
    char *start = map(fd, 2, PROT_READ | PROT_WRITE, MAP_SHARED);
    ftruncate(fd, 20 * PAGE);
    char *anew = mremap(start, 2 * PAGE, 20 * PAGE, MREMAP_MAYMOVE);
    check("mremap of a shared mapping", anew != MAP_FAILED, 1);
    anew[19 * PAGE] = 'n';
    char byte = 0;
    pread(fd, &byte, 1, 19 * PAGE);
    check("a store into a new page", byte, 'n');
    anew = mremap(anew, 20 * PAGE, 30 * PAGE, MREMAP_MAYMOVE);
    check("behind the end", access_of(anew, 25 * PAGE, 0), SIGBUS * 1000 + BUS_ADRERR);
    check("flags", (long)mremap(anew, PAGE, PAGE, MREMAP_FIXED, start), -1);
    check("their errno", errno, EINVAL);
    char *both = mremap(anew, 30 * PAGE, 30 * PAGE, MREMAP_MAYMOVE | MREMAP_DONTUNMAP);
    if (both != MAP_FAILED) {
        both[0] = 'b';
        check("MREMAP_DONTUNMAP", anew[0], 'b');
    }
}

/* Memory that is moved into the middle of a mapping stays when another page of the mapping, in the
   same window of pages, is used for the first time. */
static void moved_over(const char *what, int protection, int flags, int source) {
    int fd = file("moved-over", 0, 0);
    ftruncate(fd, 14 * PAGE);
    char *start = mmap(0, 7 * PAGE, PROT_READ, MAP_SHARED, fd, 6 * PAGE), *there;
    if (flags) {
        char *memory = map(source, 1, protection, flags);
        there = mremap(memory, PAGE, PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, start + 3 * PAGE);
    } else {
        int segment = shmget(IPC_PRIVATE, PAGE, 0600);
        there = shmat(segment, start + 3 * PAGE, SHM_REMAP);
        shmctl(segment, IPC_RMID, 0);
    }
    check(what, there - start, 3 * PAGE);
    memset(there, 'm', PAGE);
    long sum = 0;
    for (long i = 0; i < 7; i++) if (i != 3) sum += start[i * PAGE];
    check("beside it", sum, 0);
    check("its first byte", there[0], 'm');
    check("its last byte", there[PAGE - 1], 'm');
    munmap(start, 7 * PAGE);
    close(fd);
}

int main(void) {
    struct sigaction action = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO};
    sigaction(SIGBUS, &action, 0);
    sigaction(SIGSEGV, &action, 0);
    grow();
    sparse();
    threads();
    again(8);
    again(600);
    by_pidfd(8);
    by_pidfd(600);
    guarded("a guard in a short private mapping", 8, MAP_PRIVATE);
    guarded("a guard in a long private mapping", 600, MAP_PRIVATE);
    guarded("a guard in a shared mapping", 8, MAP_SHARED);
    moved(8);
    moved(600);
    shared_moved();
    int source = file("source", 1, 'f');
    int stores = PROT_READ | PROT_WRITE;
    moved_over("anonymous memory", stores, MAP_PRIVATE | MAP_ANONYMOUS, -1);
    moved_over("shared memory", stores, MAP_SHARED | MAP_ANONYMOUS, -1);
    moved_over("a segment", 0, 0, -1);
    moved_over("a private page of a file", stores, MAP_PRIVATE, source);
    moved_over("a shared page of a file", stores, MAP_SHARED, source);
    sealed();
    return 0;
}
