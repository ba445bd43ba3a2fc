/* Writes a file, and with an argument loses memory, which a sanitizer finds at the end. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void *block;

static void *idle(void *argument) {
    FILE *file = fopen("written", "a");
    fputs("thread\n", file);
    fclose(file);
    return argument;
}

int main(int count, char **arguments) {
    FILE *file = fopen("written", "w");
    pthread_t thread;
    fprintf(file, "%d\n", count);
    fclose(file);
    pthread_create(&thread, 0, idle, 0);
    pthread_join(thread, 0);
    block = malloc(4711);
    memset(block, 1, 4711);
    if (count > 1) block = 0;
    puts("ran");
    fflush(stdout);
    return 0;
}
