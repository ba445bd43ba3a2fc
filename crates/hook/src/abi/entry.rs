//! What the entry shares with the rest of the library: a call's registers, the dispatcher's answer,
//! the filter's state, and the slots. The code of the entry:
//! [`entry_code`](crate::entry_code).

use crate::abi::user_memory;
use core::cell::Cell;

/// Descriptors of the image are below this limit. Placeholders above it are moved down or refused.
pub const FDS_MAX: usize = 65536;
/// Size of a slot; the site's address comes last.
pub const SLOT_BYTES: usize = 64;
/// Number of slots: enough for the C library and its loader twice, because with an auditing loader
/// there are two C libraries. The slots of each library begin a page.
pub const SLOTS: usize = 1792;
/// Offset in a slot of the address of the instruction after the original call, relative to the
/// slot.
pub const SLOT_RETURN: usize = SLOT_BYTES - 8;
/// Below the stack pointer, not used by the entry.
pub const RED_ZONE_BYTES: u64 = 128;
/// Maximum length of a mount's path.
pub const PREFIX_BYTES_MAX: usize = 4096;

/// A call's registers, and the place of its result. Lowest address first.
#[derive(Debug, Clone)]
#[repr(C)]
pub struct Frame {
    /// Saved for the program.
    rbp: u64,
    /// Saved for the program.
    rbx: u64,
    /// The `syscall` of the slot.
    pub native: Cell<u64>,
    /// Sixth argument.
    pub r9: u64,
    /// Fifth argument.
    pub r8: u64,
    /// Fourth argument.
    pub r10: u64,
    /// Second argument.
    pub rsi: u64,
    /// First argument.
    pub rdi: u64,
    /// Third argument.
    pub rdx: u64,
    /// Low byte: overflow; second byte: the other flags.
    flags: u64,
    /// The number; afterwards the result.
    pub number: u64,
}

impl Frame {
    /// The arguments in order.
    pub fn arguments(&self) -> [u64; 6] {
        [self.rdi, self.rsi, self.rdx, self.r10, self.r8, self.r9]
    }

    /// The frame of another call at the same place.
    pub fn with(&self, number: i64, arguments: [u64; 6]) -> Frame {
        let [rdi, rsi, rdx, r10, r8, r9] = arguments;
        Frame { number: number as u64, rdi, rsi, rdx, r10, r8, r9, ..self.clone() }
    }

    /// Copies the frame to where the entry would have put it with this stack pointer. `None`: there
    /// is no memory.
    pub fn move_to(&self, stack: u64) -> Option<u64> {
        const WORDS: usize = size_of::<Frame>() / 8;
        let address = stack.checked_sub(RED_ZONE_BYTES + size_of::<Frame>() as u64)?;
        // SAFETY: a frame is words.
        let words = unsafe { &*(&raw const *self).cast::<[u64; WORDS]>() };
        user_memory::write_words(address, words).ok().map(|()| address)
    }
}

/// The dispatcher's answer to a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct Verdict {
    /// The program's result, if the call is done.
    pub result: i64,
    /// See [`Next`].
    pub next: Next,
}

/// The kernel performs the call.
pub const NATIVE: Verdict = Verdict { result: 0, next: Next::Native };

/// The program gets this result.
pub fn done(result: i64) -> Verdict {
    Verdict { result, next: Next::Done }
}

/// How the entry continues.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u64)]
pub enum Next {
    /// The call is done.
    Done = 0,
    /// The kernel performs it, at the site.
    Native = 1,
    /// The thread got a stack for the call: call the dispatcher again, on this stack.
    Again = 2,
    /// The call was interrupted; it restarts after the signals have been handled.
    Restart = 3,
    /// The call is done, with the result 0, on another stack: the program's result is the address
    /// of a copy of the frame there.
    Moved = 4,
    /// The entry creates a thread: the result is the address of its place (`thread_places`).
    #[cfg(feature = "loader")]
    Thread = 5,
}

/// Which descriptors are the image's: one byte for each, so that the filter reads one byte.
#[repr(C, align(4096))]
pub struct Fds([core::sync::atomic::AtomicU8; FDS_MAX]);

