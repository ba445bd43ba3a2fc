//! Start of the library in a program: patching of libraries, search for inline syscalls, and the
//! dynamic loader before the program starts.

pub mod answers;
pub mod armed_threads;
pub mod early;
pub mod elf_dependencies;
pub mod elf_image;
pub mod file_identity;
pub mod hot_sites;
pub mod inline_syscalls;
pub mod instruction_lengths;
pub mod library_syscalls;
pub mod loaded;
pub mod narrow_calls;
pub mod patch;
pub mod proc_maps;
#[cfg(feature = "loader")]
pub mod program_loader;
pub mod redirection;
pub mod shared_text;
pub mod site_slots;
pub mod start;
