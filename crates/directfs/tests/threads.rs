//! Threads: side by side, short-lived ones, and ones that the image outlives or not.

mod support;

use directfs::{Closed, File, FileSystem, Image};
use std::sync::Barrier;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use support::{Scratch, errno};

fn is_send_and_sync<T: Send + Sync + 'static>() {}

#[test]
fn handles_are_send_and_sync() {
    is_send_and_sync::<Image>();
    is_send_and_sync::<FileSystem>();
    is_send_and_sync::<File>();
    is_send_and_sync::<directfs::ReadDir>();
    is_send_and_sync::<directfs::DirEntry>();
    is_send_and_sync::<directfs::Error>();
}

#[test]
fn threads_work_in_one_directory() {
    const THREADS: usize = 8;
    const FILES: usize = 300;
    let scratch = Scratch::new();
    let fs = &scratch.fs;
    fs.create_dir("all").unwrap();
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            scope.spawn(move || {
                for file in 0..FILES {
                    let name = format!("all/{thread}.{file}");
                    fs.write(&name, &name).unwrap();
                    assert_eq!(fs.read_to_string(&name).unwrap(), name);
                    match file % 3 {
                        0 => fs.remove_file(&name).unwrap(),
                        1 => fs.rename(&name, format!("all/renamed {thread}.{file}")).unwrap(),
                        _ => {}
                    }
                }
            });
        }
    });
    assert_eq!(fs.read_dir("all").unwrap().count(), THREADS * FILES * 2 / 3);
    assert_eq!(scratch.image.close().unwrap(), Closed::Clean);
}

#[test]
fn one_of_many_threads_creates_a_name() {
    let scratch = Scratch::new();
    let (fs, barrier) = (&scratch.fs, &Barrier::new(8));
    for round in 0..50 {
        let name = &format!("name{round}");
        let created = std::thread::scope(|scope| {
            let threads = [(); 8].map(|()| {
                scope.spawn(move || {
                    barrier.wait();
                    fs.create_new(name).is_ok()
                })
            });
            threads.into_iter().map(|thread| usize::from(thread.join().unwrap())).sum::<usize>()
        });
        assert_eq!(created, 1);
    }
}

#[test]
fn more_threads_than_slots_one_after_another() {
    let scratch = Scratch::new();
    let fs = &scratch.fs;
    for batch in 0..150 {
        std::thread::scope(|scope| {
            for thread in 0..16 {
                scope.spawn(move || fs.write(format!("{thread}"), batch.to_string()).unwrap());
            }
        });
    }
    assert_eq!(fs.read_to_string("15").unwrap(), "149");
}

#[test]
fn thousands_of_threads_at_a_time() {
    // Each keeps a slot after its first call, also while it is idle: 65,472 may have one.
    const THREADS: usize = 3000;
    let scratch = Scratch::new();
    let (fs, barrier) = (&scratch.fs, &Barrier::new(THREADS));
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let work = move || {
                let written = fs.write(format!("{thread}"), "");
                barrier.wait();
                written.unwrap();
                fs.remove_file(format!("{thread}")).unwrap();
            };
            std::thread::Builder::new().stack_size(256 << 10).spawn_scoped(scope, work).unwrap();
        }
    });
    assert_eq!(fs.read_dir(".").unwrap().count(), 0);
    assert_eq!(scratch.image.close().unwrap(), Closed::Clean);
}

#[test]
fn closing_waits_for_calls_and_ends_those_of_other_threads() {
    for _ in 0..20 {
        let scratch = Scratch::new();
        let started = Barrier::new(5);
        let started = &started;
        let path = scratch.path.clone();
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let fs = scratch.fs.clone();
                scope.spawn(move || {
                    started.wait();
                    for number in 0.. {
                        match fs.write(format!("{thread}.{}", number % 50), "x") {
                            Ok(()) => {}
                            Err(error) => {
                                assert_eq!(error.errno(), libc::ENODEV, "{error}");
                                break;
                            }
                        }
                    }
                });
            }
            started.wait();
            std::thread::sleep(std::time::Duration::from_millis(5));
            let Scratch { image, fs, directory, .. } = scratch;
            assert_eq!(image.close().unwrap(), Closed::Clean);
            assert_eq!(errno(fs.metadata(".")), Some(libc::ENODEV));
            let image = Image::open(&path).unwrap();
            assert!(!image.was_recovered());
            drop((image, directory));
        });
    }
}

#[test]
fn the_last_handle_closes_the_image() {
    let Scratch { image, fs, path, directory: _directory } = Scratch::new();
    let file = fs.create("file").unwrap();
    drop((image, fs));
    std::thread::spawn(move || {
        file.write_all_at(b"late", 0).unwrap();
        drop(file);
    })
    .join()
    .unwrap();
    let image = Image::options().exclusive(true).open(&path).unwrap();
    assert!(!image.was_recovered());
    assert_eq!(image.file_system().read("file").unwrap(), b"late");
}

#[test]
fn files_dropped_by_the_end_of_a_thread_are_closed() {
    thread_local! {
        static FILE: std::cell::RefCell<Option<File>> = const { std::cell::RefCell::new(None) };
    }
    let scratch = Scratch::new();
    let fs = scratch.fs.clone();
    std::thread::spawn(move || {
        // The variable is destroyed before or after that of the library.
        FILE.set(None);
        let file = fs.create("file").unwrap();
        file.lock().unwrap();
        FILE.set(Some(file));
    })
    .join()
    .unwrap();
    scratch.fs.open("file").unwrap().try_lock().unwrap();
    assert_eq!(scratch.image.close().unwrap(), Closed::Clean);
}

#[test]
fn an_idle_thread_withholds_no_space() {
    let image = Image::in_memory(16 << 20).unwrap();
    let fs = &image.file_system();
    let (filled, done) = (Barrier::new(2), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            fs.write("large", vec![1; 12 << 20]).unwrap();
            fs.remove_file("large").unwrap();
            filled.wait();
            while !done.load(Relaxed) {
                std::thread::sleep(std::time::Duration::from_millis(1));
            }
        });
        filled.wait();
        let written = fs.write("other", vec![2; 12 << 20]);
        done.store(true, Relaxed);
        written.unwrap();
    });
}

#[test]
fn the_child_of_a_fork_cannot_harm_the_image() {
    let Scratch { image, fs, path: _path, directory: _directory } = Scratch::new();
    let file = fs.create("file").unwrap();
    // SAFETY: the child only makes calls that fail at once, and exits.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let refused = errno(fs.metadata(".")) == Some(libc::EOWNERDEAD)
            && errno(file.write_at(b"child", 0)) == Some(libc::EOWNERDEAD);
        drop((file, fs));
        let refused = refused && errno(image.close()) == Some(libc::EOWNERDEAD);
        // SAFETY: ends this process without running the test harness further.
        unsafe { libc::_exit(if refused { 0 } else { 1 }) }
    }
    let mut status = 0;
    // SAFETY: the child of this process.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status, 0);
    file.write_all_at(b"parent", 0).unwrap();
    assert_eq!(fs.read("file").unwrap(), b"parent");
    assert_eq!(image.close().unwrap(), Closed::Clean);
}
