//! Routes calls that may concern the image to their handlers.
//!
//! Invariant: a handler either does the whole call and returns the program's result, or has changed
//! nothing and leaves the call to the kernel.

use super::call::{Call, Handler};
use super::context::{self, Context};
use super::entry::{FROM_ALTERNATE, Frame, Next, Verdict, thread_words};
use super::{
    attributes, call_counts, copy_calls, descriptors, exec, failed_image, faults, fd_passing, files, landlock, locks,
    mapping, names, open, processes, renames, server, signals, sockets, stack, sys,
};
use crate::routes::{NUMBERS, ROUTES, Route};
use posix::Errno;

/// The kernel performs the call.
pub const NATIVE: Verdict = Verdict { result: 0, next: Next::Native };

/// The program gets this result.
pub fn done(result: i64) -> Verdict {
    Verdict { result, next: Next::Done }
}

/// The handler of every number; without one the call is the kernel's.
static HANDLERS: [Option<Handler>; NUMBERS] = handlers();

const fn handlers() -> [Option<Handler>; NUMBERS] {
    use crate::routes::unnamed::*;
    use libc::*;
    let mut handlers: [Option<Handler>; NUMBERS] = [None; NUMBERS];
    let all: &[(c_long, Handler)] = &[
        (SYS_execve, exec::execve),
        (SYS_execveat, exec::execveat),
        // Paths.
        (SYS_stat, names::stat),
        (SYS_lstat, names::lstat),
        (SYS_newfstatat, names::fstatat),
        (SYS_statx, names::statx),
        (SYS_access, names::access),
        (SYS_faccessat, names::faccessat),
        (SYS_faccessat2, names::faccessat2),
        (SYS_readlink, names::readlink),
        (SYS_readlinkat, names::readlinkat),
        (SYS_statfs, names::statfs),
        (SYS_mkdir, names::mkdir),
        (SYS_mkdirat, names::mkdirat),
        (SYS_mknod, names::mknod),
        (SYS_mknodat, names::mknodat),
        (SYS_symlink, names::symlink),
        (SYS_symlinkat, names::symlinkat),
        (SYS_rmdir, names::rmdir),
        (SYS_unlink, names::unlink),
        (SYS_unlinkat, names::unlinkat),
        (SYS_rename, renames::rename),
        (SYS_renameat, renames::renameat),
        (SYS_renameat2, renames::renameat2),
        (SYS_link, renames::link),
        (SYS_linkat, renames::linkat),
        (SYS_chmod, attributes::chmod),
        (SYS_fchmodat, attributes::fchmodat),
        (FCHMODAT2, attributes::fchmodat2),
        (SYS_chown, attributes::chown),
        (SYS_lchown, attributes::lchown),
        (SYS_fchownat, attributes::fchownat),
        (SYS_utime, attributes::utime),
        (SYS_utimes, attributes::utimes),
        (SYS_futimesat, attributes::futimesat),
        (SYS_utimensat, attributes::utimensat),
        (SYS_truncate, attributes::truncate),
        (SYS_setxattr, attributes::setxattr),
        (SYS_lsetxattr, attributes::lsetxattr),
        (SYS_getxattr, attributes::getxattr),
        (SYS_lgetxattr, attributes::lgetxattr),
        (SYS_listxattr, attributes::listxattr),
        (SYS_llistxattr, attributes::llistxattr),
        (SYS_removexattr, attributes::removexattr),
        (SYS_lremovexattr, attributes::lremovexattr),
        (SETXATTRAT, attributes::setxattrat),
        (GETXATTRAT, attributes::getxattrat),
        (LISTXATTRAT, attributes::listxattrat),
        (REMOVEXATTRAT, attributes::removexattrat),
        (SYS_chdir, names::chdir),
        (SYS_fchdir, processes::fchdir),
        (SYS_getcwd, processes::getcwd),
        (SYS_open, open::open),
        (SYS_creat, open::creat),
        (SYS_openat, open::openat),
        (SYS_openat2, open::openat2),
        // Paths of calls that are not supported.
        (SYS_uselib, names::unsupported_path),
        (SYS_pivot_root, names::pivot_root),
        (SYS_mount, names::mount),
        (SYS_chroot, names::unsupported_path),
        (SYS_acct, names::unsupported_path),
        (SYS_umount2, names::unsupported_path),
        (SYS_swapon, names::unsupported_path),
        (SYS_swapoff, names::unsupported_path),
        (SYS_quotactl, names::quotactl),
        (SYS_inotify_add_watch, names::unsupported_second),
        (SYS_fanotify_mark, names::fanotify_mark),
        (SYS_name_to_handle_at, names::unsupported_at),
        (SYS_open_tree, names::unsupported_at),
        (SYS_fspick, names::unsupported_at),
        (SYS_mount_setattr, names::unsupported_at),
        (SYS_move_mount, names::unsupported_at_at),
        (OPEN_TREE_ATTR, names::unsupported_at),
        (FILE_GETATTR, attributes::file_flags),
        (FILE_SETATTR, attributes::file_flags),
        // Descriptors.
        (SYS_close, descriptors::close),
        (SYS_close_range, descriptors::close_range),
        (SYS_dup, descriptors::dup),
        (SYS_dup2, descriptors::dup2),
        (SYS_dup3, descriptors::dup3),
        (SYS_fcntl, files::fcntl),
        (SYS_ioctl, files::ioctl),
        (SYS_accept, descriptors::by_descriptor_with_numbers),
        (SYS_accept4, descriptors::by_descriptor_with_numbers),
        (SYS_open_by_handle_at, descriptors::by_descriptor_with_numbers),
        (SYS_epoll_ctl, descriptors::epoll_ctl),
        (SYS_pidfd_getfd, descriptors::with_numbers),
        (SYS_kcmp, descriptors::kcmp),
        (SYS_flock, locks::flock),
        (SYS_read, files::read),
        (SYS_write, files::write),
        (SYS_pread64, files::pread),
        (SYS_pwrite64, files::pwrite),
        (SYS_readv, files::readv),
        (SYS_writev, files::writev),
        (SYS_preadv, files::preadv),
        (SYS_pwritev, files::pwritev),
        (SYS_preadv2, files::preadv2),
        (SYS_pwritev2, files::pwritev2),
        (SYS_lseek, files::lseek),
        (SYS_fstat, files::fstat),
        (SYS_fstatfs, files::fstatfs),
        (SYS_fchmod, files::fchmod),
        (SYS_fchown, files::fchown),
        (SYS_fsetxattr, files::fsetxattr),
        (SYS_fgetxattr, files::fgetxattr),
        (SYS_flistxattr, files::flistxattr),
        (SYS_fremovexattr, files::fremovexattr),
        (SYS_ftruncate, files::ftruncate),
        (SYS_fallocate, files::fallocate),
        (SYS_fsync, files::fsync),
        (SYS_fdatasync, files::fsync),
        (SYS_sync_file_range, files::sync_file_range),
        (SYS_syncfs, files::syncfs),
        (SYS_sync, files::sync),
        (SYS_readahead, files::readahead),
        (SYS_fadvise64, files::advise),
        (SYS_getdents, files::getdents),
        (SYS_getdents64, files::getdents64),
        (SYS_copy_file_range, copy_calls::copy_file_range),
        (SYS_sendfile, copy_calls::sendfile),
        (SYS_splice, copy_calls::splice),
        (SYS_tee, copy_calls::not_a_pipe),
        (SYS_vmsplice, copy_calls::not_a_pipe),
        (SYS_finit_module, files::unsupported),
        (SYS_quotactl_fd, files::quotactl_fd),
        (CACHESTAT, files::unsupported),
        (SYS_io_setup, files::absent),
        (SYS_io_uring_setup, files::absent),
        // Memory.
        (SYS_mmap, mapping::mmap),
        (SYS_munmap, mapping::munmap),
        (SYS_mremap, mapping::mremap),
        (SYS_remap_file_pages, mapping::remap_file_pages),
        (SYS_mprotect, mapping::mprotect),
        (SYS_pkey_mprotect, mapping::mprotect),
        (SYS_msync, mapping::msync),
        // Processes.
        (SYS_fork, processes::fork),
        (SYS_vfork, processes::vfork),
        (SYS_clone, processes::clone),
        (SYS_clone3, processes::clone3),
        (SYS_exit, processes::exit),
        (SYS_exit_group, processes::exit_group),
        (SYS_wait4, processes::wait),
        (SYS_waitid, processes::wait),
        (SYS_umask, processes::umask),
        (SYS_setuid, processes::change_identity),
        (SYS_setgid, processes::change_identity),
        (SYS_setreuid, processes::change_identity),
        (SYS_setregid, processes::change_identity),
        (SYS_setresuid, processes::change_identity),
        (SYS_setresgid, processes::change_identity),
        (SYS_setfsuid, processes::change_identity),
        (SYS_setfsgid, processes::change_identity),
        (SYS_setgroups, processes::change_identity),
        (SYS_capset, processes::change_identity),
        (SYS_setns, processes::change_identity),
        (SYS_unshare, processes::change_identity),
        (SYS_landlock_create_ruleset, landlock::create_ruleset),
        (SYS_rt_sigaction, signals::rt_sigaction),
        (SYS_rt_sigprocmask, signals::rt_sigprocmask),
        // Sockets.
        (SYS_bind, sockets::bind),
        (SYS_connect, sockets::connect),
        (SYS_sendmsg, fd_passing::sendmsg),
        (SYS_sendmmsg, fd_passing::sendmmsg),
        (SYS_recvmsg, fd_passing::recvmsg),
        (SYS_recvmmsg, fd_passing::recvmmsg),
    ];
    let mut index = 0;
    while index < all.len() {
        handlers[all[index].0 as usize] = Some(all[index].1);
        index += 1;
    }
    let mut number = 0;
    while number < NUMBERS {
        handlers[number] = match (handlers[number], ROUTES[number]) {
            (None, Route::Numbers) => Some(descriptors::with_numbers),
            (None, Route::Fd) => Some(descriptors::of_the_kernel),
            (known, _) => known,
        };
        number += 1;
    }
    handlers
}

