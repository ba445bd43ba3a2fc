//! The criteria by which the filter decides whether a call may concern a file of the image. The
//! table in [`call_table`](crate::call_table) gives each call its route.

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
    /// mmap: a descriptor in the fifth argument, PROT_EXEC in the third, or MAP_FIXED in the fourth
    /// while any descriptor is the image's.
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
    /// `hook::descriptors::fd_numbers`).
    Close = 14,
    /// As `Fd`, and it may create a descriptor of the host, or reveal which exist.
    FdNumbers = 15,
    /// As `Path`, likewise.
    PathNumbers = 16,
    /// As `At`, likewise.
    AtNumbers = 17,
    /// Only the effect on numbers.
    Numbers = 18,
    /// As `Fd`, or a pointer to an address in the fifth argument.
    FdAddress = 19,
    /// As `AnyFd`, or an address in the message that the second argument points to.
    Message = 20,
}

/// Numbers from here on never concern the image.
pub const NUMBERS: usize = 512;

/// No call has these numbers. Linux keeps those from 387 on free, and gives the others to calls of
/// x86 only; such a call is left to the kernel.
pub const LEFT_OUT: core::ops::Range<usize> = 337..424;

/// The number of the library's own call, by which a thread requests a missing page: see
/// `hook::calls::mapping::missing`. The kernel has no such call.
pub const SYS_MISSING_PAGE: i64 = LEFT_OUT.end as i64 - 1;

/// The route of every number.
pub type Routes = [Route; NUMBERS];

/// The route of a number.
pub fn route_of(routes: &Routes, number: u64) -> Route {
    // The kernel reads the lower 32 bits only.
    routes.get(number as u32 as usize).copied().unwrap_or(Route::Native)
}
