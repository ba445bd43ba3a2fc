//! One pass over an image: the state of the check, and the order of its parts.
//!
//! Invariants:
//! - Each structure is examined once. Directories are walked from the root down by their names,
//!   which gives each reached file its path; unreached directories follow.
//! - A pointer is followed only if its target can hold the expected structure, and no block is
//!   entered twice. Damage can end a walk but never prolong it.

use crate::finding::{Finding, FindingKind, Repair};
use crate::image::{Image, Name, shown};
use crate::report::{Counts, Options, Phase, Progress, Report};
use crate::usage::{BlockUse, Usage};
use engine::format::{FileKind, ROOT_INODE, Superblock};
use pmem::{BLOCK_BYTES, Memory, Region};
use std::collections::HashMap;
use std::fmt;
use std::time::Instant;

/// Names of a path that are shown; a deeper path loses its beginning.
const PATH_NAMES_MAX: usize = 256;

/// Flag of [`InodeState::flags`]: the inode is damaged, and a finding reports it.
pub(crate) const DAMAGED: u8 = 1;
/// Flag: a directory below the root, whose walk has started.
pub(crate) const REACHED: u8 = 2;
/// Flag: on the current climb from an unreached directory.
pub(crate) const CLIMBING: u8 = 4;
/// Flag: a climb through this directory ended at an orphan, or in a cycle that was reported.
pub(crate) const CLIMBED: u8 = 8;
/// Flag: the property entry specifies an inline body.
pub(crate) const INLINE: u8 = 16;

/// Flag: the inode map of a clean image marks the number as free. Unless a name refers to it, its
/// content belongs to a removed file.
pub(crate) const ENDED: u8 = 32;
/// Flag: a directory outside the tree that has names.
pub(crate) const HAS_NAMES: u8 = 64;

/// The state recorded for an inode.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct InodeState {
    /// The first dentry found that refers to it.
    pub dentry: u64,
    /// Names found.
    pub names: u32,
    /// Link count of the property entry.
    pub links: u32,
    /// For directories: subdirectories found.
    pub subdirectories: u32,
    /// Its generation.
    pub generation: u32,
    /// [`FileKind`]; zero if it is free or damaged.
    pub kind: u8,
    /// The flags above.
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

/// What the journal's records will have changed after their replay.
#[derive(Default)]
pub(crate) struct Overlay {
    /// Words of log slots, by offset.
    pub slots: HashMap<u64, u64>,
    /// Words <valid, mtime>, by the offset of the dentry.
    pub valid: HashMap<u64, u64>,
    /// Parents, by the offset of the inode.
    pub parents: HashMap<u64, u64>,
}

/// The inode and the offset of a finding.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct FindingLocation {
    inode: Option<u64>,
    offset: Option<u64>,
}

impl FindingLocation {
    /// At an inode.
    pub fn inode(number: u64) -> FindingLocation {
        FindingLocation { inode: Some(number), offset: None }
    }

    /// At an offset.
    pub fn at(self, offset: u64) -> FindingLocation {
        FindingLocation { offset: Some(offset), ..self }
    }

    /// The offset, if it has one.
    pub fn offset(self) -> Option<u64> {
        self.offset
    }
}

/// An offset without an inode.
pub(crate) fn at(offset: u64) -> FindingLocation {
    FindingLocation::default().at(offset)
}

/// A check in progress.
pub(crate) struct Checker<'c, M: Memory> {
    pub image: Image<'c, M>,
    pub report: Report,
    pub options: Options<'c>,
    pub clean: bool,
    /// Report and claim nothing: set during walks of what the next attach will free.
    pub quiet: bool,
    pub usage: Usage,
    pub inodes: Vec<InodeState>,
    pub overlay: Overlay,
    progress: &'c mut dyn FnMut(Progress),
}

impl<'c, M: Memory> Checker<'c, M> {
    pub fn new(
        image: Image<'c, M>,
        report: Report,
        options: &Options<'c>,
        progress: &'c mut dyn FnMut(Progress),
    ) -> Self {
        let clean = options.clean.unwrap_or(report.clean);
        let usage = Usage::new(image.geometry.blocks);
        let (inodes, overlay) = (Vec::new(), Overlay::default());
        Checker { image, report, options: *options, clean, quiet: false, usage, inodes, overlay, progress }
    }

