//! Writers that follow one another on a prefix of the model: replicas in terms, and pushes on
//! condition of a state.

use crate::cache::Cache;
use crate::defects::{Defect, inject};
use crate::error::StoreError;
use crate::head::At;
use crate::layer::BLOCK;
use crate::model::{Client, Death, Random};
use crate::model_tests::{
    Picture, START, World, bytes_of, content, new_picture, objects, old_picture, on_virtual_time, options, seeds,
    source,
};
use crate::pull::pull;
use crate::push::{Condition, PushOptions, push};
use crate::replica::Replica;
use futures_util::future::join3;
use std::cell::RefCell;
use std::sync::Arc;
use std::time::Duration;

/// Options without a tag: the states of replicas have none.
fn untagged(writer: &str) -> PushOptions {
    PushOptions { tag: None, writer: writer.to_owned(), ..options("", START) }
}

/// A replica, a client and a cache of its own.
struct Writer {
    name: String,
    replica: Replica,
    client: Arc<Client>,
    cache: Cache,
}

impl Writer {
    fn new(world: &World, name: &str, client: Arc<Client>) -> Writer {
        Writer { name: name.to_owned(), replica: Replica::default(), client, cache: world.cache(name) }
    }

    /// Pushes a state; `None`: the client died.
    async fn push(&mut self, picture: &Picture) -> Option<Result<(), StoreError>> {
        let (objects, source, options) = (objects(&self.client), source(picture), untagged(&self.name));
        let pushing = self.replica.push(&objects, &self.cache, &source, &options);
        Some(self.client.live(pushing).await?.map(drop))
    }
}

/// A replica pushes, another one takes over, and the first one goes on. Returns what is wrong.
pub async fn fenced() -> Result<(), String> {
    let world = World::new();
    let mut first = Writer::new(&world, "first", world.client());
    let mut second = Writer::new(&world, "second", world.client());
    for (writer, picture) in [(&mut first, old_picture()), (&mut second, new_picture())] {
        let pushed = writer.push(&picture).await.expect("nothing kills it");
        pushed.map_err(|error| format!("{} was refused: {error}", writer.name))?;
    }
    for picture in [old_picture(), new_picture()] {
        match first.push(&picture).await {
            Some(Err(StoreError::Fenced { writer, .. })) if writer == "second" => {}
            other => return Err(format!("the first writer goes on: {other:?}")),
        }
    }
    if world.newest().await != bytes_of(&new_picture()) {
        return Err("the first writer's late state counts".to_owned());
    }
    let stopped = first.replica.check(&objects(&first.client)).await;
    if !matches!(stopped, Err(StoreError::Fenced { .. })) {
        return Err(format!("a look does not find the second writer: {stopped:?}"));
    }
    second.replica.check(&objects(&second.client)).await.map_err(|error| error.to_string())
}

#[test]
fn a_writer_stops_when_another_has_taken_over() {
    on_virtual_time(fenced()).unwrap();
}

#[test]
fn a_single_push_takes_a_prefix_over() {
    on_virtual_time(async {
        let world = World::new();
        let mut replica = Writer::new(&world, "replica", world.client());
        replica.push(&old_picture()).await.unwrap().unwrap();
        world.push(&new_picture(), "by hand").await.unwrap();
        let refused = replica.push(&old_picture()).await.unwrap().unwrap_err();
        let text = refused.to_string();
        assert!(text.contains("taken over by a test") && text.contains("start it again"), "{text}");
        assert_eq!(world.newest().await, bytes_of(&new_picture()));
    });
}

#[test]
fn a_writer_stops_when_its_prefix_was_removed_and_made_again() {
    on_virtual_time(async {
        let (world, later) = (World::new(), World::new());
        let mut first = Writer::new(&world, "first", world.client());
        first.push(&old_picture()).await.unwrap().unwrap();
        // The new prefix has the epoch of the old one.
        let mut second = Writer::new(&later, "second", later.client());
        second.push(&new_picture()).await.unwrap().unwrap();
        first.client = later.client();
        let refused = first.push(&old_picture()).await.unwrap().unwrap_err();
        assert!(matches!(&refused, StoreError::Fenced { writer, .. } if writer == "second"), "{refused}");
        assert_eq!(later.newest().await, bytes_of(&new_picture()));
    });
}

