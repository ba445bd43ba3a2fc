//! Death after any store: a process is single-stepped into an operation and killed there. Another
//! process then reclaims what it held, and nothing leaks.
//!
//! A first run finds the instructions after which the shared tables differ: between two of these
//! all deaths are equivalent. Each operation dies after every one of them. The environment variable
//! `DEATHS_IN` selects the operations whose name contains its value.
//!
//! Each step costs a switch to the victim and back, so only the first run single-steps all the way.
//! It records the address of each instruction; later victims run to a breakpoint shortly before
//! their death and step the rest.

#[path = "../../../posix/tests/common/mod.rs"]
mod common;
mod operations;

use common::{ROOT, Scratch, Session};
use engine::{Fs, Thread};
use operations::{KEY, OPERATIONS, Operation, Scene, install};
use std::cell::RefCell;
use std::collections::HashMap;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use tables::process::{Fork, Process, Processes, Usage};
use tables::watch::Watches;

/// Counted references to all files of an image, and marks.
fn references(fs: &Fs) -> u64 {
    use engine::dram::{FLAG_DEAD, FLAG_HELD, References};
    let dram = fs.dram();
    let end = dram.header().unwrap().cachelets_next.load(Relaxed).min(dram.layout.cachelets_max);
    let mut sum = 0;
    for index in 1..end as u32 {
        let cachelet = dram.cachelet(index).unwrap();
        let state = References::from_word(cachelet.references.load(Relaxed));
        if cachelet.number.load(Relaxed) != 0 && state.flags & FLAG_DEAD == 0 {
            sum += state.references as u64 + (state.flags & FLAG_HELD != 0) as u64;
        }
    }
    sum
}

fn stop() {
    // SAFETY: stops this process until its tracer resumes it.
    unsafe { libc::raise(libc::SIGSTOP) };
}

/// Waits until the child stops or ends; returns the signal that stopped it.
fn wait_for_stop(pid: i32) -> Option<i32> {
    let mut status = 0;
    // SAFETY: a child of this process, and a valid place for its status.
    assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid);
    libc::WIFSTOPPED(status).then(|| libc::WSTOPSIG(status))
}

/// Offset of the instruction pointer among a stopped process's registers.
const RIP: u64 = std::mem::offset_of!(libc::user, regs.rip) as u64;

/// The instructions that an operation executes.
#[derive(PartialEq)]
struct InstructionTrace {
    /// The address of each instruction, in the order of execution.
    instructions: Vec<u64>,
    /// The number of instructions executed at each change of the tables.
    stores: Vec<usize>,
}

/// A breakpoint: index of its instruction in the trace, and number of earlier executions.
struct Halt {
    at: usize,
    passes: usize,
}

impl InstructionTrace {
    /// The breakpoint that reaches `done` executed instructions with the fewest stops.
    fn halt_before(&self, done: usize) -> Option<Halt> {
        let (mut passes, mut best, mut fewest) = (HashMap::new(), None, done);
        for (at, address) in self.instructions[..=done.min(self.instructions.len() - 1)].iter().enumerate() {
            // Not at the start, and not at an instruction that repeats itself (`rep`): the
            // breakpoint would not be hit each time.
            let repeats = at == 0 || self.instructions[at - 1] == *address;
            let passes = passes.entry(address).and_modify(|passes| *passes += !repeats as usize).or_insert(0usize);
            let stops = 2 * *passes + 1 + (done - at);
            if !repeats && stops < fewest {
                (best, fewest) = (Some(Halt { at, passes: *passes }), stops);
            }
        }
        best
    }
}

/// A child of `parent` within an operation.
struct Victim {
    pid: i32,
}

