//! Checks of directory logs and of the dentries in them.

use crate::check::{Checker, DAMAGED, ENDED, FindingLocation, HAS_NAMES, InodeState, REACHED};
use crate::finding::{FindingKind, Repair};
use crate::image::{Name, shown};
use crate::report::Phase;
use crate::usage::{BlockUse, line_mask};
use engine::format::{
    Dentry, DentryFacts, FIRST_COOKIE, FileKind, Inode, LogPage, LogPageKind, ROOT_INODE, Superblock, Valid,
    dentry_lines, is_possible_name, short_generation, slot_address, slot_tag,
};
use pmem::{BLOCK_BYTES, Memory, Pm};
use std::collections::HashSet;
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;

/// A directory during its walk.
struct Walk {
    /// Its inode number.
    number: u64,
    /// Above all cookies found so far.
    next_cookie: u64,
    /// Hashes of its names, with the offsets of their dentries.
    names: Vec<(u64, u64)>,
    /// Pages found; used where blocks are not claimed.
    pages: HashSet<u64>,
    /// Its subdirectories.
    below: Vec<u64>,
}

/// A non-empty slot.
#[derive(Clone, Copy)]
struct Slot {
    offset: u64,
    word: u64,
    /// The page's kind, and the cookie of its first slot.
    page: (LogPageKind, u64),
    index: u64,
}

/// Whether a dentry is marked valid on the image.
fn dentry_counts(dentry: &Dentry) -> bool {
    Valid::from_word(dentry.valid.load()).valid
}

/// Whether a dentry belongs to the directory and the slot in which it was found.
fn belongs(walk: &Walk, slot: Slot, facts: &DentryFacts) -> bool {
    let (kind, first) = slot.page;
    let fits = kind == LogPageKind::Compacted || facts.cookie == first.wrapping_add(slot.index);
    facts.parent == walk.number && fits
}

impl<'c, M: Memory> Checker<'c, M> {
    /// Walks all directories: from the root down, then the unreached ones.
    pub fn check_directories(&mut self) {
        let hasher = RandomState::new();
        let total = self.inodes.iter().filter(|state| state.is_directory()).count() as u64;
        let mut queue = vec![ROOT_INODE];
        let mut done = 0;
        while let Some(number) = queue.pop() {
            if self.reach(number) {
                done += 1;
                if done % 64 == 1 {
                    self.step(Phase::Directories, done, total);
                }
                queue.append(&mut self.walk(number, &hasher));
            }
        }
        // After a crash, these will be freed with all their content, so their claims do not matter.
        self.quiet = !self.clean;
        for location in 0..self.inodes.len() {
            let state = self.inodes[location];
            if state.is_directory() && state.flags & (REACHED | ENDED) == 0 {
                self.walk(self.image.segments.number(location), &hasher);
            }
        }
        self.quiet = false;
        self.step(Phase::Directories, total, total);
    }

    /// Marks a directory as reached; returns whether it was unreached.
    fn reach(&mut self, number: u64) -> bool {
        let Some(state) = self.state(number) else { return false };
        if !state.is_directory() || state.flags & REACHED != 0 {
            return false;
        }
        state.flags |= REACHED;
        true
    }

    /// Walks a directory's log; returns its subdirectories.
    fn walk(&mut self, number: u64, hasher: &RandomState) -> Vec<u64> {
        let Some((inode, offset)) = self.image.inode(number) else { return Vec::new() };
        let (names, pages, below) = (Vec::new(), HashSet::new(), Vec::new());
        let mut walk = Walk { number, next_cookie: FIRST_COOKIE, names, pages, below };
        let mut link = offset + std::mem::offset_of!(Inode, log) as u64;
        let mut page_offset = inode.log.load();
        let mut last = None;
        while page_offset != 0 {
            let Some((page, kind)) = self.enter_page(&mut walk, link, page_offset) else { break };
            last = Some((page_offset, kind));
            self.check_page(&mut walk, page, page_offset, kind, hasher);
            link = page_offset + std::mem::offset_of!(LogPage, next) as u64;
            page_offset = page.next.load();
        }
        if let (Some((offset, LogPageKind::Compacted)), 0) = (last, page_offset) {
            let sentence = format_args!("its log ends with a compacted page");
            self.report(
                FindingKind::LogEnd,
                FindingLocation::inode(number).at(offset),
                Repair::AppendPage { number },
                sentence,
            );
        }
        self.check_twice(&mut walk);
        walk.below
    }

