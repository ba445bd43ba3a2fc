// Stores to pages of mappings that come later, with all registers and flags in use.
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { PAGE = 4096, PAGES = 5, VECTORS = 32, VECTOR_BYTES = 64 };

static unsigned char before[VECTORS][VECTOR_BYTES], after[VECTORS][VECTOR_BYTES];

// The instruction for vector N of the general kind: its first registers, or all.
#define LOAD_YMM(N) "vmovdqu 64*" #N "(%[before]), %%ymm" #N "\n"
#define STORE_YMM(N) "vmovdqu %%ymm" #N ", 64*" #N "(%[after])\n"
#define LOAD_ZMM(N) "vmovdqu64 64*" #N "(%[before]), %%zmm" #N "\n"
#define STORE_ZMM(N) "vmovdqu64 %%zmm" #N ", 64*" #N "(%[after])\n"
#define LOW(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11) X(12) X(13) X(14) X(15)
#define HIGH(X) X(16) X(17) X(18) X(19) X(20) X(21) X(22) X(23) X(24) X(25) X(26) X(27) X(28) X(29) X(30) X(31)

// Stores a byte with the stack moved down, the carry and the direction set, and r8 to r15 in use.
// Returns the flags, and whether a register changed.
#define STORE(LOADS, STORES)                                                                        \
    asm volatile(LOADS                                                                              \
                 "mov %%rsp, %%rbx\n"                                                               \
                 "sub %[down], %%rsp\n"                                                             \
                 "mov $8, %%r8\n mov $9, %%r9\n mov $10, %%r10\n mov $11, %%r11\n mov $12, %%rcx\n" \
                 "mov $13, %%rax\n"                                                                 \
                 "movq $77, -128(%%rsp)\n"                                                          \
                 "std\n stc\n"                                                                      \
                 "movb $7, (%[at])\n"                                                               \
                 "pushfq\n pop %[flags]\n"                                                          \
                 "cld\n"                                                                            \
                 "add %%r8, %%r9\n add %%r9, %%r10\n add %%r10, %%r11\n add %%r11, %%rcx\n"         \
                 "add %%rcx, %%rax\n add -128(%%rsp), %%rax\n"                                      \
                 "mov %%rax, %[sum]\n"                                                              \
                 "mov %%rbx, %%rsp\n" STORES                                                        \
                 : [flags] "=&r"(flags), [sum] "=&r"(sum)                                           \
                 : [before] "r"(before), [after] "r"(after), [at] "r"(at), [down] "r"(down)         \
                 : "memory", "cc", "rax", "rbx", "rcx", "r8", "r9", "r10", "r11")

// What a store to this address did to registers; zero if nothing.
static int changed(volatile unsigned char *at, unsigned long down) {
    unsigned long flags, sum;
    int vectors = 0, bytes = 0;
    memset(after, 0, sizeof after);
    if (__builtin_cpu_supports("avx512f")) {
        vectors = 32, bytes = 64;
        STORE(LOW(LOAD_ZMM) HIGH(LOAD_ZMM), LOW(STORE_ZMM) HIGH(STORE_ZMM));
    } else if (__builtin_cpu_supports("avx")) {
        vectors = 16, bytes = 32;
        STORE(LOW(LOAD_YMM), LOW(STORE_YMM));
    } else {
        STORE("", "");
    }
    int result = sum != 8 + 9 + 10 + 11 + 12 + 13 + 77;
    // Bit 0 is the carry, bit 10 the direction.
    result |= (flags & 0x401) != 0x401 ? 2 : 0;
    for (int vector = 0; vector < vectors; vector++)
        result |= memcmp(before[vector], after[vector], bytes) ? 4 : 0;
    return result;
}

// Moves bytes up within the mapping, from the last to the first, as some libraries do.
static void move_up(unsigned char *to, const unsigned char *from, unsigned long count) {
    to += count - 1, from += count - 1;
    asm volatile("std\n rep movsb\n cld" : "+D"(to), "+S"(from), "+c"(count) : : "memory", "cc");
}

static unsigned char *map(int file, int length) {
    ftruncate(file, length);
    unsigned char *at = mmap(0, PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    ftruncate(file, PAGES * PAGE);
    return at;
}

int main() {
    for (int vector = 0; vector < VECTORS; vector++) memset(before[vector], vector + 1, VECTOR_BYTES);
    int file = open("mapped", O_RDWR | O_CREAT | O_TRUNC, 0644);
    for (unsigned long down = 256; down < 256 + 128; down += 8) {
        ftruncate(file, 0);
        write(file, "x", 1);
        unsigned char *at = map(file, 1);
        int result = changed(at + 2 * PAGE + 7, down);
        if (result) printf("registers changed: %d\n", result);
        if (at[2 * PAGE + 7] != 7) puts("the store is lost");
        munmap(at, PAGES * PAGE);
    }
    ftruncate(file, 0);
    unsigned char *at = map(file, PAGE);
    memset(at, 'm', PAGE);
    move_up(at + 2 * PAGE - 100, at, PAGE);
    int wrong = 0;
    for (int byte = 2 * PAGE - 100; byte < 3 * PAGE - 100; byte++) wrong += at[byte] != 'm';
    for (int byte = 3 * PAGE - 100; byte < PAGES * PAGE; byte++) wrong += at[byte] != 0;
    printf("%d bytes are wrong\n", wrong);
    return 0;
}
