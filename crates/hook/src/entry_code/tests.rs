//! Calls through the entry.

use super::*;
use crate::abi::entry::directfs_entry;
use crate::call_counts;
use core::arch::asm;
use core::sync::atomic::Ordering::Relaxed;
use libc::*;

const UNTOUCHED: u64 = 0x5a5a_a5a5_1234_8765;

/// Performs a call through the entry, as a slot does; checks that registers are preserved.
fn enter(number: c_long, arguments: [u64; 6]) -> i64 {
    let [a, b, c, d, e, f] = arguments;
    let (mut rdi, mut rsi, mut rdx, mut r10, mut r8, mut r9) = (a, b, c, d, e, f);
    let (mut result, mut kept) = (number, UNTOUCHED);
    // SAFETY: the entry returns to the label or the instruction after it, preserves all
    // registers except rax, rcx and r11, and uses the stack below the red zone. The calls of
    // these tests change no memory.
    unsafe {
        asm!("lea r11, [rip + 2f]", "jmp {entry}", "2:", "syscall", entry = sym directfs_entry, inout("rax") result,
            inout("rdi") rdi, inout("rsi") rsi, inout("rdx") rdx, inout("r10") r10, inout("r8") r8, inout("r9") r9,
            inout("r12") kept, out("rcx") _, out("r11") _);
    }
    assert_eq!(([rdi, rsi, rdx, r10, r8, r9], kept), (arguments, UNTOUCHED), "number {number}");
    result
}

/// Whether a call reaches the dispatcher.
fn is_seen(file: &std::path::Path, number: c_long, arguments: [u64; 6]) -> bool {
    let count = || {
        let bytes = std::fs::read(file).unwrap();
        u64::from_ne_bytes(*bytes[number as usize * 8..].first_chunk().unwrap())
    };
    let before = count();
    enter(number, arguments);
    count() > before
}

/// Calls with the address of a socket.
fn assert_addresses_are_seen(seen: &dyn Fn(c_long, [u64; 6]) -> bool, fd: u64) {
    let address = [0u64; 14];
    let pointer = address.as_ptr() as u64;
    assert!(seen(SYS_sendto, [fd, 0, 0, 0, pointer, 16]) && !seen(SYS_sendto, [fd, 0, 0, 0, 0, 0]));
    let message = [pointer, 0, 0, 0, 0, 0, 0];
    assert!(seen(SYS_sendmsg, [fd, message.as_ptr() as u64, 0, 0, 0, 0]));
    assert!(!seen(SYS_sendmsg, [fd, pointer, 0, 0, 0, 0]) && !seen(SYS_sendmsg, [fd, 0, 0, 0, 0, 0]));
}

/// Links to descriptors and working directories of other processes.
fn assert_links_are_seen(seen: &dyn Fn(c_long, [u64; 6]) -> bool) {
    for (path, wanted) in [
        (c"/proc/1/fd/3", true),
        (c"/proc/1/fdinfo/3", true),
        (c"/proc/1/fd", true),
        (c"/proc/1/f", false),
        (c"/proc/1/cwd", true),
        (c"/proc/1/c", false),
    ] {
        assert_eq!(seen(SYS_access, [path.as_ptr() as u64, 0, 0, 0, 0, 0]), wanted, "{path:?}");
    }
}

