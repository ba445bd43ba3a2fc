//! Merge: many small layers of the newest state become one.
//!
//! The newest layers are merged as far as each is at most twice as long as those above it together,
//! once there are [`LAYERS`] of them. So a state has a number of layers that grows with the
//! logarithm of its size, and each block is written again as often. Kept states keep their layers.

use crate::cache::Cache;
use crate::defects::{Defect, has};
use crate::error::StoreError;
use crate::head::Layer;
use crate::layer::{Builder, Index};
use crate::objects::{Objects, Replaced};
use crate::push::{PARALLEL, put};
use bytes::Bytes;
use futures_util::{StreamExt, TryStreamExt, stream};
use std::collections::BTreeMap;

/// As many small layers are merged.
const LAYERS: usize = 8;
/// Layers of up to this many bytes count as small.
const SMALL: u64 = 256 << 10;
/// Bytes of the layers that are merged at once.
const BYTES_MAX: u64 = 256 << 20;
/// Blocks of a merged layer.
const BLOCKS_MAX: usize = 32 << 10;

/// Zero blocks of the layers that are merged at once: each takes memory.
const ZEROS_MAX: u64 = 4 << 20;

/// Merges layers of the newest state if there are many; returns how many. If another process
/// replaces the head meanwhile, nothing is merged.
pub async fn merge(objects: &Objects, cache: &Cache, now: u64) -> Result<usize, StoreError> {
    let found = objects.existing_head().await?;
    let mut head = found.head.clone();
    let Some(newest) = head.newest().cloned() else { return Ok(0) };
    let mut layers = head.layers_of(&newest);
    let start = first_to_merge(&layers);
    let merged = layers.split_off(start);
    if merged.len() < LAYERS {
        return Ok(0);
    }
    let fetch = async |layer: &Layer| -> Result<Content, StoreError> {
        let (index, bytes) = objects.layer(layer).await?;
        Ok(Content { index, bytes, is_metadata: layer.metadata })
    };
    let contents: Vec<Content> = stream::iter(&merged).map(fetch).buffered(PARALLEL).try_collect().await?;
    // Layers from one with too many zero blocks on stay, and those above it are merged.
    let mut zeros: u64 = 0;
    let too_many = contents.iter().rposition(|content| {
        zeros = zeros.saturating_add(content.index.zero_count());
        zeros > ZEROS_MAX
    });
    let staying = too_many.map_or(0, |at| at + 1);
    let contents = &contents[staying..];
    if contents.len() < LAYERS {
        return Ok(0);
    }
    layers.extend_from_slice(&merged[..staying]);
    for built in combine(contents, start + staying == 0)? {
        let (layer, tail) = put(objects.clone(), newest.generation, built).await?;
        cache.keep_index(&layer, &tail);
        layers.push(layer);
    }
    let places = head.places_of(&layers);
    head.states.last_mut().into_iter().for_each(|state| state.layers.clone_from(&places));
    head.prune(now);
    match objects.replace_head(Some(&found), &mut head).await? {
        Replaced::Done => Ok(contents.len()),
        Replaced::Lost => Ok(0),
    }
}

/// The first of the newest layers that are to be merged.
fn first_to_merge(layers: &[Layer]) -> usize {
    let (mut start, mut above) = (layers.len(), 0);
    for (place, layer) in layers.iter().enumerate().rev() {
        if layer.bytes > (2 * above).max(SMALL) || above + layer.bytes > BYTES_MAX {
            break;
        }
        (start, above) = (place, above + layer.bytes);
    }
    start
}

/// A layer that is merged.
struct Content {
    index: Index,
    bytes: Bytes,
    is_metadata: bool,
}

/// The blocks of layers, oldest first, in new ones. `is_lowest`: nothing is below. Metadata stays
/// in layers of its own.
fn combine(contents: &[Content], is_lowest: bool) -> Result<Vec<crate::layer::Built>, StoreError> {
    // Where the newest content of each block is; none: it is zero.
    let mut newest: BTreeMap<u64, Option<usize>> = BTreeMap::new();
    for (layer, Content { index, .. }) in contents.iter().enumerate() {
        for (block, place) in
            index.blocks().map(|block| (block, Some(layer))).chain(index.zero_blocks().map(|block| (block, None)))
        {
            if has(Defect::OlderBlockWins) {
                newest.entry(block).or_insert(place);
            } else {
                newest.insert(block, place);
            }
        }
    }
    let mut blocks: BTreeMap<u64, Vec<u8>> = BTreeMap::new();
    for (layer, Content { index, bytes, .. }) in contents.iter().enumerate() {
        let numbers: Vec<u64> = index.blocks().collect();
        let read =
            index.read(bytes, &mut |place| newest.get(&numbers[place]) == Some(&Some(layer)), &mut |number, block| {
                blocks.insert(number, block.to_vec());
                Ok(())
            });
        // It was verified when it was fetched.
        read.map_err(|_| local(std::io::ErrorKind::InvalidData.into()))?.map_err(local)?;
    }
    let (mut built, mut builders) = (Vec::new(), [false, true].map(Builder::new));
    for (number, place) in newest {
        let is_metadata = place.is_some_and(|layer| contents[layer].is_metadata);
        let builder = &mut builders[usize::from(is_metadata)];
        match blocks.remove(&number) {
            Some(block) => builder.add(number, &block, crate::layer::sum(&block)).map_err(local)?,
            None if place.is_none() && !is_lowest => builder.add_zero(number),
            None => {}
        }
        if builder.blocks() >= BLOCKS_MAX {
            built.push(std::mem::replace(builder, Builder::new(is_metadata)).finish().map_err(local)?);
        }
    }
    for builder in builders.into_iter().filter(|builder| !builder.is_empty()) {
        built.push(builder.finish().map_err(local)?);
    }
    Ok(built)
}

fn local(source: std::io::Error) -> StoreError {
    StoreError::Local { action: "merge", path: "layers".into(), source }
}
