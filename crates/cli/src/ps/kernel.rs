//! What /proc shows: facts about a process, its sleeping threads, and what it has open on a mount.
//!
//! Nothing on a mount is accessed: its server may be dead. Paths come from links in /proc, and a
//! descriptor belongs to a mount if its `mnt_id` does.

use super::report::{Lock, OpenFile, Process, Wait};
use crate::asking;
use crate::mounts::{self, Mount};
use std::collections::HashMap;
use std::ops::Range;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The role of a process that serves a mount.
pub const MOUNT_SERVER: &str = "mount server";

/// Facts about a process.
#[derive(Default)]
pub struct Facts {
    pub uid: Option<u32>,
    pub command: Option<String>,
    pub since_ns: Option<u64>,
}

/// Facts about a process, as far as /proc shows them.
pub fn facts(pid: i32) -> Facts {
    let command = std::fs::read_to_string(format!("/proc/{pid}/comm")).ok();
    Facts {
        uid: std::fs::metadata(format!("/proc/{pid}")).ok().map(|metadata| metadata.uid()),
        command: command.map(|text| text.trim_end().to_owned()),
        since_ns: since_ns(pid),
    }
}

/// When a process began.
fn since_ns(pid: i32) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name, in parentheses, may contain blanks. The start is the 20th field behind it.
    let ticks: u64 = stat.rsplit_once(')')?.1.split_whitespace().nth(19)?.parse().ok()?;
    let boot = std::fs::read_to_string("/proc/stat").ok()?;
    let boot_s: u64 = boot.lines().find_map(|line| line.strip_prefix("btime "))?.trim().parse().ok()?;
    Some(boot_s * 1_000_000_000 + ticks * (1_000_000_000 / rustix::param::clock_ticks_per_second().max(1)))
}

/// The name of a user, or the number.
pub fn user_name(uid: u32) -> String {
    let known = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
    let name = known.lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        (fields.nth(1)?.parse() == Ok(uid)).then(|| name.to_owned())
    });
    name.unwrap_or_else(|| uid.to_string())
}

/// The process of a thread, if this process can see it.
pub fn process_of_thread(tid: u32) -> Option<i32> {
    let status = std::fs::read_to_string(format!("/proc/{tid}/status")).ok()?;
    status.lines().find_map(|line| line.strip_prefix("Tgid:"))?.trim().parse().ok()
}

/// Where a process maps a file: address ranges and offsets. `None`: /proc does not show it, or the
/// process is ending, and has given its memory back.
pub fn mapped_at(pid: i32, (device, inode): (u64, u64)) -> Option<Vec<(Range<u64>, u64)>> {
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).ok()?;
    if maps.is_empty() && !is_of_the_kernel(pid) {
        return None;
    }
    let wanted = format!("{:02x}:{:02x}", rustix::fs::major(device), rustix::fs::minor(device));
    let parse = |line: &str| {
        let mut fields = line.split_whitespace();
        let (start, end) = fields.next()?.split_once('-')?;
        let offset = fields.nth(1)?;
        let is_wanted = fields.next()? == wanted && fields.next()?.parse() == Ok(inode);
        let hexadecimal = |text| u64::from_str_radix(text, 16).ok();
        is_wanted.then_some((hexadecimal(start)?..hexadecimal(end)?, hexadecimal(offset)?))
    };
    Some(maps.lines().filter_map(parse).collect())
}

/// Whether a process is a thread of the kernel, which never has memory of its own.
fn is_of_the_kernel(pid: i32) -> bool {
    const PF_KTHREAD: u64 = 0x0020_0000;
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // The flags are the seventh field behind the name.
    let flags = stat.rsplit_once(')').and_then(|(_, rest)| rest.split_whitespace().nth(6)?.parse::<u64>().ok());
    flags.is_some_and(|flags| flags & PF_KTHREAD != 0)
}

