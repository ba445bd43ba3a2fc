//! Working copies that killed processes leave: which one continues the image's file, and how long
//! the others are kept.

#[path = "../../posix/tests/common/mod.rs"]
mod common;

use common::IMAGE_BYTES;
use common::disk::{Disk, has, killed, touch};
use image::{CommitPolicy, Image, MakeOptions, OpenImage, left_copies, make, remove_left_copy};
use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, SystemTime};

/// Restores a backup in place: the file keeps its inode.
fn restore(backup: &Path, image: &Path) {
    let before = fs::metadata(image).unwrap().ino();
    fs::copy(backup, image).unwrap();
    assert_eq!(fs::metadata(image).unwrap().ino(), before);
}

fn names(disk: &Disk) -> Vec<String> {
    left_copies(disk.directory.path()).unwrap().into_iter().map(|copy| copy.name).collect()
}

/// Uses another image of this user, whose first process removes leftovers.
fn use_another(options: &OpenImage) {
    let other = tempfile::tempdir().unwrap();
    let path = other.path().join("image");
    make(&path, &MakeOptions { length: IMAGE_BYTES, ..MakeOptions::default() }).unwrap();
    drop(Image::open(&path, options).unwrap());
}

#[test]
fn a_backup_restored_in_place_counts_alone_whatever_happened_after_it() {
    type Later = fn(&Image);
    let sync: Later = |image| image.sync().unwrap();
    let later: [(&str, Later); 3] = [
        ("a commit", sync),
        ("growth", |image| image.grow(2 * IMAGE_BYTES).map(drop).unwrap()),
        ("growth and a commit", |image| {
            image.grow(2 * IMAGE_BYTES).unwrap();
            touch(image, "in new space");
            image.sync().unwrap();
        }),
    ];
    for (what, act) in later {
        let disk = Disk::new(CommitPolicy::WhenSynced);
        let backup = disk.directory.path().join("backup");
        killed(|| {
            let image = disk.open();
            touch(&image, "before");
            image.sync().unwrap();
            fs::copy(&disk.path, &backup).unwrap();
            touch(&image, "after");
            act(&image);
            touch(&image, "only in memory");
            image
        });
        restore(&backup, &disk.path);
        let image = disk.open();
        let found = ["before", "after", "only in memory"].map(|name| has(&image, name));
        assert_eq!(found, [true, false, false], "{what}");
        drop(image);
        assert_eq!(names(&disk).len(), 1, "{what}: what does not continue the file is kept");
        use_another(&disk.options);
        assert_eq!(names(&disk).len(), 1, "{what}: also when other images are used");
        assert!(has(&disk.open(), "before"));
    }
}

#[test]
fn a_backup_of_the_state_at_the_death_is_continued() {
    let disk = Disk::new(CommitPolicy::WhenSynced);
    let backup = disk.directory.path().join("backup");
    killed(|| {
        let image = disk.open();
        touch(&image, "before");
        image.sync().unwrap();
        fs::copy(&disk.path, &backup).unwrap();
        touch(&image, "only in memory");
        image
    });
    restore(&backup, &disk.path);
    let image = disk.open();
    assert!(has(&image, "before") && has(&image, "only in memory"));
    drop(image);
    assert_eq!(names(&disk), [""; 0]);
}

#[test]
fn what_is_left_is_kept_wherever_its_image_is_until_its_time_is_over() {
    let disk = Disk::new(CommitPolicy::WhenSynced);
    let inside = disk.directory.path().join("inside");
    fs::create_dir(&inside).unwrap();
    let path = inside.join("image");
    fs::rename(&disk.path, &path).unwrap();
    killed(|| {
        let image = Image::open(&path, &disk.options).unwrap();
        touch(&image, "only in memory");
        image
    });
    let elsewhere = disk.directory.path().join("elsewhere");
    fs::rename(&inside, &elsewhere).unwrap();
    use_another(&disk.options);
    let [left] = &left_copies(disk.directory.path()).unwrap()[..] else { panic!("one is left") };
    assert!(left.image.as_deref() == Some(&*path) && left.bytes > 0, "{left:?}");
    let seen = File::options().write(true).open(disk.directory.path().join(&left.name).join("left")).unwrap();
    let days_ago = |days: u64| SystemTime::now() - Duration::from_secs(days * 86_400);
    seen.set_modified(days_ago(29)).unwrap();
    use_another(&disk.options);
    assert!(has(&Image::open(elsewhere.join("image"), &disk.options).unwrap(), "only in memory"));
    assert_eq!(names(&disk), [""; 0], "it is on the disk");

    killed(|| {
        let image = Image::open(elsewhere.join("image"), &disk.options).unwrap();
        touch(&image, "later");
        image
    });
    use_another(&disk.options);
    let [name] = &names(&disk)[..] else { panic!("one is left") };
    let seen = File::options().write(true).open(disk.directory.path().join(name).join("left")).unwrap();
    seen.set_modified(days_ago(31)).unwrap();
    use_another(&disk.options);
    assert_eq!(names(&disk), [""; 0], "its time is over");
}

