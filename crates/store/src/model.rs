//! A store in memory whose requests fail as real ones do, and whose clients die.

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::future::{Either, pending, select};
use futures_util::stream::{self, BoxStream};
use futures_util::{StreamExt, TryStreamExt};
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, GetResultPayload, ListResult, MultipartUpload, ObjectMeta, ObjectStore,
    PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
};
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::time::Duration;
use tokio::sync::Notify;

/// Numbers from a seed.
#[derive(Debug)]
pub struct Random(AtomicU64);

impl Random {
    pub fn new(seed: u64) -> Random {
        Random(AtomicU64::new(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1))
    }

    /// A number below this one.
    pub fn below(&self, bound: u64) -> u64 {
        let mut x = self.0.load(SeqCst);
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        self.0.store(x, SeqCst);
        x.wrapping_mul(0x2545_f491_4f6c_dd1d) % bound
    }
}

/// Bytes of a part of an answer that comes in parts, and of one that ends early.
const PART: usize = 16 << 10;
const SHORT_PART: usize = 512;

/// What happens to a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    None,
    Slow,
    Refused,
    AnswerLost,
    NoAnswer,
    NoAnswerNotPerformed,
    Twice,
    Short,
    WrongObject,
    Flipped,
}

const FAULTS: [Fault; 9] = [
    Fault::Slow,
    Fault::Refused,
    Fault::AnswerLost,
    Fault::NoAnswer,
    Fault::NoAnswerNotPerformed,
    Fault::Twice,
    Fault::Short,
    Fault::WrongObject,
    Fault::Flipped,
];

/// Where a client dies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Death {
    /// At its request with this number, from 0 on.
    pub request: usize,
    /// After the request took effect, or before.
    pub is_after: bool,
}

/// One process that uses the store.
#[derive(Debug)]
pub struct Client {
    store: Arc<InMemory>,
    random: Random,
    /// One request in so many meets a fault; zero: none.
    fault_every: u64,
    death: Option<Death>,
    requests: AtomicUsize,
    is_dead: AtomicBool,
    died: Notify,
    /// No request gets an answer.
    pub is_silent: AtomicBool,
    /// Seconds until a request is performed; zero: at once.
    pub request_seconds: AtomicU64,
    /// Seconds before each part of an answer; zero: answers come at once.
    pub part_seconds: AtomicU64,
    /// Parts of an answer after which no further one comes; zero: all come.
    pub parts_max: AtomicU64,
}

impl Client {
    pub fn new(store: &Arc<InMemory>, seed: u64, fault_every: u64, death: Option<Death>) -> Arc<Client> {
        Arc::new(Client {
            store: Arc::clone(store),
            random: Random::new(seed),
            fault_every,
            death,
            requests: AtomicUsize::new(0),
            is_dead: AtomicBool::new(false),
            died: Notify::new(),
            is_silent: AtomicBool::new(false),
            request_seconds: AtomicU64::new(0),
            part_seconds: AtomicU64::new(0),
            parts_max: AtomicU64::new(0),
        })
    }

    /// Number of requests so far.
    pub fn requests(&self) -> usize {
        self.requests.load(SeqCst)
    }

    /// Runs work of this client until it ends; `None`: the client died.
    pub async fn live<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        match select(std::pin::pin!(work), std::pin::pin!(self.died.notified())).await {
            Either::Left((value, _)) => Some(value),
            Either::Right(_) => None,
        }
    }

    async fn die(&self) -> ! {
        self.is_dead.store(true, SeqCst);
        self.died.notify_one();
        pending().await
    }

    /// Performs a request, or not, and answers, or not.
    async fn request<T, F: Future<Output = Result<T>>>(&self, perform: impl Fn() -> F) -> Result<(T, Fault)> {
        let number = self.requests.fetch_add(1, SeqCst);
        if self.is_dead.load(SeqCst) {
            self.die().await;
        }
        if self.is_silent.load(SeqCst) {
            pending().await
        }
        if let Some(death) = self.death.filter(|death| death.request == number) {
            if death.is_after {
                let _ = perform().await;
            }
            self.die().await;
        }
        let lost = || Error::Generic { store: "model", source: "503 Slow Down".into() };
        let fault = match self.fault_every {
            0 => Fault::None,
            every if self.random.below(every) > 0 => Fault::None,
            _ => FAULTS[self.random.below(FAULTS.len() as u64) as usize],
        };
        match fault {
            Fault::Refused => return Err(lost()),
            Fault::NoAnswerNotPerformed => pending().await,
            Fault::Slow => tokio::time::sleep(Duration::from_secs(self.random.below(60))).await,
            Fault::Twice => drop(perform().await),
            _ => match self.request_seconds.load(SeqCst) {
                0 => tokio::task::yield_now().await,
                seconds => tokio::time::sleep(Duration::from_secs(seconds)).await,
            },
        }
        let answer = perform().await;
        match fault {
            Fault::AnswerLost => Err(lost()),
            Fault::NoAnswer => pending().await,
            fault => answer.map(|answer| (answer, fault)),
        }
    }

    /// Another object, if there is one.
    async fn another(&self, than: &Path) -> Option<Bytes> {
        let listed: Vec<ObjectMeta> = self.store.list(None).try_collect().await.ok()?;
        let others: Vec<_> = listed.into_iter().filter(|meta| meta.location != *than).collect();
        let chosen = others.get(self.random.below(others.len().max(1) as u64) as usize)?;
        self.store.get_opts(&chosen.location, GetOptions::default()).await.ok()?.bytes().await.ok()
    }
}

