//! Push, merge, sweep, takeover and pull on the model. Clocks are virtual.

use crate::cache::Cache;
use crate::defects::{DEFECTS, Defect, inject};
use crate::error::StoreError;
use crate::head::{At, State};
use crate::image::Source;
use crate::layer::BLOCK;
use crate::location::Location;
use crate::merge::merge;
use crate::model::{Client, Death, Random};
use crate::objects::Objects;
use crate::pull::pull;
use crate::push::{PushOptions, Pushed, push};
use crate::sweep::sweep;
use crate::writers_tests::{fenced, increments};
use futures_util::future::{Either, join4, select};
use object_store::memory::InMemory;
use object_store::path::Path;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs::File;
use std::future::Future;
use std::ops::RangeInclusive;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

pub const UUID: &str = "00112233445566778899aabbccddeeff";
/// When the virtual clock starts: later than the objects' times, which are those of this machine.
pub const START: u64 = 4_000_000_000;
const GRACE: u64 = 3600;
/// Blocks of a layer, so that states have several.
const LAYER_BLOCKS: usize = 3;

/// An image of a few blocks: one number for each, zero for a hole.
pub type Picture = Vec<u8>;

pub fn source(picture: &Picture) -> Source {
    let file = tempfile::tempfile().unwrap();
    let size = (picture.len() * BLOCK) as u64;
    file.set_len(size).unwrap();
    for (number, &content) in picture.iter().enumerate().filter(|(_, content)| **content != 0) {
        let block: Vec<u8> = (0..BLOCK).map(|at| content.wrapping_add((at / 512) as u8) | 1).collect();
        file.write_all_at(&block, (number * BLOCK) as u64).unwrap();
    }
    // Every other block, so that states have layers of metadata.
    let metadata = (0..picture.len() as u64).step_by(2).map(|block| block..block + 1).collect();
    Source::new(file, size, UUID.to_owned()).with_metadata(metadata)
}

pub fn content(file: &File) -> Vec<u8> {
    let mut bytes = vec![0; file.metadata().unwrap().len() as usize];
    file.read_exact_at(&mut bytes, 0).unwrap();
    bytes
}

pub fn bytes_of(picture: &Picture) -> Vec<u8> {
    let mut bytes = vec![0; picture.len() * BLOCK];
    for (block, &content) in bytes.chunks_mut(BLOCK).zip(picture).filter(|(_, content)| **content != 0) {
        (0..BLOCK).for_each(|at| block[at] = content.wrapping_add((at / 512) as u8) | 1);
    }
    bytes
}

pub fn objects(client: &Arc<Client>) -> Objects {
    let location =
        Location { store: Arc::clone(client) as _, prefix: Path::from("images/one"), shown: "model://one".to_owned() };
    Objects::new(location, Arc::new(|_| true))
}

/// Runs a story on a clock that moves when nothing else does.
pub fn on_virtual_time<T>(story: impl Future<Output = T>) -> T {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    builder.enable_all().start_paused(true).build().unwrap().block_on(story)
}

pub fn options(tag: &str, now: u64) -> PushOptions {
    PushOptions {
        tag: Some(tag.to_owned()),
        layer_blocks: LAYER_BLOCKS,
        writer: "a test".to_owned(),
        now,
        ..PushOptions::default()
    }
}

/// The seeds of a storm: from STORE_SEED on, to STORE_SEEDS.
pub fn seeds(default: u64) -> RangeInclusive<u64> {
    let number = |name| std::env::var(name).ok().and_then(|text| text.parse().ok());
    number("STORE_SEED").unwrap_or(1)..=number("STORE_SEEDS").unwrap_or(default)
}

/// A store, and a client without faults.
pub struct World {
    pub store: Arc<InMemory>,
    directory: tempfile::TempDir,
}

impl World {
    pub fn new() -> World {
        World { store: Arc::default(), directory: tempfile::tempdir().unwrap() }
    }

    pub fn client(&self) -> Arc<Client> {
        Client::new(&self.store, 1, 0, None)
    }

    pub fn cache(&self, name: &str) -> Cache {
        Cache::in_directory(&self.directory.path().join(name))
    }

    pub async fn push(&self, picture: &Picture, tag: &str) -> Result<Pushed, StoreError> {
        push(&objects(&self.client()), &self.cache("writer"), &source(picture), &options(tag, START)).await
    }

