//! Programs use a lab system through the kernel like any file system.

use lab::mount::{ImageError, SystemKind, VfsKind, kind_of, make, serve};
use lab::physical::MkfsOptions;
use lab::physical::SyncFile;
use lab::substrate::System;
use std::fs;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::Path;
use std::process::Command;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

const LENGTH: u64 = 32 << 20;

fn use_it(root: &Path) {
    fs::create_dir_all(root.join("a/b")).unwrap();
    let content: Vec<u8> = (0..100_000u32).map(|index| (index / 3) as u8).collect();
    fs::write(root.join("a/b/file"), &content).unwrap();
    assert_eq!(fs::read(root.join("a/b/file")).unwrap(), content);
    fs::hard_link(root.join("a/b/file"), root.join("hard")).unwrap();
    symlink("a/b", root.join("link")).unwrap();
    assert_eq!(fs::metadata(root.join("link/file")).unwrap().nlink(), 2);
    fs::rename(root.join("a/b"), root.join("c")).unwrap();
    assert!(fs::metadata(root.join("link/file")).is_err());
    for index in 0..300 {
        fs::write(root.join(format!("c/{index}")), index.to_string()).unwrap();
    }
    assert_eq!(fs::read_dir(root.join("c")).unwrap().count(), 301);
    for index in (0..300).step_by(2) {
        fs::remove_file(root.join(format!("c/{index}"))).unwrap();
    }
    assert!(fs::remove_dir(root.join("c")).is_err());
}

fn look_again(root: &Path) {
    assert_eq!(fs::read_dir(root.join("c")).unwrap().count(), 151);
    assert_eq!(fs::read_to_string(root.join("c/7")).unwrap(), "7");
    assert_eq!(fs::read(root.join("hard")).unwrap().len(), 100_000);
    fs::remove_dir_all(root.join("c")).unwrap();
    assert_eq!(fs::metadata(root.join("hard")).unwrap().nlink(), 1);
}

fn mounted(image: &Path, kind: SystemKind, run: fn(&Path)) -> Result<(), ImageError> {
    let directory = tempfile::tempdir().unwrap();
    let (ready, wait) = channel();
    std::thread::scope(|scope| {
        let place = directory.path();
        let server = scope.spawn(move || {
            serve(image, kind, SyncFile::Own, place, &fuse::MountOptions::default(), |path| {
                ready.send(path.to_owned()).unwrap()
            })
        });
        if let Ok(path) = wait.recv() {
            let used = std::panic::catch_unwind(|| run(&path));
            // Processes that other tests start have this test's files until their exec.
            let end = Instant::now() + Duration::from_secs(600);
            while !Command::new("umount").arg(&path).status().unwrap().success() {
                assert!(Instant::now() < end, "the mount is in use");
            }
            if let Err(panic) = used {
                std::panic::resume_unwind(panic);
            }
        }
        server.join().unwrap()
    })
}

#[test]
fn a_mount_is_a_file_system_and_keeps_its_files() {
    if fuse::open_device().is_err() {
        println!("skipped: /dev/fuse is not accessible, so nothing can be mounted");
        return;
    }
    for system in System::ALL {
        for vfs in VfsKind::ALL {
            println!("{} {vfs:?}", system.name());
            let directory = tempfile::tempdir().unwrap();
            let image = directory.path().join("image");
            let kind = SystemKind { system, vfs };
            make(&image, kind, LENGTH, &MkfsOptions::default(), false).unwrap();
            assert_eq!(kind_of(&image), Some(kind), "the image records its default VFS layer");
            let again = make(&image, kind, LENGTH, &MkfsOptions::default(), false);
            assert!(matches!(again, Err(ImageError::Exists { .. })));
            mounted(&image, kind, use_it).unwrap();
            mounted(&image, kind, look_again).unwrap();
            assert_eq!(kind_of(&image), Some(kind));
        }
    }
}

#[test]
fn the_papers_names_mean_what_the_papers_compare() {
    let kind = |system, vfs| Some(SystemKind { system, vfs });
    assert_eq!(SystemKind::parse("byvfs"), kind(System::Nova, VfsKind::ByVfs));
    assert_eq!(SystemKind::parse("conventional"), kind(System::Nova, VfsKind::Conventional));
    assert_eq!(SystemKind::parse("soupfs"), kind(System::SoupFs, VfsKind::Conventional));
    assert!(SystemKind::NAMES.into_iter().all(|name| SystemKind::parse(name).is_some()));
    assert_eq!(SystemKind::parse("ext4"), None);
}
