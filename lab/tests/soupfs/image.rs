//! Decodes an image from its bytes, without the file system's code: what is reachable, and what
//! each line holds.

use std::collections::{BTreeMap, BTreeSet};

const LINE: u64 = 64;
const PAGE: u64 = 4096;

/// The use of a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum LineUse {
    Superblock,
    Table,
    Inode,
    /// The second line of an inode.
    Spare,
    BucketLine,
    BucketPage,
    Entry,
    Target,
    Pointers,
    Data,
    Free,
}

/// What the consistent view reaches.
#[derive(Debug, Default)]
pub struct Reachable {
    /// The use of each line, by offset.
    pub lines: BTreeMap<u64, LineUse>,
    /// Valid names: (directory, entry, inode).
    pub names: Vec<(u64, u64, u64)>,
    /// Stale entries.
    pub stale: Vec<u64>,
    /// Lines with two uses.
    pub shared: Vec<u64>,
}

pub struct Image<'b>(pub &'b [u8]);

impl Image<'_> {
    pub fn word(&self, offset: u64) -> u64 {
        let at = offset as usize;
        u64::from_le_bytes(self.0[at..at + 8].try_into().expect("eight bytes"))
    }

    pub fn root(&self) -> u64 {
        self.word(24 + 16)
    }

    pub fn pages(&self) -> u64 {
        self.word(24)
    }

    pub fn first_page(&self) -> u64 {
        self.word(24 + 8)
    }

    /// Lines marked in the allocation table, by offset.
    pub fn marked(&self) -> BTreeSet<u64> {
        let pages = self.first_page()..self.pages();
        let bits = pages.flat_map(|page| (0..64).map(move |bit| (page, bit)));
        bits.filter(|(page, bit)| self.word(PAGE + page * 8) >> bit & 1 == 1)
            .map(|(page, bit)| page * PAGE + bit * LINE)
            .collect()
    }

    pub fn reachable(&self) -> Reachable {
        let mut found = Reachable::default();
        let mut inodes = BTreeSet::new();
        let mut grey = vec![self.root()];
        while let Some(inode) = grey.pop() {
            if inodes.insert(inode) {
                self.visit(inode, &mut found, &mut grey);
            }
        }
        found
    }

    fn visit(&self, inode: u64, found: &mut Reachable, grey: &mut Vec<u64>) {
        let mode = self.word(inode) >> 32 & 0xffff;
        found.see(inode, 1, LineUse::Inode);
        found.see(inode + LINE, 1, LineUse::Spare);
        let root = self.word(inode + 24);
        match mode >> 12 {
            4 => {
                found.see(inode + 2 * LINE, 1, LineUse::BucketLine);
                for depth in 1..=3 {
                    self.visit_buckets(self.word(inode + 2 * LINE + depth * 8), depth, found);
                }
                for entry in self.entries(inode) {
                    found.see(entry, entry_lines(self.word(entry + 24) >> 32 & 0xff), LineUse::Entry);
                    let target = self.word(entry);
                    let (child, kind) = (target & !0x3f, target & 0x3f);
                    if target != 0 && (kind != 4 || self.word(child + 16) == entry) {
                        found.names.push((inode, entry, child));
                        grey.push(child);
                    } else {
                        found.stale.push(entry);
                    }
                }
            }
            8 => self.visit_tree(root & !7, root & 7, found),
            10 if root != 0 => found.see(root, self.word(inode + 16).div_ceil(LINE), LineUse::Target),
            _ => {}
        }
    }

    fn visit_buckets(&self, page: u64, depth: u64, found: &mut Reachable) {
        if page == 0 {
            return;
        }
        found.see(page, 64, LineUse::BucketPage);
        if depth > 1 {
            (0..512).for_each(|index| self.visit_buckets(self.word(page + index * 8), depth - 1, found));
        }
    }

    /// Visits a page. A word that leads to a pointer page says how many of its lines have content.
    fn visit_tree(&self, word: u64, height: u64, found: &mut Reachable) {
        let (page, lines) = (word & !(PAGE - 1), (word & (PAGE - 1)) >> 3);
        if page == 0 {
            return;
        }
        found.see(page, 64, if height == 0 { LineUse::Data } else { LineUse::Pointers });
        if height > 0 {
            (0..lines * 8).for_each(|index| self.visit_tree(self.word(page + index * 8), height - 1, found));
        }
    }

    fn bucket(&self, inode: u64, index: u64) -> u64 {
        let line = inode + 2 * LINE;
        if index < 4 {
            return self.word(line + 32 + index * 8);
        }
        let depth = if index < 512 {
            1
        } else if index < 1 << 18 {
            2
        } else {
            3
        };
        let mut page = self.word(line + depth * 8);
        for step in (1..depth).rev() {
            page = self.word(page + (index >> (9 * step) & 511) * 8);
        }
        self.word(page + (index & 511) * 8)
    }

    /// All entries of a directory's list, by a walk from the first bucket.
    pub fn entries(&self, inode: u64) -> Vec<u64> {
        let mut entries = Vec::new();
        let mut link = self.bucket(inode, 0);
        let mut steps = 0;
        loop {
            steps += 1;
            assert!(steps < 1_000_000, "the list of {inode:#x} does not end");
            link &= !0x20;
            link = match link & 0x3f {
                1 => return entries,
                2 => self.bucket(inode, link >> 6),
                0 if link != 0 => {
                    entries.push(link);
                    self.word(link + 8)
                }
                _ => panic!("the list of {inode:#x} leads to {link:#x}"),
            };
        }
    }
}

impl Image<'_> {
    /// A directory's words, for failure messages.
    pub fn describe(&self, inode: u64) -> String {
        let buckets: Vec<String> =
            (0..16).map(|index| format!("{index}:{:x}", self.bucket_or_none(inode, index))).collect();
        let entry = |entry: &u64| {
            let tag = self.word(entry + 24);
            let key = ((tag as u32).reverse_bits() as u64) << 8 | tag >> 40;
            format!(
                "{entry:x} key {key:x} -> {:x} inode {:x} latest {:x}",
                self.word(entry + 8),
                self.word(*entry),
                self.word(entry + 16)
            )
        };
        let entries: Vec<String> = self.entries(inode).iter().map(entry).collect();
        format!("level {} buckets {}\n  {}", self.word(inode + 128), buckets.join(" "), entries.join("\n  "))
    }

    fn bucket_or_none(&self, inode: u64, index: u64) -> u64 {
        if index >= 4 && self.word(inode + 128 + 8) == 0 { 0 } else { self.bucket(inode, index) }
    }
}

impl Reachable {
    fn see(&mut self, offset: u64, lines: u64, place: LineUse) {
        for line in (0..lines).map(|line| offset + line * LINE) {
            if self.lines.insert(line, place).is_some() {
                self.shared.push(line);
            }
        }
    }
}

fn entry_lines(name_bytes: u64) -> u64 {
    (40 + name_bytes).div_ceil(LINE)
}
