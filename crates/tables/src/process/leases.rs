//! Leases (fcntl F_SETLEASE), which the kernel keeps.
//!
//! A description is *attached* to the lease file of its file when a program first asks for a lease,
//! or for the signal that announces a break. The lease file is an empty file of the kernel in the
//! meeting directory, and the description's placeholders are then descriptors of it. So the
//! kernel's leases on that file are those of the image's file: signals, waits, time limits, and the
//! end of a lease with its last descriptor are the kernel's. A call that breaks leases opens the
//! lease file as it opens the file.
//!
//! Invariants
//! - `leases` of a record is 1 before a description of the file is attached, and until none is.
//! - An open is in the tables, under the record's lock, before it reads `leases`. A grant has set
//!   `leases` and then the kernel's lease before it searches the tables. So of an open and a grant
//!   at least one finds the other.
//! - A truncation reads `leases` under the file's lock. An attachment waits for that lock after it
//!   has set `leases`.
//! - The lease file is removed under the record's lock, and only if nothing is attached.
//!
//! *Rejected:* leases in the DRAM region. Waits, limits, signals with a descriptor, and ends by
//! fork, exec and death would be written again.
//!
//! *Limits:* copies that another process got before the attachment do not keep the lease, and an
//! exec does not break a write lease. Opens by mounts with `cache=0` attempt every 1 to 16 ms in a
//! thread of their own, since a worker that waited would stop the mount; a grant does not see such
//! opens.

use super::shared_tables::{Record, TableKind};
use super::table_transaction::TableTransaction;
use super::{LockKind, Process, Processes, Program};
use crate::child_numbers;
use crate::errno::{Errno, Result};
use crate::open_file::OpenFile;
use core::ffi::CStr;
use core::sync::atomic::AtomicU32;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use engine::{Fs, Node, Thread};
use pmem::Memory;
use rustix::fd::{AsRawFd, BorrowedFd, OwnedFd};
use rustix::fs::{AtFlags, Gid, Mode, OFlags, Uid};

/// Attempts to open or create a lease file that others create and remove meanwhile.
const TRIES: u32 = 100;

/// The name of a lease file, relative to the liveness description.
pub struct LeaseFileName([u8; 26]);

impl LeaseFileName {
    /// The name for the file with this inode number.
    pub fn new(number: u64) -> LeaseFileName {
        const DIGITS: &[u8; 16] = b"0123456789abcdef";
        let mut name = *b"../lease-0000000000000000\0";
        for (index, digit) in name[9..25].iter_mut().enumerate() {
            *digit = DIGITS[(number >> (60 - 4 * index) & 15) as usize];
        }
        LeaseFileName(name)
    }

    /// The name, with its zero byte.
    pub fn text(&self) -> &CStr {
        CStr::from_bytes_until_nul(&self.0).unwrap_or_default()
    }
}

/// The word of a file that is 1 while leases on it may exist.
pub fn leases_of<M: Memory>(fs: &Fs<M>, node: Node) -> Result<&AtomicU32> {
    Ok(&Processes::new(fs)?.tables.record(node.cachelet)?.leases)
}

/// Breaks leases on a file, as an open with these flags does, and waits for it: for VFS layers in
/// whose threads nothing but the call waits. EWOULDBLOCK with O_NONBLOCK; EINTR.
pub fn break_leases<M: Memory>(fs: &Fs<M>, node: Node, flags: i32) -> Result<()> {
    let flags = OFlags::from_bits_retain((flags & (libc::O_ACCMODE | libc::O_NONBLOCK)) as u32);
    open_to_break(fs, node, flags)
}

/// Breaks leases on a file as an open with these flags does, but does not wait for their holders:
/// EAGAIN. For ways in whose opens are not in the tables.
pub fn try_break_leases<M: Memory>(fs: &Fs<M>, node: Node, flags: i32) -> Result<()> {
    if leases_of(fs, node)?.load(SeqCst) == 0 {
        return Ok(());
    }
    let access = match flags & libc::O_ACCMODE {
        libc::O_RDONLY => OFlags::RDONLY,
        _ => OFlags::RDWR,
    };
    open_to_break(fs, node, access | OFlags::NONBLOCK)
}

fn open_to_break<M: Memory>(fs: &Fs<M>, node: Node, flags: OFlags) -> Result<()> {
    let (name, flags) = (LeaseFileName::new(node.number), flags | OFlags::NOFOLLOW | OFlags::CLOEXEC);
    match rustix::fs::openat(directory(fs)?, name.text(), flags, Mode::empty()) {
        // The last holder has closed it.
        Ok(_) | Err(rustix::io::Errno::NOENT) => Ok(()),
        Err(error) => Err(errno(error)),
    }
}

fn errno(error: rustix::io::Errno) -> Errno {
    Errno(error.raw_os_error())
}

/// The directory of the lease files. EINVAL, as where leases are not supported: no other process
/// can use the image.
fn directory<M: Memory>(fs: &Fs<M>) -> Result<BorrowedFd<'_>> {
    let description = fs.processes().liveness_description().ok_or(Errno::EINVAL)?;
    // SAFETY: the file system's own descriptor, open for as long as it is in use.
    Ok(unsafe { BorrowedFd::borrow_raw(child_numbers::own(description)) })
}