impl Victim {
    fn new(parent: &Process<'_>, thread: &Thread<'_>, operation: &Operation, scene: &Scene) -> Victim {
        let fs = thread.fs();
        let child = parent.prepare_fork(thread, Fork::default()).unwrap();
        // SAFETY: the child uses only its own resources, and exits without running the parent's
        // code.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            let thread = fs.enter().unwrap();
            let process = Processes::new(fs).unwrap().adopt(child).unwrap();
            (operation.prepare)(&process, &thread, scene);
            // SAFETY: requests tracing by the parent.
            unsafe { libc::ptrace(libc::PTRACE_TRACEME, 0, 0, 0) };
            stop();
            (operation.operate)(&process, &thread, scene);
            stop();
            // SAFETY: as above.
            unsafe { libc::_exit(0) };
        }
        assert_eq!(wait_for_stop(pid), Some(libc::SIGSTOP), "{}: the preparation failed", operation.name);
        Victim { pid }
    }

    fn resume(&self, request: libc::c_uint) -> Option<i32> {
        // SAFETY: a traced child that is stopped.
        assert_eq!(unsafe { libc::ptrace(request, self.pid, 0, 0) }, 0);
        wait_for_stop(self.pid)
    }

    /// Executes one instruction; returns false at the end of the operation.
    fn step(&self) -> bool {
        match self.resume(libc::PTRACE_SINGLESTEP) {
            Some(libc::SIGTRAP) => true,
            Some(libc::SIGSTOP) => false,
            other => panic!("ended without being killed: {other:?}"),
        }
    }

    /// The address of the next instruction.
    fn instruction(&self) -> u64 {
        // SAFETY: reads a register of a traced child that is stopped.
        unsafe { libc::ptrace(libc::PTRACE_PEEKUSER, self.pid, RIP, 0) as u64 }
    }

    /// Steps to the end of the operation, and returns its trace.
    fn walk(&self, tables: &Tables) -> InstructionTrace {
        let (mut stores, mut seen) = (Vec::new(), tables.fingerprint());
        let mut instructions = vec![self.instruction()];
        while self.step() {
            let now = tables.fingerprint();
            if now != seen {
                stores.push(instructions.len());
                seen = now;
            }
            instructions.push(self.instruction());
        }
        InstructionTrace { instructions, stores }
    }

    /// Runs until just after a store of the trace; false if this victim executes other
    /// instructions.
    fn follow(&self, trace: &InstructionTrace, store: usize, tables: &Tables) -> bool {
        let done = trace.stores[store];
        let mut steps = done;
        if let Some(halt) = trace.halt_before(done) {
            if !self.run_to(trace.instructions[halt.at], halt.passes) {
                return false;
            }
            steps -= halt.at;
        }
        for left in (0..steps).rev() {
            let before = (left == 0).then(|| tables.fingerprint());
            if !self.step() || before.is_some_and(|before| before == tables.fingerprint()) {
                return false;
            }
        }
        self.instruction() == trace.instructions[done]
    }

    /// Runs until just before the instruction at an address, after `passes` executions of it; false
    /// if that is not reached.
    fn run_to(&self, address: u64, passes: usize) -> bool {
        const BREAKPOINT: u64 = 0xCC;
        // SAFETY: reads a word of the program of a traced child that is stopped.
        let word = unsafe { libc::ptrace(libc::PTRACE_PEEKTEXT, self.pid, address, 0) as u64 };
        for pass in 0..=passes {
            self.poke(libc::PTRACE_POKETEXT, address, word & !0xFF | BREAKPOINT);
            if self.resume(libc::PTRACE_CONT) == Some(libc::SIGSTOP) {
                return false;
            }
            assert_eq!(self.instruction(), address + 1);
            self.poke(libc::PTRACE_POKEUSER, RIP, address);
            self.poke(libc::PTRACE_POKETEXT, address, word);
            if pass < passes && !self.step() {
                return false;
            }
        }
        true
    }

    fn poke(&self, request: libc::c_uint, at: u64, word: u64) {
        // SAFETY: writes to a traced child that is stopped; its pages are private copies after
        // fork.
        assert_eq!(unsafe { libc::ptrace(request, self.pid, at, word) }, 0);
    }

    fn kill(self) {
        // SAFETY: a child that was not waited for, so the pid is still its own.
        unsafe { libc::kill(self.pid, libc::SIGKILL) };
        assert_eq!(wait_for_stop(self.pid), None);
    }
}

/// The tables of an image, read from the file behind the DRAM region.
struct Tables {
    file: std::fs::File,
    areas: [std::ops::Range<u64>; 3],
    /// The file's touched pages, and its number of blocks when they were collected.
    pages: RefCell<(u64, Vec<Page>)>,
}

