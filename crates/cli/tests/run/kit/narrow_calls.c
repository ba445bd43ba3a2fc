/* A 32-bit system call of a 64-bit program. usage: narrow_calls NUMBER */
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
int main(int count, char **arguments) {
    long result, low = (long)mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_32BIT, -1, 0);
    puts("begins");
    fflush(stdout);
    __asm__ volatile("int $0x80" : "=a"(result) : "a"(atol(arguments[1])), "b"(low), "c"(0), "d"(0) : "memory");
    return result < 0;
}
