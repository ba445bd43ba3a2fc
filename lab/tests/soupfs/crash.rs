//! Power failures in random runs.

use super::explore::{Effort, record};
use super::image::Image;
use super::machine::{IMAGE_BYTES, bytes, formatted, mount, region};
use super::model::{Drawer, Operation, dump};
use engine::Changes;
use lab::calls::Calls;
use lab::inode::AttributeCell;
use lab::physical::{Exclusive, PhysicalFs, SyncFile};
use lab::soupfs::SoupFs;
use pmem::{CrashImage, Direct, Grain, Recorder};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

/// The initial names and files, which are durable.
pub fn setup() -> Vec<Operation> {
    let path = |path: &str| path.as_bytes().to_vec();
    vec![
        Operation::Mkdir(path("/a")),
        Operation::Mkdir(path("/b")),
        Operation::Mkdir(path("/a/a")),
        Operation::Create(path("/a/b")),
        Operation::Write(path("/a/b"), 0, 6000, 0x11),
        Operation::Create(path("/c")),
        Operation::Write(path("/c"), 0, 700, 0x22),
        Operation::Link(path("/c"), path("/b/c")),
        Operation::Symlink(vec![b't'; 70], path("/d")),
    ]
}

/// The seeds: 40, or `SOUPFS_CRASH_RUNS`, from 0 or `SOUPFS_CRASH_SEED` on.
fn seeds() -> std::ops::Range<u64> {
    let number = |name| std::env::var(name).ok().and_then(|value| value.parse().ok());
    let first = number("SOUPFS_CRASH_SEED").unwrap_or(0);
    first..first + number("SOUPFS_CRASH_RUNS").unwrap_or(40)
}

#[test]
fn any_crash_leaves_what_soft_updates_promise() {
    let effort = Effort { lines_max: 5, sample: 24, use_every: 6 };
    let mut states = 0;
    for seed in seeds() {
        let mut drawer = Drawer::new(0x50f5 ^ seed << 8);
        let length = 6 + drawer.random.below(18) as usize;
        let sync_file = if seed % 2 == 0 { SyncFile::Own } else { SyncFile::Names };
        let recording = record(&setup(), sync_file, &mut |tree, index| match index {
            _ if index < length => Some(drawer.draw(tree)),
            _ if index == length => Some(Operation::Sync),
            _ => None,
        });
        match recording.explore(effort, seed) {
            Ok(count) => states += count,
            Err(violation) => {
                let operations: Vec<_> = recording.operations.iter().map(short).collect();
                panic!("seed {seed}: {violation:?}\n{}", operations.join("\n"));
            }
        }
    }
    println!("seeds {:?}, {states} states", seeds());
}

fn short(operation: &Operation) -> String {
    format!("{operation:?}").replace("108, ", "").replace("109, ", "")
}

#[test]
fn no_crash_gives_a_new_owner_the_permissions_that_were_for_the_old_one() {
    let mapping = formatted(IMAGE_BYTES);
    let fs = mount(&mapping, Direct);
    fs.create(b"/file", 0o4755).expect("created");
    fs.unmount().expect("unmounted");
    let recorder = Arc::new(Recorder::new());
    let image = region(&mapping, Arc::clone(&recorder));
    let fs = SoupFs::mount_with(image, Duration::ZERO, 0).expect("mounted");
    let number = dump(&fs).expect("a tree").find(b"/file").expect("it is there").0;
    let mut loaded = fs.load(number).expect("loaded");
    let attributes = AttributeCell::new(&loaded.attributes);
    let initial = bytes(&mapping);
    recorder.start();
    let mut file = Exclusive { number, attributes: &attributes, info: &mut loaded.info };
    let changes = Changes { uid: Some(1000), permissions: Some(0o600), ..Changes::default() };
    fs.change(&mut file, &changes, 7).expect("changed");
    fs.sync_file(&mut file).expect("synced");
    recorder.stop();
    let log = recorder.take();
    let mut crash = CrashImage::new(initial, &log);
    let mut seen = BTreeSet::new();
    loop {
        let mut image = crash.durable().to_vec();
        for state in crash.states(Grain::Word, 8, 1000, 1) {
            state.apply(&mut image);
            let word = |at: u64| Image(&image).word(number * 64 + at);
            seen.insert((word(8) >> 32, word(0) >> 32 & 0o7777));
            state.undo(&mut image);
        }
        if !crash.advance() {
            break;
        }
    }
    assert_eq!(seen, BTreeSet::from([(0, 0o4755), (0, 0o600), (1000, 0o600)]));
}
