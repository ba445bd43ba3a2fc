//! The measured systems: DirectFS under `directfs run`, and directories of the machine's file
//! systems. Each has a worker; all workers run the same workloads, in turn.

use super::plan::SpaceNeeds;
use super::scratch::{Scratch, SpaceNeeded, require_memory};
use super::session::Session;
use super::task::{Outcome, Task, Work, Workers};
use super::workloads::tree::has;
use crate::mounted::Mounted;
use crate::mounts::RUN_DIRECTORY;
use anyhow::{Context, Result, ensure};
use console::images::make_shown;
use image::{Image, MakeOptions, OpenImage};
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// File systems in memory to compare with.
const MEMORY_KINDS: [&str; 2] = ["tmpfs", "ramfs"];
/// File systems on a disk to compare with.
const DISK_KINDS: [&str; 9] = ["ext4", "xfs", "btrfs", "ext3", "ext2", "f2fs", "zfs", "bcachefs", "overlay"];

/// The program under which syncs do nothing.
const WITHOUT_SYNCS: &str = "eatmydata";

/// A measured system.
pub struct Subject {
    /// Its name in tables.
    pub name: String,
    /// Its file system type and location.
    pub place: String,
    /// The state that the first calls of a program find there.
    pub cold: &'static str,
    access: AccessMethod,
    session: Option<Session>,
    timer_ns: u64,
    /// Time per file in a round of calls, from the last round.
    round_per_file: Option<Duration>,
    // Dropped after the session, which uses it.
    scratch: Scratch,
}

/// How the worker accesses it.
enum AccessMethod {
    /// With an image inside the worker.
    Run { image: PathBuf, always_flush: bool },
    /// Through a mount of an image, which exists while a worker runs.
    Mount { image: PathBuf, options: String, mounted: Option<Mounted> },
    /// Through the kernel; `without_syncs`: under eatmydata(1), so that syncs do nothing.
    Kernel { in_memory: bool, without_syncs: bool },
}

impl Subject {
    /// DirectFS, with an image in this directory; `name` is for tables.
    pub fn directfs(name: &str, at: &Path, always_flush: bool) -> Result<Subject> {
        ensure!(
            crate::mounts::surrounding().is_none(),
            "this program already runs under directfs run, which allows one image: start it outside, or measure without DirectFS (--beside)"
        );
        let scratch = Scratch::beside_others(at, "image")?;
        let kind = kind_of(at);
        Ok(Subject {
            name: name.into(),
            place: format!("directfs run, with its image on {kind} in {}", at.display()),
            cold: "the image is attached again: nothing is indexed or cached in DRAM",
            access: AccessMethod::Run { image: scratch.path().join("image"), always_flush },
            session: None,
            timer_ns: 0,
            round_per_file: None,
            scratch,
        })
    }

    /// DirectFS with its image on the disk, if a directory on one is writable.
    pub fn journaled(always_flush: bool) -> Option<Result<Subject>> {
        Subject::disk_directory().map(|directory| Subject::directfs("directfs, journaled", &directory, always_flush))
    }

    /// A mount of an image in this directory.
    pub fn mount(name: &str, at: &Path, options: &str) -> Result<Subject> {
        let scratch = Scratch::beside_others(at, "mount")?;
        let kind = kind_of(at);
        let point = scratch.mount_point();
        std::fs::create_dir(&point).with_context(|| format!("cannot create {}", point.display()))?;
        let shown = if options.is_empty() { "alone on it" } else { options };
        Ok(Subject {
            name: name.into(),
            place: format!("directfs mount, {shown}, with its image on {kind} in {}", at.display()),
            cold: "the image is mounted again: neither the server nor the kernel has anything cached",
            access: AccessMethod::Mount {
                image: scratch.path().join("image"),
                options: options.to_owned(),
                mounted: None,
            },
            session: None,
            timer_ns: 0,
            round_per_file: None,
            scratch,
        })
    }

