# needs: gcc
# free: *
# Programs that need a library in the mount before they begin: by a path of their own, and by one from the environment.
set -eu
printf '#include <stdio.h>\nint twice(int x) { return 2 * x; }\n__attribute__((constructor)) static void hi(void) { puts("loaded"); }\n' >lib.c
printf '#include <stdio.h>\nint twice(int);\nint main(void) { printf("%%d\\n", twice(21)); }\n' >main.c
gcc -shared -fPIC -o libshared.so lib.c
gcc -o main main.c -L. -lshared -Wl,-rpath,"$PWD"; ./main
gcc -o main2 main.c -L. -lshared; LD_LIBRARY_PATH=$PWD ./main2
gcc -o main3 main.c -L. -lshared -Wl,-rpath,'$ORIGIN'; ./main3
