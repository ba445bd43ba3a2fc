//! System calls of the kernel, made from here: these never reach the filter.

use core::arch::asm;
use core::ffi::CStr;

/// Takes number and arguments; returns the kernel's result, a negative errno on failure.
///
/// # Safety
/// The call must leave the memory and the control flow of this program as Rust expects them.
pub unsafe fn call(number: i64, arguments: [u64; 6]) -> i64 {
    let [a, b, c, d, e, f] = arguments;
    let result;
    // SAFETY: the kernel overwrites rax, rcx and r11 only; the caller vouches for the effects of
    // the call itself.
    unsafe {
        asm!("syscall", inlateout("rax") number => result, in("rdi") a, in("rsi") b, in("rdx") c, in("r10") d, in("r8") e, in("r9") f,
            lateout("rcx") _, lateout("r11") _, options(nostack));
    }
    result
}

/// A descriptor that is closed on drop.
#[derive(Debug)]
pub struct Fd(i32);

impl Drop for Fd {
    fn drop(&mut self) {
        // SAFETY: the descriptor has no other owner and is closed once.
        unsafe { call(libc::SYS_close, [self.0 as u64, 0, 0, 0, 0, 0]) };
    }
}

/// Opens a file by a path that ends with a zero byte. All users can read a file that it makes.
pub fn open(path: &[u8], flags: i32) -> Result<Fd, i64> {
    if path.last() != Some(&0) {
        return Err(-i64::from(libc::EINVAL));
    }
    let flags = flags | libc::O_CLOEXEC | libc::O_NOCTTY;
    // SAFETY: the path is terminated (checked) and opening changes no memory.
    let result =
        unsafe { call(libc::SYS_openat, [libc::AT_FDCWD as u64, path.as_ptr() as u64, flags as u64, 0o644, 0, 0]) };
    if result < 0 { Err(result) } else { Ok(Fd(result as i32)) }
}

/// The status of the regular file at a path.
pub fn status_at(path: &CStr) -> Option<libc::stat> {
    let mut status = core::mem::MaybeUninit::<libc::stat>::zeroed();
    // SAFETY: a terminated path; the kernel fills the structure, for which all zero is valid.
    let (result, status) = unsafe {
        let arguments = [libc::AT_FDCWD as u64, path.as_ptr() as u64, status.as_mut_ptr() as u64, 0, 0, 0];
        (call(libc::SYS_newfstatat, arguments), status.assume_init())
    };
    (result == 0 && status.st_mode & libc::S_IFMT == libc::S_IFREG).then_some(status)
}

/// Creates an empty file in memory.
pub fn memory_file(name: &CStr) -> Result<Fd, i64> {
    // SAFETY: a terminated name, and no memory changes.
    let result =
        unsafe { call(libc::SYS_memfd_create, [name.as_ptr() as u64, u64::from(libc::MFD_CLOEXEC), 0, 0, 0, 0]) };
    if result < 0 { Err(result) } else { Ok(Fd(result as i32)) }
}

impl Fd {
    /// Takes a descriptor over.
    ///
    /// # Safety
    /// The descriptor has no other owner.
    pub unsafe fn from_raw(fd: i32) -> Fd {
        Fd(fd)
    }

    /// The descriptor, which the caller closes.
    pub fn into_raw(self) -> i32 {
        core::mem::ManuallyDrop::new(self).0
    }

    /// Reads from an offset; returns the number of bytes.
    pub fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<usize, i64> {
        let arguments = [self.0 as u64, into.as_mut_ptr() as u64, into.len() as u64, offset, 0, 0];
        // SAFETY: the kernel writes into the buffer, which is borrowed for writing.
        let result = unsafe { call(libc::SYS_pread64, arguments) };
        usize::try_from(result).map_err(|_| result)
    }

    /// Reads from the present position; returns the number of bytes.
    pub fn read(&self, into: &mut [u8]) -> Result<usize, i64> {
        // SAFETY: the kernel writes into the buffer, which is borrowed for writing.
        let result =
            unsafe { call(libc::SYS_read, [self.0 as u64, into.as_mut_ptr() as u64, into.len() as u64, 0, 0, 0]) };
        usize::try_from(result).map_err(|_| result)
    }

