//! Lists of nodes in the tables, as an actor changes them: each change is one store, so a list is whole at any moment.

use super::actor::{Actor, Place};
use super::areas::{Areas, Kind, MAPPINGS};
use crate::errno::{Errno, Result};
use core::sync::atomic::AtomicU32;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use pmem::Memory;

/// The head of the mappings of a slot.
fn mappings_of<'f>(areas: &Areas<'f>, place: Place) -> Result<&'f AtomicU32> {
    match place {
        Place::Mappings(slot) => Ok(&areas.slot(slot)?.mappings),
        _ => Err(Errno::EIO),
    }
}

/// Gives the mappings of a slot to `each` until it returns false: index, and the word that leads to it.
pub(super) fn walk_mappings<'f>(
    areas: &Areas<'f>,
    slot: u32,
    each: &mut dyn FnMut(u32, &'f AtomicU32) -> bool,
) -> Result<()> {
    let mut link = &areas.slot(slot)?.mappings;
    // A list is no longer than all nodes together.
    for _ in 0..MAPPINGS {
        let Some(index) = link.load(Acquire).checked_sub(1) else { return Ok(()) };
        let next = &areas.mapping(index)?.next;
        if !each(index, link) {
            return Ok(());
        }
        link = next;
    }
    Err(Errno::EIO)
}

/// Puts a mapping at the head of a list, unless it is in it.
pub(super) fn link_mapping<M: Memory>(actor: &Actor<'_, '_, M>, place: Place, node: u32) -> Result<()> {
    let head = mappings_of(actor.areas(), place)?;
    let first = head.load(Acquire);
    // It can only be the first: nobody else changes the list meanwhile.
    if first != node + 1 {
        actor.areas().mapping(node)?.next.store(first, Relaxed);
        head.store(node + 1, Release);
    }
    Ok(())
}

/// Takes a mapping out of a list, if it is in it.
pub(super) fn unlink_mapping<M: Memory>(actor: &Actor<'_, '_, M>, place: Place, node: u32) -> Result<()> {
    let Place::Mappings(slot) = place else { return Err(Errno::EIO) };
    let areas = actor.areas();
    let next = areas.mapping(node)?.next.load(Relaxed);
    walk_mappings(areas, slot, &mut |index, link| {
        if index == node {
            link.store(next, Release);
        }
        index != node
    })
}

/// Frees a lock node that the intent's record does not lead to.
pub(super) fn free_if_unlinked<M: Memory>(actor: &Actor<'_, '_, M>, node: u32) -> Result<()> {
    let record = actor.areas().record(actor.intent().record.load(Relaxed))?;
    let is_linked = super::locks::is_linked(actor.areas(), &record.ranges, node)?
        || super::locks::is_linked(actor.areas(), &record.flocks, node)?;
    if is_linked { Ok(()) } else { actor.unclaim(Kind::Lock, node) }
}
