#include "parser.h"
#include "version.h"
#include <stdio.h>
#include <string.h>

static int answer(const char *text) {
    double result;
    if (evaluate(text, &result)) {
        puts("error");
        return 1;
    }
    printf("%g\n", result);
    return 0;
}

int main(int argc, char **argv) {
    char line[1000];
    if (argc > 1 && strcmp(argv[1], "--version") == 0)
        return puts("calc " VERSION) < 0;
    if (argc > 1)
        return answer(argv[1]);
    while (fgets(line, sizeof line, stdin))
        answer(line);
    return 0;
}
