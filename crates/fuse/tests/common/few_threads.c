/* Loaded before a program: it can start as many threads as THREADS_MOST says, and no more. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

typedef int create(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);

static atomic_int started;

int pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*run)(void *), void *argument)
{
    const char *most = getenv("THREADS_MOST");
    if (most && atomic_fetch_add(&started, 1) >= atoi(most))
        return EAGAIN;
    create *next = (create *)dlsym(RTLD_NEXT, "pthread_create");
    return next(thread, attributes, run, argument);
}
