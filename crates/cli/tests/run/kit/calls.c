/* Measures calls on COUNT files in the current directory: median of ROUNDS rounds, in ns per call.
   THREADS threads share the files, and the time covers all of them: half the time is twice as fast.
   usage: calls COUNT ROUNDS [THREADS [ONLY]]; ONLY: prefix of the calls to print; all calls run */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { CALLS_MAX = 40, ROUNDS_MAX = 100, THREADS_MAX = 64, HOT = 16, DEPTH = 8, BLOCK = 32768 };

static const char *called[CALLS_MAX];
static double spent[CALLS_MAX][ROUNDS_MAX];
static int calls, round_number, threads;
static pthread_barrier_t all;
static double started_ns, ended_ns[THREADS_MAX];

static double now_ns(void) {
    struct timespec now;
    clock_gettime(threads > 1 ? CLOCK_MONOTONIC : CLOCK_THREAD_CPUTIME_ID, &now);
    return now.tv_sec * 1e9 + now.tv_nsec;
}

static void check(int result, const char *what) {
    if (result < 0) {
        fprintf(stderr, "%s: %s\n", what, strerror(errno));
        exit(1);
    }
}

/* Visits the files in an order that no prefetcher predicts. */
static int shuffled(int index, int count) { return (int)((index * 7919LL + 13) % count); }

/* Names are made in advance, so that only the calls are measured. */
static char (*old_names)[16], (*new_names)[16];
static char bytes[BLOCK];
static int count, rounds;

static void make_names(void) {
    old_names = malloc(count * sizeof *old_names);
    new_names = malloc(count * sizeof *new_names);
    for (int index = 0; index < count; index++) {
        snprintf(old_names[index], sizeof *old_names, "f%08d", shuffled(index, count));
        snprintf(new_names[index], sizeof *new_names, "g%08d", shuffled(index, count));
    }
}

/* All threads begin together; thread 0 measures the time. */
static void begin(int thread) {
    if (thread == 0)
        started_ns = now_ns();
    if (threads > 1)
        pthread_barrier_wait(&all);
    if (thread == 0)
        started_ns = now_ns();
}

static void end(int thread, int call, const char *name, double done) {
    ended_ns[thread] = now_ns();
    if (threads > 1)
        pthread_barrier_wait(&all);
    if (thread != 0)
        return;
    double last = ended_ns[0];
    for (int other = 1; other < threads; other++)
        if (ended_ns[other] > last)
            last = ended_ns[other];
    called[call] = name;
    calls = call + 1;
    spent[call][round_number] = (last - started_ns) / done;
}

#define MEASURE(what, body)                                                        \
    do {                                                                          \
        begin(thread);                                                            \
        for (int index = first; index < last; index++) {                          \
            const char *name = old_names[index], *other = new_names[index];       \
            (void)name, (void)other;                                              \
            body;                                                                 \
        }                                                                         \
        end(thread, call++, what, count);                                         \
    } while (0)

static int list(void) {
    DIR *directory = opendir(".");
    int found = 0;
    check(directory ? 0 : -1, "opendir");
    while (readdir(directory))
        found++;
    closedir(directory);
    return found;
}

static void small_file(const char *name, int length, char *into) {
    int fd = open(name, O_CREAT | O_EXCL | O_WRONLY, 0644);
    check(fd, "create");
    check(write(fd, bytes, length) == length ? 0 : -1, "write");
    close(fd);
    check(fd = open(name, O_RDONLY), "open");
    check(read(fd, into, BLOCK) == length ? 0 : -1, "read");
    close(fd);
}

