/* Checks for the programs of the tests: each failure prints its line and ends the program. */
#define _GNU_SOURCE
#include <directfs.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(condition)                                                                           \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "%s:%d: %s: errno %d (%s), message \"%s\"\n", __FILE__, __LINE__,      \
                    #condition, errno, strerror(errno), directfs_message());                       \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

/* The call fails with this errno, and has a message. */
#define FAILS(call, expected)                                                                      \
    do {                                                                                           \
        errno = 0;                                                                                 \
        CHECK((call) == -1);                                                                       \
        CHECK(errno == (expected));                                                                \
        CHECK(directfs_message()[0] != 0);                                                         \
    } while (0)

#define FAILS_NULL(call, expected)                                                                 \
    do {                                                                                           \
        errno = 0;                                                                                 \
        CHECK((call) == NULL);                                                                     \
        CHECK(errno == (expected));                                                                \
    } while (0)
