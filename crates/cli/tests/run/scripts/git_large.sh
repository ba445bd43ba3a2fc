# needs: git
# free: r/.git/index c/.git/index
# ignored: */.git/objects/pack* */.git/logs/* */.git/objects/info/* */.git/info/refs
# A repository of thousands of files.
set -eu
export GIT_AUTHOR_NAME=A GIT_AUTHOR_EMAIL=a@b GIT_COMMITTER_NAME=A GIT_COMMITTER_EMAIL=a@b GIT_AUTHOR_DATE='2020-01-02T03:04:05Z' GIT_COMMITTER_DATE='2020-01-02T03:04:05Z'
git config --global init.defaultBranch main; git config --global gc.auto 0; git config --global maintenance.auto false
git init -q r; cd r; for d in $(seq 30); do mkdir -p p$d/q; for f in $(seq 50); do echo "$d $f" >p$d/f$f; echo "$f $d" >p$d/q/g$f; done; done
git add -A; git commit -qm all; git rev-parse HEAD; git status --short | wc -l
for d in 1 5 9; do sed -i 's/$/ changed/' p$d/f*; done; git status --short | wc -l; git commit -qam changed; git rev-parse HEAD; git checkout -q HEAD~1; cat p5/f7; git checkout -q main; cat p5/f7
cd ..; git clone -q r c; cd c; git ls-files | wc -l; git gc -q; git fsck 2>&1 | wc -l; git rev-parse HEAD; git diff --stat HEAD~1 | tail -1; rm -rf p1 p2; git status --short | wc -l; git checkout -q .; git status --short | wc -l
