//! Checks of journal slots: records that are incomplete, that the next attach replays, or that are
//! obsolete.

use crate::check::{Checker, FindingLocation, at};
use crate::finding::{FindingKind, Repair};
use crate::image::Name;
use engine::format::{
    DentryFacts, INODE_BYTES, Inode, JOURNAL_SLOT_BYTES, JOURNAL_SLOTS, JournalRecord, JournalSlot, LOG_SLOTS, LogPage,
    Move, SlotTag, Valid, slot_address, slot_word,
};
use pmem::{BLOCK_BYTES, Memory, Pm};

/// The effect that a record's replay would have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RecordState {
    /// It changes something.
    Pending,
    /// It changes nothing: the rename is complete, or the new name's slot belongs to a later rename
    /// (or to an earlier one that is replayed too).
    Done,
    /// It changes nothing: the rename was stopped before its first step, or later operations have
    /// superseded it.
    Stale,
    /// It refers to structures that cannot exist.
    Impossible,
}

impl<M: Memory> Checker<'_, M> {
    /// Checks all journal slots. On an image that was not cleanly detached, the rest of the check
    /// sees the result of pending records.
    pub fn check_journal(&mut self) {
        let mut repeated = Vec::new();
        for index in 0..JOURNAL_SLOTS {
            let offset = self.image.geometry.journal_block * BLOCK_BYTES + index * JOURNAL_SLOT_BYTES;
            let Ok(slot) = self.image.region.get(Pm::<JournalSlot>::new(offset)) else { return };
            self.check_reserved(FindingLocation::default(), offset + 104, 3, "a journal slot");
            if slot.seal.load() != 0 {
                repeated.extend(self.check_journal_slot(index, offset, slot.record()));
            }
        }
        // Successive renames of the same name take effect in their order within these rounds, as in
        // recovery.
        for _ in 0..=repeated.len() {
            repeated.iter().for_each(|record| self.apply_to_overlay(record));
        }
    }

    /// Checks a record; returns it if the next attach will replay it.
    fn check_journal_slot(&mut self, index: u64, offset: u64, record: Option<JournalRecord>) -> Option<JournalRecord> {
        let standing = record.as_ref().map(|record| self.record_state(record));
        let repair = match standing {
            Some(RecordState::Pending) if self.clean => Repair::CompleteRename { slot: offset },
            Some(RecordState::Pending) => Repair::Recover,
            _ => Repair::ClearWord { offset },
        };
        let (kind, what) = match standing {
            None => (FindingKind::JournalTorn, "an incomplete record"),
            Some(RecordState::Pending) => (FindingKind::JournalPending, "an incomplete rename"),
            Some(RecordState::Done | RecordState::Stale) => {
                (FindingKind::JournalStale, "a finished or superseded rename")
            }
            Some(RecordState::Impossible) => (FindingKind::JournalRecord, "a rename of structures that cannot exist"),
        };
        self.report(kind, at(offset), repair, format_args!("journal slot {index} has {what}"));
        record.filter(|_| !self.clean && matches!(standing, Some(RecordState::Pending | RecordState::Done)))
    }

    fn record_state(&self, record: &JournalRecord) -> RecordState {
        let mut pending = false;
        for step in record.moves.iter().filter(|step| step.slot != 0) {
            match self.move_state(step, record) {
                RecordState::Pending => pending = true,
                RecordState::Done => {}
                other => return other,
            }
            // The seal does not cover the valid word. With another reuse generation in it, the
            // rename was stopped before its first step.
            let arrived = self.image.verified(step.dentry, &mut Name::default());
            if arrived.is_none_or(|(dentry, facts)| dentry.valid_word(&facts).is_none()) {
                return RecordState::Stale;
            }
        }
        for dentry in record.invalidated.into_iter().filter(|dentry| *dentry != 0) {
            match self.image.dentry(dentry) {
                None => return RecordState::Impossible,
                Some(_) if self.image.verified(dentry, &mut Name::default()).is_none() => return RecordState::Stale,
                Some(_) => pending |= self.counts(dentry),
            }
        }
        if pending { RecordState::Pending } else { RecordState::Done }
    }

    fn move_state(&self, step: &Move, record: &JournalRecord) -> RecordState {
        let page_offset = step.slot & !(BLOCK_BYTES - 1);
        let in_page = step.slot & (BLOCK_BYTES - 1);
        let is_slot = step.slot.is_multiple_of(8)
            && in_page >= BLOCK_BYTES - LOG_SLOTS * 8
            && self.image.is_data_offset(page_offset);
        let is_inode = step.directory == 0
            || (step.directory.is_multiple_of(INODE_BYTES) && self.image.is_data(step.directory / BLOCK_BYTES));
        if !is_slot || !is_inode || self.image.dentry(step.dentry).is_none() {
            return RecordState::Impossible;
        }
        let Some((_, facts)) = self.image.verified(step.dentry, &mut Name::default()) else {
            return RecordState::Stale;
        };
        let page = self.image.region.get(Pm::<LogPage>::new(page_offset));
        if !page.is_ok_and(|page| page.belongs_to(facts.parent)) {
            return RecordState::Stale;
        }
        let word = self.image.word(step.slot);
        let named = word == slot_word(step.dentry, SlotTag::Dentry);
        let before = slot_address(word);
        let same_place = |other: DentryFacts| other.parent == facts.parent && other.cookie == facts.cookie;
        let other = self.image.verified(before, &mut Name::default()).map(|(_, facts)| facts);
        if word != 0 && !named && !other.is_some_and(same_place) {
            return RecordState::Stale;
        }
        let moved = step.directory == 0 || self.image.word(step.directory + PARENT_OFFSET) == step.parent;
        let overtaken = !is_due(word, record) && !named;
        if overtaken || (named && moved) { RecordState::Done } else { RecordState::Pending }
    }

    /// Whether a dentry verifies and is valid.
    fn counts(&self, offset: u64) -> bool {
        let dentry = self.image.verified(offset, &mut Name::default());
        dentry.is_some_and(|(dentry, _)| Valid::from_word(dentry.valid.load()).valid)
    }

    fn apply_to_overlay(&mut self, record: &JournalRecord) {
        for step in record.moves.iter().filter(|step| step.slot != 0) {
            let now = self.overlay.slots.get(&step.slot).copied().unwrap_or_else(|| self.image.word(step.slot));
            if is_due(now, record) {
                self.overlay.slots.insert(step.slot, slot_word(step.dentry, SlotTag::Dentry));
            }
            // If the name is invalid again, a later operation has set the directory's parent.
            if step.directory != 0 && self.counts(step.dentry) {
                self.overlay.parents.insert(step.directory, step.parent);
            }
        }
        for offset in record.invalidated.into_iter().filter(|offset| *offset != 0) {
            if let Some(dentry) = self.image.dentry(offset) {
                self.overlay.valid.insert(offset, dentry.invalid_word(record.timestamp_ns));
            }
        }
    }
}

/// Whether a record's new name must be written to a slot with this current word.
pub(crate) fn is_due(word: u64, record: &JournalRecord) -> bool {
    word == 0 || record.invalidated.contains(&slot_address(word))
}

/// Offset of an inode's parent.
const PARENT_OFFSET: u64 = std::mem::offset_of!(Inode, parent) as u64;
