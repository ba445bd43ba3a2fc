//! Applications as filebench's profiles and Postmark describe them: what a thread repeats, with
//! their sizes and trees of directories.
//!
//! They run over [`Calls`]: on every subject, and with [`crate::host::HostCalls`] on any directory
//! of the running kernel (`lab workload`). The order of operations, mean sizes and directory widths
//! are those of the published files (filebench 1.4.9: `varmail.f`, `fileserver.f`, `webserver.f`,
//! `webproxy.f`).

use super::loops::{Random, append, read_file, write_file};
use super::machine::Result;
use crate::calls::{Calls, Handle};

/// The most that a single call reads or writes (filebench's `iosize`).
const IO_BYTES: usize = 1 << 20;
/// filebench's `meanappendsize`: the most that a call appends.
const APPENDED_MAX: u64 = 16 << 10;
/// filebench's `meandirwidth` of a tree. With the published 10,000 files it gives 500 directories,
/// two levels below the top.
const WIDTH: u64 = 20;

/// An application: the operations that a thread repeats.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Application {
    /// filebench: a mail server, one directory, each mail synced.
    Varmail,
    /// filebench: a tree; whole files are written, appended to, read and removed.
    FileServer,
    /// filebench: a tree of files that are read, and a log.
    WebServer,
    /// filebench: one directory; a file is replaced, five are read, and a log.
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
            Application::WebProxy => 20.0,
            Application::Postmark => 2.0,
        }
    }

    /// Number of directories with files.
    const fn directories(self, files: u64) -> u64 {
        match self {
            Application::Varmail | Application::WebProxy => 1,
            Application::FileServer | Application::WebServer => files.div_ceil(WIDTH),
            Application::Postmark => 10,
        }
    }

    fn directory(self, number: u64) -> String {
        match self {
            Application::Varmail | Application::WebProxy => "/files".to_owned(),
            Application::FileServer | Application::WebServer => format!("/files/{}/{}", number / WIDTH, number % WIDTH),
            Application::Postmark => format!("/files/{number}"),
        }
    }

    /// Makes the directories for so many files.
    pub fn make_directories(self, calls: &dyn Calls, files: u64) -> Result<()> {
        let all = (0..self.directories(files)).map(|number| self.directory(number));
        for path in all {
            let ends = path.match_indices('/').skip(1).map(|(at, _)| at).chain([path.len()]);
            for end in ends {
                match calls.mkdir(&path.as_bytes()[..end], 0o755) {
                    Err(posix::Errno::EEXIST) => {}
                    made => made?,
                }
            }
        }
        Ok(())
    }

    /// The length of a file that there is at the beginning.
    fn length(self, random: &mut Random) -> u64 {
        match self {
            Application::Postmark => 500 + random.below(9271),
            _ => random.gamma(self.mean_bytes()).clamp(1, IO_BYTES as u64),
        }
    }
}

/// A thread's files.
pub struct ThreadFiles<'m> {
    calls: &'m dyn Calls,
    application: Application,
    directories: u64,
    thread: u64,
    /// The files that there are.
    pub paths: Vec<Vec<u8>>,
    /// Number of files that the thread ever created, for unique names.
    pub made: u64,
    random: Random,
    buffer: Vec<u8>,
    log: Option<Handle>,
}

impl<'m> ThreadFiles<'m> {
    /// A thread without files, of an application with so many.
    pub fn new(calls: &'m dyn Calls, (application, files): (Application, u64), thread: u64, seed: u64) -> Self {
        let directories = application.directories(files);
        let (random, buffer) = (Random(seed), vec![7; IO_BYTES]);
        ThreadFiles { calls, application, directories, thread, paths: Vec::new(), made: 0, random, buffer, log: None }
    }

    /// Adds a file of the beginning.
    pub fn add_file(&mut self) -> Result<()> {
        let length = self.application.length(&mut self.random);
        self.make(length, false)
    }

    fn make(&mut self, length: u64, sync: bool) -> Result<()> {
        self.made += 1;
        let directory = self.application.directory(self.made % self.directories);
        let path = format!("{directory}/thread{}-{:07}", self.thread, self.made).into_bytes();
        write_file(self.calls, &path, &self.buffer[..length as usize], sync)?;
        self.paths.push(path);
        Ok(())
    }

    /// filebench's appends are of any length up to the given one.
    fn appended(&mut self, most: u64) -> u64 {
        1 + self.random.below(most)
    }

    fn remove(&mut self) -> Result<()> {
        let index = self.any();
        let path = self.paths.swap_remove(index);
        Ok(self.calls.unlink(&path)?)
    }

    fn any(&mut self) -> usize {
        self.random.below(self.paths.len() as u64) as usize
    }

    fn append(&mut self, most: u64) -> Result<()> {
        let (index, length) = (self.any(), self.appended(most) as usize);
        append(self.calls, &self.paths[index], &self.buffer[..length], false)
    }

    fn read(&mut self) -> Result<()> {
        let index = self.any();
        read_file(self.calls, &self.paths[index], &mut self.buffer)
    }

