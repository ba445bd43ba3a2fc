//! The table of system calls: number, route, class in the statistics, handler, what else the
//! dispatcher must know of a call, and the row of docs/posix.md. Every other list of calls is
//! computed from this one. How to add a call: CONTRIBUTING.md.
//!
//! Invariants:
//!
//! - A call without an entry never reaches the dispatcher. The analysis leaves a call site alone if
//!   its number is constant and has no route.
//! - Each call with a path or a descriptor has an entry. So do calls that create, end or await
//!   processes, because the dispatcher prepares them. Such a call is executed at its site if it
//!   returns on another stack, or in a child in shared memory.
//! - Each number has one entry; a second one does not compile. Only calls of extensions have two:
//!   that of an extension takes the place of the core's, which refuses the call.
//! - The rows are those of part 1 of docs/posix.md, in the same order. A row without calls
//!   describes flags or effects of calls in other rows. A call that several rows name is in one of
//!   them.
//!
//! The filter, the dispatcher and [`failed_image`](crate::failed_image) read [`TABLE`], which
//! the compiler computes. Names and titles are not in the preload library.

use crate::call::{
    Attaches, Buffers, Details, Entry, Handlers, LAST_NUMBER, OnFailure, PLACES, Table, call, kernel, place,
};
use crate::calls::{
    attributes, copy_calls, files, handles, landlock, locks, mapping, names, open, renames, seccomp, sockets,
};
use crate::descriptors::{self, fd_passing, polling};
use crate::extensions::{self, EXTENSIONS};
use crate::process::{exec, limits, processes, working_directory};
use crate::routes::{NUMBERS, Route, Routes, SYS_MISSING_PAGE, route_of};
use crate::signals;
use Attaches::{BeforeFilter, BeforeLimit, Never};
use Buffers::{Bytes, Message, Messages, Ranges, Vector};
use OnFailure::{By, ByRoute, Close, CloseRange, Eio, Handle, HandleWithTables, Kernel};
use numbers::*;

/// Numbers by name.
mod numbers {
    #![allow(non_upper_case_globals)]
    pub use libc::*;

    // Numbers that libc does not name on every machine. They hide libc's of the same name.
    /// Linux 5.10.
    pub const SYS_process_madvise: c_long = 440;
    /// Linux 5.11.
    pub const SYS_epoll_pwait2: c_long = 441;
    /// Linux 6.5.
    pub const SYS_cachestat: c_long = 451;
    /// Linux 6.6.
    pub const SYS_fchmodat2: c_long = 452;
    /// Linux 6.10.
    pub const SYS_mseal: c_long = 462;
    /// Linux 6.13, as the next three.
    pub const SYS_setxattrat: c_long = 463;
    pub const SYS_getxattrat: c_long = 464;
    pub const SYS_listxattrat: c_long = 465;
    pub const SYS_removexattrat: c_long = 466;
    /// Linux 6.15.
    pub const SYS_open_tree_attr: c_long = 467;
    /// Linux 6.17, as the next.
    pub const SYS_file_getattr: c_long = 468;
    pub const SYS_file_setattr: c_long = 469;
}

/// A row of part 1 of docs/posix.md.
pub struct Row {
    /// First column.
    pub title: &'static str,
    /// Calls of the row.
    pub calls: &'static [Entry],
}

/// A call of an extension: the core refuses it if that is absent.
macro_rules! refused {
    ($number:ident) => {
        Entry { is_refusal: true, ..call!($number, Always, Other, extensions::refused, Handle).attaches(Never) }
    };
}

