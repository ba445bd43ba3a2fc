//! Other processes of the image, by their links in /proc.

use crate::abi::sys;
use crate::handoff::write_number;
use crate::process::environment;
use crate::process::session::Session;
use posix::NodeRef;
use tables::process::ObservedProcess;

/// Another process of the image, if the kernel lets this one follow a link of it in /proc. `None`
/// also if the process cannot be distinguished from one of another namespace.
pub fn another_process(session: &Session<'_>, process_id: u32, link: &[u8]) -> Option<ObservedProcess> {
    let mut text = [0u8; 64];
    text.get_mut(..link.len())?.copy_from_slice(link);
    // Leaves room for the zero byte.
    sys::read_link(text.get(..link.len() + 1)?, &mut [0u8; 64]).ok()?;
    if !is_neighbour(process_id as i32) {
        return None;
    }
    let (mut found, mut count) = (None, 0);
    let each = &mut |process: ObservedProcess| {
        if process.process_id == process_id {
            (found, count) = (Some(process), count + 1);
        }
    };
    session.process.processes().each_process(each).ok()?;
    // Of several, all but one are in other namespaces.
    found.filter(|_| count == 1)
}

/// The working directory of another process, by the link that names it, if it is in the image.
pub fn directory_of_another<'c>(
    session: &'c Session<'_>,
    process_id: u32,
    link: &[u8],
) -> Option<NodeRef<'c, 'static>> {
    let number = another_process(session, process_id, link)?.directory?;
    let thread = session.caller.thread;
    Some(NodeRef::owned(thread, thread.node(number, None).ok()?))
}

/// Whether a process that its id names here is one of the image, and names itself by the same id:
/// ids of processes in other namespaces may be those of any process here.
fn is_neighbour(process: i32) -> bool {
    let Some(handoff) = environment::handoff() else { return false };
    let identity = |status: libc::stat| (status.st_dev, status.st_ino);
    let namespace = |process| status_of(process, b"/ns/pid", None).map(identity).ok();
    let region = status_of(process, b"/fd/", Some(handoff.region)).map(identity).ok();
    region.is_some()
        && region == sys::status(handoff.region).map(identity).ok()
        && namespace(process).is_some()
        && namespace(process) == namespace(sys::process_id())
}

/// The file to which a link of a process in /proc leads: `rest`, and a number behind it.
pub fn status_of(process: i32, rest: &[u8], number: Option<i32>) -> core::result::Result<libc::stat, i64> {
    let mut path = [0u8; 64];
    let (mut length, mut digits) = (0, [0u8; 20]);
    for (part, number) in [(&b"/proc/"[..], Some(process)), (rest, number)] {
        let count = number.map_or(0, |number| write_number(number as u64, &mut digits));
        for piece in [part, &digits[..count]] {
            path[length..length + piece.len()].copy_from_slice(piece);
            length += piece.len();
        }
    }
    let mut status = core::mem::MaybeUninit::<libc::stat>::zeroed();
    let arguments = [libc::AT_FDCWD as u64, path.as_ptr() as u64, status.as_mut_ptr() as u64, 0, 0, 0];
    // SAFETY: a terminated path; the kernel fills the structure, for which all zero is valid.
    let (result, status) = unsafe { (sys::call(libc::SYS_newfstatat, arguments), status.assume_init()) };
    if result < 0 { Err(result) } else { Ok(status) }
}
