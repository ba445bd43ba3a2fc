# A directory of a mount is exported by NFS, and used by a client in user space.
# needs: ganesha.nfsd rpcbind nfs-cp ip
mkdir -p "$MOUNT/export" /run/ganesha /run/rpcbind
seq 100000 >"$MOUNT/export/numbers"
# Version 3: this client's writes of version 4 fail on any file system if they are large.
cat >ganesha.conf <<CONFIGURATION
NFS_CORE_PARAM { Protocols = 3; Enable_NLM = false; Enable_RQUOTA = false; }
EXPORT {
    Export_Id = 1; Path = $MOUNT/export; Pseudo = /export; Access_Type = RW; Squash = No_Root_Squash;
    SecType = sys; Transports = TCP; FSAL { Name = VFS; }
}
CONFIGURATION
rpcbind -f -w &
until rpcinfo >/dev/null 2>&1; do sleep 0.2; done
ganesha.nfsd -F -f ganesha.conf -L ganesha.log -p ganesha.pid &
server=$! url=nfs://127.0.0.1$MOUNT/export
until nfs-ls "$url" >listing 2>&1; do
    kill -0 $server || { cat ganesha.log; false; }
    sleep 0.5
done
grep -q numbers listing
nfs-cp "$url/numbers" here
cmp here "$MOUNT/export/numbers"
tar -C /usr/include -cf headers.tar linux
nfs-cp headers.tar "$url/headers.tar"
cmp headers.tar "$MOUNT/export/headers.tar"
# The server sees what programs on the mount do meanwhile.
mv "$MOUNT/export/numbers" "$MOUNT/export/renamed"
until nfs-ls "$url" | grep -q renamed; do sleep 0.5; done
kill $server
wait $server || true
echo all as it should be
