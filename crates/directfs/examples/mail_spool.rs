//! A mail spool: several threads deliver messages, others collect them.
//!
//! A message is written to `tmp` and renamed to `new`. The rename is atomic and durable when it
//! returns, so `new` holds complete messages only, whenever the process dies. No fsync is needed,
//! except that nothing protects an image on a disk from a power failure.
//!
//!     cargo run --release -p directfs --example mail_spool -- [IMAGE]
//!
//! Without an image the spool lies in memory.

use directfs::{FileSystem, Image};
use std::error::Error;
use std::io::Write;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

const WRITERS: usize = 4;
const COLLECTORS: usize = 2;
const MESSAGES_PER_WRITER: usize = 5_000;

fn main() -> Result<(), Box<dyn Error>> {
    let image = match std::env::args_os().nth(1) {
        Some(path) if std::path::Path::new(&path).exists() => Image::open(path)?,
        Some(path) => Image::create(path).size(128 << 20).label("mail").create()?,
        None => Image::in_memory(128 << 20)?,
    };
    let fs = image.file_system();
    for directory in ["tmp", "new", "cur"] {
        fs.create_dir_all(directory)?;
    }
    let collected = AtomicUsize::new(0);
    let begin = Instant::now();
    std::thread::scope(|scope| {
        for writer in 0..WRITERS {
            let fs = &fs;
            scope.spawn(move || {
                for number in 0..MESSAGES_PER_WRITER {
                    deliver(fs, writer, number).expect("a message is delivered");
                }
            });
        }
        for _ in 0..COLLECTORS {
            let (fs, collected) = (&fs, &collected);
            scope.spawn(move || {
                while collected.load(Relaxed) < WRITERS * MESSAGES_PER_WRITER {
                    collected.fetch_add(collect(fs).expect("the spool is readable"), Relaxed);
                }
            });
        }
    });
    let seconds = begin.elapsed().as_secs_f64();
    let messages = collected.into_inner();
    let bytes: u64 = fs.read_dir("cur")?.map(|entry| Ok(entry?.metadata()?.len())).sum::<directfs::Result<u64>>()?;
    println!("{messages} messages ({bytes} bytes) delivered and collected in {seconds:.2} s");
    println!("{:.0} messages per second; durability: {:?}", messages as f64 / seconds, image.durability());
    for directory in ["tmp", "new", "cur"] {
        fs.remove_dir_all(directory)?;
    }
    println!("closed: {:?}", image.close()?);
    Ok(())
}

/// Writes a message under a temporary name, and renames it.
fn deliver(fs: &FileSystem, writer: usize, number: usize) -> Result<(), Box<dyn Error>> {
    let name = format!("{writer}.{number}");
    let draft = format!("tmp/{name}");
    let mut message = fs.create_new(&draft)?;
    write!(message, "From: writer{writer}@example.org\nSubject: message {number}\n\nHello.\n")?;
    fs.rename(&draft, format!("new/{name}"))?;
    Ok(())
}

/// Moves the messages that have arrived; returns how many this thread got.
fn collect(fs: &FileSystem) -> Result<usize, directfs::Error> {
    let mut count = 0;
    for entry in fs.read_dir("new")? {
        let entry = entry?;
        match fs.rename(entry.path(), std::path::Path::new("cur").join(entry.file_name())) {
            Ok(()) => count += 1,
            // Another collector was faster.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    Ok(count)
}
