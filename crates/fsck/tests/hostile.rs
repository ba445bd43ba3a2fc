//! Arbitrary bytes: the check terminates on any content, without panic.

mod support;

use fsck::dump::{Target, dump};
use fsck::{Options, check};
use pmem::BLOCK_BYTES;
use support::engine_support::{Image, Random};
use support::{Plant, sample};

/// Checks with and without the clean flag, and dumps something.
fn look(plant: &Plant, random: &mut Random) {
    for clean in [None, Some(true), Some(false)] {
        let options = Options { findings_max: 100, clean };
        let report = check(&plant.region, &options, &mut |_| {});
        assert!(report.to_string().len() > 10);
    }
    let mut text = String::new();
    let target = match random.below(4) {
        0 => Target::Inode { number: random.below(40) },
        1 => Target::Path { path: b"/docs/deep".to_vec() },
        2 => Target::Offset { offset: random.below(1 << 22) },
        _ => Target::Superblock,
    };
    let _ = dump(&plant.region, &target, true, &mut text);
}

/// A block of the sample that does not hold contents.
fn interesting(plant: &Plant, random: &mut Random) -> u64 {
    let data = plant.geometry.data_block;
    let block = match random.below(8) {
        0 => 0,
        1 => plant.geometry.journal_block + random.below(2),
        2 => plant.geometry.segment_table_block,
        3 => plant.geometry.block_map_block + random.below(2),
        _ => data + random.below(50),
    };
    block * BLOCK_BYTES + random.below(BLOCK_BYTES / 8) * 8
}

#[test]
fn flipped_bits_never_stop_the_check() {
    let image = sample();
    let plant = Plant::new(&image);
    let mut random = Random(0x1234_5678_9abc_def1);
    let mut undo = Vec::new();
    for round in 0..3000 {
        for _ in 0..=random.below(4) {
            let at = interesting(&plant, &mut random);
            undo.push((at, plant.get(at)));
            plant.flip(at, 1 << random.below(64));
        }
        look(&plant, &mut random);
        // Damage accumulates for a while, then the image is restored.
        if round % 10 == 9 {
            undo.drain(..).rev().for_each(|(at, word)| plant.set(at, word));
        }
    }
}

#[test]
fn words_that_lead_anywhere_never_stop_the_check() {
    let image = sample();
    let plant = Plant::new(&image);
    let mut random = Random(0xfeed_beef_0bad_cafe);
    let mut undo = Vec::new();
    for round in 0..3000 {
        let at = interesting(&plant, &mut random);
        undo.push((at, plant.get(at)));
        let from = interesting(&plant, &mut random);
        let word = match random.below(5) {
            0 => u64::MAX,
            1 => from,
            2 => from & !(BLOCK_BYTES - 1) | random.below(8),
            3 => plant.get(from),
            _ => random.below(u64::MAX),
        };
        plant.set(at, word);
        look(&plant, &mut random);
        if round % 20 == 19 {
            undo.drain(..).rev().for_each(|(at, word)| plant.set(at, word));
        }
    }
}

#[test]
fn noise_behind_a_whole_superblock_never_stops_the_check() {
    let image = Image::new(1 << 20);
    let plant = Plant::new(&image);
    let mut random = Random(77);
    for at in (BLOCK_BYTES..plant.geometry.copy_block() * BLOCK_BYTES).step_by(8) {
        plant.set(at, random.below(u64::MAX));
    }
    look(&plant, &mut random);
}
