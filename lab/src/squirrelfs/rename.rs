//! Rename by the rename pointer. After a crash the two entries show whether the rename happened:
//!
//! ```text
//!   new entry → old entry          without the number: the rename did not happen
//!   new entry gets the number      the rename happened; recovery takes the old one's
//!   old entry loses the number     recovery clears the pointer
//!   pointer cleared
//!   old entry loses its name
//! ```

use super::format::{Dentry, Inode};
use super::names::Slot;
use super::typestate::{
    Clean, DecLink, InFlight, InitRenamePointer, SetRenamePointer, Start, Typed, Unchanged, fence_both,
};
use super::{SquirrelFs, SquirrelInfo};
use crate::error::Result;
use crate::inode::links_without_name;
use crate::physical::{Exclusive, Renamed, Renaming};
use engine::format::FileKind;
use pmem::Memory;
use posix::Errno;

fn is_directory(file: &Exclusive<'_, SquirrelInfo>) -> bool {
    file.attributes.get().kind == FileKind::Directory
}

impl<M: Memory> SquirrelFs<M> {
    pub(super) fn rename_file(&self, renaming: Renaming<'_, '_, SquirrelInfo>) -> Result<Renamed> {
        let Renaming { from, from_name, mut to, to_name, file, mut other, exchange, now_ns } = renaming;
        if exchange {
            return Err(Errno::EINVAL.into());
        }
        if let Some(other) = &other {
            self.check_empty(other)?;
        }
        let old = self.slot_of(from.info, from_name.bytes)?;
        let there = to.as_deref_mut().unwrap_or(&mut *from);
        let taken = other.as_ref().map(|_| self.slot_of(there.info, to_name.bytes)).transpose()?;
        let entry = match taken {
            Some(slot) => slot.entry,
            None => self.free_entry(there)?,
        };
        // As published, the directory of the new name has a fence of its own even if it is the
        // same one.
        self.touch_directory(from, now_ns)?;
        self.touch_directory(to.as_deref().unwrap_or(from), now_ns)?;
        self.touch_files(file, other.as_deref_mut(), now_ns)?;

        let (moves, replaces) = (to.is_some() && is_directory(file), other.is_some());
        let source = Typed::start(self.dentry(old.entry)?);
        let target = self.point(entry, taken.is_some(), to_name.bytes, &source)?;
        if let Some(to) = to.as_deref_mut().filter(|_| moves && !replaces) {
            self.add_link(to)?;
        }
        let (source, target) = target.init_rename_pointer(&self.region, source);
        let target = target.persist(&self.region);
        let source = source.clear(&self.region).persist(&self.region);
        let ended = self.drop_replaced(other, &target)?;
        let target = target.clear_rename_pointer(&self.region, &source).flush(&self.region);
        match ended {
            Some(ended) => drop(fence_both(&self.region, ended, target)),
            None => drop(target.fence(&self.region)),
        }
        let source = if is_directory(file) && (moves || replaces) {
            let links = from.attributes.get().links - 1;
            let above = Typed::start(self.inode(from.info.inode)?).dec_link(&self.region, &source, links);
            from.attributes.update(|attributes| attributes.links = links);
            fence_both(&self.region, above.flush(&self.region), source.dealloc(&self.region).flush(&self.region)).1
        } else {
            source.dealloc(&self.region).persist(&self.region)
        };
        let there = to.unwrap_or(&mut *from);
        if taken.is_some() {
            there.info.names_mut()?.remove(to_name.bytes);
        }
        self.remember_name(there.info, to_name.bytes, Slot { entry, ..old })?;
        let there_number = there.number;
        // The page of the old entry may be that of the new one, which is in use by now.
        self.forget_name(from, from_name.bytes, old, &source)?;
        if moves {
            file.info.parent = there_number;
        }
        Ok(Renamed { to_entry: entry, from_entry: None })
    }

    /// Names the new entry, if it is free, and points it to the old one.
    fn point<'r>(
        &'r self,
        entry: u64,
        is_taken: bool,
        name: &[u8],
        source: &Typed<'_, Dentry, Unchanged, Start>,
    ) -> Result<Typed<'r, Dentry, Clean, SetRenamePointer>> {
        let dentry = self.dentry(entry)?;
        let region = &self.region;
        let pointing = if is_taken {
            Typed::start(dentry).set_rename_pointer(region, source)
        } else {
            Typed::free(dentry).set_name(region, name).persist(region).set_rename_pointer(region, source)
        };
        Ok(pointing.persist(region))
    }

    /// Takes a link from the replaced file.
    fn drop_replaced<'r>(
        &'r self,
        other: Option<&mut Exclusive<'_, SquirrelInfo>>,
        target: &Typed<'_, Dentry, Clean, InitRenamePointer>,
    ) -> Result<Option<Typed<'r, Inode, InFlight, DecLink>>> {
        let Some(other) = other else { return Ok(None) };
        let links = links_without_name(&other.attributes.get());
        let inode = Typed::start(self.inode(other.info.inode)?).dec_link(&self.region, target, links);
        other.attributes.update(|attributes| attributes.links = links);
        Ok(Some(inode.flush(&self.region)))
    }

    /// Sets the change times of the renamed and the replaced file under one fence.
    fn touch_files(
        &self,
        file: &Exclusive<'_, SquirrelInfo>,
        other: Option<&mut Exclusive<'_, SquirrelInfo>>,
        now_ns: i64,
    ) -> Result<()> {
        let touched = |file: &Exclusive<'_, SquirrelInfo>| -> Result<_> {
            file.attributes.update(|attributes| attributes.changed_ns = now_ns);
            let inode = Typed::start(self.inode(file.info.inode)?);
            Ok(inode.set_times(&self.region, None, now_ns).flush(&self.region))
        };
        let file = touched(file)?;
        match other {
            Some(other) => drop(fence_both(&self.region, file, touched(other)?)),
            None => drop(file.fence(&self.region)),
        }
        Ok(())
    }
}
