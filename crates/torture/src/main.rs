//! x
use std::time::Instant;
use torture::explore::{Effort, Explorer};
use torture::workload::Group;
fn main() {
    let mut explorer = Explorer::new(Effort::FULL, 1);
    if let Some(id) = std::env::args().nth(2) {
        let r = explorer.replay(&id, None, &mut |t| println!("{t}"));
        println!("{r:?}");
        return;
    }
    let want = std::env::args().nth(1).unwrap();
    for group in Group::ALL {
        if group.name().starts_with(&want) {
            let all = group.workloads();
            let start = Instant::now();
            let mut bad = 0;
            for w in &all {
                if let Err(v) = explorer.explore(w) { println!("{v}"); bad += 1; if bad > 30 { break } }
            }
            println!("{} {} {:?} {:?}", group.name(), all.len(), explorer.counts, start.elapsed());
        }
    }
}
