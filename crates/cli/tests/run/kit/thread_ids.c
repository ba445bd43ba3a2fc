/* Threads with ids, groups and capabilities of their own. Prints which rights each thread has. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <grp.h>
#include <linux/capability.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/fsuid.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static pthread_mutex_t turn = PTHREAD_MUTEX_INITIALIZER;

static void act(const char *name) {
    char made[64];
    struct stat status = {0};
    int reads = open("secret", O_RDONLY), groups = open("shared", O_RDONLY);
    snprintf(made, sizeof made, "by-%s", name);
    int file = open(made, O_CREAT | O_WRONLY, 0600);
    stat(made, &status);
    printf("%s: secret %s, shared %s, owner of a new file %d %d, chown %s, access %d\n", name, reads < 0 ? "refused" : "read",
        groups < 0 ? "refused" : "read", file < 0 ? -1 : (int)status.st_uid, file < 0 ? -1 : (int)status.st_gid,
        chown("other", 5, 5) ? "refused" : "done", access("secret", R_OK));
    fflush(stdout);
    if (reads >= 0) close(reads);
    if (groups >= 0) close(groups);
    if (file >= 0) close(file);
}

static void change(const char *way) {
    struct __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
    struct __user_cap_data_struct none[2] = {{0}};
    gid_t group = 50;
    if (!strcmp(way, "setresuid")) syscall(SYS_setresuid, 1234, 1234, 1234);
    if (!strcmp(way, "seteuid")) syscall(SYS_setresuid, -1, 1234, -1);
    if (!strcmp(way, "setfsuid")) setfsgid(1234), setfsuid(1234);
    if (!strcmp(way, "setgroups")) syscall(SYS_setgroups, 1, &group), syscall(SYS_setresuid, -1, 1234, -1);
    if (!strcmp(way, "capset")) syscall(SYS_capset, &header, none);
}

static void *nested(void *name) { act(name); return 0; }

static void *thread(void *way) {
    char name[64];
    pthread_t inner;
    pthread_mutex_lock(&turn);
    change(way);
    snprintf(name, sizeof name, "%s", (char *)way);
    act(name);
    snprintf(name, sizeof name, "%s-thread", (char *)way);
    pthread_create(&inner, 0, nested, name);
    pthread_join(inner, 0);
    pid_t child = fork();
    if (child == 0) {
        snprintf(name, sizeof name, "%s-child", (char *)way);
        act(name);
        _exit(0);
    }
    waitpid(child, 0, 0);
    pthread_mutex_unlock(&turn);
    /* The ids of another thread stay those of this one while it exists. */
    pthread_mutex_lock(&turn);
    snprintf(name, sizeof name, "%s-again", (char *)way);
    act(name);
    pthread_mutex_unlock(&turn);
    return 0;
}

int main(void) {
    const char *ways[] = {"none", "setresuid", "seteuid", "setfsuid", "setgroups", "capset"};
    pthread_t threads[6];
    close(open("secret", O_CREAT | O_WRONLY, 0600));
    close(open("shared", O_CREAT | O_WRONLY, 0600));
    chown("shared", 5, 50), chmod("shared", 0040);
    close(open("other", O_CREAT | O_WRONLY, 0600));
    for (int way = 0; way < 6; way++) {
        char name[64];
        pthread_create(&threads[way], 0, thread, (void *)ways[way]);
        pthread_join(threads[way], 0);
        snprintf(name, sizeof name, "main-after-%s", ways[way]);
        act(name);
    }
    /* The C library changes all threads. */
    pthread_mutex_lock(&turn);
    pthread_create(&threads[0], 0, thread, "all");
    if (setgid(1234) || setuid(1234)) perror("setuid");
    act("main");
    pthread_mutex_unlock(&turn);
    pthread_join(threads[0], 0);
    return 0;
}