    /// The page at an offset, if it belongs to this directory and was not found before.
    fn enter_page(&mut self, walk: &mut Walk, link: u64, offset: u64) -> Option<(&'c LogPage, LogPageKind)> {
        let (number, region) = (walk.number, self.image.region);
        let on = FindingLocation::inode(number).at(offset);
        let repair = Repair::CutLog { offset: link };
        if !self.image.is_data_offset(offset) {
            let repair = self.flipped_link(walk, link, offset).unwrap_or(repair);
            let sentence = format_args!("its log links to offset {offset:#x}, where no page can be");
            self.report(FindingKind::LogOffset, FindingLocation::inode(number).at(link), repair, sentence);
            return None;
        }
        let page = region.get(Pm::<LogPage>::new(offset)).ok()?;
        let Some(kind) = page.kind(number) else {
            let mended = self.repaired_page(page, offset, walk);
            let repair = mended.or_else(|| self.flipped_link(walk, link, offset)).unwrap_or(repair);
            let sentence = format_args!("its log links to a block that is not one of its pages");
            self.report(FindingKind::LogPage, on, repair, sentence);
            return None;
        };
        let seen = if self.quiet {
            !walk.pages.insert(offset)
        } else {
            // Only this directory has pages with its number in their headers.
            self.usage.of(offset / BLOCK_BYTES) == BlockUse::LogPage
        };
        if seen {
            let repair = self.flipped_link(walk, link, offset).unwrap_or(repair);
            let sentence = format_args!("its log links to the same page twice");
            self.report(FindingKind::LogLoop, on, repair, sentence);
            return None;
        }
        self.claim(number, offset / BLOCK_BYTES, BlockUse::LogPage, repair).then_some((page, kind))
    }

    fn check_page(&mut self, walk: &mut Walk, page: &LogPage, offset: u64, kind: LogPageKind, hasher: &RandomState) {
        let number = walk.number;
        let on = FindingLocation::inode(number).at(offset);
        let (reserved, words) = match self.image.region.first::<Superblock>().is_ok_and(Superblock::has_used_slots) {
            true => (std::mem::offset_of!(LogPage, reserved), 3),
            false => (std::mem::offset_of!(LogPage, used), 4),
        };
        self.check_used_slots(on, page);
        self.check_reserved(on, offset + reserved as u64, words, "a log page");
        let first_cookie = page.first_cookie.load();
        if first_cookie < walk.next_cookie {
            let least = walk.next_cookie;
            let sentence = format_args!(
                "a page of its log begins with cookie {first_cookie}, but the earlier pages reach {least}"
            );
            let repair = self.page_by_its_names(page, offset, walk).unwrap_or(Repair::None);
            self.report(FindingKind::LogCookies, on, repair, sentence);
        }
        walk.next_cookie = walk.next_cookie.max(first_cookie);
        for (index, slot) in page.slots.iter().enumerate() {
            let slot_offset = offset + std::mem::offset_of!(LogPage, slots) as u64 + index as u64 * 8;
            let mut word = slot.load();
            if !self.overlay.slots.is_empty() {
                word = self.overlay.slots.get(&slot_offset).copied().unwrap_or(word);
            }
            if word != 0 {
                let slot = Slot { offset: slot_offset, word, page: (kind, first_cookie), index: index as u64 };
                self.check_slot(walk, slot, hasher);
            }
        }
    }

