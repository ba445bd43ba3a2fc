# needs: qemu-img qemu-io
# free: *.qcow2 top.vdi
# Disk images of QEMU: formats, snapshots, conversions, and asynchronous I/O of each kind.
set -eu
head -c 3000000 /usr/bin/qemu-img >content
truncate -s 8M content
qemu-img convert -f raw -O qcow2 content base.qcow2
qemu-img create -q -f qcow2 -b base.qcow2 -F qcow2 top.qcow2
qemu-img create -q -f qcow2 -o preallocation=falloc,cluster_size=4k full.qcow2 4M
qemu-img create -q -f raw -o preallocation=full raw 4M
for aio in threads native io_uring; do
  for image in "qcow2 top.qcow2" "qcow2 full.qcow2" "raw raw"; do
    set -- $image
    echo "$aio $2"
    qemu-io -f "$1" -n -t none -i "$aio" -c 'aio_write -P 0x11 0 64k' -c 'aio_flush' \
      -c 'aio_write -P 0x22 64k 128k' -c 'aio_flush' -c 'aio_read -P 0x22 100k 4k' -c 'aio_flush' -c 'write -z 32k 8k' \
      -c 'discard 1M 64k' -c 'read -P 0 32k 8k' -c 'writev -P 0x33 512k 4k 8k 4k' \
      -c 'flush' "$2" | sed '/ops/d'
    # Many requests at a time.
    qemu-img bench -q -f "$1" -n -t none -i "$aio" -w -c 400 -d 32 -s 4096 -o 0 --pattern=0x44 "$2" >/dev/null
    qemu-io -r -f "$1" -n -t none -i "$aio" -c 'read -P 0x44 0 1M' "$2" | sed '/ops/d'
  done
done
qemu-img check -q top.qcow2
qemu-img snapshot -c first top.qcow2
qemu-io -f qcow2 -c 'write -P 0x55 3M 64k' top.qcow2 | sed '/ops/d'
qemu-img snapshot -a first top.qcow2
qemu-img convert -f qcow2 -O raw top.qcow2 flat
qemu-img compare -f qcow2 -F raw top.qcow2 flat
qemu-img convert -f qcow2 -O vdi -W -m 8 top.qcow2 top.vdi
qemu-img compare -f qcow2 -F vdi top.qcow2 top.vdi
qemu-img commit -q top.qcow2
qemu-img compare -f qcow2 -F raw base.qcow2 flat
qemu-img resize -q --shrink -f raw raw 2M
qemu-img resize -q full.qcow2 6M
# An image that a process uses is locked.
coproc user { exec qemu-io -f qcow2 full.qcow2; }
holder=$user_PID
echo 'write 0 512' >&"${user[1]}"
IFS= read -r -t 600 line <&"${user[0]}"
qemu-io -f qcow2 -c 'write 0 512' full.qcow2 2>&1 | sed 's/^qemu-io: //'
echo 'quit' >&"${user[1]}"
wait "$holder"
qemu-img check -q full.qcow2
qemu-img map -f raw --output=json raw | wc -l
