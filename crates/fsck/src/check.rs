//! One pass over an image: the state of the check, and the order of its parts.
//!
//! Each structure is looked at once. Directories are walked from the root down by their names, so that what is reached
//! has its place in the tree; then what was not reached. A word that leads somewhere is followed only if it leads to
//! where such a thing can be, and no block is entered twice: damage ends a walk, it never prolongs it.

use crate::finding::{Finding, FindingKind, Repair};
use crate::image::{Image, Name, shown};
use crate::report::{Counts, Options, Phase, Progress, Report};
use crate::usage::{Usage, Use};
use engine::format::{FileKind, ROOT_INODE, Superblock};
use pmem::{BLOCK_BYTES, Memory, Region};
use std::collections::HashMap;
use std::fmt;
use std::time::Instant;

/// Names of a path that are shown; deeper paths lose their beginning.
const PATH_NAMES_MAX: usize = 256;

/// Flag of [`InodeState::flags`]: the inode is not whole, and a finding says so.
pub(crate) const DAMAGED: u8 = 1;
/// Flag: a directory that was walked, being below the root.
pub(crate) const REACHED: u8 = 2;
/// Flag: on the way up from a directory that was not reached.
pub(crate) const CLIMBING: u8 = 4;
/// Flag: known to end nowhere, or in a cycle that was reported.
pub(crate) const CLIMBED: u8 = 8;
/// Flag: the property entry says an inline body.
pub(crate) const INLINE: u8 = 16;

/// Flag: the map of a clean image says that the number is free; then what is there is of its last life, unless a name leads to it.
pub(crate) const ENDED: u8 = 32;

/// What is remembered of an inode.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct InodeState {
    /// The first dentry that was found to name it.
    pub dentry: u64,
    /// Names found.
    pub names: u32,
    /// Links as the property entry says.
    pub links: u32,
    /// Directories: subdirectories found.
    pub subdirectories: u32,
    /// Which life it is.
    pub generation: u32,
    /// [`FileKind`], or zero: not in use, or not whole.
    pub kind: u8,
    /// Flags as above.
    pub flags: u8,
}

impl InodeState {
    pub fn file_kind(&self) -> Option<FileKind> {
        FileKind::from_bits(self.kind as u32)
    }

    pub fn is_directory(&self) -> bool {
        self.kind == FileKind::Directory as u8
    }
}

/// What the journal's records will have changed once they are repeated.
#[derive(Default)]
pub(crate) struct Overlay {
    /// Words of log slots, by offset.
    pub slots: HashMap<u64, u64>,
    /// Words <valid, mtime>, by the offset of the dentry.
    pub valid: HashMap<u64, u64>,
    /// Parents, by the offset of the inode.
    pub parents: HashMap<u64, u64>,
}

/// Where a finding is.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Place {
    inode: Option<u64>,
    offset: Option<u64>,
}

impl Place {
    /// On an inode.
    pub fn inode(number: u64) -> Place {
        Place { inode: Some(number), offset: None }
    }

    /// At an offset.
    pub fn at(self, offset: u64) -> Place {
        Place { offset: Some(offset), ..self }
    }

    /// The offset, if it has one.
    pub fn offset(self) -> Option<u64> {
        self.offset
    }
}

/// Somewhere on the image.
pub(crate) fn at(offset: u64) -> Place {
    Place::default().at(offset)
}

/// A check in progress.
pub(crate) struct Checker<'c, M: Memory> {
    pub image: Image<'c, M>,
    pub report: Report,
    pub options: Options,
    pub clean: bool,
    /// Look, but report and claim nothing: for what the next attach will free.
    pub quiet: bool,
    pub usage: Usage,
    pub inodes: Vec<InodeState>,
    pub overlay: Overlay,
    progress: &'c mut dyn FnMut(Progress),
}

impl<'c, M: Memory> Checker<'c, M> {
    pub fn new(image: Image<'c, M>, report: Report, options: &Options, progress: &'c mut dyn FnMut(Progress)) -> Self {
        let clean = options.clean.unwrap_or(report.clean);
        let usage = Usage::new(image.geometry.blocks);
        let (inodes, overlay) = (Vec::new(), Overlay::default());
        Checker { image, report, options: *options, clean, quiet: false, usage, inodes, overlay, progress }
    }

    /// All parts, in the order in which they need each other.
    pub fn run(&mut self, superblock: &Superblock) {
        self.step(Phase::Fixed, 0, 1);
        self.claim_fixed();
        self.check_segments();
        self.check_journal();
        self.inodes = vec![InodeState::default(); self.image.segments.places()];
        self.check_inodes();
        self.check_directories();
        self.forget_ended();
        self.check_bodies();
        self.check_tree();
        if self.clean {
            self.check_snapshot(superblock);
        }
        self.count();
        self.name_paths();
    }

    /// Of free numbers that no name leads to nothing counts.
    fn forget_ended(&mut self) {
        for state in self.inodes.iter_mut().filter(|state| state.flags & ENDED != 0 && state.names == 0) {
            *state = InodeState::default();
        }
    }

