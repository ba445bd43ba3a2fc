//! Records work instruction by instruction: the address of each, and the registers before it.
//!
//! The work runs as a copy of itself that writes this down ([`translate`]), at about a tenth of a
//! microsecond for each instruction.
//!
//! Invariants:
//!
//! - One recording at a time in a process ([`TRANSLATOR`]).
//! - A panic ends the process: there is no unwinding from a copy.
//!
//! A repeated string instruction (used by the C library to copy and fill long blocks) is one step.
//!
//! Decision: docs/decisions/lab.md, "Calls are recorded as a copy of their code".

mod emit;
mod translate;

use std::ffi::c_void;
use std::io;
use std::sync::{Mutex, PoisonError};
use translate::Translator;

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
    /// The flags register, without overflow and what is no result of an instruction.
    pub flags: u64,
}

impl Step {
    /// The stack pointer.
    pub fn stack(&self) -> u64 {
        self.registers[STACK_POINTER]
    }
}

static TRANSLATOR: Mutex<Option<Translator>> = Mutex::new(None);

/// Runs `work` outside of the recording of the calling thread, if there is one.
pub fn beside<T>(work: impl FnOnce() -> T) -> T {
    let (mut work, mut result) = (Some(work), None);
    unrecorded(&mut || result = work.take().map(|work| work()));
    let Some(result) = result else { unreachable!("the work was done") };
    result
}

/// A copy calls this as it is.
#[inline(never)]
fn unrecorded(work: &mut dyn FnMut()) {
    work();
    // Otherwise the linker may join it with other functions that only call their argument.
    std::hint::black_box(&TRANSLATOR);
}

/// Runs `work`. Returns its steps and its result; no steps if there are more than `steps_max`.
pub fn record<T>(steps_max: usize, work: impl FnOnce() -> T) -> io::Result<(Option<Vec<Step>>, T)> {
    let mut steps: Vec<Step> = Vec::with_capacity(steps_max);
    let (is_whole, result) = record_into(&mut steps, work)?;
    Ok((is_whole.then_some(steps), result))
}

/// Records into the room of `steps`, whose content is replaced. Returns whether all steps found
/// room; if not, none is kept.
pub fn record_into<T, F: FnOnce() -> T>(steps: &mut Vec<Step>, work: F) -> io::Result<(bool, T)> {
    let mut translator = TRANSLATOR.lock().unwrap_or_else(PoisonError::into_inner);
    let translator = match &mut *translator {
        Some(known) => known,
        none => none.insert(Translator::new(unrecorded as *const () as u64)?),
    };
    steps.clear();
    let room = steps.spare_capacity_mut().as_mut_ptr_range();
    let room = room.start.cast::<Step>()..room.end.cast::<Step>();
    let mut call = Call { work: Some(work), result: None };
    // SAFETY: the function and its argument belong together.
    let end = unsafe { translator.run(room.clone(), Call::<T, F>::make, (&raw mut call).cast()) };
    let Some(result) = call.result else { return Err(io::Error::other("recorded work did not end")) };
    if let Some(end) = end {
        // SAFETY: steps were written from the start of the room up to `end`.
        unsafe { steps.set_len(end.offset_from_unsigned(room.start)) };
    }
    Ok((end.is_some(), result))
}

/// Work to record.
struct Call<T, F> {
    work: Option<F>,
    result: Option<T>,
}

