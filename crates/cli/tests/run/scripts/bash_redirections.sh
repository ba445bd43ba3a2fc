# needs: bash
# free: own
# Redirections of a shell: all operations on descriptors.
set -eu
echo one >f; echo two >>f; cat <f; cat f f >g; wc -l <g
{ echo a; echo b >&2; } >out 2>err; cat out err; { echo c; echo d >&2; } >both 2>&1; cat both; { echo e; echo f >&2; } &>both; wc -l <both
exec 3>three 4<f 5<>rw; echo hello >&3; read -r x <&4; echo "$x"; echo rw >&5; exec 3>&- ; cat three; read -r y <&4; echo "$y"; exec 4<&- 5>&-; cat rw
exec 6>&1 >captured; echo hidden; exec 1>&6 6>&-; cat captured
exec {fd}>named; echo dyn >&$fd; test $fd -ge 10 && echo high; exec {fd}>&-; cat named
cat <<X >here
line $((1 + 1))
X
cat here; cat <<'X'
plain $x
X
cat <<<"string" >s; cat s; read -r a b <<<"1 2"; echo "$b-$a"
diff <(echo x) <(echo y) >d || true; cat d; tee >(tr a-z A-Z >upper) <f >/dev/null; while [ ! -s upper ]; do :; done; cat upper
mkfifo p; cat p >from_pipe & echo through >p; wait; cat from_pipe
set -C; (echo no >f) 2>/dev/null || echo "noclobber"; echo yes >|f; set +C; cat f
(echo sub; echo shell) >sub; (cd /; echo back >"$OLDPWD/abs"); cat abs; pushd . >/dev/null; mkdir dir; cd dir; pwd | sed 's|.*/||'; echo in >../up; cd - >/dev/null; popd >/dev/null; cat up
for i in 1 2 3; do echo "$i"; done >loop; while read -r l; do echo "got $l"; done <loop; { read -r first; cat; } <loop
i=0; while [ $i -lt 200 ]; do echo $i; i=$((i + 1)); done | tee t1 | tail -1; wc -l <t1
printf '%s\n' */ *.none * | sort | head -3; shopt -s globstar nullglob; touch dir/.hid dir/vis; echo dir/**; echo *.none
source <(echo 'echo sourced'); echo 'echo "script $0 $1"; exit 3' >script; chmod +x script; bash script arg || echo $?
printf '#!/bin/sh\necho "hash bang $1"\n' >hb; chmod 755 hb; ./hb x; printf 'echo no hash bang\n' >nohb; chmod 755 nohb; ./nohb; mkdir bin; mv hb bin/; PATH=$PWD/bin:$PATH; hb y; chmod 644 bin/hb; hash -r; hb z 2>/dev/null || echo "status $?"
printf '#!%s/bin/inner\n' "$PWD" >outer; printf '#!/bin/sh\necho "inner $1" | sed "s|/.*/||"\n' >bin/inner; chmod 755 outer bin/inner; ./outer
: >empty; [ -s empty ] || echo empty; [ f -nt here ] && echo newer; [ -x script ] && echo executable; test -w f && echo writable
read -r -N 3 n <f; echo "$n"; mapfile -t lines <loop; echo ${#lines[@]}; echo $(<f); cp /bin/echo own; ./own "copied program"; ln -s own linked; ./linked via link
umask 077; : >private; stat -c %a private; umask 022; ulimit -n 64; exec 20</dev/null; echo limit; [ -e /dev/fd/20 ] && echo fd20
cat /dev/fd/3 3<f; cat /proc/self/fd/0 <f; ls -l /proc/self/fd/7 7<f | sed 's|.*/||'; readlink /proc/self/cwd | sed 's|.*/||'
echo last >&1 | cat; (exec >final; echo final); cat final; trap 'echo bye' EXIT; kill -0 $$; echo "$BASH_SUBSHELL" "$(echo $BASH_SUBSHELL)"
