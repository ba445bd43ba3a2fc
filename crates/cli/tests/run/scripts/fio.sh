# needs: fio
# ignored: checked-*
# fio writes, reads and verifies with both kinds of asynchronous I/O.
set -eu
for engine in libaio io_uring; do
    for direct in 0 1; do
        fio --name=checked --filename=checked-$engine --size=2m --bs=4k --rw=randrw --ioengine=$engine --iodepth=16 \
            --direct=$direct --verify=crc32c --verify_fatal=1 --end_fsync=1 --randseed=7 --output=checked-log
        grep -o 'err= *[0-9]*' checked-log
    done
done
