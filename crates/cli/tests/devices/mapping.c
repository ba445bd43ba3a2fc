/* Maps a file of the image shared, by two processes: stores of one are seen by the other, by reads
 * of the file, and msync returns. "mapping FILE" ends with 0, or with 2 if the file cannot be mapped
 * as shared memory (ENODEV). "mapping FILE private": a long private mapping. "mapping FILE keep":
 * writes and reads the file until that fails, and prints "ready" after the first time. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define BYTES (3 << 20)

static void must(int holds, const char *what) {
    if (!holds) {
        printf("%s: %s\n", what, strerror(errno));
        exit(1);
    }
}

static int keep(const char *name) {
    char text[64];
    for (int first = 1;; first = 0) {
        int fd = open(name, O_RDWR | O_CREAT, 0600);
        if (fd < 0 || pwrite(fd, "x", 1, 0) != 1 || pread(fd, text, 1, 0) != 1 || close(fd) != 0) {
            printf("ended: %s\n", strerror(errno));
            return errno == EIO ? 0 : 1;
        }
        if (first) {
            printf("ready\n");
            fflush(stdout);
        }
    }
}

int main(int count, char **words) {
    if (count > 2 && !strcmp(words[2], "keep"))
        return keep(words[1]);
    int fd = open(words[1], O_RDWR | O_CREAT, 0600);
    must(fd >= 0 && ftruncate(fd, BYTES) == 0, "make");
    char *block = malloc(BYTES);
    memset(block, 'a', BYTES);
    must(pwrite(fd, block, BYTES / 2, 0) == BYTES / 2, "write");
    int kind = count > 2 ? MAP_PRIVATE : MAP_SHARED;
    char *map = mmap(0, BYTES, PROT_READ | PROT_WRITE, kind, fd, 0);
    if (map == MAP_FAILED && errno == ENODEV)
        return 2;
    must(map != MAP_FAILED, "mmap");
    must(map[0] == 'a' && map[BYTES / 2 - 1] == 'a' && map[BYTES - 1] == 0, "read the mapping");
    if (kind == MAP_PRIVATE) {
        map[5] = 'p';
        must(pread(fd, block, 6, 0) == 6 && block[5] == 'a', "a private store stays private");
        return 0;
    }
    /* A hole gets its block when it is used. */
    map[BYTES - 1] = 'z';
    must(msync(map, BYTES, MS_SYNC) == 0, "msync of a mapping");
    must(msync(map + 4096, 8192, MS_ASYNC) == 0, "msync of a part");
    must(msync(map, BYTES, MS_SYNC | MS_ASYNC) < 0 && errno == EINVAL, "msync in two ways");
    must(msync(map + 1, 4096, MS_SYNC) < 0 && errno == EINVAL, "msync within a page");
    pid_t child = fork();
    must(child >= 0, "fork");
    if (child == 0) {
        map[7] = 'c';
        _exit(msync(map, 4096, MS_SYNC) == 0 ? 0 : 1);
    }
    int status;
    must(waitpid(child, &status, 0) == child && status == 0, "the child");
    must(map[7] == 'c' && pread(fd, block, 8, 0) == 8 && block[7] == 'c', "stores of another process are seen");
    must(pread(fd, block, 1, BYTES - 1) == 1 && block[0] == 'z', "stores are read");
    must(pwrite(fd, "w", 1, 9) == 1 && map[9] == 'w', "writes are mapped");
    must(munmap(map, BYTES) == 0 && fsync(fd) == 0 && close(fd) == 0, "end");
    return 0;
}