    /// Its position, or an error.
    pub fn position(&self) -> i64 {
        // SAFETY: changes no memory.
        unsafe { call(libc::SYS_lseek, [self.0 as u64, 0, libc::SEEK_CUR as u64, 0, 0, 0]) }
    }

    /// Sets the file's length.
    ///
    /// # Safety
    /// No mapping of the file is accessed behind this length any more.
    pub unsafe fn resize(&self, bytes: u64) -> Result<(), i64> {
        // SAFETY: by the caller's promise.
        let result = unsafe { call(libc::SYS_ftruncate, [self.0 as u64, bytes, 0, 0, 0, 0]) };
        if result < 0 { Err(result) } else { Ok(()) }
    }

    /// Its operations end with EAGAIN where they would wait.
    pub fn never_wait(&self) -> Result<(), i64> {
        let arguments = [self.0 as u64, libc::F_SETFL as u64, libc::O_NONBLOCK as u64, 0, 0, 0];
        // SAFETY: changes no memory.
        let result = unsafe { call(libc::SYS_fcntl, arguments) };
        if result < 0 { Err(result) } else { Ok(()) }
    }

    /// Its number.
    pub fn number(&self) -> i32 {
        self.0
    }

    /// Size, owner and mode.
    pub fn status(&self) -> Result<libc::stat, i64> {
        status(self.0)
    }

    /// Whether the file is the kernel's, in a file system of type proc.
    pub fn is_of_proc(&self) -> bool {
        is_of_proc(self.0)
    }

    /// Reads words at an offset; returns the number of bytes.
    pub fn read_words_at(&self, offset: u64, into: &mut [u64]) -> Result<usize, i64> {
        let arguments = [self.0 as u64, into.as_mut_ptr() as u64, size_of_val(into) as u64, offset, 0, 0];
        // SAFETY: the kernel writes into the buffer, which is borrowed for writing.
        let result = unsafe { call(libc::SYS_pread64, arguments) };
        usize::try_from(result).map_err(|_| result)
    }

    /// Writes bytes at an offset; returns whether all were written.
    pub fn write_at(&self, offset: u64, bytes: &[u8]) -> bool {
        let arguments = [self.0 as u64, bytes.as_ptr() as u64, bytes.len() as u64, offset, 0, 0];
        // SAFETY: the kernel reads the bytes. What a file of memory changes is the caller's choice.
        unsafe { call(libc::SYS_pwrite64, arguments) == bytes.len() as i64 }
    }

    /// Calls `visit` with each name in a directory, the own and the parent's among them, until it
    /// returns false.
    pub fn each_name(&self, visit: &mut dyn FnMut(&[u8]) -> bool) {
        let mut buffer = [0u64; 256];
        loop {
            let arguments = [self.0 as u64, buffer.as_mut_ptr() as u64, size_of_val(&buffer) as u64, 0, 0, 0];
            // SAFETY: the kernel writes into the buffer, which is borrowed for writing.
            let Ok(bytes @ 1..) = usize::try_from(unsafe { call(libc::SYS_getdents64, arguments) }) else { return };
            // SAFETY: words are bytes, and the kernel has written these.
            let mut records = unsafe { core::slice::from_raw_parts(buffer.as_ptr().cast::<u8>(), bytes) };
            while let Some((name, rest)) = first_record(records) {
                records = rest;
                if !visit(name) {
                    return;
                }
            }
        }
    }

    /// Writes all bytes.
    pub fn write_all(&self, mut bytes: &[u8]) -> Result<(), i64> {
        while !bytes.is_empty() {
            let arguments = [self.0 as u64, bytes.as_ptr() as u64, bytes.len() as u64, 0, 0, 0];
            // SAFETY: the kernel reads the bytes.
            let result = unsafe { call(libc::SYS_write, arguments) };
            if result <= 0 {
                return Err(result);
            }
            bytes = &bytes[result as usize..];
        }
        Ok(())
    }

