//! The directory with the preload library and the tables of call sites.
//!
//! Programs also cache results about themselves there (`hook::loading::inline_syscalls`).
//!
//! Every program of a run maps the library executable and patches code by the tables. So the cache
//! lies only in a [`TrustedDirectory`]: only root and the effective user can change anything on its
//! path. Root does not use the HOME of another user, which could rename a directory there and put
//! another library in its place.
//!
//! Invariants:
//!
//! - The directory and its files belong to the effective user. Others cannot write them, but can
//!   read them, because a program can continue as another user.
//! - Files appear whole, by rename, under names that identify their content (build-id, checksum of
//!   the library). So versions and concurrent launchers do not disturb each other.
//! - Files are checked and read by one descriptor.
//! - A library of the system is analysed by its content. Later launches know it by its identity:
//!   inode, size and times.
//!
//! A fault on code maps up to 16 pages of the file. If the kernel's cache has it in single pages,
//! each is looked up, counted, and taken apart at exit. So library, loader and shared code are
//! written by one call from memory that is present, because the kernel then uses large pages (ext4
//! since Linux 6.16, XFS; not tmpfs). The launcher writes them again if a look (`mincore`) shows
//! that a read brought them back in single pages, and after [`LARGE_PAGES_LAST`]: the kernel's
//! cache had one such file in 424 pages of 553 after 25 minutes. *Reason:* a program in a loop of a
//! shell takes 234 instead of 333 µs more. *Rejected:* `MADV_HUGEPAGE` in each program (it costs a
//! call, and work at exit); collapsing pages (it works for 2 MiB and more only); locked pages (a
//! process would have to stay).

use crate::analysis;
use crate::elf::{BadElf, Elf};
use crate::launch::LaunchError;
use crate::trusted_directory::{Refusal, TrustedDirectory, effective_user};
use hook::process::programs::HEAD_BYTES;
use hook::table::{self, Header, Site};
use hook::{LOADER_ENDING, TABLE_ENDING};
use std::fs::{self, File, Metadata};
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, UNIX_EPOCH};

/// The library that is loaded into programs.
static PRELOAD: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/libdirectfs_preload.so"));

/// The preload library as a program that loads others.
static LOADER: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/directfs-loader"));

/// Identifies the content of both.
const LIBRARY_FINGERPRINT: &str = env!("DIRECTFS_LIBRARY_FINGERPRINT");

/// Result of preparing a library.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Prepared {
    /// Calls that cannot be replaced safely.
    pub left_alone: u32,
    /// Whether the table existed already.
    pub was_there: bool,
}

/// The directory, and the library in it.
#[derive(Debug)]
pub struct Cache {
    directory: TrustedDirectory,
    library: PathBuf,
    /// Whether this launch wrote the library.
    is_new: bool,
}

/// A directory that can hold the cache.
#[derive(Debug)]
struct Candidate {
    path: PathBuf,
    /// The users that may own the components of its path.
    trusted: Vec<u32>,
}

impl Cache {
    /// The first candidate that is trusted, exists or can be created, and permits code to run.
    pub fn open() -> Result<Cache, LaunchError> {
        let user = effective_user();
        // Without the file there are no user namespaces.
        let names = fs::read_to_string("/proc/self/uid_map").unwrap_or_else(|_| format!("0 0 {}", u32::MAX));
        let outside = outside(&names, user).ok_or(LaunchError::NoName(user))?;
        // Where root has no name in the namespace, the directories of the system belong to a user
        // without one. The loader and the C library come from there as well.
        let owner = fs::metadata("/").map(|root| root.uid()).ok();
        let unnamed = owner.filter(|&owner| self::outside(&names, owner).is_none());
        Cache::first(candidates(user, outside, unnamed))
    }

    fn first(candidates: impl IntoIterator<Item = Candidate>) -> Result<Cache, LaunchError> {
        let mut refused = Vec::new();
        for candidate in candidates {
            match Cache::at(&candidate.path, &candidate.trusted) {
                Ok(cache) => return Ok(cache),
                Err(refusal) => refused.push((candidate.path, refusal)),
            }
        }
        Err(LaunchError::NoCache(Refused(refused)))
    }

