//! States that are read while they are fetched: from a store that counts, is cut, or returns wrong
//! bytes; with files that killed processes left.

use crate::cache::Cache;
use crate::error::StoreError;
use crate::head::{At, Head, Layer, State};
use crate::image::Source;
use crate::layer::{BLOCK, Builder, sum};
use crate::lazy::{Lazy, Limits, Part, Unread};
use crate::location::Location;
use crate::model::Random;
use crate::model_tests::UUID;
use crate::objects::Objects;
use crate::pull::pull;
use crate::push::{PushOptions, push};
use async_trait::async_trait;
use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::stream::{self, BoxStream};
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, GetResultPayload, ListResult, MultipartUpload, ObjectMeta, ObjectStore,
    ObjectStoreExt, PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
};
use std::fs::File;
use std::future::Future;
use std::ops::Range;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};

/// What a store does with requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    None,
    /// It refuses them.
    Refuses,
    /// It never answers.
    Silent,
    /// So many answers have a wrong bit.
    Flips(usize),
}

/// A store in memory that counts, and fails.
#[derive(Debug)]
struct Faulty {
    store: InMemory,
    bytes: AtomicU64,
    requests: AtomicUsize,
    fault: Mutex<Fault>,
    flipped: AtomicUsize,
}

impl Faulty {
    fn set(&self, fault: Fault) {
        *self.fault.lock().unwrap() = fault;
        self.flipped.store(0, SeqCst);
    }

    /// Bytes that it returned since the last call.
    fn taken(&self) -> u64 {
        self.bytes.swap(0, SeqCst)
    }
}

impl std::fmt::Display for Faulty {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("faulty")
    }
}

#[async_trait]
impl ObjectStore for Faulty {
    async fn put_opts(&self, location: &Path, payload: PutPayload, opts: PutOptions) -> Result<PutResult> {
        self.store.put_opts(location, payload, opts).await
    }

    async fn put_multipart_opts(&self, _: &Path, _: PutMultipartOptions) -> Result<Box<dyn MultipartUpload>> {
        Err(Error::NotImplemented { operation: "multipart".into(), implementer: "faulty".into() })
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        self.requests.fetch_add(1, SeqCst);
        let fault = *self.fault.lock().unwrap();
        match fault {
            Fault::Refuses => return Err(Error::Generic { store: "faulty", source: "connection refused".into() }),
            Fault::Silent => std::future::pending().await,
            Fault::None | Fault::Flips(_) => {}
        }
        let answer = self.store.get_opts(location, options).await?;
        let (meta, range, attributes, extensions) =
            (answer.meta.clone(), answer.range.clone(), answer.attributes.clone(), answer.extensions.clone());
        let mut bytes = answer.bytes().await?.to_vec();
        self.bytes.fetch_add(bytes.len() as u64, SeqCst);
        if let Fault::Flips(most) = fault
            && self.flipped.fetch_add(1, SeqCst) < most
        {
            let middle = bytes.len() / 2;
            bytes[middle] ^= 4;
        }
        let payload = GetResultPayload::Stream(stream::iter([Ok(Bytes::from(bytes))]).boxed());
        Ok(GetResult { payload, meta, range, attributes, extensions })
    }

    fn delete_stream(&self, locations: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        self.store.delete_stream(locations)
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.store.list(prefix)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.store.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, _: &Path, _: &Path, _: CopyOptions) -> Result<()> {
        Err(Error::NotImplemented { operation: "copy".into(), implementer: "faulty".into() })
    }
}

/// A store, a cache, and what was said.
struct World {
    store: Arc<Faulty>,
    directory: tempfile::TempDir,
    said: Arc<Mutex<Vec<String>>>,
}

const PATIENT: Limits = Limits { first: 600, later: 600, cache_bytes: u64::MAX };

impl World {
    fn new() -> World {
        let store = Faulty {
            store: InMemory::new(),
            bytes: AtomicU64::new(0),
            requests: AtomicUsize::new(0),
            fault: Mutex::new(Fault::None),
            flipped: AtomicUsize::new(0),
        };
        World { store: Arc::new(store), directory: tempfile::tempdir_in("/dev/shm").unwrap(), said: Arc::default() }
    }