    /// Readers skip the slots from the bound on, so a used one there would be hidden.
    fn check_used_slots(&mut self, on: FindingLocation, page: &LogPage) {
        let used = page.slots.iter().rposition(|slot| slot.load() != 0).map_or(0, |last| last as u64 + 1);
        let bound = page.used_bound();
        if page.used.load() == 0 || bound.is_some_and(|bound| bound >= used) {
            return;
        }
        let offset = self.image.region.offset_of(&page.used);
        let word = LogPage::used_word(page.owner.load(), page.first_cookie.load(), LogPage::used_for(used));
        let repair = if self.clean { Repair::SetWord { offset, word } } else { Repair::Recover };
        let sentence = match bound {
            None => "the bound of used slots of a page of its log does not verify".to_owned(),
            Some(bound) => format!("a page of its log has {used} used slots, but {bound} as their bound"),
        };
        self.report(FindingKind::LogUsed, on, repair, format_args!("{sentence}"));
    }

    fn check_slot(&mut self, walk: &mut Walk, slot: Slot, hasher: &RandomState) {
        let on = FindingLocation::inode(walk.number).at(slot.offset);
        let repair = Repair::ClearWord { offset: slot.offset };
        if slot_tag(slot.word).is_none() {
            let repair = self.flipped_slot(walk, slot).unwrap_or(repair);
            let sentence = format_args!("a slot of its log has the unknown tag {}", slot.word & 63);
            return self.report(FindingKind::SlotTag, on, repair, sentence);
        }
        let dentry_offset = slot_address(slot.word);
        if self.image.dentry(dentry_offset).is_none() {
            let repair = self.flipped_slot(walk, slot).unwrap_or(repair);
            let sentence =
                format_args!("a slot of its log refers to offset {dentry_offset:#x}, where no dentry can be");
            return self.report(FindingKind::SlotOffset, on, repair, sentence);
        }
        let mut name = Name::default();
        let Some((dentry, facts)) = self.image.verified(dentry_offset, &mut name) else {
            return self.report_half_made(walk, slot, dentry_offset);
        };
        if !self.clean && !dentry_counts(dentry) && !belongs(walk, slot, &facts) {
            let sentence =
                format_args!("a slot of its log refers to offset {dentry_offset:#x}, which holds a removed name");
            return self.report(FindingKind::SlotHalfMade, on, Repair::Recover, sentence);
        }
        let on = FindingLocation::inode(walk.number).at(dentry_offset);
        if facts.parent != walk.number {
            let (name, parent) = (name.shown(), facts.parent);
            let sentence = format_args!("the name \"{name}\" in it belongs to directory {parent}");
            return self.report(FindingKind::DentryParent, on, repair, sentence);
        }
        self.check_cookie(walk, slot, &facts, &name, on);
        if !self.claim_dentry(walk.number, dentry_offset, &facts, &name, slot.offset) {
            return;
        }
        if self.is_valid(dentry, &facts, dentry_offset, on) {
            self.check_name(&facts, &name, on);
            if self.check_target(walk, dentry_offset, &facts, &name) {
                walk.names.push((hasher.hash_one(name.bytes()), dentry_offset));
            }
        }
    }

    fn check_cookie(&mut self, walk: &mut Walk, slot: Slot, facts: &DentryFacts, name: &Name, on: FindingLocation) {
        if !fits_slot(facts, slot, walk) {
            let (name, cookie) = (name.shown(), facts.cookie);
            let sentence =
                format_args!("the name \"{name}\" in it has cookie {cookie}, which does not belong to its slot");
            let dentry = on.offset().unwrap_or(0);
            self.report(FindingKind::DentryCookie, on, Repair::Rename { dentry }, sentence);
            return;
        }
        walk.next_cookie = facts.cookie.saturating_add(1);
    }

