// Works with a C library of its own beside the program's, as tools do that are loaded into other
// programs. That library's calls are inline syscalls of a library.
//   second_libc FILE
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/wait.h>

int main(int count, char **arguments) {
    void *library = dlmopen(LM_ID_NEWLM, "libc.so.6", RTLD_NOW | RTLD_LOCAL);
    if (library == NULL) {
        puts(dlerror());
        return 77;
    }
    int (*open_there)(const char *, int, ...) = dlsym(library, "open");
    int (*start_there)(pid_t *, const char *, void *, void *, char **, char **) = dlsym(library, "posix_spawn");
    if (open_there(arguments[1], O_CREAT | O_RDWR, 0644) < 0) return 1;
    // Its child has signals at their default actions before it starts the program.
    char *words[] = {"/bin/ls", arguments[1], NULL}, *environment[] = {NULL};
    pid_t child;
    int status;
    if (start_there(&child, words[0], NULL, NULL, words, environment) != 0) return 2;
    if (waitpid(child, &status, 0) != child) return 3;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}
