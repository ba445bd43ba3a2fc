/* A ring through liburing, on a file in the working directory. */
#include <fcntl.h>
#include <liburing.h>
#include <stdio.h>
#include <string.h>

int main(void) {
    struct io_uring ring;
    struct io_uring_cqe *found;
    char bytes[8] = {0};
    int made = io_uring_queue_init(8, &ring, 0), fd = open("file", O_RDWR | O_CREAT, 0600);
    if (made) return printf("%d\n", made), 1;
    struct io_uring_sqe *entry = io_uring_get_sqe(&ring);
    io_uring_prep_write(entry, fd, "written", 7, 0);
    entry->flags = IOSQE_IO_LINK;
    io_uring_prep_read(io_uring_get_sqe(&ring), fd, bytes, 7, 0);
    printf("%d", io_uring_submit_and_wait(&ring, 2));
    for (int i = 0; i < 2 && io_uring_wait_cqe(&ring, &found) == 0; i++) {
        printf(" %d", found->res);
        io_uring_cqe_seen(&ring, found);
    }
    printf(" %s\n", bytes);
    io_uring_queue_exit(&ring);
    return 0;
}
