//! Reads through the kernel's cache, and writes that bypass it.

use crate::common::{Mounted, can_mount, given_file, in_other_process};
use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicUsize};

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

/// A file mapped shared and writable.
struct Mapping {
    start: *mut u64,
    bytes: usize,
}

// SAFETY: words of a mapping, which threads access by volatile loads and stores.
unsafe impl Sync for Mapping {}

impl Mapping {
    fn new(file: &File, bytes: usize) -> Mapping {
        let (protection, descriptor) = (libc::PROT_READ | libc::PROT_WRITE, file.as_raw_fd());
        // SAFETY: a new mapping at an address that the kernel chooses.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), bytes, protection, libc::MAP_SHARED, descriptor, 0) };
        assert_ne!(start, libc::MAP_FAILED);
        Mapping { start: start.cast(), bytes }
    }

    fn store(&self, word: usize, value: u64) {
        assert!(word < self.bytes / 8);
        // SAFETY: a word of the mapping.
        unsafe { self.start.add(word).write_volatile(value) };
    }

    fn load(&self, word: usize) -> u64 {
        assert!(word < self.bytes / 8);
        // SAFETY: a word of the mapping.
        unsafe { self.start.add(word).read_volatile() }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: nothing uses the mapping any more.
        unsafe { libc::munmap(self.start.cast(), self.bytes) };
    }
}

/// One thread writes a word of a page, while another stores the next word through a mapping.
#[test]
fn a_write_and_a_store_in_one_page_both_last() {
    const TEST: &str = "direct::a_write_and_a_store_in_one_page_both_last";
    if let Some(path) = given_file() {
        return write_beside_stores(&path);
    }
    if !can_mount(TEST) {
        return;
    }
    for options in ["", "cache=0"] {
        in_other_process(TEST, &Mounted::new(options).path("file"));
    }
}

fn write_beside_stores(path: &Path) {
    const WORDS_PER_PAGE: usize = 512;
    const PAGES: usize = 16;
    const ROUNDS: usize = 2_000;
    fs::write(path, vec![0; PAGES * WORDS_PER_PAGE * 8]).unwrap();
    let file = File::options().read(true).write(true).open(path).unwrap();
    let mapping = Mapping::new(&file, PAGES * WORDS_PER_PAGE * 8);
    let word_of = |round: usize| round % PAGES * WORDS_PER_PAGE + 2 * (round / PAGES % 200);
    let (turn, has_stored) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let wrong = std::thread::scope(|scope| {
        scope.spawn(|| {
            for round in 1..=ROUNDS {
                while turn.load(SeqCst) < round {
                    std::hint::spin_loop();
                }
                // Some stores come late, when the kernel has dropped the page.
                (0..round % 7 * 300).for_each(|_| std::hint::spin_loop());
                mapping.store(word_of(round) + 1, round as u64);
                has_stored.store(round, SeqCst);
            }
        });
        let wrong = (1..=ROUNDS).find_map(|round| {
            turn.store(round, SeqCst);
            let offset = (word_of(round) * 8) as u64;
            file.write_all_at(&(round as u64).to_ne_bytes(), offset).unwrap();
            let mapped = mapping.load(word_of(round));
            while has_stored.load(SeqCst) < round {
                std::hint::spin_loop();
            }
            let mut words = [0; 16];
            file.read_exact_at(&mut words, offset).unwrap();
            let words = [0, 8].map(|at| u64::from_ne_bytes(words[at..at + 8].try_into().unwrap()));
            (words != [round as u64; 2] || mapped != round as u64).then_some((round, words, mapped))
        });
        turn.store(ROUNDS, SeqCst);
        wrong
    });
    assert_eq!(wrong, None, "round, words of the file, word of the mapping; {}", path.display());
}
