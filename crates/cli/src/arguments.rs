//! The command line as people type it: commands, options, help and examples.

use crate::units::parse_size;
use clap::{Args, Parser, Subcommand};
use std::ffi::OsString;
use std::path::PathBuf;

/// A persistent-memory file system in user space.
#[derive(Debug, Parser)]
#[command(name = "directfs", version, about, propagate_version = true, arg_required_else_help = true)]
#[command(after_help = "\
Examples:
  directfs run                             a shell in a fresh file system in memory
  directfs demo                            the whole of it on a real tree, beside tmpfs
  directfs mkfs /dev/shm/work.img --size 4G
  directfs mount /dev/shm/work.img /mnt/work
  directfs umount /mnt/work

In /etc/fstab (with mount.directfs in /sbin, a link to this program):
  /dev/shm/work.img  /mnt/work  directfs  defaults,noauto  0  0
or, where /sbin/mount.fuse is installed and this program is in /usr/local/bin or /usr/bin:
  /dev/shm/work.img  /mnt/work  fuse.directfs  defaults,noauto  0  0

Exit codes: 0 done, 1 failed (the message says why and what to do), 2 wrong usage, 130 interrupted; fsck has its own.")]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Make an image.
    Mkfs(Mkfs),
    /// Mount an image.
    Mount(Mount),
    /// Run a program, and everything that it starts, with an image served inside it: no mount, no privileges.
    Run(Run),
    /// Unmount, and wait until the image is left clean.
    Umount(Umount),
    /// Say what an image is, how full it is and what its medium guarantees. Changes nothing.
    Info(Info),
    /// Check every invariant of an image.
    Fsck(Fsck),
    /// Show a file of an image in words: its names, inode, properties and log.
    Dump(Dump),
    /// Measure calls, mixes and programs on DirectFS beside tmpfs, the disk and any directory.
    Bench(Bench),
    /// Copy a real tree in, compare, search, remove, kill and recover it; each step beside tmpfs.
    Demo(Demo),
    /// Repeat the papers' experiments: the systems they compare, measured here, beside their numbers.
    Lab(Lab),
    /// Print completions for a shell.
    Completions(Completions),
    /// Print manual pages.
    Man(Man),
    /// Copy a tree and report each finished file: the part of a demonstration that is killed.
    #[command(hide = true)]
    CopyTree(CopyTree),
    /// Run workloads in a directory and report their times: the program that a benchmark measures.
    #[command(hide = true)]
    BenchWorker(BenchWorker),
    /// Run a program whose file is in the mount; this is started by `run`, with the library in it.
    #[command(hide = true)]
    RunInside(RunInside),
    /// Run a program into which nothing can be loaded, with a mount of its own; this is started by `run` and by the library.
    #[command(hide = true)]
    RunStatic(RunInside),
}

/// Arguments of `mkfs`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  directfs mkfs /dev/shm/work.img --size 4G
  directfs mkfs /var/lib/mail.img --size 1.5T --label mail --inodes 100000000
  directfs mkfs /dev/dax0.0 --force          a device has its size already")]
pub struct Mkfs {
    /// The file to make, or a /dev/dax* device.
    pub image: PathBuf,
    /// Size of the image: 512M, 4G, 1.5T. Needed for a new file.
    #[arg(long, short, value_parser = parse_size, value_name = "SIZE")]
    pub size: Option<u64>,
    /// A name for people, at most 64 bytes.
    #[arg(long, short = 'L')]
    pub label: Option<String>,
    /// How many files it may hold; one per 2 KiB unless given.
    #[arg(long, short = 'N', value_name = "N")]
    pub inodes: Option<u64>,
    /// Make another file system, to compare with: nova, pmfs, soupfs, byvfs, cachelet, conventional.
    #[arg(long, value_name = "SYSTEM", value_parser = parse_system, conflicts_with_all = ["label", "inodes", "sparse", "json"])]
    pub system: Option<lab::mount::Kind>,
    /// Overwrite what is there.
    #[arg(long, short)]
    pub force: bool,
    /// Do not reserve the space now: the image takes it as it fills, and can run out of it.
    #[arg(long)]
    pub sparse: bool,
    /// Print what was made as JSON.
    #[arg(long)]
    pub json: bool,
}

