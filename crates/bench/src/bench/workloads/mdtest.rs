//! The phases of mdtest in one directory: all members create directories and files; each then
//! examines, opens and removes those of its neighbour, so that it does not benefit from what it has
//! just used.

use super::calls::{Directory, over};
use super::names::Names;
use super::system::{Outcomes, SystemDirectory};
use crate::bench::task::{PhaseName, Workers};
use crate::bench::workers::{self, Member};

/// Measures with this many files, and as many directories.
pub fn run(files: u64, workers: Workers, timer_ns: u64) -> Outcomes {
    let rate = |words: &str| PhaseName::Rate(words.into());
    workers::run(workers, timer_ns, &|member: &mut Member| {
        let directory = &SystemDirectory::CURRENT;
        let own = Names::ascending("d", member.share(files));
        let neighbours = Names::shuffled("d", member.neighbours_share(files));
        member.phase(rate("directory creation"), |watch| over(&own, watch, |name| directory.mkdir(name)))?;
        member.phase(rate("directory stat"), |watch| over(&neighbours, watch, |name| directory.stat(name)))?;
        member.phase(rate("directory removal"), |watch| over(&neighbours, watch, |name| directory.rmdir(name)))?;
        let own = Names::ascending("f", member.share(files));
        let neighbours = Names::shuffled("f", member.neighbours_share(files));
        member.phase(rate("file creation"), |watch| over(&own, watch, |name| directory.create(name)))?;
        member.phase(rate("file stat"), |watch| over(&neighbours, watch, |name| directory.stat(name)))?;
        member.phase(rate("file read"), |watch| over(&neighbours, watch, |name| directory.open(name)))?;
        member.phase(rate("file removal"), |watch| over(&neighbours, watch, |name| directory.unlink(name)))
    })
}
