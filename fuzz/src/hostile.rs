//! Images with changed words and matching checksums: attach, every operation, check, repair.
#![no_main]

use libfuzzer_sys::fuzz_target;
use std::cell::RefCell;
use torture::hostile::Arena;

thread_local! {
    static ARENA: RefCell<Arena> = RefCell::default();
}

fuzz_target!(|data: &[u8]| ARENA.with_borrow_mut(|arena| arena.run(data)));