/// The threads of a process that sleep on a futex, and its address.
pub fn futexes(pid: i32) -> Vec<(u32, u64)> {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let tids = tasks.filter_map(|task| task.file_name().to_str()?.parse::<u32>().ok());
    tids.filter_map(|tid| {
        // The number of the call and its arguments; only for processes that this one may trace.
        let call = std::fs::read_to_string(format!("/proc/{pid}/task/{tid}/syscall")).ok()?;
        let mut words = call.split_whitespace();
        let is_futex = words.next()?.parse() == Ok(libc::SYS_futex);
        let address = u64::from_str_radix(words.next()?.strip_prefix("0x")?, 16).ok()?;
        is_futex.then_some((tid, address))
    })
    .collect()
}

/// Adds the programs that use an image through its mounts, in any mount namespace.
pub fn add_mount_users(image: &Path, processes: &mut Vec<Process>) {
    let Ok(image) = image.canonicalize() else { return };
    let own = std::process::id() as i32;
    // A mount of another user counts if a server of this user has the image open.
    let servers = processes.iter().filter(|process| process.role == MOUNT_SERVER);
    let makers: Vec<u32> = servers.filter_map(|process| process.uid).collect();
    let known = known_mounts(&image);
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    for pid in entries.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok()) {
        let points = mount_points(pid, &image, &makers, &known);
        if pid == own || points.is_empty() {
            continue;
        }
        let (mut files, mut locks) = (Vec::new(), Vec::new());
        for fd in descriptors(pid) {
            if let Some(file) = open_file(pid, fd, &points, &mut locks) {
                files.push(file);
            }
        }
        let link = |what: &str| std::fs::read_link(format!("/proc/{pid}/{what}")).ok();
        let directory = link("cwd").and_then(|path| below(&points, &path));
        let program = link("exe").and_then(|path| below(&points, &path));
        if files.is_empty() && directory.is_none() && program.is_none() {
            continue;
        }
        let at = processes.iter().position(|process| process.pid == pid).unwrap_or_else(|| {
            processes.push(Process::of_pid(pid, "mount user"));
            processes.len() - 1
        });
        let process = &mut processes[at];
        process.files.extend(files);
        process.locks.extend(locks);
        process.directory = directory.or(process.directory.take());
        process.program = program.or(process.program.take());
        process.waits.extend(server_waits(pid));
    }
}

/// The mounts that this process sees whose server says which image it has, by device: whether it is
/// this one. The source may be any name, and the image may have been renamed.
fn known_mounts(image: &Path) -> HashMap<(u32, u32), bool> {
    let Ok(identity) = asking::identity(image) else { return HashMap::new() };
    let mounts = mounts::all().into_iter();
    mounts.filter_map(|mount| Some((mount.device, mount.served()?.identity == identity))).collect()
}

/// Where an image is mounted in the namespace of a process: numbers of the mounts, and paths.
fn mount_points(pid: i32, image: &Path, makers: &[u32], known: &HashMap<(u32, u32), bool>) -> Vec<(u64, PathBuf)> {
    let is_of_image = |mount: &Mount| known.get(&mount.device).copied().unwrap_or_else(|| mount.is_of(image, makers));
    let mounts = mounts::of_process(pid).into_iter().filter(|(_, mount)| is_of_image(mount));
    mounts.map(|(number, mount)| (number, mount.point)).collect()
}

fn descriptors(pid: i32) -> Vec<u32> {
    let entries = std::fs::read_dir(format!("/proc/{pid}/fdinfo")).into_iter().flatten().flatten();
    let mut numbers: Vec<u32> = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    numbers.sort_unstable();
    numbers
}

/// A descriptor, if its file is on one of the mounts. Its locks are added.
fn open_file(pid: i32, fd: u32, points: &[(u64, PathBuf)], locks: &mut Vec<Lock>) -> Option<OpenFile> {
    let info = std::fs::read_to_string(format!("/proc/{pid}/fdinfo/{fd}")).ok()?;
    let field = |name: &str| info.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
    let mount: u64 = field("mnt_id:")?.parse().ok()?;
    let point = points.iter().find(|(id, _)| *id == mount)?;
    let target = std::fs::read_link(format!("/proc/{pid}/fd/{fd}")).ok()?;
    let path = below(std::slice::from_ref(point), &target);
    let inode = field("ino:").and_then(|text| text.parse().ok());
    let held = info.lines().filter_map(|line| line.strip_prefix("lock:")).filter_map(kernel_lock);
    locks.extend(held.map(|lock| Lock { inode, path: path.clone(), ..lock }));
    let flags = field("flags:").and_then(|text| i32::from_str_radix(text, 8).ok()).map_or(String::new(), flags);
    let position = field("pos:").and_then(|text| text.parse().ok());
    Some(OpenFile { fd, inode, path, flags, position })
}