    /// A cache in this directory, which is created if it is missing. `trusted`: the users that may
    /// own the components of its path.
    pub fn at(directory: &Path, trusted: &[u32]) -> Result<Cache, Refusal> {
        let directory = TrustedDirectory::open(directory, trusted)?;
        let name = format!("preload-{LIBRARY_FINGERPRINT}.so");
        let library = directory.path().join(&name);
        let put = put_code(&directory, &format!("{name}{LOADER_ENDING}"), LOADER)
            .and_then(|_| put_code(&directory, &name, PRELOAD));
        let is_new = put.map_err(|error| Refusal::Failed(library.clone(), error))?;
        Ok(Cache { directory, library, is_new })
    }

    /// Path of the preload library.
    pub fn library(&self) -> &Path {
        &self.library
    }

    /// Path of the program that loads others.
    pub fn loader(&self) -> PathBuf {
        let mut path = self.library.clone().into_os_string();
        path.push(LOADER_ENDING);
        path.into()
    }

    /// The directory for patched code that processes share, if there can be one. The first launch
    /// of this version since the machine's boot creates it, and removes those of earlier boots. If
    /// this launch wrote the library, programs write that code again, for the same reasons.
    pub fn text_directory(&self) -> Option<PathBuf> {
        let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
        let boot = format!("text-{:016x}-", table::fingerprint(boot.trim().as_bytes()));
        let name = format!("{boot}{LIBRARY_FINGERPRINT}");
        if self.is_new {
            self.directory.remove_directories(|other| other == name);
        }
        if self.directory.create_directory(&name).ok()? {
            self.directory.remove_directories(|other| other.starts_with("text-") && !other.starts_with(&boot));
        }
        Some(self.directory.path().join(name))
    }

    /// Ensures that a valid table for a library of the system exists. A file that is known by its
    /// identity is not read.
    pub fn prepare(&self, library: &Path) -> Result<Prepared, LaunchError> {
        let unreadable = |error| LaunchError::Unreadable(library.to_path_buf(), error);
        let odd = |_: BadElf| LaunchError::BadLibrary(library.to_path_buf());
        let mut file = File::open(library).map_err(unreadable)?;
        let file_id = file_id(&file.metadata().map_err(unreadable)?);
        // Headers and notes.
        let mut bytes = vec![0; HEAD_BYTES];
        let count = file.read(&mut bytes).map_err(unreadable)?;
        bytes.truncate(count);
        if let Some((header, _)) = build_id(&bytes).ok().and_then(|build_id| self.table(build_id))
            && header.file_id == file_id
            && file_id != UNKNOWN_FILE
        {
            return Ok(Prepared { left_alone: header.left_alone, was_there: true });
        }
        file.read_to_end(&mut bytes).map_err(unreadable)?;
        let build_id = build_id(&bytes).map_err(odd)?;
        let writer_id = writer_id(&bytes);
        let is_right = |header: &Header| (header.library_bytes, header.writer_id) == (bytes.len() as u64, writer_id);
        if let Some((header, sites)) = self.table(build_id).filter(|(header, _)| is_right(header)) {
            // Best effort: without it the next launch reads the file again.
            let _ = self.write_table(Header { file_id, ..header }, &sites);
            return Ok(Prepared { left_alone: header.left_alone, was_there: true });
        }
        let analysis = analysis::analyse(&Elf::parse(&bytes).map_err(odd)?).map_err(odd)?;
        let left_alone = analysis.left_alone.len() as u32;
        let header = Header { file_id, ..header(build_id, bytes.len(), left_alone, writer_id) };
        let unwritable = |error| LaunchError::Unreadable(self.directory.path().join(table_name(build_id)), error);
        self.write_table(header, &analysis.sites).map_err(unwritable)?;
        Ok(Prepared { left_alone, was_there: false })
    }

    /// An existing table that is complete.
    fn table(&self, build_id: &[u8]) -> Option<(Header, Vec<Site>)> {
        let bytes = read(&self.directory, &table_name(build_id)).ok()?;
        let words: Vec<u64> = bytes.as_chunks().0.iter().map(|word| u64::from_ne_bytes(*word)).collect();
        let (header, sites) = table::open(&words, build_id).ok()?;
        Some((*header, sites.to_vec()))
    }

