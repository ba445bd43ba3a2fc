//! Taking locks as kernels do: who finds a lock held looks at it for a while before he sleeps, since its holder is at work and will soon be done. (Linux's mutexes and
//! read-write semaphores spin for as long as their holder runs.) The standard library's locks go to sleep much earlier, and waking somebody takes longer than most of
//! what is done under a lock here.
//!
//! A thread that panicked under a lock left what it protects as any other error does: callers look at what they find.

use std::hint::spin_loop;
use std::sync::{
    Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard, TryLockError, TryLockResult,
};

/// Looks before one sleeps: some ten microseconds, longer than a call holds a lock.
const LOOKS: u32 = 300;

fn patiently<G>(take: impl Fn() -> TryLockResult<G>, sleep: impl FnOnce() -> G) -> G {
    for _ in 0..LOOKS {
        match take() {
            Ok(guard) => return guard,
            Err(TryLockError::Poisoned(guard)) => return guard.into_inner(),
            Err(TryLockError::WouldBlock) => spin_loop(),
        }
    }
    sleep()
}

/// Takes a lock.
#[inline]
pub fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    patiently(|| mutex.try_lock(), || mutex.lock().unwrap_or_else(PoisonError::into_inner))
}

/// Takes a lock together with others who only look.
#[inline]
pub fn read<T: ?Sized>(lock: &RwLock<T>) -> RwLockReadGuard<'_, T> {
    patiently(|| lock.try_read(), || lock.read().unwrap_or_else(PoisonError::into_inner))
}

/// Takes a lock alone.
#[inline]
pub fn write<T: ?Sized>(lock: &RwLock<T>) -> RwLockWriteGuard<'_, T> {
    patiently(|| lock.try_write(), || lock.write().unwrap_or_else(PoisonError::into_inner))
}
