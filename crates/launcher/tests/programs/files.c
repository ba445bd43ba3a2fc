/* Performs calls in a directory and prints their results: the same on every file system. */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <unistd.h>

static const char *root;
static char paths[4][512];
static const char *in(int which, const char *name) { snprintf(paths[which], sizeof paths[which], "%s/%s", root, name); return paths[which]; }

#define SAY(call) do { errno = 0; long r_ = (long)(call); printf("%-60s %ld %s\n", #call, r_, r_ < 0 ? strerrorname_np(errno) : ""); fflush(stdout); } while (0)

static void names(void) {
    struct stat st;
    SAY(chdir(root));
    char cwd[512];
    printf("cwd %d\n", getcwd(cwd, sizeof cwd) && !strcmp(cwd, root));
    SAY(getcwd(cwd, 3) ? 0 : -1);
    SAY(mkdir("d", 0755));
    SAY(mkdir("d", 0755));
    SAY(mkdir(".", 0755));
    SAY(mkdir("none/d", 0755));
    SAY(open("d/f", O_CREAT | O_EXCL | O_WRONLY, 0600) - 3);
    SAY(close(3));
    SAY(close(3));
    SAY(open("d/f", O_CREAT | O_EXCL | O_WRONLY, 0600));
    SAY(stat("d/f", &st));
    printf("mode %o links %ld size %ld\n", st.st_mode, (long)st.st_nlink, (long)st.st_size);
    SAY(stat("d/f/", &st));
    SAY(stat("d/none", &st));
    SAY(stat("", &st));
    SAY(stat((char *)1, &st));
    SAY(access("d/f", R_OK));
    SAY(access("d/f", 8));
    SAY(symlink("f", "d/l"));
    SAY(lstat("d/l", &st));
    SAY(readlink("d/l", cwd, sizeof cwd));
    SAY(readlink("d/f", cwd, sizeof cwd));
    SAY(symlink("loop", "loop"));
    SAY(stat("loop", &st));
    SAY(open("loop", O_RDONLY));
    SAY(open("d/l", O_RDONLY | O_NOFOLLOW));
    SAY(link("d/f", "d/h"));
    SAY(link("d", "dd"));
    SAY(link("d/f", "d/h"));
    SAY(rename("d/h", "d/f"));
    SAY(rename("d/h", "d/g"));
    SAY(rename("d/none", "d/g"));
    SAY(renameat2(AT_FDCWD, "d/g", AT_FDCWD, "d/f", RENAME_NOREPLACE));
    SAY(renameat2(AT_FDCWD, "d/g", AT_FDCWD, "d/f", RENAME_EXCHANGE));
    SAY(syscall(SYS_renameat2, AT_FDCWD, "d/g", AT_FDCWD, "d/f", 64));
    SAY(rename("d", "d/sub"));
    SAY(rmdir("d"));
    SAY(rmdir("d/f"));
    SAY(unlink("d"));
    SAY(unlink("d/none"));
    SAY(unlinkat(AT_FDCWD, "d/g", 8));
    SAY(rmdir("."));
    SAY(mknod("fifo", S_IFIFO | 0600, 0));
    SAY(chmod("d/f", 04755));
    stat("d/f", &st); printf("mode %o\n", st.st_mode);
    SAY(truncate("d/f", 100));
    SAY(truncate("d", 100));
    SAY(truncate("d/f", -1));
    struct timespec t[2] = {{1000000000, 5}, {0, UTIME_OMIT}};
    SAY(utimensat(AT_FDCWD, "d/f", t, 0));
    stat("d/f", &st); printf("atime %ld.%ld\n", (long)st.st_atim.tv_sec, (long)st.st_atim.tv_nsec);
    t[0].tv_nsec = 1000000000;
    SAY(utimensat(AT_FDCWD, "d/f", t, 0));
    SAY(statx(AT_FDCWD, "d/f", 0x10000, STATX_ALL, (void *)cwd));
    SAY(setxattr("d/f", "user.a", "value", 5, 0));
    SAY(getxattr("d/f", "user.a", cwd, 512));
    SAY(getxattr("d/f", "user.a", cwd, 2));
    SAY(getxattr("d/f", "user.b", cwd, 512));
    SAY(removexattr("d/f", "user.a"));
    char *absolute = strdup(in(0, "d/f"));
    SAY(symlink(absolute, "abs"));
    SAY(stat("abs", &st));
    SAY(symlink("/etc/passwd", "out"));
    SAY(open("out", O_RDONLY));
    close(3);
    SAY(symlink("/etc", "outdir"));
    SAY(access("outdir/passwd", R_OK));
    SAY(access("outdir/none", R_OK));
    SAY(rename("/etc/none", "x"));
    SAY(link("/etc/none", "x"));
    SAY(chdir("d"));
    SAY(access("../d/f", F_OK));
    SAY(access("../../..//../../../../etc/passwd", R_OK));
    SAY(chdir("/"));
    SAY(access("d/f", F_OK));
    SAY(access(absolute + 1, F_OK));
    SAY(chdir(root));
    SAY(syscall(SYS_openat2, AT_FDCWD, "d/f", &(struct { unsigned long long f, m, r; }){O_RDONLY, 0, 8}, 24UL));
    SAY(syscall(SYS_openat2, AT_FDCWD, "../x", &(struct { unsigned long long f, m, r; }){O_RDONLY, 0, 8}, 24UL));
    SAY(syscall(SYS_openat2, AT_FDCWD, "d/l", &(struct { unsigned long long f, m, r; }){O_RDONLY, 0, 4}, 24UL));
    SAY(syscall(SYS_openat2, AT_FDCWD, "d/l", &(struct { unsigned long long f, m, r; }){1ULL << 40, 0, 0}, 24UL));
    SAY(syscall(SYS_openat2, AT_FDCWD, "out", &(struct { unsigned long long f, m, r; }){O_RDONLY, 0, 8}, 24UL));
    close(3);
}

