//! Applications as filebench's profiles and Postmark describe them: what a thread repeats, with
//! their sizes and trees of directories.
//!
//! They run over [`Calls`]: on every subject, and with [`crate::host::HostCalls`] on any directory
//! of the running kernel (`lab workload`). Numbers and orders are those of filebench 1.5-alpha3
//! (revision 22620e6 of February 2020): `varmail.f`, `fileserver.f`, `webserver.f`, `webproxy.f`,
//! and how its `fileset.c` and `flowop_library.c` read them:
//!
//! - A tree has directories of gamma distributed width at gamma distributed depth.
//! - Four fifths of the files exist at first (in webserver all). A file that is created takes the
//!   next name that is missing; one that is opened, removed or examined is the next that exists.
//! - Appends have any length up to the given one. A file is read until a read returns nothing.
//!
//! What differs: filebench draws which files are missing, here it is each fifth. It seeks before it
//! reads and appends. Its 16, 50 or 100 threads share all files, here each thread has its own.
//! Files above 1 MiB, one of 40,000 in fileserver, are cut. In filebench 1.4.9 sizes of webproxy
//! vary, too.

use super::loops::Random;
use super::machine::Result;
use crate::calls::{Calls, Handle};

/// The most that a single call reads or writes (filebench's `iosize`).
const IO_BYTES: usize = 1 << 20;
/// filebench's `meanappendsize`: the most that a call appends.
const APPENDED_MAX: u64 = 16 << 10;
/// filebench's `meandirwidth` of a tree, and of a single directory.
const TREE_WIDTH: f64 = 20.0;
const ONE_DIRECTORY: f64 = 1e6;
/// Of so many files one does not exist at first (filebench's `prealloc=80`).
const MISSING: u64 = 5;
/// Postmark's directories.
const POSTMARK_DIRECTORIES: u64 = 10;

/// An application: the operations that a thread repeats.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Application {
    /// filebench: a mail server, one directory, each mail synced.
    Varmail,
    /// filebench: a tree; whole files are written, appended to, read and removed.
    FileServer,
    /// filebench: a tree of files that are read, and a log.
    WebServer,
    /// filebench: one directory; a file is replaced, five are read.
    WebProxy,
    /// Small files are created, removed, read and appended to.
    Postmark,
}