    /// Runs all parts, in the order of their dependencies.
    pub fn run(&mut self, superblock: &Superblock) {
        self.step(Phase::Fixed, 0, 1);
        self.claim_fixed();
        self.check_segments();
        self.check_journal();
        self.inodes = vec![InodeState::default(); self.image.segments.inodes()];
        self.check_inodes();
        self.check_directories();
        self.forget_freed();
        self.check_bodies();
        self.check_lost_metadata();
        self.check_tree();
        if self.clean {
            self.check_snapshot(superblock);
        }
        self.count();
        self.name_paths();
    }

    /// Reports a finding.
    pub fn report(
        &mut self,
        kind: FindingKind,
        location: FindingLocation,
        repair: Repair,
        sentence: fmt::Arguments<'_>,
    ) {
        if self.quiet {
            return;
        }
        let kept = self.report.findings.len() < self.options.findings_max;
        let sentence = if kept { sentence.to_string() } else { String::new() };
        let FindingLocation { inode, offset } = location;
        let finding =
            Finding { kind, severity: kind.severity(self.clean), inode, path: None, offset, sentence, repair };
        self.report.add(finding, self.options.findings_max);
    }

    /// Reports reserved words that are not zero.
    pub fn check_reserved(&mut self, location: FindingLocation, offset: u64, words: u64, what: &str) {
        if (0..words).any(|word| self.image.word(offset + word * 8) != 0) {
            let repair = Repair::Zero { offset, length: words * 8 };
            self.report(
                FindingKind::ReservedNotZero,
                location.at(offset),
                repair,
                format_args!("reserved bytes of {what} are not zero"),
            );
        }
    }

    /// Claims a block for an inode; returns whether the claim is allowed.
    pub fn claim(&mut self, number: u64, block: u64, wanted: BlockUse, repair: Repair) -> bool {
        if self.quiet {
            return true;
        }
        let Err(present) = self.usage.claim(block, wanted) else { return true };
        let location = FindingLocation::inode(number).at(block * BLOCK_BYTES);
        self.report(
            FindingKind::BlockTwice,
            location,
            repair,
            format_args!("block {block}, used here for {}, is already used for {}", wanted.name(), present.name()),
        );
        false
    }

    /// The state of an inode number, if the image has this inode.
    pub fn state(&mut self, number: u64) -> Option<&mut InodeState> {
        let location = self.image.segments.index_of(number)?;
        self.inodes.get_mut(location)
    }

    /// Reports the progress of the check.
    pub fn step(&mut self, phase: Phase, done: u64, total: u64) {
        (self.progress)(Progress { phase, done, total });
    }

    fn claim_fixed(&mut self) {
        let geometry = self.image.geometry;
        for block in (0..geometry.data_block).chain(geometry.data_end()..geometry.blocks) {
            let _ = self.usage.claim(block, BlockUse::Fixed);
        }
    }

    /// Whether the memory of a block has errors.
    pub fn is_lost(&self, block: u64) -> bool {
        let (start, lost) = (block * BLOCK_BYTES, self.options.lost);
        let next = lost.partition_point(|range| range.end <= start);
        lost.get(next).is_some_and(|range| range.start < start + BLOCK_BYTES)
    }

    /// Reports blocks with memory errors that hold anything but contents of files.
    fn check_lost_metadata(&mut self) {
        let (lost, end) = (self.options.lost, self.image.geometry.blocks);
        let blocks = lost.iter().map(|range| range.start / BLOCK_BYTES..range.end.div_ceil(BLOCK_BYTES));
        for block in blocks.flatten().take_while(|block| *block < end) {
            let of = self.usage.of(block);
            if !matches!(of, BlockUse::Free | BlockUse::Data | BlockUse::Shared) {
                let sentence = format_args!("{} is lost: its memory has an error", of.name());
                self.report(FindingKind::MetadataLost, at(block * BLOCK_BYTES), Repair::None, sentence);
            }
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

    /// Adds paths to the findings, now that all names are known.
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
            let state = self.inodes.get(self.image.segments.index_of(at)?)?;
            let (_, facts) = self.image.verified(state.dentry, &mut name)?;
            names.push(shown(name.bytes()));
            at = facts.parent;
        }
        let begin = if at == ROOT_INODE { "/" } else { "…/" };
        names.reverse();
        Some(format!("{begin}{}", names.join("/")))
    }
}

/// Checks every invariant of the image in a region; changes nothing.
pub fn check<M: Memory>(region: &Region<M>, options: &Options, progress: &mut dyn FnMut(Progress)) -> Report {
    match examine(region, options, progress) {
        Ok(checker) => checker.report,
        Err(report) => *report,
    }
}

/// `check` with the checker's state; only a report if the image cannot be checked.
pub(crate) fn examine<'c, M: Memory>(
    region: &'c Region<M>,
    options: &Options<'c>,
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
