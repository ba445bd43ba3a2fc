//! The two views: what programs see, and what is on the medium.

use super::image::Image;
use super::machine::{bytes, formatted, mount, mount_alone, mount_syncing, region};
use super::model::dump;
use lab::calls::Calls;
use lab::physical::SyncFile;
use lab::soupfs::format::EPOCHS;
use pmem::{Direct, Event, Mapping, Recorder};
use std::sync::Arc;

const IMAGE: u64 = 2 << 20;

/// Number of names that a crash leaves if all stores reach the medium.
fn names_on_image(mapping: &Arc<Mapping>) -> usize {
    Image(&bytes(mapping)).reachable().names.len()
}

#[test]
fn system_calls_flush_nothing_and_wait_for_content_only() {
    let mapping = formatted(IMAGE);
    let recorder = Arc::new(Recorder::new());
    let fs = mount(&mapping, Arc::clone(&recorder));
    recorder.start();
    for round in 0..100 {
        let name = |name: &str| format!("/{name}{round}").into_bytes();
        fs.create(&name("file"), 0o600).expect("created");
        let file = fs.open(&name("file"), libc::O_RDWR, 0).expect("opened");
        fs.write(file, 0, &[1; 700]).expect("written");
        fs.truncate(file, 100).expect("cut");
        fs.close(file).expect("closed");
        fs.chmod(&name("file"), 0o640).expect("changed");
        fs.mkdir(&name("directory"), 0o700).expect("made");
        Calls::link(&fs, &name("file"), &[name("directory"), b"/link".to_vec()].concat()).expect("linked");
        Calls::rename(&fs, &name("file"), &[name("directory"), b"/file".to_vec()].concat(), 0).expect("renamed");
        fs.symlink(&[b't'; 100], &name("symlink")).expect("made");
        if round % 2 == 0 {
            fs.unlink(&[name("directory"), b"/file".to_vec()].concat()).expect("removed");
            fs.unlink(&[name("directory"), b"/link".to_vec()].concat()).expect("removed");
            fs.rmdir(&name("directory")).expect("removed");
        }
    }
    recorder.stop();
    let log = recorder.take();
    assert!(log.len() > 5000, "much was stored: {}", log.len());
    let count = |is: &dyn Fn(&Event) -> bool| log.iter().filter(|recorded| is(&recorded.event)).count();
    assert_eq!(count(&|event| matches!(event, Event::Flush { .. })), 0);
    // A write streams its content, and waits for it.
    assert_eq!(count(&|event| matches!(event, Event::Stream { .. })), 100);
    assert_eq!(count(&|event| matches!(event, Event::Fence)), 100);
}

#[test]
fn what_is_done_is_seen_at_once_and_on_the_medium_when_a_persister_came() {
    let mapping = formatted(IMAGE);
    let fs = mount(&mapping, Direct);
    fs.create(b"/a", 0o600).expect("created");
    fs.mkdir(b"/d", 0o700).expect("made");
    fs.create(b"/d/b", 0o600).expect("created");
    assert_eq!(names_on_image(&mapping), 0);
    fs.stat_link(b"/d/b").expect("seen");
    fs.sync().expect("synced");
    assert_eq!(names_on_image(&mapping), 3);
    fs.unlink(b"/a").expect("removed");
    Calls::rename(&fs, b"/d/b", b"/b", 0).expect("renamed");
    assert_eq!(names_on_image(&mapping), 3, "the consistent view is unchanged");
    assert!(fs.stat_link(b"/a").is_err() && fs.stat_link(b"/d/b").is_err());
    // Dropping without unmount acts like a crash.
    drop(fs);
    let tree = dump(&mount_alone(&mapping)).expect("a tree");
    assert!(tree.find(b"/a").is_some() && tree.find(b"/d/b").is_some() && tree.find(b"/b").is_none());
}

#[test]
fn syncing_a_file_makes_its_content_durable_and_no_name() {
    let mapping = formatted(IMAGE);
    let recorder = Arc::new(Recorder::new());
    let fs = mount_syncing(&mapping, Arc::clone(&recorder), SyncFile::Own);
    fs.create(b"/old", 0o600).expect("created");
    fs.sync().expect("synced");
    fs.create(b"/new", 0o600).expect("created");
    for path in [&b"/old"[..], b"/new"] {
        let file = fs.open(path, libc::O_RDWR, 0).expect("opened");
        fs.write(file, 0, &[7; 9000]).expect("written");
        fs.sync_file(file).expect("synced");
    }
    drop(fs);
    let tree = dump(&mount_alone(&mapping)).expect("a tree");
    let id = tree.find(b"/old").expect("it had its name");
    assert_eq!(tree.files[&id].content, vec![7; 9000]);
    assert!(tree.find(b"/new").is_none(), "the name waits for a persister");
}

