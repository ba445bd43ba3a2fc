// Prints the environment, as the list behind the arguments has it, and then what the kernel's
// auxiliary vector behind that list says: also to a program that searches it there itself.

#include <elf.h>
#include <stdio.h>
#include <sys/auxv.h>
#include <unistd.h>

extern char **environ;

int main(int count, char **words) {
    char **entry = words + count + 1;
    if (entry != environ)
        puts("another list");
    for (; *entry; entry++)
        puts(*entry);
    unsigned long page = 0, random = 0, pairs = 0, unknown = 0;
    for (Elf64_auxv_t *pair = (Elf64_auxv_t *)(entry + 1); pair->a_type != AT_NULL; pair++) {
        page = pair->a_type == AT_PAGESZ ? pair->a_un.a_val : page;
        random = pair->a_type == AT_RANDOM ? pair->a_un.a_val : random;
        pairs += pair->a_type != AT_IGNORE;
        unknown += pair->a_type > AT_MINSIGSTKSZ;
    }
    int is_right = page == sysconf(_SC_PAGESIZE) && random == getauxval(AT_RANDOM) && pairs > 10;
    printf("right %d, unknown %lu\n", is_right, unknown);
}
