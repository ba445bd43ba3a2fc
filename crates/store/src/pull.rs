//! Pull: writes a state into a file, from the newest layer to the oldest.
//!
//! Each block is taken from the first layer that has it. Layers are fetched side by side and
//! verified whole. If a layer is gone, the head is read again: a sweep may have removed the state,
//! and a merge may have given it other layers.

use crate::error::StoreError;
use crate::head::{At, Head, Layer, State};
use crate::layer::BLOCK;
use crate::objects::{Event, Objects};
use crate::push::PARALLEL;
use futures_util::{StreamExt, TryStreamExt, stream};
use std::fs::File;
use std::os::unix::fs::FileExt;

/// How often a pull begins again because layers were gone.
const ROUNDS: u32 = 3;

/// The state that is asked for.
fn find<'h>(objects: &Objects, head: &'h Head, at: &At) -> Result<&'h State, StoreError> {
    let missing = || StoreError::NoState { shown: objects.shown().to_owned(), wanted: at.to_string() };
    head.find(at).ok_or_else(missing)
}

/// Writes a state into an empty file.
pub async fn pull(objects: &Objects, at: &At, into: &File) -> Result<State, StoreError> {
    let mut head = objects.existing_head().await?.head;
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

async fn write_layers(objects: &Objects, state: &State, layers: Vec<Layer>, into: &File) -> Result<(), StoreError> {
    let local = |source| StoreError::Local { action: "write", path: "the pulled image".into(), source };
    into.set_len(0).and_then(|()| into.set_len(state.size)).map_err(local)?;
    let blocks = state.size.div_ceil(BLOCK as u64);
    // A bit per block: it is as a newer layer says.
    let mut is_done = vec![0u64; blocks.div_ceil(64) as usize];
    let all: u64 = layers.iter().map(|layer| layer.bytes).sum();
    let mut bytes = 0;
    let fetch = async |layer: Layer| {
        let (index, content) = objects.layer(&layer).await?;
        Ok::<_, StoreError>((layer, index, content))
    };
    let mut fetched = stream::iter(layers.into_iter().rev()).map(fetch).buffered(PARALLEL);
    while let Some((layer, index, content)) = fetched.try_next().await? {
        let mut claim = |block: u64| {
            let Some(word) = is_done.get_mut((block / 64) as usize) else { return false };
            let is_new = *word & (1 << (block % 64)) == 0;
            *word |= 1 << (block % 64);
            is_new
        };
        // Blocks beyond the end belong to a larger image before a resize.
        let wanted: Vec<bool> = index.blocks().map(|block| block < blocks && claim(block)).collect();
        for block in index.zero_blocks() {
            claim(block);
        }
        let read = index.read(&content, &mut |place| wanted[place], &mut |number, block| {
            let at = number * BLOCK as u64;
            into.write_all_at(&block[..block.len().min((state.size - at) as usize)], at)
        });
        let object = format!("{}/layers/{}", objects.shown(), layer.id);
        read.map_err(|error| StoreError::Damaged { object, reason: format!("{error:?}") })?.map_err(local)?;
        bytes += layer.bytes;
        objects.notify(Event::Done { bytes, of: all })?;
    }
    Ok(())
}
