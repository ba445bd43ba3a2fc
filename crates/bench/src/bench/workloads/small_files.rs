//! Small files, such as thumbnails or mails: created, written, closed, opened, read, closed; the
//! total time of the six calls.

use super::calls::{Directory, over};
use super::names::Names;
use super::system::{File, NEW, Outcomes, SystemDirectory};
use crate::bench::measure::Stopwatch;
use crate::bench::task::{PhaseName, Workers};
use crate::bench::workers::{self, Member};
use anyhow::{Result, ensure};
use std::ffi::CStr;

/// Measures files of this size.
pub fn run(bytes: u64, files: u64, workers: Workers, timer_ns: u64) -> Outcomes {
    let data = vec![0x5a; bytes as usize];
    workers::run(workers, timer_ns, &|member: &mut Member| {
        let names = Names::ascending("f", member.share(files));
        let mut buffer = vec![0; bytes as usize];
        member.phase(PhaseName::Each(format!("{} of data", crate::units::size(bytes))), |watch| {
            over(&names, watch, |name| write_and_read(name, &data, &mut buffer))
        })?;
        over(&names, &mut Stopwatch::new(0), |name| SystemDirectory::CURRENT.unlink(name)).map(drop)
    })
}

#[inline]
fn write_and_read(name: &CStr, data: &[u8], buffer: &mut [u8]) -> Result<()> {
    let file = File::open(name, NEW)?;
    file.write(data)?;
    file.close()?;
    let file = File::open(name, libc::O_RDONLY)?;
    let length = file.read(buffer)?;
    ensure!(length == data.len() && buffer.last() == data.last(), "{name:?} has {length} bytes of {}", data.len());
    file.close()
}