    fn location(&self) -> Location {
        let store = Arc::clone(&self.store) as _;
        Location { store, prefix: Path::from("images/one"), shown: "faulty://one".to_owned() }
    }

    fn objects(&self) -> Objects {
        Objects::new(self.location(), Arc::new(|_| true))
    }

    fn cache(&self) -> Cache {
        Cache::in_directory(&self.directory.path().join("cache"))
    }

    fn push(&self, content: &[u8], layer_blocks: usize) {
        self.push_with(content, layer_blocks, Vec::new());
    }

    fn push_with(&self, content: &[u8], layer_blocks: usize, metadata: Vec<Range<u64>>) {
        let file = tempfile::tempfile().unwrap();
        file.set_len(content.len() as u64).unwrap();
        for (number, block) in content.chunks(BLOCK).enumerate().filter(|(_, block)| block.iter().any(|&b| b != 0)) {
            file.write_all_at(block, (number * BLOCK) as u64).unwrap();
        }
        let source = Source::new(file, content.len() as u64, UUID.to_owned()).with_metadata(metadata);
        let options = PushOptions { layer_blocks, writer: "a test".to_owned(), ..PushOptions::default() };
        wait(push(&self.objects(), &Cache::none(), &source, &options)).unwrap();
    }

    fn part(&self) -> Part {
        let head = wait(self.objects().existing_head()).unwrap().head;
        Part::new("faulty://one", &head, head.newest().unwrap())
    }

    fn file(&self) -> File {
        self.cache().part(self.part().identity()).unwrap().expect("nobody else has it")
    }

    fn open(&self, limits: Limits) -> Lazy {
        self.open_part(self.part(), limits)
    }

    fn open_part(&self, part: Part, limits: Limits) -> Lazy {
        let said = Arc::clone(&self.said);
        let say = move |text: &str| said.lock().unwrap().push(text.to_owned());
        let file = self.cache().part(part.identity()).unwrap().expect("nobody else has it");
        Lazy::over(self.location(), part, self.cache(), file, limits, Box::new(say)).unwrap()
    }

    fn said(&self) -> String {
        self.said.lock().unwrap().join("\n")
    }
}

fn wait<T>(work: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(work)
}

/// Bytes that do not compress, one block of zeros in eight.
fn noise(blocks: usize, seed: u64) -> Vec<u8> {
    let random = Random::new(seed);
    let mut bytes = vec![0; blocks * BLOCK];
    for (number, block) in bytes.chunks_mut(BLOCK).enumerate().filter(|(number, _)| number % 8 != 5) {
        let words = block.chunks_mut(8);
        words.for_each(|word| word.copy_from_slice(&random.below(u64::MAX).to_le_bytes()));
        block[0] = number as u8 | 1;
    }
    bytes
}

fn read(lazy: &Lazy, offset: usize, length: usize) -> std::result::Result<Vec<u8>, Unread> {
    let mut bytes = vec![7; length];
    lazy.read(offset as u64, &mut bytes).map(|()| bytes)
}

/// Reads what must be there, also where a busy machine is slower than the limit of a read.
fn eventually(lazy: &Lazy, offset: usize, expected: &[u8]) {
    let end = std::time::Instant::now() + std::time::Duration::from_secs(300);
    let found = std::iter::repeat_with(|| read(lazy, offset, expected.len()));
    let found = found.take_while(|_| std::time::Instant::now() < end).find_map(|found| found.ok());
    assert_eq!(found.as_deref(), Some(expected));
}

