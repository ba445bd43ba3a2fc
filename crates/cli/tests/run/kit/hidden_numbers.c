/* A child in its parent's memory takes each number of a descriptor for itself, as posix_spawn with
   file actions does, and starts a program. Prints what each of them could do with the file system
   in the working directory, and what the parent can do afterwards.

   hidden_numbers close|keep|nested LIMIT: with this limit on the number of descriptors. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

/* Numbers that are left for the loader of the program, and for the library. */
enum { LEFT = 40 };

static volatile int taken, refused, wrote;

/* Makes a file with a line, and reads it back. */
static int writes(const char *name) {
    char line[8] = "";
    int fd = open(name, O_CREAT | O_RDWR | O_TRUNC, 0600);
    if (fd < 0)
        return 0;
    int done = write(fd, "line\n", 5) == 5 && pread(fd, line, 5, 0) == 5 && !memcmp(line, "line\n", 5) && !fsync(fd);
    return close(fd) == 0 && done;
}

static int open_numbers(int limit) {
    int open = 0;
    for (int fd = 3; fd < limit; fd++)
        open += fcntl(fd, F_GETFD) >= 0;
    return open;
}

/* The program that the child starts. */
static int inside(const char *how, int limit) {
    struct stat found;
    int open = open_numbers(limit) >= limit - LEFT - 3, seen = stat("parent", &found) == 0 && mkdir("made", 0700) == 0;
    int made = seen && rmdir("made") == 0 && symlink("x", "link") == 0 && unlink("link") == 0;
    if (strcmp(how, "close"))
        for (int fd = 3; fd < limit; fd++)
            close(fd);
    printf("%s: program: inherited all %d, names %d, data %d, %d left open\n", how, open, made,
           writes("program"), open_numbers(limit));
    fflush(stdout);
    pid_t child = fork();
    if (child == 0)
        _exit(writes("child") ? 0 : 1);
    int status = -1;
    waitpid(child, &status, 0);
    return status != 0;
}

int main(int count, char **arguments) {
    if (count != 3 && count != 4)
        return 2;
    const char *how = arguments[1];
    int limit = atoi(arguments[2]), status = -1, before = open_numbers(limit);
    if (count == 4)
        return inside(how, limit);
    if (!writes("parent"))
        return 3;
    char *program[] = {arguments[0], arguments[1], arguments[2], "inside", NULL};
    pid_t child = vfork();
    if (child == 0) {
        for (int fd = 3; fd < limit; fd++) {
            if (how[0] != 'c' && fd >= limit - LEFT)
                break;
            if (dup2(0, fd) != fd) {
                refused++;
                continue;
            }
            taken += write(fd, "", 0) < 0 || fcntl(fd, F_GETFD) == 0;
            if (how[0] == 'c' && close(fd) != 0)
                refused++;
        }
        wrote = how[0] == 'c' ? writes("spawned") : access("parent", F_OK) == 0;
        if (how[0] == 'n') {
            pid_t next = vfork();
            if (next > 0) {
                waitpid(next, (int *)&status, 0);
                _exit(WEXITSTATUS(status));
            }
        }
        execv(arguments[0], program);
        _exit(4);
    }
    waitpid(child, &status, 0);
    printf("%s: child: %d taken, %d refused, in the file system %d, ended with %d\n", how, taken, refused, wrote, status);
    printf("%s: parent: data %d, %d more open\n", how, writes("after"), open_numbers(limit) - before);
    return 0;
}