    /// Lets all users read the file.
    pub fn allow_reading(&self) -> Result<(), i64> {
        // SAFETY: changes no memory.
        let result = unsafe { call(libc::SYS_fchmod, [self.0 as u64, 0o644, 0, 0, 0, 0]) };
        if result < 0 { Err(result) } else { Ok(()) }
    }

    /// Maps a part of the file, privately, in place of what lies there.
    ///
    /// # Safety
    /// Everything that uses the range works with the file's content, too.
    pub unsafe fn map_over(&self, start: usize, bytes: usize, protection: i32, offset: u64) -> Result<(), i64> {
        let flags = (libc::MAP_PRIVATE | libc::MAP_FIXED) as u64;
        // SAFETY: by the caller's promise.
        let result = unsafe {
            call(libc::SYS_mmap, [start as u64, bytes as u64, protection as u64, flags, self.0 as u64, offset])
        };
        if (-4095..0).contains(&result) { Err(result) } else { Ok(()) }
    }

    /// Maps the file's first bytes.
    pub fn map(&self, bytes: usize, protection: i32, flags: i32) -> Result<*mut u8, i64> {
        map(bytes, protection, flags, self.0)
    }
}

/// Creates a file for writing; `path` holds a zero byte.
pub fn create(path: &[u8]) -> Result<Fd, i64> {
    let flags = libc::O_WRONLY | libc::O_CREAT | libc::O_EXCL | libc::O_NOFOLLOW | libc::O_CLOEXEC;
    if !path.contains(&0) {
        return Err(-i64::from(libc::EINVAL));
    }
    // SAFETY: the path is terminated (checked), and no memory changes.
    let result =
        unsafe { call(libc::SYS_openat, [libc::AT_FDCWD as u64, path.as_ptr() as u64, flags as u64, 0o600, 0, 0]) };
    if result < 0 { Err(result) } else { Ok(Fd(result as i32)) }
}

/// The name in the first of the kernel's records of a directory, and the other records.
fn first_record(records: &[u8]) -> Option<(&[u8], &[u8])> {
    const LENGTH: usize = 16;
    const NAME: usize = 19;
    let length = usize::from(u16::from_ne_bytes(*records.get(LENGTH..)?.first_chunk()?));
    let (record, rest) = records.split_at_checked(length)?;
    let name = record.get(NAME..)?;
    Some((name.split(|&byte| byte == 0).next()?, rest))
}

/// Renames a file; both paths hold a zero byte.
pub fn rename(from: &[u8], to: &[u8]) -> Result<(), i64> {
    if !from.contains(&0) || !to.contains(&0) {
        return Err(-i64::from(libc::EINVAL));
    }
    // SAFETY: the paths are terminated (checked), and no memory changes.
    let result = unsafe { call(libc::SYS_rename, [from.as_ptr() as u64, to.as_ptr() as u64, 0, 0, 0, 0]) };
    if result < 0 { Err(result) } else { Ok(()) }
}

/// Removes a file; the path holds a zero byte.
pub fn remove(path: &[u8]) {
    if path.contains(&0) {
        // SAFETY: the path is terminated (checked), and no memory changes.
        unsafe { call(libc::SYS_unlink, [path.as_ptr() as u64, 0, 0, 0, 0, 0]) };
    }
}

/// Whether a file is the kernel's, in a file system of type proc.
pub fn is_of_proc(fd: i32) -> bool {
    const PROC: i64 = 0x9fa0;
    let mut status = [0i64; 32];
    // SAFETY: the kernel writes a structure of 120 bytes, for which there is room.
    let found = unsafe { call(libc::SYS_fstatfs, [fd as u64, status.as_mut_ptr() as u64, 0, 0, 0, 0]) };
    found == 0 && status[0] == PROC
}

