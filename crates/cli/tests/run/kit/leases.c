// Leases: grants, refusals and breaks, in a directory that the first argument names. Each line is
// the result of a step; what depends on chance or on the machine is not printed.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define fork() (fflush(stdout), fork())
#define T(call) tell(#call, (errno = 0, (long)(call)))
#define TRUTH(question) printf("%s: %s\n", #question, (question) ? "yes" : "no")

static struct {
    volatile int opened, released, users, bad;
} *shared;
static volatile int signals, code, from_fd, got;

static void tell(const char *what, long result) {
    printf("%s: %ld%s%s\n", what, result, result < 0 ? " " : "", result < 0 ? strerrorname_np(errno) : "");
}

static void on_signal(int signal, siginfo_t *info, void *context) {
    signals++;
    got = signal;
    code = info->si_code;
    from_fd = info->si_fd;
}

static void handle(int signal, int flags) {
    struct sigaction action = {.sa_sigaction = on_signal, .sa_flags = SA_SIGINFO | flags};
    sigaction(signal, &action, NULL);
}

static void make(const char *name, const char *text) {
    int fd = open(name, O_CREAT | O_WRONLY | O_TRUNC, 0644);
    write(fd, text, strlen(text));
    close(fd);
}

static long length(const char *name) {
    struct stat status;
    return stat(name, &status) ? -1 : status.st_size;
}

/// Waits for the signal of a break, which the caller has blocked.
static void await_break(void) {
    sigset_t none;
    sigemptyset(&none);
    while (!signals) sigsuspend(&none);
    signals = 0;
}

static void block(int signal) {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, signal);
    sigprocmask(SIG_BLOCK, &set, NULL);
}

static void finish(int child) {
    int status;
    waitpid(child, &status, 0);
    printf("child: %d\n", WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status));
}

static void grants(void) {
    puts("-- grants");
    make("file", "content");
    int reader = open("file", O_RDONLY);
    T(fcntl(reader, F_GETLEASE));
    T(fcntl(reader, F_SETLEASE, 99));
    T(fcntl(reader, F_SETLEASE, F_UNLCK));
    T(fcntl(reader, F_SETLEASE, F_RDLCK));
    T(fcntl(reader, F_GETLEASE));
    T(fcntl(reader, F_SETLEASE, F_RDLCK));
    int copy = dup(reader);
    T(fcntl(copy, F_GETLEASE));
    T(fcntl(copy, F_SETLEASE, F_WRLCK));
    T(fcntl(reader, F_GETLEASE));
    T(fcntl(reader, F_SETLEASE, F_RDLCK));
    int other = open("file", O_RDONLY);
    T(fcntl(other, F_GETLEASE));
    T(fcntl(other, F_SETLEASE, F_RDLCK));
    T(fcntl(other, F_SETLEASE, F_WRLCK));
    T(fcntl(reader, F_SETLEASE, F_WRLCK));
    T(fcntl(other, F_SETLEASE, F_UNLCK));
    T(fcntl(other, F_SETLEASE, F_UNLCK));
    T(fcntl(other, F_GETLEASE));
    T(fcntl(reader, F_SETLEASE, F_WRLCK));
    close(other);
    int place = open("file", O_PATH);
    T(fcntl(place, F_SETLEASE, F_RDLCK));
    T(fcntl(place, F_GETLEASE));
    T(fcntl(reader, F_SETLEASE, F_WRLCK));
    T(fcntl(reader, F_SETLEASE, F_UNLCK));
    close(place), close(copy), close(reader);
    int both = open("file", O_RDWR);
    T(fcntl(both, F_SETLEASE, F_RDLCK));
    T(fcntl(both, F_SETLEASE, F_WRLCK));
    T(fcntl(both, F_GETLEASE));
    T(fcntl(both, F_SETLEASE, F_RDLCK));
    T(fcntl(both, F_GETLEASE));
    close(both);
    void *mapped = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, both = open("file", O_RDWR), 0);
    close(both);
    reader = open("file", O_RDONLY);
    T(fcntl(reader, F_SETLEASE, F_RDLCK));
    munmap(mapped, 4096);
    T(fcntl(reader, F_SETLEASE, F_RDLCK));
    close(reader);
    int directory = open(".", O_RDONLY);
    T(fcntl(directory, F_SETLEASE, F_RDLCK));
    T(fcntl(directory, F_GETLEASE));
    close(directory);
    mkfifo("pipe", 0644);
    int end = open("pipe", O_RDWR);
    T(fcntl(end, F_SETLEASE, F_RDLCK));
    close(end);
    T(fcntl(end, F_SETLEASE, F_RDLCK));
    T(fcntl(end, F_GETLEASE));
    if (getuid() == 0) {
        int child = fork();
        if (!child) {
            setuid(1000);
            int fd = open("file", O_RDONLY);
            T(fcntl(fd, F_SETLEASE, F_RDLCK));
            T(fcntl(fd, F_SETLEASE, F_UNLCK));
            T(fcntl(fd, F_SETLEASE, 99));
            fflush(stdout), _exit(0);
        }
        finish(child);
        chown("file", 1000, 1000);
        if (!(child = fork())) {
            setuid(1000);
            int fd = open("file", O_RDONLY);
            T(fcntl(fd, F_SETLEASE, F_RDLCK));
            fflush(stdout), _exit(0);
        }
        finish(child);
        reader = open("file", O_RDONLY);
        T(fcntl(reader, F_SETLEASE, F_RDLCK));
        // Before the child is there: it causes the signal.
        signal(SIGIO, SIG_IGN);
        if (!(child = fork())) {
            signal(SIGIO, SIG_DFL);
            setuid(1000);
            int fd = open("file", O_RDONLY);
            T(fcntl(fd, F_SETLEASE, F_RDLCK));
            T(open("file", O_WRONLY | O_NONBLOCK) < 0 ? -1 : 0);
            fflush(stdout), _exit(0);
        }
        finish(child);
        close(reader);
        chown("file", 0, 0);
    }
}

