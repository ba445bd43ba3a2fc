//! Latency of creating and removing names: SoupFS beside the NOVA-like and the PMFS-like system, under the same front, with delays for each flushed line.
//!
//! The systems take turns, so that what else the machine does meets all of them. For SoupFS the persister comes between the timed stretches (`quiet`), or when it likes
//! (`busy`: it then also competes for memory and, on few processors, for time). Only ratios mean anything. What they come from is counted first: the lines
//! that a call flushes or streams, and its fences; for SoupFS those that its persister makes for it later.

use lab::calls::Calls;
use lab::front::{Conventional, FrontOptions};
use lab::nova::Nova;
use lab::physical::{MkfsOptions, MountOptions, PhysicalFs};
use lab::pmfs::Pmfs;
use lab::soupfs::SoupFs;
use pmem::{Delayed, Delays, Mapping, Memory};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

const NAMES: usize = 1000;
const ROUNDS: usize = 15;
const CALLS: [&str; 4] = ["create", "unlink", "mkdir", "rmdir"];

/// Counts what a delay would be paid for.
#[derive(Debug, Default)]
struct Counting {
    lines: AtomicU64,
    fences: AtomicU64,
}

impl Memory for Counting {
    const WATCHED: bool = true;
    fn stored(&self, _: u64, _: &[u8]) {}
    fn streamed(&self, offset: u64, bytes: &[u8]) {
        self.flushed(offset, bytes.len() as u64);
    }
    fn flushed(&self, offset: u64, length: u64) {
        self.lines.fetch_add((offset + length).div_ceil(64) - offset / 64, Relaxed);
    }
    fn fenced(&self) {
        self.fences.fetch_add(1, Relaxed);
    }
    fn read(&self, _: u64, _: u64) {}
}

impl Counting {
    fn take(&self) -> [f64; 2] {
        [&self.lines, &self.fences].map(|count| count.swap(0, Relaxed) as f64 / NAMES as f64)
    }
}

/// Prints lines and fences of each call.
fn count<P: PhysicalFs<Memory = Arc<Counting>>>(name: &str) {
    let counting = Arc::new(Counting::default());
    let mut system = mount::<P>("", Arc::clone(&counting), 0);
    system.calls.mkdir(b"/directory", 0o755).expect("made");
    system.round(&mut || {});
    let mut counts = Vec::new();
    counting.take();
    system.round(&mut || counts.push(counting.take()));
    let print = |what: &str, first: usize| {
        print!("{:>8}  {:<14}", "", format!("{name}{what}"));
        for [lines, fences] in counts.iter().skip(first).step_by(2) {
            print!("{:>18}", format!("{lines:.1} / {fences:.1}"));
        }
        println!();
    };
    print("", 0);
    if counts.iter().skip(1).step_by(2).any(|[lines, _]| *lines > 0.5) {
        print(", later", 1);
    }
}

/// One call on a path.
type Act<'c> = &'c dyn Fn(&[u8]) -> posix::Result<()>;
/// Nanoseconds per call of each stretch.
type Times = [Vec<f64>; CALLS.len()];

struct System {
    name: &'static str,
    calls: Box<dyn Calls>,
    times: Times,
}

fn mount_delayed<P: PhysicalFs<Memory = Arc<Delayed>>>(
    name: &'static str,
    write_ns: u64,
    persist_period_ms: u64,
) -> System {
    mount::<P>(name, Arc::new(Delayed::new(Delays { read_ns: 0, write_ns })), persist_period_ms)
}

fn mount<P: PhysicalFs>(name: &'static str, memory: P::Memory, persist_period_ms: u64) -> System
where
    P::Memory: Clone,
{
    let image = Arc::new(Mapping::anonymous(256 << 20).expect("memory"));
    let region = || image.region(memory.clone()).expect("a region");
    P::mkfs(&region(), &MkfsOptions::default()).expect("a file system");
    let mount = MountOptions { persist_period_ms, ..MountOptions::default() };
    let options = FrontOptions { files_max: 1 << 16, names_max: 1 << 16, mount, ..FrontOptions::default() };
    let calls = Box::new(Conventional::<P>::mount(region(), options).expect("a mount"));
    System { name, calls, times: Times::default() }
}

impl System {
    /// A stretch of each call. `after` is called after each, and again after what was left for later is done.
    fn round(&mut self, after: &mut dyn FnMut()) {
        let paths: Vec<Vec<u8>> = (0..NAMES).map(|number| format!("/directory/name{number}").into_bytes()).collect();
        let calls = &*self.calls;
        let acts: [Act<'_>; CALLS.len()] = [
            &|path| calls.create(path, 0o644),
            &|path| calls.unlink(path),
            &|path| calls.mkdir(path, 0o755),
            &|path| calls.rmdir(path),
        ];
        for (act, times) in acts.into_iter().zip(&mut self.times) {
            let start = Instant::now();
            paths.iter().for_each(|path| act(path).expect("done"));
            times.push(start.elapsed().as_nanos() as f64 / NAMES as f64);
            after();
            // What is persisted is removed for real, and what is removed was there.
            calls.sync().expect("synced");
            after();
        }
    }

    /// The least: what else the machine does can only add.
    fn least(&self) -> [f64; CALLS.len()] {
        self.times.each_ref().map(|times| times.iter().copied().fold(f64::INFINITY, f64::min))
    }
}

fn main() {
    println!("lines flushed / fences of a call, at the second time");
    println!("{:>8}  {:<14}{:>18}{:>18}{:>18}{:>18}", "", "system", CALLS[0], CALLS[1], CALLS[2], CALLS[3]);
    count::<Nova<Arc<Counting>>>("nova");
    count::<Pmfs<Arc<Counting>>>("pmfs");
    count::<SoupFs<Arc<Counting>>>("soupfs");
    println!();
    println!("ns per call (least of {ROUNDS} stretches of {NAMES}); SoupFS in percent of the NOVA-like system");
    println!("{:>8}  {:<14}{:>18}{:>18}{:>18}{:>18}", "delay", "system", CALLS[0], CALLS[1], CALLS[2], CALLS[3]);
    for write_ns in [0, 100, 200, 400, 800] {
        let mut systems = [
            mount_delayed::<Nova<Arc<Delayed>>>("nova", write_ns, 0),
            mount_delayed::<Pmfs<Arc<Delayed>>>("pmfs", write_ns, 0),
            mount_delayed::<SoupFs<Arc<Delayed>>>("soupfs, quiet", write_ns, 0),
            mount_delayed::<SoupFs<Arc<Delayed>>>("soupfs, busy", write_ns, 20),
        ];
        for system in &systems {
            system.calls.mkdir(b"/directory", 0o755).expect("made");
        }
        for _ in 0..ROUNDS {
            systems.iter_mut().for_each(|system| system.round(&mut || {}));
        }
        let nova = systems[0].least();
        for system in &systems {
            let times = system.least();
            print!("{write_ns:>5} ns  {:<14}", system.name);
            for (time, nova) in times.iter().zip(nova) {
                print!("{time:>10.0} ({:>3.0} %)", 100.0 * time / nova);
            }
            println!();
        }
    }
}