/// Opens the lease file of a file with this owner, and creates it if there is none.
fn open_lease_file<M: Memory>(fs: &Fs<M>, number: u64, owner: u32) -> Result<OwnedFd> {
    let (directory, name) = (directory(fs)?, LeaseFileName::new(number));
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    for _ in 0..TRIES {
        match rustix::fs::openat(directory, name.text(), flags, Mode::empty()) {
            Err(rustix::io::Errno::NOENT) => {}
            opened => return opened.map_err(errno),
        }
        let made = rustix::fs::openat(directory, name.text(), flags | OFlags::CREATE | OFlags::EXCL, Mode::empty());
        match made {
            Ok(made) => {
                // The kernel grants leases to the owner. Any process of the image may break them.
                let _ = rustix::fs::fchown(&made, Some(Uid::from_raw(owner)), None::<Gid>);
                rustix::fs::fchmod(&made, Mode::from_raw_mode(0o666)).map_err(errno)?;
                return Ok(made);
            }
            Err(rustix::io::Errno::EXIST) => {}
            Err(error) => return Err(errno(error)),
        }
    }
    Err(Errno::EAGAIN)
}

/// A description ends that is attached to its lease file. Recovery may repeat this.
#[cold]
pub(super) fn detach<M: Memory>(transaction: &TableTransaction<'_, '_, M>, cachelet: u32, index: u32) -> Result<()> {
    let (tables, fs) = (transaction.tables(), transaction.processes.fs);
    let file = tables.file(index)?;
    let record = transaction.lock_record(cachelet)?;
    let mut is_last = true;
    let searched = tables.each_claimed(fs, TableKind::File, &mut |other| {
        let file = tables.file(other)?;
        let is_attached = file.is_attached() && file.users.load(Acquire) != 0;
        is_last &= other == index || !is_attached || file.node().cachelet != cachelet;
        Ok(())
    });
    if searched.is_ok() && is_last {
        // A file that cannot be removed serves the next lease.
        if let Ok(directory) = directory(fs) {
            let _ = rustix::fs::unlinkat(directory, LeaseFileName::new(file.node().number).text(), AtFlags::empty());
        }
        record.leases.store(0, Release);
    }
    transaction.unlock_record(record);
    if let Some(lease) = file.lease() {
        lease.store(0, Release);
    }
    searched
}

impl Record {
    /// Whether an open that has counted its reference must look for leases.
    #[inline(always)]
    pub(super) fn may_be_leased(&self) -> bool {
        self.leases.load(Relaxed) != 0
    }
}

impl<'f, M: Memory> Process<'f, M> {
    /// Whether the placeholders of a description may be descriptors of a lease file.
    #[inline]
    pub fn is_attached(&self, descriptor: &super::Descriptor) -> bool {
        self.processes.tables.file(descriptor.file).is_ok_and(OpenFile::is_attached)
    }

    /// Attaches the description of a descriptor to the lease file of its file, which belongs to
    /// `owner`. Calls `replace` with a descriptor of that file, and with each descriptor of the
    /// description in this process and whether exec closes it, while no other thread closes it.
    pub fn attach_lease_file(
        &self,
        thread: &Thread<'f, M>,
        fd: u32,
        owner: u32,
        replace: &mut dyn FnMut(i32, u32, bool) -> Result<()>,
    ) -> Result<()> {
        let transaction = self.processes.begin(thread, self.index)?;
        let attached = self.descriptor(fd).ok_or(Errno::EBADF)?.file;
        let file = self.processes.tables.file(attached)?;
        let (node, lease) = (file.node(), file.lease().ok_or(Errno::EINVAL)?);
        directory(self.processes.fs)?;
        transaction.with_locks(node.cachelet, |record| {
            // In this order: the end of an attached description clears both.
            lease.store(1, SeqCst);
            record.leases.store(1, SeqCst);
            Ok(())
        })?;
        let lease_file = open_lease_file(self.processes.fs, node.number, owner)?;
        let mut replaced = Ok(());
        self.descriptors(&mut |number, descriptor| {
            if descriptor.file == attached {
                replaced = replace(lease_file.as_raw_fd(), number, descriptor.cloexec);
            }
            replaced.is_ok()
        });
        drop(transaction);
        replaced?;
        match thread.files().wait_for_change(node) {
            Err(engine::Error::ReadOnly) => Ok(()),
            waited => Ok(waited?),
        }
    }

    /// Whether the file of a descriptor is open, mapped or running in a way that excludes a lease
    /// of this kind on the description: shared, to read; exclusive, to write.
    pub fn has_lease_conflict(&self, thread: &Thread<'f, M>, fd: u32, kind: LockKind) -> Result<bool> {
        let index = self.descriptor(fd).ok_or(Errno::EBADF)?.file;
        // A dead process that is not reaped yet still seems to have the file open.
        let seems = || self.seems_in_use(thread, index, kind);
        Ok(seems()? && (self.processes.reap(thread)? == 0 || seems()?))
    }

    fn seems_in_use(&self, thread: &Thread<'f, M>, index: u32, kind: LockKind) -> Result<bool> {
        let (all, tables) = (&self.processes, &self.processes.tables);
        let node = tables.file(index)?.node();
        let mut found = false;
        tables.each_claimed(all.fs, TableKind::File, &mut |other| {
            let file = tables.file(other)?;
            let is_open = file.users.load(Acquire) != 0 && file.node() == node;
            found |= is_open
                && match kind {
                    LockKind::Shared => file.writes(),
                    LockKind::Exclusive => other != index && (file.reads() || file.writes()),
                };
            Ok(())
        })?;
        let own = self.index + 1;
        tables.each_claimed(all.fs, TableKind::Mapping, &mut |other| {
            let mapping = tables.mapping(other)?;
            let is_of_file = mapping.cachelet.load(Relaxed) == node.cachelet;
            found |= is_of_file
                && match kind {
                    LockKind::Shared => super::mappings::read(mapping).writable,
                    // The process's own may be one of the description itself.
                    LockKind::Exclusive => mapping.claimed.load(Acquire) != own,
                };
            Ok(())
        })?;
        let runs = || all.seems_to_run(Program::of(&thread.protection(node)?));
        Ok(found || kind == LockKind::Exclusive && runs()?)
    }
}
