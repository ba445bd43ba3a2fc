//! Images on persistent memory, on the devices and file systems of a real kernel: in machines that
//! QEMU emulates, with an NVDIMM whose content is a file here.
//!
//! They need QEMU, a kernel with its modules and a few tools (see `machine`), and are skipped
//! loudly where one of these is missing. A machine takes about ten seconds when the host is idle.
//! `TEST_KERNEL` names kernels, on each of which every test runs: see `machine::find_kernels`.

mod archive;
mod cuts;
mod disklog;
mod hardware;
mod machine;

use hardware::Hardware;
use machine::{Machine, machines};

/// Uses an image on a device or a DAX file, `$image`, under `run` and on both kinds of mounts,
/// copies it, and kills its processes.
const BATTERY: &str = r#"
says "info" "$promise" directfs info $image
step "run: copy a tree" directfs run --image $image -- sh -c 'cp -r /prelude /script /drivers /mnt/directfs && diff -r /drivers /mnt/directfs/drivers'
step "fsck of an image that was used" directfs fsck -n $image
step "mount" directfs mount $image /mnt/a
step "mount: the tree is there" diff -r /drivers /mnt/a/drivers
step "mount: mappings" mapping /mnt/a/mapped
step "umount" directfs umount /mnt/a
step "a mount that shares" directfs mount -o cache=0 $image /mnt/a
step "run beside a mount" directfs run --image $image -- sh -c 'echo from a program > /mnt/directfs/shared'
says "mount beside a run" "from a program" cat /mnt/a/shared
says "stats" "" directfs stats $image
says "ps" directfs directfs ps $image
step "umount of it" directfs umount /mnt/a
step "snapshot" directfs snapshot $image /tmp/snapshot
step "fsck of the snapshot" directfs fsck -n /tmp/snapshot
directfs run --image $image -- mapping /mnt/directfs/killed keep > /tmp/out & run=$!
await grep -q ready /tmp/out
kill -9 $run; killall -9 mapping
says "after its processes were killed" x directfs run --image $image -- cat /mnt/directfs/killed
step "fsck after that" directfs fsck -n $image
"#;

/// All further commands that read or change an image, once for a device and once for a file.
const COMMANDS: &str = r#"
step "the snapshot has the tree" directfs run --image /tmp/snapshot -- diff -r /drivers /mnt/directfs/drivers
step "export" sh -c "directfs export $image > /tmp/tar && tar tf /tmp/tar | grep -q drivers/"
rm -f /tmp/tar /tmp/snapshot
step "import" sh -c "directfs run --image $image -- mkdir /mnt/directfs/in; tar cf - -C / prelude | directfs import $image --to /in"
step "what was imported" directfs run --image $image -- cmp /prelude /mnt/directfs/in/prelude
step "tune" directfs tune $image --label renamed
says "the label" "renamed" directfs info $image
step "run that is discarded" directfs run --image $image --discard -- sh -c 'echo > /mnt/directfs/discarded'
step "nothing of it is left" directfs run --image $image -- sh -c '! test -e /mnt/directfs/discarded'
refuses "run as a whole" "no commits" directfs run --image $image --atomic -- true
step "fsck at the end" directfs fsck -n $image
"#;

const PROMISED: &str = "promise='Completed calls survive a power failure'\n";

/// Bytes of most NVDIMMs.
const NVDIMM_BYTES: u64 = 512 << 20;

/// A machine for each kernel; none, with a word, where there can be none.
fn machines_for(test: &str) -> Vec<Machine> {
    machines().unwrap_or_else(|why| {
        skip(test, &why);
        Vec::new()
    })
}

fn skip(test: &str, why: &str) {
    eprintln!("\n*** SKIPPED: {test}: {why} ***\n");
}

#[test]
fn a_dax_device_serves_every_command_and_mapping() {
    let script = r#"
labels; namespace -m devdax -a 4K -s 128M
image=/dev/dax0.0
refuses "info without an image" "" directfs info $image
refuses "mkfs with a size" "has its own size" directfs mkfs $image --size 100M
says "mkfs" "$promise" directfs mkfs $image
refuses "mkfs again" "a DirectFS image already" directfs mkfs $image
"#;
    let more = r#"
step "run: mappings" directfs run --image $image -- mapping /mnt/directfs/shared-mapping
step "run: a private mapping" directfs run --image $image -- mapping /mnt/directfs/private-mapping private
if [ -e /usr/bin/sqlite3 ]; then
    says "run: SQLite with a log" "ok" directfs run --image $image -- sqlite3 /mnt/directfs/db "pragma journal_mode=wal; create table t(a); insert into t values (7); pragma integrity_check"
fi
refuses "resize" "its own size" directfs resize $image +32M
refuses "trim" "cannot give space back" directfs trim $image
says "mkfs --from" "" directfs mkfs $image --force --from /drivers
step "its content" directfs run --image $image -- diff -r /drivers /mnt/directfs
"#;
    for machine in machines_for("a DAX device of pages of 4 KiB") {
        machine.with_nvdimm(NVDIMM_BYTES).run(&[PROMISED, script, BATTERY, COMMANDS, more].concat()).assert_all_steps();
    }
}

