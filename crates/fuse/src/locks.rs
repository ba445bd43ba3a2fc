//! Locks on a mount that shares its image: flock, and byte ranges locked by processes and by open
//! file descriptions. They lie in the image's shared tables, so that they exclude those of all
//! other ways in.
//!
//! The kernel names owners by numbers of its own. It sends an unlock only for an explicit call. The
//! end of a lock follows from other requests:
//! - a process closed a descriptor of the file (FLUSH, with the process as the owner),
//! - a description was closed for the last time (RELEASE). Byte ranges that were locked through its
//!   handle and are left at this point belong to the description: those of processes ended with the
//!   FLUSH of each descriptor.
//!
//! `close` returns before the kernel sends RELEASE. So a lock that conflicts may have ended for the
//! requester, and an attempt without waiting waits a little where that is possible.
//!
//! Invariants
//! - While a file has locks of this mount, the server's process has a descriptor of it in the
//!   shared tables, so the file's record keeps its identity.
//! - A request that waits for a lock occupies a thread of its own, and no worker. It is in
//!   `waiting` until its thread answers it; an interrupt only makes the thread look again.
//!
//! An attempt that meets a lock of a closed description, or of another mount, waits up to 0.1 s. At
//! most 1,024 locks wait. A cycle of waits through another mount or run is not reported: the
//! protocol does not distinguish byte ranges of descriptions from those of processes.

use crate::files::Files;
use crate::protocol::{Arguments, LOCK_FLOCK, Reply};
use crate::session::{Channel, Handled};
use engine::Thread;
use pmem::Direct;
use posix::{Errno, Result};
use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tables::process::{Blocked, LockKind, LockOwner, LockRange, Locked, Process, Processes};

/// Waiting requests at once. Each has a thread.
const WAITING_MAX: usize = 1024;
/// Interrupts that are remembered because they may have overtaken their request.
const INTERRUPTS_KEPT: usize = 256;
/// Waits that the detection of deadlocks follows at most.
const CYCLE_MAX: usize = 64;
/// How long a RELEASE that follows a FLUSH may take. An idle machine needs 0.1 ms.
const RELEASE_DELAY_MAX: Duration = Duration::from_millis(100);
/// Stack of a waiting thread.
const STACK_BYTES: usize = 256 << 10;

/// The arguments of GETLK, SETLK and SETLKW.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LockRequest {
    node: u64,
    handle: u64,
    owner: OwnerName,
    range: LockRange,
    /// `None`: unlock.
    kind: Option<LockKind>,
    pid: u32,
}

/// The kernel's name of an owner: descriptions (flock) and others may have equal numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct OwnerName {
    number: u64,
    is_flock: bool,
}

impl LockRequest {
    pub(crate) fn parse(node: u64, arguments: &mut Arguments<'_>) -> Result<LockRequest> {
        let (handle, number) = (arguments.u64()?, arguments.u64()?);
        let (start, last) = (arguments.u64()?, arguments.u64()?);
        let (kind, pid, flags) = (arguments.i32()?, arguments.u32()?, arguments.u32()?);
        let kind = match kind {
            libc::F_RDLCK => Some(LockKind::Shared),
            libc::F_WRLCK => Some(LockKind::Exclusive),
            libc::F_UNLCK => None,
            _ => return Err(Errno::EINVAL),
        };
        let range = LockRange { start, last: last.min(i64::MAX as u64) };
        if range.start > range.last {
            return Err(Errno::EINVAL);
        }
        let owner = OwnerName { number, is_flock: flags & LOCK_FLOCK != 0 };
        Ok(LockRequest { node, handle, owner, range, kind, pid })
    }
}

/// The locks of a mount.
pub(crate) struct Locks {
    /// The slot of the server's process in the shared tables.
    slot: u32,
    held: Mutex<Held>,
    waiting: Mutex<Waiting>,
}

#[derive(Default)]
struct Held {
    /// Files with owners, by inode number.
    files: HashMap<u64, LockedFile>,
    owner_numbers: Numbers,
    descriptors: Numbers,
}

struct LockedFile {
    /// The server's descriptor of the file.
    descriptor: u32,
    owners: HashMap<OwnerName, Owner>,
}

struct Owner {
    /// Its number in the shared tables.
    number: u32,
    /// The handles through which it has locked.
    handles: HashSet<u64>,
    /// A descriptor of such a handle was closed since the last lock: RELEASE may follow.
    may_be_ending: bool,
}

#[derive(Default)]
struct Waiting {
    /// The waiting requests, by the kernel's numbers.
    requests: HashMap<u64, WaitingRequest>,
    /// The last interrupts whose request was not waiting.
    early: VecDeque<u64>,
    threads: Vec<JoinHandle<()>>,
}