impl std::fmt::Display for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("model")
    }
}

#[async_trait]
impl ObjectStore for Client {
    async fn put_opts(&self, location: &Path, payload: PutPayload, opts: PutOptions) -> Result<PutResult> {
        let perform = async || self.store.put_opts(location, payload.clone(), opts.clone()).await;
        Ok(self.request(perform).await?.0)
    }

    async fn put_multipart_opts(&self, _: &Path, _: PutMultipartOptions) -> Result<Box<dyn MultipartUpload>> {
        Err(Error::NotImplemented { operation: "multipart".into(), implementer: "model".into() })
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        let perform = async || self.store.get_opts(location, options.clone()).await;
        let (answer, fault) = self.request(perform).await?;
        let (meta, range, attributes, extensions) =
            (answer.meta.clone(), answer.range.clone(), answer.attributes.clone(), answer.extensions.clone());
        let mut bytes = answer.bytes().await?.to_vec();
        match fault {
            Fault::Short => bytes.truncate(self.random.below(bytes.len() as u64 + 1) as usize),
            Fault::WrongObject => {
                if let Some(other) = self.another(location).await {
                    let length = bytes.len().min(other.len());
                    bytes = other[other.len() - length..].to_vec();
                }
            }
            Fault::Flipped if !bytes.is_empty() => {
                let at = self.random.below(bytes.len() as u64) as usize;
                bytes[at] ^= 1 << self.random.below(8);
            }
            _ => {}
        }
        let (pause, parts_max) = (self.part_seconds.load(SeqCst), self.parts_max.load(SeqCst) as usize);
        let parts: Vec<Bytes> = match (pause, parts_max) {
            (0, 0) => vec![bytes.into()],
            (_, 0) => bytes.chunks(PART).map(Bytes::copy_from_slice).collect(),
            _ => bytes.chunks(SHORT_PART).map(Bytes::copy_from_slice).collect(),
        };
        let sent = stream::iter(parts).enumerate().then(move |(number, part)| async move {
            if parts_max != 0 && number >= parts_max {
                pending::<()>().await;
            }
            tokio::time::sleep(Duration::from_secs(pause)).await;
            Ok(part)
        });
        let payload = GetResultPayload::Stream(sent.boxed());
        Ok(GetResult { payload, meta, range, attributes, extensions })
    }

    fn delete_stream(&self, locations: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        // Objects are removed one by one, so that a client can die between them.
        let client = Arc::new(Client {
            store: Arc::clone(&self.store),
            random: Random::new(self.random.below(u64::MAX)),
            fault_every: self.fault_every,
            death: None,
            requests: AtomicUsize::new(0),
            is_dead: AtomicBool::new(false),
            died: Notify::new(),
            is_silent: AtomicBool::new(false),
            request_seconds: AtomicU64::new(0),
            part_seconds: AtomicU64::new(0),
            parts_max: AtomicU64::new(0),
        });
        let first = self.requests.fetch_add(1, SeqCst);
        let deadly = self.is_dead.load(SeqCst) || self.death.is_some_and(|death| death.request <= first);
        let (is_after, is_first) = (self.death.is_some_and(|death| death.is_after), AtomicBool::new(true));
        if deadly {
            self.is_dead.store(true, SeqCst);
            self.died.notify_one();
        }
        locations
            .then(move |path| {
                let (client, is_first) = (Arc::clone(&client), is_first.swap(false, SeqCst));
                async move {
                    let path = path?;
                    if deadly && !(is_after && is_first) {
                        pending::<()>().await;
                    }
                    let remove = async || {
                        let one = stream::iter([Ok(path.clone())]).boxed();
                        client.store.delete_stream(one).try_collect::<Vec<_>>().await
                    };
                    client.request(remove).await?;
                    Ok(path)
                }
            })
            .boxed()
    }

    fn list(&self, _: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        unreachable!("all listings are below a prefix")
    }

    fn list_with_offset(&self, _: Option<&Path>, _: &Path) -> BoxStream<'static, Result<ObjectMeta>> {
        unreachable!("listings are whole")
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        let perform = async || self.store.list_with_delimiter(prefix).await;
        Ok(self.request(perform).await?.0)
    }

    async fn copy_opts(&self, _: &Path, _: &Path, _: CopyOptions) -> Result<()> {
        Err(Error::NotImplemented { operation: "copy".into(), implementer: "model".into() })
    }
}
