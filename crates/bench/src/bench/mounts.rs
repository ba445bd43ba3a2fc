//! The subjects of the section on mounts: an image mounted alone (also without io_uring), one that
//! is shared (`cache=0`), tmpfs, the disk, and directories that the user names, such as one of
//! another FUSE file system.

use super::plan::Section;
use super::subject::Subject;
use super::task::{Task, Work};
use super::workloads::{mounted, tree};
use crate::arguments::{Bench, BenchSubject};
use anyhow::{Context, Result};
use std::path::Path;

/// The options of the measured mounts, with their names in tables. The second one is measured where
/// the kernel offers io_uring, which the first one then uses.
const MOUNTS: [(&str, &str); 3] = [("mount", ""), ("mount, /dev/fuse", "no_io_uring"), ("mount, cache=0", "cache=0")];

/// The subjects, and the reasons for those that the machine does not have. `shares`: other sections
/// use the user's directories, too.
pub fn subjects(arguments: &Bench, shares: bool) -> Result<(Vec<Subject>, Vec<String>)> {
    let opened = std::fs::File::options().read(true).write(true).open("/dev/fuse");
    if let Err(error) = opened {
        return Ok((Vec::new(), vec![format!("mounts: /dev/fuse cannot be opened ({error})")]));
    }
    let (mut subjects, mut absent) = (Vec::new(), Vec::new());
    let offered = std::fs::read_to_string("/sys/module/fuse/parameters/enable_uring");
    let offers_rings = offered.is_ok_and(|value| value.trim() == "Y");
    for (name, options) in MOUNTS.into_iter().filter(|(_, options)| offers_rings || *options != "no_io_uring") {
        subjects.push(Subject::mount(name, &arguments.image_in, options)?);
    }
    let is_wanted = |kind| arguments.beside.is_empty() || arguments.beside.contains(&kind);
    let wanted = [(BenchSubject::Tmpfs, Subject::tmpfs as fn() -> _), (BenchSubject::Disk, Subject::disk)];
    for (kind, find) in wanted.into_iter().filter(|(kind, _)| is_wanted(*kind)) {
        match find() {
            Some(subject) => subjects.push(subject?),
            None => absent.push(format!("{kind:?}: no writable directory on it was found").to_lowercase()),
        }
    }
    for directory in &arguments.directories {
        subjects.push(if shares { Subject::inside(directory)? } else { Subject::named(directory)? });
    }
    Ok((subjects, absent))
}

/// The section with what its programs use, which is created in this directory: a tree unless the
/// plan names one, an archive, a repository.
pub fn prepare(section: &Section, directory: &Path) -> Result<Section> {
    let mut section = section.clone();
    for Task { work, .. } in &mut section.tasks {
        let Work::Mounted { materials } = work else { continue };
        let mut source = materials.source.clone();
        if source.as_os_str().is_empty() {
            source = directory.join("tree");
            std::fs::create_dir(&source).with_context(|| format!("cannot create {}", source.display()))?;
            mounted::generate(&source, materials.names)?;
        }
        let mut names = 0;
        tree::walk(&source, &mut |_, _| {
            names += 1;
            Ok(())
        })?;
        *materials = mounted::prepare(&source, names, directory)?;
    }
    Ok(section)
}
