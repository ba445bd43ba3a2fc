//! Images to check: a small tree with all kinds of files, and helpers to damage it.
#![allow(dead_code, reason = "each test file uses its own part")]

pub mod corruptions;
#[path = "../../../engine/tests/support/mod.rs"]
pub mod engine_support;

use engine::format::{
    DENTRY_HEADER_BYTES, Dentry, DentryFacts, FileKind, Geometry, INODES_PER_SEGMENT, Inode, ListPage, LogPage,
    LogPageKind, Property, ROOT_INODE, Segment, Snapshot, State, Superblock, Valid, slot_address,
};
use engine::{AllocateMode, NewNode, RenameFlags};
use engine_support::{Image, make_directory, new_file, permit, permit_rename, touch};
use fsck::{FindingKind, Options, Report, check};
use pmem::{BLOCK_BYTES, Cell64, Direct, Pm, Region, crc32c};
use std::mem::offset_of;

pub const IMAGE_BYTES: u64 = 4 << 20;

/// A tree with one of each kind of structure, left cleanly.
pub fn sample() -> Image {
    let image = Image::new(IMAGE_BYTES);
    let attached = image.attach();
    {
        let thread = attached.enter();
        let root = thread.root().unwrap();
        let docs = make_directory(&thread, root, "docs");
        let deep = make_directory(&thread, docs, "deep");
        let empty = make_directory(&thread, root, "empty");
        for index in 0..20 {
            touch(&thread, docs, &format!("file-{index:02}"));
        }
        touch(&thread, deep, &"long".repeat(60));
        let linked = thread.lookup(docs, b"file-00").unwrap();
        thread.link(linked, deep, b"second-name").unwrap();
        thread.release(linked, 1);
        for (name, target) in [("short-link", "docs/file-01".to_owned()), ("long-link", "x/".repeat(100))] {
            let new = NewNode { kind: FileKind::Symlink, permissions: 0o777, target: target.as_bytes(), ..new_file() };
            thread.release(thread.create(root, name.as_bytes(), &new).unwrap(), 1);
        }
        for (name, kind, device) in [("pipe", FileKind::Fifo, 0), ("null", FileKind::Character, 0x103)] {
            let node = thread.create(root, name.as_bytes(), &NewNode { kind, device, ..new_file() }).unwrap();
            thread.release(node, 1);
        }
        let body = thread.create(root, b"body", &new_file()).unwrap();
        thread.files().write(body, 0, &[7; 20_000]).unwrap();
        thread.files().write(body, 40 << 20, b"far away").unwrap();
        thread.files().set_xattr(body, b"user.color", b"blue", false, false).unwrap();
        thread.files().set_xattr(body, b"user.big", &[1; 9000], false, false).unwrap();
        let copy = thread.create(root, b"copy", &new_file()).unwrap();
        thread.files().share_range((body, 0), (copy, 0), Some(8192)).unwrap();
        thread.release(copy, 1);
        thread.release(body, 1);
        let small = thread.create(root, b"small", &new_file()).unwrap();
        thread.files().write(small, 0, b"one block").unwrap();
        thread.release(small, 1);
        thread.unlink(docs, b"file-19", permit).unwrap();
        thread.rename((docs, b"file-18"), (empty, b"moved"), RenameFlags::default(), permit_rename).unwrap();
        thread.rename((root, b"empty"), (docs, b"filled"), RenameFlags::default(), permit_rename).unwrap();
        for node in [root, docs, deep, empty] {
            thread.release(node, 1);
        }
    }
    attached.detach();
    image
}

/// A tree, left cleanly, in which the inodes of the second segment are not consecutive; files in
/// `many` use some of them.
pub fn scattered() -> Image {
    // So small that its spare blocks, which no file takes, are fewer than a segment.
    let image = Image::new(7 << 18);
    let attached = image.attach();
    {
        let thread = attached.enter();
        let root = thread.root().unwrap();
        let whole = thread.create(root, b"whole", &new_file()).unwrap();
        let mut blocks = 0;
        while thread.files().append(whole, &[9; BLOCK_BYTES as usize]).is_ok() {
            blocks += 1;
        }
        for block in (0..blocks).step_by(2) {
            thread.files().allocate(whole, AllocateMode::PunchHole, block * BLOCK_BYTES, BLOCK_BYTES).unwrap();
        }
        let many = make_directory(&thread, root, "many");
        for index in 0..300 {
            touch(&thread, many, &format!("file-{index:03}"));
        }
        for node in [root, whole, many] {
            thread.release(node, 1);
        }
    }
    attached.detach();
    image
}

/// The location of a name and of its inode on the image.
#[derive(Debug, Clone, Copy)]
pub struct Located {
    pub number: u64,
    pub inode: u64,
    pub dentry: u64,
    pub slot: u64,
}

