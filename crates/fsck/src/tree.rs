//! Checks of the directory tree: link counts, files without names, directories in cycles.

use crate::check::{CLIMBED, CLIMBING, Checker, FindingLocation, HAS_NAMES, REACHED};
use crate::finding::{FindingKind, Repair};
use crate::image::Name;
use crate::report::Phase;
use engine::format::ROOT_INODE;
use pmem::Memory;

impl<M: Memory> Checker<'_, M> {
    /// Runs after all names are known.
    pub fn check_tree(&mut self) {
        let count = self.inodes.len();
        self.step(Phase::Tree, 0, count as u64);
        if !self.state(ROOT_INODE).is_some_and(|state| state.is_directory()) {
            let sentence = format_args!("there is no root directory");
            let number = ROOT_INODE;
            self.report(
                FindingKind::RootMissing,
                FindingLocation::inode(number),
                Repair::RepairInode { number },
                sentence,
            );
        }
        for index in 0..count {
            let state = self.inodes[index];
            if state.kind == 0 {
                continue;
            }
            let number = self.image.segments.number(index);
            if number != ROOT_INODE && state.names == 0 {
                self.report_orphan(number);
                continue;
            }
            let reached = state.flags & REACHED != 0;
            let links = if state.is_directory() { 2 + state.subdirectories } else { state.names };
            if state.is_directory() && !reached {
                self.climb(index);
            } else if state.links != links {
                let sentence = format_args!("its link count is {}, but it has {links} links", state.links);
                self.report(
                    FindingKind::LinksWrong,
                    FindingLocation::inode(number),
                    Repair::SetLinks { number, links },
                    sentence,
                );
            }
        }
        self.step(Phase::Tree, count as u64, count as u64);
    }

    fn report_orphan(&mut self, number: u64) {
        if self.state(number).is_some_and(|state| state.flags & HAS_NAMES != 0) && !self.clean {
            let sentence = format_args!("it is a directory with names and has no name itself");
            let (on, repair) = (FindingLocation::inode(number), Repair::Reconnect { number });
            return self.report(FindingKind::OrphanDirectory, on, repair, sentence);
        }
        // A removed file's inode keeps its content until it is reused; only a clean image marks the
        // free ones.
        if !self.clean && self.image.inode(number).is_some_and(|(inode, _)| inode.is_plain()) {
            return;
        }
        let repair = if self.clean { Repair::Reconnect { number } } else { Repair::Recover };
        self.report(FindingKind::Orphan, FindingLocation::inode(number), repair, format_args!("it has no name"));
    }

    /// Climbs from an unreached directory. Directories below an orphan are covered by the orphan's
    /// finding; anything else is a cycle, which is reported once.
    fn climb(&mut self, start: usize) {
        let mut path = Vec::new();
        let mut index = start;
        loop {
            let state = &mut self.inodes[index];
            if state.names == 0 || state.flags & (CLIMBED | REACHED) != 0 {
                break;
            }
            if state.flags & CLIMBING != 0 {
                let number = self.image.segments.number(index);
                let sentence = format_args!("it is below itself, not below the root");
                self.report(
                    FindingKind::DirectoryCycle,
                    FindingLocation::inode(number),
                    Repair::Reconnect { number },
                    sentence,
                );
                break;
            }
            state.flags |= CLIMBING;
            let dentry = state.dentry;
            path.push(index);
            let parent = self.image.verified(dentry, &mut Name::default()).map(|(_, facts)| facts.parent);
            let Some(above) = parent.and_then(|number| self.image.segments.index_of(number)) else { break };
            index = above;
        }
        for index in path {
            self.inodes[index].flags |= CLIMBED;
        }
    }
}