impl Application {
    /// All, with their names on the command line.
    pub const ALL: [(&'static str, Application); 5] = [
        ("varmail", Application::Varmail),
        ("fileserver", Application::FileServer),
        ("webserver", Application::WebServer),
        ("webproxy", Application::WebProxy),
        ("postmark", Application::Postmark),
    ];

    /// Mean length of a file.
    pub const fn mean_bytes(self) -> u64 {
        match self {
            Application::Varmail | Application::WebServer | Application::WebProxy => 16 << 10,
            Application::FileServer => 128 << 10,
            Application::Postmark => 5135,
        }
    }

    /// Operations (open, read, write, sync, close, remove ...) of one repetition, as filebench
    /// counts them.
    pub const fn operations(self) -> f64 {
        match self {
            Application::Varmail => 13.0,
            Application::FileServer => 11.0,
            Application::WebServer => 31.0,
            Application::WebProxy => 19.0,
            Application::Postmark => 2.0,
        }
    }

    /// The length of a new file.
    fn length(self, random: &mut Random) -> u64 {
        match self {
            Application::Postmark => 500 + random.below(9271),
            Application::WebProxy => self.mean_bytes(),
            _ => (random.gamma(self.mean_bytes() as f64) as u64).min(IO_BYTES as u64),
        }
    }

    /// The files that it works on: so many names (at least five), and Postmark's so many files.
    pub fn file_set(self, files: u64) -> FileSet {
        let files = files.max(MISSING);
        let mut random = Random(files);
        let (directories, paths) = match self {
            Application::Varmail | Application::WebProxy => tree(&mut random, ONE_DIRECTORY, files),
            Application::FileServer | Application::WebServer => tree(&mut random, TREE_WIDTH, files),
            Application::Postmark => {
                let directory = |number: u64| format!("/files/{}", number % POSTMARK_DIRECTORIES);
                let files = files + files.div_ceil(MISSING - 1);
                let directories = ["/files".to_owned()].into_iter().chain((0..POSTMARK_DIRECTORIES).map(directory));
                (directories.collect(), (0..files).map(|number| format!("{}/{number:07}", directory(number))).collect())
            }
        };
        let exists = |number: usize| self == Application::WebServer || number as u64 % MISSING != MISSING - 1;
        let file = |(number, path): (usize, String)| {
            let length = self.length(&mut random);
            SetFile { path: path.into_bytes(), length, exists: exists(number), times_made: 0 }
        };
        let files = paths.into_iter().enumerate().map(file).collect();
        FileSet { application: self, directories, files }
    }
}

/// filebench's tree: its directories, parents first, and its files. A directory below the top is a
/// leaf if its depth reaches a random one, and has files; else it has directories.
fn tree(random: &mut Random, mean_width: f64, files: u64) -> (Vec<String>, Vec<String>) {
    let mean_depth = (files as f64).ln() / mean_width.ln();
    let (mut directories, mut paths) = (Vec::new(), Vec::new());
    let mut path = vec![Level { name: "/files".to_owned(), left: f64::INFINITY, next: 1, is_leaf: false }];
    directories.push("/files".to_owned());
    while let Some(level) = path.last_mut() {
        if level.left <= 0.0 || paths.len() as u64 == files {
            path.pop();
            continue;
        }
        let name = format!("{}/{:08}", level.name, level.next);
        (level.left, level.next) = (level.left - 1.0, level.next + 1);
        if level.is_leaf {
            paths.push(name);
            continue;
        }
        let is_leaf = path.len() as f64 + 1.0 >= random.gamma(mean_depth).floor();
        directories.push(name.clone());
        path.push(Level { name, left: random.gamma(mean_width), next: 1, is_leaf });
    }
    (directories, paths)
}

/// A directory of a tree that is being made.
struct Level {
    name: String,
    /// Entries that it is still to have.
    left: f64,
    next: u64,
    is_leaf: bool,
}

/// A file of a set.
#[derive(Debug, Clone)]
pub struct SetFile {
    path: Vec<u8>,
    length: u64,
    exists: bool,
    times_made: u64,
}

/// The files that an application works on.
pub struct FileSet {
    application: Application,
    directories: Vec<String>,
    /// The files, also those that do not exist.
    pub files: Vec<SetFile>,
}

/// webserver's log, in a tree of its own.
const LOG: &[u8] = b"/logfiles/00000001/00000001";

impl FileSet {
    /// Makes the directories, and the files that exist at first.
    pub fn make(&self, calls: &dyn Calls) -> Result<()> {
        let content = vec![7; IO_BYTES];
        self.directories.iter().try_for_each(|path| calls.mkdir(path.as_bytes(), 0o755))?;
        if self.application == Application::WebServer {
            calls.mkdir(b"/logfiles", 0o755)?;
            calls.mkdir(b"/logfiles/00000001", 0o755)?;
            create(calls, LOG, &content[..self.application.mean_bytes() as usize], false)?;
        }
        let existing = self.files.iter().filter(|file| file.exists);
        existing.into_iter().try_for_each(|file| create(calls, &file.path, &content[..file.length as usize], false))
    }
}

/// Creates a file with content.
fn create(calls: &dyn Calls, path: &[u8], content: &[u8], sync: bool) -> Result<()> {
    let file = calls.open(path, libc::O_CREAT | libc::O_RDWR, 0o644)?;
    if !content.is_empty() {
        calls.write(file, 0, content)?;
    }
    if sync {
        calls.sync_file(file)?;
    }
    Ok(calls.close(file)?)
}

/// A thread with its files.
pub struct ThreadFiles<'m> {
    calls: &'m dyn Calls,
    application: Application,
    /// Its files, of which some are missing at any time.
    pub files: Vec<SetFile>,
    /// The places of the next file that exists, and of the next that is missing.
    next: [usize; 2],
    random: Random,
    buffer: Vec<u8>,
    log: Option<Handle>,
}