    fn write_table(&self, header: Header, sites: &[Site]) -> io::Result<()> {
        let name = table_name(&header.build_id[..header.build_id_bytes as usize]);
        let mut words = vec![0; table::words_for(sites)];
        table::write(&mut words, header, sites);
        let content: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        self.directory.write_file(&name, &content)
    }
}

fn table_name(build_id: &[u8]) -> String {
    let build_id: String = build_id.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{build_id}-{LIBRARY_FINGERPRINT}{TABLE_ENDING}")
}

/// The build-id of a library that begins so.
fn build_id(library: &[u8]) -> Result<&[u8], BadElf> {
    Elf::parse(library)?.build_id()?.filter(|id| id.len() <= table::BUILD_ID_BYTES_MAX).ok_or(BadElf)
}

/// Not the identity of any file.
const UNKNOWN_FILE: u64 = 0;

/// The identity of a file with this content: where it is, its size and times. [`UNKNOWN_FILE`] if
/// it changed so lately that another change could leave the same times.
fn file_id(metadata: &Metadata) -> u64 {
    /// Many ticks of the clock for times of files.
    const SETTLED: Duration = Duration::from_secs(2);
    let changed = UNIX_EPOCH + Duration::new(metadata.ctime().max(0) as u64, metadata.ctime_nsec() as u32);
    if !changed.elapsed().is_ok_and(|age| age >= SETTLED) {
        return UNKNOWN_FILE;
    }
    let place = [metadata.dev(), metadata.ino(), metadata.len()];
    let times = [metadata.mtime(), metadata.mtime_nsec(), metadata.ctime(), metadata.ctime_nsec()];
    table::checksum(&[&place[..], &times.map(|part| part as u64)].concat()).max(1)
}

/// The candidates that were refused, and why.
#[derive(Debug)]
pub struct Refused(Vec<(PathBuf, Refusal)>);

impl Refused {
    /// Whether this error of the kernel is a reason.
    pub fn has_errno(&self, errno: i32) -> bool {
        let is_it = |error: &std::io::Error| error.raw_os_error() == Some(errno);
        self.0.iter().any(|(_, refusal)| matches!(refusal, Refusal::Failed(_, error) if is_it(error)))
    }
}

impl std::fmt::Display for Refused {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (candidate, refusal) in &self.0 {
            writeln!(f, "  {}: {refusal}", candidate.display())?;
        }
        write!(f, "  remedy: set XDG_CACHE_HOME to a directory on whose path only this user and root can write")
    }
}

/// The directories that can hold the cache, best first. The programs of root act for other users,
/// too, so root prefers one that every user reaches.
///
/// `outside`: the name of the user outside of the user namespace. Users share `/dev/shm` and `/tmp`
/// across namespaces. `system`: a user that may own directories there, beside root.
fn candidates(user: u32, outside: u32, system: Option<u32>) -> Vec<Candidate> {
    let in_system =
        |path: String| Candidate { path: path.into(), trusted: [0, user].into_iter().chain(system).collect() };
    let variable = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let in_home = || variable("HOME").map(|home| home.join(".cache"));
    let home = variable("XDG_CACHE_HOME").or_else(in_home).filter(|path| path.is_absolute());
    let home = home.map(|home| Candidate { path: home.join("directfs"), trusted: vec![0, user] });
    let for_all = (user == 0).then(|| in_system("/var/cache/directfs".into()));
    let own = ["/dev/shm", "/tmp"].map(|parent| in_system(format!("{parent}/directfs-{outside}")));
    let (first, late) = home.into_iter().partition::<Vec<_>, _>(|home| user != 0 || is_reached_by_all(&home.path));
    first.into_iter().chain(for_all).chain(own).chain(late).collect()
}

/// The id of a user in the parent of this user namespace, by the lines of `uid_map`. `None` if the
/// user has no id in the namespace.
fn outside(uid_map: &str, user: u32) -> Option<u32> {
    uid_map.lines().find_map(|line| {
        let fields: Vec<u64> = line.split_whitespace().filter_map(|field| field.parse().ok()).collect();
        let &[inside, outside, count] = &fields[..] else { return None };
        let index = u64::from(user).checked_sub(inside).filter(|&index| index < count)?;
        u32::try_from(outside + index).ok()
    })
}

