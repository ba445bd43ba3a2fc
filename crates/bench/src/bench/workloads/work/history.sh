# A bare repository `history` with $1 commits to a hundred files.
git init --quiet --bare history
i=0
while [ $i -lt "$1" ]; do
  i=$((i + 1))
  printf 'commit refs/heads/master\ncommitter bench <bench@localhost> %s +0000\n' $((1000000000 + i))
  printf 'data <<END\ncommit %s\nEND\nM 100644 inline file-%s\ndata <<END\ncontent %s\nEND\n\n' $i $((i % 100)) $i
done | git -C history fast-import --quiet
git -C history symbolic-ref HEAD refs/heads/master
