# An overlay whose changes lie on a mount.
# needs: mount getfattr ip
mkdir -p merged "$MOUNT/upper" "$MOUNT/work"
cp -r /usr/include/linux lower
mount -t overlay overlay -o "lowerdir=lower,upperdir=$MOUNT/upper,workdir=$MOUNT/work" merged
echo more >>merged/fuse.h
rm merged/types.h
rm -r merged/netfilter
mkdir merged/netfilter
touch merged/netfilter/only
mv merged/errno.h merged/renamed.h
mkdir merged/new
cp -r /usr/include/asm-generic merged/new
find merged | sort >before
umount merged
# The changes, as overlayfs writes them: a copy, a white-out, an opaque directory.
[ "$(tail -n 1 "$MOUNT/upper/fuse.h")" = more ]
[ "$(stat -c '%F %t:%T' "$MOUNT/upper/types.h")" = 'character special file 0:0' ]
[ "$(getfattr --only-values -n trusted.overlay.opaque "$MOUNT/upper/netfilter")" = y ]
mount -t overlay overlay -o "lowerdir=lower,upperdir=$MOUNT/upper,workdir=$MOUNT/work" merged
find merged | sort | diff before -
diff -r /usr/include/asm-generic merged/new/asm-generic
cmp lower/errno.h merged/renamed.h
[ -e lower/types.h ]
[ ! -e merged/types.h ]
umount merged
echo all as it should be
