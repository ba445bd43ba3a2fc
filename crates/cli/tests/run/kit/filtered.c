/* Copies a file under a filter of system calls that ends the process for any other call.
   usage: FROM TO */
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#define MAY(call) \
    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, call, 0, 1), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)

int main(int count, char **arguments) {
    static char buffer[8192];
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        MAY(SYS_read), MAY(SYS_write), MAY(SYS_close), MAY(SYS_exit_group), MAY(SYS_rt_sigreturn),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
    };
    struct sock_fprog program = {sizeof filter / sizeof *filter, filter};
    int from = open(arguments[1], O_RDONLY), to = open(arguments[2], O_WRONLY | O_CREAT, 0600);
    if (from < 0 || to < 0 || prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
        return 2;
    if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program))
        return 3;
    long length;
    while ((length = read(from, buffer, sizeof buffer)) > 0)
        if (write(to, buffer, length) != length)
            _exit(4);
    close(from);
    close(to);
    _exit(length < 0);
}
