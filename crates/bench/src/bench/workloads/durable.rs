//! Work that waits until it is on the disk: single fsyncs, transactions of SQLite, and a tree that
//! is unpacked and then synced.

use super::names::Names;
use super::system::{File, NEW, Outcomes};
use super::tree;
use crate::bench::task::{PhaseName, Workers};
use crate::bench::workers::{self, Member, PhaseResult};
use crate::interrupt;
use anyhow::{Context, Result, ensure};
use std::io::{BufRead, BufReader, Write};
use std::os::fd::AsRawFd;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// The least that a disk does for a durable change.
pub const OVERWRITE: &str = "pwrite 4 KiB, fdatasync";
/// The least that a program does for a durable file.
pub const CREATE: &str = "create, write 1 KiB, fsync, close";

/// Blocks of the file that is overwritten.
const BLOCKS: u64 = 64;
const BLOCK_BYTES: usize = 4096;
/// The way of SQLite to commit, as its users choose it.
const JOURNALS: [(&str, &str); 2] = [("sqlite, WAL", "WAL"), ("sqlite, rollback journal", "DELETE")];

/// Measures single syncs.
pub fn run_syncs(files: u64, timer_ns: u64) -> Outcomes {
    workers::run(Workers::ONE, timer_ns, &|member: &mut Member| {
        let data = [0x5a; BLOCK_BYTES];
        let overwritten = File::open(c"overwritten", NEW)?;
        (0..BLOCKS).try_for_each(|_| overwritten.write(&data))?;
        overwritten.sync()?;
        member.phase(PhaseName::Each(OVERWRITE.into()), |watch| {
            for number in 0..files {
                interrupt::check()?;
                watch.timed(|| {
                    overwritten.write_at(&data, number % BLOCKS * BLOCK_BYTES as u64)?;
                    overwritten.sync_data()
                })?;
            }
            Ok(PhaseResult::calls(files))
        })?;
        overwritten.close()?;
        let names = Names::ascending("f", member.share(files));
        member.phase(PhaseName::Each(CREATE.into()), |watch| {
            for name in names.iter() {
                interrupt::check()?;
                watch.timed(|| {
                    let file = File::open(name, NEW)?;
                    file.write(&data[..1024])?;
                    file.sync()?;
                    file.close()
                })?;
            }
            Ok(PhaseResult::calls(files))
        })
    })
}

/// Measures transactions of SQLite, each with an insertion, synchronous=FULL.
pub fn run_sqlite(transactions: u64, timer_ns: u64) -> Outcomes {
    workers::run(Workers::ONE, timer_ns, &|member: &mut Member| {
        for (words, journal) in JOURNALS {
            let what = PhaseName::Rate(words.into());
            if !tree::has("sqlite3") {
                let refused = Some("the program sqlite3 is not installed".into());
                member.phase(what, |_| Ok(PhaseResult { refused, ..PhaseResult::default() }))?;
                continue;
            }
            let mut sqlite = Sqlite::start(journal)?;
            let insertions =
                "INSERT INTO t(b) VALUES ('a line of text of a usual length');\n".repeat(transactions as usize);
            member.phase(what, |_| sqlite.perform(&insertions).map(|()| PhaseResult::calls(transactions)))?;
            sqlite.end()?;
        }
        Ok(())
    })
}

/// A running `sqlite3` that has opened a database.
struct Sqlite {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Sqlite {
    fn start(journal: &str) -> Result<Sqlite> {
        let mut command = Command::new("sqlite3");
        command.args(["-batch", "-bail", "-init", "/dev/null", &format!("{journal}.db")]);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().context("cannot start sqlite3")?;
        let (input, output) = (child.stdin.take(), child.stdout.take());
        let (input, output) = input.zip(output).context("no pipes to sqlite3")?;
        let mut sqlite = Sqlite { child, input, output: BufReader::new(output) };
        let table = "CREATE TABLE t(a INTEGER PRIMARY KEY, b TEXT);\n";
        sqlite.perform(&format!("PRAGMA journal_mode={journal}; PRAGMA synchronous=FULL; {table}"))?;
        Ok(sqlite)
    }

    /// Sends statements, and waits until they are done.
    fn perform(&mut self, statements: &str) -> Result<()> {
        writeln!(self.input, "{statements}SELECT 'done';").context("cannot write to sqlite3")?;
        self.input.flush()?;
        let mut line = String::new();
        while line.trim() != "done" {
            line.clear();
            let length = self.output.read_line(&mut line).context("cannot read from sqlite3")?;
            interrupt::check()?;
            ensure!(length > 0, "sqlite3 failed; see its message above");
        }
        Ok(())
    }

    fn end(self) -> Result<()> {
        let Sqlite { mut child, input, .. } = self;
        drop(input);
        let status = child.wait().context("cannot wait for sqlite3")?;
        ensure!(status.success(), "sqlite3 failed; see its message above");
        Ok(())
    }
}

/// Measures the unpacking of a tree, and a sync after it.
pub fn run_untar(source: &Path, timer_ns: u64) -> Outcomes {
    tree::read_all(source)?;
    workers::run(Workers::ONE, timer_ns, &|member: &mut Member| {
        tree::start(&["tar", "-C", "SOURCE", "-cf", "tree.tar", "."], source)?;
        std::fs::create_dir("unpacked").context("cannot create a directory")?;
        sync_all()?;
        member.phase(PhaseName::Once("tar -xf".into()), |_| {
            let user_ns = Some(tree::start(&["tar", "-xf", "tree.tar", "-C", "unpacked"], source)?);
            Ok(PhaseResult { calls: 1, user_ns, ..PhaseResult::default() })
        })?;
        member.phase(PhaseName::Once("sync after it".into()), |_| sync_all().map(|()| PhaseResult::calls(1)))
    })
}

fn sync_all() -> Result<()> {
    let directory = std::fs::File::open(".").context("cannot open the current directory")?;
    // SAFETY: an open descriptor.
    let synced = unsafe { libc::syncfs(directory.as_raw_fd()) };
    ensure!(synced == 0, "syncfs failed: {}", std::io::Error::last_os_error());
    Ok(())
}
