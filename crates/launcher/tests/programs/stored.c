/* Stores into mappings of a file, and prints whether its modification time is still the old one,
   set before, or new.
   usage: stored DIRECTORY */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { OLD_S = 1000, BYTES = 3 * 4096 };

static int file;

static void make_old(void) {
    struct timespec old[2] = {{OLD_S, 0}, {OLD_S, 0}};
    if (futimens(file, old)) exit(1);
}

static char *map(int protection, int kind) {
    char *start = mmap(0, BYTES, protection, kind, file, 0);
    if (start == MAP_FAILED) exit(2);
    return start;
}

static char *map_old(int protection) {
    make_old();
    return map(protection, MAP_SHARED);
}

static void say(const char *what) {
    struct stat now;
    if (fstat(file, &now)) exit(3);
    const char *modified = now.st_mtim.tv_sec == OLD_S ? "old" : "new";
    printf("%s: %s%s\n", what, modified, now.st_mtim.tv_sec > now.st_ctim.tv_sec ? ", changed before it was modified" : "");
    fflush(stdout);
}

static int in_child(void (*what)(char *), char *start) {
    int status;
    pid_t child = fork();
    if (!child) what(start), _exit(0);
    waitpid(child, &status, 0);
    return status;
}

static void store(char *start) { start[4096]++; }
static void nothing(char *start) { (void)start; }
static void other_program(char *start) { (void)start; execl("/bin/true", "true", (char *)0); }
static void grow_and_store(char *start) { if ((start = mremap(start, BYTES, 2 * BYTES, MREMAP_MAYMOVE)) == MAP_FAILED) _exit(4); store(start); }
static void map_and_store(char *start) { (void)start; store(map(PROT_READ | PROT_WRITE, MAP_SHARED)); }
static void map_store_and_run(char *start) { map_and_store(start); other_program(start); }
static void map_store_and_die(char *start) { map_and_store(start); raise(SIGKILL); }

int main(int count, char **arguments) {
    if (count < 2 || chdir(arguments[1])) return 1;
    file = open("file", O_RDWR | O_CREAT | O_TRUNC, 0644);
    if (file < 0 || ftruncate(file, BYTES)) return 1;

    char *start = map_old(PROT_READ | PROT_WRITE);
    store(start), munmap(start, BYTES), say("stored, unmapped");

    start = map_old(PROT_READ | PROT_WRITE);
    store(start), munmap(start + 4096, 4096), say("stored, the part unmapped");
    munmap(start, BYTES);

    start = map_old(PROT_READ | PROT_WRITE);
    store(start), mmap(start, BYTES, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0), say("stored, mapped over");
    munmap(start, BYTES);

    start = map_old(PROT_READ | PROT_WRITE);
    store(start), msync(start, BYTES, MS_ASYNC), say("stored, msync");
    munmap(start, BYTES);

    start = map_old(PROT_READ | PROT_WRITE);
    store(start), make_old(), munmap(start, BYTES), say("stored, made old, unmapped");

    start = map_old(PROT_READ | PROT_WRITE);
    store(start), fchmod(file, 0600), munmap(start, BYTES), say("stored, chmod, unmapped");

    munmap(map_old(PROT_READ), BYTES), say("mapped to read, unmapped");

    start = map_old(PROT_READ);
    mprotect(start, BYTES, PROT_READ | PROT_WRITE), store(start), munmap(start, BYTES), say("mprotect, stored, unmapped");

    make_old();
    start = map(PROT_READ | PROT_WRITE, MAP_PRIVATE);
    store(start), munmap(start, BYTES), say("stored privately, unmapped");

    start = map_old(PROT_READ | PROT_WRITE);
    in_child(nothing, start), say("mapped, a child ends");
    in_child(other_program, start), say("mapped, a child runs a program");
    printf("a child moves its copy and stores: %x\n", in_child(grow_and_store, start));
    store(start), munmap(start, BYTES), say("stored, unmapped");

    make_old();
    in_child(map_and_store, NULL), say("a child mapped, stored, ended");
    make_old();
    in_child(map_store_and_run, NULL), say("a child mapped, stored, ran a program");
    make_old();
    in_child(map_store_and_die, NULL), in_child(nothing, NULL), say("a child mapped, stored, was killed, and the next ended");

    close(file);
    file = open("file", O_RDONLY);
    start = map_old(PROT_READ);
    for (int within = 0; within < 2; within++) {
        errno = 0;
        int result = mprotect(start + 4096 + within, 4096, PROT_READ | PROT_WRITE);
        printf("mprotect of a file that is open to read, %d bytes within a page: %d %s\n", within, result, strerror(errno));
    }
    munmap(start, BYTES), say("unmapped");
    return 0;
}
