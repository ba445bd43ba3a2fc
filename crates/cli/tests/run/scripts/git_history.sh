# needs: git
# free: repo/.git/index clone/.git/index
# ignored: *.git/objects/pack* *.git/logs/* *.git/ORIG_HEAD *.git/FETCH_HEAD *.git/objects/info/* *.git/info/refs
# The life of a repository, from the first commit to fsck.
set -eu
export GIT_AUTHOR_NAME=A GIT_AUTHOR_EMAIL=a@b GIT_COMMITTER_NAME=A GIT_COMMITTER_EMAIL=a@b
export GIT_AUTHOR_DATE='2020-01-02T03:04:05Z' GIT_COMMITTER_DATE='2020-01-02T03:04:05Z' GIT_CONFIG_NOSYSTEM=1
git config --global init.defaultBranch main; git config --global advice.detachedHead false; git config --global gc.auto 0; git config --global maintenance.auto false
git config --global core.filemode true; git config --global pack.threads 2
git init -q repo; cd repo; mkdir -p src doc; for i in {1..80}; do seq $i 60 >src/f$i; done; echo '*.o' >.gitignore; echo x >x.o; ln -s src/f1 link; printf '#!/bin/sh\n' >run; chmod +x run
git add -A; git status --short | wc -l; git commit -qm first; git rev-parse HEAD; git ls-files -s | git hash-object --stdin
sed -i 's/^5$/five/' src/f1 src/f2; git rm -q src/f3; git mv src/f4 doc/f4; echo new >doc/new; git add doc; git status --porcelain; git diff --stat; git commit -qam second; git rev-parse HEAD
git checkout -qb side HEAD~1; echo side >src/side; git add .; git commit -qm side; git checkout -q main; git merge -q -m merge side; git rev-parse HEAD; git log --oneline --graph | cat
git checkout -q -b conflict HEAD~1; echo ours >src/f9; git commit -qam ours; git merge -q main -m x 2>&1 || true; git checkout -q main; git tag v1; git stash list; echo dirty >>src/f10; git stash -q; git stash pop -q; git checkout -q -- src/f10; git status --short
git branch -D conflict -q; git rebase -q side 2>&1 | cat; git reset -q --hard v1; git rev-parse HEAD
cd ..; git clone -q repo clone; cd clone; git rev-parse HEAD; git status --short; cat src/f1 | md5sum; echo c >c; git add c; git commit -qm c; git push -q origin HEAD:refs/heads/pushed; cd ../repo; git rev-parse pushed
git worktree add -q ../work side; ls ../work | wc -l; git worktree remove --force ../work; git gc -q --prune=now; git count-objects -v | grep -E '^(count|packs|garbage)'; git fsck --full --strict 2>&1 | grep -v dangling || echo sound
git show HEAD~1:src/f1 | head -6 | tail -1; git grep -c five | cat; git archive HEAD | tar tf - | wc -l; git log --format=%H -- doc/f4 | wc -l; git blame -s src/f1 | head -5 | cut -c1-8 | sort -u | wc -l
git clone -q --bare . ../bare.git; git -C ../bare.git fsck 2>&1 | grep -v dangling || echo "bare sound"; git bundle create -q ../b.bundle main; git bundle verify -q ../b.bundle && echo bundle; rm ../b.bundle
git clean -fdxq; git status --short | wc -l; git checkout -q v1~1; git switch -q main; git submodule status | wc -l
