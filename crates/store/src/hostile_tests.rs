//! Stores and caches that another user may write: they neither do harm outside nor stop a command.

use crate::head::{At, Head, Layer, State};
use crate::layer::{BLOCK, Builder, sum};
use crate::{Cache, PushOptions, Source, Store, StoreError};
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::Arc;

const UUID: &str = "abababababababababababababababab";

/// A directory with stores and a cache.
struct Place(tempfile::TempDir);

impl Place {
    fn new() -> Place {
        // Disks have no files of 16 TiB.
        Place(tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn store(&self, name: &str) -> Store {
        let url = format!("file://{}", self.path(name).display());
        Store::open(&url, Cache::in_directory(&self.path("cache")), Arc::new(|_| true)).unwrap()
    }

    /// Writes a store whose only state is one block, and what else `add` puts into its layer.
    fn write(&self, name: &str, content: u8, size: u64, add: impl FnOnce(&mut Builder)) -> Head {
        let mut builder = Builder::default();
        builder.add(0, &[content; BLOCK], sum(&[content; BLOCK])).unwrap();
        add(&mut builder);
        let built = builder.finish().unwrap();
        let (bytes, index_bytes) = (built.bytes.len() as u64, built.index_bytes);
        let mut head = Head::new(UUID, "a stranger");
        head.layers.push(Layer { id: "01-ab".to_owned(), bytes, index_bytes, sha256: built.sha256, metadata: false });
        head.states.push(State { generation: 1, time: 1, size, tag: None, layers: vec![0] });
        fs::create_dir_all(self.path(name).join("layers")).unwrap();
        fs::write(self.path(name).join("layers/01-ab"), built.bytes).unwrap();
        self.write_head(name, &head);
        head
    }

    fn write_head(&self, name: &str, head: &Head) {
        fs::write(self.path(name).join("head"), head.encode()).unwrap();
    }
}

fn image(content: u8) -> Source {
    let path = tempfile::NamedTempFile::new().unwrap();
    fs::write(path.path(), [content; BLOCK]).unwrap();
    Source::new(path.reopen().unwrap(), BLOCK as u64, UUID.to_owned())
}

fn is_damaged<T>(result: Result<T, StoreError>, why: &str) {
    match result {
        Err(StoreError::Damaged { reason, .. }) => assert!(reason.contains(why), "{reason}"),
        Err(error) => panic!("{error}"),
        Ok(_) => panic!("it is believed"),
    }
}

#[test]
fn a_few_bytes_that_claim_quadrillions_of_zero_blocks_cost_nothing() {
    let place = Place::new();
    for size in [1 << 20, 1 << 44] {
        place.write("store", 1, size, |layer| layer.add_zeros(1, (1 << 44) - 2));
        let pulled = place.store("store").pull(&At::Newest, &place.path("pulled"), true);
        is_damaged(pulled, "not the image that it describes");
        let pushed = place.store("store").push(&image(2), &PushOptions::default()).unwrap();
        assert_eq!((pushed.generation, pushed.blocks), (2, 1));
        for content in 3..13 {
            place.store("store").push(&image(content), &PushOptions::default()).unwrap();
        }
        assert!(place.store("store").head().unwrap().layers.len() < 12, "layers above that one are merged");
    }
}

#[test]
fn counters_at_their_end_are_refused() {
    let place = Place::new();
    for spoil in [|head: &mut Head| head.epoch = u64::MAX, |head: &mut Head| head.sweeps = u64::MAX] {
        let mut head = place.write("store", 1, 4096, |_| {});
        spoil(&mut head);
        place.write_head("store", &head);
        is_damaged(place.store("store").push(&image(2), &PushOptions::default()), "counter");
        is_damaged(place.store("store").sweep(0), "counter");
    }
}

#[test]
fn a_sweep_removes_nothing_that_is_not_a_layer_of_the_store() {
    let place = Place::new();
    place.write("store", 1, 4096, |_| {});
    let (layers, precious) = (place.path("store/layers"), place.path("precious"));
    fs::write(layers.join("notes.txt"), "of a user").unwrap();
    fs::write(layers.join("02-cd"), "of a killed push").unwrap();
    assert_eq!(place.store("store").sweep(0).unwrap().objects, 1);
    assert!(layers.join("notes.txt").exists() && layers.join("01-ab").exists());
    // A name that could be a layer, behind a link in the place of the directory.
    fs::create_dir(&precious).unwrap();
    fs::write(precious.join("00-dead"), "elsewhere").unwrap();
    fs::rename(&layers, place.path("store/old")).unwrap();
    symlink(&precious, &layers).unwrap();
    assert!(place.store("store").sweep(0).is_err());
    assert!(precious.join("00-dead").exists());
    is_damaged(place.store("store").push(&image(2), &PushOptions::default()), "link");
    assert_eq!(fs::read_dir(&precious).unwrap().count(), 1, "nothing is written there either");
}

#[test]
fn a_directory_that_a_push_makes_is_for_its_user_alone() {
    let place = Place::new();
    let mode = |name: &str| fs::metadata(place.path(name)).unwrap().permissions().mode() & 0o777;
    fs::create_dir(place.path("shared")).unwrap();
    fs::set_permissions(place.path("shared"), fs::Permissions::from_mode(0o755)).unwrap();
    for name in ["above/fresh", "layers", "shared"] {
        place.store(name).push(&image(1), &PushOptions::default()).unwrap();
    }
    assert_eq!([mode("above"), mode("above/fresh"), mode("layers")], [0o700; 3]);
    // What exists is as its maker wants it, and what is new there as the umask has it.
    fs::create_dir(place.path("plain")).unwrap();
    assert_eq!((mode("shared"), mode("shared/layers")), (0o755, mode("plain")));
}

#[test]
fn links_and_pipes_in_the_place_of_objects_are_refused_and_not_followed() {
    let place = Place::new();
    place.write("store", 1, 4096, |_| {});
    symlink(place.path("made"), place.path("store/head.lock")).unwrap();
    assert!(place.store("store").push(&image(2), &PushOptions::default()).is_err());
    assert!(!place.path("made").exists());
    for object in ["layers/01-ab", "head"] {
        let path = place.path("store").join(object);
        fs::remove_file(&path).unwrap();
        rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
        is_damaged(place.store("store").pull(&At::Newest, &place.path("pulled"), false), "no regular file");
        assert!(!place.path("pulled").exists());
    }
}

#[test]
fn a_store_cannot_take_the_place_of_another_one_in_the_cache() {
    let place = Place::new();
    let good = place.write("good", b'g', 4096, |_| {});
    let mut evil = place.write("evil", b'e', 4096, |_| {});
    evil.lineage = good.lineage;
    place.write_head("evil", &evil);
    for (name, content) in [("evil", b'e'), ("good", b'g'), ("evil", b'e')] {
        let cached = place.store(name).cached().unwrap();
        assert_eq!(fs::read(cached.path).unwrap()[0], content, "{name}");
    }
}

#[test]
fn what_is_no_image_in_the_cache_is_fetched_again() {
    let place = Place::new();
    place.write("store", 1, 4096, |_| {});
    let path = place.store("store").cached().unwrap().path;
    let spoils: [&dyn Fn(&Path); 4] = [
        &|path| fs::write(path, "cut").unwrap(),
        &|path| fs::remove_file(path).and_then(|()| fs::create_dir(path)).unwrap(),
        &|path| fs::remove_file(path).and_then(|()| symlink("/nowhere", path)).unwrap(),
        &|path| fs::remove_file(path).unwrap(),
    ];
    for spoil in spoils {
        spoil(&path);
        assert_eq!(fs::read(place.store("store").cached().unwrap().path).unwrap(), [1; BLOCK]);
    }
}

#[test]
fn a_cache_that_others_may_write_is_not_used() {
    let place = Place::new();
    place.write("store", 1, 4096, |_| {});
    let cached = place.store("store").cached().unwrap().path;
    assert!(cached.exists());
    fs::set_permissions(place.path("cache"), fs::Permissions::from_mode(0o777)).unwrap();
    assert!(matches!(place.store("store").cached(), Err(StoreError::NoCache)));
    fs::set_permissions(place.path("cache"), fs::Permissions::from_mode(0o700)).unwrap();
    if rustix::process::geteuid().is_root() {
        // Its owner, or that of a directory above it, could put images there.
        for owned in [place.path("cache"), place.path("")] {
            std::os::unix::fs::chown(&owned, Some(1234), None).unwrap();
            assert!(matches!(place.store("store").cached(), Err(StoreError::NoCache)), "{}", owned.display());
            std::os::unix::fs::chown(&owned, Some(0), None).unwrap();
        }
        assert!(place.store("store").cached().is_ok());
    } else {
        eprintln!("\n*** SKIPPED: another owner of a cache: it needs root ***\n");
    }
}
