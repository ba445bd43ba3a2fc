// The ways in which programs wait for events of fanotify, and pass its descriptors on. The output
// is the same on each file system. Arguments: an empty directory, and one of the machine.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/fanotify.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static char buffer[1 << 20] __attribute__((aligned(8)));
static pid_t self;

static int group(unsigned flags)
{
	int fd = fanotify_init(flags, O_RDONLY);
	if (fd < 0)
		printf("fanotify_init: %s\n", strerror(errno));
	return fd;
}

static void mark(int fd, uint64_t mask, const char *path)
{
	if (fanotify_mark(fd, FAN_MARK_ADD, mask, AT_FDCWD, path))
		printf("mark on %s: %s\n", path, strerror(errno));
}

// Reads once and prints masks; descriptors are closed.
static int print_read(int fd, const char *what, size_t room)
{
	int length = read(fd, buffer, room), count = 0;
	printf("%s:", what);
	if (length < 0)
		printf(" %s", strerror(errno));
	for (char *at = buffer; at < buffer + length;) {
		struct fanotify_event_metadata *event = (void *)at;
		printf(" %#llx%s", (unsigned long long)event->mask, event->pid == self ? "" : " of another");
		if (event->fd >= 0)
			close(event->fd);
		at += event->event_len;
		count++;
	}
	printf("\n");
	fflush(stdout);
	return count;
}

static int is_readable(int fd, int milliseconds)
{
	struct pollfd polled = { fd, POLLIN, 0 };
	return poll(&polled, 1, milliseconds) == 1 && polled.revents == POLLIN;
}

static void make(const char *path)
{
	close(open(path, O_CREAT | O_WRONLY, 0644));
}

static void polling(unsigned flags)
{
	int fd = group(flags | FAN_NONBLOCK), announced = -1;
	mark(fd, FAN_OPEN | FAN_CLOSE | FAN_EVENT_ON_CHILD, ".");
	printf("readable at first: %d\n", is_readable(fd, 0));
	print_read(fd, "nothing", sizeof buffer);
	make("a"), make("b");
	printf("readable: %d\n", is_readable(fd, 0));
	ioctl(fd, FIONREAD, &announced);
	printf("FIONREAD: %d\n", announced);
	print_read(fd, "one at a time", 70), printf("still readable: %d\n", is_readable(fd, 0));
	print_read(fd, "no room", 23);
	print_read(fd, "the rest", sizeof buffer);
	printf("readable at last: %d\n", is_readable(fd, 0));
	ioctl(fd, FIONREAD, &announced);
	printf("FIONREAD: %d\n", announced);
	for (int round = 0; round < 500; round++) {
		make("a");
		if (!is_readable(fd, 0) || read(fd, buffer, sizeof buffer) <= 0 || is_readable(fd, 0))
			printf("round %d differs\n", round);
		for (int other = 3; !(flags & FAN_REPORT_FID) && other < 30; other++)
			if (other != fd)
				close(other);
	}
	int epoll = epoll_create1(0);
	struct epoll_event event = { EPOLLIN, { 0 } };
	epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event);
	printf("epoll: %d\n", epoll_wait(epoll, &event, 1, 0));
	make("a");
	printf("epoll: %d\n", epoll_wait(epoll, &event, 1, 600000));
	close(epoll), close(fd);
}

static void *make_later(void *path)
{
	usleep(50000);
	make(path);
	return 0;
}

// A reader that waits, for a thread and for a process.
static void waiting(unsigned flags)
{
	int fd = group(flags);
	pthread_t thread;
	mark(fd, FAN_CLOSE_WRITE | FAN_EVENT_ON_CHILD, ".");
	pthread_create(&thread, 0, make_later, "a");
	print_read(fd, "a thread", sizeof buffer);
	pthread_join(thread, 0);
	if (!fork()) {
		make_later("b");
		_exit(0);
	}
	print_read(fd, "a process", sizeof buffer);
	wait(0);
	// The child's copy of the descriptor takes events, too.
	make("a");
	if (!fork()) {
		self = getppid();
		print_read(fd, "in a child", sizeof buffer);
		exit(0);
	}
	wait(0);
	printf("left: %d\n", is_readable(fd, 0));
	int copy = dup(fd);
	close(fd);
	make("a");
	print_read(copy, "through a copy", sizeof buffer);
	close(copy);
}

static void both_sides(const char *host)
{
	char path[300];
	int fd = group(FAN_REPORT_FID | FAN_NONBLOCK);
	snprintf(path, sizeof path, "%s/x", host);
	make(path);
	mark(fd, FAN_CLOSE_WRITE | FAN_EVENT_ON_CHILD, host), mark(fd, FAN_CLOSE_WRITE | FAN_EVENT_ON_CHILD, ".");
	make("a"), make(path), make("b");
	// The kernel's events come first.
	int count = 0, length = read(fd, buffer, sizeof buffer);
	for (char *at = buffer; at < buffer + length; at += ((struct fanotify_event_metadata *)at)->event_len)
		count += ((struct fanotify_event_metadata *)at)->mask == FAN_CLOSE_WRITE;
	printf("both sides: %d events, then %d\n", count, is_readable(fd, 0));
	fanotify_mark(fd, FAN_MARK_FLUSH, 0, AT_FDCWD, 0);
	make("a"), make(path);
	printf("flushed: %d\n", is_readable(fd, 0));
	mark(fd, FAN_CLOSE_WRITE | FAN_EVENT_ON_CHILD, ".");
	make("a");
	printf("again: %d\n", is_readable(fd, 0));
	close(fd);
	// Only the machine.
	fd = group(FAN_CLASS_NOTIF | FAN_NONBLOCK);
	mark(fd, FAN_CLOSE_WRITE, path), make(path), make("a");
	print_read(fd, "the machine", sizeof buffer);
	close(fd);
}

