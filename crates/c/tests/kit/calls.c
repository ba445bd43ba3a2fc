/* Every call once, as a program uses it: calls IMAGE SNAPSHOT */
#include "check.h"
#include <sys/file.h>
#include <sys/xattr.h>
#include <unistd.h>

static void names(directfs_image *image)
{
    char target[16];
    struct stat one, other;
    CHECK(directfs_mkdir(image, "a", 0750) == 0);
    CHECK(directfs_mkdirs(image, "/a/b/c") == 0);
    CHECK(directfs_stat(image, "a", &one) == 0 && S_ISDIR(one.st_mode) && (one.st_mode & 07777) == 0750);
    int fd = directfs_open(image, "a/file", O_WRONLY | O_CREAT | O_EXCL, 0640);
    CHECK(fd >= 0 && directfs_write(fd, "content", 7) == 7 && directfs_close(fd) == 0);
    FAILS(directfs_open(image, "a/file", O_WRONLY | O_CREAT | O_EXCL, 0640), EEXIST);
    CHECK(directfs_link(image, "a/file", "a/second") == 0);
    CHECK(directfs_stat(image, "a/file", &one) == 0 && directfs_stat(image, "a/second", &other) == 0);
    CHECK(one.st_ino == other.st_ino && one.st_dev == other.st_dev && one.st_nlink == 2 && one.st_size == 7);
    CHECK(directfs_symlink(image, "file", "a/link") == 0);
    CHECK(directfs_lstat(image, "a/link", &other) == 0 && S_ISLNK(other.st_mode));
    CHECK(directfs_stat(image, "a/link", &other) == 0 && other.st_ino == one.st_ino);
    CHECK(directfs_readlink(image, "a/link", target, sizeof target) == 4 && memcmp(target, "file", 4) == 0);
    CHECK(directfs_readlink(image, "a/link", target, 2) == 2);
    FAILS(directfs_open(image, "a/link", O_RDONLY | O_NOFOLLOW, 0), ELOOP);
    FAILS(directfs_open(image, "a/file", O_RDONLY | O_DIRECTORY, 0), ENOTDIR);
    CHECK(directfs_rename(image, "a/second", "moved") == 0);
    FAILS(directfs_rename2(image, "moved", "a/file", 1), EEXIST);
    CHECK(directfs_rename2(image, "moved", "a/b", 2) == 0);
    CHECK(directfs_stat(image, "moved", &other) == 0 && S_ISDIR(other.st_mode));
    CHECK(directfs_copy(image, "a/file", "copy") == 7);
    CHECK(directfs_access(image, "copy", R_OK | W_OK) == 0);
    FAILS(directfs_rmdir(image, "moved"), ENOTEMPTY);
    CHECK(directfs_rmdir(image, "moved/c") == 0 && directfs_unlink(image, "a/link") == 0);
    CHECK(directfs_remove_tree(image, "a") == 0);
    FAILS(directfs_stat(image, "a/file", &one), ENOENT);
    CHECK(strstr(directfs_message(), "a/file") && strstr(directfs_message(), "check the path"));
}

static void contents(directfs_image *image)
{
    char bytes[100];
    struct stat status;
    int fd = directfs_open(image, "data", O_RDWR | O_CREAT, 0600);
    CHECK(directfs_write(fd, "hello ", 6) == 6 && directfs_write(fd, "world", 5) == 5);
    CHECK(directfs_pwrite(fd, "W", 1, 6) == 1 && directfs_pread(fd, bytes, sizeof bytes, 6) == 5);
    CHECK(memcmp(bytes, "World", 5) == 0);
    CHECK(directfs_lseek(fd, 0, SEEK_CUR) == 11 && directfs_lseek(fd, -5, SEEK_END) == 6);
    CHECK(directfs_read(fd, bytes, 2) == 2 && memcmp(bytes, "Wo", 2) == 0);
    int second = directfs_dup(fd);
    CHECK(second != fd && directfs_read(second, bytes, 1) == 1 && bytes[0] == 'r');
    CHECK(directfs_close(fd) == 0 && directfs_ftruncate(second, 1 << 20) == 0);
    CHECK(directfs_fstat(second, &status) == 0 && status.st_size == 1 << 20 && status.st_blocks < 100);
    CHECK(directfs_lseek(second, 100000, SEEK_HOLE) == 100000);
    FAILS(directfs_lseek(second, 100000, SEEK_DATA), ENXIO);
    CHECK(directfs_fallocate(second, 0, 65536, 8192) == 0);
    CHECK(directfs_fsync(second) == 0 && directfs_fdatasync(second) == 0);
    CHECK(directfs_truncate(image, "data", 5) == 0 && directfs_lseek(second, 0, SEEK_END) == 5);
    FAILS(directfs_lseek(second, -1, SEEK_SET), EINVAL);
    CHECK(directfs_close(second) == 0);
    fd = directfs_open(image, "data", O_WRONLY | O_APPEND, 0);
    CHECK(directfs_pwrite(fd, "!", 1, 0) == 1 && directfs_lseek(fd, 0, SEEK_END) == 6);
    FAILS(directfs_read(fd, bytes, 1), EBADF);
    CHECK(directfs_close(fd) == 0);
}

