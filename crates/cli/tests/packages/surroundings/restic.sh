# A second backup of a mount reads no file again, and a restored tree is the one that was saved.
# needs: restic ip
mkdir "$MOUNT/data"
cp -r /usr/include/linux "$MOUNT/data"
ln -s linux/types.h "$MOUNT/data/link"
setfattr -n user.colour -v blue "$MOUNT/data/linux/fuse.h"
export RESTIC_PASSWORD=secret RESTIC_REPOSITORY=$WORK/repository
restic init
restic backup "$MOUNT/data"
restic backup "$MOUNT/data" | tee second
grep -E '^Files: +0 new, +0 changed' second
echo more >>"$MOUNT/data/linux/fuse.h"
restic backup "$MOUNT/data" | grep -E '^Files: +0 new, +1 changed'
restic restore latest --target restored
diff -r "$MOUNT/data" "restored$MOUNT/data"
[ "$(getfattr --only-values -n user.colour "restored$MOUNT/data/linux/fuse.h")" = blue ]
restic check
echo all as it should be
