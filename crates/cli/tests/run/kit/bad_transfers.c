/* Transfers between descriptors that do not permit them, and some other calls: their errors. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#define SHOW(call) do { errno = 0; long r = (call); printf("%s: %ld %s\n", #call, r < 0 ? -1 : r, r < 0 ? strerrorname_np(errno) : ""); } while (0)

static long executed(const char *path, int flags) {
    char *arguments[] = {"true", 0}, *environment[] = {0};
    return syscall(SYS_execveat, AT_FDCWD, path, arguments, environment, flags);
}

int main(void) {
    int empty = open("empty", O_CREAT | O_RDONLY | O_TRUNC, 0600), full = open("full", O_CREAT | O_RDWR | O_TRUNC, 0600);
    int out = open("out", O_CREAT | O_WRONLY | O_TRUNC, 0600), in = open("out", O_RDONLY), place = open("out", O_PATH);
    int append = open("out", O_WRONLY | O_APPEND), directory = open(".", O_RDONLY), none = -1, p[2], zero = 0;
    if (pipe(p) || write(full, "0123456789", 10) != 10 || lseek(full, 0, SEEK_SET)) return 1;
    int *targets[] = {&none, &in, &out, &append, &place, &directory, &p[0], &p[1], &empty};
    int *sources[] = {&none, &empty, &full, &out, &place, &directory, &p[0], &p[1]};
    fcntl(p[0], F_SETFL, O_NONBLOCK), fcntl(p[1], F_SETFL, O_NONBLOCK);
    for (int s = 0; s < 8; s++)
        for (int t = 0; t < 9; t++)
            for (int length = 0; length < 2; length++) {
                int from = *sources[s], to = *targets[t];
                lseek(full, 0, SEEK_SET);
                printf("source %d, target %d, %d bytes\n", s, t, length);
                SHOW(sendfile(to, from, 0, length));
                SHOW(splice(from, 0, to, 0, length, 0));
                /* Under run these also work between two file systems. */
                if (s != 6 && s != 7 && t != 6 && t != 7) SHOW(copy_file_range(from, 0, to, 0, length, 0));
                SHOW(lseek(full, 0, SEEK_CUR));
                char rest[8];
                while (read(p[0], rest, 8) > 0) {}
            }
    off_t negative = -1, far = 100;
    SHOW(sendfile(out, full, &negative, 1)); SHOW(sendfile(none, full, &negative, 1)); SHOW(sendfile(out, full, &far, 1));
    SHOW(splice(full, &negative, p[1], 0, 1, 0)); SHOW(splice(full, &far, p[1], &far, 1, 0));
    SHOW(splice(full, 0, p[1], 0, 1, 0x100)); SHOW(splice(full, 0, none, 0, 0, 0x100));
    struct iovec piece = {"abc", 3};
    SHOW(vmsplice(out, &piece, 1, 0)); SHOW(vmsplice(directory, &piece, 1, 0)); SHOW(vmsplice(place, &piece, 1, 0));
    SHOW(tee(full, p[1], 1, 0)); SHOW(tee(p[0], full, 1, 0)); SHOW(tee(place, p[1], 1, 0));
#define MAP(length, kind, fd, offset) SHOW((long)mmap(0, length, PROT_READ | PROT_WRITE, kind, fd, offset) == -1 ? -1 : 0)
    MAP(0, MAP_SHARED, out, 0); MAP(0, MAP_SHARED, full, 0); MAP(4096, 0, out, 0); MAP(4096, MAP_SHARED, full, 1);
    MAP(0, MAP_SHARED, place, 0); MAP(4096, MAP_SHARED, place, 0); MAP(4096, MAP_SHARED, out, 0);

    int poll = epoll_create1(0);
    struct epoll_event event = {EPOLLIN};
    SHOW(epoll_ctl(poll, EPOLL_CTL_ADD, place, &event)); SHOW(epoll_ctl(full, EPOLL_CTL_ADD, p[0], &event));
    SHOW(epoll_ctl(place, EPOLL_CTL_ADD, p[0], &event));
    SHOW(epoll_wait(full, &event, 1, 0)); SHOW(epoll_wait(place, &event, 1, 0));
    const char *names[] = {"\1\0full", "\1\0missing", "\1\0full/x"};
    for (int i = 0; i < 3; i++) {
        struct sockaddr *name = (struct sockaddr *)names[i];
        int length = 2 + strlen(names[i] + 2) + 1, socket_ = socket(AF_UNIX, SOCK_STREAM, 0);
        SHOW(bind(none, name, length)); SHOW(bind(full, name, length)); SHOW(bind(place, name, length));
        SHOW(bind(p[0], name, length)); SHOW(connect(socket_, name, length));
        SHOW(connect(none, name, length)); SHOW(connect(full, name, length)); SHOW(connect(place, name, length));
    }
    for (int flag = 1; flag < 1 << 20; flag <<= 1)
        if (flag != 0x100 && flag != 0x1000 && flag != 0x10000) { printf("%x ", flag); SHOW(executed("full", flag)); }
    SHOW(executed("full", 0)); SHOW(executed("missing", 0)); SHOW(zero);
    return 0;
}