impl<'m> ThreadFiles<'m> {
    /// A thread of an application with these files, which were made.
    pub fn new(calls: &'m dyn Calls, application: Application, files: Vec<SetFile>, seed: u64) -> Self {
        let (random, buffer) = (Random(seed), vec![7; IO_BYTES]);
        ThreadFiles { calls, application, files, next: [0; 2], random, buffer, log: None }
    }

    /// The next file that exists, or that is missing. Postmark takes any that exists.
    fn pick(&mut self, exists: bool) -> Result<usize> {
        let count = self.files.len();
        let is_any = exists && self.application == Application::Postmark;
        let next = if is_any { self.random.below(count as u64) as usize } else { self.next[usize::from(exists)] };
        let mut places = (next..count).chain(0..next);
        match places.find(|place| self.files[*place].exists == exists) {
            // In the order of places, one behind a gap would be taken more often.
            Some(place) if is_any && place != next => self.pick(exists),
            Some(place) => {
                self.next[usize::from(exists)] = place + 1;
                Ok(place)
            }
            None => Err(posix::Errno::ENOENT.into()),
        }
    }

    /// Creates a missing file: of its length, or of any length up to the given one.
    fn make(&mut self, most: Option<u64>, sync: bool) -> Result<()> {
        let place = self.pick(false)?;
        if self.application == Application::Postmark {
            self.renew(place);
        }
        let length = most.map_or(self.files[place].length, |most| 1 + self.random.below(most));
        let file = &mut self.files[place];
        (file.exists, file.times_made) = (true, file.times_made + 1);
        create(self.calls, &file.path, &self.buffer[..length as usize], sync)
    }

    /// Postmark never takes a name again.
    fn renew(&mut self, place: usize) {
        self.files[place].length = self.application.length(&mut self.random);
        let file = &mut self.files[place];
        let end = file.path.iter().position(|byte| *byte == b'-').unwrap_or(file.path.len());
        file.path.truncate(end);
        file.path.extend(format!("-{}", file.times_made).bytes());
    }

    fn remove(&mut self) -> Result<()> {
        let place = self.pick(true)?;
        self.files[place].exists = false;
        Ok(self.calls.unlink(&self.files[place].path)?)
    }

    fn append(&mut self, most: u64) -> Result<()> {
        let file = self.open(libc::O_RDWR | libc::O_APPEND)?;
        self.append_to(file, most)?;
        Ok(self.calls.close(file)?)
    }

    /// Appends any length up to the given one.
    fn append_to(&mut self, file: Handle, most: u64) -> Result<()> {
        let length = 1 + self.random.below(most) as usize;
        self.calls.append(file, &self.buffer[..length])?;
        Ok(())
    }

    /// Opens a file that exists.
    fn open(&mut self, flags: i32) -> Result<Handle> {
        let place = self.pick(true)?;
        Ok(self.calls.open(&self.files[place].path, flags, 0)?)
    }

    /// Reads a file to its end.
    fn read_whole(&mut self, file: Handle) -> Result<()> {
        let mut at = 0;
        while let got @ 1.. = self.calls.read(file, at, &mut self.buffer)? {
            at += got as u64;
        }
        Ok(())
    }

    fn read(&mut self, flags: i32) -> Result<()> {
        let file = self.open(flags)?;
        self.read_whole(file)?;
        Ok(self.calls.close(file)?)
    }

