//! Images without findings.

use crate::support::engine_support::{Image, make_directory, new_file, permit, permit_rename, touch};
use crate::support::{DamagedImage, expect_kinds, sample, scattered};
use engine::format::FileKind;
use engine::{Changes, FileFlags, RenameFlags};
use fsck::{EXIT_CLEAN, EXIT_OPERATIONAL, FindingKind, Options, Phase, Severity, check};

#[test]
fn an_empty_image_is_sound() {
    let image = Image::new(4 << 20);
    let report = DamagedImage::new(&image).check();
    expect_kinds(&report, &[]);
    assert_eq!((report.counts.directories, report.counts.inodes, report.counts.names), (1, 1, 0));
    assert!(report.clean);
    assert_eq!(report.exit_code(), EXIT_CLEAN);
}

#[test]
fn a_tree_with_everything_that_was_left_cleanly_is_sound() {
    let image = sample();
    let report = DamagedImage::new(&image).check();
    expect_kinds(&report, &[]);
    assert_eq!(report.counts.directories, 4);
    assert_eq!(report.counts.symlinks, 2);
    assert_eq!(report.counts.special, 2);
    assert_eq!(report.counts.files, 19 + 1 + 3);
    assert_eq!(report.counts.names, 3 + 22 + 1 + 2 + 3);
}

#[test]
fn files_with_flags_are_sound_and_so_is_their_feature_when_a_crash_left_it_incomplete() {
    let image = sample();
    let attached = image.attach();
    {
        let thread = attached.enter();
        let root = thread.root().unwrap();
        let flags = FileFlags::IMMUTABLE.with(FileFlags::NO_DUMP);
        thread.change(root, |_| Ok(Changes { flags: Some(flags), ..Changes::default() })).unwrap();
    }
    attached.detach();
    expect_kinds(&DamagedImage::new(&image).check(), &[]);
    // Offset of the read-only compatible features.
    const FEATURES: u64 = 104;
    let image = sample();
    let damaged = DamagedImage::new(&image);
    let copy = image.region(pmem::Direct).length() - pmem::BLOCK_BYTES;
    damaged.set(copy + FEATURES, 2 | 1);
    expect_kinds(&damaged.check(), &[]);
    damaged.set(FEATURES, 2 | 1);
    expect_kinds(&damaged.check(), &[]);
    damaged.set(copy + FEATURES, 2);
    expect_kinds(&damaged.check(), &[FindingKind::SuperblockCopy]);
}

#[test]
fn inodes_that_lie_apart_are_sound() {
    let image = scattered();
    let report = DamagedImage::new(&image).check();
    expect_kinds(&report, &[]);
    assert_eq!(report.counts.files, 300 + 1);
}

#[test]
fn every_phase_is_reported() {
    let image = sample();
    let mut phases = Vec::new();
    check(&image.region(pmem::Direct), &Options::default(), &mut |progress| {
        assert!(progress.done <= progress.total);
        if phases.last() != Some(&progress.phase) {
            phases.push(progress.phase);
        }
    });
    use Phase::*;
    assert_eq!(phases, [Fixed, Inodes, Directories, Bodies, Tree, Snapshot]);
}

#[test]
fn an_image_in_use_has_notes_at_most_and_is_sound_after_recovery() {
    let image = sample();
    let attached = image.attach();
    {
        let thread = attached.enter();
        let root = thread.root().unwrap();
        let docs = thread.lookup(root, b"docs").unwrap();
        let open = thread.lookup(docs, b"file-05").unwrap();
        thread.unlink(docs, b"file-05", permit).unwrap();
        thread.rename((docs, b"file-06"), (root, b"elsewhere"), RenameFlags::default(), permit_rename).unwrap();
        thread.rename((docs, b"deep"), (root, b"not-so-deep"), RenameFlags::default(), permit_rename).unwrap();
        let report = DamagedImage::new(&image).check();
        assert!(report.is_sound() && !report.clean, "{report}");
        assert!(!report.kinds().contains(&FindingKind::Orphan), "a file without a name is normal here: {report}");
        thread.files().truncate(open, 10).unwrap();
    }
    // A crash: the DRAM region is lost.
    drop(attached);
    let report = DamagedImage::new(&image).check();
    assert!(report.findings.iter().all(|finding| finding.severity == Severity::Note), "{report}");
    let attached = image.attach();
    assert!(attached.report.scanned);
    let report = DamagedImage::new(&image).check();
    expect_kinds(&report, &[]);
    attached.detach();
    expect_kinds(&DamagedImage::new(&image).check(), &[]);
}

#[test]
fn compacted_logs_and_many_pages_are_sound() {
    let image = Image::new(32 << 20);
    let attached = image.attach();
    {
        let thread = attached.enter();
        let root = thread.root().unwrap();
        let many = make_directory(&thread, root, "many");
        for index in 0..3000 {
            touch(&thread, many, &format!("{index}"));
        }
        for index in (0..3000).filter(|index| index % 5 != 0) {
            thread.unlink(many, format!("{index}").as_bytes(), permit).unwrap();
        }
        for index in 3000..3100 {
            touch(&thread, many, &format!("{index}"));
        }
        thread.release(many, 1);
        thread.release(root, 1);
    }
    attached.detach();
    let report = DamagedImage::new(&image).check();
    expect_kinds(&report, &[]);
    assert_eq!(report.counts.names, 701);
}

#[test]
fn what_is_no_image_is_refused_with_the_cause() {
    let mapping = std::sync::Arc::new(pmem::Mapping::anonymous(1 << 20).unwrap());
    let region = mapping.region(pmem::Direct).unwrap();
    let report = check(&region, &Options::default(), &mut |_| {});
    expect_kinds(&report, &[FindingKind::NotAnImage]);
    assert_eq!(report.exit_code(), EXIT_OPERATIONAL);
    assert!(!report.checked);
}

#[test]
fn a_million_names_take_seconds() {
    // A tenth of a million keeps the test short; `cargo test -- --ignored --nocapture` runs the
    // whole.
    let (names, seconds) = many_names(100_000, 256 << 20);
    assert_eq!(names, 100_100);
    assert!(seconds < 5.0, "{seconds} s");
}

#[test]
#[ignore = "needs 3 GB of memory"]
fn a_whole_million_names() {
    let (names, seconds) = many_names(1_000_000, 2560 << 20);
    println!("{names} names in {seconds} s");
}

fn many_names(count: u64, length: u64) -> (u64, f64) {
    let image = Image::new(length);
    let attached = image.attach();
    {
        let thread = attached.enter();
        let root = thread.root().unwrap();
        for directory in 0..100 {
            let directory = make_directory(&thread, root, &format!("d{directory}"));
            for index in 0..count / 100 {
                let node = thread.create(directory, format!("file-{index:07}").as_bytes(), &new_file()).unwrap();
                thread.release(node, 1);
            }
            thread.release(directory, 1);
        }
        thread.release(root, 1);
    }
    attached.detach();
    let report = DamagedImage::new(&image).check();
    expect_kinds(&report, &[]);
    assert_eq!(FileKind::from_bits(8), Some(FileKind::Regular));
    (report.counts.names, report.duration.as_secs_f64())
}
