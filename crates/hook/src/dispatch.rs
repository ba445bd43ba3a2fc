//! Routes calls that may concern the image to their handlers.
//!
//! Invariant: a handler either does the whole call and returns the program's result, or has changed
//! nothing and leaves the call to the kernel.

use crate::abi::entry::{FROM_ALTERNATE, Frame, NATIVE, Next, Verdict, done};
use crate::abi::sys;
use crate::abi::thread_words::thread_words;
#[cfg(feature = "loader")]
use crate::call::native_with;
use crate::call::{Attaches, Call, Handler};
use crate::call_table::TABLE;
use crate::calls::mapping::missing;
use crate::context::{self, Context};
#[cfg(feature = "loader")]
use crate::process::own_program;
use crate::process::{attach, exec, processes, working_directory};
use crate::server::Server;
use crate::signals::{self, faults};
use crate::{call_counts, failed_image, profile, server, stack};
use posix::Errno;
use tables::host::monotonic_ns;

/// The entry calls this for every call that passed its filter.
///
/// # Safety
/// `frame` is the caller's frame, without other users meanwhile.
pub unsafe extern "C" fn directfs_dispatch(frame: *mut Frame, own_stack: u64) -> Verdict {
    if own_stack & FROM_ALTERNATE != 0 {
        // SAFETY: this runs on the thread's own stack, with all signals blocked.
        return unsafe { signals::without_alternate(|| dispatch(frame, own_stack)) };
    }
    // SAFETY: the caller vouches for the frame.
    unsafe { dispatch(frame, own_stack) }
}

#[inline(always)]
unsafe fn dispatch(frame: *mut Frame, own_stack: u64) -> Verdict {
    // SAFETY: the caller vouches for the frame.
    let frame = unsafe { &*frame };
    // The kernel reads the lower half only.
    let number = frame.number as u32 as usize;
    if own_stack == 0 {
        // A stack costs a program that has used none until its end more than the call.
        if server::is_pending() && number as i64 == libc::SYS_exit_group {
            call_counts::count(number);
            return NATIVE;
        }
        if stack::prepare() {
            return Verdict { result: 0, next: Next::Again };
        }
    }
    call_counts::count(number);
    let Some(handler) = TABLE.handler(number) else { return NATIVE };
    let Some(server) = server::get() else { return without_server(frame, number) };
    if own_stack != 0 {
        // SAFETY: this runs on this thread's own stack.
        return serve(server, frame, unsafe { stack::context() }, handler);
    }
    context::with_new(|context| serve(server, frame, context, handler)).unwrap_or(done(-i64::from(libc::ENOMEM)))
}

#[cfg(feature = "loader")]
fn serve(server: &'static Server, frame: &Frame, context: &mut Context, handler: Handler) -> Verdict {
    let Some(other) = own_program::instead_of_link(frame, &TABLE.routes) else {
        return serve_call(server, frame, context, handler);
    };
    match serve_call(server, &other, context, handler) {
        Verdict { next: Next::Native, .. } => native_with(&other, other.arguments()),
        verdict => verdict,
    }
}

#[cfg(not(feature = "loader"))]
use serve_call as serve;

#[inline(always)]
fn serve_call(server: &'static Server, frame: &Frame, context: &mut Context, handler: Handler) -> Verdict {
    if context.records() {
        serve_recorded(server, frame, context, handler)
    } else {
        serve_unrecorded(server, frame, context, handler)
    }
}

/// Makes a call, and counts how long it takes: in a profile, or else in the image's statistics, of
/// one call in 256.
#[cold]
#[inline(never)]
fn serve_recorded(server: &'static Server, frame: &Frame, context: &mut Context, handler: Handler) -> Verdict {
    if let Some(profile) = profile::get() {
        context.skip(0);
        let began = profile::now();
        let verdict = serve_unrecorded(server, frame, context, handler);
        let ticks = profile::now().saturating_sub(began);
        if verdict.next == Next::Done {
            profile.record(frame, ticks, |fd, into| working_directory::copy_path(context, fd, into));
        }
        return verdict;
    }
    context.skip(u8::MAX);
    let began_ns = monotonic_ns();
    let verdict = serve_unrecorded(server, frame, context, handler);
    if verdict.next == Next::Done {
        let class = TABLE.details(frame.number as u32).class;
        context.count_latency(class, monotonic_ns().saturating_sub(began_ns));
    }
    verdict
}

#[inline(always)]
fn serve_unrecorded(server: &'static Server, frame: &Frame, context: &mut Context, handler: Handler) -> Verdict {
    let words = thread_words();
    // SAFETY: the words are this thread's, and no reference to them exists.
    let forked_by = unsafe {
        // A signal handler that left by a jump has not cleared the count.
        (*words).passive = 0;
        (*words).forked_by
    };
    if forked_by != 0 {
        processes::after_shared_memory_child(server, context);
    }
    if server::is_pending() && needs_image(frame) {
        attach::attach_now(server, context);
    }
    let mut call = Call { frame, server, context, table: &TABLE };
    if missing::exist() {
        missing::touch_buffers(&mut call);
    }
    let had_failed = server::has_failed();
    let served = if had_failed { failed_image::serve(&mut call, handler) } else { handler(&mut call) };
    let verdict = served.unwrap_or_else(|error| failure(call.context, error));
    // SAFETY: the words are this thread's.
    let faulted = unsafe { faults::take_from(words) };
    if verdict.next != Next::Done {
        return verdict;
    }
    call.context.count_call(frame.number as usize);
    if faulted {
        return done(-i64::from(libc::EFAULT));
    }
    if !had_failed && server::has_failed() && !server::is_lost() {
        return end_of_image(server);
    }
    verdict
}

/// The verdict of a call that fails.
#[inline(never)]
fn failure(context: &Context, Errno(errno): Errno) -> Verdict {
    if errno == libc::ENOMEM {
        context.release_for_eviction();
    }
    // Where all handlers of the signals want that, the call starts again.
    if errno == libc::EINTR
        && let Some(Ok(again)) = signals::interruption()
    {
        return again;
    }
    done(-i64::from(errno))
}

/// The image has failed during a call: this is reported, and the call fails.
#[cold]
fn end_of_image(server: &Server) -> Verdict {
    server.fs.mark_unclean();
    let loss = server::loss();
    sys::print(&[
        b"the image ",
        loss.description().as_bytes(),
        b": every access now returns EIO; end this program; then ",
        loss.remedy().as_bytes(),
    ]);
    done(-i64::from(libc::EIO))
}

/// Whether a process that has not attached its image must do so before a call.
fn needs_image(frame: &Frame) -> bool {
    let [first, _, third, ..] = frame.arguments();
    match TABLE.details(frame.number as u32).attaches {
        #[cfg(feature = "loader")]
        Attaches::Always => !own_program::reads_link(frame),
        #[cfg(not(feature = "loader"))]
        Attaches::Always => true,
        Attaches::Never => false,
        Attaches::BeforeFilter => first as i32 == libc::PR_SET_SECCOMP,
        Attaches::BeforeLimit => third != 0,
    }
}

/// Serves a program that has the library but no file system: programs that it starts must get the
/// library, too.
fn without_server(frame: &Frame, number: usize) -> Verdict {
    match number as i64 {
        libc::SYS_execve => exec::inject(frame, 2),
        libc::SYS_execveat => exec::inject(frame, 3),
        _ => NATIVE,
    }
}