/// The entry calls this for every call that passed its filter.
///
/// # Safety
/// `frame` is the caller's frame, without other users meanwhile.
pub unsafe extern "C" fn directfs_dispatch(frame: *mut Frame, own_stack: u64) -> Verdict {
    if own_stack & FROM_ALTERNATE != 0 {
        // SAFETY: this runs on the thread's own stack, with all signals blocked.
        return unsafe { signals::without_alternate(|| dispatch(frame, own_stack)) };
    }
    // SAFETY: the caller vouches for the frame.
    unsafe { dispatch(frame, own_stack) }
}

#[inline(always)]
unsafe fn dispatch(frame: *mut Frame, own_stack: u64) -> Verdict {
    if own_stack == 0 && stack::prepare() {
        return Verdict { result: 0, next: Next::Again };
    }
    // SAFETY: the caller vouches for the frame.
    let frame = unsafe { &*frame };
    // The kernel reads the lower half only.
    let number = frame.number as u32 as usize;
    call_counts::count(number);
    let Some(Some(handler)) = HANDLERS.get(number) else { return NATIVE };
    if server::get().is_none() {
        return without_server(frame, number);
    }
    if own_stack != 0 {
        // SAFETY: this runs on this thread's own stack.
        return serve(frame, unsafe { stack::context() }, *handler);
    }
    context::with_new(|context| serve(frame, context, *handler)).unwrap_or(done(-i64::from(libc::ENOMEM)))
}