/// The break of a lease by a call of a child, and what the holder does then.
static void broken(const char *what, int flags, int lease, int signal, int (*call)(void), int reply) {
    printf("-- %s\n", what);
    make("file", "content");
    memset((void *)shared, 0, sizeof *shared);
    int fd = open("file", flags);
    int number = signal ? signal : SIGIO;
    handle(number, SA_RESTART);
    block(number);
    signals = 0;
    if (signal) T(fcntl(fd, F_SETSIG, signal));
    T(fcntl(fd, F_GETSIG) == signal);
    T(fcntl(fd, F_SETLEASE, lease));
    TRUTH(fcntl(fd, F_GETOWN) == getpid());
    int child = fork();
    if (!child) {
        close(fd);
        int result = call();
        int error = errno;
        printf("call: %d %s, after the release: %d, length %ld\n", result < 0 ? -1 : 0,
               result < 0 ? strerrorname_np(error) : "", shared->released, length("file"));
        fflush(stdout), _exit(0);
    }
    await_break();
    TRUTH(got == number);
    if (signal) TRUTH(code == POLL_MSG && from_fd == fd);
    T(fcntl(fd, F_GETLEASE));
    T(length("file"));
    shared->released = 1;
    T(fcntl(fd, F_SETLEASE, reply));
    finish(child);
    T(fcntl(fd, F_GETLEASE));
    close(fd);
}

static int open_to_write(void) { return open("file", O_WRONLY); }
static int open_to_read(void) { return open("file", O_RDONLY); }
static int open_to_truncate(void) { return open("file", O_WRONLY | O_TRUNC); }
static int open_to_create(void) { return open("file", O_RDWR | O_CREAT | O_TRUNC, 0644); }
static int truncate_path(void) { return truncate("file", 3); }
static int open_link(void) { return symlink("file", "link"), open("link", O_RDWR); }
static int open_again(void) {
    int place = open("file", O_PATH);
    char path[64];
    sprintf(path, "/proc/self/fd/%d", place);
    return open(path, O_RDWR);
}

static void *sleeper(void *unused) { return pause(), NULL; }
static int open_among_threads(void) {
    pthread_t thread;
    pthread_create(&thread, NULL, sleeper, NULL);
    return open("file", O_WRONLY);
}

static void breaks(void) {
    broken("a write breaks a read lease", O_RDONLY, F_RDLCK, 0, open_to_write, F_UNLCK);
    broken("a signal of choice", O_RDONLY, F_RDLCK, SIGRTMIN + 1, open_to_write, F_UNLCK);
    broken("a read breaks a write lease", O_RDWR, F_WRLCK, SIGUSR1, open_to_read, F_UNLCK);
    broken("a downgrade suffices for a reader", O_RDONLY, F_WRLCK, SIGUSR1, open_to_read, F_RDLCK);
    broken("a write breaks a write lease", O_RDWR, F_WRLCK, SIGUSR1, open_to_write, F_UNLCK);
    broken("an open that truncates", O_RDONLY, F_RDLCK, SIGUSR1, open_to_truncate, F_UNLCK);
    broken("an open that may create", O_RDONLY, F_RDLCK, SIGUSR1, open_to_create, F_UNLCK);
    broken("truncate", O_RDONLY, F_RDLCK, SIGUSR1, truncate_path, F_UNLCK);
    broken("an open through a link", O_RDONLY, F_RDLCK, SIGUSR1, open_link, F_UNLCK);
    broken("an open of a descriptor's path", O_RDONLY, F_RDLCK, SIGUSR1, open_again, F_UNLCK);
    broken("an open in a process with threads", O_RDONLY, F_RDLCK, SIGUSR1, open_among_threads, F_UNLCK);
}

