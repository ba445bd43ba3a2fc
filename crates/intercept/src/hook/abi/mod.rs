//! The boundary between the program and the library: the entry with its filter, the library's own
//! kernel calls, memory of the program, stacks.

pub mod entry;
pub mod stack;
pub mod status;
pub mod sys;
pub mod user_memory;