fn serve(frame: &Frame, context: &mut Context, handler: Handler) -> Verdict {
    let Some(server) = server::get() else { return NATIVE };
    let words = thread_words();
    // SAFETY: the words are this thread's, and no reference to them exists.
    let forked_by = unsafe {
        // A signal handler that left by a jump has not cleared the count.
        (*words).passive = 0;
        (*words).forked_by
    };
    if forked_by != 0 {
        processes::after_shared_memory_child(server, context);
    }
    let mut call = Call { frame, server, context };
    let had_failed = server::has_failed();
    let served = if had_failed { failed_image::serve(&mut call, handler) } else { handler(&mut call) };
    let verdict = served.unwrap_or_else(|Errno(errno)| done(-i64::from(errno)));
    if faults::take() && verdict.next == Next::Done {
        return done(-i64::from(libc::EFAULT));
    }
    if !had_failed && server::has_failed() && !server::is_lost() && verdict.next == Next::Done {
        server.fs.mark_unclean();
        sys::print(&[
            b"the image was truncated or its disk is full: every access now returns EIO; end this program, then run `directfs fsck`",
        ]);
        return done(-i64::from(libc::EIO));
    }
    verdict
}

/// Serves a program that has the library but no file system: programs that it starts must get the
/// library, too.
fn without_server(frame: &Frame, number: usize) -> Verdict {
    match number as i64 {
        libc::SYS_execve => exec::inject(frame, 2),
        libc::SYS_execveat => exec::inject(frame, 3),
        _ => NATIVE,
    }
}
