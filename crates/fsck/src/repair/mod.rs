//! Repairs: what a check found is mended, stage by stage, until another check finds nothing that could be.
//!
//! Invariants
//! - A repair ends with one store of a word that makes it count, and all that the word leads to is durable before. So a repair that
//!   was interrupted has happened or not, and the next one goes on from there.
//! - Before anything else changes, the maps of what is free are durably thrown away and the image is marked as left cleanly. On such an
//!   image an attach frees nothing but what nothing leads to, drops nothing, and takes nothing for half-made: whatever a repair that was interrupted has not
//!   come to is still there.
//! - Blocks that are written to are free by what the check found, and by the maps of the image if they could be believed: what damage hides is
//!   not overwritten.
//! - What loses its last name gets one in `lost+found`.

mod bodies;
mod edit;
mod inodes;
mod names;

use crate::check::{Checker, examine};
use crate::finding::{Finding, FindingKind, Repair, Severity};
use crate::report::{EXIT_CORRECTED, Options, Progress, Report};
use edit::Mender;
use pmem::{Memory, Region};
use std::collections::{HashMap, HashSet};

/// Checks that follow each other at most. Each stage needs one, and consequences of a repair a few more.
const CHECKS_MAX: usize = 100;

/// What came of a repair.
#[derive(Debug, Clone, Default)]
pub struct Repaired {
    /// The first check.
    pub before: Report,
    /// The last check: what is left.
    pub after: Report,
    /// What was mended, in that order.
    pub mended: Vec<Finding>,
    /// What could not be, and why.
    pub failed: Vec<(Finding, &'static str)>,
    /// The image was not left cleanly and holds nothing but what a crash may leave: to attach to it once puts it in order.
    pub needs_recovery: bool,
}

impl Repaired {
    /// The exit code as in fsck(8): 1 if something was mended, and those of the check that was made last.
    pub fn exit_code(&self) -> i32 {
        let corrected = if self.mended.is_empty() { 0 } else { EXIT_CORRECTED };
        self.after.exit_code() | corrected
    }
}

/// What makes a finding the same one in the next check.
type Key = (FindingKind, Option<u64>, Option<u64>, Repair);

fn key(finding: &Finding) -> Key {
    (finding.kind, finding.inode, finding.offset, finding.repair)
}

/// Checks an image and mends what `decide` says yes to, of which it is asked once. Nobody else may use the image meanwhile.
pub fn repair<M: Memory>(
    region: &Region<M>,
    options: &Options,
    now_ns: i64,
    decide: &mut dyn FnMut(&Finding) -> bool,
    progress: &mut dyn FnMut(Progress),
) -> Repaired {
    let mut repaired = Repaired::default();
    let mut answers = HashMap::new();
    let mut tried = HashSet::new();
    let mut marked = None;
    for round in 0..CHECKS_MAX {
        let checker = match examine(region, options, progress) {
            Ok(checker) => checker,
            Err(report) => {
                repaired.after = *report;
                break;
            }
        };
        repaired.after = checker.report.clone();
        if round == 0 {
            repaired.before = checker.report.clone();
            marked = edit::marked_blocks(&checker);
        }
        if !checker.clean && checker.report.errors == 0 {
            repaired.needs_recovery = true;
            break;
        }
        let findings = checker.report.findings.clone();
        let possible = |finding: &&Finding| {
            !matches!(finding.repair, Repair::None | Repair::Recover) && !tried.contains(&key(finding))
        };
        // Maps of what is free are wrong where something is damaged, and right again after it is mended.
        let damaged =
            findings.iter().any(|finding| finding.severity > Severity::Note && stage(finding) < Stage::Snapshot);
        let due = |finding: &&Finding| !damaged || stage(finding) < Stage::Snapshot;
        let mut chosen: Vec<_> = findings.iter().filter(possible).filter(due).cloned().collect();
        chosen.retain(|finding| *answers.entry(key(finding)).or_insert_with(|| decide(finding)));
        let Some(first) = chosen.iter().map(stage).min() else { break };
        let mut mender = Mender::new(checker, marked.as_deref(), now_ns);
        if first > Stage::Superblock && mender.begin() {
            // What looked like the trace of a crash may have to be asked about now.
            continue;
        }
        for finding in chosen.into_iter().filter(|finding| stage(finding) == first) {
            tried.insert(key(&finding));
            match mender.apply(&finding) {
                Ok(()) => repaired.mended.push(finding),
                Err(why) => repaired.failed.push((finding, why)),
            }
        }
    }
    if repaired.before.findings.is_empty() && repaired.before.counts == Default::default() {
        repaired.before = repaired.after.clone();
    }
    repaired
}

/// What has to be in order before what follows can be judged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Stage {
    Superblock,
    Segments,
    Inodes,
    Journal,
    Names,
    Bodies,
    /// Directories in cycles before files without names: these may get theirs back.
    Tree,
    Orphans,
    Counts,
    Snapshot,
}

