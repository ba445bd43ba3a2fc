/* Many users of one file system at once, and a file system without room for its shared memory.
   usage: limits children N | limits threads N | limits full */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static int make(const char *name) {
    int fd = open(name, O_CREAT | O_EXCL | O_RDWR, 0600);
    return fd >= 0 && write(fd, "x", 1) == 1 && close(fd) == 0 ? 0 : errno ? errno : -1;
}

static int has_one_byte(const char *name) {
    struct stat found;
    return stat(name, &found) == 0 && found.st_size == 1;
}

/* Each child makes a file before the next one starts, and looks at it when all have. */
static int children(int count) {
    int go[2], answers[2], alive = 0, failed = 0, status;
    if (pipe(go) || pipe(answers)) return 1;
    for (; alive < count; alive++) {
        pid_t child = fork();
        if (child < 0) { printf("fork %d: %s\n", alive, strerror(errno)); break; }
        char name[32], answer;
        snprintf(name, sizeof name, "child-%d", alive);
        if (child == 0) {
            close(go[1]);
            answer = (char)make(name);
            if (write(answers[1], &answer, 1) != 1 || read(go[0], &answer, 1) != 0) _exit(2);
            _exit(!has_one_byte(name));
        }
        if (read(answers[0], &answer, 1) != 1 || answer != 0) { printf("child %d: error %d\n", alive, answer); break; }
    }
    close(go[1]);
    while (wait(&status) > 0) failed += status != 0;
    printf("%d children at once, %d failed\n", alive, failed);
    return 0;
}

static pthread_barrier_t all;
static int failures;

static void *thread(void *number) {
    char name[32], other[32];
    snprintf(name, sizeof name, "thread-%ld", (long)number);
    snprintf(other, sizeof other, "renamed-%ld", (long)number);
    int failed = make(name) != 0;
    pthread_barrier_wait(&all);
    failed |= rename(name, other) != 0 || !has_one_byte(other);
    __sync_fetch_and_add(&failures, failed);
    return NULL;
}

static int threads(int count) {
    pthread_t *started = calloc(count, sizeof *started);
    pthread_attr_t small;
    pthread_attr_init(&small);
    pthread_attr_setstacksize(&small, 64 << 10);
    pthread_barrier_init(&all, NULL, count);
    for (long number = 0; number < count; number++)
        if (pthread_create(&started[number], &small, thread, (void *)number)) { perror("thread"); return 1; }
    for (int number = 0; number < count; number++) pthread_join(started[number], NULL);
    printf("%d threads at once, %d failed\n", count, failures);
    return 0;
}

static int readable(void) {
    int count = 0;
    for (int number = 0; number < 300; number++) {
        char name[32], content;
        snprintf(name, sizeof name, "old/%d", number);
        int fd = open(name, O_RDONLY);
        count += fd >= 0 && read(fd, &content, 1) == 1 && content == 'x';
        if (fd >= 0) close(fd);
    }
    return count;
}

/* Fills /dev/shm, goes on until a call is refused, and frees it again. */
static int full(void) {
    static char zeros[1 << 20];
    char name[64];
    int refused = 0, made = 0, more = 0;
    if (mkdir("old", 0700) || mkdir("new", 0700)) return 1;
    for (int number = 0; number < 300; number++) {
        snprintf(name, sizeof name, "old/%d", number);
        if (make(name)) return 1;
    }
    int filler = open("/dev/shm/filler", O_CREAT | O_RDWR, 0600);
    for (size_t piece = sizeof zeros; piece >= 4096; piece /= 256)
        while (write(filler, zeros, piece) == (ssize_t)piece) {}
    for (; made < 100000 && !refused; made += !refused) {
        snprintf(name, sizeof name, "new/a-name-of-some-length-%d", made);
        refused = make(name);
    }
    printf("refused: %s\n", refused == ENOSPC || refused == ENOMEM ? "without room" : strerror(refused));
    printf("readable: %d\n", readable());
    printf("fork: %s\n", fork() == 0 ? (_exit(0), "") : (wait(NULL), "no crash"));
    unlink("/dev/shm/filler");
    close(filler);
    for (; more < 1000; more++) {
        snprintf(name, sizeof name, "new/more-%d", more);
        if (make(name)) break;
    }
    printf("with room again: %d made, %d readable\n", more, readable());
    return 0;
}

int main(int count, char **arguments) {
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (count == 3 && !strcmp(arguments[1], "children")) return children(atoi(arguments[2]));
    if (count == 3 && !strcmp(arguments[1], "threads")) return threads(atoi(arguments[2]));
    return full();
}
