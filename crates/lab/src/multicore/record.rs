//! Records work instruction by instruction. The processor's trap flag stops it after each
//! instruction, and the signal handler records the address and the registers.
//!
//! Invariants:
//!
//! - One recording at a time in a process ([`BUSY`]). Only the recording thread has the trap flag
//!   set.
//! - The handler writes below `end` of the buffer, which lives until the flag is cleared. It does
//!   not allocate, lock or call anything, because it may interrupt any code.
//!
//! A repeated string instruction (used by the C library to copy and fill long blocks) would trap at
//! every repetition. The handler executes it as a whole instead.
//!
//! Decision: docs/decisions/lab.md, "Calls are recorded by single-stepping".

use std::io;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};

/// General-purpose registers, numbered as in instructions: rax, rcx, rdx, rbx, rsp, rbp, rsi, rdi,
/// r8 to r15.
pub const REGISTERS: usize = 16;
const STACK_POINTER: usize = 4;

/// The state before an instruction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct Step {
    /// Address of the instruction.
    pub at: u64,
    /// Content of the registers.
    pub registers: [u64; REGISTERS],
    /// The flags register.
    pub flags: u64,
}

impl Step {
    /// The stack pointer.
    pub fn stack(&self) -> u64 {
        self.registers[STACK_POINTER]
    }
}

static BUSY: Mutex<()> = Mutex::new(());
static NEXT: AtomicPtr<Step> = AtomicPtr::new(std::ptr::null_mut());
static END: AtomicPtr<Step> = AtomicPtr::new(std::ptr::null_mut());
static LOST: AtomicUsize = AtomicUsize::new(0);

/// Index of each register in the kernel's context, in the order of [`REGISTERS`].
const PLACES: [i32; REGISTERS] = [
    libc::REG_RAX,
    libc::REG_RCX,
    libc::REG_RDX,
    libc::REG_RBX,
    libc::REG_RSP,
    libc::REG_RBP,
    libc::REG_RSI,
    libc::REG_RDI,
    libc::REG_R8,
    libc::REG_R9,
    libc::REG_R10,
    libc::REG_R11,
    libc::REG_R12,
    libc::REG_R13,
    libc::REG_R14,
    libc::REG_R15,
];

