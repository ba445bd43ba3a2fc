//! A call that creates a child: clone or clone3.

use crate::abi::user_memory;
use posix::Result;

/// `struct clone_args` in its first version, a prefix of all others.
const CLONE_ARGS_BYTES_MIN: u64 = 64;
/// Maximum size of any version.
const CLONE_ARGS_WORDS_MAX: usize = 32;

/// A call of clone or clone3, for the child that it creates.
#[derive(Clone, Copy)]
pub struct CloneCall {
    /// Its flags.
    pub flags: u64,
    /// The child's stack pointer; zero: the parent's.
    pub stack: u64,
    arguments: [u64; 6],
    /// The structure of clone3, and its size; zero: the call is clone.
    words: [u64; CLONE_ARGS_WORDS_MAX],
    bytes: u64,
}

impl CloneCall {
    /// clone with these arguments.
    pub fn of_clone(arguments: [u64; 6]) -> CloneCall {
        let (flags, stack) = (arguments[0] & u64::from(u32::MAX), arguments[1]);
        CloneCall { flags, stack, arguments, words: [0; CLONE_ARGS_WORDS_MAX], bytes: 0 }
    }

    /// clone3 with a structure of the program. `None`: the kernel refuses it.
    pub fn of_clone3(address: u64, bytes: u64) -> Result<Option<CloneCall>> {
        if !(CLONE_ARGS_BYTES_MIN..=8 * CLONE_ARGS_WORDS_MAX as u64).contains(&bytes) || !bytes.is_multiple_of(8) {
            return Ok(None);
        }
        let mut words = [0u64; CLONE_ARGS_WORDS_MAX];
        for (index, word) in words.iter_mut().take(bytes as usize / 8).enumerate() {
            *word = user_memory::read(address + 8 * index as u64)?;
        }
        let [flags, _, _, _, _, stack, stack_bytes, ..] = words;
        if (stack == 0) != (stack_bytes == 0) {
            return Ok(None);
        }
        let stack = stack.wrapping_add(stack_bytes);
        Ok(Some(CloneCall { flags, stack, arguments: [0; 6], words, bytes }))
    }

    /// Number and arguments of the same call with another stack pointer (zero: the parent's). The
    /// arguments may refer to this value.
    pub fn with_stack(&mut self, stack: u64) -> (i64, [u64; 6]) {
        /// Size that a structure names: the kernel adds it to the stack's start.
        const STACK_BYTES: u64 = 4096;
        if self.bytes == 0 {
            let [_, _, parent_tid, child_tid, tls, more] = self.arguments;
            return (libc::SYS_clone, [self.flags, stack, parent_tid, child_tid, tls, more]);
        }
        self.words[0] = self.flags;
        (self.words[5], self.words[6]) = if stack == 0 { (0, 0) } else { (stack - STACK_BYTES, STACK_BYTES) };
        (libc::SYS_clone3, [self.words.as_ptr() as u64, self.bytes, 0, 0, 0, 0])
    }
}
