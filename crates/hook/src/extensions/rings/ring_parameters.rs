//! What io_uring_setup takes and returns.

/// Flags of io_uring_setup.
pub mod setup_flag {
    /// A thread of the kernel submits.
    pub const SQPOLL: u32 = 1 << 1;
    /// The processor of the kernel's thread.
    pub const SQ_AFF: u32 = 1 << 2;
    /// One thread submits: with a thread of the kernel that one.
    pub const SINGLE_ISSUER: u32 = 1 << 12;
    /// What a ring without that thread does not have.
    pub const POLLED: u32 = SQPOLL | SQ_AFF | SINGLE_ISSUER;
    /// Forms of completion that a ring with a thread of the kernel cannot have.
    pub const NOT_POLLED: u32 = 1 << 8 | 1 << 9 | 1 << 13;
    /// Nothing is submitted until the ring is enabled.
    pub const DISABLED: u32 = 1 << 6;
    /// Entries have 128 bytes.
    pub const LARGE_ENTRIES: u32 = 1 << 10;
    /// The memory of the ring is the caller's.
    pub const NO_MMAP: u32 = 1 << 14;
    /// The ring has no descriptor, only a number in its thread.
    pub const REGISTERED_FD_ONLY: u32 = 1 << 15;
    /// Entries are submitted in their order.
    pub const NO_ARRAY: u32 = 1 << 16;
    /// The flags that this library knows. Some later ones change the layout of entries.
    pub const KNOWN: u32 = (1 << 19) - 1;
}

/// `struct io_uring_params`.
#[derive(Clone, Copy, Default)]
#[repr(C)]
pub struct Parameters {
    /// Entries for submission.
    pub entries: u32,
    /// Entries for completions.
    pub completions: u32,
    /// See [`setup_flag`].
    pub flags: u32,
    /// Processor and idle time of the kernel's thread.
    pub thread: [u32; 2],
    /// What the kernel's rings have.
    pub features: u32,
    /// A ring whose workers are used.
    pub work_queue: u32,
    /// Zero.
    pub reserved: [u32; 3],
    /// Where the words of the submission queue lie in the ring's memory.
    pub submission: SubmissionOffsets,
    /// `submission` for the completion queue.
    pub completion: CompletionOffsets,
}

/// `struct io_sqring_offsets`.
#[derive(Clone, Copy, Default)]
#[repr(C)]
pub struct SubmissionOffsets {
    /// The next entry that the kernel takes.
    pub head: u32,
    /// Behind the last entry.
    pub tail: u32,
    others: [u32; 2],
    /// What the kernel asks of the program.
    pub flags: u32,
    dropped: u32,
    /// Indexes of entries.
    pub array: u32,
    reserved: u32,
    /// With [`setup_flag::NO_MMAP`]: where the caller has memory for the entries.
    pub address: u64,
}

/// `struct io_cqring_offsets`.
#[derive(Clone, Copy, Default)]
#[repr(C)]
pub struct CompletionOffsets {
    /// The next completion that the program takes.
    pub head: u32,
    /// Behind the last completion.
    pub tail: u32,
    others: [u32; 3],
    /// The completions.
    pub entries: u32,
    flags: u32,
    reserved: u32,
    /// With [`setup_flag::NO_MMAP`]: where the caller has memory for the queues.
    pub address: u64,
}
const _: () = assert!(size_of::<Parameters>() == 120);
