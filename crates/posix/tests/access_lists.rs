//! POSIX access control lists: random lists, modes, creations and users, compared with the kernel's
//! results on tmpfs.

mod common;

use common::{ALICE, BOB, ROOT, Session, inside};
use engine::format::FileKind;
use posix::{Credentials, Errno, Result, Want};
use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

const ACCESS: &str = "system.posix_acl_access";
const DEFAULT: &str = "system.posix_acl_default";
const CAROL: Credentials<'static> = Credentials::user(2000, 2000, &[70]);
const STEPS: u32 = 1500;

/// Xorshift generator: the same numbers for the same seed.
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % end
    }

    fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len() as u64) as usize]
    }

    fn bits(&mut self) -> u16 {
        self.below(8) as u16
    }

    /// A list, mostly a valid one.
    fn list(&mut self) -> Vec<u8> {
        let mut entries = vec![(1u16, self.bits(), u32::MAX)];
        let users: Vec<u32> = [1000, 1001, 2000].into_iter().filter(|_| self.below(3) == 0).collect();
        let groups: Vec<u32> = [50, 60, 70, 1000].into_iter().filter(|_| self.below(3) == 0).collect();
        let named = !users.is_empty() || !groups.is_empty();
        for id in users {
            entries.push((2, self.bits(), id));
        }
        entries.push((4, self.bits(), u32::MAX));
        for id in groups {
            entries.push((8, self.bits(), id));
        }
        if named || self.below(4) == 0 {
            entries.push((16, self.bits(), u32::MAX));
        }
        entries.push((32, self.bits(), u32::MAX));
        match self.below(12) {
            0 => drop(entries.remove(self.below(entries.len() as u64) as usize)),
            1 => entries.clear(),
            2 => entries.swap(0, 1),
            _ => {}
        }
        let mut value = if self.below(40) == 0 { vec![1, 0, 0, 0] } else { vec![2, 0, 0, 0] };
        for (tag, permissions, id) in entries {
            value.extend(tag.to_le_bytes());
            value.extend(permissions.to_le_bytes());
            value.extend(id.to_le_bytes());
        }
        if self.below(40) == 0 {
            value.pop();
        }
        value
    }
}

