/* Time of each call on COUNT files in one directory, which is the current one: median of ROUNDS rounds, in ns per call.
   usage: calls COUNT ROUNDS */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { CALLS = 8, ROUNDS_MAX = 100 };
static const char *const names[CALLS] = {"create+close", "stat", "open+close", "readdir", "rename", "unlink", "mkdir", "rmdir"};
static double spent[CALLS][ROUNDS_MAX];
static int round_number;

static double now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1e9 + now.tv_nsec;
}

static void check(int result, const char *what) {
    if (result < 0) {
        fprintf(stderr, "%s: %s\n", what, strerror(errno));
        exit(1);
    }
}

/* Visits the files in an order that no cache can guess. */
static int shuffled(int index, int count) { return (int)((index * 7919LL + 13) % count); }

/* Made before: what is measured is the calls. */
static char (*old_names)[16], (*new_names)[16];

static void make_names(int count) {
    old_names = malloc(count * sizeof *old_names);
    new_names = malloc(count * sizeof *new_names);
    for (int index = 0; index < count; index++) {
        snprintf(old_names[index], sizeof *old_names, "f%08d", shuffled(index, count));
        snprintf(new_names[index], sizeof *new_names, "g%08d", shuffled(index, count));
    }
}

#define MEASURE(call, count, body)                                                \
    do {                                                                          \
        double start = now_ns();                                                  \
        for (int index = 0; index < (count); index++) {                           \
            const char *name = old_names[index], *other = new_names[index];       \
            (void)name, (void)other;                                              \
            body;                                                                 \
        }                                                                         \
        spent[call][round_number] = (now_ns() - start) / (count);                 \
    } while (0)

static int list(void) {
    DIR *directory = opendir(".");
    int count = 0;
    check(directory ? 0 : -1, "opendir");
    while (readdir(directory))
        count++;
    closedir(directory);
    return count;
}

static void one_round(int count) {
    struct stat status;
    int fd;
    MEASURE(0, count, check(fd = open(name, O_CREAT | O_EXCL | O_WRONLY, 0644), "create"); close(fd));
    MEASURE(1, count, check(stat(name, &status), "stat"));
    MEASURE(2, count, check(fd = open(name, O_RDONLY), "open"); close(fd));
    double start = now_ns();
    if (list() != count + 2)
        check(-1, "readdir");
    spent[3][round_number] = (now_ns() - start) / count;
    MEASURE(4, count, check(rename(name, other), "rename"));
    MEASURE(5, count, check(unlink(other), "unlink"));
    MEASURE(6, count, check(mkdir(name, 0755), "mkdir"));
    MEASURE(7, count, check(rmdir(name), "rmdir"));
}

static int by_size(const void *one, const void *other) {
    double difference = *(const double *)one - *(const double *)other;
    return (difference > 0) - (difference < 0);
}

int main(int argc, char **argv) {
    int count = argc > 1 ? atoi(argv[1]) : 10000, rounds = argc > 2 ? atoi(argv[2]) : 5;
    if (count < 1 || count % 7919 == 0 || rounds < 1 || rounds > ROUNDS_MAX)
        return 2;
    make_names(count);
    for (round_number = 0; round_number < rounds; round_number++)
        one_round(count);
    for (int call = 0; call < CALLS; call++) {
        qsort(spent[call], rounds, sizeof(double), by_size);
        printf("%s %.0f\n", names[call], spent[call][rounds / 2]);
    }
    return 0;
}
