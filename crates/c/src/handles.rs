//! Tables of what C programs hold: images, files, listings.
//!
//! A handle is `1 << 30 | generation << 20 | index`: never the number of a descriptor of the
//! kernel, and another one when its place is used again. So a handle that was closed, or belongs to
//! something else, is EBADF, and `read(2)` of a file in an image fails as well.
//!
//! A child of fork begins with empty tables: what the parent holds belongs to the parent, and its
//! locks may be held by threads that the child does not have. The old tables are leaked there.
//!
//! *Rejected:* addresses (C programs close handles twice, use them after a fork, and mix up kinds,
//! which would corrupt memory in a library that maps the user's data); small integers (they would
//! be files of `read(2)`). A stale handle is EBADF for 1,024 uses of its place.

use crate::error::{Failure, Result};
use directfs::{File, FileSystem, Image, ReadDir};
use std::collections::VecDeque;
use std::ptr::{null_mut, without_provenance_mut};
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};
use std::sync::atomic::{AtomicPtr, AtomicU32};
use std::sync::{Arc, Mutex, MutexGuard, Once, PoisonError, RwLock};

/// An image of this process, or a view of one: other credentials, or a part of the tree.
pub struct directfs_image {
    pub(crate) fs: FileSystem,
    /// Present until it is closed. A view has none.
    pub(crate) image: Mutex<Option<Image>>,
    /// Stands for the image in `st_dev`.
    pub(crate) device: u64,
}

/// A listing of a directory.
pub struct directfs_dir {
    pub(crate) list: Mutex<ReadDir>,
}

/// An open file, and the device number of its image.
pub(crate) struct OpenFile {
    pub file: File,
    pub device: u64,
}

const TAG: u32 = 1 << 30;
const INDEX_BITS: u32 = 20;
const GENERATIONS: u32 = 1 << 10;

struct Entry<T> {
    generation: u32,
    value: Option<Arc<T>>,
}

struct Entries<T> {
    entries: Vec<Entry<T>>,
    /// Free indices, the longest unused first.
    free: VecDeque<u32>,
}

pub(crate) struct Table<T> {
    first_generation: u32,
    entries: RwLock<Entries<T>>,
}

impl<T> Table<T> {
    fn new(first_generation: u32) -> Table<T> {
        Table { first_generation, entries: RwLock::new(Entries { entries: Vec::new(), free: VecDeque::new() }) }
    }

    pub fn insert(&self, value: Arc<T>) -> Result<u32> {
        let Entries { entries, free } = &mut *self.entries.write().unwrap_or_else(PoisonError::into_inner);
        let index = match free.pop_front() {
            Some(index) => index,
            None if entries.len() < 1 << INDEX_BITS => {
                entries.push(Entry { generation: self.first_generation, value: None });
                entries.len() as u32 - 1
            }
            None => return Err(Failure::Here(libc::EMFILE, "too many handles are open: close some")),
        };
        let entry = &mut entries[index as usize];
        entry.value = Some(value);
        Ok(TAG | entry.generation << INDEX_BITS | index)
    }

    pub fn get(&self, handle: u32) -> Option<Arc<T>> {
        let held = self.entries.read().unwrap_or_else(PoisonError::into_inner);
        let entry = held.entries.get(index_of(handle))?;
        if Some(entry.generation) != generation_of(handle) {
            return None;
        }
        entry.value.as_ref().map(Arc::clone)
    }

    pub fn remove(&self, handle: u32) -> Option<Arc<T>> {
        let Entries { entries, free } = &mut *self.entries.write().unwrap_or_else(PoisonError::into_inner);
        let index = index_of(handle);
        let entry = entries.get_mut(index).filter(|entry| Some(entry.generation) == generation_of(handle))?;
        let value = entry.value.take()?;
        entry.generation = (entry.generation + 1) % GENERATIONS;
        free.push_back(index as u32);
        Some(value)
    }
}

fn index_of(handle: u32) -> usize {
    handle as usize & ((1 << INDEX_BITS) - 1)
}

/// `None` for what is no handle.
fn generation_of(handle: u32) -> Option<u32> {
    (handle >> 30 == 1).then_some((handle & !TAG) >> INDEX_BITS)
}

/// All handles of this process.
pub(crate) struct Tables {
    pub images: Table<directfs_image>,
    pub directories: Table<directfs_dir>,
    pub files: Table<OpenFile>,
}

static TABLES: AtomicPtr<Tables> = AtomicPtr::new(null_mut());
static FORKS: AtomicU32 = AtomicU32::new(0);

extern "C" fn forget_tables() {
    FORKS.fetch_add(1, Relaxed);
    TABLES.store(null_mut(), Relaxed);
}

pub(crate) fn tables() -> &'static Tables {
    static WATCH_FORKS: Once = Once::new();
    let made = TABLES.load(Acquire);
    if !made.is_null() {
        // SAFETY: tables are never freed.
        return unsafe { &*made };
    }
    // SAFETY: the function only changes atomics.
    WATCH_FORKS.call_once(|| unsafe {
        libc::pthread_atfork(None, None, Some(forget_tables));
    });
    // Handles of the parent are none of the child.
    let first = FORKS.load(Relaxed) % GENERATIONS;
    let new = Box::into_raw(Box::new(Tables {
        images: Table::new(first),
        directories: Table::new(first),
        files: Table::new(first),
    }));
    match TABLES.compare_exchange(null_mut(), new, AcqRel, Acquire) {
        // SAFETY: never freed.
        Ok(_) => unsafe { &*new },
        Err(other) => {
            // SAFETY: no thread has seen it, and `other` is never freed.
            unsafe {
                drop(Box::from_raw(new));
                &*other
            }
        }
    }
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A handle that C sees as a pointer.
pub(crate) fn pointer<T>(handle: u32) -> *mut T {
    without_provenance_mut(handle as usize)
}

/// The handle behind a pointer; zero, which is none, for other pointers.
fn handle_of<T>(pointer: *mut T) -> u32 {
    u32::try_from(pointer.addr()).unwrap_or(0)
}

const CLOSED: &str = "not a handle of this kind, closed, or of the process before a fork: open it again";

pub(crate) fn image(pointer: *mut directfs_image) -> Result<Arc<directfs_image>> {
    tables().images.get(handle_of(pointer)).ok_or(Failure::Here(libc::EBADF, CLOSED))
}

pub(crate) fn remove_image(pointer: *mut directfs_image) -> Result<Arc<directfs_image>> {
    tables().images.remove(handle_of(pointer)).ok_or(Failure::Here(libc::EBADF, CLOSED))
}

pub(crate) fn directory(pointer: *mut directfs_dir) -> Result<Arc<directfs_dir>> {
    tables().directories.get(handle_of(pointer)).ok_or(Failure::Here(libc::EBADF, CLOSED))
}

pub(crate) fn remove_directory(pointer: *mut directfs_dir) -> Result<Arc<directfs_dir>> {
    tables().directories.remove(handle_of(pointer)).ok_or(Failure::Here(libc::EBADF, CLOSED))
}

pub(crate) fn file(number: i32) -> Result<Arc<OpenFile>> {
    tables().files.get(number as u32).ok_or(Failure::Here(libc::EBADF, CLOSED))
}

pub(crate) fn remove_file(number: i32) -> Result<Arc<OpenFile>> {
    tables().files.remove(number as u32).ok_or(Failure::Here(libc::EBADF, CLOSED))
}

pub(crate) fn add_file(file: File, device: u64) -> Result<i32> {
    Ok(tables().files.insert(Arc::new(OpenFile { file, device }))? as i32)
}
