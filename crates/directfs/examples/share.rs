//! Two processes on one image: both increment a counter in a file, under the file's lock.
//!
//!     cargo run --release -p directfs --example share
//!
//! The process starts itself a second time, with the image's path. A process that dies within its
//! turn releases the lock, and its last call is there as a whole or not at all.

use directfs::{FileSystem, Image};
use std::error::Error;
use std::path::PathBuf;
use std::process::{Command, exit};

const TURNS: u64 = 10_000;

fn main() -> Result<(), Box<dyn Error>> {
    match std::env::args_os().nth(1) {
        Some(path) => work(&Image::open(path)?.file_system()),
        None => lead(),
    }
}

fn lead() -> Result<(), Box<dyn Error>> {
    let path = PathBuf::from(format!("/dev/shm/directfs-share-{}.img", std::process::id()));
    let image = Image::create(&path).size(16 << 20).create()?;
    let result = share(&image, &path);
    let closed = image.close();
    std::fs::remove_file(&path)?;
    println!("closed: {:?}", closed?);
    if !result? {
        eprintln!("increments were lost");
        exit(1);
    }
    Ok(())
}

/// Works beside a second process; returns whether the counter is right.
fn share(image: &Image, path: &PathBuf) -> Result<bool, Box<dyn Error>> {
    let fs = image.file_system();
    fs.write("counter", 0u64.to_le_bytes())?;
    let mut other = Command::new(std::env::current_exe()?).arg(path).spawn()?;
    work(&fs)?;
    if !other.wait()?.success() {
        return Err("the second process failed".into());
    }
    let count = read_counter(&fs.open("counter")?)?;
    println!("two processes counted to {count}");
    Ok(count == 2 * TURNS)
}

fn work(fs: &FileSystem) -> Result<(), Box<dyn Error>> {
    let counter = fs.open_with("counter", directfs::OpenOptions::new().read(true).write(true))?;
    for _ in 0..TURNS {
        counter.lock()?;
        let next = read_counter(&counter)? + 1;
        counter.write_all_at(&next.to_le_bytes(), 0)?;
        counter.unlock()?;
    }
    Ok(())
}

fn read_counter(file: &directfs::File) -> Result<u64, directfs::Error> {
    let mut bytes = [0; 8];
    file.read_at(&mut bytes, 0)?;
    Ok(u64::from_le_bytes(bytes))
}
