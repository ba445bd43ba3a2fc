// Makes changes one by one and prints the events of each. The output is the same on each file
// system. Argument: an empty directory.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/xattr.h>
#include <unistd.h>

static int fd, watches[16], count;
static const char *names[16];

static void add(const char *name, const char *path, unsigned mask)
{
	names[count] = name;
	watches[count++] = inotify_add_watch(fd, path, mask);
	if (watches[count - 1] < 0)
		printf("watch on %s: %s\n", path, strerror(errno));
}

static const char *name_of(int watch)
{
	for (int i = count - 1; i >= 0; i--)
		if (watches[i] == watch)
			return names[i];
	return watch == -1 ? "-" : "unknown watch";
}

static void print_event(const struct inotify_event *event)
{
	static const char *bits[] = { "ACCESS", "MODIFY", "ATTRIB", "CLOSE_WRITE", "CLOSE_NOWRITE", "OPEN",
		"MOVED_FROM", "MOVED_TO", "CREATE", "DELETE", "DELETE_SELF", "MOVE_SELF", "", "UNMOUNT", "Q_OVERFLOW",
		"IGNORED" };
	static unsigned last, moves;
	printf("  %s:", name_of(event->wd));
	for (int i = 0; i < 16; i++)
		if (event->mask >> i & 1)
			printf(" %s", bits[i]);
	if (event->mask & IN_ISDIR)
		printf(" ISDIR");
	if (event->cookie) {
		if (event->cookie != last)
			moves++;
		last = event->cookie;
		printf(" move %u", moves);
	}
	if (event->len)
		printf(" \"%s\" in %u bytes", event->name, event->len);
	printf("\n");
}

static void print_events(const char *call)
{
	char buffer[65536];
	int announced = -1, total = 0, length;
	printf("%s\n", call);
	ioctl(fd, FIONREAD, &announced);
	while ((length = read(fd, buffer, sizeof buffer)) > 0) {
		total += length;
		for (char *at = buffer; at < buffer + length;) {
			struct inotify_event *event = (void *)at;
			print_event(event);
			at += sizeof *event + event->len;
		}
	}
	if (errno != EAGAIN)
		printf("  read: %s\n", strerror(errno));
	if (announced != total)
		printf("  FIONREAD says %d, read %d\n", announced, total);
}

static void print_call(const char *call, long result)
{
	if (result < 0)
		printf("error: %s\n", strerror(errno));
	print_events(call);
}

#define DO(call) print_call(#call, call)

static void content(void)
{
	char buffer[100];
	int old = open("d/old", O_CREAT | O_RDWR, 0644), file, other;
	write(old, "abc", 3);
	add("d", "d", IN_ALL_EVENTS), add("e", "e", IN_ALL_EVENTS), add("old", "d/old", IN_ALL_EVENTS);
	// A file that was opened before the watch.
	DO(pwrite(old, "x", 1, 0)), DO(pread(old, buffer, 3, 0)), DO(ftruncate(old, 1)), DO(close(old));
	DO(file = open("d/new", O_CREAT | O_WRONLY, 0644));
	DO(write(file, "hello", 5)), DO(write(file, "", 0)), DO(fchmod(file, 0600)), DO(close(file));
	DO(file = open("d/new", O_RDONLY));
	DO(read(file, buffer, 3)), DO(read(file, buffer, 30)), DO(read(file, buffer, 30)), DO(close(file));
	DO(close(open("d/new", O_WRONLY | O_TRUNC))), DO(close(open("d/new", O_PATH)));
	DO(open("d/missing", O_RDONLY)), DO(open("d/new", O_CREAT | O_EXCL, 0600));
	file = open("d/a", O_CREAT | O_RDWR, 0644), other = open("d/b", O_CREAT | O_RDWR, 0644);
	print_events("two files");
	DO(write(file, "1234", 4)), DO(lseek(file, 0, SEEK_SET)), DO(copy_file_range(file, 0, other, 0, 4, 0));
	DO(fallocate(other, 0, 0, 100)), DO(dup2(file, other)), DO(close(file)), DO(close(other));
	DO(truncate("d/new", 100));
}

static void attributes(void)
{
	struct timespec times[2] = { { 1, 0 }, { 0, UTIME_OMIT } };
	DO(chmod("d/new", 0640)), DO(chown("d/new", getuid(), getgid())), DO(utimensat(AT_FDCWD, "d/new", 0, 0));
	DO(utimensat(AT_FDCWD, "d/new", times, 0));
	times[0].tv_nsec = UTIME_OMIT, times[1].tv_nsec = 0;
	DO(utimensat(AT_FDCWD, "d/new", times, 0));
	DO(setxattr("d/new", "user.a", "b", 1, 0)), DO(removexattr("d/new", "user.a"));
	DO(chmod("d", 0755)), DO(chmod("d/old", 0600));
}

