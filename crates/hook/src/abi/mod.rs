//! The boundary between the program and the library: the entry's frame and the filter's state, the
//! library's own kernel calls, memory of the program, the words of each thread, and what rings are
//! made by.

pub mod entry;
pub mod ring_parameters;
pub mod sys;
pub mod thread_words;
pub mod user_memory;
