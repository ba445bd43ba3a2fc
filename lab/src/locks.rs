//! Lock functions that spin before they sleep, as in kernels: Linux's mutexes and read-write
//! semaphores spin for as long as the holder runs. The standard library's locks sleep much earlier.
//! Waking a thread takes longer than most critical sections here.
//!
//! A panic under a lock leaves the protected data as any other error does; callers check what they
//! read, so poisoning is ignored.

use std::hint::spin_loop;
use std::sync::{
    Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard, TryLockError, TryLockResult,
};

/// Attempts before sleeping: about ten microseconds, longer than a call holds a lock.
const SPINS: u32 = 300;

fn spin_then_sleep<G>(take: impl Fn() -> TryLockResult<G>, sleep: impl FnOnce() -> G) -> G {
    for _ in 0..SPINS {
        match take() {
            Ok(guard) => return guard,
            Err(TryLockError::Poisoned(guard)) => return guard.into_inner(),
            Err(TryLockError::WouldBlock) => spin_loop(),
        }
    }
    sleep()
}

/// Locks a mutex.
#[inline]
pub fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    spin_then_sleep(|| mutex.try_lock(), || mutex.lock().unwrap_or_else(PoisonError::into_inner))
}

/// Takes a read lock.
#[inline]
pub fn read<T: ?Sized>(lock: &RwLock<T>) -> RwLockReadGuard<'_, T> {
    spin_then_sleep(|| lock.try_read(), || lock.read().unwrap_or_else(PoisonError::into_inner))
}

/// Takes a write lock.
#[inline]
pub fn write<T: ?Sized>(lock: &RwLock<T>) -> RwLockWriteGuard<'_, T> {
    spin_then_sleep(|| lock.try_write(), || lock.write().unwrap_or_else(PoisonError::into_inner))
}
