/* Makes the same system calls many times by instructions of its own, and compares their duration with
   that of a call that must trap. The calls are in the program, or in a library (-DLIBRARY for the
   library, -DPROGRAM for what is linked with it). */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

long hot_pread(int fd, void *into, long bytes, long offset);
long trapping_pread(long number, int fd, void *into, long bytes, long offset);

#ifndef PROGRAM
__attribute__((noinline)) long hot_pread(int fd, void *into, long bytes, long offset) {
    register long r10 __asm__("r10") = offset;
    long result;
    __asm__ volatile("syscall" : "=a"(result) : "a"(SYS_pread64), "D"(fd), "S"(into), "d"(bytes), "r"(r10) : "rcx", "r11", "memory");
    return result;
}

/* The number comes from elsewhere, and no jump of two bytes reaches the end of a function. */
__asm__(".text\n.globl trapping_pread\n.type trapping_pread, @function\ntrapping_pread:\n.cfi_startproc\n"
        "mov %rdi, %rax\nmov %rsi, %rdi\nmov %rdx, %rsi\nmov %rcx, %rdx\nmov %r8, %r10\nsyscall\n"
        ".fill 160, 1, 0x90\nret\n.cfi_endproc\n.size trapping_pread, . - trapping_pread\n");
#endif

#ifndef LIBRARY
enum { ROUNDS = 2000, ATTEMPTS = 50 };

static int fd;

// Time in which other work has the processor does not count.
static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return time.tv_sec * 1e9 + time.tv_nsec;
}

static void *read_often(void *unused) {
    char text[8] = "";
    for (int i = 0; i < ROUNDS; i++)
        if (hot_pread(fd, text, 4, 0) != 4 || strcmp(text, "text")) return "wrong";
    return unused;
}

int main(void) {
    fd = open("file", O_CREAT | O_RDWR, 0644);
    char text[8] = "";
    if (write(fd, "text", 4) != 4) return 1;
    pthread_t threads[3];
    for (int i = 0; i < 3; i++) pthread_create(&threads[i], 0, read_often, 0);
    for (int i = 0; i < 3; i++) {
        void *wrong;
        pthread_join(threads[i], &wrong);
        if (wrong) { puts("wrong"); return 2; }
    }
    for (int attempt = 0; attempt < ATTEMPTS; attempt++) {
        double start = now();
        for (int i = 0; i < ROUNDS; i++)
            if (trapping_pread(SYS_pread64, fd, text, 4, 0) != 4) return 3;
        double traps = now() - start;
        start = now();
        if (read_often(0)) return 4;
        // Interrupts of the machine can disturb one attempt.
        if (now() - start < traps / 3) { puts("few traps"); return 0; }
    }
    puts("slow");
    return 0;
}
#endif
