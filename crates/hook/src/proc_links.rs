//! Paths of the kernel that name descriptors: /proc/self/fd/N and similar ones.

use crate::abi::sys;
use crate::handoff::{number, write_number};

/// The path of a descriptor of this process, which ends with a zero byte.
pub fn descriptor_path(fd: u32) -> [u8; 32] {
    path_in(b"/proc/self/fd/", fd)
}

/// Like [`descriptor_path`], of what the kernel shows about the descriptor.
pub fn information_path(fd: u32) -> [u8; 32] {
    path_in(b"/proc/self/fdinfo/", fd)
}

fn path_in(base: &[u8], fd: u32) -> [u8; 32] {
    let mut path = [0u8; 32];
    path[..base.len()].copy_from_slice(base);
    write_number(fd.into(), &mut path[base.len()..]);
    path
}

/// The descriptor of this process that a path names, if nothing follows it.
pub fn descriptor_of(path: &[u8]) -> Option<u32> {
    match split(path)? {
        (fd, b"") => Some(fd),
        _ => None,
    }
}

/// Whether a path names the link to the file of this process's program.
pub fn is_own_program(path: &[u8]) -> bool {
    path.strip_prefix(b"/proc/").map(cut).is_some_and(|(process, rest)| rest == b"/exe" && is_this_process(process))
}

/// Whether a path names the link to the file of a process's program.
pub fn is_program(path: &[u8]) -> bool {
    path.strip_prefix(b"/proc/").map(cut).is_some_and(|(process, rest)| rest == b"/exe" && number(process).is_some())
}

/// The descriptor of this process that a path begins with, and the rest: empty, or from a slash on.
pub fn split(path: &[u8]) -> Option<(u32, &[u8])> {
    for (name, fd) in [(&b"/dev/stdin"[..], 0), (b"/dev/stdout", 1), (b"/dev/stderr", 2)] {
        if path == name {
            return Some((fd, b""));
        }
    }
    let rest = match path.strip_prefix(b"/dev/fd/") {
        Some(rest) => rest,
        None => own(path)?.strip_prefix(b"/fd/")?,
    };
    let (fd, rest) = cut(rest);
    Some((u32::try_from(number(fd)?).ok()?, rest))
}

/// The process and the descriptor of another process that a path names, if nothing follows it.
pub fn descriptor_of_another(path: &[u8]) -> Option<(u32, u32)> {
    let (process, rest) = cut(path.strip_prefix(b"/proc/")?);
    let process = u32::try_from(number(process)?).ok()?;
    let fd = u32::try_from(number(after_task(rest).strip_prefix(b"/fd/")?)?).ok()?;
    Some((process, fd))
}

/// Whether a path names a directory with this process's descriptors.
pub fn is_listing(path: &[u8]) -> bool {
    own(path).is_some_and(|rest| matches!(rest, b"/fd" | b"/fdinfo"))
}

/// What follows the link to this process's working directory: nothing, or a path from a slash on.
pub fn behind_directory(path: &[u8]) -> Option<&[u8]> {
    own(path)?.strip_prefix(b"/cwd").filter(|rest| rest.is_empty() || rest[0] == b'/')
}

/// What follows this process's directory in /proc, or a thread's in that.
fn own(path: &[u8]) -> Option<&[u8]> {
    let (process, rest) = cut(path.strip_prefix(b"/proc/")?);
    is_this_process(process).then(|| after_task(rest))
}

/// The process whose working directory a path names; `None` inside: this one.
pub fn owner_of_directory(path: &[u8]) -> Option<Option<u32>> {
    let (process, rest) = cut(path.strip_prefix(b"/proc/")?);
    if after_task(rest) != b"/cwd" {
        return None;
    }
    if is_this_process(process) {
        return Some(None);
    }
    Some(Some(u32::try_from(number(process)?).ok()?))
}

/// The process of another id whose working directory a path names, the length of that name, and
/// what follows: nothing, or a path from a slash on.
pub fn behind_directory_of_another(path: &[u8]) -> Option<(u32, usize, &[u8])> {
    let (process, rest) = cut(path.strip_prefix(b"/proc/")?);
    let rest = after_task(rest).strip_prefix(b"/cwd").filter(|rest| rest.is_empty() || rest[0] == b'/')?;
    if is_this_process(process) {
        return None;
    }
    Some((u32::try_from(number(process)?).ok()?, path.len() - rest.len(), rest))
}

