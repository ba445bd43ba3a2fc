# needs: valgrind
# Programs under valgrind, whose tools are static programs that arrange their memory by themselves.
set -eu
echo hello >file
valgrind -q --error-exitcode=9 cat file
valgrind -q --trace-children=yes sh -c 'cat file; ls'
valgrind -q --tool=callgrind --callgrind-out-file=counts cat file; [ -s counts ] && rm counts
