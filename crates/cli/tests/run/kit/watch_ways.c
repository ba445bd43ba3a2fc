// Uses inotify descriptors in several ways, and prints what it sees. The output is the same on each
// file system. Arguments: a directory, and one of the host.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/inotify.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

static const char *host;

static void make(const char *path)
{
	close(open(path, O_CREAT | O_WRONLY, 0600));
}

static int watch(int fd, const char *path, unsigned mask)
{
	int number = inotify_add_watch(fd, path, mask);
	if (number < 0)
		printf("watch on %s: %s\n", path, strerror(errno));
	return number;
}

// Prints the names of one read, which may block.
static int names(const char *what, int fd)
{
	char buffer[4096];
	int length = read(fd, buffer, sizeof buffer);
	printf("%s:", what);
	if (length < 0)
		printf(" %s", strerror(errno));
	for (char *at = buffer; at < buffer + length;) {
		struct inotify_event *event = (void *)at;
		printf(" %x/%s", event->mask, event->len ? event->name : "");
		at += sizeof *event + event->len;
	}
	printf("\n");
	return length;
}

static int ready(int fd)
{
	struct pollfd polled = { fd, POLLIN, 0 };
	return poll(&polled, 1, 0);
}

// A child makes a file once the parent's read blocks, or before: both must work.
static void processes(void)
{
	int fd = inotify_init();
	watch(fd, ".", IN_CREATE);
	for (int round = 0; round < 50; round++) {
		if (fork() == 0) {
			char name[32];
			sprintf(name, "child-%d", round);
			make(name);
			_exit(0);
		}
		names("made by a child", fd);
		wait(0);
	}
	// The child reads from the descriptor that it inherits.
	make("before");
	if (fork() == 0) {
		names("the child", fd);
		fflush(stdout);
		_exit(0);
	}
	wait(0);
	printf("left for the parent: %d\n", ready(fd));
	close(fd);
}

static void polling(void)
{
	int fd = inotify_init1(IN_NONBLOCK), set = epoll_create1(0), copy = dup(fd);
	struct epoll_event event = { EPOLLIN, { 0 } };
	epoll_ctl(set, EPOLL_CTL_ADD, fd, &event);
	watch(fd, ".", IN_CREATE | IN_DELETE);
	printf("nothing: poll %d epoll %d\n", ready(fd), epoll_wait(set, &event, 1, 0));
	names("nothing", fd);
	for (int round = 0; round < 3; round++) {
		make("polled");
		unlink("polled");
		fd_set readable;
		FD_ZERO(&readable);
		FD_SET(fd, &readable);
		struct timeval none = { 0, 0 };
		printf("two events: poll %d epoll %d select %d copy %d\n", ready(fd), epoll_wait(set, &event, 1, 0),
			select(fd + 1, &readable, 0, 0, &none), ready(copy));
		// Room for one event: the other keeps the descriptor readable.
		char one[32];
		printf("one: %zd, poll %d epoll %d\n", read(copy, one, sizeof one), ready(fd),
			epoll_wait(set, &event, 1, 0));
		struct iovec parts[3] = { { one, 0 }, { one, 32 }, { one, 32 } };
		printf("readv: %zd %zd\n", readv(fd, parts, 3), readv(fd, parts + 1, 2));
		printf("none: poll %d epoll %d\n", ready(fd), epoll_wait(set, &event, 1, 0));
	}
	close(fd);
	make("for the copy");
	names("the copy", copy);
	close(copy), close(set);
}

static void both_sides(void)
{
	char path[4096];
	int fd = inotify_init1(IN_NONBLOCK);
	int there = watch(fd, host, IN_CREATE), here = watch(fd, ".", IN_CREATE);
	printf("different numbers: %d\n", there != here);
	for (int round = 0; round < 3; round++) {
		snprintf(path, sizeof path, "%s/host-%d", host, round);
		make(path), names("of the host", fd);
		snprintf(path, sizeof path, "mixed-%d", round);
		make(path), names("of the directory", fd);
	}
	inotify_rm_watch(fd, there);
	names("removed there", fd);
	inotify_rm_watch(fd, here);
	names("removed here", fd);
	close(fd);
}

static void executed(char *self)
{
	int fd = inotify_init();
	char number[16];
	watch(fd, ".", IN_CREATE);
	sprintf(number, "%d", fd);
	if (fork() == 0) {
		execl(self, self, ".", host, number, (char *)0);
		_exit(127);
	}
	wait(0);
	names("after the other program", fd);
	close(fd);
}

static void many(void)
{
	enum { COUNT = 2000 };
	int fd = inotify_init1(IN_NONBLOCK), sum = 0, numbers[COUNT];
	char path[32];
	mkdir("many", 0755);
	for (int i = 0; i < COUNT; i++) {
		sprintf(path, "many/%d", i);
		mkdir(path, 0755);
		numbers[i] = watch(fd, path, IN_CREATE | IN_DELETE_SELF);
	}
	for (int i = COUNT - 1; i >= 0; i--) {
		sprintf(path, "many/%d/f", i);
		make(path);
		char buffer[64];
		struct inotify_event *event = (void *)buffer;
		sum += read(fd, buffer, sizeof buffer) == 32 && event->wd == numbers[i];
	}
	printf("%d of %d\n", sum, COUNT);
	for (int i = 0; i < COUNT / 2; i++)
		inotify_rm_watch(fd, numbers[i]);
	if (system("rm -r many"))
		printf("rm fails\n");
	int ended = 0, length;
	static char buffer[1 << 20];
	while ((length = read(fd, buffer, sizeof buffer)) > 0)
		for (char *at = buffer; at < buffer + length; at += sizeof(struct inotify_event))
			ended += (((struct inotify_event *)at)->mask & IN_IGNORED) != 0;
	printf("ended: %d\n", ended);
	close(fd);
}

