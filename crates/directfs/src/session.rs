//! Threads inside an image.
//!
//! Every call needs a thread slot of the engine. A thread claims one with its first call and keeps
//! it, so that later calls need no system call. Its end releases the slot.
//!
//! Invariants
//! - A [`Slot`] keeps its image alive. Only its cell owns it, and a call locks the cell.
//! - Slots enter cells only while the registry has the image, and a cell is in the registry before
//!   it gets a slot. So [`Shared::close`], which first empties the registry and then every cell,
//!   leaves no slot, and no call in progress.
//! - A cell may be locked before the registry, never after.
//! - In the child of a fork, all of this belongs to the parent: nothing is locked, used or dropped.
//!   It has no mapping of the image, and closes the descriptors.
//! - `work` of a call must not make another call: it runs under the lock of the thread's cell.

use crate::descriptors::{Recorded, close_inherited};
use crate::error::{FORKED, TOO_MANY_FILES};
use crate::size_limit::NoSignal;
use engine::statistics::CallClass;
use engine::{Fs, Node, Thread};
use image::{Closed, Image, ImageError};
use posix::call_classes::number_of;
use posix::path::PathBuffer;
use posix::{Caller, Credentials, Errno, PathCache, Result, Scope, Storage};
use std::cell::{Cell, RefCell};
use std::mem::{forget, take};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicU32, AtomicU64};
use std::sync::{Arc, Mutex, MutexGuard, Once, PoisonError, TryLockError, Weak};
use tables::host::monotonic_ns;
use tables::process::{DESCRIPTORS_MAX, InFlightFile, Process, Processes};

/// Number of forks between the first opened image and this process.
static FORKS: AtomicU32 = AtomicU32::new(0);

extern "C" fn leave_image_to_parent() {
    FORKS.fetch_add(1, Relaxed);
    close_inherited();
    pmem::forget_kept_mappings();
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A thread's place in an image.
// Fields drop in order: the image last.
struct Slot {
    thread: Thread<'static>,
    process: Process<'static>,
    path_cache: PathCache,
    buffer: PathBuffer,
    root: Node,
    image: Arc<Image>,
    /// Calls of the thread; wraps.
    calls: Cell<u32>,
}

impl Slot {
    fn leave(self: Box<Self>) {
        self.process.end_thread();
    }

    /// EIO once the image was truncated.
    fn check_whole(&self) -> Result<()> {
        if self.image.mapping().has_lost_pages() { Err(Errno::EIO) } else { Ok(()) }
    }

    fn run<T>(&mut self, work: &mut impl FnMut(Inside<'_>) -> Result<T>) -> Result<T> {
        self.check_whole()?;
        let Slot { thread, process, path_cache, buffer, root, image, calls } = self;
        let result = work(Inside { thread, process, path_cache, buffer, root: *root, image, calls });
        // A result computed from lost pages is not valid.
        self.check_whole().and(result)
    }
}

/// What a call may use.
pub(crate) struct Inside<'s> {
    pub thread: &'s Thread<'static>,
    pub process: &'s Process<'static>,
    path_cache: &'s PathCache,
    pub buffer: &'s mut PathBuffer,
    /// Root of the image.
    pub root: Node,
    pub image: &'s Image,
    calls: &'s Cell<u32>,
}

impl<'s> Inside<'s> {
    pub fn caller(&self, credentials: Credentials<'s>) -> Caller<'s, 'static> {
        Caller::new(self.thread, credentials).with_path_cache(self.path_cache)
    }

    /// Makes calls safe where the image is.
    pub fn sync(&self, scope: Scope) -> Result<()> {
        let storage = self.image.storage();
        let _no_signal = (!matches!(storage, Storage::Memory)).then(NoSignal::new);
        storage.sync(self.thread, scope)
    }

    /// The open file of a number.
    pub fn file(&self, number: u32) -> Result<InFlightFile<'s, 'static>> {
        self.process.file(self.thread, number).ok_or(Errno::EBADF)
    }
}

/// A thread's slot, shared with [`Shared::close`].
#[derive(Default)]
struct SlotCell(Mutex<Option<Box<Slot>>>);

impl SlotCell {
    fn release(&self) {
        if let Some(slot) = lock(&self.0).take() {
            slot.leave();
        }
    }
}

/// Of so many calls the duration of one is counted.
const LATENCY_INTERVAL: u32 = 256;

/// The slot of this thread in one image.
struct ThreadEntry {
    id: u64,
    forks: u32,
    cell: Arc<SlotCell>,
    shared: Weak<Shared>,
}

/// The slots of this thread.
struct ThreadEntries(RefCell<Vec<ThreadEntry>>);

impl Drop for ThreadEntries {
    fn drop(&mut self) {
        for entry in take(self.0.get_mut()) {
            if entry.forks != FORKS.load(Relaxed) {
                forget(entry);
                continue;
            }
            entry.cell.release();
            if let Some(shared) = entry.shared.upgrade() {
                shared.remove_cell(&entry.cell);
            }
        }
    }
}

thread_local! {
    static ENTRIES: ThreadEntries = const { ThreadEntries(RefCell::new(Vec::new())) };
}

/// The image while it is open, and the cells of all threads.
#[derive(Default)]
struct Registry {
    open: Option<Open>,
    /// Present as long as `open` is.
    descriptors: Option<Recorded>,
    cells: Vec<Arc<SlotCell>>,
}

#[derive(Clone)]
struct Open {
    process: Process<'static>,
    root: Node,
    image: Arc<Image>,
}

/// Numbers of open files: free ones below `next`.
#[derive(Default)]
struct Numbers {
    free: Vec<u32>,
    next: u32,
}

/// An image that the handles of this process share.
pub(crate) struct Shared {
    id: u64,
    /// [`FORKS`] when the image was opened.
    forks: u32,
    registry: Mutex<Registry>,
    numbers: Mutex<Numbers>,
    /// Views that live. Locked before all others, while a view is made or ends, and while the image
    /// is closed.
    views: Mutex<usize>,
    /// Held by the thread that releases idle slots because it ran out of space or memory.
    scarcity: Mutex<()>,
}

/// How often a call runs when space or memory is short, with the idle slots released before each.
const SCARCE_TRIES: u32 = 8;

/// The file system of an image.
///
/// # Safety
/// The result must not be used after the last `Arc` of the image is dropped.
unsafe fn fs_of(image: &Arc<Image>) -> &'static Fs {
    let fs: *const Fs = image.fs();
    // SAFETY: the image lies in its `Arc` until then, and is not changed: see above.
    unsafe { &*fs }
}

