# needs: tar gzip cpio zip unzip
# free: one.tar.gz
# Archives: packing and unpacking with all attributes.
set -eu
mkdir -p src/{a,b/c}; for i in {1..40}; do seq $i 200 >src/a/$i; done; head -c 300000 /dev/zero >src/b/zeros; printf x >src/b/c/x
ln src/a/1 src/b/hard; ln -s ../a/1 src/b/soft; chmod 604 src/a/2; chmod 755 src/a/3; mkfifo src/p
find src -exec touch -h -d '2005-06-07 08:09:10Z' {} +
tar --sort=name --numeric-owner -cf one.tar src; tar tvf one.tar | awk '{print $1, $3, $6, $7, $8}' | md5sum; cksum <one.tar
mkdir out; tar -C out -xpf one.tar; diff -r --no-dereference src/a out/src/a; stat -c '%h %Y %a' out/src/b/hard out/src/a/2; readlink out/src/b/soft
tar --sort=name --numeric-owner -C out -cf two.tar src; cmp one.tar two.tar && echo "round trip"
gzip -nk one.tar; gzip -t one.tar.gz; zcat one.tar.gz | cmp - one.tar && echo gzip; gunzip -c one.tar.gz | tar tf - | wc -l
tar --sort=name -czf three.tgz --exclude='a/1*' src; tar tzf three.tgz | wc -l
tar -rf one.tar -C out src/a/5; tar tf one.tar | tail -1; tar --delete -f one.tar src/a/5 && tar tf one.tar | grep -c src/a/5 || echo deleted
tar -cf inc.tar -g snar src; echo more >src/a/new; tar -cf inc2.tar -g snar src; tar tf inc2.tar | grep new; rm snar inc.tar inc2.tar
tar -Scf sparse.tar src/b/zeros; rm -rf s; mkdir s; tar -C s -xf sparse.tar; cmp src/b/zeros s/src/b/zeros && echo sparse; rm sparse.tar
find src | sort | cpio -o -H newc --quiet --reproducible 2>/dev/null | cpio -t --quiet | wc -l
mkdir cp; (cd cp; (cd ../src; find . | sort | cpio -o -H newc --quiet) | cpio -idmu --quiet; find . | sort | wc -l)
zip -qXr z.zip src -x src/p; unzip -l z.zip | tail -1; mkdir z; unzip -qd z z.zip; cmp src/a/7 z/src/a/7 && echo zip; zip -qd z.zip 'src/a/*'; unzip -Z1 z.zip | wc -l
tar -xOf two.tar src/a/9 | head -1; tar -C out --overwrite -xf two.tar; tar -C out -xkf two.tar 2>&1 | wc -l; tar df two.tar -C out && echo "no difference"
rm -rf out z cp s; rm -f z.zip three.tgz
