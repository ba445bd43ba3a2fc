# needs: gcc ar ld
# free: *.o main* lib* static
# Compiling and linking; running the results; loading libraries from the tree.
set -eu
cat >lib.c <<'X'
#include <stdio.h>
int twice(int x) { return 2 * x; }
__attribute__((constructor)) static void hi(void) { puts("loaded"); }
X
cat >main.c <<'X'
#include "twice.h"
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
int main(int argc, char **argv) {
    printf("%d %s\n", twice(21), strrchr(argv[0], '/') ? strrchr(argv[0], '/') + 1 : argv[0]);
    void *plug = dlopen("./libplug.so", RTLD_NOW);
    if (!plug) { puts(dlerror()); return 1; }
    int (*answer)(void) = (int (*)(void))dlsym(plug, "answer");
    printf("%d\n", answer());
    return argc;
}
X
echo 'int twice(int);' >twice.h; echo 'int answer(void) { return 42; }' >plug.c
gcc -O2 -g -pipe -c lib.c main.c; gcc -save-temps -O1 -c lib.c -o lib2.o; ls *.i *.s; rm -f *.i *.s
ar rcs libone.a lib.o; ar t libone.a; gcc -o main main.o libone.a -ldl; gcc -shared -fPIC -o libplug.so plug.c
./main || echo "status $?"; gcc -shared -fPIC -o libshared.so lib.c; nm -D libshared.so | grep -c twice
gcc -flto -O2 -o main4 main.c lib.c -ldl && ./main4 >/dev/null || echo "lto $?"; strip main4; ./main4 | tail -1; nm lib.o | grep -c twice; objdump -d main | grep -c '<main>:'; size lib.o | wc -l; readelf -h main | grep Type
echo 'int main(void){return 0}' >bad.c; gcc -c bad.c 2>&1 | grep -c error; ls bad.o 2>/dev/null || echo "no object"; TMPDIR=$PWD gcc -o main5 lib.c plug.c main.c -ldl; ls *.s cc* 2>/dev/null | wc -l
g++ -x c++ -o main6 - <<<'#include <iostream>
int main(){std::cout<<"c++\n";}' 2>/dev/null && ./main6 || echo c++; gcc -M main.c | tr -s ' \\\n' '\n' | grep -c twice.h
strip main && ./main >/dev/null || echo "stripped $?"
