/* What a thread cannot have apart from the other threads of its process. */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

static void try(const char *name, int flags) {
    printf("%s: %s\n", name, unshare(flags) ? strerror(errno) : "done");
    fflush(stdout);
}

static void all(void) {
    try("CLONE_FS", CLONE_FS);
    try("CLONE_FILES", CLONE_FILES);
    try("CLONE_NEWNS", CLONE_NEWNS);
    try("CLONE_NEWUTS", CLONE_NEWUTS);
}

static void *thread(void *nothing) {
    all();
    printf("chdir %d\n", chdir("below"));
    return nothing;
}

int main(void) {
    pthread_t other;
    char directory[4096];
    all();
    pthread_create(&other, 0, thread, 0);
    pthread_join(other, 0);
    printf("%s\n", getcwd(directory, sizeof directory));
    fflush(stdout);
    /* A thread with descriptors and a directory of its own. */
    long result = syscall(SYS_clone, CLONE_VM | CLONE_SIGHAND | CLONE_THREAD, 0, 0, 0, 0);
    if (result == 0) syscall(SYS_exit, 0);
    printf("clone: %s\n", result < 0 ? strerror(errno) : "done");
    /* One thread again. */
    all();
    return 0;
}
