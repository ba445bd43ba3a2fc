//! What runs inside programs: it patches the libraries that make system calls, and decides for each call whether it is ours.
//!
//! ```text
//!  libc, at a site          a slot of the trampolines            entry
//!  +---------------+        +--------------------------+         +------------------------+
//!  | jmp slot      | -----> | instructions before      |   +---> | filter by number,      |
//!  | (rest unused) |        | lea r11, [native]        |   |     | descriptor and path    |
//!  |  ...          |        | jmp entry  --------------+---+     |   not ours: jmp r11    |
//!  |               |        | native: syscall          | <-------+   ours: dispatcher in  |
//!  |               | <----- | done: instructions after | <-------+   Rust, then jmp r11+2 |
//!  +---------------+        +--------------------------+         +------------------------+
//! ```
//!
//! What comes to the dispatcher is served in the engine, by these modules:
//!
//! | module | what |
//! | --- | --- |
//! | [`context`], [`server`] | the thread's place in the engine and its buffers; the file system of the process |
//! | [`paths`], [`proc_links`] | whose a path is, on whatever side it begins and ends |
//! | [`names`], [`renames`], [`open`], [`kernel_objects`], [`sockets`] | calls by path |
//! | [`descriptors`], [`fd_numbers`], [`files`], [`copy_calls`], [`locks`], [`mapping`], [`fd_passing`] | calls by descriptor, and what is behind a number |
//! | [`processes`], [`exec`], [`programs`], [`identity`], [`landlock`] | children, programs, whom the process acts for |
//! | [`early`], [`elf_dependencies`] | the loader, before the program has anything |
//! | [`inline_syscalls`], [`instruction_lengths`] | calls that do not come from the C library |
//! | [`signals`], [`faults`], [`failed_image`] | handlers that interrupt all this; bad pointers; an image that was cut off |
//!
//! Invariants:
//!
//! - No heap, no libc, no thread-local storage but a few words that the dynamic loader set up before our constructor ran.
//! - A call that is not ours is executed by the `syscall` instruction of its own slot, with every register and the stack as the program had them.
//!   So calls that return twice on another stack or never need no special care, and an interrupted call is restarted by the kernel as ever.
//! - The filter uses rcx and r11, which the kernel overwrites anyway, and restores the rest, flags included. Vector registers are
//!   saved only when the dispatcher runs.
//! - The red zone below the stack pointer is never written.
//! - The stack of the program is used for 216 bytes; the dispatcher has a stack of its own per thread ([`stack`]).
//!
//! Where this needs more, or another decision:
//!
//! - *Cancellation.* glibc to 2.40 decides by flags whether a thread may be cancelled, and unwinds; both work from a slot (see [`entry`]). From 2.41 it compares the
//!   interrupted address with the ends of one function of its own. A call interrupted in a slot lies outside: there the thread would end at its next cancellation point only.
//! - *Calls made elsewhere*: the program's own are brought here by the kernel ([`inline_syscalls`]), not those of libraries, and of generated code only where the program has some itself.
//! - *Libraries of the mount that only libraries of the system need* (by a path that is built into those) are not found when a program starts: nobody looks so far ahead.
//! - *Symbolic links of the system that lead into the mount* are the kernel's: it must not find the mount there, and says ENOENT.
//! - *Bad pointers.* A buffer that another thread takes away while it is being written from costs the program a signal.
//! - *Other processes* that look into /proc see placeholders behind descriptors, and the kernel's working directory.
//! - *Threads with ids of their own* (setfsuid in one of several threads) or descriptor tables of their own (unshare) are not told apart from their process.

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
