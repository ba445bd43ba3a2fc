//! Arguments of the commands that make, change, copy and check images.

use super::CommitOptions;
use crate::units::{self, parse_size};
use clap::{ArgGroup, Args, ValueEnum};
use image::Reserve;
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

/// Arguments of `mkfs`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  directfs mkfs /dev/shm/work.img --size 4G
  directfs mkfs /var/lib/mail.img --size 1.5T --label mail --inodes 100000000
  directfs mkfs /dev/dax0.0 --force          a device needs no size
  directfs mkfs /dev/vg/data                 half of a block device: the rest takes commits
  directfs mkfs tools.img --size 2G --from /opt/tools

With --from the image gets everything of the directory: owners, modes, times, extended attributes,
access lists, hard and symbolic links, holes, devices. Its file appears when all of it is there;
until then an existing file stays. Of a failure nothing is left.

Keys of --json: image, uuid, label, length, backing, persistence, space_reserved, mapping_limit,
files, bytes, duration_ns (of what --from copied, or null).")]
pub struct Mkfs {
    /// The file to create, or a block device or /dev/dax* device.
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

/// Arguments of `snapshot`.
#[derive(Debug, Args)]
#[command(after_help = "\
The image can be in use: the copy is the state of one moment, and programs are not stopped. If a
mount has the image alone (without cache=0), its server makes the copy.

With `-` as the file the copy goes to standard output, byte by byte: it is first made in memory, or
beside the image where that is too small, and zeros are written for holes.

Keys of --json: image, file, length, used_bytes, duration_ns.

Examples:
  directfs snapshot work.img backup/work-monday.img
  directfs snapshot work.img - | zstd > work.img.zst
  directfs snapshot work.img - | ssh host 'cat > work.img'
  directfs snapshot work.img backup/work.img --json | jq .used_bytes")]
pub struct Snapshot {
    /// The image.
    pub image: PathBuf,
    /// The new file; `-` for standard output, `./-` for a file of that name.
    pub file: PathBuf,
    /// Print the result as JSON.
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `clone`.
#[derive(Debug, Args)]
#[command(after_help = "\
Keys of --json: image, file, length, used_bytes, duration_ns, uuid (of the copy).

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
  directfs info /dev/shm/work.img --json | jq .usage.blocks_free

Keys of --json: image, label, uuid, format_version, features, created_ns, length, block_bytes,
blocks, blocks_reserved, inodes, epoch, clean, backing, persistence, mapping_limit, commits,
pending, in_use, in_use_for_writing, used_by (pid, command, serves_mount, requests_through),
mounted_on, not_answering, usage (blocks_used, blocks_free, inodes_used, inodes_free; null until a
recovery), footprint, cache, last_recovery.")]
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

If all processes of an image on a disk are killed, their newest state stays in memory, and the next
use of the image commits it. `--left` lists such states, with the image to which each belongs; it
may have been moved since. `--remove` removes one, with all that was not committed.

Examples:
  directfs ps /dev/shm/work.img
  directfs ps --left
  directfs ps --left --remove directfs-0123456789abcdef
  directfs ps /dev/shm/work.img --json | jq '.processes[] | [.pid, .command, .locks[].path]'

Keys of --json: image, in_use, shares (false: only the kernel's view is known), processes (pid, uid,
user, command, since_ns, role, directory, program, and lists: threads (tid, inside), files (fd,
inode, path, flags, position), mappings (inode, path, bytes, shared, writable), locks (inode, path,
kind: flock, posix or ofd; exclusive, start, last), waits (tid, reason, held_by)). Paths begin at
the root of the image. With --left: a list of name, image, bytes, unused_seconds.")]
pub struct Ps {
    /// The image.
    #[arg(required_unless_present = "left")]
    pub image: Option<PathBuf>,
    /// List the states that killed processes left in memory, and that no disk holds.
    #[arg(long, conflicts_with = "image")]
    pub left: bool,
    /// Remove the state with that name, for ever.
    #[arg(long, value_name = "NAME", requires = "left")]
    pub remove: Option<String>,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `stats`.
#[derive(Debug, Args)]
#[command(after_help = "\
Without --watch: all calls since the first of the processes that use the image began. Of one call in
256 the time is taken: half of them took less than the time in the column `half`, 99 of 100 less
than that in `99 %`. Both are powers of two, and contain the waits of the calls. Programs under
`run` and with the library are counted by their calls, those on a mount by the requests of the
kernel, which answers many calls by itself.

The counting costs about 1 % of the shortest calls, always. No process is stopped.

Examples:
  directfs stats /dev/shm/work.img
  directfs stats /dev/shm/work.img --watch
  directfs stats /dev/shm/work.img --watch --interval 10 --count 6 --json | jq .threads
  directfs stats /dev/shm/work.img --prometheus=/var/lib/node_exporter/directfs.prom

Keys of --json: image, processes, threads, interval_ms (null: since the beginning), calls (by name:
count, per_second, half_below_ns, p99_below_ns), events, space, commits, waits (pid, command, tid,
reason, held_by), mounts (point, requests by name).")]
pub struct Stats {
    /// The image.
    pub image: PathBuf,
    /// Show what happens in each interval, until interrupted.
    #[arg(long)]
    pub watch: bool,
    /// With --watch: length of an interval.
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = parse_interval)]
    pub interval: Duration,
    /// With --watch: end after that many intervals.
    #[arg(long, value_name = "N", requires = "watch", value_parser = clap::value_parser!(u64).range(1..))]
    pub count: Option<u64>,
    /// Print JSON, one object for each interval.
    #[arg(long)]
    pub json: bool,
    /// Print all that is counted as text for Prometheus, or replace FILE by it.
    #[arg(
        long,
        value_name = "FILE",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "-",
        conflicts_with_all = ["json", "watch"]
    )]
    pub prometheus: Option<PathBuf>,
}

