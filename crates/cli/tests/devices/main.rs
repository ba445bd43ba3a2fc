//! Images on persistent memory, on the devices and file systems of a real kernel: in machines that
//! QEMU emulates, with an NVDIMM whose content is a file here.
//!
//! They need QEMU, a kernel with its modules and a few tools (see `machine`), and are skipped
//! loudly where one of these is missing. A machine takes about ten seconds when the host is idle.
//! `TEST_KERNEL` names kernels, on each of which every test runs: see `machine::find_kernels`.

mod archive;
mod cuts;
mod machine;

use machine::{Machine, machines};

/// Uses an image on a device or a DAX file, `$image`, with all commands that read or change one.
const BATTERY: &str = r#"
says "info" "$promise" directfs info $image
step "run: copy a tree" directfs run --image $image -- sh -c 'cp -r /prelude /script /modules /mnt/directfs && diff -r /modules /mnt/directfs/modules'
step "fsck of an image that was used" directfs fsck -n $image
step "mount" directfs mount $image /mnt/a
step "mount: the tree is there" diff -r /modules /mnt/a/modules
step "mount: mappings" mapping /mnt/a/mapped
says "ps" directfs directfs ps $image
step "umount" directfs umount /mnt/a
step "a mount that shares" directfs mount -o cache=0 $image /mnt/a
step "run beside a mount" directfs run --image $image -- sh -c 'echo from a program > /mnt/directfs/shared'
says "mount beside a run" "from a program" cat /mnt/a/shared
says "stats" "" directfs stats $image
step "umount of it" directfs umount /mnt/a
step "snapshot" directfs snapshot $image /tmp/snapshot
step "fsck of the snapshot" directfs fsck -n /tmp/snapshot
step "the snapshot has the tree" directfs run --image /tmp/snapshot -- diff -r /modules /mnt/directfs/modules
rm -f /tmp/snapshot
step "export" sh -c "directfs export $image > /tmp/tar && tar tf /tmp/tar | grep -q modules/000.ko"
rm -f /tmp/tar
step "import" sh -c "directfs run --image $image -- mkdir /mnt/directfs/in; tar cf - -C / prelude | directfs import $image --to /in"
step "what was imported" directfs run --image $image -- cmp /prelude /mnt/directfs/in/prelude
step "tune" directfs tune $image --label renamed
says "the label" "renamed" directfs info $image
step "run that is discarded" directfs run --image $image --discard -- sh -c 'echo > /mnt/directfs/discarded'
step "nothing of it is left" directfs run --image $image -- sh -c '! test -e /mnt/directfs/discarded'
refuses "run as a whole" "no commits" directfs run --image $image --atomic -- true
directfs run --image $image -- mapping /mnt/directfs/killed keep > /tmp/out & run=$!
await grep -q ready /tmp/out
kill -9 $run; killall -9 mapping
says "after its processes were killed" x directfs run --image $image -- cat /mnt/directfs/killed
step "fsck at the end" directfs fsck -n $image
"#;

const PROMISED: &str = "promise='Completed calls survive a power failure'\n";

/// A machine for each kernel; none, with a word, where there can be none.
fn machines_for(test: &str) -> Vec<Machine> {
    machines().unwrap_or_else(|why| {
        eprintln!("\n*** SKIPPED: {test}: {why} ***\n");
        Vec::new()
    })
}

