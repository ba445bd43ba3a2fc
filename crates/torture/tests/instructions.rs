//! Crashes, with the stores, flushes and fences that the processor executes: a sample of what
//! `torture --only instructions` runs for any duration.

use pmem::{Direct, Event, MappedRegion};
use std::arch::asm;
use torture::explore::{Effort, Explorer, NotPassed, Violation};
use torture::injected::DEFECTS;
use torture::recording::Source;
use torture::stepper::{Stepper, boundary, shared};

const SEED: u64 = 7;
/// Each kind of change, on few instructions.
const SAMPLE: &[&str] = &[
    "base:create",
    "base:mkdir-in-empty",
    "base:symlink-long",
    "base:link",
    "base:unlink",
    "base:rename-over-across",
    "base:overwrite",
    "base:append",
    "base:truncate-less",
    "base:set-xattr",
    "base:chmod",
    "cold:rename-dir-across",
    "page504:p-create",
    "base:create,unlink",
    "base:create,detach",
];

fn explorer() -> Explorer {
    Explorer::new(Effort::QUICK, SEED).with_source(Source::Instructions)
}

#[test]
fn crashes_during_what_the_processor_executes() {
    let mut explorer = explorer();
    let explore = |name: &&str| explorer.explore(&name.parse().expect("a workload")).err();
    let violations: Vec<_> = SAMPLE.iter().filter_map(explore).collect();
    println!("{:?}", explorer.counts);
    let text: String = violations.iter().map(|violation| format!("\n{violation}")).collect();
    assert!(violations.is_empty(), "{text}");
    assert!(explorer.counts.instructions > 100_000 && explorer.counts.states > 200, "{:?}", explorer.counts);
}

/// The violation that a defect in the log of the instructions causes.
fn find(name: &str) -> Violation {
    let defect = DEFECTS.iter().find(|defect| defect.name == name).expect("a defect");
    let workload = defect.workload.parse().expect("a workload");
    explorer().explore_injected(&workload, Some(defect)).expect_err(name)
}

#[test]
fn a_flush_or_a_fence_that_is_left_out_is_found_and_comes_back_by_its_id() {
    for name in ["create: dentry not flushed", "create: no fence"] {
        let violation = find(name);
        assert!(violation.id.starts_with("instructions/base:create@f"), "{violation}");
        let defect = DEFECTS.iter().find(|defect| defect.name == name);
        let mut other = Explorer::new(Effort::FULL, 0);
        let again = other.replay(&violation.id, defect, &mut |_| {});
        assert_eq!(again, Err(NotPassed::Violation(violation.what)));
        assert!(other.replay(&violation.id, None, &mut |_| {}).is_ok(), "without the defect it passes");
    }
}

/// An area, and the events that code in a child causes in it.
struct Bench(MappedRegion<Direct>);

impl Bench {
    fn new() -> Bench {
        Bench(shared(4096).expect("memory"))
    }

    fn at(&self, offset: u64) -> *mut u8 {
        self.0.address(offset, 64).expect("inside the area")
    }

    fn try_events(&self, act: impl FnOnce()) -> Result<Vec<Event>, String> {
        let trace = Stepper::default().trace(&self.0, || {
            boundary();
            act();
            boundary();
            Ok(())
        })?;
        assert_eq!(trace.initial, [0; 4096]);
        let is_mark = |event: &Event| matches!(event, Event::Mark(_));
        let log: Vec<_> = trace.log.into_iter().map(|recorded| recorded.event).collect();
        assert!(log.first().is_some_and(is_mark) && log.last().is_some_and(is_mark), "{log:?}");
        Ok(log[1..log.len() - 1].to_vec())
    }

    fn events(&self, act: impl FnOnce()) -> Vec<Event> {
        self.try_events(act).expect("traced")
    }
}

fn store(offset: u64, bytes: &[u8]) -> Event {
    Event::Store { offset, bytes: bytes.into() }
}

fn stream(offset: u64, bytes: &[u8]) -> Event {
    Event::Stream { offset, bytes: bytes.into() }
}

#[test]
fn stores_of_every_kind_are_seen() {
    let bench = Bench::new();
    let to = bench.at(0);
    let events = bench.events(|| {
        // SAFETY: all stores are into the page at `to`, whose references are raw.
        unsafe {
            asm!(
                "mov byte ptr [{to} + 1], 7",
                "mov dword ptr [{to} + 4], 0x01020304",
                "mov {word}, 5",
                "xchg [{to} + 8], {word}",
                "lock xadd [{to} + 8], {word}",
                "lock or qword ptr [{to} + 16], 9",
                "movdqu [{to} + 24], {vector}",
                "movaps [{to} + 48], {vector}",
                "movss [{to} + 64], {vector}",
                to = in(reg) to, word = out(reg) _, vector = in(xmm_reg) 1.0f32,
            );
        }
    });
    let one = 1.0f32.to_le_bytes();
    let mut vector = [0; 16];
    vector[..4].copy_from_slice(&one);
    let word = |value: u64| value.to_le_bytes();
    let expected = [
        store(1, &[7]),
        store(4, &[4, 3, 2, 1]),
        store(8, &word(5)),
        store(8, &word(5)),
        store(16, &word(9)),
        store(24, &vector),
        store(48, &vector),
        store(64, &one),
    ];
    assert_eq!(events, expected);
}

