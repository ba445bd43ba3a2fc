//! Sweep: removes objects that no kept state needs.
//!
//! A layer that a head named is removed when it has been retired for the grace period, so that
//! readers of an old state can end. An object that no head ever named (a push was killed, or is
//! under way) is removed when it is that old. The head is replaced first, with a higher count of
//! sweeps: a push that is under way then cannot commit layers that are about to go, and begins
//! again. So states are safe whatever clocks say; the grace period only spares repeated work.
//! A push that finds a sweep in its way writes a time into the head. Until then no sweep removes
//! what no head has named: else sweeps that follow each other would keep it from an end.

use crate::defects::{Defect, has};
use crate::error::StoreError;
use crate::head::SPARED;
use crate::objects::{Objects, Replaced};
use std::collections::{HashMap, HashSet};

/// How often a sweep begins again after another process replaced the head.
const ROUNDS: u32 = 8;

/// What a sweep has removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Swept {
    /// Objects.
    pub objects: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Objects that wait for the end of the grace period.
    pub waiting: u64,
}

/// Removes what no kept state needs, after `grace` seconds. `now`: seconds since 1970.
pub async fn sweep(objects: &Objects, grace: u64, now: u64) -> Result<Swept, StoreError> {
    let grace = if has(Defect::NoGrace) { 0 } else { grace };
    for _ in 0..ROUNDS {
        let found = objects.existing_head().await?;
        let mut head = found.head.clone();
        let is_pruned = head.prune(now);
        // Clocks differ, and a time far ahead is no push's.
        let is_pushing = (now + 1..=now + 2 * SPARED).contains(&head.spared_until);
        let needed: HashSet<&str> = head.layers.iter().map(|layer| layer.id.as_str()).collect();
        let retired: HashMap<&str, u64> =
            head.retired.iter().map(|retired| (retired.id.as_str(), retired.since)).collect();
        let mut swept = Swept::default();
        let mut old = Vec::new();
        let listed = objects.list().await?;
        for (id, bytes, written) in &listed {
            if needed.contains(id.as_str()) {
                continue;
            }
            let retired_since = retired.get(id.as_str()).copied();
            let is_spared = retired_since.is_none() && is_pushing;
            if is_spared || retired_since.unwrap_or(*written).saturating_add(grace) > now {
                swept.waiting += 1;
                continue;
            }
            swept.objects += 1;
            swept.bytes += bytes;
            old.push(id.clone());
        }
        // What is neither there nor to be removed now needs no entry.
        let there: HashSet<&str> = listed.iter().map(|(id, _, _)| id.as_str()).collect();
        let going: HashSet<&str> = old.iter().map(String::as_str).collect();
        let kept: Vec<_> = head
            .retired
            .iter()
            .filter(|retired| there.contains(retired.id.as_str()) && !going.contains(retired.id.as_str()))
            .cloned()
            .collect();
        head.retired = kept;
        if old.is_empty() && !is_pruned {
            return Ok(swept);
        }
        head.sweeps += 1;
        if !has(Defect::SilentSweep) && objects.replace_head(Some(&found), &mut head).await? == Replaced::Lost {
            continue;
        }
        objects.remove(old.iter().map(|id| objects.layer_path(id)).collect()).await?;
        return Ok(swept);
    }
    Err(StoreError::Busy { shown: objects.shown().to_owned(), rounds: ROUNDS })
}