/// Calls with a row, by rows.
pub const ROWS: &[Row] = &[
    // Names.
    Row { title: "path walk, `..`, symbolic links", calls: &[] },
    Row {
        title: "mkdir, rmdir, unlink, symlink, readlink",
        calls: &[
            call!(SYS_mkdir, Path, Make, names::mkdir),
            call!(SYS_mkdirat, At, Make, names::mkdirat),
            call!(SYS_rmdir, Path, Remove, names::rmdir),
            call!(SYS_unlink, Path, Remove, names::unlink),
            call!(SYS_unlinkat, At, Remove, names::unlinkat),
            call!(SYS_symlink, PathSecond, Link, names::symlink),
            call!(SYS_symlinkat, AtSecond, Link, names::symlinkat),
            call!(SYS_readlink, Path, ReadLink, names::readlink),
            call!(SYS_readlinkat, At, ReadLink, names::readlinkat),
        ],
    },
    Row {
        title: "chdir, fchdir, getcwd, umask",
        calls: &[
            call!(SYS_chdir, Always, Other, names::chdir, By(Route::Path)),
            call!(SYS_fchdir, Always, Other, working_directory::fchdir, By(Route::Fd)),
            call!(SYS_getcwd, AnyFd, Other, working_directory::getcwd),
            call!(SYS_umask, Always, Other, processes::umask, HandleWithTables),
        ],
    },
    Row { title: "chroot", calls: &[call!(SYS_chroot, Always, Other, names::chroot, By(Route::Path))] },
    Row {
        title: "mknod",
        calls: &[call!(SYS_mknod, Path, Make, names::mknod), call!(SYS_mknodat, At, Make, names::mknodat)],
    },
    Row {
        title: "link, linkat AT_EMPTY_PATH",
        calls: &[call!(SYS_link, PathPath, Link, renames::link), call!(SYS_linkat, AtAt, Link, renames::linkat)],
    },
    Row {
        title: "rename, renameat2",
        calls: &[
            call!(SYS_rename, PathPath, Rename, renames::rename),
            call!(SYS_renameat, AtAt, Rename, renames::renameat),
            call!(SYS_renameat2, AtAt, Rename, renames::renameat2),
        ],
    },
    Row {
        title: "getdents, telldir, seekdir",
        calls: &[
            call!(SYS_getdents, Fd, List, files::getdents).buffers(Bytes),
            call!(SYS_getdents64, Fd, List, files::getdents64).buffers(Bytes),
        ],
    },
    Row {
        title: "name_to_handle_at, open_by_handle_at",
        calls: &[
            call!(SYS_name_to_handle_at, At, Other, handles::name_to_handle_at),
            // The working directory stands for its mount.
            call!(SYS_open_by_handle_at, Always, Open, open::open_by_handle_at, By(Route::Fd)),
        ],
    },
    Row {
        title: "inotify, fanotify",
        calls: &[
            refused!(SYS_inotify_init),
            refused!(SYS_inotify_init1),
            refused!(SYS_inotify_add_watch),
            refused!(SYS_inotify_rm_watch),
            refused!(SYS_fanotify_init),
            refused!(SYS_fanotify_mark),
        ],
    },
    // Opening.
    Row {
        title: "O_CREAT, O_EXCL, O_TRUNC, O_APPEND, O_DIRECTORY, O_NOFOLLOW, O_PATH, O_CLOEXEC, O_NONBLOCK",
        calls: &[
            call!(SYS_open, PathNumbers, Open, open::open),
            call!(SYS_openat, AtNumbers, Open, open::openat),
            call!(SYS_creat, PathNumbers, Open, open::creat),
        ],
    },
    Row { title: "O_DIRECT", calls: &[] },
    Row { title: "O_SYNC, O_DSYNC", calls: &[] },
    Row { title: "O_NOATIME", calls: &[] },
    Row { title: "O_TMPFILE", calls: &[] },
    Row {
        title: "close, close_range, dup, dup2, dup3, fcntl F_DUPFD, F_GETFD, F_SETFD, F_GETFL, F_SETFL",
        calls: &[
            call!(SYS_close, Close, Close, descriptors::close, Close),
            call!(SYS_close_range, Always, Close, descriptors::close_range, CloseRange),
            call!(SYS_dup, FdNumbers, Descriptor, descriptors::dup),
            call!(SYS_dup2, FdFd, Descriptor, descriptors::dup2),
            call!(SYS_dup3, FdFd, Descriptor, descriptors::dup3),
            call!(SYS_fcntl, FdNumbers, Descriptor, files::fcntl),
        ],
    },
    Row {
        title: "openat2 with RESOLVE_NO_SYMLINKS, NO_MAGICLINKS, BENEATH, IN_ROOT, NO_XDEV",
        calls: &[
            // With its flags an absolute path may begin at a descriptor of the image.
            call!(SYS_openat2, Always, Open, open::openat2, By(Route::At)),
        ],
    },
    Row { title: "openat2 with RESOLVE_CACHED", calls: &[] },
    Row { title: "open for writing of a program that runs", calls: &[] },
    // Content.
    Row {
        title: "read, write, pread, pwrite, readv, writev, AIO",
        calls: &[
            call!(SYS_read, Fd, Read, files::read).buffers(Bytes),
            call!(SYS_write, Fd, Write, files::write).buffers(Bytes),
            call!(SYS_pread64, Fd, Read, files::pread).buffers(Bytes),
            call!(SYS_pwrite64, Fd, Write, files::pwrite).buffers(Bytes),
            call!(SYS_readv, Fd, Read, files::readv).buffers(Vector),
            call!(SYS_writev, Fd, Write, files::writev).buffers(Vector),
            call!(SYS_preadv, Fd, Read, files::preadv).buffers(Vector),
            call!(SYS_pwritev, Fd, Write, files::pwritev).buffers(Vector),
        ],
    },
    Row {
        title: "preadv2, pwritev2",
        calls: &[
            call!(SYS_preadv2, Fd, Read, files::preadv2).buffers(Vector),
            call!(SYS_pwritev2, Fd, Write, files::pwritev2).buffers(Vector),
        ],
    },
    Row {
        title: "truncate, ftruncate",
        calls: &[
            call!(SYS_truncate, Path, Resize, attributes::truncate),
            call!(SYS_ftruncate, Fd, Resize, files::ftruncate),
        ],
    },
    Row {
        title: "mmap, shared and private, msync",
        calls: &[
            call!(SYS_mmap, Mmap, Map, mapping::mmap).buffers(Ranges).attaches(Never),
            call!(SYS_munmap, AnyFd, Map, mapping::munmap).buffers(Ranges),
            call!(SYS_msync, AnyFd, Sync, mapping::msync).buffers(Ranges),
        ],
    },
    Row {
        title: "mremap, remap_file_pages, shmat, mprotect, madvise, mincore, mlock",
        calls: &[
            call!(SYS_mremap, AnyFd, Map, mapping::moves::mremap).buffers(Ranges),
            call!(SYS_remap_file_pages, AnyFd, Map, mapping::remap_file_pages).buffers(Ranges),
            call!(SYS_shmat, AnyFd, Map, mapping::shmat).buffers(Ranges),
            call!(SYS_mprotect, AnyFd, Map, mapping::mprotect).buffers(Ranges),
            call!(SYS_pkey_mprotect, AnyFd, Map, mapping::mprotect).buffers(Ranges),
            call!(SYS_madvise, AnyFd, Map, mapping::advice::madvise).buffers(Ranges),
            call!(SYS_process_madvise, AnyFd, Map, mapping::advice::process_madvise).buffers(Ranges),
            call!(SYS_mseal, AnyFd, Map, mapping::advice::mseal).buffers(Ranges),
            kernel!(SYS_mincore),
            call!(SYS_mlock, AnyFd, Map, mapping::advice::mlock).buffers(Ranges),
            call!(SYS_mlock2, AnyFd, Map, mapping::advice::mlock).buffers(Ranges),
            call!(SYS_mlockall, Always, Map, mapping::advice::mlockall, Kernel),
            call!(SYS_MISSING_PAGE, Always, Other, mapping::missing::resolve, Handle).buffers(Ranges),
        ],
    },
    Row { title: "fallocate", calls: &[call!(SYS_fallocate, Fd, Resize, files::fallocate)] },
    Row { title: "fallocate COLLAPSE_RANGE, INSERT_RANGE, UNSHARE_RANGE, unknown bits", calls: &[] },
    Row { title: "lseek SEEK_DATA, SEEK_HOLE", calls: &[call!(SYS_lseek, Fd, Seek, files::lseek)] },
    Row {
        title: "copy_file_range, sendfile, splice",
        calls: &[
            call!(SYS_copy_file_range, FdFdThird, Copy, copy_calls::copy_file_range),
            call!(SYS_sendfile, FdFd, Copy, copy_calls::sendfile),
            call!(SYS_splice, FdFdThird, Copy, copy_calls::splice),
            call!(SYS_tee, FdFd, Copy, copy_calls::tee),
            call!(SYS_vmsplice, Fd, Copy, copy_calls::vmsplice).buffers(Vector),
        ],
    },
    Row {
        title: "ioctl FICLONE, FICLONERANGE, FIDEDUPERANGE",
        calls: &[call!(SYS_ioctl, FdNumbers, Descriptor, files::ioctl)],
    },
    Row {
        title: "ioctl FS_IOC_GETFLAGS, FS_IOC_SETFLAGS, FS_IOC_FSGETXATTR, FS_IOC_FSSETXATTR, file_getattr, file_setattr",
        calls: &[
            call!(SYS_file_getattr, At, Stat, attributes::file_getattr),
            call!(SYS_file_setattr, At, Attributes, attributes::file_setattr),
        ],
    },
    Row { title: "ioctl FS_IOC_FIEMAP, FITRIM", calls: &[] },
    Row { title: "FS_IMMUTABLE_FL, FS_APPEND_FL, FS_NODUMP_FL, FS_NOATIME_FL", calls: &[] },
    Row {
        title: "fsync, fdatasync, syncfs, sync, sync_file_range",
        calls: &[
            call!(SYS_fsync, Fd, Sync, files::fsync),
            call!(SYS_fdatasync, Fd, Sync, files::fsync),
            call!(SYS_syncfs, Fd, Sync, files::syncfs),
            call!(SYS_sync, AnyFd, Sync, files::sync),
            call!(SYS_sync_file_range, Fd, Sync, files::sync_file_range),
        ],
    },
    Row {
        title: "posix_fadvise, readahead, cachestat",
        calls: &[
            call!(SYS_fadvise64, Fd, Other, files::advise),
            call!(SYS_readahead, Fd, Other, files::readahead),
            call!(SYS_cachestat, Fd, Other, files::unsupported),
        ],
    },
    Row {
        title: "poll, select, epoll",
        calls: &[
            // The kernel polls: a placeholder is as ready as any file. But it must not find one
            // behind a number that the program has closed.
            call!(SYS_poll, Numbers, Other, polling::poll),
            call!(SYS_ppoll, Numbers, Other, polling::poll),
            call!(SYS_select, Numbers, Other, descriptors::with_numbers),
            call!(SYS_pselect6, Numbers, Other, descriptors::with_numbers),
            call!(SYS_epoll_create, Numbers, Other, descriptors::with_numbers),
            call!(SYS_epoll_create1, Numbers, Other, descriptors::with_numbers),
            call!(SYS_epoll_ctl, FdFdThird, Other, descriptors::epoll_ctl),
            call!(SYS_epoll_wait, Fd, Other, descriptors::epoll_wait),
            call!(SYS_epoll_pwait, Fd, Other, descriptors::epoll_wait),
            call!(SYS_epoll_pwait2, Fd, Other, descriptors::epoll_wait),
        ],
    },
    Row {
        title: "io_setup, io_submit, io_uring_setup, io_uring_enter, io_uring_register",
        calls: &[
            refused!(SYS_io_setup),
            refused!(SYS_io_submit),
            refused!(SYS_io_uring_setup),
            refused!(SYS_io_uring_enter),
            refused!(SYS_io_uring_register),
        ],
    },
    // Attributes.
    Row {
        title: "stat, statx",
        calls: &[
            call!(SYS_stat, Path, Stat, names::stat),
            call!(SYS_lstat, Path, Stat, names::lstat),
            call!(SYS_fstat, Fd, Stat, files::fstat),
            call!(SYS_newfstatat, At, Stat, names::fstatat),
            call!(SYS_statx, At, Stat, names::statx),
        ],
    },
    Row {
        title: "chmod, chown",
        calls: &[
            call!(SYS_chmod, Path, Attributes, attributes::chmod),
            call!(SYS_fchmod, Fd, Attributes, files::fchmod),
            call!(SYS_fchmodat, At, Attributes, attributes::fchmodat),
            call!(SYS_fchmodat2, At, Attributes, attributes::fchmodat2),
            call!(SYS_chown, Path, Attributes, attributes::chown),
            call!(SYS_lchown, Path, Attributes, attributes::lchown),
            call!(SYS_fchown, Fd, Attributes, files::fchown),
            call!(SYS_fchownat, At, Attributes, attributes::fchownat),
        ],
    },
    Row { title: "setuid and setgid bits at a write", calls: &[] },
    Row {
        title: "utime, utimes, futimesat, utimensat",
        calls: &[
            call!(SYS_utime, Path, Attributes, attributes::utime),
            call!(SYS_utimes, Path, Attributes, attributes::utimes),
            call!(SYS_futimesat, At, Attributes, attributes::futimesat),
            call!(SYS_utimensat, At, Attributes, attributes::utimensat),
        ],
    },
    Row { title: "access times", calls: &[] },
    Row {
        title: "access, faccessat, faccessat2",
        calls: &[
            call!(SYS_access, Path, Access, names::access),
            call!(SYS_faccessat, At, Access, names::faccessat),
            call!(SYS_faccessat2, At, Access, names::faccessat2),
        ],
    },
    Row {
        title: "getxattr, setxattr, listxattr, removexattr",
        calls: &[
            call!(SYS_getxattr, Path, ExtendedAttributes, attributes::getxattr),
            call!(SYS_lgetxattr, Path, ExtendedAttributes, attributes::lgetxattr),
            call!(SYS_fgetxattr, Fd, ExtendedAttributes, files::fgetxattr),
            call!(SYS_setxattr, Path, ExtendedAttributes, attributes::setxattr),
            call!(SYS_lsetxattr, Path, ExtendedAttributes, attributes::lsetxattr),
            call!(SYS_fsetxattr, Fd, ExtendedAttributes, files::fsetxattr),
            call!(SYS_listxattr, Path, ExtendedAttributes, attributes::listxattr),
            call!(SYS_llistxattr, Path, ExtendedAttributes, attributes::llistxattr),
            call!(SYS_flistxattr, Fd, ExtendedAttributes, files::flistxattr),
            call!(SYS_removexattr, Path, ExtendedAttributes, attributes::removexattr),
            call!(SYS_lremovexattr, Path, ExtendedAttributes, attributes::lremovexattr),
            call!(SYS_fremovexattr, Fd, ExtendedAttributes, files::fremovexattr),
        ],
    },
    Row {
        title: "setxattrat, getxattrat, listxattrat, removexattrat",
        calls: &[
            call!(SYS_setxattrat, At, ExtendedAttributes, attributes::setxattrat),
            call!(SYS_getxattrat, At, ExtendedAttributes, attributes::getxattrat),
            call!(SYS_listxattrat, At, ExtendedAttributes, attributes::listxattrat),
            call!(SYS_removexattrat, At, ExtendedAttributes, attributes::removexattrat),
        ],
    },
    Row { title: "POSIX access control lists", calls: &[] },
    Row {
        title: "statfs",
        calls: &[call!(SYS_statfs, Path, Other, names::statfs), call!(SYS_fstatfs, Fd, Other, files::fstatfs)],
    },
    Row {
        title: "quotactl, quotactl_fd",
        calls: &[
            call!(SYS_quotactl, PathSecond, Other, names::quotactl),
            call!(SYS_quotactl_fd, Fd, Other, files::quotactl_fd),
        ],
    },
    // Locks and others.
    Row { title: "flock, fcntl locks, OFD locks", calls: &[call!(SYS_flock, Fd, Lock, locks::flock)] },
    Row { title: "fcntl F_SETLEASE", calls: &[] },
    Row { title: "fcntl F_ADD_SEALS, F_NOTIFY, F_SETOWN, F_SETPIPE_SZ, F_SET_RW_HINT", calls: &[] },
    Row {
        title: "bind, connect, fifos",
        calls: &[
            call!(SYS_bind, Always, Other, sockets::bind, Kernel),
            call!(SYS_connect, Always, Other, sockets::connect, Kernel),
        ],
    },
    Row {
        title: "exec",
        calls: &[
            call!(SYS_execve, Always, Other, exec::execve, Eio),
            call!(SYS_execveat, Always, Other, exec::execveat, Eio),
        ],
    },
    Row {
        title: "mount, umount2, open_tree, move_mount, fspick, mount_setattr, swapon, acct, uselib",
        calls: &[
            call!(SYS_mount, PathPath, Other, names::mount),
            call!(SYS_umount2, Path, Other, names::unsupported_path),
            call!(SYS_pivot_root, Path, Other, names::pivot_root),
            call!(SYS_open_tree, AtNumbers, Other, names::open_tree),
            call!(SYS_open_tree_attr, AtNumbers, Other, names::open_tree),
            call!(SYS_move_mount, AtAt, Other, names::move_mount),
            call!(SYS_fsopen, Numbers, Other, descriptors::with_numbers),
            call!(SYS_fsmount, Numbers, Other, descriptors::with_numbers),
            call!(SYS_fspick, AtNumbers, Other, names::unsupported_at),
            call!(SYS_mount_setattr, At, Other, names::unsupported_at),
            call!(SYS_swapon, Path, Other, names::unsupported_path),
            call!(SYS_swapoff, Path, Other, names::unsupported_path),
            call!(SYS_acct, Path, Other, names::unsupported_path),
            call!(SYS_uselib, Path, Other, names::unsupported_path),
        ],
    },
];

