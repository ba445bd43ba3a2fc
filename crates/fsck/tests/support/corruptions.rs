//! A corruption for every invariant.

use super::{DamagedImage, LOG, PARENT, SLOTS, STATE, XATTRS};
use engine::format::SlotTag;
use engine::format::{
    FileKind, JOURNAL_SLOT_BYTES, JournalRecord, LogPageKind, Move, PROPERTY_INLINE, Property, ROOT_INODE, slot_word,
};
use fsck::FindingKind::{self, *};
use pmem::BLOCK_BYTES;

/// A way to break one invariant.
pub struct Corruption {
    /// All expected findings.
    pub kinds: &'static [FindingKind],
    /// The resulting damage.
    pub title: &'static str,
    pub damage: fn(&DamagedImage),
    /// Files whose contents the damage destroys.
    pub destroys: &'static [&'static str],
}

const fn corruption(kinds: &'static [FindingKind], title: &'static str, damaged: fn(&DamagedImage)) -> Corruption {
    Corruption { kinds, title, damage: damaged, destroys: &[] }
}

impl Corruption {
    const fn destroying(self, destroys: &'static [&'static str]) -> Corruption {
        Corruption { destroys, ..self }
    }
}

pub fn journal(damaged: &DamagedImage, index: u64) -> u64 {
    damaged.geometry.journal_block * BLOCK_BYTES + index * JOURNAL_SLOT_BYTES
}

pub fn write_record(damaged: &DamagedImage, record: &JournalRecord) {
    let at = journal(damaged, 3);
    let words = record.words();
    for (index, word) in words.iter().enumerate() {
        damaged.set(at + 8 + index as u64 * 8, *word);
    }
    damaged.set(at, JournalRecord::seal(&words));
}

/// The record of a rename that writes an existing name `path` and removes `old`.
pub fn rename_record(damaged: &DamagedImage, path: &str, old: u64) -> JournalRecord {
    let new = damaged.find(path);
    JournalRecord {
        moves: [Move { slot: new.slot, dentry: new.dentry, directory: 0, parent: 0 }, Move::default()],
        invalidated: [old, 0],
        timestamp_ns: 5,
        sequence: 0,
    }
}

pub fn page(damaged: &DamagedImage, directory: &str) -> u64 {
    damaged.get(damaged.find(directory).inode + LOG)
}

/// A free inode of the first segment.
pub const FREE_INODE: u64 = 200;

/// The block of a body's root.
pub fn root_block(damaged: &DamagedImage, path: &str) -> u64 {
    damaged.property(damaged.find(path).number).1.root / BLOCK_BYTES
}

/// An unused block, to be marked as used.
pub fn unused_block(damaged: &DamagedImage) -> u64 {
    damaged.geometry.copy_block() - 1
}

/// The dentry block of a name, and the mask of its line.
pub fn dentry_block(damaged: &DamagedImage, path: &str) -> (u64, u64) {
    let dentry = damaged.find(path).dentry;
    (dentry / BLOCK_BYTES, 1 << (dentry % BLOCK_BYTES / 64))
}

/// A block shared by two files.
pub fn shared_block(damaged: &DamagedImage) -> u64 {
    damaged.get(root_block(damaged, "copy") * BLOCK_BYTES) / BLOCK_BYTES
}

/// Changes the listed word of a block.
fn change_listed_word(damaged: &DamagedImage, block: u64, change: impl Fn(u64) -> u64) {
    let first = damaged.figures().list_page;
    let entry = (first + 16..first + BLOCK_BYTES).step_by(16).find(|entry| damaged.get(*entry) == block);
    let entry = entry.expect("the block is listed");
    damaged.set(entry + 8, change(damaged.get(entry + 8)));
    damaged.change_snapshot(|_| {});
}

