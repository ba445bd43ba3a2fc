#include "table.h"
#include <stdlib.h>
#include <string.h>

struct entry { struct entry *next; char *name; double value; };
static struct entry *entries;

double *variable(const char *name) {
    for (struct entry *entry = entries; entry; entry = entry->next)
        if (strcmp(entry->name, name) == 0)
            return &entry->value;
    struct entry *entry = calloc(1, sizeof *entry);
    entry->name = strdup(name);
    entry->next = entries;
    entries = entry;
    return &entry->value;
}
