//! Types of a call in the dispatcher, and of the table of all calls, whose content is in
//! [`call_table`](crate::call_table).

use crate::abi::entry::{Frame, Verdict, done};
use crate::abi::sys;
use crate::abi::thread_words::thread_words;
use crate::context::{Context, Inside};
use crate::routes::{LEFT_OUT, NUMBERS, Route, Routes, SYS_MISSING_PAGE};
use crate::server::Server;
use engine::statistics::CallClass;
use posix::Result;

/// A call with everything that its handler needs.
pub struct Call<'a> {
    /// Registers of the call.
    pub frame: &'a Frame,
    /// The file system.
    pub server: &'static Server,
    /// The calling thread's context.
    pub context: &'a mut Context,
    /// All calls.
    pub table: &'static Table,
}

/// Serves one kind of call. An error is the program's errno.
pub type Handler = fn(&mut Call<'_>) -> Result<Verdict>;

/// What happens to a call after the image was truncated under the process, or after the process
/// lost its place in the shared tables.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnFailure {
    /// EIO if the route's arguments concern the mount, otherwise the kernel's. Not for
    /// [`Route::Always`], which names no arguments.
    ByRoute,
    /// Like `ByRoute`, by the arguments of another route.
    By(Route),
    /// The kernel's.
    Kernel,
    /// The handler's.
    Handle,
    /// The handler's while the process has its place in the shared tables, then the kernel's.
    HandleWithTables,
    /// EIO.
    Eio,
    /// close: the placeholder is closed.
    Close,
    /// close_range: as [`HandleWithTables`], but marks of descriptors stay right.
    CloseRange,
}

/// What a call's arguments point to, beside the paths and structures of all calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Buffers {
    /// Nothing else.
    None,
    /// Bytes: address in the second argument, length in the third.
    Bytes,
    /// A list of buffers in the second argument, their number in the third.
    Vector,
    /// A message in the second argument.
    Message,
    /// Messages in the second argument, their number in the third.
    Messages,
    /// The arguments name ranges of addresses, and nothing that lies there is read or written.
    Ranges,
}

/// When a process that has not attached its image must do so before the call: if it may concern the
/// file system, processes that share the process's place in it, or what the process needs to attach
/// later.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Attaches {
    /// Before each call.
    Always,
    /// The handler works without an image.
    Never,
    /// prctl: before a filter, which may forbid the calls that attach.
    BeforeFilter,
    /// prlimit64: before a change, since a limit may leave no room. Most programs only query it.
    BeforeLimit,
}

/// What the dispatcher must know of a call beside its route and handler.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Details {
    /// What happens after the image failed.
    pub on_failure: OnFailure,
    /// Class in the statistics.
    pub class: CallClass,
    /// What the arguments point to.
    pub buffers: Buffers,
    /// When the call needs the image.
    pub attaches: Attaches,
}

impl Details {
    /// Details of a call without an entry: the kernel performs it.
    pub const OF_THE_KERNEL: Details = Details {
        on_failure: OnFailure::Kernel,
        class: CallClass::Other,
        buffers: Buffers::None,
        attaches: Attaches::Always,
    };
}

/// A system call.
#[derive(Clone, Copy)]
pub struct Entry {
    /// Name in libc: `SYS_` and the kernel's.
    pub name: &'static str,
    /// Number.
    pub number: libc::c_long,
    /// What decides whether a call may concern the image.
    pub route: Route,
    /// Serves the call. `None`: the kernel alone.
    pub handler: Option<Handler>,
    /// What else the dispatcher must know.
    pub details: Details,
    /// Whether an extension serves the call, in place of this entry.
    pub is_refusal: bool,
}

impl Entry {
    /// What the arguments point to, beside paths and structures.
    pub const fn buffers(mut self, buffers: Buffers) -> Entry {
        self.details.buffers = buffers;
        self
    }

    /// When the call needs the image of a process that has not attached it.
    pub const fn attaches(mut self, attaches: Attaches) -> Entry {
        self.details.attaches = attaches;
        self
    }
}

/// `call!(number, route, class, handler)`, or with what happens after the image failed if that does
/// not follow from the route.
macro_rules! call {
    ($number:ident, $route:ident, $class:ident, $handler:path) => {
        $crate::call::call!($number, $route, $class, $handler, $crate::call::OnFailure::ByRoute)
    };
    ($number:ident, $route:ident, $class:ident, $handler:path, $on_failure:expr) => {
        $crate::call::Entry {
            name: stringify!($number),
            number: $number,
            route: $crate::routes::Route::$route,
            handler: Some($handler),
            details: $crate::call::Details {
                on_failure: $on_failure,
                class: engine::statistics::CallClass::$class,
                ..$crate::call::Details::OF_THE_KERNEL
            },
            is_refusal: false,
        }
    };
}
pub(crate) use call;

/// A call of a row that the kernel alone serves.
macro_rules! kernel {
    ($number:ident) => {
        $crate::call::Entry {
            name: stringify!($number),
            number: $number,
            route: $crate::routes::Route::Native,
            handler: None,
            details: $crate::call::Details::OF_THE_KERNEL,
            is_refusal: false,
        }
    };
}
pub(crate) use kernel;

/// Where the table has the handler of a number: without the gap, so that a start of a program
/// relocates handlers on few pages. Beyond the table for numbers without calls.
#[inline(always)]
pub const fn place(number: usize) -> usize {
    const AFTER_GAP: usize = SYS_MISSING_PAGE as usize;
    if number < LEFT_OUT.start {
        number
    } else if number >= AFTER_GAP {
        number - (AFTER_GAP - LEFT_OUT.start)
    } else {
        PLACES
    }
}

/// Handlers by their [`place`].
pub type Handlers = [Option<Handler>; PLACES];
/// Places of handlers.
pub const PLACES: usize = LAST_NUMBER + 1 - (SYS_MISSING_PAGE as usize - LEFT_OUT.start);
/// The last number with a handler.
pub const LAST_NUMBER: usize = 469;

/// The table of system calls, by numbers. The filter reads its start.
#[repr(C)]
pub struct Table {
    /// What decides whether a call may concern the image.
    pub routes: Routes,
    /// What serves a call; `None`: the kernel.
    pub handlers: Handlers,
    /// What calls seldom need. Apart from the handlers, whose addresses each start of a program
    /// relocates.
    pub details: &'static [Details; NUMBERS],
}
const _: () = assert!(core::mem::offset_of!(Table, routes) == 0);

impl Table {
    /// What serves a number.
    #[inline]
    pub fn handler(&self, number: usize) -> Option<Handler> {
        self.handlers.get(place(number)).copied().flatten()
    }

    /// The rest about a number.
    pub fn details(&self, number: u32) -> Details {
        self.details.get(number as usize).copied().unwrap_or(Details::OF_THE_KERNEL)
    }
}

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
