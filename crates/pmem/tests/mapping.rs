//! Objects that can be mapped, their names, and the messages for those that cannot.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::Arc;

use pmem::{Access, Backing, Direct, MapError, Mapping, Persistence};
use tempfile::TempDir;

const LENGTH: u64 = 1 << 20;

/// A directory on a disk. (`/tmp` may be a tmpfs.)
fn on_disk() -> TempDir {
    TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

fn in_memory() -> TempDir {
    TempDir::new_in("/dev/shm").unwrap()
}

fn open(path: &Path) -> Result<Mapping, MapError> {
    Mapping::open(path, Access::ReadWrite)
}

/// Checks that a store through one mapping of `path` is visible in another mapping and in reads of
/// the file.
fn is_shared(path: &Path) {
    let (first, second) = (Arc::new(open(path).unwrap()), Arc::new(open(path).unwrap()));
    let (first, second) = (first.region(Direct).unwrap(), second.region(Direct).unwrap());
    let dirty = first.write_bytes(5000, b"shared").unwrap();
    let _ = first.persist(dirty);
    assert!(second.bytes_equal(5000, b"shared"));
    let mut bytes = [0; 6];
    File::open(path).unwrap().read_exact_at(&mut bytes, 5000).unwrap();
    assert_eq!(&bytes, b"shared");
}

#[test]
fn a_file_on_disk_is_shared_and_committed() {
    let directory = on_disk();
    let path = directory.path().join("image");
    let mapping = Mapping::create(&path, LENGTH, 0o600).unwrap();
    assert_eq!(mapping.length(), LENGTH);
    match mapping.backing() {
        Backing::File { file_system } => {
            assert!(!file_system.is_empty());
            assert_eq!(mapping.backing().persistence(), Persistence::Committed);
        }
        // The build directory may be on any file system.
        Backing::Tmpfs | Backing::Dax { .. } => {}
        other => panic!("{other:?} is not a file"),
    }
    mapping.sync(0..LENGTH).unwrap();
    mapping.sync(100..101).unwrap();
    mapping.sync(0..0).unwrap();
    is_shared(&path);
}

#[test]
fn a_file_in_memory_survives_processes_only() {
    let directory = in_memory();
    let path = directory.path().join("image");
    let mapping = Mapping::create(&path, LENGTH, 0o600).unwrap();
    assert_eq!(mapping.backing(), Backing::Tmpfs);
    assert_eq!(mapping.backing().persistence(), Persistence::ProcessDeath);
    mapping.sync(0..LENGTH).unwrap();
    is_shared(&path);
}

#[test]
fn a_large_sparse_file_takes_no_memory_until_it_is_touched() {
    let directory = in_memory();
    let path = directory.path().join("dram");
    let mapping = Mapping::create(&path, 64 << 30, 0o600).unwrap();
    assert_eq!(mapping.length(), 64 << 30);
    assert_eq!(fs::metadata(&path).unwrap().blocks(), 0);
    mapping.populate_write(4096..8192).unwrap();
    assert_eq!(fs::metadata(&path).unwrap().blocks(), 8);
    mapping.discard(4096..8192).unwrap();
    assert_eq!(fs::metadata(&path).unwrap().blocks(), 0);
}

#[test]
fn anonymous_memory_starts_as_zeros_and_promises_nothing() {
    let mapping = Arc::new(Mapping::anonymous(10_000).unwrap());
    assert_eq!(mapping.length(), 12288, "whole pages");
    assert_eq!(mapping.backing(), Backing::Anonymous);
    assert_eq!(mapping.backing().persistence(), Persistence::Nothing);
    assert!(mapping.file().is_none());
    let region = mapping.region(Direct).unwrap();
    assert!(region.bytes_equal(0, &[0; 12288]));
    let flushed = region.stream_bytes(4096, &[7; 4096]).unwrap();
    let _ = region.fence(flushed);
    assert!(region.bytes_equal(4096, &[7; 4096]));
    mapping.sync(0..12288).unwrap();
    mapping.discard(4096..8192).unwrap();
    assert!(region.bytes_equal(0, &[0; 12288]));
}

#[test]
fn a_region_keeps_its_mapping_alive() {
    let region = Arc::new(Mapping::anonymous(LENGTH).unwrap()).region(Direct).unwrap();
    let dirty = region.write_bytes(LENGTH - 1, b"!").unwrap();
    let _ = region.persist(dirty);
    assert!(region.bytes_equal(LENGTH - 1, b"!"));
    assert_eq!(region.mapping().length(), LENGTH);
}

#[test]
fn a_read_only_mapping_reads_what_others_write_and_refuses_a_region_that_stores() {
    let directory = in_memory();
    let path = directory.path().join("image");
    let writer = Arc::new(Mapping::create(&path, LENGTH, 0o600).unwrap()).region(Direct).unwrap();
    let reader = Arc::new(Mapping::open(&path, Access::ReadOnly).unwrap());
    assert_eq!(reader.access(), Access::ReadOnly);
    assert!(matches!(reader.region(Direct), Err(MapError::ReadOnly)));
    // SAFETY: nothing is stored through it.
    let reading = unsafe { reader.region_for_reading(Direct) };
    let dirty = writer.write_bytes(64, b"news").unwrap();
    let _ = writer.persist(dirty);
    assert!(reading.bytes_equal(64, b"news"));
    reader.sync(0..LENGTH).unwrap();
}

#[test]
fn a_new_file_has_its_whole_size_and_exactly_the_mode_that_was_asked_for() {
    for directory in [on_disk(), in_memory()] {
        let path = directory.path().join("image");
        drop(Mapping::create(&path, 5000, 0o666).unwrap());
        let metadata = fs::metadata(&path).unwrap();
        assert_eq!(metadata.len(), 8192, "whole pages");
        assert_eq!(metadata.permissions().mode() & 0o7777, 0o666, "whatever the umask");
        let error = Mapping::create(&path, 5000, 0o666).unwrap_err();
        assert!(matches!(error, MapError::Exists { .. }), "{error}");
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1, "no other file is left");
    }
}

