/* Makes the calls of a table in a directory; prints the result of each, and the tree that they left.

   usage: calls TABLE DIRECTORY [SECTION]

   Every file system must give the same results, except for the differences listed in the table;
   `main.rs` compares them. A line of output consists of the line number in the table, a tab, and
   the result. Results are those of the bare system call: a number or the name of an errno, and the
   bytes written through its pointers.

   In the table, `== title` begins a section, which works in an empty directory of its own; `#`
   begins a comment; `||` begins the part for main.rs. Any other line is a call:

     [name =] [as UID:GID[,GROUP...] | real UID | without CAPABILITY | child | running "PROGRAM" |
       stamps "PATH" | watch "PATH" | repeat COUNT]... CALL ARGUMENT...

   CALL is the name of a system call or of one of the `builtins` below. Arguments:

     12 0x1f 0644 -1 O_RDWR|O_CREAT     numbers; every constant of `constants`
     $name                               the result of an earlier call
     "text\n\0\x41%"                     a string; % is the number of the repetition
     rep:d/:100                          a repeated string
     null bad kernel                     invalid pointers
     out:10 list:100 dents:100           a buffer; prints its bytes, zero-separated names, or
                                         directory entries
     int:0 off:0                         a number of 4 or 8 bytes; prints its final value
     stat: statx: statfs:                a status; prints the fields that are the same everywhere
     times:1.5,now  omit                 two timestamps
     how:FLAGS,MODE,RESOLVE  lock:TYPE,WHENCE,START,LENGTH
     iov:ab,cde  room:1,10               buffers to write from, to read into
     acl:u=7,u1000=4,g=5,m=7,o=0         the value of an access control list
     xattr:VALUE,FLAGS                   a value for the calls with flags; prints its final value */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <linux/falloc.h>
#include <linux/fs.h>
#include <linux/openat2.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <time.h>
#include <unistd.h>
#include "constants.h"

enum { ROOM = 1 << 18, WORDS_MAX = 40, VARIABLES_MAX = 64, ARGUMENTS = 6 };

static int line_number;
static long repetition;

static void fail(const char *what, ...) {
    va_list all;
    va_start(all, what);
    fprintf(stderr, "line %d: ", line_number);
    vfprintf(stderr, what, all);
    fprintf(stderr, "\n");
    exit(2);
}

/* The output for a line. */
static char said[ROOM];
static size_t said_length;

static void say(const char *format, ...) {
    va_list all;
    va_start(all, format);
    said_length += vsnprintf(said + said_length, sizeof said - said_length, format, all);
    va_end(all);
    if (said_length >= sizeof said) fail("the output of a line is too long");
}

/* Prints bytes in a readable form: runs of more than eight equal bytes as byte*count. */
static void say_bytes(const char *bytes, size_t length) {
    say("\"");
    for (size_t at = 0; at < length;) {
        size_t run = 1;
        while (at + run < length && bytes[at + run] == bytes[at]) run++;
        unsigned char byte = bytes[at];
        size_t times = run > 8 ? 1 : run;
        for (size_t time = 0; time < times; time++) say(byte >= 32 && byte < 127 && byte != '"' && byte != '\\' ? "%c" : "\\x%02x", byte);
        if (run > 8) say("*%zu", run);
        at += run;
        if (said_length > ROOM / 2) { say("..."); break; }
    }
    say("\"");
}

static uint64_t hash(const char *bytes, size_t length) {
    uint64_t sum = 0xcbf29ce484222325;
    for (size_t at = 0; at < length; at++) sum = (sum ^ (unsigned char)bytes[at]) * 0x100000001b3;
    return sum;
}

/* The words of a line, separated by spaces outside quotes. */
struct word { char text[600]; size_t length; };

static int hex(char digit) { return digit <= '9' ? digit - '0' : (digit | 32) - 'a' + 10; }

static const char *quoted(const char *from, struct word *word) {
    while (*from && *from != '"') {
        char byte = *from++;
        if (byte == '\\') {
            byte = *from++;
            if (byte == 'n') byte = '\n';
            else if (byte == '0') byte = 0;
            else if (byte == 'x') { byte = hex(from[0]) * 16 + hex(from[1]); from += 2; }
        } else if (byte == '%' && *from != '%') {
            word->length += sprintf(word->text + word->length, "%ld", repetition);
            continue;
        }
        word->text[word->length++] = byte;
    }
    if (*from != '"') fail("unterminated quote");
    return from + 1;
}

static int split(const char *line, struct word *words) {
    int count = 0;
    for (;;) {
        while (*line == ' ') line++;
        if (!*line || *line == '\n' || !strncmp(line, "||", 2)) return count;
        if (count == WORDS_MAX) fail("too many words");
        struct word *word = &words[count++];
        word->length = 0;
        if (*line == '"') {
            word->text[word->length++] = '"';
            line = quoted(line + 1, word);
        } else
            while (*line && *line != ' ' && *line != '\n') word->text[word->length++] = *line++;
        word->text[word->length] = 0;
    }
}

static struct { char name[24]; long value; } variables[VARIABLES_MAX];
static int variable_count;

static long *variable(const char *name) {
    for (int at = 0; at < variable_count; at++)
        if (!strcmp(variables[at].name, name)) return &variables[at].value;
    return NULL;
}

