//! Repairs: the findings of a check are repaired stage by stage, until another check has no
//! repairable finding.
//!
//! Invariants:
//! - A repair ends with the store of one word that makes it effective. Everything that the word
//!   refers to is durable before. An interrupted repair has therefore happened or not, and the next
//!   one continues from there.
//! - Before any other change, the free-space maps are durably discarded and the image is marked as
//!   cleanly detached. On such an image an attach frees only what nothing refers to, and treats
//!   nothing as incomplete. Everything that an interrupted repair has not reached is still there.
//! - Blocks are allocated only if the check found them unused and, where their checksum matched,
//!   the image's own maps have them free. Contents hidden by damage are not overwritten.
//! - A file that loses its last name gets one in `lost+found`.
//!
//! Redundancy is used in a fixed order: a checksum that identifies the flipped bit; among 64
//! one-bit variants, the only one that leads to what belongs there; a second copy (superblock,
//! attributes, counts, `..`). `-p` applies only what is certain and destroys nothing. Not repaired:
//! other versions, truncated images, a missing magic, an impossible geometry, lost contents.

mod bodies;
mod edit;
mod inodes;
mod names;

use crate::check::{Checker, examine};
use crate::finding::{Finding, FindingKind, Repair, Severity, Stage};
use crate::report::{EXIT_CORRECTED, Options, Progress, Report};
use edit::Repairer;
use pmem::{Memory, Region};
use std::collections::{HashMap, HashSet};

/// Maximum number of consecutive checks. Each stage needs one, and consequences of a repair a few
/// more.
const CHECKS_MAX: usize = 100;

/// The outcome of a repair.
#[derive(Debug, Clone, Default)]
pub struct Repaired {
    /// The first check.
    pub before: Report,
    /// The last check: the remaining findings.
    pub after: Report,
    /// The repaired findings, in order.
    pub repaired: Vec<Finding>,
    /// The failed repairs, with their causes.
    pub failed: Vec<(Finding, &'static str)>,
    /// The image was not cleanly detached and has only traces of a crash: attaching it once
    /// recovers it.
    pub needs_recovery: bool,
}

impl Repaired {
    /// The exit code as in fsck(8): 1 if something was repaired, plus that of the last check.
    pub fn exit_code(&self) -> i32 {
        let corrected = if self.repaired.is_empty() { 0 } else { EXIT_CORRECTED };
        self.after.exit_code() | corrected
    }
}

/// Identifies the same finding in the next check.
type Key = (FindingKind, Option<u64>, Option<u64>, Repair);

fn key(finding: &Finding) -> Key {
    (finding.kind, finding.inode, finding.offset, finding.repair)
}

/// Checks an image and repairs the findings that `decide` accepts; it is asked once for each.
/// Nothing else may use the image meanwhile.
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
        // Damage makes the free-space maps wrong; they are right again after its repair.
        let damaged =
            findings.iter().any(|finding| finding.severity > Severity::Note && stage(finding) < Stage::Snapshot);
        let due = |finding: &&Finding| !damaged || stage(finding) < Stage::Snapshot;
        let mut chosen: Vec<_> = findings.iter().filter(possible).filter(due).cloned().collect();
        chosen.retain(|finding| *answers.entry(key(finding)).or_insert_with(|| decide(finding)));
        let Some(first) = chosen.iter().map(stage).min() else { break };
        let mut repairer = Repairer::new(checker, marked.as_ref(), now_ns);
        if first > Stage::Superblock && repairer.begin() {
            // An apparent trace of a crash may now be an error to ask about.
            continue;
        }
        for finding in chosen.into_iter().filter(|finding| stage(finding) == first) {
            tried.insert(key(&finding));
            match repairer.apply(&finding) {
                Ok(()) => repaired.repaired.push(finding),
                Err(why) => repaired.failed.push((finding, why)),
            }
        }
    }
    if repaired.before.findings.is_empty() && repaired.before.counts == Default::default() {
        repaired.before = repaired.after.clone();
    }
    repaired
}

/// When a finding is repaired.
fn stage(finding: &Finding) -> Stage {
    match (finding.kind, finding.repair) {
        // The block is twice among those of names.
        (FindingKind::BlockTwice, Repair::CutLog { .. } | Repair::ClearWord { .. }) => Stage::Names,
        (kind, _) => kind.stage(),
    }
}

/// The result of a repair, with the reason if it failed.
type Done = Result<(), &'static str>;

impl<M: Memory> Repairer<'_, M> {
    fn apply(&mut self, finding: &Finding) -> Done {
        match finding.repair {
            Repair::None | Repair::Recover => return Err("there is no repair for this finding"),
            Repair::RestoreSuperblock { copy } => self.copy_description(copy * pmem::BLOCK_BYTES, 0),
            Repair::RewriteCopy { copy } => self.copy_description(0, copy * pmem::BLOCK_BYTES),
            // Already done by `begin`.
            Repair::DropSnapshot => {}
            Repair::Zero { offset, length } => (0..length / 8).for_each(|word| self.set(offset + word * 8, 0)),
            Repair::ClearWord { offset } => self.set(offset, 0),
            Repair::SetWord { offset, word } => self.set(offset, word),
            Repair::CompleteRename { slot } => self.complete_rename(slot)?,
            Repair::FindSegment { segment } => self.find_segment(segment)?,
            Repair::RepairInode { number } => self.repair_inode(number)?,
            Repair::FreeInode { number } => self.free_inode(number)?,
            Repair::Invalidate { dentry } => self.invalidate(dentry),
            Repair::Rename { dentry } => self.rename(dentry)?,
            Repair::RepairPage { page, directory, first_cookie, compacted } => {
                self.repair_page(page, directory, first_cookie, compacted)
            }
            Repair::CutLog { offset } => self.set(offset, 0),
            Repair::AppendPage { number } => self.append_page(number).map(drop)?,
            Repair::Reconnect { number } => self.reconnect(number)?,
            Repair::SetParent { number, parent } => self.set_parent(number, parent)?,
            Repair::SetLinks { number, links } => self.change_property(number, |property| property.links = links)?,
            Repair::SetBlocks { number, blocks } => {
                self.change_property(number, |property| property.blocks = blocks)?
            }
            Repair::RepairProperty { number } => self.repair_property(number)?,
            Repair::SpellTarget { number } => self.spell_target(number)?,
            Repair::CopyBody { number } => self.copy_body(number)?,
            Repair::DropXattrs { number } => self.drop_xattrs(number)?,
        }
        Ok(())
    }
}

/// The parts of a check that repairs use.
impl<M: Memory> Checker<'_, M> {
    pub(crate) fn inode_offset(&self, number: u64) -> Result<u64, &'static str> {
        self.image.inode(number).map(|(_, offset)| offset).ok_or("the image has no inode of this number")
    }
}