struct WaitingRequest {
    is_interrupted: Arc<AtomicBool>,
    /// The wait ends soon by itself, so it is no link of a cycle.
    is_limited: bool,
    request: LockRequest,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A panic elsewhere leaves the maps consistent: no operation on them stops halfway.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Locks {
    /// Registers the server with the other processes that use the image.
    pub(crate) fn register(thread: &Thread<'_, Direct>) -> Result<Locks> {
        let process = Processes::new(thread.fs())?.register(thread, 0)?;
        process.set_threads();
        Ok(Locks { slot: process.index(), held: Mutex::default(), waiting: Mutex::default() })
    }

    fn process<'f>(&self, thread: &Thread<'f, Direct>) -> Result<Process<'f, Direct>> {
        Processes::new(thread.fs())?.rejoin(self.slot)
    }

    /// Sets or releases a lock. `waits`: until no other lock conflicts. The request may be answered
    /// later.
    pub(crate) fn set(
        &self,
        files: &Arc<Files>,
        request: &LockRequest,
        waits: bool,
        (channel, unique): (&Channel, u64),
    ) -> Result<Handled> {
        match (self.attempt(files, request)?, waits) {
            (Locked::Done, _) => Ok(Handled::Reply),
            (Locked::Blocked(blocked), false) if !self.may_be_ending(request.node, blocked.blocker()) => {
                let reaped = files.with_thread(|thread| Ok(self.process(thread)?.reap_blocker(thread, &blocked)))?;
                if reaped { self.set(files, request, waits, (channel, unique)) } else { Err(Errno(libc::EAGAIN)) }
            }
            (Locked::Blocked(blocked), waits) => {
                let until = (!waits).then(|| Instant::now() + RELEASE_DELAY_MAX);
                self.wait(files, (request, until), blocked, (channel, unique))?;
                Ok(Handled::Silent)
            }
        }
    }

    /// Whether a lock may belong to a closed description, whose RELEASE is on the way. Of locks of
    /// other mounts it is not known.
    fn may_be_ending(&self, node: u64, owner: LockOwner) -> bool {
        let LockOwner::Foreign { mount, number } = owner else { return false };
        if mount != self.slot {
            return true;
        }
        let held = lock(&self.held);
        let owner = held.files.get(&node).and_then(|file| file.owners.values().find(|owner| owner.number == number));
        owner.is_none_or(|owner| owner.may_be_ending)
    }

    fn attempt(&self, files: &Files, request: &LockRequest) -> Result<Locked> {
        let node = files.node(request.node)?;
        files.with_thread(|thread| {
            let process = self.process(thread)?;
            let mut held = lock(&self.held);
            let Some(number) = held.owner(thread, &process, files, request)? else { return Ok(Locked::Done) };
            let range = (!request.owner.is_flock).then_some(request.range);
            process.lock_foreign(thread, node, (number, request.pid as i32), range, request.kind)
        })
    }

    /// Answers F_GETLK.
    pub(crate) fn query(&self, files: &Files, request: &LockRequest, reply: &mut Reply) -> Result<()> {
        let node = files.node(request.node)?;
        let kind = request.kind.ok_or(Errno::EINVAL)?;
        let conflict = files.with_thread(|thread| {
            let number = lock(&self.held).number_of(request.node, request.owner).unwrap_or(0);
            self.process(thread)?.conflict_foreign(thread, node, number, request.range, kind)
        })?;
        match conflict {
            Some(other) => {
                let kind = if other.kind == LockKind::Exclusive { libc::F_WRLCK } else { libc::F_RDLCK };
                reply.u64(other.range.start).u64(other.range.last).u32(kind as u32).u32(other.pid.max(0) as u32);
            }
            None => {
                reply.u64(request.range.start).u64(request.range.last).u32(libc::F_UNLCK as u32).u32(0);
            }
        }
        Ok(())
    }

    /// A process closed a descriptor of a file: its byte ranges end.
    pub(crate) fn process_closed(&self, files: &Files, node: u64, handle: u64, owner: u64) {
        self.end(files, node, |name, _| *name == OwnerName { number: owner, is_flock: false });
        if let Some(file) = lock(&self.held).files.get_mut(&node) {
            let owners = file.owners.values_mut().filter(|owner| owner.handles.contains(&handle));
            owners.for_each(|owner| owner.may_be_ending = true);
        }
    }

    /// A description ended, with its handle. `flock`: its name as the owner of a lock of flock.
    pub(crate) fn description_closed(&self, files: &Files, node: u64, handle: u64, flock: Option<u64>) {
        self.end(files, node, |name, owner| match name.is_flock {
            true => flock == Some(name.number),
            false => owner.handles.contains(&handle),
        });
    }

    /// Ends the owners of a file for which `ends` returns true.
    fn end(&self, files: &Files, node: u64, ends: impl Fn(&OwnerName, &Owner) -> bool) {
        let has_locks = || lock(&self.held).files.contains_key(&node);
        if !has_locks() {
            return;
        }
        // Without a thread slot the locks stay until the mount ends.
        let _ = files.with_thread(|thread| {
            let process = self.process(thread)?;
            let found = files.node(node)?;
            let held = &mut *lock(&self.held);
            let Entry::Occupied(mut file) = held.files.entry(node) else { return Ok(()) };
            file.get_mut().owners.retain(|name, owner| {
                if !ends(name, owner) {
                    return true;
                }
                let range = (!name.is_flock).then_some(LockRange::ALL);
                // A release that fails leaves a lock that ends with the mount.
                if process.lock_foreign(thread, found, (owner.number, 0), range, None).is_ok() {
                    held.owner_numbers.give_back(owner.number);
                }
                false
            });
            if file.get().owners.is_empty() {
                let file = file.remove();
                process.remove(thread, file.descriptor);
                held.descriptors.give_back(file.descriptor);
            }
            Ok(())
        });
    }

    /// Waits for a lock in a thread of its own, which answers the request. `until`: EAGAIN comes
    /// then.
    fn wait(
        &self,
        files: &Arc<Files>,
        (request, until): (&LockRequest, Option<Instant>),
        blocked: Blocked,
        (channel, unique): (&Channel, u64),
    ) -> Result<()> {
        let mut waiting = lock(&self.waiting);
        if waiting.early.contains(&unique) {
            return Err(Errno(libc::EINTR));
        }
        if waiting.requests.len() >= WAITING_MAX {
            return Err(Errno(libc::ENOLCK));
        }
        if until.is_none() {
            self.check_deadlock(files, &waiting, request)?;
        }
        let is_interrupted = Arc::new(AtomicBool::new(false));
        let thread = {
            let (files, request, channel) = (Arc::clone(files), *request, channel.clone());
            let is_interrupted = Arc::clone(&is_interrupted);
            let run = move || {
                if let Some(locks) = files.locks() {
                    let result = locks.wait_until_held(&files, (&request, until), blocked, &is_interrupted);
                    lock(&locks.waiting).requests.remove(&unique);
                    let mut reply = Reply::new();
                    channel.answer(&mut reply, unique, result.err().map_or(0, |Errno(number)| -number));
                }
            };
            std::thread::Builder::new().name("directfs-lock".to_owned()).stack_size(STACK_BYTES).spawn(run)
        };
        let thread = thread.map_err(|_| Errno(libc::ENOLCK))?;
        waiting
            .requests
            .insert(unique, WaitingRequest { is_interrupted, is_limited: until.is_some(), request: *request });
        waiting.threads.retain(|thread| !thread.is_finished());
        waiting.threads.push(thread);
        Ok(())
    }

    /// Attempts again whenever a lock of the file ends. EINTR: interrupted. EAGAIN: not held at the
    /// time `until`.
    fn wait_until_held(
        &self,
        files: &Files,
        (request, until): (&LockRequest, Option<Instant>),
        mut blocked: Blocked,
        is_interrupted: &AtomicBool,
    ) -> Result<()> {
        loop {
            if is_interrupted.load(Acquire) {
                return Err(Errno(libc::EINTR));
            }
            // The thread sleeps outside of the engine: it occupies no slot there.
            let process = files.with_thread(|thread| self.process(thread))?;
            if !process.sleep_for_lock(&blocked) {
                files.with_thread(|thread| {
                    process.reap_blocker(thread, &blocked);
                    Ok(())
                })?;
            }
            match self.attempt(files, request)? {
                Locked::Done => return Ok(()),
                Locked::Blocked(still) => blocked = still,
            }
            match until {
                Some(until) if Instant::now() >= until => return Err(Errno(libc::EAGAIN)),
                Some(_) => {}
                // The new blocker may close a cycle.
                None => self.check_deadlock(files, &lock(&self.waiting), request)?,
            }
        }
    }

    /// EDEADLK if the owners of byte ranges on this mount wait for each other in a cycle that ends
    /// with this request. Each link is looked up again, because a wait may be over before its
    /// thread knows. No lock of the mount changes meanwhile. (The protocol does not show whether an
    /// owner is a description, for which Linux does not look.)
    fn check_deadlock(&self, files: &Files, waiting: &Waiting, request: &LockRequest) -> Result<()> {
        if request.owner.is_flock {
            return Ok(());
        }
        files.with_thread(|thread| {
            let process = self.process(thread)?;
            let held = lock(&self.held);
            let mut link = *request;
            for _ in 0..CYCLE_MAX {
                let Some(blocker) = self.blocker_of(thread, &process, files, &held, &link)? else { return Ok(()) };
                if blocker == request.owner {
                    return Err(Errno::EDEADLK);
                }
                let next = waiting.requests.values().find(|other| other.request.owner == blocker && !other.is_limited);
                let Some(next) = next else { return Ok(()) };
                link = next.request;
            }
            Ok(())
        })
    }

    /// The owner on this mount that a request waits for.
    fn blocker_of<'f>(
        &self,
        thread: &Thread<'f, Direct>,
        process: &Process<'f, Direct>,
        files: &Files,
        held: &Held,
        request: &LockRequest,
    ) -> Result<Option<OwnerName>> {
        let Some(kind) = request.kind else { return Ok(None) };
        let number = held.number_of(request.node, request.owner).unwrap_or(0);
        let node = files.node(request.node)?;
        let Some(conflict) = process.conflict_foreign(thread, node, number, request.range, kind)? else {
            return Ok(None);
        };
        let LockOwner::Foreign { mount, number } = conflict.owner else { return Ok(None) };
        let file = held.files.get(&request.node).filter(|_| mount == self.slot);
        Ok(file.and_then(|file| file.owners.iter().find(|(_, owner)| owner.number == number)).map(|(name, _)| *name))
    }

    /// A program no longer waits for a request.
    pub(crate) fn interrupt(&self, files: &Files, unique: u64) {
        let mut waiting = lock(&self.waiting);
        let Some(request) = waiting.requests.get(&unique) else {
            if waiting.early.len() == INTERRUPTS_KEPT {
                waiting.early.pop_front();
            }
            waiting.early.push_back(unique);
            return;
        };
        request.is_interrupted.store(true, Release);
        let node = request.request.node;
        drop(waiting);
        self.wake(files, node);
    }

    /// Makes all that wait for locks of a file look again.
    fn wake(&self, files: &Files, node: u64) {
        let _ = files.with_thread(|thread| {
            self.process(thread)?.wake_lock_waiters(files.node(node)?);
            Ok(())
        });
    }

    /// Ends all waits, locks and the registration, after the mount has ended.
    pub(crate) fn finish(&self, files: &Files) {
        let (threads, nodes) = {
            let mut waiting = lock(&self.waiting);
            let nodes: Vec<u64> = waiting.requests.values().map(|waiting| waiting.request.node).collect();
            waiting.requests.values().for_each(|request| request.is_interrupted.store(true, Release));
            (std::mem::take(&mut waiting.threads), nodes)
        };
        nodes.into_iter().for_each(|node| self.wake(files, node));
        // The threads do nothing that could panic.
        threads.into_iter().for_each(|thread| drop(thread.join()));
        let nodes: Vec<u64> = lock(&self.held).files.keys().copied().collect();
        nodes.into_iter().for_each(|node| self.end(files, node, |_, _| true));
        let _ = files.with_thread(|thread| {
            self.process(thread)?.exit(thread);
            Ok(())
        });
    }
}

