//! Arbitrary bytes: the check terminates on any content, without panic.

use crate::support::engine_support::{Image, Random};
use crate::support::{DamagedImage, sample};
use fsck::dump::{Target, dump};
use fsck::{Options, check};
use pmem::BLOCK_BYTES;

/// Checks with and without the clean flag, and dumps something.
fn look(damaged: &DamagedImage, random: &mut Random) {
    for clean in [None, Some(true), Some(false)] {
        let options = Options { findings_max: 100, clean, ..Options::default() };
        let report = check(&damaged.region, &options, &mut |_| {});
        assert!(report.to_string().len() > 10);
    }
    let mut text = String::new();
    let target = match random.below(4) {
        0 => Target::Inode { number: random.below(40) },
        1 => Target::Path { path: b"/docs/deep".to_vec() },
        2 => Target::Offset { offset: random.below(1 << 22) },
        _ => Target::Superblock,
    };
    let _ = dump(&damaged.region, &target, true, &mut text);
}

/// A block of the sample that does not hold contents.
fn interesting(damaged: &DamagedImage, random: &mut Random) -> u64 {
    let data = damaged.geometry.data_block;
    let block = match random.below(8) {
        0 => 0,
        1 => damaged.geometry.journal_block + random.below(2),
        2 => damaged.geometry.segment_table_block,
        3 => damaged.geometry.block_map_block + random.below(2),
        _ => data + random.below(50),
    };
    block * BLOCK_BYTES + random.below(BLOCK_BYTES / 8) * 8
}

#[test]
fn flipped_bits_never_stop_the_check() {
    let image = sample();
    let damaged = DamagedImage::new(&image);
    let mut random = Random(0x1234_5678_9abc_def1);
    let mut undo = Vec::new();
    for round in 0..3000 {
        for _ in 0..=random.below(4) {
            let at = interesting(&damaged, &mut random);
            undo.push((at, damaged.get(at)));
            damaged.flip(at, 1 << random.below(64));
        }
        look(&damaged, &mut random);
        // Damage accumulates for a while, then the image is restored.
        if round % 10 == 9 {
            undo.drain(..).rev().for_each(|(at, word)| damaged.set(at, word));
        }
    }
}

#[test]
fn words_that_lead_anywhere_never_stop_the_check() {
    let image = sample();
    let damaged = DamagedImage::new(&image);
    let mut random = Random(0xfeed_beef_0bad_cafe);
    let mut undo = Vec::new();
    for round in 0..3000 {
        let at = interesting(&damaged, &mut random);
        undo.push((at, damaged.get(at)));
        let from = interesting(&damaged, &mut random);
        let word = match random.below(5) {
            0 => u64::MAX,
            1 => from,
            2 => from & !(BLOCK_BYTES - 1) | random.below(8),
            3 => damaged.get(from),
            _ => random.below(u64::MAX),
        };
        damaged.set(at, word);
        look(&damaged, &mut random);
        if round % 20 == 19 {
            undo.drain(..).rev().for_each(|(at, word)| damaged.set(at, word));
        }
    }
}

#[test]
fn noise_behind_a_whole_superblock_never_stops_the_check() {
    let image = Image::new(1 << 20);
    let damaged = DamagedImage::new(&image);
    let mut random = Random(77);
    for at in (BLOCK_BYTES..damaged.geometry.copy_block() * BLOCK_BYTES).step_by(8) {
        damaged.set(at, random.below(u64::MAX));
    }
    look(&damaged, &mut random);
}