static void set_variable(const char *name, long value) {
    long *there = variable(name);
    if (!there) {
        if (variable_count == VARIABLES_MAX) fail("too many variables");
        snprintf(variables[variable_count].name, sizeof variables->name, "%s", name);
        there = &variables[variable_count++].value;
    }
    *there = value;
}

/* A number, a constant, a variable, or several of them joined by |. */
static long number(const char *text) {
    long sum = 0;
    char part[64];
    while (*text) {
        size_t length = strcspn(text, "|");
        if (length >= sizeof part) fail("%s is too long", text);
        memcpy(part, text, length);
        part[length] = 0;
        text += length + (text[length] == '|');
        char *end;
        if (*part == '$') {
            long *value = variable(part + 1);
            if (!value) fail("unknown variable %s", part);
            sum |= *value;
        } else if (*part == '-' || (*part >= '0' && *part <= '9')) {
            sum |= *part == '-' ? strtol(part, &end, 0) : (long)strtoul(part, &end, 0);
            if (*end) fail("%s is not a number", part);
        } else {
            const struct constant *found = constants;
            while (found->name && strcmp(found->name, part)) found++;
            if (!found->name) fail("unknown constant %s", part);
            sum |= found->value;
        }
    }
    return sum;
}

/* Removes and returns the part before the comma. */
static long next_number(char **list) {
    char *part = strsep(list, ",");
    return part ? number(part) : 0;
}

/* An argument, with the data for printing what the call wrote through it. */
enum kind { PLAIN, OUT, LIST, DENTS, INT, OFF, STAT, STATX, STATFS, LOCK, PIECES, VALUE };
struct argument { enum kind kind; long value; char *room; };
static char rooms[ARGUMENTS][ROOM];

static struct timespec moment(const char *text) {
    if (!strcmp(text, "now")) return (struct timespec){0, UTIME_NOW};
    if (!strcmp(text, "omit")) return (struct timespec){0, UTIME_OMIT};
    char *end;
    struct timespec time = {strtol(text, &end, 10), 0};
    if (*end == '.') time.tv_nsec = strtol(end + 1, NULL, 10);
    return time;
}

/* The value of an access control list in the kernel's format. */
static size_t access_list(char *room, char *list) {
    struct entry { uint16_t tag, rights; uint32_t id; } *entry = (void *)(room + 4);
    *(uint32_t *)room = 2;
    for (char *part; (part = strsep(&list, ",")); entry++) {
        char *sign = strchr(part, '=');
        if (!sign) fail("%s: an entry needs =", part);
        *entry = (struct entry){0, atoi(sign + 1), -1};
        int named = part + 1 != sign;
        if (named) entry->id = atoi(part + 1);
        entry->tag = *part == 'u' ? (named ? 2 : 1) : *part == 'g' ? (named ? 8 : 4) : *part == 'm' ? 0x10 : 0x20;
    }
    return (char *)entry - room;
}

/* Buffers, given by their content or by their lengths. */
static void pieces(char *room, char *list, int filled) {
    struct iovec *piece = (void *)room;
    char *bytes = room + 4096;
    for (char *part; (part = strsep(&list, ",")); piece++) {
        *piece = (struct iovec){bytes, filled ? strlen(part) : strtoul(part, NULL, 0)};
        if (filled) memcpy(bytes, part, piece->iov_len);
        bytes += piece->iov_len;
    }
}

/* `struct xattr_args`, which libc does not have. */
struct value { uint64_t address; uint32_t length, flags; };

static void value(char *room, char *list) {
    struct value *value = (void *)room;
    char *bytes = strcpy(room + 4096, strsep(&list, ","));
    *value = (struct value){(uintptr_t)bytes, strlen(bytes), number(list)};
}

static int begins(const char *text, const char *with, char **rest) {
    size_t length = strlen(with);
    if (strncmp(text, with, length)) return 0;
    *rest = (char *)text + length;
    return 1;
}

static struct argument argument(struct word *word, char *room) {
    char *rest, *text = word->text;
    struct argument there = {PLAIN, (long)room, room};
    memset(room, 0, 8192);
    if (*text == '"') memcpy(room, text + 1, word->length);
    else if (begins(text, "rep:", &rest)) {
        char *sign = strchr(rest, ':');
        long times = atol(sign + 1), length = sign - rest;
        for (long time = 0; time < times; time++) memcpy(room + time * length, rest, length);
        room[times * length] = 0;
    } else if (!strcmp(text, "null")) there.value = 0;
    else if (!strcmp(text, "bad")) there.value = 8;
    else if (!strcmp(text, "kernel")) there.value = -4096;
    else if (begins(text, "out:", &rest)) there.kind = OUT;
    else if (begins(text, "list:", &rest)) there.kind = LIST;
    else if (begins(text, "dents:", &rest)) there.kind = DENTS;
    else if (begins(text, "int:", &rest)) there.kind = INT, *(int *)room = number(rest);
    else if (begins(text, "off:", &rest)) there.kind = OFF, *(long *)room = number(rest);
    else if (!strcmp(text, "stat:")) there.kind = STAT;
    else if (!strcmp(text, "statx:")) there.kind = STATX;
    else if (!strcmp(text, "statfs:")) there.kind = STATFS;
    else if (begins(text, "times:", &rest)) {
        ((struct timespec *)room)[0] = moment(strsep(&rest, ","));
        ((struct timespec *)room)[1] = moment(rest);
    } else if (begins(text, "how:", &rest)) {
        struct open_how *how = (void *)room;
        how->flags = next_number(&rest);
        how->mode = next_number(&rest);
        how->resolve = next_number(&rest);
    } else if (begins(text, "lock:", &rest)) {
        struct flock *lock = (void *)room;
        lock->l_type = next_number(&rest);
        lock->l_whence = next_number(&rest);
        lock->l_start = next_number(&rest);
        lock->l_len = next_number(&rest);
        there.kind = LOCK;
    } else if (begins(text, "iov:", &rest)) pieces(room, rest, 1);
    else if (begins(text, "room:", &rest)) pieces(room, rest, 0), there.kind = PIECES;
    else if (begins(text, "acl:", &rest)) access_list(room, rest);
    else if (begins(text, "xattr:", &rest)) value(room, rest), there.kind = VALUE;
    else there.value = number(text);
    return there;
}