impl Shared {
    /// Registers this process with an image.
    pub fn new(image: Image) -> std::result::Result<Arc<Shared>, ImageError> {
        static WATCH_FORKS: Once = Once::new();
        static NEXT_ID: AtomicU64 = AtomicU64::new(1);
        // SAFETY: the function takes no lock, and allocates nothing.
        WATCH_FORKS.call_once(|| unsafe {
            libc::pthread_atfork(None, None, Some(leave_image_to_parent));
        });
        let path = image.path().to_owned();
        let image = Arc::new(image);
        // SAFETY: `Open` keeps the process next to the image, and `close` drops both together.
        let fs = unsafe { fs_of(&image) };
        let begin = || -> Result<(Process<'static>, Node)> {
            let thread = fs.enter()?;
            // The umask of a call is that of its credentials.
            let process = Processes::new(fs)?.register(&thread, 0)?;
            process.set_threads();
            Ok((process, thread.root()?))
        };
        let (process, root) = begin().map_err(|errno| ImageError::File {
            action: "use",
            path,
            source: std::io::Error::from_raw_os_error(errno.0),
        })?;
        let descriptors = Some(Recorded::new(&image.descriptors()));
        image.mapping().keep_from_children();
        image.shared_memory().keep_from_children();
        let registry = Registry { open: Some(Open { process, root, image }), descriptors, cells: Vec::new() };
        Ok(Arc::new(Shared {
            id: NEXT_ID.fetch_add(1, Relaxed),
            forks: FORKS.load(Relaxed),
            registry: Mutex::new(registry),
            numbers: Mutex::default(),
            views: Mutex::default(),
            scarcity: Mutex::default(),
        }))
    }

    pub fn is_forked(&self) -> bool {
        self.forks != FORKS.load(Relaxed)
    }