    /// Reads a file, appends to it and syncs it.
    fn read_and_append(&mut self) -> Result<()> {
        let (index, length) = (self.any(), self.appended(APPENDED_MAX) as usize);
        let file = self.calls.open(&self.paths[index], libc::O_RDWR | libc::O_APPEND, 0)?;
        let mut at = 0;
        while let got @ 1.. = self.calls.read(file, at, &mut self.buffer)? {
            at += got as u64;
            if got < self.buffer.len() {
                break;
            }
        }
        self.calls.append(file, &self.buffer[..length])?;
        self.calls.sync_file(file)?;
        Ok(self.calls.close(file)?)
    }

    /// Appends to the log, which stays open.
    fn append_to_log(&mut self) -> Result<()> {
        let length = self.appended(APPENDED_MAX) as usize;
        let log = match self.log {
            Some(log) => log,
            None => {
                let path = format!("/log{}", self.thread);
                self.calls.open(path.as_bytes(), libc::O_CREAT | libc::O_WRONLY | libc::O_APPEND, 0o644)?
            }
        };
        self.log = Some(log);
        self.calls.append(log, &self.buffer[..length])?;
        Ok(())
    }

    /// One repetition.
    pub fn turn(&mut self) -> Result<()> {
        match self.application {
            Application::Varmail => {
                self.remove()?;
                let length = self.appended(APPENDED_MAX);
                self.make(length, true)?;
                self.read_and_append()?;
                self.read()
            }
            Application::FileServer => {
                self.add_file()?;
                self.append(APPENDED_MAX)?;
                self.read()?;
                self.remove()?;
                let index = self.any();
                Ok(self.calls.stat(&self.paths[index]).map(drop)?)
            }
            Application::WebServer => {
                (0..10).try_for_each(|_| self.read())?;
                self.append_to_log()
            }
            Application::WebProxy => {
                self.remove()?;
                let length = self.appended(APPENDED_MAX);
                self.make(length, false)?;
                (0..5).try_for_each(|_| self.read())?;
                self.append_to_log()
            }
            Application::Postmark => {
                self.add_file()?;
                self.remove()?;
                match self.random.below(2) {
                    0 => self.read(),
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

    const FILES: u64 = 500;

    #[test]
    fn a_tree_is_as_wide_and_as_deep_as_filebenchs() {
        let scratch = tempfile::tempdir().expect("a directory");
        let calls = HostCalls::new(scratch.path());
        let of = |application: Application| {
            application.make_directories(&calls, FILES).expect("directories");
            let mut own = ThreadFiles::new(&calls, (application, FILES), 0, 1);
            (0..FILES).for_each(|_| own.add_file().expect("a file"));
            own.paths
        };
        let paths = of(Application::FileServer);
        let directory = |path: &Vec<u8>| path[..path.iter().rposition(|byte| *byte == b'/').expect("a slash")].to_vec();
        let mut directories: Vec<_> = paths.iter().map(directory).collect();
        directories.sort();
        let counts = directories.chunk_by(|one, two| one == two).map(<[_]>::len);
        assert!(counts.clone().count() == 25 && counts.clone().all(|count| count == 20), "{:?}", counts.max());
        assert!(paths.iter().all(|path| path.iter().filter(|byte| **byte == b'/').count() == 4));
        assert!(of(Application::WebProxy).iter().all(|path| path.starts_with(b"/files/thread0-")));
    }

    #[test]
    fn sizes_are_gamma_distributed_about_the_published_mean() {
        let mut random = Random(1);
        let mut sizes: Vec<f64> = (0..20_000).map(|_| random.gamma(16 << 10) as f64).collect();
        sizes.sort_by(f64::total_cmp);
        let mean = sizes.iter().sum::<f64>() / sizes.len() as f64 / 16384.0;
        let spread = sizes.iter().map(|size| (size / 16384.0 - mean).powi(2)).sum::<f64>() / sizes.len() as f64;
        // With the shape 1.5 the variance is the mean's square by 1.5, the median 0.79 of the mean.
        assert!((mean - 1.0).abs() < 0.02 && (spread - 1.0 / 1.5).abs() < 0.04, "{mean} {spread}");
        assert!((sizes[10_000] / 16384.0 - 0.79).abs() < 0.02);
    }

    #[test]
    fn every_application_keeps_the_number_of_its_files() {
        for (name, application) in Application::ALL {
            let scratch = tempfile::tempdir().expect("a directory");
            let calls = HostCalls::new(scratch.path());
            application.make_directories(&calls, 40).expect("directories");
            let mut own = ThreadFiles::new(&calls, (application, 40), 0, 1);
            (0..40).for_each(|_| own.add_file().expect("a file"));
            (0..30).for_each(|_| own.turn().unwrap_or_else(|why| panic!("{name}: {why}")));
            assert_eq!(own.paths.len(), 40, "{name}");
            let gone = own.paths.iter().find(|path| calls.stat(path).is_err());
            assert!(gone.is_none(), "{name}: {gone:?}");
        }
    }
}