extern "C" fn note(_: libc::c_int, _: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel passes a valid context to a handler installed with SA_SIGINFO, and
    // restores the registers from it.
    let registers = unsafe { &mut (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs };
    keep(registers);
    // An instruction executed here does not trap, so the state behind it is recorded here, too.
    while carry_out_string(registers) {
        keep(registers);
    }
}

/// Records a step, if the buffer has room.
fn keep(registers: &[i64; 23]) {
    let step = Step {
        at: registers[libc::REG_RIP as usize] as u64,
        registers: PLACES.map(|place| registers[place as usize] as u64),
        flags: registers[libc::REG_EFL as usize] as u64,
    };
    let next = NEXT.load(Relaxed);
    if next >= END.load(Relaxed) {
        LOST.fetch_add(1, Relaxed);
        return;
    }
    // SAFETY: below the end of the buffer, which exists while the trap flag is set; only the
    // recording thread traps.
    unsafe { next.write(step) };
    // SAFETY: at most the end of the buffer.
    NEXT.store(unsafe { next.add(1) }, Relaxed);
}

/// Executes the next instruction as a whole if it is a repeated upward copy or fill of blocks that
/// do not overlap. Returns whether it did.
fn carry_out_string(registers: &mut [i64; 23]) -> bool {
    const REPEAT: u8 = 0xf3;
    const WIDE: u8 = 0x48;
    const DOWNWARDS: i64 = 1 << 10;
    let at = registers[libc::REG_RIP as usize] as *const u8;
    // SAFETY: the processor is about to execute these bytes; each is read only if the preceding
    // ones show that it belongs to the instruction.
    let (is_wide, code, length) = unsafe {
        if *at != REPEAT {
            return false;
        }
        match *at.add(1) {
            WIDE => (true, *at.add(2), 3),
            code => (false, code, 2),
        }
    };
    let word = if is_wide { 8 } else { 4 };
    let (copies, width) = match code {
        0xa4 => (true, 1),
        0xa5 => (true, word),
        0xaa => (false, 1),
        0xab => (false, word),
        _ => return false,
    };
    let [from, to, count] =
        [libc::REG_RSI, libc::REG_RDI, libc::REG_RCX].map(|place| registers[place as usize] as usize);
    let Some(bytes) = count.checked_mul(width) else { return false };
    if registers[libc::REG_EFL as usize] & DOWNWARDS != 0 || copies && from.abs_diff(to) < bytes {
        return false;
    }
    let fill = (registers[libc::REG_RAX as usize] as u64).to_le_bytes();
    // SAFETY: reads and writes what the instruction would; the recorded program is responsible for
    // that. An unmapped address faults here as it would there.
    unsafe {
        if copies {
            std::ptr::copy_nonoverlapping(from as *const u8, to as *mut u8, bytes);
        } else {
            (0..bytes).for_each(|index| (to as *mut u8).add(index).write_volatile(fill[index % width]));
        }
    }
    registers[libc::REG_RDI as usize] += bytes as i64;
    registers[libc::REG_RSI as usize] += if copies { bytes as i64 } else { 0 };
    registers[libc::REG_RCX as usize] = 0;
    registers[libc::REG_RIP as usize] += length;
    true
}

/// The installed handler. Dropping it restores the previous one.
struct Installed(libc::sigaction);

impl Installed {
    fn new() -> io::Result<Installed> {
        // SAFETY: zeros are a valid sigaction: no flags, an empty mask.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        action.sa_sigaction = note as extern "C" fn(_, _, _) as usize;
        action.sa_flags = libc::SA_SIGINFO;
        let mut before = MaybeUninit::uninit();
        // SAFETY: both point to a sigaction; the handler has the signature that SA_SIGINFO
        // requires.
        if unsafe { libc::sigaction(libc::SIGTRAP, &action, before.as_mut_ptr()) } != 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the successful call filled it.
        Ok(Installed(unsafe { before.assume_init() }))
    }
}

impl Drop for Installed {
    fn drop(&mut self) {
        // SAFETY: the action came from the kernel.
        unsafe { libc::sigaction(libc::SIGTRAP, &self.0, std::ptr::null_mut()) };
    }
}

/// Sets the trap flag of this thread while it exists.
struct Stepping;

impl Stepping {
    #[inline(always)]
    fn begin() -> Stepping {
        // SAFETY: sets the flag that makes the processor trap after each instruction; the handler
        // is installed. The stack is unchanged.
        unsafe { std::arch::asm!("pushfq", "or qword ptr [rsp], 0x100", "popfq") };
        Stepping
    }
}

impl Drop for Stepping {
    #[inline(always)]
    fn drop(&mut self) {
        // SAFETY: clears the trap flag.
        unsafe { std::arch::asm!("pushfq", "and qword ptr [rsp], ~0x100", "popfq") };
    }
}

/// Runs `work` outside of the recording of the calling thread, if there is one.
pub fn beside<T>(work: impl FnOnce() -> T) -> T {
    const TRAP: u64 = 1 << 8;
    let flags: u64;
    // SAFETY: reads the flags; the stack is unchanged afterwards.
    unsafe { std::arch::asm!("pushfq", "pop {}", out(reg) flags) };
    if flags & TRAP == 0 {
        return work();
    }
    // The recording's own value, which clears the flag.
    drop(Stepping);
    let result = std::hint::black_box(work)();
    std::mem::forget(Stepping::begin());
    result
}

/// Runs `work`. Returns its steps and its result; no steps if there are more than `steps_max`. An
/// instruction takes about ten microseconds, so `work` must not wait for a time or for another
/// thread.
pub fn record<T>(steps_max: usize, work: impl FnOnce() -> T) -> io::Result<(Option<Vec<Step>>, T)> {
    let mut steps: Vec<Step> = Vec::with_capacity(steps_max);
    let (is_whole, result) = record_into(&mut steps, work)?;
    Ok((is_whole.then_some(steps), result))
}

/// Records into the room of `steps`, whose content is replaced. Returns whether all steps found
/// room; if not, none is kept.
pub fn record_into<T>(steps: &mut Vec<Step>, work: impl FnOnce() -> T) -> io::Result<(bool, T)> {
    let _alone = BUSY.lock().unwrap_or_else(PoisonError::into_inner);
    steps.clear();
    let room = steps.spare_capacity_mut();
    let range = room.as_mut_ptr_range();
    NEXT.store(range.start.cast(), Relaxed);
    END.store(range.end.cast(), Relaxed);
    LOST.store(0, Relaxed);
    let installed = Installed::new()?;
    // Otherwise the compiler may move accesses to what it knows in full out of the recording.
    let work = std::hint::black_box(work);
    let stepping = Stepping::begin();
    let result = work();
    drop(stepping);
    drop(installed);
    let noted = (NEXT.load(Relaxed) as usize - range.start as usize) / size_of::<Step>();
    if LOST.load(Relaxed) > 0 {
        return Ok((false, result));
    }
    // SAFETY: the handler wrote this many steps from the start.
    unsafe { steps.set_len(noted) };
    Ok((true, result))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU64;

    /// The steps of short work.
    fn steps_of(steps_max: usize, work: impl FnOnce()) -> Vec<Step> {
        record(steps_max, work).expect("records").0.expect("the buffer holds all steps")
    }

    fn add(count: &AtomicU64, times: u64) {
        for _ in 0..times {
            count.fetch_add(1, Relaxed);
        }
    }

    #[test]
    fn a_recording_holds_each_instruction_of_the_work_and_nothing_of_what_follows() {
        let count = AtomicU64::new(0);
        let few = steps_of(10_000, || add(&count, 10));
        let many = steps_of(10_000, || add(&count, 100));
        assert_eq!(count.load(Relaxed), 110);
        assert!(few.len() > 10 && many.len() > few.len() + 90, "{} and {}", few.len(), many.len());
        let again = steps_of(10_000, || add(&count, 10));
        assert!(again.len().abs_diff(few.len()) < 20, "{} and {}", few.len(), again.len());
    }

    #[test]
    fn work_beside_a_recording_is_done_and_not_recorded() {
        let count = AtomicU64::new(0);
        let some = |between: u64| {
            let steps = steps_of(10_000, || {
                add(&count, 10);
                beside(|| add(&count, between));
                add(&count, 10);
            });
            steps.len()
        };
        let (without, with) = (some(0), some(1000));
        assert_eq!(count.load(Relaxed), 1040);
        assert!(without > 20 && with.abs_diff(without) < 20, "{without} and {with}");
        beside(|| add(&count, 1));
        assert_eq!(count.load(Relaxed), 1041, "without a recording");
    }

    #[test]
    fn long_blocks_are_copied_and_filled_in_a_few_steps_and_come_out_right() {
        let from: Vec<u8> = (0..40_000u32).map(|index| (index % 251) as u8).collect();
        let mut to = vec![0; from.len()];
        let steps = steps_of(60_000, || to.copy_from_slice(&from));
        assert_eq!(to, from);
        assert!(steps.len() < 10_000, "{}", steps.len());
        let steps = steps_of(60_000, || to.fill(7));
        assert!(to.iter().all(|byte| *byte == 7));
        assert!(steps.len() < 10_000, "{}", steps.len());
        // One of the C library's variants.
        let mut count = to.len();
        let steps = steps_of(1000, || {
            // SAFETY: both blocks have `count` bytes; the direction flag is clear by convention.
            unsafe {
                std::arch::asm!("rep movsb", inout("rcx") count, inout("rsi") from.as_ptr() => _, inout("rdi") to.as_mut_ptr() => _)
            }
        });
        assert_eq!((to, count), (from, 0));
        assert!(steps.len() < 100, "{}", steps.len());
    }

    #[test]
    fn of_work_that_is_too_long_there_is_no_recording_and_it_is_done() {
        let count = AtomicU64::new(0);
        let (steps, ()) = record(50, || add(&count, 1000)).expect("records");
        assert!(steps.is_none());
        assert_eq!(count.load(Relaxed), 1000);
    }
}
