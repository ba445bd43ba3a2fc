/* Performs system calls with its own instructions, in threads, children and handlers; it uses the
   C library's only to set these up. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

static long call(long number, long a, long b, long c, long d) {
    register long fourth __asm__("r10") = d;
    long result;
    __asm__ volatile("syscall" : "=a"(result) : "a"(number), "D"(a), "S"(b), "d"(c), "r"(fourth) : "rcx", "r11", "memory");
    return result;
}

/* The same with the number where a compiler puts it, at a separate site. */
static inline __attribute__((always_inline)) long own(long number, long a, long b, long c) {
    long result;
    __asm__ volatile("syscall" : "=a"(result) : "a"(number), "D"(a), "S"(b), "d"(c) : "rcx", "r11", "memory");
    return result;
}

static int round_trip(const char *name, const char *text) {
    char read[64] = "";
    struct stat status;
    long fd = call(SYS_openat, AT_FDCWD, (long)name, O_CREAT | O_RDWR | O_TRUNC, 0644);
    if (fd < 0 || own(SYS_write, fd, (long)text, strlen(text)) != (long)strlen(text))
        return 1;
    if (own(SYS_lseek, fd, 0, SEEK_SET) != 0 || own(SYS_read, fd, (long)read, sizeof read) != (long)strlen(text) || strcmp(read, text))
        return 2;
    if (own(SYS_fstat, fd, (long)&status, 0) || status.st_size != (long)strlen(text) || own(SYS_close, fd, 0, 0))
        return 3;
    /* The C library sees the same file. */
    if (stat(name, &status) || status.st_size != (long)strlen(text) || unlink(name))
        return 4;
    return own(SYS_stat, (long)name, (long)&status, 0) == -ENOENT ? 0 : 5;
}

static void *thread(void *name) {
    char first[64];
    /* The thread's first call, before any of the C library's. */
    snprintf(first, sizeof first, "%s.first", (char *)name);
    if (own(SYS_mkdir, (long)first, 0755, 0) || own(SYS_rmdir, (long)first, 0, 0))
        return (void *)9;
    for (int i = 0; i < 200; i++) {
        long wrong = round_trip(name, "thread");
        if (wrong)
            return (void *)wrong;
    }
    return 0;
}

static volatile sig_atomic_t alarms, alarm_wrong, system_signals;
static void on_alarm(int number) {
    struct stat status;
    alarms++;
    if (own(SYS_stat, (long)"kept", (long)&status, 0) || status.st_size != 4)
        alarm_wrong++;
}
static void on_system(int number, siginfo_t *info, void *context) { system_signals++; }

int main(int count, char **arguments) {
    if (count > 1)
        return round_trip("started", "started") ? 1 : 42;
    char directory[4096];
    setvbuf(stdout, NULL, _IOLBF, 0);
    printf("begin %d\n", round_trip("begin", "begin"));
    printf("getcwd %d\n", own(SYS_getcwd, (long)directory, sizeof directory, 0) == (long)strlen(getcwd(NULL, 0)) + 1);
    printf("bad pointer %ld %ld\n", own(SYS_stat, 8, (long)directory, 0), own(SYS_open, -1, 0, 0));
    printf("unknown %ld\n", own(5000, 0, 0, 0));

    pthread_t threads[4];
    char names[4][16];
    for (int i = 0; i < 4; i++) {
        sprintf(names[i], "thread%d", i);
        pthread_create(&threads[i], NULL, thread, names[i]);
    }
    for (int i = 0; i < 4; i++) {
        void *wrong;
        pthread_join(threads[i], &wrong);
        printf("thread %ld\n", (long)wrong);
    }

    int status;
    fflush(stdout);
    pid_t child = fork();
    if (child == 0)
        _exit(round_trip("child", "of fork") ? 1 : 40);
    waitpid(child, &status, 0);
    printf("fork %d\n", WEXITSTATUS(status));
    child = own(SYS_fork, 0, 0, 0);
    if (child == 0)
        _exit(round_trip("child", "of its own fork") ? 1 : 41);
    waitpid(child, &status, 0);
    printf("own fork %d\n", WEXITSTATUS(status));
    char *words[] = {arguments[0], "again", NULL};
    extern char **environ;
    posix_spawn(&child, arguments[0], NULL, NULL, words, environ);
    waitpid(child, &status, 0);
    printf("spawn %d\n", WEXITSTATUS(status));
    child = fork();
    if (child == 0) {
        char *none[] = {NULL};
        own(SYS_execve, (long)arguments[0], (long)words, (long)none);
        _exit(1);
    }
    waitpid(child, &status, 0);
    printf("own exec %d\n", WEXITSTATUS(status));

    /* Handlers, and all signals blocked. */
    int kept = open("kept", O_CREAT | O_WRONLY, 0644);
    write(kept, "kept", 4);
    close(kept);
    struct sigaction action = {.sa_handler = on_alarm, .sa_flags = SA_RESTART};
    sigaction(SIGALRM, &action, NULL);
    struct itimerval often = {{0, 300}, {0, 300}}, never = {{0, 0}, {0, 0}};
    setitimer(ITIMER_REAL, &often, NULL);
    int wrong = 0;
    while (alarms < 200)
        wrong |= round_trip("alarm", "alarm");
    setitimer(ITIMER_REAL, &never, NULL);
    printf("alarms %d %d\n", wrong, alarm_wrong);
    sigset_t all, before;
    sigfillset(&all);
    sigprocmask(SIG_SETMASK, &all, &before);
    printf("all blocked %d\n", round_trip("blocked", "blocked"));
    sigset_t now;
    own(SYS_rt_sigprocmask, SIG_SETMASK, 0, (long)&now);
    sigprocmask(SIG_SETMASK, &before, &now);
    printf("told %d %d\n", sigismember(&now, SIGSYS), sigismember(&now, SIGTERM));

    /* A handler that runs in a wait with all other signals blocked. */
    int seen = alarms;
    struct itimerval soon = {{0, 0}, {0, 1000}};
    sigset_t others = all;
    sigdelset(&others, SIGALRM);
    sigset_t alarm_only;
    sigemptyset(&alarm_only);
    sigaddset(&alarm_only, SIGALRM);
    sigprocmask(SIG_BLOCK, &alarm_only, &before);
    setitimer(ITIMER_REAL, &soon, NULL);
    sigsuspend(&others);
    sigprocmask(SIG_SETMASK, &before, NULL);
    printf("suspended %d %d\n", alarms - seen, alarm_wrong);

    /* The program's own use of SIGSYS, which forwards inline syscalls. */
    struct sigaction old;
    sigaction(SIGSYS, NULL, &old);
    printf("default %d\n", old.sa_handler == SIG_DFL);
    action.sa_sigaction = on_system;
    action.sa_flags = SA_SIGINFO;
    sigaction(SIGSYS, &action, NULL);
    raise(SIGSYS);
    printf("own signal %d %d\n", system_signals, round_trip("system", "system"));
    action.sa_handler = SIG_IGN;
    action.sa_flags = 0;
    sigaction(SIGSYS, &action, NULL);
    raise(SIGSYS);
    printf("ignored %d %d\n", system_signals, round_trip("system", "system"));
    fflush(stdout);
    child = fork();
    if (child == 0) {
        signal(SIGSYS, SIG_DFL);
        raise(SIGSYS);
        _exit(1);
    }
    waitpid(child, &status, 0);
    printf("ends by it %d\n", WIFSIGNALED(status) ? WTERMSIG(status) : 0);
    fflush(stdout);
    own(SYS_exit_group, 7, 0, 0);
    return 1;
}
