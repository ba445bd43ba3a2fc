//! Reads through the kernel's cache, and writes that bypass it.

mod common;

use common::{Mounted, can_mount};
use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

/// `struct iocb` of a write.
#[repr(C)]
#[derive(Default)]
struct Control {
    data: u64,
    key: u32,
    write_flags: u32,
    operation: u16,
    priority: i16,
    descriptor: u32,
    buffer: u64,
    bytes: u64,
    offset: i64,
    reserved: u64,
    flags: u32,
    event_descriptor: u32,
}

/// `IOCB_CMD_PWRITE`.
const WRITE: u16 = 1;

/// Writes asynchronously; returns the result when the write is done.
fn write_asynchronously(context: u64, file: &File, from: &[u8]) -> i64 {
    let (buffer, bytes) = (from.as_ptr() as u64, from.len() as u64);
    let descriptor = file.as_raw_fd() as u32;
    let mut control = Control { operation: WRITE, descriptor, buffer, bytes, ..Control::default() };
    let (mut list, mut event) = ([&raw mut control], [0_i64; 4]);
    // SAFETY: the context is one of `io_setup`; all memory outlives the calls, and the write.
    unsafe {
        assert_eq!(libc::syscall(libc::SYS_io_submit, context, 1, list.as_mut_ptr()), 1);
        let none = std::ptr::null::<libc::timespec>();
        assert_eq!(libc::syscall(libc::SYS_io_getevents, context, 1, 1, event.as_mut_ptr(), none), 1);
    }
    event[2]
}

#[test]
fn reads_see_asynchronous_direct_writes() {
    if !can_mount("reads_see_asynchronous_direct_writes") {
        return;
    }
    const BYTES: usize = 1 << 20;
    for options in ["", "cache=0"] {
        let mounted = Mounted::new(options);
        fs::write(mounted.path("file"), vec![0; BYTES]).unwrap();
        let file = File::options().write(true).custom_flags(libc::O_DIRECT).open(mounted.path("file")).unwrap();
        let path = mounted.path("file");
        let read = || fs::read(&path).unwrap();
        let (mut context, is_over) = (0_u64, AtomicBool::new(false));
        // SAFETY: the call stores a word.
        assert_eq!(unsafe { libc::syscall(libc::SYS_io_setup, 1, &raw mut context) }, 0);
        // Twice as long, so that a part is aligned.
        let mut memory = vec![0; 2 * BYTES];
        let start = memory.as_ptr().align_offset(4096);
        let stale = std::thread::scope(|scope| {
            (0..2).for_each(|_| {
                drop(scope.spawn(|| {
                    while !is_over.load(Relaxed) {
                        read();
                    }
                }))
            });
            let stale = (1..=100).find(|&round| {
                memory[start..start + BYTES].fill(round);
                assert_eq!(write_asynchronously(context, &file, &memory[start..start + BYTES]), BYTES as i64);
                read().iter().any(|&byte| byte != round)
            });
            is_over.store(true, Relaxed);
            stale
        });
        assert_eq!(stale, None, "{options}: the first write that a later read did not see");
    }
}
