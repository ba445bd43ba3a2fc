/* Threads and processes that share an image: sharing IMAGE */
#include "check.h"
#include <pthread.h>
#include <sys/file.h>
#include <sys/wait.h>
#include <unistd.h>

enum { THREADS = 8, FILES = 300, ROUNDS = 200 };

static directfs_image *image;

static void *work(void *argument)
{
    char path[64];
    struct stat status;
    for (long number = 0; number < FILES; number++) {
        snprintf(path, sizeof path, "threads/%ld-%ld", (long)argument, number);
        int fd = directfs_open(image, path, O_RDWR | O_CREAT | O_EXCL, 0600);
        CHECK(fd >= 0 && directfs_pwrite(fd, &number, sizeof number, 0) == sizeof number);
        CHECK(directfs_close(fd) == 0);
        FAILS(directfs_stat(image, "missing", &status), ENOENT);
        if (number % 2)
            CHECK(directfs_unlink(image, path) == 0);
    }
    return NULL;
}

static void threads(void)
{
    pthread_t ids[THREADS];
    struct dirent entry;
    int found = 0;
    CHECK(directfs_mkdir(image, "threads", 0700) == 0);
    for (long number = 0; number < THREADS; number++)
        CHECK(pthread_create(&ids[number], NULL, work, (void *)number) == 0);
    for (int number = 0; number < THREADS; number++)
        CHECK(pthread_join(ids[number], NULL) == 0);
    directfs_dir *dir = directfs_opendir(image, "threads");
    while (directfs_readdir(dir, &entry) == 1)
        found++;
    CHECK(found == THREADS * FILES / 2 && directfs_closedir(dir) == 0);
}

/* Adds 1 to the number in a file, under its lock. */
static void count(directfs_image *in, int ranges)
{
    for (int round = 0; round < ROUNDS; round++) {
        long number = 0;
        struct flock lock = {.l_type = F_WRLCK, .l_start = 1000, .l_len = 10};
        int fd = directfs_open(in, "counter", O_RDWR, 0);
        CHECK(fd >= 0 && (ranges ? directfs_lock(fd, F_OFD_SETLKW, &lock) : directfs_flock(fd, LOCK_EX)) == 0);
        CHECK(directfs_pread(fd, &number, sizeof number, 0) == sizeof number);
        number++;
        CHECK(directfs_pwrite(fd, &number, sizeof number, 0) == sizeof number);
        /* Closing releases the lock. */
        CHECK(directfs_close(fd) == 0);
    }
}

static void child(const char *file, int fd, int ranges)
{
    char byte;
    /* What the parent holds belongs to the parent; nothing hangs, and nothing is closed there. */
    FAILS(directfs_read(fd, &byte, 1), EBADF);
    FAILS(directfs_mkdir(image, "a", 0700), EBADF);
    FAILS(directfs_image_close(image), EBADF);
    directfs_image *own = directfs_image_open(file, NULL);
    CHECK(own != NULL);
    count(own, ranges);
    CHECK(directfs_image_close(own) == DIRECTFS_OTHERS_REMAIN);
    _exit(0);
}

static void processes(const char *file, int ranges)
{
    long number = 0;
    int status, fd = directfs_open(image, "counter", O_RDWR | O_CREAT, 0600);
    CHECK(directfs_pwrite(fd, &number, sizeof number, 0) == sizeof number);
    pid_t pid = fork();
    if (pid == 0)
        child(file, fd, ranges);
    count(image, ranges);
    CHECK(waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    CHECK(directfs_pread(fd, &number, sizeof number, 0) == sizeof number && number == 2 * ROUNDS);
    CHECK(directfs_close(fd) == 0);
}

static void locks(void)
{
    struct flock lock = {.l_type = F_WRLCK, .l_start = 10, .l_len = 10};
    struct flock all = {.l_type = F_RDLCK};
    int one = directfs_open(image, "counter", O_RDWR, 0), other = directfs_open(image, "counter", O_RDWR, 0);
    CHECK(directfs_flock(one, LOCK_EX) == 0);
    FAILS(directfs_flock(other, LOCK_SH | LOCK_NB), EAGAIN);
    CHECK(directfs_flock(one, LOCK_UN) == 0 && directfs_flock(other, LOCK_SH | LOCK_NB) == 0);
    CHECK(directfs_lock(one, F_OFD_SETLK, &lock) == 0);
    FAILS(directfs_lock(other, F_OFD_SETLK, &all), EAGAIN);
    CHECK(directfs_lock(other, F_OFD_GETLK, &all) == 0);
    CHECK(all.l_type == F_WRLCK && all.l_start == 10 && all.l_len == 10 && all.l_pid == -1);
    lock.l_type = F_UNLCK;
    CHECK(directfs_lock(one, F_OFD_SETLK, &lock) == 0);
    all = (struct flock){.l_type = F_RDLCK};
    CHECK(directfs_lock(other, F_OFD_GETLK, &all) == 0 && all.l_type == F_UNLCK);
    CHECK(directfs_close(one) == 0 && directfs_close(other) == 0);
}

int main(int argument_count, char **arguments)
{
    directfs_create_options create = {.size_bytes = 32 << 20, .flags = DIRECTFS_SPARSE};
    CHECK(argument_count == 2 && (image = directfs_image_create(arguments[1], &create)) != NULL);
    threads();
    processes(arguments[1], 0);
    processes(arguments[1], 1);
    locks();
    CHECK(directfs_image_close(image) == DIRECTFS_CLEAN);
    return 0;
}
