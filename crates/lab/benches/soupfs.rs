//! Latency of creating and removing names: SoupFS beside the NOVA-like and the PMFS-like system, under the same front, with delays for each flushed line.
//!
//! The systems take turns, so that what else the machine does meets all of them. For SoupFS the persister comes between the timed stretches (`quiet`), or when it likes
//! (`busy`: it then also competes for memory and, on few processors, for time). Only ratios mean anything.

use lab::calls::Calls;
use lab::front::{Conventional, FrontOptions};
use lab::nova::Nova;
use lab::physical::{MkfsOptions, MountOptions, PhysicalFs};
use lab::pmfs::Pmfs;
use lab::soupfs::SoupFs;
use pmem::{Delayed, Delays, Mapping};
use std::sync::Arc;
use std::time::Instant;

const NAMES: usize = 1000;
const ROUNDS: usize = 15;
const CALLS: [&str; 4] = ["create", "unlink", "mkdir", "rmdir"];

/// One call on a path.
type Act<'c> = &'c dyn Fn(&[u8]) -> posix::Result<()>;
/// Nanoseconds per call of each stretch.
type Times = [Vec<f64>; CALLS.len()];

struct System {
    name: &'static str,
    calls: Box<dyn Calls>,
    times: Times,
}

fn mount<P: PhysicalFs<Memory = Delayed>>(name: &'static str, write_ns: u64, persist_period_ms: u64) -> System {
    let image = Arc::new(Mapping::anonymous(256 << 20).expect("memory"));
    let region = || image.region(Delayed::new(Delays { read_ns: 0, write_ns })).expect("a region");
    P::mkfs(&region(), &MkfsOptions::default()).expect("a file system");
    let mount = MountOptions { persist_period_ms, ..MountOptions::default() };
    let options = FrontOptions { files_max: 1 << 16, names_max: 1 << 16, mount, ..FrontOptions::default() };
    let calls = Box::new(Conventional::<P>::mount(region(), options).expect("a mount"));
    System { name, calls, times: Times::default() }
}

impl System {
    fn round(&mut self) {
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
            // What is persisted is removed for real, and what is removed was there.
            calls.sync().expect("synced");
        }
    }

    /// The least: what else the machine does can only add.
    fn least(&self) -> [f64; CALLS.len()] {
        self.times.each_ref().map(|times| times.iter().copied().fold(f64::INFINITY, f64::min))
    }
}

fn main() {
    println!("ns per call (least of {ROUNDS} stretches of {NAMES}); SoupFS in percent of the NOVA-like system");
    println!("{:>8}  {:<14}{:>18}{:>18}{:>18}{:>18}", "delay", "system", CALLS[0], CALLS[1], CALLS[2], CALLS[3]);
    for write_ns in [0, 100, 200, 400, 800] {
        let mut systems = [
            mount::<Nova<Delayed>>("nova", write_ns, 0),
            mount::<Pmfs<Delayed>>("pmfs", write_ns, 0),
            mount::<SoupFs<Delayed>>("soupfs, quiet", write_ns, 0),
            mount::<SoupFs<Delayed>>("soupfs, busy", write_ns, 20),
        ];
        for system in &systems {
            system.calls.mkdir(b"/directory", 0o755).expect("made");
        }
        for _ in 0..ROUNDS {
            systems.iter_mut().for_each(System::round);
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
