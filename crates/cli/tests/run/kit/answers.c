/* The answers of calls with odd arguments: a line for each, the same on every file system. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/file.h>
#include <sys/inotify.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <sys/vfs.h>
#include <sys/xattr.h>
#include <unistd.h>
#define SYS_fchmodat2 452
#define F_CREATED_QUERY 1028
/* Prints the call, its result (of addresses and the like only that there is one) and its error. */
#define T(call) \
    do { \
        errno = 0; \
        long got = (long)(call), is_error = got < 0 && got > -4096; \
        long shown = is_error ? -1 : got < 0 || got > 1000000 ? 1000000 : got; \
        printf("%s = %ld %s\n", #call, shown, is_error ? strerrorname_np(errno) : ""); \
    } while (0)
#define NAMED(name) (void *)&(struct sockaddr_un){AF_UNIX, name}
#define NAMED_BYTES sizeof(struct sockaddr_un)
#define PART(length) &(struct iovec){bytes, length}
static char bytes[65536], *av[] = {"x", 0};
static struct stat found;
static struct epoll_event ev = {EPOLLIN};
static loff_t z, neg = -1;
/* A file, opened for reading and writing; only for reading; only for writing; to append; by O_PATH;
   a directory, twice; pipes; others. */
static int f, ro, wo, ap, o, d, dp, p[2], q[2], ep, in, stream, other, datagram;

static void path_descriptors(void) {
    T(read(o, bytes, 1));
    T(write(o, bytes, 1));
    T(pread(o, bytes, 1, 0));
    T(readv(o, PART(1), 1));
    T(lseek(o, 0, 0));
    T(ftruncate(o, 0));
    T(fsync(o));
    T(fchmod(o, 0600));
    T(fchown(o, 0, 0));
    T(ioctl(o, FIONREAD, bytes));
    T(fallocate(o, 0, 0, 1));
    T(mmap(0, 4096, PROT_READ, MAP_SHARED, o, 0));
    T(flock(o, LOCK_SH));
    T(fgetxattr(o, "user.x", bytes, 1));
    T(fsetxattr(o, "user.x", "a", 1, 0));
    T(flistxattr(o, bytes, 10));
    T(fcntl(o, F_GETFL));
    T(fcntl(o, F_CREATED_QUERY));
    T(fcntl(o, F_SETFL, O_APPEND));
    T(fcntl(o, F_GETLK, &(struct flock){F_RDLCK}));
    T(fcntl(o, F_SETLK, &(struct flock){F_RDLCK}));
    T(fcntl(o, F_GETFD));
    T(fcntl(o, F_SETOWN, getpid()));
    T(fcntl(o, F_GETOWN));
    T(fcntl(o, F_GETSIG));
    T(fcntl(o, F_GETLEASE));
    T(fcntl(o, F_GET_SEALS));
    T(fcntl(o, F_GETPIPE_SZ));
    T(fstat(o, &found));
    T(fstatfs(o, (void *)bytes));
    T(sync_file_range(o, 0, 1, 0));
    T(posix_fadvise(o, 0, 1, 0));
    T(readahead(o, 0, 1));
    T(syscall(SYS_getdents64, o, bytes, 100));
    T(syscall(SYS_getdents64, dp, bytes, 100));
    T(fchdir(dp));
    T(fchdir(o));
    T(futimens(o, 0));
    T(fexecve(o, (char *[]){"x", 0}, (char *[]){0}));
    T(syncfs(o));
    T(fcntl(o, F_DUPFD, 0) >= 0);
    T(linkat(o, "", AT_FDCWD, "lnk", AT_EMPTY_PATH));
    T(fstatat(o, "", &found, AT_EMPTY_PATH));
    T(fstatat(o, "x", &found, 0));
    T(faccessat(o, "", R_OK, AT_EMPTY_PATH));
    T(fchownat(o, "", 0, 0, AT_EMPTY_PATH));
    T(syscall(SYS_fchmodat2, o, "", 0644, AT_EMPTY_PATH));
    T(copy_file_range(o, 0, f, 0, 1, 0));
    T(copy_file_range(f, 0, o, 0, 1, 0));
    T(sendfile(o, f, 0, 1));
    T(sendfile(p[1], o, 0, 1));
    T(splice(o, 0, p[1], 0, 1, 0));
    T(splice(p[0], 0, o, 0, 1, 0));
    T(tee(o, p[1], 1, 0));
    T(vmsplice(o, PART(1), 1, 0));
    T(inotify_add_watch(o, "f", 1));
    T(bind(o, NAMED("s1"), NAMED_BYTES));
    T(connect(o, NAMED("s1"), NAMED_BYTES));
    T(listen(o, 1));
    T(accept(o, 0, 0));
    T(getsockname(o, (void *)bytes, (socklen_t[]){100}));
    T(sendto(o, bytes, 1, 0, 0, 0));
    T(recv(o, bytes, 1, 0));
    T(shutdown(o, 2));
    T(setsockopt(o, 1, 2, bytes, 4));
    T(getsockopt(o, 1, 2, bytes, (socklen_t[]){4}));
    ep = epoll_create1(0);
    T(epoll_ctl(ep, EPOLL_CTL_ADD, o, &ev));
    T(epoll_ctl(ep, EPOLL_CTL_ADD, f, &ev));
    T(epoll_ctl(ep, EPOLL_CTL_ADD, d, &ev));
    T(epoll_ctl(ep, EPOLL_CTL_DEL, f, &ev));
    T(epoll_ctl(ep, EPOLL_CTL_MOD, f, &ev));
    T(epoll_ctl(ep, 77, f, &ev));
    T(epoll_ctl(f, EPOLL_CTL_ADD, p[0], &ev));
    T(epoll_ctl(o, EPOLL_CTL_ADD, p[0], &ev));
    T(epoll_ctl(f, EPOLL_CTL_ADD, f, &ev));
    T(epoll_wait(f, &ev, 1, 0));
    T(epoll_wait(o, &ev, 1, 0));
    T(epoll_ctl(ep, EPOLL_CTL_ADD, 999, &ev));
    T(epoll_ctl(999, EPOLL_CTL_ADD, f, &ev));
    T(epoll_ctl(ep, EPOLL_CTL_ADD, f, (void *)8));
    T(epoll_ctl(ep, EPOLL_CTL_ADD, f, 0));
}

static void created(void) {
    T(fcntl(f, F_CREATED_QUERY));
    T(fcntl(dup(f), F_CREATED_QUERY));
    T(fcntl(ro, F_CREATED_QUERY));
    T(fcntl(open("f", O_CREAT | O_RDONLY, 0600), F_CREATED_QUERY));
    T(fcntl(open(".", O_TMPFILE | O_RDWR, 0600), F_CREATED_QUERY));
    T(fcntl(open("created", O_CREAT | O_EXCL | O_RDWR, 0600), F_GETFL));
    T(fcntl(999, F_CREATED_QUERY));
}

static void sockets(void) {
    T(bind(f, NAMED("s1"), NAMED_BYTES));
    T(connect(f, NAMED("s1"), NAMED_BYTES));
    T(listen(f, 1));
    T(accept(f, 0, 0));
    T(send(f, bytes, 1, 0));
    T(recv(f, bytes, 1, 0));
    T(sendmsg(f, &(struct msghdr){0}, 0));
    T(recvmsg(f, &(struct msghdr){0}, 0));
    T(getpeername(f, (void *)bytes, (socklen_t[]){100}));
    stream = socket(AF_UNIX, SOCK_STREAM, 0), other = socket(AF_UNIX, SOCK_STREAM, 0);
    datagram = socket(AF_UNIX, SOCK_DGRAM, 0);
    int internet = socket(AF_INET, SOCK_STREAM, 0);
    T(bind(internet, NAMED("."), NAMED_BYTES));
    T(connect(internet, NAMED("f"), NAMED_BYTES));
    T(bind(stream, NAMED("f"), NAMED_BYTES));
    T(bind(stream, NAMED("no/s"), NAMED_BYTES));
    T(bind(stream, NAMED("f/s"), NAMED_BYTES));
    T(bind(stream, NAMED("l"), NAMED_BYTES));
    T(bind(stream, NAMED("sock"), NAMED_BYTES));
    T(bind(stream, NAMED("sock2"), NAMED_BYTES));
    T(connect(other, NAMED("sock"), NAMED_BYTES));
    T(listen(stream, 1));
    T(connect(other, NAMED("f"), NAMED_BYTES));
    T(connect(other, NAMED("nope"), NAMED_BYTES));
    T(connect(datagram, NAMED("sock"), NAMED_BYTES));
    T(connect(other, NAMED("dir"), NAMED_BYTES));
    T(connect(other, NAMED("sock"), NAMED_BYTES));
    T(open("sock", O_RDONLY));
    T(bind(other, NAMED("x"), 1));
    T(bind(datagram, NAMED("x"), 2));
    T(bind(datagram, (void *)8, 20));
    T(bind(datagram, NAMED("x"), 500));
    T(connect(datagram, (void *)&(struct sockaddr_un){AF_INET, "x"}, 20));
    T(bind(999, NAMED("x"), 20));
}

static void splices(void) {
    lseek(f, 0, 0);
    T(splice(f, 0, p[1], 0, 100, SPLICE_F_NONBLOCK));
    T(splice(f, 0, p[1], 0, 100, 0xf0));
    T(splice(f, 0, p[1], 0, 0, 0));
    T(splice(f, &neg, p[1], 0, 10, 0));
    T(splice(f, 0, p[1], &z, 10, 0));
    T(splice(p[0], &z, f, 0, 10, 0));
    T(splice(f, 0, f, 0, 10, 0));
    T(splice(p[0], 0, ap, 0, 10, 0));
    T(splice(p[0], 0, ro, 0, 10, 0));
    T(splice(wo, 0, p[1], 0, 10, 0));
    T(splice(d, 0, p[1], 0, 10, 0));
    T(splice(p[0], 0, d, 0, 10, 0));
    T(splice(p[1], 0, f, 0, 10, 0));
    T(splice(f, 0, p[0], 0, 10, 0));
    T(splice(q[0], 0, f, 0, 10, SPLICE_F_NONBLOCK));
    T(splice(q[0], 0, wo, 0, 10, SPLICE_F_NONBLOCK));
    T(splice(p[0], 0, f, (void *)8, 10, 0));
    T(splice(f, (void *)8, p[1], 0, 10, 0));
    T(splice(p[0], 0, 999, 0, 10, 0));
    T(splice(999, 0, p[1], 0, 10, 0));
    T(splice(p[0], 0, f, &neg, 10, 0));
    fcntl(q[1], F_SETPIPE_SZ, 4096);
    while (0);
    fcntl(q[1], F_SETFL, O_NONBLOCK);
    while (write(q[1], bytes, 4096) > 0);
    fcntl(q[1], F_SETFL, 0);
    T(splice(f, &z, q[1], 0, 10, SPLICE_F_NONBLOCK));
    fcntl(q[1], F_SETFL, O_NONBLOCK);
    T(splice(f, &z, q[1], 0, 10, 0));
    T(sendfile(q[1], f, &z, 10));
}

static void sendfiles(void) {
    T(sendfile(f, f, 0, 10));
    T(sendfile(ro, f, 0, 10));
    T(sendfile(d, f, 0, 10));
    T(sendfile(p[1], d, 0, 10));
    T(sendfile(p[1], wo, 0, 10));
    T(sendfile(p[1], p[0], 0, 10));
    T(sendfile(f, p[0], 0, 5));
    T(sendfile(ap, f, &z, 10));
    T(sendfile(p[1], f, &neg, 10));
    T(sendfile(p[1], f, (void *)8, 10));
    T(sendfile(999, f, 0, 10));
    T(sendfile(p[1], 999, 0, 10));
    T(sendfile(p[0], f, 0, 10));
    T(sendfile(stream, f, 0, 10));
    T(sendfile(ep, f, 0, 10));
    T(sendfile(f, ep, 0, 10));
    T(sendfile(p[1], f, 0, 0));
}

static void pipes(void) {
    T(vmsplice(f, PART(10), 1, 0));
    T(vmsplice(d, PART(10), 1, 0));
    T(vmsplice(ro, PART(10), 1, 0));
    T(vmsplice(f, 0, 0, 0));
    T(vmsplice(f, PART(10), 1, 0x100));
    T(vmsplice(f, (void *)8, 1, 0));
    T(tee(f, p[1], 10, 0));
    T(tee(p[0], f, 10, 0));
    T(tee(f, f, 10, 0));
    T(tee(f, p[1], 0, 0));
    T(tee(p[0], f, 10, 0x100));
}

static void programs(void) {
    chmod("f", 0755);
    T(syscall(SYS_execveat, f, "", av, environ, AT_EMPTY_PATH | 0x8000000));
    T(syscall(SYS_execveat, AT_FDCWD, "f", av, environ, 0x4000));
    T(syscall(SYS_execveat, AT_FDCWD, "nope", av, environ, 0));
    T(syscall(SYS_execveat, d, "l", av, environ, AT_SYMLINK_NOFOLLOW));
    T(syscall(SYS_execveat, f, "", av, environ, 0));
    T(syscall(SYS_execveat, 999, "", av, environ, AT_EMPTY_PATH));
    T(syscall(SYS_execveat, d, "", av, environ, AT_EMPTY_PATH));
    T(syscall(SYS_execveat, f, "x", av, environ, 0));
    T(syscall(SYS_execveat, AT_FDCWD, "/bin/true", av, environ, 0x4000));
    T(syscall(SYS_execveat, AT_FDCWD, "f", av, environ, 0));
    T(syscall(SYS_execveat, AT_FDCWD, "dir", av, environ, 0));
    T(syscall(SYS_execveat, AT_FDCWD, "f/x", av, environ, 0));
    T(execve("ff", av, environ));
    T(execve("", av, environ));
}

static void mappings(void) {
    T(mmap(0, 4096, PROT_READ, MAP_SHARED, wo, 0));
    T(mmap(0, 4096, PROT_WRITE, MAP_SHARED, ro, 0));
    T(mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE, wo, 0));
    T(mmap(0, 4096, PROT_WRITE, MAP_SHARED, wo, 0));
    T(mmap(0, 0, PROT_READ, MAP_SHARED, f, 0));
    T(mmap(0, 4096, PROT_READ, MAP_SHARED, f, 1));
    T(mmap(0, 4096, PROT_READ, 0, f, 0));
    T(mmap(0, 4096, PROT_READ, MAP_SHARED, d, 0));
    T(mmap(0, 4096, PROT_READ, MAP_SHARED, 999, 0));
    T(mmap(0, 4096, PROT_READ, MAP_SHARED | MAP_PRIVATE, f, 0) == MAP_FAILED);
    T(mmap(0, -4096UL, PROT_READ, MAP_SHARED, f, 0));
    T(mmap(0, 8192, PROT_READ, MAP_SHARED, f, 0x7ffffffffffff000));
    T(mmap(0, 4096, PROT_READ, 3 | 0x80000, f, 0) == MAP_FAILED);
    T(mmap((void *)1, 4096, PROT_READ, MAP_SHARED | MAP_FIXED, f, 0));
    T(mmap(0, 4096, PROT_READ, 0xf, f, 0));
}

