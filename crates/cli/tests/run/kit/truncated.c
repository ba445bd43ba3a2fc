// Uses files in a mount, reports that it is ready, waits for the truncation of the image, and prints
// the results of calls from then on.
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static void own(int signal) { (void)signal; write(1, "own handler\n", 12); _exit(9); }

static char buffer[1 << 20];

static void say(const char *what, long result) {
    printf("%s: %s\n", what, result < 0 ? strerrorname_np(errno) : "done");
    fflush(stdout);
}

int main(int argc, char **argv) {
    // The program's own handler must not see a SIGBUS that the program did not cause.
    if (argc > 1) signal(SIGBUS, own);
    int fd = open("file", O_RDWR | O_CREAT | O_TRUNC, 0644), directory = open(".", O_RDONLY);
    memset(buffer, 'x', sizeof buffer);
    for (int part = 0; part < 6; part++) write(fd, buffer, sizeof buffer);
    mkdir("directory", 0755);
    puts("ready");
    fflush(stdout);
    char line[8];
    read(0, line, 1);
    // Cached content may still be served. After the first error every call fails.
    int lost = 0;
    for (int part = 0; part < 6 && !lost; part++) lost = pread(fd, buffer, sizeof buffer, (long)part << 20) < 0;
    say("lost", lost ? -1 : 0);
    struct stat status;
    say("read", pread(fd, buffer, 10, 0));
    say("write", write(fd, "more", 4));
    say("stat", stat("file", &status));
    say("fstat", fstat(fd, &status));
    say("open", open("other", O_RDWR | O_CREAT, 0644));
    say("mkdir", mkdir("another", 0755));
    say("rename", rename("directory", "directories"));
    say("list", getdents64(directory, buffer, sizeof buffer));
    say("chdir", chdir("directory"));
    say("fchdir", fchdir(directory));
    unsigned long execute = 1;
    say("landlock", syscall(444, &execute, sizeof execute, 0)); // landlock_create_ruleset
    say("fsync", fsync(fd));
    say("elsewhere", open("/etc/passwd", O_RDONLY));
    pid_t child = fork();
    if (!child) {
        say("child", read(fd, buffer, 1));
        _exit(7);
    }
    int ended;
    waitpid(child, &ended, 0);
    printf("child ended: %d\n", WIFEXITED(ended) ? WEXITSTATUS(ended) : -1);
    say("close", close(fd));
    say("close", close(directory));
    return 5;
}
