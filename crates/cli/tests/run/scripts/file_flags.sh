# Append-only and immutable files with the usual tools, which print what the file system returns.
# needs: chattr lsattr cp
set -e
umask 022
mkdir d
echo content >f
echo first >log
lsattr f log
lsattr -d d
chattr +i f
chattr +a log
lsattr f log
refused() { if "$@" 2>&1; then echo "done: $*"; else echo "refused: $*"; fi; }
refused rm f
refused mv f g
refused ln f g
refused cp log f
refused chmod 600 f
refused chown 1 f
refused touch -d @0 f
refused truncate -s 0 f
refused sh -c 'echo more >>f'
refused sh -c ': >log'
refused sh -c 'echo second >>log'
refused dd if=/dev/zero of=log count=1 conv=notrunc status=none
refused rm -f log
refused touch log
cat f log
cp -a f copied
lsattr copied
stat -c '%A %h %n' f log copied
chattr +a d
echo x >d/new
refused rm d/new
refused mv d/new d/other
echo more >>d/new
chattr -a d
mv d/new d/other
chattr +i d
refused touch d/more
refused mkdir d/sub
refused rm -r d
cat d/other
chattr -R -i d
chattr +d +A d
mkdir d/heir
lsattr -d d d/heir
lsattr d | sort
chattr =i f
lsattr f
refused chattr +s f
refused chattr -p 5 f
chattr -i f
chattr -a log
chattr -R = d
rm f log copied
find . | sort