    /// tmpfs, if the machine has a writable one.
    pub fn tmpfs() -> Option<Result<Subject>> {
        let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
        let places = [PathBuf::from("/dev/shm")].into_iter().chain(runtime).chain([std::env::temp_dir()]);
        let place = places.into_iter().find(|place| kind_of(place) == "tmpfs" && may_write(place))?;
        Some(Subject::kernel("tmpfs", &place, Scratch::beside_others(&place, "tmpfs")))
    }

    /// A writable directory on a disk, if there is one.
    fn disk_directory() -> Option<PathBuf> {
        let here = std::env::current_dir().ok();
        let places = [std::env::temp_dir(), PathBuf::from("/var/tmp")].into_iter().chain(here);
        places.into_iter().find(|place| DISK_KINDS.contains(&kind_of(place).as_str()) && may_write(place))
    }

    /// The disk, if a directory on one is writable.
    pub fn disk() -> Option<Result<Subject>> {
        let place = Subject::disk_directory()?;
        let name = kind_of(&place);
        Some(Subject::kernel(&name, &place, Scratch::beside_others(&place, "disk")))
    }

    /// The disk, for programs whose syncs do nothing, if the machine has eatmydata(1).
    pub fn disk_without_syncs() -> Option<Result<Subject>> {
        let subject = has(WITHOUT_SYNCS).then(Subject::disk).flatten()?;
        Some(subject.map(|mut subject| {
            subject.name += " with eatmydata";
            subject.place += ", under eatmydata";
            subject.access = AccessMethod::Kernel { in_memory: false, without_syncs: true };
            subject
        }))
    }

    /// How long a disk takes to write and sync 4 KiB, which shows what kind of disk it is.
    pub fn sync_ns(&self) -> Option<f64> {
        const SYNCS: usize = 65;
        if !self.is_disk() {
            return None;
        }
        let file = File::create(self.scratch.path().join("synced")).ok()?;
        let mut times = Vec::with_capacity(SYNCS);
        for at in 0..SYNCS {
            let started = Instant::now();
            file.write_all_at(&[1; 4096], 4096 * at as u64).and_then(|()| file.sync_data()).ok()?;
            times.push(started.elapsed().as_nanos() as f64);
        }
        times.sort_by(f64::total_cmp);
        Some(times[SYNCS / 2])
    }

    /// A directory given by the user.
    pub fn named(directory: &Path) -> Result<Subject> {
        Subject::kernel(&directory.display().to_string(), directory, Scratch::in_empty(directory))
    }

    /// [`Subject::named`], where another subject may use the directory, too.
    pub fn inside(directory: &Path) -> Result<Subject> {
        Subject::kernel(&directory.display().to_string(), directory, Scratch::beside_others(directory, "inside"))
    }

    fn kernel(name: &str, at: &Path, scratch: Result<Scratch>) -> Result<Subject> {
        let scratch = scratch?;
        let kind = kind_of(at);
        let in_memory = MEMORY_KINDS.contains(&kind.as_str());
        let cold = match in_memory {
            true => "a new process; files in memory have no colder state",
            false => {
                "a new process, after sync; pages of files are dropped by posix_fadvise, names and attributes stay in the kernel's caches, which an \
                 ordinary user cannot empty"
            }
        };
        let place = format!("{kind} in {}", at.display());
        Ok(Subject {
            name: name.into(),
            place,
            cold,
            access: AccessMethod::Kernel { in_memory, without_syncs: false },
            session: None,
            timer_ns: 0,
            round_per_file: None,
            scratch,
        })
    }

    /// Whether it is a file system of the kernel on a disk.
    pub fn is_disk(&self) -> bool {
        matches!(self.access, AccessMethod::Kernel { in_memory: false, without_syncs: false })
    }

    /// Opens its image, to keep it in use between the programs of a worker.
    pub fn open_image(&self) -> Result<Option<Image>> {
        let AccessMethod::Run { image, .. } = &self.access else { return Ok(None) };
        Ok(Some(Image::open(image, &OpenImage::default())?))
    }

    /// Whether it is DirectFS under `run`.
    pub fn is_directfs(&self) -> bool {
        matches!(self.access, AccessMethod::Run { .. })
    }

