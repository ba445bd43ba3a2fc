/* Workers perform random operations on the same few files. Every few milliseconds one of them is
   killed and replaced.
   usage: storm WORKERS KILLS SEED
   Exits with 0 if all results were valid for a file system, and no worker stalled. */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { WORKERS_MAX = 64, STILL_MS_MAX = 600000, PAUSE_US = 3000 };
static struct { _Atomic int stop; } *shared;
static _Atomic uint64_t *progress;

static uint64_t next(uint64_t *state) {
    *state += 0x9E3779B97F4A7C15u;
    uint64_t mixed = *state;
    mixed = (mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9u;
    mixed = (mixed ^ (mixed >> 27)) * 0x94D049BB133111EBu;
    return mixed ^ (mixed >> 31);
}

/* Valid errors for names that other workers change at the same time. */
static int is_expected(int error) {
    static const int expected[] = {ENOENT, EEXIST, ENOTEMPTY, EISDIR, ENOTDIR, EINVAL, ELOOP, EPERM, ENOSPC, EMLINK, EBUSY};
    for (unsigned index = 0; index < sizeof expected / sizeof *expected; index++)
        if (error == expected[index])
            return 1;
    return 0;
}

static void check(long result, const char *what, const char *name) {
    if (result >= 0 || is_expected(errno))
        return;
    fprintf(stderr, "%s %s: %s\n", what, name, strerror(errno));
    _exit(3);
}

static void name_one(uint64_t *state, char *name, size_t room) {
    unsigned depth = next(state) % 3, length = 0;
    for (unsigned level = 0; level < depth; level++)
        length += snprintf(name + length, room - length, "d%u/", (unsigned)(next(state) % 3));
    const char *kind = next(state) % 4 ? "f" : "d";
    snprintf(name + length, room - length, "%s%u", kind, (unsigned)(next(state) % (*kind == 'f' ? 12 : 3)));
}

static void write_some(uint64_t *state, const char *name) {
    static char bytes[20000];
    int flags = O_CREAT | O_RDWR | (next(state) % 2 ? O_TRUNC : 0) | (next(state) % 3 ? 0 : O_APPEND);
    int fd = open(name, flags, 0644);
    check(fd, "open", name);
    if (fd < 0)
        return;
    memset(bytes, (int)next(state), sizeof bytes);
    check(pwrite(fd, bytes, next(state) % sizeof bytes, next(state) % 50000), "write", name);
    check(pread(fd, bytes, sizeof bytes, next(state) % 50000), "read", name);
    if (next(state) % 4 == 0)
        check(ftruncate(fd, next(state) % 60000), "truncate", name);
    if (next(state) % 8 == 0)
        check(dup2(fd, 50 + (int)(next(state) % 10)), "dup2", name);
    check(close(fd), "close", name);
}

static void list(const char *name) {
    DIR *directory = opendir(name);
    check(directory ? 0 : -1, "opendir", name);
    if (!directory)
        return;
    for (int count = 0; readdir(directory) && count < 1000; count++)
        ;
    closedir(directory);
}

static void one(uint64_t *state) {
    char name[64], other[64];
    struct stat status;
    name_one(state, name, sizeof name);
    name_one(state, other, sizeof other);
    switch (next(state) % 12) {
    case 0: case 1: write_some(state, name); break;
    case 2: check(unlink(name), "unlink", name); break;
    case 3: check(rename(name, other), "rename", name); break;
    case 4: check(mkdir(name, 0755), "mkdir", name); break;
    case 5: check(rmdir(name), "rmdir", name); break;
    case 6: check(link(name, other), "link", name); break;
    case 7: check(symlink(other, name), "symlink", name); break;
    case 8: check(stat(name, &status), "stat", name); break;
    case 9: check(chmod(name, 0600 | next(state) % 0200), "chmod", name); break;
    case 10: list("."); break;
    default: check(renameat2(AT_FDCWD, name, AT_FDCWD, other, next(state) % 2 ? RENAME_EXCHANGE : RENAME_NOREPLACE), "renameat2", name);
    }
}

static pid_t start(int worker, uint64_t seed) {
    pid_t pid = fork();
    if (pid != 0)
        return pid;
    for (uint64_t state = seed; !shared->stop; progress[worker]++)
        one(&state);
    _exit(0);
}

static int64_t now_ms(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* Whether all workers have made progress recently. */
static int all_move(int workers, uint64_t *seen, int64_t *since) {
    for (int worker = 0; worker < workers; worker++) {
        if (progress[worker] != seen[worker]) {
            seen[worker] = progress[worker];
            since[worker] = now_ms();
        } else if (now_ms() - since[worker] > STILL_MS_MAX) {
            fprintf(stderr, "worker %d stands still\n", worker);
            return 0;
        }
    }
    return 1;
}

int main(int argc, char **argv) {
    int workers = argc > 1 ? atoi(argv[1]) : 8, kills = argc > 2 ? atoi(argv[2]) : 100;
    uint64_t state = argc > 3 ? strtoull(argv[3], 0, 0) : 1, seen[WORKERS_MAX] = {0};
    int64_t since[WORKERS_MAX];
    pid_t pids[WORKERS_MAX];
    if (workers < 1 || workers > WORKERS_MAX)
        return 2;
    shared = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    progress = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    for (int worker = 0; worker < workers; worker++) {
        pids[worker] = start(worker, next(&state));
        since[worker] = now_ms();
    }
    int failed = 0, status;
    for (int kill_number = 0; kill_number < kills && !failed; kill_number++) {
        usleep(next(&state) % PAUSE_US);
        int victim = next(&state) % workers;
        kill(pids[victim], SIGKILL);
        waitpid(pids[victim], &status, 0);
        if (!WIFSIGNALED(status) || WTERMSIG(status) != SIGKILL) {
            fprintf(stderr, "worker %d ended with status %x\n", victim, status);
            failed = 1;
        }
        pids[victim] = start(victim, next(&state));
        since[victim] = now_ms();
        failed |= pids[victim] < 0 || !all_move(workers, seen, since);
    }
    /* The survivors must still make progress. */
    for (int worker = 0; worker < workers && !failed; worker++)
        for (uint64_t before = progress[worker]; progress[worker] < before + 100 && !failed; usleep(1000))
            failed = !all_move(workers, seen, since);
    shared->stop = 1;
    for (int worker = 0; worker < workers; worker++) {
        if (failed)
            kill(pids[worker], SIGKILL);
        waitpid(pids[worker], &status, 0);
        if (!failed && status != 0)
            fprintf(stderr, "worker %d ended with status %x\n", worker, status), failed = 1;
    }
    uint64_t all = 0;
    for (int worker = 0; worker < workers; worker++)
        all += progress[worker];
    printf("%d kills, %llu operations\n", kills, (unsigned long long)all);
    return failed;
}
