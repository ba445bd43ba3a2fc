/* Signals of faults that are sent while they are blocked: they wait, and arrive when they are
   unblocked. Prints what happens. */
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

static volatile int count, code, value;

static void handler(int signal, siginfo_t *info, void *context) {
    struct stat status;
    count++, code = info->si_code, value = info->si_value.sival_int;
    if (stat(".", &status)) count += 100;
}

static void show(const char *what) {
    sigset_t pending;
    sigpending(&pending);
    printf("%s: %d, code %d, value %d, pending", what, count, code, value);
    for (int signal = 1; signal < 32; signal++)
        if (sigismember(&pending, signal)) printf(" %d", signal);
    puts("");
    count = code = value = 0;
}

static void *thread(void *unused) {
    sigset_t set;
    sigemptyset(&set), sigaddset(&set, SIGSEGV);
    pthread_sigmask(SIG_BLOCK, &set, 0);
    pthread_kill(pthread_self(), SIGSEGV);
    show("thread, blocked");
    pthread_sigmask(SIG_UNBLOCK, &set, 0);
    show("thread, unblocked");
    return 0;
}

int main(void) {
    int signals[] = {SIGSEGV, SIGBUS, SIGSYS};
    struct sigaction action = {.sa_sigaction = handler, .sa_flags = SA_SIGINFO};
    sigset_t set, none, old;
    sigemptyset(&none);
    for (int i = 0; i < 3; i++) {
        sigaction(signals[i], &action, 0);
        sigemptyset(&set), sigaddset(&set, signals[i]), sigaddset(&set, SIGUSR1);
        sigprocmask(SIG_BLOCK, &set, 0);
        kill(getpid(), signals[i]);
        show("blocked");
        sigprocmask(SIG_BLOCK, 0, &old);
        printf("in the mask: %d\n", sigismember(&old, signals[i]));
        sigprocmask(SIG_UNBLOCK, &set, 0);
        show("unblocked");
        sigprocmask(SIG_SETMASK, &set, 0);
        sigqueue(getpid(), signals[i], (union sigval){.sival_int = 7});
        show("blocked");
        sigprocmask(SIG_SETMASK, &set, 0);
        show("blocked again");
        sigprocmask(SIG_SETMASK, &none, &old);
        show("mask replaced");
        printf("was in the mask: %d\n", sigismember(&old, signals[i]));
        syscall(SYS_tgkill, getpid(), gettid(), signals[i]);
        show("not blocked");
    }
    pthread_t other;
    pthread_create(&other, 0, thread, 0);
    pthread_join(other, 0);
    return 0;
}
