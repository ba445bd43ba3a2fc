/* Opens and closes files among descriptors of the host, in a program that may no longer ask the
   kernel for numbers.
   usage: beside DIRECTORY */
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

static void no_more_questions(void) {
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_fcntl, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof filter / sizeof *filter, filter};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program))
        perror("seccomp");
}

static int opened(void) {
    int fd = open("beside", O_RDWR | O_CREAT, 0644);
    if (fd < 0)
        printf("open: %s\n", strerror(errno));
    return fd;
}

static void turn(const char *when) {
    int first = opened(), second = opened();
    printf("%s: %d %d\n", when, first, second);
    close(first);
    close(second);
}

int main(int argc, char **argv) {
    if (argc < 2 || chdir(argv[1]) < 0)
        return 2;
    for (int fd = 3; fd < 900; fd++)
        close(fd);
    int low = opened(), one = socket(AF_UNIX, SOCK_DGRAM, 0), two = socket(AF_UNIX, SOCK_DGRAM, 0);
    printf("%d %d %d\n", low, one, two);
    close(low);
    turn("asked");
    no_more_questions();
    for (int round = 0; round < 3; round++)
        turn("known");
    fflush(stdout);
    return 0;
}
