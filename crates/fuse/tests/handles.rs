//! File handles on a mount, as used by NFS servers: they refer to a file for as long as it exists,
//! even if the kernel has forgotten it meanwhile.

use crate::common::{Mounted, can_mount};
use image::Closed;
use std::ffi::CString;
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant};

const HANDLE_BYTES: usize = 128;

/// The result of name_to_handle_at: the kernel's header, then the file system's identification of
/// the file.
#[repr(C)]
struct Handle {
    handle_bytes: u32,
    handle_type: i32,
    handle: [u8; HANDLE_BYTES],
}

impl Handle {
    fn of(path: &Path) -> Handle {
        let path = CString::new(path.as_os_str().as_bytes()).unwrap();
        let mut handle = Handle { handle_bytes: HANDLE_BYTES as u32, handle_type: 0, handle: [0; HANDLE_BYTES] };
        let mut mount = 0i32;
        // SAFETY: a string, room as declared in the header, and a place for the mount's number.
        let result = unsafe {
            libc::name_to_handle_at(libc::AT_FDCWD, path.as_ptr(), (&raw mut handle).cast(), &raw mut mount, 0)
        };
        assert_eq!(result, 0, "{path:?}: {}", io::Error::last_os_error());
        handle
    }

    fn open(&mut self, mount: &Path) -> io::Result<File> {
        let mount = File::open(mount)?;
        // SAFETY: an open directory, and a complete handle.
        let fd = unsafe { libc::open_by_handle_at(mount.as_raw_fd(), (self as *mut Handle).cast(), libc::O_RDONLY) };
        // SAFETY: a descriptor without another owner.
        if fd < 0 { Err(io::Error::last_os_error()) } else { Ok(unsafe { File::from_raw_fd(fd) }) }
    }

    fn is_stale(&mut self, mount: &Path) -> bool {
        self.open(mount).is_err_and(|error| error.raw_os_error() == Some(libc::ESTALE))
    }
}

fn content(mut file: File) -> String {
    let mut content = String::new();
    file.read_to_string(&mut content).unwrap();
    content
}

fn path_of(file: File) -> String {
    fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd())).unwrap().display().to_string()
}

#[test]
fn handles_open_their_files_also_over_a_remount() {
    if !can_mount("handles_open_their_files_also_over_a_remount") {
        return;
    }
    for options in ["cache=1", "cache=0"] {
        let mut mounted = Mounted::new(options);
        let at = mounted.mount.clone();
        fs::create_dir_all(at.join("a/b")).unwrap();
        fs::write(at.join("a/b/file"), "content").unwrap();
        fs::write(at.join("a/later"), "of a later file").unwrap();
        let (mut file, mut directory, mut root) =
            (Handle::of(&at.join("a/b/file")), Handle::of(&at.join("a/b")), Handle::of(&at));
        let mut later = Handle::of(&at.join("a/later"));
        assert_eq!(content(file.open(&at).unwrap()), "content");
        assert_eq!(mounted.unmount(), Closed::Last);
        mounted.mount();

        assert_eq!(content(file.open(&at).unwrap()), "content", "{options}: a file without a lookup");
        let found = path_of(directory.open(&at).unwrap());
        assert_eq!(found, at.join("a/b").display().to_string(), "{options}: found from below");
        assert_eq!(root.open(&at).unwrap().metadata().unwrap().ino(), fs::metadata(&at).unwrap().ino());

        // After a rename the handle opens the same file. After a removal it is stale, even once
        // other files have its number.
        fs::rename(at.join("a/b/file"), at.join("elsewhere")).unwrap();
        assert_eq!(content(file.open(&at).unwrap()), "content");
        fs::remove_file(at.join("a/later")).unwrap();
        // The kernel holds the file until the server has answered the close of its writer, for
        // which nothing waits.
        let deadline = Instant::now() + Duration::from_secs(600);
        while !later.is_stale(&at) {
            assert!(Instant::now() < deadline, "{options}: removed");
            std::thread::yield_now();
        }
        for number in 0..100 {
            fs::write(at.join(format!("new{number}")), "").unwrap();
        }
        assert!(later.is_stale(&at), "{options}: removed, and its number reused");
        assert_eq!(mounted.unmount(), Closed::Last);
        mounted.mount();
        assert!(later.is_stale(&at), "{options}: after a remount");

        // Forged handles are refused.
        for number in [0u64, 999_999, 1 << 40, u64::MAX] {
            let mut made_up = Handle::of(&at);
            made_up.handle[..8].copy_from_slice(&number.rotate_left(32).to_le_bytes());
            assert!(made_up.is_stale(&at), "{options}: number {number}");
        }
        assert_eq!(mounted.unmount(), Closed::Last);
    }
}
