# needs: cc
# free: static fixed
# hidden: /dev/fuse
# Static programs, at fixed and at any addresses, do what others do.
set -eu
cc -O1 -w -pthread -static-pie -o static "$KIT/static_program.c"
cc -O1 -w -pthread -static -o fixed "$KIT/static_program.c"
for program in static fixed; do
    ./$program
    ./$program exec 6 || echo ended $?
    cat depths
    printf '#!%s names\n' "$PWD/$program" >script
    chmod +x script
    ./script extra || echo status $?
    (exec -a other ./$program names)
    sh -c "./$program names | cat"
    rm -f thread-* timer-* alone-* depths
done
chmod 644 fixed
./fixed 2>/dev/null || echo not executable: $?
mkdir -p linked && ln -s ../static linked/name && linked/name names
cd linked && ../static names
