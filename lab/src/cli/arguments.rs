//! Commands, options, help and examples.

use clap::{Args, Parser, Subcommand};
use lab::experiments::{Size, Times};
use lab::mount::SystemKind;
use std::path::PathBuf;

/// Repeat the papers' experiments: their systems, measured on this machine, next to the published
/// numbers.
#[derive(Debug, Parser)]
#[command(name = "lab", version, args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
#[command(
    arg_required_else_help = true,
    after_help = "\
All systems run in this process, on images in memory that end with it. The numbers are meaningful
only on an idle machine.

Examples:
  lab list
  lab directfs-table2
  lab directfs-table2 --virtual     the same numbers in every run
  lab all --quick --out report      all experiments, in small sizes
  lab all --quick --virtual --jobs 2 --out report
  lab all --out report              the papers' sizes

Exit codes: 0 success, 1 failure (see the message), 2 usage error, 130 interrupted."
)]
pub struct Arguments {
    /// A command; none: experiments.
    #[command(subcommand)]
    pub command: Option<Command>,
    /// The experiments to run.
    #[command(flatten)]
    pub experiments: Option<Experiments>,
}

/// The commands for images.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Create an image of a system.
    Mkfs(Mkfs),
    /// Mount an image of a system.
    Mount(Mount),
    /// Run a workload of filebench or YCSB in a directory of any file system.
    Workload(Workload),
}

/// Arguments of experiments.
#[derive(Debug, Args)]
pub struct Experiments {
    /// An experiment, `all`, or `list`.
    pub experiment: String,
    /// Directory for the report (index.html) and the numbers.
    #[arg(long, value_name = "DIR", required_if_eq("experiment", "all"))]
    pub out: Option<PathBuf>,
    /// Smaller sizes and fewer rounds: all experiments within minutes. The data then fits into the
    /// processor's caches.
    #[arg(long)]
    pub quick: bool,
    /// Only virtual time, where an experiment has it: the same numbers in every run.
    #[arg(long = "virtual")]
    pub only_virtual: bool,
    /// Only the clock.
    #[arg(long = "clock", conflicts_with = "only_virtual")]
    pub only_clock: bool,
    /// Overwrite an existing report.
    #[arg(long, short)]
    pub force: bool,
    /// Continue a report that was interrupted: leave out the experiments that it has already.
    #[arg(long, requires = "out", conflicts_with = "force")]
    pub resume: bool,
    /// Run so many experiments at once, each in a process of its own. Virtual times stay the same;
    /// times by the clock get worse, and experiments that need a free processor fail.
    #[arg(long, value_name = "N", default_value_t = 1, requires = "out", value_parser = clap::value_parser!(u16).range(1..))]
    pub jobs: u16,
    /// Write a part of a report, for a process that puts it together.
    #[arg(long, hide = true, requires = "out", conflicts_with = "resume")]
    pub part: bool,
}

impl Experiments {
    /// The size of the experiments.
    pub fn size(&self) -> Size {
        if self.quick { Size::Quick } else { Size::Full }
    }

    /// The kinds of time to take.
    pub fn times(&self) -> Times {
        match (self.only_virtual, self.only_clock) {
            (true, _) => Times::Virtual,
            (_, true) => Times::Clock,
            _ => Times::Both,
        }
    }
}

/// Arguments of `mkfs`.
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  lab mkfs /dev/shm/nova.img --size 1G --system nova")]
pub struct Mkfs {
    /// The file to create.
    pub image: PathBuf,
    /// Size of the image: 512M, 4G, 1.5T. Required for a new file.
    #[arg(long, short, value_parser = parse_size, value_name = "SIZE")]
    pub size: Option<u64>,
    /// The system: nova, pmfs, soupfs or squirrelfs under the conventional VFS layer; conventional,
    /// byvfs or cachelet (a VFS layer) over nova.
    #[arg(long, value_name = "SYSTEM", value_parser = parse_system)]
    pub system: SystemKind,
    /// Overwrite existing content.
    #[arg(long, short)]
    pub force: bool,
}

/// Arguments of `mount`.
#[derive(Debug, Args)]
#[command(after_help = "\
Options (-o) are those of mount(8), separated by commas: nosuid, nodev, noexec, noatime, allow_other
... vfs=conventional, vfs=byvfs or vfs=cachelet selects the VFS layer, which decides how names are
looked up. fsync=names lets syncing a file on SoupFS make its names durable, too; fsync=own, the
default, is the SoupFS paper's.

