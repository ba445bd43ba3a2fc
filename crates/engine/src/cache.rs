//! Cachelets: making, finding, referencing and giving them back; and the property entries that persist what they say.

use crate::dram::Cachelet;
use crate::error::Result;
use crate::format::Property;
use crate::fs::Thread;
use pmem::{Flushed, Memory, Proof};

impl<M: Memory> Thread<'_, M> {
    /// The attributes of a cachelet as one consistent set, without a lock. For a directory `root` and `blocks` are zero.
    pub(crate) fn property(&self, _cachelet: &Cachelet) -> Result<Property> {
        todo!()
    }

    /// Under the cachelet's lock: writes `property` as the inode's next property entry and flushes it; the caller fences. `proof` says that
    /// what `property.root` names is durable.
    pub(crate) fn commit_property(
        &self,
        _cachelet: &Cachelet,
        _property: &Property,
        _proof: impl Proof,
    ) -> Result<Flushed> {
        todo!()
    }

    /// Under the cachelet's lock, after the fence: shows `property` to everybody.
    pub(crate) fn publish_property(&self, _cachelet: &Cachelet, _property: &Property) {
        todo!()
    }
}
