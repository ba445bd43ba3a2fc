# needs: valgrind
# Programs under valgrind, whose tools are static programs that arrange their memory by themselves.
set -eu
echo hello >file
valgrind -q --error-exitcode=9 cat file
valgrind -q --trace-children=yes sh -c 'cat file; ls'
# The path is only in the program's file. Where the mount is, the machine has no such file.
trap 'rm -f /tmp/named-$$*' EXIT
printf 'int fd; int main(void) { fd = open("%s/file", 0); return fd < 0; }' "$PWD" >/tmp/named-$$.c
cc -w -include fcntl.h -o /tmp/named-$$ /tmp/named-$$.c
(cd / && valgrind -q /tmp/named-$$)
valgrind -q --tool=callgrind --callgrind-out-file=counts cat file; [ -s counts ] && rm counts
