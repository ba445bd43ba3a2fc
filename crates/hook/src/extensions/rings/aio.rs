//! Linux's asynchronous I/O: io_submit. Contexts, completions and the rest are the kernel's.
//!
//! The library performs an entry on a file of the image at once, as the call that it stands for,
//! and then submits the program's control block as a write of as many bytes as the result to
//! /dev/null. So the kernel produces the completion: in its ring, which some programs read without
//! a call, with the program's data, and through the entry's eventfd. An error is io_submit's own.
//!
//! Invariants
//! - Nothing here has a state: what fork, exec and io_destroy do to a context is the kernel's.
//! - A control block has its content again when io_submit returns.
//! - Nothing is performed if the context is invalid, or while half its ring is full. The kernel's
//!   ring has more than twice the events that the program requested, so room for the completion.
//!
//! Decision: docs/decisions/run-rings.md, "The kernel completes asynchronous I/O".

use crate::abi::entry::{NATIVE, Verdict, done};
use crate::abi::{sys, user_memory};
use crate::call::Call;
use crate::calls::mapping::missing;
use crate::descriptors::marks::{self, kernel};
use crate::extensions::rings::entries::serve_entry;
use core::mem::offset_of;
use posix::{Errno, Result};

/// `struct iocb`.
#[derive(Clone, Copy)]
#[repr(C)]
struct ControlBlock {
    data: u64,
    key: u32,
    rw_flags: u32,
    operation: Operation,
    reserved: u64,
    flags: u32,
    event_fd: u32,
}

/// What an entry requests, without its flags.
#[derive(Clone, Copy)]
#[repr(C)]
struct Operation {
    code: u16,
    priority: i16,
    fd: u32,
    buffer: u64,
    bytes: u64,
    offset: i64,
}

const _: () = assert!(size_of::<ControlBlock>() == 64 && size_of::<Operation>() == 32);

/// Operations.
mod code {
    pub const PREAD: u16 = 0;
    pub const PWRITE: u16 = 1;
    pub const FSYNC: u16 = 2;
    pub const FDSYNC: u16 = 3;
    pub const PREADV: u16 = 7;
    pub const PWRITEV: u16 = 8;
}

/// io_submit(context, count, list).
pub fn submit(call: &mut Call<'_>) -> Result<Verdict> {
    let (context, count, list) = (call.frame.rdi, call.frame.rsi as i64, call.frame.rdx);
    if count <= 0 {
        return Ok(NATIVE);
    }
    // The kernel checks the context.
    match kernel(libc::SYS_io_submit, context, 0, list) {
        0 => {}
        error => return Ok(done(error)),
    }
    let mut sink = None;
    let mut next = 0;
    while next < count {
        let (served, wanted) = match run_of_kernel(call, list, next, count) {
            0 => (submit_own(call, context, block_address(list, next)?, &mut sink).map(|()| 1), 1),
            run => (submit_run(context, run, list.wrapping_add(8 * next as u64)), run),
        };
        match served {
            Ok(submitted) if submitted == wanted => next += submitted,
            Ok(submitted) => return Ok(done(next + submitted)),
            // The program's next call reports the error.
            Err(_) if next > 0 => break,
            Err(error) => return Err(error),
        }
    }
    Ok(done(next))
}

fn block_address(list: u64, index: i64) -> Result<u64> {
    user_memory::read(list.wrapping_add(8 * index as u64))
}

/// How many entries from `next` on are the kernel's.
fn run_of_kernel(call: &mut Call<'_>, list: u64, next: i64, count: i64) -> i64 {
    let is_own = |call: &mut Call<'_>, index: i64| -> Result<bool> {
        let block: ControlBlock = user_memory::read(block_address(list, index)?)?;
        let fd = block.operation.fd;
        let is_own = marks::is_served(fd) && has_call(block.operation.code) || marks::is_hidden(fd.into());
        if !is_own && missing::exist() {
            touch(call, &block);
        }
        Ok(is_own)
    };
    // The kernel reports what cannot be read.
    (next..count).take_while(|&index| !is_own(call, index).unwrap_or(false)).count() as i64
}

fn has_call(code: u16) -> bool {
    matches!(code, code::PREAD | code::PWRITE | code::FSYNC | code::FDSYNC | code::PREADV | code::PWRITEV)
}

/// Resolves the missing pages of a buffer that the kernel uses.
fn touch(call: &mut Call<'_>, block: &ControlBlock) {
    let Operation { code, buffer, bytes, .. } = block.operation;
    match code {
        code::PREAD | code::PWRITE => missing::touch(call, buffer, bytes),
        code::PREADV | code::PWRITEV => missing::touch_vector(call, buffer, bytes),
        _ => {}
    }
}

