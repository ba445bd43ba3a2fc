//! Repair of names: adding them to directories, and `lost+found`.

use super::Done;
use super::edit::Repairer;
use crate::image::Name;
use crate::usage::BlockUse;
use engine::format::{
    DENTRY_HEADER_BYTES, Dentry, DentryFacts, FIRST_COOKIE, FIRST_GENERATION, FileKind, INODE_BYTES, Inode, LOG_SLOTS,
    LogPage, LogPageKind, NAME_BYTES_MAX, Property, ROOT_INODE, SlotTag, Valid, dentry_lines, next_reuse_generation,
    short_generation, slot_address, slot_tag, slot_word,
};
use pmem::{BLOCK_BYTES, Memory, Pm};
use std::mem::offset_of;

/// The directory in the root for files without names.
const LOST_AND_FOUND: &str = "lost+found";

const SLOTS: u64 = offset_of!(LogPage, slots) as u64;

/// The end of a directory's log.
struct Tail {
    /// The link to the next page.
    link: u64,
    /// The last page, if names can be appended to it.
    page: Option<(u64, u64)>,
    /// Its first slot after all used ones.
    slot: u64,
    /// Above all cookies of the log.
    cookie: u64,
}

impl<M: Memory> Repairer<'_, M> {
    /// Calls `each` with the pages of a directory's log.
    fn pages(&self, directory: u64, mut each: impl FnMut(u64, &LogPage, LogPageKind)) -> Result<u64, &'static str> {
        let mut link = self.check.inode_offset(directory)? + offset_of!(Inode, log) as u64;
        for _ in 0..self.check.image.geometry.blocks {
            let offset = self.get(link);
            if offset == 0 {
                return Ok(link);
            }
            let page =
                self.region().get(Pm::<LogPage>::new(offset)).map_err(|_| "the log of the directory is damaged")?;
            let kind = page.kind(directory).ok_or("the log of the directory is damaged")?;
            each(offset, page, kind);
            link = offset + offset_of!(LogPage, next) as u64;
        }
        Err("the log of the directory has a cycle")
    }

    fn tail(&self, directory: u64) -> Result<Tail, &'static str> {
        let (mut last, mut slot, mut cookie) = (None, 0, FIRST_COOKIE);
        let link = self.pages(directory, |offset, page, kind| {
            let used = page.slots.iter().rposition(|slot| slot.load() != 0).map_or(0, |index| index as u64 + 1);
            let first = page.first_cookie.load();
            (last, slot) = (Some((offset, first)).filter(|_| kind == LogPageKind::Append), used);
            let cookies = page.slots.iter().filter_map(|slot| Some(self.entry(slot.load())?.1.cookie));
            let highest = match kind {
                LogPageKind::Append => first.saturating_add(LOG_SLOTS),
                LogPageKind::Compacted => cookies.max().map_or(first, |cookie| cookie.saturating_add(1)),
            };
            cookie = cookie.max(highest);
        })?;
        Ok(Tail { link, page: last, slot, cookie })
    }

    /// The dentry of a slot, if it verifies: its offset, its facts and its name.
    fn entry(&self, word: u64) -> Option<(u64, DentryFacts, Name)> {
        slot_tag(word)?;
        let offset = slot_address(word);
        let (facts, name) = self.dentry(offset).ok()?;
        Some((offset, facts, name))
    }

    /// The valid names of a directory, with their facts.
    fn names(&self, directory: u64) -> Result<Vec<(Vec<u8>, DentryFacts)>, &'static str> {
        let mut names = Vec::new();
        self.pages(directory, |_, page, _| {
            for slot in &page.slots {
                if let Some((offset, facts, name)) = self.entry(slot.load())
                    && facts.parent == directory
                    && Valid::from_word(self.get(offset)).valid
                {
                    names.push((name.bytes().to_vec(), facts));
                }
            }
        })?;
        Ok(names)
    }

    /// Appends an empty page to a log; returns its offset and first cookie.
    pub fn append_page(&mut self, directory: u64) -> Result<(u64, u64), &'static str> {
        let tail = self.tail(directory)?;
        let page = self.take_blocks(1, BlockUse::LogPage)?;
        self.set(page + offset_of!(LogPage, owner) as u64, directory);
        self.set(page + offset_of!(LogPage, first_cookie) as u64, tail.cookie);
        self.set(page, LogPage::seal_word(directory, tail.cookie, LogPageKind::Append));
        self.set(tail.link, page);
        Ok((page, tail.cookie))
    }

    /// Rebuilds the header of a page.
    pub fn repair_page(&self, page: u64, directory: u64, first_cookie: u64, compacted: bool) {
        let kind = if compacted { LogPageKind::Compacted } else { LogPageKind::Append };
        self.set(page + offset_of!(LogPage, owner) as u64, directory);
        self.set(page + offset_of!(LogPage, first_cookie) as u64, first_cookie);
        self.set(page, LogPage::seal_word(directory, first_cookie, kind));
        // The earlier header's value is unknown.
        self.set(page + offset_of!(LogPage, used) as u64, 0);
    }

    /// Adds a name that the directory does not have yet.
    fn add_name(&mut self, directory: u64, name: &[u8], inode: u64, kind: FileKind) -> Done {
        let tail = self.tail(directory)?;
        let (page, first, index) = match tail.page {
            Some((page, first)) if tail.slot < LOG_SLOTS => (page, first, tail.slot),
            _ => {
                let (page, first) = self.append_page(directory)?;
                (page, first, 0)
            }
        };
        let cookie = first.saturating_add(index);
        let dentry = self.take_lines(dentry_lines(name.len()))?;
        let (target, _) = self.check.image.inode(inode).ok_or("the image has no inode of this number")?;
        let generation = short_generation(target.generation(inode).ok_or("its identity is damaged")?);
        let (turn, name_length) = (next_reuse_generation(self.get(dentry)), name.len() as u8);
        let facts =
            DentryFacts { inode, generation, parent: directory, cookie, kind, name_length, reuse_generation: turn };
        self.set(dentry + offset_of!(Dentry, inode) as u64, facts.inode_word());
        self.set(dentry + offset_of!(Dentry, parent) as u64, directory);
        self.set(dentry + offset_of!(Dentry, cookie) as u64, cookie);
        self.set_bytes(dentry + DENTRY_HEADER_BYTES, name);
        self.set(dentry + offset_of!(Dentry, seal) as u64, facts.seal(name));
        self.set(dentry, Valid { valid: true, timestamp_ns: self.now_ns.max(0) as u64, reuse_generation: turn }.word());
        self.cover_slot(page, index);
        self.set(page + SLOTS + index * 8, slot_word(dentry, SlotTag::Dentry));
        Ok(())
    }

    /// Raises a page's bound of used slots to cover a slot, if it has a bound.
    fn cover_slot(&self, page: u64, index: u64) {
        let Ok(page) = self.region().get(Pm::<LogPage>::new(page)) else { return };
        if page.used_bound().is_some_and(|bound| bound <= index) {
            let used = LogPage::used_for(index + 1);
            let word = LogPage::used_word(page.owner.load(), page.first_cookie.load(), used);
            self.set(self.region().offset_of(&page.used), word);
        }
    }

    /// A spelling that the directory does not have yet: this one, or one with a number appended.
    fn fresh_name(&self, directory: u64, wanted: &[u8]) -> Result<Vec<u8>, &'static str> {
        let names = self.names(directory)?;
        let spellings = (0..u32::MAX).map(|attempt| {
            let end = if attempt == 0 { String::new() } else { format!("~{attempt}") };
            let length = wanted.len().min(NAME_BYTES_MAX - end.len());
            [&wanted[..length], end.as_bytes()].concat()
        });
        let mut fresh = spellings.filter(|name| !names.iter().any(|(other, _)| other == name));
        fresh.next().ok_or("no unused name was found")
    }

    /// Writes a name again in its directory, and removes the old one.
    pub fn rename(&mut self, dentry: u64) -> Done {
        let (facts, name) = self.dentry(dentry)?;
        if !Valid::from_word(self.get(dentry)).valid {
            // The name was removed, and only its slot is left.
            return self.clear_slots_of(facts.parent, dentry);
        }
        let mended: Vec<u8> = match name.bytes() {
            b"." => b"dot".to_vec(),
            b".." => b"dot-dot".to_vec(),
            bytes => bytes.iter().map(|byte| if matches!(byte, b'/' | 0) { b'_' } else { *byte }).collect(),
        };
        // The old name is valid until the new one is. A crash between leaves both, and the next
        // check finds the duplicate.
        let spelled_same = self.names(facts.parent)?.iter().filter(|(other, _)| *other == mended).count() == 1;
        let stays = spelled_same && mended == name.bytes();
        let fresh = if stays { mended } else { self.fresh_name(facts.parent, &mended)? };
        self.add_name(facts.parent, &fresh, facts.inode, facts.kind)?;
        self.invalidate(dentry);
        self.clear_slots_of(facts.parent, dentry)
    }

    /// Clears the slots of a directory that refer to a dentry.
    fn clear_slots_of(&self, directory: u64, dentry: u64) -> Done {
        let mut slots = Vec::new();
        self.pages(directory, |offset, page, _| {
            let named = page.slots.iter().enumerate().filter(|(_, slot)| slot_address(slot.load()) == dentry);
            slots.extend(named.map(|(index, _)| offset + SLOTS + index as u64 * 8));
        })?;
        slots.into_iter().for_each(|slot| self.set(slot, 0));
        Ok(())
    }

    /// Gives a file a name in `lost+found`; a directory in a cycle loses its present one.
    pub fn reconnect(&mut self, number: u64) -> Done {
        let state = self.check.state(number).copied().ok_or("the image has no inode of this number")?;
        let kind = state.file_kind().ok_or("the inode is damaged")?;
        let lost = self.lost_and_found()?;
        let name = self.fresh_name(lost, format!("#{number}").as_bytes())?;
        self.add_name(lost, &name, number, kind)?;
        if kind == FileKind::Directory {
            self.set_parent(number, lost)?;
        }
        if state.names > 0 && state.dentry != 0 {
            self.invalidate(state.dentry);
        }
        Ok(())
    }

    pub fn set_parent(&mut self, number: u64, parent: u64) -> Done {
        self.set(self.check.inode_offset(number)? + offset_of!(Inode, parent) as u64, parent);
        Ok(())
    }

    /// The directory for files without names; it is created if missing.
    fn lost_and_found(&mut self) -> Result<u64, &'static str> {
        let names = self.names(ROOT_INODE)?;
        let present = names.iter().find(|(name, facts)| {
            name == LOST_AND_FOUND.as_bytes() && facts.kind == FileKind::Directory && self.property(facts.inode).is_ok()
        });
        if let Some((_, facts)) = present {
            return Ok(facts.inode);
        }
        let name = self.fresh_name(ROOT_INODE, LOST_AND_FOUND.as_bytes())?;
        let number = self.make_directory()?;
        self.add_name(ROOT_INODE, &name, number, FileKind::Directory)?;
        Ok(number)
    }

    /// Creates a directory below the root, still without a name.
    fn make_directory(&mut self) -> Result<u64, &'static str> {
        let number = self.take_inode()?;
        let (inode, offset) = self.check.image.inode(number).ok_or("the image has no inode of this number")?;
        let generation = inode.next_generation();
        let (root, _) = self.property(ROOT_INODE)?;
        let times = (self.now_ns, self.now_ns);
        let property = Property {
            mode: FileKind::Directory.mode_bits() | 0o700,
            links: 2,
            uid: root.uid,
            gid: root.gid,
            modified_ns: times.0,
            changed_ns: times.1,
            ..Property::default()
        };
        let (kind, born) = (FileKind::Directory as u32, self.now_ns as u64);
        self.write_property(number, generation.max(FIRST_GENERATION), &property, 0)?;
        for word in (offset_of!(Inode, accessed_ns)..INODE_BYTES as usize).step_by(8) {
            self.set(offset + word as u64, 0);
        }
        for (field, word) in [(8, number), (16, kind as u64), (24, born), (32, ROOT_INODE), (40, 0), (48, 0), (56, 0)] {
            self.set(offset + field, word);
        }
        self.mark_inode(number, true);
        self.set(offset, Inode::birth_word(number, kind, 0, born, generation));
        if let Some(state) = self.check.state(number) {
            (state.kind, state.links) = (kind as u8, 2);
        }
        Ok(number)
    }

    /// A free inode number.
    fn take_inode(&mut self) -> Result<u64, &'static str> {
        let free = |place: &usize| {
            let state = self.check.inodes[*place];
            let number = self.check.image.segments.number(*place);
            state.kind == 0 && state.flags == 0 && number > ROOT_INODE
        };
        if let Some(place) = (0..self.check.inodes.len()).find(free) {
            return Ok(self.check.image.segments.number(place));
        }
        let segment = (0..self.check.image.geometry.segments_max)
            .find(|segment| self.get(self.check.image.segment_entry(*segment)) == 0)
            .ok_or("there are no free inodes")?;
        let fresh = self.take_segment(segment)?;
        self.set(self.check.image.segment_entry(segment), fresh.entry().word());
        self.check.image.segments.add(segment, fresh);
        self.check.inodes.resize(self.check.image.segments.inodes(), Default::default());
        Ok(segment * engine::format::INODES_PER_SEGMENT)
    }
}

const _: () = assert!(SLOTS + LOG_SLOTS * 8 == BLOCK_BYTES);
