// A child makes, renames and removes one name without a pause, and is stopped again and again. Where
// it holds its name, a call on that waits; a signal ends the wait after a while, and a handler with
// SA_RESTART restarts the call. Names in the parent's own directory are not waited for, but where the
// child was stopped in the few instructions that lock a bucket which they share: that may happen
// twice, or in one round of eight. Argument: a directory. The output is the same in each run.
#define _GNU_SOURCE
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

static pid_t child;
static int restarts, interruptions;

// A call that restarts is let through by continuing the child at the second signal.
static void on_alarm(int signal)
{
	interruptions++;
	if (restarts && interruptions == 2)
		kill(child, SIGCONT);
}

static void set_timer(int restart)
{
	struct sigaction action = { .sa_handler = on_alarm, .sa_flags = restart ? SA_RESTART : 0 };
	struct itimerval often = { { 0, 200000 }, { 0, 200000 } };
	restarts = restart;
	interruptions = 0;
	sigaction(SIGALRM, &action, NULL);
	setitimer(ITIMER_REAL, &often, NULL);
}

static void stop_timer(void)
{
	struct itimerval never = { { 0, 0 }, { 0, 0 } };
	setitimer(ITIMER_REAL, &never, NULL);
}

static int make(const char *name)
{
	return mkdir(name, 0700) ? errno : 0;
}

static void work(void)
{
	for (;;) {
		make("held");
		rename("held", "moved");
		rmdir("moved");
	}
}

int main(int argc, char **argv)
{
	unsigned seed = 7, interrupted = 0, restarted = 0, delayed = 0, rounds = 0;
	char name[32];
	if (chdir(argv[1]) || make("own"))
		return 1;
	child = fork();
	if (child == 0)
		work();
	while ((!interrupted || !restarted) && rounds++ < 5000) {
		usleep(rand_r(&seed) % 2000);
		kill(child, SIGSTOP);
		waitpid(child, NULL, WUNTRACED);
		set_timer(0);
		for (int number = 0; number < 20; number++) {
			snprintf(name, sizeof name, "own/%d", number);
			if ((make(name) && errno != EEXIST) || rmdir(name)) {
				delayed++;
				break;
			}
		}
		stop_timer();
		if (!interrupted) {
			set_timer(0);
			int error = make("held");
			stop_timer();
			if (error && error != EINTR && error != EEXIST)
				printf("the held name: %d\n", error);
			interrupted = error == EINTR;
		} else {
			set_timer(1);
			int error = make("held");
			stop_timer();
			if (error && error != EEXIST)
				printf("a call that restarts: %d\n", error);
			restarted = interruptions >= 2;
		}
		kill(child, SIGCONT);
	}
	kill(child, SIGKILL);
	waitpid(child, NULL, 0);
	rmdir("held");
	if (delayed > 2 && delayed > rounds / 8)
		printf("delayed %u times of %u\n", delayed, rounds);
	printf("interrupted %u, restarted %u, then %d\n", interrupted, restarted, make("held"));
	return 0;
}