    /// Reads a file, appends to it and syncs it.
    fn read_and_append(&mut self) -> Result<()> {
        let file = self.open(libc::O_RDWR | libc::O_APPEND)?;
        self.read_whole(file)?;
        self.append_to(file, APPENDED_MAX)?;
        self.calls.sync_file(file)?;
        Ok(self.calls.close(file)?)
    }

    /// Appends to the log, which stays open.
    fn append_to_log(&mut self) -> Result<()> {
        let log = match self.log {
            Some(log) => log,
            None => self.calls.open(LOG, libc::O_RDWR | libc::O_APPEND, 0)?,
        };
        self.log = Some(log);
        self.append_to(log, APPENDED_MAX)
    }

    /// One repetition.
    pub fn turn(&mut self) -> Result<()> {
        match self.application {
            Application::Varmail => {
                self.remove()?;
                self.make(Some(APPENDED_MAX), true)?;
                self.read_and_append()?;
                self.read(libc::O_RDWR)
            }
            Application::FileServer => {
                self.make(None, false)?;
                self.append(APPENDED_MAX)?;
                self.read(libc::O_RDWR)?;
                self.remove()?;
                let place = self.pick(true)?;
                Ok(self.calls.stat(&self.files[place].path).map(drop)?)
            }
            Application::WebServer => {
                (0..10).try_for_each(|_| self.read(libc::O_RDONLY))?;
                self.append_to_log()
            }
            Application::WebProxy => {
                self.remove()?;
                self.make(Some(APPENDED_MAX), false)?;
                (0..5).try_for_each(|_| self.read(libc::O_RDWR))
            }
            Application::Postmark => {
                self.make(None, false)?;
                self.remove()?;
                match self.random.below(2) {
                    0 => self.read(libc::O_RDONLY),
                    _ => self.append(2 << 10),
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::HostCalls;
    use engine::Attributes;
    use std::cell::RefCell;

    #[test]
    fn a_tree_has_filebenchs_widths_and_depths() {
        const FILES: u64 = 10_000;
        let FileSet { directories, files, .. } = Application::FileServer.file_set(FILES);
        assert_eq!(files.len() as u64, FILES);
        let parent = |path: &[u8]| path[..path.iter().rposition(|byte| *byte == b'/').expect("a slash")].to_vec();
        let leaves: Vec<_> = files.iter().map(|file| parent(&file.path)).collect();
        let counts: Vec<f64> = leaves.chunk_by(|one, two| one == two).map(|leaf| leaf.len() as f64).collect();
        let mean = counts.iter().sum::<f64>() / counts.len() as f64;
        // The mean of widths rounded up is half a file above 20.
        assert!((17.0..24.0).contains(&mean), "{mean} files in a directory");
        let spread = counts.iter().map(|count| (count / mean - 1.0).powi(2)).sum::<f64>() / counts.len() as f64;
        assert!((0.45..0.9).contains(&spread), "widths vary by the mean's square by 1.5, not {spread}");
        let depth = |path: &[u8]| path.iter().filter(|byte| **byte == b'/').count() - 1;
        let depths: std::collections::BTreeSet<usize> = files.iter().map(|file| depth(&file.path)).collect();
        assert!(depths.first() >= Some(&2) && depths.len() >= 4, "{depths:?}");
        let at = |path: &[u8]| directories.iter().position(|directory| directory.as_bytes() == path);
        let is_after_parent =
            |(place, path): (usize, &String)| at(&parent(path.as_bytes())).is_some_and(|it| it < place);
        assert!(directories.iter().enumerate().skip(1).all(is_after_parent));
        let one = Application::WebProxy.file_set(FILES);
        assert!(one.files.iter().all(|file| file.path.starts_with(b"/files/00000001/")));
    }

    #[test]
    fn sizes_are_gamma_distributed_about_the_published_mean() {
        let mut random = Random(1);
        let mut sizes: Vec<f64> = (0..20_000).map(|_| random.gamma(1.0)).collect();
        sizes.sort_by(f64::total_cmp);
        let mean = sizes.iter().sum::<f64>() / sizes.len() as f64;
        let spread = sizes.iter().map(|size| (size - mean).powi(2)).sum::<f64>() / sizes.len() as f64;
        // With the shape 1.5 the variance is the mean's square by 1.5, the median 0.79 of the mean.
        assert!((mean - 1.0).abs() < 0.02 && (spread - 1.0 / 1.5).abs() < 0.04, "{mean} {spread}");
        assert!((sizes[10_000] - 0.79).abs() < 0.02);
        let lengths = |application: Application| {
            let lengths: Vec<u64> = application.file_set(2000).files.iter().map(|file| file.length).collect();
            (lengths.iter().sum::<u64>() as f64 / 2000.0, lengths.iter().all(|length| *length == lengths[0]))
        };
        for (application, mean, is_one) in [
            (Application::Varmail, 16384.0, false),
            (Application::FileServer, 131072.0, false),
            (Application::WebProxy, 16384.0, true),
        ] {
            let (here, same) = lengths(application);
            assert!((here / mean - 1.0).abs() < 0.1 && same == is_one, "{application:?}: {here}");
        }
    }

    /// Calls of the running kernel, and their names.
    struct Noted(HostCalls, RefCell<Vec<&'static str>>);

    impl Noted {
        fn note(&self, name: &'static str) -> &HostCalls {
            let mut names = self.1.borrow_mut();
            // A file is read by several calls.
            if name != "read" || names.last() != Some(&"read") {
                names.push(name);
            }
            &self.0
        }
    }

    impl Calls for Noted {
        fn open(&self, path: &[u8], flags: i32, mode: u32) -> posix::Result<Handle> {
            self.note(if flags & libc::O_CREAT == 0 { "open" } else { "create" }).open(path, flags, mode)
        }
        fn close(&self, file: Handle) -> posix::Result<()> {
            self.note("close").close(file)
        }
        fn read(&self, file: Handle, offset: u64, into: &mut [u8]) -> posix::Result<usize> {
            self.note("read").read(file, offset, into)
        }
        fn write(&self, file: Handle, offset: u64, bytes: &[u8]) -> posix::Result<usize> {
            self.note("write").write(file, offset, bytes)
        }
        fn append(&self, file: Handle, bytes: &[u8]) -> posix::Result<usize> {
            self.note("append").append(file, bytes)
        }
        fn sync_file(&self, file: Handle) -> posix::Result<()> {
            self.note("sync").sync_file(file)
        }
        fn stat(&self, path: &[u8]) -> posix::Result<Attributes> {
            self.note("stat").stat(path)
        }
        fn unlink(&self, path: &[u8]) -> posix::Result<()> {
            self.note("remove").unlink(path)
        }
        fn mkdir(&self, path: &[u8], mode: u32) -> posix::Result<()> {
            self.0.mkdir(path, mode)
        }
        fn truncate(&self, file: Handle, length: u64) -> posix::Result<()> {
            self.note("truncate").truncate(file, length)
        }
        fn sync(&self) -> posix::Result<()> {
            self.note("sync").sync()
        }
        fn stat_link(&self, path: &[u8]) -> posix::Result<Attributes> {
            self.note("stat_link").stat_link(path)
        }
        fn access(&self, path: &[u8], wanted: u32) -> posix::Result<()> {
            self.note("access").access(path, wanted)
        }
        fn rmdir(&self, path: &[u8]) -> posix::Result<()> {
            self.note("rmdir").rmdir(path)
        }
        fn rename(&self, from: &[u8], to: &[u8], flags: u32) -> posix::Result<()> {
            self.note("rename").rename(from, to, flags)
        }
        fn link(&self, from: &[u8], to: &[u8]) -> posix::Result<()> {
            self.note("link").link(from, to)
        }
        fn symlink(&self, target: &[u8], path: &[u8]) -> posix::Result<()> {
            self.note("symlink").symlink(target, path)
        }
        fn read_link(&self, path: &[u8]) -> posix::Result<Vec<u8>> {
            self.note("read_link").read_link(path)
        }
        fn chmod(&self, path: &[u8], mode: u32) -> posix::Result<()> {
            self.note("chmod").chmod(path, mode)
        }
        fn read_directory(&self, path: &[u8], entry: &mut dyn FnMut(&[u8], u64)) -> posix::Result<()> {
            self.note("read_directory").read_directory(path, entry)
        }
        fn path_of(&self, path: &[u8]) -> posix::Result<Vec<u8>> {
            self.note("path_of").path_of(path)
        }
        fn drop_caches(&self) -> posix::Result<()> {
            self.note("drop_caches").drop_caches()
        }
    }

    #[test]
    fn a_turn_is_filebenchs_operations_in_their_order() {
        let read = "open read close ";
        for (application, expected) in [
            (Application::Varmail, format!("remove create write sync close open read append sync close {read}")),
            (Application::FileServer, format!("create write close open append close {read}remove stat ")),
            (Application::WebServer, format!("{}append ", read.repeat(10))),
            (Application::WebProxy, format!("remove create write close {}", read.repeat(5))),
        ] {
            let scratch = tempfile::tempdir().expect("a directory");
            let calls = Noted(HostCalls::new(scratch.path()), RefCell::default());
            let set = application.file_set(40);
            set.make(&calls).expect("files");
            let mut own = ThreadFiles::new(&calls, application, set.files, 1);
            // The first turn of webserver opens the log, too.
            own.turn().expect("a turn");
            calls.1.borrow_mut().clear();
            own.turn().expect("a turn");
            let made = calls.1.borrow().iter().map(|name| format!("{name} ")).collect::<String>();
            assert_eq!(made, expected, "{application:?}");
            assert_eq!(made.split_whitespace().count() as f64, application.operations(), "{application:?}");
        }
    }

    #[test]
    fn files_are_taken_in_rotation_and_missing_names_come_back() {
        let scratch = tempfile::tempdir().expect("a directory");
        let calls = HostCalls::new(scratch.path());
        let set = Application::FileServer.file_set(10);
        let mut own = ThreadFiles::new(&calls, Application::FileServer, set.files, 1);
        let mut picked = |exists| (0..9).map(|_| own.pick(exists).expect("a file")).collect::<Vec<_>>();
        assert_eq!(picked(true), [0, 1, 2, 3, 5, 6, 7, 8, 0]);
        assert_eq!(picked(false)[..3], [4, 9, 4]);
    }

    #[test]
    fn every_application_keeps_the_number_of_its_files() {
        for (name, application) in Application::ALL {
            let scratch = tempfile::tempdir().expect("a directory");
            let calls = HostCalls::new(scratch.path());
            let set = application.file_set(40);
            set.make(&calls).unwrap_or_else(|why| panic!("{name}: {why}"));
            let existing = |files: &[SetFile]| files.iter().filter(|file| file.exists).count();
            let expected =
                if application == Application::WebServer || application == Application::Postmark { 40 } else { 32 };
            assert_eq!(existing(&set.files), expected, "{name}");
            let mut own = ThreadFiles::new(&calls, application, set.files, 1);
            (0..60).for_each(|_| own.turn().unwrap_or_else(|why| panic!("{name}: {why}")));
            assert_eq!(existing(&own.files), expected, "{name}");
            let is_true = |file: &&SetFile| calls.stat(&file.path).is_ok() == file.exists;
            assert!(own.files.iter().all(|file| is_true(&file)), "{name}");
            let again = own.files.iter().filter(|file| file.times_made > 0).count();
            assert_eq!(again > 0, application != Application::WebServer, "{name}");
        }
    }
}
