//! Copies an image while a thread changes it: the copy is the state of one moment.
//!
//!     cargo run -p directfs --example backup [IMAGE COPY]

use directfs::Image;
use std::error::Error;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};

const ACCOUNTS: usize = 100;
const EACH: i64 = 1000;

/// Moves money between files, one pair at a time, until `stop` is set. Each file is replaced
/// by a rename, so that the copy has whole files only.
fn transfer(image: &Image, stop: &AtomicBool) -> directfs::Result<u64> {
    let fs = image.file_system();
    let mut transfers = 0;
    while !stop.load(Ordering::Relaxed) {
        let from = transfers as usize % ACCOUNTS;
        for (account, amount) in [(from, -1), ((from + 1) % ACCOUNTS, 1)] {
            let path = format!("accounts/{account}");
            let balance: i64 = fs.read_to_string(&path)?.parse().unwrap_or(0);
            fs.write("accounts/new", (balance + amount).to_string())?;
            fs.rename("accounts/new", &path)?;
        }
        transfers += 1;
    }
    Ok(transfers)
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args_os().skip(1).map(PathBuf::from);
    let scratch = std::env::temp_dir().join(format!("backup-{}", std::process::id()));
    let (path, copy, is_scratch) = match (arguments.next(), arguments.next()) {
        (Some(path), Some(copy)) => (path, copy, false),
        _ => (scratch.with_extension("img"), scratch.with_extension("copy"), true),
    };
    let image = Image::create(&path).size(64 << 20).create()?;
    let fs = image.file_system();
    fs.create_dir("accounts")?;
    for account in 0..ACCOUNTS {
        fs.write(format!("accounts/{account}"), EACH.to_string())?;
    }
    let stop = AtomicBool::new(false);
    let transfers = std::thread::scope(|scope| {
        let worker = scope.spawn(|| transfer(&image, &stop));
        let copied = image.snapshot(&copy);
        stop.store(true, Ordering::Relaxed);
        copied.and(worker.join().expect("no panic"))
    })?;
    let sum_of = |image: &Image| -> directfs::Result<i64> {
        let fs = image.file_system();
        let balance = |account| fs.read_to_string(format!("accounts/{account}"));
        (0..ACCOUNTS).map(|account| Ok(balance(account)?.parse().unwrap_or(0))).sum()
    };
    let copied = Image::open(&copy)?;
    // Between the two changes of a transfer, one unit is under way.
    let missing = ACCOUNTS as i64 * EACH - sum_of(&copied)?;
    println!("{transfers} transfers during the copy, of which {missing} under way; closed: {:?}", copied.close()?);
    image.close()?;
    if is_scratch {
        std::fs::remove_file(path)?;
        std::fs::remove_file(copy)?;
    }
    Ok(())
}
