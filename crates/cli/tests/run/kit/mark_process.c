// Marks a file, and prints the processes of two changes of its content.
// Argument: the file.
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <sys/fanotify.h>
#include <unistd.h>

int main(int count, char **arguments)
{
	char buffer[4096];
	int group = fanotify_init(FAN_CLASS_NOTIF | FAN_REPORT_FID, O_RDONLY);
	if (count != 2 || fanotify_mark(group, FAN_MARK_ADD, FAN_MODIFY, AT_FDCWD, arguments[1]))
		return perror("mark"), 1;
	printf("marked\n"), fflush(stdout);
	for (int changes = 0; changes < 2; fflush(stdout)) {
		ssize_t length = read(group, buffer, sizeof buffer);
		struct fanotify_event_metadata *event = (void *)buffer;
		for (; FAN_EVENT_OK(event, length); event = FAN_EVENT_NEXT(event, length), changes++)
			printf("%d\n", event->pid);
	}
	return 0;
}
