/* What a program does in a process of its own: files, children of all kinds, threads, signals, its
   names. Prints results that are the same on every file system.
   usage: static_program [exec DEPTH | names] */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

extern char **environ;
enum { THREADS = 32, ROUNDS = 200 };

static void check(int good, const char *what) {
    if (!good) { printf("wrong: %s (%s)\n", what, strerror(errno)); exit(1); }
}

static int ended(pid_t child) {
    int status;
    check(child > 0 && waitpid(child, &status, 0) == child, "wait");
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

static void write_file(const char *path, const char *text) {
    int fd = open(path, O_CREAT | O_TRUNC | O_WRONLY, 0644);
    check(fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text) && close(fd) == 0, path);
}

static void *work(void *argument) {
    char path[64], text[64] = "";
    for (int round = 0; round < ROUNDS; round++) {
        snprintf(path, sizeof path, "thread-%ld-%d", (long)argument, round % 8);
        write_file(path, path);
        int fd = open(path, O_RDONLY);
        check(fd >= 0 && pread(fd, text, sizeof text - 1, 0) == (ssize_t)strlen(path), "read of a thread");
        check(strcmp(text, path) == 0 && close(fd) == 0, "content of a thread");
        memset(text, 0, sizeof text);
    }
    return argument;
}

static void threads(void) {
    pthread_t all[THREADS];
    for (int again = 0; again < 4; again++) {
        for (long i = 0; i < THREADS; i++) check(pthread_create(&all[i], 0, work, (void *)i) == 0, "thread");
        void *result;
        for (long i = 0; i < THREADS; i++) check(pthread_join(all[i], &result) == 0 && result == (void *)i, "join");
    }
    puts("threads");
}

static atomic_int left;
static void *work_alone(void *argument) {
    char path[32];
    snprintf(path, sizeof path, "alone-%ld", (long)argument % 8);
    write_file(path, path);
    left--;
    return 0;
}