#[test]
fn a_read_fetches_the_blocks_around_it_and_a_second_process_none() {
    let world = World::new();
    let content = noise(4096, 1);
    world.push(&content, 1 << 15);
    world.store.taken();
    let lazy = world.open(PATIENT);
    assert!(world.store.taken() < content.len() as u64 / 100, "the indexes");
    for at in [0, 7_000_001, content.len() - 100] {
        assert_eq!(read(&lazy, at, 100).unwrap(), content[at..at + 100]);
    }
    assert!(world.store.taken() < content.len() as u64 / 10, "of each place one frame");
    drop(lazy);
    let again = world.open(PATIENT);
    assert!(world.store.taken() < 4096, "the head");
    for at in [0, 7_000_001, content.len() - 100] {
        assert_eq!(read(&again, at, 100).unwrap(), content[at..at + 100]);
    }
    assert_eq!(world.store.taken(), 0);
    // In order the whole takes few requests: each fetches more than the one before.
    let before = world.store.requests.load(SeqCst);
    for at in (0..content.len()).step_by(128 << 10) {
        assert_eq!(read(&again, at, 128 << 10).unwrap(), content[at..at + (128 << 10)]);
    }
    assert!(world.store.requests.load(SeqCst) - before < 20);
    again.close();
    let found = world.cache().image(world.part().identity(), content.len() as u64).unwrap();
    assert!(found.1, "what was read whole counts as fetched");
    assert_eq!(std::fs::read(found.0).unwrap(), content);
}

#[test]
fn scattered_metadata_is_there_before_the_first_read_in_few_requests() {
    let world = World::new();
    let content = noise(8192, 9);
    let metadata: Vec<_> = (0..8192).step_by(64).map(|block| block..block + 1).collect();
    world.push_with(&content, 1 << 15, metadata.clone());
    let of_metadata = |at: &Range<u64>| at.start as usize * BLOCK..at.end as usize * BLOCK;
    world.store.taken();
    let lazy = world.open(PATIENT);
    let taken = world.store.taken();
    assert!(taken < content.len() as u64 / 10, "{taken}: neither data nor more than the indexes");
    let before = world.store.requests.load(SeqCst);
    for at in metadata.iter().map(of_metadata) {
        assert_eq!(read(&lazy, at.start, BLOCK).unwrap(), content[at]);
    }
    assert_eq!(world.store.requests.load(SeqCst), before);
    assert!(read(&lazy, 0, content.len()).unwrap() == content);
    drop(lazy);
    // A small cache is left to what is read.
    std::fs::remove_dir_all(world.directory.path().join("cache/parts")).unwrap();
    world.store.taken();
    let lazy = world.open(Limits { cache_bytes: 1 << 20, ..PATIENT });
    assert!(world.store.taken() < 4096, "the head");
    // A store that is cut while it is opened leaves what is missing to the reads.
    drop(lazy);
    let part = world.part();
    world.store.set(Fault::Refuses);
    let lazy = world.open_part(part, Limits { first: 1, later: 1, ..PATIENT });
    assert_eq!(read(&lazy, 0, BLOCK), Err(Unread));
    world.store.set(Fault::None);
    eventually(&lazy, 0, &content[..BLOCK]);
}

#[test]
fn any_part_of_any_state_reads_as_a_pull_of_it() {
    for seed in 1..=8 {
        let (world, random) = (World::new(), Random::new(seed));
        let mut content = noise(200, seed);
        for _ in 0..5 {
            for _ in 0..random.below(30) {
                let at = random.below((content.len() / BLOCK) as u64) as usize * BLOCK;
                let value = if random.below(3) == 0 { 0 } else { random.below(256) as u8 };
                content[at..at + BLOCK].fill(value);
            }
            content.resize(BLOCK * (150 + random.below(100) as usize), 0);
            world.push(&content, 20);
            let pulled = tempfile::tempfile().unwrap();
            wait(pull(&world.objects(), &At::Newest, &pulled)).unwrap();
            let lazy = world.open(PATIENT);
            for _ in 0..50 {
                let at = random.below(content.len() as u64) as usize;
                let length = random.below((content.len() - at).min(300_000) as u64 + 1) as usize;
                let found = read(&lazy, at, length).unwrap();
                assert!(found == content[at..at + length], "seed {seed}: {length} bytes at {at}");
                let mut expected = vec![0; length];
                pulled.read_exact_at(&mut expected, at as u64).unwrap();
                assert!(found == expected);
            }
            assert_eq!(read(&lazy, content.len() - 1, 2), Err(Unread), "beyond the end");
            // What it calls content is all that is not zero.
            let mut at = 0;
            while let Some(range) = lazy.next_content(at) {
                assert!(content[at as usize..range.start as usize].iter().all(|&byte| byte == 0));
                at = range.end;
            }
            assert!(content[at as usize..].iter().all(|&byte| byte == 0));
        }
    }
}