/// The result of fstat for a descriptor of the host.
pub fn status(fd: i32) -> Result<libc::stat, i64> {
    let mut status = core::mem::MaybeUninit::<libc::stat>::zeroed();
    // SAFETY: the kernel fills a structure of this layout, for which there is room.
    let result = unsafe { call(libc::SYS_fstat, [fd as u64, status.as_mut_ptr() as u64, 0, 0, 0, 0]) };
    if result < 0 {
        return Err(result);
    }
    // SAFETY: the call succeeded, and zeroes would be a valid value too.
    Ok(unsafe { status.assume_init() })
}

/// Maps new memory.
pub fn map(bytes: usize, protection: i32, flags: i32, fd: i32) -> Result<*mut u8, i64> {
    map_near(0, bytes, protection, flags, fd)
}

/// Maps new memory, at this address if it is free.
pub fn map_near(address: usize, bytes: usize, protection: i32, flags: i32, fd: i32) -> Result<*mut u8, i64> {
    // SAFETY: without MAP_FIXED the kernel chooses a free address, so no existing mapping changes.
    let result = unsafe {
        call(
            libc::SYS_mmap,
            [address as u64, bytes as u64, protection as u64, (flags & !libc::MAP_FIXED) as u64, fd as u64, 0],
        )
    };
    if (-4095..0).contains(&result) { Err(result) } else { Ok(result as *mut u8) }
}

/// Maps a file from an offset on, in place of what is mapped at this address.
///
/// # Safety
/// Nothing uses what is mapped there.
pub unsafe fn map_over(address: *mut u8, bytes: usize, protection: i32, (fd, from): (i32, u64)) -> Result<(), i64> {
    let flags = libc::MAP_SHARED | libc::MAP_FIXED;
    // SAFETY: by the caller's promise.
    let result = unsafe {
        call(libc::SYS_mmap, [address as u64, bytes as u64, protection as u64, flags as u64, fd as u64, from])
    };
    if (-4095..0).contains(&result) { Err(result) } else { Ok(()) }
}

/// A limit of this process, and what it can be raised to.
pub fn limit(kind: u32) -> Option<[u64; 2]> {
    let mut found = [0u64; 2];
    // SAFETY: the kernel writes a local structure.
    let result = unsafe { call(libc::SYS_prlimit64, [0, kind.into(), 0, found.as_mut_ptr() as u64, 0, 0]) };
    (result == 0).then_some(found)
}

/// Where a large file is to be mapped.
#[derive(Debug, Clone, Copy)]
pub enum Place {
    /// Near this address.
    Near(usize),
    /// At a multiple of a huge page's size, so that huge pages can serve it; below this address, if
    /// there is room. What is used most, its start, has a directory of page tables of its own.
    Below(usize),
}

/// An address below which nothing is when a program starts: the kernel places mappings downwards
/// from where the first libraries are.
pub fn below_libraries() -> usize {
    /// More than the libraries of a program take.
    const LIBRARIES_BYTES: usize = 1 << 30;
    static OWN: u8 = 0;
    (&raw const OWN as usize).saturating_sub(LIBRARIES_BYTES)
}

/// Maps a large file with a page before and behind it that nothing may access: a store of the
/// program that runs over the end of its own memory does not reach the file. Where addresses are
/// short, there are no such pages.
pub fn map_guarded(place: Place, bytes: usize, protection: i32, fd: i32) -> Result<*mut u8, i64> {
    let Some(start) = reserve(place, bytes) else { return map_huge(place, bytes, protection, fd) };
    let at = start.wrapping_add(GUARD_BYTES);
    // SAFETY: a part of the new reservation.
    unsafe { map_over(at, bytes, protection, (fd, 0)) }.map(|()| at).inspect_err(|_| {
        // A mapping that fails may leave a gap, which another thread can have filled since.
        // SAFETY: reserved above, without other users.
        unsafe {
            unmap(start, GUARD_BYTES);
            unmap(at.wrapping_add(bytes), GUARD_BYTES);
        }
    })
}

