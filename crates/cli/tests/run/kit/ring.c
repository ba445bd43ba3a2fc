/* Asks liburing for a ring. */
#include <liburing.h>
#include <stdio.h>
int main(void) {
    struct io_uring ring;
    return printf("%d\n", io_uring_queue_init(8, &ring, 0)) < 0;
}
