// Makes changes one by one and prints the events that several fanotify groups get of each. The
// output is the same on each file system. Argument: an empty directory.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/fanotify.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <unistd.h>

#ifndef FAN_REPORT_TARGET_FID
#define FAN_REPORT_TARGET_FID 0x1000
#endif
#ifndef FAN_RENAME
#define FAN_RENAME 0x10000000
#endif
#ifndef FAN_MARK_EVICTABLE
#define FAN_MARK_EVICTABLE 0x200
#endif
#ifndef FAN_MARK_IGNORE
#define FAN_MARK_IGNORE 0x400
#endif
#ifndef FAN_REPORT_PIDFD
#define FAN_REPORT_PIDFD 0x80
#endif

#define FILE_EVENTS \
	(FAN_ACCESS | FAN_MODIFY | FAN_CLOSE | FAN_OPEN | FAN_OPEN_EXEC)
#define ALL_EVENTS \
	(FILE_EVENTS | FAN_ATTRIB | FAN_MOVE | FAN_CREATE | FAN_DELETE | FAN_DELETE_SELF | FAN_MOVE_SELF)
#define FLAGS (FAN_ONDIR | FAN_EVENT_ON_CHILD)

struct handle {
	struct file_handle head;
	unsigned char bytes[128];
};
static struct handle known[64];
static const char *known_names[64];
static int known_count, group_count;
static struct {
	const char *name;
	int fd;
} groups[16];
static __kernel_fsid_t fsid;

// Gives the handle of a file a name.
static void learn(const char *name, const char *path)
{
	int mount;
	struct handle *handle = &known[known_count];
	handle->head.handle_bytes = sizeof handle->bytes;
	if (name_to_handle_at(AT_FDCWD, path, &handle->head, &mount, 0))
		printf("no handle of %s: %s\n", path, strerror(errno));
	known_names[known_count++] = name;
}

static const char *name_of(struct file_handle *handle)
{
	for (int i = known_count - 1; i >= 0; i--) {
		struct file_handle *other = &known[i].head;
		if (other->handle_bytes == handle->handle_bytes && other->handle_type == handle->handle_type &&
		    !memcmp(other->f_handle, handle->f_handle, handle->handle_bytes))
			return known_names[i];
	}
	return "?";
}

static int add_group(const char *name, unsigned flags, unsigned event_flags)
{
	int fd = fanotify_init(flags | FAN_NONBLOCK | FAN_CLOEXEC, event_flags);
	if (fd < 0)
		printf("group %s: %s\n", name, strerror(errno));
	groups[group_count].name = name;
	groups[group_count++].fd = fd;
	return fd;
}

static void mark(int fd, unsigned flags, uint64_t mask, const char *path)
{
	if (fanotify_mark(fd, flags, mask, AT_FDCWD, path))
		printf("mark %#x %#llx on %s: %s\n", flags, (unsigned long long)mask, path, strerror(errno));
}

static void print_mask(uint64_t mask)
{
	static const char *bits[] = { "ACCESS", "MODIFY", "ATTRIB", "CLOSE_WRITE", "CLOSE_NOWRITE", "OPEN",
		"MOVED_FROM", "MOVED_TO", "CREATE", "DELETE", "DELETE_SELF", "MOVE_SELF", "OPEN_EXEC", "13",
		"Q_OVERFLOW", "FS_ERROR" };
	for (int i = 0; i < 16; i++)
		if (mask >> i & 1)
			printf(" %s", bits[i]);
	if (mask & FAN_RENAME)
		printf(" RENAME");
	if (mask & FAN_ONDIR)
		printf(" ONDIR");
	if (mask & FAN_EVENT_ON_CHILD)
		printf(" ON_CHILD");
}