static void descriptors(void) {
    char b[64];
    struct stat st;
    SAY(open("d/f", O_RDWR | O_TRUNC));
    SAY(write(3, "hello world", 11));
    SAY(lseek(3, 6, SEEK_SET));
    SAY(read(3, b, 5));
    printf("%.5s\n", b);
    SAY(pread(3, b, 5, 0));
    SAY(pread(3, b, 5, -1));
    SAY(pwrite(3, "H", 1, 0));
    SAY(dup(3));
    SAY(lseek(4, 0, SEEK_CUR));
    SAY(fcntl(3, F_DUPFD_CLOEXEC, 10));
    SAY(fcntl(10, F_GETFD));
    SAY(fcntl(3, F_GETFD));
    SAY(fcntl(3, F_GETFL) & (O_ACCMODE | O_APPEND));
    SAY(fcntl(3, F_SETFL, O_APPEND));
    SAY(fcntl(4, F_GETFL) & (O_ACCMODE | O_APPEND));
    SAY(write(4, "!", 1));
    SAY(fstat(3, &st));
    printf("size %ld\n", (long)st.st_size);
    SAY(dup2(3, 20));
    SAY(dup3(3, 21, O_CLOEXEC));
    SAY(dup3(3, 3, 0));
    SAY(dup2(3, 3));
    SAY(dup2(99, 3));
    SAY(dup2(0, 21));
    SAY(fcntl(21, F_GETFL) == fcntl(0, F_GETFL));
    SAY(close_range(20, 21, 0));
    SAY(read(20, b, 1));
    SAY(close(4));
    SAY(open("/dev/null", O_RDONLY));
    SAY(close(4));
    SAY(open("d", O_RDONLY | O_DIRECTORY));
    SAY(openat(4, "f", O_RDONLY));
    SAY(read(4, b, 1));
    SAY(write(5, b, 1));
    SAY(openat(5, "f", O_RDONLY));
    SAY(fchdir(4));
    SAY(access("f", F_OK));
    SAY(chdir(".."));
    SAY(fchdir(5));
    SAY(open("d/f", O_PATH));
    SAY(read(6, b, 1));
    SAY(fstat(6, &st));
    SAY(fchmod(6, 0600));
    SAY(close(6));
    SAY(open("d", O_TMPFILE | O_RDWR, 0600));
    SAY(write(6, "unnamed", 7));
    SAY(linkat(AT_FDCWD, "/proc/self/fd/6", AT_FDCWD, "named", AT_SYMLINK_FOLLOW));
    SAY(stat("named", &st));
    SAY(open("/proc/self/fd/6", O_RDONLY));
    SAY(read(7, b, 64));
    SAY(close(7));
    SAY(open("/dev/fd/6", O_RDWR));
    SAY(read(7, b, 64));
    SAY(close(7));
    SAY(close(6));
    struct iovec v[2] = {{"ab", 2}, {"cde", 3}};
    SAY(open("d/v", O_CREAT | O_RDWR | O_APPEND, 0644));
    SAY(writev(6, v, 2));
    SAY(writev(6, v, -1));
    struct iovec w[2] = {{b, 1}, {b + 1, 10}};
    SAY(preadv(6, w, 2, 1));
    printf("%.4s\n", b);
    int p[2];
    SAY(pipe(p) || p[0] != 7);
    SAY(sendfile(p[1], 6, &(off_t){1}, 3));
    SAY(read(p[0], b, 64));
    SAY(splice(6, &(off_t){0}, p[1], 0, 5, 0));
    SAY(splice(p[0], 0, 3, &(off_t){0}, 5, 0));
    SAY(fcntl(3, F_SETFL, 0));
    SAY(splice(p[0], 0, 3, &(off_t){0}, 5, 0));
    SAY(copy_file_range(3, &(off_t){0}, 6, 0, 5, 0));
    SAY(fcntl(6, F_SETFL, 0));
    SAY(copy_file_range(3, &(off_t){0}, 6, 0, 5, 0));
    SAY(ftruncate(6, 8192));
    SAY(fallocate(6, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4096));
    SAY(fallocate(6, 0x8000, 0, 4096));
    SAY(lseek(6, 0, SEEK_HOLE));
    SAY(fsync(6));
    SAY(fdatasync(6));
    SAY(ioctl(6, TCGETS, b));
    SAY(isatty(6));
    SAY(lseek(6, 8000, SEEK_SET));
    int left = -1;
    SAY(ioctl(6, FIONREAD, &left));
    printf("left %d\n", left);
    struct pollfd polled = {6, POLLIN | POLLOUT, 0};
    SAY(poll(&polled, 1, 1000));
    printf("events %x\n", polled.revents);
    fd_set set;
    FD_ZERO(&set); FD_SET(6, &set);
    SAY(select(7, &set, 0, 0, 0));
    int e = epoll_create1(0);
    SAY(epoll_ctl(e, EPOLL_CTL_ADD, 6, &(struct epoll_event){EPOLLIN, {0}}));
    SAY(flock(6, LOCK_EX | LOCK_NB));
    int other = open("d/v", O_RDWR);
    SAY(flock(other, LOCK_EX | LOCK_NB));
    SAY(flock(6, LOCK_UN));
    SAY(flock(other, LOCK_EX | LOCK_NB));
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 0, .l_len = 10};
    SAY(fcntl(6, F_OFD_SETLK, &lock));
    SAY(fcntl(other, F_OFD_SETLK, &lock));
    closedir(0 ? 0 : opendir("d"));
    DIR *d = opendir("d");
    int count = 0;
    while (readdir(d)) count++;
    printf("entries %d\n", count);
    closedir(d);
    SAY(close_range(3, 500, 0));
}

