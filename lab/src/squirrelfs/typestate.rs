//! The order of synchronous soft updates as types.
//!
//! An object of the image is a [`Typed`] with two states. The state of persistence goes from
//! [`Dirty`] to [`InFlight`] by a flush and to [`Clean`] by a fence. The state of operation says
//! which step of a call was done. Each step takes the object by value and demands the states of
//! all objects that must be durable before it:
//!
//! - An entry gets a number only after the inode is initialised or has the further link.
//! - Links are decremented only after the entry has lost its number.
//! - Pages lose their owner only after the size, or the last name, is gone; an inode is freed only
//!   after its pages are.
//! - The size covers pages only after they are written.
//! - Until a rename's new entry has the number, the old one keeps it; the pointer stays until the
//!   old one has lost it.
//!
//! A step without the states that it demands does not compile. The types do not say to which object
//! a state belongs: that is the caller's task. Steps on inodes, entries and descriptors are in this
//! module; recovery and mkfs, which run alone, store without it. Content is streamed by `data.rs`
//! and `symlink`, and ends as [`Pages::written`] or [`Pages::written_in_place`].
//!
//! The names of the states are those of the SquirrelFS paper (LeBlanc et al., OSDI 2024).

use super::SquirrelFs;
use super::format::{Dentry, Descriptor, Inode, NAME_WORDS, name_words, number_kind};
use crate::error::Result;
use crate::inode::pair;
use crate::substrate::Extents;
use engine::Attributes;
use engine::format::FileKind;
use pmem::{Durable, Flushed, Layout, Memory, Region};
use smallvec::SmallVec;
use std::marker::PhantomData;

/// Stored; anything may survive a crash.
pub(super) struct Dirty(());
/// Flushed.
pub(super) struct InFlight(Flushed);
/// Durable by a fence of this call.
pub(super) struct Clean(Durable);
/// Durable by an earlier call.
pub(super) struct Unchanged(());

/// Durable.
pub(super) trait Persistent {}
impl Persistent for Clean {}
impl Persistent for Unchanged {}

macro_rules! operations {
    ($($(#[$doc:meta])* $name:ident;)*) => {$($(#[$doc])* pub(super) enum $name {})*};
}

operations! {
    /// In use.
    Start;
    /// Not in use.
    Free;
    /// An inode is filled.
    Init;
    /// An inode has one more link.
    IncLink;
    /// An inode has one link less.
    DecLink;
    /// An inode has no name and is not open.
    Orphan;
    /// A file's size covers new pages.
    IncSize;
    /// A file's size no longer covers pages.
    DecSize;
    /// An entry has a name; a page has a descriptor.
    Alloc;
    /// An entry has its number.
    Complete;
    /// An entry lost its number.
    ClearIno;
    /// An entry lost its name; a page its descriptor.
    Dealloc;
    /// A rename's new entry points to the old one.
    SetRenamePointer;
    /// A rename's new entry has the number, too.
    InitRenamePointer;
    /// A rename's old entry, after the new one has the number.
    Renamed;
    /// Pages have an owner.
    Mapped;
    /// Pages have content.
    Written;
    /// Pages lost their owner.
    Unmapped;
}

/// An inode that a new entry may name.
pub(super) trait AddLink {}
impl AddLink for Init {}
impl AddLink for IncLink {}

/// An inode that pages may point to.
pub(super) trait Initialized {}
impl Initialized for Init {}
impl Initialized for Start {}

/// What shows that a name is gone.
pub(super) trait NameGone {}
impl NameGone for ClearIno {}
impl NameGone for InitRenamePointer {}

/// What shows that nothing reaches a page any more.
pub(super) trait Unmaps {}
impl Unmaps for Typed<'_, Dentry, Clean, Dealloc> {}
impl Unmaps for Typed<'_, Inode, Clean, DecSize> {}
impl Unmaps for Typed<'_, Inode, Unchanged, Orphan> {}

/// An object with its states.
pub(super) struct Typed<'r, T, P, O> {
    object: &'r T,
    persistence: P,
    operation: PhantomData<O>,
}

impl<'r, T, P, O> Typed<'r, T, P, O> {
    fn with<Q, N>(object: &'r T, persistence: Q) -> Typed<'r, T, Q, N> {
        Typed { object, persistence, operation: PhantomData }
    }

    fn stored<N>(self) -> Typed<'r, T, Dirty, N> {
        Self::with(self.object, Dirty(()))
    }
}

impl<'r, T> Typed<'r, T, Unchanged, Start> {
    /// An object in use.
    pub fn start(object: &'r T) -> Self {
        Self::with(object, Unchanged(()))
    }
}

impl<'r, T> Typed<'r, T, Unchanged, Free> {
    /// An object that the allocator has just handed out.
    pub fn free(object: &'r T) -> Self {
        Self::with(object, Unchanged(()))
    }
}

impl<'r, T: Layout, O> Typed<'r, T, Dirty, O> {
    /// Flushes the whole object.
    pub fn flush<M: Memory>(self, region: &Region<M>) -> Typed<'r, T, InFlight, O> {
        let flushed = region.flush_all(self.object);
        Self::with(self.object, InFlight(flushed))
    }

    /// Flushes and fences.
    pub fn persist<M: Memory>(self, region: &Region<M>) -> Typed<'r, T, Clean, O> {
        self.flush(region).fence(region)
    }
}