/* Threads that release their stacks themselves, while a file is mapped. */
static void detached_threads(void) {
    int fd = open("mapped", O_CREAT | O_RDWR, 0644);
    check(fd >= 0 && ftruncate(fd, 10000) == 0, "ftruncate");
    char *map = mmap(0, 10000, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    check(map != MAP_FAILED && close(fd) == 0, "mmap");
    pthread_attr_t detached;
    check(!pthread_attr_init(&detached) && !pthread_attr_setdetachstate(&detached, PTHREAD_CREATE_DETACHED), "attr");
    for (long i = 0; i < 400; i++) {
        pthread_t thread;
        left++;
        check(pthread_create(&thread, &detached, work_alone, (void *)i) == 0, "detached thread");
        while (left > 16) sched_yield();
    }
    while (left > 0) sched_yield();
    check(munmap(map, 10000) == 0, "munmap");
    puts("detached threads");
}

static volatile sig_atomic_t seen;
static void handler(int signal) {
    char text[8];
    int fd = open("signalled", O_CREAT | O_RDWR, 0644);
    check(fd >= 0 && pwrite(fd, "signal", 6, 0) == 6 && pread(fd, text, 6, 0) == 6, "file of a handler");
    check(memcmp(text, "signal", 6) == 0 && close(fd) == 0, "content of a handler");
    seen += signal == SIGUSR1 || signal == SIGALRM;
}

static void signals(void) {
    static char stack[64 << 10];
    stack_t other = {.ss_sp = stack, .ss_size = sizeof stack};
    check(sigaltstack(&other, 0) == 0, "sigaltstack");
    for (int flags = 0; flags < 2; flags++) {
        struct sigaction action = {.sa_handler = handler, .sa_flags = flags ? SA_ONSTACK | SA_RESTART : 0};
        check(sigaction(SIGUSR1, &action, 0) == 0 && sigaction(SIGALRM, &action, 0) == 0, "sigaction");
        seen = 0;
        for (int i = 0; i < 100; i++) raise(SIGUSR1);
        check(seen == 100, "all signals");
        // Signals that interrupt calls on files.
        seen = 0;
        timer_t timer;
        struct itimerspec often = {.it_interval.tv_nsec = 200000, .it_value.tv_nsec = 200000};
        check(timer_create(CLOCK_MONOTONIC, 0, &timer) == 0 && timer_settime(timer, 0, &often, 0) == 0, "timer");
        char path[32];
        for (int i = 0; i < 5000 || seen < 20; i++) {
            snprintf(path, sizeof path, "timer-%d", i % 4);
            int fd = open(path, O_CREAT | O_RDWR, 0644);
            struct stat status;
            check(fd >= 0 && fstat(fd, &status) == 0 && close(fd) == 0 && stat(path, &status) == 0, "interrupted call");
        }
        check(timer_delete(timer) == 0, "timer_delete");
    }
    puts("signals");
}

static void children(char *own) {
    for (int i = 0; i < 20; i++) {
        pid_t child = fork();
        if (child == 0) { write_file("by-fork", "fork\n"); _exit(7); }
        check(ended(child) == 7, "fork");
        child = vfork();
        if (child == 0) { execl("/bin/sh", "sh", "-c", "echo vfork >by-vfork; exit 8", (char *)0); _exit(99); }
        check(ended(child) == 8, "vfork");
        char *words[] = {own, "exec", "0", 0};
        check(posix_spawn(&child, own, 0, 0, words, environ) == 0 && ended(child) == 9, "posix_spawn");
    }
    check(system("cat by-fork by-vfork") == 0, "system");
    FILE *pipe = popen("ls | grep -c ^thread", "r");
    char line[32] = "";
    check(pipe && fgets(line, sizeof line, pipe) && pclose(pipe) == 0, "popen");
    printf("%s", line);
}

static void *spawn(void *own) {
    for (int i = 0; i < 20; i++) {
        pid_t child;
        char *words[] = {own, "exec", "0", 0};
        check(posix_spawn(&child, own, 0, 0, words, environ) == 0 && ended(child) == 9, "posix_spawn of a thread");
        child = fork();
        if (child == 0) { write_file("by-thread", "thread\n"); _exit(6); }
        check(ended(child) == 6, "fork of a thread");
    }
    return 0;
}

static void threads_with_children(char *own) {
    pthread_t all[8];
    for (int i = 0; i < 8; i++) check(pthread_create(&all[i], 0, spawn, own) == 0, "thread");
    for (int i = 0; i < 8; i++) check(pthread_join(all[i], 0) == 0, "join");
    puts("threads with children");
}

static void memory(void) {
    int fd = open("mapped", O_CREAT | O_RDWR, 0644);
    check(fd >= 0 && ftruncate(fd, 10000) == 0, "ftruncate");
    char *map = mmap(0, 10000, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    check(map != MAP_FAILED, "mmap");
    memcpy(map + 9000, "mapped", 6);
    char text[8] = "";
    check(pread(fd, text, 6, 9000) == 6 && strcmp(text, "mapped") == 0, "mapped bytes");
    check(munmap(map, 10000) == 0 && close(fd) == 0, "munmap");
#ifdef __GLIBC__
    void *first = sbrk(0), *grown = sbrk(1 << 20);
    check(first == grown && memset(grown, 1, 1 << 20), "brk");
#endif
    check(read(open("mapped", O_RDONLY), (void *)1, 8) == -1 && errno == EFAULT, "bad pointer");
    puts("memory");
}

static void names(void) {
    char exe[4096] = "", comm[32] = "", line[4096] = "";
    check(readlink("/proc/self/exe", exe, sizeof exe - 1) > 0, "readlink");
    struct stat by_link, by_path;
    check(stat("/proc/self/exe", &by_link) == 0 && stat(exe, &by_path) == 0, "stat");
    check(by_link.st_ino == by_path.st_ino && by_link.st_size == by_path.st_size, "file of the program");
    check(prctl(PR_GET_NAME, comm) == 0, "comm");
    FILE *file = fopen("/proc/self/cmdline", "r");
    check(file && fread(line, 1, sizeof line - 1, file) > 0, "cmdline");
    printf("%s %s %s %s\n", strrchr(exe, '/') + 1, comm, line, (char *)getauxval(AT_EXECFN));
    check(getauxval(AT_PHDR) && getauxval(AT_ENTRY) && getauxval(AT_RANDOM) && getauxval(AT_SYSINFO_EHDR), "auxv");
}

int main(int count, char **words) {
    if (count == 3 && !strcmp(words[1], "exec")) {
        int depth = atoi(words[2]);
        if (depth == 0) return 9;
        char next[16], command[4200];
        snprintf(next, sizeof next, "%d", depth - 1);
        snprintf(command, sizeof command, "echo depth %d >>depths; exec %s exec %s", depth, words[0], next);
        // Alternately by a program with the C library, and itself.
        if (depth % 2) execl("/bin/sh", "sh", "-c", command, (char *)0);
        execl("/proc/self/exe", words[0], "exec", next, (char *)0);
        return 99;
    }
    names();
    if (count == 2) return 0;
    memory();
    threads();
    children(words[0]);
    signals();
    detached_threads();
    threads_with_children(words[0]);
    return 0;
}
