//! `directfs run` with real programs.
//!
//! - `answers`: calls with odd arguments, and limits of the process
//! - `launching`: start and end of programs
//! - `programs`: their work, compared with the same on tmpfs
//! - `fuse_programs`: programs that the preload library cannot be in, and other users
//! - `static_programs`: programs that cannot load the preload library
//! - `cache`: the location of the preload library
//! - `committing`: processes that commit an image on a disk, and are stopped or killed
//! - `changes`: the order of times, and full images, also on mounts
//! - `confinement`: programs that give up what attaching takes
//! - `starting`: the shared code and the late attaching of programs
//! - `library_syscalls`: system calls by instructions of libraries
//! - `mount_table`: the mount in the tables of mounts
//! - `storm`: processes that are killed
//! - `truncation`: images that are truncated in use
//! - `rings`: what io_uring refuses
//! - `sharing`: copies that share blocks
//! - `reading`: runs that change nothing of the image's file
//! - `neighbours`: other users, namespaces, and copies of an image
//! - `identities`: user namespaces, and threads with ids of their own
//! - `limits`: many processes and threads, and little shared memory
//! - `watching`: inotify; `leasing`: leases
//! - `environment`: what programs see in it
//! - `figures`: durations of calls

#[path = "../support/mod.rs"]
mod support;

mod answers;
mod cache;
mod changes;
mod committing;
mod confinement;
mod durable;
mod environment;
mod figures;
mod fuse_programs;
mod identities;
mod inheritance;
mod kit;
mod launching;
#[cfg(feature = "extensions")]
mod leasing;
mod library_syscalls;
mod limits;
mod mount_table;
mod neighbours;
mod profile;
mod programs;
mod reading;
#[cfg(feature = "extensions")]
mod rings;
mod sharing;
mod starting;
mod static_programs;
mod storm;
mod tree;
mod truncation;
#[cfg(feature = "extensions")]
mod watching;