fn stage(finding: &Finding) -> Stage {
    use FindingKind as Kind;
    match finding.kind {
        Kind::SuperblockChecksum | Kind::SuperblockCopy => Stage::Superblock,
        Kind::SegmentOffset | Kind::SegmentOverlap | Kind::SegmentGap => Stage::Segments,
        Kind::JournalTorn | Kind::JournalPending | Kind::JournalStale | Kind::JournalRecord => Stage::Journal,
        Kind::LogOffset
        | Kind::LogPage
        | Kind::LogLoop
        | Kind::LogCookies
        | Kind::LogEnd
        | Kind::SlotTag
        | Kind::SlotOffset
        | Kind::SlotHalfMade
        | Kind::DentryDamaged
        | Kind::DentryParent
        | Kind::DentryCookie
        | Kind::DentryOverlap
        | Kind::NameInvalid
        | Kind::NameTwice
        | Kind::DentryTarget
        | Kind::DentryDangling
        | Kind::DentryKind
        | Kind::DentryTurn
        | Kind::RootNamed => Stage::Names,
        Kind::BlockTwice if matches!(finding.repair, Repair::CutLog { .. } | Repair::ClearWord { .. }) => Stage::Names,
        Kind::MapShape | Kind::BlockOutside | Kind::BlockTwice | Kind::BeyondEnd | Kind::XattrBody => Stage::Bodies,
        Kind::DirectoryNames | Kind::DirectoryParent | Kind::DirectoryCycle => Stage::Tree,
        Kind::Orphan => Stage::Orphans,
        Kind::LinksWrong | Kind::BlocksWrong => Stage::Counts,
        Kind::SnapshotDropped
        | Kind::SnapshotChecksum
        | Kind::SnapshotFigure
        | Kind::SnapshotSlabs
        | Kind::SnapshotShares
        | Kind::BlockNotMarked
        | Kind::BlockLeaked
        | Kind::InodeNotMarked
        | Kind::InodeLeaked
        | Kind::LineNotMarked
        | Kind::LineLeaked => Stage::Snapshot,
        _ => Stage::Inodes,
    }
}

/// Why a repair was not made.
type Done = Result<(), &'static str>;

impl<M: Memory> Mender<'_, M> {
    fn apply(&mut self, finding: &Finding) -> Done {
        match finding.repair {
            Repair::None | Repair::Recover => return Err("there is no repair for it"),
            Repair::RestoreSuperblock { copy } => self.copy_description(copy * pmem::BLOCK_BYTES, 0),
            Repair::RewriteCopy { copy } => self.copy_description(0, copy * pmem::BLOCK_BYTES),
            // Done by beginning.
            Repair::DropSnapshot => {}
            Repair::Zero { offset, length } => (0..length / 8).for_each(|word| self.set(offset + word * 8, 0)),
            Repair::ClearWord { offset } => self.set(offset, 0),
            Repair::SetWord { offset, word } => self.set(offset, word),
            Repair::CompleteRename { slot } => self.complete_rename(slot)?,
            Repair::FindSegment { segment } => self.find_segment(segment)?,
            Repair::MendInode { number } => self.mend_inode(number)?,
            Repair::FreeInode { number } => self.free_inode(number)?,
            Repair::Invalidate { dentry } => self.invalidate(dentry),
            Repair::Rename { dentry } => self.rename(dentry)?,
            Repair::MendPage { page, directory, first_cookie, compacted } => {
                self.mend_page(page, directory, first_cookie, compacted)
            }
            Repair::CutLog { offset } => self.set(offset, 0),
            Repair::AppendPage { number } => self.append_page(number).map(drop)?,
            Repair::Reconnect { number } => self.reconnect(number)?,
            Repair::SetParent { number, parent } => self.set_parent(number, parent)?,
            Repair::SetLinks { number, links } => self.change_property(number, |property| property.links = links)?,
            Repair::SetBlocks { number, blocks } => {
                self.change_property(number, |property| property.blocks = blocks)?
            }
            Repair::MendProperty { number } => self.mend_property(number)?,
            Repair::CopyBody { number } => self.copy_body(number)?,
            Repair::DropXattrs { number } => self.drop_xattrs(number)?,
        }
        Ok(())
    }
}

/// The parts of a check that a repair goes on with.
impl<M: Memory> Checker<'_, M> {
    pub(crate) fn inode_offset(&self, number: u64) -> Result<u64, &'static str> {
        self.image.inode(number).map(|(_, offset)| offset).ok_or("there is no place for that inode")
    }
}
