// Calls with invalid pointers, and programs that handle their own faults. Each line must be what
// the kernel answers for a file of its own.
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <unistd.h>

static char *unmapped, *sealed, *constant, *edge;

static void say(const char *what, long result) {
    printf("%-28s %ld %s\n", what, result, result < 0 ? strerrorname_np(errno) : "");
    fflush(stdout);
}

#define SAY(call) (errno = 0, say(#call, call))

static void calls(char *bad) {
    struct stat status;
    int fd = open("file", O_RDWR | O_CREAT | O_TRUNC, 0644), other = open(".", O_RDONLY);
    write(fd, "0123456789", 10);
    SAY(lseek(fd, 0, SEEK_SET));
    SAY(read(fd, bad, 10));
    SAY(lseek(fd, 0, SEEK_CUR));
    SAY(pread(fd, bad, 10, 3));
    SAY(pread(fd, bad, 10, 30));
    SAY(syscall(SYS_stat, "file", bad));
    SAY(syscall(SYS_fstat, fd, bad));
    SAY(syscall(SYS_statx, AT_FDCWD, "file", 0, STATX_ALL, bad));
    SAY(syscall(SYS_statfs, ".", bad));
    SAY(syscall(SYS_getdents64, other, bad, 400));
    SAY(syscall(SYS_getcwd, bad, 100));
    symlink("somewhere", "link");
    SAY(readlink("link", bad, 100));
    setxattr("file", "user.a", "value", 5, 0);
    SAY(getxattr("file", "user.a", bad, 100));
    SAY(listxattr("file", bad, 100));
    struct iovec two[2] = {{&status, 4}, {bad, 4}};
    SAY(preadv(fd, two + 1, 1, 0));
    SAY(readv(fd, (struct iovec *)bad, 2));
    SAY(syscall(SYS_rt_sigaction, SIGUSR1, 0, bad, 8));
    int pipes[2];
    SAY(syscall(SYS_pipe, bad));
    (void)pipes;
    unlink("link");
    unlink("file");
    close(fd);
    close(other);
}

static void sources(char *bad) {
    int fd = open("file", O_RDWR | O_CREAT | O_TRUNC, 0644);
    SAY(write(fd, bad, 10));
    SAY(pwrite(fd, bad, 10, 0));
    struct iovec two[2] = {{"abcd", 4}, {bad, 4}};
    SAY(writev(fd, two + 1, 1));
    SAY(setxattr("file", "user.a", bad, 5, 0));
    SAY(open(bad, O_RDONLY));
    SAY(mkdir(bad, 0755));
    SAY(rename("file", bad));
    SAY(rename(bad, "file"));
    SAY(symlink(bad, "link"));
    SAY(utimensat(AT_FDCWD, "file", (void *)bad, 0));
    SAY(execve("/bin/true", (char **)bad, 0));
    char *words[] = {"true", bad, 0};
    SAY(execve("/bin/true", words, 0));
    SAY(syscall(SYS_rt_sigprocmask, SIG_BLOCK, bad, 0, 8));
    SAY(lseek(fd, 0, SEEK_END));
    unlink("file");
    close(fd);
}

static sigjmp_buf back;
static volatile int seen, code;
static char *volatile where;

static void handler(int signal, siginfo_t *info, void *context) {
    (void)context;
    seen = signal;
    code = info->si_code;
    where = info->si_addr;
    siglongjmp(back, 1);
}

static void faults(void) {
    struct sigaction action = {.sa_sigaction = handler, .sa_flags = SA_SIGINFO | SA_ONSTACK}, told;
    sigfillset(&action.sa_mask);
    SAY(sigaction(SIGSEGV, 0, &told));
    printf("default: %d\n", told.sa_handler == SIG_DFL);
    SAY(sigaction(SIGSEGV, &action, 0));
    SAY(sigaction(SIGSEGV, 0, &told));
    printf("told: %d %x %d\n", told.sa_sigaction == handler, told.sa_flags & ~0x04000000, sigismember(&told.sa_mask, SIGBUS));
    stack_t stack = {.ss_sp = malloc(1 << 16), .ss_size = 1 << 16};
    SAY(sigaltstack(&stack, 0));
    if (!sigsetjmp(back, 1)) *(volatile char *)unmapped;
    printf("handled: %d %d %d\n", seen, code, where == unmapped);
    seen = 0;
    if (!sigsetjmp(back, 1)) *sealed = 1;
    printf("handled: %d %d %d\n", seen, code, where == sealed);
    seen = 0;
    if (!sigsetjmp(back, 1)) raise(SIGSEGV);
    printf("sent: %d %d\n", seen, code);
    calls(unmapped);
    sigset_t all, before;
    sigfillset(&all);
    SAY(sigprocmask(SIG_BLOCK, &all, 0));
    calls(unmapped);
    SAY(sigprocmask(SIG_SETMASK, 0, &before));
    printf("blocked: %d %d %d\n", sigismember(&before, SIGSEGV), sigismember(&before, SIGBUS), sigismember(&before, SIGTERM));
    sigemptyset(&all);
    SAY(sigprocmask(SIG_SETMASK, &all, &before));
    printf("blocked: %d %d\n", sigismember(&before, SIGSEGV), sigismember(&before, SIGTERM));
    SAY(sigprocmask(SIG_SETMASK, 0, &before));
    printf("blocked: %d %d\n", sigismember(&before, SIGSEGV), sigismember(&before, SIGTERM));
}

static void *thread(void *unused) {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, 0);
    sources(unmapped);
    return unused;
}

static void ends(int how) {
    fflush(stdout);
    pid_t child = fork();
    if (!child) {
        signal(SIGSEGV, how == 2 ? SIG_IGN : SIG_DFL);
        if (how == 1) raise(SIGSEGV);
        else if (how == 3) kill(getpid(), SIGBUS);
        else *(volatile char *)unmapped = 1;
        _exit(3);
    }
    int status;
    waitpid(child, &status, 0);
    printf("ended: %d by %d, code %d\n", how, WIFSIGNALED(status) ? WTERMSIG(status) : 0, WIFEXITED(status) ? WEXITSTATUS(status) : 0);
}

int main(void) {
    unmapped = mmap(0, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    edge = mmap(0, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    sealed = mmap(0, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    constant = mmap(0, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    munmap(unmapped, 8192);
    munmap(edge + 4096, 4096);
    char *bad[] = {unmapped, sealed, constant, (char *)8, (char *)-9, (char *)0x0123456789abcdef};
    for (unsigned index = 0; index < sizeof bad / sizeof *bad; index++) calls(bad[index]);
    for (unsigned index = 0; index < sizeof bad / sizeof *bad; index++)
        if (bad[index] != constant) sources(bad[index]);
    // A buffer that ends before the given length works for the bytes that it has.
    int fd = open("file", O_RDWR | O_CREAT, 0644);
    memset(edge, 'x', 4096);
    SAY(write(fd, edge + 4000, 5000));
    SAY(lseek(fd, 0, SEEK_END));
    SAY(pread(fd, edge + 4000, 1 << 20, 0));
    SAY(pread(fd, edge + 4000, 50, 0));
    strcpy(edge + 4091, "file");
    struct stat status;
    SAY(stat(edge + 4091, &status));
    memset(edge, 'x', 4096);
    SAY(stat(edge + 4091, &status));
    unlink("file");
    calls(sealed);
    ends(0);
    ends(1);
    ends(2);
    ends(3);
    faults();
    pthread_t other;
    pthread_create(&other, 0, thread, 0);
    pthread_join(other, 0);
    return 0;
}