/// A system of the lab by its name.
fn parse_system(name: &str) -> Result<lab::mount::Kind, String> {
    let unknown = || format!("there are {} (without --system it is DirectFS)", lab::mount::Kind::NAMES.join(", "));
    lab::mount::Kind::parse(name).ok_or_else(unknown)
}

/// Arguments of `mount`.
#[derive(Debug, Args)]
#[command(after_help = "\
Options (-o) are those of mount(8), separated by commas: ro, rw, nosuid, nodev, noexec, noatime, uid=N, gid=N, allow_other ...
An image of another system (mkfs --system) takes front=conventional, front=byvfs or front=cachelet: how names are found.

Examples:
  directfs mount /dev/shm/work.img /mnt/work
  directfs mount /dev/shm/work.img /mnt/work -o ro,nosuid
  directfs mount --foreground /dev/shm/work.img /mnt/work     ends with Ctrl-C or umount")]
pub struct Mount {
    /// The image.
    pub image: PathBuf,
    /// The directory to mount it on.
    pub directory: PathBuf,
    /// Options of mount(8).
    #[arg(short, value_name = "OPTIONS", action = clap::ArgAction::Append)]
    pub options: Vec<String>,
    /// Stay in the foreground.
    #[arg(long, short)]
    pub foreground: bool,
    /// Refuse all changes.
    #[arg(long, short)]
    pub read_only: bool,
    /// The descriptor to write one byte to when the mount is ready.
    #[arg(long, hide = true, value_name = "FD")]
    pub ready_fd: Option<i32>,
}

/// Arguments of `run`.
#[derive(Debug, Args)]
#[command(after_help = "\
Without --image the files are in a fresh image in memory, which is gone when the last program of the run has ended. Without a command it runs your \
shell ($SHELL), standing in the mount. Programs find the mount directory in DIRECTFS_MOUNT. Several runs, and mounts with -o cache=0, can use \
an image at the same time.

Examples:
  directfs run                                     a shell in a fresh file system in memory
  directfs run -- sh -c 'cd $DIRECTFS_MOUNT && cp -r /usr/include . && du -sh .'
  directfs run --image /dev/shm/work.img -- make -C /mnt/directfs/project
  directfs run --image /dev/shm/work.img --at /work -C /work/project -- git status

Exit codes: those of the command (ended by a signal: the same signal); 125 this command failed, 126 the command cannot be run, 127 it was not found.")]
pub struct Run {
    /// The image; without it, a fresh one in memory.
    #[arg(long, short)]
    pub image: Option<PathBuf>,
    /// Where programs see it: an absolute path, which need not exist. What the system has there is hidden from them.
    #[arg(long, default_value = "/mnt/directfs", value_name = "DIR")]
    pub at: PathBuf,
    /// Start the command in this directory, which may be in the mount, instead of the current one.
    #[arg(long, short = 'C', value_name = "DIR")]
    pub chdir: Option<PathBuf>,
    /// Size of the image in memory, which takes memory only as it fills; half of what is available unless given.
    #[arg(long, short, value_parser = parse_size, value_name = "SIZE", conflicts_with = "image")]
    pub size: Option<u64>,
    /// Flush cache lines even where nothing is behind them that would outlive a power failure: so calls cost what they would on persistent memory.
    #[arg(long)]
    pub always_flush: bool,
    /// The command and its arguments.
    #[arg(trailing_var_arg = true)]
    pub command: Vec<OsString>,
}

