/* Stores a byte before and behind each region that the program shares with others, from children.
   Prints each store that does not end its child by SIGSEGV, and each side of a region at which
   memory of the program can lie. */
#define _GNU_SOURCE
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { REGIONS_MAX = 64, REGION_BYTES_MIN = 1 << 20, PAGE_BYTES = 4096 };
static unsigned long starts[REGIONS_MAX], ends[REGIONS_MAX];

static void store_in_child(const char *where, unsigned long address)
{
    void *page = (void *)(address & ~(PAGE_BYTES - 1UL));
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE;
    if (mmap(page, PAGE_BYTES, PROT_READ, flags, -1, 0) != MAP_FAILED) {
        printf("%s %lx: free\n", where, address);
        munmap(page, PAGE_BYTES);
    }
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        *(volatile char *)address = 1;
        _exit(0);
    }
    int status = 0;
    waitpid(child, &status, 0);
    if (!WIFSIGNALED(status) || WTERMSIG(status) != SIGSEGV)
        printf("%s %lx: status %x\n", where, address, status);
}

int main(void)
{
    FILE *maps = fopen("/proc/self/maps", "r");
    char line[4096], access[5];
    unsigned long start, end;
    int count = 0, regions = 0;
    while (fgets(line, sizeof line, maps)) {
        if (sscanf(line, "%lx-%lx %4s", &start, &end, access) != 3 || access[3] != 's')
            continue;
        if (count > 0 && ends[count - 1] == start) {
            ends[count - 1] = end;
            continue;
        }
        if (count == REGIONS_MAX)
            return 2;
        starts[count] = start;
        ends[count++] = end;
    }
    fclose(maps);
    for (int index = 0; index < count; index++) {
        if (ends[index] - starts[index] < REGION_BYTES_MIN)
            continue;
        regions++;
        store_in_child("before", starts[index] - 1);
        store_in_child("behind", ends[index]);
    }
    printf("%s\n", regions >= 2 ? "regions" : "no regions");
    return 0;
}
