//! Applications on more processors than the machine has, in the model of [`crate::multicore`].
//!
//! As in [`super::multicore`] one thread per processor records its own calls, in turn with the
//! others. Each has its part of the files. The measured rate of one thread determines the time of
//! an instruction, although that thread is measured with all files and recorded with [`FILES`].

use super::filebench::{Application, ThreadFiles};
use super::machine::{Plan, Result, Subject, machine_for};
use super::multicore::scale;
use super::recorded_calls::{RecordedCalls, Records};
use super::{Bench, MEMORIES, Size};
use crate::multicore::calibrate::{self, Content, Distance};
use crate::multicore::coherence::{Costs, Program};
use crate::multicore::events::{Code, bring_own, events, keep_shared};
use crate::multicore::record::record;
use crate::virtual_time::held::HeldTime;
use std::io;
use std::ops::Range;
use std::sync::mpsc::{Receiver, Sender, channel};

/// Files of each thread.
const FILES: u64 = 20;
/// Measurements of the distance between processors. Tests of function need no good one.
const fn distances(size: Size) -> usize {
    size.pick(1, 15, 15) as usize
}
/// Turns of a thread before those that are recorded, so that what threads do once is done.
const fn turns_before(size: Size) -> usize {
    size.pick(2, 64, 128) as usize
}
/// More instructions than any call has that does not rewrite a directory's log. Such a call is left
/// out.
const STEPS_MAX: usize = 400_000;

/// Records the events of calls.
struct EventRecorder {
    code: Code,
    program: Program,
}

impl Records for EventRecorder {
    fn record<T>(&mut self, _: &[Range<*const u8>], call: impl FnOnce() -> T) -> io::Result<T> {
        let (steps, result) = record(STEPS_MAX, call)?;
        if let Some(steps) = steps {
            self.program.push(events(&steps, &mut self.code)?);
        }
        Ok(result)
    }
}

/// The costs of memory operations here, with the least of some distances between processors: the
/// others are delayed by other work.
pub(super) fn costs(size: Size) -> Result<Costs> {
    let costs = calibrate::measure()?;
    let distances: Vec<Distance> = (0..distances(size)).map(|_| Distance::measure()).collect();
    let least = |of: fn(&Distance) -> f64| distances.iter().map(of).fold(f64::INFINITY, f64::min);
    let (transfer_ns, handover_ns) = (least(|one| one.transfer_ns), least(|one| one.handover_ns));
    Ok(Distance { transfer_ns, handover_ns }.costs(&costs))
}

/// What the model gives for some numbers of threads.
pub(super) struct Modelled {
    /// Thousands of operations per second with each number.
    pub rates: Vec<f64>,
    /// The waits for locks and lines of other threads as a part of the threads' time, with the last
    /// number. Those of buffered stores count, too.
    pub waited: f64,
}

/// The model's rates with each of some numbers of threads, of which the last is the greatest.
/// `rate` is that of one thread as measured.
pub(super) fn rates(
    bench: &Bench<'_>,
    (subject, application): (Subject, Application),
    counts: &[u64],
    (rate, costs): (f64, &Costs),
) -> Result<Modelled> {
    let threads = counts.last().copied().unwrap_or(1);
    let turns = bench.size.pick(1, 6, 6) as usize;
    let programs = programs(bench, (subject, application), threads, turns)?;
    let calls = programs.iter().map(Vec::len).sum::<usize>() as f64 / (threads as f64 * turns as f64);
    let operations_per_call = application.operations() / calls;
    let measured_ns = operations_per_call * 1e6 / rate.max(f64::MIN_POSITIVE);
    let costs = calibrate::fit(costs, measured_ns, &Content::of(&programs));
    let duration_ns = measured_ns * calls * bench.size.pick(2, 8, 40) as f64;
    let mut modelled = Modelled { rates: Vec::new(), waited: 0.0 };
    for count in counts {
        let (rate, outcome) = scale(&programs, *count as usize, &costs, duration_ns, 0);
        modelled.rates.push(rate * 1e3 * operations_per_call);
        modelled.waited = outcome.waits.iter().map(|(_, ns)| ns).sum::<f64>() / (outcome.ns * *count as f64);
    }
    Ok(modelled)
}

/// The recorded calls of each thread.
fn programs(
    bench: &Bench<'_>,
    (subject, application): (Subject, Application),
    threads: u64,
    turns: usize,
) -> Result<Vec<Program>> {
    let files = threads * FILES;
    let content_bytes = files * application.mean_bytes() * 8;
    let mut machine = machine_for(subject, Plan { content_bytes, ..Plan::of_files(files * 4) }, threads as usize)?;
    let set = application.file_set(files);
    machine.with(&mut |calls| set.make(calls))?;
    machine.remount(MEMORIES[0])?;
    let machine = &*machine;
    let mut programs = std::thread::scope(|scope| -> Result<Vec<Program>> {
        let (answer, answers) = channel();
        let (mut orders, mut running) = (Vec::new(), Vec::new());
        for (thread, files) in set.files.chunks(FILES as usize).enumerate() {
            let (order, received) = channel();
            let answer = answer.clone();
            orders.push(order);
            running.push(scope.spawn(move || -> Result<Program> {
                let mut recorder = EventRecorder { code: Code::new()?, program: Program::new() };
                let served = machine.with(&mut |calls| {
                    let recorded = RecordedCalls::new(calls, &mut recorder);
                    recorded.run(|_| {
                        let own = ThreadFiles::new(&recorded, application, files.to_vec(), thread as u64);
                        serve(&recorded, own, &received, &answer)
                    })
                });
                // The answer that is waited for.
                let _ = answer.send(());
                served.map(|()| recorder.program)
            }));
        }
        let _held = HeldTime::new();
        let before = turns_before(bench.size);
        for turn in 0..before + turns {
            bench.step(&format!("{application:?}, {}, turn {turn} of {threads} threads recorded", subject.name()))?;
            for order in &orders {
                // A thread that failed says why when it is joined.
                if order.send(turn >= before).is_ok() {
                    answers.recv().map_err(|_| posix::Errno::EIO)?;
                }
            }
        }
        drop(orders);
        running.into_iter().map(|thread| thread.join().unwrap_or(Err(posix::Errno::EIO.into()))).collect()
    })?;
    bring_own(&mut programs);
    keep_shared(&mut programs);
    Ok(programs)
}

/// A thread's loop: a turn for each order, which says whether it is recorded.
fn serve(
    recorded: &RecordedCalls<'_, EventRecorder>,
    mut own: ThreadFiles<'_>,
    orders: &Receiver<bool>,
    answer: &Sender<()>,
) -> Result<()> {
    for is_recorded in orders {
        recorded.switch(is_recorded);
        own.turn()?;
        // Without a receiver the experiment is ending.
        let _ = answer.send(());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::Times;
    use super::*;

    #[test]
    fn threads_with_own_files_record_all_their_calls() {
        let bench = Bench { size: Size::Tiny, times: Times::Clock, stop: &|| false, progress: &|_| {} };
        for application in [Application::Varmail, Application::FileServer] {
            for subject in [Subject::Nova, Subject::DirectFs] {
                let programs = programs(&bench, (subject, application), 3, 2).expect("programs");
                // A whole file is read by at least two calls.
                let reads = if application == Application::Varmail { 2 } else { 1 };
                let calls = 2 * (application.operations() as usize + reads);
                assert!(programs.len() == 3 && programs.iter().all(|program| program.len() == calls), "{subject:?}");
                assert!(programs.iter().flatten().all(|call| !call.is_empty()), "{subject:?}");
            }
        }
    }
}