/// Arguments of the hidden `run-inside` and `run-static`.
#[derive(Debug, Args)]
pub struct RunInside {
    /// The command and its arguments; for `run-static` its path, and the arguments from the zeroth on.
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    pub command: Vec<OsString>,
}

/// How mount(8) calls its helpers: `mount.directfs IMAGE DIR [-sfnv] [-o OPTIONS]`.
#[derive(Debug, Parser)]
#[command(name = "mount.directfs", version, about = "Mount a DirectFS image, as mount(8) asks for it.")]
pub struct MountHelper {
    /// The image.
    pub image: PathBuf,
    /// The directory to mount it on.
    pub directory: PathBuf,
    /// Options of mount(8).
    #[arg(short, value_name = "OPTIONS", action = clap::ArgAction::Append)]
    pub options: Vec<String>,
    /// Ignore options that are not known.
    #[arg(short)]
    pub sloppy: bool,
    /// Check everything, mount nothing.
    #[arg(short)]
    pub fake: bool,
    /// Do not write /etc/mtab (nobody does any more).
    #[arg(short)]
    pub no_mtab: bool,
    /// Say what is done.
    #[arg(short)]
    pub verbose: bool,
    /// Read-only.
    #[arg(short)]
    pub read_only: bool,
    /// Read-write.
    #[arg(short = 'w')]
    pub writable: bool,
    /// The type that mount(8) was given.
    #[arg(short = 't', value_name = "TYPE")]
    pub kind: Option<String>,
}

/// Arguments of `umount`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  directfs umount /mnt/work
  directfs umount --lazy /mnt/work       detach now, end when the last user has gone")]
pub struct Umount {
    /// Where the image is mounted.
    pub directory: PathBuf,
    /// Detach even if files are open; does not wait.
    #[arg(long, short)]
    pub lazy: bool,
}

/// Arguments of `info`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  directfs info /dev/shm/work.img
  directfs info /dev/shm/work.img --json | jq .blocks_free")]
