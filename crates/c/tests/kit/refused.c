/* Bad input: refused NEW_IMAGE FOREIGN_FILE */
#include "check.h"
#include <pthread.h>
#include <sys/file.h>
#include <unistd.h>

static void *other_thread(void *unused)
{
    CHECK(directfs_message()[0] == 0);
    FAILS(directfs_close(7), EBADF);
    return unused;
}

static void images(const char *new, const char *foreign)
{
    directfs_create_options create = {.size_bytes = 16 << 20};
    directfs_open_options options = {.timeout_ms = 20, .flags = DIRECTFS_EXCLUSIVE};
    FAILS_NULL(directfs_image_open(NULL, NULL), EFAULT);
    FAILS_NULL(directfs_image_open("/nowhere/image", NULL), ENOENT);
    FAILS_NULL(directfs_image_open(foreign, NULL), EUCLEAN);
    CHECK(strstr(directfs_message(), foreign) != NULL);
    FAILS_NULL(directfs_image_create(foreign, &create), EEXIST);
    FAILS_NULL(directfs_image_create(new, NULL), EINVAL);
    create.flags = 1u << 30;
    FAILS_NULL(directfs_image_create(new, &create), EINVAL);
    create.flags = 0;
    create.label = "\xff";
    FAILS_NULL(directfs_image_create(new, &create), EINVAL);
    create.label = NULL;
    CHECK(access(new, F_OK) == -1);
    directfs_image *image = directfs_image_create(new, &create);
    CHECK(image != NULL);
    FAILS_NULL(directfs_image_open(new, &options), EBUSY);
    options.reserved[3] = 1;
    FAILS_NULL(directfs_image_open(new, &options), EINVAL);
    FAILS_NULL(directfs_image_in_memory(100), EINVAL);
    CHECK(directfs_image_close(image) == DIRECTFS_CLEAN);
}

