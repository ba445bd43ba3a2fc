/* Calls that change a directory, as a function of their number, and what they leave.
 * "worker work DIRECTORY": makes one after the other until the machine ends, and sends a byte to the
 * port 0xe9 when each has returned. "worker check DIRECTORY COUNT": ends with 0 if the directory
 * holds exactly what the first COUNT calls leave, or those and the next one. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/io.h>
#include <sys/stat.h>
#include <unistd.h>

#define NAMES 12
#define BYTES_MAX 20000

static struct {
    int exists;
    size_t size;
    unsigned char bytes[2 * BYTES_MAX];
} files[NAMES];
static uint64_t state = 88172645463325252u;
static int is_real;

static unsigned draw(unsigned below) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (unsigned)((state >> 20) % below);
}

static void must(int holds, const char *what) {
    if (!holds) {
        printf("%s: %s\n", what, strerror(errno));
        exit(1);
    }
}

static void path(char *into, int name) { sprintf(into, "n%d", name); }

/* One call that changes something. */
static void step(void) {
    int name = draw(NAMES), other = draw(NAMES);
    unsigned kind = draw(100), at = draw(BYTES_MAX), count = 1 + draw(draw(3) ? 300 : BYTES_MAX);
    unsigned char fill = draw(256);
    char p[16], q[16];
    path(p, name);
    path(q, other);
    if (!files[name].exists) {
        if (is_real) {
            int fd = open(p, O_CREAT | O_EXCL | O_WRONLY, 0600);
            must(fd >= 0 && close(fd) == 0, "create");
        }
        memset(&files[name], 0, sizeof files[name]);
        files[name].exists = 1;
    } else if (kind < 50) {
        for (unsigned i = 0; i < count; i++)
            files[name].bytes[at + i] = fill + i * 7;
        if (is_real) {
            int fd = open(p, O_WRONLY);
            must(fd >= 0 && pwrite(fd, files[name].bytes + at, count, at) == (ssize_t)count && close(fd) == 0, "write");
        }
        if (files[name].size < at + count)
            files[name].size = at + count;
    } else if (kind < 60) {
        must(!is_real || truncate(p, at) == 0, "truncate");
        if (at < files[name].size)
            memset(files[name].bytes + at, 0, files[name].size - at);
        files[name].size = at;
    } else if (kind < 85) {
        must(!is_real || rename(p, q) == 0, "rename");
        if (name != other) {
            files[other] = files[name];
            files[name].exists = 0;
        }
    } else {
        must(!is_real || unlink(p) == 0, "unlink");
        files[name].exists = 0;
    }
}

static int is_as_expected(void) {
    static unsigned char bytes[2 * BYTES_MAX];
    int known = 0, listed = 0;
    for (int name = 0; name < NAMES; name++) {
        char p[16];
        path(p, name);
        int fd = open(p, O_RDONLY);
        if ((fd >= 0) != files[name].exists)
            return 0;
        if (fd < 0)
            continue;
        known++;
        ssize_t size = read(fd, bytes, sizeof bytes);
        close(fd);
        if (size != (ssize_t)files[name].size || memcmp(bytes, files[name].bytes, size))
            return 0;
    }
    DIR *directory = opendir(".");
    must(directory != 0, "list");
    while (readdir(directory))
        listed++;
    closedir(directory);
    return listed == known + 2;
}

int main(int count, char **words) {
    must(count >= 3 && chdir(words[2]) == 0, "usage: worker work|check DIRECTORY [COUNT]");
    if (!strcmp(words[1], "work")) {
        must(ioperm(0xe9, 1, 1) == 0, "the port");
        for (is_real = 1;; outb('.', 0xe9))
            step();
    }
    long calls = atol(words[3]);
    for (long number = 0; number < calls; number++)
        step();
    if (is_as_expected())
        return 0;
    step();
    if (is_as_expected())
        return 0;
    printf("after %ld calls: neither what they leave nor what the next one does\n", calls);
    return 1;
}