/// Calls without a row: they concern no file, but descriptors, memory, children or signals.
pub const OTHERS: &[Entry] = &[
    // Processes.
    call!(SYS_fork, Always, Other, processes::fork, HandleWithTables),
    call!(SYS_vfork, Always, Other, processes::vfork, HandleWithTables),
    call!(SYS_clone, Always, Other, processes::clone, HandleWithTables),
    call!(SYS_clone3, Always, Other, processes::clone3, HandleWithTables),
    // The process that finds this one dead releases what these would release.
    call!(SYS_exit, Always, Other, processes::exit, Kernel).attaches(Never),
    call!(SYS_exit_group, Always, Other, processes::exit_group, Kernel).attaches(Never),
    call!(SYS_wait4, Always, Other, processes::wait, Kernel).attaches(Never),
    call!(SYS_waitid, Always, Other, processes::wait, Kernel).attaches(Never),
    call!(SYS_pidfd_open, Numbers, Other, descriptors::with_numbers),
    call!(SYS_pidfd_getfd, AnyFd, Other, descriptors::with_numbers),
    call!(SYS_kcmp, AnyFd, Other, descriptors::kcmp),
    // Credentials, namespaces, limits and confinement.
    call!(SYS_setuid, Always, Other, processes::change_identity, Handle).attaches(Never),
    call!(SYS_setgid, Always, Other, processes::change_identity, Handle).attaches(Never),
    call!(SYS_setreuid, Always, Other, processes::change_identity, Handle).attaches(Never),
    call!(SYS_setregid, Always, Other, processes::change_identity, Handle).attaches(Never),
    call!(SYS_setresuid, Always, Other, processes::change_identity, Handle).attaches(Never),
    call!(SYS_setresgid, Always, Other, processes::change_identity, Handle).attaches(Never),
    call!(SYS_setfsuid, Always, Other, processes::change_identity, Handle).attaches(Never),
    call!(SYS_setfsgid, Always, Other, processes::change_identity, Handle).attaches(Never),
    call!(SYS_setgroups, Always, Other, processes::change_identity, Handle).attaches(Never),
    call!(SYS_capset, Always, Other, processes::change_identity, Handle).attaches(Never),
    call!(SYS_setns, Always, Other, processes::setns, Handle),
    call!(SYS_unshare, Always, Other, processes::unshare, Handle),
    call!(SYS_setrlimit, Always, Other, limits::change, Kernel),
    call!(SYS_prlimit64, Always, Other, limits::change, Kernel).attaches(BeforeLimit),
    call!(SYS_seccomp, Always, Other, seccomp::seccomp, Kernel),
    call!(SYS_prctl, Always, Other, seccomp::prctl, Kernel).attaches(BeforeFilter),
    call!(SYS_landlock_create_ruleset, Always, Other, landlock::create_ruleset, Handle),
    #[cfg(feature = "loader")]
    call!(SYS_arch_prctl, Always, Other, crate::process::thread_places::arch_prctl, Kernel).attaches(Never),
    // Signals.
    call!(SYS_rt_sigaction, Always, Other, signals::rt_sigaction, Handle).attaches(Never),
    call!(SYS_rt_sigprocmask, Mask, Other, signals::rt_sigprocmask, Handle).attaches(Never),
    // Sockets and pipes. The image serves none, but the kernel must not find the placeholder behind
    // a number that the program has closed.
    call!(SYS_socket, Numbers, Other, descriptors::with_numbers),
    call!(SYS_socketpair, Numbers, Other, descriptors::with_numbers),
    call!(SYS_pipe, Numbers, Other, descriptors::with_numbers),
    call!(SYS_pipe2, Numbers, Other, descriptors::with_numbers),
    call!(SYS_accept, Always, Other, sockets::accept, By(Route::Fd)),
    call!(SYS_accept4, Always, Other, sockets::accept, By(Route::Fd)),
    call!(SYS_listen, Fd, Other, descriptors::of_the_kernel),
    call!(SYS_shutdown, Fd, Other, descriptors::of_the_kernel),
    call!(SYS_getsockname, Always, Other, sockets::name, By(Route::Fd)),
    call!(SYS_getpeername, Always, Other, sockets::name, By(Route::Fd)),
    call!(SYS_getsockopt, Fd, Other, descriptors::of_the_kernel),
    call!(SYS_setsockopt, Fd, Other, descriptors::of_the_kernel),
    call!(SYS_sendto, FdAddress, Other, sockets::sendto).buffers(Bytes),
    call!(SYS_recvfrom, FdAddress, Other, sockets::recvfrom).buffers(Bytes),
    call!(SYS_sendmsg, Message, Other, fd_passing::sendmsg).buffers(Message),
    call!(SYS_sendmmsg, Message, Other, fd_passing::sendmmsg).buffers(Messages),
    call!(SYS_recvmsg, Always, Other, fd_passing::recvmsg, Kernel).buffers(Message),
    call!(SYS_recvmmsg, Always, Other, fd_passing::recvmmsg, Kernel).buffers(Messages),
    // Other files of the kernel.
    call!(SYS_eventfd, Numbers, Other, descriptors::with_numbers),
    call!(SYS_eventfd2, Numbers, Other, descriptors::with_numbers),
    call!(SYS_signalfd, Numbers, Other, descriptors::with_numbers),
    call!(SYS_signalfd4, Numbers, Other, descriptors::with_numbers),
    call!(SYS_timerfd_create, Numbers, Other, descriptors::with_numbers),
    call!(SYS_timerfd_settime, Fd, Other, descriptors::of_the_kernel),
    call!(SYS_timerfd_gettime, Fd, Other, descriptors::of_the_kernel),
    call!(SYS_memfd_create, Numbers, Other, descriptors::with_numbers),
    call!(SYS_memfd_secret, Numbers, Other, descriptors::with_numbers),
    call!(SYS_userfaultfd, Numbers, Other, descriptors::with_numbers),
    call!(SYS_perf_event_open, Numbers, Other, descriptors::with_numbers),
    call!(SYS_bpf, Numbers, Other, descriptors::with_numbers),
    call!(SYS_mq_open, Numbers, Other, descriptors::with_numbers),
    call!(SYS_finit_module, Fd, Other, files::unsupported),
];

