//! Listings that the kernel makes again, because it must request the attributes of files anyway.

use crate::common::{Mounted, can_mount, given_file, in_other_process};
use rustix::fs::{Advice, fadvise};
use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::path::Path;
use std::ptr;
use std::time::{Duration, Instant};

const PAGE_BYTES: usize = 4096;
/// So many fit in the reply to one request, also before Linux 6.17.
const FILES: usize = 20;
/// Files that a listing is written to, a page of each.
const TARGETS: usize = 8;

/// The requests of a kind that the server of a mount has received.
fn requests(mount: &Path, kind: &str) -> u64 {
    let mut text = vec![0; 4096];
    let length = rustix::fs::getxattr(mount, fuse::REQUESTS_ATTRIBUTE, &mut text).unwrap();
    let text = String::from_utf8(text[..length].to_vec()).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(kind)?.strip_prefix(' '));
    line.map_or(0, |count| count.parse().unwrap())
}

fn list(directory: &Path) -> Vec<fs::DirEntry> {
    fs::read_dir(directory).unwrap().map(Result::unwrap).collect()
}

/// Uses files of a directory, and lists it until the server is asked. Repeats that: a kernel that
/// needs the memory forgets the files, and then the server wants no new listing.
fn use_until_a_new_listing(mounted: &Mounted, directory: &Path, use_files: impl Fn()) {
    let began = Instant::now();
    loop {
        use_files();
        let (before, used) = (requests(&mounted.mount, "READDIRPLUS"), Instant::now());
        while used.elapsed() < Duration::from_secs(1) {
            if !list(directory).is_empty() && requests(&mounted.mount, "READDIRPLUS") != before {
                return;
            }
        }
        assert!(began.elapsed() < Duration::from_secs(600), "the kernel still uses its listing");
    }
}

/// Repeats an observation until it succeeds: a kernel that needs the memory forgets what it cached.
fn at_last(observe: impl FnMut() -> Result<(), String>) {
    let results = std::iter::repeat_with(observe).take(50);
    let failures: Vec<String> = results.map_while(Result::err).collect();
    assert!(failures.len() < 50, "{}", failures.last().unwrap());
}

#[test]
fn attributes_of_files_that_were_used_come_with_a_new_listing() {
    if !can_mount("attributes_of_files_that_were_used_come_with_a_new_listing") {
        return;
    }
    let mut mounted = Mounted::new("");
    for directory in [mounted.mount.clone(), mounted.path("directory")] {
        fs::create_dir_all(&directory).unwrap();
        (0..FILES).for_each(|number| fs::write(directory.join(format!("{number}")), "content").unwrap());
        // The listing is cached, and so are the attributes.
        at_last(|| {
            mounted.unmount();
            mounted.mount();
            list(&directory);
            let before = ["READDIRPLUS", "GETATTR"].map(|kind| requests(&mounted.mount, kind));
            list(&directory).iter().for_each(|file| assert!(file.metadata().is_ok()));
            let after = ["READDIRPLUS", "GETATTR"].map(|kind| requests(&mounted.mount, kind));
            let is_cached = after[0] == before[0] && after[1] <= before[1] + 1;
            if is_cached { Ok(()) } else { Err(format!("{before:?} {after:?}")) }
        });
        let files = list(&directory);
        for used in [|path: &Path| drop(fs::read(path).unwrap()), |path: &Path| fs::write(path, "other").unwrap()] {
            at_last(|| {
                let regular = || files.iter().filter(|file| file.file_type().unwrap().is_file());
                use_until_a_new_listing(&mounted, &directory, || regular().for_each(|file| used(&file.path())));
                let before = requests(&mounted.mount, "GETATTR");
                list(&directory).iter().for_each(|file| assert!(file.metadata().is_ok()));
                let requested = requests(&mounted.mount, "GETATTR") - before;
                let are_few = requested < FILES as u64 / 4;
                if are_few { Ok(()) } else { Err(format!("{requested} requests for {FILES} files")) }
            });
        }
    }
    mounted.unmount();
}

