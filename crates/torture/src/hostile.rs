//! Hostile images. Words of every structure are changed and the checksums recomputed, so that the
//! code behind the checksums is reached. The image is then attached, used by every operation,
//! detached, checked and repaired.
//!
//! There must be no panic, no hang and no access outside the image: every call succeeds or returns
//! a typed error.
//!
//! A case is a string of bytes, drawn from a seed or provided by a fuzzer.

use crate::catalogue::{OPERATIONS, SETUPS, set_up};
use crate::dump;
use crate::machine::{Clock, Machine, Watched};
use crate::random::Random;
use crate::test_thread::TestThread;
use engine::format::{
    DENTRY_HEADER_BYTES, Dentry, DentryFacts, FileKind, INODE_BYTES, INODES_PER_SEGMENT, Inode, JOURNAL_SLOT_BYTES,
    JournalRecord, LogPage, LogPageKind, NAME_BYTES_MAX, Property, Segment, SegmentEntry, SegmentList, Snapshot, State,
    Superblock, dentry_lines,
};
use engine::{AttachOptions, Error};
use pmem::{BLOCK_BYTES, LINE_BYTES, Pm, Region, crc32c};
use std::mem::offset_of;

/// Choices, derived from bytes; without bytes they are all zero.
pub struct Choices<'d> {
    data: &'d [u8],
}

impl<'d> Choices<'d> {
    /// The choices encoded in these bytes.
    pub fn new(data: &'d [u8]) -> Choices<'d> {
        Choices { data }
    }

    fn word(&mut self) -> u64 {
        let (head, rest) = self.data.split_at(self.data.len().min(8));
        self.data = rest;
        head.iter().rev().fold(0, |word, byte| word << 8 | *byte as u64)
    }

    fn below(&mut self, limit: u64) -> u64 {
        let (head, rest) = self.data.split_at(self.data.len().min(2));
        self.data = rest;
        head.iter().rev().fold(0, |word, byte| word << 8 | *byte as u64) % limit.max(1)
    }

    fn is_empty(&self) -> bool {
        self.data.is_empty()
    }
}

/// Counts of the cases so far.
#[derive(Debug, Clone, Copy, Default, serde::Serialize)]
pub struct Counts {
    /// Cases.
    pub cases: u64,
    /// Images that could be attached.
    pub attached: u64,
    /// Operations that succeeded.
    pub worked: u64,
    /// Operations that failed with an error.
    pub refused: u64,
    /// Images that a repair made sound.
    pub mended: u64,
    /// Images that it could not.
    pub unmended: u64,
}

/// The environment in which cases run.
pub struct Arena {
    machine: Machine,
    /// Prepared images: cleanly detached, and after a crash.
    images: Vec<Vec<u8>>,
    /// Counts of the cases so far.
    pub counts: Counts,
}

impl Default for Arena {
    fn default() -> Arena {
        let length = SETUPS.iter().map(|setup| setup.image_bytes).max().unwrap_or(2 << 20);
        let machine = Machine::new(length, AttachOptions::default(), Clock::leaked());
        let empty = machine.bytes();
        let mut images = Vec::new();
        for setup in SETUPS {
            for clean in [true, false] {
                machine.load(&empty);
                let (fs, _) = machine.attach().expect("a fresh image");
                {
                    let thread = TestThread::new(&fs).expect("a thread slot");
                    set_up(&thread).and_then(|()| setup.act.run(&thread)).expect("a prepared image");
                }
                if clean {
                    fs.detach_last().expect("a clean detach");
                }
                images.push(machine.bytes());
            }
        }
        Arena { machine, images, counts: Counts::default() }
    }
}

impl Arena {
    /// Runs a case.
    pub fn run(&mut self, data: &[u8]) {
        let mut choices = Choices::new(data);
        let image = &self.images[choices.below(self.images.len() as u64) as usize];
        self.machine.load(image);
        let mutant = Mutant::new(self.machine.region());
        let clean = choices.below(2) == 0;
        for _ in 0..12 {
            if choices.is_empty() {
                break;
            }
            mutant.mutate(&mut choices);
        }
        mutant.finish(clean);
        self.counts.cases += 1;
        self.use_it();
        self.repair_it();
    }

