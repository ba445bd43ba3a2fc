//! The command line: commands, options, help and examples.

use crate::units::{parse_seconds, parse_size};
use clap::{Args, Parser, Subcommand};
use posix::image::CommitPolicy;
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

/// A persistent-memory file system in user space.
#[derive(Debug, Parser)]
#[command(name = "directfs", version, about, propagate_version = true, arg_required_else_help = true)]
#[command(after_help = "\
Examples:
  directfs run                             a shell in a new file system in memory
  directfs demo                            a tour on a real tree, compared with tmpfs
  directfs mkfs /dev/shm/work.img --size 4G
  directfs mount /dev/shm/work.img /mnt/work
  directfs umount /mnt/work

In /etc/fstab (with mount.directfs in /sbin, a link to this program):
  /dev/shm/work.img  /mnt/work  directfs  defaults,noauto  0  0
or, where /sbin/mount.fuse is installed and this program is in /usr/local/bin or /usr/bin:
  /dev/shm/work.img  /mnt/work  fuse.directfs  defaults,noauto  0  0

Exit codes: 0 success, 1 failure (see the message), 2 usage error, 130 interrupted; fsck has its
own.")]
pub struct Cli {
    /// The command to run.
    #[command(subcommand)]
    pub command: Command,
}

/// Where programs under `run` see the image by default.
pub const RUN_DIRECTORY: &str = "/mnt/directfs";

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Create an image.
    Mkfs(Mkfs),
    /// Mount an image.
    Mount(Mount),
    /// Run a program and its children with an image served inside them: no mount, no privileges.
    Run(Run),
    /// Run a program as `run` does, and report the calls that it made on the image, their duration,
    /// and their paths.
    Profile(Profile),
    /// Unmount, and wait until the image is closed cleanly.
    Umount(Umount),
    /// Show an image's properties, usage and persistence guarantee. Changes nothing.
    Info(Info),
    /// List the processes attached to an image: what each has open and locked, and waits for.
    Ps(Ps),
    /// Give the memory or disk space of freed blocks back to the system.
    Trim(Trim),
    /// Change the size of an image that is not in use. Nothing is lost, whatever happens.
    Resize(Resize),
    /// Change the label or the UUID of an image that is not in use.
    Tune(Tune),
    /// Copy an image to a new file, also while programs use it. The copy is whole or absent.
    Snapshot(Snapshot),
    /// As `snapshot`; the copy gets a UUID of its own, so that both can be used side by side.
    Clone(CloneImage),
    /// Write a tree of an image to standard output, as a tar archive.
    Export(Export),
    /// Read a tar archive from standard input into an image.
    Import(Import),
    /// Check every invariant of an image, and repair it.
    Fsck(Fsck),
    /// Print an image's structures in readable form: a file's names, inode, properties and log.
    Dump(Dump),
    /// Measure calls, workloads and programs on DirectFS, tmpfs, the disk and any directory.
    Bench(Bench),
    /// Copy, compare, search and remove a real tree under `run`, beside tmpfs and a mount; then
    /// kill a copy and recover it.
    Demo(Demo),
    /// Print completions for a shell.
    Completions(Completions),
    /// Print manual pages.
    Man(Man),
    /// Perform the steps of a demonstration in a directory: the program that it measures and kills.
    #[command(hide = true)]
    DemoWorker(DemoWorker),
    /// Run workloads in a directory and report their times: the program that a benchmark measures.
    #[command(hide = true)]
    BenchWorker(BenchWorker),
    /// Run a program whose file is in the mount; started by `run`, with the library loaded.
    #[command(hide = true)]
    RunInside(RunInside),
    /// Run a program into which no library can be loaded, with a private mount; started by `run`
    /// and by the library.
    #[command(hide = true)]
    RunStatic(RunInside),
}

/// Arguments of `mkfs`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  directfs mkfs /dev/shm/work.img --size 4G
  directfs mkfs /var/lib/mail.img --size 1.5T --label mail --inodes 100000000
  directfs mkfs /dev/dax0.0 --force          a device needs no size
  directfs mkfs tools.img --size 2G --from /opt/tools