/// One test, because the filter's state is global.
#[test]
fn the_filter_passes_calls_that_may_be_directfs() {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), vec![0u8; call_counts::BYTES]).unwrap();
    let path = format!("{}\0", file.path().display());
    call_counts::open(path.as_bytes()).unwrap();
    let seen = |number, arguments| is_seen(file.path(), number, arguments);
    let here = AT_FDCWD as u64;
    let (inside, outside, relative) =
        (c"/mnt/pm/x".as_ptr() as u64, c"/mnt/px".as_ptr() as u64, c"no/such".as_ptr() as u64);
    let (odd, odder, empty) = (c"//mnt/pm".as_ptr() as u64, c"/mnt/./pm".as_ptr() as u64, c"".as_ptr() as u64);
    // SAFETY: only this test uses the entry.
    unsafe { DIRECTFS_PREFIX.match_nothing() };
    assert!(!seen(SYS_faccessat, [here, inside, 0, 0, 0, 0]), "no mount yet");
    // SAFETY: as above.
    let prefix = unsafe { &mut *DIRECTFS_PREFIX.0.get() };
    prefix[..7].copy_from_slice(b"mnt/pm\0");
    const DIRECTFS: u64 = 900;
    const OTHER: u64 = 901;
    DIRECTFS_FDS.byte(DIRECTFS as u32).unwrap().store(1, Relaxed);
    for path in [inside, odd, odder] {
        assert!(seen(SYS_faccessat, [here, path, 0, 0, 0, 0]));
        assert!(seen(SYS_access, [path, 0, 0, 0, 0, 0]));
        assert!(seen(SYS_rename, [relative, path, 0, 0, 0, 0]) && seen(SYS_rename, [path, relative, 0, 0, 0, 0]));
        assert!(seen(SYS_renameat2, [OTHER, relative, here, path, 0, 0]));
        assert!(seen(SYS_renameat2, [here, path, OTHER, relative, 0, 0]));
        assert!(
            seen(SYS_symlinkat, [relative, here, path, 0, 0, 0]) && seen(SYS_symlink, [relative, path, 0, 0, 0, 0])
        );
    }
    for path in [outside, relative, empty, 0, 1, u64::MAX, 1 << 47] {
        assert!(!seen(SYS_faccessat, [here, path, 0, 0, 0, 0]), "{path:x}");
        assert!(!seen(SYS_access, [path, 0, 0, 0, 0, 0]));
        assert!(!seen(SYS_renameat2, [OTHER, path, OTHER, path, 0, 0]));
    }
    for path in [relative, empty, 0] {
        assert!(seen(SYS_faccessat, [DIRECTFS, path, 0, 0, 0, 0]));
        assert!(
            seen(SYS_renameat2, [DIRECTFS, path, OTHER, path, 0, 0])
                && seen(SYS_renameat2, [OTHER, path, DIRECTFS, path, 0, 0])
        );
    }
    assert!(seen(SYS_symlinkat, [relative, DIRECTFS, relative, 0, 0, 0]));
    assert!(seen(SYS_lseek, [DIRECTFS, 0, 0, 0, 0, 0]) && seen(SYS_lseek, [DIRECTFS | 1 << 32, 0, 0, 0, 0, 0]));
    assert!(!seen(SYS_lseek, [OTHER, 0, 0, 0, 0, 0]) && !seen(SYS_lseek, [u64::MAX, 0, 0, 0, 0, 0]));
    assert!(seen(SYS_dup3, [OTHER, DIRECTFS, 0, 0, 0, 0]) && seen(SYS_copy_file_range, [OTHER, 0, DIRECTFS, 0, 0, 0]));
    assert!(seen(SYS_mmap, [0, 4096, 0, MAP_PRIVATE as u64, DIRECTFS, 0]));
    assert!(seen(SYS_mmap, [0, 4096, PROT_EXEC as u64, MAP_PRIVATE as u64, OTHER, 0]));
    assert!(!seen(SYS_mmap, [0, 4096, PROT_READ as u64, MAP_PRIVATE as u64, OTHER, 0]));
    assert_addresses_are_seen(&seen, OTHER);
    assert_links_are_seen(&seen);
    assert!(!seen(SYS_getcwd, [0, 0, 0, 0, 0, 0]));
    let upwards = c"../no/such".as_ptr() as u64;
    assert!(seen(SYS_access, [upwards, 0, 0, 0, 0, 0]) && seen(SYS_faccessat, [here, upwards, 0, 0, 0, 0]));
    let descriptors = [c"/proc/no".as_ptr() as u64, c"/dev/no".as_ptr() as u64];
    assert!(descriptors.iter().all(|&path| !seen(SYS_access, [path, 0, 0, 0, 0, 0])));
    for table in [c"/proc/mounts", c"/proc/self/mountinfo", c"/proc/7/task/8/mountstats", c"/etc/mtab"] {
        assert!(seen(SYS_access, [table.as_ptr() as u64, 0, 0, 0, 0, 0]), "{table:?}");
    }
    for other in [c"/p", c"/proc/meminfo", c"/proc/mo", c"/e", c"/etc/m", c"/etc/passwd", c"/etc/magic"] {
        assert!(!seen(SYS_access, [other.as_ptr() as u64, 0, 0, 0, 0, 0]), "{other:?}");
    }
    DIRECTFS_FD_COUNT.store(1, Relaxed);
    assert!(seen(SYS_getcwd, [0, 0, 0, 0, 0, 0]));
    assert!(descriptors.iter().all(|&path| seen(SYS_access, [path, 0, 0, 0, 0, 0])));
    DIRECTFS_CWD.store(1, Relaxed);
    assert!(seen(SYS_access, [relative, 0, 0, 0, 0, 0]) && seen(SYS_faccessat, [here, relative, 0, 0, 0, 0]));
    assert!(!seen(SYS_access, [outside, 0, 0, 0, 0, 0]));
    assert_eq!(enter(5000, [0; 6]), -i64::from(ENOSYS));
}
