//! Moves of directories to other parents: none may make a directory its own ancestor.
//!
//! Invariants
//! - A thread publishes its moves in its slot, under one lock, from before their ancestors are
//!   known to be right until after the rename has taken effect or has failed.
//! - Of two moves at the same time, the later one is checked against both outcomes of the earlier
//!   one. If one of them would give a cycle, it waits for the earlier one's end.
//! - The lock is held while paths are walked, not while a rename is made durable. So a thread that
//!   is stopped inside a rename keeps others only from moves that depend on its outcome.
//!
//! *Rejected:* one lock for all such renames. They would wait for a thread that is stopped.

use crate::components::Renames;
use crate::death::{dead, may_die_here};
use crate::dram::MOVES_MAX;
use crate::error::{Corruption, Error, Result};
use crate::format::ROOT_INODE;
use crate::sync::AtomicU64;
use core::sync::atomic::Ordering::{Acquire, Release};
use pmem::Memory;

/// Moves that other threads are making, beyond which a move waits.
const OTHERS_MAX: usize = 16;

/// A directory and the directory that becomes its parent, by inode numbers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct DirectoryMove {
    pub directory: u64,
    pub parent: u64,
}

/// Published moves, until it is dropped.
pub(super) struct MoveGuard<'f> {
    moves: &'f [[AtomicU64; 2]; MOVES_MAX],
}

impl Drop for MoveGuard<'_> {
    fn drop(&mut self) {
        if !dead() {
            end_moves(self.moves);
        }
    }
}

/// Ends the moves of a slot. The parent is cleared first: a move without one is none.
pub(super) fn end_moves(moves: &[[AtomicU64; 2]; MOVES_MAX]) {
    for word in moves.iter().flat_map(|[directory, parent]| [parent, directory]) {
        may_die_here();
        word.store(0, Release);
    }
}

/// The moves that other threads are making.
struct Others {
    moves: [DirectoryMove; OTHERS_MAX],
    count: usize,
}