/// An operation on a file at a path.
#[derive(Debug, Clone)]
enum Step {
    Set(&'static str, Vec<u8>),
    Remove(&'static str),
    Chmod(u32),
    Make(FileKind, u32, u32),
}

/// The observable state of a file.
#[derive(Debug, PartialEq, Eq)]
struct Seen {
    mode: u32,
    lists: [Result<Vec<u8>>; 2],
    names: Vec<u8>,
    /// Per user a bit for each of the seven access masks that are granted.
    granted: [u8; 4],
}

const USERS: [Credentials<'static>; 4] = [ROOT, ALICE, BOB, CAROL];

/// Makes a kernel call with given credentials, in a separate thread, because raw calls change the
/// ids of one thread.
fn as_user(credentials: Credentials<'static>, call: impl FnOnce() -> libc::c_long + Send) -> Result<i64> {
    let run = || {
        // SAFETY: the calls change only the ids of this thread, which ends here; the pointer and
        // length describe the groups.
        unsafe {
            libc::syscall(libc::SYS_setgroups, credentials.groups.len(), credentials.groups.as_ptr());
            libc::syscall(libc::SYS_setresgid, credentials.gid, credentials.gid, credentials.gid);
            libc::syscall(libc::SYS_setresuid, credentials.uid, credentials.uid, credentials.uid);
        }
        let result = call();
        let errno = std::io::Error::last_os_error().raw_os_error().unwrap();
        if result < 0 { Err(Errno(errno)) } else { Ok(result) }
    };
    std::thread::scope(|scope| scope.spawn(run).join().unwrap())
}

fn c(text: impl AsRef<[u8]>) -> CString {
    CString::new(text.as_ref()).unwrap()
}

fn kernel_does(at: &Path, credentials: Credentials<'static>, step: &Step) -> Result<()> {
    let path = c(at.as_os_str().as_bytes());
    // SAFETY: strings end with zero and live through the call; pointer and length describe the
    // value.
    let call = || unsafe {
        match step {
            Step::Set(name, value) => {
                libc::setxattr(path.as_ptr(), c(name).as_ptr(), value.as_ptr().cast(), value.len(), 0).into()
            }
            Step::Remove(name) => libc::removexattr(path.as_ptr(), c(name).as_ptr()).into(),
            Step::Chmod(mode) => libc::chmod(path.as_ptr(), *mode).into(),
            Step::Make(kind, mode, umask) => {
                libc::umask(*umask);
                let made: libc::c_long = match kind {
                    FileKind::Directory => libc::mkdir(path.as_ptr(), *mode).into(),
                    FileKind::Symlink => libc::symlink(c"x".as_ptr(), path.as_ptr()).into(),
                    _ => libc::mknod(path.as_ptr(), *mode | libc::S_IFREG, 0).into(),
                };
                made
            }
        }
    };
    as_user(credentials, call).map(drop)
}

fn kernel_sees(at: &Path) -> Result<Seen> {
    use std::os::unix::fs::MetadataExt;
    let path = c(at.as_os_str().as_bytes());
    let mut buffer = [0u8; 1000];
    let list = |name: &str, buffer: &mut [u8]| {
        // SAFETY: as above.
        let got = unsafe { libc::getxattr(path.as_ptr(), c(name).as_ptr(), buffer.as_mut_ptr().cast(), buffer.len()) };
        let errno = std::io::Error::last_os_error().raw_os_error().unwrap();
        usize::try_from(got).map(|length| buffer[..length].to_vec()).map_err(|_| Errno(errno))
    };
    let lists = [list(ACCESS, &mut buffer), list(DEFAULT, &mut buffer)];
    // SAFETY: as above.
    let length = unsafe { libc::listxattr(path.as_ptr(), buffer.as_mut_ptr().cast(), buffer.len()) };
    let granted = USERS.map(|credentials| {
        (1..8u8)
            .filter(|want| {
                let call =
                // SAFETY: as above.
                || unsafe { libc::syscall(libc::SYS_faccessat2, -100, path.as_ptr(), *want as i32, libc::AT_EACCESS) };
                as_user(credentials, call).is_ok()
            })
            .fold(0, |granted, want| granted | 1 << want)
    });
    let mode = std::fs::symlink_metadata(at).map_err(|error| Errno(error.raw_os_error().unwrap()))?.mode();
    Ok(Seen { mode, lists, names: sorted(&buffer[..usize::try_from(length).unwrap()]), granted })
}

/// Sorts the names of attributes, whose order is unspecified.
fn sorted(names: &[u8]) -> Vec<u8> {
    let mut each: Vec<&[u8]> = names.split_inclusive(|byte| *byte == 0).collect();
    each.sort();
    each.concat()
}

fn we_do(session: &Session<'_, '_>, path: &str, step: &Step) -> Result<()> {
    let caller = &session.caller;
    match step {
        Step::Set(name, value) => {
            session.at(path, |node| caller.xattrs().set_attribute(node, name.as_bytes(), value, 0))
        }
        Step::Remove(name) => session.at(path, |node| caller.xattrs().remove_attribute(node, name.as_bytes())),
        Step::Chmod(mode) => session.chmod(path, *mode),
        Step::Make(FileKind::Symlink, ..) => session.symlink("x", path),
        Step::Make(FileKind::Directory, mode, umask) => session.mkdir_masked(path, *mode, *umask),
        Step::Make(_, mode, umask) => session.mknod_masked(path, *mode | libc::S_IFREG, *umask),
    }
}

fn we_see(session: &Session<'_, '_>, path: &str) -> Result<Seen> {
    let mut buffer = [0u8; 1000];
    let mut list = |name: &str| {
        let length =
            session.at(path, |node| session.caller.xattrs().get_attribute(node, name.as_bytes(), &mut buffer))?;
        Ok(buffer[..length].to_vec())
    };
    let lists = [list(ACCESS), list(DEFAULT)];
    let length = session.at(path, |node| session.caller.xattrs().list_attributes(node, &mut buffer))?;
    let names = sorted(&buffer[..length]);
    let granted = USERS.map(|credentials| {
        let session = Session::new(session.caller.thread, session.walk_start.root, credentials);
        let may = |want: &u8| session.at(path, |node| session.caller.access(node, Want(*want as u32))).is_ok();
        (1..8u8).filter(may).fold(0, |granted, want| granted | 1 << want)
    });
    Ok(Seen { mode: session.lstat(path)?.mode, lists, names, granted })
}

#[test]
fn access_lists_decide_as_the_kernel_does() {
    let scratch = tempfile::tempdir_in("/dev/shm").unwrap();
    let probe = Step::Set(
        DEFAULT,
        vec![
            2, 0, 0, 0, 1, 0, 7, 0, 255, 255, 255, 255, 4, 0, 5, 0, 255, 255, 255, 255, 32, 0, 5, 0, 255, 255, 255, 255,
        ],
    );
    // SAFETY: reads the effective user id.
    if unsafe { libc::geteuid() } != 0 || kernel_does(scratch.path(), ROOT, &probe).is_err() {
        eprintln!("SKIPPED access_lists_decide_as_the_kernel_does: needs root, and a tmpfs with access control lists");
        return;
    }
    kernel_does(scratch.path(), ROOT, &Step::Remove(DEFAULT)).unwrap();
    let seed = 0x5eed_0ac1_u64;
    println!("seed {seed:#x}");
    let mut random = Random(seed);
    // SAFETY: changes only the umask, which nothing else in this process uses.
    let umask = unsafe { libc::umask(0) };
    kernel_does(scratch.path(), ROOT, &Step::Chmod(0o777)).unwrap();
    inside(|thread, root| {
        Session::new(thread, root, ROOT).chmod("/", 0o777).unwrap();
        let mut paths = vec!["".to_string()];
        for step in 0..STEPS {
            let credentials = random.pick(&[ROOT, ALICE, ALICE, BOB]);
            let mut path = random.pick(&paths.iter().map(String::as_str).collect::<Vec<_>>()).to_string();
            let action = match random.below(10) {
                0..=2 => Step::Set(ACCESS, random.list()),
                3..=4 => Step::Set(DEFAULT, random.list()),
                5 => Step::Remove(random.pick(&[ACCESS, DEFAULT])),
                6 => Step::Chmod(random.below(0o10000) as u32),
                _ => {
                    path = format!("{path}/{step}");
                    let kinds = [FileKind::Directory, FileKind::Directory, FileKind::Regular, FileKind::Symlink];
                    Step::Make(random.pick(&kinds), random.below(0o2000) as u32, random.pick(&[0, 0o22, 0o77]))
                }
            };
            let at = scratch.path().join(path.trim_start_matches('/'));
            let absolute = if path.is_empty() { "/" } else { &path };
            let session = Session::new(thread, root, credentials);
            let described = format!("step {step}: user {} does {action:?} at {absolute}", credentials.uid);
            let expected = kernel_does(&at, credentials, &action);
            assert_eq!(we_do(&session, absolute, &action), expected, "{described}");
            let everyone = Session::new(thread, root, ROOT);
            if matches!(action, Step::Make(FileKind::Symlink, ..)) {
                continue;
            }
            assert_eq!(we_see(&everyone, absolute), kernel_sees(&at), "after {described}");
            if matches!(action, Step::Make(..)) && expected.is_ok() && paths.len() < 60 {
                paths.push(path);
            }
        }
    });
    // SAFETY: as above.
    unsafe { libc::umask(umask) };
}