    fn claim_dentry(&mut self, number: u64, offset: u64, facts: &DentryFacts, name: &Name, slot: u64) -> bool {
        let repair = Repair::ClearWord { offset: slot };
        if !self.claim(number, offset / BLOCK_BYTES, BlockUse::Dentries, repair) {
            return false;
        }
        let fresh = self.quiet || self.usage.claim_lines(offset, dentry_lines(facts.name_length as usize));
        if !fresh {
            let name = name.shown();
            let sentence = format_args!("the name \"{name}\" in it overlaps another name's cache lines");
            self.report(FindingKind::DentryOverlap, FindingLocation::inode(number).at(offset), repair, sentence);
        }
        fresh
    }

    /// Whether a dentry is valid, or will be after the journal's replay.
    fn is_valid(&mut self, dentry: &Dentry, facts: &DentryFacts, offset: u64, on: FindingLocation) -> bool {
        let mut word = dentry.valid.load();
        if dentry.valid_word(facts).is_none() {
            let mended = Valid { reuse_generation: facts.reuse_generation, ..Valid::from_word(word) }.word();
            let repair = if self.clean { Repair::SetWord { offset, word: mended } } else { Repair::Recover };
            let sentence = format_args!("a dentry's valid word and seal have different reuse generations");
            self.report(FindingKind::DentryTurn, on, repair, sentence);
            return false;
        }
        if !self.overlay.valid.is_empty() {
            word = self.overlay.valid.get(&offset).copied().unwrap_or(word);
        }
        Valid::from_word(word).valid
    }

    fn check_name(&mut self, facts: &DentryFacts, name: &Name, on: FindingLocation) {
        if !is_possible_name(name.bytes()) {
            let (name, target) = (name.shown(), facts.inode);
            let sentence = format_args!("the name \"{name}\" (of inode {target}) in it is not a valid name");
            let dentry = on.offset().unwrap_or(0);
            self.report(FindingKind::NameInvalid, on, Repair::Rename { dentry }, sentence);
        }
    }

    /// Counts a name for its inode; returns whether that inode is intact.
    fn check_target(&mut self, walk: &mut Walk, dentry: u64, facts: &DentryFacts, name: &Name) -> bool {
        let on = FindingLocation::inode(walk.number).at(dentry);
        let (shown_name, number) = (name, facts.inode);
        let repair = Repair::Invalidate { dentry };
        let Some(state) = self.state(number).map(|state| *state).filter(|_| number != 0) else {
            let name = shown_name.shown();
            let sentence =
                format_args!("the name \"{name}\" in it refers to inode {number}, which the image does not have");
            self.report(FindingKind::DentryTarget, on, repair, sentence);
            return false;
        };
        if number == ROOT_INODE {
            let name = shown_name.shown();
            self.report(
                FindingKind::RootNamed,
                on,
                repair,
                format_args!("the name \"{name}\" in it refers to the root directory"),
            );
            return false;
        }
        if state.kind == 0 {
            if state.flags & DAMAGED == 0 {
                let name = shown_name.shown();
                let repair = if self.clean { repair } else { Repair::Recover };
                let sentence = format_args!("the name \"{name}\" in it refers to inode {number}, which is free");
                self.report(FindingKind::DentryDangling, on, repair, sentence);
            }
            return false;
        }
        if short_generation(state.generation) != facts.generation {
            let name = shown_name.shown();
            let repair = if self.clean { repair } else { Repair::Recover };
            let sentence = format_args!("the name \"{name}\" in it refers to another generation of inode {number}");
            self.report(FindingKind::DentryDangling, on, repair, sentence);
            return false;
        }
        if state.kind != facts.kind as u8 {
            let (name, kind) = (shown_name.shown(), facts.kind);
            let sentence = format_args!("the name \"{name}\" in it has kind {kind:?}, which inode {number} has not");
            let kind = FileKind::from_bits(state.kind as u32).unwrap_or(facts.kind);
            let word = DentryFacts { kind, ..*facts }.seal(shown_name.bytes());
            let offset = dentry + std::mem::offset_of!(Dentry, seal) as u64;
            self.report(FindingKind::DentryKind, on, Repair::SetWord { offset, word }, sentence);
        }
        self.count_name(walk, dentry, number, &state, name);
        true
    }

