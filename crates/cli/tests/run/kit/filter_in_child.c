/* A child of vfork becomes another user and installs a filter of system calls. Its parent then makes
   a file.
   usage: FILE */
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

int main(int count, char **arguments) {
    struct sock_filter all[] = {BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
    struct sock_fprog program = {1, all};
    int status, file;
    if (access(arguments[1], F_OK) == 0)
        return 2;
    pid_t child = vfork();
    if (child == 0) {
        int failed = syscall(SYS_setresuid, 65534, 65534, 65534) || prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) ||
                     syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &program) || access(arguments[1], F_OK) == 0;
        _exit(failed);
    }
    if (waitpid(child, &status, 0) != child || status)
        return 3;
    file = open(arguments[1], O_WRONLY | O_CREAT | O_EXCL, 0600);
    return file < 0 || close(file);
}