static void print_info(char *info)
{
	static const char *kinds[] = { "0", "FID", "DFID_NAME", "DFID", "PIDFD", "ERROR", "6", "7", "8", "9", "OLD",
		"11", "NEW" };
	struct fanotify_event_info_fid *fid = (void *)info;
	printf(" %s", kinds[fid->hdr.info_type % 13]);
	if (fid->hdr.info_type == 4) {
		int pidfd;
		memcpy(&pidfd, info + 4, 4);
		printf(" %s", pidfd >= 0 ? "one" : pidfd == -1 ? "none" : "error");
		if (pidfd >= 0)
			close(pidfd);
		return;
	}
	struct file_handle *handle = (void *)fid->handle;
	char *name = (char *)handle->f_handle + handle->handle_bytes;
	printf("(%s%s", name_of(handle), memcmp(&fid->fsid, &fsid, 8) ? " of another file system" : "");
	if (fid->hdr.info_type != 1 && fid->hdr.info_type != 3)
		printf(" \"%s\"", name);
	printf(")[%d]", fid->hdr.len - (int)handle->handle_bytes);
}

// On a file system that others use, a file of theirs may end here.
static int is_of_others(struct fanotify_event_metadata *event)
{
	struct fanotify_event_info_fid *fid = (void *)((char *)event + event->metadata_len);
	return event->mask == FAN_DELETE_SELF && *name_of((struct file_handle *)fid->handle) == '?';
}

static void print_fd(int fd)
{
	struct handle handle = { .head.handle_bytes = 128 };
	int mount, flags = fcntl(fd, F_GETFL);
	name_to_handle_at(fd, "", &handle.head, &mount, AT_EMPTY_PATH);
	printf(" fd of %s, %s%s%s", name_of(&handle.head), (flags & O_ACCMODE) == O_RDWR ? "rw" : "ro",
	       flags & O_APPEND ? " append" : "", fcntl(fd, F_GETFD) & FD_CLOEXEC ? " cloexec" : "");
	// None of this is an event.
	char byte;
	if (read(fd, &byte, 1) < 0 && errno != EISDIR)
		printf(" (%s)", strerror(errno));
	close(fd);
}

static int print_events(int which)
{
	static char buffer[65536] __attribute__((aligned(8)));
	int length, count = 0;
	while ((length = read(groups[which].fd, buffer, sizeof buffer)) > 0) {
		for (char *at = buffer; at < buffer + length;) {
			struct fanotify_event_metadata *event = (void *)at;
			at += event->event_len;
			count++;
			if (is_of_others(event))
				continue;
			if (event->pid != getpid() && event->pid != syscall(SYS_gettid) && event->pid != 0) {
				if (event->fd >= 0)
					close(event->fd);
				continue;
			}
			printf("  %s:", groups[which].name);
			print_mask(event->mask);
			printf("%s", event->pid == 0 ? " pid 0" : "");
			if (event->vers != 3 || event->metadata_len != 24)
				printf(" version %d of %d bytes", event->vers, event->metadata_len);
			if (event->fd >= 0)
				print_fd(event->fd);
			else if (event->fd != FAN_NOFD)
				printf(" fd %d", event->fd);
			for (char *info = (char *)event + event->metadata_len; info < at; info += *(uint16_t *)(info + 2))
				print_info(info);
			printf("\n");
		}
	}
	if (errno != EAGAIN)
		printf("  %s: read: %s\n", groups[which].name, strerror(errno));
	return count;
}

static void print_all(const char *call)
{
	printf("%s\n", call);
	for (int i = 0; i < group_count; i++)
		print_events(i);
	fflush(stdout);
}

static void print_call(const char *call, long result)
{
	if (result < 0)
		printf("error: %s\n", strerror(errno));
	print_all(call);
}

#define DO(call) print_call(#call, call)

static void end_groups(void)
{
	for (int i = 0; i < group_count; i++)
		close(groups[i].fd);
	group_count = 0;
}