#[test]
fn many_threads_that_read_one_place_ask_once() {
    let world = World::new();
    let content = noise(64, 3);
    world.push(&content, 1 << 15);
    let lazy = world.open(PATIENT);
    let before = world.store.requests.load(SeqCst);
    std::thread::scope(|scope| {
        for _ in 0..16 {
            scope.spawn(|| assert!(read(&lazy, 0, content.len()).unwrap() == content));
        }
    });
    assert_eq!(world.store.requests.load(SeqCst) - before, 1);
}

#[test]
fn a_store_that_is_cut_fails_reads_in_time_and_they_go_on_when_it_is_back() {
    for fault in [Fault::Refuses, Fault::Silent] {
        let world = World::new();
        let content = noise(1024, 2);
        world.push(&content, 1 << 15);
        let lazy = world.open(Limits { first: 1, later: 1, ..PATIENT });
        eventually(&lazy, 0, &content[..100]);
        world.store.set(fault);
        std::thread::scope(|scope| {
            let reads: Vec<_> = (0..8).map(|_| scope.spawn(|| read(&lazy, 2 << 20, 100))).collect();
            assert!(reads.into_iter().all(|read| read.join().unwrap() == Err(Unread)));
        });
        assert_eq!(read(&lazy, 50, 100).unwrap(), content[50..150], "what is in the cache stays readable");
        let said = world.said();
        assert!(said.contains("faulty://one") && said.contains("EIO") && said.contains("check network"), "{said}");
        world.store.set(Fault::None);
        eventually(&lazy, 2 << 20, &content[2 << 20..][..100]);
    }
}

#[test]
fn a_damaged_frame_is_fetched_again_and_never_returned() {
    let world = World::new();
    let content = noise(256, 4);
    world.push(&content, 1 << 15);
    let lazy = world.open(PATIENT);
    world.store.set(Fault::Flips(2));
    assert_eq!(read(&lazy, 0, 100).unwrap(), content[..100]);
    world.store.set(Fault::Flips(usize::MAX));
    assert_eq!(read(&lazy, 128 * BLOCK, 100), Err(Unread));
    assert!(world.said().contains("is damaged"), "{}", world.said());
    world.store.set(Fault::None);
    assert_eq!(read(&lazy, 128 * BLOCK, 100).unwrap(), content[128 * BLOCK..][..100]);
    // An index is looked at, too.
    drop(lazy);
    std::fs::remove_dir_all(world.directory.path().join("cache/indexes")).unwrap();
    let (part, file) = (world.part(), world.file());
    world.store.set(Fault::Flips(usize::MAX));
    let refused = Lazy::over(world.location(), part, world.cache(), file, PATIENT, Box::new(|_| {}));
    assert!(matches!(refused, Err(StoreError::Damaged { .. })));
}

#[test]
fn what_a_killed_process_left_counts_only_if_it_is_right() {
    let world = World::new();
    let content = noise(512, 5);
    world.push(&content, 100);
    let lazy = world.open(PATIENT);
    assert!(read(&lazy, 0, content.len()).unwrap() == content);
    drop(lazy);
    // Half a block, another block's content, zeros after a power failure, a cut file.
    let file = world.file();
    file.write_all_at(&content[..2000], 9 * BLOCK as u64).unwrap();
    file.write_all_at(&content[..BLOCK], 200 * BLOCK as u64).unwrap();
    file.write_all_at(&[0; BLOCK], 300 * BLOCK as u64).unwrap();
    // A block that is zero in the image.
    file.write_all_at(&content[..BLOCK], 13 * BLOCK as u64).unwrap();
    file.set_len(400 * BLOCK as u64).unwrap();
    drop(file);
    world.store.taken();
    let lazy = world.open(PATIENT);
    assert!(read(&lazy, 0, content.len()).unwrap() == content);
    let again = world.store.taken();
    assert!(again > 0 && again < content.len() as u64, "only these frames: {again}");
}