#[test]
fn syncing_a_file_makes_its_path_durable_and_no_other_if_names_are_synced() {
    let mapping = formatted(IMAGE);
    let fs = mount(&mapping, Direct);
    fs.mkdir(b"/d", 0o700).expect("made");
    fs.mkdir(b"/d/e", 0o700).expect("made");
    fs.mkdir(b"/other", 0o700).expect("made");
    fs.create(b"/other/file", 0o600).expect("created");
    fs.create(b"/d/e/file", 0o600).expect("created");
    let file = fs.open(b"/d/e/file", libc::O_RDWR, 0).expect("opened");
    fs.write(file, 0, &[7; 9000]).expect("written");
    fs.sync_file(file).expect("synced");
    drop(fs);
    let tree = dump(&mount_alone(&mapping)).expect("a tree");
    let id = tree.find(b"/d/e/file").expect("it has its name");
    assert_eq!(tree.files[&id].content, vec![7; 9000]);
    assert!(tree.find(b"/other/file").is_none());
}

#[test]
fn what_was_made_and_removed_between_two_visits_costs_the_persister_nothing() {
    let mapping = formatted(IMAGE);
    let recorder = Arc::new(Recorder::new());
    let fs = mount(&mapping, Arc::clone(&recorder));
    let flushes = |act: &dyn Fn()| {
        act();
        recorder.start();
        fs.sync().expect("synced");
        recorder.stop();
        recorder.take().iter().filter(|recorded| matches!(recorded.event, Event::Flush { .. })).count()
    };
    let nothing = flushes(&|| fs.chmod(b"/", 0o750).expect("changed"));
    let removed = flushes(&|| {
        for _ in 0..500 {
            fs.create(b"/file", 0o600).expect("created");
            fs.unlink(b"/file").expect("removed");
        }
    });
    assert_eq!(removed, nothing, "only the directory's times");
}

#[test]
fn links_of_an_earlier_mount_are_not_believed_even_when_mounts_are_counted_round() {
    let mapping = formatted(IMAGE);
    let set_mounts = |mounts: u64| {
        region(&mapping, Direct).write_bytes(64, &mounts.to_le_bytes()).expect("inside").unflushed();
    };
    set_mounts(EPOCHS - 1);
    let fs = mount(&mapping, Direct);
    for name in ["/a", "/b", "/c", "/d"] {
        fs.create(name.as_bytes(), 0o600).expect("created");
    }
    fs.sync().expect("synced");
    for name in ["/a", "/b", "/c"] {
        fs.unlink(name.as_bytes()).expect("removed");
    }
    drop(fs);
    // Mounts whose number, modulo `EPOCHS`, is 0, 1 and then 0 again.
    for mounts in [EPOCHS, 2 * EPOCHS - 1] {
        set_mounts(mounts);
        let tree = dump(&mount_alone(&mapping)).expect("a tree");
        assert_eq!(tree.files.len(), 5, "after {mounts} mounts");
    }
}

#[test]
fn an_open_file_that_had_no_name_is_a_leak_that_the_scan_finds() {
    let mapping = formatted(IMAGE);
    let fs = mount(&mapping, Direct);
    fs.create(b"/file", 0o600).expect("created");
    fs.create(b"/kept", 0o600).expect("created");
    let file = fs.open(b"/file", libc::O_RDWR, 0).expect("opened");
    fs.write(file, 0, &[7; 40_000]).expect("written");
    fs.unlink(b"/file").expect("removed");
    fs.write(file, 0, &[8; 10]).expect("written");
    fs.sync_file(file).expect("synced");
    fs.sync().expect("synced");
    drop(fs);
    let fs = mount_alone(&mapping);
    let report = fs.scan().expect("scanned").expect("there was a crash");
    let pages = report.leaked.iter().filter(|(_, bits)| *bits == u64::MAX).count();
    assert_eq!(pages, 11, "ten blocks and a page of pointers: {report:?}");
    assert!(report.excess_links.is_empty() && report.stale_entries.is_empty());
    assert_eq!(fs.scan(), Ok(None));
    let reachable = Image(&bytes(&mapping)).reachable();
    let used: u32 = fs.volume().space.snapshot()[Image(&bytes(&mapping)).first_page() as usize..]
        .iter()
        .map(|word| word.count_ones())
        .sum();
    assert_eq!(used as usize, reachable.lines.len());
}