    pub async fn pull(&self, at: At) -> Result<(State, Vec<u8>), StoreError> {
        let file = tempfile::tempfile().unwrap();
        let state = pull(&objects(&self.client()), &at, &file).await?;
        Ok((state, content(&file)))
    }

    pub async fn newest(&self) -> Vec<u8> {
        self.pull(At::Newest).await.expect("there is a whole state").1
    }

    fn object_count(&self) -> usize {
        self.store.storage_count()
    }
}

trait Count {
    fn storage_count(&self) -> usize;
}

impl Count for InMemory {
    fn storage_count(&self) -> usize {
        use futures_util::StreamExt;
        use object_store::ObjectStore;
        futures_util::FutureExt::now_or_never(self.list(None).count()).expect("memory answers at once")
    }
}

pub fn old_picture() -> Picture {
    vec![1, 2, 3, 0, 5, 6, 7, 0, 9, 10, 11, 12]
}

pub fn new_picture() -> Picture {
    vec![1, 20, 30, 4, 0, 6, 70, 0, 9, 100, 0, 12, 13, 0, 15]
}

#[test]
fn a_push_that_is_killed_at_any_request_leaves_the_old_state_or_the_new_one() {
    let mut deaths = 0;
    for is_after in [false, true] {
        for has_old in [false, true] {
            for request in 0.. {
                let is_dead = on_virtual_time(push_killed(Death { request, is_after }, has_old));
                deaths += usize::from(is_dead);
                if !is_dead {
                    break;
                }
            }
        }
    }
    assert!(deaths > 20, "{deaths}");
}

/// Returns whether the client died.
async fn push_killed(death: Death, has_old: bool) -> bool {
    let world = World::new();
    if has_old {
        world.push(&old_picture(), "old").await.unwrap();
    }
    let client = Client::new(&world.store, 1, 0, Some(death));
    let (cache, pushed) = (world.cache("writer"), source(&new_picture()));
    let ended = client.live(push(&objects(&client), &cache, &pushed, &options("new", START))).await;
    let (old, new) = (bytes_of(&old_picture()), bytes_of(&new_picture()));
    match world.pull(At::Newest).await {
        Ok((_, found)) => assert!(found == new || (has_old && found == old), "{death:?}: a state that never was"),
        Err(error) => assert!(!has_old && matches!(error, StoreError::NoImage { .. }), "{death:?}: {error}"),
    }
    assert!(ended.is_none() || world.newest().await == new, "{death:?}: an acknowledged state is lost");
    // The next push goes on, and what no state needs is removed.
    world.push(&new_picture(), "again").await.unwrap();
    assert_eq!(world.newest().await, new, "{death:?}");
    sweep(&objects(&world.client()), 0, START + 1).await.unwrap();
    assert_eq!(world.newest().await, new, "{death:?}: swept");
    assert!(!has_old || world.pull(At::Tag("old".into())).await.unwrap().1 == old, "{death:?}: a kept state is lost");
    ended.is_none()
}

#[test]
fn a_push_after_a_killed_one_sends_only_what_is_missing() {
    on_virtual_time(async {
        let world = World::new();
        let picture: Picture = (1..=60).collect();
        let client = Client::new(&world.store, 1, 0, Some(Death { request: 20, is_after: true }));
        let (cache, whole) = (world.cache("writer"), source(&picture));
        assert!(client.live(push(&objects(&client), &cache, &whole, &options("a", START))).await.is_none());
        let pushed = world.push(&picture, "a").await.unwrap();
        assert!(pushed.blocks < 30, "{pushed:?}");
        assert_eq!(world.newest().await, bytes_of(&picture));
    });
}

#[test]
fn an_unchanged_image_costs_one_request() {
    on_virtual_time(async {
        let world = World::new();
        let cache = world.cache("writer");
        let untagged = PushOptions { tag: None, ..options("", START) };
        push(&objects(&world.client()), &cache, &source(&old_picture()), &untagged).await.unwrap();
        let client = world.client();
        let pushed = push(&objects(&client), &cache, &source(&old_picture()), &untagged).await.unwrap();
        assert!(!pushed.is_new);
        assert_eq!(client.requests(), 1);
    });
}