static void memory(void) {
    int fd = open("m", O_CREAT | O_RDWR | O_TRUNC, 0644);
    ftruncate(fd, 3 * 4096 + 100);
    char *s = mmap(0, 4 * 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    char *p = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0);
    char b[16];
    strcpy(s + 4090, "across pages");
    pread(fd, b, 12, 4090);
    printf("%.12s\n", b);
    pwrite(fd, "written", 7, 0);
    printf("%.7s\n", s);
    strcpy(p, "private");
    pread(fd, b, 7, 0);
    printf("%.7s %s\n", b, p);
    pid_t child = fork();
    if (!child) { strcpy(s + 8192, "child"); _exit(0); }
    waitpid(child, 0, 0);
    printf("%s\n", s + 8192);
    SAY(msync(s, 4 * 4096, MS_SYNC));
    close(fd);
    printf("%.7s\n", s);
    SAY(munmap(s, 4 * 4096));
    SAY(munmap(p, 4096));
    fd = open("m", O_RDONLY);
    SAY(mmap(0, 4096, PROT_WRITE, MAP_SHARED, fd, 0) == MAP_FAILED ? -1 : 0);
    SAY(mmap(0, 4096, PROT_READ, MAP_SHARED, fd, 1) == MAP_FAILED ? -1 : 0);
    SAY(mmap(0, 0, PROT_READ, MAP_SHARED, fd, 0) == MAP_FAILED ? -1 : 0);
    close(fd);
}

