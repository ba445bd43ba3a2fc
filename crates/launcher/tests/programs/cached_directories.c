/* Creates and removes directories that threads and children of every kind use by a path: none of
   them keeps a reference to a removed directory.
   usage: kept DIRECTORY */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/wait.h>
#include <unistd.h>

enum { ROUNDS = 400, STILL_QUEUED = 150 };

static char directory[64];

static void check(int result, const char *what) {
    if (result < 0) {
        printf("%s %s: %s\n", what, directory, strerror(errno));
        fflush(stdout);
        _exit(1);
    }
}

/* Creates and removes a file, by a path of two components. */
static void use_in(const char *where, const char *name) {
    char path[128];
    snprintf(path, sizeof path, "%s/%s", where, name);
    check(close(open(path, O_CREAT | O_EXCL | O_WRONLY, 0644)), "create");
    check(unlink(path), "unlink");
}

static void use(const char *name) { use_in(directory, name); }

static void *in_thread(void *name) {
    use(name);
    return NULL;
}

static void nobody(void) {}

static void thread(void) {
    pthread_t other;
    pthread_create(&other, NULL, in_thread, "thread");
    pthread_join(other, NULL);
}

static void child(void) {
    pid_t pid = fork();
    if (pid == 0) {
        use("child");
        _exit(0);
    }
    waitpid(pid, NULL, 0);
}

static void child_in_same_memory(void) {
    pid_t pid = vfork();
    if (pid == 0) {
        use("vforked");
        kill(getpid(), SIGKILL);
    }
    waitpid(pid, NULL, 0);
}

static void program(void) {
    pid_t pid = vfork();
    if (pid == 0) {
        use("program");
        execl("/bin/true", "true", NULL);
        _exit(1);
    }
    waitpid(pid, NULL, 0);
}

static long long used(void) {
    struct statvfs system;
    check(statvfs(".", &system), "statvfs");
    return (long long)(system.f_files - system.f_ffree);
}

static void rounds(const char *what, int count, void (*meanwhile)(void)) {
    long long before = used();
    for (int round = 0; round < count; round++) {
        snprintf(directory, sizeof directory, "%s%d", what, round);
        check(mkdir(directory, 0755), "mkdir");
        use("before");
        meanwhile();
        use_in("other", "between");
        if (round % 2)
            use("after");
        check(rmdir(directory), "rmdir");
    }
    long long kept = used() - before;
    printf("%s: %s\n", what, kept < STILL_QUEUED ? "nothing kept" : "kept");
    if (kept >= STILL_QUEUED)
        printf("%lld of %d\n", kept, count);
}

int main(int argc, char **argv) {
    if (argc < 2 || chdir(argv[1]) < 0)
        return 2;
    check(mkdir("other", 0755), "mkdir");
    rounds("alone", ROUNDS, nobody);
    rounds("child", ROUNDS, child);
    rounds("vforked", ROUNDS, child_in_same_memory);
    rounds("program", ROUNDS, program);
    rounds("thread", ROUNDS, thread);
    rounds("vforked-beside-threads", ROUNDS, child_in_same_memory);
    return 0;
}