Examples:
  lab mount /dev/shm/nova.img /mnt/nova
  lab mount /dev/shm/nova.img /mnt/nova -o vfs=byvfs
  umount /mnt/nova")]
pub struct Mount {
    /// The image.
    pub image: PathBuf,
    /// The directory to mount it on.
    pub directory: PathBuf,
    /// Options of mount(8), `vfs=` and `fsync=`.
    #[arg(short, value_name = "OPTIONS", action = clap::ArgAction::Append)]
    pub options: Vec<String>,
    /// Stay in the foreground.
    #[arg(long, short)]
    pub foreground: bool,
    /// Write one byte to standard output when the mount is ready, and leave the terminal.
    #[arg(long, hide = true, requires = "foreground")]
    pub announce: bool,
}

/// Arguments of `workload`.
#[derive(Debug, Args)]
#[command(after_help = "\
The workload runs as an ordinary program with one thread. The file system below DIR is measured:

Examples:
  lab workload varmail /dev/shm/new
  lab workload ycsb-a /var/tmp/new --count 100000
  directfs run --image IMAGE -- lab workload fileserver NEW_DIR")]
pub struct Workload {
    /// varmail, fileserver, webserver, webproxy, postmark, or ycsb-a to ycsb-f (on a LevelDB).
    pub workload: String,
    /// A new directory for its files, which stay there.
    #[arg(value_name = "DIR")]
    pub directory: PathBuf,
    /// Number of files, of which filebench makes four fifths at first, or of records.
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u64).range(1..))]
    pub count: u64,
    /// Number of repetitions, or of operations of YCSB.
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = clap::value_parser!(u64).range(1..))]
    pub turns: u64,
    /// Print operations, seconds, processor time and time that waited for a processor only.
    #[arg(long, hide = true)]
    pub numbers: bool,
}

fn parse_system(name: &str) -> Result<SystemKind, String> {
    SystemKind::parse(name).ok_or_else(|| format!("expected one of {}", SystemKind::NAMES.join(", ")))
}

/// Parses a size such as `512M`, `1.5G` or `65536`: powers of 1024, with or without a trailing `B`
/// or `iB`.
fn parse_size(text: &str) -> Result<u64, String> {
    let number = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let shift = match text[number.len()..].to_ascii_uppercase().trim_end_matches('B').trim_end_matches('I') {
        "" => Some(0),
        "K" => Some(10),
        "M" => Some(20),
        "G" => Some(30),
        "T" => Some(40),
        _ => None,
    };
    let bytes = shift.zip(number.parse::<f64>().ok()).map(|(shift, number)| number * (1u64 << shift) as f64);
    // Conversion to an integer would saturate.
    bytes.filter(|bytes| (1.0..u64::MAX as f64).contains(bytes)).map(|bytes| bytes as u64).ok_or_else(|| {
        format!("{text:?} is not a size; write a number followed by K, M, G or T, for example 512M, 4G or 1.5T")
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_declaration_is_consistent() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn no_line_of_help_has_more_than_100_columns() {
        let mut program = Arguments::command();
        program.build();
        let commands: Vec<_> = program.get_subcommands().cloned().collect();
        for mut command in commands.into_iter().chain([program]) {
            // What is laid out by hand must not be wrapped, which would break its columns.
            let by_hand = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            let pages = [command.render_help().to_string(), command.render_long_help().to_string(), by_hand];
            let found: Vec<_> =
                pages.iter().flat_map(|page| page.lines()).filter(|line| line.chars().count() > 100).collect();
            assert!(found.is_empty(), "{}: {found:#?}", command.get_name());
        }
    }

    #[test]
    fn sizes_have_units_of_1024() {
        for (text, bytes) in [("65536", 65536), ("512M", 512 << 20), ("4GiB", 4 << 30), ("1.5t", 3 << 39)] {
            assert_eq!(parse_size(text), Ok(bytes), "{text}");
        }
        for text in ["", "G", "4X", "-1G", "0", "1..5G", "99999999T", "inf", "nan", "4é"] {
            assert!(parse_size(text).unwrap_err().contains("for example"), "{text}");
        }
    }
}
