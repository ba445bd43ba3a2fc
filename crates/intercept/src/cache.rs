//! The directory with the preload library and the tables. (Programs keep there what they found out about themselves: `hook::strays`.)
//!
//! Invariants: the directory and everything in it belongs to this user and nobody else can write it (a library from there runs in every program), while everybody can
//! read it, since programs may go on as another user;
//! files appear whole, by rename, under names that say what they are (build-id, checksum of the library), so that old and new versions and several launchers
//! do not disturb each other.

use crate::analysis;
use crate::elf::{BadElf, Elf};
use crate::table::{self, Header};
use crate::{TABLE_ENDING, launch::LaunchError};
use std::fs::{self, DirBuilder, File, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// The library that goes into programs.
static PRELOAD: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/libdirectfs_preload.so"));

/// What is known of a library.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Prepared {
    /// Calls that cannot be replaced safely.
    pub left_alone: u32,
    /// Whether the table was there already.
    pub was_there: bool,
}

/// The directory, and the library in it.
#[derive(Debug)]
pub struct Cache {
    directory: PathBuf,
    library: PathBuf,
}

impl Cache {
    /// The first place that exists or can be made, is ours alone, and from which code can be run. For root, whose programs act for others too, if there is one to which
    /// everybody gets.
    pub fn open() -> Result<Cache, LaunchError> {
        // SAFETY: asks only.
        let user = unsafe { libc::geteuid() };
        let variable = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        let in_home = || variable("HOME").map(|home| home.join(".cache"));
        let caches = variable("XDG_CACHE_HOME").or_else(in_home).filter(|path| path.is_absolute());
        let own = |parent: &str| PathBuf::from(format!("{parent}/directfs-{user}"));
        let home = caches.map(|path| path.join("directfs"));
        let for_all = (user == 0).then(|| PathBuf::from("/var/cache/directfs"));
        let (first, late) = home.into_iter().partition::<Vec<_>, _>(|home| user != 0 || everybody_gets_to(home));
        let places = first.into_iter().chain(for_all).chain([own("/dev/shm"), own("/tmp")]).chain(late);
        let mut last = io::Error::from(io::ErrorKind::NotFound);
        for place in places {
            match Cache::at(&place) {
                Ok(cache) => return Ok(cache),
                Err(error) => last = error,
            }
        }
        Err(LaunchError::NoCache(last))
    }

    /// A cache in that directory, which is made if it is not there.
    pub fn at(directory: &Path) -> io::Result<Cache> {
        DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
        let metadata = fs::symlink_metadata(directory)?;
        check_ours(&metadata, true)?;
        if metadata.mode() & READ_BY_ALL != READ_BY_ALL {
            fs::set_permissions(directory, Permissions::from_mode(metadata.mode() | READ_BY_ALL))?;
        }
        // The loader splits its list at these.
        if directory.as_os_str().as_encoded_bytes().iter().any(|byte| matches!(byte, b':' | b' ' | b'$')) {
            return Err(io::Error::from(io::ErrorKind::InvalidInput));
        }
        let name = format!("preload-{:016x}.so", fingerprint(PRELOAD));
        let cache = Cache { directory: fs::canonicalize(directory)?, library: PathBuf::new() };
        let library = cache.directory.join(name);
        if !fs::read(&library).is_ok_and(|present| present == PRELOAD) {
            cache.put(&library, PRELOAD)?;
        }
        check_ours(&fs::symlink_metadata(&library)?, false)?;
        check_runs(&library)?;
        Ok(Cache { library, ..cache })
    }

    /// Path of the preload library.
    pub fn library(&self) -> &Path {
        &self.library
    }

    /// Sees to it that there is a good table for a library of the system.
    pub fn prepare(&self, library: &Path) -> Result<Prepared, LaunchError> {
        let unreadable = |error| LaunchError::Unreadable(library.to_path_buf(), error);
        let bytes = fs::read(library).map_err(unreadable)?;
        let odd = |_: BadElf| LaunchError::BadLibrary(library.to_path_buf());
        let elf = Elf::parse(&bytes).map_err(odd)?;
        let build_id = elf
            .build_id()
            .map_err(odd)?
            .filter(|id| id.len() <= table::BUILD_ID_BYTES_MAX)
            .ok_or(BadElf)
            .map_err(odd)?;
        let name: String = build_id.iter().map(|byte| format!("{byte:02x}")).collect();
        let path = self.directory.join(name + TABLE_ENDING);
        if let Some(header) = present(&path, build_id, bytes.len()) {
            return Ok(Prepared { left_alone: header.left_alone, was_there: true });
        }
        let analysis = analysis::analyse(&elf).map_err(odd)?;
        let left_alone = analysis.left_alone.len() as u32;
        let words = table::write(header(build_id, bytes.len(), left_alone), &analysis.sites);
        let content: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        self.put(&path, &content).map_err(|error| LaunchError::Unreadable(path, error))?;
        Ok(Prepared { left_alone, was_there: false })
    }