#[test]
fn what_is_left_can_be_removed_and_what_is_in_use_cannot() {
    let disk = Disk::new(CommitPolicy::WhenSynced);
    killed(|| {
        let image = disk.open();
        touch(&image, "only in memory");
        image
    });
    let parent = disk.directory.path();
    let [name] = &names(&disk)[..] else { panic!("one is left") };
    assert!(!remove_left_copy(parent, "directfs-0000000000000000").unwrap());
    assert!(remove_left_copy(parent, name).unwrap());
    assert_eq!(disk.runtime_directories(), 0);
    let image = disk.open();
    assert!(!has(&image, "only in memory"));
    let used = fs::read_dir(parent).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let used = used.filter(|name| name.starts_with("directfs-")).collect::<Vec<_>>();
    assert!(names(&disk).is_empty() && !remove_left_copy(parent, &used[0]).unwrap(), "{used:?}");
    touch(&image, "still there");
}

/// An image that is opened by a link, or moved after a death, whose working copy lies on the disk.
#[test]
fn after_a_restart_the_hidden_file_is_removed_by_whatever_name_its_image_was_opened() {
    for how in ["link", "hard link", "moved"] {
        let mut disk = Disk::new(CommitPolicy::WhenSynced);
        disk.options.memory_bytes_max = Some(4096);
        let root = disk.directory.path().to_owned();
        let [one, other] = ["one", "other"].map(|name| root.join(name));
        for directory in [&one, &other] {
            fs::create_dir(directory).unwrap();
        }
        let mut path = one.join("image");
        fs::rename(&disk.path, &path).unwrap();
        let opened = match how {
            "link" => other.join("link"),
            "hard link" => other.join("hard"),
            _ => path.clone(),
        };
        match how {
            "link" => std::os::unix::fs::symlink(&path, &opened).unwrap(),
            "hard link" => fs::hard_link(&path, &opened).unwrap(),
            _ => {}
        }
        killed(|| {
            let image = Image::open(&opened, &disk.options).unwrap();
            assert!(image.works_on_disk());
            touch(&image, "only in memory");
            image
        });
        let hidden = || {
            let entries = [&one, &other].into_iter().flat_map(|directory| fs::read_dir(directory).unwrap());
            entries
                .filter(|entry| entry.as_ref().unwrap().file_name().to_string_lossy().starts_with(".directfs-"))
                .count()
        };
        assert_eq!(hidden(), 1, "{how}");
        // A machine that starts again has no runtime directories.
        for entry in fs::read_dir(&root).unwrap().map(|entry| entry.unwrap()) {
            if entry.file_name().to_string_lossy().starts_with("directfs-") {
                fs::remove_dir_all(entry.path()).unwrap();
            }
        }
        if how == "moved" {
            let moved = other.join("image");
            fs::rename(&path, &moved).unwrap();
            path = moved;
        }
        drop(Image::open(&path, &disk.options).unwrap());
        assert_eq!(hidden(), 0, "{how}");
    }
}

#[test]
fn a_file_that_only_an_images_attribute_names_is_not_removed() {
    let mut disk = Disk::new(CommitPolicy::WhenSynced);
    disk.options.memory_bytes_max = Some(4096);
    killed(|| {
        let image = disk.open();
        touch(&image, "only in memory");
        image
    });
    let mut hidden = None;
    for entry in fs::read_dir(disk.directory.path()).unwrap().map(|entry| entry.unwrap()) {
        let name = entry.file_name().into_string().unwrap();
        if name.starts_with("directfs-") {
            fs::remove_dir_all(entry.path()).unwrap();
        } else if name.starts_with(".directfs-") {
            hidden = Some(entry.path());
        }
    }
    // Another file of that name, in a directory that the attribute of a hostile image can name.
    let hidden = hidden.unwrap();
    let victim = disk.directory.path().join("victim").join(hidden.file_name().unwrap());
    fs::create_dir(victim.parent().unwrap()).unwrap();
    fs::write(&victim, vec![7; 1 << 20]).unwrap();
    let file = File::options().write(true).open(&disk.path).unwrap();
    let path = victim.to_str().unwrap().as_bytes();
    rustix::fs::fsetxattr(&file, "user.directfs.hidden", path, rustix::fs::XattrFlags::empty()).unwrap();
    drop(disk.open());
    assert!(victim.exists() && !hidden.exists());
}
