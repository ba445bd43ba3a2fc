// Repeatedly kills a process that removes files, at a random time. Once the parent has waited for
// it, its last operation is complete or undone: every listed name can be looked up.
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { NAMES = 400, REMOVAL_NS_MAX = 200000, OLD_US = 25000 };

// Sleeps, so that the child proceeds on a machine with one processor, too.
static void wait_ns(long nanoseconds)
{
	struct timespec time = { 0, nanoseconds };
	nanosleep(&time, NULL);
}

static void make(void)
{
	char name[32];
	for (int index = 0; index < NAMES; index++) {
		snprintf(name, sizeof name, "file %d", index);
		close(open(name, O_CREAT | O_WRONLY, 0644));
	}
}

static int look(void)
{
	int lost = 0, seen = 0;
	DIR *directory = opendir(".");
	struct dirent *entry;
	while ((entry = readdir(directory))) {
		struct stat status;
		seen++;
		if (lstat(entry->d_name, &status) != 0) {
			printf("%s is listed, and then: %s\n", entry->d_name, strerror(errno));
			lost++;
		}
	}
	closedir(directory);
	return lost;
}

int main(int count, char **words)
{
	if (count != 3)
		return 2;
	int deaths = atoi(words[1]), lost = 0, died = 0, rounds = 0;
	srandom(atoi(words[2]));
	prctl(PR_SET_TIMERSLACK, 1);
	if (mkdir("ended", 0755) != 0 || chdir("ended") != 0)
		return 2;
	int ready[2];
	// A child may end before the parent gets the processor.
	for (; died < deaths && rounds < 100 * deaths; rounds++) {
		make();
		// Undurable names are checked when they are listed.
		usleep(OLD_US);
		if (pipe(ready) != 0)
			return 2;
		pid_t child = fork();
		if (child == 0) {
			char name[32];
			if (write(ready[1], "r", 1) != 1)
				_exit(1);
			for (int index = 0; index < NAMES; index++) {
				snprintf(name, sizeof name, "file %d", index);
				unlink(name);
			}
			_exit(0);
		}
		char word;
		if (read(ready[0], &word, 1) != 1)
			return 2;
		wait_ns(random() % REMOVAL_NS_MAX);
		kill(child, SIGKILL);
		int status;
		waitpid(child, &status, 0);
		died += WIFSIGNALED(status);
		close(ready[0]);
		close(ready[1]);
		lost += look();
	}
	printf("%d of %d died, %d names were lost\n", died, rounds, lost);
	return lost != 0 || died < deaths;
}
