// Marks a file, and prints the process of each change of its content until "end" is in it.
// Argument: the file.
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/fanotify.h>
#include <unistd.h>

int main(int count, char **arguments)
{
	char buffer[4096], content[4096];
	int group = fanotify_init(FAN_CLASS_NOTIF | FAN_REPORT_FID, O_RDONLY);
	if (count != 2 || fanotify_mark(group, FAN_MARK_ADD, FAN_MODIFY, AT_FDCWD, arguments[1]))
		return perror("mark"), 1;
	printf("marked\n"), fflush(stdout);
	for (;;) {
		ssize_t length = read(group, buffer, sizeof buffer);
		struct fanotify_event_metadata *event = (void *)buffer;
		for (; FAN_EVENT_OK(event, length); event = FAN_EVENT_NEXT(event, length))
			printf("%d\n", event->pid);
		fflush(stdout);
		int file = open(arguments[1], O_RDONLY);
		ssize_t bytes = read(file, content, sizeof content - 1);
		content[bytes < 0 ? 0 : bytes] = 0;
		close(file);
		if (strstr(content, "end"))
			return 0;
	}
}
