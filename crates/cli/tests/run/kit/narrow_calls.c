/* 32-bit system calls of a 64-bit program. usage: narrow_calls [NUMBER]: makes that call as well */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
static char *low;
static long narrow(long number, long first, long second, long third) {
    register long r8 __asm__("r8") = 8, r10 __asm__("r10") = 10, r11 __asm__("r11") = 11;
    long result, rdi = 7, rsi = 6;
    __asm__ volatile("int $0x80"
                     : "=a"(result), "+D"(rdi), "+S"(rsi), "+r"(r8), "+r"(r10), "+r"(r11)
                     : "a"(number), "b"(first), "c"(second), "d"(third) : "memory");
    if (rdi != 7 || rsi != 6 || r8 != 8 || r10 != 10 || r11 != 11) puts("a register was lost");
    return (int)result;
}
int main(int count, char **arguments) {
    low = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_32BIT, -1, 0);
    strcpy(low, "made"); strcpy(low + 100, "none"); strcpy(low + 200, "content\n");
    long name = (long)low, absent = name + 100, text = name + 200;
    int fd = narrow(5, name, 0102, 0644);
    printf("opened %d, wrote %ld, back %ld", fd >= 0, narrow(4, fd, text, 8), narrow(19, fd, -4, 1));
    printf(", read %ld %.3s", narrow(3, fd, name + 300, 3), low + 300);
    printf(", closed %ld", narrow(6, fd, 0, 0));
    printf(", absent %ld, bad pointer %ld\n", narrow(5, absent, 0, 0), narrow(5, 8, 0, 0));
    printf("kernel's %ld\n", narrow(122, name + 400, 0, 0));
    fflush(stdout);
    if (count > 1) printf("other %ld\n", narrow(atol(arguments[1]), name, 0, 0));
    return 0;
}