    /// Whether it is a mount.
    pub fn is_mount(&self) -> bool {
        matches!(self.access, AccessMethod::Mount { .. })
    }

    /// The directory of its files, outside a mount.
    pub fn directory(&self) -> &Path {
        self.scratch.path()
    }

    fn is_in_memory(&self) -> bool {
        match self.access {
            AccessMethod::Run { .. } | AccessMethod::Mount { .. } => {
                MEMORY_KINDS.contains(&kind_of(self.scratch.path()).as_str())
            }
            AccessMethod::Kernel { in_memory, .. } => in_memory,
        }
    }

    /// The room that it needs on its file system.
    fn room(&self, needs: &SpaceNeeds) -> SpaceNeeded {
        match self.access {
            AccessMethod::Run { .. } | AccessMethod::Mount { .. } => {
                SpaceNeeded { bytes: needs.image().bytes + needs.materials_bytes(), files: 1 }
            }
            AccessMethod::Kernel { in_memory, .. } => needs.kernel(in_memory),
        }
    }

    /// Creates the image, if it has one, with all blocks allocated as mkfs does it and as on
    /// persistent memory. Adds to the description whether changes are flushed.
    pub fn prepare(&mut self, needs: &SpaceNeeds) -> Result<()> {
        let image = match &self.access {
            AccessMethod::Run { image, always_flush } => Some((image, *always_flush)),
            AccessMethod::Mount { image, .. } => Some((image, false)),
            AccessMethod::Kernel { .. } => None,
        };
        if let Some((image, always_flush)) = image {
            let SpaceNeeded { bytes, files } = needs.image();
            let options = MakeOptions {
                length: bytes.next_multiple_of(2 << 20),
                label: "benchmark".into(),
                inodes_max: files,
                ..MakeOptions::default()
            };
            let made = make_shown(image, &options).context("cannot create an image to measure")?;
            if made.reserved {
                self.place += ", its blocks allocated in advance as by mkfs";
            }
            self.place += match always_flush || made.backing.needs_flushes() {
                true => "; changes are flushed from the processor's caches",
                false => "; nothing is flushed, because flushes add no safety there (--always-flush)",
            };
        }
        Ok(())
    }

    /// Runs a task in the worker, which is started if necessary.
    pub fn perform(&mut self, task: &Task, tick: &mut dyn FnMut()) -> Result<Vec<Outcome>> {
        if let Work::Cold { files } = task.work {
            // One process creates the files, the next one finds them.
            let prepare = Task { work: Work::Prepare { files }, crew: Workers::ONE };
            self.in_session(&prepare, tick)?;
            self.end()?;
        }
        self.in_session(task, tick)
    }

    /// The expected time of a task outside memory, if an earlier one showed it: some disks take
    /// milliseconds per call.
    pub fn expected(&self, task: &Task) -> Option<Duration> {
        if self.is_in_memory() {
            return None;
        }
        let files = round_files(&task.work)?;
        Some(self.round_per_file? * u32::try_from(files).unwrap_or(u32::MAX))
    }

    fn in_session(&mut self, task: &Task, tick: &mut dyn FnMut()) -> Result<Vec<Outcome>> {
        let session = match &mut self.session {
            Some(session) => session,
            none => {
                self.access.begin(&self.scratch)?;
                none.insert(Session::start(self.access.command(&self.scratch)?, tick)?)
            }
        };
        self.timer_ns = session.timer_ns;
        let started = Instant::now();
        let outcomes = session.perform(task, tick)?;
        if let Some(files) = round_files(&task.work) {
            self.round_per_file = Some(started.elapsed() / u32::try_from(files).unwrap_or(u32::MAX).max(1));
        }
        Ok(outcomes)
    }

    /// Ends its worker.
    pub fn end(&mut self) -> Result<()> {
        self.session.take().map_or(Ok(()), Session::end)?;
        match &mut self.access {
            AccessMethod::Mount { mounted, .. } => mounted.take().map_or(Ok(()), Mounted::end),
            _ => Ok(()),
        }
    }

