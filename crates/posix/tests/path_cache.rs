//! Paths through the path cache lead to the same files as without it, whatever other callers do to
//! the directories on the way.

use crate::common::{ALICE, BOB, ROOT, Session, inside};
use posix::path::{LastLink, Outcome, PathBuffer};
use posix::{Credentials, Errno, PathCache};

/// The inode number of a path's file from stat; by the fast path if it applies.
fn number(session: &Session<'_, '_>, path: &str) -> Result<u64, Errno> {
    let mut buffer = PathBuffer::new();
    match session.caller.stat_path(&session.walk_start, path.as_bytes(), LastLink::Follow, &mut buffer)? {
        Outcome::Inside(attributes) => Ok(attributes.number),
        Outcome::Left(exit) => panic!("left the mount: {exit:?}"),
    }
}

/// A caller with a path cache.
fn with_path_cache<'t, 'f>(mut session: Session<'t, 'f>, path_cache: &'t PathCache) -> Session<'t, 'f> {
    session.caller = session.caller.with_path_cache(path_cache);
    session
}

#[test]
fn a_cached_path_ends_where_a_directory_of_it_is_renamed_replaced_removed_or_closed() {
    inside(|thread, root| {
        let path_cache = PathCache::new();
        let everybody = Session::new(thread, root, ROOT);
        let alice = with_path_cache(Session::new(thread, root, ALICE), &path_cache);
        for directory in ["a", "a/b", "a/b/c", "z", "z/b", "z/b/c"] {
            everybody.mkdir(directory, 0o755).unwrap();
        }
        everybody.touch("a/b/c/f", 0o644).unwrap();
        everybody.touch("z/b/c/f", 0o644).unwrap();
        let (first, other) = (number(&everybody, "a/b/c/f").unwrap(), number(&everybody, "z/b/c/f").unwrap());
        let often = |path: &str| {
            let result = number(&alice, path);
            for _ in 0..4 {
                assert_eq!(number(&alice, path), result);
            }
            result
        };
        assert_eq!(often("a/b/c/f"), Ok(first));

        everybody.rename("a/b", "a/moved", 0).unwrap();
        assert_eq!(often("a/b/c/f"), Err(Errno::ENOENT));
        assert_eq!(often("a/moved/c/f"), Ok(first));
        everybody.rename("a/moved", "a/b", 0).unwrap();
        assert_eq!(often("a/b/c/f"), Ok(first));

        everybody.rename("a", "z", libc::RENAME_EXCHANGE).unwrap();
        assert_eq!((often("a/b/c/f"), often("z/b/c/f")), (Ok(other), Ok(first)));

        everybody.unlink("a/b/c/f").unwrap();
        assert_eq!(often("a/b/c/f"), Err(Errno::ENOENT));
        everybody.rename("z/b/c", "a/b/c", 0).unwrap();
        assert_eq!(often("a/b/c/f"), Ok(first), "another directory has the name");

        everybody.chmod("a/b", 0o700).unwrap();
        assert_eq!(often("a/b/c/f"), Err(Errno::EACCES));
        everybody.chmod("a/b", 0o711).unwrap();
        assert_eq!(often("a/b/c/f"), Ok(first));
        everybody.chown("a", Some(1001), Some(1001)).unwrap();
        everybody.chmod("a", 0o750).unwrap();
        assert_eq!(often("a/b/c/f"), Err(Errno::EACCES));
    });
}

#[test]
fn a_cached_path_of_one_user_is_not_open_to_another() {
    inside(|thread, root| {
        let path_cache = PathCache::new();
        let s = Session::new(thread, root, ROOT);
        s.mkdir("a", 0o750).unwrap();
        s.mkdir("a/b", 0o755).unwrap();
        s.touch("a/b/f", 0o644).unwrap();
        s.chown("a", Some(1000), Some(60)).unwrap();
        let file = number(&s, "a/b/f");
        let who: [(Credentials<'static>, _); 4] =
            [(ROOT, file), (ALICE, file), (BOB, file), (Credentials::user(1001, 1001, &[]), Err(Errno::EACCES))];
        for round in 0..4 {
            for (credentials, expected) in &who {
                for _ in 0..3 {
                    let somebody = with_path_cache(Session::new(thread, root, *credentials), &path_cache);
                    assert_eq!(number(&somebody, "a/b/f"), *expected, "round {round}: {credentials:?}");
                }
            }
        }
    });
}

/// A simple generator: the same numbers for the same seed.
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) % end
    }
}

#[test]
fn lookups_with_and_without_the_path_cache_agree() {
    const NAMES: [&str; 3] = ["a", "b", "c"];
    for seed in 0..20 {
        inside(|thread, root| {
            let path_cache = PathCache::new();
            let plain = Session::new(thread, root, ALICE);
            let trodden = with_path_cache(Session::new(thread, root, ALICE), &path_cache);
            let everybody = Session::new(thread, root, ROOT);
            let mut draw = Random(seed);
            let mut found = 0;
            let path = |draw: &mut Random| {
                let depth = 1 + draw.below(4);
                (0..depth).map(|_| NAMES[draw.below(3) as usize]).collect::<Vec<_>>().join("/")
            };
            for step in 0..2_000 {
                let (one, other) = (path(&mut draw), path(&mut draw));
                // Failures do not matter.
                let _ = match draw.below(12) {
                    0..=4 => everybody.mkdir(&one, 0o755),
                    5 => everybody.touch(&one, 0o644),
                    6 => everybody.rename(&one, &other, 0),
                    7 => everybody.rename(&one, &other, libc::RENAME_EXCHANGE),
                    8 => everybody.rmdir(&one),
                    9 => everybody.unlink(&one),
                    10 => everybody.chmod(&one, 0o700),
                    _ => everybody.chmod(&one, 0o755),
                };
                for _ in 0..6 {
                    // Few paths, so that they repeat.
                    let looked = format!("{}/{}", path(&mut Random(draw.below(8))), NAMES[draw.below(3) as usize]);
                    let expected = number(&plain, &looked);
                    found += u64::from(expected.is_ok());
                    assert_eq!(number(&trodden, &looked), expected, "seed {seed}, step {step}: {looked}");
                }
            }
            assert!(found > 500, "seed {seed}: {found}");
        });
    }
}
