# A volume of two replicas: one brick is killed, misses changes, and is healed.
# needs: glusterd gluster mount.glusterfs ip
# Neither server nor bricks take an address of the loopback network.
ip address add 192.0.2.1/32 dev lo
mkdir -p "$MOUNT/one" "$MOUNT/two" client
glusterd
until gluster volume list >/dev/null 2>&1; do sleep 0.2; done
gluster --mode=script volume create v replica 2 "192.0.2.1:$MOUNT/one" "192.0.2.1:$MOUNT/two" force
gluster volume start v
mount -t glusterfs 192.0.2.1:/v client
cp -r /usr/include/linux client/before
kill -9 "$(cat /run/gluster/vols/v/*-two.pid)"
# What the dead brick misses.
cp -r /usr/include/asm-generic client/missed
rm -r client/before/netfilter
mv client/before/types.h client/renamed.h
setfattr -n user.colour -v blue client/renamed.h
echo more >>client/before/fuse.h
gluster volume start v force
until gluster volume heal v >/dev/null 2>&1; do sleep 0.2; done
until [ "$(gluster volume heal v info | grep -c '^Number of entries: 0$')" = 2 ]; do sleep 0.5; done
diff -r --exclude=.glusterfs "$MOUNT/one" "$MOUNT/two"
diff -r /usr/include/asm-generic "$MOUNT/two/missed"
[ ! -e "$MOUNT/two/before/netfilter" ]
[ "$(getfattr --only-values -n user.colour "$MOUNT/two/renamed.h")" = blue ]
umount client
echo all as it should be
