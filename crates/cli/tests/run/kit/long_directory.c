// The working directory below 30 names of 200 bytes: its path is longer than PATH_MAX.
#define _GNU_SOURCE
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

static char buffer[65536];

int main(void) {
    char name[201];
    memset(name, 'd', 200);
    name[200] = 0;
    char *start = getcwd(NULL, 0);
    for (int level = 0; level < 30; level++)
        if (mkdir(name, 0755) || chdir(name))
            return 1;
    for (long room = 1; room <= 65536; room *= 16) {
        errno = 0;
        long result = syscall(SYS_getcwd, buffer, room);
        printf("room %ld: %ld, errno %d\n", room, result, errno);
    }
    // The C library then asks each directory for the name of the one below.
    char *path = getcwd(NULL, 0);
    printf("C library: %ld bytes below the start\n", path ? (long)(strlen(path) - strlen(start)) : -1L);
    return 0;
}