impl<'f, M: Memory> Renames<'_, 'f, M> {
    /// Checks and publishes the moves of one rename. `Loop`: one would make a directory its own
    /// ancestor. `Busy`: that depends on a rename under way.
    pub(super) fn begin_moves(self, moves: &[DirectoryMove]) -> Result<MoveGuard<'f>> {
        let header = self.thread.fs.header()?;
        let _locked = self.thread.lock(&header.directory_move_lock, &header.rare_waiters)?;
        // First: a move that ends later is seen here, one that ended earlier in the parents.
        let others = self.other_moves()?;
        for one in moves {
            if self.is_ancestor(one.directory, one.parent)? {
                return Err(Error::Loop);
            }
        }
        for one in moves {
            if others.count > 0 && self.may_become_ancestor(one, &others)? {
                return Err(Error::Busy);
            }
        }
        for (one, [directory, parent]) in moves.iter().zip(&self.thread.slot.moves) {
            directory.store(one.directory, Release);
            may_die_here();
            parent.store(one.parent, Release);
            may_die_here();
        }
        Ok(MoveGuard { moves: &self.thread.slot.moves })
    }

    /// The moves that other threads have published; the lock is held.
    fn other_moves(self) -> Result<Others> {
        let mut others = Others { moves: [DirectoryMove::default(); OTHERS_MAX], count: 0 };
        for index in self.thread.fs.taken_slots()?.filter(|index| *index != self.thread.index()) {
            for [directory, parent] in &self.thread.fs.dram.slot(index)?.moves {
                let found = DirectoryMove { directory: directory.load(Acquire), parent: parent.load(Acquire) };
                if found.directory == 0 || found.parent == 0 {
                    continue;
                }
                // The thread may have died.
                if self.thread.fs.reap_if_dead(index)? {
                    continue;
                }
                *others.moves.get_mut(others.count).ok_or(Error::Busy)? = found;
                others.count += 1;
            }
        }
        Ok(others)
    }

    /// Whether the directory of a move could become an ancestor of its new parent by any of the
    /// other moves.
    fn may_become_ancestor(self, one: &DirectoryMove, others: &Others) -> Result<bool> {
        let mut followed = [false; OTHERS_MAX];
        let (mut starts, mut count) = ([one.parent; OTHERS_MAX + 1], 1);
        while count > 0 {
            count -= 1;
            let mut at = starts[count];
            for _ in 0..self.thread.fs.geometry.inodes_max() {
                if at == one.directory {
                    return Ok(true);
                }
                for (other, followed) in others.moves[..others.count].iter().zip(&mut followed) {
                    if other.directory == at && !*followed {
                        *followed = true;
                        starts[count] = other.parent;
                        count += 1;
                    }
                }
                if at == ROOT_INODE {
                    break;
                }
                at = self.thread.fs.inode(at)?.parent.load_acquire();
            }
        }
        Ok(false)
    }

    /// Whether directory `ancestor` is `number` or above it.
    pub(super) fn is_ancestor(self, ancestor: u64, number: u64) -> Result<bool> {
        let mut at = number;
        for _ in 0..self.thread.fs.geometry.inodes_max() {
            if at == ancestor {
                return Ok(true);
            }
            if at == ROOT_INODE {
                return Ok(false);
            }
            at = self.thread.fs.inode(at)?.parent.load_acquire();
        }
        Err(Corruption::Parents(number).into())
    }

    /// As the reaper of this slot: ends the moves of its owner. The rename has been completed or
    /// rolled back.
    pub(crate) fn end_moves_of_dead(self) {
        end_moves(&self.thread.slot.moves);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::directory::RenameFlags;
    use crate::format::FileKind;
    use crate::fs::{Node, Thread};
    use crate::testing::{Attached, Memory, new_image, new_node};

    /// `/a/x`, `/b/y` and `/c`, as nodes.
    fn tree(fs: &Attached) -> [Node; 6] {
        let thread = fs.enter().expect("enters");
        let root = thread.root().expect("a root");
        let make = |parent, name: &str| {
            thread.create(parent, name.as_bytes(), &new_node(FileKind::Directory)).expect("creates")
        };
        let [a, b, c] = ["a", "b", "c"].map(|name| make(root, name));
        [root, a, b, c, make(a, "x"), make(b, "y")]
    }

    fn move_to(thread: &Thread<'_, impl pmem::Memory>, from: (Node, &str), to: (Node, &str)) -> Result<()> {
        let (from, to) = ((from.0, from.1.as_bytes()), (to.0, to.1.as_bytes()));
        thread.rename(from, to, RenameFlags::default(), |_, _| Ok(()))
    }

    #[test]
    fn a_move_under_way_keeps_others_only_from_moves_that_depend_on_it() {
        let image: Memory = new_image(8 << 20, 0);
        let fs = Attached::new(&image).expect("attaches");
        let [root, a, b, c, x, y] = tree(&fs);
        let (stopped, thread) = (fs.enter().expect("enters"), fs.enter().expect("enters"));
        // `/a` is on its way to `/b/y`.
        let under_way = DirectoryMove { directory: a.number, parent: y.number };
        let guard = stopped.renames().begin_moves(&[under_way]).expect("no cycle");
        assert_eq!(move_to(&thread, (a, "x"), (c, "x")), Ok(()), "whatever becomes of `/a`");
        assert_eq!(move_to(&thread, (c, "x"), (a, "x")), Ok(()));
        let check = |directory: Node, parent: Node| {
            let one = DirectoryMove { directory: directory.number, parent: parent.number };
            thread.renames().begin_moves(&[one]).map(drop)
        };
        assert_eq!(check(b, x), Err(Error::Busy), "`/b` would be below itself if `/a` moves");
        assert_eq!(check(y, a), Err(Error::Busy));
        assert_eq!(check(b, y), Err(Error::Loop));
        assert_eq!(check(c, x), Ok(()));
        assert_eq!(check(y, root), Ok(()));
        drop(guard);
        assert_eq!(check(b, x), Ok(()));
    }
}
