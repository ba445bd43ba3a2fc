/* A library with system calls by instructions of its own. */
long raw(long number, long a, long b, long c, long d, long e, long f) {
    long result;
    register long r10 __asm__("r10") = d, r8 __asm__("r8") = e, r9 __asm__("r9") = f;
    __asm__ volatile("syscall" : "=a"(result) : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
                     : "rcx", "r11", "memory");
    return result;
}

/* A call whose number is in the instruction before it, in a function that no table describes. */
long raw_getpid(void);
long raw_unlink(const char *path);
/* Data between functions, with the bytes of the instruction. */
extern const unsigned char data[8];
__asm__(".text\n.globl raw_getpid, raw_unlink, data\n"
        ".type raw_getpid, @function\n.type raw_unlink, @function\n"
        "raw_getpid: mov $39, %eax\nsyscall\nret\n"
        "data: .byte 1, 0x0f, 0x05, 2, 0xb8, 0x0f, 0x05, 3\n"
        "raw_unlink: mov $87, %eax\nsyscall\nret\n");
const unsigned char *raw_data(void) { return data; }