impl Fds {
    /// The byte of a number; `None` if the number is too large. Adjacent numbers, which threads use
    /// at the same time, are in different cache lines; 4096 numbers share a page.
    #[inline]
    pub fn byte(&self, fd: u32) -> Option<&core::sync::atomic::AtomicU8> {
        self.0.get((fd ^ (fd & 63) << 6) as usize)
    }
}

/// State of the filter. While descriptors are small, one page is in use.
pub static DIRECTFS_FDS: Fds = Fds([const { core::sync::atomic::AtomicU8::new(0) }; FDS_MAX]);
/// Number of open descriptors of the image.
pub static DIRECTFS_FD_COUNT: core::sync::atomic::AtomicU32 = core::sync::atomic::AtomicU32::new(0);
/// Whether the working directory is in the mount.
pub static DIRECTFS_CWD: core::sync::atomic::AtomicU8 = core::sync::atomic::AtomicU8::new(0);
/// Whether every call with a route goes to the dispatcher.
pub static DIRECTFS_ALL: core::sync::atomic::AtomicU8 = core::sync::atomic::AtomicU8::new(0);

/// Not zero: calls that use numbers go to the dispatcher. There may be cached placeholder fds,
/// numbers that are free for the program and open in the kernel, or descriptors with O_PATH.
pub static DIRECTFS_PARKED: core::sync::atomic::AtomicU32 = core::sync::atomic::AtomicU32::new(0);

/// The mount's path without its first slash. Written only before the first hooked call.
#[repr(C, align(64))]
pub struct Prefix(pub core::cell::UnsafeCell<[u8; PREFIX_BYTES_MAX]>);
// SAFETY: written by the constructor alone, before other threads and hooked calls; later only read.
unsafe impl Sync for Prefix {}
/// Zero in the library's file, like all of its variables: they need no page of the file.
pub static DIRECTFS_PREFIX: Prefix = Prefix(core::cell::UnsafeCell::new([0; PREFIX_BYTES_MAX]));

impl Prefix {
    /// For the constructor: no path matches, since there is no mount yet.
    ///
    /// # Safety
    /// Nothing else uses the prefix.
    pub unsafe fn match_nothing(&self) {
        // SAFETY: by the caller's promise.
        unsafe { (*self.0.get())[0] = 0xff };
    }
}

/// Added to the stack pointer that the dispatcher receives: the call comes from a handler on the
/// program's signal stack, and all signals are blocked.
pub const FROM_ALTERNATE: u64 = 1;

unsafe extern "C" {
    /// The target of slots. Not a callable function.
    pub fn directfs_entry();
    /// The slots.
    pub static mut directfs_slots: [[u8; SLOT_BYTES]; SLOTS];
    /// Where slots continue after calls that create threads, with the return address in r11. Not a
    /// callable function.
    pub fn directfs_begin();
    /// Where the filter continues with calls of the host. Not a callable function.
    pub fn directfs_entry_native();
}

// What differs in a program that the library loads itself. `WORDS` loads the offset of a thread's
// words, `OF_THREAD` makes the next instruction access them there, and `WORDS_ADDRESS` loads what
// to add to the offset. `THREAD` creates a thread if the dispatcher says so, and `PROC` forwards
// all paths that may be in /proc.
#[cfg(not(feature = "loader"))]
macro_rules! thread_macros {
    () => {
        r#"
    .macro WORDS reg
    mov \reg, qword ptr [rip + directfs_words@GOTTPOFF]
    .endm
    .macro OF_THREAD
    .byte 0x64
    .endm
    .macro WORDS_ADDRESS reg
    mov \reg, qword ptr fs:[0]
    .endm
    .macro THREAD
    .endm
    .macro PROC target
    .endm
    "#
    };
}
/// The program's thread-local storage, which begins at FS, has no place for the words.
/// GS, which programs do not use, points to them; one of them holds their address.
#[cfg(feature = "loader")]
macro_rules! thread_macros {
    () => {
        r#"
    .macro WORDS reg
    mov \reg, 0
    .endm
    .macro OF_THREAD
    .byte 0x65
    .endm
    .macro WORDS_ADDRESS reg
    mov \reg, qword ptr gs:[96]
    .endm
    .macro THREAD
    cmp esi, 5
    je directfs_create_thread
    .endm
    .macro PROC target
    jmp \target
    .endm
    "#
    };
}
pub(crate) use thread_macros;