#[test]
fn a_dax_device_serves_every_command_and_mapping() {
    let script = r#"
labels; namespace -m devdax -a 4K -s 256M
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
says "mkfs --from" "" directfs mkfs $image --force --from /modules
step "its content" directfs run --image $image -- diff -r /modules /mnt/directfs
"#;
    for machine in machines_for("a DAX device of pages of 4 KiB") {
        machine.run(&[PROMISED, script, BATTERY, more].concat()).assert_all_steps();
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
    let of_2_mib = [PROMISED, "labels; namespace -m devdax -a 2M -s 256M\n", device, BATTERY, more];
    for machine in machines_for("DAX devices of larger pages") {
        machine.run(&of_2_mib.concat()).assert_all_steps();
    }
    let of_1_gib = r#"
labels; namespace -m devdax -a 1G -s 2G
image=$(ls /dev/dax*)
step "mkfs" directfs mkfs $image
step "run" directfs run --image $image -- sh -c 'cp /prelude /mnt/directfs && cmp /prelude /mnt/directfs/prelude'
step "mount" directfs mount $image /mnt/a
step "a mount's files" cmp /prelude /mnt/a/prelude
step "umount" directfs umount /mnt/a
step "fsck" directfs fsck -n $image
"#;
    for machine in machines_for("a DAX device of pages of 1 GiB") {
        machine.with_nvdimm(3 << 30).run(&[of_1_gib, more].concat()).assert_all_steps();
    }
}

#[test]
fn files_on_dax_file_systems_serve_every_command() {
    for (make, options) in [("mkfs.ext4 -q -b 4096", "dax"), ("mkfs.xfs -q -m reflink=0", "dax=always")] {
        let file_system = format!(
            r#"
labels; namespace -m fsdax -s 480M
step "{make}" {make} /dev/pmem0
step "mount it" mount -o {options} /dev/pmem0 /mnt/b
image=/mnt/b/image
refuses "mkfs on the block device" "is a block device, not a regular file" directfs mkfs /dev/pmem0 --size 10M
says "mkfs" "$promise" directfs mkfs $image --size 128M
"#
        );
        let more = r#"
step "run: mappings" directfs run --image $image -- mapping /mnt/directfs/shared-mapping
step "resize" directfs resize $image +32M
step "trim" directfs trim $image
step "umount the file system" umount /mnt/b
"#;
        for machine in machines_for("DAX files") {
            machine.run(&[PROMISED, &file_system, BATTERY, more].concat()).assert_all_steps();
        }
    }
}

#[test]
fn a_removed_device_is_an_error_for_its_programs_and_whole_afterwards() {
    for align in ["4K", "2M"] {
        let script = format!("labels; namespace -m devdax -a {align} -s 256M\n");
        let more = r#"
image=/dev/dax0.0
step "mkfs" directfs mkfs $image
directfs run --image $image -- sh -c 'cp /prelude /mnt/directfs && exec mapping /mnt/directfs/kept keep' > /tmp/kept 2>&1 & run=$!
await grep -q ready /tmp/kept
step "unbind, in use" sh -c 'echo dax0.0 > /sys/bus/dax/drivers/device_dax/unbind'
wait $run; code=$?
says "the program gets an error" "ended: I/O error" sed 's/Input.output/I\/O/' /tmp/kept
step "the launcher ends by itself, with code $code: $(cat /tmp/kept)" test $code -lt 128
directfs mount $image /mnt/a > /dev/null 2>&1
step "bind" sh -c 'echo dax0.0 > /sys/bus/dax/drivers/device_dax/bind'
await test -e $image
step "what was there is there" directfs run --image $image -- cmp /prelude /mnt/directfs/prelude
step "fsck" directfs fsck -n $image
step "mount" directfs mount $image /mnt/a
step "unbind below a mount" sh -c 'echo dax0.0 > /sys/bus/dax/drivers/device_dax/unbind'
refuses "a mount's files are errors" "error" sh -c 'echo 3 > /proc/sys/vm/drop_caches; LC_ALL=C cp /prelude /mnt/a/new'
directfs umount /mnt/a > /dev/null 2>&1; umount -l /mnt/a 2> /dev/null
"#;
        for machine in machines_for("a removed DAX device") {
            machine.run(&[&script, more].concat()).assert_all_steps();
        }
    }
}

#[test]
fn memory_of_which_the_kernel_knows_nothing_promises_nothing() {
    let script = r#"
labels; namespace -m devdax -a 4K -s 128M
says "mkfs of a device" "is not known" directfs mkfs /dev/dax0.0
says "info of a device" "is not known" directfs info /dev/dax0.0
namespace -m fsdax -s 128M
step "mkfs.ext4" mkfs.ext4 -q -b 4096 /dev/pmem0.1
step "mount it" mount -o dax /dev/pmem0.1 /mnt/b
says "mkfs of a file" "is not known" directfs mkfs /mnt/b/image --size 32M
"#;
    for machine in machines_for("an NVDIMM without a persistence domain") {
        machine.without_persistence_domain().run(script).assert_all_steps();
    }
}

#[test]
fn memory_errors_are_errors_of_the_files_that_lie_there() {
    let script = r#"
labels; namespace -m fsdax -s 480M
step "mkfs.ext4" mkfs.ext4 -q -b 4096 /dev/pmem0
step "mount it" mount -o dax /dev/pmem0 /mnt/b
image=/mnt/b/image
step "mkfs" directfs mkfs $image --size 128M
step "a file of 60 MiB" directfs run --image $image -- sh -c 'cp -r /modules /mnt/directfs; dd if=/dev/zero of=/mnt/directfs/file bs=1M count=60'
sector=$(filefrag -v -b512 $image | awk '$1 == "0:" {gsub(/\./, "", $4); print $4}')
step "bad blocks in the middle of it" sh -c "echo $((sector + 40 * 2048)) 2048 > /sys/block/pmem0/badblocks"
step "run: other files" directfs run --image $image -- diff -r /modules /mnt/directfs/modules
step "run: a new file" directfs run --image $image -- sh -c 'cp -r /modules /mnt/directfs/more; diff -r /modules /mnt/directfs/more'
refuses "fsck lists the file" "content-lost" directfs fsck -n $image
refuses "fsck: and its path" "/file" directfs fsck -n $image
case $(uname -r) in [1-5].* | 6.[0-5].*) echo "ok: SKIPPED: this kernel maps listed bad blocks, and the emulated ones have no error" ;; *)
refuses "run names the error" "has a memory error" directfs run --image $image -- sh -c 'cat /mnt/directfs/file > /dev/null'
refuses "export names it" "incomplete: ./file" sh -c "directfs export $image > /tmp/tar"
step "export: all else is there" sh -c "mkdir /tmp/out; tar xf /tmp/tar -C /tmp/out; diff -r /modules /tmp/out/more"
rm -rf /tmp/tar /tmp/out
step "mount" directfs mount $image /mnt/a
refuses "mount: the file" "" cp /mnt/a/file /dev/null
step "mount: other files" diff -r /modules /mnt/a/more
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
        machine.run(script).assert_all_steps();
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
            Err(why) => eprintln!("\n*** SKIPPED: {test}: {why} ***\n"),
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
step "mkfs --from" directfs mkfs /tmp/filled --size 64M --from /modules
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
fn every_returned_call_survives_power_cuts() {
    for machine in machines_for("power cuts of a DAX device") {
        let script = r#"
labels; namespace -m devdax -a 4K -s 48M
directfs mkfs /dev/dax0.0
directfs run --image /dev/dax0.0 -- sh -c 'mkdir /mnt/directfs/work; worker work /mnt/directfs/work'
"#;
        cuts::assert_nothing_is_lost(machine, cuts::Place::Device, script);
    }
    for machine in machines_for("power cuts of a DAX file") {
        let script = r#"
labels; namespace -m fsdax -s 48M
mkfs.ext4 -q -b 4096 /dev/pmem0; mount -o dax /dev/pmem0 /mnt/b
directfs mkfs /mnt/b/image --size 24M; sync; umount /mnt/b; mount -o dax /dev/pmem0 /mnt/b
directfs mount -o cache=0 /mnt/b/image /mnt/a
mkdir /mnt/a/work; worker work /mnt/a/work
"#;
        cuts::assert_nothing_is_lost(machine, cuts::Place::Ext4, script);
    }
}
