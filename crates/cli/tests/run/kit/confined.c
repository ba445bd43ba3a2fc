/* Takes from itself what it needs to attach, then looks at a file of the image.
   usage: prctl|seccomp|prlimit|setrlimit FILE */
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

static int no_new_mappings(int by_prctl) {
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_mmap, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof filter / sizeof *filter, filter};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
        return -1;
    return by_prctl ? prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program)
                    : syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &program);
}

int main(int count, char **arguments) {
    struct rlimit little = {1 << 20, 1 << 20};
    struct stat status;
    int result = -1;
    if (count == 3 && !strcmp(arguments[1], "prctl"))
        result = no_new_mappings(1);
    if (count == 3 && !strcmp(arguments[1], "seccomp"))
        result = no_new_mappings(0);
    if (count == 3 && !strcmp(arguments[1], "prlimit"))
        result = prlimit(0, RLIMIT_AS, &little, NULL);
    if (count == 3 && !strcmp(arguments[1], "setrlimit"))
        result = syscall(SYS_setrlimit, RLIMIT_AS, &little);
    const char *outcome = result ? "not confined" : stat(arguments[2], &status) ? strerror(errno) : "seen";
    dprintf(1, "%s: %s\n", arguments[1], outcome);
    return 0;
}
