/* Prints what a function of the C library returns. */
#include <stdio.h>
#include <stdlib.h>

int main(void)
{
    int (*volatile function)(int) = abs;
    printf("%d\n", function(-1));
    return 0;
}