impl<'r, T, O> Typed<'r, T, InFlight, O> {
    pub fn fence<M: Memory>(self, region: &Region<M>) -> Typed<'r, T, Clean, O> {
        let Typed { object, persistence: InFlight(flushed), .. } = self;
        Self::with(object, Clean(region.fence(flushed)))
    }
}

/// One fence for two objects that need no order.
pub(super) fn fence_both<'r, T, U, O, N, M: Memory>(
    region: &Region<M>,
    one: Typed<'r, T, InFlight, O>,
    two: Typed<'r, U, InFlight, N>,
) -> (Typed<'r, T, Clean, O>, Typed<'r, U, Clean, N>) {
    let durable = region.fence(one.persistence.0.and(two.persistence.0));
    (Typed::<T, Clean, O>::with(one.object, Clean(durable)), Typed::<U, Clean, N>::with(two.object, Clean(durable)))
}

// --- Inodes -----------------------------------------------------------------------------------

impl<'r> Typed<'r, Inode, Unchanged, Free> {
    /// Fills an inode.
    pub fn init<M: Memory>(self, region: &Region<M>, new: &Attributes) -> Typed<'r, Inode, Dirty, Init> {
        let inode = self.object;
        let words = [
            (&inode.owner, pair(new.uid, new.gid)),
            (&inode.size_bytes, if new.kind == FileKind::Directory { 0 } else { new.size_bytes }),
            (&inode.accessed_ns, new.accessed_ns as u64),
            (&inode.modified_ns, new.modified_ns as u64),
            (&inode.changed_ns, new.changed_ns as u64),
            (&inode.generation_device, pair(new.generation, new.device)),
            (&inode.number, new.number),
            (&inode.mode_links, pair(new.mode, new.links)),
        ];
        words.into_iter().for_each(|(cell, word)| region.set64(cell, word).unflushed());
        inode.nv_pointer.clear(region);
        self.stored()
    }
}

impl<'r> Typed<'r, Inode, Unchanged, Orphan> {
    /// The inode of a file without names that is not open.
    pub fn orphan(object: &'r Inode) -> Self {
        Self::with(object, Unchanged(()))
    }

    /// Frees the inode. Its generation stays.
    pub fn dealloc<M: Memory>(
        self,
        region: &Region<M>,
        _pages: &Pages<Clean, Dealloc>,
    ) -> Typed<'r, Inode, Dirty, Free> {
        let Inode { mode_links, owner, size_bytes, accessed_ns, modified_ns, changed_ns, number, .. } = self.object;
        for cell in [mode_links, owner, size_bytes, accessed_ns, modified_ns, changed_ns, number] {
            region.set64(cell, 0).unflushed();
        }
        self.stored()
    }
}

