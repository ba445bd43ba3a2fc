/* Locks all memory, and each mapping. */
#define _GNU_SOURCE
#include <stdio.h>
#include <sys/mman.h>
static long status(const char *format) {
    char line[256];
    long found = -1;
    FILE *file = fopen("/proc/self/status", "r");
    while (fgets(line, sizeof line, file)) sscanf(line, format, &found);
    fclose(file);
    return found;
}
static void report(const char *what, long result) {
    long locked = status("VmLck: %ld"), shared = status("RssShmem: %ld");
    printf("%s %ld, locked some %d, below 100 MiB %d\n", what, result, locked > 0,
           locked < 100 << 10 && shared < 100 << 10);
}
int main(void) {
    char line[512];
    unsigned long start, end;
    static char own[1 << 20];
    report("all", mlockall(MCL_CURRENT | MCL_FUTURE));
    printf("unlocked %d\n", munlockall());
    report("on fault", mlockall(MCL_CURRENT | MCL_ONFAULT));
    munlockall();
    report("invalid", mlockall(0) + mlockall(64) + mlockall(MCL_ONFAULT));
    report("own", mlock(own, sizeof own));
    FILE *maps = fopen("/proc/self/maps", "r");
    while (fgets(line, sizeof line, maps))
        if (sscanf(line, "%lx-%lx", &start, &end) == 2 && end - start >= 64 << 20) mlock((void *)start, end - start);
    report("each large one", 0);
    return 0;
}
