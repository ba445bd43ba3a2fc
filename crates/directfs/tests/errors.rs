//! Errors: permissions of other users, images in use, closed images, messages.

use crate::support::{Scratch, errno, scratch_directory};
use directfs::{Closed, Credentials, Image, OpenOptions};
use std::io::{ErrorKind, Read, Write};

#[test]
fn other_users_are_refused() {
    let scratch = Scratch::new();
    let (root, alice, bob) = (scratch.as_root(), scratch.as_user(1000), scratch.as_user(1001));
    alice.create_dir_with_mode("private", 0o700).unwrap();
    alice.write("private/letter", "dear diary").unwrap();
    assert_eq!(errno(bob.read("private/letter")), Some(libc::EACCES));
    assert_eq!(errno(bob.read_dir("private")), Some(libc::EACCES));
    assert_eq!(errno(bob.create("private/new")), Some(libc::EACCES));
    assert_eq!(errno(bob.rename("private/letter", "mine")), Some(libc::EACCES));
    assert_eq!(errno(bob.root_at("private").and_then(|below| below.read("letter"))), Some(libc::EACCES));
    assert_eq!(errno(bob.set_permissions("private", 0o777)), Some(libc::EPERM));
    assert_eq!(errno(bob.set_owner("private", Some(1001), None)), Some(libc::EPERM));
    assert_eq!(errno(alice.set_owner("private", Some(1001), None)), Some(libc::EPERM));
    assert_eq!(root.read("private/letter").unwrap(), b"dear diary");
    root.set_owner("private/letter", Some(1001), Some(50)).unwrap();
    let owned = root.metadata("private/letter").unwrap();
    assert_eq!((owned.uid(), owned.gid()), (1001, 50));

    // A file keeps the rights with which it was opened.
    alice.write("shared", "1").unwrap();
    let file = alice.open_with("shared", OpenOptions::new().append(true)).unwrap();
    alice.set_permissions("shared", 0).unwrap();
    (&file).write_all(b"2").unwrap();
    assert_eq!(errno(alice.open("shared")), Some(libc::EACCES));
    assert_eq!(root.read("shared").unwrap(), b"12");
    let group = scratch.fs.with_credentials(Credentials::new(1002, 1002, &[50]));
    root.set_owner("shared", None, Some(50)).unwrap();
    root.set_permissions("shared", 0o040).unwrap();
    assert_eq!(group.read("shared").unwrap(), b"12");
}

#[test]
fn the_umask_is_that_of_the_credentials() {
    let scratch = Scratch::new();
    let fs = scratch.fs.with_credentials(Credentials::new(1000, 1000, &[]).umask(0o077));
    fs.write("file", "").unwrap();
    fs.create_dir("directory").unwrap();
    assert_eq!(fs.metadata("file").unwrap().mode() & 0o777, 0o600);
    assert_eq!(fs.metadata("directory").unwrap().mode() & 0o777, 0o700);
}

#[test]
fn sticky_directories_protect_names() {
    let scratch = Scratch::new();
    let (root, alice, bob) = (scratch.as_root(), scratch.as_user(1000), scratch.as_user(1001));
    root.create_dir("tmp").unwrap();
    root.set_permissions("tmp", 0o1777).unwrap();
    alice.write("tmp/file", "").unwrap();
    assert_eq!(errno(bob.remove_file("tmp/file")), Some(libc::EPERM));
    alice.remove_file("tmp/file").unwrap();
}

#[test]
fn access_is_that_of_the_options() {
    let scratch = Scratch::new();
    let file = scratch.fs.create("file").unwrap();
    assert_eq!(errno(file.read_at(&mut [0], 0)), Some(libc::EBADF));
    let error = (&file).read(&mut [0]).unwrap_err();
    assert!(error.to_string().starts_with("cannot read file: Bad file descriptor; open"), "{error}");
    let file = scratch.fs.open("file").unwrap();
    assert_eq!(errno(file.write_at(b"x", 0)), Some(libc::EBADF));
    assert_eq!(errno(file.set_len(1)), Some(libc::EINVAL));
    assert_eq!(errno(file.read_at(&mut [0], u64::MAX)), Some(libc::EINVAL));
}

