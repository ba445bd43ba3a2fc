//! The mount directory. The text of a path alone decides whether it is in the mount. The directory
//! need not exist on the host.

use anyhow::{Result, bail, ensure};
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

/// The directory at which programs see the image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MountDirectory {
    path: PathBuf,
}

impl MountDirectory {
    /// Checks the user's choice. Its existing components must be directories and no symbolic links:
    /// paths are compared by their text, and another text for the same directory would not find the
    /// mount.
    pub fn parse(named: &Path) -> Result<MountDirectory> {
        let shown = named.display();
        ensure!(
            named.is_absolute(),
            "the mount directory {shown} is not absolute: name an absolute path, such as /mnt/directfs"
        );
        let is_dotted = named.components().any(|part| matches!(part, Component::ParentDir | Component::CurDir));
        ensure!(!is_dotted, "the mount directory {shown} contains . or ..: name it without them");
        let path: PathBuf = named.components().collect();
        ensure!(
            path != Path::new("/"),
            "the root cannot be the mount directory: name one below it, such as /mnt/directfs"
        );
        ensure!(
            hook::handoff::is_mount_directory(path.as_os_str().as_bytes()),
            "{shown} cannot be a mount directory: name a path of fewer than 4096 bytes"
        );
        for part in path.ancestors() {
            match std::fs::symlink_metadata(part) {
                Ok(metadata) if metadata.is_symlink() => {
                    let target = part.canonicalize().unwrap_or_else(|_| PathBuf::from("its target"));
                    let rest = path.strip_prefix(part).unwrap_or(Path::new(""));
                    bail!(
                        "the mount directory {shown} goes through the symbolic link {}: name {} instead",
                        part.display(),
                        if rest.as_os_str().is_empty() { target } else { target.join(rest) }.display()
                    );
                }
                Ok(metadata) if !metadata.is_dir() => {
                    bail!(
                        "{shown} cannot be a mount directory: {} is not a directory; name another path",
                        part.display()
                    )
                }
                Ok(_) => {}
                Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {}
                // Below a directory that this user cannot search there is nothing for the mount to
                // hide.
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {}
                Err(error) => bail!("cannot examine {}: {error}; name another mount directory", part.display()),
            }
        }
        Ok(MountDirectory { path })
    }

    /// The directory, in normal form.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Makes the directories above it that the host lacks, where this user may: programs that make
    /// a path from its top (`mkdir -p`) find them, and make none of their own.
    pub fn make_parents(&self) -> MadeParents {
        let parents: Vec<&Path> = self.path.ancestors().skip(1).collect();
        let mut made = Vec::new();
        for parent in parents.into_iter().rev() {
            match std::fs::create_dir(parent) {
                Ok(()) => made.push(parent.to_owned()),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(_) => break,
            }
        }
        MadeParents(made)
    }

    /// The path in the mount of an absolute path in normal form; it begins with a slash. None if it
    /// is outside.
    pub fn inside(&self, path: &Path) -> Option<PathBuf> {
        path.strip_prefix(&self.path).ok().map(|rest| Path::new("/").join(rest))
    }

    /// Whether a command is searched in the mount before other places. `from_inside`: the program
    /// starts in the mount.
    pub fn has_program(&self, name: &OsStr, from_inside: bool) -> bool {
        let is_here = |path: &Path| if path.is_absolute() { self.inside(&normal(path)).is_some() } else { from_inside };
        if name.as_bytes().contains(&b'/') {
            return is_here(Path::new(name));
        }
        let places = std::env::var_os("PATH").unwrap_or_default();
        std::env::split_paths(&places)
            .find(|place| is_here(place) || place.join(name).is_file())
            .is_some_and(|place| is_here(&place))
    }
}

/// Directories that were made on the host. Those that are empty are removed with this value.
#[derive(Debug)]
pub struct MadeParents(Vec<PathBuf>);

impl Drop for MadeParents {
    fn drop(&mut self) {
        for made in self.0.iter().rev() {
            // One that is not empty any more stays.
            let _ = std::fs::remove_dir(made);
        }
    }
}

/// A path without `.`, `..` and double slashes, by its text alone.
pub fn normal(path: &Path) -> PathBuf {
    let mut plain = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => {
                plain.pop();
            }
            Component::CurDir => {}
            part => plain.push(part),
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_a_mount_directory_is_refused_with_a_remedy() {
        let scratch = tempfile::tempdir().unwrap();
        let scratch = scratch.path().canonicalize().unwrap();
        std::fs::write(scratch.join("file"), "").unwrap();
        std::os::unix::fs::symlink(&scratch, scratch.join("link")).unwrap();
        for (named, said) in [
            ("mnt".into(), "not absolute"),
            ("/".into(), "the root"),
            ("//".into(), "the root"),
            ("/mnt/../x".into(), "without"),
            (scratch.join("file"), "is not a directory"),
            (scratch.join("file/below"), "is not a directory"),
            (scratch.join("link/m"), scratch.join("m").to_str().unwrap()),
            (scratch.join("link"), "symbolic link"),
        ] {
            let error = MountDirectory::parse(&named).unwrap_err().to_string();
            assert!(error.contains(said), "{named:?}: {error}");
        }
        assert_eq!(MountDirectory::parse(Path::new("/not/there/")).unwrap().path(), Path::new("/not/there"));
    }

    #[test]
    fn missing_parents_are_there_for_as_long_as_they_are_needed() {
        let scratch = tempfile::tempdir().unwrap();
        let scratch = scratch.path().canonicalize().unwrap();
        let mount = MountDirectory::parse(&scratch.join("none/deep/er")).unwrap();
        let made = mount.make_parents();
        assert!(scratch.join("none/deep").is_dir() && !scratch.join("none/deep/er").exists());
        drop(mount.make_parents());
        assert!(scratch.join("none/deep").is_dir(), "others need them");
        drop(made);
        assert!(!scratch.join("none").exists() && scratch.exists());
    }

    #[test]
    fn paths_are_inside_by_their_text() {
        let mount = MountDirectory { path: "/mnt/d".into() };
        assert_eq!(mount.inside(Path::new("/mnt/d")), Some("/".into()));
        assert_eq!(mount.inside(Path::new("/mnt/d/a/b")), Some("/a/b".into()));
        assert_eq!(mount.inside(Path::new("/mnt/data")), None);
        assert_eq!(normal(Path::new("/mnt/./x/..//d/a")), Path::new("/mnt/d/a"));
        assert!(mount.has_program("/mnt/d/tool".as_ref(), false));
        assert!(mount.has_program("./tool".as_ref(), true) && !mount.has_program("./tool".as_ref(), false));
        assert!(!mount.has_program("sh".as_ref(), false));
    }
}
