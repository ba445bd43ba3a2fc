# A second backup of a mount reads no file again, and a restored tree is the one that was saved.
# needs: borg ip
mkdir "$MOUNT/data"
cp -r /usr/include/linux "$MOUNT/data"
ln "$MOUNT/data/linux/types.h" "$MOUNT/data/second"
setfattr -n user.colour -v blue "$MOUNT/data/linux/fuse.h"
export BORG_REPO=$WORK/repository BORG_UNKNOWN_UNENCRYPTED_REPO_ACCESS_IS_OK=yes
borg init --encryption=none
# It does not trust files that are as young as its first backup: the youngest is older than that.
sleep 2
touch "$MOUNT/data/youngest"
save() { borg create --list --filter=AMC "::$1" "$MOUNT/data" 2>&1; }
save first >/dev/null
save second | tee changed
if grep -v '/youngest$' changed; then false; fi
echo more >>"$MOUNT/data/linux/fuse.h"
save third | grep "^M .*/linux/fuse.h"
mkdir restored
(cd restored && borg extract ::third)
diff -r "$MOUNT/data" "restored$MOUNT/data"
[ "$(stat -c %h "restored$MOUNT/data/second")" = 2 ]
[ "$(getfattr --only-values -n user.colour "restored$MOUNT/data/linux/fuse.h")" = blue ]
borg check
echo all as it should be