    /// Writes a file that appears whole.
    fn put(&self, path: &Path, content: &[u8]) -> io::Result<()> {
        let scratch = path.with_extension(format!("new-{}", std::process::id()));
        let written = (|| {
            // What a launcher of the same process id left behind.
            let _ = fs::remove_file(&scratch);
            let mut file = File::create_new(&scratch)?;
            file.set_permissions(Permissions::from_mode(0o755))?;
            file.write_all(content)?;
            fs::rename(&scratch, path)
        })();
        if written.is_err() {
            let _ = fs::remove_file(&scratch);
        }
        written
    }
}

fn header(build_id: &[u8], library_bytes: usize, left_alone: u32) -> Header {
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
        writer: writer(),
    };
    header.build_id[..build_id.len()].copy_from_slice(build_id);
    header
}

/// The head of a table that is there, whole, and by this very version.
fn present(path: &Path, build_id: &[u8], library_bytes: usize) -> Option<Header> {
    let bytes = fs::read(path).ok()?;
    check_ours(&fs::symlink_metadata(path).ok()?, false).ok()?;
    let words: Vec<u64> =
        bytes.chunks_exact(8).map(|word| u64::from_ne_bytes(word.try_into().expect("eight bytes"))).collect();
    let header = *table::open(&words, build_id).ok()?.0;
    (header.library_bytes == library_bytes as u64 && header.writer == writer()).then_some(header)
}

/// Which analysis, for which library: another one has tables of its own making.
fn writer() -> u64 {
    let sources = [&include_bytes!("analysis.rs")[..], include_bytes!("elf.rs"), PRELOAD];
    sources.iter().fold(0, |sum: u64, source| sum.rotate_left(1) ^ fingerprint(source))
}

fn fingerprint(bytes: &[u8]) -> u64 {
    let word = |chunk: &[u8]| chunk.iter().rev().fold(0, |word, &byte| word << 8 | u64::from(byte));
    table::checksum(&bytes.chunks(8).map(word).collect::<Vec<_>>())
}

/// What everybody may do with a directory that everybody reads.
const READ_BY_ALL: u32 = 0o555;

/// Whether the directories above a place let everybody pass.
fn everybody_gets_to(place: &Path) -> bool {
    const PASS_FOR_ALL: u32 = 0o111;
    let lets_pass =
        |directory: &Path| fs::metadata(directory).is_ok_and(|metadata| metadata.mode() & PASS_FOR_ALL == PASS_FOR_ALL);
    place.ancestors().skip(1).all(lets_pass)
}

/// That something is what it should be, ours, and nobody else's to write.
fn check_ours(metadata: &fs::Metadata, is_directory: bool) -> io::Result<()> {
    const OTHERS_WRITE: u32 = 0o022;
    // SAFETY: asks only.
    let user = unsafe { libc::geteuid() };
    let right_kind = if is_directory { metadata.is_dir() } else { metadata.is_file() };
    if !right_kind || metadata.uid() != user || metadata.mode() & OTHERS_WRITE != 0 {
        return Err(io::Error::from(io::ErrorKind::PermissionDenied));
    }
    Ok(())
}

/// That the system lets code from there run: mounts with `noexec` do not.
fn check_runs(path: &Path) -> io::Result<()> {
    use std::os::fd::AsRawFd;
    const PAGE_BYTES: usize = 4096;
    let file = File::open(path)?;
    let wanted = libc::PROT_READ | libc::PROT_EXEC;
    // SAFETY: a new mapping at a place that the kernel chooses.
    let start = unsafe { libc::mmap(std::ptr::null_mut(), PAGE_BYTES, wanted, libc::MAP_PRIVATE, file.as_raw_fd(), 0) };
    if start == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the mapping is ours and used by nobody.
    unsafe { libc::munmap(start, PAGE_BYTES) };
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_is_made_once_and_again_when_torn() {
        let library = Path::new("/lib64/ld-linux-x86-64.so.2");
        if !library.exists() {
            eprintln!("SKIPPED: {} is not on this machine", library.display());
            return;
        }
        let directory = tempfile::tempdir().unwrap();
        let cache = Cache::at(directory.path()).unwrap();
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

    /// The entry saves only what legacy instructions change.
    #[test]
    fn the_library_uses_no_wide_vectors() {
        use iced_x86::{Decoder, DecoderOptions, EncodingKind};
        let elf = Elf::parse(PRELOAD).unwrap();
        for range in elf.functions().unwrap().ranges {
            let bytes = elf.at(range.start).unwrap();
            let bytes = &bytes[..bytes.len().min((range.end - range.start) as usize)];
            for instruction in Decoder::with_ip(64, bytes, range.start, DecoderOptions::NONE).iter() {
                // Slots are empty until they are written, and there is no code in them.
                assert_eq!(instruction.encoding(), EncodingKind::Legacy, "{:x}", instruction.ip());
            }
        }
    }

    #[test]
    fn a_directory_that_others_write_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        fs::set_permissions(directory.path(), Permissions::from_mode(0o777)).unwrap();
        assert_eq!(Cache::at(directory.path()).unwrap_err().kind(), io::ErrorKind::PermissionDenied);
    }
}