static void overflow(void)
{
	int fd = inotify_init1(IN_NONBLOCK), lost = 0, length;
	static char buffer[1 << 20];
	long events = 0;
	watch(fd, ".", IN_CREATE | IN_DELETE);
	for (int i = 0; i < 20000; i++)
		make("o"), unlink("o");
	while ((length = read(fd, buffer, sizeof buffer)) > 0)
		for (char *at = buffer; at < buffer + length; events++) {
			struct inotify_event *event = (void *)at;
			lost += (event->mask & IN_Q_OVERFLOW) != 0 && event->wd == -1;
			at += sizeof *event + event->len;
		}
	printf("events %ld, of these overflows %d\n", events, lost);
	make("after");
	names("after", fd);
	close(fd);
}

// Watchers that are stopped or killed keep no other process from its changes.
static void killed(void)
{
	int fd = inotify_init1(IN_NONBLOCK), ends[2];
	char byte;
	if (pipe(ends))
		exit(1);
	pid_t child = fork();
	if (child == 0) {
		int own = inotify_init();
		watch(own, ".", IN_ALL_EVENTS);
		write(ends[1], "x", 1);
		for (;;)
			names("never", own);
	}
	read(ends[0], &byte, 1);
	kill(child, SIGSTOP);
	waitpid(child, 0, WUNTRACED);
	watch(fd, ".", IN_CREATE);
	make("stopped");
	kill(child, SIGKILL);
	waitpid(child, 0, 0);
	make("killed");
	names("the other watcher", fd);
	close(fd);
}

// A descriptor that is sent to another process, and closed by its sender before it arrives.
static void sent(void)
{
	int pair[2], fd = inotify_init1(IN_NONBLOCK);
	char byte = 'x', room[CMSG_SPACE(sizeof(int))] = { 0 };
	struct iovec part = { &byte, 1 };
	struct msghdr message = { .msg_iov = &part, .msg_iovlen = 1, .msg_control = room, .msg_controllen = sizeof room };
	if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair))
		exit(1);
	pid_t child = fork();
	if (child == 0) {
		close(fd);
		recvmsg(pair[1], &message, 0);
		memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof fd);
		names("received", fd);
		make("by the receiver");
		names("received", fd);
		exit(0);
	}
	watch(fd, ".", IN_CREATE);
	make("before it is sent");
	struct cmsghdr *head = CMSG_FIRSTHDR(&message);
	*head = (struct cmsghdr){ CMSG_LEN(sizeof fd), SOL_SOCKET, SCM_RIGHTS };
	memcpy(CMSG_DATA(head), &fd, sizeof fd);
	ssize_t sent = sendmsg(pair[0], &message, 0);
	close(fd);
	// The child prints, too.
	waitpid(child, 0, 0);
	printf("sent: %zd\n", sent);
	close(pair[0]), close(pair[1]);
}

static void blocked(int signal)
{
	static const char text[] = "a read waits although poll had found events\n";
	write(1, text, sizeof text - 1);
	_exit(0);
}

// A program that reads only when poll says so does not wait in its read, while another process
// raises events.
static void polled(void)
{
	int fd = inotify_init1(0), reads = 0;
	char buffer[4096];
	signal(SIGALRM, blocked);
	watch(fd, ".", IN_CREATE | IN_DELETE);
	for (int round = 0; round < 30; round++) {
		int ends[2];
		if (pipe(ends))
			exit(1);
		pid_t child = fork();
		if (child == 0) {
			for (int n = 0; n < 500; n++)
				make("busy"), unlink("busy");
			exit(0);
		}
		close(ends[1]);
		// The other end of the pipe is closed by the child's end.
		struct pollfd wait[2] = { { fd, POLLIN }, { ends[0], POLLIN } };
		while (poll(wait, 2, -1) > 0 && (wait[0].revents || !wait[1].revents))
			alarm(600), reads += read(fd, buffer, sizeof buffer) > 0, alarm(0);
		close(ends[0]);
		waitpid(child, 0, 0);
	}
	printf("polled: %s\n", reads >= 30 ? "read" : "not read");
	close(fd);
}

int main(int argc, char **argv)
{
	setvbuf(stdout, 0, _IOLBF, 0);
	char *self = realpath(argv[0], 0);
	if (argc < 3 || chdir(argv[1]))
		return 2;
	host = argv[2];
	if (argc > 3) {
		make("by the program");
		names("the program", atoi(argv[3]));
		make("for its parent");
		return 0;
	}
	processes(), polling(), both_sides(), executed(self), many(), overflow(), killed(), sent(), polled();
	return 0;
}
