/* Numbers of descriptors, and results for free numbers: thousands of random calls, some of which
   the kernel serves and some the library.
   usage: numbers DIRECTORY SELF; as a child: numbers list */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { NUMBERS = 40, ROUNDS = 4000, THREADS = 4, TURNS = 2000 };
extern char **environ;
static unsigned long seed = 20261121;
static const char *self;

static unsigned draw(unsigned below) {
    seed = seed * 6364136223846793005UL + 1442695040888963407UL;
    return (unsigned)(seed >> 33) % below;
}

/* Keeps the numbers small, away from the library's own descriptors. */
static void limit_number(long fd) {
    if (fd >= NUMBERS + 10)
        close((int)fd);
}

static void tell(const char *what, long a, long b, long result) {
    printf("%s %ld %ld: %ld%s%s\n", what, a, b, result, result < 0 ? " " : "", result < 0 ? strerrorname_np(errno) : "");
    limit_number(result);
}

static void list(void) {
    printf("open:");
    for (int fd = 3; fd < NUMBERS + 10; fd++)
        if (fcntl(fd, F_GETFD) >= 0)
            printf(" %d", fd);
    printf("\n");
}

static void spawn_list(void) {
    pid_t child;
    char *arguments[] = {"numbers", "list", 0};
    fflush(stdout);
    int error = posix_spawn(&child, self, 0, 0, arguments, environ);
    if (error) {
        printf("spawn: %s\n", strerrorname_np(error));
        return;
    }
    waitpid(child, 0, 0);
}

static void spawn_with_actions(int from) {
    pid_t child;
    posix_spawn_file_actions_t actions;
    char *arguments[] = {"numbers", "list", 0};
    fflush(stdout);
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, 5, "one", O_RDONLY, 0);
    posix_spawn_file_actions_adddup2(&actions, from, 7);
    posix_spawn_file_actions_addclose(&actions, 4);
    int error = posix_spawn(&child, self, &actions, 0, arguments, environ);
    if (error)
        printf("spawn: %s\n", strerrorname_np(error));
    else
        waitpid(child, 0, 0);
    posix_spawn_file_actions_destroy(&actions);
}

static void one(void) {
    static const char *const files[] = {"one", "two", "/dev/null"};
    int fd = 3 + (int)draw(NUMBERS), to = 3 + (int)draw(NUMBERS), pair[2] = {-1, -1}, type;
    socklen_t length = sizeof type;
    char byte;
    struct pollfd polled = {fd, POLLIN, 0};
    struct epoll_event event = {EPOLLIN, {0}};
    struct stat status;
    switch (draw(24)) {
    case 0 ... 3: tell("open", 0, 0, open(files[draw(2)], O_RDWR | O_CREAT | (draw(2) ? O_CLOEXEC : 0), 0644)); break;
    case 4: tell("open elsewhere", 0, 0, open(files[2], O_RDONLY | (draw(2) ? O_CLOEXEC : 0))); break;
    case 5: tell("no such file", 0, 0, open(draw(2) ? "nothing" : "/dev/nothing", O_RDONLY)); break;
    case 6: type = pipe(pair); tell("pipe", pair[0], pair[1], type); limit_number(pair[0]); limit_number(pair[1]); break;
    case 7: tell("socket", 0, 0, socket(AF_UNIX, SOCK_DGRAM, 0)); break;
    case 8: tell("eventfd", 0, 0, eventfd(0, 0)); break;
    case 9: tell("dup", fd, 0, dup(fd)); break;
    case 10: tell("dup2", fd, to, dup2(fd, to)); break;
    case 11: tell("dup3", fd, to, dup3(fd, to, O_CLOEXEC)); break;
    case 12: tell("F_DUPFD", fd, to, fcntl(fd, F_DUPFD, to)); break;
    case 13: tell("F_DUPFD_CLOEXEC", fd, to, fcntl(fd, F_DUPFD_CLOEXEC, to)); break;
    case 14 ... 19: tell("close", fd, 0, close(fd)); break;
    case 20:
        tell("F_GETFD", fd, 0, fcntl(fd, F_GETFD));
        tell("F_SETFD", fd, 0, fcntl(fd, F_SETFD, draw(2) ? FD_CLOEXEC : 0));
        tell("fstat", fd, 0, fstat(fd, &status));
        tell("fchdir", fd, 0, fchdir(fd));
        tell("at", fd, 0, openat(fd, "x", O_RDONLY));
        break;
    case 21:
        poll(&polled, 1, 0);
        tell("poll", fd, 0, polled.revents & POLLNVAL);
        tell("SO_TYPE", fd, 0, getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &length));
        tell("recv", fd, 0, recv(fd, &byte, 1, MSG_DONTWAIT));
        type = epoll_create1(0);
        tell("epoll", fd, 0, fd == type ? 0 : epoll_ctl(type, EPOLL_CTL_ADD, fd, &event));
        close(type);
        break;
    case 22:
        if (draw(8) == 0)
            tell("close_range", fd, to, syscall(SYS_close_range, fd, to, draw(2) ? 4 : 0));
        break;
    case 23:
        if (draw(16) == 0)
            draw(2) ? spawn_list() : spawn_with_actions(fd);
    }
}

static void *turns(void *unused) {
    for (int turn = 0; turn < TURNS; turn++) {
        int file = open("one", O_RDONLY), other = dup(file), pair[2];
        if (file < 0 || other < 0 || pipe(pair) < 0 || close(pair[0]) || close(file) || close(pair[1]) || close(other))
            return "a call failed";
        if (other > 3 + 4 * THREADS || pair[1] > 3 + 4 * THREADS)
            return "a number was not the lowest";
    }
    return unused;
}

int main(int argc, char **argv) {
    if (argc > 1 && strcmp(argv[1], "list") == 0) {
        list();
        return 0;
    }
    self = argv[2];
    if (argc < 3 || chdir(argv[1]) < 0)
        return 2;
    struct rlimit limit = {NUMBERS + 8, NUMBERS + 8};
    for (int fd = 3; fd < 900; fd++)
        close(fd);
    printf("seed %lu\n", seed);
    for (int round = 0; round < ROUNDS; round++) {
        one();
        if (round % 500 == 250) {
            fflush(stdout);
            pid_t child = fork();
            if (child == 0) {
                for (int more = 0; more < 100; more++)
                    one();
                list();
                fflush(stdout);
                _exit(0);
            }
            waitpid(child, 0, 0);
        }
    }
    list();
    spawn_list();
    for (int fd = 3; fd < NUMBERS + 10; fd++)
        close(fd);
    // Up to the limit, and one more. (The library's own descriptors lie above.)
    int highest = -1, fd;
    setrlimit(RLIMIT_NOFILE, &limit);
    while ((fd = open("one", O_RDONLY)) >= 0)
        highest = fd;
    tell("full", highest, 0, fd);
    tell("full elsewhere", 0, 0, open("/dev/null", O_RDONLY));
    close(7);
    tell("again", 0, 0, open("one", O_RDONLY));
    close(8);
    tell("again elsewhere", 0, 0, open("/dev/null", O_RDONLY));
    for (fd = 3; fd < NUMBERS + 10; fd++)
        close(fd);
    pthread_t threads[THREADS];
    void *said = 0, *each;
    for (int thread = 0; thread < THREADS; thread++)
        pthread_create(&threads[thread], 0, turns, 0);
    for (int thread = 0; thread < THREADS; thread++) {
        pthread_join(threads[thread], &each);
        said = each ? each : said;
    }
    printf("threads: %s\n", said ? (char *)said : "well");
    list();
    tell("open", 0, 0, open("one", O_RDONLY));
    return 0;
}