#[test]
fn an_image_that_shrinks_and_grows_again_does_not_get_old_blocks_back() {
    on_virtual_time(async {
        let world = World::new();
        for (tag, picture) in [("large", vec![1, 2, 3, 4, 5]), ("small", vec![1, 2]), ("grown", vec![1, 2, 0, 0, 0])] {
            world.push(&picture, tag).await.unwrap();
            assert_eq!(world.newest().await, bytes_of(&picture), "{tag}");
        }
    });
}

/// Ten small states, the last of which is to be merged.
async fn many_layers(world: &World) -> Picture {
    let mut picture: Picture = (1..=40).collect();
    world.push(&picture, "base").await.unwrap();
    for step in 0..10 {
        picture[step * 3] = 100 + step as u8;
        picture[5] = 200 + step as u8;
        picture[30] = if step % 2 == 0 { 0 } else { 77 };
        let untagged = PushOptions { tag: None, ..options("", START) };
        push(&objects(&world.client()), &world.cache("writer"), &source(&picture), &untagged).await.unwrap();
    }
    picture
}

#[test]
fn a_merge_or_sweep_that_is_killed_at_any_request_changes_no_state() {
    for is_after in [false, true] {
        for is_sweep in [false, true] {
            for request in 0.. {
                let is_dead = on_virtual_time(async {
                    let world = World::new();
                    let picture = many_layers(&world).await;
                    if is_sweep {
                        merge(&objects(&world.client()), &world.cache("writer"), START).await.unwrap();
                    }
                    let client = Client::new(&world.store, 1, 0, Some(Death { request, is_after }));
                    let (merged, cache) = (objects(&client), world.cache("writer"));
                    let ended = match is_sweep {
                        true => client.live(sweep(&merged, 0, START + 9)).await.map(|swept| swept.unwrap().objects > 0),
                        false => client.live(merge(&merged, &cache, START)).await.map(|merged| merged.unwrap() >= 8),
                    };
                    assert_ne!(ended, Some(false), "there is something to do");
                    assert_eq!(world.newest().await, bytes_of(&picture));
                    sweep(&objects(&world.client()), 0, START + 9).await.unwrap();
                    assert_eq!(world.newest().await, bytes_of(&picture), "{request} {is_after}");
                    assert_eq!(world.pull(At::Tag("base".into())).await.unwrap().1, bytes_of(&(1..=40).collect()));
                    ended.is_none()
                });
                if !is_dead {
                    assert!(request > 2);
                    break;
                }
            }
        }
    }
}

#[test]
fn merges_keep_the_number_of_objects_small() {
    on_virtual_time(async {
        let world = World::new();
        let picture = many_layers(&world).await;
        let before = world.object_count();
        assert!(merge(&objects(&world.client()), &world.cache("writer"), START).await.unwrap() >= 8);
        sweep(&objects(&world.client()), GRACE, START + GRACE / 2).await.unwrap();
        assert!(world.object_count() >= before, "readers of the old state have time to end");
        sweep(&objects(&world.client()), GRACE, START + 2 * GRACE).await.unwrap();
        assert!(world.object_count() < before);
        assert_eq!(world.newest().await, bytes_of(&picture));
    });
}

#[test]
fn another_image_is_refused() {
    on_virtual_time(async {
        let world = World::new();
        world.push(&old_picture(), "old").await.unwrap();
        let file = tempfile::tempfile().unwrap();
        file.set_len(BLOCK as u64).unwrap();
        let other = Source::new(file, BLOCK as u64, "ff".repeat(16));
        let refused = push(&objects(&world.client()), &Cache::none(), &other, &options("x", START)).await.unwrap_err();
        assert!(matches!(refused, StoreError::OtherImage { .. }), "{refused}");
    });
}

/// What a storm knows of its states.
#[derive(Default)]
struct Known {
    /// What each tag stands for.
    pictures: BTreeMap<String, Picture>,
    /// Tags of pushes that succeeded.
    acknowledged: Vec<String>,
    violations: Vec<String>,
}

