# needs: rsync
# Copies, differences, deletions; then a second time with nothing to do.
set -eu
mkdir -p src/{x,y/z}; for i in {1..60}; do seq $i 300 >src/x/$i; done; ln src/x/1 src/y/hard; ln -s ../x/2 src/y/soft; chmod 600 src/x/3
find src -exec touch -h -d '2012-03-04 05:06:07Z' {} +
rsync -aH src/ dst/; diff -r --no-dereference src dst && echo same; stat -c '%h %a %Y' dst/x/1 dst/x/3
rsync -aHi src/ dst/ | wc -l
echo changed >>src/x/5; rm src/x/6; echo new >src/y/z/new; chmod 640 src/x/7
rsync -aHi --delete --omit-dir-times src/ dst/ | sort; diff -r --no-dereference src dst && echo "same again"
seq 1 100000 >src/big; rsync -a --no-whole-file --inplace --omit-dir-times src/ dst/; sed -i 's/^500$/five hundred/' src/big; rsync -a --no-whole-file --omit-dir-times src/ dst/; cmp src/big dst/big && echo delta
rsync -a --link-dest="$PWD/dst" src/ snap/; stat -c %h snap/x/9; rsync -a --backup --suffix=.old --omit-dir-times src/x/ dst/x/; rsync -rn --delete --itemize-changes empty/ dst/ 2>&1 | wc -l
rsync -a --remove-source-files src/y/ moved/; find moved | sort; find src/y | sort
touch -d @1 src dst snap moved