/// Reserves addresses for a mapping of `bytes` bytes that begins at a multiple of a huge page's
/// size, and a page before and behind it.
fn reserve(place: Place, bytes: usize) -> Option<*mut u8> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    let wide = GUARD_BYTES + bytes + GUARD_BYTES;
    let start = map_near(place.wish(bytes).saturating_sub(GUARD_BYTES), wide, libc::PROT_NONE, flags, -1).ok()?;
    if (start as usize + GUARD_BYTES).is_multiple_of(HUGE_PAGE_BYTES) {
        return Some(start);
    }
    // SAFETY: just mapped, without other users; so are the parts that go below.
    unsafe { unmap(start, wide) };
    let free = map(wide + HUGE_PAGE_BYTES, libc::PROT_NONE, flags, -1).ok()?;
    let before = (free as usize + GUARD_BYTES).next_multiple_of(HUGE_PAGE_BYTES) - GUARD_BYTES - free as usize;
    let start = free.wrapping_add(before);
    // SAFETY: see above.
    unsafe {
        if before > 0 {
            unmap(free, before);
        }
        unmap(start.wrapping_add(wide), HUGE_PAGE_BYTES - before);
    }
    Some(start)
}

/// Maps a large file or a device, of which only the kernel knows the alignment.
pub fn map_huge(place: Place, bytes: usize, protection: i32, fd: i32) -> Result<*mut u8, i64> {
    match map_near(place.wish(bytes), bytes, protection, libc::MAP_SHARED, fd) {
        // A DAX device with larger pages refuses the address. By itself the kernel finds one.
        Err(error) if error == -i64::from(libc::EINVAL) => map_near(0, bytes, protection, libc::MAP_SHARED, fd),
        mapped => mapped,
    }
}

impl Place {
    /// Where a mapping of `bytes` bytes is to begin: at a multiple of a huge page's size.
    fn wish(self, bytes: usize) -> usize {
        let address = match self {
            Place::Near(hint) => hint,
            // In no directory with what is above, and so not adjacent: what passes the end of one
            // file does not reach another.
            Place::Below(above) => {
                let end = (above & !(DIRECTORY_BYTES - 1)).saturating_sub(bytes);
                ((end + START_BYTES) & !(DIRECTORY_BYTES - 1)).saturating_sub(START_BYTES)
            }
        };
        address & !(HUGE_PAGE_BYTES - 1)
    }
}

const HUGE_PAGE_BYTES: usize = 2 << 20;
/// What one directory of page tables reaches. When a process ends, the kernel looks at each entry
/// (10 ns) of a directory in use that a mapping covers.
const DIRECTORY_BYTES: usize = 1 << 30;
/// How much of a mapping lies in its first directory: few entries, and what most processes use.
const START_BYTES: usize = 64 << 20;
/// An inaccessible page beside a mapping.
const GUARD_BYTES: usize = 4096;

/// A core dump of the program holds the program, and not what is mapped there.
pub fn leave_out_of_core_dumps(start: *mut u8, bytes: usize) {
    // SAFETY: changes no memory.
    unsafe { call(libc::SYS_madvise, [start as u64, bytes as u64, libc::MADV_DONTDUMP as u64, 0, 0, 0]) };
}

/// Whether mappings of so many bytes are possible.
pub fn has_addresses(bytes: u64) -> bool {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    let reserved = map(bytes as usize, libc::PROT_NONE, flags, -1);
    // SAFETY: just mapped, without other users.
    reserved.map(|start| unsafe { unmap(start, bytes as usize) }).is_ok()
}

/// Removes a mapping.
///
/// # Safety
/// Nothing may use the range any more.
pub unsafe fn unmap(start: *mut u8, bytes: usize) {
    // SAFETY: by the caller's promise.
    unsafe { call(libc::SYS_munmap, [start as u64, bytes as u64, 0, 0, 0, 0]) };
}

/// Changes the permissions of pages.
///
/// # Safety
/// No later access to the range may need a permission that is removed.
pub unsafe fn protect(start: usize, bytes: usize, protection: i32) -> Result<(), i64> {
    // SAFETY: by the caller's promise.
    let result = unsafe { call(libc::SYS_mprotect, [start as u64, bytes as u64, protection as u64, 0, 0, 0]) };
    if result < 0 { Err(result) } else { Ok(()) }
}

