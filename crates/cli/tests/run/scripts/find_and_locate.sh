# needs: find xargs
# find with every kind of test and action, on a tree that changes meanwhile.
set -eu
mkdir -p d/{1..12}/{a,b}/deep; for i in {1..12}; do for f in {1..15}; do echo "$i $f" >"d/$i/a/f$f.txt"; done; done
ln d/1/a/f1.txt d/1/b/hard; ln -s ../a/f2.txt d/1/b/soft; ln -s loop d/loop; mkfifo d/pipe; chmod 640 d/2/a/*
touch -d 2010-01-01 d/3/a/*.txt; touch -d 2030-01-01 d/4/a/f1.txt
find d -type f | wc -l; find d -type d | sort | tail -3; find d -type l -printf '%p %l\n' | sort; find d -type p
find d -newermt 2029-01-01 -type f; find d -type f ! -newermt 2011-01-01 | wc -l
find d -perm 640 | wc -l; find d -links 2 -type f | sort; find d -samefile d/1/a/f1.txt | sort
find d -name 'f1?.txt' -path '*/5/*' | sort; find d -empty | sort | wc -l; find d -maxdepth 1 | sort; find d -mindepth 3 -type d | wc -l
find d -size -1k -size +0 | wc -l; find d -regex '.*/[0-9]/a/f9\.txt' | sort; find -L d -xtype l 2>/dev/null | sort
find d -type f -printf '%f %s %m %y %d\n' | sort | md5sum; find d -prune; find d -depth -name deep | wc -l
find d -name '*.txt' -print0 | xargs -0 -n 50 cat | sort | md5sum; find d -name 'f3.txt' -exec grep -l 3 {} + | sort
find d -name 'f4.txt' -execdir mv {} g4.txt ';'; find d -name 'g4.txt' | wc -l; find d -path '*/6/*' -delete -o -name nothing; ls d/6 2>&1 | wc -l
grep -rl '^7 1$' d; grep -rc . d/8/a | sort | head -2; ls -R d/9 | head -8; ls -1f d/10/a | sort | head -4
find d/11/a -type f -exec du -b {} + | sort | head -3; rm -rf d/12; find d -type f | wc -l
mkdir many; (cd many && for i in $(seq 3000); do : >f$i; done); ls many | wc -l; find many -type f | sort | md5sum
(cd many && ls | head -1500 | xargs rm); ls many | sort -V | head -1; rm -r many
