/* Guarantees for a program across system calls. Prints one line for each guarantee; the output is
   the same with and without the library. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static void say(const char *what, long value) { printf("%s: %ld\n", what, value); fflush(stdout); }

/* Handlers that interrupt calls and perform calls, on their own small stack. */
static volatile sig_atomic_t ticks;
/* The next signal comes this long after the handler's end, so that the program proceeds also where
   a handler takes longer. */
static void next_tick(void) {
    struct itimerval soon = {{0, 0}, {0, 100}};
    setitimer(ITIMER_REAL, &soon, NULL);
}
static void tick(int number) {
    struct stat status;
    (void)number;
    if (stat("/", &status) != 0 || access("/nonexistent", F_OK) == 0) abort();
    ticks++;
    next_tick();
}
static void interrupted(void) {
    static char alternate[16384];
    stack_t stack = {.ss_sp = alternate, .ss_size = sizeof alternate};
    struct sigaction action = {.sa_handler = tick, .sa_flags = SA_RESTART | SA_ONSTACK};
    struct itimerval never = {{0, 0}, {0, 0}};
    struct stat status;
    sigaltstack(&stack, NULL);
    sigaction(SIGALRM, &action, NULL);
    next_tick();
    long wrong = 0;
    for (int i = 0; i < 200000 || ticks <= 10; i++) {
        if (stat("/usr", &status) != 0 || !S_ISDIR(status.st_mode)) wrong++;
        if (stat("/usr/none", &status) != -1 || errno != ENOENT) wrong++;
    }
    sigset_t alarms;
    sigemptyset(&alarms);
    sigaddset(&alarms, SIGALRM);
    sigprocmask(SIG_BLOCK, &alarms, NULL);
    setitimer(ITIMER_REAL, &never, NULL);
    action.sa_handler = SIG_IGN; /* discards a signal that is pending */
    sigaction(SIGALRM, &action, NULL);
    sigprocmask(SIG_UNBLOCK, &alarms, NULL);
    say("wrong while interrupted", wrong);
    say("was interrupted", ticks > 10);
}

/* Without SA_RESTART a call ends with EINTR; with it, the call restarts. Signals repeat: the first
   may come before the call. */
static volatile int *interruptions;
static void interrupt(int number) { (void)number; ++*interruptions; }
static void restarts(void) {
    int ends[2];
    char byte = 0;
    if (pipe(ends)) abort();
    interruptions = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (interruptions == MAP_FAILED) abort();
    struct itimerval soon = {{0, 20000}, {0, 20000}}, never = {{0, 0}, {0, 0}};
    struct sigaction action = {.sa_handler = interrupt};
    sigaction(SIGALRM, &action, NULL);
    setitimer(ITIMER_REAL, &soon, NULL);
    long result = read(ends[0], &byte, 1);
    int error = errno;
    action.sa_flags = SA_RESTART;
    sigaction(SIGALRM, &action, NULL);
    say("read", result);
    say("interrupted read", error == EINTR);
    *interruptions = 0;
    if (fork() == 0) {
        while (*interruptions < 3) usleep(1000);
        _exit(write(ends[1], "x", 1) != 1);
    }
    say("restarted read", read(ends[0], &byte, 1));
    setitimer(ITIMER_REAL, &never, NULL);
    wait(NULL);
}

/* Cancellation ends a blocked call, and runs handlers of frames above it. */
static int cleaned, cleaned_frame;
static void clean(void *unused) { (void)unused; cleaned = 1; }
static void clean_frame(int *unused) { (void)unused; cleaned_frame = 1; }
static void *blocked(void *ends) {
    int guard __attribute__((cleanup(clean_frame))) = 0;
    char byte;
    (void)guard;
    pthread_cleanup_push(clean, NULL);
    for (;;) if (read(*(int *)ends, &byte, 1) < 0 && errno != EINTR) break;
    pthread_cleanup_pop(0);
    return NULL;
}
static void cancelled(void) {
    int ends[2];
    pthread_t thread;
    void *result;
    if (pipe(ends)) abort();
    pthread_create(&thread, NULL, blocked, ends);
    usleep(50000);
    pthread_cancel(thread);
    pthread_join(thread, &result);
    say("cancelled", result == PTHREAD_CANCELED);
    say("handler ran", cleaned);
    say("frame was unwound", cleaned_frame);
}