/* Prints the attributes that are the same on every file system. */
static void say_stat(const struct stat *stat) {
    say("mode=%o links=%lu uid=%u gid=%u", stat->st_mode, (long)stat->st_nlink, stat->st_uid, stat->st_gid);
    if (S_ISREG(stat->st_mode) || S_ISLNK(stat->st_mode)) say(" size=%ld", (long)stat->st_size);
    if (S_ISCHR(stat->st_mode) || S_ISBLK(stat->st_mode)) say(" device=%lx", (long)stat->st_rdev);
}

static void say_statx(const struct statx *stat) {
    say("mode=%o links=%u uid=%u gid=%u size=%s%lu", stat->stx_mode, stat->stx_nlink, stat->stx_uid, stat->stx_gid,
        S_ISREG(stat->stx_mode) ? "" : "any ", S_ISREG(stat->stx_mode) ? (long)stat->stx_size : 0);
    say(" basic=%d", (stat->stx_mask & STATX_BASIC_STATS) == STATX_BASIC_STATS);
    int ids = !!(stat->stx_mask & STATX_MNT_ID) + 2 * !!(stat->stx_mask & 0x4000);
    say(" mount=%s", !stat->stx_mnt_id ? "none" : ids == 1 ? "id" : ids == 2 ? "unique" : "?");
    if (stat->stx_attributes_mask & stat->stx_attributes & STATX_ATTR_MOUNT_ROOT) say(" root");
    long long flags = stat->stx_attributes & (STATX_ATTR_IMMUTABLE | STATX_ATTR_APPEND | STATX_ATTR_NODUMP);
    if (flags) say(" flags=%llx", flags);
    if (!(stat->stx_mask & STATX_BTIME)) return;
    struct statx_timestamp born = stat->stx_btime, changed = stat->stx_ctime;
    int sane = born.tv_sec < changed.tv_sec || (born.tv_sec == changed.tv_sec && born.tv_nsec <= changed.tv_nsec);
    say(" born=%s", sane && born.tv_sec > 1000000000 ? "before change" : "strangely");
}

static int by_text(const void *one, const void *other) { return strcmp(*(char **)one, *(char **)other); }

static void say_sorted(char **names, int count) {
    qsort(names, count, sizeof *names, by_text);
    for (int at = 0; at < count; at++) say("%s%s", at ? "," : "", names[at]);
}

static void say_names(char *names, long length) {
    char *all[4096];
    int count = 0;
    for (char *name = names; name < names + length; name += strlen(name) + 1)
        if (strncmp(name, "security.selinux", 16)) all[count++] = name;
    say_sorted(all, count);
}

struct linux_dirent64 { uint64_t number; int64_t cookie; uint16_t length; unsigned char type; char name[]; };

static void say_entries(char *entries, long length) {
    char *all[4096], texts[4096][40];
    int count = 0;
    for (long at = 0; at < length;) {
        struct linux_dirent64 *entry = (void *)(entries + at);
        snprintf(texts[count], sizeof *texts, "%.30s/%d", entry->name, entry->type);
        all[count] = texts[count];
        count++;
        at += entry->length;
    }
    say_sorted(all, count);
}

static void say_pieces(struct iovec *piece, long left) {
    for (; left > 0; piece++) {
        long length = (long)piece->iov_len < left ? (long)piece->iov_len : left;
        say_bytes(piece->iov_base, length);
        left -= length;
    }
}

static void say_argument(struct argument *argument, long result) {
    char *room = argument->room;
    long length = result < ROOM ? result : ROOM;
    if (argument->kind == PLAIN || (result < 0 && argument->kind != OFF)) return;
    say(" ");
    switch (argument->kind) {
    case OUT: say_bytes(room, length); break;
    case LIST: say_names(room, length); break;
    case DENTS: say_entries(room, length); break;
    case INT: say("%d", *(int *)room); break;
    case OFF: say("%ld", *(long *)room); break;
    case STAT: say_stat((void *)room); break;
    case STATX: say_statx((void *)room); break;
    case STATFS: say("block=%ld name=%ld", (long)((struct statfs *)room)->f_bsize, (long)((struct statfs *)room)->f_namelen); break;
    case LOCK: {
        struct flock *lock = (void *)room;
        say("type=%d start=%ld length=%ld %s", lock->l_type, (long)lock->l_start, (long)lock->l_len, lock->l_pid > 0 ? "somebody's" : "nobody's");
        break;
    }
    case PIECES: say_pieces((void *)room, length); break;
    case VALUE: say_bytes(room + 4096, length); break;
    case PLAIN: break;
    }
}