static void attributes(directfs_image *image)
{
    char value[100];
    struct stat status;
    struct statvfs space;
    struct timespec times[2] = {{.tv_sec = -1, .tv_nsec = 250000000}, {.tv_nsec = UTIME_OMIT}};
    int fd = directfs_open(image, "data", O_RDWR, 0);
    CHECK(directfs_chmod(image, "data", 04711) == 0 && directfs_stat(image, "data", &status) == 0);
    CHECK((status.st_mode & 07777) == 04711 && directfs_fchmod(fd, 0600) == 0);
    CHECK(directfs_utimens(image, "data", times, 0) == 0 && directfs_fstat(fd, &status) == 0);
    CHECK(status.st_atim.tv_sec == -1 && status.st_atim.tv_nsec == 250000000 && status.st_mtim.tv_sec > 1000);
    times[1].tv_nsec = UTIME_NOW;
    times[0].tv_nsec = UTIME_NOW;
    CHECK(directfs_futimens(fd, times) == 0 && directfs_fstat(fd, &status) == 0 && status.st_atim.tv_sec > 1000);
    CHECK(directfs_utimens(image, "data", NULL, 0) == 0 && directfs_futimens(fd, NULL) == 0);
    times[0].tv_nsec = 1000000000;
    FAILS(directfs_utimens(image, "data", times, 0), EINVAL);
    CHECK(directfs_chown(image, "data", -1, -1) == 0 && directfs_fchown(fd, getuid(), -1) == 0);
    CHECK(directfs_symlink(image, "data", "link") == 0 && directfs_lchown(image, "link", -1, getgid()) == 0);
    times[0].tv_nsec = 0;
    CHECK(directfs_utimens(image, "link", times, AT_SYMLINK_NOFOLLOW) == 0);
    CHECK(directfs_lstat(image, "link", &status) == 0 && status.st_atim.tv_sec == -1);

    CHECK(directfs_setxattr(image, "data", "user.colour", "blue", 4, XATTR_CREATE) == 0);
    FAILS(directfs_setxattr(image, "data", "user.colour", "red", 3, XATTR_CREATE), EEXIST);
    FAILS(directfs_fsetxattr(fd, "user.shape", "", 0, XATTR_REPLACE), ENODATA);
    CHECK(directfs_fsetxattr(fd, "user.empty", NULL, 0, 0) == 0);
    CHECK(directfs_getxattr(image, "data", "user.colour", NULL, 0) == 4);
    CHECK(directfs_fgetxattr(fd, "user.colour", value, sizeof value) == 4 && memcmp(value, "blue", 4) == 0);
    FAILS(directfs_getxattr(image, "data", "user.colour", value, 3), ERANGE);
    FAILS(directfs_fgetxattr(fd, "user.none", value, 3), ENODATA);
    CHECK(directfs_listxattr(image, "data", value, sizeof value) == 23);
    CHECK(directfs_flistxattr(fd, NULL, 0) == 23);
    CHECK(directfs_fremovexattr(fd, "user.empty") == 0);
    CHECK(directfs_removexattr(image, "data", "user.colour") == 0 && directfs_flistxattr(fd, NULL, 0) == 0);
    CHECK(directfs_statvfs(image, &space) == 0 && space.f_namemax == 255 && space.f_bfree < space.f_blocks);
    CHECK(directfs_close(fd) == 0);
}

