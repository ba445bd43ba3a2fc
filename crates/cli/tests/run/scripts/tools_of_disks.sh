# needs: dbench fio postmark
# free: *
# Disk benchmarks as programs: they run and read what they wrote.
set -eu
printf 'set number 200\nset transactions 500\nset seed 42\nrun\nquit\n' | postmark | grep -E 'created|deleted' | sed 's/(.*//'
fio --name=t --directory=. --rw=randrw --size=4m --bs=4k --ioengine=psync --verify=crc32c --do_verify=1 --output=fio.out --minimal && echo fio
fio --name=m --directory=. --rw=randwrite --size=4m --bs=4k --ioengine=mmap --verify=crc32c --do_verify=1 --output=fio.out --minimal && echo mmap
dbench -c /usr/share/dbench/client.txt -t 2 -D . 2 >dbench.out 2>&1 && echo dbench; rm -rf ./*
