/*
 * A mail spool in an image: writes each message whole, gives it its name at once, lists the spool,
 * and takes a snapshot.
 *
 *   cc spool.c $(pkg-config --cflags --libs directfs) -o spool && ./spool mail.img
 */
#include <directfs.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void fail(const char *what)
{
    fprintf(stderr, "spool: %s: %s\n", what, directfs_message());
    exit(1);
}

static directfs_image *open_or_create(const char *file)
{
    directfs_create_options create = {.size_bytes = 64 << 20, .label = "mail"};
    directfs_image *image = directfs_image_open(file, NULL);
    if (image == NULL && errno == ENOENT)
        image = directfs_image_create(file, &create);
    if (image == NULL)
        fail(file);
    return image;
}

static void deliver(directfs_image *image, int number, const char *text)
{
    char name[32];
    int fd = directfs_open(image, "tmp/message", O_WRONLY | O_CREAT | O_TRUNC, 0600);
    if (fd == -1 || directfs_write(fd, text, strlen(text)) != (ssize_t)strlen(text))
        fail("cannot write a message");
    /* On an image on a disk, this makes it survive a power failure. Elsewhere it costs little. */
    if (directfs_fsync(fd) == -1 || directfs_close(fd) == -1)
        fail("cannot sync a message");
    snprintf(name, sizeof name, "new/%d", number);
    if (directfs_rename(image, "tmp/message", name) == -1)
        fail("cannot deliver a message");
}

int main(int count, char **arguments)
{
    struct dirent entry;
    struct stat status;
    char path[300];
    int more, messages = 0;
    long long bytes = 0;
    if (count != 2 && count != 3) {
        fprintf(stderr, "usage: spool IMAGE [SNAPSHOT]\n");
        return 2;
    }
    directfs_image *image = open_or_create(arguments[1]);
    if (directfs_mkdirs(image, "new") == -1 || directfs_mkdirs(image, "tmp") == -1)
        fail("cannot create the spool");
    for (int number = 0; number < 100; number++)
        deliver(image, number, "Subject: hello\n\nfrom C\n");
    directfs_dir *dir = directfs_opendir(image, "new");
    if (dir == NULL)
        fail("cannot list the spool");
    while ((more = directfs_readdir(dir, &entry)) == 1) {
        snprintf(path, sizeof path, "new/%s", entry.d_name);
        if (directfs_stat(image, path, &status) == -1)
            fail(path);
        messages++;
        bytes += status.st_size;
    }
    if (more == -1 || directfs_closedir(dir) == -1)
        fail("cannot list the spool");
    if (count == 3 && directfs_image_snapshot(image, arguments[2]) == -1)
        fail("cannot take a snapshot");
    printf("%d messages, %lld bytes\n", messages, bytes);
    if (directfs_image_close(image) == -1)
        fail("cannot close the image");
    return 0;
}