static void listings(directfs_image *image)
{
    struct dirent entry;
    int found = 0, directories = 0, more;
    CHECK(directfs_mkdirs(image, "list/sub") == 0);
    for (int number = 0; number < 1000; number++) {
        char name[32];
        snprintf(name, sizeof name, "list/%d", number);
        int fd = directfs_open(image, name, O_WRONLY | O_CREAT, 0600);
        CHECK(fd >= 0 && directfs_close(fd) == 0);
    }
    directfs_dir *dir = directfs_opendir(image, "list");
    for (int turn = 0; turn < 2; turn++) {
        while ((more = directfs_readdir(dir, &entry)) == 1) {
            found++;
            directories += entry.d_type == DT_DIR && strcmp(entry.d_name, "sub") == 0;
        }
        CHECK(more == 0 && directfs_readdir(dir, &entry) == 0 && directfs_rewinddir(dir) == 0);
    }
    CHECK(found == 2002 && directories == 2 && directfs_closedir(dir) == 0);
}

static void views(directfs_image *image)
{
    struct stat status;
    gid_t groups[] = {50};
    CHECK(directfs_mkdir(image, "home", 0755) == 0 && directfs_chown(image, "home", 1000, 50) == 0);
    directfs_image *user = directfs_image_as_user(image, 1000, 1000, groups, 1, 077);
    int fd = directfs_open(user, "home/letter", O_WRONLY | O_CREAT, 0666);
    CHECK(fd >= 0 && directfs_close(fd) == 0 && directfs_stat(user, "home/letter", &status) == 0);
    CHECK(status.st_uid == 1000 && (status.st_mode & 0777) == 0600);
    directfs_image *other = directfs_image_as_user(image, 1001, 1001, NULL, 0, 022);
    FAILS(directfs_open(other, "home/letter", O_RDONLY, 0), EACCES);
    FAILS(directfs_unlink(other, "home/letter"), EACCES);
    directfs_image *home = directfs_image_subtree(image, "home");
    CHECK(directfs_stat(home, "../letter", &status) == 0);
    FAILS(directfs_stat(home, "../data", &status), ENOENT);
    FAILS(directfs_image_sync(home), EINVAL);
    CHECK(directfs_image_close(home) == 0 && directfs_image_close(user) == 0 && directfs_image_close(other) == 0);
}

int main(int count, char **arguments)
{
    directfs_create_options create = {.size_bytes = 32 << 20, .label = "calls", .root_mode = 0755};
    directfs_open_options read_only = {.flags = DIRECTFS_READ_ONLY};
    struct stat status;
    CHECK(count == 3 && strlen(directfs_version()) > 4);
    directfs_image *image = directfs_image_create(arguments[1], &create);
    CHECK(image != NULL && directfs_image_was_recovered(image) == 0);
    names(image);
    contents(image);
    attributes(image);
    listings(image);
    if (getuid() == 0)
        views(image);
    CHECK(directfs_image_durability(image) == DIRECTFS_PROCESS_DEATH && directfs_image_sync(image) == 0);
    CHECK(directfs_image_snapshot(image, arguments[2]) == 0);
    FAILS(directfs_image_snapshot(image, arguments[2]), EEXIST);
    CHECK(directfs_unlink(image, "data") == 0 && directfs_image_close(image) == DIRECTFS_CLEAN);
    /* A copy of an image in use is recovered by its first open, for one that only reads in memory. */
    image = directfs_image_open(arguments[2], &read_only);
    CHECK(directfs_image_was_recovered(image) == 1 && directfs_stat(image, "data", &status) == 0);
    CHECK(directfs_image_close(image) == DIRECTFS_WAS_READ_ONLY);
    image = directfs_image_open(arguments[2], NULL);
    CHECK(directfs_image_was_recovered(image) == 1 && directfs_image_close(image) == DIRECTFS_CLEAN);
    image = directfs_image_open(arguments[2], &read_only);
    CHECK(image != NULL && directfs_stat(image, "data", &status) == 0 && status.st_size == 6);
    FAILS(directfs_unlink(image, "data"), EROFS);
    CHECK(directfs_image_close(image) == DIRECTFS_WAS_READ_ONLY);
    return 0;
}
