//! The ways that a thread has gone lately: so that many paths through the same directories do not look each of them up again.
//!
//! Invariants
//! - A trail is a path's directories with what the engine says of each ([`engine::Footing`]). As long as all of them stand, the path leads through them, and who is
//!   like the one that went it may search all but the last. Each use looks at each of them; so nobody who renames, removes or protects a
//!   directory need know of trails, in whatever process he is.
//! - A trail says what was true at one moment for each of its directories: they are looked at, and only then looked up again.
//! - All zero is a valid value, without trails.

use crate::credentials::{Capabilities, Credentials};
use core::cell::{Cell, RefCell};
use engine::{Footing, Node, Protection, Seen, Visit};
use pmem::Memory;

/// Trails of a thread.
const TRAILS: usize = 16;
/// The longest path of one, in bytes.
const WAY_BYTES_MAX: usize = 192;
/// Directories of one at most, with the one where it begins.
const FOOTINGS_MAX: usize = 12;

/// What of somebody decides whether directories may be searched, where groups do not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Reach {
    uid: u32,
    everywhere: bool,
}

impl Reach {
    #[inline]
    pub(crate) fn of(credentials: &Credentials<'_>) -> Reach {
        let overrides = Capabilities(Capabilities::DAC_OVERRIDE.0 | Capabilities::DAC_READ_SEARCH.0);
        let everywhere = credentials.checked || credentials.capabilities.0 & overrides.0 != 0;
        Reach { uid: credentials.uid, everywhere }
    }

    /// Whether a directory may be searched in whatever groups one is.
    fn searches(&self, directory: &Protection) -> bool {
        let Protection { mode, uid, access_list, .. } = *directory;
        let by_mode = if uid == self.uid { mode & 0o100 != 0 } else { !access_list && mode & 0o011 == 0o011 };
        mode & libc::S_IFMT == libc::S_IFDIR && (self.everywhere || by_mode)
    }
}

/// One path to a directory.
struct Trail {
    hash: u64,
    reach: Reach,
    way_bytes: u8,
    footings_count: u8,
    way: [u8; WAY_BYTES_MAX],
    footings: [Footing; FOOTINGS_MAX],
}

impl Trail {
    const NONE: Trail = Trail {
        hash: 0,
        reach: Reach { uid: 0, everywhere: false },
        way_bytes: 0,
        footings_count: 0,
        way: [0; WAY_BYTES_MAX],
        footings: [Footing::NONE; FOOTINGS_MAX],
    };

    #[inline]
    fn footings(&self) -> &[Footing] {
        self.footings.get(..self.footings_count as usize).unwrap_or_default()
    }

    #[inline]
    fn is(&self, start: Node, way: &[u8], reach: Reach) -> bool {
        self.reach == reach
            && self.footings[0].is_on(start)
            && self.way.get(..self.way_bytes as usize).is_some_and(|own| own == way)
    }
}

/// Goes a way, tells of each directory that it comes to, the first and the last one included, and gives the last one.
type Walk<'w, 'f> = &'w mut dyn FnMut(&mut dyn FnMut(Seen<'f>)) -> Option<Seen<'f>>;

/// The trails of a thread. See the head of this file.
pub struct Trails {
    trails: [RefCell<Trail>; TRAILS],
    /// The hashes of paths that had none, in the places where it would be: a path that is gone once gets none.
    missed: [Cell<u64>; TRAILS],
}

impl Trails {
    /// None yet.
    pub const fn new() -> Trails {
        Trails { trails: [const { RefCell::new(Trail::NONE) }; TRAILS], missed: [const { Cell::new(0) }; TRAILS] }
    }

    /// The directory that a path, which ends with a slash, leads to from `start`; if not by a trail, then by `walk`.
    #[inline]
    pub(crate) fn follow<'f, M: Memory>(
        &self,
        visit: &Visit<'_, 'f, M>,
        start: Node,
        way: &[u8],
        reach: Reach,
        mut walk: impl FnMut(&mut dyn FnMut(Seen<'f>)) -> Option<Seen<'f>>,
    ) -> Option<Seen<'f>> {
        let hash = hash_of(start, way);
        let place = (hash >> 32) as usize % TRAILS;
        let Ok(trail) = self.trails[place].try_borrow() else { return walk(&mut |_| {}) };
        if trail.hash == hash
            && trail.is(start, way, reach)
            && let Some(directory) = visit.stand_at(trail.footings())
        {
            return Some(directory);
        }
        drop(trail);
        if self.missed[place].replace(hash) != hash || way.len() > WAY_BYTES_MAX {
            return walk(&mut |_| {});
        }
        self.learn(visit, (hash, place), way, reach, &mut walk)
    }

    /// Goes a way twice: to see what the directories are like, and then whether that is where it leads.
    #[cold]
    fn learn<'f, M: Memory>(
        &self,
        visit: &Visit<'_, 'f, M>,
        (hash, place): (u64, usize),
        way: &[u8],
        reach: Reach,
        walk: Walk<'_, 'f>,
    ) -> Option<Seen<'f>> {
        let Ok(mut trail) = self.trails[place].try_borrow_mut() else { return walk(&mut |_| {}) };
        let trail = &mut *trail;
        // None, until all is known.
        (trail.hash, trail.footings_count) = (0, 0);
        let mut seen = 0;
        walk(&mut |directory| {
            if let (Some(footing), Some(place)) = (visit.footing(directory), trail.footings.get_mut(seen)) {
                *place = footing;
                seen += 1;
            } else {
                seen = usize::MAX;
            }
        })?;
        let Some(footings) = trail.footings.get(..seen) else { return walk(&mut |_| {}) };
        let (mut again, mut holds) = (0, true);
        let last = walk(&mut |directory| {
            let is_last = again + 1 == seen;
            let searches = || visit.protection(directory).is_ok_and(|protection| reach.searches(&protection));
            holds &= footings.get(again).is_some_and(|footing| footing.is_on(directory.node()));
            holds &= is_last || searches();
            again += 1;
        })?;
        if holds && again == seen && visit.stand_at(footings).is_some() {
            trail.way[..way.len()].copy_from_slice(way);
            (trail.hash, trail.reach) = (hash, reach);
            (trail.way_bytes, trail.footings_count) = (way.len() as u8, seen as u8);
        }
        Some(last)
    }
}

impl Default for Trails {
    fn default() -> Self {
        Trails::new()
    }
}

/// Any function that spreads paths; never zero.
#[inline]
fn hash_of(start: Node, way: &[u8]) -> u64 {
    const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;
    let mix = |hash: u64, word: u64| (hash.rotate_left(23) ^ word).wrapping_mul(FACTOR);
    let (words, rest) = way.as_chunks::<8>();
    let mut hash = u64::from(start.cachelet);
    for word in words {
        hash = mix(hash, u64::from_le_bytes(*word));
    }
    let mut last = [0u8; 8];
    last[..rest.len()].copy_from_slice(rest);
    mix(hash, u64::from_le_bytes(last)) | 1
}
