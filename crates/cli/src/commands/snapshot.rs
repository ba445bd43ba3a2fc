//! `directfs snapshot` and `directfs clone`.

use super::info;
use crate::arguments::{CloneImage, Snapshot};
use crate::interrupt::{self, Stopped};
use crate::terminal::{Of, Progress};
use crate::{orders, units};
use anyhow::{Context, Result, ensure};
use image::{ImageError, NewIdentity, OpenImage, copy_state, snapshot_by, unnamed_copy};
use serde_json::json;
use std::fs::File;
use std::io::{IsTerminal, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant};

/// Copies an image. `identity`: of a clone.
pub fn run(arguments: &Snapshot, identity: Option<&NewIdentity>) -> Result<()> {
    interrupt::catch()?;
    let (image, file) = (&arguments.image, &arguments.file);
    let is_stream = file.as_os_str() == "-";
    if is_stream {
        check_stream(arguments)?;
    }
    let begun = Instant::now();
    let copied = match is_stream {
        true => unnamed_copy(image, identity, |into| copy(image, into)).and_then(|copy| send(&copy)),
        false => snapshot_by(image, file, identity, |into| copy(image, into)),
    };
    copied.map_err(|error| match error.downcast_ref() {
        Some(ImageError::Stopped { .. }) => interrupt::Interrupted.into(),
        _ => error,
    })?;
    if is_stream { Ok(()) } else { report(arguments, begun.elapsed(), identity.is_some()) }
}

/// Copies the state of one moment, by the server of a mount that has the image alone.
fn copy(image: &Path, into: &File) -> Result<()> {
    let mut progress = Progress::quiet("copying", Of::Bytes(image::image_length(image).unwrap_or(0)));
    let mut watch = |done: u64, _: u64| {
        progress.at(done);
        interrupt::check().is_ok()
    };
    match orders::server_of(image)? {
        Some(server) => server.copy(into, &mut watch),
        None => Ok(copy_state(image, into, &OpenImage::default(), &mut watch)?),
    }
}

fn check_stream(arguments: &Snapshot) -> Result<()> {
    ensure!(
        !std::io::stdout().is_terminal(),
        "the copy goes to standard output, which is a terminal: redirect it to a pipe, or name a file"
    );
    ensure!(!arguments.json, "standard output has the copy: leave out --json, or name a file");
    Ok(())
}

/// Writes a copy to standard output, with zeros for its holes.
fn send(copy: &File) -> Result<()> {
    const PIECE_BYTES: usize = 1 << 20;
    let (mut reader, mut output) = (copy, std::io::stdout().lock());
    reader.seek(SeekFrom::Start(0))?;
    let mut progress = Progress::quiet("writing", Of::Bytes(copy.metadata()?.len()));
    let (mut piece, mut sent) = (vec![0; PIECE_BYTES], 0);
    loop {
        let length = reader.read(&mut piece).context("cannot read the copy")?;
        if length == 0 {
            return Ok(output.flush()?);
        }
        interrupt::check().map_err(|_| Stopped("interrupted; what was written is no whole image"))?;
        output.write_all(&piece[..length]).context("the copy is not complete: standard output cannot be written")?;
        sent += length as u64;
        progress.at(sent);
    }
}

/// Prints what was done.
fn report(arguments: &Snapshot, took: Duration, is_clone: bool) -> Result<()> {
    let file = &arguments.file;
    let metadata = file.metadata().with_context(|| format!("cannot examine {}", file.display()))?;
    let used_bytes = metadata.blocks() * 512;
    let uuid = if is_clone { Some(info::identity(file)?.1) } else { None };
    if arguments.json {
        let mut value = json!({
            "image": units::path_text(&arguments.image),
            "file": units::path_text(file),
            "length": metadata.len(),
            "used_bytes": used_bytes,
            "duration_ns": took.as_nanos() as u64,
        });
        if let Some(uuid) = uuid {
            value["uuid"] = uuid.into();
        }
        println!("{}", serde_json::to_string_pretty(&value)?);
        return Ok(());
    }
    let (length, used) = (units::size(metadata.len()), units::size(used_bytes));
    let identity = uuid.map_or(String::new(), |uuid| format!(", with the UUID {uuid}"));
    let took = units::duration(took.as_nanos() as f64);
    println!("copied to {} in {took}: {length}, of which the file takes {used}{identity}", file.display());
    Ok(())
}

/// Copies an image, as another one.
pub fn clone(arguments: &CloneImage) -> Result<()> {
    run(&arguments.copy, Some(&NewIdentity { label: arguments.label.clone() }))
}