static void say_result(long result) {
    if (result < 0) say("%s", strerrorname_np(errno) ? strerrorname_np(errno) : "?");
    else say("%ld", result);
}

/* Trees. */

static void say_attributes(const char *path) {
    char names[ROOM / 4], value[70000];
    long length = llistxattr(path, names, sizeof names);
    char *all[1000];
    int count = 0;
    for (char *name = names; name < names + length; name += strlen(name) + 1)
        if (strncmp(name, "security.selinux", 16) && count < 1000) all[count++] = name;
    qsort(all, count, sizeof *all, by_text);
    for (int at = 0; at < count; at++) {
        long bytes = lgetxattr(path, all[at], value, sizeof value);
        say(" %s=", all[at]);
        if (bytes <= 100) say_bytes(value, bytes < 0 ? 0 : bytes);
        else say("%ld bytes %lx", bytes, hash(value, bytes));
    }
}

static void say_content(const char *path, long size) {
    static char bytes[1 << 20];
    int fd = open(path, O_RDONLY | O_NOFOLLOW);
    long length = read(fd, bytes, sizeof bytes);
    close(fd);
    if (length < 0) return say(" unreadable");
    size_t before = said_length;
    say(" ");
    say_bytes(bytes, length);
    if (said_length - before > 200) {
        said_length = before;
        say(" content %lx of %ld", hash(bytes, length), size);
    }
}

static void flush(int line) {
    printf("%d\t%s\n", line, said);
    said_length = 0;
    said[0] = 0;
}

static void say_tree(int line, const char *path) {
    struct dirent **entries;
    int count = scandir(path, &entries, NULL, alphasort);
    for (int at = 0; at < count; at++) {
        char name[9000], target[5000];
        const char *last = entries[at]->d_name;
        if (!strcmp(last, ".") || !strcmp(last, "..")) continue;
        snprintf(name, sizeof name, "%s/%s", path, last);
        struct stat stat;
        say("tree ");
        say_bytes(name + 2, strlen(name + 2));
        if (lstat(name, &stat)) { say(": lost"); flush(line); continue; }
        say(": ");
        say_stat(&stat);
        if (S_ISREG(stat.st_mode)) say_content(name, stat.st_size);
        if (S_ISLNK(stat.st_mode)) { long length = readlink(name, target, sizeof target); say(" -> "); say_bytes(target, length < 0 ? 0 : length); }
        say_attributes(name);
        flush(line);
        if (S_ISDIR(stat.st_mode) && strlen(name) < 600) say_tree(line, name);
        free(entries[at]);
    }
    if (count >= 0) free(entries);
}

/* Calls that are not system calls. Each gets its words and prints its result. */

static sigjmp_buf out_of_memory;
static void on_bus(int signal) { (void)signal; siglongjmp(out_of_memory, 1); }

/* peek ADDRESS OFFSET LENGTH: the content of a mapping, copied byte by byte, so that a fault is
   caught here. */
static void peek(struct word *words) {
    volatile char *from = (char *)number(words[1].text) + number(words[2].text);
    long length = number(words[3].text);
    char bytes[8192];
    if (sigsetjmp(out_of_memory, 1)) return say("SIGBUS");
    for (long at = 0; at < length; at++) bytes[at] = from[at];
    say_bytes(bytes, length);
}

/* poke ADDRESS OFFSET TEXT: a store into a mapping. */
static void poke(struct word *words) {
    volatile char *to = (char *)number(words[1].text) + number(words[2].text);
    if (sigsetjmp(out_of_memory, 1)) return say("SIGBUS");
    for (size_t at = 1; at < words[3].length; at++) to[at - 1] = words[3].text[at];
    say("done");
}

/* copy FROM TO: copies a program, to be run or changed. */
static void copy(struct word *words) {
    static char bytes[1 << 16];
    int from = open(words[1].text + 1, O_RDONLY), to = open(words[2].text + 1, O_WRONLY | O_CREAT | O_TRUNC, 0755);
    long length, sum = 0;
    while ((length = read(from, bytes, sizeof bytes)) > 0 && write(to, bytes, length) == length) sum += length;
    close(from);
    close(to);
    say(sum ? "done" : "failed");
}

/* show PATH: status, content and attributes. */
static void show(struct word *words) {
    struct stat stat;
    const char *path = words[1].text + 1;
    if (lstat(path, &stat)) return say_result(-1);
    say_stat(&stat);
    if (S_ISREG(stat.st_mode)) say_content(path, stat.st_size);
    say_attributes(path);
}

/* moments PATH: access and modification time. */
static void moments(struct word *words) {
    struct stat stat;
    if (lstat(words[1].text + 1, &stat)) return say_result(-1);
    say("%ld.%09ld %ld.%09ld", (long)stat.st_atim.tv_sec, stat.st_atim.tv_nsec, (long)stat.st_mtim.tv_sec, stat.st_mtim.tv_nsec);
}