#[test]
fn a_replica_does_not_take_over_a_prefix_of_another_image() {
    on_virtual_time(async {
        let world = World::new();
        let mut owner = Writer::new(&world, "owner", world.client());
        owner.push(&old_picture()).await.unwrap().unwrap();
        let file = tempfile::tempfile().unwrap();
        file.set_len(4096).unwrap();
        let other = crate::image::Source::new(file, 4096, "ff".repeat(16));
        let mut replica = Replica::default();
        let refused = replica.push(&objects(&world.client()), &Cache::none(), &other, &untagged("other")).await;
        assert!(matches!(refused, Err(StoreError::OtherImage { .. })), "{refused:?}");
        owner.push(&new_picture()).await.unwrap().expect("it still has the prefix");
    });
}

/// A replica dies at a request of its second push, and another one takes over. Returns whether it
/// died.
async fn replica_killed(death: Death, has_old: bool) -> bool {
    let world = World::new();
    if has_old {
        world.push(&old_picture(), "old").await.unwrap();
    }
    let mut killed = Writer::new(&world, "killed", Client::new(&world.store, 1, 0, Some(death)));
    let (mut is_dead, mut acknowledged) = (false, None);
    for step in [101, 103] {
        let mut picture = new_picture();
        picture[0] = step;
        match killed.push(&picture).await {
            None => {
                is_dead = true;
                break;
            }
            Some(pushed) => {
                pushed.unwrap();
                acknowledged = Some(bytes_of(&picture));
            }
        }
    }
    let states = [101, 103].map(|step| {
        let mut picture = new_picture();
        picture[0] = step;
        bytes_of(&picture)
    });
    match world.pull(At::Newest).await {
        Ok((_, found)) => {
            let place = states.iter().position(|state| *state == found);
            let least = acknowledged.and_then(|state| states.iter().position(|other| *other == state));
            assert!(place >= least, "{death:?}: an acknowledged state is lost");
            assert!(place.is_some() || (has_old && found == bytes_of(&old_picture())), "{death:?}: no state of these");
        }
        Err(error) => assert!(!has_old && matches!(error, StoreError::NoImage { .. }), "{death:?}: {error}"),
    }
    let mut next = Writer::new(&world, "next", world.client());
    next.push(&old_picture()).await.unwrap().unwrap();
    assert_eq!(world.newest().await, bytes_of(&old_picture()), "{death:?}");
    is_dead
}

#[test]
fn a_replica_that_is_killed_at_any_request_leaves_one_of_its_states_for_the_next_one() {
    let mut deaths = 0;
    for is_after in [false, true] {
        for has_old in [false, true] {
            for request in 0.. {
                if !on_virtual_time(replica_killed(Death { request, is_after }, has_old)) {
                    break;
                }
                deaths += 1;
            }
        }
    }
    assert!(deaths > 30, "{deaths}");
}

/// The states that replicas push: each has the number of its replica and of its push.
fn numbered(writer: usize, push: usize) -> Picture {
    let mut picture = old_picture();
    (picture[0], picture[2], picture[4]) = (2 * writer as u8 + 1, 2 * push as u8 + 1, 7 + push as u8);
    picture
}

/// What a storm of takeovers knows.
#[derive(Default)]
struct Known {
    /// Epochs of the replicas, by their numbers.
    epochs: Vec<u64>,
    /// The last acknowledged state: epoch and push.
    acknowledged: (u64, usize),
    /// What was found, as replica and push, and the last acknowledged state before. The epoch of a
    /// replica is known when its push has returned.
    looks: Vec<((usize, usize), (u64, usize))>,
    violations: Vec<String>,
}

