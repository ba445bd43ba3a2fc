//! Lists of nodes in the shared tables. Each change is one store, so a list is consistent at any
//! instant.

use super::shared_tables::{MAPPINGS, SharedTables, TableKind};
use super::table_transaction::{TableSlot, TableTransaction};
use crate::errno::{Errno, Result};
use core::sync::atomic::AtomicU32;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use pmem::Memory;

/// The head of the mappings of a slot.
fn mappings_of<'f>(tables: &SharedTables<'f>, slot_at: TableSlot) -> Result<&'f AtomicU32> {
    match slot_at {
        TableSlot::Mappings(slot) => Ok(&tables.slot(slot)?.mappings),
        _ => Err(Errno::EIO),
    }
}

/// Calls `each` with the mappings of a slot until it returns false: the index, and the word that
/// links to it.
pub(super) fn walk_mappings<'f>(
    tables: &SharedTables<'f>,
    slot: u32,
    each: &mut dyn FnMut(u32, &'f AtomicU32) -> bool,
) -> Result<()> {
    let mut link = &tables.slot(slot)?.mappings;
    // A list is no longer than the number of nodes.
    for _ in 0..MAPPINGS {
        let Some(index) = link.load(Acquire).checked_sub(1) else { return Ok(()) };
        let next = &tables.mapping(index)?.next;
        if !each(index, link) {
            return Ok(());
        }
        link = next;
    }
    Err(Errno::EIO)
}

/// Inserts a mapping at the head of a list, unless it is there already.
pub(super) fn link_mapping<M: Memory>(
    transaction: &TableTransaction<'_, '_, M>,
    slot_at: TableSlot,
    node: u32,
) -> Result<()> {
    let head = mappings_of(transaction.tables(), slot_at)?;
    let first = head.load(Acquire);
    // It can only be the first, because the list does not change meanwhile.
    if first != node + 1 {
        transaction.tables().mapping(node)?.next.store(first, Relaxed);
        head.store(node + 1, Release);
    }
    Ok(())
}

/// Removes a mapping from a list, if it is in it.
pub(super) fn unlink_mapping<M: Memory>(
    transaction: &TableTransaction<'_, '_, M>,
    slot_at: TableSlot,
    node: u32,
) -> Result<()> {
    let TableSlot::Mappings(slot) = slot_at else { return Err(Errno::EIO) };
    let tables = transaction.tables();
    let next = tables.mapping(node)?.next.load(Relaxed);
    walk_mappings(tables, slot, &mut |index, link| {
        if index == node {
            link.store(next, Release);
        }
        index != node
    })
}

/// Frees a lock node unless the intent's record links to it.
pub(super) fn free_if_unlinked<M: Memory>(transaction: &TableTransaction<'_, '_, M>, node: u32) -> Result<()> {
    let record = transaction.tables().record(transaction.intent().record.load(Relaxed))?;
    let is_linked = super::locks::is_linked(transaction.tables(), &record.ranges, node)?
        || super::locks::is_linked(transaction.tables(), &record.flocks, node)?;
    if is_linked { Ok(()) } else { transaction.unclaim(TableKind::Lock, node) }
}