#[test]
fn a_comparison_that_fails_stores_nothing() {
    let bench = Bench::new();
    let to = bench.at(8);
    let events = bench.events(|| {
        for expected in [1u64, 0] {
            // SAFETY: an aligned word of the page.
            unsafe {
                asm!("lock cmpxchg [{to}], {new}", to = in(reg) to, new = in(reg) 3u64, inout("rax") expected => _);
            }
        }
    });
    assert_eq!(events, [store(8, &3u64.to_le_bytes())]);
}

#[test]
fn each_repetition_of_a_string_instruction_is_a_store() {
    let bench = Bench::new();
    let (to, from) = (bench.at(100), [1u8, 2, 3].as_ptr());
    let events = bench.events(|| {
        // SAFETY: three bytes from the array, then two words of ones, within the page.
        unsafe {
            asm!(
                "rep movsb", "mov ecx, 2", "mov rax, -1", "rep stosq", "xor ecx, ecx", "rep stosb",
                inout("rcx") 3u64 => _, inout("rdi") to => _, inout("rsi") from => _, out("rax") _,
            );
        }
    });
    let expected =
        [store(100, &[1]), store(101, &[2]), store(102, &[3]), store(103, &[0xff; 8]), store(111, &[0xff; 8])];
    assert_eq!(events, expected);
}

#[test]
fn streamed_stores_flushes_and_fences_are_seen() {
    let bench = Bench::new();
    let to = bench.at(128);
    let events = bench.events(|| {
        // SAFETY: all operands lie in the page.
        unsafe {
            asm!(
                "movnti [{to}], {word}",
                "movntdq [{to} + 16], {vector}",
                "clflush [{to} + 70]",
                "lock or qword ptr [rsp - 64], 0",
                "mfence",
                "sfence",
                to = in(reg) to, word = in(reg) 6u64, vector = in(xmm_reg) 0.0f32,
            );
        }
    });
    let flush = Event::Flush { offset: 192, length: 64 };
    assert_eq!(events, [stream(128, &6u64.to_le_bytes()), stream(144, &[0; 16]), flush, Event::Fence, Event::Fence]);
}

#[test]
fn flushes_of_newer_processors_are_seen() {
    let bench = Bench::new();
    let to = bench.at(128);
    // SAFETY: CPUID has no operands in memory.
    let features = std::arch::x86_64::__cpuid_count(7, 0).ebx;
    for (bit, act) in [(23, 0), (24, 1)] {
        if features >> bit & 1 == 0 {
            continue;
        }
        // SAFETY: the processor has the instruction, and its operand lies in the page.
        let events = bench.events(|| unsafe {
            match act {
                0 => asm!("clflushopt [{to} + 1]", to = in(reg) to),
                _ => asm!("clwb [{to} + 1]", to = in(reg) to),
            }
        });
        assert_eq!(events, [Event::Flush { offset: 128, length: 64 }]);
    }
}

#[test]
fn a_store_under_a_mask_is_seen() {
    let bench = Bench::new();
    let to = bench.at(64);
    if !std::is_x86_feature_detected!("avx") {
        return;
    }
    let events = bench.events(|| {
        // SAFETY: the processor has AVX; the masked stores lie in the page.
        unsafe {
            asm!(
                "vpcmpeqd {mask}, {mask}, {mask}", "vpsrldq {mask}, {mask}, 8", "vmaskmovps [{to}], {mask}, {mask}",
                to = in(reg) to, mask = out(xmm_reg) _,
            );
        }
    });
    assert_eq!(events, [store(64, &[[0xff; 8], [0; 8]].concat())]);
}

#[test]
fn a_store_that_no_instruction_of_the_child_makes_is_an_error() {
    let bench = Bench::new();
    let to = bench.at(40);
    let missed = bench.try_events(|| {
        // The kernel stores the time.
        // SAFETY: room for the time in the page.
        unsafe { libc::syscall(libc::SYS_clock_gettime, libc::CLOCK_REALTIME, to) };
    });
    let what = missed.expect_err("the kernel's store is missed");
    assert!(what.contains("was not seen"), "{what}");
}

#[test]
fn a_child_that_fails_says_why() {
    let bench = Bench::new();
    let error = Stepper::default().trace(&bench.0, || Err("on purpose".to_owned())).err();
    assert_eq!(error.as_deref(), Some("on purpose"));
}