#[test]
fn a_sync_of_a_new_file_writes_only_the_used_line_of_its_pointer_page() {
    let mapping = formatted(IMAGE);
    let recorder = Arc::new(Recorder::new());
    let fs = mount(&mapping, Arc::clone(&recorder));
    fs.create(b"/file", 0o600).expect("created");
    fs.sync().expect("synced");
    let file = fs.open(b"/file", libc::O_RDWR, 0).expect("opened");
    fs.write(file, 0, &[1; 3 * 4096]).expect("written");
    recorder.start();
    fs.sync_file(file).expect("synced");
    recorder.stop();
    let streamed = |event: &Event| if let Event::Stream { bytes, .. } = event { bytes.len() } else { 0 };
    assert_eq!(recorder.take().iter().map(|recorded| streamed(&recorded.event)).sum::<usize>(), 64);
    fs.close(file).expect("closed");
}

/// A file without a durable name is out of reach for a crash, so nothing of it is ordered. Else a
/// size waits for links, and links for what they lead to, if that is new.
#[test]
fn a_sync_fences_only_where_a_crash_would_see_the_order() {
    let mapping = formatted(IMAGE);
    let recorder = Arc::new(Recorder::new());
    let fs = mount_syncing(&mapping, Arc::clone(&recorder), SyncFile::Own);
    let fences = |file, offset, bytes: &[u8]| {
        fs.write(file, offset, bytes).expect("written");
        recorder.start();
        fs.sync_file(file).expect("synced");
        recorder.stop();
        recorder.take().iter().filter(|recorded| recorded.event == Event::Fence).count()
    };
    let new = |path| fs.open(path, libc::O_CREAT | libc::O_RDWR, 0o600).expect("created");
    let block = [1; 4096];
    let file = new(b"/file");
    assert_eq!(fences(file, 0, &[1; 5 * 4096]), 1, "blocks, a new pointer page, root and size");
    assert_eq!(fences(file, 5 * 4096, &block), 1, "no name is durable");
    fs.sync().expect("synced");
    assert_eq!(fences(file, 6 * 4096, &block), 3, "bits of the table, a pointer, the size");
    assert_eq!(fences(file, 0, &block), 1, "times only");

    // Space that was in use keeps its bits in the table.
    let gone = new(b"/gone");
    fences(gone, 0, &block);
    fs.close(gone).expect("closed");
    fs.unlink(b"/gone").expect("removed");
    assert_eq!(fences(file, 7 * 4096, &block), 2, "a pointer, the size");
    assert_eq!(fences(file, 7 * 4096 + 10, &[2; 10]), 1, "times only");
    fs.close(file).expect("closed");
}

#[test]
fn a_file_that_grows_by_lines_of_pointers_is_whole_after_a_crash() {
    const BLOCK: usize = 4096;
    let mapping = formatted(IMAGE);
    let fs = mount(&mapping, Direct);
    fs.create(b"/file", 0o600).expect("created");
    let file = fs.open(b"/file", libc::O_RDWR, 0).expect("opened");
    // Line after line, then beyond one page of pointers. Free pages hold no zeros.
    let blocks: Vec<usize> = (0..20).chain([100, 511, 512, 530, 1030]).collect();
    let content = |block: usize| [block as u8 | 1; BLOCK];
    for block in &blocks {
        fs.write(file, (block * BLOCK) as u64, &content(*block)).expect("written");
        if block % 3 == 0 {
            fs.sync_file(file).expect("synced");
        }
    }
    fs.sync().expect("synced");
    // Dropping without unmount acts like a crash.
    drop(fs);

    let expect = |fs: &dyn Calls, file, blocks: &[usize], last: usize| {
        for block in 0..=last {
            let mut there = [7; BLOCK];
            assert_eq!(fs.read(file, (block * BLOCK) as u64, &mut there), Ok(BLOCK), "block {block}");
            let wanted = if blocks.contains(&block) { content(block) } else { [0; BLOCK] };
            assert!(there == wanted, "block {block}");
        }
    };
    let fs = mount(&mapping, Direct);
    let file = fs.open(b"/file", libc::O_RDWR, 0).expect("opened");
    expect(&fs, file, &blocks, 1030);
    fs.truncate(file, (10 * BLOCK) as u64).expect("cut");
    fs.sync_file(file).expect("synced");
    fs.write(file, (30 * BLOCK) as u64, &content(30)).expect("written");
    fs.sync().expect("synced");
    drop(fs);

    let fs = mount(&mapping, Direct);
    let file = fs.open(b"/file", libc::O_RDWR, 0).expect("opened");
    expect(&fs, file, &[(0..10).collect(), vec![30]].concat(), 30);
    fs.close(file).expect("closed");
}
