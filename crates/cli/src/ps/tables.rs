//! What the shared tables of an image say about its processes.

use super::kernel;
use super::report::{Lock, Mapping, OpenFile, Process, Thread, Wait, shown};
use anyhow::Result;
use engine::format::FileKind;
use image::{Image, ImageError, OpenImage};
use pmem::Direct;
use std::collections::HashMap;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::atomic::Ordering::{Acquire, Relaxed};
use std::time::Duration;
use tables::process::{LockKind, LockOwner, LockRange, ObservedLock, ObservedProcess, Processes};

/// The image, with the tables that its processes share. `None`: they share none, or there are no
/// processes.
pub fn attach(path: &Path, has_processes: bool) -> Result<Option<Image>> {
    let file = std::fs::File::open(path)?;
    if !image::users(&file)?.writing {
        return Ok(None);
    }
    let options = OpenImage { read_only: true, timeout: Duration::ZERO, ..OpenImage::default() };
    match Image::open(path, &options) {
        // If the last process has left meanwhile, nothing is shared.
        Ok(image) => Ok(Some(image).filter(Image::is_shared)),
        // A mount with a cache of its own, or a run that is atomic.
        Err(ImageError::InUse { .. } | ImageError::NotExclusive { .. } | ImageError::Changing { .. }) => Ok(None),
        Err(ImageError::CannotShare { .. }) if has_processes => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Adds what the tables say. `false`: the processes of the image share no tables, or there are
/// none.
pub fn add(path: &Path, processes: &mut Vec<Process>) -> Result<bool> {
    let Some(image) = attach(path, !processes.is_empty())? else { return Ok(false) };
    let thread = image.fs().enter().map_err(posix::Errno::from).map_err(|errno| anyhow::anyhow!("{errno:?}"))?;
    let tables = Processes::new(image.fs()).map_err(|errno| anyhow::anyhow!("{errno:?}"))?;
    let mut observer = Observer { image: &image, thread: &thread, tables, found_in: HashMap::new() };
    let added = observer.add(processes);
    added.map_err(|errno| {
        anyhow::anyhow!("the shared tables cannot be read: {}", std::io::Error::from_raw_os_error(errno.0))
    })?;
    Ok(true)
}

struct Observer<'f> {
    image: &'f Image,
    thread: &'f engine::Thread<'f, Direct>,
    tables: Processes<'f>,
    /// For open files: the directory in which each was found, by inode number.
    found_in: HashMap<u64, u64>,
}

/// A process of the tables, and its place in the report.
struct Known {
    observed: ObservedProcess,
    at: usize,
    descriptions: Vec<u32>,
}

impl<'f> Observer<'f> {
    fn add(&mut self, processes: &mut Vec<Process>) -> posix::Result<()> {
        let own = self.image.fs().processes().process_number().map_err(posix::Errno::from)?;
        let mut observed = Vec::new();
        self.tables.each_process(&mut |process| observed.push(process))?;
        let mut known = Vec::new();
        // One without an id is not complete yet: it is being forked.
        let is_listed = |process: &ObservedProcess| process.number != own && process.process_id != 0;
        for observed in observed.into_iter().filter(is_listed) {
            let at = self.place_of(observed.process_id as i32, processes);
            known.push(Known { observed, at, descriptions: Vec::new() });
        }
        for process in &mut known {
            self.describe(process, &mut processes[process.at])?;
        }
        self.add_threads(own, &known, processes)?;
        self.add_locks(&known, processes)
    }

    /// The place of a process in the report; a new one if it is not there yet.
    fn place_of(&self, pid: i32, processes: &mut Vec<Process>) -> usize {
        if let Some(at) = processes.iter().position(|process| process.pid == pid) {
            if processes[at].role == "attached" {
                processes[at].role = "program";
            }
            return at;
        }
        let mut process = Process::of_pid(pid, "program");
        // The number may be that of another process, if this one is in another PID namespace.
        if self.region_at(pid).is_some_and(|places| places.is_empty()) {
            process = Process { pid, role: "program", ..Process::default() };
            process.command = Some("(of another PID namespace)".to_owned());
        }
        processes.push(process);
        processes.len() - 1
    }

    /// Where a process maps the shared memory.
    fn region_at(&self, pid: i32) -> Option<Vec<(std::ops::Range<u64>, u64)>> {
        let metadata = self.image.shared_memory().file()?.metadata().ok()?;
        kernel::mapped_at(pid, (metadata.dev(), metadata.ino()))
    }

    fn describe(&mut self, known: &mut Known, into: &mut Process) -> posix::Result<()> {
        let mut descriptors = Vec::new();
        self.tables.each_descriptor(known.observed.table, &mut |descriptor| descriptors.push(descriptor))?;
        for descriptor in descriptors {
            let (file, inode) = (descriptor.file, descriptor.file.node().number);
            known.descriptions.push(descriptor.description);
            if file.found_in() != 0 {
                self.found_in.insert(inode, file.found_in());
            }
            let is_directory = file.kind() == FileKind::Directory;
            into.files.push(OpenFile {
                fd: descriptor.fd,
                inode: Some(inode),
                path: self.path_of(inode),
                flags: kernel::flags(file.flags()),
                position: (!is_directory).then(|| file.position()),
            });
        }
        let mut mappings = Vec::new();
        self.tables.each_mapping(known.observed.slot, &mut |mapping| mappings.push(mapping))?;
        into.mappings.extend(mappings.into_iter().map(|mapping| Mapping {
            inode: mapping.node.number,
            path: self.path_of(mapping.node.number),
            bytes: mapping.length,
            shared: mapping.shared,
            writable: mapping.writable,
        }));
        into.directory = known.observed.directory.and_then(|number| self.path_of(number)).or(into.directory.take());
        into.program = known.observed.program.and_then(|number| self.path_of(number)).or(into.program.take());
        Ok(())
    }

    fn path_of(&self, inode: u64) -> Option<String> {
        let found_in = self.found_in.get(&inode).copied().unwrap_or(0);
        posix::path_of_inode(self.thread, inode, found_in).map(|path| String::from_utf8_lossy(&path).into_owned())
    }

    fn add_threads(&self, own: u32, known: &[Known], processes: &mut Vec<Process>) -> posix::Result<()> {
        let fs = self.image.fs();
        let slots = fs.dram().header().map_err(posix::Errno::from)?.slots_high.load(Acquire);
        for index in fs.dram().slot_map().taken(slots) {
            let Ok(Some(owner)) = fs.slot_owner(index) else { continue };
            if owner.process == own || !fs.processes().is_process_alive(owner.process) {
                continue;
            }
            let inside = fs.dram().slot(index).is_ok_and(|slot| slot.pinned.load(Relaxed) != 0);
            let at = match known.iter().find(|known| known.observed.number == owner.process) {
                Some(known) => Some(known.at),
                // A process that has no descriptors in the image: a launcher, a mount's server.
                None => kernel::process_of_thread(owner.thread)
                    .filter(|&pid| self.region_at(pid).is_some_and(|places| !places.is_empty()))
                    .map(|pid| match processes.iter().position(|process| process.pid == pid) {
                        Some(at) => at,
                        None => {
                            processes.push(Process::of_pid(pid, "attached"));
                            processes.len() - 1
                        }
                    }),
            };
            if let Some(at) = at {
                processes[at].threads.push(Thread { tid: owner.thread, inside });
            }
        }
        Ok(())
    }

    fn add_locks(&self, known: &[Known], processes: &mut Vec<Process>) -> posix::Result<()> {
        let mut held: Vec<(ObservedLock, Vec<usize>)> = Vec::new();
        let mut locks = Vec::new();
        self.tables.each_lock(&mut |lock| locks.push(lock))?;
        for lock in locks {
            let owners = self.owners_of(&lock, known, processes);
            let shown = self.lock(&lock);
            owners.iter().for_each(|&at| processes[at].locks.push(shown.clone()));
            held.push((lock, owners));
        }
        for known in known {
            let Some(wait) = known.observed.wait else { continue };
            let conflicts = held.iter().filter(|(lock, owners)| {
                !lock.is_flock
                    && lock.inode == wait.inode
                    && !owners.contains(&known.at)
                    && (lock.kind == LockKind::Exclusive || wait.kind == LockKind::Exclusive)
                    && lock.range.start <= wait.range.last
                    && wait.range.start <= lock.range.last
            });
            let held_by = pids(conflicts.flat_map(|(_, owners)| owners), processes);
            let wanted = self.lock_of(wait.inode, "posix", wait.kind, wait.range);
            let reason = format!("a {} on {}", wanted.words(), shown(&wanted.path, wanted.inode));
            processes[known.at].waits.push(Wait { tid: None, reason, held_by });
        }
        self.add_sleeps(&held, processes);
        Ok(())
    }

    /// The processes that own a lock.
    fn owners_of(&self, lock: &ObservedLock, known: &[Known], processes: &mut Vec<Process>) -> Vec<usize> {
        let of = |is_owner: &dyn Fn(&Known) -> bool| {
            known.iter().filter(|known| is_owner(known)).map(|known| known.at).collect()
        };
        match lock.owner {
            LockOwner::Process(table) => of(&|known| known.observed.table == table),
            LockOwner::Description(number) => of(&|known| known.descriptions.contains(&number)),
            // The mount's server knows from the kernel for which process.
            LockOwner::Foreign { .. } if lock.process_id > 0 => {
                let pid = lock.process_id;
                let at = processes.iter().position(|process| process.pid == pid).unwrap_or_else(|| {
                    processes.push(Process::of_pid(pid, "mount user"));
                    processes.len() - 1
                });
                vec![at]
            }
            LockOwner::Foreign { mount, .. } => of(&|known| known.observed.slot == mount),
        }
    }

    fn lock(&self, lock: &ObservedLock) -> Lock {
        let kind = match lock.owner {
            _ if lock.is_flock => "flock",
            LockOwner::Description(_) => "ofd",
            LockOwner::Process(_) | LockOwner::Foreign { .. } => "posix",
        };
        self.lock_of(lock.inode, kind, lock.kind, lock.range)
    }

    fn lock_of(&self, inode: u64, kind: &'static str, mode: LockKind, range: LockRange) -> Lock {
        let last = (range.last < LockRange::ALL.last).then_some(range.last);
        let exclusive = mode == LockKind::Exclusive;
        Lock { inode: Some(inode), path: self.path_of(inode), kind, exclusive, start: range.start, last }
    }

    /// Threads that sleep on a word of the shared memory, as far as the kernel shows them.
    fn add_sleeps(&self, held: &[(ObservedLock, Vec<usize>)], processes: &mut [Process]) {
        for at in 0..processes.len() {
            let pid = processes[at].pid;
            let places = self.region_at(pid).unwrap_or_default();
            if places.is_empty() {
                continue;
            }
            for (tid, address) in kernel::futexes(pid) {
                let place = places.iter().find(|(range, _)| range.contains(&address));
                let Some(offset) = place.map(|(range, offset)| address - range.start + offset) else { continue };
                if let Some(wait) = self.sleep(tid, offset, at, held, processes) {
                    processes[at].waits.push(wait);
                }
            }
        }
    }

    fn sleep(
        &self,
        tid: u32,
        offset: u64,
        at: usize,
        held: &[(ObservedLock, Vec<usize>)],
        processes: &[Process],
    ) -> Option<Wait> {
        if let Some(inode) = self.tables.awaited_locks(offset) {
            // A wait for a range is known in detail.
            if processes[at].waits.iter().any(|wait| wait.tid.is_none()) {
                return None;
            }
            let others = held.iter().filter(|(lock, owners)| lock.inode == inode && !owners.contains(&at));
            let held_by = pids(others.flat_map(|(_, owners)| owners), processes);
            let reason = format!("a lock on {}", shown(&self.path_of(inode), Some(inode)));
            return Some(Wait { tid: Some(tid), reason, held_by });
        }
        let (owner, doing) = self.image.fs().awaited_lock(offset)?;
        let held_by: Vec<i32> = kernel::process_of_thread(owner.thread).into_iter().collect();
        let reason = format!("a call of thread {}, which {doing}", owner.thread);
        Some(Wait { tid: Some(tid), reason, held_by })
    }
}

fn pids<'a>(places: impl Iterator<Item = &'a usize>, processes: &[Process]) -> Vec<i32> {
    let mut pids: Vec<i32> = places.map(|&at| processes[at].pid).collect();
    pids.sort_unstable();
    pids.dedup();
    pids
}