    /// Reports a finding.
    pub fn found(&mut self, kind: FindingKind, place: Place, repair: Repair, sentence: fmt::Arguments<'_>) {
        if self.quiet {
            return;
        }
        let kept = self.report.findings.len() < self.options.findings_max;
        let sentence = if kept { sentence.to_string() } else { String::new() };
        let Place { inode, offset } = place;
        let finding =
            Finding { kind, severity: kind.severity(self.clean), inode, path: None, offset, sentence, repair };
        self.report.add(finding, self.options.findings_max);
    }

    /// Reports reserved words that are not zero.
    pub fn check_reserved(&mut self, place: Place, offset: u64, words: u64, what: &str) {
        if (0..words).any(|word| self.image.word(offset + word * 8) != 0) {
            let repair = Repair::Zero { offset, length: words * 8 };
            self.found(
                FindingKind::ReservedNotZero,
                place.at(offset),
                repair,
                format_args!("reserved bytes of {what} are not zero"),
            );
        }
    }

    /// Claims a block for an inode; whether it was free.
    pub fn claim(&mut self, number: u64, block: u64, wanted: Use, repair: Repair) -> bool {
        if self.quiet {
            return true;
        }
        let Err(present) = self.usage.claim(block, wanted) else { return true };
        let place = Place::inode(number).at(block * BLOCK_BYTES);
        self.found(
            FindingKind::BlockTwice,
            place,
            repair,
            format_args!("block {block}, here {}, is used for {} already", wanted.name(), present.name()),
        );
        false
    }

    /// The state of an inode number, if there can be such an inode.
    pub fn state(&mut self, number: u64) -> Option<&mut InodeState> {
        let place = self.image.segments.place(number)?;
        self.inodes.get_mut(place)
    }

    /// Tells how far the check is.
    pub fn step(&mut self, phase: Phase, done: u64, total: u64) {
        (self.progress)(Progress { phase, done, total });
    }

    fn claim_fixed(&mut self) {
        let geometry = self.image.geometry;
        for block in (0..geometry.data_block).chain([geometry.copy_block()]) {
            let _ = self.usage.claim(block, Use::Fixed);
        }
    }

    fn count(&mut self) {
        let geometry = self.image.geometry;
        let blocks_free = self.usage.free();
        let counts = Counts { names: self.report.counts.names, inodes_max: geometry.inodes_max(), ..Counts::default() };
        let mut counts = Counts { blocks_used: geometry.blocks - blocks_free, blocks_free, ..counts };
        for state in &self.inodes {
            match state.file_kind() {
                None => continue,
                Some(FileKind::Directory) => counts.directories += 1,
                Some(FileKind::Regular) => counts.files += 1,
                Some(FileKind::Symlink) => counts.symlinks += 1,
                Some(_) => counts.special += 1,
            }
            counts.inodes += 1;
        }
        self.report.counts = counts;
    }

    /// Gives findings their paths: when they were made, not all names were known.
    fn name_paths(&mut self) {
        let mut findings = std::mem::take(&mut self.report.findings);
        for finding in &mut findings {
            finding.path = finding.inode.and_then(|number| self.path(number));
        }
        self.report.findings = findings;
    }

    /// The path of an inode, if it is below the root.
    fn path(&self, number: u64) -> Option<String> {
        let mut names = Vec::new();
        let mut at = number;
        let mut name = Name::default();
        while at != ROOT_INODE && names.len() < PATH_NAMES_MAX {
            let state = self.inodes.get(self.image.segments.place(at)?)?;
            let (_, facts) = self.image.verified(state.dentry, &mut name)?;
            names.push(shown(name.bytes()));
            at = facts.parent;
        }
        let begin = if at == ROOT_INODE { "/" } else { "…/" };
        names.reverse();
        Some(format!("{begin}{}", names.join("/")))
    }
}

/// Checks every invariant of the image in a region, and changes nothing.
pub fn check<M: Memory>(region: &Region<M>, options: &Options, progress: &mut dyn FnMut(Progress)) -> Report {
    match examine(region, options, progress) {
        Ok(checker) => checker.report,
        Err(report) => *report,
    }
}

/// The same, with all that the check found out; a report alone if there is nothing that could be looked at.
pub(crate) fn examine<'c, M: Memory>(
    region: &'c Region<M>,
    options: &Options,
    progress: &'c mut dyn FnMut(Progress),
) -> Result<Checker<'c, M>, Box<Report>> {
    let begun = Instant::now();
    let (image, superblock, damage) = crate::superblock::open(region).map_err(|finding| {
        let mut report = Report::default();
        report.add(finding, options.findings_max);
        Box::new(report)
    })?;
    let report = Report { clean: superblock.state().clean, checked: true, ..Report::default() };
    let mut checker = Checker::new(image, report, options, progress);
    checker.check_superblock(superblock, damage);
    checker.run(superblock);
    checker.report.duration = begun.elapsed();
    Ok(checker)
}
