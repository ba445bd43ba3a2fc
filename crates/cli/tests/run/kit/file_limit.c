/* Calls that would make files longer than the limit on their length. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>
#define T(call) \
    do { \
        struct stat s; \
        errno = signals = 0; \
        long got = (long)(call); \
        fstat(f, &s); \
        printf("%s = %ld %s, %d signals, %ld bytes\n", #call, got, got < 0 ? strerrorname_np(errno) : "", \
               signals, (long)s.st_size); \
    } while (0)
static volatile int signals;
static char bytes[10000];
static struct iovec parts[2] = {{bytes, 3000}, {bytes, 3000}};
static void count(int signal) { signals++; }
int main(void) {
    int f = open("f", O_CREAT | O_RDWR, 0644), a = open("f", O_WRONLY | O_APPEND);
    int g = open("g", O_CREAT | O_RDWR, 0644), p[2];
    struct rlimit limit = {5000, RLIM_INFINITY};
    loff_t z = 0;
    setvbuf(stdout, NULL, _IOLBF, 0);
    alarm(600); /* A call that hangs ends the program. */
    if (write(g, bytes, 9000) != 9000 || pipe(p)) return 1;
    signal(SIGXFSZ, count);
    T(setrlimit(RLIMIT_FSIZE, &limit));
    T(write(f, bytes, 4000)); T(write(f, bytes, 4000)); T(write(f, bytes, 1)); T(write(f, bytes, 0));
    T(write(a, bytes, 1)); T(pwrite(f, bytes, 10, 6000)); T(pwrite(f, bytes, 10, 4995));
    T(ftruncate(f, 6000)); T(ftruncate(f, 4000)); T(truncate("f", 5001)); T(truncate("f", 5000));
    T(ftruncate(f, 100)); T(write(a, bytes, 6000)); T(write(a, bytes, 6000));
    T(ftruncate(f, 0)); T(lseek(f, 0, SEEK_SET)); T(writev(f, parts, 2)); T(writev(f, parts, 2));
    T(fallocate(f, 0, 0, 6000)); T(ftruncate(f, 0)); T(lseek(f, 0, SEEK_SET));
    T(copy_file_range(g, &z, f, 0, 9000, 0)); z = 0; T(copy_file_range(g, &z, f, 0, 9000, 0));
    /* What the file does not take stays in the pipe. */
    T(lseek(f, 4990, SEEK_SET)); T(write(p[1], bytes, 100)); T(splice(p[0], 0, f, 0, 100, 0));
    T(splice(p[0], 0, f, 0, 100, 0)); T(read(p[0], bytes, 200)); T(sendfile(f, g, &z, 10));
    signal(SIGXFSZ, SIG_IGN);
    T(write(f, bytes, 10)); T(ftruncate(g, 8000)); T(ftruncate(g, 8500));
    limit.rlim_cur = RLIM_INFINITY;
    T(setrlimit(RLIMIT_FSIZE, &limit)); T(write(f, bytes, 10000));
    return 0;
}