#[test]
fn a_dax_device_of_larger_pages_serves_all_but_shared_mappings() {
    let device = r#"
image=$(ls /dev/dax*)
says "mkfs" "--align 4K" directfs mkfs $image
"#;
    let more = r#"
says "info names the limit" "--align 4K" directfs info $image
step "run: a shared mapping is refused" sh -c "directfs run --image $image -- mapping /mnt/directfs/mapped-under-run; test \$? = 2"
step "run: a private mapping" directfs run --image $image -- mapping /mnt/directfs/private-mapping private
"#;
    let of_2_mib =
        [PROMISED, "labels; namespace -m devdax -a 2M -s 128M\n", device, BATTERY, "rm /tmp/snapshot\n", more];
    let of_1_gib = r#"
labels; namespace -m devdax -a 1G -s 2G
image=$(ls /dev/dax*)
step "mkfs" directfs mkfs $image --force
step "run" directfs run --image $image -- sh -c 'cp /prelude /mnt/directfs && cmp /prelude /mnt/directfs/prelude'
step "mount" directfs mount $image /mnt/a
step "a mount's files" cmp /prelude /mnt/a/prelude
step "umount" directfs umount /mnt/a
step "fsck" directfs fsck -n $image
"#;
    for machine in machines_for("DAX devices of larger pages") {
        machine.with_nvdimm(3 << 30).run(&[&of_2_mib[..], &[of_1_gib, more]].concat().concat()).assert_all_steps();
    }
}

#[test]
fn files_on_dax_file_systems_serve_every_command() {
    let mut script = PROMISED.to_owned();
    for (driver, make, options) in
        [("ext4", "mkfs.ext4 -q -b 4096", "dax"), ("xfs", "mkfs.xfs -q -f -m reflink=0", "dax=always")]
    {
        let file_system = format!(
            r#"
labels; namespace -m fsdax -s 400M
drivers {driver}
step "{make}" {make} /dev/pmem0
step "mount it" mount -o {options} /dev/pmem0 /mnt/b
image=/mnt/b/image
refuses "mkfs on the mounted block device" "used by the kernel" directfs mkfs /dev/pmem0 --force
says "mkfs" "$promise" directfs mkfs $image --size 96M
"#
        );
        let more = r#"
step "run: mappings" directfs run --image $image -- mapping /mnt/directfs/shared-mapping
step "resize" directfs resize $image +32M
step "trim" directfs trim $image
step "umount the file system" umount /mnt/b
"#;
        let commands = if driver == "ext4" { COMMANDS } else { "rm /tmp/snapshot\n" };
        script += &[&file_system, BATTERY, commands, more].concat();
    }
    for machine in machines_for("DAX files") {
        machine.with_nvdimm(NVDIMM_BYTES).run(&script).assert_all_steps();
    }
}

