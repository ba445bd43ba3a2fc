//! Records a workload from the instructions that the compiler made of the engine, on plain memory
//! with flushes, as it is used on persistent memory: nothing of the engine takes part in the
//! recording.
//!
//! Three checks come before any crash: the logged stores explain every byte of the image
//! ([`stepper`](crate::stepper)), the child finds the trees and results of the run with the
//! recorder, and both logs agree ([`agreement`](crate::agreement)). A store past the recorder, a
//! flush of a wrong line or a copy that streams other bytes than it reports is found here.

use crate::agreement::differences;
use crate::machine::Machine;
use crate::recording::{self, Recording, Stage};
use crate::stepper::{Stepper, boundary};
use crate::workload::Workload;
use engine::{Error, Fs, RecoveryReport};
use pmem::{Direct, Recorded};

/// A machine inside the traced child.
struct Stepped<'m>(&'m Machine);

impl Stage for Stepped<'_> {
    type Memory = Direct;

    fn attach(&self) -> Result<(Fs<Direct>, RecoveryReport), Error> {
        self.0.attach_unwatched()
    }

    fn bytes(&self) -> Vec<u8> {
        self.0.bytes()
    }

    fn begin(&self, _: u64) {
        boundary();
    }

    fn end(&self, _: u64) {
        boundary();
    }

    fn take(&self) -> Vec<Recorded> {
        Vec::new()
    }
}

/// Runs a workload on a machine with a fresh image, and replaces the log of the same run with the
/// recorder by that of the instructions.
pub fn record(
    stepper: &mut Stepper,
    machine: &Machine,
    workload: &Workload,
    recorded: Recording,
) -> Result<Recording, String> {
    if workload.other_thread {
        return Err("only one thread can be traced: use a workload without an exclamation mark".to_owned());
    }
    let area = machine.unwatched();
    let trace = stepper.trace(&area, || {
        let found = recording::run(&Stepped(machine), workload)?;
        same(&found, &recorded)
    })?;
    if trace.initial != recorded.initial {
        return Err("the images before the operation differ".to_owned());
    }
    let found = differences(&trace.initial, &recorded.log, &trace.log);
    if !found.is_empty() {
        return Err(format!("the recorder and the instructions differ: {}", found.join("; ")));
    }
    Ok(Recording { log: trace.log, instructions: trace.instructions, ..recorded })
}

/// Whether the same calls had the same results and left the same files.
fn same(found: &Recording, recorded: &Recording) -> Result<(), String> {
    let equal = [
        ("the image", found.after == recorded.after),
        ("a tree", found.history.trees == recorded.history.trees),
        ("a result", found.results == recorded.results),
    ];
    match equal.iter().find(|(_, equal)| !equal) {
        None => Ok(()),
        Some((what, _)) => Err(format!("{what} differs from that of the run with the recorder")),
    }
}
