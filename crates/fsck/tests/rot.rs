//! Media errors are distinguished from traces of a crash: names do not vanish, and flipped bits are
//! corrected.

use crate::support::engine_support::Attached;
use crate::support::{DamagedImage, sample};
use engine::Error;

fn finds(attached: &Attached, directory: &str, name: &str) -> Result<u64, Error> {
    let thread = attached.enter();
    let mut at = thread.root()?;
    for part in directory.split('/').filter(|part| !part.is_empty()) {
        at = thread.lookup(at, part.as_bytes())?;
    }
    thread.lookup(at, name.as_bytes()).map(|node| node.number)
}

#[test]
fn a_name_that_rotted_on_a_clean_image_is_an_error_and_never_a_missing_file() {
    let image = sample();
    let damaged = DamagedImage::new(&image);
    let file = damaged.find("docs/file-01");
    damaged.set(file.dentry + 40, damaged.get(file.dentry + 40) ^ 0x0303);
    let attached = image.attach();
    assert!(!attached.report.scanned);
    for name in ["file-01", "file-02", "nothing"] {
        assert!(matches!(finds(&attached, "docs", name), Err(Error::Corrupt(_))), "{name}");
    }
    let thread = attached.enter();
    let docs = thread.lookup(thread.root().unwrap(), b"docs").unwrap();
    let listed = thread.read_directory(docs, 0, &mut Default::default(), &mut |_| true);
    assert!(matches!(listed, Err(Error::Corrupt(_))));
    // The rest of the tree is unaffected.
    drop(thread);
    assert!(finds(&attached, "", "small").is_ok());
}

#[test]
fn the_same_on_a_clean_image_without_maps_is_damage_and_nothing_is_freed() {
    let image = sample();
    let damaged = DamagedImage::new(&image);
    let file = damaged.find("docs/file-01");
    damaged.set(file.dentry + 40, damaged.get(file.dentry + 40) ^ 0x0303);
    (0..8).for_each(|word| damaged.set(crate::support::SNAPSHOT + word * 8, 0));
    let attached = image.attach();
    assert!(attached.report.scanned && attached.report.damaged > 0);
    attached.detach();
    assert!(damaged.check().errors > 0, "fsck has something to find");
    assert!(damaged.inode(file.number).generation(file.number).is_some(), "the file is still there");
}

#[test]
fn a_flipped_bit_is_put_right_after_a_crash() {
    let image = sample();
    let damaged = DamagedImage::new(&image);
    let file = damaged.find("docs/file-01");
    let places =
        [(file.dentry + 40, 3), (file.dentry + 8, 50), (file.dentry + 16, 1), (file.inode + 24, 5), (file.inode, 40)];
    for (offset, bit) in places {
        let whole = damaged.get(offset);
        damaged.flip(offset, 1 << bit);
        damaged.unclean();
        let attached = image.attach();
        assert_eq!((attached.report.flipped, attached.report.damaged), (1, 0), "{offset:#x} {bit}");
        assert_eq!(finds(&attached, "docs", "file-01"), Ok(file.number));
        attached.detach();
        assert_eq!(damaged.get(offset), whole);
        assert!(damaged.check().is_sound());
    }
}

#[test]
fn an_identity_that_rotted_after_a_change_is_not_taken_for_half_made() {
    let image = sample();
    let damaged = DamagedImage::new(&image);
    let body = damaged.find("body");
    assert!(damaged.property(body.number).2 > 0);
    damaged.set(body.inode + 24, damaged.get(body.inode + 24) ^ 0x77);
    damaged.unclean();
    assert!(damaged.check().kinds().contains(&fsck::FindingKind::InodeDamaged), "{}", damaged.check());
    let attached = image.attach();
    assert!(attached.report.damaged > 0);
    assert!(finds(&attached, "", "body").is_err());
    attached.detach();
    let repaired = fsck::repair(&damaged.region, &Default::default(), 1, &mut |_| true, &mut |_| {});
    assert!(repaired.after.is_sound(), "{}", repaired.after);
    let attached = image.attach();
    assert_eq!(finds(&attached, "", "body"), Ok(body.number));
    attached.detach();
}
