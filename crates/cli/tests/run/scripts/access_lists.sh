# Access control lists with the usual tools, which print what the file system returns.
# needs: getfacl setfacl tar rsync cp
set -e
umask 022
mkdir d d/sub
echo content >f
echo content >d/sub/g
setfacl -m u:daemon:r--,g:games:rw- f
getfacl f
stat -c '%A %n' f
setfacl -m m::r-- f
getfacl -c f
setfacl -d -m u:daemon:rwx,g::r-x,o::--- d
getfacl d
mkdir d/inherits
echo content >d/file
getfacl d/inherits d/file
chmod 700 d/file
getfacl -c d/file
setfacl -R -m g:games:rX d
find d | sort | xargs getfacl
cp --preserve=all f copied
mv f moved
tar --acls -cf a.tar moved d
mkdir out
tar --acls -xpf a.tar -C out
getfacl -c out/moved out/d/file copied
rsync -aA d/ synced
find synced | sort | xargs getfacl -c
find d | sort | xargs getfacl >lists
setfacl -R -b -k d
find d | sort | xargs getfacl -c
setfacl --restore=lists
find d | sort | xargs getfacl -c
setfacl -x u:daemon moved
getfacl -c moved
setfacl -b moved
getfacl -c moved
setfacl -m u:daemon:r-- nothing 2>&1 || echo "refused"
ln -s moved link
setfacl -m u:daemon:r-- link
getfacl -c link
rm a.tar lists