With --from the image gets everything of the directory: owners, modes, times, extended attributes,
access lists, hard and symbolic links, holes, devices. Its file appears when all of it is there;
until then an existing file stays. Of a failure nothing is left.")]
pub struct Mkfs {
    /// The file to create, or a /dev/dax* device.
    pub image: PathBuf,
    /// Size of the image: 512M, 4G, 1.5T. Required for a new file.
    #[arg(long, short, value_parser = parse_size, value_name = "SIZE")]
    pub size: Option<u64>,
    /// A label, at most 64 bytes.
    #[arg(long, short = 'L')]
    pub label: Option<String>,
    /// Maximum number of files [default: one per 2 KiB].
    #[arg(long, short = 'N', value_name = "N")]
    pub inodes: Option<u64>,
    /// Overwrite existing content.
    #[arg(long, short)]
    pub force: bool,
    /// Do not reserve the space: the image grows as it fills, and writes fail when the file system
    /// is full.
    #[arg(long)]
    pub sparse: bool,
    /// Fill the image with the content of this directory.
    #[arg(long, value_name = "DIR")]
    pub from: Option<PathBuf>,
    /// Print the result as JSON.
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `mount`.
#[derive(Debug, Args)]
#[command(after_help = "\
Options (-o) are those of mount(8), separated by commas: ro, rw, nosuid, nodev, noexec, noatime,
uid=N, gid=N, allow_other ...

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
    /// Mount read-only.
    #[arg(long, short)]
    pub read_only: bool,
    #[command(flatten)]
    pub commits: CommitOptions,
    /// File descriptor to which one byte is written when the mount is ready.
    #[arg(long, hide = true, value_name = "FD")]
    pub ready_fd: Option<i32>,
}

/// Arguments of `run`.
#[derive(Debug, Args)]
#[command(after_help = "\
Without --image the files are in a new image in memory, which is removed when the last program of
the run exits. Without a command it starts your shell ($SHELL) in the mount directory.
DIRECTFS_MOUNT contains the mount directory. Several runs, and mounts with -o cache=0, can use an
image at the same time.

Examples:
  directfs run                                     a shell in a new file system in memory
  directfs run -- sh -c 'cd $DIRECTFS_MOUNT && cp -r /usr/include . && du -sh .'
  directfs run --image /dev/shm/work.img -- make -C /mnt/directfs/project
  directfs run --image /dev/shm/work.img --at /work -C /work/project -- git status
  directfs run --image work.img --discard -- make test          leaves no trace
  directfs run --image work.img --atomic -- ./upgrade.sh        all of it, or nothing

Exit codes: that of the command (or the same signal); 125 directfs failed, 126 the command cannot be
executed, 127 it was not found.")]
pub struct Run {
    /// The image [default: a new one in memory].
    #[arg(long, short)]
    pub image: Option<PathBuf>,
    /// Absolute path at which programs see the image; it need not exist. Existing files there are
    /// hidden from the programs.
    #[arg(long, default_value = RUN_DIRECTORY, value_name = "DIR")]
    pub at: PathBuf,
    /// Start the command in this directory, which may be in the image.
    #[arg(long, short = 'C', value_name = "DIR")]
    pub chdir: Option<PathBuf>,
    /// Maximum size of the image in memory, which uses memory only as it fills [default: half of
    /// the available memory].
    #[arg(long, short, value_parser = parse_size, value_name = "SIZE", conflicts_with = "image")]
    pub size: Option<u64>,
    /// Flush cache lines even on media that do not survive a power failure, so that calls cost what
    /// they do on persistent memory.
    #[arg(long)]
    pub always_flush: bool,
    #[command(flatten)]
    pub commits: CommitOptions,
    /// Leave the image as it is, whatever happens: the programs work on a copy in memory, which is
    /// discarded. Many such runs can use one image at once.
    #[arg(long, requires = "image", conflicts_with_all = ["atomic", "no_commit", "commit_interval"])]
    pub discard: bool,
    /// Commit all changes as one if the command exits with 0, and else discard them. The image must
    /// be on a disk, and no other process can use it meanwhile.
    #[arg(long, requires = "image", conflicts_with_all = ["no_commit", "commit_interval"])]
    pub atomic: bool,
    /// The command and its arguments.
    #[arg(trailing_var_arg = true)]
    pub command: Vec<OsString>,
}

/// Arguments of `profile`.
#[derive(Debug, Args)]
#[command(after_help = "\
The report follows the program's own output, on standard error. Counted are the calls that the image
serves, in the program and in all programs that it starts, but not in those of other users. A time
includes waits, for example for a lock or a FIFO. Paths are as the programs name them.

Examples:
  directfs profile --image work.img -- make -j4
  directfs profile --json --output profile.json -- git clone repo /mnt/directfs/repo

Keys of --json: command, wall_ns, programs, calls (name, count, total_ns), paths (path, count,
total_ns), paths_not_counted (calls with one of further paths).")]
pub struct Profile {
    #[command(flatten)]
    pub run: Run,
    /// Report as JSON.
    #[arg(long)]
    pub json: bool,
    /// Write the report to this file.
    #[arg(long, short, value_name = "FILE")]
    pub output: Option<PathBuf>,
}