/// A line as in /proc/locks: `1: POSIX  ADVISORY  WRITE 4711 00:2f:12 0 EOF`.
fn kernel_lock(line: &str) -> Option<Lock> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let kind = match *words.get(1)? {
        "FLOCK" => "flock",
        "POSIX" => "posix",
        "OFDLCK" => "ofd",
        _ => return None,
    };
    let exclusive = *words.get(3)? == "WRITE";
    let start = words.get(6)?.parse().ok()?;
    Some(Lock { inode: None, path: None, kind, exclusive, start, last: words.get(7)?.parse().ok() })
}

/// The path in the image of a path below one of its mounts.
fn below(points: &[(u64, PathBuf)], path: &Path) -> Option<String> {
    let rest = points.iter().find_map(|(_, point)| path.strip_prefix(point).ok())?;
    Some(format!("/{}", rest.display()))
}

/// The threads of a program that wait for an answer of a mount's server.
fn server_waits(pid: i32) -> Vec<Wait> {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let tids = tasks.filter_map(|task| task.file_name().to_str()?.parse::<u32>().ok());
    let waiting = tids.filter(|tid| {
        std::fs::read_to_string(format!("/proc/{pid}/task/{tid}/wchan")).is_ok_and(|at| at == "request_wait_answer")
    });
    let reason = || "an answer of the mount's server".to_owned();
    waiting.map(|tid| Wait { tid: Some(tid), reason: reason(), held_by: Vec::new() }).collect()
}

/// Flags of open in words.
pub fn flags(flags: i32) -> String {
    let mode = match flags & libc::O_ACCMODE {
        _ if flags & libc::O_PATH != 0 => "path",
        libc::O_RDONLY => "read",
        libc::O_WRONLY => "write",
        _ => "read-write",
    };
    let named = [
        (libc::O_APPEND, "append"),
        (libc::O_NONBLOCK, "nonblock"),
        (libc::O_SYNC, "sync"),
        (libc::O_DSYNC, "dsync"),
        (libc::O_DIRECT, "direct"),
        (libc::O_TMPFILE, "tmpfile"),
        (libc::O_DIRECTORY, "directory"),
    ];
    let mut words = vec![mode];
    let mut rest = flags;
    // O_SYNC contains O_DSYNC, and O_TMPFILE contains O_DIRECTORY.
    for (flag, word) in named {
        if rest & flag == flag {
            rest &= !flag;
            words.push(word);
        }
    }
    words.join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_are_named_once() {
        assert_eq!(flags(libc::O_RDWR | libc::O_SYNC | libc::O_APPEND), "read-write,append,sync");
        assert_eq!(flags(libc::O_RDONLY | libc::O_DIRECTORY), "read,directory");
        assert_eq!(flags(libc::O_PATH), "path");
    }

    #[test]
    fn locks_of_the_kernel_are_read() {
        let lock = kernel_lock("\t1: POSIX  ADVISORY  WRITE 4711 00:2f:12 8 15").unwrap();
        assert_eq!((lock.kind, lock.exclusive, lock.start, lock.last), ("posix", true, 8, Some(15)));
        let lock = kernel_lock("\t1: FLOCK  ADVISORY  READ 4711 00:2f:12 0 EOF").unwrap();
        assert_eq!((lock.kind, lock.exclusive, lock.last), ("flock", false, None));
        assert!(kernel_lock("nonsense").is_none());
    }

    #[test]
    fn this_process_is_described() {
        let own = facts(std::process::id() as i32);
        assert!(own.command.is_some() && own.since_ns.is_some_and(|ns| ns > 0));
        assert_eq!(user_name(0), "root");
    }
}