pub struct Info {
    /// The image.
    pub image: PathBuf,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `fsck`.
#[derive(Debug, Args)]
#[command(after_help = "\
Without -n, -p or -y it asks about each repair, if it runs on a terminal; else it only checks. Files whose name is lost get one in
/lost+found. A repair that is interrupted is finished by the next one. What a crash left is no error: any mount recovers it.

Exit codes, as fsck(8) has them, added up: 0 no errors, 1 errors were repaired, 4 errors are left, 8 the check could not be done, 16 wrong
usage, 32 interrupted.

Examples:
  directfs fsck -n /dev/shm/work.img
  directfs fsck -p /dev/shm/work.img     repair what is certain, report the rest
  directfs fsck -y /dev/shm/work.img     repair everything that can be (copy the image first)
  directfs fsck -n /dev/shm/work.img --json")]
pub struct Fsck {
    /// The image; nobody may have it mounted.
    pub image: PathBuf,
    /// Check only, change nothing.
    #[arg(short = 'n', conflicts_with_all = ["yes", "preen"])]
    pub check_only: bool,
    /// Repair everything that can be.
    #[arg(short = 'y')]
    pub yes: bool,
    /// Repair only what is certain and takes nothing away.
    #[arg(short = 'p', short_alias = 'a')]
    pub preen: bool,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `dump`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  directfs dump /dev/shm/work.img /usr/include/stdio.h
  directfs dump /dev/shm/work.img 1             the inode of that number
  directfs dump /dev/shm/work.img ./1           the file of that name in the root
  directfs dump /dev/shm/work.img superblock    or journal
  directfs dump /dev/shm/work.img @0x8000       whatever is at that offset")]
pub struct Dump {
    /// The image.
    pub image: PathBuf,
    /// A path from the image's root, an inode number, `superblock`, `journal`, or `@` and an offset.
    #[arg(value_name = "PATH|INODE")]
    pub what: String,
    /// Show the words that it consists of, too.
    #[arg(long)]
    pub raw: bool,
}

/// Arguments of `bench`.
#[derive(Debug, Args)]
#[command(after_help = "\
The same measured program runs under `directfs run`, on tmpfs and on the disk, in turn. With DIR it runs in those (empty) directories instead of on the disk: \
any file system can be set beside the others so. A full run takes long (directories of a million files), 8 GB of memory and 5 GB of disk; --quick about two minutes on a quiet machine.

Everything that is made is removed again, also after an interrupt. Times are worse while other programs work: the report says how busy the machine was.

Examples:
  directfs bench --quick                         the first look
  directfs bench --html bench.html               all of it, and a page with plots
  directfs bench --only calls --sizes 10000      each call over 10,000 files
  directfs bench --only threads,small --threads 1,2,8 --repeat 9
  directfs bench --only tree --tree ~/linux      du, find, tar, git ... on a tree of yours
  directfs bench /mnt/nfs/empty                  a directory beside DirectFS and tmpfs
  directfs bench /mnt/work/empty --beside none   a directory alone
  directfs bench --only engine                   the engine in this process: multiples of a flush, lines written, recovery
  directfs bench --quick --json > bench.json

Exit codes: 0 measured, 1 failed (the message says why and what to do), 2 wrong usage, 130 interrupted.")]
pub struct Bench {
    /// Empty directories to measure.
    #[arg(value_name = "DIR")]
    pub directories: Vec<PathBuf>,
    /// What they are set beside; without DIR what is measured. All three without DIR, directfs and tmpfs with it.
    #[arg(long, value_enum, value_delimiter = ',', value_name = "NAMES")]
    pub beside: Vec<BenchSubject>,
    /// What is measured; everything unless given.
    #[arg(long, value_enum, value_delimiter = ',', value_name = "NAMES")]
    pub only: Vec<BenchGroup>,
    /// Files in a directory, from 16 on; several numbers separated by commas. 10000,100000,1000000 unless given. Nothing has more files than the largest.
    #[arg(long, value_delimiter = ',', value_name = "N", value_parser = clap::value_parser!(u64).range(16..=50_000_000))]
    pub sizes: Vec<u64>,
    /// Threads (and processes) that work at the same time, at most 256; several numbers separated by commas. 1, 2 and the number of processors unless given.
    #[arg(long, value_delimiter = ',', value_name = "N", value_parser = clap::value_parser!(u32).range(1..=256))]
    pub threads: Vec<u32>,
    /// Repeats, whose median is shown: 5 unless given, and at most 3 of what takes long.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub repeat: Option<u32>,
    /// Fewer files, repeats and members: about two minutes.
    #[arg(long)]
    pub quick: bool,
    /// The tree that is copied in; /usr/include unless given, /usr/include/linux with --quick.
    #[arg(long, value_name = "DIR")]
    pub tree: Option<PathBuf>,
    /// Where the image of DirectFS is made: a directory in memory, or on a DAX file system.
    #[arg(long, default_value = "/dev/shm", value_name = "DIR")]
    pub image_in: PathBuf,
    /// Flush changes also where that makes nothing safer, as they are flushed on persistent memory.
    #[arg(long)]
    pub always_flush: bool,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
    /// Write a page with plots, which needs no other file.
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
}

/// What can be measured beside directories that are named.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum BenchSubject {
    /// DirectFS, by `directfs run`.
    Directfs,
    /// tmpfs, in /dev/shm or another place.
    Tmpfs,
    /// The file system of the disk, in the directory for temporary files.
    Disk,
    /// Nothing.
    None,
}

/// What can be measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum BenchGroup {
    /// Each call by one thread, over each size.
    Calls,
    /// Each call by several threads, in one directory and each in its own.
    Threads,
    /// The same by processes.
    Processes,
    /// stat of paths 1 to 8 names long.
    Depth,
    /// Small files of 1, 8 and 32 KiB.
    Small,
    /// The first calls of a program.
    Cold,
    /// Phases like mdtest's.
    Mdtest,
    /// A mix like filebench's varmail.
    Varmail,
    /// A mix like filebench's fileserver.
    Fileserver,
    /// A mix like PostMark's.
    Postmark,
    /// cp, du, find, ls, tar, git and rm on a real tree.
    Tree,
    /// Large reads and writes beside memcpy.
    Data,
    /// The engine in this process: no system calls, paths or permissions.
    Engine,
}