/// An open that waits for a lease and is interrupted. Signals repeat: the first may come before the
/// wait.
static int open_until_signal(void) {
    struct itimerval often = {{0, 20000}, {0, 20000}}, never = {{0, 0}, {0, 0}};
    handle(SIGALRM, 0);
    setitimer(ITIMER_REAL, &often, NULL);
    int result = open("file", O_WRONLY), error = errno;
    setitimer(ITIMER_REAL, &never, NULL);
    errno = error;
    return result;
}

static void refusals(void) {
    puts("-- refusals");
    make("file", "content");
    handle(SIGUSR1, SA_RESTART);
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGUSR1);
    sigprocmask(SIG_UNBLOCK, &set, NULL);
    signals = 0;
    int fd = open("file", O_RDONLY);
    fcntl(fd, F_SETSIG, SIGUSR1);
    T(fcntl(fd, F_SETLEASE, F_RDLCK));
    // Neither of these concerns the lease.
    T(open("file", O_RDONLY) < 0);
    T(open("file", O_PATH) < 0);
    T(chmod("file", 0640));
    T(rename("file", "moved"));
    T(link("moved", "file"));
    T(unlink("moved"));
    TRUTH(signals == 0);
    T(open("file", O_WRONLY | O_NONBLOCK));
    TRUTH(signals == 1 && from_fd == fd);
    T(open("file", O_WRONLY | O_NONBLOCK | O_TRUNC));
    T(open("file", O_CREAT | O_WRONLY | O_NONBLOCK | O_TRUNC, 0644));
    T(length("file"));
    TRUTH(signals == 1);
    T(fcntl(fd, F_GETLEASE));
    int next = dup(fd);
    TRUTH(next == dup(fd) - 1);
    memset((void *)shared, 0, sizeof *shared);
    int child = fork();
    if (!child) {
        T(open_until_signal());
        shared->opened = 1;
        T(truncate("file", 1));
        fflush(stdout), _exit(0);
    }
    // The second call waits until the lease ends.
    while (!shared->opened) usleep(1000);
    usleep(100000);
    fcntl(fd, F_SETLEASE, F_UNLCK);
    waitpid(child, NULL, 0);
    T(length("file"));
    T(fcntl(fd, F_SETLEASE, F_RDLCK));
    for (int each = fd; each < fd + 16; each++) close(each);
    T(close(open("file", O_WRONLY | O_NONBLOCK)));
}

static int waits(void) {
    int fd = open("file", O_WRONLY | O_NONBLOCK);
    if (fd >= 0) return close(fd), 0;
    return errno == EWOULDBLOCK ? 1 : -errno;
}

