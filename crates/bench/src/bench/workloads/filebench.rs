//! Workloads like filebench's varmail and fileserver: the same operations in the same order, on a
//! set of files of which each member has its own part. Sizes are distributed evenly from half the
//! mean to one and a half of it; files are read and written in pieces of at most 1 MiB. They run
//! for a fixed time. The result is the number of operations per second, where each call on a file
//! is one (including reads and writes of a whole file).

use super::calls::Directory;
use super::names::{Names, Random};
use super::system::{File, NEW, Outcomes, SystemDirectory};
use crate::bench::measure::{Stopwatch, now_ns};
use crate::bench::task::{PhaseName, Workers};
use crate::bench::workers::{self, Member, PhaseResult};
use crate::interrupt;
use anyhow::{Context, Result};
use std::ffi::{CStr, CString};

/// Maximum piece in which files are read and written.
const PIECE_BYTES: usize = 1 << 20;
/// Mean length of an append.
const APPEND_BYTES: u64 = 16 << 10;
/// Mean size of a file of the mail server.
const MAIL_BYTES: u64 = 16 << 10;
/// Mean size of a file of the file server.
pub const SERVED_BYTES: u64 = 128 << 10;
/// Files in a directory of the file server.
const DIRECTORY_FILES: u64 = 20;

/// A mail server: one directory; mails are removed, received, read and marked, and read.
pub fn run_varmail(files: u64, run_ms: u64, workers: Workers, timer_ns: u64) -> Outcomes {
    workers::run(workers, timer_ns, &|member: &mut Member| {
        let names = Names::ascending("m", member.share(files));
        let names = names.iter().map(CStr::to_owned).collect();
        let mut set = Files::make(names, MAIL_BYTES, member.index)?;
        measure(member, "varmail", run_ms, |watch| set.receive_and_read_mail(watch))
    })
}

/// A file server: directories of twenty files; files are created and written, appended to, read,
/// removed and examined.
pub fn run_fileserver(files: u64, run_ms: u64, workers: Workers, timer_ns: u64) -> Outcomes {
    for number in 0..files.div_ceil(DIRECTORY_FILES) {
        std::fs::create_dir(format!("d{number}")).context("cannot create a directory")?;
    }
    workers::run(workers, timer_ns, &|member: &mut Member| {
        let name = |number: u64| CString::new(format!("d{}/f{number:08}", number / DIRECTORY_FILES));
        let names = member.share(files).map(name).collect::<Result<_, _>>()?;
        let mut set = Files::make(names, SERVED_BYTES, member.index)?;
        measure(member, "fileserver", run_ms, |watch| set.serve_files(watch))
    })
}

/// Runs `round`, which returns its number of operations, until the time is up.
fn measure(
    member: &mut Member,
    words: &str,
    run_ms: u64,
    mut round: impl FnMut(&mut Stopwatch) -> Result<u64>,
) -> Result<()> {
    member.phase(PhaseName::Rate(words.into()), |watch| {
        let end_ns = now_ns() + run_ms * 1_000_000;
        let mut operations = 0;
        while now_ns() < end_ns {
            interrupt::check()?;
            operations += round(watch)?;
        }
        Ok(PhaseResult::calls(operations))
    })
}

/// A member's part of the files, with the buffers to use them.
struct Files {
    there: Vec<CString>,
    removed: Vec<CString>,
    mean_bytes: u64,
    random: Random,
    data: Vec<u8>,
    buffer: Vec<u8>,
}

impl Files {
    /// Creates the files. As in filebench, a tenth is left out and created later.
    fn make(names: Vec<CString>, mean_bytes: u64, member: u32) -> Result<Files> {
        let mut files = Files {
            there: Vec::new(),
            removed: names,
            mean_bytes,
            random: Random::new(member as u64 + 1),
            data: vec![0x5a; PIECE_BYTES],
            buffer: vec![0; PIECE_BYTES],
        };
        let spare = files.removed.len() / 10;
        while files.removed.len() > spare.max(1) {
            let length = files.around(mean_bytes);
            let file = files.create()?;
            files.write(&file, length)?;
            file.close()?;
        }
        Ok(files)
    }

    /// A size distributed evenly from half the mean to one and a half of it.
    fn around(&mut self, mean: u64) -> u64 {
        mean / 2 + self.random.below(mean + 1)
    }

    fn create(&mut self) -> Result<File> {
        let at = self.random.below(self.removed.len() as u64) as usize;
        let name = self.removed.swap_remove(at);
        let file = File::open(&name, NEW)?;
        self.there.push(name);
        Ok(file)
    }

    fn any(&mut self) -> &CStr {
        let at = self.random.below(self.there.len() as u64) as usize;
        &self.there[at]
    }

    fn open_any(&mut self, flags: libc::c_int) -> Result<File> {
        File::open(self.any(), flags)
    }

    fn remove_any(&mut self) -> Result<()> {
        let at = self.random.below(self.there.len() as u64) as usize;
        let name = self.there.swap_remove(at);
        SystemDirectory::CURRENT.unlink(&name)?;
        self.removed.push(name);
        Ok(())
    }

    fn write(&self, file: &File, mut length: u64) -> Result<()> {
        while length > 0 {
            let piece = length.min(PIECE_BYTES as u64);
            file.write(&self.data[..piece as usize])?;
            length -= piece;
        }
        Ok(())
    }

    fn append(&mut self, file: &File) -> Result<()> {
        let length = self.around(APPEND_BYTES);
        self.write(file, length)
    }

    /// One turn of varmail: 13 operations.
    fn receive_and_read_mail(&mut self, watch: &mut Stopwatch) -> Result<u64> {
        watch.call(|| self.remove_any())?;
        let file = watch.call(|| self.create())?;
        self.append_and_close(file, watch)?;
        let file = watch.call(|| self.open_any(libc::O_RDWR | libc::O_APPEND))?;
        watch.call(|| file.read_to_end(&mut self.buffer))?;
        self.append_and_close(file, watch)?;
        let file = watch.call(|| self.open_any(libc::O_RDONLY))?;
        watch.call(|| file.read_to_end(&mut self.buffer))?;
        watch.call(|| file.close())?;
        Ok(13)
    }

    fn append_and_close(&mut self, file: File, watch: &mut Stopwatch) -> Result<()> {
        watch.call(|| self.append(&file))?;
        watch.call(|| file.sync())?;
        watch.call(|| file.close())
    }

    /// One turn of fileserver: 11 operations.
    fn serve_files(&mut self, watch: &mut Stopwatch) -> Result<u64> {
        let file = watch.call(|| self.create())?;
        let length = self.around(self.mean_bytes);
        watch.call(|| self.write(&file, length))?;
        watch.call(|| file.close())?;
        let file = watch.call(|| self.open_any(libc::O_WRONLY | libc::O_APPEND))?;
        watch.call(|| self.append(&file))?;
        watch.call(|| file.close())?;
        let file = watch.call(|| self.open_any(libc::O_RDONLY))?;
        watch.call(|| file.read_to_end(&mut self.buffer))?;
        watch.call(|| file.close())?;
        watch.call(|| self.remove_any())?;
        watch.call(|| SystemDirectory::CURRENT.stat(self.any()))?;
        Ok(11)
    }
}