    /// The cost of reading the clock in its worker.
    pub fn timer_ns(&self) -> u64 {
        self.timer_ns
    }
}

impl Drop for Subject {
    fn drop(&mut self) {
        if let AccessMethod::Mount { mounted, .. } = &mut self.access {
            // The worker first: it uses the mount.
            drop((self.session.take(), mounted.take()));
        }
        if let (Some(session), AccessMethod::Run { image, .. }) = (self.session.take(), &self.access) {
            drop(session);
            // If the launcher was killed with its programs, their shared memory is still there. The
            // last close removes it.
            if let Ok(left) = Image::open(image, &OpenImage::default()) {
                let _ = left.close();
            }
        }
    }
}

impl AccessMethod {
    /// Makes what a worker needs.
    fn begin(&mut self, scratch: &Scratch) -> Result<()> {
        if let AccessMethod::Mount { image, options, mounted } = self {
            let options: Vec<String> = Some(options.clone()).filter(|list| !list.is_empty()).into_iter().collect();
            *mounted = Some(Mounted::begin(image, &scratch.mount_point(), &options)?);
        }
        Ok(())
    }

    /// The command that starts a worker.
    fn command(&self, scratch: &Scratch) -> Result<Command> {
        let own = std::env::current_exe().context("cannot find this program's file; is /proc mounted?")?;
        let mut command = match self {
            AccessMethod::Kernel { without_syncs: true, .. } => {
                let mut command = Command::new(WITHOUT_SYNCS);
                command.arg(&own);
                command
            }
            _ => Command::new(&own),
        };
        let mount_point = scratch.mount_point();
        let scratch = scratch.path();
        let place = match self {
            AccessMethod::Mount { .. } => &mount_point,
            AccessMethod::Run { image, always_flush } => {
                command
                    .arg("run")
                    .args(always_flush.then_some("--always-flush"))
                    .arg("--image")
                    .arg(image)
                    .args(["--at", RUN_DIRECTORY, "--"])
                    .arg(&own);
                Path::new(RUN_DIRECTORY)
            }
            AccessMethod::Kernel { .. } => scratch,
        };
        let words: [&OsStr; 5] =
            ["bench-worker".as_ref(), "--owned".as_ref(), scratch.as_os_str(), "--".as_ref(), place.as_os_str()];
        command.args(words);
        Ok(command)
    }
}

/// An error unless there is room for all of them; checked before measuring.
pub fn require_room(subjects: &[Subject], needs: &SpaceNeeds) -> Result<()> {
    let mut by_device: BTreeMap<u64, (PathBuf, SpaceNeeded)> = BTreeMap::new();
    let has_image = subjects.iter().any(|subject| subject.is_directfs() || subject.is_mount());
    let mut memory = needs.memory(has_image);
    for subject in subjects {
        let path = subject.scratch.path();
        let room = subject.room(needs);
        let device = std::fs::metadata(path).with_context(|| format!("cannot examine {}", path.display()))?.dev();
        let parent = path.parent().unwrap_or(path).to_owned();
        let sum = by_device.entry(device).or_insert((parent, SpaceNeeded::default()));
        sum.1 = sum.1.and(room);
        // An image on a disk has a working copy in memory.
        if subject.is_in_memory() || subject.is_directfs() {
            memory += room.bytes;
        }
    }
    for (path, room) in by_device.values() {
        room.require(path)?;
    }
    require_memory(memory)
}

/// The number of files of work that creates, uses and removes them by single calls.
fn round_files(work: &Work) -> Option<u64> {
    match work {
        Work::Calls { files } | Work::Mdtest { files } => Some(*files),
        _ => None,
    }
}

/// The type of a directory's file system in the mount table.
fn kind_of(directory: &Path) -> String {
    crate::mounts::covering(directory).map_or_else(|| "unknown file system".into(), |mount| mount.kind)
}

fn may_write(directory: &Path) -> bool {
    rustix::fs::access(directory, rustix::fs::Access::WRITE_OK | rustix::fs::Access::EXEC_OK).is_ok()
}