/// The table by numbers.
pub static TABLE: Table = Table { routes: COLUMNS.routes, handlers: COLUMNS.handlers, details: &DETAILS };
static DETAILS: [Details; NUMBERS] = COLUMNS.details;
const COLUMNS: Columns = columns();

struct Columns {
    routes: Routes,
    handlers: Handlers,
    details: [Details; NUMBERS],
}

const fn columns() -> Columns {
    let mut table = Columns {
        routes: [Route::Native; NUMBERS],
        handlers: [None; PLACES],
        details: [Details::OF_THE_KERNEL; NUMBERS],
    };
    let mut taken = [false; NUMBERS];
    let mut index = 0;
    while index < EXTENSIONS.len() {
        add(&mut table, &mut taken, EXTENSIONS[index].calls);
        index += 1;
    }
    index = 0;
    while index < ROWS.len() {
        add(&mut table, &mut taken, ROWS[index].calls);
        index += 1;
    }
    add(&mut table, &mut taken, OTHERS);
    table
}

/// Its panics are errors of compilation.
const fn add(table: &mut Columns, taken: &mut [bool; NUMBERS], calls: &[Entry]) {
    let mut index = 0;
    while index < calls.len() {
        let call = &calls[index];
        let number = call.number as usize;
        index += 1;
        if taken[number] && call.is_refusal {
            continue;
        }
        if taken[number] {
            panic!("{}", call.name); // A call with two entries.
        }
        assert!(
            !matches!((call.route, call.details.on_failure), (Route::Always, ByRoute)),
            "a call that always reaches the dispatcher does not say what happens after the image failed"
        );
        assert!(number <= LAST_NUMBER, "raise LAST_NUMBER in call.rs");
        taken[number] = true;
        table.routes[number] = call.route;
        table.handlers[place(number)] = call.handler;
        table.details[number] = call.details;
    }
}