#[test]
fn a_file_that_ends_inside_a_page_is_mapped_up_to_its_last_whole_page() {
    let directory = in_memory();
    let path = directory.path().join("image");
    fs::write(&path, vec![1; 10_000]).unwrap();
    assert_eq!(open(&path).unwrap().length(), 8192);
}

#[test]
fn locks_can_be_taken_on_the_mapped_file() {
    let directory = in_memory();
    let path = directory.path().join("image");
    let mapping = Mapping::create(&path, LENGTH, 0o600).unwrap();
    mapping.file().unwrap().lock().unwrap();
    let other = open(&path).unwrap();
    assert!(other.file().unwrap().try_lock().is_err(), "the lock is held");
    drop(mapping);
    // A child that another test forks has the descriptor until it ends.
    other.file().unwrap().lock().unwrap();
}

#[test]
fn huge_pages_change_no_bytes() {
    let directory = in_memory();
    for mapping in
        [Mapping::create(directory.path().join("image"), 8 << 20, 0o600).unwrap(), Mapping::anonymous(8 << 20).unwrap()]
    {
        assert_eq!(mapping.address() as usize % (2 << 20), 0, "where a huge page fits");
        let mapping = Arc::new(mapping);
        let region = mapping.region(Direct).unwrap();
        let dirty = region.write_bytes(3 << 20, b"here").unwrap();
        let _ = region.persist(dirty);
        // The kernel decides whether it succeeds.
        let _ = mapping.collapse_huge(0..mapping.length());
        assert!(region.bytes_equal(3 << 20, b"here"));
        assert!(region.bytes_equal(0, &[0; 4096]));
        assert!(!mapping.collapse_huge(0..mapping.length() + 1), "beyond the end");
        let whole = 0..mapping.length();
        assert_eq!(mapping.populate_huge(whole.clone()).is_ok(), mapping.populate_write(whole).is_ok());
        assert!(region.bytes_equal(3 << 20, b"here"));
        assert!(mapping.populate_huge(0..mapping.length() + 1).is_err(), "beyond the end");
    }
}