static void moves(void)
{
	char buffer[100];
	int directory;
	DO(link("d/new", "e/hard")), DO(unlink("e/hard")), DO(symlink("x", "d/link")), DO(unlink("d/link"));
	DO(mkdir("d/sub", 0755)), DO(directory = open("d/sub", O_RDONLY | O_DIRECTORY));
	DO(syscall(SYS_getdents64, directory, buffer, 100)), DO(close(directory)), DO(chmod("d/sub", 0700));
	DO(rename("d/sub", "e/sub")), DO(rmdir("e/sub"));
	DO(rename("d/new", "d/new2")), DO(rename("d/new2", "e/new2")), DO(rename("e/new2", "d/old"));
	DO(mknod("d/fifo", S_IFIFO | 0644, 0)), DO(unlink("d/fifo"));
	DO(renameat2(AT_FDCWD, "d/a", AT_FDCWD, "d/b", RENAME_NOREPLACE));
	add("a", "d/a", IN_ALL_EVENTS), add("b", "d/b", IN_ALL_EVENTS);
	DO(renameat2(AT_FDCWD, "d/a", AT_FDCWD, "d/b", RENAME_EXCHANGE));
	DO(rename("d/a", "e/a")), DO(unlink("e/a"));
	int open_file = open("d/b", O_RDWR);
	print_events("opened");
	DO(unlink("d/b")), DO(write(open_file, "x", 1)), DO(close(open_file));
	mkdir("e/empty", 0755), mkdir("e/other", 0755);
	add("other", "e/other", IN_ALL_EVENTS);
	print_events("two directories");
	DO(rename("e/empty", "e/other")), DO(rename("e", "e2")), DO(rename("e2", "e"));
}

static void masks(void)
{
	int file = open("e/w", O_CREAT | O_RDWR, 0600);
	print_events("created");
	add("w", "e/w", IN_DELETE_SELF | IN_ATTRIB | IN_EXCL_UNLINK | IN_MODIFY);
	DO(write(file, "a", 1)), DO(unlink("e/w")), DO(write(file, "a", 1)), DO(close(file));
	DO(inotify_rm_watch(fd, watches[1])), DO(inotify_rm_watch(fd, watches[1])), DO(inotify_rm_watch(fd, -5));
	DO(inotify_rm_watch(fd, 0x7fffffff)), DO(inotify_rm_watch(0, 1)), DO(inotify_rm_watch(99, 1));
	add("once", "e", IN_CREATE | IN_ONESHOT);
	DO(close(open("e/1", O_CREAT, 0600))), DO(close(open("e/2", O_CREAT, 0600)));
	DO(inotify_add_watch(fd, "d", 0)), DO(inotify_add_watch(fd, "d/nothing", IN_OPEN));
	DO(inotify_add_watch(fd, "e/1", IN_OPEN | IN_ONLYDIR)), DO(inotify_add_watch(fd, "e/1/", IN_OPEN));
	DO(inotify_add_watch(fd, "d", IN_OPEN | IN_MASK_CREATE));
	DO(inotify_add_watch(fd, "d", IN_OPEN | IN_MASK_CREATE | IN_MASK_ADD));
	DO(inotify_add_watch(0, "d", IN_OPEN)), DO(inotify_add_watch(99, "d", IN_OPEN)), DO(inotify_init1(1));
	printf("same number: %d\n", inotify_add_watch(fd, "d", IN_MOVED_FROM) == watches[0]);
	DO(close(open("d/q", O_CREAT, 0600)));
	printf("same number: %d\n", inotify_add_watch(fd, "d", IN_OPEN | IN_MASK_ADD) == watches[0]);
	DO(close(open("d/q", O_RDONLY))), DO(rename("d/q", "d/r"));
	symlink("r", "d/link");
	add("link", "d/link", IN_ALL_EVENTS | IN_DONT_FOLLOW), add("target", "d/link", IN_ALL_EVENTS);
	DO(chmod("d/link", 0600)), DO(unlink("d/link"));
	inotify_add_watch(fd, "d", IN_CREATE);
	char name[260] = "d/";
	for (int length = 13; length < 256; length += 40) {
		memset(name + 2, 'n', length);
		mknod(name, S_IFREG | 0600, 0);
		print_events("long name");
	}
}

static void small_buffers(void)
{
	char buffer[300];
	mkdir("d/x", 0755), mkdir("d/y", 0755);
	for (int size = 0; size <= 32; size += 16) {
		int length = read(fd, buffer, size);
		printf("read of %d: %s\n", size, length < 0 ? strerror(errno) : "ok");
	}
	print_events("the second one");
}

static void access_rights(void)
{
	mkdir("secret", 0700);
	if (getuid() == 0 && seteuid(65534) == 0) {
		DO(inotify_add_watch(fd, "secret", IN_OPEN));
		seteuid(0);
	}
}

int main(int argc, char **argv)
{
	if (argc < 2 || chdir(argv[1]))
		return 2;
	mkdir("d", 0755), mkdir("e", 0755);
	fd = inotify_init1(IN_NONBLOCK | IN_CLOEXEC);
	content(), attributes(), moves(), masks(), small_buffers(), access_rights();
	if (system("rm -r d e"))
		return 1;
	print_events("rm -r");
	return 0;
}
