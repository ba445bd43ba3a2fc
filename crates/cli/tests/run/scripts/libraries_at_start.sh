# needs: gcc
# free: *
# Programs that need a library of the mount at start: by rpath, by the environment, and by the
# linked name; also with libraries that need others, and with the user's audit modules and preloads.
set -eu
cat >lib.c <<'C'
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
int more(int);
int twice(int x) { return more(x) + x; }
__attribute__((constructor)) static void hi(void) {
    Dl_info info;
    dladdr((void *)twice, &info);
    printf("loaded %s\n", info.dli_fname);
}
C
echo 'int more(int x) { return x; }' >more.c
cat >main.c <<'C'
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
int twice(int);
static void *wait_for_ever(void *end) { char c; read(*(int *)end, &c, 1); return 0; }
int main(int argc, char **argv) {
    char *path = getenv("LD_LIBRARY_PATH");
    printf("%d %s\n", twice(21), path ? path : "no path");
    void *first = dlopen("libshared.so", RTLD_LAZY | RTLD_NOLOAD), *second = dlopen(argv[1], RTLD_LAZY);
    puts(first && first == second ? "one library" : "two libraries");
    int ends[2];
    pthread_t thread;
    void *result;
    pipe(ends);
    pthread_create(&thread, 0, wait_for_ever, ends);
    pthread_cancel(thread);
    pthread_join(thread, &result);
    puts(result == PTHREAD_CANCELED ? "cancelled" : "not cancelled");
}
C
cat >audit.c <<'C'
#define _GNU_SOURCE
#include <link.h>
#include <stdio.h>
unsigned la_version(unsigned version) { printf("audited\n"); fflush(stdout); return version; }
C
mkdir lib lib/deeper bin
gcc -shared -fPIC -o lib/deeper/libmore.so more.c
gcc -shared -fPIC -Wl,-soname,libshared.so -o lib/libshared.so lib.c -Llib/deeper -lmore -Wl,-rpath,'$ORIGIN/deeper'
gcc -shared -fPIC -o audit.so audit.c
link() { gcc main.c -Llib -lshared -Wl,--allow-shlib-undefined -Wl,-rpath-link,lib/deeper "$@"; }
link -o bin/full -Wl,-rpath,"$PWD/lib"; bin/full "$PWD/lib/libshared.so"
link -o bin/old -Wl,-rpath,"$PWD/lib" -Wl,--disable-new-dtags; bin/old "$PWD/lib/libshared.so"
link -o bin/plain; LD_LIBRARY_PATH=$PWD/lib bin/plain lib/libshared.so
cd lib; LD_LIBRARY_PATH=. ../bin/plain ./libshared.so; cd ..
link -o bin/origin -Wl,-rpath,'$ORIGIN/../lib'; bin/origin lib/libshared.so
top=$PWD; cd bin; ./origin ../lib/libshared.so; LD_LIBRARY_PATH=/usr/lib ./origin ../lib/libshared.so; cd /
"$top/bin/origin" "$top/lib/libshared.so"
PATH=$top/bin:$PATH origin "$top/lib/libshared.so"; cd "$top"
mkdir links; ln -s ../bin/origin links/tool; links/tool lib/libshared.so; readlink /proc/self/exe
gcc -o bin/named main.c lib/libshared.so -Wl,-rpath-link,lib/deeper -Wl,-rpath,"$PWD/lib"; bin/named lib/libshared.so
gcc -shared -fPIC -o noname.so lib.c -Llib/deeper -lmore -Wl,-rpath,"$PWD/lib/deeper"
printf 'int twice(int); int main(void) { return twice(2) != 4; }' >few.c
gcc -o bin/few few.c ./noname.so -Wl,-rpath-link,lib/deeper; bin/few
LD_PRELOAD=$PWD/noname.so /bin/echo preloaded
LD_AUDIT=$PWD/audit.so /bin/echo with an audit module
LD_AUDIT=$PWD/audit.so bin/origin lib/libshared.so
LD_LIBRARY_PATH=$PWD/lib sh -c 'bin/plain lib/libshared.so; echo "$LD_LIBRARY_PATH"; env -u LD_LIBRARY_PATH bin/origin lib/libshared.so'
bin/plain lib/libshared.so 2>/dev/null || echo "not found: $?"
# Threads with the smallest possible stacks, in such programs; and a library with much thread-local
# storage.
cat >threads.c <<'C'
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <unistd.h>
static volatile int handled;
static void handler(int signal) { handled += !access("lib", F_OK); }
static void *nothing(void *of) { pthread_kill(pthread_self(), SIGUSR1); return of; }
int main(void) {
    signal(SIGUSR1, handler);
    for (int kib = KIB; kib <= 64; kib *= 2) {
        pthread_attr_t attributes;
        pthread_t thread;
        pthread_attr_init(&attributes);
        pthread_attr_setstacksize(&attributes, kib * 1024);
        int made = pthread_create(&thread, &attributes, nothing, 0);
        printf("%d KiB: %d\n", kib, made);
        if (!made) pthread_join(thread, 0);
    }
    printf("%d signals\n", handled);
}
C
gcc -O1 -DKIB=16 -o bin/small threads.c; LD_LIBRARY_PATH=$PWD/lib bin/small
gcc -O1 -DKIB=16 -o bin/own threads.c -Wl,-rpath,"$PWD/lib"; bin/own
echo '__attribute__((tls_model("initial-exec"))) static __thread char words[20000]; int twice(int x) { words[x] = 2; return x * words[x]; }' >words.c
gcc -shared -fPIC -o lib/libwords.so words.c; gcc -o bin/words few.c -Llib -lwords -Wl,-rpath,"$PWD/lib"; bin/words && echo words
echo '__attribute__((tls_model("initial-exec"))) static __thread char words[60000]; int twice(int x) { words[x] = 2; return x * words[x]; }' >many.c
gcc -shared -fPIC -o lib/libmany.so many.c; echo 'int twice(int); int four(int x) { return twice(x) * 2; }' >four.c
gcc -shared -fPIC -o lib/libfour.so four.c -Llib -lmany; echo 'int four(int); int main(void) { return four(1) != 4; }' >main4.c
gcc -o bin/many main4.c -Llib -lfour -Wl,-rpath,'$ORIGIN/../lib' -Wl,--disable-new-dtags; bin/many && echo many