/// Two writers, a process that merges and sweeps, and a reader, all with faults; writers also die.
async fn storm(seed: u64) -> Vec<String> {
    let (world, known) = (World::new(), RefCell::new(Known::default()));
    let begun = tokio::time::Instant::now();
    let now = || START + begun.elapsed().as_secs();
    let random = Random::new(seed);
    let pause = async |most| tokio::time::sleep(Duration::from_millis(random.below(most))).await;
    let writer = async |name: &str| {
        let mut picture = old_picture();
        for step in 0..12 {
            for _ in 0..=random.below(5) {
                let (at, content) = (random.below(picture.len() as u64) as usize, random.below(4) * random.below(60));
                picture[at] = content as u8;
            }
            let tag = format!("{name}-{step}");
            known.borrow_mut().pictures.insert(tag.clone(), picture.clone());
            let death = Death { request: random.below(12) as usize, is_after: random.below(2) == 0 };
            let death = Some(death).filter(|_| random.below(3) == 0);
            let client = Client::new(&world.store, random.below(u64::MAX), 12, death);
            let (pushed, cache, options) = (source(&picture), world.cache(name), options(&tag, now()));
            if let Some(Ok(_)) = client.live(push(&objects(&client), &cache, &pushed, &options)).await {
                known.borrow_mut().acknowledged.push(tag);
            }
            pause(400_000).await;
        }
    };
    let keeper = async {
        for _ in 0..30 {
            pause(400_000).await;
            let client = Client::new(&world.store, random.below(u64::MAX), 12, None);
            // A failure means that nothing was done.
            let _ = match random.below(2) {
                0 => merge(&objects(&client), &world.cache("keeper"), now()).await.map(drop),
                _ => sweep(&objects(&client), GRACE, now()).await.map(drop),
            };
        }
    };
    let reader = async {
        for _ in 0..40 {
            pause(300_000).await;
            let client = Client::new(&world.store, random.below(u64::MAX), 6, None);
            let file = tempfile::tempfile().unwrap();
            let result = pull(&objects(&client), &At::Newest, &file).await;
            judge(&known, result.map(|state| (state, content(&file))));
        }
    };
    join4(writer("a"), writer("b"), keeper, reader).await;
    // At the end every state that was acknowledged is there, also after a sweep of all else.
    for is_swept in [false, true] {
        if is_swept && let Err(error) = sweep(&objects(&world.client()), 0, now() + 1).await {
            known.borrow_mut().violations.push(format!("the last sweep: {error}"));
        }
        let tags = known.borrow().acknowledged.clone();
        for tag in tags {
            let found = world.pull(At::Tag(tag.clone())).await;
            if let Err(error) = &found {
                known.borrow_mut().violations.push(format!("{tag} is lost: {error}"));
            }
            judge(&known, found);
        }
    }
    known.into_inner().violations
}

/// A reader sees a state that was pushed, whole, or a failure that names the store's silence.
fn judge(known: &RefCell<Known>, result: Result<(State, Vec<u8>), StoreError>) {
    let mut known = known.borrow_mut();
    let violation = match result {
        Ok((state, found)) => {
            let picture = state.tag.as_ref().and_then(|tag| known.pictures.get(tag));
            let is_whole = picture.is_some_and(|picture| bytes_of(picture) == found);
            (!is_whole).then(|| format!("generation {} ({:?}) is not what was pushed", state.generation, state.tag))
        }
        Err(StoreError::NoImage { .. } | StoreError::Request { .. }) => None,
        Err(error) => Some(format!("a reader: {error}")),
    };
    known.violations.extend(violation);
}

#[test]
fn whatever_fails_and_dies_a_reader_sees_one_state_whole_and_nothing_acknowledged_is_lost() {
    for seed in seeds(12) {
        let violations = on_virtual_time(storm(seed));
        assert!(violations.is_empty(), "seed {seed}: {violations:#?}");
    }
}

/// A sweep comes between the uploads of a push and its head. Returns what is wrong.
async fn swept_between() -> Result<(), String> {
    let world = World::new();
    world.push(&old_picture(), "old").await.map_err(|error| error.to_string())?;
    for request in 1..6 {
        let client = Client::new(&world.store, 1, 0, Some(Death { request, is_after: true }));
        let cache = world.cache(&format!("killed at {request}"));
        let pushed = source(&new_picture());
        let killed = client.live(push(&objects(&client), &cache, &pushed, &options("new", START))).await;
        sweep(&objects(&world.client()), 0, START + 9).await.map_err(|error| error.to_string())?;
        let again = push(&objects(&world.client()), &cache, &pushed, &options("new", START)).await;
        again.map_err(|error| format!("{killed:?}, then {error}"))?;
        world.pull(At::Newest).await.map_err(|error| format!("a layer is gone: {error}"))?;
        world.push(&old_picture(), "old").await.map_err(|error| error.to_string())?;
    }
    swept_while_pushing().await
}

