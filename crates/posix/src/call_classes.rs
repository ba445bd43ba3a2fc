//! System calls and their classes in the statistics of an image: calls are counted by number, and
//! reported by class.

#![allow(non_upper_case_globals)]

use engine::statistics::{CALL_NUMBERS, CallClass};
use libc::*;

/// By number.
pub static CLASSES: [CallClass; CALL_NUMBERS] = classes();

const fn classes() -> [CallClass; CALL_NUMBERS] {
    let mut classes = [CallClass::Other; CALL_NUMBERS];
    let mut number = 0;
    while number < CALL_NUMBERS {
        classes[number] = class_of(number as c_long);
        number += 1;
    }
    classes
}

const fn class_of(number: c_long) -> CallClass {
    match number {
        SYS_open | SYS_openat | SYS_openat2 | SYS_creat | SYS_open_by_handle_at => CallClass::Open,
        SYS_close | SYS_close_range => CallClass::Close,
        SYS_read | SYS_pread64 | SYS_readv | SYS_preadv | SYS_preadv2 => CallClass::Read,
        SYS_write | SYS_pwrite64 | SYS_writev | SYS_pwritev | SYS_pwritev2 => CallClass::Write,
        SYS_lseek => CallClass::Seek,
        SYS_stat | SYS_fstat | SYS_lstat | SYS_newfstatat | SYS_statx => CallClass::Stat,
        SYS_access | SYS_faccessat | SYS_faccessat2 => CallClass::Access,
        SYS_getdents | SYS_getdents64 => CallClass::List,
        SYS_readlink | SYS_readlinkat => CallClass::ReadLink,
        SYS_mkdir | SYS_mkdirat | SYS_mknod | SYS_mknodat => CallClass::Make,
        SYS_unlink | SYS_unlinkat | SYS_rmdir => CallClass::Remove,
        SYS_rename | SYS_renameat | SYS_renameat2 => CallClass::Rename,
        SYS_link | SYS_linkat | SYS_symlink | SYS_symlinkat => CallClass::Link,
        SYS_chmod | SYS_fchmod | SYS_fchmodat | SYS_chown | SYS_fchown | SYS_lchown | SYS_fchownat | SYS_utime
        | SYS_utimes | SYS_futimesat | SYS_utimensat => CallClass::Attributes,
        SYS_truncate | SYS_ftruncate | SYS_fallocate => CallClass::Resize,
        SYS_setxattr | SYS_lsetxattr | SYS_fsetxattr | SYS_getxattr | SYS_lgetxattr | SYS_fgetxattr | SYS_listxattr
        | SYS_llistxattr | SYS_flistxattr | SYS_removexattr | SYS_lremovexattr | SYS_fremovexattr => {
            CallClass::ExtendedAttributes
        }
        SYS_sendfile | SYS_splice | SYS_tee | SYS_vmsplice | SYS_copy_file_range => CallClass::Copy,
        SYS_fsync | SYS_fdatasync | SYS_sync | SYS_syncfs | SYS_sync_file_range | SYS_msync => CallClass::Sync,
        SYS_mmap | SYS_munmap | SYS_mremap | SYS_mprotect | SYS_madvise => CallClass::Map,
        SYS_flock => CallClass::Lock,
        SYS_fcntl | SYS_dup | SYS_dup2 | SYS_dup3 | SYS_ioctl => CallClass::Descriptor,
        _ => CallClass::Other,
    }
}

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_is_reported_in_the_class_in_which_it_was_counted() {
        for class in CallClass::ALL {
            assert_eq!(CLASSES[number_of(class)], class);
        }
    }
}