/// Stores a byte at an address in a child process, and returns the signal that ends the child.
fn signal_of_store(address: *mut u8) -> Option<i32> {
    let mut status = 0;
    // SAFETY: the child makes one store and ends; it touches nothing of other threads. Where the
    // store goes is what is tested: if it succeeds, it changes a byte of a mapping of this test.
    unsafe {
        match libc::fork() {
            0 => {
                address.write_volatile(1);
                libc::_exit(0);
            }
            child => assert_eq!(libc::waitpid(child, &mut status, 0), child),
        }
    }
    libc::WIFSIGNALED(status).then(|| libc::WTERMSIG(status))
}

/// Whether a mapping of the program can lie at an address.
fn is_free(address: *mut u8) -> bool {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
    // SAFETY: replaces no mapping, and unmaps what it has made.
    unsafe {
        let mapped = libc::mmap(address.cast(), 4096, libc::PROT_READ, flags, -1, 0);
        mapped != libc::MAP_FAILED && libc::munmap(mapped, 4096) == 0
    }
}

#[test]
fn a_store_that_runs_over_an_end_of_a_mapping_ends_the_program() {
    let directory = in_memory();
    let path = directory.path().join("image");
    let reserving = |path: &Path| {
        let file = OpenOptions::new().read(true).write(true).open(path).unwrap();
        Mapping::reserving(file, path, Access::ReadWrite, (8 << 20, 32 << 20)).unwrap()
    };
    let mappings = [
        Mapping::create(&path, 8 << 20, 0o600).unwrap(),
        reserving(&path),
        Mapping::create(directory.path().join("small"), 4096, 0o600).unwrap(),
        Mapping::anonymous(8 << 20).unwrap(),
        Mapping::anonymous(4096).unwrap(),
    ];
    for (index, mapping) in mappings.iter().enumerate() {
        let address = mapping.address();
        for outside in [address.wrapping_sub(4096), address.wrapping_add(mapping.reach() as usize)] {
            assert!(!is_free(outside), "mapping {index}: the program's memory may lie beside it");
        }
        for outside in [address.wrapping_sub(1), address.wrapping_add(mapping.reach() as usize)] {
            assert_eq!(signal_of_store(outside), Some(libc::SIGSEGV), "mapping {index}");
        }
        let inside = [address, address.wrapping_add(mapping.length() as usize - 1)];
        assert_eq!(inside.map(signal_of_store), [None, None], "mapping {index}");
    }
    for mapping in mappings {
        let beside = mapping.address().wrapping_sub(4096);
        let mut left = 0;
        // In a child, in which no other thread maps anything. SAFETY: it unmaps, maps and ends.
        unsafe {
            match libc::fork() {
                0 => {
                    drop(mapping);
                    libc::_exit(i32::from(!is_free(beside)));
                }
                child => assert_eq!(libc::waitpid(child, &mut left, 0), child),
            }
        }
        assert_eq!(left, 0, "the pages around a mapping go with it");
    }
}

#[test]
fn ranges_outside_the_mapping_are_refused() {
    let mapping = Mapping::anonymous(8192).unwrap();
    assert!(mapping.sync(0..8193).is_err());
    #[expect(clippy::reversed_empty_ranges, reason = "a caller's wrong arithmetic may produce it")]
    let reversed = 4096..0;
    assert!(mapping.sync(reversed).is_err());
    assert!(mapping.populate_write(8192..u64::MAX).is_err());
    assert!(mapping.discard(0..100).is_err(), "a part of a page cannot be discarded");
}