static int status;
static int status_of(pid_t child) { int s = -1; waitpid(child, &s, 0); return WIFEXITED(s) ? WEXITSTATUS(s) : -WTERMSIG(s); }

static void processes(char *self) {
    int fd = open("shared", O_CREAT | O_RDWR | O_TRUNC, 0644);
    write(fd, "0123456789", 10);
    lseek(fd, 2, SEEK_SET);
    pid_t child = fork();
    if (!child) { char c; read(fd, &c, 1); close(fd); chdir("d"); _exit(c == '2' && !access("f", F_OK) ? 5 : 1); }
    status = status_of(child);
    printf("fork %d position %ld cwd %d\n", status, (long)lseek(fd, 0, SEEK_CUR), access("d/f", F_OK));
    child = vfork();
    if (!child) { dup2(fd, 1); dup2(fd, 30); close(fd); chdir("d"); execl("/bin/sh", "sh", "-c", "echo from the shell; pwd >&30; test -e f && exit 6", (char *)0); _exit(1); }
    status = status_of(child);
    printf("vfork %d position %ld cwd %d 30 closed %d\n", status, (long)lseek(fd, 0, SEEK_CUR), access("d/f", F_OK), fcntl(30, F_GETFD));
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, 1, "spawned", O_CREAT | O_WRONLY | O_TRUNC, 0644);
    char *words[] = {"echo", "spawned", 0}, *none[] = {0};
    SAY(posix_spawn(&child, "/bin/echo", &actions, 0, words, none));
    printf("spawn %d\n", status_of(child));
    SAY(posix_spawn(&child, "/bin/none", &actions, 0, words, none));
    struct stat st;
    SAY(stat("spawned", &st));
    printf("size %ld\n", (long)st.st_size);
    int keep = open("d/f", O_RDONLY), drop = open("d/f", O_RDONLY | O_CLOEXEC);
    char a[16], b[16];
    sprintf(a, "%d", keep); sprintf(b, "%d", drop);
    child = fork();
    if (!child) { execl(self, self, "inherit", a, b, (char *)0); _exit(1); }
    printf("exec %d\n", status_of(child));
    int copy = open("program", O_CREAT | O_WRONLY | O_TRUNC, 0755), from = open(self, O_RDONLY);
    char buffer[65536];
    for (long n; (n = read(from, buffer, sizeof buffer)) > 0;) write(copy, buffer, n);
    close(copy); close(from);
    child = fork();
    if (!child) { execl("./program", "program", "inherit", a, b, (char *)0); _exit(1); }
    printf("exec inside %d\n", status_of(child));
    int script = open("script", O_CREAT | O_WRONLY | O_TRUNC, 0755);
    dprintf(script, "#!/bin/sh\necho script $0 $1\n"); close(script);
    child = fork();
    if (!child) { execl("./script", "script", "argument", (char *)0); _exit(1); }
    printf("script %d\n", status_of(child));
    SAY(execl("./spawned", "x", (char *)0));
    SAY(execl("./d", "x", (char *)0));
    SAY(umask(077));
    close(open("masked", O_CREAT | O_WRONLY, 0666));
    stat("masked", &st);
    printf("mode %o\n", st.st_mode);
    umask(022);
}

