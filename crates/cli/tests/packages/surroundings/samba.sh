# A directory of a mount is exported by SMB, with access lists and streams in extended attributes.
# needs: smbd smbpasswd smbclient ip
mkdir -p "$MOUNT/share" samba
seq 100000 >"$MOUNT/share/numbers"
cat >smb.conf <<CONFIGURATION
[global]
    private dir = $WORK/samba
    lock directory = $WORK/samba
    state directory = $WORK/samba
    cache directory = $WORK/samba
    pid directory = $WORK/samba
    ncalrpc dir = $WORK/samba/rpc
    log file = $WORK/samba/log
    bind interfaces only = yes
    interfaces = lo
    smb ports = 445
    disable spoolss = yes
    load printers = no
[share]
    path = $MOUNT/share
    read only = no
    vfs objects = acl_xattr streams_xattr
CONFIGURATION
printf 'secret\nsecret\n' | smbpasswd -c smb.conf -s -a root
smbd --configfile=smb.conf --daemon
client() { smbclient //127.0.0.1/share -s smb.conf -U root%secret -c "$1"; }
until client ls >listing 2>&1; do sleep 0.5; done
grep -q numbers listing
client 'get numbers here'
cmp here "$MOUNT/share/numbers"
# Names that differ in more than capital letters.
client 'lcd /usr/include; recurse; prompt; mput asm-generic'
diff -r /usr/include/asm-generic "$MOUNT/share/asm-generic"
# A stream is an extended attribute, of at most 64 KiB.
head -c 30000 here >small
client 'put small numbers:stream; rename numbers renamed'
getfattr -d -m - "$MOUNT/share/renamed" >attributes
grep -q DosStream.stream attributes
grep -q security.NTACL <(getfattr -d -m - "$MOUNT/share/asm-generic")
client 'get renamed:stream back'
cmp small back
client 'deltree asm-generic'
[ ! -e "$MOUNT/share/asm-generic" ]
kill "$(cat samba/smbd.pid)"
echo all as it should be