/// A sweep removes the layers of a push that is still at work. Returns what is wrong.
async fn swept_while_pushing() -> Result<(), String> {
    let world = World::new();
    world.push(&old_picture(), "old").await.map_err(|error| error.to_string())?;
    // The watcher of the push lets a sweep run when all blocks are compared.
    let (client, sweeper) = (world.client(), world.client());
    let location = Location { store: client, prefix: Path::from("images/one"), shown: "model://one".to_owned() };
    let turn = Arc::new(tokio::sync::Notify::new());
    let watched = Arc::clone(&turn);
    let objects_of_push = Objects::new(
        location,
        Arc::new(move |_| {
            watched.notify_one();
            true
        }),
    );
    let (cache, picture) = (world.cache("writer"), (101..=160).collect::<Picture>());
    let pushed = source(&picture);
    let options = options("new", START);
    let pushing = push(&objects_of_push, &cache, &pushed, &options);
    let sweeping = async {
        turn.notified().await;
        for _ in 0..3 {
            tokio::task::yield_now().await;
            let _ = sweep(&objects(&sweeper), 0, START + 9).await;
        }
    };
    let (pushed, ()) = futures_util::future::join(pushing, sweeping).await;
    pushed.map_err(|error| format!("a sweep stopped a push: {error}"))?;
    let (_, found) = world.pull(At::Newest).await.map_err(|error| format!("a layer is gone: {error}"))?;
    if found == bytes_of(&picture) { Ok(()) } else { Err("another state".to_owned()) }
}

#[test]
fn a_sweep_during_a_push_costs_work_and_no_layer() {
    on_virtual_time(swept_between()).unwrap();
}