/* Vector registers and the red zone below the stack pointer keep their values across a call. */
static void registers(void) {
    unsigned char before[64 * 16], after[64 * 16];
    long bad = 0;
    for (size_t i = 0; i < sizeof before; i++) before[i] = (unsigned char)(i * 7 + 1);
    for (int round = 0; round < 1000; round++) {
        long red = 0;
        memset(after, 0, sizeof after);
        __asm__ volatile(
            "movups (%[b]), %%xmm0\n movups 16(%[b]), %%xmm1\n movups 32(%[b]), %%xmm7\n movups 48(%[b]), %%xmm15\n"
            "mov %%rsp, %%r12\n and $-64, %%rsp\n sub $1024, %%rsp\n"
            "call *%[f]\n mov %%r12, %%rsp\n"
            "movups %%xmm0, (%[a])\n movups %%xmm1, 16(%[a])\n movups %%xmm7, 32(%[a])\n movups %%xmm15, 48(%[a])\n"
            : "+r"(red)
            : [b] "r"(before), [a] "r"(after), [f] "r"(syscall), "D"((long)SYS_access), "S"("/usr"), "d"(0L)
            : "rax", "rcx", "r8", "r9", "r10", "r11", "r12", "xmm0", "xmm1", "xmm7", "xmm15", "memory");
        if (memcmp(before, after, 64)) bad++;
    }
    say("rounds with changed vectors", bad);
}

static void *worker(void *unused) {
    long sum = 0;
    (void)unused;
    for (int i = 0; i < 2000; i++) {
        int fd = open("/etc/passwd", O_RDONLY);
        char bytes[16];
        sum += read(fd, bytes, sizeof bytes);
        close(fd);
    }
    return (void *)sum;
}
static void threads(void) {
    for (int round = 0; round < 20; round++) {
        pthread_t all[8];
        long sum = 0;
        for (int i = 0; i < 8; i++) pthread_create(&all[i], NULL, worker, NULL);
        for (int i = 0; i < 8; i++) { void *part; pthread_join(all[i], &part); sum += (long)part; }
        if (sum != 8L * 2000 * 16) say("bad sum", sum);
    }
    say("threads", 0);
}

/* Programs started in every way, without an environment, get the library again. */
static void starts(void) {
    char *empty[] = {NULL}, *arguments[] = {"sh", "-c", "test -e /usr && exit 7", NULL};
    int status;
    for (int round = 0; round < 40; round++) {
        pid_t child;
        if (round % 4 == 0) { child = fork(); if (child == 0) { execve("/bin/sh", arguments, empty); _exit(1); } }
        else if (round % 4 == 1) { child = vfork(); if (child == 0) { execve("/bin/sh", arguments, NULL); _exit(1); } }
        else if (round % 4 == 2) { if (posix_spawn(&child, "/bin/sh", NULL, NULL, arguments, empty)) abort(); }
        else { child = vfork(); if (child == 0) { execve("/nonexistent", arguments, empty); _exit(7); } }
        waitpid(child, &status, 0);
        if (WEXITSTATUS(status) != 7) say("bad status", status);
    }
    say("bad path", open(NULL, O_RDONLY) == -1 && errno == EFAULT);
    say("bad fd", close(-1) == -1 && errno == EBADF);
    say("unknown number", syscall(5000) == -1 && errno == ENOSYS);
    say("number with high bits", syscall(SYS_access | 1L << 32, "/usr", 0));
}

static double now_ns(void) { struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return t.tv_sec * 1e9 + t.tv_nsec; }
#define MEASURE(name, call) do { double best = 1e9; for (int r = 0; r < 1000; r++) { double t = now_ns(); \
    for (int i = 0; i < 300; i++) { call; } t = (now_ns() - t) / 300; if (t < best) best = t; } printf("%-22s %7.1f ns\n", name, best); } while (0)
static void measure(void) {
    struct stat status;
    char byte;
    int null = open("/dev/null", O_RDONLY);
    (void)status;
    MEASURE("getppid (native)", getppid());
    MEASURE("syscall(getppid)", syscall(SYS_getppid));
    MEASURE("lseek", lseek(null, 0, SEEK_SET));
    MEASURE("read /dev/null", if (read(null, &byte, 1)) abort());
    MEASURE("close(-1)", close(-1));
    MEASURE("access /x", access("/x", F_OK));
    MEASURE("access /usr/x/y/z", access("/usr/x/y/z", F_OK));
    MEASURE("access relative", access("nonexistent", F_OK));
    MEASURE("rename /a /b", rename("/nonexist/a", "/nonexist/b"));
    MEASURE("poll", syscall(SYS_poll, 0, 0, 0));
}

int main(int count, char **words) {
    if (count > 1 && strcmp(words[1], "measure") == 0) { measure(); return 0; }
    interrupted();
    restarts();
    cancelled();
    registers();
    threads();
    starts();
    return 0;
}
