//! Arguments of `bench` and `demo`.

use clap::{Args, Subcommand};
use std::path::PathBuf;

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Measure calls, workloads and programs on DirectFS, tmpfs, the disk and any directory.
    Bench(Bench),
    /// Copy, compare, search and remove a real tree under `run`, beside tmpfs and a mount; then
    /// kill a copy and recover it.
    Demo(Demo),
    /// Run workloads in a directory and report their times: the program that a benchmark measures.
    #[command(hide = true)]
    BenchWorker(BenchWorker),
    /// Perform the steps of a demonstration in a directory: the program that it measures and kills.
    #[command(hide = true)]
    DemoWorker(DemoWorker),
}

impl Command {
    /// Whether the result, and so an error, is to be JSON.
    pub fn is_json(&self) -> bool {
        match self {
            Command::Bench(arguments) => arguments.json,
            Command::Demo(arguments) => arguments.json,
            Command::BenchWorker(_) | Command::DemoWorker(_) => false,
        }
    }
}

/// Arguments of `bench`.
#[derive(Debug, Args)]
#[command(after_help = "\
The same program is measured under `directfs run`, on tmpfs and on the disk, in turn. With DIR it
runs in these (empty) directories instead of on the disk: this compares any file system with the
others. A full run takes long (directories of a million files), 8 GB of memory and 5 GB of disk;
--quick takes about two minutes on an idle machine.

All created files are removed again, also after an interrupt. Other running programs make times
worse; the report contains the load of the machine.

Examples:
  directfs bench --quick                         the first look
  directfs bench --html bench.html               everything, with a page of plots
  directfs bench --only calls --sizes 10000      each call over 10,000 files
  directfs bench --only threads,small --threads 1,2,8 --repeat 9
  directfs bench --only tree --tree ~/linux      du, find, tar, git ... on your own tree
  directfs bench /mnt/nfs/empty                  a directory compared with DirectFS and tmpfs
  directfs bench /mnt/work/empty --beside none   a directory alone
  directfs bench --only durable                  fsync and its kin, on an image and on its disk
  directfs bench --only mount /mnt/other/empty   mounts, beside another FUSE file system
  directfs bench --only store --html store.html  a tree by an object store, beside tar and others
  directfs bench --only engine                   the engine in this process: flushes, recovery
  directfs bench --quick --json > bench.json
  directfs bench --draw bench.json > work.svg    a chart of the programs in a kept report
  directfs bench --only calls --sizes 10000 --against ./directfs-0.1   this build beside another

Keys of --json: version, date, machine, floor, scaling, timer_ns, subjects, absent, sections,
engine, load_after.

Exit codes: 0 success, 1 failure (see the message), 2 usage error, 130 interrupted.")]
pub struct Bench {
    /// Empty directories to measure.
    #[arg(value_name = "DIR")]
    pub directories: Vec<PathBuf>,
    /// Systems to compare with; without DIR the systems to measure [default: all three without DIR,
    /// directfs and tmpfs with it].
    #[arg(long, value_enum, value_delimiter = ',', value_name = "NAMES")]
    pub beside: Vec<BenchSubject>,
    /// What to measure [default: everything].
    #[arg(long, value_enum, value_delimiter = ',', value_name = "NAMES")]
    pub only: Vec<BenchGroup>,
    /// Files in a directory, at least 16; several numbers separated by commas [default:
    /// 10000,100000,1000000]. The largest also bounds all other workloads.
    #[arg(long, value_delimiter = ',', value_name = "N", value_parser = clap::value_parser!(u64).range(16..=50_000_000))]
    pub sizes: Vec<u64>,
    /// Concurrent threads (and processes), at most 256; several numbers separated by commas
    /// [default: 1, 2 and the number of processors].
    #[arg(long, value_delimiter = ',', value_name = "N", value_parser = clap::value_parser!(u32).range(1..=256))]
    pub threads: Vec<u32>,
    /// Repeats, of which the median is shown [default: 5, and at most 3 for long measurements].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub repeat: Option<u32>,
    /// Fewer files, repeats and threads: about two minutes.
    #[arg(long)]
    pub quick: bool,
    /// The tree to copy [default: /usr/include; /usr/include/linux with --quick].
    #[arg(long, value_name = "DIR")]
    pub tree: Option<PathBuf>,
    /// Directory for the image of DirectFS: in memory, or on a DAX file system.
    #[arg(long, default_value = "/dev/shm", value_name = "DIR")]
    pub image_in: PathBuf,
    /// Flush changes even on media that do not survive a power failure, as on persistent memory.
    #[arg(long)]
    pub always_flush: bool,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
    /// Write a self-contained page with plots.
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// Measure nothing; draw the chart of programs in this report of --json, as SVG.
    #[arg(long, value_name = "REPORT", exclusive = true)]
    pub draw: Option<PathBuf>,
    /// Compare with another build: both measure DirectFS in turns, five rounds.
    #[arg(long, value_name = "PROGRAM", conflicts_with_all = ["json", "html"])]
    pub against: Option<PathBuf>,
}

