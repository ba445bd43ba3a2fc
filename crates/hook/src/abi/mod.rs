//! The boundary between the program and the library: the entry's frame and the filter's state, the
//! library's own kernel calls, memory of the program, and the words of each thread.

pub mod entry;
pub mod sys;
pub mod thread_words;
pub mod user_memory;
