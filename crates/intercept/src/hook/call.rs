//! A call in the dispatcher.

use crate::hook::abi::entry::{Frame, Verdict, done};
use crate::hook::abi::sys;
use crate::hook::abi::thread_words::thread_words;
use crate::hook::context::{Context, Inside};
use crate::hook::server::Server;
use posix::Result;

/// A call with everything that its handler needs.
pub struct Call<'a> {
    /// Registers of the call.
    pub frame: &'a Frame,
    /// The file system.
    pub server: &'static Server,
    /// The calling thread's context.
    pub context: &'a mut Context,
}

/// Serves one kind of call. An error is the program's errno.
pub type Handler = fn(&mut Call<'_>) -> Result<Verdict>;

impl Call<'_> {
    /// The arguments in order.
    pub fn arguments(&self) -> [u64; 6] {
        self.frame.arguments()
    }

    /// Enters the engine.
    #[inline(always)]
    pub fn begin(&mut self) -> Result<Inside<'_>> {
        self.context.begin(self.server)
    }
}

/// Performs a kernel call that may block. Signal handlers may run meanwhile, because the thread
/// holds nothing in the engine.
///
/// # Safety
/// As for [`sys::call`].
pub unsafe fn blocking_call(number: i64, arguments: [u64; 6]) -> i64 {
    let words = thread_words();
    // SAFETY: the words are this thread's; the caller vouches for the call.
    unsafe {
        let before = core::mem::replace(&mut (*words).passive, 1);
        let result = sys::call(number, arguments);
        (*words).passive = before;
        result
    }
}

/// Performs a kernel call from the library, with changed arguments.
///
/// The arguments are the program's except for paths, which lie in buffers of the thread. The call
/// therefore does what the program requested, and does not touch the library's memory.
pub fn native_with(frame: &Frame, arguments: [u64; 6]) -> Verdict {
    // SAFETY: as above; calls that return twice or never do not get here.
    done(unsafe { blocking_call(i64::from(frame.number as u32), arguments) })
}