/* handle PATH FLAGS: a file's handle, and the file that it opens. */
static void handle(struct word *words) {
    union { struct file_handle head; char room[sizeof(struct file_handle) + MAX_HANDLE_SZ]; } handle = {.head.handle_bytes = 0};
    int mount;
    const char *path = words[1].text + 1;
    long flags = number(words[2].text);
    say_result(name_to_handle_at(AT_FDCWD, path, &handle.head, &mount, flags));
    handle.head.handle_bytes = MAX_HANDLE_SZ;
    long result = name_to_handle_at(AT_FDCWD, path, &handle.head, &mount, flags);
    say(" ");
    say_result(result);
    if (result < 0) return;
    int fd = open_by_handle_at(AT_FDCWD, &handle.head, O_PATH);
    struct stat one, other;
    say(" opened: ");
    if (fd < 0) return say_result(-1);
    say(fstat(fd, &one) || lstat(path, &other) || one.st_ino != other.st_ino ? "another" : "the same");
    close(fd);
}

/* chain NAME COUNT: symbolic links NAME1 to NAMECOUNT; each refers to the previous one, the first
   to NAME. */
static void chain(struct word *words) {
    char link[300], target[300];
    int count = number(words[2].text), made = 0;
    snprintf(target, sizeof target, "%s", words[1].text + 1);
    for (int at = 1; at <= count; at++) {
        snprintf(link, sizeof link, "%.200s%d", words[1].text + 1, at);
        made += !symlink(target, link);
        strcpy(target, link);
    }
    say("%d made", made);
}

/* same FD FD: whether kcmp reports two descriptors as the same; the order of others is unspecified.
   */
static void same(struct word *words) {
    long result = syscall(SYS_kcmp, getpid(), getpid(), 0, number(words[1].text), number(words[2].text));
    if (result < 0) return say_result(-1);
    say(result ? "others" : "the same");
}

/* pass FD: passes a descriptor through a socket; prints the received one. */
static void pass(struct word *words) {
    int ends[2], fd = number(words[1].text), flag;
    char byte = 'x', room[CMSG_SPACE(sizeof fd)] = {0};
    struct iovec piece = {&byte, 1};
    struct msghdr message = {.msg_iov = &piece, .msg_iovlen = 1, .msg_control = room, .msg_controllen = sizeof room};
    struct cmsghdr *head = CMSG_FIRSTHDR(&message);
    *head = (struct cmsghdr){.cmsg_len = CMSG_LEN(sizeof fd), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS};
    memcpy(CMSG_DATA(head), &fd, sizeof fd);
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends) || sendmsg(ends[0], &message, 0) != 1 || recvmsg(ends[1], &message, 0) != 1) return say_result(-1);
    memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof fd);
    struct stat one, other;
    flag = fstat(fd, &one) || fstat(number(words[1].text), &other);
    say("%s at %ld", flag ? "nothing" : one.st_ino == other.st_ino && one.st_dev == other.st_dev ? "the same" : "another", (long)lseek(fd, 0, SEEK_CUR));
    close(fd);
    close(ends[0]);
    close(ends[1]);
}

static int lock_byte(int fd, long at) {
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = at, .l_len = 1};
    return fcntl(fd, F_SETLKW, &lock);
}

/* ring PATH COUNT: processes in a ring, each holding a lock and waiting for the next one's. */
static void ring(struct word *words) {
    const char *path = words[1].text + 1;
    int count = number(words[2].text), locked[2], all_locked[2], got = 0, refused = 0, status;
    char bytes[64] = {0};
    if (pipe(locked) || pipe(all_locked)) return say_result(-1);
    for (int at = 0; at < count; at++) {
        if (fork()) continue;
        alarm(600);
        int fd = open(path, O_RDWR);
        if (fd < 0 || lock_byte(fd, at) || write(locked[1], bytes, 1) != 1 || read(all_locked[0], bytes, 1) != 1) _exit(2);
        _exit(!lock_byte(fd, (at + 1) % count) ? 0 : errno == EDEADLK ? 1 : 2);
    }
    for (int at = 0; at < count; at++)
        if (read(locked[0], bytes, 1) != 1) fail("a child exited early");
    if (write(all_locked[1], bytes, count) != count) fail("cannot write to a pipe");
    while (wait(&status) > 0) {
        got += WIFEXITED(status) && WEXITSTATUS(status) == 0;
        refused += WIFEXITED(status) && WEXITSTATUS(status) == 1;
    }
    for (int at = 0; at < 2; at++) { close(locked[at]); close(all_locked[at]); }
    say("%d of %d locked, %d EDEADLK", got, count, refused);
}

/* remove PATH: removes a tree that is too large to print. */
static void remove_tree(struct word *words) {
    char command[700];
    snprintf(command, sizeof command, "rm -r '%s'", words[1].text + 1);
    say(system(command) ? "failed" : "done");
}

/* scan COUNT: reads a directory of COUNT names in pieces while other names are created and removed,
   then seeks back to a cookie; prints the fate of the names that stayed. */
