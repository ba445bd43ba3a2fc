//! The table of system calls: number, route, handler, what happens after the image failed, and the
//! row of docs/posix.md.
//!
//! Invariants:
//!
//! - A call without an entry never reaches the dispatcher. The analysis leaves a call site alone if
//!   its number is constant and has no route.
//! - Each call with a path or a descriptor has an entry. So do calls that create, end or await
//!   processes, because the dispatcher prepares them. Such a call is executed at its site if it
//!   returns on another stack, or in a child in shared memory.
//! - Each number has one entry; a second one does not compile.
//! - The rows are those of part 1 of docs/posix.md, in the same order. A row without calls
//!   describes flags or effects of calls in other rows. A call that several rows name is in one of
//!   them.
//!
//! The filter, the dispatcher and [`failed_image`](crate::hook::failed_image) read [`TABLE`], which
//! the compiler computes. Names and titles are not in the preload library.

use crate::hook::call::{Handler, OnFailure, Table};
use crate::hook::calls::{
    aio, attributes, copy_calls, fanotify, files, handles, inotify, io_uring, landlock, locks, mapping, names, open,
    renames, seccomp, sockets,
};
use crate::hook::descriptors::{self, fd_passing, polling};
use crate::hook::process::{exec, limits, processes, working_directory};
use crate::hook::signals;
use crate::routes::{NUMBERS, Route, Routes, SYS_MISSING_PAGE, route_of};
use OnFailure::{By, ByRoute, Close, CloseRange, Eio, Handle, HandleWithTables, Kernel};
use numbers::*;

/// Numbers by name.
mod numbers {
    #![allow(non_upper_case_globals)]
    pub use libc::*;

