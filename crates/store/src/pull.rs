//! Pull: writes a state into a file, from the newest layer to the oldest.
//!
//! Each block is taken from the first layer that has it. Layers are fetched side by side and
//! verified whole. If a layer is gone, the head is read again: a sweep may have removed the state,
//! and a merge may have given it other layers.

use crate::error::StoreError;
use crate::head::{At, Head, Layer, State};
use crate::layer::{BLOCK, Index};
use crate::objects::{Event, Objects};
use crate::push::PARALLEL;
use futures_util::{StreamExt, TryStreamExt, stream};
use std::collections::HashMap;
use std::fs::File;
use std::os::unix::fs::FileExt;

/// How often a pull begins because layers were gone.
pub const ROUNDS: u32 = 3;

/// The state that is asked for.
fn find<'h>(objects: &Objects, head: &'h Head, at: &At) -> Result<&'h State, StoreError> {
    let missing = || StoreError::NoState { shown: objects.shown().to_owned(), wanted: at.to_string() };
    head.find(at).ok_or_else(missing)
}

/// Writes a state into an empty file.
#[cfg(test)]
pub async fn pull(objects: &Objects, at: &At, into: &File) -> Result<State, StoreError> {
    pull_of(objects, objects.existing_head().await?.head, at, into).await
}

/// Writes a state of a head into an empty file.
pub async fn pull_of(objects: &Objects, mut head: Head, at: &At, into: &File) -> Result<State, StoreError> {
    let state = find(objects, &head, at)?.clone();
    // What it is does not change by a later push.
    let wanted = At::Generation(state.generation);
    let mut layers = head.layers_of(&state);
    let mut round = 1;
    loop {
        match write_layers(objects, &state, layers.clone(), into).await {
            Err(StoreError::Damaged { .. }) if round < ROUNDS => {
                head = objects.existing_head().await?.head;
                let now = head.layers_of(find(objects, &head, &wanted)?);
                if now == layers {
                    round = ROUNDS;
                }
                layers = now;
                round += 1;
            }
            Err(error) => return Err(error),
            Ok(()) => return Ok(state),
        }
    }
}

/// Writes the state that consists of these layers into a file. `Damaged`: a layer may be gone.
pub async fn write_layers(objects: &Objects, state: &State, layers: Vec<Layer>, into: &File) -> Result<(), StoreError> {
    let local = |source| StoreError::Local { action: "write", path: "the pulled image".into(), source };
    into.set_len(0).and_then(|()| into.set_len(state.size)).map_err(local)?;
    let blocks = state.size.div_ceil(BLOCK as u64);
    let mut newer = Newer::default();
    let all: u64 = layers.iter().map(|layer| layer.bytes).sum();
    let mut bytes = 0;
    let fetch = async |layer: Layer| {
        let (index, content) = objects.layer(&layer).await?;
        Ok::<_, StoreError>((layer, index, content))
    };
    let mut fetched = stream::iter(layers.into_iter().rev()).map(fetch).buffered(PARALLEL);
    while let Some((layer, index, content)) = fetched.try_next().await? {
        // Blocks beyond the end belong to a larger image before a resize.
        let wanted: Vec<bool> = index.blocks().map(|block| block < blocks && newer.claim(block)).collect();
        let read = index.read(&content, &mut |place| wanted[place], &mut |number, block| {
            let at = number * BLOCK as u64;
            into.write_all_at(&block[..block.len().min((state.size - at) as usize)], at)
        });
        let object = format!("{}/layers/{}", objects.shown(), layer.id);
        read.map_err(|error| StoreError::Damaged { object, reason: format!("{error:?}") })?.map_err(local)?;
        bytes += layer.bytes;
        objects.notify(Event::Done { bytes, of: all })?;
        newer.zeros.push(index.into_zeros());
    }
    Ok(())
}

/// Of which blocks newer layers say what they are. It takes memory for what the layers hold, not
/// for the size that a head claims.
#[derive(Default)]
struct Newer {
    /// Blocks with content: bits, by the number of the block divided by 64.
    written: HashMap<u64, u64>,
    zeros: Vec<Index>,
}

impl Newer {
    /// Whether no newer layer has the block. From now on one has.
    fn claim(&mut self, block: u64) -> bool {
        let word = self.written.entry(block / 64).or_default();
        let is_new = *word & (1 << (block % 64)) == 0 && !self.zeros.iter().any(|index| index.is_zero(block));
        *word |= 1 << (block % 64);
        is_new
    }
}
