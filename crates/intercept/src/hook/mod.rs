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
//! Invariants:
//!
//! - No heap, no libc, no thread-local storage but three words that the dynamic loader set up before our constructor ran.
//! - A call that is not ours is executed by the `syscall` instruction of its own slot, with every register and the stack as the program had them.
//!   So calls that return twice, on another stack or never need no special care, and an interrupted call is restarted by the kernel as ever.
//! - The filter uses rcx and r11, which the kernel overwrites anyway, and restores the rest, flags included. Vector registers are
//!   saved only when the dispatcher runs.
//! - The red zone below the stack pointer is never written.
//! - The stack of the program is used for 216 bytes; the dispatcher has a stack of its own per thread ([`stack`]).

pub mod counts;
pub mod dispatch;
pub mod entry;
pub mod environment;
pub mod exec;
pub mod maps;
pub mod patch;
pub mod stack;
pub mod start;
pub mod sys;
