// Takes a lease on a file and gives it up, as told on standard input: "read", "write" or
// "release". Says when it is broken. Argument: the file.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/signalfd.h>
#include <unistd.h>

int main(int count, char **arguments)
{
	char line[100];
	int file = -1;
	sigset_t set;
	sigemptyset(&set), sigaddset(&set, SIGIO), sigprocmask(SIG_BLOCK, &set, 0);
	struct pollfd wait[2] = { { 0, POLLIN, 0 }, { signalfd(-1, &set, 0), POLLIN, 0 } };
	setvbuf(stdin, 0, _IONBF, 0);
	while (count == 2) {
		if (poll(wait, 2, -1) < 0)
			continue;
		if (wait[1].revents & POLLIN) {
			struct signalfd_siginfo info;
			read(wait[1].fd, &info, sizeof info);
			printf("broken\n");
		} else if (!fgets(line, sizeof line, stdin)) {
			return 0;
		} else {
			int kind = line[0] == 'w' ? F_WRLCK : line[2] == 'a' ? F_RDLCK : F_UNLCK;
			if (kind != F_UNLCK)
				file = open(arguments[1], kind == F_WRLCK ? O_RDWR : O_RDONLY);
			printf("%s\n", fcntl(file, F_SETLEASE, kind) ? strerror(errno) : "done");
			if (kind == F_UNLCK)
				close(file);
		}
		fflush(stdout);
	}
	return 1;
}