static void changes(void)
{
	char buffer[200];
	int file, directory, kept;
	DO(file = open("d/f", O_RDWR)), DO(write(file, "hello", 5)), DO(pread(file, buffer, 5, 0));
	DO(ftruncate(file, 3)), DO(fchmod(file, 0600)), DO(fallocate(file, 0, 0, 10)), DO(close(file));
	DO(close(open("d/f", O_RDONLY))), DO(close(open("d/f", O_WRONLY | O_TRUNC))), DO(close(open("d/f", O_PATH)));
	DO(chmod("d/f", 0644)), DO(truncate("d/f", 7)), DO(utimensat(AT_FDCWD, "d/f", 0, 0));
	DO(setxattr("d/f", "trusted.a", "b", 1, 0)), DO(removexattr("d/f", "trusted.a"));
	DO(file = open("d/new", O_CREAT | O_RDWR, 0600));
	learn("new", "d/new");
	DO(write(file, "x", 1)), DO(close(file));
	DO(link("d/new", "e/hard")), DO(close(open("e/hard", O_RDONLY))), DO(unlink("e/hard"));
	DO(rename("d/new", "d/newer")), DO(rename("d/newer", "e/newest")), DO(rename("e/newest", "e/old"));
	file = open("e/old", O_RDWR), kept = open("e/old", O_PATH);
	DO(unlink("e/old")), DO(write(file, "x", 1)), DO(close(file)), DO(close(kept));
	DO(mkdir("d/sub", 0755));
	learn("sub", "d/sub");
	DO(directory = open("d/sub", O_RDONLY | O_DIRECTORY));
	DO(syscall(SYS_getdents64, directory, buffer, 200)), DO(close(directory)), DO(chmod("d/sub", 0700));
	DO(rename("d/sub", "e/sub")), DO(rmdir("e/sub"));
	DO(symlink("x", "d/link")), DO(unlink("d/link")), DO(mknod("d/fifo", S_IFIFO | 0644, 0)), DO(unlink("d/fifo"));
	close(open("d/a", O_CREAT, 0600)), close(open("e/b", O_CREAT, 0600));
	learn("a", "d/a"), learn("b", "e/b");
	print_all("two files");
	DO(renameat2(AT_FDCWD, "d/a", AT_FDCWD, "e/b", RENAME_EXCHANGE));
	DO(unlink("d/a")), DO(unlink("e/b")), DO(close(open("d", O_RDONLY))), DO(chmod("d", 0755));
}

static void set_up(void)
{
	close(open("d/f", O_CREAT | O_RDWR, 0644)), close(open("e/old", O_CREAT | O_RDWR, 0644));
	learn("f", "d/f"), learn("old", "e/old");
}

// Each way of reporting, with marks on two directories and a file.
static void ways_of_reporting(void)
{
	static const struct {
		const char *name;
		unsigned flags;
	} ways[] = { { "FID", FAN_REPORT_FID }, { "DIR_FID", FAN_REPORT_DIR_FID },
		{ "DIR+FID", FAN_REPORT_DIR_FID | FAN_REPORT_FID }, { "NAME", FAN_REPORT_DFID_NAME },
		{ "NAME+FID", FAN_REPORT_DFID_NAME | FAN_REPORT_FID },
		{ "TARGET", FAN_REPORT_DFID_NAME | FAN_REPORT_FID | FAN_REPORT_TARGET_FID } };
	set_up();
	for (int i = 0; i < 6; i++) {
		int fd = add_group(ways[i].name, ways[i].flags, 0);
		uint64_t more = ways[i].flags & FAN_REPORT_NAME ? FAN_RENAME : 0;
		mark(fd, FAN_MARK_ADD, ALL_EVENTS | FLAGS | more, "d");
		mark(fd, FAN_MARK_ADD, ALL_EVENTS | more, "e");
		mark(fd, FAN_MARK_ADD, ALL_EVENTS, "d/f");
	}
	print_all("ways of reporting");
	changes();
	end_groups();
}

static void descriptors(void)
{
	set_up();
	int fd = add_group("fd", FAN_CLASS_NOTIF, O_RDONLY | O_CLOEXEC);
	mark(fd, FAN_MARK_ADD, FILE_EVENTS | FLAGS, "d");
	mark(fd, FAN_MARK_ADD, FILE_EVENTS, "e/old");
	fd = add_group("fd rw", FAN_CLASS_NOTIF | FAN_REPORT_PIDFD, O_RDWR | O_APPEND);
	mark(fd, FAN_MARK_ADD, FAN_OPEN | FAN_CLOSE | FAN_EVENT_ON_CHILD, "d");
	fd = add_group("content", FAN_CLASS_CONTENT, O_RDONLY);
	mark(fd, FAN_MARK_ADD, FAN_OPEN | FAN_EVENT_ON_CHILD, "d");
	mark(fd, FAN_MARK_ADD, FAN_ATTRIB, "d"), mark(fd, FAN_MARK_ADD, FAN_CREATE, "d");
	print_all("descriptors");
	changes();
	end_groups();
}

