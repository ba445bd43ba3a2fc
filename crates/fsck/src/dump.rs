//! Human-readable dumps of an image's structures. The image is not attached and may be damaged: a
//! structure that does not verify is shown and marked so.

use crate::image::{Image, Name, Segments, geometry_of, shown, whole_copy};
use engine::format::{
    Dentry, FileKind, INODES_PER_BLOCK, INODES_PER_SEGMENT, Inode, JOURNAL_SLOT_BYTES, JOURNAL_SLOTS, JournalSlot,
    LOG_SLOTS, LogPage, POINTER_CLEARED, PROPERTY_INLINE, Property, PropertyEntry, ROOT_INODE, Segment, SegmentEntry,
    SegmentList, Snapshot, State, Superblock, Valid, dentry_lines, slot_address, slot_tag,
};
use engine::inline_extent_of_root;
use pmem::{BLOCK_BYTES, Cell64, LINE_BYTES, Memory, Pm, Region};
use std::fmt::{self, Write};

/// Maximum number of lines shown for a log page, a block map or a journal.
const LINES_MAX: usize = 600;
/// Maximum number of links followed in a chain.
const CHAIN_MAX: u64 = 1 << 20;

/// The structure to show.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target {
    /// The superblock, its copy, and the figures of the snapshot.
    Superblock,
    /// The journal slots that are not empty.
    Journal,
    /// An inode, the outline of its block map, its log.
    Inode {
        /// The inode number.
        number: u64,
    },
    /// A name and the inode it refers to. Symbolic links are not followed.
    Path {
        /// From the root; leading, trailing and double slashes do not matter.
        path: Vec<u8>,
    },
    /// The structure at an offset: a dentry, a log page, or plain words.
    Offset {
        /// The offset.
        offset: u64,
    },
}

/// The reason why nothing can be shown.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DumpError {
    /// The superblock is invalid; its finding's sentence.
    NotAnImage(String),
    /// The image does not have this inode.
    NoInode(u64),
    /// The name does not exist; the path up to it.
    NoName(String),
    /// The offset lies outside of the image.
    Outside(u64),
    /// The text could not be written.
    Output,
}

impl fmt::Display for DumpError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DumpError::NotAnImage(why) => f.write_str(why),
            DumpError::NoInode(number) => {
                write!(f, "the image has no inode {number}; `directfs dump IMAGE /` lists the root directory")
            }
            DumpError::NoName(path) => {
                write!(f, "{path} does not exist on the image; check the path, which starts at the image's root")
            }
            DumpError::Outside(offset) => write!(f, "offset {offset:#x} is outside the image"),
            DumpError::Output => f.write_str("the output could not be written"),
        }
    }
}

impl std::error::Error for DumpError {}

impl From<fmt::Error> for DumpError {
    fn from(_: fmt::Error) -> DumpError {
        DumpError::Output
    }
}

/// Prints the target; with `raw`, also its words.
pub fn dump<M: Memory>(region: &Region<M>, target: &Target, raw: bool, out: &mut dyn Write) -> Result<(), DumpError> {
    let image = open(region)?;
    let mut dumper = Dumper { image, raw, out };
    match target {
        Target::Superblock => dumper.superblock(),
        Target::Journal => dumper.journal(),
        Target::Inode { number } => dumper.inode(*number),
        Target::Path { path } => dumper.path(path),
        Target::Offset { offset } => dumper.offset(*offset),
    }
}

fn open<M: Memory>(region: &Region<M>) -> Result<Image<'_, M>, DumpError> {
    let (mut image, _, _) =
        crate::superblock::open(region).map_err(|finding| DumpError::NotAnImage(finding.sentence))?;
    let mut segments = Segments::default();
    for segment in 0..image.geometry.segments_max {
        let word = image.word(image.segment_entry(segment));
        if let Ok(found) = image.segment(segment, word) {
            segments.add(segment, found);
        }
    }
    image.segments = segments;
    Ok(image)
}

struct Dumper<'d, 'r, M: Memory> {
    image: Image<'r, M>,
    raw: bool,
    out: &'d mut dyn Write,
}

/// A timestamp in seconds since 1970 with nine decimals.
fn format_time(ns: i64) -> String {
    format!("{}.{:09} s", ns.div_euclid(1_000_000_000), ns.rem_euclid(1_000_000_000))
}

