/* Opens as many descriptors as the limit permits: of the working directory, of the root, and again
   with a lower limit, and in a child. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>
static void fill(const char *path) {
    int count = 0, last = 2, fd, ends[2];
    for (fd = 3; fd < 5000; fd++) close(fd);
    for (; (fd = open(path, O_RDONLY)) >= 0; last = fd, count++)
        if (fd != last + 1) printf("  from %d to %d\n", last, fd);
    printf("%s: %d to %d, then %s", path, count, last, strerror(errno));
    printf(", dup %d, pipe %d", dup(0), pipe(ends));
    close(last);
    printf(", again %d\n", open(".", O_RDONLY));
}
int main(void) {
    struct rlimit limit;
    setvbuf(stdout, NULL, _IOLBF, 0);
    fill("."); fill("/");
    getrlimit(RLIMIT_NOFILE, &limit);
    limit.rlim_cur = 20;
    printf("lower: %d\n", setrlimit(RLIMIT_NOFILE, &limit));
    fill("."); fill("/");
    pid_t child = fork();
    if (child == 0) {
        fill(".");
        for (int fd = 3; fd < 20; fd++) close(fd);
        return execl("/bin/sh", "sh", "-c", "echo x >x; cat x | cat", (char *)0);
    }
    return waitpid(child, 0, 0) != child;
}
