//! Whether everything has its place: names counted against links, files without names, directories that lead back to
//! themselves.

use crate::check::{CLIMBED, CLIMBING, Checker, Place, REACHED};
use crate::finding::{FindingKind, Repair};
use crate::image::Name;
use crate::report::Phase;
use engine::format::ROOT_INODE;
use pmem::Memory;

impl<M: Memory> Checker<'_, M> {
    /// After all names are known.
    pub fn check_tree(&mut self) {
        let places = self.inodes.len();
        self.step(Phase::Tree, 0, places as u64);
        if !self.state(ROOT_INODE).is_some_and(|state| state.is_directory()) {
            let sentence = format_args!("there is no root directory");
            let number = ROOT_INODE;
            self.found(FindingKind::RootMissing, Place::inode(number), Repair::MendInode { number }, sentence);
        }
        for place in 0..places {
            let state = self.inodes[place];
            if state.kind == 0 {
                continue;
            }
            let number = self.image.segments.number(place);
            if number != ROOT_INODE && state.names == 0 {
                self.report_orphan(number);
                continue;
            }
            let reached = state.flags & REACHED != 0;
            let links = if state.is_directory() { 2 + state.subdirectories } else { state.names };
            if state.is_directory() && !reached {
                self.climb(place);
            } else if state.links != links {
                let sentence = format_args!("it says that it has {} links, and {links} lead to it", state.links);
                self.found(FindingKind::LinksWrong, Place::inode(number), Repair::SetLinks { number, links }, sentence);
            }
        }
        self.step(Phase::Tree, places as u64, places as u64);
    }

    fn report_orphan(&mut self, number: u64) {
        // A removed file's inode stays as it was until it is used again: only a clean image says which ones are free.
        if !self.clean && self.image.inode(number).is_some_and(|(inode, _)| inode.is_plain()) {
            return;
        }
        let repair = if self.clean { Repair::Reconnect { number } } else { Repair::Recover };
        self.found(FindingKind::Orphan, Place::inode(number), repair, format_args!("no name leads to it"));
    }

    /// Climbs from a directory that the root does not lead to. What stands below an orphan has been reported with it;
    /// the rest is a cycle, which is reported once.
    fn climb(&mut self, start: usize) {
        let mut path = Vec::new();
        let mut place = start;
        loop {
            let state = &mut self.inodes[place];
            if state.names == 0 || state.flags & (CLIMBED | REACHED) != 0 {
                break;
            }
            if state.flags & CLIMBING != 0 {
                let number = self.image.segments.number(place);
                let sentence = format_args!("it stands below itself, not below the root");
                self.found(FindingKind::DirectoryCycle, Place::inode(number), Repair::Reconnect { number }, sentence);
                break;
            }
            state.flags |= CLIMBING;
            let dentry = state.dentry;
            path.push(place);
            let parent = self.image.verified(dentry, &mut Name::default()).map(|(_, facts)| facts.parent);
            let Some(above) = parent.and_then(|number| self.image.segments.place(number)) else { break };
            place = above;
        }
        for place in path {
            self.inodes[place].flags |= CLIMBED;
        }
    }
}
