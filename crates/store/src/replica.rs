//! Replicate: one writer that pushes again and again.
//!
//! A writer takes a prefix over before its first push: it replaces the head by one with the next
//! epoch. From then on it pushes only while lineage and epoch are those of its own [`Term`]. So
//! once another writer has taken over, none of its pushes counts, however late it notices.

use crate::cache::Cache;
use crate::error::StoreError;
use crate::head::Term;
use crate::image::Source;
use crate::objects::{Objects, Replaced};
use crate::push::{Condition, PushOptions, Pushed, push};

/// How often a takeover begins again after another process replaced the head.
const ROUNDS: u32 = 8;

/// A writer that pushes again and again.
#[derive(Debug, Default)]
pub struct Replica {
    /// Absent until it has taken the prefix over.
    term: Option<Term>,
}

impl Replica {
    /// The writer's term, once it has one.
    pub fn term(&self) -> Option<&Term> {
        self.term.as_ref()
    }

    /// Pushes a state, after a takeover if this is the first one.
    pub(crate) async fn push(
        &mut self,
        objects: &Objects,
        cache: &Cache,
        source: &Source,
        options: &PushOptions,
    ) -> Result<Pushed, StoreError> {
        if self.term.is_none() {
            self.term = take_over(objects, source.uuid(), &options.writer).await?;
        }
        let condition = self.term.clone().map_or(Condition::Found, Condition::Term);
        let pushed = push(objects, cache, source, &PushOptions { condition, ..options.clone() }).await?;
        if self.term.is_none() {
            self.term = take_over(objects, source.uuid(), &options.writer).await?;
        }
        Ok(pushed)
    }

    /// Makes sure that the store answers, and that no other writer has taken over.
    pub(crate) async fn check(&self, objects: &Objects) -> Result<(), StoreError> {
        let found = objects.head().await?;
        match &self.term {
            Some(term) => term.check(objects.shown(), found.as_ref().map(|found| &found.head)),
            None => Ok(()),
        }
    }
}

/// Replaces the head by one with the next epoch. `None`: there is no head.
async fn take_over(objects: &Objects, uuid: &str, writer: &str) -> Result<Option<Term>, StoreError> {
    for _ in 0..ROUNDS {
        let Some(found) = objects.head().await? else { return Ok(None) };
        found.head.check_image(objects.shown(), uuid)?;
        let mut head = found.head.clone();
        head.epoch += 1;
        writer.clone_into(&mut head.writer);
        if objects.replace_head(Some(&found), &mut head).await? == Replaced::Done {
            return Ok(Some(head.term()));
        }
    }
    Err(StoreError::Busy { shown: objects.shown().to_owned(), rounds: ROUNDS })
}