/// What follows a thread of the process: all threads have the same descriptors.
fn after_task(rest: &[u8]) -> &[u8] {
    match rest.strip_prefix(b"/task/").map(cut) {
        Some((thread, rest)) if number(thread).is_some() => rest,
        _ => rest,
    }
}

/// Splits at the first slash, which belongs to the second part.
fn cut(path: &[u8]) -> (&[u8], &[u8]) {
    let end = path.iter().position(|&byte| byte == b'/').unwrap_or(path.len());
    path.split_at(end)
}

fn is_this_process(name: &[u8]) -> bool {
    match name {
        b"self" | b"thread-self" => true,
        pid => number(pid).is_some_and(|pid| pid == sys::process_id() as u64),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptors_are_named_in_several_ways() {
        let own = format!("/proc/{}/fd/7", std::process::id());
        for path in ["/dev/fd/7", "/proc/self/fd/7", "/proc/thread-self/fd/7", "/proc/self/task/12/fd/7", &own] {
            assert_eq!(descriptor_of(path.as_bytes()), Some(7), "{path}");
        }
        assert!(
            is_own_program(b"/proc/self/exe") && !is_own_program(b"/proc/self/exe/") && !is_own_program(b"/proc/1/exe")
        );
        assert!(is_program(b"/proc/12/exe") && !is_program(b"/proc/12/exe/") && !is_program(b"/proc/x/exe"));
        assert_eq!(descriptor_of_another(b"/proc/12/fd/3"), Some((12, 3)));
        assert_eq!(descriptor_of_another(b"/proc/12/task/13/fd/3"), Some((12, 3)));
        for path in ["/proc/12/fd/", "/proc/12/fd/3/", "/proc/self/fd/3", "/proc/12/task/x/fd/3", "/dev/fd/3"] {
            assert_eq!(descriptor_of_another(path.as_bytes()), None, "{path}");
        }
        for path in ["/proc/self/cwd", "/proc/thread-self/cwd", &own.replace("fd/7", "cwd")] {
            assert_eq!(owner_of_directory(path.as_bytes()), Some(None), "{path}");
        }
        assert_eq!(owner_of_directory(b"/proc/12/cwd"), Some(Some(12)));
        assert_eq!(owner_of_directory(b"/proc/12/task/13/cwd"), Some(Some(12)));
        for path in ["/proc/12/cwd/", "/proc/x/cwd", "/proc/12/cwdx", "/proc/cwd", "/proc/12/fd/cwd"] {
            assert_eq!(owner_of_directory(path.as_bytes()), None, "{path}");
        }
        for path in ["/proc/self/cwd/a", "/proc/thread-self/cwd/a", &own.replace("fd/7", "cwd/a")] {
            assert_eq!(behind_directory(path.as_bytes()), Some(&b"/a"[..]), "{path}");
        }
        assert_eq!(behind_directory(b"/proc/self/cwd"), Some(&b""[..]));
        assert_eq!(behind_directory_of_another(b"/proc/1/cwd/a/b"), Some((1, 11, &b"/a/b"[..])));
        assert_eq!(behind_directory_of_another(b"/proc/1/task/7/cwd"), Some((1, 18, &b""[..])));
        for path in ["/proc/1/cwdx", "/proc/self/cwd/a", "/proc/x/cwd/a", &own.replace("fd/7", "cwd/a")] {
            assert_eq!(behind_directory_of_another(path.as_bytes()), None, "{path}");
        }
        assert!(behind_directory(b"/proc/self/cwdx").is_none() && behind_directory(b"/proc/1/cwd").is_none());
        for path in ["/proc/self/fd", "/proc/thread-self/fdinfo", &own.replace("fd/7", "fd")] {
            assert!(is_listing(path.as_bytes()), "{path}");
        }
        assert!(!is_listing(b"/proc/1/fd") && !is_listing(b"/proc/self/fd/7") && !is_listing(b"/dev/fd"));
        assert_eq!(descriptor_of(b"/dev/stderr"), Some(2));
        assert_eq!(split(b"/dev/fd/12/a/b"), Some((12, &b"/a/b"[..])));
        for path in ["/dev/fd/", "/dev/fd/x", "/proc/self/fdinfo/7", "/proc/1/fd/7", "/dev/fd/7/", "/dev/stdinx"] {
            assert_eq!(descriptor_of(path.as_bytes()), None, "{path}");
        }
    }
}