static void lives(const char *self) {
    puts("-- lives");
    signal(SIGUSR1, SIG_IGN);
    signal(SIGIO, SIG_IGN);
    make("file", "content");
    // Copies made before and after the lease keep it.
    int fd = open("file", O_RDONLY), before = dup(fd);
    T(fcntl(fd, F_SETLEASE, F_RDLCK));
    int after = dup(fd), high = fcntl(fd, F_DUPFD_CLOEXEC, 700);
    close(fd);
    T(waits());
    T(fcntl(before, F_GETLEASE));
    close(before), close(after);
    T(waits());
    T(fcntl(high, F_GETLEASE));
    close(high);
    T(waits());
    // A fork shares it.
    fd = open("file", O_RDONLY);
    T(fcntl(fd, F_SETLEASE, F_RDLCK));
    int ends[2], back[2];
    pipe(ends), pipe(back);
    int child = fork();
    char byte;
    if (!child) {
        close(ends[1]), close(back[0]);
        read(ends[0], &byte, 1);
        T(fcntl(fd, F_GETLEASE));
        fflush(stdout);
        write(back[1], "", 1);
        read(ends[0], &byte, 1);
        _exit(0);
    }
    close(ends[0]), close(back[1]);
    close(fd);
    T(waits());
    fflush(stdout);
    write(ends[1], "", 1);
    read(back[0], &byte, 1);
    T(waits());
    close(ends[1]);
    finish(child);
    T(waits());
    close(back[0]);
    // An exec keeps it, if it keeps the descriptor; a death ends it.
    for (int kept = 0; kept < 2; kept++) {
        pipe(ends), pipe(back);
        if (!(child = fork())) {
            fd = open("file", O_RDONLY | (kept ? 0 : O_CLOEXEC));
            fcntl(fd, F_SETLEASE, F_RDLCK);
            char number[16], output[16];
            sprintf(number, "%d", fd), sprintf(output, "%d", back[1]);
            close(back[0]);
            execl(self, self, "held", number, output, NULL);
            _exit(127);
        }
        close(back[1]);
        read(back[0], &byte, 1);
        printf("after exec: %d, lease %d\n", waits(), byte);
        kill(child, SIGKILL);
        finish(child);
        T(waits());
        close(back[0]), close(ends[0]), close(ends[1]);
    }
    // The signal goes to the owner.
    fd = open("file", O_RDONLY);
    T(fcntl(fd, F_GETOWN));
    pipe(ends);
    if (!(child = fork())) {
        block(SIGUSR2);
        handle(SIGUSR2, 0);
        signals = 0;
        write(ends[1], "", 1);
        await_break();
        printf("owner: code %d, descriptor %d\n", code == POLL_MSG, from_fd == fd);
        fflush(stdout), _exit(0);
    }
    read(ends[0], &byte, 1);
    T(fcntl(fd, F_SETOWN, child));
    TRUTH(fcntl(fd, F_GETOWN) == child);
    struct f_owner_ex owner = {0};
    T(fcntl(fd, F_GETOWN_EX, &owner));
    TRUTH(owner.type == F_OWNER_PID && owner.pid == child);
    T(fcntl(fd, F_SETSIG, SIGUSR2));
    T(fcntl(fd, F_SETLEASE, F_RDLCK));
    T(waits());
    finish(child);
    close(fd);
    // A killed holder does not stop an open that waits.
    if (!(child = fork())) {
        fd = open("file", O_RDONLY);
        T(fcntl(fd, F_SETLEASE, F_RDLCK));
        fflush(stdout);
        write(ends[1], "", 1);
        pause();
    }
    read(ends[0], &byte, 1);
    int killer = fork();
    if (!killer) {
        usleep(200000);
        kill(child, SIGKILL);
        _exit(0);
    }
    T(close(open("file", O_WRONLY)));
    finish(killer), finish(child);
}

/// Grants and opens at the same time: while a write lease is held, no other process has the file.
static void race(int rounds) {
    memset((void *)shared, 0, sizeof *shared);
    make("file", "content");
    int child = fork();
    if (!child) {
        while (!shared->released) {
            int fd = open("file", shared->opened % 3 ? O_RDWR : O_RDWR | O_TRUNC);
            if (fd < 0) shared->bad = errno;
            shared->users = 1;
            shared->opened++;
            for (volatile int spin = 0; spin < 5000; spin++);
            shared->users = 0;
            close(fd);
        }
        _exit(0);
    }
    signal(SIGIO, SIG_IGN);
    int granted = 0;
    // The bound is against a hang: the other process may have the file open and no processor.
    for (time_t end = time(NULL) + 600; granted < rounds && time(NULL) < end;) {
        int fd = open("file", O_RDWR);
        if (fcntl(fd, F_SETLEASE, F_WRLCK) == 0) {
            granted++;
            pwrite(fd, "x", 1, 0);
            for (int look = 0; look < 50; look++) {
                if (shared->users || length("file") < 1) shared->bad++;
            }
            fcntl(fd, F_SETLEASE, F_UNLCK);
        } else {
            sched_yield();
        }
        close(fd);
    }
    shared->released = 1;
    finish(child);
    printf("granted: %d, opened: %d, bad: %d\n", granted == rounds, shared->opened > 0, shared->bad);
}

int main(int count, char **arguments) {
    if (count == 4) {
        char lease = fcntl(atoi(arguments[2]), F_GETLEASE);
        write(atoi(arguments[3]), &lease, 1);
        pause();
    }
    if (chdir(arguments[1])) return 1;
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (count == 3) return race(atoi(arguments[2])), 0;
    umask(0);
    grants();
    breaks();
    refusals();
    lives(arguments[0]);
    return 0;
}
