# needs: cp mv install dd truncate shred
# Common tools on a small tree: modes, links, times, sizes.
set -eu
umask 022
list() { # without what file systems differ in: blocks, sizes of directories, inode numbers, device numbers
    ls -lR --time-style=+ "$@" | sed -E '/^total /d; s/ +/ /g; s/^(d[^ ]* [0-9]+ [^ ]+ [^ ]+) [0-9]+/\1/'
}
mkdir -p tree/a/b/c tree/d
echo one >tree/a/one; printf 'two\nlines\n' >tree/a/b/two; : >tree/empty
head -c 100000 /dev/zero | tr '\0' x >tree/d/large
ln tree/a/one tree/d/hard; ln -s ../a/one tree/d/soft; ln -s nowhere tree/dangling; ln -s . tree/self
mkfifo tree/pipe
chmod 751 tree/a; chmod u+s,g+s tree/d/large; chmod 0 tree/empty; chmod 1777 tree/d
touch -d '2001-02-03 04:05:06.789012345Z' tree/a/one
touch -d '1999-12-31 23:59:59Z' tree/a/b
touch -h -d '1980-01-01Z' tree/d/soft
list tree
stat -c '%n %A %h %s %F %Y' tree/a/one tree/d/hard; stat -c '%n %A %h %s %F' tree/d/large tree/empty
stat -L -c '%n %F %Y' tree/d/soft
cp -a tree copy
list copy
diff -r --no-dereference tree/a copy/a && echo same
test copy/a/one -ef copy/d/hard && echo "links kept"
cp -rL tree/d plain 2>&1 | sed 's/:.*//' || true
list plain
mv copy/a/b moved; mv moved copy/d/; mv -n copy/a/one copy/d/large; mv -f copy/d/hard copy/d/large
mv copy copy2; list copy2
mv -T copy2/d copy2/e; mv copy2/e/moved .
rename_into() { mv "$1" "$2"; }
rename_into moved tree/a/b 2>&1 | sed 's/.*mv/mv/'
install -d -m 700 inst/bin; install -m 755 -T tree/a/one inst/bin/tool; install -m 640 tree/a/one tree/a/b/two inst 2>&1 || true
list inst
truncate -s 12345 sparse; truncate -s +5 sparse; truncate -s -350 sparse; stat -c '%s' sparse
dd if=/dev/zero of=dd bs=1000 count=7 seek=3 status=none; dd if=tree/d/large of=dd bs=10 count=3 seek=5 conv=notrunc status=none
cksum dd; stat -c %s dd
dd if=/dev/zero of=direct bs=4096 count=2 oflag=direct status=none && stat -c %s direct
dd if=direct iflag=direct bs=4096 status=none | cksum
dd if=tree/d/large of=synced bs=4k conv=fsync status=none; cksum synced
echo text >shredded; shred -u shredded; ls shredded 2>&1 | sed 's/.*ls/ls/' || true
mkdir full; touch full/x; rmdir full 2>&1 || echo "not empty"; rm -r full; rmdir -p tree/none 2>&1 || echo none
touch -r tree/a/one ref; touch -a ref; stat -c '%Y' ref
readlink tree/d/soft; readlink -f tree/d/soft | sed "s|$PWD|.|"; realpath --relative-to=. tree/self/a/one
rm -f nothing; rm tree/a 2>&1 || echo "is a directory"
ln tree/a/one tree/a/one 2>&1 || echo exists; ln -sf b tree/dangling; readlink tree/dangling
ln -sfn a tree/self; readlink tree/self
mkdir -m 000 locked; stat -c %a locked; chmod 755 locked
cp --reflink=auto --sparse=always sparse sparse2; cmp sparse sparse2 && echo "sparse same"
cp --attributes-only --preserve=mode,timestamps tree/a/one attr; stat -c '%s %Y' attr
cp -u tree/a/one attr2; cp -l tree/a/one linked; stat -c %h linked; cp -s "$PWD/tree/a/one" symbolic
unlink linked; test ! -e linked && echo unlinked
mktemp -p . temporary.XXXXXX | wc -l; rm -f temporary.*
mktemp -d -p . temporary.XXXXXX >name; rmdir "$(cat name)"; rm name
chown 0:0 tree/a/one 2>/dev/null || true
pathchk tree/a/one && echo fine; mknod fifo2 p; test -p fifo2 && echo pipe
df . >/dev/null && echo df; sync; sync tree/a/one && echo synced
du -b tree/a/one tree/d/large
for f in tree/*; do test -L "$f" && echo "$f link"; test -d "$f" && echo "$f dir"; test -s "$f" && echo "$f some"; done; true
