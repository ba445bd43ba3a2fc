# needs: sort split csplit tee paste join
# Text tools, with temporary files in the tree and many kinds of names.
set -eu
seq 1 30000 | sort -R --random-source=/dev/zero >numbers || seq 30000 -1 1 >numbers
mkdir tmp
sort -n -S 64k -T tmp numbers -o sorted; cksum sorted; ls tmp | wc -l
sort -n -S 32k --parallel=2 -T tmp -u numbers numbers | tail -1
sort -rn -o sorted sorted; head -3 sorted
TMPDIR=$PWD/tmp sort -S 16k numbers | md5sum
split -l 7000 -d numbers part.; ls part.*; cat part.* | cmp - numbers && echo joined
csplit -s -f piece numbers 100 1000; wc -l piece*
tee one two <piece00 | tail -1; cmp one two && echo tee
paste -d, one two | head -2; join -j1 <(head -5 one | sort) <(head -3 one | sort) | wc -l
tac one | head -1; shuf --random-source=/dev/zero -n 3 one | wc -l; nl one | tail -1; wc -c one
tr 1-5 a-e <one >letters; cut -c1-3 letters | uniq -c | sort | tail -1; comm -12 <(sort one) <(sort two) | wc -l
sed -i 's/1/X/g' one; grep -c X one; sed -n '$=' one; sed -i.bak '1d' one; wc -l one one.bak
awk '{print > "mod" $1 % 3}' two; wc -l mod*
head -c 5000 numbers | od -An -tx1 | md5sum; tail -c +5000 numbers | head -1; tail -n 2 numbers | wc -l
md5sum one two >sums; md5sum -c sums; sha256sum two | cut -c1-16; cksum mod0; sum mod1; b2sum mod2 | cut -c1-16
echo a >>append; echo b >>append; cat append
cp one 'name with  spaces'; cp one $'new\nline'; cp one -- '-dash'; cp one 'ümläut'; ls -b | head -8
n=$(printf 'x%.0s' {1..255}); : >"$n"; ls | grep -c xxxx; : >"${n}y" 2>/dev/null || echo "too long"
base64 two | base64 -d | cmp - two && echo base64
diff one one.bak | head -4; cmp one one.bak || true; patch -s one <(diff one one.bak) && cmp one one.bak && echo patched
fold -w 20 two | tail -1; fmt -w 40 <letters | tail -1; pr -t -2 <(seq 6); expand <(printf 'a\tb\n'); numfmt --to=iec 123456
tail -f --pid=$$ -n 1 two >seen & t=$!; until [ -s seen ]; do :; done; kill $t; wait $t || echo "tail ended"; cat seen
timeout 0.1 sleep 9 || echo "sleep ended"
xargs -n 100 -P 2 sh -c 'cat "$@" | wc -l' _ <<<"one two" ; rm -rf tmp
