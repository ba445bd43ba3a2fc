/* What an image needs of its process, descriptors and sizes of files: resources IMAGE SNAPSHOT */
#include "check.h"
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

static void wait_for(pid_t pid, int signal)
{
    int status;
    CHECK(waitpid(pid, &status, 0) == pid);
    CHECK(signal ? WIFSIGNALED(status) && WTERMSIG(status) == signal : status == 0);
}

/* While a child that does nothing lives, the death of its parent is seen. */
static void a_parent_dies(const char *file)
{
    int lives[2], forked[2];
    char byte;
    CHECK(pipe(lives) == 0 && pipe(forked) == 0);
    pid_t parent = fork();
    if (parent == 0) {
        directfs_image *image = directfs_image_open(file, NULL);
        CHECK(image != NULL && directfs_mkdir(image, "of the parent", 0700) == 0);
        int fd = directfs_open(image, "locked", O_RDWR | O_CREAT, 0600);
        struct flock lock = {.l_type = F_WRLCK};
        CHECK(directfs_lock(fd, F_OFD_SETLK, &lock) == 0);
        pid_t child = fork();
        if (child == 0) {
            CHECK(close(lives[1]) == 0 && write(forked[1], "x", 1) == 1);
            _exit(read(lives[0], &byte, 1) == 0 ? 0 : 1);
        }
        pause();
    }
    CHECK(read(forked[0], &byte, 1) == 1 && kill(parent, SIGKILL) == 0);
    wait_for(parent, SIGKILL);
    directfs_open_options alone = {.flags = DIRECTFS_EXCLUSIVE, .timeout_ms = 1};
    directfs_image *image = directfs_image_open(file, &alone);
    CHECK(image != NULL && directfs_image_was_recovered(image) == 1);
    CHECK(directfs_rmdir(image, "of the parent") == 0);
    CHECK(directfs_image_close(image) == DIRECTFS_CLEAN);
    /* The child ends when no process has the other end. */
    CHECK(close(lives[0]) == 0 && close(lives[1]) == 0 && close(forked[0]) == 0 && close(forked[1]) == 0);
}

static int is_free(int fd)
{
    return fcntl(fd, F_GETFD) == -1 && errno == EBADF;
}

/* What such a program prints does not reach the image. */
static void a_program_without_standard_files(const char *file, const char *snapshot)
{
    pid_t pid = fork();
    if (pid == 0) {
        int report = fcntl(2, F_DUPFD_CLOEXEC, 100);
        for (int fd = 0; fd <= 2; fd++)
            close(fd);
        directfs_image *image = directfs_image_open(file, NULL);
        int failed = image == NULL || !is_free(0) || !is_free(1) || !is_free(2);
        failed |= directfs_image_snapshot(image, snapshot) != 0 || !is_free(0) || !is_free(1) || !is_free(2);
        failed |= directfs_image_close(image) != DIRECTFS_CLEAN;
        CHECK(dup2(report, 2) == 2);
        CHECK(!failed);
        _exit(0);
    }
    wait_for(pid, 0);
}

static void limit_files(rlim_t bytes)
{
    struct rlimit limit;
    CHECK(getrlimit(RLIMIT_FSIZE, &limit) == 0);
    limit.rlim_cur = bytes;
    CHECK(setrlimit(RLIMIT_FSIZE, &limit) == 0);
}

/* A limit on the sizes of files is an error, and not the end of the program. */
static void files_are_limited(const char *file)
{
    for (rlim_t bytes = 64 << 10; bytes <= 36 << 20; bytes += 4 << 20) {
        limit_files(bytes);
        directfs_image *limited = directfs_image_open(file, NULL);
        CHECK(limited == NULL ? errno == EFBIG : directfs_image_close(limited) == DIRECTFS_CLEAN);
        CHECK(limited == NULL || bytes > 64 << 10);
    }
    limit_files(RLIM_INFINITY);
    directfs_image *image = directfs_image_open(file, NULL);
    CHECK(image != NULL && directfs_mkdir(image, "before", 0700) == 0);
    limit_files(64 << 10);
    if (directfs_image_durability(image) == DIRECTFS_COMMITTED) {
        FAILS(directfs_image_sync(image), EFBIG);
        CHECK(strstr(directfs_message(), "ulimit -f") != NULL);
    }
    limit_files(RLIM_INFINITY);
    CHECK(directfs_image_sync(image) == 0 && directfs_image_close(image) == DIRECTFS_CLEAN);
}

int main(int argument_count, char **arguments)
{
    directfs_create_options create = {.size_bytes = 32 << 20, .flags = DIRECTFS_SPARSE};
    CHECK(argument_count == 3);
    directfs_image *image = directfs_image_create(arguments[1], &create);
    CHECK(image != NULL && directfs_image_close(image) == DIRECTFS_CLEAN);
    a_parent_dies(arguments[1]);
    a_program_without_standard_files(arguments[1], arguments[2]);
    files_are_limited(arguments[1]);
    return 0;
}