static void whole(void)
{
	set_up();
	int fd = add_group("mount", FAN_CLASS_NOTIF, O_RDONLY);
	mark(fd, FAN_MARK_ADD | FAN_MARK_MOUNT, FILE_EVENTS | FAN_ONDIR, ".");
	fd = add_group("mount fid", FAN_REPORT_FID, 0);
	mark(fd, FAN_MARK_ADD | FAN_MARK_MOUNT, FILE_EVENTS, "d/f");
	mark(fd, FAN_MARK_ADD | FAN_MARK_MOUNT, FAN_CREATE, "d");
	fd = add_group("fs", FAN_REPORT_DFID_NAME | FAN_REPORT_FID, 0);
	mark(fd, FAN_MARK_ADD | FAN_MARK_FILESYSTEM, ALL_EVENTS | FAN_RENAME | FAN_ONDIR, "d");
	fd = add_group("fs target", FAN_REPORT_DFID_NAME | FAN_REPORT_FID | FAN_REPORT_TARGET_FID | FAN_REPORT_TID, 0);
	mark(fd, FAN_MARK_ADD | FAN_MARK_FILESYSTEM, FAN_CREATE | FAN_DELETE | FAN_RENAME | FAN_DELETE_SELF, "d");
	mark(fd, FAN_MARK_ADD | FAN_MARK_IGNORED_MASK | FAN_MARK_IGNORED_SURV_MODIFY, FAN_CREATE, "e");
	fd = add_group("rename new", FAN_REPORT_DFID_NAME, 0);
	mark(fd, FAN_MARK_ADD, FAN_RENAME, "e");
	fd = add_group("fs fid", FAN_REPORT_FID, 0);
	mark(fd, FAN_MARK_ADD | FAN_MARK_FILESYSTEM, FAN_DELETE_SELF | FAN_MOVE_SELF | FAN_ATTRIB | FAN_ONDIR, ".");
	print_all("whole");
	changes();
	fd = groups[2].fd;
	mark(fd, FAN_MARK_REMOVE | FAN_MARK_FILESYSTEM, FAN_OPEN, ".");
	DO(close(open("d/f", O_RDONLY)));
	mark(fd, FAN_MARK_REMOVE, FAN_OPEN, "d");
	if (fanotify_mark(fd, FAN_MARK_FLUSH, 0, AT_FDCWD, 0))
		printf("flush: %s\n", strerror(errno));
	DO(close(open("d/f", O_RDONLY)));
	if (fanotify_mark(fd, FAN_MARK_FLUSH | FAN_MARK_FILESYSTEM, 0, AT_FDCWD, 0))
		printf("flush: %s\n", strerror(errno));
	DO(close(open("d/f", O_RDONLY)));
	mark(fd, FAN_MARK_ADD, FAN_OPEN, "d/f");
	DO(close(open("d/f", O_RDONLY)));
	end_groups();
}

