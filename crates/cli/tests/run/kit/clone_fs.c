// A child that shares working directory, root directory and umask with its parent (CLONE_FS).
// Prints what the parent sees of the child's changes. With an argument the child also changes the
// root directory, as sandboxes have a helper do, and the parent tries to enter the directory.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

int main(int count, char **arguments) {
    char directory[4096], path[4200];
    int confines = count > 1, status;
    struct stat found;
    getcwd(directory, sizeof directory);
    chdir("/");
    pid_t child = syscall(SYS_clone, CLONE_FS | SIGCHLD, 0, 0, 0, 0);
    if (child == 0) {
        umask(027);
        chdir("/usr");
        _exit(confines ? chroot("/proc/self/fdinfo") != 0 : 0);
    }
    if (child < 0 || waitpid(child, &status, 0) != child || status != 0) {
        printf("clone: %s, %d\n", strerror(errno), status);
        return 1;
    }
    getcwd(path, sizeof path);
    printf("directory %s\n", confines ? "" : path);
    snprintf(path, sizeof path, "%s/file", directory);
    close(open(path, O_CREAT | O_WRONLY, 0666));
    printf("created %d\n", stat(path, &found));
    printf("permissions %o\n", found.st_mode & 0777);
    umask(022);
    if (confines) {
        printf("etc %d\n", access("/etc", F_OK));
        printf("enter %d", chdir(directory));
        printf(" %s\n", errno == EOPNOTSUPP ? "EOPNOTSUPP" : strerror(errno));
    }
    unlink(path);
}
