/* Makes a file in each of two threads under a filter of system calls that ends the process for any
   call that asks who the thread is. One thread exists when the filter comes, the other does not.
   usage: FILE FILE */
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <stddef.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#define MAY_NOT(call) \
    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, call, 0, 1), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS)

static int gate[2];

static void *make(void *path) {
    char byte;
    if (read(gate[0], &byte, 1) != 1)
        _exit(4);
    int file = open(path, O_WRONLY | O_CREAT | O_EXCL, 0600);
    if (file < 0 || write(file, "made\n", 5) != 5 || close(file))
        _exit(5);
    return NULL;
}

int main(int count, char **arguments) {
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        MAY_NOT(SYS_getgroups), MAY_NOT(SYS_getresuid), MAY_NOT(SYS_getresgid), MAY_NOT(SYS_capget),
        MAY_NOT(SYS_setfsuid), MAY_NOT(SYS_setfsgid),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof filter / sizeof *filter, filter};
    pthread_t before, after;
    if (pipe(gate) || pthread_create(&before, NULL, make, arguments[1]))
        return 2;
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) ||
        syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &program))
        return 3;
    if (pthread_create(&after, NULL, make, arguments[2]) || write(gate[1], "go", 2) != 2)
        return 6;
    pthread_join(before, NULL);
    pthread_join(after, NULL);
    return 0;
}