static void ignoring(void)
{
	char buffer[200];
	int file;
	set_up();
	int fd = add_group("ignore", FAN_REPORT_FID, 0);
	mark(fd, FAN_MARK_ADD, FILE_EVENTS | FLAGS, "d");
	mark(fd, FAN_MARK_ADD | FAN_MARK_IGNORED_MASK, FAN_OPEN | FAN_CLOSE, "d/f");
	fd = add_group("survives", FAN_REPORT_FID, 0);
	mark(fd, FAN_MARK_ADD, FILE_EVENTS | FLAGS, "d");
	mark(fd, FAN_MARK_ADD | FAN_MARK_IGNORED_MASK | FAN_MARK_IGNORED_SURV_MODIFY, FAN_OPEN | FAN_CLOSE, "d/f");
	fd = add_group("directory", FAN_REPORT_FID, 0);
	mark(fd, FAN_MARK_ADD, FILE_EVENTS | FLAGS, "d");
	mark(fd, FAN_MARK_ADD | FAN_MARK_IGNORED_MASK | FAN_MARK_IGNORED_SURV_MODIFY, FAN_OPEN, "d");
	fd = add_group("new form", FAN_REPORT_FID, 0);
	mark(fd, FAN_MARK_ADD, FILE_EVENTS | FLAGS, "d");
	mark(fd, FAN_MARK_ADD | FAN_MARK_IGNORE, FAN_OPEN | FAN_EVENT_ON_CHILD, "d");
	mark(fd, FAN_MARK_ADD | FAN_MARK_IGNORE_SURV, FAN_OPEN | FAN_EVENT_ON_CHILD, "d");
	mark(fd, FAN_MARK_ADD | FAN_MARK_IGNORED_MASK, FAN_CLOSE, "d");
	mark(fd, FAN_MARK_ADD | FAN_MARK_IGNORE, FAN_CLOSE, "d/f");
	mark(fd, FAN_MARK_ADD | FAN_MARK_IGNORE_SURV, FAN_CLOSE | FAN_ONDIR, "d/f");
	fd = add_group("new form of directories", FAN_REPORT_FID, 0);
	mark(fd, FAN_MARK_ADD, FILE_EVENTS | FLAGS, "d");
	mark(fd, FAN_MARK_ADD | FAN_MARK_IGNORE_SURV, FAN_OPEN | FAN_ONDIR, "d");
	fd = add_group("evictable", FAN_REPORT_FID, 0);
	mark(fd, FAN_MARK_ADD | FAN_MARK_EVICTABLE, FAN_OPEN, "d");
	mark(fd, FAN_MARK_ADD, FAN_CLOSE, "d"), mark(fd, FAN_MARK_ADD | FAN_MARK_EVICTABLE, FAN_OPEN, "d");
	fd = add_group("only ignore", FAN_REPORT_FID, 0);
	mark(fd, FAN_MARK_ADD | FAN_MARK_MOUNT, FILE_EVENTS | FAN_ONDIR, ".");
	mark(fd, FAN_MARK_ADD | FAN_MARK_IGNORE_SURV, FAN_OPEN | FAN_EVENT_ON_CHILD, "d");
	print_all("ignoring");
	DO(close(open("d/f", O_RDONLY))), DO(file = open("d/f", O_RDWR)), DO(write(file, "x", 1)), DO(close(file));
	DO(read(file = open("d/f", O_RDONLY), buffer, 1)), DO(close(file));
	DO(close(open("d", O_RDONLY))), DO(close(open("e/old", O_RDONLY)));
	end_groups();
}