static void sockets(void) {
    int pair[2];
    socketpair(AF_UNIX, SOCK_STREAM, 0, pair);
    int fd = open("sent", O_CREAT | O_RDWR | O_TRUNC, 0644);
    write(fd, "sent by descriptor", 18);
    pid_t child = fork();
    union { char room[CMSG_SPACE(sizeof(int))]; struct cmsghdr head; } control;
    char byte = 'x';
    struct iovec v = {&byte, 1};
    struct msghdr message = {.msg_iov = &v, .msg_iovlen = 1, .msg_control = control.room, .msg_controllen = sizeof control.room};
    if (!child) {
        close(fd);
        recvmsg(pair[1], &message, MSG_CMSG_CLOEXEC);
        int got;
        memcpy(&got, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof got);
        char b[32] = "";
        pread(got, b, 31, 0);
        printf("%s, position %ld, cloexec %d\n", b, (long)lseek(got, 0, SEEK_CUR), fcntl(got, F_GETFD));
        fflush(stdout);
        _exit(0);
    }
    struct cmsghdr *head = CMSG_FIRSTHDR(&message);
    *head = (struct cmsghdr){CMSG_LEN(sizeof(int)), SOL_SOCKET, SCM_RIGHTS};
    memcpy(CMSG_DATA(head), &fd, sizeof fd);
    long sent = sendmsg(pair[0], &message, 0);
    close(fd);
    printf("received %d\n", status_of(child));
    printf("sent %ld\n", sent);
    struct sockaddr_un address = {AF_UNIX, "socket"};
    int server = socket(AF_UNIX, SOCK_STREAM, 0), client = socket(AF_UNIX, SOCK_STREAM, 0);
    SAY(connect(client, (void *)&address, sizeof address));
    SAY(bind(server, (void *)&address, sizeof address));
    SAY(listen(server, 1));
    SAY(connect(client, (void *)&address, sizeof address));
    int accepted = accept(server, 0, 0);
    write(client, "through", 7);
    char b[8] = "";
    read(accepted, b, 7);
    printf("%s\n", b);
    SAY(bind(socket(AF_UNIX, SOCK_STREAM, 0), (void *)&address, sizeof address));
    struct stat st;
    SAY(stat("socket", &st));
    printf("is socket %d\n", S_ISSOCK(st.st_mode));
    SAY(open("socket", O_RDONLY));
    SAY(unlink("socket"));
    child = fork();
    if (!child) { int f = open("fifo", O_WRONLY); write(f, "fifo", 4); _exit(0); }
    int f = open("fifo", O_RDONLY);
    char c[8] = "";
    read(f, c, 4);
    status = status_of(child);
    printf("%s %d\n", c, status);
}

/* Writes of several pieces, with per-call flags; and links in /proc wherever they are followed. */
static void vectors(void) {
    static char big[3][100000];
    char link[64];
    for (int i = 0; i < 3; i++) memset(big[i], 'a' + i, sizeof big[i]);
    struct iovec two[2] = {{"ab", 2}, {"cd", 2}}, three[3] = {{big[0], 100000}, {big[1], 100000}, {big[2], 100000}};
    int f = open("vectors", O_RDWR | O_CREAT | O_TRUNC, 0644), a = open("vectors", O_WRONLY | O_APPEND);
    SAY(pwritev2(f, two, 2, 0, 0));
    SAY(pwritev2(f, two, 2, 1, RWF_APPEND));
    SAY(lseek(f, 0, SEEK_CUR));
    SAY(pwritev2(f, two, 2, -1, RWF_APPEND));
    SAY(lseek(f, 0, SEEK_CUR));
    SAY(pwritev2(a, two, 1, 1, 0x20));
    SAY(pwritev2(a, two, 1, 1, 0x20 | RWF_APPEND));
    SAY(pwritev2(f, two, 1, 1, 0x40000000));
    SAY(pwritev2(f, two, 1, 1, RWF_SYNC));
    SAY(pwritev2(f, two, 1, 1, RWF_DSYNC));
    SAY(preadv2(f, two, 0, 0, RWF_HIPRI));
    char b[32] = "";
    SAY(pread(f, b, 31, 0));
    puts(b);
    SAY(writev(a, three, 3));
    SAY(lseek(f, 0, SEEK_END));
    SAY(pread(f, b, 2, 12 + 99999));
    puts(b);
    SAY(writev(a, three, -1));
    SAY(writev(a, three, 0));
    three[2].iov_len = -1;
    SAY(writev(a, three, 3));
    unlink("vectors");
    int d = open("d", O_RDONLY | O_DIRECTORY);
    sprintf(link, "/proc/self/fd/%d", d);
    SAY(chdir(link));
    SAY(access("f", F_OK));
    SAY(chdir(root));
    sprintf(link, "/dev/fd/%d", d);
    SAY(chdir(link));
    SAY(access("f", F_OK));
    SAY(chdir(root));
    sprintf(link, "/proc/%d/fd/%d/..", getpid(), d);
    SAY(chdir(link));
    SAY(access("d/f", F_OK));
    sprintf(link, "/proc/self/fd/%d", f);
    SAY(chdir(link));
    SAY(execl(link, "nothing", (char *)0));
    fchmod(f, 0755);
    ftruncate(f, 0);
    pwrite(f, "#!/bin/sh\necho script $1\nexit 4\n", 32, 0);
    close(a);
    int r = open(link, O_RDONLY);
    close(f);
    sprintf(link, "/proc/self/fd/%d", r);
    pid_t child = fork();
    if (!child) { execl(link, "script", "argument", (char *)0); _exit(errno); }
    printf("script by link %d\n", status_of(child));
}

