/* Calls that change a directory, as a function of their number, and what they leave.
 *
 * "worker work DIRECTORY": makes one after the other until the machine ends, and sends a byte to the
 * port 0xe9 when each has returned.
 *
 * "worker sync DIRECTORY DISK FIRST LAST [files]": makes the calls from FIRST to before LAST. After every
 * few it syncs in one of several ways, and then writes the count of all calls so far to the end of
 * the disk, which has no file system there: "worker acknowledge DISK COUNT" does that alone. With
 * "files" it does not use sync and syncfs, of which a mount's server does not hear.
 *
 * "worker check DIRECTORY COUNT MORE [split]": ends with 0 if the directory holds exactly what the
 * first COUNT calls leave, or those and at most MORE more. With "split" the last one may be a write
 * up to the end of a page: Linux sends a write through a mount in two requests if it begins within
 * a page that is not in its cache. */
#define _GNU_SOURCE
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
/* Where acknowledgements go: so many bytes before the end of the disk. */
#define ACKNOWLEDGED_BYTES (1 << 20)

static struct {
    int exists;
    size_t size;
    unsigned char bytes[2 * BYTES_MAX];
} files[NAMES];
static uint64_t state = 88172645463325252u;
/* The last write, and what the file was before. */
static struct {
    int name;
    size_t from, to, size;
    unsigned char bytes[2 * BYTES_MAX];
} last;
static int is_real;
/* Flags with which a file is opened for the next write. */
static int write_flags;

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

/* One call that changes something. Returns whether it is a write. */
static int step(void) {
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
        last.name = name, last.from = at, last.to = at + count, last.size = files[name].size;
        memcpy(last.bytes, files[name].bytes, sizeof last.bytes);
        for (unsigned i = 0; i < count; i++)
            files[name].bytes[at + i] = fill + i * 7;
        if (is_real) {
            int fd = open(p, O_WRONLY | write_flags);
            must(fd >= 0 && pwrite(fd, files[name].bytes + at, count, at) == (ssize_t)count && close(fd) == 0, "write");
        }
        if (files[name].size < at + count)
            files[name].size = at + count;
        return 1;
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
    return 0;
}

static void acknowledge(const char *disk, long calls) {
    static char block[4096] __attribute__((aligned(4096)));
    int fd = open(disk, O_WRONLY | O_DIRECT);
    must(fd >= 0, "open the disk");
    off_t end = lseek(fd, 0, SEEK_END);
    memset(block, 0, sizeof block);
    sprintf(block, "%ld\n", calls);
    must(pwrite(fd, block, sizeof block, end - ACKNOWLEDGED_BYTES) == sizeof block && close(fd) == 0, "acknowledge");
}

/* Makes durable what the calls so far did; how depends on their count. */
static void synchronize(long calls, int by_files_only) {
    if (calls % 7 == 0 && !by_files_only) {
        sync();
        return;
    }
    char p[16] = ".";
    for (int name = 0; name < NAMES && calls % 5; name++)
        if (files[name].exists)
            path(p, name);
    int fd = open(p, O_RDONLY);
    int result = calls % 3 == 0 ? fdatasync(fd) : calls % 3 == 1 || by_files_only ? fsync(fd) : syncfs(fd);
    must(result == 0 && close(fd) == 0, "sync");
}

static void work_and_sync(const char *disk, long first, long last, int by_files_only) {
    for (long number = 0; number < first; number++)
        step();
    is_real = 1;
    for (long number = first; number < last; number++) {
        int is_last = number % 4 == 0 || number % 7 == 0;
        write_flags = !is_last || number % 3 == 0 ? 0 : number % 3 == 1 ? O_SYNC : O_DSYNC;
        int is_durable = step() && write_flags;
        /* What follows the last sync of a process is made durable by the end of the run. */
        if (is_last && number + 8 < last) {
            if (!is_durable)
                synchronize(number + 1, by_files_only);
            acknowledge(disk, number + 1);
        }
    }
}

/* Where the last comparison ended. */
static char difference[200];

static int is_as_expected(void) {
    static unsigned char bytes[2 * BYTES_MAX];
    int known = 0, listed = 0;
    for (int name = 0; name < NAMES; name++) {
        char p[16];
        path(p, name);
        int fd = open(p, O_RDONLY);
        sprintf(difference, "%s is %s", p, fd >= 0 ? "there" : "not there");
        if ((fd >= 0) != files[name].exists)
            return 0;
        if (fd < 0)
            continue;
        known++;
        ssize_t size = read(fd, bytes, sizeof bytes);
        close(fd);
        size_t same = 0;
        while (same < (size_t)size && same < files[name].size && bytes[same] == files[name].bytes[same])
            same++;
        sprintf(difference, "%s has %zd bytes, of which %zu are as in the %zu expected", p, size, same, files[name].size);
        if (size != (ssize_t)files[name].size || same < (size_t)size)
            return 0;
    }
    DIR *directory = opendir(".");
    must(directory != 0, "list");
    while (readdir(directory))
        listed++;
    closedir(directory);
    sprintf(difference, "%d names, and %d expected", listed - 2, known);
    return listed == known + 2;
}

/* Whether a part of the last write is there, up to the end of a page. Restores what is expected. */
static int is_split(void) {
    static unsigned char whole[2 * BYTES_MAX];
    size_t size = files[last.name].size;
    int found = 0;
    memcpy(whole, files[last.name].bytes, sizeof whole);
    for (size_t end = (last.from / 4096 + 1) * 4096; end < last.to && !found; end += 4096) {
        memcpy(files[last.name].bytes, last.bytes, sizeof whole);
        memcpy(files[last.name].bytes + last.from, whole + last.from, end - last.from);
        files[last.name].size = last.size > end ? last.size : end;
        found = is_as_expected();
    }
    memcpy(files[last.name].bytes, whole, sizeof whole);
    files[last.name].size = size;
    return found;
}

int main(int count, char **words) {
    if (count == 4 && !strcmp(words[1], "acknowledge")) {
        acknowledge(words[2], atol(words[3]));
        return 0;
    }
    must(count >= 3 && chdir(words[2]) == 0, "usage: worker work|sync|check DIRECTORY ...");
    if (!strcmp(words[1], "work")) {
        must(ioperm(0xe9, 1, 1) == 0, "the port");
        for (is_real = 1;; outb('.', 0xe9))
            step();
    }
    if (!strcmp(words[1], "sync")) {
        work_and_sync(words[3], atol(words[4]), atol(words[5]), count > 6);
        return 0;
    }
    long calls = atol(words[3]), more = atol(words[4]);
    int is_write = 0, may_split = count > 5;
    for (long number = 0; number < calls; number++)
        step();
    for (long number = 0; number <= more; number++) {
        if (number > 0)
            is_write = step();
        if (is_as_expected() || (may_split && is_write && is_split()))
            return 0;
        printf("after %ld calls: %s\n", calls + number, difference);
    }
    printf("after %ld calls: neither what they leave nor what up to %ld more do\n", calls, more);
    return 1;
}
