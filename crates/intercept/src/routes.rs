//! The system calls that can concern a file of the image, and the criterion by which the filter
//! decides.
//!
//! Invariant: a call without a route never reaches the dispatcher; the analysis leaves a call site
//! alone if its number is constant and has no route. So every call with a path or a descriptor
//! needs a route, and so do calls that create, end or await processes, because the dispatcher
//! prepares them. If such a call returns on another stack, or in a child in shared memory, it is
//! executed at its site.

/// What decides whether a call may concern the image. The numbers are indices into the filter's
/// jump table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Route {
    /// Never concerns the image.
    Native = 0,
    /// A descriptor in the first argument.
    Fd = 1,
    /// A path in the first argument, relative to the working directory.
    Path = 2,
    /// A directory's descriptor in the first argument, a path in the second.
    At = 3,
    /// mmap: a descriptor in the fifth argument, or MAP_FIXED in the fourth while any descriptor is
    /// the image's.
    Mmap = 4,
    /// Descriptors in the first two arguments.
    FdFd = 5,
    /// Paths in the first two arguments.
    PathPath = 6,
    /// Directory and path, twice.
    AtAt = 7,
    /// A path in the second argument, relative to the working directory.
    PathSecond = 8,
    /// A directory's descriptor in the second argument, a path in the third.
    AtSecond = 9,
    /// Descriptors in the first and third arguments.
    FdFdThird = 10,
    /// Descriptors in memory, where the filter does not look: passes if any descriptor is the
    /// image's.
    AnyFd = 11,
    /// Always reaches the dispatcher.
    Always = 12,
    /// A set of signals in the second argument: reaches the dispatcher if it contains signals of
    /// faults.
    Mask = 13,
    /// close: a descriptor in the first argument, or one that is known to be the host's (see
    /// `hook::fd_numbers`).
    Close = 14,
    /// As `Fd`, and it may create a descriptor of the host, or reveal which exist.
    FdNumbers = 15,
    /// As `Path`, likewise.
    PathNumbers = 16,
    /// As `At`, likewise.
    AtNumbers = 17,
    /// Only the effect on numbers.
    Numbers = 18,
}

/// Numbers that have no name in libc on every machine.
pub mod unnamed {
    use libc::c_long;
    /// Linux 5.11.
    pub const EPOLL_PWAIT2: c_long = 441;
    /// Linux 6.5.
    pub const CACHESTAT: c_long = 451;
    /// Linux 6.6.
    pub const FCHMODAT2: c_long = 452;
    /// Linux 6.13, as the next three.
    pub const SETXATTRAT: c_long = 463;
    #[allow(missing_docs)]
    pub const GETXATTRAT: c_long = 464;
    #[allow(missing_docs)]
    pub const LISTXATTRAT: c_long = 465;
    #[allow(missing_docs)]
    pub const REMOVEXATTRAT: c_long = 466;
    /// Linux 6.15.
    pub const OPEN_TREE_ATTR: c_long = 467;
    /// Linux 6.17, as the next.
    pub const FILE_GETATTR: c_long = 468;
    #[allow(missing_docs)]
    pub const FILE_SETATTR: c_long = 469;
}

/// Numbers from here on never concern the image.
pub const NUMBERS: usize = 512;

/// The route of every number.
pub static ROUTES: [Route; NUMBERS] = table();

const fn set(table: &mut [Route; NUMBERS], route: Route, numbers: &[libc::c_long]) {
    let mut index = 0;
    while index < numbers.len() {
        table[numbers[index] as usize] = route;
        index += 1;
    }
}

