//! The end of a command for which memory or threads do not suffice: a message with the remedy, and
//! the exit status of a failure, instead of an abort.
//!
//! The process ends at once: what it leaves of an image or a file is recovered or removed as after
//! a kill. A fallible request (`try_reserve`) would end it, too, so commands make none.

use std::alloc::{GlobalAlloc, Layout, System};
use std::io::Write;
use std::sync::atomic::AtomicI32;
use std::sync::atomic::Ordering::Relaxed;

/// The system's allocator, but for the end where it has no memory.
struct Ending;

#[global_allocator]
static ALLOCATOR: Ending = Ending;

/// The exit status.
static EXIT_CODE: AtomicI32 = AtomicI32::new(1);

/// Sets the exit status of the command, and ends it also where a thread cannot be started.
pub fn end_with(exit_code: u8) {
    EXIT_CODE.store(exit_code.into(), Relaxed);
    let report = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        // The standard library and tokio panic, and have no error for it.
        let is_thread = panic.payload_as_str().is_some_and(|text| text.contains("spawn") && text.contains("thread"));
        if is_thread {
            end(format_args!("no thread could be started; raise the limits `ulimit -u` and `ulimit -v`"));
        }
        report(panic);
    }));
}

/// Allocates nothing.
fn end(cause: std::fmt::Arguments<'_>) -> ! {
    let mut text = [0; 256];
    let mut rest = &mut text[..];
    let _ = writeln!(rest, "error: the command ends for want of memory\n  cause: {cause}");
    let length = 256 - rest.len();
    // SAFETY: writes bytes of this function, and ends the process.
    unsafe {
        libc::write(libc::STDERR_FILENO, text.as_ptr().cast(), length);
        libc::_exit(EXIT_CODE.load(Relaxed));
    }
}

fn checked(address: *mut u8, bytes: usize) -> *mut u8 {
    if address.is_null() {
        end(format_args!("{bytes} bytes were refused; raise the limit (`ulimit -v`, the cgroup's) or free memory"));
    }
    address
}

// SAFETY: all is the system's allocator's, and no result is null.
unsafe impl GlobalAlloc for Ending {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: by the caller's promise, as below.
        checked(unsafe { System.alloc(layout) }, layout.size())
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as above.
        checked(unsafe { System.alloc_zeroed(layout) }, layout.size())
    }

    unsafe fn realloc(&self, address: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        // SAFETY: as above.
        checked(unsafe { System.realloc(address, layout, bytes) }, bytes)
    }

    unsafe fn dealloc(&self, address: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(address, layout) };
    }
}
