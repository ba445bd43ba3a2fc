//! Property entries as they are written: what their seals do not certify is durable first.
//!
//! Invariant: the seal of an entry certifies its own line, not the body that root and length show.
//! So an entry is made either of attributes with [`Durable`], or of a [`DurableProperty`]. Then the
//! entry needs no fence of its own before its seal: recovery takes the newer one that verifies.

use crate::components::Cachelets;
use crate::death::may_die_here;
use crate::dram::Cachelet;
use crate::error::Result;
use crate::format::{FileKind, Inode, Property};
use crate::regions::Regions;
use core::ops::Deref;
use core::sync::atomic::Ordering::Relaxed;
use pmem::{Durable, Flushed, LINE_BYTES, Memory};

/// Attributes whose root and length show only what is durable. Everything else may be changed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct DurableProperty(Property);

impl Deref for DurableProperty {
    type Target = Property;

    #[inline(always)]
    fn deref(&self) -> &Property {
        &self.0
    }
}

impl DurableProperty {
    /// Attributes of a new inode without a body.
    #[inline(always)]
    pub fn without_body(property: Property) -> DurableProperty {
        DurableProperty(Property { root: 0, size_bytes: 0, ..property })
    }

    /// Attributes with a body that is durable.
    #[inline(always)]
    pub fn with_body(property: Property, _durable: Durable) -> DurableProperty {
        DurableProperty(property)
    }

    /// The attributes of the newer entry of an inode that verifies, with the entry's sequence: its
    /// body was durable before the entry was written.
    #[inline(always)]
    pub fn on_image(inode: &Inode, number: u64, generation: u32) -> Option<(DurableProperty, u32)> {
        inode.property(number, generation).map(|(property, sequence)| (DurableProperty(property), sequence))
    }

    /// Changes all but root and length.
    #[inline(always)]
    pub fn change(&mut self, change: impl FnOnce(&mut Property)) {
        let Property { root, size_bytes, .. } = self.0;
        change(&mut self.0);
        (self.0.root, self.0.size_bytes) = (root, size_bytes);
    }
}

/// The attributes in a cachelet. Consistent only if no other thread changes them meanwhile.
#[inline]
pub(crate) fn load_property(cachelet: &Cachelet) -> Property {
    let mode = cachelet.mode.load(Relaxed);
    let is_directory = FileKind::from_mode(mode) == Some(FileKind::Directory);
    Property {
        mode,
        flags: cachelet.flags.load(Relaxed),
        links: cachelet.links(is_directory),
        uid: cachelet.uid.load(Relaxed),
        gid: cachelet.gid.load(Relaxed),
        size_bytes: if is_directory { 0 } else { cachelet.as_file().size_bytes().load(Relaxed) },
        blocks: if is_directory { 0 } else { cachelet.as_file().blocks().load(Relaxed) },
        modified_ns: cachelet.modified_ns.load(Relaxed),
        changed_ns: cachelet.changed_ns.load(Relaxed),
        root: if is_directory { 0 } else { cachelet.as_file().root().load(Relaxed) },
    }
}

impl<M: Memory> Cachelets<'_, '_, M> {
    /// The attributes of a cachelet that no other thread changes (its lock is held). A body is
    /// published there only once it is durable.
    pub(crate) fn property_now(self, cachelet: &Cachelet) -> DurableProperty {
        DurableProperty(load_property(cachelet))
    }

    /// Prefetches the line that `commit_property` will write.
    #[inline]
    pub(crate) fn prefetch_property(self, cachelet: &Cachelet) {
        let next = cachelet.sequence.load(Relaxed).wrapping_add(1);
        self.owner.fs.pm.prefetch(cachelet.inode.load(Relaxed) + LINE_BYTES * (1 + (next & 1) as u64));
    }

    /// Under the cachelet's lock: writes `property` as the inode's next property entry and flushes
    /// it; the caller fences. Everything that root and length show is durable.
    pub(crate) fn commit_property(self, cachelet: &Cachelet, property: &Property, _body: Durable) -> Result<Flushed> {
        self.write_next_property(cachelet, property)
    }

    /// [`Cachelets::commit_property`] for a body that is durable already.
    pub(crate) fn commit_attributes(self, cachelet: &Cachelet, property: &DurableProperty) -> Result<Flushed> {
        self.write_next_property(cachelet, &property.0)
    }

    fn write_next_property(self, cachelet: &Cachelet, property: &Property) -> Result<Flushed> {
        let inode = self.owner.fs.inode_at(cachelet.inode.load(Relaxed))?;
        let mut property = *property;
        if property.kind() == Some(FileKind::Directory) {
            property.changed_ns = self.changed_in_entry(cachelet, property.changed_ns)?;
        }
        let sequence = cachelet.sequence.load(Relaxed).wrapping_add(1);
        may_die_here();
        cachelet.sequence.store(sequence, Relaxed);
        let number = cachelet.number.load(Relaxed);
        Ok(write_entry(self.owner.fs, inode, &property, sequence, number, cachelet.generation.load(Relaxed)))
    }
}

/// Writes a property entry and flushes it: see [`Cachelets::commit_attributes`].
pub(crate) fn write_attributes<M: Memory>(
    regions: &Regions<M>,
    inode: &Inode,
    property: &DurableProperty,
    sequence: u32,
    number: u64,
    generation: u32,
) -> Flushed {
    write_entry(regions, inode, &property.0, sequence, number, generation)
}

#[inline]
fn write_entry<M: Memory>(
    regions: &Regions<M>,
    inode: &Inode,
    property: &Property,
    sequence: u32,
    number: u64,
    generation: u32,
) -> Flushed {
    let entry = &inode.properties[(sequence & 1) as usize];
    let words = property.words();
    let dirty = regions.pm.set_all(&entry.words, &words);
    let sealed = regions.pm.commit_record(entry, Property::seal(&words, sequence, number, generation));
    // Otherwise it lies over the newer entry, or recovery takes the other one.
    debug_assert_eq!(inode.property(number, generation).map(|newest| newest.1), Some(sequence), "recovery takes it");
    regions.pm.flush(dirty.and(sealed))
}