static void errors(void)
{
	int fd = add_group("fid", FAN_REPORT_FID, 0), classic = add_group("fd", 0, 0);
	int target = add_group("target", FAN_REPORT_DFID_NAME_TARGET, 0);
	mark(fd, FAN_MARK_ADD, FAN_OPEN, "missing"), mark(fd, FAN_MARK_REMOVE, FAN_OPEN, "d");
	mark(fd, FAN_MARK_ADD | FAN_MARK_REMOVE, FAN_OPEN, "d"), mark(fd, FAN_MARK_ADD, 0, "d");
	mark(fd, 0, FAN_OPEN, "d"), mark(fd, FAN_MARK_ADD | 0x8000, FAN_OPEN, "d");
	mark(fd, FAN_MARK_ADD, 1ull << 40, "d"), mark(fd, FAN_MARK_ADD, FAN_OPEN_PERM, "d");
	mark(fd, FAN_MARK_ADD | FAN_MARK_ONLYDIR, FAN_OPEN, "d/f"), mark(fd, FAN_MARK_ADD, FAN_RENAME, "d");
	mark(target, FAN_MARK_ADD, FAN_CREATE, "d/f"), mark(target, FAN_MARK_ADD, FAN_OPEN | FAN_ONDIR, "d/f");
	mark(target, FAN_MARK_ADD, FAN_RENAME, "d/f"), mark(fd, FAN_MARK_ADD, FAN_CREATE, "d/f");
	mark(classic, FAN_MARK_ADD, FAN_CREATE, "d"), mark(classic, FAN_MARK_ADD, FAN_OPEN, "d/f");
	mark(99, FAN_MARK_ADD, FAN_OPEN, "d"), mark(0, FAN_MARK_ADD, FAN_OPEN, "d");
	mark(fd, FAN_MARK_FLUSH | FAN_MARK_ADD, 0, "d"), mark(99, FAN_MARK_FLUSH, 0, "d");
	mark(fd, FAN_MARK_ADD | FAN_MARK_EVICTABLE | FAN_MARK_MOUNT, FAN_OPEN, "d");
	mark(fd, FAN_MARK_ADD | FAN_MARK_IGNORE | FAN_MARK_MOUNT, FAN_OPEN, "d");
	mark(fd, FAN_MARK_ADD | FAN_MARK_IGNORE | FAN_MARK_IGNORED_MASK, FAN_OPEN, "d");
	mark(fd, FAN_MARK_ADD, FAN_OPEN, 0);
	symlink("nowhere", "link");
	mark(fd, FAN_MARK_ADD, FAN_OPEN, "link"), mark(fd, FAN_MARK_ADD | FAN_MARK_DONT_FOLLOW, FAN_OPEN, "link");
	int directory = open("d", O_RDONLY);
	if (fanotify_mark(fd, FAN_MARK_ADD, FAN_OPEN, directory, 0))
		printf("by descriptor: %s\n", strerror(errno));
	if (fanotify_mark(fd, FAN_MARK_ADD | FAN_MARK_ONLYDIR, FAN_OPEN, open("d/f", O_RDONLY), 0))
		printf("by descriptor: %s\n", strerror(errno));
	DO(close(open("d", O_RDONLY)));
	char small[20];
	close(open("d/f", O_RDONLY)), close(open("d", O_RDONLY));
	printf("short read: %zd", read(classic, small, sizeof small)), printf(" %s\n", strerror(errno));
	end_groups();
}

static void unprivileged(void)
{
	chmod("d", 0777), chmod("d/f", 0666);
	int secret = open("secret", O_CREAT | O_RDWR, 0600);
	fflush(stdout);
	if (fork()) {
		wait(0);
		return;
	}
	if (setresgid(65534, 65534, 65534) || setresuid(65534, 65534, 65534))
		exit(1);
	add_group("classic", 0, 0), add_group("unlimited", FAN_REPORT_FID | FAN_UNLIMITED_QUEUE, 0);
	add_group("pidfd", FAN_REPORT_FID | FAN_REPORT_PIDFD, 0);
	group_count = 0;
	int fd = add_group("fid", FAN_REPORT_FID, 0);
	mark(fd, FAN_MARK_ADD, FAN_OPEN, "secret"), mark(fd, FAN_MARK_ADD | FAN_MARK_MOUNT, FAN_OPEN, "d");
	mark(fd, FAN_MARK_ADD | FAN_MARK_FILESYSTEM, FAN_OPEN, "d");
	mark(fd, FAN_MARK_ADD, FAN_OPEN | FAN_CLOSE | FAN_EVENT_ON_CHILD, "d");
	DO(close(open("d/f", O_RDONLY)));
	if (!fork()) {
		close(open("d/f", O_RDONLY));
		exit(0);
	}
	wait(0);
	print_all("another process");
	close(secret);
	exit(0);
}

int main(int count, char **arguments)
{
	struct statfs status;
	if (count < 2 || chdir(arguments[1]))
		return 1;
	umask(0);
	statfs(".", &status);
	memcpy(&fsid, &status.f_fsid, sizeof fsid);
	mkdir("d", 0755), mkdir("e", 0755);
	learn(".", "."), learn("d", "d"), learn("e", "e");
	ways_of_reporting(), descriptors(), whole(), ignoring(), errors(), unprivileged();
	return 0;
}
