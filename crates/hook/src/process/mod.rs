//! Children, programs, credentials and the environment that programs get.

pub mod apparmor;
pub mod attach;
pub mod clone_call;
pub mod environment;
pub mod exec;
mod exec_files;
mod exec_start;
pub mod identity;
pub mod image_sync;
pub mod leak_tracer;
mod library_search;
pub mod limits;
mod other_libc;
pub mod other_processes;
#[cfg(feature = "loader")]
pub mod own_program;
pub mod processes;
pub mod programs;
mod registered_formats;
pub mod session;
#[cfg(feature = "loader")]
pub mod thread_places;
pub mod user_namespace;
pub mod working_directory;
