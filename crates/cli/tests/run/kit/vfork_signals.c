/* The end of a child in shared memory interrupts its parent where vfork returns: calls of the
   handler are the parent's. Prints the number of files that the handler opened for the parent. */
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

static const char *file;
static volatile int opened = -1;

static void child_ended(int signal) {
    opened = open(file, O_CREAT | O_WRONLY | O_APPEND, 0600);
}

int main(int count, char **arguments) {
    struct sigaction action = {.sa_handler = child_ended, .sa_flags = SA_RESTART};
    int written = 0;
    if (count != 2)
        return 2;
    file = arguments[1];
    sigaction(SIGCHLD, &action, NULL);
    for (int round = 0; round < 200; round++) {
        pid_t child = vfork();
        if (child == 0) {
            access(file, F_OK);
            _exit(0);
        }
        waitpid(child, NULL, 0);
        written += write(opened, "x", 1) == 1 && close(opened) == 0;
        opened = -1;
    }
    printf("%d\n", written);
    return 0;
}