impl<'r, P: Persistent> Typed<'r, Inode, P, Start> {
    /// Sets times.
    pub fn set_times<M: Memory>(
        self,
        region: &Region<M>,
        modified_ns: Option<i64>,
        changed_ns: i64,
    ) -> Typed<'r, Inode, Dirty, Start> {
        if let Some(modified_ns) = modified_ns {
            region.set64(&self.object.modified_ns, modified_ns as u64).unflushed();
        }
        region.set64(&self.object.changed_ns, changed_ns as u64).unflushed();
        self.stored()
    }

    /// Sets the time of the last access.
    pub fn set_accessed<M: Memory>(self, region: &Region<M>, accessed_ns: i64) -> Typed<'r, Inode, Dirty, Start> {
        region.set64(&self.object.accessed_ns, accessed_ns as u64).unflushed();
        self.stored()
    }

    /// Sets the time of the last modification.
    pub fn set_modified<M: Memory>(self, region: &Region<M>, modified_ns: i64) -> Typed<'r, Inode, Dirty, Start> {
        region.set64(&self.object.modified_ns, modified_ns as u64).unflushed();
        self.stored()
    }

    /// Sets owner and group.
    pub fn set_owner<M: Memory>(self, region: &Region<M>, uid: u32, gid: u32) -> Typed<'r, Inode, Dirty, Start> {
        region.set64(&self.object.owner, pair(uid, gid)).unflushed();
        self.stored()
    }

    /// Sets the permissions.
    pub fn set_mode<M: Memory>(self, region: &Region<M>, mode: u32) -> Typed<'r, Inode, Dirty, Start> {
        let links = self.object.mode_links.load() as u32;
        region.set64(&self.object.mode_links, pair(mode, links)).unflushed();
        self.stored()
    }

    /// Adds a link, before a name does.
    pub fn inc_link<M: Memory>(self, region: &Region<M>) -> Typed<'r, Inode, Dirty, IncLink> {
        region.set64(&self.object.mode_links, self.object.mode_links.load() + 1).unflushed();
        self.stored()
    }

    /// Removes links, after a name is gone.
    pub fn dec_link<G: NameGone, M: Memory>(
        self,
        region: &Region<M>,
        _name: &Typed<'_, Dentry, Clean, G>,
        links: u32,
    ) -> Typed<'r, Inode, Dirty, DecLink> {
        let mode = (self.object.mode_links.load() >> 32) as u32;
        region.set64(&self.object.mode_links, pair(mode, links)).unflushed();
        self.stored()
    }

    /// Extends the size over pages with content.
    pub fn inc_size<M: Memory>(
        self,
        region: &Region<M>,
        _pages: &Pages<Clean, Written>,
        size_bytes: u64,
        now_ns: i64,
    ) -> Typed<'r, Inode, Dirty, IncSize> {
        region.set64(&self.object.size_bytes, size_bytes).unflushed();
        let Typed { object, .. } = self.set_times(region, Some(now_ns), now_ns);
        Self::with(object, Dirty(()))
    }

    /// Shortens the size, before pages go.
    pub fn dec_size<M: Memory>(
        self,
        region: &Region<M>,
        size_bytes: u64,
        now_ns: i64,
    ) -> Typed<'r, Inode, Dirty, DecSize> {
        region.set64(&self.object.size_bytes, size_bytes).unflushed();
        let Typed { object, .. } = self.set_times(region, Some(now_ns), now_ns);
        Self::with(object, Dirty(()))
    }
}

// --- Entries ----------------------------------------------------------------------------------

impl<'r> Typed<'r, Dentry, Unchanged, Free> {
    /// Stores the name.
    pub fn set_name<M: Memory>(self, region: &Region<M>, name: &[u8]) -> Typed<'r, Dentry, Dirty, Alloc> {
        region.set_all(&self.object.name, &name_words(name)).unflushed();
        self.stored()
    }
}