static void overflow(unsigned flags, const char *what)
{
	int fd = group(FAN_REPORT_DFID_NAME | FAN_NONBLOCK | flags), count = 0, lost = 0, length;
	char name[40];
	mark(fd, FAN_CREATE, ".");
	for (int i = 0; i < 40000; i++) {
		snprintf(name, sizeof name, "many/%d", i);
		if (i % 10000 == 0)
			mkdir("many", 0755), mark(fd, FAN_CREATE, "many");
		mknod(name, S_IFREG | 0644, 0);
	}
	while ((length = read(fd, buffer, sizeof buffer)) > 0)
		for (char *at = buffer; at < buffer + length; at += ((struct fanotify_event_metadata *)at)->event_len) {
			struct fanotify_event_metadata *event = (void *)at;
			count++;
			if (event->mask & FAN_Q_OVERFLOW)
				lost += 1, printf("overflow: %#llx, %d bytes, fd %d, pid %d\n", (unsigned long long)event->mask,
				                  event->event_len, event->fd, event->pid);
		}
	printf("%s: %s, lost %d, then %s\n", what, count > 5000 ? "many" : "few", lost, strerror(errno));
	close(fd);
	for (int i = 0; i < 40000; i++)
		snprintf(name, sizeof name, "many/%d", i), unlink(name);
}

static int sent(int socket, int fd)
{
	char byte = 'x', control[CMSG_SPACE(sizeof fd)] = { 0 };
	struct iovec part = { &byte, 1 };
	struct msghdr message = { .msg_iov = &part, .msg_iovlen = 1, .msg_control = control,
		.msg_controllen = sizeof control };
	struct cmsghdr *head = CMSG_FIRSTHDR(&message);
	if (fd >= 0) {
		head->cmsg_level = SOL_SOCKET, head->cmsg_type = SCM_RIGHTS, head->cmsg_len = CMSG_LEN(sizeof fd);
		memcpy(CMSG_DATA(head), &fd, sizeof fd);
		return sendmsg(socket, &message, 0);
	}
	if (recvmsg(socket, &message, 0) != 1)
		return -1;
	memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof fd);
	return fd;
}

static void passing(char *program)
{
	int sockets[2], fd;
	socketpair(AF_UNIX, SOCK_STREAM, 0, sockets);
	if (!fork()) {
		fd = group(FAN_REPORT_FID | FAN_NONBLOCK);
		mark(fd, FAN_CLOSE_WRITE | FAN_EVENT_ON_CHILD, ".");
		sent(sockets[1], fd);
		_exit(0);
	}
	fd = sent(sockets[0], -1);
	wait(0);
	make("a");
	print_read(fd, "a received descriptor", sizeof buffer);
	close(fd);
	for (int cloexec = 0; cloexec < 2; cloexec++) {
		fd = group(FAN_REPORT_FID | FAN_NONBLOCK | (cloexec ? FAN_CLOEXEC : 0));
		mark(fd, FAN_CLOSE_WRITE | FAN_EVENT_ON_CHILD, ".");
		make("a");
		if (!fork()) {
			char number[20];
			snprintf(number, sizeof number, "%d", fd);
			execl(program, program, ".", "-read", number, (char *)0);
			_exit(1);
		}
		wait(0);
		printf("left: %d\n", is_readable(fd, 0));
		close(fd);
	}
	// A watcher that is killed while it waits.
	int ready[2];
	pipe(ready);
	pid_t child = fork();
	if (!child) {
		fd = group(FAN_REPORT_FID);
		mark(fd, FAN_CLOSE_WRITE | FAN_EVENT_ON_CHILD, ".");
		write(ready[1], "x", 1);
		for (;;)
			read(fd, buffer, 1);
	}
	read(ready[0], buffer, 1);
	kill(child, SIGKILL), wait(0);
	make("a");
	printf("after a kill\n");
}

int main(int count, char **arguments)
{
	if (count < 3 || chdir(arguments[1]))
		return 1;
	self = getpid();
	if (!strcmp(arguments[2], "-read")) {
		self = getppid();
		print_read(atoi(arguments[3]), "after exec", sizeof buffer);
		return 0;
	}
	polling(FAN_REPORT_FID), polling(FAN_CLASS_NOTIF), polling(FAN_REPORT_DIR_FID | FAN_REPORT_NAME);
	polling(FAN_REPORT_DIR_FID);
	waiting(FAN_REPORT_FID), waiting(FAN_CLASS_NOTIF);
	both_sides(arguments[2]);
	overflow(0, "limited");
	passing(arguments[0]);
	return 0;
}
