//! The atomics of the DRAM region, and the pause of a polling loop. In the engine's own tests each
//! access is a point at which a scheduler may run another thread, and each pause runs one.
//! Everywhere else they are those of `core`.

#[cfg(not(test))]
pub use core::hint::spin_loop;
#[cfg(not(test))]
pub use core::sync::atomic::{AtomicI64, AtomicU32, AtomicU64};
#[cfg(test)]
pub use scheduled::{AtomicI64, AtomicU32, AtomicU64, spin_loop};

#[cfg(test)]
mod scheduled {
    use crate::testing::schedule::{self, Race};
    use core::sync::atomic::Ordering;

    pub fn spin_loop() {
        schedule::pause();
    }

    macro_rules! scheduled {
        ($name:ident, $int:ty) => {
            #[repr(transparent)]
            #[derive(Debug, Default)]
            pub struct $name(core::sync::atomic::$name);

            // SAFETY: transparent: an atomic of `core`, which is `Layout`.
            unsafe impl pmem::Layout for $name {}

            #[allow(dead_code)]
            impl $name {
                pub const fn new(value: $int) -> $name {
                    $name(core::sync::atomic::$name::new(value))
                }
                pub fn load(&self, order: Ordering) -> $int {
                    schedule::point();
                    self.0.load(order)
                }
                pub fn store(&self, value: $int, order: Ordering) {
                    schedule::point();
                    self.0.store(value, order)
                }
                /// The engine uses `swap` only for pins.
                pub fn swap(&self, value: $int, order: Ordering) -> $int {
                    schedule::point();
                    if schedule::is_injected(Race::HiddenPins) { self.0.load(Ordering::SeqCst) } else { self.0.swap(value, order) }
                }
                pub fn compare_exchange_weak(
                    &self,
                    old: $int,
                    new: $int,
                    success: Ordering,
                    failure: Ordering,
                ) -> Result<$int, $int> {
                    self.compare_exchange(old, new, success, failure)
                }
                pub fn compare_exchange(
                    &self,
                    old: $int,
                    new: $int,
                    success: Ordering,
                    failure: Ordering,
                ) -> Result<$int, $int> {
                    schedule::point();
                    if schedule::is_injected(Race::TornExchange) {
                        let found = self.0.load(failure);
                        schedule::point();
                        return if found == old { Ok(self.0.swap(new, success)) } else { Err(found) };
                    }
                    self.0.compare_exchange(old, new, success, failure)
                }
                pub fn fetch_update(
                    &self,
                    success: Ordering,
                    failure: Ordering,
                    mut update: impl FnMut($int) -> Option<$int>,
                ) -> Result<$int, $int> {
                    let mut found = self.load(failure);
                    while let Some(new) = update(found) {
                        match self.compare_exchange(found, new, success, failure) {
                            Ok(_) => return Ok(found),
                            Err(now) => found = now,
                        }
                    }
                    Err(found)
                }
                scheduled!(@same $int: fetch_add fetch_sub fetch_or fetch_and fetch_max fetch_min);
            }
        };
        (@same $int:ty: $($method:ident)*) => {$(
            pub fn $method(&self, value: $int, order: Ordering) -> $int {
                schedule::point();
                self.0.$method(value, order)
            }
        )*};
    }

    scheduled!(AtomicU32, u32);
    scheduled!(AtomicU64, u64);
    scheduled!(AtomicI64, i64);
}