/// Submits entries of the kernel; returns how many it took.
fn submit_run(context: u64, count: i64, list: u64) -> Result<i64> {
    let result = kernel(libc::SYS_io_submit, context, count as u64, list);
    if result < 0 { Err(Errno(-result as i32)) } else { Ok(result) }
}

/// Performs an entry on a file of the image, and has the kernel complete it.
fn submit_own(call: &mut Call<'_>, context: u64, address: u64, sink: &mut Option<sys::Fd>) -> Result<()> {
    let block: ControlBlock = user_memory::read(address)?;
    if marks::is_hidden(block.operation.fd.into()) {
        return Err(Errno::EBADF);
    }
    // As the kernel does: a block that cannot be written is refused before its operation.
    user_memory::write(address + offset_of!(ControlBlock, key) as u64, &0u32)?;
    check_room(context)?;
    let sink = match sink {
        Some(sink) => sink.number(),
        None => sink.insert(open_sink()?).number(),
    };
    let Some(result) = perform(call, &block)? else {
        // It has become the kernel's meanwhile.
        return submit_block(context, address);
    };
    let bytes = u64::try_from(result).map_err(|_| Errno(-result as i32))?;
    let priority = block.operation.priority;
    let completion =
        Operation { code: code::PWRITE, priority, fd: sink as u32, buffer: user_memory::FIRST_PAGE, bytes, offset: 0 };
    put(address, 0, &completion)?;
    let submitted = submit_block(context, address);
    put(address, block.rw_flags, &block.operation)?;
    submitted
}

fn put(address: u64, rw_flags: u32, operation: &Operation) -> Result<()> {
    user_memory::write(address + offset_of!(ControlBlock, rw_flags) as u64, &rw_flags)?;
    user_memory::write(address + offset_of!(ControlBlock, operation) as u64, operation)
}

fn submit_block(context: u64, address: u64) -> Result<()> {
    let list = [address];
    match submit_run(context, 1, list.as_ptr() as u64)? {
        1 => Ok(()),
        _ => Err(Errno::EAGAIN),
    }
}

/// EAGAIN while half a context's ring is full.
fn check_room(context: u64) -> Result<()> {
    // `struct aio_ring`: number, length, head, tail.
    let [_, length, head, tail]: [u32; 4] = user_memory::read(context)?;
    let used = if tail >= head { tail - head } else { (length + tail).saturating_sub(head) };
    if used >= length.saturating_sub(1) / 2 { Err(Errno::EAGAIN) } else { Ok(()) }
}

/// The null device.
fn open_sink() -> Result<sys::Fd> {
    let sink = sys::open(b"/dev/null\0", libc::O_WRONLY).map_err(|error| match Errno(-error as i32) {
        Errno(libc::EMFILE | libc::ENFILE) => Errno::EAGAIN,
        other => other,
    })?;
    let is_null = sink
        .status()
        .is_ok_and(|status| status.st_mode & libc::S_IFMT == libc::S_IFCHR && status.st_rdev == libc::makedev(1, 3));
    if is_null { Ok(sink) } else { Err(Errno(libc::ENODEV)) }
}

/// Performs the call that an entry stands for. `None`: its file is not the image's.
fn perform(call: &mut Call<'_>, block: &ControlBlock) -> Result<Option<i64>> {
    let Operation { code, fd, buffer, bytes, offset, .. } = block.operation;
    if block.reserved != 0 || (bytes as i64) < 0 || offset < 0 {
        return Err(Errno::EINVAL);
    }
    let single = [buffer, bytes];
    let (vector, count) = match code {
        code::PREADV | code::PWRITEV => (buffer, bytes),
        _ => (single.as_ptr() as u64, 1),
    };
    let number = match code {
        code::PREAD | code::PREADV => libc::SYS_preadv2,
        code::PWRITE | code::PWRITEV => libc::SYS_pwritev2,
        _ if buffer != 0 || bytes != 0 || offset != 0 || block.rw_flags != 0 => return Err(Errno::EINVAL),
        code::FSYNC => libc::SYS_fsync,
        _ => libc::SYS_fdatasync,
    };
    let arguments = [fd.into(), vector, count, offset as u64, 0, block.rw_flags.into()];
    serve_entry(call, number, arguments).map_err(|error| match error {
        // A directory has no such operation.
        Errno::EISDIR => Errno::EINVAL,
        other => other,
    })
}
