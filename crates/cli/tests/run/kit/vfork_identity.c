// A child in its parent's memory takes another identity and uses the image. Its parent keeps its
// own: prints the owners of a file of the child's, and of one that the parent makes after it.

#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static unsigned owner(const char *name) {
    struct stat status;
    return stat(name, &status) ? -1u : status.st_uid;
}

int main(void) {
    close(open("before", O_CREAT | O_WRONLY, 0600));
    chmod(".", 0777);
    pid_t child = vfork();
    if (child == 0) {
        syscall(SYS_setresuid, 1234, 1234, 1234);
        close(open("child", O_CREAT | O_WRONLY, 0600));
        _exit(0);
    }
    waitpid(child, NULL, 0);
    close(open("after", O_CREAT | O_WRONLY, 0600));
    printf("%u %u\n", owner("child"), owner("after"));
}