/// Ensures that the directory holds a file with code, where every user can read it and code can
/// run; returns whether it was written.
///
/// What is written by one call from memory that is present, the kernel's cache holds in large
/// pages, of which a fault of a program maps several at once. What the kernel reads it holds in
/// small ones. So a file that had left the cache is written again, and so is an old one.
fn put_code(directory: &TrustedDirectory, name: &str, code: &[u8]) -> io::Result<bool> {
    let path = directory.path().as_os_str().as_encoded_bytes();
    if path.iter().any(|byte| matches!(byte, b':' | b' ' | b'$')) {
        let cause = "the loader takes no path with a colon, a space or a dollar sign";
        return Err(io::Error::new(io::ErrorKind::InvalidInput, cause));
    }
    directory.allow_reading()?;
    let found = directory.open_file(name).ok();
    let was_kept = found.as_ref().is_some_and(|file| is_in_memory(file, code.len()) && !is_old(file));
    let right = found.filter(|file| holds(file, code));
    // Some file systems keep nothing in the kernel's cache, even after a read.
    let is_good = right.as_ref().is_some_and(|file| was_kept || !is_in_memory(file, code.len()));
    let write = || {
        let present = code.to_vec();
        directory.write_file(name, &present)
    };
    // Where there is no room for a new file, the one that is there serves.
    if let Some(file) = &right
        && (is_good || write().is_err())
    {
        return check_executable(file).map(|()| false);
    }
    if right.is_none() {
        write()?;
    }
    check_executable(&directory.open_file(name)?).map(|()| true)
}

/// How long the launcher expects the kernel's cache to hold a file in large pages.
const LARGE_PAGES_LAST: Duration = Duration::from_secs(600);

/// Whether it is worth while to write a file again: it is older than that, on a file system of this
/// machine with large pages.
fn is_old(file: &File) -> bool {
    const EXT4: i64 = 0xef53;
    const XFS: i64 = 0x5846_5342;
    let is_written_large = rustix::fs::fstatfs(file)
        .is_ok_and(|found| matches!(found.f_type, EXT4 | XFS) && found.f_flags as u64 & libc::ST_RDONLY == 0);
    if !is_written_large {
        return false;
    }
    let written = file.metadata().and_then(|metadata| metadata.modified());
    written.is_ok_and(|written| written.elapsed().is_ok_and(|age| age > LARGE_PAGES_LAST))
}

/// Whether a file consists of these bytes. It is read in pieces to the same memory: first touches
/// of as much memory as the file has take longer than the rest of a launch.
fn holds(mut file: &File, code: &[u8]) -> bool {
    const PIECE_BYTES: usize = 64 << 10;
    let mut piece = vec![0; PIECE_BYTES];
    let is_next = |part: &[u8]| {
        let piece = &mut piece[..part.len()];
        file.read_exact(piece).is_ok() && piece == part
    };
    code.chunks(PIECE_BYTES).all(is_next) && matches!(file.read(&mut [0]), Ok(0))
}

/// Whether the kernel's cache holds the first bytes of a file. True if it does not say.
fn is_in_memory(file: &File, bytes: usize) -> bool {
    const PAGE_BYTES: usize = 4096;
    use std::os::fd::AsRawFd;
    let mut pages = vec![1u8; bytes.div_ceil(PAGE_BYTES)];
    // SAFETY: a new mapping at an address that the kernel chooses; no page of it is accessed.
    let start =
        unsafe { libc::mmap(std::ptr::null_mut(), bytes, libc::PROT_READ, libc::MAP_SHARED, file.as_raw_fd(), 0) };
    if start == libc::MAP_FAILED {
        return true;
    }
    // SAFETY: mapped above, without other users; the kernel fills a byte for each page.
    unsafe {
        libc::mincore(start, bytes, pages.as_mut_ptr());
        libc::munmap(start, bytes);
    }
    pages.iter().all(|page| page & 1 == 1)
}

fn read(directory: &TrustedDirectory, name: &str) -> io::Result<Vec<u8>> {
    let mut content = Vec::new();
    directory.open_file(name)?.read_to_end(&mut content)?;
    Ok(content)
}