#[test]
fn the_file_keeps_within_the_limit_of_the_cache_and_reads_stay_right() {
    let world = World::new();
    let content = noise(10_240, 6);
    world.push(&content, 1 << 15);
    let cache_bytes = 10 << 20;
    let lazy = world.open(Limits { cache_bytes, ..PATIENT });
    let part = world.directory.path().join("cache/parts").join(world.part().identity());
    let random = Random::new(6);
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                for _ in 0..400 {
                    let at = random.below(content.len() as u64 - 200_000) as usize;
                    assert!(read(&lazy, at, 200_000).unwrap() == content[at..at + 200_000]);
                    let taken = part.metadata().unwrap().blocks() * 512;
                    // Between two looks several threads fetch a window.
                    assert!(taken < 2 * cache_bytes, "{taken}");
                }
            });
        }
    });
    drop(lazy);
    // A file that is larger than the limit now is emptied.
    let lazy = world.open(Limits { cache_bytes: 1 << 20, ..PATIENT });
    assert!(part.metadata().unwrap().blocks() * 512 <= 1 << 20);
    assert!(read(&lazy, 0, 100_000).unwrap() == content[..100_000]);
}

#[test]
fn quadrillions_of_zero_blocks_cost_nothing_to_read() {
    let world = World::new();
    let mut builder = Builder::default();
    builder.add(0, &[1; BLOCK], sum(&[1; BLOCK])).unwrap();
    builder.add_zeros(1, (1 << 44) - 2);
    let built = builder.finish().unwrap();
    let mut head = Head::new(UUID, "a stranger");
    let (bytes, index_bytes) = (built.bytes.len() as u64, built.index_bytes);
    head.layers.push(Layer { id: "01-ab".to_owned(), bytes, index_bytes, sha256: built.sha256, metadata: false });
    head.states.push(State { generation: 1, time: 1, size: 1 << 43, tag: None, layers: vec![0] });
    let (object, path) = (Path::from("images/one/layers/01-ab"), Path::from("images/one/head"));
    wait(world.store.put(&object, PutPayload::from(built.bytes))).unwrap();
    wait(world.store.put(&path, PutPayload::from(head.encode()))).unwrap();
    let lazy = world.open(PATIENT);
    assert_eq!(read(&lazy, 4095, 2).unwrap(), [1, 0]);
    assert_eq!(read(&lazy, (1 << 43) - 5000, 5000).unwrap(), [0; 5000]);
    assert_eq!((lazy.next_content(0), lazy.next_content(4096)), (Some(0..4096), None));
    assert_eq!(lazy.content_bytes(), 4096);
}

#[test]
fn what_is_no_file_in_the_place_of_a_part_is_refused_and_not_followed() {
    let world = World::new();
    world.push(&noise(8, 7), 1 << 15);
    let part = world.directory.path().join("cache/parts").join(world.part().identity());
    drop(world.file());
    let precious = world.directory.path().join("precious");
    std::fs::write(&precious, "of a user").unwrap();
    std::fs::remove_file(&part).unwrap();
    std::os::unix::fs::symlink(&precious, &part).unwrap();
    assert!(world.cache().part(world.part().identity()).is_err());
    assert_eq!(std::fs::read(&precious).unwrap(), b"of a user");
    std::fs::remove_file(&part).unwrap();
    rustix::fs::mknodat(rustix::fs::CWD, &part, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
    assert!(world.cache().part(world.part().identity()).is_err());
    // A second process does not get the file while the first one has it.
    std::fs::remove_file(&part).unwrap();
    let held = world.file();
    assert!(world.cache().part(world.part().identity()).unwrap().is_none());
    drop(held);
    assert!(world.cache().part(world.part().identity()).unwrap().is_some());
}