const fn table() -> [Route; NUMBERS] {
    use libc::*;
    use unnamed::*;
    let mut routes = [Route::Native; NUMBERS];
    let fd = [
        SYS_read,
        SYS_write,
        SYS_fstat,
        SYS_lseek,
        SYS_pread64,
        SYS_pwrite64,
        SYS_readv,
        SYS_writev,
        SYS_flock,
        SYS_fsync,
        SYS_fdatasync,
        SYS_ftruncate,
        SYS_getdents,
        SYS_getdents64,
        SYS_fchdir,
        SYS_fchmod,
        SYS_fchown,
        SYS_fstatfs,
        SYS_readahead,
        SYS_fsetxattr,
        SYS_fgetxattr,
        SYS_flistxattr,
        SYS_fremovexattr,
        SYS_fadvise64,
        SYS_sync_file_range,
        SYS_vmsplice,
        SYS_fallocate,
        SYS_preadv,
        SYS_pwritev,
        SYS_syncfs,
        SYS_preadv2,
        SYS_pwritev2,
        SYS_finit_module,
        CACHESTAT,
        SYS_quotactl_fd,
        // Calls on sockets and the like: the image serves none, but the kernel must not find the
        // placeholder behind a number that the program has closed.
        SYS_sendto,
        SYS_recvfrom,
        SYS_shutdown,
        SYS_listen,
        SYS_getsockname,
        SYS_getpeername,
        SYS_setsockopt,
        SYS_getsockopt,
        SYS_epoll_wait,
        SYS_epoll_pwait,
        EPOLL_PWAIT2,
        SYS_timerfd_settime,
        SYS_timerfd_gettime,
        SYS_inotify_rm_watch,
    ];
    set(&mut routes, Route::Fd, &fd);
    set(&mut routes, Route::Close, &[SYS_close]);
    let makes = [SYS_dup, SYS_fcntl, SYS_ioctl, SYS_accept, SYS_accept4];
    set(&mut routes, Route::FdNumbers, &makes);
    let path = [
        SYS_stat,
        SYS_lstat,
        SYS_access,
        SYS_truncate,
        SYS_chdir,
        SYS_mkdir,
        SYS_rmdir,
        SYS_unlink,
        SYS_readlink,
        SYS_chmod,
        SYS_chown,
        SYS_lchown,
        SYS_utime,
        SYS_mknod,
        SYS_uselib,
        SYS_statfs,
        SYS_pivot_root,
        SYS_chroot,
        SYS_acct,
        SYS_umount2,
        SYS_swapon,
        SYS_swapoff,
        SYS_setxattr,
        SYS_lsetxattr,
        SYS_getxattr,
        SYS_lgetxattr,
        SYS_listxattr,
        SYS_llistxattr,
        SYS_removexattr,
        SYS_lremovexattr,
        SYS_utimes,
    ];
    set(&mut routes, Route::Path, &path);
    set(&mut routes, Route::PathNumbers, &[SYS_open, SYS_creat]);
    let at = [
        SYS_mkdirat,
        SYS_mknodat,
        SYS_fchownat,
        SYS_futimesat,
        SYS_newfstatat,
        SYS_unlinkat,
        SYS_readlinkat,
        SYS_fchmodat,
        SYS_faccessat,
        SYS_utimensat,
        SYS_name_to_handle_at,
        SYS_statx,
        SYS_faccessat2,
        SYS_mount_setattr,
        FCHMODAT2,
        FILE_GETATTR,
        FILE_SETATTR,
    ];
    set(&mut routes, Route::At, &at);
    set(&mut routes, Route::At, &[SETXATTRAT, GETXATTRAT, LISTXATTRAT, REMOVEXATTRAT]);
    set(&mut routes, Route::AtNumbers, &[SYS_openat, SYS_openat2, SYS_open_tree, OPEN_TREE_ATTR, SYS_fspick]);
    set(&mut routes, Route::Mmap, &[SYS_mmap]);
    set(&mut routes, Route::FdFd, &[SYS_dup2, SYS_dup3, SYS_sendfile, SYS_tee]);
    set(&mut routes, Route::PathPath, &[SYS_rename, SYS_link, SYS_mount]);
    set(&mut routes, Route::AtAt, &[SYS_renameat, SYS_renameat2, SYS_linkat, SYS_move_mount]);
    set(&mut routes, Route::PathSecond, &[SYS_symlink, SYS_quotactl, SYS_inotify_add_watch]);
    set(&mut routes, Route::AtSecond, &[SYS_symlinkat]);
    set(&mut routes, Route::FdFdThird, &[SYS_splice, SYS_copy_file_range, SYS_epoll_ctl]);
    let any = [
        SYS_sendmsg,
        SYS_sendmmsg,
        SYS_getcwd,
        SYS_pidfd_getfd,
        SYS_kcmp,
        SYS_mremap,
        SYS_remap_file_pages,
        SYS_munmap,
        SYS_mprotect,
        SYS_pkey_mprotect,
        SYS_msync,
        SYS_sync,
    ];
    set(&mut routes, Route::AnyFd, &any);
    let numbers = [
        SYS_socket,
        SYS_socketpair,
        SYS_pipe,
        SYS_pipe2,
        SYS_eventfd,
        SYS_eventfd2,
        SYS_epoll_create,
        SYS_epoll_create1,
        SYS_signalfd,
        SYS_signalfd4,
        SYS_timerfd_create,
        SYS_inotify_init,
        SYS_inotify_init1,
        SYS_fanotify_init,
        SYS_memfd_create,
        SYS_memfd_secret,
        SYS_userfaultfd,
        SYS_perf_event_open,
        SYS_pidfd_open,
        SYS_bpf,
        SYS_fsopen,
        SYS_fsmount,
        SYS_mq_open,
        SYS_seccomp,
        // The kernel polls: a placeholder is as ready as any file. But it must not find one behind
        // a number that the program has closed.
        SYS_poll,
        SYS_ppoll,
        SYS_select,
        SYS_pselect6,
        // The program's limit counts cached placeholders, too.
        SYS_setrlimit,
        SYS_prlimit64,
    ];
    set(&mut routes, Route::Numbers, &numbers);
    set(&mut routes, Route::FdNumbers, &[SYS_open_by_handle_at]);
    let always = [
        // With its flags an absolute path may begin at a descriptor of the image.
        SYS_openat2,
        SYS_execve,
        SYS_execveat,
        SYS_fork,
        SYS_vfork,
        SYS_clone,
        SYS_clone3,
        SYS_exit,
        SYS_exit_group,
        SYS_wait4,
        SYS_waitid,
        SYS_io_uring_setup,
        SYS_io_setup,
        SYS_fanotify_mark,
        SYS_chdir,
        SYS_fchdir,
        SYS_umask,
        SYS_rt_sigaction,
        SYS_setuid,
        SYS_setgid,
        SYS_setreuid,
        SYS_setregid,
        SYS_setresuid,
        SYS_setresgid,
        SYS_setfsuid,
        SYS_setfsgid,
        SYS_setgroups,
        SYS_capset,
        SYS_setns,
        SYS_unshare,
        SYS_close_range,
        SYS_landlock_create_ruleset,
        SYS_bind,
        SYS_connect,
        SYS_recvmsg,
        SYS_recvmmsg,
    ];
    set(&mut routes, Route::Always, &always);
    set(&mut routes, Route::Mask, &[SYS_rt_sigprocmask]);
    routes
}

/// The route of a number.
pub fn of(number: u64) -> Route {
    // The kernel reads the lower 32 bits only.
    ROUTES.get(number as u32 as usize).copied().unwrap_or(Route::Native)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_makes_or_ends_processes_is_seen() {
        for number in [libc::SYS_fork, libc::SYS_vfork, libc::SYS_clone, libc::SYS_clone3, libc::SYS_exit_group] {
            assert_eq!(of(number as u64), Route::Always);
        }
    }

    #[test]
    fn what_concerns_no_file_stays_as_it_is() {
        for number in [libc::SYS_rt_sigreturn, libc::SYS_futex, libc::SYS_nanosleep, libc::SYS_getpid] {
            assert_eq!(of(number as u64), Route::Native);
        }
        assert_eq!(of(511), Route::Native);
        assert_eq!(of(512), Route::Native);
        assert_eq!(of(u64::MAX), Route::Native);
    }

    #[test]
    fn the_kernel_sees_the_lower_half_of_a_number() {
        assert_eq!(of(libc::SYS_openat as u64 | 1 << 32), Route::AtNumbers);
    }
}
