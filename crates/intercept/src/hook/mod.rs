//! The library inside programs. It patches the libraries that make system calls, and decides for
//! each call whether the image serves it.
//!
//! ```text
//!  libc, at a site          a slot of the trampolines            entry
//!  +---------------+        +--------------------------+         +------------------------+
//!  | jmp slot      | -----> | instructions before      |   +---> | filter by number,      |
//!  | (rest unused) |        | lea r11, [native]        |   |     | descriptor and path    |
//!  |  ...          |        | jmp entry  --------------+---+     |   host: jmp r11        |
//!  |               |        | native: syscall          | <-------+   directfs: dispatcher |
//!  |               | <----- | done: instructions after | <-------+   in Rust, jmp r11+2   |
//!  +---------------+        +--------------------------+         +------------------------+
//! ```
//!
//! The table in [`calls`](crate::calls) gives each call its handler, in one of these modules:
//!
//! | module | purpose |
//! | --- | --- |
//! | [`context`], [`server`] | the thread's place in the engine and its buffers; the file system of the process |
//! | [`paths`], [`proc_links`] | the path owner of every path |
//! | [`names`], [`renames`], [`open`], [`kernel_objects`], [`sockets`] | calls by path |
//! | [`descriptors`], [`fd_numbers`], [`files`], [`copy_calls`], [`locks`], [`mapping`], [`fd_passing`] | calls by descriptor, and the numbers of descriptors |
//! | [`processes`], [`exec`], [`programs`], [`identity`], [`landlock`] | children, programs, credentials |
//! | [`early`], [`elf_dependencies`] | the dynamic loader, before the program starts |
//! | [`inline_syscalls`], [`instruction_lengths`] | calls that do not come from the C library |
//! | [`signals`], [`faults`], [`failed_image`] | signal handlers that interrupt the library; bad pointers; truncated images |
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
//!   unwinds; both work from a slot (see [`entry`]). From 2.41 on it compares the interrupted
//!   address with the ends of one of its functions. A call interrupted in a slot lies outside of
//!   it: the thread then ends only at its next cancellation point.
//! - *Calls made elsewhere.* The kernel forwards the program's inline syscalls
//!   ([`inline_syscalls`]), but not those of libraries. Calls in generated code are served only if
//!   the program contains inline syscalls itself.
//! - *Libraries of the mount that only libraries of the system need*, by a path built into those,
//!   are not found when a program starts: the search does not reach that far.
//! - *Symbolic links of the system that lead into the mount* are the kernel's: it does not see the
//!   mount there, and returns ENOENT.
//! - *Bad pointers.* If another thread unmaps the buffer of a write during the call, the program
//!   gets a signal.
//! - *Other processes* that read /proc see placeholders in place of descriptors, and the kernel's
//!   working directory.
//! - *Threads with their own ids* (setfsuid in one of several threads) or their own descriptor
//!   tables (unshare) are treated like the rest of their process.

pub mod attributes;
pub mod call;
pub mod call_counts;
pub mod context;
pub mod copy_calls;
pub mod descriptors;
pub mod dispatch;
pub mod early;
pub mod elf_dependencies;
pub mod entry;
pub mod environment;
pub mod exec;
pub mod failed_image;
pub mod faults;
pub mod fd_numbers;
pub mod fd_passing;
pub mod files;
pub mod identity;
pub mod inline_syscalls;
pub mod instruction_lengths;
pub mod kernel_objects;
pub mod landlock;
pub mod locks;
pub mod mapping;
pub mod names;
pub mod open;
pub mod patch;
pub mod paths;
pub mod proc_links;
pub mod proc_maps;
pub mod processes;
pub mod programs;
pub mod renames;
pub mod server;
pub mod signals;
pub mod sockets;
pub mod stack;
pub mod start;
pub mod status;
pub mod sys;
pub mod user_memory;
