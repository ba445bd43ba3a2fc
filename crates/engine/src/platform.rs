//! Services that the engine needs from the operating system: time, sleeping, and the liveness of
//! threads and processes.

use crate::dram::{Dram, Owner};
use crate::format::FileKind;
use crate::sync::AtomicU32;
use pmem::Sleeping;

/// What the layer above needs of a thread to report what it changes to other processes.
#[derive(Clone, Copy)]
pub struct Reporter<'f> {
    /// The DRAM region.
    pub dram: &'f Dram,
    /// Services of the operating system.
    pub platform: &'static dyn Platform,
    /// The description of the lock file ([`crate::liveness`]); negative: there is none.
    pub lock_file: i32,
    /// For which thread of another process the thread acts; zero: for itself.
    pub requester: u32,
}

/// Services of the process that hosts the engine. All must be callable inside a signal handler: no
/// allocation, no locks.
///
/// Process ids mean nothing outside of their namespace, so no method takes the id of another
/// process. A process that shares a region holds a *liveness lock* instead: a kernel lock on one
/// byte of a shared file, which ends with the process. See [`crate::liveness`].
pub trait Platform: Sync {
    /// Wall-clock time, ns since 1970. May go backwards; the engine copes.
    fn now_ns(&self) -> i64;
    /// Sleeps while `word` equals `expected`, at most `timeout_ms`; may return early. `word` is in
    /// memory that other processes share.
    fn wait(&self, word: &AtomicU32, expected: u32, timeout_ms: u32);
    /// Like [`Platform::wait`]. Returns whether a signal's handler ran meanwhile.
    fn wait_interruptibly(&self, word: &AtomicU32, expected: u32, timeout_ms: u32) -> bool {
        self.wait(word, expected, timeout_ms);
        false
    }
    /// Wakes all that wait on `word`.
    fn wake(&self, word: &AtomicU32);
    /// Wakes threads that wait for the cut of a snapshot. By default they do not sleep, and such a
    /// cut is cancelled at once.
    fn sleeping(&self) -> &'static Sleeping {
        static AWAKE: Sleeping = Sleeping { wait: |_, _, _| {}, wake: |_| {}, now_ns: || 0 };
        &AWAKE
    }
    /// The id of the calling process, as its own namespace has it.
    fn process_id(&self) -> u32;
    /// The id of the calling thread.
    fn thread_id(&self) -> u32;
    /// The process of a thread of any process; without an answer the thread itself.
    fn process_of(&self, thread_id: u32) -> u32 {
        thread_id
    }
    /// Whether a thread of this process, or of the process whose memory this one runs in, exists.
    fn is_thread_alive(&self, process_id: u32, thread_id: u32) -> bool;
    /// Takes the liveness lock with that number through an open description of the lock file.
    /// `false`: the kernel refused, or another description holds it.
    fn hold_liveness(&self, _description: i32, _number: u32) -> bool {
        true
    }
    /// Whether a description other than this one holds the liveness lock with that number. `true`
    /// where the kernel cannot know.
    fn is_liveness_held(&self, _description: i32, _number: u32) -> bool {
        true
    }
    /// Opens a new description of the lock file, which holds the liveness lock with that number;
    /// returns its descriptor. `None`: no descriptor is free, or the kernel refused.
    fn take_liveness(&self, description: i32, _number: u32) -> Option<i32> {
        Some(description)
    }
    /// Puts a description from [`Platform::take_liveness`] in place of another one, at that one's
    /// descriptor. Its locks are held all the while.
    fn replace_description(&self, _description: i32, _by: i32) {}
    /// Closes a description from [`Platform::take_liveness`].
    fn close_description(&self, _description: i32) {}
    /// Reports, once per long wait, that the calling thread waits for another one. Without an owner
    /// it is not known which. `reason` completes "which ...".
    fn report_wait(&self, _owner: Option<Owner>, _reason: &str) {}
    /// An inode has ended while [`crate::Fs::is_watched`].
    fn inode_ended(&self, _by: Reporter<'_>, _number: u64, _generation: u32, _kind: Option<FileKind>) {}
    /// What the owner of one of the engine's locks does, where the lock lies in the area for the
    /// layers above. `offset`: from the start of that area. `None`: there is no such lock.
    fn upper_lock_reason(&self, _offset: u64) -> Option<&'static str> {
        None
    }
    /// A number that cannot be predicted.
    fn random(&self) -> u64;
    /// Provides memory for mapped pages that may be holes of a file, so that stores to them cannot
    /// fail. The content stays. `false`: there is no room.
    fn provide(&self, _address: *mut u8, _length: usize) -> bool {
        true
    }
    /// Provides huge pages for the mapped memory at `address`, a multiple of 2 MiB as is `length`,
    /// and fills all of it. The content stays. Does nothing where there are none, or where they
    /// cost more than single pages; returns whether all of it has them.
    fn provide_huge(&self, _address: *mut u8, _length: usize) -> bool {
        false
    }
}
