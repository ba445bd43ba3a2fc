/* Children with a copy of the memory and a stack of their own, as sandboxes and container runtimes
   make them: clone(function, stack, SIGCHLD) and clone3. They keep their descriptors, while the
   parent closes its own, forks and makes files. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/sched.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define STACK_BYTES (1 << 18)
static char *stack;
static int fd, go[2], value = 5;
static pid_t number;

static int child(void *name) {
    char text[8] = "", byte;
    struct stat status;
    if (read(go[0], &byte, 1) != 1) return 50;
    char *here = (char *)&byte;
    if (name && (here < stack || here >= stack + STACK_BYTES)) return 51;
    if (fstat(fd, &status) || status.st_nlink || pread(fd, text, 6, 0) != 6 || strcmp(text, "secret")) return 52;
    int file = open("made by a child", O_CREAT | O_RDWR, 0600);
    if (file < 0 || write(file, "x", 1) != 1 || unlink("made by a child")) return 53;
    /* It can create processes, too, and its memory is its own. */
    value++;
    pid_t grandchild = fork();
    int result;
    if (!grandchild) _exit(access(".", R_OK) ? 1 : value);
    waitpid(grandchild, &result, 0);
    return WEXITSTATUS(result);
}


static void *other_thread(void *unused) { return pause(), unused; }

int main(void) {
    stack = mmap(0, STACK_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    int flags[] = {SIGCHLD, SIGCHLD | CLONE_PARENT_SETTID, SIGCHLD | CLONE_FILES, SIGCHLD | CLONE_VFORK, SIGCHLD};
    for (int round = 0; round < 40; round++) {
        int kind = round % 5, status;
        if (round == 35) { pthread_t thread; pthread_create(&thread, 0, other_thread, 0); }
        fd = open("f", O_CREAT | O_RDWR | O_TRUNC, 0600);
        if (write(fd, "secret", 6) != 6 || unlink("f") || pipe(go)) return 1;
        if (kind == 3 && write(go[1], "g", 1) != 1) return 1;
        pid_t made = clone(child, stack + STACK_BYTES, flags[kind], "name", &number);
        if (made < 0) { perror("clone"); return 1; }
        if (kind != 2) close(fd);
        pid_t more = fork();
        if (!more) _exit(0);
        for (int i = 0; i < 10; i++) {
            char name[20];
            sprintf(name, "o%d", i);
            close(open(name, O_CREAT | O_RDWR, 0600)), unlink(name);
        }
        if (kind != 3 && write(go[1], "g", 1) != 1) return 1;
        if (waitpid(made, &status, 0) != made || status != 6 << 8) printf("round %d: status %x\n", round, status);
        if (waitpid(more, &status, 0) != more || status) printf("round %d: fork's status %x\n", round, status);
        if (kind == 2) close(fd);
        close(go[0]), close(go[1]);
    }
    printf("%d %d\n", value, syscall(SYS_clone3, (long[8]){0, 0, 0, 0, SIGCHLD, (long)stack}, 64) < 0);
    return 0;
}
