//! Requests through io_uring. Without it in the kernel these tests have nothing to do.

mod common;

use common::{Mounted, can_mount, shell, skip};
use image::Closed;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

/// Held by each test: they count the threads of this process.
static ALONE: Mutex<()> = Mutex::new(());

/// The requests of each kind that the server of a mount has received.
fn requests(mount: &Path) -> String {
    let mut text = vec![0; 4096];
    let length = rustix::fs::getxattr(mount, fuse::REQUESTS_ATTRIBUTE, &mut text).unwrap();
    String::from_utf8(text[..length].to_vec()).unwrap()
}

/// Threads of this process that serve rings.
fn ring_threads() -> usize {
    let threads = fs::read_dir("/proc/self/task").unwrap().flatten();
    let names = threads.filter_map(|thread| fs::read_to_string(thread.path().join("comm")).ok());
    names.filter(|name| name.starts_with(fuse::RING_THREAD)).count()
}

/// Whether a mount is possible and the kernel offers io_uring for it.
fn can_use_rings(test: &str) -> bool {
    let offered = fs::read_to_string("/sys/module/fuse/parameters/enable_uring");
    match offered.as_deref().map(str::trim) {
        Ok("Y") => can_mount(test),
        _ => skip(test, "the kernel's parameter fuse.enable_uring is not on"),
    }
}

#[test]
fn requests_through_rings_do_what_they_do_through_the_device() {
    if !can_use_rings("requests_through_rings_do_what_they_do_through_the_device") {
        return;
    }
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let script = "mkdir -p a/c/b && for i in $(seq 20); do seq $i 5000 >a/c/b/$i; done && \
         cp -r a/c a/d && diff -r a/c a/d && ln -s d a/l && mv a/d a/e && \
         setfattr -n user.x -v y a/e 2>/dev/null; find a | sort && rm -rf a && echo gone";
    let outputs = ["", "no_io_uring"].map(|options| {
        let mut mounted = Mounted::new(options);
        let processors = std::thread::available_parallelism().unwrap().get();
        let rings = if options.is_empty() { processors } else { 0 };
        let output = shell(&mounted.mount, script);
        assert_eq!(ring_threads(), rings, "{options}");
        // Larger than a message, and in several pages at once.
        let content: Vec<u8> = (0..5u32 << 18).flat_map(u32::to_ne_bytes).collect();
        let file = File::create_new(mounted.path("large")).unwrap();
        file.write_all_at(&content, 123).unwrap();
        drop(file);
        assert!(fs::read(mounted.path("large")).unwrap()[123..] == content);
        let longest = "n".repeat(255);
        fs::rename(mounted.path("large"), mounted.path(&longest)).unwrap();
        assert_eq!(mounted.unmount(), Closed::Last);
        mounted.mount();
        assert!(fs::read(mounted.path(&longest)).unwrap()[123..] == content, "after a remount");
        assert!(requests(&mounted.mount).contains("READ "), "{}", requests(&mounted.mount));
        output
    });
    assert_eq!(outputs[0], outputs[1]);
}

#[test]
fn the_space_of_a_removed_file_can_be_used_at_once() {
    if !can_use_rings("the_space_of_a_removed_file_can_be_used_at_once") {
        return;
    }
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let mut mounted = Mounted::new("");
    let (content, path) = (vec![7; 4 << 20], mounted.path("small"));
    fs::write(&path, &content).unwrap();
    let filler = File::create_new(mounted.path("filler")).unwrap();
    let mut end = 0;
    while let Ok(count) = filler.write_at(&content[..1 << 20], end) {
        end += count as u64;
    }
    filler.set_len(end - (1 << 20)).unwrap();
    drop(filler);
    for round in 0..50 {
        fs::remove_file(&path).unwrap();
        fs::write(&path, &content).unwrap_or_else(|error| panic!("{round}: {error}"));
    }
    assert_eq!(mounted.unmount(), Closed::Last);
}

#[test]
fn a_mount_with_rings_ends_while_programs_wait_on_all_processors() {
    if !can_use_rings("a_mount_with_rings_ends_while_programs_wait_on_all_processors") {
        return;
    }
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let mut mounted = Mounted::new("");
    let at = &mounted.mount;
    std::thread::scope(|scope| {
        for worker in 0..8 {
            scope.spawn(move || {
                for number in 0.. {
                    let path = at.join(format!("{worker}.{number}"));
                    // The last attempts meet the end of the mount.
                    if fs::write(&path, "content").and_then(|()| fs::read(&path)).is_err() || number == 300 {
                        break;
                    }
                }
            });
        }
        while fs::read_dir(at).map_or(0, Iterator::count) < 100 {
            std::thread::yield_now();
        }
        mounted.leave();
    });
    assert_eq!(mounted.wait(), Closed::Last);
    mounted.mount();
    let names = fs::read_dir(&mounted.mount).unwrap().count();
    assert!(names >= 100, "{names}");
}
