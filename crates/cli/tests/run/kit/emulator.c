// Stands for an emulator, which the kernel starts for programs of a registered format: shows its
// arguments, and the first line of the program.
#include <stdio.h>

int main(int count, char **arguments) {
    char line[64] = "not found\n";
    FILE *program = count > 1 ? fopen(arguments[1], "r") : 0;
    if (program) fgets(line, sizeof line, program);
    for (int at = 1; at < count; at++) printf("%s ", arguments[at]);
    printf("%s", line);
    FILE *made = fopen("made", "a");
    return made ? fputs("made\n", made) < 0 || fclose(made) : 2;
}