static void scan(struct word *words) {
    enum { MOST = 4096 };
    static int seen[MOST];
    int count = number(words[1].text), again = 0, more = 0, index;
    char name[32];
    memset(seen, 0, sizeof seen);
    mkdir("scan", 0755);
    for (index = 0; index < count; index++) { snprintf(name, sizeof name, "scan/stays%d", index); close(creat(name, 0644)); }
    DIR *directory = opendir("scan");
    long cookie = -1;
    for (struct dirent *entry; (entry = readdir(directory)); more++) {
        if (sscanf(entry->d_name, "stays%d", &index) == 1) seen[index]++;
        /* Creates a name per entry read, and removes half of them again. */
        snprintf(name, sizeof name, "scan/comes%d", more);
        if (more < count) close(creat(name, 0644));
        snprintf(name, sizeof name, "scan/comes%d", more / 2);
        if (more % 2) unlink(name);
        if (more == count / 2) cookie = telldir(directory);
    }
    int missing = 0, twice = 0;
    for (index = 0; index < count; index++) missing += !seen[index], twice += seen[index] > 1;
    seekdir(directory, cookie);
    int left = 0;
    for (struct dirent *entry; (entry = readdir(directory));)
        if (sscanf(entry->d_name, "stays%d", &index) == 1) left++, again += seen[index] != 1;
    rewinddir(directory);
    int all = 0;
    for (struct dirent *entry; (entry = readdir(directory));) all += sscanf(entry->d_name, "stays%d", &index) == 1;
    closedir(directory);
    say("missing %d, twice %d, strange behind the cookie %d, some left %d, after rewinding %d", missing, twice, again, left > 0 && left < count, all);
    if (system("rm -r scan")) say(" and cannot be removed");
}

static void crowd_name(char *name, long index) { sprintf(name, "crowd/n%ld", index); }

/* The number of COUNT names for which a call succeeds; with a `stride` other than 1 the order
   differs from that of creation. */
static long with_all(long count, long stride, int (*act)(const char *)) {
    char name[40];
    long went_well = 0;
    for (long index = 0; index < count; index++) {
        crowd_name(name, index * stride % count);
        went_well += !act(name);
    }
    return went_well;
}

static int make_name(const char *name) { return mknod(name, S_IFREG | 0644, 0); }
static int find_name(const char *name) { struct stat stat; return lstat(name, &stat); }

/* Reads the crowd of COUNT names from start to end, then seeks back to MARKS of its cookies, the
   last one first. */
static void read_crowd(long count, long marks) {
    struct { long cookie; char name[32]; } *mark = calloc(marks, sizeof *mark);
    char *seen = calloc(count, 1);
    long index, at = 0, missing = 0, twice = 0, wrong = 0;
    DIR *directory = opendir("crowd");
    for (long cookie = telldir(directory); ; cookie = telldir(directory), at++) {
        struct dirent *entry = readdir(directory);
        if (!entry) break;
        if (at % (count / marks) == 0 && at / (count / marks) < marks) {
            mark[at / (count / marks)].cookie = cookie;
            snprintf(mark[at / (count / marks)].name, sizeof mark->name, "%.31s", entry->d_name);
        }
        if (sscanf(entry->d_name, "n%ld", &index) == 1 && index < count) twice += seen[index]++ > 0;
    }
    for (index = 0; index < count; index++) missing += !seen[index];
    for (index = marks; index-- > 0;) {
        seekdir(directory, mark[index].cookie);
        struct dirent *entry = readdir(directory);
        wrong += !entry || strcmp(entry->d_name, mark[index].name);
    }
    closedir(directory);
    free(mark);
    free(seen);
    say(", missing %ld, twice %ld, %ld of %ld cookies wrong", missing, twice, wrong, marks);
}

/* crowd COUNT: the whole life of a directory with COUNT names. */
static void crowd(struct word *words) {
    enum { STRIDE = 7919, MARKS = 16 };
    long count = number(words[1].text);
    if (mkdir("crowd", 0755)) return say_result(-1);
    say("%ld made", with_all(count, 1, make_name));
    read_crowd(count, MARKS);
    say(", %ld found", with_all(count, STRIDE, find_name));
    say(", %ld removed", with_all(count, STRIDE, unlink));
    say(", %ld found again", with_all(count, 1, find_name));
    say(", directory %s", rmdir("crowd") ? "stays" : "removed");
}

static const struct { const char *name; void (*act)(struct word *); int words; } builtins[] = {
    {"peek", peek, 4}, {"poke", poke, 4}, {"copy", copy, 3}, {"show", show, 2}, {"moments", moments, 2}, {"handle", handle, 3}, {"scan", scan, 2}, {"chain", chain, 3},
    {"remove", remove_tree, 2}, {"ring", ring, 3}, {"pass", pass, 2}, {"same", same, 3}, {"crowd", crowd, 2},
};

