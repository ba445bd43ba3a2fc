//! Calls with a cached parent directory return the same results as without, and keep no removed
//! directory alive.

use crate::common::{ALICE, ROOT, Session, inside};
use engine::{Node, Thread};
use posix::{CachedReference, Result};

const NAMES: [&str; 3] = ["a", "b", "c"];

/// Random numbers (SplitMix64).
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> usize {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((mixed ^ (mixed >> 31)) % limit) as usize
    }

    fn path(&mut self) -> String {
        let depth = 1 + self.below(4);
        (0..depth).map(|_| NAMES[self.below(3)]).collect::<Vec<_>>().join("/")
    }
}

/// A session with a separate start directory, optionally with a cached reference.
fn somebody<'t, 'f>(
    thread: &'t Thread<'f>,
    (root, start): (Node, Node),
    cached: Option<&'t CachedReference>,
) -> Session<'t, 'f> {
    let mut session = Session::new(thread, root, ALICE);
    session.walk_start.start = start;
    session.caller.parent = cached;
    session
}

fn one(session: &Session<'_, '_>, choice: usize, one: &str, other: &str) -> Result<()> {
    match choice {
        0..=2 => session.mkdir(one, 0o755),
        3..=5 => session.touch(one, 0o644),
        6 => session.rename(one, other, 0),
        7 => session.rename(one, other, libc::RENAME_EXCHANGE),
        8 => session.rmdir(one),
        9 => session.unlink(one),
        10 => session.link(one, other),
        11 => session.symlink(other, one),
        12 => session.chmod(one, 0o500),
        _ => session.chmod(one, 0o755),
    }
}

#[test]
fn calls_behave_the_same_with_a_cached_directory() {
    for seed in 0..20 {
        inside(|thread, root| {
            let everybody = Session::new(thread, root, ROOT);
            let [plain, keeping] = ["plain", "keeping"].map(|name| {
                everybody.mkdir(name, 0o777).unwrap();
                thread.lookup(root, name.as_bytes()).unwrap()
            });
            let cached = CachedReference::new();
            let pairs = [
                (somebody(thread, (root, plain), None), somebody(thread, (root, keeping), Some(&cached))),
                // A session without a cache that changes the directories cached by the first one.
                (somebody(thread, (root, plain), None), somebody(thread, (root, keeping), None)),
            ];
            let mut draw = Random(seed);
            let (mut done, mut steps_cached) = (0, 0);
            for step in 0..6_000 {
                let (choice, path, other) = (draw.below(14), draw.path(), draw.path());
                let (plain, keeping) = &pairs[usize::from(draw.below(4) == 0)];
                let (expected, result) = (one(plain, choice, &path, &other), one(keeping, choice, &path, &other));
                assert_eq!(result, expected, "seed {seed}, step {step}: {choice} {path} {other}");
                done += u64::from(result.is_ok());
                steps_cached += u64::from(cached.node().is_some());
            }
            assert!(
                done > 300 && steps_cached > 1000,
                "seed {seed}: {done} done, {steps_cached} with a cached reference"
            );
            cached.release(thread);
            for node in [plain, keeping] {
                thread.release(node, 1);
            }
        });
    }
}

#[test]
fn a_directory_that_was_used_last_goes_when_it_is_removed() {
    inside(|thread, root| {
        let cached = CachedReference::new();
        let start = thread.root().unwrap();
        let alice = somebody(thread, (root, start), Some(&cached));
        let used = || {
            while thread.recycler().recycle(usize::MAX).unwrap() > 0 {}
            let report = thread.space().unwrap();
            report.inodes - report.inodes_free
        };
        alice.mkdir("other", 0o755).unwrap();
        let before = used();
        for way in ["rmdir", "a rename over it", "rmdir by another session"] {
            alice.mkdir("a", 0o755).unwrap();
            alice.touch("a/f", 0o644).unwrap();
            alice.unlink("a/f").unwrap();
            assert!(cached.node().is_some());
            match way {
                "rmdir" => alice.rmdir("a").unwrap(),
                "a rename over it" => {
                    alice.mkdir("b", 0o755).unwrap();
                    alice.rename("b", "a", 0).unwrap();
                    assert!(cached.node().is_none());
                    alice.rmdir("a").unwrap();
                }
                _ => {
                    somebody(thread, (root, start), None).rmdir("a").unwrap();
                    // The cached reference is released at the next call with another directory.
                    alice.unlink("other/missing").unwrap_err();
                }
            }
            assert_eq!(used(), before, "inodes in use after {way}");
        }
        cached.release(thread);
        thread.release(start, 1);
    });
}
