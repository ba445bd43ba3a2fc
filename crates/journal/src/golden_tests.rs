//! The journal's bytes, built here by docs/format.md and by nothing else.

use crate::explorer::{IMAGE_BYTES, LOG_BYTES, SimulatedDisk, UUID, World, recover};
use crate::{CHUNK_BYTES_MIN, Journal};
use std::cell::Cell;

const BLOCK_BYTES: usize = 4096;
const LOG_START: usize = IMAGE_BYTES + 2 * BLOCK_BYTES;

/// CRC-32C, a bit at a time.
fn crc(bytes: impl IntoIterator<Item = u8>) -> u32 {
    !bytes.into_iter().fold(u32::MAX, |crc, byte| {
        (0..8).fold(crc ^ u32::from(byte), |crc, _| (crc >> 1) ^ if crc & 1 == 1 { 0x82f6_3b78 } else { 0 })
    })
}

fn header(generation: u64, first_commit: u64, chain: u32) -> Vec<u8> {
    let mut bytes = b"DFSJRNL1".to_vec();
    bytes.extend(1u32.to_le_bytes());
    bytes.extend(0u32.to_le_bytes());
    bytes.extend(UUID);
    for word in [IMAGE_BYTES as u64, LOG_BYTES, generation, first_commit] {
        bytes.extend(word.to_le_bytes());
    }
    bytes.extend(chain.to_le_bytes());
    bytes.extend(crc(bytes.iter().copied()).to_le_bytes());
    bytes.resize(BLOCK_BYTES, 0);
    bytes
}

/// A chunk of one block that ends its commit; `runs`: first line and its lines' bytes.
fn chunk(number: u64, chain: u32, runs: &[(u64, &[[u8; 64]])]) -> Vec<u8> {
    let lines: Vec<u8> = runs.iter().flat_map(|(_, lines)| lines.iter().flatten().copied()).collect();
    let mut body = lines.clone();
    for (first, lines) in runs {
        body.extend((first << 16 | lines.len() as u64).to_le_bytes());
    }
    body.resize(BLOCK_BYTES - 64, 0);
    let mut bytes = b"DFSC".to_vec();
    bytes.extend(1u32.to_le_bytes());
    bytes.extend(number.to_le_bytes());
    for word in [BLOCK_BYTES as u32, runs.len() as u32, lines.len() as u32 / 64, chain] {
        bytes.extend(word.to_le_bytes());
    }
    bytes.resize(60, 0);
    let checksum = crc(bytes.iter().copied().chain(body.iter().copied()));
    bytes.extend(checksum.to_le_bytes());
    bytes.extend(body);
    bytes
}

fn checksum_of(chunk: &[u8]) -> u32 {
    u32::from_le_bytes(chunk[60..64].try_into().expect("4 bytes"))
}

fn part(world: &World, start: usize) -> Vec<u8> {
    world.disk.bytes.borrow()[start..start + BLOCK_BYTES].to_vec()
}

fn store(world: &World, offset: u64, bytes: &[u8]) {
    let _ = world.region.persist(world.region.write_bytes(offset, bytes).expect("inside"));
}

#[test]
fn headers_and_chunks_have_the_bytes_of_the_format() {
    let mut world = World::new(3);
    let newest = |world: &World| [0, 1].map(|block| part(world, IMAGE_BYTES + block * BLOCK_BYTES));
    // A new journal: the second header, with an empty log.
    let chain = u32::from_le_bytes(newest(&world)[1][64..68].try_into().expect("4 bytes"));
    assert_eq!(newest(&world)[1], header(1, 1, chain));

    store(&world, 10 * 64, &[7; 64]);
    store(&world, 20 * 64, &[9; 128]);
    world.commit().expect("commits");
    let first = chunk(1, chain, &[(10, &[[7; 64]]), (20, &[[9; 64]; 2])]);
    assert_eq!(part(&world, LOG_START), first);

    store(&world, 64 * 64 - 64, &[5; 64]);
    world.commit().expect("commits");
    let second = chunk(2, checksum_of(&first), &[(63, &[[5; 64]])]);
    assert_eq!(part(&world, LOG_START + BLOCK_BYTES), second);

    let (journal, state) = Journal::open(&world.disk, UUID, IMAGE_BYTES as u64).expect("opens");
    journal.recover(&Cell::new(state), &mut vec![0; CHUNK_BYTES_MIN]).expect("recovers");
    let chain = u32::from_le_bytes(newest(&world)[0][64..68].try_into().expect("4 bytes"));
    assert_eq!(newest(&world)[0], header(2, 3, chain));
}

#[test]
fn a_journal_written_by_the_format_is_recovered() {
    let mut bytes = vec![0; IMAGE_BYTES];
    bytes.extend(header(8, 41, 0x1234_5678));
    bytes.extend(header(7, 30, 0));
    let first = chunk(41, 0x1234_5678, &[(0, &[[1; 64]; 3]), (1000, &[[2; 64]])]);
    let second = chunk(42, checksum_of(&first), &[(1, &[[3; 64]])]);
    // The chunk is of an earlier lap: its number is not the expected one.
    let stale = chunk(44, checksum_of(&second), &[(5, &[[4; 64]])]);
    bytes.extend([first, second, stale].concat());
    bytes.resize(LOG_START + LOG_BYTES as usize, 0);
    let disk = SimulatedDisk::of(bytes);
    recover(&disk).expect("recovers");
    let mut expected = vec![0; IMAGE_BYTES];
    expected[..3 * 64].fill(1);
    expected[64..128].fill(3);
    expected[1000 * 64..1001 * 64].fill(2);
    assert!(disk.image() == expected);
}
