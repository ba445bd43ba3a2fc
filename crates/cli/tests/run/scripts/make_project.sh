# needs: make gcc
# free: project/build/*
# A project of many files, built with two jobs, again, after a change, and cleaned.
set -eu
cp -r "$KIT/project" .; cd project; chmod -R u+w .
make -s -j2; build/calc '1 + 2 * (3 - 4) / 5'; build/calc 'x = 7; x * x'; make -s -j2 | grep -v 'Nothing to be done' || echo "up to date"
touch -d "+1 hour" src/lexer.h; make -j2 -s -n | grep -c gcc; make -s -j2 2>/dev/null; make -s test 2>/dev/null; make -s install DESTDIR="$PWD/out" prefix=/usr; find out | sort; make -s clean; ls build 2>/dev/null | wc -l; make -s -j2 all; ls build | sort