/// Lists a directory into memory; returns the bytes.
fn list_into(directory: &File, memory: *mut libc::c_void, length: usize) -> libc::c_long {
    // SAFETY: the caller's memory has the length.
    unsafe { libc::syscall(libc::SYS_getdents64, directory.as_raw_fd(), memory, length) }
}

/// Maps one page of each file, one behind the other.
fn map_each(files: &[File]) -> *mut libc::c_void {
    let length = files.len() * PAGE_BYTES;
    // SAFETY: new mappings; the later ones replace pages of the first one, which nothing else uses.
    unsafe {
        let private = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let start = libc::mmap(ptr::null_mut(), length, libc::PROT_NONE, private, -1, 0);
        assert_ne!(start, libc::MAP_FAILED);
        for (index, file) in files.iter().enumerate() {
            let (at, access) = (start.byte_add(index * PAGE_BYTES), libc::PROT_READ | libc::PROT_WRITE);
            let flags = libc::MAP_SHARED | libc::MAP_FIXED;
            assert_ne!(libc::mmap(at, PAGE_BYTES, access, flags, file.as_raw_fd(), 0), libc::MAP_FAILED);
        }
        start
    }
}

#[test]
fn a_directory_is_listed_into_its_own_files() {
    const TEST: &str = "listings::a_directory_is_listed_into_its_own_files";
    if let Some(directory) = given_file() {
        return list_into_own_files(&directory);
    }
    if !can_mount(TEST) {
        return;
    }
    let mut mounted = Mounted::new("");
    for number in 0..TARGETS {
        fs::write(mounted.path(&format!("{number}")), vec![1; PAGE_BYTES]).unwrap();
    }
    // Each page of the listing names many files.
    let longer = |number| mounted.path(&format!("{number:0200}"));
    (0..TARGETS * PAGE_BYTES / 200).for_each(|number| drop(File::create(longer(number)).unwrap()));
    mounted.unmount();
    mounted.mount();
    list(&mounted.mount);
    let targets = open_targets(&mounted.mount);
    // The kernel holds a page of the cached listing while it reads the page that it writes to. With
    // the fourth such read the server wants the listing to be made again.
    use_until_a_new_listing(&mounted, &mounted.mount.clone(), || {
        in_other_process(TEST, &mounted.mount);
        targets.iter().for_each(|file| fadvise(file, 0, None, Advice::DontNeed).unwrap());
    });
    drop(targets);
    mounted.unmount();
}

fn open_targets(directory: &Path) -> Vec<File> {
    let open =
        |number: usize| File::options().read(true).write(true).open(directory.join(format!("{number}"))).unwrap();
    (0..TARGETS).map(open).collect()
}

fn list_into_own_files(path: &Path) {
    let (memory, directory) = (map_each(&open_targets(path)), File::open(path).unwrap());
    let length = list_into(&directory, memory, TARGETS * PAGE_BYTES);
    assert!(length > 4 * PAGE_BYTES as libc::c_long, "{length}");
    // SAFETY: mapped above, and not used any more.
    unsafe { libc::munmap(memory, TARGETS * PAGE_BYTES) };
}

#[test]
fn a_program_that_renames_what_it_lists_meets_each_file_once() {
    if !can_mount("a_program_that_renames_what_it_lists_meets_each_file_once") {
        return;
    }
    for options in ["", "cache=0"] {
        let mut mounted = Mounted::new(options);
        (0..FILES).for_each(|number| fs::write(mounted.path(&format!("{number}")), "").unwrap());
        // The second time the directory is in the server's index.
        mounted.unmount();
        mounted.mount();
        for _ in 0..2 {
            let renamed = fs::read_dir(&mounted.mount).unwrap().map(|file| {
                let path = file.unwrap().path();
                fs::rename(&path, path.with_added_extension("new")).unwrap();
            });
            assert_eq!(renamed.take(2 * FILES).count(), FILES, "{options}");
        }
        mounted.unmount();
    }
}