impl BenchGroup {
    /// All, in the order of the report.
    pub const ALL: [BenchGroup; 13] = [
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
        BenchGroup::Engine,
    ];
}

/// Arguments of the hidden `bench-worker`.
#[derive(Debug, Args)]
pub struct BenchWorker {
    /// What to remove if the benchmark ends without a word.
    #[arg(long)]
    pub owned: PathBuf,
    /// Where to work.
    pub directory: PathBuf,
}

/// Arguments of `lab`.
#[derive(Debug, Args)]
#[command(after_help = "\
All systems run in this process, on images in memory that vanish with it. Numbers mean something only on a machine with nothing else to do.

Examples:
  directfs lab list
  directfs lab directfs-table2
  directfs lab all --quick --out report      every experiment, in small sizes
  directfs lab all --out report              the papers' sizes")]
pub struct Lab {
    /// An experiment, `all`, or `list`.
    pub experiment: String,
    /// Where to write a report (index.html), the numbers and the plots.
    #[arg(long, value_name = "DIR", required_if_eq("experiment", "all"))]
    pub out: Option<PathBuf>,
    /// Smaller sizes, fewer rounds: all experiments within a minute. What is looked at fits into the processor's caches then.
    #[arg(long)]
    pub quick: bool,
    /// Overwrite a report.
    #[arg(long, short)]
    pub force: bool,
}

/// Arguments of `demo`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  directfs demo
  directfs demo /usr/share/doc
  directfs demo --through library        even where a mount would work")]
pub struct Demo {
    /// The tree to copy.
    #[arg(default_value = "/usr/include")]
    pub tree: PathBuf,
    /// Which way calls go: the kernel's mount where /dev/fuse opens, else the library in this process.
    #[arg(long, value_enum, default_value_t = Through::Auto)]
    pub through: Through,
    /// Where to make the image and the copies to compare with: a directory in memory.
    #[arg(long, default_value = "/dev/shm", value_name = "DIR")]
    pub scratch: PathBuf,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// Which way the demonstration's calls go.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Through {
    /// The mount if it works here, else the library.
    Auto,
    /// A mount.
    Mount,
    /// The library, in this process.
    Library,
}

/// Arguments of `completions`.
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  directfs completions bash > /etc/bash_completion.d/directfs")]
pub struct Completions {
    /// The shell.
    pub shell: clap_complete::Shell,
}

/// Arguments of `man`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  directfs man | man -l -
  directfs man --to /usr/share/man/man8")]
pub struct Man {
    /// Write a page for each command into this directory, instead of one to standard output.
    #[arg(long, value_name = "DIR")]
    pub to: Option<PathBuf>,
}

/// Arguments of the hidden `copy-tree`.
#[derive(Debug, Args)]
pub struct CopyTree {
    /// The tree to copy.
    pub tree: PathBuf,
    /// The directory to copy it to.
    #[arg(long, required_unless_present = "image", conflicts_with = "image")]
    pub directory: Option<PathBuf>,
    /// The image to copy it into, through the library.
    #[arg(long)]
    pub image: Option<PathBuf>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_declaration_is_consistent() {
        Cli::command().debug_assert();
        MountHelper::command().debug_assert();
    }

    #[test]
    fn every_command_has_examples() {
        for command in Cli::command().get_subcommands().filter(|command| !command.is_hide_set()) {
            let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            assert!(help.contains("Example"), "{}", command.get_name());
        }
    }
}