static void one_round(int thread) {
    struct stat status;
    int fd, call = 0;
    int first = (int)((long)count * thread / threads), last = (int)((long)count * (thread + 1) / threads);
    char *into = malloc(BLOCK), path[3 * DEPTH + 16], private[32];
    MEASURE("create+close", check(fd = open(name, O_CREAT | O_EXCL | O_WRONLY, 0644), "create"); close(fd));
    MEASURE("stat", check(stat(name, &status), "stat"));
    MEASURE("stat-hot", check(stat(old_names[first + index % HOT], &status), "stat"));
    MEASURE("access", check(access(name, R_OK), "access"));
    MEASURE("stat-missing", if (stat(other, &status) == 0) check(-1, "stat of a missing name"));
    MEASURE("open+close", check(fd = open(name, O_RDONLY), "open"); close(fd));
    begin(thread);
    if (list() < count + 2)
        check(-1, "readdir");
    end(thread, call++, "readdir", (double)count * threads);
    MEASURE("link", check(link(name, other), "link"));
    MEASURE("unlink-one", check(unlink(name), "unlink"));
    MEASURE("rename", check(rename(other, name), "rename"));
    MEASURE("unlink", check(unlink(name), "unlink"));
    MEASURE("mkdir", check(mkdir(name, 0755), "mkdir"));
    MEASURE("rmdir", check(rmdir(name), "rmdir"));
    MEASURE("small-1k", small_file(name, 1024, into));
    MEASURE("unlink-1k", check(unlink(name), "unlink"));
    MEASURE("small-8k", small_file(name, 8192, into));
    MEASURE("unlink-8k", check(unlink(name), "unlink"));
    MEASURE("small-32k", small_file(name, 32768, into));
    MEASURE("unlink-32k", check(unlink(name), "unlink"));
    /* A private file of the thread, below several directories. */
    snprintf(private, sizeof private, "d%d", thread);
    strcpy(path, private);
    check(mkdir(path, 0755), "mkdir");
    for (int level = 1; level < DEPTH; level++) {
        strcat(path, "/s");
        check(mkdir(path, 0755), "mkdir");
    }
    strcat(path, "/file");
    check(fd = open(path, O_CREAT | O_EXCL | O_RDWR, 0644), "create");
    check(write(fd, bytes, BLOCK) == BLOCK ? 0 : -1, "write");
    MEASURE("stat-deep", check(stat(path, &status), "stat"));
    MEASURE("fstat", check(fstat(fd, &status), "fstat"));
    MEASURE("pread-1k", check(pread(fd, into, 1024, index % 31 * 1024), "pread"));
    MEASURE("pwrite-1k", check(pwrite(fd, bytes, 1024, index % 31 * 1024), "pwrite"));
    check(lseek(fd, 0, SEEK_SET), "lseek");
    check(ftruncate(fd, 0), "truncate");
    MEASURE("append-100", check(write(fd, bytes, 100), "write"));
    MEASURE("dup+close", check(fd = dup(fd), "dup"); close(fd); fd--);
    close(fd);
    check(unlink(path), "unlink");
    for (int level = DEPTH; level > 0; level--) {
        path[strlen(path) - strlen(strrchr(path, '/'))] = 0;
        check(rmdir(path), "rmdir");
        if (!strrchr(path, '/'))
            break;
    }
    free(into);
}

static void *run(void *thread) {
    for (int number = 0; number < rounds; number++) {
        if (threads > 1)
            pthread_barrier_wait(&all);
        if (thread == 0)
            round_number = number;
        one_round((int)(long)thread);
    }
    return 0;
}

static int by_size(const void *one, const void *other) {
    double difference = *(const double *)one - *(const double *)other;
    return (difference > 0) - (difference < 0);
}

int main(int argc, char **argv) {
    const char *only = argc > 4 ? argv[4] : "";
    count = argc > 1 ? atoi(argv[1]) : 10000, rounds = argc > 2 ? atoi(argv[2]) : 5;
    threads = argc > 3 ? atoi(argv[3]) : 1;
    if (count < HOT || count % 7919 == 0 || rounds < 1 || rounds > ROUNDS_MAX || threads < 1 || threads > THREADS_MAX)
        return 2;
    make_names();
    pthread_barrier_init(&all, 0, threads);
    pthread_t others[THREADS_MAX];
    for (int thread = 1; thread < threads; thread++)
        if (pthread_create(&others[thread], 0, run, (void *)(long)thread))
            return 1;
    run(0);
    for (int thread = 1; thread < threads; thread++)
        pthread_join(others[thread], 0);
    for (int call = 0; call < calls; call++) {
        qsort(spent[call], rounds, sizeof(double), by_size);
        if (strncmp(called[call], only, strlen(only)) == 0)
            printf("%s %.0f\n", called[call], spent[call][rounds / 2]);
    }
    return 0;
}