pub const CORRUPTIONS: &[Corruption] = &[
    corruption(&[SuperblockCopy], "the copy of the superblock was overwritten", |p| {
        p.flip(p.geometry.copy_block() * BLOCK_BYTES + 30, 1);
    }),
    corruption(&[ReservedNotZero], "reserved bytes after the superblock are not zero", |p| p.set(800, 1)),
    corruption(&[ReservedNotZero], "the word of the reserve has another checksum", |p| p.set(208, 1 << 32 | 7)),
    corruption(&[ReservedNotZero], "the state word has reserved bits", |p| p.flip(STATE, 1 << 40)),
    corruption(&[ReservedNotZero], "a log page has reserved bytes in its header", |p| p.set(page(p, "docs") + 40, 1)),
    corruption(&[ReservedNotZero], "an inode's reserved word is not zero", |p| p.set(p.find("body").inode + 200, 1)),
    corruption(&[JournalTorn], "a journal slot is torn", |p| p.set(journal(p, 7), 0x1234_0000_0001)),
    corruption(&[JournalPending], "a rename was not completed", |p| {
        let old = p.find("docs/file-03").dentry;
        write_record(p, &rename_record(p, "docs/deep/second-name", old));
    }),
    corruption(&[JournalStale], "a finished rename was not cleared", |p| {
        write_record(p, &rename_record(p, "docs/file-04", 0));
    }),
    corruption(&[JournalRecord], "a rename refers outside the data area", |p| {
        write_record(p, &engine::format::JournalRecord { invalidated: [64, 0], ..rename_record(p, "docs/file-04", 0) });
    }),
    corruption(&[SegmentOffset], "the table has a segment in the fixed areas", |p| {
        p.set(p.geometry.segment_table_block * BLOCK_BYTES + 8, BLOCK_BYTES);
    }),
    corruption(&[SegmentList], "a segment's list does not verify", |p| {
        p.set(p.geometry.segment_table_block * BLOCK_BYTES + 8, unused_block(p) * BLOCK_BYTES + 1);
    }),
    corruption(&[SegmentOverlap], "the table has a segment twice", |p| {
        let table = p.geometry.segment_table_block * BLOCK_BYTES;
        p.set(table + 8, p.get(table));
    }),
    corruption(&[SegmentGap, SegmentOffset], "a segment follows a gap", |p| {
        p.set(p.geometry.segment_table_block * BLOCK_BYTES + 24, 1);
    }),
    corruption(&[InodeNumber], "an inode was copied over another", |p| {
        let (from, to) = (p.find("docs/file-01").inode, p.find("docs/file-02").inode);
        for offset in (0..256).step_by(8) {
            p.set(to + offset, p.get(from + offset));
        }
    })
    .destroying(&["docs/file-02"]),
    corruption(&[InodeChecksum], "an inode's birth time changed", |p| p.flip(p.find("docs/file-01").inode + 24, 1)),
    corruption(&[InodeKind], "an inode is of kind 3", |p| p.change_identity(p.find("pipe").number, 3, 0, 1)),
    corruption(&[InodeZero], "number zero is in use", |p| p.change_identity(0, 8, 0, 1)),
    corruption(&[FreeInodeNotZero], "a free inode has an access time", |p| p.set(p.inode_offset(FREE_INODE) + 192, 9)),
    corruption(&[FreeInodeNotZero], "a free inode has a link's target", |p| p.set(p.inode_offset(FREE_INODE) + 216, 9)),
    corruption(&[PointerEpoch], "a pointer into memory has a future epoch", |p| {
        p.set(p.find("body").inode + 56, 7 | 99 << 32);
    }),
    corruption(&[InodeDevice], "a pipe has a device number", |p| p.change_identity(p.find("pipe").number, 1, 5, 1)),
    corruption(&[DirectoryFields], "a file has a log", |p| p.set(p.find("body").inode + LOG, page(p, "docs"))),
    corruption(&[NoProperty], "both property entries are lost", |p| {
        let inode = p.find("pipe").inode;
        p.flip(inode + 72, 1);
        p.flip(inode + 136, 1);
    }),
    corruption(&[PropertyTorn], "the first property entry is torn, the second is used", |p| {
        let file = p.find("docs/file-01").number;
        p.change_property(file, |_| {});
        let inode = p.inode_offset(file);
        let property = p.property(file).1;
        write_entry(p, file, 1, &property);
        p.flip(inode + 64 + 8, 1);
    }),
    corruption(&[PropertySequence], "the property entries are three changes apart", |p| {
        let file = p.find("docs/file-01").number;
        let property = p.property(file).1;
        write_entry(p, file, 3, &property);
    }),
    corruption(&[PropertyKind], "a pipe has the mode of a socket", |p| {
        p.change_property(p.find("pipe").number, |property| property.mode = 0o140644);
    }),
    corruption(&[PropertyFlags], "a pipe has an unknown property flag", |p| {
        p.change_property(p.find("pipe").number, |property| property.flags = 8);
    }),
    corruption(&[PropertyFlags], "a file is immutable on an image without that feature", |p| {
        p.change_property(p.find("docs/file-01").number, |property| property.flags = 4);
    }),
    corruption(&[PropertyFlags], "a device has its body inline", |p| {
        p.change_property(p.find("null").number, |property| property.flags = PROPERTY_INLINE);
    }),
    corruption(&[PropertySize], "a short link is longer than the inline area", |p| {
        p.change_property(p.find("short-link").number, |property| property.size_bytes = 49);
    }),
    corruption(&[PropertySize], "a directory has a size", |p| {
        p.change_property(p.find("docs").number, |property| property.size_bytes = 1);
    }),
    corruption(&[PropertyOwner], "a set-user-ID file has the owner that means no change", |p| {
        p.change_property(p.find("small").number, |property| (property.uid, property.mode) = (u32::MAX, 0o104755));
    }),
    corruption(&[PropertyRoot], "a pipe has a body", |p| {
        p.change_property(p.find("pipe").number, |property| property.root = 1 << 20);
    }),
    corruption(&[LogOffset, Orphan, BlockLeaked, LineLeaked], "a log links outside the data area", |p| {
        cut_log_to(p, "docs/filled", u64::MAX / BLOCK_BYTES * BLOCK_BYTES);
    }),
    corruption(&[LogPage, Orphan, BlockLeaked, LineLeaked], "a log links to another directory's page", |p| {
        cut_log_to(p, "docs/filled", page(p, "docs"));
    }),
    corruption(&[LogLoop], "a log links back to its first page", |p| {
        let first = page(p, "docs");
        p.set(first + 24, first);
    }),
    corruption(&[LogCookies, DentryCookie], "a page's first cookie is too low", |p| {
        let first = page(p, "docs");
        p.seal_page(first, p.find("docs").number, 3, LogPageKind::Append);
    }),
    corruption(&[LogUsed], "a page's bound hides its last slots", |p| {
        p.bound_page(page(p, "docs"), 8);
    }),
    corruption(&[LogUsed], "a page's bound does not verify", |p| p.flip(page(p, "docs") + 32, 1)),
    corruption(&[LogEnd], "a log ends with a compacted page", |p| {
        let first = page(p, "docs");
        p.seal_page(first, p.find("docs").number, 16, LogPageKind::Compacted);
    }),
    corruption(&[SlotTag], "a slot has an unknown tag", |p| p.set(page(p, "docs") + SLOTS + 30 * 8, 0x40_0002)),
    corruption(&[SlotOffset], "a slot refers to the superblock", |p| {
        p.set(page(p, "docs") + SLOTS + 30 * 8, slot_word(64, SlotTag::Dentry));
    }),
    corruption(&[SlotHalfMade], "a slot refers to lines without a dentry", |p| {
        let (block, _) = dentry_block(p, "docs/file-00");
        p.set(page(p, "docs") + SLOTS + 30 * 8, slot_word(block * BLOCK_BYTES + 63 * 64, SlotTag::Dentry));
    }),
    corruption(&[SlotHalfMade, Orphan, LineLeaked], "a byte of a name changed", |p| {
        p.flip(p.find("docs/file-01").dentry + 40, 1)
    }),
    corruption(&[LogEnd, DentryDamaged, Orphan, LineLeaked], "a name in a compacted page is damaged", |p| {
        p.seal_page(page(p, "docs"), p.find("docs").number, 16, LogPageKind::Compacted);
        let dentry = p.find("docs/file-01").dentry;
        p.set(dentry + 40, 0x1234);
    }),
    corruption(&[DentryParent, Orphan, LineLeaked], "a dentry has another directory's number", |p| {
        p.change_dentry(p.find("docs/file-01").dentry, |facts, _| facts.parent = ROOT_INODE);
    }),
    corruption(&[DentryCookie], "a dentry has the cookie of another slot", |p| {
        p.change_dentry(p.find("docs/file-01").dentry, |facts, _| facts.cookie += 100);
    }),
    corruption(&[DentryCookie, DentryOverlap], "two slots refer to one dentry", |p| {
        p.set(page(p, "docs") + SLOTS + 30 * 8, p.get(p.find("docs/file-01").slot));
    }),
    corruption(&[NameInvalid], "a name has a slash in it", |p| {
        p.change_dentry(p.find("docs/file-01").dentry, |_, name| name[4] = b'/');
    }),
    corruption(&[NameInvalid], "a name has a zero byte in it", |p| {
        p.change_dentry(p.find("docs/file-01").dentry, |_, name| name[4] = 0);
    }),
    corruption(&[NameInvalid], "a name is two dots", |p| {
        p.change_dentry(p.find("docs/file-01").dentry, |_, name| *name = b"..".to_vec());
    }),
    corruption(&[NameTwice], "two files have the same name", |p| {
        p.change_dentry(p.find("docs/file-01").dentry, |_, name| *name = b"file-02".to_vec());
    }),
    corruption(&[DentryTarget, Orphan], "a name refers to an impossible inode number", |p| {
        p.change_dentry(p.find("docs/file-01").dentry, |facts, _| facts.inode = 1 << 40);
    }),
    corruption(&[DentryDangling, Orphan], "a name refers to a free inode", |p| {
        p.change_dentry(p.find("docs/file-01").dentry, |facts, _| facts.inode = FREE_INODE);
    }),
    corruption(&[DentryKind], "a regular file's name has the kind of a pipe", |p| {
        p.change_dentry(p.find("docs/file-01").dentry, |facts, _| facts.kind = FileKind::Fifo);
    }),
    corruption(&[DentryTurn, Orphan], "a valid word has another reuse generation", |p| {
        p.flip(p.find("docs/file-01").dentry, 2)
    }),
    corruption(&[RootNamed, Orphan], "a name refers to the root", |p| {
        p.change_dentry(p.find("docs/file-01").dentry, |facts, _| {
            (facts.inode, facts.kind) = (ROOT_INODE, FileKind::Directory);
        });
    }),
    corruption(&[DirectoryParent], "the root's parent is another directory", |p| {
        p.set(p.inode_offset(ROOT_INODE) + PARENT, p.find("docs").number);
    }),
    corruption(&[DirectoryParent], "a directory's parent is not the directory of its name", |p| {
        p.set(p.find("docs/deep").inode + PARENT, ROOT_INODE);
    }),
    corruption(&[DirectoryNames, LinksWrong, Orphan], "a directory has two names", |p| {
        let deep = p.find("docs/deep").number;
        p.change_dentry(p.find("docs/file-01").dentry, |facts, _| {
            (facts.inode, facts.kind) = (deep, FileKind::Directory);
        });
    }),
    corruption(&[DirectoryCycle, LinksWrong], "a directory is below itself", |p| {
        // The name of `filled` moves into `filled` itself; it is its only name.
        let (filled, moved) = (p.find("docs/filled"), p.find("docs/filled/moved"));
        p.set(filled.inode + PARENT, filled.number);
        p.change_dentry(moved.dentry, |facts, _| (facts.inode, facts.kind) = (filled.number, FileKind::Directory));
        p.change_dentry(filled.dentry, |facts, _| (facts.inode, facts.kind) = (moved.number, FileKind::Regular));
    }),
    corruption(&[Orphan], "a name is lost and its file is not", |p| {
        p.invalidate_at(p.find("docs/file-01").dentry);
    }),
    corruption(&[LinksWrong], "a file's link count is one too high", |p| {
        p.change_property(p.find("docs/file-00").number, |property| property.links = 3);
    }),
    corruption(&[LinksWrong], "a directory's link count is one too low", |p| {
        p.change_property(p.find("docs").number, |property| property.links = 3);
    }),
    corruption(&[LinkTarget], "the target of a short link has a zero byte", |p| {
        p.set_bytes(p.find("short-link").inode + 208 + 4, &[0]);
    })
    .destroying(&["short-link"]),
    corruption(&[LinkTarget], "the target of a long link has a zero byte", |p| {
        p.set_bytes(root_block(p, "long-link") * BLOCK_BYTES + 99, &[0]);
    })
    .destroying(&["long-link"]),
    corruption(&[LinkTarget, BlockLeaked], "a long link has no target", |p| {
        p.change_property(p.find("long-link").number, |property| (property.root, property.blocks) = (0, 0));
    })
    .destroying(&["long-link"]),
    corruption(&[MapShape, BlockLeaked], "a root has height nine", |p| {
        p.change_property(p.find("small").number, |property| property.root |= 9);
    })
    .destroying(&["small"]),
    corruption(&[BlockOutside, BlockLeaked], "a file's block is in the journal", |p| {
        p.change_property(p.find("small").number, |property| property.root = BLOCK_BYTES);
    })
    .destroying(&["small"]),
    corruption(&[BlockTwice, BlockLeaked], "two files use the same block", |p| {
        let root = p.property(p.find("long-link").number).1.root;
        p.change_property(p.find("small").number, |property| property.root = root);
    })
    .destroying(&["small"]),
    corruption(&[BlockTwice, BlockLeaked], "a file's block is a page of a log", |p| {
        let page = page(p, "docs");
        p.change_property(p.find("small").number, |property| property.root = page);
    })
    .destroying(&["small"]),
    corruption(&[BeyondEnd], "a file is shorter than its blocks", |p| {
        p.change_property(p.find("body").number, |property| property.size_bytes = 5000);
    })
    .destroying(&["body"]),
    corruption(&[BlocksWrong], "a file's block count is one too high", |p| {
        p.change_property(p.find("body").number, |property| property.blocks += 1);
    }),
    corruption(&[XattrBody], "a byte of an attribute changed", |p| {
        let root = p.get(p.find("body").inode + XATTRS);
        let block = if root & 15 == 0 { root } else { p.get(root & !4095) };
        p.flip((block & !4095) + 72, 1);
    }),
    corruption(&[XattrBody], "the name of an attribute has a zero byte in it", |p| {
        let root = p.get(p.find("body").inode + XATTRS);
        let blocks: Vec<u64> = (0..3).map(|index| p.get((root & !4095) + index * 8)).collect();
        p.set_bytes(blocks[0] + 64 + 5 + 5, &[0]);
        let mut bytes = vec![0; 3 << 12];
        for (block, bytes) in blocks.iter().zip(bytes.chunks_exact_mut(4096)) {
            p.region.read_bytes(*block, bytes).expect("inside");
        }
        let length = p.get(blocks[0] + 8) as usize;
        p.set(blocks[0], pmem::crc32c(0, &bytes[64..length]) as u64);
    })
    .destroying(&["body"]),
    corruption(&[SnapshotDropped], "a repair was interrupted", |p| {
        (0..8).for_each(|word| p.set(super::SNAPSHOT + word * 8, 0));
    }),
    corruption(&[SnapshotChecksum], "a bit of the block map flipped", |p| {
        p.flip(p.geometry.block_map_block * BLOCK_BYTES + 16, 1);
    }),
    corruption(&[SnapshotChecksum], "the image is of a later epoch than its maps", |p| p.flip(STATE, 1 << 4)),
    corruption(&[SnapshotFigure], "the number of free blocks is wrong", |p| {
        p.change_snapshot(|figures| figures.blocks_free += 1);
    }),
    corruption(&[SnapshotFigure], "the number of inodes is wrong", |p| {
        p.change_snapshot(|figures| figures.inodes_used -= 1)
    }),
    corruption(&[SnapshotFigure], "the number of segments is wrong", |p| {
        p.change_snapshot(|figures| figures.segments += 1)
    }),
    corruption(&[SnapshotSlabs], "the list of dentry blocks links outside the data area", |p| {
        let page = p.figures().list_page;
        p.set(page, 12);
    }),
    corruption(&[SnapshotSlabs], "a dentry block that is not listed is marked as listed", |p| {
        p.mark_block(root_block(p, "small"), 2);
        p.change_snapshot(|_| {});
    }),
    corruption(&[SnapshotShares], "a shared block has more pointers than it should", |p| {
        change_listed_word(p, shared_block(p), |_| 2);
    }),
    corruption(&[SnapshotShares], "a shared block is marked as one file's", |p| {
        let (block, list) = (shared_block(p), p.figures().list_page);
        let count = p.get(list + 8);
        let entry = (0..count).map(|at| list + 16 + at * 16).find(|entry| p.get(*entry) == block).expect("listed");
        // The last entry replaces the removed one.
        let last = list + 16 + (count - 1) * 16;
        for word in [0, 8] {
            p.set(entry + word, p.get(last + word));
        }
        for word in [0, 8] {
            p.set(last + word, 0);
        }
        p.set(list + 8, count - 1);
        p.mark_block(block, 1);
        p.change_snapshot(|_| {});
    }),
    corruption(&[BlockNotMarked], "a file's block is marked free", |p| {
        p.mark_block(root_block(p, "small"), 0);
        p.change_snapshot(|figures| figures.blocks_free += 1);
    }),
    corruption(&[BlockLeaked], "a block that nothing uses is marked as used", |p| {
        p.mark_block(unused_block(p), 1);
        p.change_snapshot(|figures| figures.blocks_free -= 1);
    }),
    corruption(&[InodeNotMarked], "an inode in use is marked free", |p| {
        p.mark_inode(p.find("small").number, false);
        p.change_snapshot(|figures| figures.inodes_used -= 1);
    }),
    corruption(&[InodeNotMarked], "a directory in use is marked free", |p| {
        p.mark_inode(p.find("docs").number, false);
        p.change_snapshot(|figures| figures.inodes_used -= 1);
    }),
    corruption(&[InodeLeaked], "a free inode is marked as in use", |p| {
        p.mark_inode(FREE_INODE, true);
        p.change_snapshot(|figures| figures.inodes_used += 1);
    }),
    corruption(&[LineNotMarked], "a name's line is listed as free", |p| {
        let (block, line) = dentry_block(p, "docs/file-01");
        change_listed_word(p, block, |lines| lines | line);
    }),
    corruption(&[LineLeaked], "a free line is not listed", |p| {
        let (block, _) = dentry_block(p, "docs/file-01");
        change_listed_word(p, block, |lines| lines & (lines - 1));
    }),
];

pub fn write_entry(damaged: &DamagedImage, number: u64, sequence: u32, property: &Property) {
    let at = damaged.inode_offset(number) + 64 + (sequence as u64 & 1) * 64;
    let words = property.words();
    for (index, word) in words.iter().enumerate() {
        damaged.set(at + 8 + index as u64 * 8, *word);
    }
    let generation = damaged.inode(number).generation(number).expect("alive");
    damaged.set(at, Property::seal(&words, sequence, number, generation));
}

pub fn cut_log_to(damaged: &DamagedImage, directory: &str, offset: u64) {
    damaged.set(damaged.find(directory).inode + LOG, offset);
}