/// The route of a number.
pub fn route(number: u64) -> Route {
    route_of(&TABLE.routes, number)
}

#[cfg(test)]
mod tests {
    use super::*;
    use engine::statistics::CallClass;
    use std::collections::{HashMap, HashSet};

    const DOCUMENT: &str = include_str!("../../../docs/posix.md");

    /// First words of the parts of titles that name no call.
    const NO_CALLS: [&str; 8] =
        ["path", "symbolic", "telldir", "seekdir", "shared", "unknown", "posix_fadvise", "fifos"];

    fn of_extensions() -> impl Iterator<Item = &'static Entry> {
        EXTENSIONS.iter().flat_map(|extension| extension.calls)
    }

    fn of_core() -> impl Iterator<Item = &'static Entry> {
        ROWS.iter().flat_map(|row| row.calls).chain(OTHERS)
    }

    fn entries() -> impl Iterator<Item = &'static Entry> {
        let is_replaced = |call: &Entry| call.is_refusal && of_extensions().any(|other| other.number == call.number);
        of_extensions().chain(of_core().filter(move |call| !is_replaced(call)))
    }

    #[test]
    fn the_core_refuses_each_call_of_an_extension() {
        let refused: HashSet<_> = of_core().filter(|call| call.is_refusal).map(|call| call.number).collect();
        assert!(of_extensions().all(|call| refused.contains(&call.number)));
        let are_all_there = of_extensions().count() == refused.len();
        assert_eq!(are_all_there, cfg!(feature = "extensions"), "refused for no extension: {refused:?}");
    }

    #[test]
    fn the_rows_are_those_of_the_document() {
        let part = DOCUMENT.split("\n## 1.").nth(1).unwrap().split("\n### Mounting").next().unwrap();
        let titles = part.lines().filter_map(|line| Some(line.strip_prefix("| ")?.split_once(" | ")?.0));
        let titles: Vec<_> = titles.filter(|title| !["---", "call", "call or flag"].contains(title)).collect();
        assert_eq!(ROWS.iter().map(|row| row.title).collect::<Vec<_>>(), titles);
    }

    #[test]
    fn each_call_that_a_row_names_has_an_entry() {
        for part in ROWS.iter().flat_map(|row| row.title.split(", ")) {
            let word = part.split(' ').next().unwrap();
            let is_call = word.starts_with(|first: char| first.is_ascii_lowercase()) && !NO_CALLS.contains(&word);
            let has_entry = || entries().any(|call| call.name["SYS_".len()..].starts_with(word));
            assert!(!is_call || has_entry(), "{part}");
        }
    }

    #[test]
    fn each_number_has_the_handler_of_its_entry_or_none() {
        let handlers: HashMap<_, _> = entries().map(|call| (call.number as usize, call.handler)).collect();
        for number in 0..2 * NUMBERS {
            let expected = handlers.get(&number).copied().flatten();
            assert_eq!(
                TABLE.handler(number).map(|found| found as usize),
                expected.map(|found| found as usize),
                "{number}"
            );
        }
    }

    #[test]
    fn no_number_and_no_name_occurs_twice() {
        let mut numbers = HashMap::new();
        let mut names = HashSet::new();
        for call in entries() {
            assert_eq!(numbers.insert(call.number, call.name), None, "{}", call.name);
            assert!(names.insert(call.name), "{}", call.name);
        }
    }

    #[test]
    fn the_arrays_are_the_table() {
        assert_eq!(TABLE.routes.iter().filter(|&&route| route != Route::Native).count(), {
            entries().filter(|call| call.route != Route::Native).count()
        });
        for call in entries() {
            assert_eq!(call.route == Route::Native, call.handler.is_none(), "{}", call.name);
            assert_eq!(route(call.number as u64), call.route, "{}", call.name);
            assert_eq!(TABLE.details(call.number as u32), call.details, "{}", call.name);
        }
    }

    /// The class of a call by its name without `SYS_`.
    fn class_of(name: &str) -> Option<CallClass> {
        entries().find(|call| &call.name["SYS_".len()..] == name).map(|call| call.details.class)
    }

    #[test]
    fn variants_of_a_call_are_counted_together() {
        let mut compared = 0;
        for call in entries() {
            let name = &call.name["SYS_".len()..];
            let stems = ["at", "at2", "2", "3", "4", "64", "v"].into_iter().filter_map(|end| name.strip_suffix(end));
            for (stem, class) in stems.filter_map(|stem| Some((stem, class_of(stem)?))) {
                assert_eq!(call.details.class, class, "{name} and {stem}");
                compared += 1;
            }
        }
        assert!(compared > 30, "only {compared} pairs");
        assert_eq!(class_of("file_setattr"), class_of("chmod"));
    }

    #[test]
    fn a_front_without_system_calls_counts_in_the_same_classes() {
        for class in CallClass::ALL {
            assert_eq!(TABLE.details(posix::call_classes::number_of(class) as u32).class, class);
        }
    }

    #[test]
    fn a_call_that_moves_bytes_names_its_buffers() {
        for call in entries().filter(|call| matches!(call.details.class, CallClass::Read | CallClass::Write)) {
            assert!(matches!(call.details.buffers, Bytes | Vector), "{}", call.name);
        }
        for call in entries().filter(|call| call.details.class == CallClass::Map) {
            assert!(call.details.buffers == Ranges || call.name == "SYS_mlockall", "{}", call.name);
        }
    }

    #[test]
    fn what_concerns_no_file_stays_as_it_is() {
        for number in [libc::SYS_rt_sigreturn, libc::SYS_futex, libc::SYS_nanosleep, libc::SYS_getpid] {
            assert_eq!(route(number as u64), Route::Native);
        }
        assert_eq!(route(510), Route::Native);
        assert_eq!(route(512), Route::Native);
        assert_eq!(route(u64::MAX), Route::Native);
        assert_eq!(TABLE.details(512), Details::OF_THE_KERNEL);
    }

    #[test]
    fn what_makes_or_ends_processes_is_seen() {
        for number in [libc::SYS_fork, libc::SYS_vfork, libc::SYS_clone, libc::SYS_clone3, libc::SYS_exit_group] {
            assert_eq!(route(number as u64), Route::Always);
        }
    }

    #[test]
    fn the_kernel_sees_the_lower_half_of_a_number() {
        assert_eq!(route(libc::SYS_openat as u64 | 1 << 32), Route::AtNumbers);
    }
}
