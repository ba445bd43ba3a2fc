# needs: busybox
# hidden: /dev/fuse
# A static shell, whose commands are itself.
set -eu
busybox sh -eu <<'END'
mkdir -p a/b && cd a/b
for i in 1 2 3 4 5 6 7 8 9; do echo line $i >file$i; busybox cp file$i copy$i; done
cat file* | busybox sort -r | busybox head -3
busybox find .. -type f | busybox sort | busybox xargs busybox md5sum >../../sums
busybox tar -cf ../all.tar . && mkdir ../again && busybox tar -xf ../all.tar -C ../again
busybox diff -r . ../again && busybox rm -r ../again ../all.tar
busybox sed -i s/line/LINE/ file1 && cat file1
(busybox sleep 0; echo background >bg) & wait; cat bg
busybox ls -la | busybox wc -l
echo "$(busybox cat file2 | busybox tr a-z A-Z)"
busybox ln -s file3 link && busybox readlink link && busybox stat -c '%F %s' link
busybox awk '{ n += $2 } END { print n }' copy*
END
cp "$(command -v busybox)" busybox-own && ./busybox-own sh -c 'ls; cat a/b/file4; ./busybox-own wc -c a/b/bg' && rm busybox-own
