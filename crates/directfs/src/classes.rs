//! The class of each operation in the statistics of an image.

use engine::statistics::CallClass;

/// By the words with which errors name the operation.
pub(crate) fn class_of(operation: &str) -> CallClass {
    match operation {
        "open" | "open the directory" | "use" => CallClass::Open,
        "read" => CallClass::Read,
        "write" => CallClass::Write,
        "seek in" => CallClass::Seek,
        "read the attributes of" => CallClass::Stat,
        "list" => CallClass::List,
        "read the link" => CallClass::ReadLink,
        "create the directory" => CallClass::Make,
        "remove the file" | "remove the directory" => CallClass::Remove,
        "create the symbolic link" => CallClass::Link,
        "set the permissions of" | "set the owner of" | "set the times of" => CallClass::Attributes,
        "set the length of" | "allocate space of" => CallClass::Resize,
        "read an attribute of" | "set an attribute of" | "remove an attribute of" | "list the attributes of" => {
            CallClass::ExtendedAttributes
        }
        _ => CallClass::Other,
    }
}

/// The system call as which a call of a class is counted.
pub(crate) fn number_of(class: CallClass) -> usize {
    let number = match class {
        CallClass::Open => libc::SYS_openat,
        CallClass::Close => libc::SYS_close,
        CallClass::Read => libc::SYS_pread64,
        CallClass::Write => libc::SYS_pwrite64,
        CallClass::Seek => libc::SYS_lseek,
        CallClass::Stat => libc::SYS_statx,
        CallClass::Access => libc::SYS_faccessat2,
        CallClass::List => libc::SYS_getdents64,
        CallClass::ReadLink => libc::SYS_readlinkat,
        CallClass::Make => libc::SYS_mkdirat,
        CallClass::Remove => libc::SYS_unlinkat,
        CallClass::Rename => libc::SYS_renameat2,
        CallClass::Link => libc::SYS_linkat,
        CallClass::Attributes => libc::SYS_fchmodat,
        CallClass::Resize => libc::SYS_ftruncate,
        CallClass::ExtendedAttributes => libc::SYS_fgetxattr,
        CallClass::Copy => libc::SYS_copy_file_range,
        CallClass::Sync => libc::SYS_fsync,
        CallClass::Map => libc::SYS_mmap,
        CallClass::Lock => libc::SYS_flock,
        CallClass::Descriptor => libc::SYS_fcntl,
        CallClass::Other => libc::SYS_statfs,
    };
    number as usize
}
