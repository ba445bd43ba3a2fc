/* Starts a program in one of the ways that libraries have: WAY PROGRAM. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <libgen.h>
#include <spawn.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

static void become(const char *way, char *program)
{
    char *words[] = {program, NULL};
    if (!strcmp(way, "fexecve"))
        fexecve(open(program, O_PATH | O_CLOEXEC), words, environ);
    else if (!strcmp(way, "execveat")) {
        char directory[4096];
        strcpy(directory, program);
        int at = open(dirname(directory), O_PATH | O_DIRECTORY | O_CLOEXEC);
        syscall(SYS_execveat, at, strrchr(program, '/') + 1, words, environ, 0);
    } else
        execv(program, words);
    perror(program);
    _exit(1);
}

int main(int count, char **words)
{
    const char *way = words[1];
    char *program = words[2];
    pid_t child;
    if (!strcmp(way, "posix_spawn")) {
        char *of_child[] = {program, NULL};
        if (posix_spawn(&child, program, NULL, NULL, of_child, environ))
            return 1;
    } else {
        child = !strcmp(way, "vfork") ? vfork() : fork();
        if (child == 0)
            become(way, program);
    }
    int status;
    return waitpid(child, &status, 0) != child || status;
}