    /// Attaches, runs every operation, detaches. What a check calls sound is sound afterwards, and
    /// no operation finds damage in it.
    fn use_it(&mut self) {
        let sound = self.machine.check(None).is_sound();
        let Ok((fs, _)) = self.machine.attach() else {
            assert!(!sound, "a sound image cannot be attached");
            return;
        };
        self.counts.attached += 1;
        if let Ok(thread) = TestThread::new(&fs) {
            for act in OPERATIONS.iter().filter_map(|operation| operation.act) {
                match act.run(&thread) {
                    Ok(()) => self.counts.worked += 1,
                    Err(error) => {
                        let damaged = matches!(error, Error::Corrupt(_));
                        assert!(!(sound && damaged), "an operation finds damage in a sound image: {error:?}");
                        self.counts.refused += 1;
                    }
                }
            }
            let _ = thread.thread.recycler().recycle(1000);
            let _ = dump::dump(&thread);
            let _ = thread.thread.sync_all();
        }
        let _ = fs.detach_last();
        if sound {
            let after = self.machine.check(None);
            assert!(after.is_sound(), "a sound image is damaged by use: {:?}", after.findings);
        }
    }

    /// Repairs the image twice: the second repair has nothing to do, or only what the first could
    /// not repair.
    fn repair_it(&mut self) {
        let region = self.machine.region();
        let options = fsck::Options::default();
        let repaired = fsck::repair(&region, &options, 1, &mut |_| true, &mut |_| {});
        if repaired.after.is_sound() {
            self.counts.mended += 1;
            let again = fsck::repair(&region, &options, 1, &mut |_| true, &mut |_| {});
            assert!(again.repaired.is_empty(), "a sound image is repaired once more: {:?}", again.repaired);
        } else {
            self.counts.unmended += 1;
        }
        if let Ok((fs, _)) = self.machine.attach() {
            if let Ok(thread) = TestThread::new(&fs) {
                let read = dump::dump(&thread);
                let sound = repaired.after.is_sound() && !repaired.needs_recovery;
                assert!(
                    read.is_ok() || !sound,
                    "after a repair: {}",
                    read.err().map_or(String::new(), |error| error.0)
                );
            }
            let _ = fs.detach_last();
        }
    }
}

/// An image that is being changed.
struct Mutant {
    region: Region<Watched>,
    blocks: u64,
    segment: u64,
}

impl Mutant {
    fn new(region: Region<Watched>) -> Mutant {
        let blocks = region.length() / BLOCK_BYTES;
        let segment = read(&region, 33 * BLOCK_BYTES);
        Mutant { region, blocks, segment }
    }

    fn get(&self, offset: u64) -> u64 {
        read(&self.region, offset)
    }

    fn set_word(&self, offset: u64, word: u64) {
        if let Ok(dirty) = self.region.write_bytes(offset, &word.to_le_bytes()) {
            let _ = self.region.flush(dirty);
        }
    }

    /// A word that may be a valid pointer.
    fn word(&self, choices: &mut Choices<'_>, present: u64) -> u64 {
        match choices.below(12) {
            0 => 0,
            1 => u64::MAX,
            2 => present ^ 1 << choices.below(64),
            3 => choices.below(self.blocks) * BLOCK_BYTES,
            4 => choices.below(self.blocks) * BLOCK_BYTES + choices.below(64),
            5 => choices.below(self.blocks * 64) * LINE_BYTES + 1,
            6 => self.segment + choices.below(64) * INODE_BYTES,
            7 => choices.below(300),
            8 => present.wrapping_add(choices.below(9)).wrapping_sub(4),
            9 => self.get(choices.below(self.blocks) * BLOCK_BYTES + choices.below(512) * 8),
            10 => 1 << choices.below(64),
            _ => choices.word(),
        }
    }

    /// Changes one word of a structure, and seals the structure again.
    fn mutate(&self, choices: &mut Choices<'_>) {
        let inode = choices.below(48);
        match choices.below(16) {
            0 => self.change(choices, &[128, 136, 168, 512, 576, 584, 592, 600, 608, 616]),
            1 => self.mutate_journal(choices),
            2 => {
                let segment = choices.below(3);
                let entry = 33 * BLOCK_BYTES + segment * 8;
                match SegmentEntry::from_word(self.get(entry)) {
                    Some(SegmentEntry::List(list)) if choices.below(3) != 0 => self.mutate_list(choices, segment, list),
                    _ => self.set_word(entry, self.word(choices, self.get(entry))),
                }
            }
            3 | 4 => self.mutate_identity(choices, inode),
            5..8 => self.mutate_property(choices, inode),
            8 => {
                let field = [32, 40, 48, 56, 192, 200, 208][choices.below(7) as usize];
                let offset = self.segment + inode * INODE_BYTES + field;
                self.set_word(offset, self.word(choices, self.get(offset)));
            }
            9 | 10 => self.mutate_log(choices, inode),
            11..14 => self.mutate_dentry(choices, inode),
            14 => self.mutate_body(choices, inode),
            _ => {
                let offset = choices.below(self.blocks) * BLOCK_BYTES + choices.below(512) * 8;
                self.set_word(offset, self.word(choices, self.get(offset)));
            }
        }
    }