impl<'r> Typed<'r, Dentry, Clean, Alloc> {
    /// Gives the entry the number of a file: the commit of `create` and `link`.
    pub fn set_file<A: AddLink, M: Memory>(
        self,
        region: &Region<M>,
        file: &Typed<'_, Inode, Clean, A>,
        kind: FileKind,
    ) -> Typed<'r, Dentry, Dirty, Complete> {
        let word = number_kind(file.object.number.load(), kind);
        region.commit(&self.object.number_kind, word, file.persistence.0).unflushed();
        self.stored()
    }

    /// Gives the entry the number of a directory: the commit of `mkdir`. The directory above has
    /// the link already.
    pub fn set_directory<M: Memory>(
        self,
        region: &Region<M>,
        directory: &Typed<'_, Inode, Clean, Init>,
        _above: &Typed<'_, Inode, Clean, IncLink>,
    ) -> Typed<'r, Dentry, Dirty, Complete> {
        self.set_file(region, directory, FileKind::Directory)
    }
}

/// An entry that may lose its number.
pub(super) trait Deletable {}
impl Deletable for Start {}
impl Deletable for Renamed {}

impl<'r, P: Persistent, O: Deletable> Typed<'r, Dentry, P, O> {
    /// Takes the number: the commit of `unlink` and `rmdir`.
    pub fn clear<M: Memory>(self, region: &Region<M>) -> Typed<'r, Dentry, Dirty, ClearIno> {
        region.retract(&self.object.number_kind, 0).unflushed();
        self.stored()
    }
}

impl<'r> Typed<'r, Dentry, Clean, ClearIno> {
    /// Removes the name.
    pub fn dealloc<M: Memory>(self, region: &Region<M>) -> Typed<'r, Dentry, Dirty, Dealloc> {
        region.set_all(&self.object.name, &[0; NAME_WORDS]).unflushed();
        self.stored()
    }
}

/// A rename's new entry: one with a name, or that of the file to be replaced.
pub(super) trait RenameTarget {}
impl RenameTarget for Alloc {}
impl RenameTarget for Start {}

impl<'r, P: Persistent, O: RenameTarget> Typed<'r, Dentry, P, O> {
    /// Points to the old entry.
    pub fn set_rename_pointer<M: Memory>(
        self,
        region: &Region<M>,
        from: &Typed<'_, Dentry, Unchanged, Start>,
    ) -> Typed<'r, Dentry, Dirty, SetRenamePointer> {
        region.set64(&self.object.rename_pointer, region.offset_of(from.object)).unflushed();
        self.stored()
    }
}

impl<'r> Typed<'r, Dentry, Clean, SetRenamePointer> {
    /// Gives the new entry the old one's number: the commit of `rename`.
    pub fn init_rename_pointer<'f, M: Memory>(
        self,
        region: &Region<M>,
        from: Typed<'f, Dentry, Unchanged, Start>,
    ) -> (Typed<'f, Dentry, Unchanged, Renamed>, Typed<'r, Dentry, Dirty, InitRenamePointer>) {
        let word = from.object.number_kind.load();
        region.commit(&self.object.number_kind, word, self.persistence.0).unflushed();
        (Typed::<Dentry, Unchanged, Renamed>::with(from.object, Unchanged(())), self.stored())
    }
}

impl<'r> Typed<'r, Dentry, Clean, InitRenamePointer> {
    /// Ends the rename, after the old entry has lost the number.
    pub fn clear_rename_pointer<M: Memory>(
        self,
        region: &Region<M>,
        _from: &Typed<'_, Dentry, Clean, ClearIno>,
    ) -> Typed<'r, Dentry, Dirty, Complete> {
        region.set64(&self.object.rename_pointer, 0).unflushed();
        self.stored()
    }
}

// --- Pages ------------------------------------------------------------------------------------

/// A page: its block, and its position in the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Page {
    pub block: u64,
    pub page: u64,
}

/// Pages in the same states.
pub(super) struct Pages<P, O> {
    pages: SmallVec<[Page; 4]>,
    persistence: P,
    operation: PhantomData<O>,
}

impl<P, O> Pages<P, O> {
    fn with<Q, N>(pages: SmallVec<[Page; 4]>, persistence: Q) -> Pages<Q, N> {
        Pages { pages, persistence, operation: PhantomData }
    }

    /// Stores words of every page's descriptor and flushes it.
    fn store<M: Memory, N>(self, fs: &SquirrelFs<M>, store: impl Fn(&Descriptor, &Page)) -> Result<Pages<InFlight, N>> {
        let mut flushed = Flushed::nothing();
        for page in &self.pages {
            let descriptor = fs.descriptor(page.block)?;
            store(descriptor, page);
            flushed = flushed.and(fs.region.flush_all(descriptor));
        }
        Ok(Self::with(self.pages, InFlight(flushed)))
    }
}