/// The error, whose message must contain the path and, after a colon or semicolon, the remedy.
fn refused(path: &Path) -> MapError {
    let error = open(path).unwrap_err();
    let message = error.to_string();
    assert!(message.contains(path.to_str().unwrap()), "{message}");
    assert!(message.contains([':', ';']), "{message}");
    error
}

#[test]
fn what_cannot_be_mapped_is_named_with_its_cause_and_remedy() {
    let directory = in_memory();
    let at = |name: &str| directory.path().join(name);

    assert!(matches!(refused(&at("nothing")), MapError::Missing { .. }));
    assert!(matches!(refused(directory.path()), MapError::NotMappable { kind: "a directory", .. }));
    assert!(matches!(refused(Path::new("/dev/null")), MapError::NotMappable { .. }));

    let _listener = UnixListener::bind(at("socket")).unwrap();
    assert!(matches!(refused(&at("socket")), MapError::NotMappable { .. }));

    File::create(at("empty")).unwrap();
    assert!(matches!(refused(&at("empty")), MapError::Empty { length: 0, .. }));
    fs::write(at("short"), "short").unwrap();
    assert!(matches!(refused(&at("short")), MapError::Empty { length: 5, .. }));

    File::create(at("huge")).unwrap().set_len(1 << 47).unwrap();
    assert!(matches!(refused(&at("huge")), MapError::TooLarge { .. }));
    assert!(matches!(Mapping::anonymous(u64::MAX).unwrap_err(), MapError::TooLarge { path: None, .. }));
    assert!(matches!(Mapping::create(at("new"), u64::MAX, 0o600).unwrap_err(), MapError::TooLarge { .. }));
    assert!(matches!(Mapping::create(at("no/where"), 4096, 0o600).unwrap_err(), MapError::Create { .. }));

    assert!(matches!(refused(&at("short/image")), MapError::Open { .. }));
}

#[test]
fn a_file_opened_for_reading_cannot_be_mapped_for_writing() {
    let directory = in_memory();
    let path = directory.path().join("image");
    fs::write(&path, vec![0; 4096]).unwrap();
    let file = OpenOptions::new().read(true).open(&path).unwrap();
    let error = Mapping::from_file(file, &path, Access::ReadWrite).unwrap_err();
    assert!(matches!(error, MapError::Permission { access: Access::ReadWrite, .. }), "{error}");
}

#[test]
fn a_truncated_file_reads_as_zeros_and_is_reported() {
    pmem::survive_truncations();
    let scratch = tempfile::tempdir_in("/dev/shm").unwrap();
    let made = |name: &str| {
        let mapping = Arc::new(Mapping::create(scratch.path().join(name), 4 * 4096, 0o600).unwrap());
        let _ = mapping.region(Direct).unwrap().write_bytes(3 * 4096, b"text").unwrap();
        mapping
    };
    let (cut, whole) = (made("cut"), made("whole"));
    let read = |mapping: &Arc<Mapping>| {
        let mut bytes = [0xffu8; 4];
        mapping.region(Direct).unwrap().read_bytes(3 * 4096, &mut bytes).unwrap();
        bytes
    };
    assert_eq!((&read(&cut), cut.is_truncated(), cut.has_lost_pages()), (b"text", false, false));
    std::fs::File::options().write(true).open(scratch.path().join("cut")).unwrap().set_len(4096).unwrap();
    assert!(cut.is_truncated() && !cut.has_lost_pages(), "by its length alone");
    assert_eq!((read(&cut), cut.has_lost_pages()), ([0; 4], true));
    // Stores there are lost with the mapping, and do not end the process.
    let _ = cut.region(Direct).unwrap().write_bytes(2 * 4096, b"more").unwrap();
    assert_eq!((&read(&whole), whole.is_truncated()), (b"text", false));
    assert_eq!(pmem::any_loss(), Some(pmem::Loss::Gone));
    // A new mapping in the same slot of the table starts without the mark.
    drop(cut);
    assert!(!made("next").is_truncated());
}