    /// Changes one of the blocks in a segment's list.
    fn mutate_list(&self, choices: &mut Choices<'_>, segment: u64, list: u64) {
        let at = |index: usize| list + (offset_of!(SegmentList, blocks) + index * 8) as u64;
        let mut blocks = std::array::from_fn(|index| self.get(at(index)));
        let index = choices.below(blocks.len() as u64) as usize;
        blocks[index] = self.word(choices, blocks[index]);
        if let Ok(dirty) = self.region.write_bytes(list, &Segment::listed(list, blocks).list_bytes(segment)) {
            let _ = self.region.flush(dirty);
        }
    }

    fn change(&self, choices: &mut Choices<'_>, offsets: &[u64]) {
        let offset = offsets[choices.below(offsets.len() as u64) as usize];
        self.set_word(offset, self.word(choices, self.get(offset)));
    }

    fn mutate_journal(&self, choices: &mut Choices<'_>) {
        let offset = BLOCK_BYTES + choices.below(4) * JOURNAL_SLOT_BYTES;
        let mut words: [u64; 12] = std::array::from_fn(|index| self.get(offset + 8 + index as u64 * 8));
        for _ in 0..=choices.below(6) {
            let index = choices.below(12) as usize;
            words[index] = self.word(choices, words[index]);
        }
        words.iter().enumerate().for_each(|(index, word)| self.set_word(offset + 8 + index as u64 * 8, *word));
        self.set_word(offset, JournalRecord::seal(&words));
    }

    fn mutate_identity(&self, choices: &mut Choices<'_>, number: u64) {
        let offset = self.segment + number * INODE_BYTES;
        let field = [0, 8, 16, 24][choices.below(4) as usize];
        self.set_word(offset + field, self.word(choices, self.get(offset + field)));
        let kinds = self.get(offset + 16);
        let kind = if choices.below(3) == 0 { choices.below(16) } else { kinds & 0xf };
        self.set_word(offset + 16, kind);
        let (said, born, generation) = (self.get(offset + 8), self.get(offset + 24), self.get(offset) as u32);
        self.set_word(offset, Inode::birth_word(said, kind as u32, 0, born, generation));
    }

    fn mutate_property(&self, choices: &mut Choices<'_>, number: u64) {
        let Ok(inode) = self.region.get(Pm::<Inode>::new(self.segment + number * INODE_BYTES)) else { return };
        let Some(generation) = inode.generation(number) else { return };
        let sequence = inode.property(number, generation).map_or(0, |(_, sequence)| sequence);
        let offset = self.region.offset_of(inode) + offset_of!(Inode, properties) as u64 + (sequence as u64 & 1) * 64;
        let mut words: [u64; 7] = std::array::from_fn(|index| self.get(offset + 8 + index as u64 * 8));
        let index = choices.below(7) as usize;
        words[index] = self.word(choices, words[index]);
        if index == 6 {
            // A root that may be valid.
            let low = [0, 1, 2, 3, 4, 5, 9, 0x29][choices.below(8) as usize];
            let count = if low & 8 != 0 { choices.below(600) << 52 } else { 0 };
            words[6] = words[6] & 0x000f_ffff_ffff_f000 | low | count;
        }
        words.iter().enumerate().for_each(|(index, word)| self.set_word(offset + 8 + index as u64 * 8, *word));
        self.set_word(offset, Property::seal(&words, sequence, number, generation));
    }

    fn log_page(&self, choices: &mut Choices<'_>, number: u64) -> Option<u64> {
        let mut page = self.get(self.segment + number * INODE_BYTES + offset_of!(Inode, log) as u64);
        for _ in 0..choices.below(3) {
            let next = self.get(page.checked_add(24)?);
            page = if next == 0 { page } else { next };
        }
        (page != 0 && page.is_multiple_of(BLOCK_BYTES) && page < self.region.length()).then_some(page)
    }

    fn mutate_log(&self, choices: &mut Choices<'_>, number: u64) {
        let Some(page) = self.log_page(choices, number) else { return };
        match choices.below(4) {
            0 => {
                let slot = page + 64 + choices.below(20) * 8;
                self.set_word(slot, self.word(choices, self.get(slot)));
            }
            1 => self.set_word(page + 24, self.word(choices, self.get(page + 24))),
            2 => {
                let used = choices.below(600);
                self.set_word(page + 32, LogPage::used_word(self.get(page + 8), self.get(page + 16), used));
            }
            _ => {
                let field = 8 + choices.below(2) * 8;
                self.set_word(page + field, self.word(choices, self.get(page + field)));
                let kind = if choices.below(2) == 0 { LogPageKind::Append } else { LogPageKind::Compacted };
                self.set_word(page, LogPage::seal_word(self.get(page + 8), self.get(page + 16), kind));
            }
        }
    }

