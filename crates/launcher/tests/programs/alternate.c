/* Handlers on an alternate stack: their data there must survive signals that arrive during their
   calls, also those with bad pointers, and during their waits. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define WORDS 1024
#define ROUNDS 100
#define SECONDS_WANTED 1000

static char stack[256 * 1024];
static volatile sig_atomic_t seconds, on_stack, here_too, spoilt;
static int lock_fd, pipe_fd;
static volatile int what;
static sigjmp_buf out;

static int is_on_stack(const void *address) {
    return (const char *)address >= stack && (const char *)address < stack + sizeof stack;
}

/* Interrupts the first handler, and uses as much of the stack. */
static void second(int number) {
    volatile long words[2 * WORDS];
    for (int i = 0; i < 2 * WORDS; i++)
        words[i] = -1;
    seconds++;
    here_too += is_on_stack((const void *)words);
}

static void first(int number, siginfo_t *info, void *context) {
    volatile long words[WORDS];
    struct stat status;
    for (int i = 0; i < WORDS; i++)
        words[i] = i * 7919L;
    on_stack += is_on_stack((const void *)words);
    switch (what) {
    case 0: /* calls under constant signals */
        while (seconds < SECONDS_WANTED) {
            stat("file", &status);
            int fd = open("file", O_RDWR);
            write(fd, "x", 1);
            close(fd);
        }
        break;
    case 1: /* bad pointers */
        if (stat("file", (struct stat *)8) != -1 || errno != EFAULT || read(lock_fd, (void *)-4096L, 5) != -1 || errno != EFAULT)
            spoilt++;
        break;
    case 2: /* a wait that a signal interrupts */
        write(pipe_fd, "w", 1);
        if (flock(lock_fd, LOCK_EX) != -1 || errno != EINTR)
            spoilt++;
        break;
    case 3: { /* a child */
        pid_t child = fork();
        if (child == 0) {
            if (raise(SIGUSR2) || stat("file", &status))
                _exit(1);
            for (int i = 0; i < WORDS; i++)
                if (words[i] != i * 7919L)
                    _exit(2);
            _exit(0);
        }
        int ended = -1;
        if (waitpid(child, &ended, 0) != child || ended != 0)
            spoilt++;
        break;
    }
    }
    stack_t set;
    if (sigaltstack(NULL, &set) || set.ss_flags != SS_ONSTACK || set.ss_sp != stack || set.ss_size != sizeof stack)
        spoilt++;
    for (int i = 0; i < WORDS; i++)
        if (words[i] != i * 7919L) {
            spoilt++;
            break;
        }
    if (what == 4) {
        stat("file", &status);
        siglongjmp(out, 1);
    }
}

/* Sends signals while their receiver lives. With one processor, the receiver has it next. */
static void send_to(pid_t parent) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    while (getppid() == parent) {
        kill(parent, SIGUSR2);
        sched_yield();
    }
    _exit(0);
}

int main(void) {
    stack_t set = {.ss_sp = stack, .ss_size = sizeof stack};
    struct sigaction action = {.sa_flags = SA_ONSTACK | SA_SIGINFO}, other = {.sa_handler = second, .sa_flags = SA_ONSTACK};
    int ready[2];
    struct stat status;
    action.sa_sigaction = first;
    lock_fd = open("file", O_CREAT | O_RDWR, 0644);
    if (lock_fd < 0 || pipe(ready) || sigaltstack(&set, NULL) || sigaction(SIGUSR1, &action, NULL) || sigaction(SIGUSR2, &other, NULL))
        return 1;
    pipe_fd = ready[1];
    pid_t self = getpid(), child = fork();
    if (child == 0)
        send_to(self);
    raise(SIGUSR1);
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    printf("calls: %s seconds, spoilt %d, on the stack %d\n", seconds >= SECONDS_WANTED ? "many" : "few", spoilt, on_stack);

    what = 1;
    for (int round = 0; round < ROUNDS; round++)
        raise(SIGUSR1);
    printf("bad pointers: spoilt %d, on the stack %d\n", spoilt, on_stack);

    what = 2;
    child = fork();
    if (child == 0) {
        char byte;
        int own = open("file", O_RDWR);
        flock(own, LOCK_EX);
        write(ready[1], "l", 1);
        while (read(ready[0], &byte, 1) == 1 && byte != 'w')
            write(ready[1], &byte, 1);
        send_to(self);
    }
    char byte = 0;
    while (read(ready[0], &byte, 1) == 1 && byte != 'l')
        ;
    raise(SIGUSR1);
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    printf("wait: spoilt %d, on the stack %d\n", spoilt, on_stack);

    what = 3;
    for (int round = 0; round < 20; round++)
        raise(SIGUSR1);
    printf("children: spoilt %d, on the stack %d\n", spoilt, on_stack);

    what = 4;
    for (volatile int round = 0; round < ROUNDS; round++) {
        if (sigsetjmp(out, 1) == 0)
            raise(SIGUSR1);
        if (stat("file", &status))
            spoilt++;
    }
    here_too = 0;
    raise(SIGUSR2);
    printf("jumps: spoilt %d, on the stack %d, still %d\n", spoilt, on_stack, here_too);
    return 0;
}