/* Buffers that are accessible up to the middle: the transfer up to there counts, where calls can
   report it. */
static void parts(void) {
    char *pages = mmap(0, 12288, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), *end = pages + 8192, content[5000], value[100];
    struct iovec v[2];
    munmap(end, 4096);
    memset(content, 'p', sizeof content);
    SAY(chdir(root));
    int f = open("parts", O_CREAT | O_RDWR, 0644), d;
    SAY(write(f, content, 5000));
    SAY(lseek(f, 0, SEEK_SET));
    SAY(read(f, end - 100, 200));
    SAY(lseek(f, 0, SEEK_CUR));
    SAY(read(f, end - 1, 4096));
    SAY(lseek(f, 0, SEEK_CUR));
    SAY(read(f, end, 10));
    SAY(lseek(f, 0, SEEK_CUR));
    SAY(pread(f, end - 4096, 8192, 0));
    SAY(pread(f, end - 5000, 8192, 0));
    SAY(pread(f, end - 4097, 8192, 4000));
    SAY(pread(f, end - 10, 8192, 4995));
    SAY(pread(f, end, 8192, 5000));
    printf("last %c\n", end[-1]);
    v[0] = (struct iovec){end - 20, 20}, v[1] = (struct iovec){end - 30, 100};
    SAY(preadv(f, v, 2, 0));
    v[0] = (struct iovec){end - 30, 100}, v[1] = (struct iovec){pages, 100};
    SAY(readv(f, v, 2));
    SAY(lseek(f, 0, SEEK_CUR));
    v[0] = (struct iovec){end, 100};
    SAY(readv(f, v, 2));
    mprotect(pages, 4096, PROT_READ);
    SAY(pread(f, pages, 100, 0));
    SAY(pread(f, pages + 4000, 200, 0));
    mprotect(pages, 4096, PROT_READ | PROT_WRITE);
    SAY(symlink("0123456789", "parts.link"));
    SAY(readlink("parts.link", end - 10, 4096));
    SAY(readlink("parts.link", end - 9, 4096));
    SAY(fsetxattr(f, "user.part", "value", 5, 0));
    SAY(fgetxattr(f, "user.part", end - 5, 100));
    SAY(fgetxattr(f, "user.part", end - 4, 100));
    SAY(mkdir("parts.d", 0755));
    char name[256];
    for (int i = 0; i < 20; i++) { sprintf(name, "parts.d/%0200d", i); close(open(name, O_CREAT | O_WRONLY, 0644)); }
    d = open("parts.d", O_RDONLY | O_DIRECTORY);
    SAY(syscall(SYS_getdents64, d, end, 4096));
    SAY(syscall(SYS_getdents64, d, end - 20, 4096));
    SAY(syscall(SYS_getdents64, d, end - 1000, 4096) > 0);
    int sum = 1;
    long bytes;
    while ((bytes = syscall(SYS_getdents64, d, end - 500, 4096)) > 0) sum += bytes > 24 && bytes <= 500;
    printf("the rest: %ld %d\n", bytes, sum > 5);
    SAY(syscall(SYS_getdents64, d, end, 4096));
    SAY(syscall(SYS_getdents64, d, pages, 0));
    SAY(lseek(d, 0, SEEK_SET));
    SAY(syscall(SYS_getdents64, d, pages, 10));
}

static int inherit(char **v) {
    struct stat st;
    return (fstat(atoi(v[2]), &st) || !S_ISREG(st.st_mode) ? 0 : 1) + (fstat(atoi(v[3]), &st) && errno == EBADF ? 2 : 0) + (access("d/f", F_OK) ? 0 : 4);
}

int main(int c, char **v) {
    setvbuf(stdout, 0, _IONBF, 0);
    if (c > 3 && !strcmp(v[1], "inherit")) return inherit(v);
    root = v[1];
    names();
    descriptors();
    memory();
    processes(v[2]);
    sockets();
    vectors();
    parts();
    return 0;
}
