//! Arguments of the commands that bring images to object stores and back.

use crate::units::parse_age;
use clap::{Args, Subcommand};
use std::path::PathBuf;
use std::time::Duration;
use store::At;

/// Arguments of `push`.
#[derive(Debug, Args)]
#[command(after_help = "\
A URL is s3://BUCKET/PREFIX, gs://BUCKET/PREFIX, az://CONTAINER/PREFIX or file:///DIRECTORY, and
holds one image. Credentials, region and endpoint come from the environment (AWS_*, GOOGLE_*,
AZURE_*). The image can be in use: the state of one moment is sent. Killed at any moment, the store
holds the old state or the new one, and the next push sends what is missing.

Examples:
  directfs push work.img s3://backup/work
  directfs push work.img s3://backup/work --tag before-upgrade --keep 7d
  directfs push work.img file:///srv/images/work --json | jq .sent_bytes

Keys of --json: image, url, generation, new, blocks, sent_bytes, duration_ns.")]
pub struct Push {
    /// The image.
    pub image: PathBuf,
    /// Where to.
    pub url: String,
    /// A name for this state, which keeps it. An earlier state with the name loses it.
    #[arg(long, value_name = "NAME", value_parser = parse_tag)]
    pub tag: Option<String>,
    /// Keep older states of this age: 12h, 7d. It holds for later pushes, too. With their age fewer
    /// are kept: a state differs from the next one by a sixteenth of its age.
    #[arg(long, value_name = "TIME", value_parser = parse_age)]
    pub keep: Option<Duration>,
    /// Print the result as JSON.
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `replicate`.
#[derive(Debug, Args)]
#[command(after_help = "\
The image can be in use or not. What was committed since the last look goes to the store as one more
state. One writer has a prefix: this command takes it over, and stops when another writer does so.
A store that does not answer is waited for. SIGINT (Ctrl-C) and SIGTERM end it after a last push.

Examples:
  directfs replicate mail.img s3://backup/mail
  directfs replicate mail.img s3://backup/mail --interval 10s --keep 7d
  directfs replicate mail.img s3://backup/mail --json | jq 'select(.event == \"pushed\").lag_seconds'
  directfs replicate mail.img s3://backup/mail --prometheus /var/lib/node_exporter/mail.prom

With --json each event is a line: event (pushed, waiting, answered, failed, ended); pushed has
generation, time (seconds since 1970), blocks, sent_bytes, lag_seconds, duration_ns; waiting has
seconds and error; failed, after which the image is copied again, has error.

Exit codes: 0 ended by a signal, 1 failed, 3 another writer has taken over.")]
pub struct Replicate {
    /// The image.
    pub image: PathBuf,
    /// Where to.
    pub url: String,
    /// How often to look for changes: 1s, 5m.
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = parse_interval)]
    pub interval: Duration,
    /// Keep older states of this age: 12h, 7d; as `push` does.
    #[arg(long, value_name = "TIME", value_parser = parse_age)]
    pub keep: Option<Duration>,
    /// Write generation, time and lag for Prometheus to this file, at each look.
    #[arg(long, value_name = "FILE")]
    pub prometheus: Option<PathBuf>,
    /// Print events as lines of JSON.
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `pull`.
#[derive(Debug, Args)]
#[command(after_help = "\
Every block is verified. The file appears, or replaces the old one, when it is whole and on disk.

Examples:
  directfs pull s3://backup/work work.img
  directfs pull s3://backup/work old.img --at before-upgrade
  directfs pull s3://backup/work old.img --at 17             the state with this generation
  directfs pull s3://backup/work old.img --at @1764338400    of that time, in seconds since 1970
  directfs pull s3://backup/work work.img --force            in place of the image that is there

Keys of --json: image, url, generation, time (seconds since 1970), tag, length, duration_ns.")]
pub struct Pull {
    /// Where from.
    pub url: String,
    /// The new file.
    pub image: PathBuf,
    /// Replace a file that exists, if no process uses it as an image.
    #[arg(long)]
    pub force: bool,
    /// The state: a tag, a generation, or @SECONDS since 1970 for the newest one that is not later.
    #[arg(long, value_name = "STATE", value_parser = parse_at)]
    pub at: Option<At>,
    /// Print the result as JSON.
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `store`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  directfs store list s3://backup/work
  directfs store gc s3://backup/work")]
pub struct Stores {
    /// What to do.
    #[command(subcommand)]
    pub command: StoreCommand,
}

/// What `store` does.
#[derive(Debug, Subcommand)]
pub enum StoreCommand {
    /// List the states of an image that a store keeps.
    List(StoreList),
    /// Remove what no kept state needs.
    Gc(StoreGc),
}

/// Arguments of `store list`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  directfs store list s3://backup/work
  directfs store list s3://backup/work --json | jq '.states[-1].time'

Keys of --json: url, uuid, writer, keep_seconds, states (generation, time, tag, length,
stored_bytes).")]
pub struct StoreList {
    /// The store.
    pub url: String,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `store gc`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  directfs store gc s3://backup/work
  directfs store gc s3://backup/work --grace 3d     where fetching an image may take days

Keys of --json: url, removed_objects, removed_bytes, waiting_objects.")]
pub struct StoreGc {
    /// The store.
    pub url: String,
    /// Remove only what was not needed for this time: readers of an old state can end.
    #[arg(long, value_name = "TIME", default_value = "1d", value_parser = parse_age)]
    pub grace: Duration,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

fn parse_interval(text: &str) -> Result<Duration, String> {
    match parse_age(text)? {
        interval if interval.is_zero() => Err("write at least 1s".into()),
        interval => Ok(interval),
    }
}

fn parse_tag(text: &str) -> Result<String, String> {
    match store::is_tag(text) {
        true => Ok(text.to_owned()),
        false => {
            Err("a tag has up to 255 bytes, and is neither a number nor begins with @; choose another name".into())
        }
    }
}

fn parse_at(text: &str) -> Result<At, String> {
    if let Some(seconds) = text.strip_prefix('@') {
        let seconds = seconds.parse().map_err(|_| format!("{text:?}: write @ and seconds since 1970"))?;
        return Ok(At::Time(seconds));
    }
    Ok(text.parse().map_or_else(|_| At::Tag(text.to_owned()), At::Generation))
}