/// How an image on a disk is committed to it.
#[derive(Debug, Args)]
pub struct CommitOptions {
    /// For an image on a disk: commit its changes to the disk this often, and not only when a
    /// program syncs. 0: only then [default: 5].
    #[arg(long, value_name = "SECONDS", value_parser = parse_seconds, conflicts_with = "no_commit")]
    pub commit_interval: Option<Duration>,
    /// For an image on a disk: use it in place and never commit. Needs no memory for a copy. A
    /// power failure may destroy the image: only for scratch work.
    #[arg(long)]
    pub no_commit: bool,
    /// For an image on a disk: the most memory that the copy may take on which programs work, for
    /// example 2G. A larger image has the copy in a hidden file beside it, of which the kernel
    /// keeps in memory what is used [default: half of the available memory].
    #[arg(long, value_name = "SIZE", value_parser = parse_size, conflicts_with = "no_commit")]
    pub memory: Option<u64>,
}

impl CommitOptions {
    /// The policy that the options ask for.
    pub fn policy(&self) -> CommitPolicy {
        match self.commit_interval {
            _ if self.no_commit => CommitPolicy::Never,
            None => CommitPolicy::default(),
            Some(interval) if interval.is_zero() => CommitPolicy::WhenSynced,
            Some(interval) => CommitPolicy::Every(interval),
        }
    }
}

/// Arguments of the hidden `run-inside` and `run-static`.
#[derive(Debug, Args)]
pub struct RunInside {
    /// For `run-static`: an entry of the environment for the program's loader.
    #[arg(long = "entry")]
    pub entries: Vec<OsString>,
    /// The command and its arguments; for `run-static` its path, and the arguments from the zeroth
    /// on.
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    pub command: Vec<OsString>,
}

/// The command line of a mount(8) helper: `mount.directfs IMAGE DIR [-sfnv] [-o OPTIONS]`.
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
    /// Ignore unknown options.
    #[arg(short)]
    pub sloppy: bool,
    /// Check everything without mounting.
    #[arg(short)]
    pub fake: bool,
    /// Do not write /etc/mtab (accepted and ignored).
    #[arg(short)]
    pub no_mtab: bool,
    /// Print what is done.
    #[arg(short)]
    pub verbose: bool,
    /// Mount read-only.
    #[arg(short)]
    pub read_only: bool,
    /// Mount read-write.
    #[arg(short = 'w')]
    pub writable: bool,
    /// The file system type given to mount(8).
    #[arg(short = 't', value_name = "TYPE")]
    pub kind: Option<String>,
}

/// Arguments of `umount`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  directfs umount /mnt/work
  directfs umount --lazy /mnt/work       detach now, end with the last user")]
pub struct Umount {
    /// The mount point.
    pub directory: PathBuf,
    /// Detach even if files are open; do not wait.
    #[arg(long, short)]
    pub lazy: bool,
}

/// Arguments of `snapshot`.
#[derive(Debug, Args)]
#[command(after_help = "\
The image can be in use: the copy is the state of one moment, and programs are not stopped. A mount
that has the image alone (without cache=0) must be unmounted first.

Examples:
  directfs snapshot work.img backup/work-monday.img")]
pub struct Snapshot {
    /// The image.
    pub image: PathBuf,
    /// The new file.
    pub file: PathBuf,
}

