//! A run of a workload: what it stores, flushes and fences, and which trees it leaves.
//!
//! Invariant: the same workload on any [`Stage`] makes the same calls at the same times of the
//! clock, so it leaves the same image and the same trees.

use crate::catalogue::{Act, ActionMemory};
use crate::dump::dump;
use crate::machine::{Machine, Watched};
use crate::oracle::History;
use crate::test_thread::TestThread;
use crate::workload::Workload;
use engine::{Error, Fs, RecoveryReport};
use pmem::Recorded;

/// How the events of a workload are seen.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Source {
    /// By the recorder, which the engine calls.
    #[default]
    Recorder,
    /// By tracing the instructions of the compiled engine. One thread only.
    Instructions,
}

impl Source {
    /// The beginning of an id whose log has this source.
    pub const fn prefix(self) -> &'static str {
        match self {
            Source::Recorder => "",
            Source::Instructions => "instructions/",
        }
    }

    /// The source of an id, and the rest of it.
    pub fn split(id: &str) -> (Source, &str) {
        match id.strip_prefix(Source::Instructions.prefix()) {
            Some(rest) => (Source::Instructions, rest),
            None => (Source::Recorder, id),
        }
    }
}

/// The recording of a workload: its effects on the memory, and the expected results.
pub struct Recording {
    /// The image before.
    pub initial: Vec<u8>,
    /// The events.
    pub log: Vec<Recorded>,
    /// The trees before and after each operation.
    pub history: History,
    /// The result of each operation.
    pub results: Vec<Result<(), Error>>,
    /// The image afterwards, as programs see it.
    pub after: Vec<u8>,
    /// The number of instructions that were traced.
    pub instructions: u64,
}

/// A machine that runs a workload, and the means by which the events of its memory are logged.
pub trait Stage: Sync {
    /// The memory that the engine works on.
    type Memory: ActionMemory;
    /// Attaches as after a restart of the machine.
    fn attach(&self) -> Result<(Fs<Self::Memory>, RecoveryReport), Error>;
    /// The image's bytes.
    fn bytes(&self) -> Vec<u8>;
    /// An operation begins: events are logged from here on, after the mark of its beginning.
    fn begin(&self, index: u64);
    /// The operation has returned, which is marked; events are no longer logged.
    fn end(&self, index: u64);
    /// The events so far.
    fn take(&self) -> Vec<Recorded>;
}

/// The mark of an operation that begins.
pub fn begin_mark(index: u64) -> u64 {
    2 * index
}

/// The mark of an operation that has returned.
pub fn end_mark(index: u64) -> u64 {
    2 * index + 1
}

impl Stage for Machine {
    type Memory = Watched;

    fn attach(&self) -> Result<(Fs<Watched>, RecoveryReport), Error> {
        Machine::attach(self)
    }

    fn bytes(&self) -> Vec<u8> {
        Machine::bytes(self)
    }

    fn begin(&self, index: u64) {
        self.watch.recorder.start();
        self.watch.recorder.mark(begin_mark(index));
    }

    fn end(&self, index: u64) {
        self.watch.recorder.mark(end_mark(index));
        self.watch.recorder.stop();
    }

    fn take(&self) -> Vec<Recorded> {
        self.watch.recorder.take()
    }
}

/// Completes the message of an error.
pub fn failed(what: &str) -> impl Fn(Error) -> String + '_ {
    move |error| format!("{what} fails with {error:?}")
}

/// Runs a workload on a machine with a fresh image.
pub fn run<S: Stage>(stage: &S, workload: &Workload) -> Result<Recording, String> {
    let (mut fs, _) = stage.attach().map_err(failed("the first attach"))?;
    let mut trees = vec![{
        let thread = TestThread::new(&fs).map_err(failed("entering"))?;
        let done = crate::catalogue::set_up(&thread).and_then(|()| workload.setup.act.run(&thread));
        done.map_err(failed("the setup"))?;
        dump(&thread).map_err(|error| error.to_string())?
    }];
    if workload.setup.cold {
        fs.detach_last().map_err(failed("the clean detach"))?;
        fs = stage.attach().map_err(failed("the second attach"))?.0;
    }
    let initial = stage.bytes();
    let mut results = Vec::new();
    let thread = TestThread::new(&fs).map_err(failed("entering"))?;
    let mut leaves = None;
    for (index, operation) in workload.operations.iter().enumerate() {
        let Some(act) = operation.act else {
            leaves = Some(index as u64);
            break;
        };
        let result = match workload.other_thread && index == 1 {
            false => perform(stage, index as u64, act, &thread),
            true => elsewhere(&fs, stage, index as u64, act)?,
        };
        if let Err(error @ Error::Corrupt(_)) = result {
            return Err(format!("{} fails with {error:?}", operation.name));
        }
        results.push(result);
        trees.push(dump(&thread).map_err(|error| error.to_string())?);
    }
    if let Some(index) = leaves {
        stage.begin(index);
        drop(thread);
        let left = fs.detach_last();
        stage.end(index);
        left.map_err(failed("the clean detach"))?;
        results.push(Ok(()));
        let fs = stage.attach().map_err(failed("the second attach"))?.0;
        let thread = TestThread::new(&fs).map_err(failed("entering"))?;
        trees.push(dump(&thread).map_err(|error| error.to_string())?);
    }
    let mut given = workload.setup.slack;
    let slacks = workload.operations.iter().map(|operation| {
        let slack = operation.slack.and(given);
        given = given.and(operation.leaves);
        slack
    });
    let history = History { trees, slacks: slacks.collect() };
    Ok(Recording { initial, log: stage.take(), history, results, after: stage.bytes(), instructions: 0 })
}

fn perform<S: Stage>(stage: &S, index: u64, act: Act, thread: &TestThread<'_, S::Memory>) -> engine::Result<()> {
    stage.begin(index);
    let result = act.run(thread);
    stage.end(index);
    result
}

/// Runs a step in another thread, with its own slot.
fn elsewhere<S: Stage>(fs: &Fs<S::Memory>, stage: &S, index: u64, act: Act) -> Result<engine::Result<()>, String> {
    std::thread::scope(|scope| {
        let done = scope.spawn(|| {
            let thread = TestThread::new(fs).map_err(failed("entering"))?;
            Ok(perform(stage, index, act, &thread))
        });
        done.join().unwrap_or_else(|_| Err("the other thread panicked".to_owned()))
    })
}