    /// Runs `work` inside the image, as a call of a class. If it runs out of space or memory, it
    /// runs again after the idle threads of this process have released what they kept for reuse.
    pub fn call<T>(self: &Arc<Self>, class: CallClass, mut work: impl FnMut(Inside<'_>) -> Result<T>) -> Result<T> {
        if self.is_forked() {
            return Err(FORKED);
        }
        let mut work = |inside: Inside<'_>| {
            let thread = inside.thread;
            let calls = inside.calls.get().wrapping_add(1);
            inside.calls.set(calls);
            let began_ns = calls.is_multiple_of(LATENCY_INTERVAL).then(monotonic_ns);
            let result = work(inside);
            thread.count_call(number_of(class));
            if let Some(began_ns) = began_ns {
                thread.count_latency(class, monotonic_ns().saturating_sub(began_ns));
            }
            result
        };
        let result = self.call_once(&mut work);
        if matches!(result, Err(Errno::ENOSPC | Errno::ENOMEM)) {
            return self.call_when_scarce(&mut work);
        }
        result
    }

    /// Threads that run out at the same time take turns: without turns, one thread takes what
    /// another has released for itself. A thread that comes later can still take it, so a few tries
    /// follow.
    #[cold]
    fn call_when_scarce<T>(self: &Arc<Self>, work: &mut impl FnMut(Inside<'_>) -> Result<T>) -> Result<T> {
        let _turn = lock(&self.scarcity);
        for _ in 1..SCARCE_TRIES {
            let released = self.release_idle_slots();
            let result = self.call_once(work);
            if !released || !matches!(result, Err(Errno::ENOSPC | Errno::ENOMEM)) {
                return result;
            }
        }
        self.release_idle_slots();
        self.call_once(work)
    }

    fn call_once<T>(self: &Arc<Self>, work: &mut impl FnMut(Inside<'_>) -> Result<T>) -> Result<T> {
        let cached = ENTRIES.try_with(|entries| {
            if let Some(entry) = entries.0.borrow().iter().find(|entry| entry.id == self.id) {
                return self.call_in(&entry.cell, work);
            }
            let cell = self.add_cell();
            {
                let mut entries = entries.0.borrow_mut();
                entries.retain(|entry| entry.forks == self.forks && entry.shared.strong_count() > 0);
                let shared = Arc::downgrade(self);
                entries.push(ThreadEntry { id: self.id, forks: self.forks, cell: Arc::clone(&cell), shared });
            }
            self.call_in(&cell, work)
        });
        // The thread is ending, and its variables are gone: a slot for this call alone.
        cached.unwrap_or_else(|_| {
            let cell = self.add_cell();
            let result = self.call_in(&cell, work);
            cell.release();
            self.remove_cell(&cell);
            result
        })
    }

    fn call_in<T>(&self, cell: &SlotCell, work: &mut impl FnMut(Inside<'_>) -> Result<T>) -> Result<T> {
        let mut held = lock(&cell.0);
        let slot = match &mut *held {
            Some(slot) => slot,
            empty => empty.insert(self.enter()?),
        };
        slot.run(work)
    }

    fn enter(&self) -> Result<Box<Slot>> {
        let Open { process, root, image } = lock(&self.registry).open.clone().ok_or(Errno::ENODEV)?;
        // SAFETY: the slot drops its thread before its image.
        let fs = unsafe { fs_of(&image) };
        let thread = match fs.enter() {
            Err(engine::Error::TooManyThreads) => {
                self.release_idle_slots();
                fs.enter()?
            }
            entered => entered?,
        };
        let process = process.for_thread().unwrap_or(process);
        Ok(Box::new(Slot {
            thread,
            process,
            path_cache: PathCache::new(),
            buffer: PathBuffer::new(),
            root,
            image,
            calls: Cell::new(0),
        }))
    }

    fn add_cell(&self) -> Arc<SlotCell> {
        let cell = Arc::<SlotCell>::default();
        lock(&self.registry).cells.push(Arc::clone(&cell));
        cell
    }

    fn remove_cell(&self, cell: &Arc<SlotCell>) {
        lock(&self.registry).cells.retain(|other| !Arc::ptr_eq(other, cell));
    }

    /// Releases the slots of threads that are in no call, with the space that they keep for reuse.
    /// Their next call claims one again. Returns whether there were any.
    fn release_idle_slots(&self) -> bool {
        let cells = lock(&self.registry).cells.clone();
        let mut released = false;
        for cell in cells {
            let held = match cell.0.try_lock() {
                Ok(held) => Some(held),
                Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
                Err(TryLockError::WouldBlock) => None,
            };
            if let Some(slot) = held.and_then(|mut held| held.take()) {
                slot.leave();
                released = true;
            }
        }
        released
    }

    /// Opens a file: `open` installs it under the given number.
    pub fn open(self: &Arc<Self>, mut open: impl FnMut(Inside<'_>, u32) -> Result<()>) -> Result<OpenNumber> {
        let number = self.take_number()?;
        match self.call(CallClass::Open, |inside| open(inside, number)) {
            Ok(()) => Ok(OpenNumber { shared: Arc::clone(self), number }),
            Err(error) => {
                self.return_number(number);
                Err(error)
            }
        }
    }

    fn take_number(&self) -> Result<u32> {
        if self.is_forked() {
            return Err(FORKED);
        }
        let mut numbers = lock(&self.numbers);
        if let Some(number) = numbers.free.pop() {
            return Ok(number);
        }
        let number = numbers.next;
        if number >= DESCRIPTORS_MAX {
            return Err(TOO_MANY_FILES);
        }
        numbers.next += 1;
        Ok(number)
    }

    fn return_number(&self, number: u32) {
        if !self.is_forked() {
            lock(&self.numbers).free.push(number);
        }
    }

    /// Makes a view: `map` maps a file and records it.
    pub fn map(self: &Arc<Self>, map: impl FnMut(Inside<'_>) -> Result<()>) -> Result<()> {
        if self.is_forked() {
            return Err(FORKED);
        }
        let mut views = lock(&self.views);
        self.call(CallClass::Map, map)?;
        *views += 1;
        Ok(())
    }

    /// Views that live. In the child of a fork: none, since they belong to the parent.
    pub fn views(&self) -> usize {
        if self.is_forked() { 0 } else { *lock(&self.views) }
    }

    /// Ends a view: `unmap` returns the range that it has unmapped, whose record is then removed.
    pub fn unmap(self: &Arc<Self>, unmap: impl FnOnce() -> Option<(u64, u64)>) {
        if self.is_forked() {
            unmap();
            return;
        }
        let mut views = lock(&self.views);
        if let Some((address, length)) = unmap() {
            // The image is open while a view lives. What fails stays recorded until it is closed.
            let _ = self.call(CallClass::Map, |inside| inside.process.remove_mappings(inside.thread, address, length));
        }
        *views -= 1;
    }

    /// Waits for the calls in progress, closes all files, and detaches. Later calls are ENODEV.
    /// `None`: the image was already closed. EBUSY: a view lives.
    pub fn close(&self) -> Option<std::result::Result<Closed, ImageError>> {
        let views = lock(&self.views);
        if *views > 0 {
            let path = lock(&self.registry).open.as_ref()?.image.path().to_owned();
            let source = std::io::Error::from_raw_os_error(libc::EBUSY);
            return Some(Err(ImageError::File {
                action: "close before all views of its files have ended",
                path,
                source,
            }));
        }
        let Registry { open, descriptors, cells } = take(&mut *lock(&self.registry));
        let Open { process, root, image } = open?;
        cells.iter().for_each(|cell| cell.release());
        if let Ok(thread) = image.fs().enter() {
            process.exit(&thread);
            thread.release(root, 1);
        }
        // Their numbers are free afterwards.
        drop(descriptors);
        let _no_signal = NoSignal::new();
        // The slots had the other references.
        Arc::into_inner(image).map(Image::close)
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        if self.is_forked() {
            forget(take(self.registry.get_mut().unwrap_or_else(PoisonError::into_inner)));
            return;
        }
        // An error has no receiver: `Image::close` returns it.
        let _ = self.close();
    }
}

/// An open file of this process. Dropping it closes the file.
pub(crate) struct OpenNumber {
    shared: Arc<Shared>,
    number: u32,
}

impl OpenNumber {
    pub fn number(&self) -> u32 {
        self.number
    }

    pub fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }
}

impl Drop for OpenNumber {
    fn drop(&mut self) {
        let number = self.number;
        if let Ok(true) = self.shared.call(CallClass::Close, |inside| Ok(inside.process.remove(inside.thread, number)))
        {
            self.shared.return_number(number);
        }
    }
}