    fn mutate_dentry(&self, choices: &mut Choices<'_>, number: u64) {
        let Some(page) = self.log_page(choices, number) else { return };
        let offset = self.get(page + 64 + choices.below(20) * 8) & !63;
        let Ok(dentry) = self.region.get(Pm::<Dentry>::new(offset)) else { return };
        let Some(mut facts) = dentry.facts() else { return };
        let mut name = [0; NAME_BYTES_MAX];
        match choices.below(7) {
            0 => facts.inode = self.word(choices, facts.inode),
            1 => facts.inode = choices.below(INODES_PER_SEGMENT),
            2 => facts.parent = self.word(choices, facts.parent),
            3 => facts.cookie = self.word(choices, facts.cookie),
            4 => facts.kind = FileKind::from_bits(choices.below(16) as u32).unwrap_or(facts.kind),
            5 => facts.name_length = choices.below(256) as u8,
            _ => self.set_word(offset + DENTRY_HEADER_BYTES, choices.word()),
        }
        let name = &mut name[..facts.name_length as usize];
        let fits = offset % BLOCK_BYTES + dentry_lines(name.len()) * LINE_BYTES <= BLOCK_BYTES;
        if fits && self.region.read_bytes(offset + DENTRY_HEADER_BYTES, name).is_ok() {
            let DentryFacts { inode, parent, cookie, .. } = facts;
            [inode, parent, cookie]
                .into_iter()
                .zip([16, 24, 32])
                .for_each(|(word, at)| self.set_word(offset + at, word));
            self.set_word(offset + 8, facts.seal(name));
        }
    }

    /// Changes a word of a block map's node, or of the extended attributes with their checksum.
    fn mutate_body(&self, choices: &mut Choices<'_>, number: u64) {
        let inode = self.segment + number * INODE_BYTES;
        let attributes = self.get(inode + offset_of!(Inode, xattrs) as u64);
        let Ok(whole) = self.region.get(Pm::<Inode>::new(inode)) else { return };
        let property = whole.generation(number).and_then(|generation| whole.property(number, generation));
        if choices.below(2) == 0 && attributes & 0xf == 0 && attributes != 0 {
            let block = attributes & !0xfff;
            let offset = block + choices.below(20) * 8;
            self.set_word(offset, self.word(choices, self.get(offset)));
            let length = self.get(block + 8).clamp(64, BLOCK_BYTES);
            let mut bytes = vec![0; (length - 64) as usize];
            if self.region.read_bytes(block + 64, &mut bytes).is_ok() {
                self.set_word(block, crc32c(0, &bytes) as u64);
            }
        } else if let Some((property, _)) = property
            && property.root & 0xf != 0
        {
            let offset = (property.root & !0xfff) + choices.below(512) * 8;
            self.set_word(offset, self.word(choices, self.get(offset)));
        }
    }

    /// Seals superblock and maps.
    fn finish(&self, clean: bool) {
        let Ok(superblock) = self.region.first::<Superblock>() else { return };
        let state = State { clean, ..superblock.state() };
        self.set_word(offset_of!(Superblock, state) as u64, state.word());
        self.set_word(offset_of!(Superblock, checksum) as u64, superblock.description_checksum());
        let Ok(geometry) = Superblock::check(&self.region, true) else { return };
        let mut figures = Snapshot::from_words(&std::array::from_fn(|index| superblock.snapshot[index].load()));
        let mut crc = 0;
        let mut add = |offset: u64, length: u64| {
            let mut bytes = vec![0; length as usize];
            let _ = self.region.read_bytes(offset, &mut bytes);
            crc = crc32c(crc, &bytes);
        };
        add(geometry.block_map_block * BLOCK_BYTES, geometry.blocks.div_ceil(32) * 8);
        add(geometry.inode_map_block * BLOCK_BYTES, geometry.inodes_max() / 8);
        let mut page = figures.list_page;
        for _ in 0..figures.list_pages.min(16) {
            add(page, BLOCK_BYTES);
            page = self.get(page);
        }
        figures.checksum = figures.checksum(crc, state.epoch);
        self.set_word(offset_of!(Superblock, snapshot) as u64, figures.checksum);
    }
}

fn read(region: &Region<Watched>, offset: u64) -> u64 {
    let mut bytes = [0; 8];
    match region.read_bytes(offset, &mut bytes) {
        Ok(()) => u64::from_le_bytes(bytes),
        Err(_) => 0,
    }
}

/// The bytes of case `index` of a seed.
pub fn case(seed: u64, index: u64) -> Vec<u8> {
    let mut random = Random::new(seed << 32 ^ index);
    let mut bytes = Vec::new();
    let mut next = || random.word() >> 16;
    let length = 8 + next() % 90;
    bytes.resize_with(length as usize, || next() as u8);
    bytes
}