/// An image to be damaged.
pub struct DamagedImage<'i> {
    pub region: Region<Direct>,
    pub geometry: Geometry,
    _image: &'i Image,
}

pub const LOG: u64 = offset_of!(Inode, log) as u64;
pub const PARENT: u64 = offset_of!(Inode, parent) as u64;
pub const XATTRS: u64 = offset_of!(Inode, xattrs) as u64;
pub const SNAPSHOT: u64 = offset_of!(Superblock, snapshot) as u64;
pub const STATE: u64 = offset_of!(Superblock, state) as u64;
pub const SLOTS: u64 = offset_of!(LogPage, slots) as u64;

impl<'i> DamagedImage<'i> {
    pub fn new(image: &'i Image) -> DamagedImage<'i> {
        let region = image.region(Direct);
        let geometry = Superblock::check(&region, false).expect("a whole superblock");
        DamagedImage { region, geometry, _image: image }
    }

    /// For an image with a damaged superblock.
    pub fn new_unchecked(image: &'i Image, geometry: Geometry) -> DamagedImage<'i> {
        DamagedImage { region: image.region(Direct), geometry, _image: image }
    }

    pub fn check(&self) -> Report {
        check(&self.region, &Options::default(), &mut |_| {})
    }

    pub fn get(&self, offset: u64) -> u64 {
        let mut bytes = [0; 8];
        self.region.read_bytes(offset, &mut bytes).expect("inside");
        u64::from_le_bytes(bytes)
    }

    pub fn set(&self, offset: u64, word: u64) {
        self.set_bytes(offset, &word.to_le_bytes());
    }

    pub fn set_bytes(&self, offset: u64, bytes: &[u8]) {
        let _ = self.region.write_bytes(offset, bytes).expect("inside");
    }

    pub fn flip(&self, offset: u64, bits: u64) {
        self.set(offset, self.get(offset) ^ bits);
    }

    /// Clears the clean flag.
    pub fn unclean(&self) {
        let state = State::from_word(self.get(STATE));
        self.set(STATE, State { clean: false, ..state }.word());
    }

    pub fn inode_offset(&self, number: u64) -> u64 {
        let segment = number / INODES_PER_SEGMENT;
        let word = self.get(self.geometry.segment_table_block * BLOCK_BYTES + segment * 8);
        let found = Segment::read(&self.region, segment, word, |_| true).expect("a segment");
        found.inode_offset(number % INODES_PER_SEGMENT)
    }

    pub fn inode(&self, number: u64) -> &Inode {
        self.region.get(Pm::new(self.inode_offset(number))).expect("an inode")
    }

    pub fn name(&self, dentry: u64) -> Vec<u8> {
        let facts = self.facts(dentry);
        let mut name = vec![0; facts.name_length as usize];
        self.region.read_bytes(dentry + DENTRY_HEADER_BYTES, &mut name).expect("inside");
        name
    }

    pub fn facts(&self, dentry: u64) -> DentryFacts {
        self.region.get(Pm::<Dentry>::new(dentry)).expect("a dentry").facts().expect("whole")
    }

    /// Marks a name invalid.
    pub fn invalidate_at(&self, dentry: u64) {
        self.set(dentry, self.region.get(Pm::<Dentry>::new(dentry)).expect("a dentry").invalid_word(2));
    }

    /// Finds a path.
    pub fn find(&self, path: &str) -> Located {
        let mut at = Located { number: ROOT_INODE, inode: self.inode_offset(ROOT_INODE), dentry: 0, slot: 0 };
        for name in path.split('/').filter(|name| !name.is_empty()) {
            at = self.find_in(at.number, name.as_bytes()).unwrap_or_else(|| panic!("{name} of {path} is not there"));
        }
        at
    }

    fn find_in(&self, directory: u64, name: &[u8]) -> Option<Located> {
        let mut page = self.get(self.inode_offset(directory) + LOG);
        while page != 0 {
            for slot in (page + SLOTS..page + BLOCK_BYTES).step_by(8) {
                let dentry = slot_address(self.get(slot));
                if dentry != 0 && Valid::from_word(self.get(dentry)).valid && self.name(dentry) == name {
                    let number = self.facts(dentry).inode;
                    return Some(Located { number, inode: self.inode_offset(number), dentry, slot });
                }
            }
            page = self.get(page + 24);
        }
        None
    }

    /// The newest property entry: its offset, its content, its sequence.
    pub fn property(&self, number: u64) -> (u64, Property, u32) {
        let inode = self.inode(number);
        let (property, sequence) = inode.property(number, inode.generation(number).expect("alive")).expect("whole");
        (self.inode_offset(number) + 64 + (sequence as u64 & 1) * 64, property, sequence)
    }

    /// Changes the newest property entry and seals it.
    pub fn change_property(&self, number: u64, change: impl FnOnce(&mut Property)) {
        let (offset, mut property, sequence) = self.property(number);
        change(&mut property);
        let generation = self.inode(number).generation(number).expect("alive");
        let words = property.words();
        for (index, word) in words.iter().enumerate() {
            self.set(offset + 8 + index as u64 * 8, *word);
        }
        self.set(offset, Property::seal(&words, sequence, number, generation));
    }

    /// Changes a dentry's facts and name, and seals it.
    pub fn change_dentry(&self, dentry: u64, change: impl FnOnce(&mut DentryFacts, &mut Vec<u8>)) {
        let (mut facts, mut name) = (self.facts(dentry), self.name(dentry));
        change(&mut facts, &mut name);
        facts.name_length = name.len() as u8;
        self.set(dentry + 16, facts.inode_word());
        self.set(dentry + 24, facts.parent);
        self.set(dentry + 32, facts.cookie);
        self.set_bytes(dentry + DENTRY_HEADER_BYTES, &name);
        self.set(dentry + 8, facts.seal(&name));
    }

    /// Changes an inode's identity and seals it.
    pub fn change_identity(&self, number: u64, kind: u32, device: u32, generation: u32) {
        let offset = self.inode_offset(number);
        self.set_bytes(offset + 16, &kind.to_le_bytes());
        self.set_bytes(offset + 20, &device.to_le_bytes());
        self.set(offset, Inode::birth_word(number, kind, device, self.get(offset + 24), generation));
    }

    /// Changes a page's first cookie or kind and seals it.
    pub fn seal_page(&self, page: u64, owner: u64, first_cookie: u64, kind: LogPageKind) {
        self.set(page + 8, owner);
        self.set(page + 16, first_cookie);
        self.set(page, LogPage::seal_word(owner, first_cookie, kind));
        self.bound_page(page, self.get(page + 32) as u32 as u64);
    }

    /// Sets a page's bound of used slots.
    pub fn bound_page(&self, page: u64, used: u64) {
        self.set(page + 32, LogPage::used_word(self.get(page + 8), self.get(page + 16), used));
    }

    pub fn figures(&self) -> Snapshot {
        Snapshot::from_words(&std::array::from_fn(|index| self.get(SNAPSHOT + index as u64 * 8)))
    }

    /// Changes the figures of the clean image, and seals the whole snapshot.
    pub fn change_snapshot(&self, change: impl FnOnce(&mut Snapshot)) {
        let mut figures = self.figures();
        change(&mut figures);
        let mut crc = self.crc_of(self.geometry.block_map_block, self.geometry.blocks.div_ceil(32) * 8, 0);
        crc = self.crc_of(self.geometry.inode_map_block, self.geometry.inodes_max() / 8, crc);
        let mut page = figures.list_page;
        for _ in 0..figures.list_pages {
            crc = self.crc_of(page / BLOCK_BYTES, BLOCK_BYTES, crc);
            page = self.region.get(Pm::<ListPage>::new(page)).expect("a page").next.load();
        }
        figures.checksum = figures.checksum(crc, State::from_word(self.get(STATE)).epoch);
        for (index, word) in figures.words().iter().enumerate() {
            self.set(SNAPSHOT + index as u64 * 8, *word);
        }
    }

    fn crc_of(&self, block: u64, length: u64, crc: u32) -> u32 {
        let mut bytes = vec![0; length as usize];
        self.region.read_bytes(block * BLOCK_BYTES, &mut bytes).expect("inside");
        crc32c(crc, &bytes)
    }

    /// Sets a block's code in the block map.
    pub fn mark_block(&self, block: u64, code: u64) {
        let offset = self.geometry.block_map_block * BLOCK_BYTES + block / 32 * 8;
        let shift = block % 32 * 2;
        self.set(offset, self.get(offset) & !(3 << shift) | code << shift);
    }

    /// Sets an inode's bit in the inode map.
    pub fn mark_inode(&self, number: u64, used: bool) {
        let offset = self.geometry.inode_map_block * BLOCK_BYTES + number / 64 * 8;
        self.set(offset, self.get(offset) & !(1 << (number % 64)) | (used as u64) << (number % 64));
    }

    pub fn word(&self, offset: u64) -> &Cell64 {
        self.region.get(Pm::new(offset)).expect("inside")
    }
}

/// Expects exactly these kinds; prints the report otherwise.
#[track_caller]
pub fn expect_kinds(report: &Report, kinds: &[FindingKind]) {
    let mut found = report.kinds();
    let mut expected = kinds.to_vec();
    found.sort();
    expected.sort();
    assert!(found == expected, "expected {expected:?}, found:\n{report}");
}
