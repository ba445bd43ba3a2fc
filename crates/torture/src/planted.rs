//! Defects, planted into what a workload did.
use crate::explore::Recording;
use pmem::Recorded;
/// A defect.
pub struct Defect {
    /// Its name.
    pub name: &'static str,
}
impl Defect {
    /// The log with the defect.
    pub fn plant(&self, recording: &Recording) -> Result<Vec<Recorded>, String> {
        Ok(recording.log.clone())
    }
}