impl<T, F: FnOnce() -> T> Call<T, F> {
    /// # Safety
    ///
    /// `call` is one of these.
    unsafe extern "C" fn make(call: *mut c_void) {
        // SAFETY: the caller's contract.
        let call = unsafe { &mut *call.cast::<Self>() };
        call.result = call.work.take().map(|work| work());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU64;
    use std::sync::atomic::Ordering::Relaxed;

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

    /// A step: its address, and the zero flag.
    type Seen = (u64, bool);

    /// What the processor itself executes, one instruction at a time, stopped by its trap flag:
    /// the address of each, and whether the zero flag is set before it.
    mod stepped {
        use std::sync::atomic::AtomicUsize;
        use std::sync::atomic::Ordering::Relaxed;

        const MAX: usize = 200_000;
        static SEEN: [[AtomicUsize; 2]; MAX] = [const { [const { AtomicUsize::new(0) }; 2] }; MAX];
        static COUNT: AtomicUsize = AtomicUsize::new(0);

        extern "C" fn note(_: libc::c_int, _: *mut libc::siginfo_t, context: *mut libc::c_void) {
            // SAFETY: the kernel passes a valid context to a handler installed with SA_SIGINFO.
            let registers = unsafe { &(*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs };
            if let Some([at, zero]) = SEEN.get(COUNT.fetch_add(1, Relaxed)) {
                at.store(registers[libc::REG_RIP as usize] as usize, Relaxed);
                zero.store(registers[libc::REG_EFL as usize] as usize >> 6 & 1, Relaxed);
            }
        }

        pub fn steps_of(work: impl FnOnce()) -> Vec<(u64, bool)> {
            // SAFETY: zeros are a valid action; the handler has the signature that SA_SIGINFO
            // requires, and only stores numbers.
            unsafe {
                let mut action: libc::sigaction = std::mem::zeroed();
                action.sa_sigaction = note as extern "C" fn(_, _, _) as usize;
                action.sa_flags = libc::SA_SIGINFO;
                assert_eq!(libc::sigaction(libc::SIGTRAP, &action, std::ptr::null_mut()), 0);
            }
            let work = std::hint::black_box(work);
            // SAFETY: sets the trap flag, whose handler is installed; the stack is unchanged.
            unsafe { std::arch::asm!("pushfq", "or qword ptr [rsp], 0x100", "popfq") };
            work();
            // SAFETY: clears the trap flag.
            unsafe { std::arch::asm!("pushfq", "and qword ptr [rsp], ~0x100", "popfq") };
            let count = COUNT.load(Relaxed);
            assert!(count < MAX, "{count}");
            let of = |[at, zero]: &[AtomicUsize; 2]| (at.load(Relaxed) as u64, zero.load(Relaxed) == 1);
            SEEN[..count].iter().map(of).collect()
        }
    }

    /// Work with loops, calls through pointers, locked and vector instructions, and the C library.
    /// It allocates nothing, so that it takes the same way each time. It makes no system call,
    /// behind which the processor does not stop.
    #[inline(never)]
    fn varied(words: &[AtomicU64], numbers: &mut [u32], bytes: &mut [u8]) -> u64 {
        let each: [&dyn Fn(u64) -> u64; 3] = [&|a| a * 3, &|a| a.rotate_left(7) ^ 5, &|a| a.count_ones().into()];
        let mut sum = 0u64;
        for (index, number) in numbers.iter_mut().enumerate() {
            *number = (index as u32).wrapping_mul(0x9e37_79b1) % 1000;
            sum = sum.wrapping_add(std::hint::black_box(&each)[index % 3](u64::from(*number)));
            let _ = words[index % words.len()].compare_exchange(sum ^ 1, sum, Relaxed, Relaxed);
            words[0].fetch_add(sum, Relaxed);
        }
        numbers.sort_unstable();
        let half = bytes.len() / 2;
        let (from, to) = bytes.split_at_mut(half);
        from.fill(sum as u8);
        to[..half].copy_from_slice(from);
        let mean = numbers.iter().map(|number| f64::from(*number)).sum::<f64>() / numbers.len() as f64;
        sum ^ mean.to_bits() ^ u64::from(from == to)
    }

    #[test]
    fn a_copy_takes_the_same_steps_as_the_processor_itself_and_has_the_same_results() {
        let words = [const { AtomicU64::new(0) }; 5];
        let (mut numbers, mut bytes) = (vec![0; 60], vec![0; 5000]);
        let mut results = Vec::new();
        let mut fresh = |record: &dyn Fn(&mut dyn FnMut()) -> Vec<Seen>| {
            words.iter().for_each(|word| word.store(0, Relaxed));
            bytes.fill(0);
            let mut sum = 0;
            let steps = record(&mut || sum = varied(&words, &mut numbers, &mut bytes));
            let words = words.each_ref().map(|word| word.load(Relaxed));
            results.push((sum, words, numbers.clone(), bytes.clone()));
            steps
        };
        let zero = |step: &Step| (step.at, step.flags >> 6 & 1 == 1);
        // The dynamic linker looks names up once.
        fresh(&|work| {
            work();
            Vec::new()
        });
        let by_processor = fresh(&|work| stepped::steps_of(work));
        let by_copy = fresh(&|work| steps_of(200_000, work).iter().map(zero).collect());
        let of_work = |steps: Vec<(u64, bool)>| -> Vec<(u64, bool)> {
            let entry = varied as *const () as u64;
            let mut steps: Vec<_> = steps.into_iter().skip_while(|step| step.0 != entry).collect();
            // The processor stops at each repetition of a repeated instruction.
            steps.dedup_by_key(|step| step.0);
            steps
        };
        let (by_processor, by_copy) = (of_work(by_processor), of_work(by_copy));
        assert!(by_copy.len() > 5000, "{}", by_copy.len());
        // Callers differ, and with them the flags at the start and what follows the return.
        let until = by_copy.len() - 20;
        let differs = (40..until).find(|index| by_processor[*index] != by_copy[*index]);
        assert_eq!(differs, None, "{:x?}", differs.map(|at| (&by_processor[at], &by_copy[at])));
        assert!(results.iter().all(|result| *result == results[0]));
    }
}