/// Systems that can be measured in addition to directories.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum BenchSubject {
    /// DirectFS, with `directfs run`.
    Directfs,
    /// tmpfs, in /dev/shm or another directory.
    Tmpfs,
    /// The file system of the disk, in the directory for temporary files.
    Disk,
    /// DirectFS with its image on the disk, to which it is committed.
    Journaled,
    /// The disk under eatmydata(1): syncs do nothing.
    Eatmydata,
    /// No other system.
    None,
}

/// Groups of measurements.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum BenchGroup {
    /// Each call by one thread, for each size.
    Calls,
    /// Each call by several threads, in one shared directory and in separate ones.
    Threads,
    /// Each call by several processes, in one shared directory and in separate ones.
    Processes,
    /// stat of paths with 1 to 8 components.
    Depth,
    /// Small files of 1, 8 and 32 KiB.
    Small,
    /// The first calls of a new process.
    Cold,
    /// The phases of mdtest.
    Mdtest,
    /// A workload like filebench's varmail.
    Varmail,
    /// A workload like filebench's fileserver.
    Fileserver,
    /// A workload like PostMark's.
    Postmark,
    /// cp, du, find, ls, tar, git and rm on a real tree.
    Tree,
    /// Large reads and writes, compared with memcpy.
    Data,
    /// What waits for the disk: fsync, varmail, SQLite, and a tree that is unpacked; on an image on
    /// the disk, on the disk itself, and on an image in memory.
    Durable,
    /// People's work: scripts like configure, make, git, tar, Python and Cargo, with the programs
    /// that the machine has.
    Programs,
    /// cp, diff, du, find, rm, tar and git on a real tree, on mounts: on an image that the mount
    /// has alone, on a shared one, on tmpfs, on the disk, and in DIR.
    Mount,
    /// A tree that another machine gets by an object store: sent, fetched, listed and read while it
    /// is fetched; beside tar, squashfuse and JuiceFS, if they are installed.
    Store,
    /// The engine in this process: no system calls, paths or permissions.
    Engine,
}

impl BenchGroup {
    /// All, in the order of the report.
    pub const ALL: [BenchGroup; 17] = [
        BenchGroup::Calls,
        BenchGroup::Threads,
        BenchGroup::Processes,
        BenchGroup::Depth,
        BenchGroup::Small,
        BenchGroup::Cold,
        BenchGroup::Mdtest,
        BenchGroup::Varmail,
        BenchGroup::Fileserver,
        BenchGroup::Postmark,
        BenchGroup::Tree,
        BenchGroup::Data,
        BenchGroup::Programs,
        BenchGroup::Durable,
        BenchGroup::Mount,
        BenchGroup::Store,
        BenchGroup::Engine,
    ];
}

/// Arguments of the hidden `bench-worker`.
#[derive(Debug, Args)]
pub struct BenchWorker {
    /// The directory to remove if the benchmark dies.
    #[arg(long)]
    pub owned: PathBuf,
    /// The working directory.
    pub directory: PathBuf,
}

/// Arguments of `demo`.
#[derive(Debug, Args)]
#[command(after_help = "\
One program copies the tree in, reads it back and compares it, walks it as du and find do, and
removes it: under `directfs run`, on tmpfs, and on a mount. Then a copy under `run` is killed in the
middle, the image recovered, compared, used further and checked. All created files are removed
again, also after an interrupt.

Examples:
  directfs demo
  directfs demo /usr/share/doc
  directfs demo --json | jq '.steps[] | [.name, .run_ns, .peer_ns]'

Keys of --json: tree, entries, size_bytes, is_subset, left_out, image_bytes, backing, persistence,
peer (the file system beside), rounds, mount_absent (why there is no mount, or null), steps (name,
run_ns, peer_ns, mount_ns or null), crash (entries, completed, kill_ns, recovery_ns, compare_ns,
reuse_ns), check (names, errors, warnings, duration_ns), duration_ns.")]
pub struct Demo {
    /// The tree to copy [default: at most 20,000 entries and 192 MiB of /usr/include or, without
    /// it, /usr/share].
    pub tree: Option<PathBuf>,
    /// Do not measure a mount: the fastest demonstration.
    #[arg(long)]
    pub without_mount: bool,
    /// Directory for the images and for the copy to compare with; in memory.
    #[arg(long, default_value = "/dev/shm", value_name = "DIR")]
    pub scratch: PathBuf,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// Arguments of the hidden `demo-worker`.
#[derive(Debug, Args)]
pub struct DemoWorker {
    /// The directory of the demonstration, which an orphaned worker removes.
    #[arg(long)]
    pub owned: PathBuf,
    /// The tree.
    #[arg(long)]
    pub tree: PathBuf,
    /// The file with the list of its entries.
    #[arg(long)]
    pub list: PathBuf,
    /// The directory to work in.
    pub directory: PathBuf,
}