impl Held {
    fn number_of(&self, node: u64, owner: OwnerName) -> Option<u32> {
        Some(self.files.get(&node)?.owners.get(&owner)?.number)
    }

    /// The number of a request's owner. `None`: it unlocks, and the owner has no locks.
    fn owner(
        &mut self,
        thread: &Thread<'_, Direct>,
        process: &Process<'_, Direct>,
        files: &Files,
        request: &LockRequest,
    ) -> Result<Option<u32>> {
        if request.kind.is_none() {
            return Ok(self.number_of(request.node, request.owner));
        }
        let no_number = || Errno(libc::ENOLCK);
        let file = match self.files.entry(request.node) {
            Entry::Occupied(file) => file.into_mut(),
            Entry::Vacant(place) => {
                let descriptor = self.descriptors.take().ok_or_else(no_number)?;
                if let Err(error) = files.install_for_locks(thread, process, request.node, descriptor) {
                    self.descriptors.give_back(descriptor);
                    return Err(error);
                }
                place.insert(LockedFile { descriptor, owners: HashMap::new() })
            }
        };
        let owner = match file.owners.entry(request.owner) {
            Entry::Occupied(owner) => owner.into_mut(),
            // Zero stands for owners without locks.
            Entry::Vacant(place) => {
                let number = self.owner_numbers.take().ok_or_else(no_number)?;
                place.insert(Owner { number, handles: HashSet::new(), may_be_ending: false })
            }
        };
        owner.handles.insert(request.handle);
        owner.may_be_ending = false;
        Ok(Some(owner.number))
    }
}

/// Small numbers that are not in use.
#[derive(Default)]
struct Numbers {
    returned: Vec<u32>,
    last: u32,
}

impl Numbers {
    /// Never zero.
    fn take(&mut self) -> Option<u32> {
        if let Some(number) = self.returned.pop() {
            return Some(number);
        }
        self.last = self.last.checked_add(1)?;
        Some(self.last)
    }

    fn give_back(&mut self, number: u32) {
        self.returned.push(number);
    }
}