#[test]
fn images_in_use_or_missing_or_foreign() {
    let scratch = Scratch::new();
    let open = Image::options().timeout(std::time::Duration::from_millis(20));
    let error = open.clone().exclusive(true).open(&scratch.path).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ResourceBusy);
    let error = Image::create(&scratch.path).size(crate::support::IMAGE_BYTES).create().unwrap_err();
    assert!([libc::EBUSY, libc::EEXIST].contains(&error.errno()), "{error}");
    let missing = scratch.directory.path().join("missing");
    assert_eq!(Image::open(&missing).unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(errno(Image::create(&missing).size(100).create()), Some(libc::EINVAL));
    assert_eq!(errno(Image::create(&missing).size(1 << 24).label("l".repeat(65)).create()), Some(libc::EINVAL));
    assert!(!missing.exists());
    let foreign = scratch.directory.path().join("foreign");
    std::fs::write(&foreign, vec![7; 1 << 20]).unwrap();
    assert_eq!(errno(Image::open(&foreign)), Some(libc::EUCLEAN));
    assert_eq!(errno(Image::create(&foreign).size(1 << 24).create()), Some(libc::EEXIST));
    Image::create(&foreign).size(1 << 24).overwrite(true).create().unwrap();
}

#[test]
fn read_only_and_exclusive_images() {
    let scratch = Scratch::new();
    scratch.fs.write("file", "content").unwrap();
    let path = scratch.path.clone();
    let Scratch { image, directory: _directory, .. } = scratch;
    assert_eq!(image.close().unwrap(), Closed::Clean);
    let image = Image::options().read_only(true).open(&path).unwrap();
    let fs = image.file_system();
    assert_eq!(fs.read("file").unwrap(), b"content");
    for result in [fs.write("file", ""), fs.create_dir("d"), fs.remove_file("file"), fs.set_permissions("file", 0)] {
        assert_eq!(errno(result), Some(libc::EROFS));
    }
    assert_eq!(image.close().unwrap(), Closed::ReadOnly);
    let image = Image::options().exclusive(true).open(&path).unwrap();
    assert!(!image.was_recovered());
    image.file_system().write("file", "other").unwrap();
    assert_eq!(image.close().unwrap(), Closed::Clean);
}

#[test]
fn handles_of_a_closed_image_fail() {
    let directory = scratch_directory();
    let path = directory.path().join("image");
    let image = Image::create(&path).size(16 << 20).create().unwrap();
    let fs = image.file_system();
    let file = fs.create("file").unwrap();
    let list = fs.read_dir(".").unwrap();
    assert_eq!(image.close().unwrap(), Closed::Clean);
    assert_eq!(errno(fs.read("file")), Some(libc::ENODEV));
    assert_eq!(errno(file.write_at(b"x", 0)), Some(libc::ENODEV));
    assert_eq!(list.map(errno).collect::<Vec<_>>(), [Some(libc::ENODEV)]);
    drop(file);
    // Nothing of the old handles reaches the image, which is open again.
    let image = Image::open(&path).unwrap();
    assert_eq!(image.file_system().read("file").unwrap(), b"");
}

#[test]
fn a_full_image_is_usable_again_after_a_removal() {
    let image = Image::in_memory(8 << 20).unwrap();
    let fs = image.file_system();
    let block = vec![1; 100_000];
    let full = (0..1000).find_map(|number| fs.write(format!("f{number}"), &block).err()).expect("it fills");
    assert_eq!(full.kind(), ErrorKind::StorageFull);
    assert!(full.to_string().contains("remove files"), "{full}");
    fs.remove_file("f0").unwrap();
    fs.write("again", &block).unwrap();
}
