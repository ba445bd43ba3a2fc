# needs: cc
# free: *-program
# ignored: output
# Programs with sanitizers, and what these find. A sanitizer that the compiler lacks is left out.
set -u
build() { cc -g -w -pthread "$1" $2 -o "$3-program" "$KIT/leaks.c" 2>/dev/null; }
check() {
    for argument in "" leak; do
        ./"$1-program" $argument >output 2>&1
        echo "$1 '$argument': $?, $(grep -c ran output) ran, $(grep -c 'detected memory leaks' output) leaks"
        grep -o '4711 byte(s) leaked' output
        cat written
    done
}
for kind in address leak undefined thread; do
    ! build "-fsanitize=$kind" "" "$kind" || check "$kind"
done
! build -fsanitize=address -static-libasan static || check static