#[test]
fn a_push_wins_beside_sweeps_without_an_end() {
    on_virtual_time(async {
        let world = World::new();
        world.push(&old_picture(), "old").await.unwrap();
        let (writer, sweeper) = (world.client(), world.client());
        // A sweep ends between any two requests of the push.
        writer.request_seconds.store(60, SeqCst);
        let sweeping = async {
            loop {
                sweep(&objects(&sweeper), 0, START + 9).await.unwrap();
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
        };
        let picture: Picture = (101..=160).collect();
        let (objects_of_push, cache, pushed) = (objects(&writer), world.cache("writer"), source(&picture));
        let options = options("new", START);
        let pushing = push(&objects_of_push, &cache, &pushed, &options);
        let Either::Left((pushed, _)) = select(std::pin::pin!(pushing), std::pin::pin!(sweeping)).await;
        pushed.unwrap();
        assert_eq!(world.newest().await, bytes_of(&picture));
        // What is not needed goes as soon as no push is at work.
        world.push(&old_picture(), "new").await.unwrap();
        sweep(&objects(&world.client()), 0, START + 9).await.unwrap();
        let head = objects(&world.client()).existing_head().await.unwrap().head;
        assert_eq!(world.object_count(), head.layers.len() + 1);
    });
}

#[test]
fn a_store_that_is_silent_is_given_up_after_two_minutes() {
    on_virtual_time(async {
        let world = World::new();
        world.push(&old_picture(), "old").await.unwrap();
        let client = world.client();
        client.is_silent.store(true, SeqCst);
        let (silent, cache, picture) = (objects(&client), world.cache("writer"), source(&new_picture()));
        let file = tempfile::tempfile().unwrap();
        let ended = [
            silent.head().await.err(),
            silent.list().await.err(),
            push(&silent, &cache, &picture, &options("new", START)).await.err(),
            pull(&silent, &At::Newest, &file).await.err(),
            sweep(&silent, 0, START).await.err(),
            silent.put_layer("0-0", vec![7; 1 << 20].into()).await.err(),
        ];
        let begun = tokio::time::Instant::now();
        for error in ended {
            let said = error.unwrap().to_string();
            assert!(said.contains("model://one/") && said.contains("has not answered for 1"), "{said}");
        }
        assert!(begun.elapsed() < Duration::from_secs(6 * 150));
        // One that is silent after the first part of each answer is no better.
        client.is_silent.store(false, SeqCst);
        client.parts_max.store(1, SeqCst);
        let begun = tokio::time::Instant::now();
        assert!(silent.head().await.is_err_and(|error| error.to_string().contains("has not answered for 1")));
        assert!(begun.elapsed() < Duration::from_secs(150));
    });
}

/// A store whose answer comes in parts, one a minute less a second.
#[test]
fn an_answer_may_take_as_long_as_its_parts_arrive() {
    on_virtual_time(async {
        let world = World::new();
        let client = world.client();
        let objects = objects(&client);
        // What cannot be compressed.
        let (random, file) = (Random::new(1), tempfile::tempfile().unwrap());
        let bytes: Vec<u8> = (0..1 << 20).map(|_| random.below(256) as u8).collect();
        file.write_all_at(&bytes, 0).unwrap();
        let source = Source::new(file, bytes.len() as u64, UUID.to_owned());
        let in_one_layer = PushOptions { layer_blocks: bytes.len() / BLOCK, ..options("slow", START) };
        push(&objects, &world.cache("writer"), &source, &in_one_layer).await.unwrap();
        let head = objects.head().await.unwrap().unwrap().head;
        let layers = head.layers_of(head.newest().unwrap());
        let layer = layers.iter().max_by_key(|layer| layer.bytes).unwrap();
        client.part_seconds.store(59, SeqCst);
        let begun = tokio::time::Instant::now();
        objects.layer(layer).await.unwrap();
        assert!(begun.elapsed() > Duration::from_secs(600));
    });
}

/// Push, merge and sweep make a state superfluous while a reader fetches it. Returns the violation.
async fn swept_while_reading() -> Result<(), String> {
    let world = World::new();
    let untagged = PushOptions { tag: None, ..options("", START) };
    let old: Picture = (1..=60).collect();
    let push = async |picture: &Picture| {
        push(&objects(&world.client()), &world.cache("writer"), &source(picture), &untagged).await.map(drop)
    };
    push(&old).await.map_err(|error| error.to_string())?;
    let turn = Arc::new(tokio::sync::Notify::new());
    let watched = Arc::clone(&turn);
    let location =
        Location { store: world.client(), prefix: Path::from("images/one"), shown: "model://one".to_owned() };
    let objects_of_reader = Objects::new(
        location,
        Arc::new(move |_| {
            watched.notify_one();
            true
        }),
    );
    let file = tempfile::tempfile().unwrap();
    let mut reading = std::pin::pin!(pull(&objects_of_reader, &At::Newest, &file));
    match select(&mut reading, std::pin::pin!(turn.notified())).await {
        Either::Left(_) => return Err("the reader ended before the sweep".to_owned()),
        Either::Right(_) => {}
    }
    push(&vec![77; 60]).await.map_err(|error| error.to_string())?;
    let merged = merge(&objects(&world.client()), &world.cache("writer"), START).await;
    assert!(merged.map_err(|error| error.to_string())? > 20, "the new state needs none of the old layers");
    sweep(&objects(&world.client()), GRACE, START + 9).await.map_err(|error| error.to_string())?;
    reading.await.map_err(|error| format!("a reader cannot end: {error}"))?;
    if content(&file) == bytes_of(&old) { Ok(()) } else { Err("another state".to_owned()) }
}

#[test]
fn a_reader_of_a_state_that_is_kept_no_longer_can_end() {
    on_virtual_time(swept_while_reading()).unwrap();
}

/// Whether a defect shows.
fn is_found(defect: Defect) -> bool {
    inject(Some(defect));
    let found = std::panic::catch_unwind(|| {
        on_virtual_time(fenced()).is_err()
            || on_virtual_time(swept_between()).is_err()
            || on_virtual_time(swept_while_reading()).is_err()
            || (1..=8).any(|seed| !on_virtual_time(increments(seed)).is_empty())
            || (1..=40).any(|seed| !on_virtual_time(storm(seed)).is_empty())
    });
    inject(None);
    found.unwrap_or(true)
}

#[test]
fn each_injected_defect_is_found() {
    let missed: Vec<_> = DEFECTS.iter().filter(|&&defect| !is_found(defect)).collect();
    assert!(missed.is_empty(), "not found: {missed:?}");
}