/// The effective user.
pub fn effective_user() -> u32 {
    // SAFETY: only queries.
    unsafe { call(libc::SYS_geteuid, [0; 6]) as u32 }
}

/// This thread.
pub fn thread_id() -> i32 {
    // SAFETY: only queries.
    unsafe { call(libc::SYS_gettid, [0; 6]) as i32 }
}

/// Prints a line on standard error.
pub fn print(parts: &[&[u8]]) {
    let mut line = [0u8; 512];
    let mut length = 0;
    for part in [&b"directfs: "[..]].iter().chain(parts).chain(&[&b"\n"[..]]) {
        // The newline always fits.
        let fits = part.len().min(line.len() - 1 - length).max(usize::from(*part == b"\n"));
        line[length..length + fits].copy_from_slice(&part[..fits]);
        length += fits;
    }
    // SAFETY: the line is readable.
    unsafe { call(libc::SYS_write, [2, line.as_ptr() as u64, length as u64, 0, 0, 0]) };
}

/// Prints why this program cannot run with the file system, and ends it, because it must not work
/// on the wrong directory.
pub fn refuse(parts: &[&[u8]]) -> ! {
    /// A shell's exit status for a command that cannot run.
    const EXIT_CANNOT_RUN: u64 = 126;
    print(parts);
    loop {
        // SAFETY: ending the process needs nothing.
        unsafe { call(libc::SYS_exit_group, [EXIT_CANNOT_RUN, 0, 0, 0, 0, 0]) };
    }
}

/// Reads the target of a symbolic link whose path ends with a zero byte; returns the number of
/// bytes that fit.
pub fn read_link(path: &[u8], into: &mut [u8]) -> Result<usize, i64> {
    if !path.contains(&0) {
        return Err(-i64::from(libc::EINVAL));
    }
    // SAFETY: the path is terminated (checked), and the kernel writes into the buffer, which is
    // borrowed for writing.
    let result = unsafe {
        let arguments =
            [libc::AT_FDCWD as u64, path.as_ptr() as u64, into.as_mut_ptr() as u64, into.len() as u64, 0, 0];
        call(libc::SYS_readlinkat, arguments)
    };
    usize::try_from(result).map_err(|_| result)
}

/// Reads the kernel's working directory; returns the length without the zero byte.
pub fn working_directory(into: &mut [u8]) -> Result<usize, i64> {
    // SAFETY: the kernel writes into the buffer, which is borrowed for writing.
    let result = unsafe { call(libc::SYS_getcwd, [into.as_mut_ptr() as u64, into.len() as u64, 0, 0, 0, 0]) };
    if result <= 0 { Err(result) } else { Ok(result as usize - 1) }
}

/// This process.
pub fn process_id() -> i32 {
    // SAFETY: only queries.
    unsafe { call(libc::SYS_getpid, [0; 6]) as i32 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;
    use std::os::unix::ffi::OsStrExt;

    #[test]
    fn each_name_of_a_directory_is_visited_once_until_the_visitor_has_enough() {
        let directory = tempfile::tempdir().unwrap();
        let mut wanted: BTreeSet<_> = (0..300).map(|number| format!("a longer name, {number}").into_bytes()).collect();
        for name in &wanted {
            std::fs::write(directory.path().join(std::str::from_utf8(name).unwrap()), "").unwrap();
        }
        wanted.extend([b".".to_vec(), b"..".to_vec()]);
        let path = [directory.path().as_os_str().as_bytes(), b"\0"].concat();
        let names = |most: usize| {
            let mut found = Vec::new();
            open(&path, libc::O_RDONLY | libc::O_DIRECTORY).unwrap().each_name(&mut |name| {
                found.push(name.to_vec());
                found.len() < most
            });
            found
        };
        let all = names(usize::MAX);
        assert_eq!((all.len(), all.into_iter().collect()), (302, wanted));
        assert_eq!(names(7).len(), 7);
    }
}