fn header(build_id: &[u8], library_bytes: usize, left_alone: u32, writer_id: u64) -> Header {
    let mut header = Header {
        magic: table::MAGIC,
        version: table::VERSION,
        site_count: 0,
        checksum: 0,
        table_bytes: 0,
        library_bytes: library_bytes as u64,
        build_id_bytes: build_id.len() as u32,
        left_alone,
        build_id: [0; table::BUILD_ID_BYTES_MAX],
        reserved: [0; 4],
        writer_id,
        file_id: UNKNOWN_FILE,
    };
    header.build_id[..build_id.len()].copy_from_slice(build_id);
    header
}

/// Identifies the analysis, its version and the file: another one writes its own tables.
fn writer_id(library: &[u8]) -> u64 {
    let sources = [&include_bytes!("analysis.rs")[..], include_bytes!("elf.rs"), LIBRARY_FINGERPRINT.as_bytes()];
    sources.iter().fold(table::fingerprint(library), |sum, source| sum.rotate_left(1) ^ table::fingerprint(source))
}

/// Whether the directories above a path let every user pass.
fn is_reached_by_all(place: &Path) -> bool {
    const PASS_FOR_ALL: u32 = 0o111;
    let lets_pass =
        |directory: &Path| fs::metadata(directory).is_ok_and(|metadata| metadata.mode() & PASS_FOR_ALL == PASS_FOR_ALL);
    place.ancestors().skip(1).all(lets_pass)
}