impl Pages<Unchanged, Free> {
    /// Pages that the allocator has just handed out.
    pub fn free(pages: SmallVec<[Page; 4]>) -> Self {
        Self::with(pages, Unchanged(()))
    }

    /// Stores kind and position in the descriptors.
    pub fn alloc<M: Memory>(self, fs: &SquirrelFs<M>, kind: u64) -> Result<Pages<InFlight, Alloc>> {
        self.store(fs, |descriptor, page| {
            fs.region.set64(&descriptor.kind, kind).unflushed();
            fs.region.set64(&descriptor.page, page.page).unflushed();
        })
    }
}

impl Pages<Unchanged, Mapped> {
    /// Pages that have an owner.
    pub fn mapped(pages: SmallVec<[Page; 4]>) -> Self {
        Self::with(pages, Unchanged(()))
    }
}

impl<O> Pages<InFlight, O> {
    pub fn fence<M: Memory>(self, fs: &SquirrelFs<M>) -> Pages<Clean, O> {
        let durable = fs.region.fence(self.persistence.0);
        Self::with(self.pages, Clean(durable))
    }
}

impl Pages<Clean, Alloc> {
    /// Fills the pages with zeros, before an owner shows them.
    pub fn zero<M: Memory>(self, fs: &SquirrelFs<M>) -> Result<Pages<Clean, Alloc>> {
        let mut flushed = Flushed::nothing();
        for page in &self.pages {
            let start = page.block * pmem::BLOCK_BYTES;
            flushed = flushed.and(fs.region.stream_zeros(start, pmem::BLOCK_BYTES)?);
        }
        let durable = fs.region.fence(flushed);
        Ok(Self::with(self.pages, Clean(durable)))
    }

    /// Gives the pages an owner.
    pub fn set_owner<P: Persistent, I: Initialized, M: Memory>(
        self,
        fs: &SquirrelFs<M>,
        owner: &Typed<'_, Inode, P, I>,
    ) -> Result<Pages<InFlight, Mapped>> {
        let (durable, owner) = (self.persistence.0, owner.object.number.load());
        self.store(fs, |descriptor, _| fs.region.commit(&descriptor.owner, owner, durable).unflushed())
    }
}

impl<P: Persistent> Pages<P, Mapped> {
    /// Ends a write to the pages.
    pub fn written<M: Memory>(self, fs: &SquirrelFs<M>, content: Flushed) -> Pages<Clean, Written> {
        let durable = fs.region.fence(content);
        Self::with(self.pages, Clean(durable))
    }
}

impl Pages<Clean, Written> {
    /// Ends a write to pages of a file's index: they have their owner already.
    pub fn written_in_place<M: Memory>(fs: &SquirrelFs<M>, _owned: &Extents, content: Flushed) -> Self {
        Pages::<Unchanged, Mapped>::mapped(SmallVec::new()).written(fs, content)
    }
}

impl Pages<Unchanged, Mapped> {
    /// Takes the owner.
    pub fn unmap<M: Memory>(self, fs: &SquirrelFs<M>, _gone: &impl Unmaps) -> Result<Pages<InFlight, Unmapped>> {
        self.store(fs, |descriptor, _| fs.region.retract(&descriptor.owner, 0).unflushed())
    }
}

impl Pages<Clean, Unmapped> {
    /// Clears kind and position.
    pub fn dealloc<M: Memory>(self, fs: &SquirrelFs<M>) -> Result<Pages<InFlight, Dealloc>> {
        self.store(fs, |descriptor, _| {
            fs.region.set64(&descriptor.kind, 0).unflushed();
            fs.region.set64(&descriptor.page, 0).unflushed();
        })
    }
}

impl Pages<Clean, Dealloc> {
    /// Returns the blocks to the allocator.
    pub fn give_back<M: Memory>(&self, fs: &SquirrelFs<M>) {
        self.pages.iter().for_each(|page| fs.blocks.free(page.block));
    }
}
