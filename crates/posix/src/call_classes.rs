//! The statistics of an image count calls by their numbers, also those of a front without system
//! calls. The table of the interception gives each number its class.

use engine::statistics::CallClass;
use libc::*;

/// The system call as which a front without system calls counts a call of a class.
pub fn number_of(class: CallClass) -> usize {
    let number = match class {
        CallClass::Open => SYS_openat,
        CallClass::Close => SYS_close,
        CallClass::Read => SYS_pread64,
        CallClass::Write => SYS_pwrite64,
        CallClass::Seek => SYS_lseek,
        CallClass::Stat => SYS_statx,
        CallClass::Access => SYS_faccessat2,
        CallClass::List => SYS_getdents64,
        CallClass::ReadLink => SYS_readlinkat,
        CallClass::Make => SYS_mkdirat,
        CallClass::Remove => SYS_unlinkat,
        CallClass::Rename => SYS_renameat2,
        CallClass::Link => SYS_linkat,
        CallClass::Attributes => SYS_fchmodat,
        CallClass::Resize => SYS_ftruncate,
        CallClass::ExtendedAttributes => SYS_fgetxattr,
        CallClass::Copy => SYS_copy_file_range,
        CallClass::Sync => SYS_fsync,
        CallClass::Map => SYS_mmap,
        CallClass::Lock => SYS_flock,
        CallClass::Descriptor => SYS_fcntl,
        CallClass::Other => SYS_statfs,
    };
    number as usize
}
