//! Calls that a program makes by the entries of a ring or of a list (io_uring, AIO).

use crate::abi::entry::{Next, Verdict};
use crate::abi::user_memory;
use crate::call::{Call, native_with};
use crate::calls::mapping::missing;
#[cfg(feature = "loader")]
use crate::process::own_program;
use crate::signals::faults;
use crate::{failed_image, server};
use posix::{Errno, Result};

/// Serves a call that the program makes by an entry of a ring. `None`: it is the kernel's, and has
/// changed nothing.
pub fn serve_entry(call: &mut Call<'_>, number: i64, arguments: [u64; 6]) -> Result<Option<i64>> {
    let frame = call.frame.with(number, arguments);
    #[cfg(feature = "loader")]
    let other = own_program::instead_of_link(&frame, &call.table.routes);
    #[cfg(feature = "loader")]
    let (frame, is_rewritten) = (other.as_ref().unwrap_or(&frame), other.is_some());
    #[cfg(not(feature = "loader"))]
    let (frame, is_rewritten) = (&frame, false);
    let Some(handler) = call.table.handler(number as usize) else { return Ok(None) };
    let mut entry = Call { frame, server: call.server, context: &mut *call.context, table: call.table };
    if missing::exist() {
        missing::touch_buffers(&mut entry);
    }
    let served = if server::has_failed() { failed_image::serve(&mut entry, handler) } else { handler(&mut entry) };
    if served == Err(Errno::ENOMEM) {
        entry.context.release_for_eviction();
    }
    let has_fault = faults::take();
    match served? {
        Verdict { next: Next::Native, .. } if is_rewritten => Ok(Some(native_with(frame, frame.arguments()).result)),
        Verdict { next: Next::Native, .. } => Ok(None),
        Verdict { next: Next::Done, .. } if has_fault => Err(user_memory::EFAULT),
        Verdict { next: Next::Done, result } => Ok(Some(result)),
        _ => Err(Errno(libc::EINTR)),
    }
}