    fn count_name(&mut self, walk: &mut Walk, dentry: u64, number: u64, state: &InodeState, name: &Name) {
        self.report.counts.names += !self.quiet as u64;
        if let Some(directory) = self.state(walk.number)
            && directory.flags & REACHED == 0
        {
            directory.flags |= HAS_NAMES;
        }
        if let Some(state) = self.state(number) {
            state.names = state.names.saturating_add(1);
            if state.names == 1 {
                state.dentry = dentry;
            }
        }
        if !state.is_directory() {
            return;
        }
        if let Some(parent) = self.state(walk.number) {
            parent.subdirectories = parent.subdirectories.saturating_add(1);
        }
        walk.below.push(number);
        let on = FindingLocation::inode(number).at(dentry);
        if state.names > 0 {
            let (name, parent) = (name.shown(), walk.number);
            let sentence = format_args!("the directory has a second name, \"{name}\" in directory {parent}");
            self.report(FindingKind::DirectoryNames, on, Repair::Invalidate { dentry }, sentence);
            return;
        }
        let Some((inode, offset)) = self.image.inode(number) else { return };
        let parent = self.overlay.parents.get(&offset).copied().unwrap_or_else(|| inode.parent.load());
        if parent != walk.number {
            let repair = Repair::SetParent { number, parent: walk.number };
            let sentence = format_args!("its `..` is inode {parent}, but its name is in directory {}", walk.number);
            self.report(FindingKind::DirectoryParent, on, repair, sentence);
        }
    }

    /// Finds duplicate names: names with equal hashes are adjacent after sorting.
    fn check_twice(&mut self, walk: &mut Walk) {
        walk.names.sort_unstable();
        let (mut one, mut other) = (Name::default(), Name::default());
        for pair in walk.names.windows(2) {
            if pair[0].0 != pair[1].0 {
                continue;
            }
            let whole = self.image.verified(pair[0].1, &mut one).is_some()
                & self.image.verified(pair[1].1, &mut other).is_some();
            if whole && one.bytes() == other.bytes() {
                let dentry = pair[1].1;
                let name = shown(one.bytes());
                let sentence = format_args!("the name \"{name}\" occurs in it twice");
                let on = FindingLocation::inode(walk.number).at(dentry);
                self.report(FindingKind::NameTwice, on, Repair::Rename { dentry }, sentence);
            }
        }
    }

    /// Reports a slot whose dentry does not verify: an incomplete creation interrupted by a crash,
    /// or later damage.
    fn report_half_made(&mut self, walk: &Walk, slot: Slot, offset: u64) {
        let on = FindingLocation::inode(walk.number).at(slot.offset);
        let flip = self.image.dentry(offset).and_then(|dentry| dentry.flip(self.image.region));
        let repair = self.set_flipped(offset, flip).or_else(|| self.flipped_slot(walk, slot));
        let repair = repair.unwrap_or(Repair::ClearWord { offset: slot.offset });
        let sentence = format_args!("a slot of its log refers to offset {offset:#x}, where no dentry verifies");
        // Compaction copies only slots of verified dentries, so there an unverified one is damage,
        // not an incomplete creation.
        let compacted = slot.page.0 == LogPageKind::Compacted;
        match (self.clean, compacted) {
            (_, true) => self.report(FindingKind::DentryDamaged, on, repair, sentence),
            (true, _) => self.report(FindingKind::SlotHalfMade, on, repair, sentence),
            (false, _) => self.report(FindingKind::SlotHalfMade, on, Repair::Recover, sentence),
        }
    }

