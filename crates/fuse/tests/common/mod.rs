//! A mounted image in a scratch directory.
#![allow(dead_code)]

use fuse::{MountOptions, Server};
use image::{Closed, Image, MakeOptions, OpenImage, make};
use std::path::{Path, PathBuf};
use tempfile::TempDir;

pub const IMAGE_BYTES: u64 = 256 << 20;

/// Whether a mount is possible; if not, prints the reason.
pub fn can_mount(test: &str) -> bool {
    let device = std::fs::OpenOptions::new().read(true).write(true).open("/dev/fuse");
    match device {
        Ok(_) if rustix::process::geteuid().is_root() => true,
        Ok(_) => skip(test, "mounting in a test needs root"),
        Err(error) => skip(test, &format!("/dev/fuse cannot be opened: {error}")),
    }
}

/// Prints why a test does nothing; returns false.
pub fn skip(test: &str, reason: &str) -> bool {
    println!("SKIPPED: {test}: {reason}");
    // Captured output is shown for failed tests only; this bypasses the capture.
    use std::io::Write;
    let _ = writeln!(std::io::stderr().lock(), "SKIPPED: {test}: {reason}");
    false
}

/// Names a file in a mount to a process that a test has started.
const FILE_VARIABLE: &str = "DIRECTFS_TEST_FILE";

/// In a process that [`in_other_process`] started: the file in the mount.
pub fn given_file() -> Option<PathBuf> {
    std::env::var_os(FILE_VARIABLE).map(PathBuf::from)
}

/// Runs a test in a process of its own, with a file in the mount. A process that maps a file of a
/// mount must not serve that mount: its page faults and unmappings would wait for the server, which
/// may itself wait for the lock on the addresses of the process.
pub fn in_other_process(test: &str, file: &Path) {
    let program = std::env::current_exe().unwrap();
    let mut other = std::process::Command::new(program);
    let output = other.args([test, "--exact", "--nocapture"]).env(FILE_VARIABLE, file).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    // A name that no test has is no failure to it.
    assert!(output.status.success() && said.contains("1 passed"), "{test} in another process: {said}");
}

/// A mounted image.
pub struct Mounted {
    server: Option<Server>,
    pub scratch: TempDir,
    pub mount: PathBuf,
    pub image: PathBuf,
    pub options: MountOptions,
}

pub fn scratch() -> TempDir {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap()
}

impl Mounted {
    pub fn new(options: &str) -> Mounted {
        let scratch = scratch();
        let image = scratch.path().join("image");
        let mount = scratch.path().join("mount");
        std::fs::create_dir(&mount).unwrap();
        make(&image, &MakeOptions { length: IMAGE_BYTES, ..MakeOptions::default() }).unwrap();
        let options = MountOptions::parse(options).unwrap();
        let mut mounted = Mounted { server: None, scratch, mount, image, options };
        mounted.mount();
        mounted
    }

    /// The server's options for opening the image; other users of the shared image use the same.
    pub fn opening(&self) -> OpenImage {
        OpenImage {
            read_only: self.options.read_only,
            exclusive: self.options.cache.is_exclusive(),
            dram_directory: self.scratch.path().to_owned(),
            ..OpenImage::default()
        }
    }

    pub fn mount(&mut self) {
        let image = Image::open(&self.image, &self.opening()).unwrap();
        self.server = Some(Server::start(image, &self.mount, &self.options).unwrap());
    }

    /// Unmounts and waits for the server.
    pub fn unmount(&mut self) -> Closed {
        self.leave();
        self.wait()
    }

    /// Unmounts; the server ends when none of its files is in use.
    pub fn leave(&self) {
        self.server.as_ref().unwrap().stopper().stop().unwrap();
    }

    /// Waits for the server after an unmount.
    pub fn wait(&mut self) -> Closed {
        self.server.take().unwrap().wait().unwrap()
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.mount.join(name)
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if let Some(server) = self.server.take() {
            let _ = server.stopper().stop();
            let _ = server.wait();
        }
    }
}

/// Runs a shell script in a directory; returns its output with the exit code.
pub fn shell(directory: &Path, script: &str) -> String {
    let output = std::process::Command::new("sh")
        .arg("-c")
        .arg(script)
        .current_dir(directory)
        .env("LC_ALL", "C")
        .output()
        .unwrap();
    let text = [output.stdout, output.stderr].concat();
    format!("{}{:?}", String::from_utf8_lossy(&text), output.status.code())
}