/// Checks that the system permits code from there to run: mounts with `noexec` do not.
fn check_executable(file: &File) -> io::Result<()> {
    use std::os::fd::AsRawFd;
    const PAGE_BYTES: usize = 4096;
    let wanted = libc::PROT_READ | libc::PROT_EXEC;
    // SAFETY: a new mapping at an address that the kernel chooses.
    let start = unsafe { libc::mmap(std::ptr::null_mut(), PAGE_BYTES, wanted, libc::MAP_PRIVATE, file.as_raw_fd(), 0) };
    if start == libc::MAP_FAILED {
        let error = io::Error::last_os_error();
        return Err(io::Error::new(
            error.kind(),
            format!("code cannot run from there (mount option noexec?): {error}"),
        ));
    }
    // SAFETY: mapped above, without other users.
    unsafe { libc::munmap(start, PAGE_BYTES) };
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt;
    use std::time::SystemTime;

    fn trusted() -> Vec<u32> {
        vec![0, effective_user()]
    }

    /// Each page of the file that a start writes is copied for each program.
    #[test]
    fn the_only_writable_bytes_in_the_library_are_those_that_the_loader_relocates() {
        let word = |at: usize| u64::from_le_bytes(*PRELOAD[at..].first_chunk().unwrap()) as usize;
        let (table, count) = (word(32), word(56) & 0xffff);
        let segments = (0..count).map(|index| table + index * 56).map(|at| (word(at), word(at + 16), word(at + 32)));
        let kind = |word: usize| (word as u32, (word >> 32) as u32);
        let relocated = segments.clone().find(|segment| kind(segment.0).0 == libc::PT_GNU_RELRO).unwrap();
        let written = segments
            .filter(|segment| kind(segment.0).0 == libc::PT_LOAD && kind(segment.0).1 & libc::PF_W != 0)
            .filter(|segment| segment.2 > 0);
        assert_eq!(written.map(|segment| (segment.1, segment.2)).collect::<Vec<_>>(), [(relocated.1, relocated.2)]);
    }

    #[test]
    fn a_table_is_made_once_and_again_when_torn() {
        let library = Path::new("/lib64/ld-linux-x86-64.so.2");
        if !library.exists() {
            eprintln!("SKIPPED: {} is not on this machine", library.display());
            return;
        }
        let directory = tempfile::tempdir().unwrap();
        let cache = Cache::at(directory.path(), &trusted()).unwrap();
        assert!(!cache.prepare(library).unwrap().was_there);
        assert!(cache.prepare(library).unwrap().was_there);
        let is_table = |path: &PathBuf| path.to_string_lossy().ends_with(TABLE_ENDING);
        let table = fs::read_dir(directory.path()).unwrap().map(|entry| entry.unwrap().path()).find(is_table).unwrap();
        let mut bytes = fs::read(&table).unwrap();
        bytes[100] ^= 1;
        fs::write(&table, bytes).unwrap();
        assert!(!cache.prepare(library).unwrap().was_there);
        assert!(cache.prepare(library).unwrap().was_there);
    }

    /// Bytes that this thread has read so far, from the kernel's count; `None`: it does not count.
    fn bytes_read() -> Option<u64> {
        let counts = fs::read_to_string("/proc/thread-self/io").ok()?;
        counts.lines().find_map(|line| line.strip_prefix("rchar: "))?.parse().ok()
    }

    #[test]
    fn a_launch_reads_no_library_whose_table_is_there() {
        let library = Path::new("/lib64/ld-linux-x86-64.so.2");
        let (Ok(metadata), Some(_)) = (fs::metadata(library), bytes_read()) else {
            eprintln!("SKIPPED: needs {} and /proc/thread-self/io", library.display());
            return;
        };
        let directory = tempfile::tempdir().unwrap();
        let cache = Cache::at(directory.path(), &trusted()).unwrap();
        let read_by = |is_there| {
            let before = bytes_read().unwrap();
            assert_eq!(cache.prepare(library).unwrap().was_there, is_there);
            bytes_read().unwrap() - before
        };
        assert!(read_by(false) > metadata.len(), "the first launch reads it whole");
        assert!(read_by(true) < metadata.len() / 2);
    }

    #[test]
    fn a_library_with_other_bytes_and_the_same_build_id_is_analysed() {
        let source = Path::new("/lib64/ld-linux-x86-64.so.2");
        if !source.exists() {
            eprintln!("SKIPPED: {} is not on this machine", source.display());
            return;
        }
        let directory = tempfile::tempdir().unwrap();
        let cache = Cache::at(directory.path(), &trusted()).unwrap();
        let library = directory.path().join("copy");
        let mut bytes = fs::read(source).unwrap();
        fs::write(&library, &bytes).unwrap();
        assert!(!cache.prepare(&library).unwrap().was_there);
        // It is too new to be known by its times, but its content is.
        assert!(cache.prepare(&library).unwrap().was_there);
        *bytes.last_mut().unwrap() ^= 1;
        fs::write(&library, &bytes).unwrap();
        assert!(!cache.prepare(&library).unwrap().was_there);
    }

    /// A copy of the library that is damaged or incomplete, as after a power failure.
    #[test]
    fn a_library_with_other_bytes_than_this_version_has_is_written_again() {
        let directory = tempfile::tempdir().unwrap();
        let library = Cache::at(directory.path(), &trusted()).unwrap().library().to_path_buf();
        let last = PRELOAD.len() - 1;
        let longer = [PRELOAD, &[0]].concat();
        let mut changed = PRELOAD.to_vec();
        changed[last] ^= 1;
        for spoilt in [&longer[..], &changed, &PRELOAD[..last], &[]] {
            fs::write(&library, spoilt).unwrap();
            Cache::at(directory.path(), &trusted()).unwrap();
            assert!(fs::read(&library).unwrap() == PRELOAD, "{} bytes", spoilt.len());
        }
    }

    /// What the kernel reads lies in small pages.
    #[test]
    fn code_that_has_left_the_kernels_cache_is_written_again() {
        use rustix::fs::{Advice, fadvise};
        let directory = tempfile::tempdir().unwrap();
        let shared = || {
            let cache = Cache::at(directory.path(), &trusted()).unwrap();
            (cache.text_directory().unwrap().join("shared"), cache)
        };
        let launch = || {
            let (shared, cache) = shared();
            assert_eq!(fs::read(cache.library()).unwrap(), PRELOAD);
            fs::write(shared, "").unwrap();
            // A file that is open keeps its inode number.
            File::open(cache.library()).unwrap()
        };
        let inode = |file: &File| file.metadata().unwrap().ino();
        // The kernel may free a part of the file between two launches, but not each time.
        let mut first = launch();
        let stays = (0..100).any(|_| inode(&first) == inode(&std::mem::replace(&mut first, launch())));
        assert!(stays);
        first.sync_all().unwrap();
        fadvise(&first, 0, None, Advice::DontNeed).unwrap();
        if is_in_memory(&first, PRELOAD.len()) {
            eprintln!("SKIPPED: the file system of {} is in memory", directory.path().display());
            return;
        }
        let (shared, cache) = shared();
        assert!(!shared.exists());
        assert_ne!(fs::metadata(cache.library()).unwrap().ino(), inode(&first));
    }

    /// The kernel may have taken their large pages apart since.
    #[test]
    fn old_code_is_written_again() {
        let directory = tempfile::tempdir().unwrap();
        let shared = |cache: &Cache| cache.text_directory().unwrap().join("shared");
        let first = Cache::at(directory.path(), &trusted()).unwrap();
        fs::write(shared(&first), "").unwrap();
        // A file that is open keeps its inode number.
        let library = File::options().write(true).open(first.library()).unwrap();
        library.set_modified(SystemTime::now() - 2 * LARGE_PAGES_LAST).unwrap();
        let second = Cache::at(directory.path(), &trusted()).unwrap();
        assert_ne!(fs::metadata(second.library()).unwrap().ino(), library.metadata().unwrap().ino());
        assert!(fs::read(second.library()).unwrap() == PRELOAD);
        assert!(!shared(&second).exists());
    }

    /// The entry saves only the state that legacy instructions change.
    #[test]
    fn the_library_uses_no_wide_vectors() {
        use iced_x86::{Decoder, DecoderOptions, EncodingKind};
        for elf in [PRELOAD, LOADER].map(|bytes| Elf::parse(bytes).unwrap()) {
            for range in elf.functions().unwrap().ranges {
                let bytes = elf.at(range.start).unwrap();
                let bytes = &bytes[..bytes.len().min((range.end - range.start) as usize)];
                for instruction in Decoder::with_ip(64, bytes, range.start, DecoderOptions::NONE).iter() {
                    // Slots are empty until they are written, and contain no code.
                    assert_eq!(instruction.encoding(), EncodingKind::Legacy, "{:x}", instruction.ip());
                }
            }
        }
    }

    #[test]
    fn an_unsafe_candidate_makes_way_for_a_safe_one_and_is_named_without_one() {
        let directory = tempfile::tempdir().unwrap();
        let top = fs::canonicalize(directory.path()).unwrap();
        let candidate = |name: &str| Candidate { path: top.join(name).join("directfs"), trusted: trusted() };
        for (name, mode) in [("shared", 0o777), ("odd:name", 0o755), ("safe", 0o755)] {
            fs::create_dir(top.join(name)).unwrap();
            fs::set_permissions(top.join(name), Permissions::from_mode(mode)).unwrap();
        }
        let cache = Cache::first(["shared", "safe"].map(candidate)).unwrap();
        assert!(cache.library().starts_with(top.join("safe/directfs")), "{cache:?}");
        let error = Cache::first(["shared", "odd:name"].map(candidate)).unwrap_err().to_string();
        let top = top.display();
        for part in [
            format!("{top}/shared/directfs: its group or others can write {top}/shared (mode 777); remedy: chmod"),
            format!("{top}/odd:name/directfs: "),
            "colon".to_string(),
            "set XDG_CACHE_HOME".to_string(),
        ] {
            assert!(error.contains(&part), "{part}: {error}");
        }
    }

    /// The library and a table exist, but other users can change them, too.
    #[test]
    fn files_that_others_can_write_are_replaced() {
        let library = Path::new("/lib64/ld-linux-x86-64.so.2");
        if !library.exists() {
            eprintln!("SKIPPED: {} is not on this machine", library.display());
            return;
        }
        let directory = tempfile::tempdir().unwrap();
        let cache = Cache::at(directory.path(), &trusted()).unwrap();
        cache.prepare(library).unwrap();
        for entry in fs::read_dir(directory.path()).unwrap() {
            fs::set_permissions(entry.unwrap().path(), Permissions::from_mode(0o777)).unwrap();
        }
        let cache = Cache::at(directory.path(), &trusted()).unwrap();
        assert!(!cache.prepare(library).unwrap().was_there);
        for entry in fs::read_dir(directory.path()).unwrap() {
            assert_eq!(entry.unwrap().metadata().unwrap().mode() & 0o777, 0o755);
        }
    }

    #[test]
    fn names_of_users_are_translated_out_of_the_namespace() {
        let map = "         0       1000          1\n      1     100000      65536\n";
        assert_eq!([0, 1, 65536, 65537].map(|user| outside(map, user)), [Some(1000), Some(100000), Some(165535), None]);
        assert_eq!(outside("0 0 4294967295\n", 65534), Some(65534));
        assert_eq!(outside("", 0), None);
    }
}
