//! Sequences of calls, compared with the POSIX model: two bytes select a call.
#![no_main]

use libfuzzer_sys::fuzz_target;
use std::cell::RefCell;
use torture::model::{World, decode};

thread_local! {
    static WORLD: RefCell<World> = RefCell::default();
}

fuzz_target!(|data: &[u8]| {
    let ops = decode(data);
    WORLD.with_borrow_mut(|world| {
        if let Err((at, what)) = world.run(&ops) {
            panic!("{:?}\n{what}", &ops[..=at.min(ops.len() - 1)]);
        }
    });
});