fn kind_name(kind: Option<FileKind>) -> &'static str {
    match kind {
        Some(FileKind::Fifo) => "named pipe",
        Some(FileKind::Character) => "character device",
        Some(FileKind::Directory) => "directory",
        Some(FileKind::Block) => "block device",
        Some(FileKind::Regular) => "regular file",
        Some(FileKind::Symlink) => "symbolic link",
        Some(FileKind::Socket) => "socket",
        None => "unknown",
    }
}

fn whole(yes: bool) -> &'static str {
    if yes { "verifies" } else { "DOES NOT VERIFY" }
}

impl<'r, M: Memory> Dumper<'_, 'r, M> {
    fn heading(&mut self, what: fmt::Arguments<'_>, offset: u64) -> Result<(), DumpError> {
        Ok(writeln!(self.out, "{what} at {offset:#x}")?)
    }

    fn line(&mut self, name: &str, value: fmt::Arguments<'_>) -> Result<(), DumpError> {
        Ok(writeln!(self.out, "  {name:<12} {value}")?)
    }

    /// The words of a structure, half a line of the image at a time.
    fn words(&mut self, offset: u64, length: u64) -> Result<(), DumpError> {
        if !self.raw {
            return Ok(());
        }
        for line in (offset..offset + length).step_by(LINE_BYTES as usize / 2) {
            write!(self.out, "  {line:#012x} ")?;
            for at in (line..(line + LINE_BYTES / 2).min(offset + length)).step_by(8) {
                let word = if at == 0 { self.first_word() } else { self.image.word(at) };
                write!(self.out, " {word:016x}")?;
            }
            writeln!(self.out)?;
        }
        Ok(())
    }

    /// The word at offset zero, which `Pm` cannot express.
    fn first_word(&self) -> u64 {
        self.image.region.first::<Cell64>().map_or(0, Cell64::load)
    }

    fn superblock(&mut self) -> Result<(), DumpError> {
        let region = self.image.region;
        let superblock = region.first::<Superblock>().map_err(|_| DumpError::Outside(0))?;
        self.description(superblock, 0)?;
        self.snapshot(superblock)?;
        let block = self.image.geometry.copy_block();
        match whole_copy(region, block) {
            Some(copy) => self.description(copy, block * BLOCK_BYTES),
            None => self.line("copy", format_args!("in block {block} {}", whole(false))),
        }
    }

    fn description(&mut self, superblock: &Superblock, offset: u64) -> Result<(), DumpError> {
        self.heading(format_args!("{}", if offset == 0 { "superblock" } else { "superblock's copy" }), offset)?;
        let bytes = |cells: &[Cell64]| cells.iter().flat_map(|cell| cell.load().to_le_bytes()).collect::<Vec<u8>>();
        let label = bytes(&superblock.label);
        let end = label.iter().position(|byte| *byte == 0).unwrap_or(label.len());
        let uuid = bytes(&superblock.uuid).iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        self.line("version", format_args!("{}", superblock.version.load()))?;
        self.line("uuid", format_args!("{uuid}"))?;
        self.line("label", format_args!("\"{}\"", shown(&label[..end])))?;
        let (compat, ro) = (superblock.features_compat.load(), superblock.features_ro_compat.load());
        let incompat = superblock.features_incompat.load();
        self.line("features", format_args!("compat {compat:#x}, ro-compat {ro:#x}, incompat {incompat:#x}"))?;
        self.line("created", format_args!("{}", format_time(superblock.created_ns.load() as i64)))?;
        self.line("length", format_args!("{} bytes", superblock.length.load()))?;
        self.line("reserved", format_args!("{} blocks for root", superblock.reserved_blocks()))?;
        let checks = superblock.checksum.load() == superblock.description_checksum();
        self.line("checksum", format_args!("{:#010x}, {}", superblock.checksum.load(), whole(checks)))?;
        match geometry_of(superblock) {
            None => self.line("geometry", format_args!("{}", whole(false)))?,
            Some(geometry) => {
                let areas = [
                    ("blocks", geometry.blocks),
                    ("journal", geometry.journal_block),
                    ("segments", geometry.segment_table_block),
                    ("block map", geometry.block_map_block),
                    ("inode map", geometry.inode_map_block),
                    ("data", geometry.data_block),
                ];
                self.line("inodes", format_args!("at most {}", geometry.inodes_max()))?;
                for (name, block) in areas {
                    self.line(name, format_args!("{block:>10}  {:#014x}", block * BLOCK_BYTES))?;
                }
            }
        }
        self.words(offset, 640)
    }

    fn snapshot(&mut self, superblock: &Superblock) -> Result<(), DumpError> {
        let State { epoch, clean } = superblock.state();
        let left = if clean { "left cleanly" } else { "in use, or not left cleanly" };
        self.line("state", format_args!("epoch {epoch}, {left}"))?;
        let figures = Snapshot::from_words(&std::array::from_fn(|index| superblock.snapshot[index].load()));
        let counts = if clean { "" } else { " (not valid now)" };
        self.line("snapshot", format_args!("checksum {:#010x}{counts}", figures.checksum))?;
        self.line("", format_args!("{} blocks free, {} inodes used", figures.blocks_free, figures.inodes_used))?;
        let (pages, first) = (figures.list_pages, figures.list_page);
        self.line("", format_args!("{} segments, {pages} list pages from {first:#x}", figures.segments))
    }

    fn journal(&mut self) -> Result<(), DumpError> {
        let start = self.image.geometry.journal_block * BLOCK_BYTES;
        let mut used = 0;
        for index in 0..JOURNAL_SLOTS {
            let offset = start + index * JOURNAL_SLOT_BYTES;
            let Ok(slot) = self.image.region.get(Pm::<JournalSlot>::new(offset)) else { break };
            if slot.seal.load() != 0 && used < LINES_MAX {
                used += 1;
                self.journal_slot(slot, index, offset)?;
            }
        }
        Ok(writeln!(self.out, "journal: {used} of {JOURNAL_SLOTS} slots are not empty")?)
    }

    fn journal_slot(&mut self, slot: &JournalSlot, index: u64, offset: u64) -> Result<(), DumpError> {
        self.heading(format_args!("journal slot {index}"), offset)?;
        let record = slot.record();
        self.line("seal", format_args!("{:#018x}, {}", slot.seal.load(), whole(record.is_some())))?;
        if let Some(record) = record {
            for step in record.moves.iter().filter(|step| step.slot != 0) {
                self.line("slot", format_args!("{:#x} will refer to dentry {:#x}", step.slot, step.dentry))?;
                if step.directory != 0 {
                    self.line("parent", format_args!("of the inode at {:#x} will be {}", step.directory, step.parent))?;
                }
            }
            for dentry in record.invalidated.iter().filter(|dentry| **dentry != 0) {
                self.line("invalid", format_args!("will be the dentry at {dentry:#x}"))?;
            }
            self.line("moment", format_args!("{}", format_time(record.timestamp_ns as i64)))?;
            self.line("turn", format_args!("{}", record.sequence))?;
        }
        self.words(offset, JOURNAL_SLOT_BYTES)
    }

    fn path(&mut self, path: &[u8]) -> Result<(), DumpError> {
        let mut number = ROOT_INODE;
        let mut walked = String::new();
        for name in path.split(|byte| *byte == b'/').filter(|name| !name.is_empty()) {
            walked = format!("{walked}/{}", shown(name));
            let dentry = self.lookup(number, name).ok_or_else(|| DumpError::NoName(walked.clone()))?;
            self.dentry(dentry)?;
            let (_, facts) =
                self.image.verified(dentry, &mut Name::default()).ok_or(DumpError::NoName(walked.clone()))?;
            number = facts.inode;
        }
        self.inode(number)
    }

    /// The pages of a directory's log.
    fn pages(&self, directory: u64) -> Vec<(u64, &'r LogPage)> {
        let (region, mut pages) = (self.image.region, Vec::new());
        let Some((inode, _)) = self.image.inode(directory) else { return pages };
        let mut offset = inode.log.load();
        let limit = self.image.geometry.blocks.min(CHAIN_MAX);
        while self.image.is_data_offset(offset) && (pages.len() as u64) < limit {
            let Ok(page) = region.get(Pm::<LogPage>::new(offset)) else { break };
            if !page.belongs_to(directory) {
                break;
            }
            pages.push((offset, page));
            offset = page.next.load();
        }
        pages
    }

    /// The offset of a name's dentry.
    fn lookup(&self, directory: u64, wanted: &[u8]) -> Option<u64> {
        let mut name = Name::default();
        for (_, page) in self.pages(directory) {
            for slot in &page.slots {
                let offset = slot_address(slot.load());
                let Some((dentry, facts)) = self.image.verified(offset, &mut name) else { continue };
                let counts = Valid::from_word(dentry.valid.load()).valid && facts.parent == directory;
                if counts && name.bytes() == wanted {
                    return Some(offset);
                }
            }
        }
        None
    }

    fn dentry(&mut self, offset: u64) -> Result<(), DumpError> {
        let dentry = self.image.region.get(Pm::<Dentry>::new(offset)).map_err(|_| DumpError::Outside(offset))?;
        self.heading(format_args!("dentry"), offset)?;
        let mut name = Name::default();
        let verified = self.image.verified(offset, &mut name);
        let valid = Valid::from_word(dentry.valid.load());
        let counts = if valid.valid { "valid since" } else { "invalid since" };
        self.line(
            "valid",
            format_args!(
                "{counts} {}, reuse generation {}",
                format_time(valid.timestamp_ns as i64),
                valid.reuse_generation
            ),
        )?;
        self.line("seal", format_args!("{:#018x}, {}", dentry.seal.load(), whole(verified.is_some())))?;
        self.line("inode", format_args!("{}, generation {}", dentry.number(), dentry.inode.load() >> 40))?;
        self.line("parent", format_args!("{}", dentry.parent.load()))?;
        self.line("cookie", format_args!("{}", dentry.cookie.load()))?;
        let Some((_, facts)) = verified else { return self.words(offset, LINE_BYTES) };
        self.line("kind", format_args!("{}", kind_name(Some(facts.kind))))?;
        self.line("name", format_args!("\"{}\", {} bytes", name.shown(), facts.name_length))?;
        self.words(offset, dentry_lines(facts.name_length as usize) * LINE_BYTES)
    }

    fn inode(&mut self, number: u64) -> Result<(), DumpError> {
        let (inode, offset) = self.image.inode(number).ok_or(DumpError::NoInode(number))?;
        self.heading(format_args!("inode {number} (segment {})", number / INODES_PER_SEGMENT), offset)?;
        let birth = inode.birth.load();
        let generation = inode.generation(number);
        if birth >> 32 == 0 {
            self.line("birth", format_args!("{birth:#018x}: free; last generation {}", birth as u32))?;
            return self.words(offset, 256);
        }
        self.line(
            "birth",
            format_args!("{birth:#018x}: generation {}, {}", birth as u32, whole(generation.is_some())),
        )?;
        let kind = FileKind::from_bits(inode.kind.load());
        self.line("number", format_args!("{}", inode.number.load()))?;
        self.line("kind", format_args!("{} ({})", inode.kind.load(), kind_name(kind)))?;
        self.line("device", format_args!("{:#x}", inode.device.load()))?;
        self.line("born", format_args!("{}", format_time(inode.born_ns.load() as i64)))?;
        self.line("parent", format_args!("{}", inode.parent.load()))?;
        self.line("log", format_args!("{:#x}", inode.log.load()))?;
        self.line("xattrs", format_args!("{:#x}", inode.xattrs.load()))?;
        let pointer = inode.nv_pointer.load();
        match pointer as u32 {
            0 | POINTER_CLEARED.. => self.line("nv pointer", format_args!("none"))?,
            index => self.line("nv pointer", format_args!("cachelet {index} of epoch {}", pointer >> 32))?,
        }
        match inode.accessed_ns.load() {
            0 => self.line("accessed", format_args!("never: the birth time"))?,
            ns => self.line("accessed", format_args!("{}", format_time(ns as i64)))?,
        }
        let newest = generation.and_then(|generation| inode.property(number, generation));
        for (index, entry) in inode.properties.iter().enumerate() {
            self.property(
                entry,
                index as u32,
                number,
                generation.unwrap_or(birth as u32),
                newest.map(|newest| newest.1),
            )?;
        }
        self.words(offset, 256)?;
        match (kind, newest) {
            (Some(FileKind::Directory), _) => self.log(number),
            (_, Some((property, _))) if property.flags & PROPERTY_INLINE != 0 => self.target(inode, &property),
            (_, Some((property, _))) => self.map("block map", property.root),
            _ => Ok(()),
        }?;
        self.map("extended attributes' block map", inode.xattrs.load())
    }

    fn property(
        &mut self,
        entry: &PropertyEntry,
        parity: u32,
        number: u64,
        generation: u32,
        newest: Option<u32>,
    ) -> Result<(), DumpError> {
        let offset = self.image.region.offset_of(entry);
        let sequence = crate::inodes::sequence(entry, parity, number, generation);
        let counts = match sequence {
            Some(_) if sequence == newest => "verifies, current",
            Some(_) => "verifies, older",
            None => whole(false),
        };
        self.heading(
            format_args!(" property entry {parity}, sequence {}: {counts},", entry.seal.load() as u32),
            offset,
        )?;
        if sequence.is_none() {
            return Ok(());
        }
        let property = Property::from_words(&std::array::from_fn(|index| entry.words[index].load()));
        self.line("  mode", format_args!("{:#08o} ({})", property.mode, kind_name(property.kind())))?;
        self.line("  flags", format_args!("{:#x}", property.flags))?;
        self.line("  links", format_args!("{}", property.links))?;
        self.line("  owner", format_args!("{}:{}", property.uid, property.gid))?;
        self.line("  size", format_args!("{} bytes in {} blocks", property.size_bytes, property.blocks))?;
        self.line("  modified", format_args!("{}", format_time(property.modified_ns)))?;
        self.line("  changed", format_args!("{}", format_time(property.changed_ns)))?;
        self.line("  root", format_args!("{:#x}", property.root))
    }

    fn target(&mut self, inode: &Inode, property: &Property) -> Result<(), DumpError> {
        let bytes: Vec<u8> = inode.inline.iter().flat_map(|word| word.load().to_le_bytes()).collect();
        let length = (property.size_bytes as usize).min(bytes.len());
        self.line("target", format_args!("\"{}\"", shown(&bytes[..length])))
    }

    fn log(&mut self, number: u64) -> Result<(), DumpError> {
        let mut lines = 0;
        for (offset, page) in self.pages(number) {
            if lines >= LINES_MAX {
                writeln!(self.out, "  ... and further pages, from {offset:#x}")?;
                break;
            }
            lines += self.log_page(offset, page)?;
        }
        Ok(())
    }

    /// Prints a log page and its names; returns the number of lines.
    fn log_page(&mut self, offset: u64, page: &LogPage) -> Result<usize, DumpError> {
        let owner = page.owner.load();
        let kind = page.kind(owner).map_or("of unknown kind".to_owned(), |kind| format!("{kind:?}").to_lowercase());
        self.heading(format_args!("log page of directory {owner}, {kind}, {}", whole(page.belongs_to(owner))), offset)?;
        self.line("cookies", format_args!("from {}", page.first_cookie.load()))?;
        self.line("next", format_args!("{:#x}", page.next.load()))?;
        if page.used.load() != 0 {
            let bound = page.used_bound().map_or("damaged".to_owned(), |bound| format!("below {bound}"));
            self.line("used slots", format_args!("{bound}"))?;
        }
        let mut name = Name::default();
        let mut lines = 4;
        for (index, slot) in page.slots.iter().enumerate() {
            let word = slot.load();
            if word == 0 {
                continue;
            }
            lines += 1;
            let at = slot_address(word);
            let verified = self.image.verified(at, &mut name);
            match (slot_tag(word), verified) {
                (None, _) => writeln!(self.out, "  slot {index:>3}  {word:#014x}  unknown tag {}", word & 63)?,
                (_, None) => writeln!(self.out, "  slot {index:>3}  {at:#014x}  no valid dentry")?,
                (_, Some((dentry, facts))) => {
                    let valid = Valid::from_word(dentry.valid.load()).valid;
                    let state = if valid { "" } else { "  (invalid)" };
                    let (cookie, inode) = (facts.cookie, facts.inode);
                    let text = name.shown();
                    writeln!(
                        self.out,
                        "  slot {index:>3}  {at:#014x}  cookie {cookie:<8} inode {inode:<8} \"{text}\"{state}"
                    )?;
                }
            }
        }
        debug_assert!(lines <= LOG_SLOTS as usize + 4);
        self.words(offset, LINE_BYTES)?;
        Ok(lines)
    }

    /// The outline of a block map: nodes, and runs of data blocks.
    fn map(&mut self, what: &str, root: u64) -> Result<(), DumpError> {
        if root == 0 {
            return Ok(());
        }
        if let Some((first, count)) = inline_extent_of_root(root) {
            writeln!(self.out, "{what}, root {root:#x}, inline extent of {count} blocks")?;
            return self.end_run(&mut Outline { run: Some(Run { index: 0, word: first, count }), lines: 0, nodes: 0 });
        }
        writeln!(self.out, "{what}, root {root:#x}, height {}", root & 0xf)?;
        let mut outline = Outline { run: None, lines: 0, nodes: self.image.geometry.blocks };
        let height = (root & 0xf) as u32;
        if height > 4 {
            return Ok(writeln!(self.out, "  impossible height")?);
        }
        self.map_pointer(&mut outline, root & !(BLOCK_BYTES - 1) | (root % BLOCK_BYTES) >> 4, height, 0)?;
        self.end_run(&mut outline)
    }

    fn map_pointer(&mut self, outline: &mut Outline, word: u64, level: u32, index: u64) -> Result<(), DumpError> {
        if word == 0 || outline.lines >= LINES_MAX {
            return Ok(());
        }
        let flags = word % BLOCK_BYTES;
        if level == 0 {
            return match &mut outline.run {
                Some(run) if run.follows(index, word) => {
                    run.count += 1;
                    Ok(())
                }
                _ => {
                    self.end_run(outline)?;
                    outline.run = Some(Run { index, word, count: 1 });
                    Ok(())
                }
            };
        }
        self.end_run(outline)?;
        outline.lines += 1;
        let offset = word - flags;
        let outside = !self.image.is_data_offset(offset) || outline.nodes == 0;
        let damage = if outside { "  OUTSIDE" } else { "" };
        writeln!(self.out, "  block {index:>10}  {offset:#014x}  node of level {level}{damage}")?;
        if outside {
            return Ok(());
        }
        outline.nodes -= 1;
        let region = self.image.region;
        let words = region.slice(Pm::<Cell64>::new(offset), BLOCK_BYTES / 8).map_err(|_| DumpError::Outside(offset))?;
        for (slot, word) in words.iter().enumerate() {
            self.map_pointer(outline, word.load(), level - 1, index + ((slot as u64) << (9 * (level - 1))))?;
        }
        Ok(())
    }

    fn end_run(&mut self, outline: &mut Outline) -> Result<(), DumpError> {
        let Some(Run { index, word, count }) = outline.run.take() else { return Ok(()) };
        outline.lines += 1;
        let mut kind = String::new();
        for (bit, name) in [(engine::BLOCK_UNWRITTEN, ", unwritten"), (engine::BLOCK_SHARED, ", shared")] {
            if word & bit != 0 {
                kind.push_str(name);
            }
        }
        let offset = word & !(BLOCK_BYTES - 1);
        let plural = if count == 1 { "" } else { "s" };
        Ok(writeln!(self.out, "  block {index:>10}  {offset:#014x}  {count} block{plural} of data{kind}")?)
    }

    fn segment_list(&mut self, segment: u64, start: u64, found: &Segment) -> Result<(), DumpError> {
        self.heading(format_args!("list of the blocks of segment {segment}"), start)?;
        for (index, block) in found.inode_blocks().enumerate() {
            let first = segment * INODES_PER_SEGMENT + index as u64 * INODES_PER_BLOCK;
            let last = first + INODES_PER_BLOCK - 1;
            self.line("inodes", format_args!("{first:>10} to {last:<10} {:#014x}", block * BLOCK_BYTES))?;
        }
        self.words(start, size_of::<SegmentList>() as u64)
    }

    fn offset(&mut self, offset: u64) -> Result<(), DumpError> {
        let block = offset / BLOCK_BYTES;
        if block >= self.image.geometry.blocks {
            return Err(DumpError::Outside(offset));
        }
        let start = block * BLOCK_BYTES;
        if block == 0 || block == self.image.geometry.copy_block() {
            return self.superblock();
        }
        if let Ok(page) = self.image.region.get(Pm::<LogPage>::new(start))
            && page.belongs_to(page.owner.load())
        {
            return self.log_page(start, page).map(|_| ());
        }
        if let Ok(list) = self.image.region.get(Pm::<SegmentList>::new(start))
            && let Ok(segment) = self.image.segment(list.segment.load(), SegmentEntry::List(start).word())
        {
            return self.segment_list(list.segment.load(), start, &segment);
        }
        let line = offset / LINE_BYTES * LINE_BYTES;
        if self.image.verified(line, &mut Name::default()).is_some() {
            return self.dentry(line);
        }
        self.heading(format_args!("words of block {block}"), start)?;
        let raw = std::mem::replace(&mut self.raw, true);
        let result = self.words(start, BLOCK_BYTES);
        self.raw = raw;
        result
    }
}

/// A block map during its output.
struct Outline {
    run: Option<Run>,
    lines: usize,
    nodes: u64,
}

/// Data blocks that are consecutive both in the file and on the image.
struct Run {
    index: u64,
    word: u64,
    count: u64,
}

impl Run {
    fn follows(&self, index: u64, word: u64) -> bool {
        index == self.index + self.count
            && Some(word) == self.count.checked_mul(BLOCK_BYTES).and_then(|step| self.word.checked_add(step))
    }
}
