//! The library inside programs. It patches the libraries that make system calls, and decides for
//! each call whether the image serves it.
//!
//! ```text
//!  libc, at a call site     its slot in this library             entry
//!  +---------------+        +--------------------------+         +------------------------+
//!  | jmp slot      | -----> | instructions before      |   +---> | filter by number,      |
//!  | (rest unused) |        | lea r11, [native]        |   |     | descriptor and path    |
//!  |  ...          |        | jmp entry  --------------+---+     |   host: jmp r11        |
//!  |               |        | native: syscall          | <-------+   directfs: dispatcher |
//!  |               | <----- | done: instructions after | <-------+   in Rust, jmp r11+2   |
//!  +---------------+        +--------------------------+         +------------------------+
//! ```
//!
//! The table in [`crate::call_table`] gives each call its handler. The modules:
//!
//! | module | purpose |
//! | --- | --- |
//! | [`abi`] | what the entry shares with the rest, the library's own kernel calls, memory of the program |
//! | [`entry_code`], [`stack`] | the entry with its filter; stacks of the dispatcher |
//! | [`routes`], [`dispatch`], [`call`], [`call_counts`], [`profile`] | calls on their way to their handlers |
//! | [`context`], [`server`] | the thread's place in the engine and its buffers; the file system of the process |
//! | [`paths`], [`proc_links`] | the path owner of every path |
//! | [`mount_table`] | the mount in the kernel's tables of mounts |
//! | [`calls`] | handlers of calls by path, and of calls on open files |
//! | [`extensions`] | the list of extensions: io_uring and AIO, inotify and fanotify, leases |
//! | [`descriptors`] | descriptors, their numbers, their way to other processes |
//! | [`large_table`] | tables that few programs need |
//! | [`process`] | children, programs, credentials, the environment |
//! | [`loading`] | start of the library, patching, inline syscalls, the dynamic loader |
//! | [`handoff`], [`table`] | what the launcher hands to the library: the image, and the sites of calls |
//! | [`signals`], [`failed_image`] | signal handlers that interrupt the library, and bad pointers; truncated images |
//!
//! Invariants:
//!
//! - The library uses no heap, no libc, and of thread-local storage only a few words that the
//!   dynamic loader set up before the library's constructor ran.
//! - A call of the host is executed by the `syscall` instruction of its own slot, with all
//!   registers and the stack as the program had them. Calls that return twice, on another stack or
//!   never therefore need no special care, and the kernel restarts interrupted calls as usual.
//! - The filter uses rcx and r11, which the kernel overwrites anyway, and restores the rest, flags
//!   included. Vector registers are saved only when the dispatcher runs.
//! - The red zone below the stack pointer is never written.
//! - The library uses 216 bytes of the program's stack; the dispatcher has its own stack for each
//!   thread ([`stack`]).
//!
//! Known limits:
//!
//! - *Cancellation.* glibc up to 2.40 decides by flags whether a thread may be cancelled, and
//!   unwinds; both work from a slot (see [`entry_code`]). From 2.41 on it compares the interrupted
//!   address with the ends of one of its functions. A call interrupted in a slot lies outside of
//!   it: the thread then ends only at its next cancellation point.
//!   The same holds for musl.
//! - *Calls made elsewhere.* The kernel forwards the program's inline syscalls
//!   ([`loading::inline_syscalls`]), and libraries trap ([`loading::library_syscalls`]). Calls in
//!   generated code are served only if the program contains inline syscalls itself.
//! - *Libraries of the mount that only libraries of the system need*, by a path built into those,
//!   are not found when a program starts: the search does not reach that far.
//! - *Symbolic links of the system that lead into the mount* are the kernel's: it does not see the
//!   mount there, and returns ENOENT.
//! - *Bad pointers.* If another thread unmaps the buffer of a write during the call, the program
//!   gets a signal.
//! - *Other processes* that read /proc see placeholders in place of descriptors, and the kernel's
//!   working directory.
//! - *Threads with their own descriptor tables or directories* (unshare) are refused.

#![cfg_attr(not(test), no_std)]

pub mod abi;
pub mod call;
pub mod call_counts;
pub mod call_table;
pub mod calls;
pub mod context;
pub mod descriptors;
pub mod dispatch;
pub mod entry_code;
pub mod extensions;
pub mod failed_image;
pub mod handoff;
pub mod large_table;
pub mod loading;
pub mod mount_table;
pub mod paths;
pub mod proc_links;
pub mod process;
pub mod profile;
pub mod routes;
pub mod server;
pub mod signals;
pub mod stack;
pub mod status;
pub mod table;

/// What follows the library's name in that of the program that loads others.
pub const LOADER_ENDING: &str = "-loader";
/// File name suffix of tables; it includes the version of their layout.
pub const TABLE_ENDING: &str = ".sites-2";