/// Arguments of `top`.
#[derive(Debug, Args)]
#[command(after_help = "\
For each process under `run` or with the library, in each interval: its calls per second, in all and
of the most frequent kinds, and what it waits for. The second line has the totals, with the calls of
processes that have ended. Programs on a mount are shown by `stats`, as requests of the kernel.

On a terminal these keys work: q or Ctrl-C quits; c sorts by calls, w by waits, t by threads, n by
the name of the command, p by the process number. A narrow terminal has fewer columns.

Keys of --json: image, interval_ms, per_second (all calls), processes (pid, user, command, threads,
per_second, calls by kind, waits_for), others (calls per second of processes that have ended).

Examples:
  directfs top /dev/shm/work.img
  directfs top /dev/shm/work.img --sort waits
  directfs top /dev/shm/work.img --interval 5 --count 1")]
pub struct Top {
    /// The image.
    pub image: PathBuf,
    /// Length of an interval.
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = parse_interval)]
    pub interval: Duration,
    /// End after that many intervals.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub count: Option<u64>,
    /// Which process comes first.
    #[arg(long, value_enum, default_value_t = Order::Calls)]
    pub sort: Order,
    /// Print JSON, one object for each interval.
    #[arg(long)]
    pub json: bool,
}

/// The order of processes in `top`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Order {
    /// Most calls first.
    Calls,
    /// Most waiting threads first.
    Waits,
    /// Most threads first.
    Threads,
    /// By the name of the command.
    Name,
    /// By the process number.
    Pid,
}

impl Order {
    /// The order that a key selects.
    pub fn of_key(key: u8) -> Option<Order> {
        match key {
            b'c' => Some(Order::Calls),
            b'w' => Some(Order::Waits),
            b't' => Some(Order::Threads),
            b'n' => Some(Order::Name),
            b'p' => Some(Order::Pid),
            _ => None,
        }
    }

    /// The word of the order on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Order::Calls => "calls",
            Order::Waits => "waits",
            Order::Threads => "threads",
            Order::Name => "name",
            Order::Pid => "pid",
        }
    }
}

/// An interval of at least a twentieth of a second and at most an hour.
fn parse_interval(text: &str) -> Result<Duration, String> {
    let interval = units::parse_seconds(text)?;
    if (0.05..=3600.0).contains(&interval.as_secs_f64()) {
        Ok(interval)
    } else {
        Err("an interval has 0.05 to 3600 seconds".to_owned())
    }
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
An image can grow while programs and mounts use it, to four times the size that it had when they
began, and at least 1 GiB; they find the new space at once. If one of them has a limit of its
address space (ulimit -v) it cannot grow meanwhile. One on a disk grows as far as the copy in
memory on which the programs work may (--memory), and not if it is used in place (--no-commit). An
image that is to shrink must not be in use.

Files are not moved, so an image can shrink as far as the space at its end is free; the error tells
how far. The number of files that it can hold stays. If the command is killed, or the machine stops,
the image has the old size or the new one. An image that was resized cannot be used by versions of
this program that cannot resize. Interrupts are heeded before the change begins.

Keys of --json: image, before_bytes, after_bytes.

Examples:
  directfs resize /dev/shm/work.img 8G            also while programs work on it
  directfs resize /var/lib/mail.img +500G         500 GiB more, on a disk
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
#[command(group(ArgGroup::new("change").args(["label", "uuid", "reserved"]).required(true).multiple(true)))]
#[command(after_help = "\
At least one of --label, --uuid and --reserved is needed. The image must not be in use. A copy made
with cp has the UUID of its original; `directfs clone` makes a copy with its own.

Keys of --json: image, label, uuid, reserved_bytes (null: not changed).

Examples:
  directfs tune /dev/shm/work.img --label build
  directfs tune copy.img --uuid random
  directfs tune /var/lib/mail.img --reserved 5%
  directfs tune copy.img --uuid 123e4567-e89b-42d3-a456-426614174000 --label copy")]
pub struct Tune {
    /// The image.
    pub image: PathBuf,
    /// The new label, at most 64 bytes; empty: none.
    #[arg(long, short = 'L')]
    pub label: Option<String>,
    /// The new UUID: `random`, or 32 hexadecimal digits with or without hyphens.
    #[arg(long, short = 'U', value_parser = parse_uuid)]
    pub uuid: Option<NewUuid>,
    /// Space that only root may fill (or a process with CAP_SYS_RESOURCE): 64M, or 5%; 0: none.
    #[arg(long, short = 'm', value_name = "SIZE|PERCENT", value_parser = parse_reserve)]
    pub reserved: Option<Reserve>,
    /// Print the result as JSON.
    #[arg(long)]
    pub json: bool,
}

fn parse_reserve(text: &str) -> Result<Reserve, String> {
    let Some(number) = text.trim().strip_suffix('%') else { return units::parse_size(text).map(Reserve::Bytes) };
    let percent = number.trim().parse().ok().filter(|percent| (0.0..=50.0).contains(percent));
    percent.map(Reserve::Percent).ok_or_else(|| format!("{text:?} is not 0 to 50 %; write for example 5% or 64M"))
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

Keys of --json: image, files, bytes.

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

Keys of --json: image, checked, clean, errors, warnings, notes, findings (kind, severity, inode,
path, offset, sentence, repair, safe), findings_dropped, names, inodes, directories, files,
symlinks, special, blocks_used, blocks_free, duration, duration_ns, pending (what the next use
recovers, or null). After repairs also mended (as findings), failed (finding, why), needs_recovery.

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
    pub what: OsString,
    /// Also print the raw words.
    #[arg(long)]
    pub raw: bool,
}
