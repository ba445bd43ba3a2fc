//! Programs that bring a C library of their own: another build of glibc, with its loader, in a
//! directory of its own. Its system calls are not analysed, so such a program is loaded like one of
//! another C library, and its calls come by the way of inline syscalls.

use crate::abi::sys;
use crate::loading::patch;
use crate::process::programs::{ProgramKind, interpreter};

/// Where every distribution has its own loader.
const USUAL_LOADER: &[u8] = b"/lib64/ld-linux-x86-64.so.2\0";
const LIBRARY: &[u8] = b"libc.so.6\0";

/// The kind of a program by its first bytes, corrected for a C library that is not known here.
pub fn corrected(kind: ProgramKind, head: &[u8]) -> ProgramKind {
    if kind == ProgramKind::Dynamic && has_unknown_library(head).unwrap_or(false) { ProgramKind::Own } else { kind }
}

/// Whether the C library beside a program's loader has no table of its calls. `None`: there is
/// none, so that the loader finds it elsewhere.
fn has_unknown_library(head: &[u8]) -> Option<bool> {
    let loader = interpreter(head).filter(|path| *path != USUAL_LOADER)?;
    let directory = loader.iter().rposition(|&byte| byte == b'/')? + 1;
    let mut path = [0u8; 512];
    path.get_mut(..directory)?.copy_from_slice(&loader[..directory]);
    path.get_mut(directory..directory + LIBRARY.len())?.copy_from_slice(LIBRARY);
    let library = sys::open(&path[..directory + LIBRARY.len()], libc::O_RDONLY).ok()?;
    let mut words = [0u64; 512];
    let bytes = library.read_words_at(0, &mut words).ok()?;
    // SAFETY: words are bytes.
    let page = unsafe { core::slice::from_raw_parts(words.as_ptr().cast::<u8>(), bytes) };
    let build_id = patch::build_id_of(page)?;
    Some(patch::with_sites(build_id, |_| ()).is_none())
}