/// Replicas take one another's prefix, with faults and deaths. The newest state is never older than
/// one that was acknowledged, by epoch and then by push. Returns what is wrong.
pub async fn takeovers(seed: u64) -> Vec<String> {
    const LIVES: usize = 5;
    const PUSHES: usize = 6;
    let (world, known, random) = (World::new(), RefCell::new(Known::default()), Random::new(seed));
    world.push(&numbered(0, 0), "base").await.expect("nothing fails");
    known.borrow_mut().epochs.push(1);
    let pause = async |most| tokio::time::sleep(Duration::from_millis(random.below(most))).await;
    // Replica and push of the newest state.
    let newest = async || {
        let found = world.newest().await;
        let (writer, push) = (usize::from(found[0] / 2), usize::from(found[2 * BLOCK] / 2));
        assert_eq!(found, bytes_of(&numbered(writer, push)), "a state that was never pushed");
        (writer, push)
    };
    let machine = async |name: &str| {
        for life in 0..LIVES {
            pause(200_000).await;
            let death = Death { request: random.below(30) as usize, is_after: random.below(2) == 0 };
            let death = Some(death).filter(|_| random.below(2) == 0);
            let client = Client::new(&world.store, random.below(u64::MAX), 12, death);
            let mut writer = Writer::new(&world, &format!("{name}-{life}"), client);
            let number = known.borrow().epochs.len();
            known.borrow_mut().epochs.push(0);
            for step in 0..PUSHES {
                let pushed = writer.push(&numbered(number, step)).await;
                known.borrow_mut().epochs[number] = writer.replica.term().map_or(0, |term| term.epoch());
                let violation = match pushed {
                    None | Some(Err(StoreError::Fenced { .. })) => break,
                    Some(Err(StoreError::Request { .. })) => None,
                    Some(Err(error)) => Some(format!("{}: {error}", writer.name)),
                    Some(Ok(())) => {
                        let mut known = known.borrow_mut();
                        let state = (known.epochs[number], step);
                        known.acknowledged = known.acknowledged.max(state);
                        None
                    }
                };
                let least = known.borrow().acknowledged;
                let found = newest().await;
                known.borrow_mut().violations.extend(violation);
                known.borrow_mut().looks.push((found, least));
                pause(60_000).await;
            }
        }
    };
    join3(machine("a"), machine("b"), machine("c")).await;
    let Known { epochs, looks, mut violations, .. } = known.into_inner();
    let looks = looks.into_iter().map(|((writer, push), least)| ((epochs[writer], push), least));
    violations.extend(
        looks.filter(|(found, least)| found < least).map(|(found, least)| format!("{found:?} counts after {least:?}")),
    );
    violations
}

#[test]
fn takeovers_replace_no_acknowledged_state_of_a_replica_by_an_older_one() {
    for seed in seeds(12) {
        let violations = on_virtual_time(takeovers(seed));
        assert!(violations.is_empty(), "seed {seed}: {violations:#?}");
    }
}

/// The condition that the newest state is still there.
async fn opened(client: &Arc<Client>) -> Result<(Condition, Vec<u8>), StoreError> {
    let head = objects(client).existing_head().await?.head;
    let generation = head.newest().expect("there is a state").generation;
    let file = tempfile::tempfile().unwrap();
    pull(&objects(client), &At::Generation(generation), &file).await?;
    Ok((Condition::State { lineage: head.lineage, generation }, content(&file)))
}

async fn push_over(world: &World, client: &Arc<Client>, over: &Condition, picture: &Picture) -> Result<(), StoreError> {
    let options = PushOptions { condition: over.clone(), ..untagged("a run") };
    push(&objects(client), &world.cache("runs"), &source(picture), &options).await.map(drop)
}