#[test]
fn a_removed_device_is_an_error_for_its_programs_and_whole_afterwards() {
    let script = r#"
for align in 4K 2M; do
labels; namespace -m devdax -a $align -s 128M
image=$(ls /dev/dax*); device=${image#/dev/}
step "mkfs" directfs mkfs $image --force
directfs run --image $image -- sh -c 'cp /prelude /mnt/directfs && exec mapping /mnt/directfs/kept keep' > /tmp/kept-$align 2>&1 & run=$!
await grep -q ready /tmp/kept-$align
step "unbind, in use" sh -c "echo $device > /sys/bus/dax/drivers/device_dax/unbind"
wait $run; code=$?
says "the program gets an error" "ended: I/O error" sed 's/Input.output/I\/O/' /tmp/kept-$align
step "the launcher ends by itself, with code $code: $(cat /tmp/kept-$align)" test $code -lt 128
directfs mount $image /mnt/a > /dev/null 2>&1
step "bind" sh -c "echo $device > /sys/bus/dax/drivers/device_dax/bind"
await test -e $image
step "what was there is there" directfs run --image $image -- cmp /prelude /mnt/directfs/prelude
step "fsck" directfs fsck -n $image
step "mount" directfs mount $image /mnt/a
step "unbind below a mount" sh -c "echo $device > /sys/bus/dax/drivers/device_dax/unbind"
refuses "a mount's files are errors" "error" sh -c 'echo 3 > /proc/sys/vm/drop_caches; LC_ALL=C cp /prelude /mnt/a/new'
directfs umount /mnt/a > /dev/null 2>&1; umount -l /mnt/a 2> /dev/null
done
"#;
    for machine in machines_for("a removed DAX device") {
        machine.with_nvdimm(NVDIMM_BYTES).run(script).assert_all_steps();
    }
}

#[test]
fn memory_of_which_the_kernel_knows_nothing_promises_nothing() {
    let script = r#"
drivers ext4
virtio=$(ls -d /sys/bus/virtio/drivers/virtio_pmem/virtio*/ndbus*/region*/namespace*/block/pmem*)
virtio=/dev/${virtio##*/}
step "mkfs.ext4 on virtio-pmem" mkfs.ext4 -q -b 4096 $virtio
step "mount it" mount -o dax $virtio /mnt/b
says "mkfs of a file on virtio-pmem" "What was synced" directfs mkfs /mnt/b/image --size 32M
step "run" directfs run --image /mnt/b/image -- sh -c 'cp /prelude /mnt/directfs && cmp /prelude /mnt/directfs/prelude'
step "fsck" directfs fsck -n /mnt/b/image
step "umount" umount /mnt/b
step "virtio-pmem is removed" sh -c 'echo ${0##*/} > /sys/bus/virtio/drivers/virtio_pmem/unbind' /sys/bus/virtio/drivers/virtio_pmem/virtio*
labels; namespace -m devdax -a 4K -s 128M
device=$(ls /dev/dax*)
says "mkfs of a device" "is not known" directfs mkfs $device
says "info of a device" "is not known" directfs info $device
namespace -m fsdax -s 128M
disk=$(ls /dev/pmem*)
step "mkfs.ext4" mkfs.ext4 -q -b 4096 $disk
step "mount it" mount -o dax $disk /mnt/b
says "mkfs of a file" "is not known" directfs mkfs /mnt/b/image --size 32M
"#;
    let nvdimm = Hardware::Nvdimm { bytes: NVDIMM_BYTES, keeps_without_power: false };
    for machine in machines_for("memory without a persistence domain") {
        // The NVDIMM's label area would leave the next device at an odd address.
        match machine.with(Hardware::VirtioPmem).and_then(|machine| machine.with(nvdimm)) {
            Ok(machine) => machine.run(script).assert_all_steps(),
            Err(why) => skip("memory without a persistence domain", &why),
        }
    }
}

/// Uses an image on CXL memory, if it is there and keeps what is written.
const USE_CXL: &str = r#"
if [ $keeps ]; then
step "run" directfs run --image /dev/dax0.0 -- sh -c 'cp /prelude /mnt/directfs && cmp /prelude /mnt/directfs/prelude'
step "mount" directfs mount /dev/dax0.0 /mnt/a
step "a mount's files" cmp /prelude /mnt/a/prelude
step "umount" directfs umount /mnt/a
step "fsck" directfs fsck -n /dev/dax0.0
fi
"#;

/// Linux 6.12 does not take the memory that QEMU 7 emulates; what is written to that does not read
/// back whole on older ones. QEMU 10 has neither fault, but 6.18 makes no persistent memory of it.
#[test]
fn cxl_memory_in_the_mode_pmem_is_persistent() {
    let script = r#"
[ ! -e /sys/bus/cxl/devices/mem0/driver ] || step "a region" cxl create-region -t pmem -d decoder0.0 -m mem0
if [ -e /sys/bus/nd/devices/region0 ]; then
step "a block device" ndctl create-namespace -m fsdax -M mem
step "write to it" dd if=/prelude of=/dev/pmem0 bs=512 count=2 conv=fsync
echo 3 > /proc/sys/vm/drop_caches
step "read it" dd if=/dev/pmem0 of=/tmp/read bs=512 count=2
cmp -s -n 1024 /prelude /tmp/read && keeps=yes || ok "SKIPPED: the CXL memory of this QEMU does not keep what is written"
step "a device" ndctl create-namespace -f -e namespace0.0 -m devdax -a 4K -M mem
says "mkfs" "Completed calls survive a power failure" directfs mkfs --force /dev/dax0.0
else ok "SKIPPED: this kernel does not take the CXL memory of this QEMU"
fi
"#;
    let test = "CXL memory in the mode pmem";
    for machine in machines_for(test) {
        match machine.with(Hardware::CxlPersistent) {
            Ok(machine) => machine.run(&[script, USE_CXL].concat()).assert_all_steps(),
            Err(why) => skip(test, &why),
        }
    }
}

#[test]
fn cxl_memory_in_the_mode_ram_promises_nothing_without_power() {
    let script = r#"
cd /sys/bus/cxl/devices
if [ -e decoder0.0/create_ram_region ]; then
keeps=yes
region=$(cat decoder0.0/create_ram_region)
step "a region" sh -ec "
    echo $region > decoder0.0/create_ram_region
    echo ram > decoder2.0/mode; echo 0x10000000 > decoder2.0/dpa_size
    cd $region; echo 256 > interleave_granularity; echo 1 > interleave_ways; echo 0x10000000 > size
    echo decoder2.0 > target0; echo 1 > commit; echo $region > /sys/bus/cxl/drivers/cxl_region/bind"
cd /
step "a device" sh -c 'echo dax0.0 > /sys/bus/dax/drivers/device_dax/new_id'
says "mkfs" "not a power failure" directfs mkfs /dev/dax0.0
else ok "SKIPPED: this kernel has no regions of CXL memory in the mode ram"
fi
"#;
    let test = "CXL memory in the mode ram";
    for machine in machines_for(test) {
        match machine.with(Hardware::CxlVolatile) {
            Ok(machine) => machine.run(&[script, USE_CXL].concat()).assert_all_steps(),
            Err(why) => skip(test, &why),
        }
    }
}

#[test]
fn memory_errors_are_errors_of_the_files_that_lie_there() {
    let script = r#"
labels; namespace -m fsdax -s 480M
drivers ext4
step "mkfs.ext4" mkfs.ext4 -q -b 4096 /dev/pmem0
step "mount it" mount -o dax /dev/pmem0 /mnt/b
image=/mnt/b/image
step "mkfs" directfs mkfs $image --size 128M
step "a file of 60 MiB" directfs run --image $image -- sh -c 'cp -r /drivers /mnt/directfs; dd if=/dev/zero of=/mnt/directfs/file bs=1M count=60'
sector=$(filefrag -v -b512 $image | awk '$1 == "0:" {gsub(/\./, "", $4); print $4}')
step "bad blocks in the middle of it" sh -c "echo $((sector + 40 * 2048)) 2048 > /sys/block/pmem0/badblocks"
step "run: other files" directfs run --image $image -- diff -r /drivers /mnt/directfs/drivers
step "run: a new file" directfs run --image $image -- sh -c 'cp -r /drivers /mnt/directfs/more; diff -r /drivers /mnt/directfs/more'
refuses "fsck lists the file" "content-lost" directfs fsck -n $image
refuses "fsck: and its path" "/file" directfs fsck -n $image
case $(uname -r) in [1-5].* | 6.[0-5].*) echo "ok: SKIPPED: this kernel maps listed bad blocks, and the emulated ones have no error" ;; *)
refuses "run names the error" "has a memory error" directfs run --image $image -- sh -c 'cat /mnt/directfs/file > /dev/null'
refuses "export names it" "incomplete: ./file" sh -c "directfs export $image > /tmp/tar"
step "export: all else is there" sh -c "mkdir /tmp/out; tar xf /tmp/tar -C /tmp/out; diff -r /drivers /tmp/out/more"
rm -rf /tmp/tar /tmp/out
refuses "snapshot" "memory error" directfs snapshot $image /tmp/copy
refuses "clone" "memory error" directfs clone $image /tmp/copy
step "no copy is left" test ! -e /tmp/copy
mkdir /tmp/store
refuses "push" "memory error" directfs push $image file:///tmp/store/image
step "no state is in the store" sh -c '! directfs pull file:///tmp/store/image /tmp/copy && test ! -e /tmp/copy'
step "mount" directfs mount $image /mnt/a
refuses "mount: snapshot" "memory error" directfs snapshot $image /tmp/copy
refuses "mount: push" "memory error" directfs push $image file:///tmp/store/image
step "mount: no copy is left" test ! -e /tmp/copy
refuses "mount: the file" "" cp /mnt/a/file /dev/null
step "mount: other files" diff -r /drivers /mnt/a/more
step "mount: the file goes" rm /mnt/a/file
step "mount: writes" sh -c 'dd if=/dev/zero of=/mnt/a/fill bs=1M count=60'
step "mount: reads" cp /mnt/a/fill /dev/null
step "umount" directfs umount /mnt/a
step "fsck: no file is there any more" directfs fsck -n $image
;; esac
step "bad blocks at the inodes" sh -c "echo $((sector + 128)) 2048 > /sys/block/pmem0/badblocks"
refuses "metadata is damage" "memory error" directfs fsck -n $image
umount /mnt/b
"#;
    for machine in machines_for("memory errors") {
        machine.with_nvdimm(NVDIMM_BYTES).run(script).assert_all_steps();
    }
}

