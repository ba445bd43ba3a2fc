//! Errors of the libraries in the words of the command line: sizes with units, and remedies that
//! are commands.

use crate::units;
use anyhow::anyhow;
use fuse::MountError;
use image::ImageError;
use launcher::launch::LaunchError;
use pmem::MapError;
use serde_json::json;
use std::io;

/// The error as the command line has it.
pub fn explain(error: anyhow::Error) -> anyhow::Error {
    if let Some(MapError::Empty { path, length }) = mapping_error(&error) {
        return anyhow!(
            "{} is not a DirectFS image: it has only {}; check the path, or make an image with `directfs mkfs`",
            path.display(),
            units::counted(*length, "byte")
        );
    }
    match image_error(&error) {
        Some(ImageError::NoSpace { path, available, needed }) => anyhow!(
            "{} needs {} and {} are free: free space or make a smaller image; --sparse allocates blocks only as they are used",
            path.display(),
            units::size(*needed),
            units::size(*available)
        ),
        Some(ImageError::Size { length, least }) => anyhow!(
            "an image of {} is too small: the minimum is {}; choose a larger size",
            units::size(*length),
            units::size(*least)
        ),
        _ => explain_limit(error),
    }
}

fn image_error(error: &anyhow::Error) -> Option<&ImageError> {
    match error.downcast_ref() {
        Some(MountError::Image(error)) => Some(error),
        _ => error.downcast_ref(),
    }
}

fn mapping_error(error: &anyhow::Error) -> Option<&MapError> {
    match image_error(error) {
        Some(ImageError::Map(error)) => Some(error),
        _ => error.downcast_ref(),
    }
}

/// Names the limit behind the kernel's error: on open files, or on the size of files.
fn explain_limit(error: anyhow::Error) -> anyhow::Error {
    let is_cause = |errno| {
        let is_it = |cause: &(dyn std::error::Error + 'static)| {
            cause.downcast_ref::<io::Error>().and_then(io::Error::raw_os_error) == Some(errno)
                || cause.downcast_ref::<rustix::io::Errno>().map(|errno| errno.raw_os_error()) == Some(errno)
                || matches!(cause.downcast_ref(), Some(LaunchError::NoCache(refused)) if refused.has_errno(errno))
        };
        error.chain().any(is_it)
    };
    let limit = |resource| rustix::process::getrlimit(resource).current;
    if is_cause(libc::EMFILE) && !matches!(image_error(&error), Some(ImageError::NoDescriptors { .. })) {
        let open_files = limit(rustix::process::Resource::Nofile).unwrap_or(u64::MAX);
        return error.context(format!(
            "a process may have only {open_files} open files here: raise that limit (ulimit -n 1024)"
        ));
    }
    if !is_cause(libc::EFBIG) {
        return error;
    }
    match limit(rustix::process::Resource::Fsize) {
        Some(_) => error.context("the limit on file sizes is too low for an image; raise it (ulimit -f unlimited)"),
        None => {
            error.context("its file system holds no file of that size; choose a smaller one, or another file system")
        }
    }
}

/// The error as the result of a command with `--json`: a line.
pub fn as_json(error: &anyhow::Error, exit_code: u8) -> String {
    let causes: Vec<_> = error.chain().skip(1).map(ToString::to_string).collect();
    format!("{}\n", json!({ "error": error.to_string(), "causes": causes, "exit_code": exit_code }))
}