static void others(void) {
    T(read(d, bytes, 1));
    T(write(ro, bytes, 1));
    T(read(wo, bytes, 1));
    T(pread(f, bytes, 1, -1));
    T(pwrite(f, bytes, 1, -1));
    T(lseek(f, -1, 0));
    T(lseek(f, 0, 99));
    T(lseek(f, 1L << 62, SEEK_DATA));
    T(readv(f, 0, -1));
    T(readv(f, (void *)8, 1));
    T(preadv2(f, PART(1), 1, 0, 0x8000));
    T(ftruncate(ro, 1));
    T(ftruncate(f, -1));
    T(truncate("dir", 1));
    T(truncate("f", -1));
    T(fallocate(ro, 0, 0, 1));
    T(fallocate(f, 0, -1, 1));
    T(fallocate(f, 0, 0, 0));
    T(fallocate(p[1], 0, 0, 1));
    T(posix_fadvise(f, 0, 0, 99));
    T(posix_fadvise(p[0], 0, 0, 0));
    T(readahead(wo, 0, 1));
    T(readahead(d, 0, 1));
    T(sync_file_range(f, -1, 1, 0));
    T(sync_file_range(f, 0, 1, 99));
    T(fcntl(f, 9999));
    T(fcntl(f, F_SETFD, 99));
    T(fcntl(f, F_SETSIG, 99));
    T(flock(f, 99));
    T(ioctl(f, FIONREAD, bytes));
    T(ioctl(f, TCGETS, bytes));
    T(ioctl(d, FIONREAD, bytes));
    T(ioctl(f, FIOCLEX));
    T(ioctl(f, 0x9999));
    T(ioctl(f, FIONBIO, (int[]){1}));
    T(ioctl(f, FIOASYNC, (int[]){1}));
    T(ioctl(f, FIOQSIZE, bytes));
    T(access("f", 99));
    T(syscall(SYS_faccessat2, AT_FDCWD, "f", 0, 0x8000));
    T(fstatat(AT_FDCWD, "f", &found, 0x8000));
    T(unlinkat(AT_FDCWD, "f", 0x8000));
    T(linkat(AT_FDCWD, "f", AT_FDCWD, "g", 0x8000));
    T(renameat2(AT_FDCWD, "f", AT_FDCWD, "g", 0x8000));
    T(syscall(SYS_fchmodat2, AT_FDCWD, "f", 0644, 0x8000));
    T(fchownat(AT_FDCWD, "f", 0, 0, 0x8000));
    T(utimensat(AT_FDCWD, "f", 0, 0x8000));
    T(utimensat(AT_FDCWD, "f", (struct timespec[]){{0, -5}, {0, 0}}, 0));
    T(mknod("m", 0170000, 0));
    T(mknod("m", S_IFDIR, 0));
    T(mkdir("", 0));
    T(rmdir("."));
    T(rmdir("dir/."));
    T(rmdir("dir/.."));
    T(unlink("dir"));
    T(unlink("dir/."));
    T(rename(".", "x"));
    T(rename("dir", "dir/x"));
    T(rename("f", "dir/."));
    T(rename("dir/..", "x"));
    T(rename("f", "dir"));
    T(rename("dir", "f"));
    T(link("dir", "x"));
    T(symlink("", "x"));
    T(readlink("f", bytes, 10));
    T(readlink("l", bytes, 0));
    T(open("f", O_CREAT | O_EXCL));
    T(open("l", O_NOFOLLOW));
    T(open("dir", O_WRONLY));
    T(open("dir", O_CREAT));
    T(open("f", O_DIRECTORY));
    T(open("f/", O_RDONLY));
    T(open("new/", O_CREAT));
    T(open("f", O_TMPFILE | O_RDWR));
    T(open("dir", O_TMPFILE));
    T(open("dir", O_CREAT | O_DIRECTORY, 0600));
    T(open("ff", O_WRONLY | O_NONBLOCK));
    T(open("l", O_PATH | O_NOFOLLOW) > 0);
    T(syscall(SYS_openat2, AT_FDCWD, "f", (long[]){0, 0, 0}, 23));
    T(syscall(SYS_openat2, AT_FDCWD, "f", (long[]){0, 01, 0}, 24));
    T(syscall(SYS_openat2, AT_FDCWD, "f", (long[]){1L << 40, 0, 0}, 24));
    T(syscall(SYS_openat2, AT_FDCWD, "f", (long[]){0, 0, 0, 1}, 32));
    T(syscall(SYS_openat2, AT_FDCWD, "f", (long[]){0, 0, 0, 0}, 32) > 0);
    T(chdir("f"));
    T(inotify_add_watch(f, ".", 1));
    in = inotify_init();
    T(inotify_add_watch(in, ".", 0));
    T(inotify_add_watch(in, "nope", 1));
    T(inotify_rm_watch(in, 77));
    T(syscall(SYS_getdents64, f, bytes, 100));
    T(syscall(SYS_getdents64, d, bytes, 1));
    T(syscall(SYS_name_to_handle_at, AT_FDCWD, "f", (int[32]){0}, (int[1]){0}, 0));
    T(syscall(SYS_close_range, 10, 5, 0));
    T(syscall(SYS_close_range, 900, 1000, 0x100));
    T(dup2(f, -1));
    T(dup2(f, 1 << 30));
    T(dup3(f, f, 0));
    T(dup3(f, 50, 0x99));
    T(fcntl(f, F_DUPFD, -1));
    T(fcntl(f, F_DUPFD, 1 << 30));
    T(close(999));
    T(syscall(SYS_fadvise64, 999, 0, 0, 0));
    T(copy_file_range(f, 0, f, 0, 10, 0));
    T(copy_file_range(f, 0, f, 0, 10, 1));
    T(copy_file_range(d, 0, f, 0, 10, 0));
    T(copy_file_range(f, 0, ro, 0, 10, 0));
    T(copy_file_range(p[0], 0, f, 0, 10, 0));
    T(copy_file_range(f, 0, ap, 0, 10, 0));
    T(copy_file_range(f, &neg, wo, 0, 10, 0));
    T(copy_file_range(f, 0, wo, 0, -1, 0) < 0);
    T(getxattr("f", "user", bytes, 1));
    T(getxattr("f", "", bytes, 1));
    T(setxattr("f", "user.", "", 0, 0));
    T(setxattr("f", "user.a", "", 0, 99));
    T(setxattr("f", "foo.a", "", 0, 0));
    T(setxattr("f", "user.a", bytes, 65537, 0));
    T(removexattr("f", "user.b"));
    T(getxattr("f", "user.b", bytes, 1));
    T(setxattr("f", "user.a", 0, 10, 0));
    T(lsetxattr("l", "user.a", "x", 1, 0));
    T(setxattr("ff", "user.a", "x", 1, 0));
}

int main(void) {
    setvbuf(stdout, NULL, _IOLBF, 0);
    alarm(600); /* A call that hangs ends the program. */
    f = open("f", O_CREAT | O_RDWR, 0644);
    ro = open("f", O_RDONLY), wo = open("f", O_WRONLY), ap = open("f", O_WRONLY | O_APPEND);
    o = open("f", O_PATH), d = open(".", O_RDONLY | O_DIRECTORY), dp = open(".", O_PATH | O_DIRECTORY);
    if (write(f, bytes, 20000) != 20000 || pipe(p) || pipe(q)) return 1;
    if (mkdir("dir", 0755) || symlink("f", "l") || mkfifo("ff", 0644)) return 1;
    path_descriptors();
    created();
    sockets();
    splices();
    sendfiles();
    pipes();
    programs();
    mappings();
    others();
    return 0;
}