static void handles(directfs_image *image)
{
    char byte;
    struct stat status;
    struct dirent entry;
    struct flock lock = {.l_type = F_WRLCK};
    int fd = directfs_open(image, "file", O_RDWR | O_CREAT, 0600);
    directfs_dir *dir = directfs_opendir(image, "/");
    /* A number of an image is none of the kernel, and the other way round. */
    CHECK(read(fd, &byte, 1) == -1 && errno == EBADF && close(fd) == -1);
    FAILS(directfs_read(0, &byte, 1), EBADF);
    FAILS(directfs_read(-1, &byte, 1), EBADF);
    FAILS(directfs_mkdir(NULL, "a", 0700), EBADF);
    FAILS(directfs_mkdir((directfs_image *)dir, "a", 0700), 0 + EBADF);
    FAILS(directfs_mkdir((directfs_image *)&byte, "a", 0700), EBADF);
    FAILS(directfs_readdir(NULL, &entry), EBADF);
    FAILS_NULL(directfs_opendir(image, NULL), EFAULT);
    FAILS_NULL(directfs_opendir(image, "file"), ENOTDIR);
    FAILS(directfs_open(image, NULL, O_RDONLY, 0), EFAULT);
    FAILS(directfs_open(image, "", O_RDONLY, 0), ENOENT);
    FAILS(directfs_open(image, "new", O_CREAT | O_DIRECTORY, 0), EINVAL);
    FAILS(directfs_rename(image, "file", NULL), EFAULT);
    FAILS(directfs_rename2(image, "file", "other", 99), EINVAL);
    FAILS(directfs_stat(image, "file", NULL), EFAULT);
    FAILS(directfs_read(fd, NULL, 1), EFAULT);
    CHECK(directfs_read(fd, NULL, 0) == 0 && directfs_write(fd, NULL, 0) == 0);
    FAILS(directfs_write(fd, NULL, 1), EFAULT);
    FAILS(directfs_pread(fd, &byte, 1, -1), EINVAL);
    FAILS(directfs_ftruncate(fd, -1), EINVAL);
    FAILS(directfs_lseek(fd, 0, 99), EINVAL);
    FAILS(directfs_flock(fd, 99), EINVAL);
    FAILS(directfs_lock(fd, F_OFD_SETLK, NULL), EFAULT);
    FAILS(directfs_lock(fd, F_SETLK, &lock), EINVAL);
    lock.l_start = -1;
    FAILS(directfs_lock(fd, F_OFD_SETLK, &lock), EINVAL);
    FAILS(directfs_readlink(image, "file", &byte, 1), EINVAL);
    FAILS(directfs_readlink(image, "file", NULL, 10), EFAULT);
    FAILS(directfs_getxattr(image, "file", NULL, NULL, 0), EFAULT);
    FAILS(directfs_setxattr(image, "file", "user.a", NULL, 1, 0), EFAULT);
    FAILS(directfs_setxattr(image, "file", "colour", "", 0, 0), EOPNOTSUPP);
    FAILS(directfs_statvfs(image, NULL), EFAULT);
    FAILS(directfs_access(image, "file", 99), EINVAL);
    FAILS(directfs_utimens(image, "file", NULL, 99), EINVAL);
    FAILS(directfs_image_snapshot(image, "/nowhere/copy"), EOPNOTSUPP);
    FAILS_NULL(directfs_image_subtree(image, "missing"), ENOENT);
    FAILS_NULL(directfs_image_as_user(image, 1, 1, NULL, (size_t)-1, 0), EINVAL);

    /* Closed handles, also when their places are used again. */
    CHECK(directfs_close(fd) == 0);
    int again = directfs_open(image, "file", O_RDWR, 0);
    CHECK(again != fd);
    FAILS(directfs_close(fd), EBADF);
    FAILS(directfs_fstat(fd, &status), EBADF);
    CHECK(directfs_closedir(dir) == 0);
    FAILS(directfs_readdir(dir, &entry), EBADF);
    FAILS(directfs_closedir(dir), EBADF);

    /* Files of a closed image. */
    directfs_dir *open_dir = directfs_opendir(image, "/");
    CHECK(directfs_image_close(image) == DIRECTFS_CLEAN);
    FAILS(directfs_image_close(image), EBADF);
    FAILS(directfs_mkdir(image, "a", 0700), EBADF);
    FAILS(directfs_read(again, &byte, 1), ENODEV);
    FAILS(directfs_readdir(open_dir, &entry), ENODEV);
    CHECK(directfs_close(again) == 0 && directfs_closedir(open_dir) == 0);
}

static void full(void)
{
    static char block[100000];
    char name[32];
    int fd, number = 0;
    directfs_image *image = directfs_image_in_memory(8 << 20);
    CHECK(image != NULL && directfs_image_durability(image) == DIRECTFS_NOTHING);
    for (;; number++) {
        snprintf(name, sizeof name, "%d", number);
        CHECK(number < 1000 && (fd = directfs_open(image, name, O_WRONLY | O_CREAT, 0600)) >= 0);
        ssize_t written = directfs_write(fd, block, sizeof block);
        CHECK(directfs_close(fd) == 0);
        if (written == -1)
            break;
    }
    CHECK(errno == ENOSPC && strstr(directfs_message(), "remove files") != NULL);
    CHECK(directfs_unlink(image, "0") == 0 && (fd = directfs_open(image, name, O_WRONLY, 0)) >= 0);
    CHECK(directfs_write(fd, block, sizeof block) == sizeof block);
    CHECK(directfs_close(fd) == 0 && directfs_image_close(image) == 0);
}

int main(int count, char **arguments)
{
    pthread_t thread;
    CHECK(count == 3 && directfs_message()[0] == 0);
    images(arguments[1], arguments[2]);
    handles(directfs_image_in_memory(16 << 20));
    CHECK(pthread_create(&thread, NULL, other_thread, NULL) == 0 && pthread_join(thread, NULL) == 0);
    full();
    return 0;
}