/// Arguments of `clone`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  directfs clone template.img work.img --label work")]
pub struct CloneImage {
    #[command(flatten)]
    pub copy: Snapshot,
    /// Label of the copy: at most 64 bytes [default: as the image has it].
    #[arg(long)]
    pub label: Option<String>,
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

/// Arguments of `ps`.
#[derive(Debug, Args)]
#[command(after_help = "\
Listed are programs under `directfs run` and with the library, the servers of mounts, and the
programs that have something open on a mount. Nothing is stopped or changed. Only root sees what
other users' processes have open on a mount, and on what their threads sleep.

Examples:
  directfs ps /dev/shm/work.img
  directfs ps /dev/shm/work.img --json | jq '.processes[] | [.pid, .command, .locks[].path]'

Keys of --json: image, in_use, shares (false: only the kernel's view is known); processes (pid, uid,
user, command, since_ns, role, directory, program), in each of them threads (tid, inside), files
(fd, inode, path, flags, position), mappings (inode, path, bytes, shared, writable), locks (inode,
path, kind: flock, posix or ofd; exclusive, start, last) and waits (tid, reason, held_by). Paths
begin at the root of the image.")]
pub struct Ps {
    /// The image.
    pub image: PathBuf,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `trim`.
#[derive(Debug, Args)]
#[command(after_help = "\
Freed blocks become holes of the image's file. Images in memory can be in use meanwhile. Of an image
on a disk that is in use, the working copy is trimmed; its file is trimmed when no process uses it.

Images in memory that were made with --sparse, copies of images on a disk, and runs without --image
are trimmed by themselves, a second or two after much was removed (64 MiB or more). An image that
mkfs reserved as a whole keeps its space until it is trimmed by this command; from then on it takes
space as it fills, and if that runs out, every access returns EIO.

Examples:
  directfs trim /dev/shm/work.img
  directfs trim /var/lib/mail.img --json | jq .freed_bytes

Keys of --json: image, before_bytes, after_bytes, freed_bytes, working_copy.")]
pub struct Trim {
    /// The image.
    pub image: PathBuf,
    /// Print the result as JSON.
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `resize`.
#[derive(Debug, Args)]
#[command(after_help = "\
The image must not be in use. Its files are not moved, so it can shrink as far as the space at its
end is free; the error tells how far. The number of files that it can hold stays. If the command is
killed, or the machine stops, the image has the old size or the new one. An image that was resized
cannot be used by versions of this program that cannot resize. Interrupts are heeded before the
change begins.

Examples:
  directfs resize /dev/shm/work.img 8G
  directfs resize /var/lib/mail.img +500G         500 GiB more
  directfs resize /dev/shm/work.img 1.5G --json")]
pub struct Resize {
    /// The image.
    pub image: PathBuf,
    /// The new size: 512M, 4G, 1.5T; with + or - in front, the difference.
    #[arg(value_name = "SIZE", allow_hyphen_values = true)]
    pub size: String,
    /// Print the result as JSON.
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `tune`.
#[derive(Debug, Args)]
#[command(after_help = "\
The image must not be in use. A copy made with cp has the UUID of its original; `directfs clone`
makes a copy with its own.

Examples:
  directfs tune /dev/shm/work.img --label build
  directfs tune copy.img --uuid random
  directfs tune copy.img --uuid 123e4567-e89b-42d3-a456-426614174000 --label copy")]
pub struct Tune {
    /// The image.
    pub image: PathBuf,
    /// The new label, at most 64 bytes; empty: none.
    #[arg(long, short = 'L', required_unless_present = "uuid")]
    pub label: Option<String>,
    /// The new UUID: `random`, or 32 hexadecimal digits with or without hyphens.
    #[arg(long, short = 'U', value_parser = parse_uuid)]
    pub uuid: Option<NewUuid>,
}

/// A UUID on the command line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NewUuid {
    /// One that is drawn.
    Random,
    /// This one.
    Given([u8; 16]),
}

fn parse_uuid(text: &str) -> Result<NewUuid, String> {
    if text == "random" {
        return Ok(NewUuid::Random);
    }
    let digits: Vec<u8> = text.bytes().filter(|&byte| byte != b'-').collect();
    let mut uuid = [0; 16];
    let parsed = digits.len() == 32
        && uuid.iter_mut().zip(digits.chunks(2)).all(|(byte, pair)| {
            let pair =
                std::str::from_utf8(pair).ok().filter(|pair| pair.bytes().all(|digit| digit.is_ascii_hexdigit()));
            pair.and_then(|pair| u8::from_str_radix(pair, 16).ok()).map(|value| *byte = value).is_some()
        });
    match parsed && uuid != [0; 16] {
        true => Ok(NewUuid::Given(uuid)),
        false => Err(format!("{text:?} is not a UUID; write `random`, or 32 hexadecimal digits, not all zero")),
    }
}

/// Arguments of `export`.
#[derive(Debug, Args)]
#[command(after_help = "\
The archive is in the pax format, which GNU tar, bsdtar, cpio and Python read: long names, files of
any size, times to 1 ns, extended attributes (tar --xattrs), access lists (tar --acls), hard links,
holes, devices. Numbers stand for owners. Sockets are left out. Of an image in use, what changes
meanwhile is in the archive before or after the change: for one moment of an image on a disk, export
a `directfs snapshot`.

Examples:
  directfs export /dev/shm/work.img > work.tar
  directfs export work.img /project | zstd > project.tar.zst
  directfs export old.img | directfs import new.img")]
pub struct Export {
    /// The image.
    pub image: PathBuf,
    /// The directory or file to export, from the root of the image.
    #[arg(default_value = "/")]
    pub path: PathBuf,
}

/// Arguments of `import`.
#[derive(Debug, Args)]
#[command(after_help = "\
Read are archives of tar in the formats ustar, pax and GNU, with long names, holes and extended
attributes. Owners are kept, by number. Existing files are replaced, directories merged. The tree is
built beside its place and moved there when the archive is complete: an error or an interrupt leaves
nothing. Paths with `..`, and paths that lead through a symbolic link, are refused; slashes at the
start are dropped.

Examples:
  directfs import /dev/shm/work.img < work.tar
  zstd -dc project.tar.zst | directfs import work.img --to /project
  curl -L https://example.org/src.tar.gz | gzip -dc | directfs import work.img")]
pub struct Import {
    /// The image.
    pub image: PathBuf,
    /// The directory to import into, from the root of the image; it must exist.
    #[arg(long, value_name = "PATH", default_value = "/")]
    pub to: PathBuf,
    #[command(flatten)]
    pub commits: CommitOptions,
    /// Print the result as JSON.
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `fsck`.
#[derive(Debug, Args)]
#[command(after_help = "\
Without -n, -p or -y it asks before each repair if it runs on a terminal, else it only checks. Files
without names get one in /lost+found. The next repair completes an interrupted one. Traces of a
crash are not errors: the next use recovers them.

Exit codes, as for fsck(8), added up: 0 no errors, 1 errors were repaired, 4 errors remain, 8 the
check failed, 16 usage error, 32 interrupted.

Examples:
  directfs fsck -n /dev/shm/work.img
  directfs fsck -p /dev/shm/work.img     make safe repairs, report the rest
  directfs fsck -y /dev/shm/work.img     make all repairs (copy the image first)
  directfs fsck -n /dev/shm/work.img --json")]
pub struct Fsck {
    /// The image, which must not be in use.
    pub image: PathBuf,
    /// Only check, change nothing.
    #[arg(short = 'n', conflicts_with_all = ["yes", "preen"])]
    pub check_only: bool,
    /// Repair everything that is repairable.
    #[arg(short = 'y')]
    pub yes: bool,
    /// Make only repairs that are certain and remove nothing.
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
  directfs dump /dev/shm/work.img 1             the inode with this number
  directfs dump /dev/shm/work.img ./1           the file with this name in the root directory
  directfs dump /dev/shm/work.img superblock    or journal
  directfs dump /dev/shm/work.img @0x8000       the structure at this offset")]
pub struct Dump {
    /// The image.
    pub image: PathBuf,
    /// A path from the image's root, an inode number, `superblock`, `journal`, or `@` and an
    /// offset.
    #[arg(value_name = "PATH|INODE")]
    pub what: String,
    /// Also print the raw words.
    #[arg(long)]
    pub raw: bool,
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
  directfs bench --only engine                   the engine in this process: flushes, recovery
  directfs bench --quick --json > bench.json

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
    /// The same by processes.
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
    /// The engine in this process: no system calls, paths or permissions.
    Engine,
}

impl BenchGroup {
    /// All, in the order of the report.
    pub const ALL: [BenchGroup; 16] = [
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

Keys of --json: tree, entries, size_bytes, is_subset, left_out; image_bytes, backing, persistence;
peer (the file system beside), rounds; mount_absent (why there is no mount, or null); steps (name,
run_ns, peer_ns, mount_ns or null); crash (entries, completed, kill_ns, recovery_ns, compare_ns,
reuse_ns); check (names, errors, warnings, duration_ns); duration_ns.")]
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
    /// Write a page for each command into this directory, instead of one page to standard output.
    #[arg(long, value_name = "DIR")]
    pub to: Option<PathBuf>,
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

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_declaration_is_consistent() {
        Cli::command().debug_assert();
        MountHelper::command().debug_assert();
    }

    /// The help pages of all commands, with their names.
    fn help_pages() -> impl Iterator<Item = clap::Command> {
        let mut program = Cli::command();
        program.build();
        let commands: Vec<_> = program.get_subcommands().cloned().collect();
        commands.into_iter().chain([program, MountHelper::command()])
    }

    #[test]
    fn no_line_of_help_has_more_than_100_columns() {
        let too_long = |line: &str| line.chars().count() > 100;
        for mut command in help_pages() {
            // What is laid out by hand must not be wrapped, which would break its columns.
            let by_hand = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            let pages = [command.render_help().to_string(), command.render_long_help().to_string(), by_hand];
            let found: Vec<_> = pages.iter().flat_map(|page| page.lines()).filter(|line| too_long(line)).collect();
            assert!(found.is_empty(), "{}: {found:#?}", command.get_name());
        }
    }

    #[test]
    fn every_command_has_examples() {
        for command in Cli::command().get_subcommands().filter(|command| !command.is_hide_set()) {
            let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            assert!(help.contains("Example"), "{}", command.get_name());
        }
    }
}