#[test]
fn a_program_whose_apparmor_profile_forbids_the_library_is_refused() {
    let test = "profiles of AppArmor";
    let script = r#"
mount -t securityfs securityfs /sys/kernel/security
for name in forbidden named permitted complaining; do cp /usr/bin/cat /usr/local/bin/$name; done
cp /bin/busybox /usr/local/bin/forbidden-static
cat > /tmp/profiles <<'END'
/usr/local/bin/forbidden* { / r, /{,usr/}lib{,64}/** mr, /usr/local/bin/* mr, /mnt/** rw, /dev/** rw, /script r, }
profile named /usr/local/bin/named { / r, /{,usr/}lib{,64}/** mr, /usr/local/bin/named mr, /mnt/** rw, /dev/** rw, }
profile permitted /usr/local/bin/permitted { /** mrwlkix, capability, ptrace, signal, }
profile complaining /usr/local/bin/complaining flags=(complain) { / r, }
END
step "profiles" apparmor_parser -K -r /tmp/profiles
image=/tmp/image
step "mkfs" directfs mkfs $image --size 64M
step "a file" directfs run --image $image -- cp /script /mnt/directfs/file
run() { directfs run --image $image -- "$@"; }
refuses "launch" "profile /usr/local/bin/forbidden* does not" run forbidden /mnt/directfs/file
refuses "launch, hidden attachment" "profile named does not" run named /mnt/directfs/file
step "its code" sh -c "directfs run --image $image -- forbidden /mnt/directfs/file; test \$? = 126"
refuses "exec" "profile /usr/local/bin/forbidden* does not" run sh -c 'forbidden /mnt/directfs/file; exit $?'
refuses "exec in the mount" "profile named does not" run sh -c 'cd /mnt/directfs && named file; exit $?'
refuses "exec of a static program" "outside of the profile" run sh -c 'forbidden-static cat /mnt/directfs/file'
refuses "launch of a static program" "outside of the profile" run forbidden-static cat /mnt/directfs/file
step "a program that has nothing of the mount" run sh -c 'forbidden /script > /dev/null; exit $?'
step "a profile that permits the library" run permitted /mnt/directfs/file
step "and in exec" run sh -c 'permitted /mnt/directfs/file'
step "a profile that only complains" run complaining /mnt/directfs/file
"#;
    for machine in machines_for(test) {
        match machine.with_apparmor() {
            Ok(machine) => machine.run(script).assert_all_steps(),
            Err(why) => skip(test, &why),
        }
    }
}

#[test]
fn strict_settings_of_a_machine_leave_images_usable() {
    let script = r#"
image=/tmp/image
step "mkfs" directfs mkfs $image --size 64M
echo 2 > /proc/sys/vm/overcommit_memory
step "mount" directfs mount $image /mnt/a
step "a file" cp /prelude /mnt/a/prelude
step "umount" directfs umount /mnt/a
step "resize" directfs resize $image +32M
step "mkfs --from" directfs mkfs /tmp/filled --size 64M --from /drivers
step "run" directfs run --image $image -- cmp /prelude /mnt/directfs/prelude
echo 0 > /proc/sys/vm/overcommit_memory
umount /proc; mount -t proc -o subset=pid proc /proc
step "run in memory, without /proc/meminfo" directfs run -- cp /prelude /mnt/directfs
umount /proc
refuses "run without /proc" "/proc must be mounted" directfs run -- true
mount -t proc proc /proc
"#;
    for machine in machines_for("vm.overcommit_memory=2, proc with subset=pid") {
        machine.run(script).assert_all_steps();
    }
}

#[test]
fn every_returned_call_survives_power_cuts_of_a_dax_device() {
    for machine in machines_for("power cuts of a DAX device") {
        let script = r#"
labels; namespace -m devdax -a 4K -s 48M
directfs mkfs /dev/dax0.0
directfs run --image /dev/dax0.0 -- sh -c 'mkdir /mnt/directfs/work; worker work /mnt/directfs/work'
"#;
        cuts::assert_nothing_is_lost(machine, cuts::Place::Device, script);
    }
}

#[test]
fn every_returned_call_survives_power_cuts_of_a_dax_file() {
    for machine in machines_for("power cuts of a DAX file") {
        let script = r#"
labels; namespace -m fsdax -s 48M
drivers ext4
mkfs.ext4 -q -b 4096 /dev/pmem0; mount -o dax /dev/pmem0 /mnt/b
directfs mkfs /mnt/b/image --size 24M; sync; umount /mnt/b; mount -o dax /dev/pmem0 /mnt/b
directfs mount -o cache=0 /mnt/b/image /mnt/a
mkdir /mnt/a/work; worker work /mnt/a/work
"#;
        cuts::assert_nothing_is_lost(machine, cuts::Place::Ext4, script);
    }
}

#[test]
fn every_acknowledged_call_survives_power_cuts_of_a_disk() {
    let script = format!(
        r#"
drivers ext4
step "mkfs.ext4" mkfs.ext4 -q -b 4096 /dev/vda {kib}k
step "mount it" mount /dev/vda /mnt/b
image=/mnt/b/image
says "mkfs" "What was synced" directfs mkfs $image --size 16M
sync
step "a directory" directfs run --image $image -- mkdir /mnt/directfs/work
worker acknowledge /dev/vda 0
step "run: syncs of all kinds" directfs run --image $image -- worker sync /mnt/directfs/work /dev/vda 0 240
step "the end of a run" worker acknowledge /dev/vda 240
step "mount" directfs mount -o commit=0 $image /mnt/a
step "mount: syncs of files" worker sync /mnt/a/work /dev/vda 240 420 files
step "umount" directfs umount /mnt/a
step "the end of a mount" worker acknowledge /dev/vda 420
step "a mount that shares" directfs mount -o cache=0,commit=0 $image /mnt/a
step "a mount that shares: syncs of files" worker sync /mnt/a/work /dev/vda 420 600 files
step "umount of it" directfs umount /mnt/a
step "its end" worker acknowledge /dev/vda 600
step "umount the file system" umount /mnt/b
sync
image=/dev/vda
says "mkfs of the disk" "What was synced" directfs mkfs $image --size 16M --force
sync
step "a directory on the disk" directfs run --image $image -- mkdir /mnt/directfs/work
worker acknowledge /dev/vda 0
step "run on the disk" directfs run --image $image -- worker sync /mnt/directfs/work /dev/vda 0 240
step "the end of a run on the disk" worker acknowledge /dev/vda 240
step "mount the disk" directfs mount -o commit=0 $image /mnt/a
step "mount of the disk: syncs of files" worker sync /mnt/a/work /dev/vda 240 420 files
step "umount the disk" directfs umount /mnt/a
step "the end of a mount of the disk" worker acknowledge /dev/vda 420
"#,
        kib = disklog::FILE_SYSTEM_BYTES >> 10
    );
    let test = "power cuts of a disk";
    for machine in machines_for(test) {
        match machine.with(Hardware::Disk { bytes: disklog::DISK_BYTES }) {
            Ok(machine) => cuts::assert_a_disk_loses_nothing(machine, &script),
            Err(why) => skip(test, &why),
        }
    }
}

/// Times of calls on DAX files beside ext4 and tmpfs. They are those of an emulated processor.
#[test]
#[ignore = "takes minutes, and prints figures"]
fn calls_beside_ext4_dax_and_tmpfs() {
    let script = r#"
labels; namespace -m fsdax -s 896M
drivers ext4
step "mkfs.ext4" mkfs.ext4 -q -b 4096 /dev/pmem0
step "mount it" mount -o dax /dev/pmem0 /mnt/b
mkdir /mnt/b/image /mnt/b/directory
directfs bench --quick --only calls --sizes 1000 --repeat 2 --image-in /mnt/b/image /mnt/b/directory < /dev/null
step "the bench has ended" true
"#;
    for machine in machines_for("a bench on a DAX file system") {
        machine.with_nvdimm(1 << 30).run(script).assert_all_steps();
    }
}
