//! User namespaces: how the ids of a process in one differ from the ids in the image.
//!
//! Ids in the image are those of the *initial* user namespace of a run: the one of its launcher. A
//! process in another namespace has other numbers for some of them, and none for the rest. As in
//! the kernel, its capabilities count only over files whose owner and group have numbers there.
//!
//! Invariant: a map has no lines until the namespace's creator has written it; then it never
//! changes. Threads may fill it at the same time, because all of them store the same lines.

use core::sync::atomic::AtomicU32;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};

/// Shown in place of ids that have no number in the namespace: the kernel's default.
pub const OVERFLOW_ID: u32 = 65534;
/// Longest map. The kernel permits 340 lines; ids of further ones have no number.
const LINES_MAX: usize = 32;

/// A map between the ids of a namespace and those of the image.
#[derive(Debug)]
pub struct IdMap {
    count: AtomicU32,
    /// First id in the namespace, first id in the image, count.
    lines: [[AtomicU32; 3]; LINES_MAX],
}

impl IdMap {
    /// Without lines: no id has a number.
    pub const fn new() -> IdMap {
        IdMap { count: AtomicU32::new(0), lines: [const { [const { AtomicU32::new(0) }; 3] }; LINES_MAX] }
    }

    /// Whether the map was written.
    pub fn is_written(&self) -> bool {
        self.count.load(Acquire) != 0
    }

    /// The lines: first id in the namespace, first id in the image, count.
    pub fn lines(&self) -> impl Iterator<Item = [u32; 3]> {
        let count = self.count.load(Acquire) as usize;
        self.lines.iter().take(count).map(|line| [0, 1, 2].map(|field| line[field].load(Relaxed)))
    }

    /// Fills the map with lines.
    pub fn fill(&self, lines: impl Iterator<Item = [u32; 3]>) {
        let mut count = 0;
        for (into, line) in self.lines.iter().zip(lines.filter(|line| line[2] != 0)) {
            into.iter().zip(line).for_each(|(into, field)| into.store(field, Relaxed));
            count += 1;
        }
        self.count.store(count, Release);
    }

    /// Fills the map with the lines of `/proc/self/uid_map` or `gid_map`: numbers, here and in the
    /// parent namespace. `parent`: the map of that one, unless it is the initial one.
    pub fn fill_from(&self, text: &[u8], parent: Option<&IdMap>) {
        let own = || text.split(|&byte| byte == b'\n').filter_map(parse_line);
        match parent {
            None => self.fill(own()),
            Some(parent) => self.fill(own().flat_map(|line| parent.lines().map(move |outer| compose(line, outer)))),
        }
    }

    /// The id in the image.
    pub fn to_image(&self, id: u32) -> Option<u32> {
        self.lines().find_map(|[inside, image, count]| translate(id, inside, image, count))
    }

    /// The number of an id of the image.
    pub fn number_of(&self, id: u32) -> Option<u32> {
        self.lines().find_map(|[inside, image, count]| translate(id, image, inside, count))
    }
}

impl Default for IdMap {
    fn default() -> IdMap {
        IdMap::new()
    }
}

fn translate(id: u32, from: u32, to: u32, count: u32) -> Option<u32> {
    let index = id.checked_sub(from).filter(|&index| index < count)?;
    to.checked_add(index)
}

fn parse_line(line: &[u8]) -> Option<[u32; 3]> {
    let mut fields = [0u32; 3];
    let mut found = 0;
    for part in line.split(|byte| byte.is_ascii_whitespace()).filter(|part| !part.is_empty()) {
        let number = core::str::from_utf8(part).ok()?.parse().ok()?;
        *fields.get_mut(found)? = number;
        found += 1;
    }
    (found == fields.len()).then_some(fields)
}

/// The part of a line whose ids in the parent namespace are in a line of the parent's map.
fn compose([inside, parent, count]: [u32; 3], [outer, image, outer_count]: [u32; 3]) -> [u32; 3] {
    let [parent, outer] = [parent, outer].map(u64::from);
    let start = parent.max(outer);
    let end = (parent + u64::from(count)).min(outer + u64::from(outer_count));
    if start >= end {
        return [0; 3];
    }
    // The sums are below the ends of the lines, which the kernel keeps below 2^32.
    let at = |first: u32, from: u64| first.wrapping_add((start - from) as u32);
    [at(inside, parent), at(image, outer), (end - start) as u32]
}

/// A user namespace below the initial one.
#[derive(Debug, Default)]
pub struct UserNamespace {
    /// Users.
    pub users: IdMap,
    /// Groups.
    pub groups: IdMap,
}

impl UserNamespace {
    /// Whether capabilities count over a file with this owner and group.
    pub fn has_both(&self, uid: u32, gid: u32) -> bool {
        self.users.number_of(uid).is_some() && self.groups.number_of(gid).is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(text: &str, parent: Option<&IdMap>) -> IdMap {
        let map = IdMap::new();
        map.fill_from(text.as_bytes(), parent);
        map
    }

    #[test]
    fn ids_are_translated_both_ways_and_others_have_no_number() {
        let map = map("         0       1000          1\n         1     100000      65536\n", None);
        for (inside, image) in [(0, 1000), (1, 100_000), (65536, 165_535)] {
            assert_eq!((map.to_image(inside), map.number_of(image)), (Some(image), Some(inside)));
        }
        assert_eq!((map.to_image(65537), map.number_of(0), map.number_of(165_536)), (None, None, None));
    }

    #[test]
    fn a_map_below_another_leads_through_both() {
        let outer = map("0 1000 1\n1 100000 10\n", None);
        let inner = map("5 0 3\n", Some(&outer));
        assert_eq!(
            [5, 6, 7, 8, 0].map(|id| inner.to_image(id)),
            [Some(1000), Some(100_000), Some(100_001), None, None]
        );
        let none = map("0 5000 10\n", Some(&outer));
        assert_eq!(none.to_image(0), None, "the parent has no such ids");
    }

    #[test]
    fn the_map_of_all_ids_is_no_overflow() {
        let all = map("0 0 4294967295\n", None);
        assert_eq!(map("0 0 4294967295\n", Some(&all)).to_image(u32::MAX - 1), Some(u32::MAX - 1));
        assert!(!map("", None).is_written());
        assert!(!map("0 zero 1\n0 1\n", None).is_written());
    }
}