/* Makes one call; returns its result for a variable. */
static long call(struct word *words, int count) {
    for (size_t at = 0; at < sizeof builtins / sizeof *builtins; at++)
        if (!strcmp(words[0].text, builtins[at].name)) {
            if (count != builtins[at].words) fail("%s takes %d words", words[0].text, builtins[at].words);
            builtins[at].act(words);
            return 0;
        }
    const struct constant *found = calls;
    while (found->name && strcmp(found->name, words[0].text)) found++;
    if (!found->name) fail("unknown call %s", words[0].text);
    if (count > ARGUMENTS + 1) fail("too many arguments");
    struct argument all[ARGUMENTS] = {{0}};
    for (int at = 1; at < count; at++) all[at - 1] = argument(&words[at], rooms[at - 1]);
    long result, patience = 1000;
    do {
        errno = 0;
        result = syscall(found->value, all[0].value, all[1].value, all[2].value, all[3].value, all[4].value, all[5].value);
        /* During a rename by any process of the machine, the kernel may be unable to verify
           `..`. */
    } while (found->value == SYS_openat2 && errno == EAGAIN && --patience);
    int error = errno;
    if ((found->value == SYS_mmap || found->value == SYS_mremap) && result != -1) say("mapped");
    else say_result(result);
    for (int at = 0; at < count - 1; at++) say_argument(&all[at], result);
    errno = error;
    return result;
}

/* Modifiers of a call. Each removes its own words from the front and makes the rest. */

static long make(struct word *words, int count);

static void become(unsigned uid, unsigned gid, const gid_t *groups, int count) {
    /* The saved id stays root's, which permits the return. */
    if (syscall(SYS_setgroups, count, groups) || syscall(SYS_setresgid, gid, gid, 0) || syscall(SYS_setresuid, uid, uid, 0)) fail("cannot become %u", uid);
}

static long as(struct word *words, int count) {
    gid_t groups[64];
    int group_count = 0;
    char *list = words[1].text;
    unsigned uid = strtoul(strsep(&list, ":"), NULL, 10), gid = list ? strtoul(strsep(&list, ","), NULL, 10) : 0;
    while (list) groups[group_count++] = atoi(strsep(&list, ","));
    become(uid, gid, groups, group_count);
    long result = make(words + 2, count - 2);
    int error = errno;
    if (syscall(SYS_setresuid, 0, 0, 0) || syscall(SYS_setresgid, 0, 0, 0) || syscall(SYS_setgroups, 0, groups)) fail("cannot restore the user");
    errno = error;
    return result;
}

static long real(struct word *words, int count) {
    if (syscall(SYS_setresuid, atoi(words[1].text), 0, 0)) fail("cannot become %s", words[1].text);
    long result = make(words + 2, count - 2);
    if (syscall(SYS_setresuid, 0, 0, 0)) fail("cannot restore the user");
    return result;
}

static long without(struct word *words, int count) {
    struct __user_cap_header_struct head = {_LINUX_CAPABILITY_VERSION_3, 0};
    struct __user_cap_data_struct all[2], fewer[2];
    if (syscall(SYS_capget, &head, all)) fail("cannot read the capabilities");
    memcpy(fewer, all, sizeof all);
    long capability = number(words[1].text);
    fewer[capability / 32].effective &= ~(1u << capability % 32);
    if (syscall(SYS_capset, &head, fewer)) fail("cannot drop a capability");
    long result = make(words + 2, count - 2);
    if (syscall(SYS_capset, &head, all)) fail("cannot restore a capability");
    return result;
}

/* In a child, whose output returns through a pipe. */
static long child(struct word *words, int count) {
    int ends[2], status;
    if (pipe(ends)) fail("cannot create a pipe");
    pid_t pid = fork();
    if (!pid) {
        size_t before = said_length;
        make(words + 1, count - 1);
        if (write(ends[1], said + before, said_length - before) < 0) _exit(1);
        _exit(0);
    }
    close(ends[1]);
    long length;
    while ((length = read(ends[0], said + said_length, sizeof said - said_length - 1)) > 0) said_length += length;
    said[said_length] = 0;
    close(ends[0]);
    waitpid(pid, &status, 0);
    if (status) say(" child ended with %x", status);
    return 0;
}

/* While a program runs from a file; it reads until its input ends. */
static long running(struct word *words, int count) {
    int input[2], output[2], status;
    if (pipe2(input, O_CLOEXEC) || pipe2(output, O_CLOEXEC)) fail("cannot create a pipe");
    pid_t pid = fork();
    if (!pid) {
        dup2(input[0], 0);
        dup2(output[1], 1);
        execl(words[1].text + 1, "cat", NULL);
        _exit(1);
    }
    close(output[1]);
    char byte = 'x';
    /* The program is running once it answers. */
    if (write(input[1], &byte, 1) != 1 || read(output[0], &byte, 1) != 1) say("did not start ");
    long result = make(words + 2, count - 2);
    int error = errno;
    close(input[1]);
    close(input[0]);
    close(output[0]);
    waitpid(pid, &status, 0);
    errno = error;
    return result;
}

static int is_later(struct timespec one, struct timespec other) {
    return one.tv_sec > other.tv_sec || (one.tv_sec == other.tv_sec && one.tv_nsec > other.tv_nsec);
}

