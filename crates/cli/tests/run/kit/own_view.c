/* Prints what a program sees of its own descriptors, and does odd things with them. */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

/* The numbers in a directory of descriptors, without that of the directory. */
static void list(const char *path)
{
    DIR *directory = opendir(path);
    struct dirent *entry;
    int numbers = 0, others = 0, own = dirfd(directory);
    while ((entry = readdir(directory)))
        if (entry->d_name[0] != '.' && atoi(entry->d_name) != own) {
            numbers++;
            others += atoi(entry->d_name) > 10;
        }
    printf("%d listed, %d of them high\n", numbers, others);
    closedir(directory);
}

static void open_all(void)
{
    int opened = 0;
    for (int fd = 20; fd < 5000; fd++) {
        char path[64];
        sprintf(path, "/proc/self/fd/%d", fd);
        opened += open(path, O_RDONLY) >= 0 || errno != ENOENT;
    }
    printf("%d high ones opened\n", opened);
}

static void run_script(void)
{
    int script = open("script", O_CREAT | O_RDWR, 0755);
    char *words[] = {"script", NULL}, *none[] = {NULL};
    dprintf(script, "#!/bin/sh\necho it runs\n");
    close(script);
    for (int flags = 0; flags <= O_CLOEXEC; flags += O_CLOEXEC) {
        pid_t child = fork();
        if (child == 0) {
            fexecve(open("script", O_RDONLY | flags), words, none);
            printf("fexecve %s\n", strerror(errno));
            exit(0);
        }
        waitpid(child, NULL, 0);
    }
}

static void share_descriptors(void)
{
    char bytes[6] = "";
    int status;
    pid_t child = syscall(SYS_clone, CLONE_FILES | SIGCHLD, 0, 0, 0, 0);
    if (child == 0) {
        int fd = open("of the child", O_CREAT | O_RDWR, 0600);
        write(fd, "child", 5);
        _exit(fd);
    }
    waitpid(child, &status, 0);
    long count = pread(WEXITSTATUS(status), bytes, 5, 0);
    printf("of the child: %ld %s\n", count, bytes);
    int fd = open("of the parent", O_CREAT | O_RDWR, 0600);
    printf("written %ld", write(fd, "parent", 6));
    printf(", closed %d\n", close(fd));
}

int main(void)
{
    char path[64];
    setvbuf(stdout, NULL, _IOLBF, 0);
    open("kept", O_CREAT | O_RDWR, 0600);
    list("/proc/self/fd");
    list("/proc/thread-self/fd");
    list("/proc/self/fdinfo");
    sprintf(path, "/proc/%d/fd", getpid());
    list(path);
    sprintf(path, "/proc/self/task/%d/fd", getpid());
    list(path);
    open_all();
    run_script();
    share_descriptors();

    int large = open("large", O_CREAT | O_RDWR, 0600), outside = memfd_create("outside", 0);
    ftruncate(outside, 1000000);
    printf("sendfile %ld\n", sendfile(large, outside, NULL, 1000000));
    lseek(large, 0, SEEK_SET);
    printf("sendfile %ld\n", sendfile(outside, large, NULL, 1000000));
    mmap(NULL, 4096, PROT_READ, MAP_SHARED | MAP_HUGETLB, large, 0);
    printf("MAP_HUGETLB %s\n", strerror(errno));
    return 0;
}
