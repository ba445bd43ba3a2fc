# needs: cat
# Descriptors of another process, by the links in /proc: their content, and never an empty file.
# Working directories, of this and of another one.
set -u
echo content >file
exec 3<file
cat /proc/$$/fd/3
cat /proc/$$/task/$$/fd/3
(cd / && cat /proc/$$/fd/3 3<&-)
rm file
cat /proc/$$/fd/3
exec 4>out
(echo first >/proc/$$/fd/4)
cat out
(echo second >>/proc/$$/fd/4)
cat out
cat /proc/$$/fd/9 2>/dev/null || echo "no such descriptor"
cat <<X | cat /proc/self/fd/0
by a pipe
X
mkdir -p deep/er
cd deep/er
readlink /proc/$$/cwd /proc/$$/task/$$/cwd
(cd / && readlink /proc/$$/cwd)
(cd .. && readlink /proc/$$/cwd /proc/self/cwd)
cd /
readlink /proc/$$/cwd
cd "$OLDPWD"
echo near >near
(cd / && cat /proc/$$/cwd/near /proc/$$/task/$$/cwd/../er/near && ls /proc/$$/cwd/)
mkdir gone
cd gone
rmdir "$PWD"
readlink /proc/self/cwd | grep -c ' (deleted)$'
cd ..
