/* A program of more than 128 KiB. With CALLS it makes system calls by instructions of its own. */
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>

__asm__(".text\n.rept 200000\nnop\n.endr\n");

#ifdef CALLS
static long call(long number, long a, long b, long c)
{
    long result;
    __asm__ volatile("syscall" : "=a"(result) : "a"(number), "D"(a), "S"(b), "d"(c) : "rcx", "r11", "memory");
    return result;
}
#endif

int main(int count, char **words)
{
#ifdef CALLS
    long fd = call(SYS_open, (long)words[1], O_CREAT | O_RDWR, 0644);
    return fd < 0 || call(SYS_write, fd, (long)"inline", 6) != 6;
#else
    return 0;
#endif
}
