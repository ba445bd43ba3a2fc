# needs: bash
# Job control, background jobs, pipelines, signals and subshells that write into the tree.
set -u  # not -e: statuses are what is looked at
set -m
sleep 100 & jobs | sed 's/ *&$//'; kill %1; wait %1 2>/dev/null; echo "ended $?"
(for i in 1 2 3; do echo "bg $i"; done >bg) & wait $!; cat bg
# The shell learns that a job has stopped when its signal comes.
{ until [ -e go ]; do sleep 0.05; done; echo late >late; } & kill -STOP %%; until jobs -s | grep -q .; do sleep 0.01; done; jobs -s | wc -l; : >go; kill -CONT %%; wait; cat late
set +m
for n in 1 2 3 4; do (seq $((n * 1000)) >"seq$n"; sort -rn "seq$n" >"rev$n") & done; wait; wc -l seq? rev? | tail -1
coproc CAT { cat; }; echo "to coproc" >&"${CAT[1]}"; read -r answer <&"${CAT[0]}"; echo "$answer"; eval "exec ${CAT[1]}>&-"; wait
trap 'echo trapped >trap' USR1; kill -USR1 $$; cat trap; trap - USR1
seq 100000 | head -1; (exit 5); echo $?; set -o pipefail; seq 10 | grep 11 | cat; echo $?
out=$(echo captured; echo err >&2) 2>err; echo "$out"; cat err
f() { local d; d=$(mktemp -d -p .); echo x >"$d/x"; cat "$d/x"; rm -r "$d"; }; f
( cd / && ls >/dev/null; echo "in /" ) >cdout; cat cdout; mkdir -p deep/er; (cd deep/er; echo $OLDPWD | sed 's|.*/||'; cd ..; pwd -P | sed 's|.*/||')
nohup sh -c 'echo nohup' >nohup 2>/dev/null; cat nohup; timeout 0.1 sleep 5; echo $?; time -p true 2>/dev/null
exec 9>lock; flock 9; (flock -n lock echo never || echo locked); flock -u 9; flock -n lock echo free; exec 9>&-
for i in 1 2 3 4 5 6 7 8; do (flock 8; n=$(cat count 2>/dev/null || echo 0); echo $((n + 1)) >count) 8>countlock & done; wait; cat count
xargs -P 4 -I{} sh -c 'echo {} >x{}' < <(seq 20); cat x* | sort -n | tail -1; rm x*
mv deep elsewhere; cd elsewhere; pwd | sed 's|.*/||'; rmdir er; mkdir gone; cd gone; rmdir ../gone; ls . | wc -l; : >x 2>/dev/null || echo "directory is gone"; cd ../..; disown -a; jobs
