//! What the journal needs of the file below it. Tests record and fail these calls.

/// The kernel's error number of a failed call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DiskError(pub i32);

impl DiskError {
    /// A read found other bytes than were written.
    pub(crate) const LOST: DiskError = DiskError(5);
}

/// A file on a disk.
pub trait Disk {
    /// Reads at an offset. Fewer bytes than requested: the file ends there.
    fn read(&self, offset: u64, into: &mut [u8]) -> Result<usize, DiskError>;
    /// Writes all of `bytes` at an offset. A power failure keeps any subset of the sectors of what
    /// was written since the last flush.
    fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), DiskError>;
    /// Returns when everything written before is on the medium. After a failure none of it may be:
    /// the caller writes it again.
    fn flush(&self) -> Result<(), DiskError>;
    /// Gives back the space behind an offset, which holds nothing of value. Best effort.
    fn shorten(&self, _length: u64) {}
}

impl<D: Disk> Disk for &D {
    fn read(&self, offset: u64, into: &mut [u8]) -> Result<usize, DiskError> {
        (**self).read(offset, into)
    }
    fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), DiskError> {
        (**self).write(offset, bytes)
    }
    fn flush(&self) -> Result<(), DiskError> {
        (**self).flush()
    }
    fn shorten(&self, length: u64) {
        (**self).shorten(length);
    }
}