    /// The link with one of its 64 bits flipped, if exactly one flip leads to a free page of this
    /// directory that follows the earlier ones.
    fn flipped_link(&self, walk: &Walk, link: u64, offset: u64) -> Option<Repair> {
        let fits = |offset: u64| {
            let page = self.image.region.get(Pm::<LogPage>::new(offset)).ok();
            self.image.is_data_offset(offset)
                && self.usage.of(offset / BLOCK_BYTES) == BlockUse::Free
                && page.is_some_and(|page| page.belongs_to(walk.number) && page.first_cookie.load() >= walk.next_cookie)
        };
        let word = only((0..64).map(|bit| offset ^ 1 << bit).filter(|offset| fits(*offset)))?;
        Some(Repair::SetWord { offset: link, word })
    }

    /// The slot word with one bit flipped, if exactly one flip leads to a name of this directory
    /// with a fitting cookie in unused lines.
    fn flipped_slot(&self, walk: &Walk, slot: Slot) -> Option<Repair> {
        let fits = |word: u64| {
            let offset = slot_address(word);
            let whole = slot_tag(word).and_then(|_| self.image.verified(offset, &mut Name::default()));
            whole.is_some_and(|(_, facts)| {
                let mask = line_mask(offset, dentry_lines(facts.name_length as usize));
                facts.parent == walk.number
                    && fits_slot(&facts, slot, walk)
                    && self.usage.lines(offset / BLOCK_BYTES) & mask == 0
            })
        };
        let word = only((0..64).map(|bit| slot.word ^ 1 << bit).filter(|word| fits(*word)))?;
        Some(Repair::SetWord { offset: slot.offset, word })
    }

    /// The repair that makes the header of a page valid.
    fn repaired_page(&self, page: &LogPage, offset: u64, walk: &Walk) -> Option<Repair> {
        let is_free = self.usage.of(offset / BLOCK_BYTES) == BlockUse::Free;
        let is_others = page.belongs_to(page.owner.load());
        if !is_free || is_others {
            return None;
        }
        let flipped = self.set_flipped(offset, page.flip_in_header(walk.number));
        flipped.or_else(|| self.page_by_its_names(page, offset, walk))
    }

    /// The header of a page of this directory, derived from the names in it.
    fn page_by_its_names(&self, page: &LogPage, offset: u64, walk: &Walk) -> Option<Repair> {
        let mut name = Name::default();
        let names = page.slots.iter().enumerate().filter_map(|(index, slot)| {
            let word = slot.load();
            let (_, facts) = slot_tag(word).and_then(|_| self.image.verified(slot_address(word), &mut name))?;
            (facts.parent == walk.number).then_some((facts.cookie, facts.cookie.checked_sub(index as u64)))
        });
        let names: Vec<_> = names.collect();
        let (least, first) = *names.first()?;
        let appended = first.is_some() && names.iter().all(|(_, other)| *other == first);
        let first_cookie = if appended { first? } else { least };
        let ascend = names.is_sorted_by(|(one, _), (other, _)| one < other);
        let fits = first_cookie >= walk.next_cookie && (appended || ascend);
        fits.then_some(Repair::RepairPage { page: offset, directory: walk.number, first_cookie, compacted: !appended })
    }
}

/// The only item of an iterator; none if it has no item or several.
fn only<T>(mut items: impl Iterator<Item = T>) -> Option<T> {
    let item = items.next();
    item.filter(|_| items.next().is_none())
}

/// Whether a dentry's cookie is possible in a slot.
fn fits_slot(facts: &DentryFacts, slot: Slot, walk: &Walk) -> bool {
    match slot.page {
        (LogPageKind::Append, first) => facts.cookie == first.wrapping_add(slot.index),
        (LogPageKind::Compacted, _) => facts.cookie >= walk.next_cookie,
    }
}