#[test]
fn of_two_pushes_over_one_state_one_counts() {
    on_virtual_time(async {
        let world = World::new();
        world.push(&old_picture(), "old").await.unwrap();
        let client = world.client();
        let (state, _) = opened(&client).await.unwrap();
        push_over(&world, &client, &state, &new_picture()).await.unwrap();
        let refused = push_over(&world, &client, &state, &vec![77; 9]).await.unwrap_err();
        let text = refused.to_string();
        assert!(text.contains("generation 1, which was opened") && text.contains("a run wrote"), "{text}");
        assert_eq!(world.newest().await, bytes_of(&new_picture()));
    });
}

#[test]
fn a_push_over_a_state_that_is_killed_at_any_request_leaves_the_old_state_or_the_new_one() {
    for is_after in [false, true] {
        for request in 0.. {
            let is_dead = on_virtual_time(async {
                let world = World::new();
                world.push(&old_picture(), "old").await.unwrap();
                let (state, _) = opened(&world.client()).await.unwrap();
                let client = Client::new(&world.store, 1, 0, Some(Death { request, is_after }));
                let ended = client.live(push_over(&world, &client, &state, &new_picture())).await;
                let (old, new, found) = (bytes_of(&old_picture()), bytes_of(&new_picture()), world.newest().await);
                assert!(found == new || (ended.is_none() && found == old), "{request} {is_after}");
                // A second run that opened the old state counts only if that is still there.
                let second = push_over(&world, &world.client(), &state, &vec![77; 9]).await;
                assert_eq!(second.is_ok(), found == old, "{request} {is_after}: {second:?}");
                ended.is_none()
            });
            if !is_dead {
                assert!(request > 2);
                break;
            }
        }
    }
}

/// Runs add one to a number in the image, with faults and deaths. Returns what is wrong.
pub async fn increments(seed: u64) -> Vec<String> {
    let (world, random) = (World::new(), Random::new(seed));
    let picture = |count: u8| [vec![2 * count + 1], old_picture()].concat();
    world.push(&picture(0), "base").await.expect("nothing fails");
    let (acknowledged, violations) = (RefCell::new(0u8), RefCell::new(Vec::new()));
    let machine = async || {
        for _ in 0..8 {
            tokio::time::sleep(Duration::from_millis(random.below(20_000))).await;
            let death = Death { request: random.below(12) as usize, is_after: random.below(2) == 0 };
            let death = Some(death).filter(|_| random.below(4) == 0);
            let client = Client::new(&world.store, random.below(u64::MAX), 12, death);
            let run = async {
                let (state, found) = opened(&client).await?;
                tokio::time::sleep(Duration::from_millis(random.below(20_000))).await;
                push_over(&world, &client, &state, &picture(found[0] / 2 + 1)).await
            };
            match client.live(run).await {
                Some(Ok(())) => *acknowledged.borrow_mut() += 1,
                None | Some(Err(StoreError::Changed { .. } | StoreError::Request { .. })) => {}
                // The state that was opened is gone before it was read.
                Some(Err(StoreError::NoState { .. })) => {}
                Some(Err(error)) => violations.borrow_mut().push(error.to_string()),
            }
        }
    };
    join3(machine(), machine(), machine()).await;
    let (count, acknowledged) = (world.newest().await[0] / 2, acknowledged.into_inner());
    let mut violations = violations.into_inner();
    if count < acknowledged {
        violations.push(format!("{acknowledged} runs counted, and the number is {count}"));
    }
    violations
}

#[test]
fn no_run_that_counted_is_lost_to_another_one() {
    for seed in seeds(12) {
        let violations = on_virtual_time(increments(seed));
        assert!(violations.is_empty(), "seed {seed}: {violations:#?}");
    }
}

#[test]
fn the_storms_of_writers_find_a_check_that_is_left_out() {
    inject(Some(Defect::EpochIgnored));
    let fought = (1..=20).any(|seed| !on_virtual_time(takeovers(seed)).is_empty());
    inject(Some(Defect::StateIgnored));
    let lost = (1..=20).any(|seed| !on_virtual_time(increments(seed)).is_empty());
    inject(None);
    assert!(fought, "a writer that ignores its epoch is not found");
    assert!(lost, "a push that ignores the state it was made over is not found");
}