    // Those without a name in libc on every machine. They hide libc's of the same name.
    /// Linux 5.11.
    pub const SYS_epoll_pwait2: c_long = 441;
    /// Linux 6.5.
    pub const SYS_cachestat: c_long = 451;
    /// Linux 6.6.
    pub const SYS_fchmodat2: c_long = 452;
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

/// A system call.
#[derive(Clone, Copy)]
pub struct Entry {
    /// Name in libc: `SYS_` and the kernel's.
    pub name: &'static str,
    /// Number.
    pub number: libc::c_long,
    /// What decides whether a call may concern the image.
    pub route: Route,
    /// Serves the call. `None`: the kernel alone.
    pub handler: Option<Handler>,
    /// What happens after the image failed.
    pub on_failure: OnFailure,
}

/// A row of part 1 of docs/posix.md.
pub struct Row {
    /// First column.
    pub title: &'static str,
    /// Calls of the row.
    pub calls: &'static [Entry],
}

/// `call!(number, route, handler)`, or with what happens after the image failed if that does not
/// follow from the route.
macro_rules! call {
    ($number:ident, $route:ident, $handler:path) => {
        call!($number, $route, $handler, ByRoute)
    };
    ($number:ident, $route:ident, $handler:path, $on_failure:expr) => {
        Entry {
            name: stringify!($number),
            number: $number,
            route: Route::$route,
            handler: Some($handler),
            on_failure: $on_failure,
        }
    };
}

/// A call of a row that the kernel alone serves.
macro_rules! kernel {
    ($number:ident) => {
        Entry { name: stringify!($number), number: $number, route: Route::Native, handler: None, on_failure: Kernel }
    };
}

/// Calls with a row, by rows.
pub const ROWS: &[Row] = &[
    // Names.
    Row { title: "path walk, `..`, symbolic links", calls: &[] },
    Row {
        title: "mkdir, rmdir, unlink, symlink, readlink",
        calls: &[
            call!(SYS_mkdir, Path, names::mkdir),
            call!(SYS_mkdirat, At, names::mkdirat),
            call!(SYS_rmdir, Path, names::rmdir),
            call!(SYS_unlink, Path, names::unlink),
            call!(SYS_unlinkat, At, names::unlinkat),
            call!(SYS_symlink, PathSecond, names::symlink),
            call!(SYS_symlinkat, AtSecond, names::symlinkat),
            call!(SYS_readlink, Path, names::readlink),
            call!(SYS_readlinkat, At, names::readlinkat),
        ],
    },
    Row {
        title: "chdir, fchdir, getcwd, umask",
        calls: &[
            call!(SYS_chdir, Always, names::chdir, By(Route::Path)),
            call!(SYS_fchdir, Always, working_directory::fchdir, By(Route::Fd)),
            call!(SYS_getcwd, AnyFd, working_directory::getcwd),
            call!(SYS_umask, Always, processes::umask, HandleWithTables),
        ],
    },
    Row { title: "chroot", calls: &[call!(SYS_chroot, Always, names::chroot, By(Route::Path))] },
    Row { title: "mknod", calls: &[call!(SYS_mknod, Path, names::mknod), call!(SYS_mknodat, At, names::mknodat)] },
    Row {
        title: "link, linkat AT_EMPTY_PATH",
        calls: &[call!(SYS_link, PathPath, renames::link), call!(SYS_linkat, AtAt, renames::linkat)],
    },
    Row {
        title: "rename, renameat2",
        calls: &[
            call!(SYS_rename, PathPath, renames::rename),
            call!(SYS_renameat, AtAt, renames::renameat),
            call!(SYS_renameat2, AtAt, renames::renameat2),
        ],
    },
    Row {
        title: "getdents, telldir, seekdir",
        calls: &[call!(SYS_getdents, Fd, files::getdents), call!(SYS_getdents64, Fd, files::getdents64)],
    },
    Row {
        title: "name_to_handle_at, open_by_handle_at",
        calls: &[
            call!(SYS_name_to_handle_at, At, handles::name_to_handle_at),
            // The working directory stands for its mount.
            call!(SYS_open_by_handle_at, Always, open::open_by_handle_at, By(Route::Fd)),
        ],
    },
    Row {
        title: "inotify, fanotify",
        calls: &[
            call!(SYS_inotify_init, Always, inotify::init, Kernel),
            call!(SYS_inotify_init1, Always, inotify::init1, Kernel),
            call!(SYS_inotify_add_watch, PathSecond, inotify::add_watch),
            call!(SYS_inotify_rm_watch, Fd, inotify::rm_watch),
            call!(SYS_fanotify_init, Always, fanotify::init, Kernel),
            call!(SYS_fanotify_mark, Always, fanotify::mark, Kernel),
        ],
    },
    // Opening.
    Row {
        title: "O_CREAT, O_EXCL, O_TRUNC, O_APPEND, O_DIRECTORY, O_NOFOLLOW, O_PATH, O_CLOEXEC, O_NONBLOCK",
        calls: &[
            call!(SYS_open, PathNumbers, open::open),
            call!(SYS_openat, AtNumbers, open::openat),
            call!(SYS_creat, PathNumbers, open::creat),
        ],
    },
    Row { title: "O_DIRECT", calls: &[] },
    Row { title: "O_SYNC, O_DSYNC", calls: &[] },
    Row { title: "O_NOATIME", calls: &[] },
    Row { title: "O_TMPFILE", calls: &[] },
    Row {
        title: "close, close_range, dup, dup2, dup3, fcntl F_DUPFD, F_GETFD, F_SETFD, F_GETFL, F_SETFL",
        calls: &[
            call!(SYS_close, Close, descriptors::close, Close),
            call!(SYS_close_range, Always, descriptors::close_range, CloseRange),
            call!(SYS_dup, FdNumbers, descriptors::dup),
            call!(SYS_dup2, FdFd, descriptors::dup2),
            call!(SYS_dup3, FdFd, descriptors::dup3),
            call!(SYS_fcntl, FdNumbers, files::fcntl),
        ],
    },
    Row {
        title: "openat2 with RESOLVE_NO_SYMLINKS, NO_MAGICLINKS, BENEATH, IN_ROOT, NO_XDEV",
        calls: &[
            // With its flags an absolute path may begin at a descriptor of the image.
            call!(SYS_openat2, Always, open::openat2, By(Route::At)),
        ],
    },
    Row { title: "openat2 with RESOLVE_CACHED", calls: &[] },
    Row { title: "open for writing of a program that runs", calls: &[] },
    // Content.
    Row {
        title: "read, write, pread, pwrite, readv, writev, AIO",
        calls: &[
            call!(SYS_read, Fd, files::read),
            call!(SYS_write, Fd, files::write),
            call!(SYS_pread64, Fd, files::pread),
            call!(SYS_pwrite64, Fd, files::pwrite),
            call!(SYS_readv, Fd, files::readv),
            call!(SYS_writev, Fd, files::writev),
            call!(SYS_preadv, Fd, files::preadv),
            call!(SYS_pwritev, Fd, files::pwritev),
        ],
    },
    Row {
        title: "preadv2, pwritev2",
        calls: &[call!(SYS_preadv2, Fd, files::preadv2), call!(SYS_pwritev2, Fd, files::pwritev2)],
    },
    Row {
        title: "truncate, ftruncate",
        calls: &[call!(SYS_truncate, Path, attributes::truncate), call!(SYS_ftruncate, Fd, files::ftruncate)],
    },
    Row {
        title: "mmap, shared and private, msync",
        calls: &[
            call!(SYS_mmap, Mmap, mapping::mmap),
            call!(SYS_munmap, AnyFd, mapping::munmap),
            call!(SYS_msync, AnyFd, mapping::msync),
        ],
    },
    Row {
        title: "mremap, remap_file_pages, mprotect, madvise, mincore, mlock",
        calls: &[
            call!(SYS_mremap, AnyFd, mapping::moves::mremap),
            call!(SYS_remap_file_pages, AnyFd, mapping::remap_file_pages),
            call!(SYS_mprotect, AnyFd, mapping::mprotect),
            call!(SYS_pkey_mprotect, AnyFd, mapping::mprotect),
            call!(SYS_madvise, AnyFd, mapping::advice::madvise),
            kernel!(SYS_mincore),
            call!(SYS_mlock, AnyFd, mapping::advice::mlock),
            call!(SYS_mlock2, AnyFd, mapping::advice::mlock),
            call!(SYS_mlockall, Always, mapping::advice::mlockall, Kernel),
            call!(SYS_MISSING_PAGE, Always, mapping::missing::resolve, Handle),
        ],
    },
    Row { title: "fallocate", calls: &[call!(SYS_fallocate, Fd, files::fallocate)] },
    Row { title: "fallocate COLLAPSE_RANGE, INSERT_RANGE, UNSHARE_RANGE, unknown bits", calls: &[] },
    Row { title: "lseek SEEK_DATA, SEEK_HOLE", calls: &[call!(SYS_lseek, Fd, files::lseek)] },
    Row {
        title: "copy_file_range, sendfile, splice",
        calls: &[
            call!(SYS_copy_file_range, FdFdThird, copy_calls::copy_file_range),
            call!(SYS_sendfile, FdFd, copy_calls::sendfile),
            call!(SYS_splice, FdFdThird, copy_calls::splice),
            call!(SYS_tee, FdFd, copy_calls::tee),
            call!(SYS_vmsplice, Fd, copy_calls::vmsplice),
        ],
    },
    Row { title: "ioctl FICLONE, FICLONERANGE, FIDEDUPERANGE", calls: &[call!(SYS_ioctl, FdNumbers, files::ioctl)] },
    Row {
        title: "ioctl FS_IOC_GETFLAGS, FS_IOC_SETFLAGS, FS_IOC_FSGETXATTR, FS_IOC_FSSETXATTR, file_getattr, file_setattr",
        calls: &[
            call!(SYS_file_getattr, At, attributes::file_getattr),
            call!(SYS_file_setattr, At, attributes::file_setattr),
        ],
    },
    Row { title: "ioctl FS_IOC_FIEMAP, FITRIM", calls: &[] },
    Row { title: "FS_IMMUTABLE_FL, FS_APPEND_FL, FS_NODUMP_FL, FS_NOATIME_FL", calls: &[] },
    Row {
        title: "fsync, fdatasync, syncfs, sync, sync_file_range",
        calls: &[
            call!(SYS_fsync, Fd, files::fsync),
            call!(SYS_fdatasync, Fd, files::fsync),
            call!(SYS_syncfs, Fd, files::syncfs),
            call!(SYS_sync, AnyFd, files::sync),
            call!(SYS_sync_file_range, Fd, files::sync_file_range),
        ],
    },
    Row {
        title: "posix_fadvise, readahead, cachestat",
        calls: &[
            call!(SYS_fadvise64, Fd, files::advise),
            call!(SYS_readahead, Fd, files::readahead),
            call!(SYS_cachestat, Fd, files::unsupported),
        ],
    },
    Row {
        title: "poll, select, epoll",
        calls: &[
            // The kernel polls: a placeholder is as ready as any file. But it must not find one
            // behind a number that the program has closed.
            call!(SYS_poll, Numbers, polling::poll),
            call!(SYS_ppoll, Numbers, polling::poll),
            call!(SYS_select, Numbers, descriptors::with_numbers),
            call!(SYS_pselect6, Numbers, descriptors::with_numbers),
            call!(SYS_epoll_create, Numbers, descriptors::with_numbers),
            call!(SYS_epoll_create1, Numbers, descriptors::with_numbers),
            call!(SYS_epoll_ctl, FdFdThird, descriptors::epoll_ctl),
            call!(SYS_epoll_wait, Fd, descriptors::epoll_wait),
            call!(SYS_epoll_pwait, Fd, descriptors::epoll_wait),
            call!(SYS_epoll_pwait2, Fd, descriptors::epoll_wait),
        ],
    },
    Row {
        title: "io_setup, io_submit, io_uring_setup, io_uring_enter, io_uring_register",
        calls: &[
            kernel!(SYS_io_setup),
            call!(SYS_io_submit, Always, aio::submit, Handle),
            call!(SYS_io_uring_setup, Always, io_uring::setup, Handle),
            call!(SYS_io_uring_enter, Always, io_uring::enter, Handle),
            call!(SYS_io_uring_register, Always, io_uring::register, Handle),
        ],
    },
    // Attributes.
    Row {
        title: "stat, statx",
        calls: &[
            call!(SYS_stat, Path, names::stat),
            call!(SYS_lstat, Path, names::lstat),
            call!(SYS_fstat, Fd, files::fstat),
            call!(SYS_newfstatat, At, names::fstatat),
            call!(SYS_statx, At, names::statx),
        ],
    },
    Row {
        title: "chmod, chown",
        calls: &[
            call!(SYS_chmod, Path, attributes::chmod),
            call!(SYS_fchmod, Fd, files::fchmod),
            call!(SYS_fchmodat, At, attributes::fchmodat),
            call!(SYS_fchmodat2, At, attributes::fchmodat2),
            call!(SYS_chown, Path, attributes::chown),
            call!(SYS_lchown, Path, attributes::lchown),
            call!(SYS_fchown, Fd, files::fchown),
            call!(SYS_fchownat, At, attributes::fchownat),
        ],
    },
    Row { title: "setuid and setgid bits at a write", calls: &[] },
    Row {
        title: "utime, utimes, futimesat, utimensat",
        calls: &[
            call!(SYS_utime, Path, attributes::utime),
            call!(SYS_utimes, Path, attributes::utimes),
            call!(SYS_futimesat, At, attributes::futimesat),
            call!(SYS_utimensat, At, attributes::utimensat),
        ],
    },
    Row { title: "access times", calls: &[] },
    Row {
        title: "access, faccessat, faccessat2",
        calls: &[
            call!(SYS_access, Path, names::access),
            call!(SYS_faccessat, At, names::faccessat),
            call!(SYS_faccessat2, At, names::faccessat2),
        ],
    },
    Row {
        title: "getxattr, setxattr, listxattr, removexattr",
        calls: &[
            call!(SYS_getxattr, Path, attributes::getxattr),
            call!(SYS_lgetxattr, Path, attributes::lgetxattr),
            call!(SYS_fgetxattr, Fd, files::fgetxattr),
            call!(SYS_setxattr, Path, attributes::setxattr),
            call!(SYS_lsetxattr, Path, attributes::lsetxattr),
            call!(SYS_fsetxattr, Fd, files::fsetxattr),
            call!(SYS_listxattr, Path, attributes::listxattr),
            call!(SYS_llistxattr, Path, attributes::llistxattr),
            call!(SYS_flistxattr, Fd, files::flistxattr),
            call!(SYS_removexattr, Path, attributes::removexattr),
            call!(SYS_lremovexattr, Path, attributes::lremovexattr),
            call!(SYS_fremovexattr, Fd, files::fremovexattr),
        ],
    },
    Row {
        title: "setxattrat, getxattrat, listxattrat, removexattrat",
        calls: &[
            call!(SYS_setxattrat, At, attributes::setxattrat),
            call!(SYS_getxattrat, At, attributes::getxattrat),
            call!(SYS_listxattrat, At, attributes::listxattrat),
            call!(SYS_removexattrat, At, attributes::removexattrat),
        ],
    },
    Row { title: "POSIX access control lists", calls: &[] },
    Row { title: "statfs", calls: &[call!(SYS_statfs, Path, names::statfs), call!(SYS_fstatfs, Fd, files::fstatfs)] },
    Row {
        title: "quotactl, quotactl_fd",
        calls: &[call!(SYS_quotactl, PathSecond, names::quotactl), call!(SYS_quotactl_fd, Fd, files::quotactl_fd)],
    },
    // Locks and others.
    Row { title: "flock, fcntl locks, OFD locks", calls: &[call!(SYS_flock, Fd, locks::flock)] },
    Row { title: "fcntl F_SETLEASE", calls: &[] },
    Row { title: "fcntl F_ADD_SEALS, F_NOTIFY, F_SETOWN, F_SETPIPE_SZ, F_SET_RW_HINT", calls: &[] },
    Row {
        title: "bind, connect, fifos",
        calls: &[call!(SYS_bind, Always, sockets::bind, Kernel), call!(SYS_connect, Always, sockets::connect, Kernel)],
    },
    Row {
        title: "exec",
        calls: &[call!(SYS_execve, Always, exec::execve, Eio), call!(SYS_execveat, Always, exec::execveat, Eio)],
    },
    Row {
        title: "mount, umount2, open_tree, move_mount, fspick, mount_setattr, swapon, acct, uselib",
        calls: &[
            call!(SYS_mount, PathPath, names::mount),
            call!(SYS_umount2, Path, names::unsupported_path),
            call!(SYS_pivot_root, Path, names::pivot_root),
            call!(SYS_open_tree, AtNumbers, names::open_tree),
            call!(SYS_open_tree_attr, AtNumbers, names::open_tree),
            call!(SYS_move_mount, AtAt, names::move_mount),
            call!(SYS_fsopen, Numbers, descriptors::with_numbers),
            call!(SYS_fsmount, Numbers, descriptors::with_numbers),
            call!(SYS_fspick, AtNumbers, names::unsupported_at),
            call!(SYS_mount_setattr, At, names::unsupported_at),
            call!(SYS_swapon, Path, names::unsupported_path),
            call!(SYS_swapoff, Path, names::unsupported_path),
            call!(SYS_acct, Path, names::unsupported_path),
            call!(SYS_uselib, Path, names::unsupported_path),
        ],
    },
];

/// Calls without a row: they concern no file, but descriptors, memory, children or signals.
pub const OTHERS: &[Entry] = &[
    // Processes.
    call!(SYS_fork, Always, processes::fork, HandleWithTables),
    call!(SYS_vfork, Always, processes::vfork, HandleWithTables),
    call!(SYS_clone, Always, processes::clone, HandleWithTables),
    call!(SYS_clone3, Always, processes::clone3, HandleWithTables),
    // The process that finds this one dead releases what these would release.
    call!(SYS_exit, Always, processes::exit, Kernel),
    call!(SYS_exit_group, Always, processes::exit_group, Kernel),
    call!(SYS_wait4, Always, processes::wait, Kernel),
    call!(SYS_waitid, Always, processes::wait, Kernel),
    call!(SYS_pidfd_open, Numbers, descriptors::with_numbers),
    call!(SYS_pidfd_getfd, AnyFd, descriptors::with_numbers),
    call!(SYS_kcmp, AnyFd, descriptors::kcmp),
    // Credentials, namespaces, limits and confinement.
    call!(SYS_setuid, Always, processes::change_identity, Handle),
    call!(SYS_setgid, Always, processes::change_identity, Handle),
    call!(SYS_setreuid, Always, processes::change_identity, Handle),
    call!(SYS_setregid, Always, processes::change_identity, Handle),
    call!(SYS_setresuid, Always, processes::change_identity, Handle),
    call!(SYS_setresgid, Always, processes::change_identity, Handle),
    call!(SYS_setfsuid, Always, processes::change_identity, Handle),
    call!(SYS_setfsgid, Always, processes::change_identity, Handle),
    call!(SYS_setgroups, Always, processes::change_identity, Handle),
    call!(SYS_capset, Always, processes::change_identity, Handle),
    call!(SYS_setns, Always, processes::setns, Handle),
    call!(SYS_unshare, Always, processes::unshare, Handle),
    call!(SYS_setrlimit, Always, limits::change, Kernel),
    call!(SYS_prlimit64, Always, limits::change, Kernel),
    call!(SYS_seccomp, Always, seccomp::seccomp, Kernel),
    call!(SYS_prctl, Always, seccomp::prctl, Kernel),
    call!(SYS_landlock_create_ruleset, Always, landlock::create_ruleset, Handle),
    #[cfg(feature = "loader")]
    call!(SYS_arch_prctl, Always, crate::hook::process::thread_places::arch_prctl, Kernel),
    // Signals.
    call!(SYS_rt_sigaction, Always, signals::rt_sigaction, Handle),
    call!(SYS_rt_sigprocmask, Mask, signals::rt_sigprocmask, Handle),
    // Sockets and pipes. The image serves none, but the kernel must not find the placeholder behind
    // a number that the program has closed.
    call!(SYS_socket, Numbers, descriptors::with_numbers),
    call!(SYS_socketpair, Numbers, descriptors::with_numbers),
    call!(SYS_pipe, Numbers, descriptors::with_numbers),
    call!(SYS_pipe2, Numbers, descriptors::with_numbers),
    call!(SYS_accept, Always, sockets::accept, By(Route::Fd)),
    call!(SYS_accept4, Always, sockets::accept, By(Route::Fd)),
    call!(SYS_listen, Fd, descriptors::of_the_kernel),
    call!(SYS_shutdown, Fd, descriptors::of_the_kernel),
    call!(SYS_getsockname, Always, sockets::name, By(Route::Fd)),
    call!(SYS_getpeername, Always, sockets::name, By(Route::Fd)),
    call!(SYS_getsockopt, Fd, descriptors::of_the_kernel),
    call!(SYS_setsockopt, Fd, descriptors::of_the_kernel),
    call!(SYS_sendto, FdAddress, sockets::sendto),
    call!(SYS_recvfrom, FdAddress, sockets::recvfrom),
    call!(SYS_sendmsg, Message, fd_passing::sendmsg),
    call!(SYS_sendmmsg, Message, fd_passing::sendmmsg),
    call!(SYS_recvmsg, Always, fd_passing::recvmsg, Kernel),
    call!(SYS_recvmmsg, Always, fd_passing::recvmmsg, Kernel),
    // Other files of the kernel.
    call!(SYS_eventfd, Numbers, descriptors::with_numbers),
    call!(SYS_eventfd2, Numbers, descriptors::with_numbers),
    call!(SYS_signalfd, Numbers, descriptors::with_numbers),
    call!(SYS_signalfd4, Numbers, descriptors::with_numbers),
    call!(SYS_timerfd_create, Numbers, descriptors::with_numbers),
    call!(SYS_timerfd_settime, Fd, descriptors::of_the_kernel),
    call!(SYS_timerfd_gettime, Fd, descriptors::of_the_kernel),
    call!(SYS_memfd_create, Numbers, descriptors::with_numbers),
    call!(SYS_memfd_secret, Numbers, descriptors::with_numbers),
    call!(SYS_userfaultfd, Numbers, descriptors::with_numbers),
    call!(SYS_perf_event_open, Numbers, descriptors::with_numbers),
    call!(SYS_bpf, Numbers, descriptors::with_numbers),
    call!(SYS_mq_open, Numbers, descriptors::with_numbers),
    call!(SYS_finit_module, Fd, files::unsupported),
];

/// The table by numbers.
pub static TABLE: Table = Table { routes: COLUMNS.routes, handlers: COLUMNS.handlers, on_failure: &ON_FAILURE };
static ON_FAILURE: [OnFailure; NUMBERS] = COLUMNS.on_failure;
const COLUMNS: Columns = columns();

struct Columns {
    routes: Routes,
    handlers: [Option<Handler>; NUMBERS],
    on_failure: [OnFailure; NUMBERS],
}

const fn columns() -> Columns {
    let mut table =
        Columns { routes: [Route::Native; NUMBERS], handlers: [None; NUMBERS], on_failure: [Kernel; NUMBERS] };
    let mut taken = [false; NUMBERS];
    let mut index = 0;
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
        if taken[number] {
            panic!("{}", call.name); // A call with two entries.
        }
        assert!(
            !matches!((call.route, call.on_failure), (Route::Always, ByRoute)),
            "a call that always reaches the dispatcher does not say what happens after the image failed"
        );
        taken[number] = true;
        table.routes[number] = call.route;
        table.handlers[number] = call.handler;
        table.on_failure[number] = call.on_failure;
        index += 1;
    }
}

/// The route of a number.
pub fn route(number: u64) -> Route {
    route_of(&TABLE.routes, number)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::{HashMap, HashSet};

    const DOCUMENT: &str = include_str!("../../../docs/posix.md");

    /// First words of the parts of titles that name no call.
    const NO_CALLS: [&str; 8] =
        ["path", "symbolic", "telldir", "seekdir", "shared", "unknown", "posix_fadvise", "fifos"];

    fn entries() -> impl Iterator<Item = &'static Entry> {
        ROWS.iter().flat_map(|row| row.calls).chain(OTHERS)
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
            assert_eq!(TABLE.on_failure(call.number as u32), call.on_failure, "{}", call.name);
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
        assert_eq!(TABLE.on_failure(512), Kernel);
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
