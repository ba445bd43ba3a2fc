/* Uses a library with system calls of its own: PROGRAM FILE [LIBRARY]. With LIBRARY it is loaded by
   dlopen, otherwise it is linked. Prints what goes wrong. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

typedef long call(long, ...);
static call *raw_call;
static long (*raw_getpid_)(void), (*raw_unlink_)(const char *);
static const unsigned char *(*raw_data_)(void);
static const char *file;
static sigjmp_buf back;
static volatile int in_handler;

#ifdef LINKED
call raw;
long raw_getpid(void), raw_unlink(const char *);
const unsigned char *raw_data(void);
#endif

static void *load(const char *library) {
#ifdef LINKED
    raw_call = raw, raw_getpid_ = raw_getpid, raw_unlink_ = raw_unlink, raw_data_ = raw_data;
    return &raw_call;
#else
    void *handle = dlopen(library, RTLD_NOW);
    if (!handle) { printf("%s\n", dlerror()); exit(1); }
    raw_call = (call *)dlsym(handle, "raw"), raw_getpid_ = dlsym(handle, "raw_getpid");
    raw_unlink_ = dlsym(handle, "raw_unlink"), raw_data_ = dlsym(handle, "raw_data");
    return handle;
#endif
}

static void check(int is_right, const char *what) {
    if (!is_right) printf("wrong: %s, errno %d\n", what, errno);
}

static void read_by_raw(const char *who) {
    char text[8] = "";
    long fd = raw_call(SYS_open, file, O_RDONLY);
    check(fd >= 0 && raw_call(SYS_read, fd, text, 5) == 5 && !strcmp(text, "hello") && raw_call(SYS_close, fd) == 0, who);
}

static void *thread(void *unused) {
    for (int i = 0; i < 200; i++) read_by_raw("thread");
    return unused;
}

static void on_signal(int signal) { in_handler = signal; read_by_raw("handler"); }
static void on_fault(int signal) { read_by_raw("handler of a fault"); siglongjmp(back, signal); }

int main(int count, char **arguments) {
    file = arguments[1];
    void *handle = load(arguments[2]);
    int fd = open(file, O_RDWR | O_CREAT | O_TRUNC, 0600);
    struct stat status;
    check(write(fd, "hello", 5) == 5 && raw_call(SYS_fstat, fd, &status) == 0 && status.st_size == 5, "fstat");
    read_by_raw("main");
    check(raw_call(SYS_io_uring_setup, 4, 0) == -EFAULT, "io_uring_setup");
    check(raw_getpid_() == getpid(), "getpid");
    static const unsigned char data[8] = {1, 0x0f, 0x05, 2, 0xb8, 0x0f, 0x05, 3};
    check(!memcmp(raw_data_(), data, 8), "data between functions");
    check(raw_call(SYS_read, fd, (void *)8, 5) == 0 && raw_call(SYS_pread64, fd, (void *)8, 5, 0) == -EFAULT, "a bad pointer");
    check(raw_call(SYS_read, 999, 0, 0) == -EBADF, "a closed descriptor");

    pthread_t threads[4];
    for (int i = 0; i < 4; i++) pthread_create(&threads[i], 0, thread, 0);
    for (int i = 0; i < 4; i++) pthread_join(threads[i], 0);

    /* The kernel's mask while it waits blocks everything else. */
    sigset_t all, others;
    sigfillset(&all), sigfillset(&others), sigdelset(&others, SIGUSR1);
    sigprocmask(SIG_BLOCK, &all, 0);
    signal(SIGUSR1, on_signal);
    raise(SIGUSR1);
    sigsuspend(&others);
    check(in_handler == SIGUSR1, "sigsuspend");
    read_by_raw("with blocked signals");
    signal(SIGSEGV, on_fault);
    for (int i = 0; i < 3; i++)
        if (!sigsetjmp(back, 1)) *(volatile int *)8 = 1, check(0, "a fault");
    if (!sigsetjmp(back, 1)) { __asm__ volatile("hlt"); check(0, "an instruction of the kernel"); }

    pid_t child = fork();
    if (!child) { read_by_raw("child"); fflush(stdout); _exit(0); }
    waitpid(child, 0, 0);
#ifndef LINKED
    /* More often than there are slots, at changing addresses. */
    for (int i = 0; i < 700; i++) {
        dlclose(handle);
        void *more = i % 2 ? malloc(1 << 20) : 0;
        handle = load(arguments[2]);
        read_by_raw("loaded again");
        free(more);
    }
#endif
    check(raw_unlink_(file) == 0 && access(file, F_OK) < 0 && errno == ENOENT, "unlink");
    puts("done");
    fflush(stdout);
    signal(SIGSEGV, SIG_DFL);
    sigprocmask(SIG_UNBLOCK, &all, 0);
    if (count > 3) __asm__ volatile("hlt");
    return 0;
}