/// A mapped page of the file.
struct Page(&'static [AtomicU64; 512]);

impl Drop for Page {
    fn drop(&mut self) {
        // SAFETY: a mapping that this value made and exclusively owns.
        unsafe { libc::munmap(self.0.as_ptr() as *mut libc::c_void, 4096) };
    }
}

impl Tables {
    fn new(scratch: &Scratch) -> Tables {
        let mut entries = std::fs::read_dir(scratch.directory.path()).unwrap().map(|entry| entry.unwrap().path());
        let path = entries.find(|path| path.file_name().unwrap().to_string_lossy().starts_with("directfs-")).unwrap();
        let layout = scratch.image.fs().dram().layout;
        // Files' marks and counts are in the first cachelets.
        let cachelets = layout.cachelets..layout.cachelets + 4096;
        let (tables, files) = (layout.upper..layout.block_bits, layout.upper_files..layout.cachelets);
        let areas = [cachelets, tables, files];
        Tables { file: std::fs::File::open(path.join("region")).unwrap(), areas, pages: RefCell::default() }
    }

    /// The pages of the areas that are not holes in the file.
    fn touched_pages(&self) -> Vec<Page> {
        let (fd, mut pages) = (self.file.as_raw_fd(), Vec::new());
        for area in &self.areas {
            let mut at = area.start as i64;
            loop {
                // SAFETY: an open file.
                at = unsafe { libc::lseek(fd, at, libc::SEEK_DATA) };
                if at < 0 || at as u64 >= area.end {
                    break;
                }
                at &= !4095;
                let (null, shared) = (std::ptr::null_mut(), libc::MAP_SHARED);
                // SAFETY: a new mapping of an existing page of the file; it is read only as
                // atomics.
                let page = unsafe { libc::mmap(null, 4096, libc::PROT_READ, shared, fd, at) };
                assert_ne!(page, libc::MAP_FAILED);
                // SAFETY: an aligned page, mapped until the value is dropped.
                pages.push(Page(unsafe { &*page.cast() }));
                at += 4096;
            }
        }
        pages
    }

    /// A hash of the tables. Untouched pages are zeros, and omitted.
    fn fingerprint(&self) -> u64 {
        let blocks = self.file.metadata().unwrap().blocks();
        let mut pages = self.pages.borrow_mut();
        if pages.0 != blocks {
            *pages = (blocks, self.touched_pages());
        }
        let mut sum = 0u64;
        for word in pages.1.iter().flat_map(|page| page.0) {
            sum = (sum ^ word.load(Relaxed)).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(29);
        }
        sum
    }
}

fn make_files(session: &Session<'_, '_>) -> Scene {
    session.mkdir("directory", 0o755).unwrap();
    let file = |name: &str| {
        let file = session.open(name, libc::O_RDWR | libc::O_CREAT).unwrap();
        session.caller.data().write(&file, &[1; 9000]).unwrap();
        file.node()
    };
    let directory = session.at("directory", |node| Ok(session.caller.thread.retain(node).map(|()| node)?)).unwrap();
    Scene { files: [file("a"), file("b"), directory, file("lost")] }
}

/// An image, a process that uses it, and their resources when no operation is in flight.
struct Stage<'t, 'f> {
    operation: &'static Operation,
    session: Session<'t, 'f>,
    all: Processes<'f>,
    parent: Process<'f>,
    scene: Scene,
    tables: Tables,
    usage: Usage,
    references: u64,
    /// References that dead processes left to the engine.
    left: u64,
}

impl Stage<'_, '_> {
    /// Runs `act` on a new stage.
    fn with(operation: &'static Operation, act: impl FnOnce(&mut Stage<'_, '_>)) {
        let scratch = Scratch::new();
        let fs = scratch.image.fs();
        {
            let thread = fs.enter().unwrap();
            let root = thread.root().unwrap();
            let session = Session::new(&thread, root, ROOT);
            let scene = make_files(&session);
            let all = Processes::new(fs).unwrap();
            let parent = all.register(&thread, 0).unwrap();
            install(&parent, &thread, 9, scene.files[0]);
            let (usage, references, tables) = (all.usage().unwrap(), references(fs), Tables::new(&scratch));
            let mut stage = Stage { operation, session, all, parent, scene, tables, usage, references, left: 0 };
            act(&mut stage);
            let Stage { all, parent, scene, .. } = stage;
            parent.exit(&thread);
            assert_eq!(all.usage().unwrap(), Usage::default());
            scene.files.into_iter().for_each(|node| thread.release(node, 1));
            thread.release(root, 1);
        }
        scratch.image.close().unwrap();
    }

    /// The trace of a victim that dies at the end of the operation.
    fn walk(&mut self) -> InstructionTrace {
        let victim = Victim::new(&self.parent, self.session.caller.thread, self.operation, &self.scene);
        let trace = victim.walk(&self.tables);
        victim.kill();
        self.check_released("at its end");
        trace
    }

    /// Kills a victim after a store of the trace. Returns false if it executed other instructions
    /// and so died elsewhere.
    fn die(&mut self, trace: &InstructionTrace, store: usize) -> bool {
        let victim = Victim::new(&self.parent, self.session.caller.thread, self.operation, &self.scene);
        let followed = victim.follow(trace, store, &self.tables);
        victim.kill();
        self.check_released(format_args!("after store {store} of {}", trace.stores.len()));
        followed
    }

    /// Checks that everything that the dead process held is reclaimed.
    fn check_released(&mut self, died: impl std::fmt::Display) {
        let (name, thread) = (self.operation.name, self.session.caller.thread);
        self.all.reap(thread).unwrap_or_else(|error| panic!("{name} killed {died}: {error:?}"));
        self.all.reap(thread).unwrap();
        // A token outlives its sender, but this one cannot be received.
        self.parent.reap_fd_tokens(thread, &mut |_| false).unwrap();
        assert_eq!(self.all.usage().unwrap(), self.usage, "{name} killed {died}");
        assert!(!thread.fs().is_watched(), "{name} killed {died}: a watch remains");
        assert_eq!(Watches::of(thread).watch_group(KEY), None, "{name} killed {died}: a group of watches remains");
        if name.contains("no name") {
            // The name is removed, and only the scene's reference keeps the file.
            thread.release(self.scene.files[3], 1);
            self.references -= 1;
            assert_eq!(
                references(thread.fs()),
                self.references,
                "{name} killed {died}: the file without a name remains"
            );
            self.scene.files[3] = self.session.open("lost", libc::O_RDWR | libc::O_CREAT).unwrap().node();
            self.references += 1;
        }
        let now = references(thread.fs());
        let lost = now.checked_sub(self.references).expect("references released twice");
        assert!(lost <= self.operation.own_references, "{name} killed {died}: {lost} references leaked");
        self.left += lost;
        self.references = now;
    }
}

fn die_everywhere(operation: &'static Operation) {
    let mut fresh = None;
    Stage::with(operation, |stage| {
        // The first victim finds unused tables; later ones find entries that others have freed.
        fresh = Some(stage.walk());
        let (mut trace, mut walks, mut store) = (stage.walk(), 2, 0);
        assert!(!trace.stores.is_empty(), "{}: no store is seen", operation.name);
        while store < trace.stores.len() {
            if stage.die(&trace, store) {
                store += 1;
            } else {
                trace = stage.walk();
                walks += 1;
                assert!(walks < 100, "{}: no two victims execute the same instructions", operation.name);
            }
        }
        let (length, stores, left) = (trace.instructions.len(), trace.stores.len(), stage.left);
        let name = operation.name;
        println!("{name}: {length} instructions, {stores} stores, {walks} walks; {left} references left to the engine");
        if fresh.as_ref() == Some(&trace) {
            fresh = None;
        }
    });
    let Some(fresh) = fresh else { return };
    for store in 0..fresh.stores.len() {
        let mut died = false;
        // Rarely a victim has to read the clock twice.
        for _ in 0..10 {
            Stage::with(operation, |stage| died = stage.die(&fresh, store));
            if died {
                break;
            }
        }
        assert!(died, "{}: no two first victims execute the same instructions", operation.name);
    }
    println!("    with fresh tables: {} instructions, {} stores", fresh.instructions.len(), fresh.stores.len());
}

/// This process and its victims alternate: on one processor that is several times faster.
fn stay_on_one_processor() {
    // SAFETY: a set of processors without pointers, and calls that concern this thread.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(libc::sched_getcpu() as usize, &mut set);
        assert_eq!(libc::sched_setaffinity(0, size_of_val(&set), &set), 0);
    }
}

#[test]
fn a_death_in_any_operation_leaves_nothing_behind() {
    stay_on_one_processor();
    let only = std::env::var("DEATHS_IN").unwrap_or_default();
    for operation in OPERATIONS.iter().filter(|operation| operation.name.contains(&only)) {
        die_everywhere(operation);
    }
}
