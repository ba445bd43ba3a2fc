#define _GNU_SOURCE
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/file.h>
#include <sys/wait.h>
#include <setjmp.h>
#include <errno.h>
#include <time.h>
static volatile long handled, jumped; static sigjmp_buf env; static volatile int can_jump;
static int deep;
static void work(const char *name) {
  char path[64]; snprintf(path, sizeof path, "sig.d/%s", name);
  int fd = open(path, O_CREAT | O_RDWR, 0644); if (fd < 0) { perror("open"); _exit(1); }
  if (write(fd, "x", 1) != 1) { perror("write"); _exit(1); }
  struct stat st; if (fstat(fd, &st) || stat(path, &st)) { perror("stat"); _exit(1); }
  close(fd);
  if (unlink(path)) { perror("unlink"); _exit(1); }
}
/* The next signal comes this long after the handler's end: the program proceeds however slow its
   file system is. */
static void next_signal(void) { struct itimerval t = { {0, 0}, {0, 200} }; setitimer(ITIMER_REAL, &t, 0); }
static void handler(int s, siginfo_t *i, void *c) { handled++; work("same"); next_signal(); if (can_jump && handled % 3 == 0) { can_jump = 0; jumped++; siglongjmp(env, 1); } }
static void nothing(int s) {}
static double now(void) { struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return t.tv_sec + t.tv_nsec * 1e-9; }
int main(void) {
  mkdir("sig.d", 0755);
  struct sigaction a = { .sa_flags = SA_SIGINFO | SA_RESTART }, old; a.sa_sigaction = handler; sigaction(SIGALRM, &a, 0);
  sigaction(SIGALRM, 0, &old); printf("action %d flags %d\n", old.sa_sigaction == handler, (old.sa_flags & (SA_SIGINFO|SA_RESTART)) == (SA_SIGINFO|SA_RESTART));
  double limit = now() + 600; volatile long rounds = 0;
  next_signal();
  sigset_t all; sigemptyset(&all); sigaddset(&all, SIGALRM);
  while ((rounds < 3000 || handled < 2000 || jumped < 500) && now() < limit) {
    sigsetjmp(env, 1); can_jump = 1;
    sigprocmask(SIG_BLOCK, &all, 0); /* names are shared with the handler */
    work("other"); 
    sigprocmask(SIG_UNBLOCK, &all, 0);
    for (int i = 0; i < 20; i++) { struct stat st; stat("sig.d", &st); access("sig.d/none", F_OK); int fd = open("sig.d", O_RDONLY | O_DIRECTORY); if (fd >= 0) close(fd); if (fd > 100) close(fd); }
    rounds++;
  }
  can_jump = 0; sigprocmask(SIG_BLOCK, &all, 0);
  printf("rounds %s handled %s jumped %s\n", rounds < 3000 ? "few" : "many", handled < 2000 ? "few" : "many", jumped < 500 ? "few" : "many");
  for (int fd = 3; fd < 900; fd++) close(fd);
  /* waits are interrupted */
  int f = open("sig.d/lock", O_CREAT | O_RDWR, 0644), ready[2], release[2]; pipe(ready); pipe(release);
  char c;
  pid_t child = fork();
  if (!child) { int g = open("sig.d/lock", O_RDWR); flock(g, LOCK_EX); write(ready[1], "r", 1); read(release[0], &c, 1); _exit(0); }
  read(ready[0], &c, 1);
  struct sigaction n = { .sa_handler = nothing }; sigaction(SIGUSR1, &n, 0);
  pid_t self = getpid();
  /* Signals repeat: the first may come before the wait. */
  pid_t kicker = fork(); if (!kicker) do usleep(50000); while (!kill(self, SIGUSR1));
  int r = flock(f, LOCK_EX), error = errno;
  n.sa_flags = SA_RESTART; sigaction(SIGUSR1, &n, 0);
  printf("flock %d %s\n", r, r ? strerror(error) : "");
  kill(kicker, SIGKILL); waitpid(kicker, 0, 0);
  /* The holder releases the lock after some signals. */
  kicker = fork(); if (!kicker) { for (int i = 0; i < 4; i++) { usleep(50000); kill(self, SIGUSR1); } write(release[1], "r", 1); _exit(0); }
  r = flock(f, LOCK_EX); printf("flock %d after restart\n", r);
  waitpid(kicker, 0, 0); waitpid(child, 0, 0);
  return 0;
}
