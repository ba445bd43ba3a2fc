/* A program of 32 bits without a C library: creates the file that its argument names, and writes a
   line there. Built with -m32 -nostdlib -static. */
static long system_call(long number, long first, long second, long third) {
    long result;
    __asm__ volatile("int $0x80" : "=a"(result) : "0"(number), "b"(first), "c"(second), "d"(third) : "memory");
    return result;
}

void begin(char **arguments) {
    enum { EXIT = 1, WRITE = 4, OPEN = 5, WRITE_ONLY_CREATE = 0101 };
    long fd = system_call(OPEN, (long)arguments[1], WRITE_ONLY_CREATE, 0644);
    long count = system_call(WRITE, fd, (long)"narrow\n", 7);
    system_call(EXIT, count != 7, 0, 0);
}

__asm__(".globl _start\n_start: lea 4(%esp), %eax\n push %eax\n call begin\n");