/* Prints which timestamps of a file a call changes. */
static long stamps(struct word *words, int count) {
    char path[600];
    strcpy(path, words[1].text + 1);
    struct stat before, after;
    struct timespec now, old[2] = {{1000000000, 0}, {1000000000, 0}};
    if (utimensat(AT_FDCWD, path, old, AT_SYMLINK_NOFOLLOW) || lstat(path, &before)) fail("cannot set or read the timestamps of %s", path);
    /* Waits until the clock for file timestamps has advanced. */
    do clock_gettime(CLOCK_REALTIME_COARSE, &now); while (!is_later(now, before.st_ctim));
    long result = make(words + 2, count - 2);
    int error = errno;
    if (lstat(path, &after)) { say(" gone"); return result; }
    say(" moved:");
    if (is_later(after.st_atim, before.st_atim)) say(" atime");
    if (is_later(after.st_mtim, before.st_mtim)) say(" mtime");
    if (is_later(after.st_ctim, before.st_ctim)) say(" ctime");
    errno = error;
    return result;
}

/* Prints the inotify events of a directory or file during a call. */
static long watch(struct word *words, int count) {
    char events[4096];
    int watcher = inotify_init1(IN_NONBLOCK | IN_CLOEXEC);
    if (inotify_add_watch(watcher, words[1].text + 1, IN_ALL_EVENTS) < 0) { say("watch: "); say_result(-1); say(" "); }
    long result = make(words + 2, count - 2);
    int error = errno;
    long length = read(watcher, events, sizeof events);
    say(" events:");
    for (long at = 0; at < length;) {
        struct inotify_event *event = (void *)(events + at);
        say(" %x %s", event->mask, event->len ? event->name : "");
        at += sizeof *event + event->len;
    }
    close(watcher);
    errno = error;
    return result;
}

static struct word *words_of(const char *line, int *count) {
    static struct word words[WORDS_MAX];
    *count = split(line, words);
    return words;
}

static const char *whole_line;

/* Makes the call COUNT times; prints the number of successes and the first failure. */
static long repeat(struct word *words, int count) {
    long times = number(words[1].text), result = 0;
    size_t before = said_length;
    int skipped = words + 2 - words_of(whole_line, &count);
    for (repetition = 0; repetition < times; repetition++) {
        said_length = before;
        struct word *again = words_of(whole_line, &count);
        result = make(again + skipped, count - skipped);
        if (result < 0) {
            char text[200];
            snprintf(text, sizeof text, "%s", said + before);
            said_length = before;
            say("%ld times, then %s", repetition, text);
            repetition = 0;
            return result;
        }
    }
    said_length = before;
    say("%ld times", times);
    repetition = 0;
    return result;
}

static const struct { const char *name; long (*act)(struct word *, int); } manners[] = {
    {"as", as}, {"real", real}, {"without", without}, {"child", child}, {"running", running}, {"stamps", stamps}, {"watch", watch}, {"repeat", repeat},
};

static long make(struct word *words, int count) {
    if (count < 1) fail("missing call");
    for (size_t at = 0; at < sizeof manners / sizeof *manners; at++)
        if (!strcmp(words[0].text, manners[at].name)) return manners[at].act(words, count);
    return call(words, count);
}

static void make_line(const char *line) {
    int count;
    struct word *words = words_of(whole_line = line, &count);
    if (!count) return;
    char name[24] = "";
    if (count > 1 && !strcmp(words[1].text, "=")) {
        snprintf(name, sizeof name, "%.23s", words[0].text);
        words += 2;
        count -= 2;
    }
    long result = make(words, count);
    if (*name) set_variable(name, result);
    flush(line_number);
}

/* Sections. */

/* Descriptors of the table and the directory, above those of the calls. */
enum { TABLE = 200, TOP };

static void end_section(int line) {
    if (line) {
        char name[40];
        snprintf(name, sizeof name, "section%d", line);
        if (fchdir(TOP) || chdir(name)) fail("cannot return to the section's directory");
        say_tree(line, ".");
    }
    if (close_range(3, TABLE - 1, 0) || close_range(TOP + 1, ~0u, 0)) fail("cannot close");
}

static void begin_section(void) {
    char name[40];
    snprintf(name, sizeof name, "section%d", line_number);
    variable_count = 0;
    syscall(SYS_umask, 022);
    if (fchdir(TOP) || mkdir(name, 0755) || chdir(name)) fail("cannot create a section's directory");
}

int main(int count, char **arguments) {
    if (count < 3) return fprintf(stderr, "usage: calls TABLE DIRECTORY [SECTION]\n"), 2;
    int table_fd = open(arguments[1], O_RDONLY), top = open(arguments[2], O_RDONLY | O_DIRECTORY), section = 0, wanted = 0;
    if (dup3(table_fd, TABLE, O_CLOEXEC) < 0 || dup3(top, TOP, O_CLOEXEC) < 0) return perror(table_fd < 0 ? arguments[1] : arguments[2]), 2;
    close(table_fd);
    close(top);
    FILE *table = fdopen(TABLE, "r");
    setvbuf(stdout, NULL, _IOLBF, 0);
    signal(SIGBUS, on_bus);
    signal(SIGXFSZ, SIG_IGN);
    signal(SIGPIPE, SIG_IGN);
    static char line[4096];
    while (fgets(line, sizeof line, table)) {
        line_number++;
        if (!strncmp(line, "== ", 3)) {
            if (wanted) end_section(section);
            line[strcspn(line, "\n")] = 0;
            wanted = count < 4 || !strcmp(line + 3, arguments[3]);
            section = line_number;
            if (wanted) begin_section();
        } else if (wanted && *line != '#')
            make_line(line);
    }
    if (wanted) end_section(section);
    return 0;
}
