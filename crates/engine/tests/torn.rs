//! Power cuts that tear lines inside operations on names. Each test covers fields that no checksum
//! covers.

use crate::support::{Image, make_directory, new_file, permit, permit_rename, touch};
use engine::format::FileKind;
use engine::{AttachOptions, NewNode, Node, RenameFlags, Thread};
use pmem::{CrashImage, Grain, Mapping, Memory, Recorder};
use std::sync::Arc;

const IMAGE_BYTES: u64 = 2 << 20;
const SAMPLE: u64 = 300;

type Change = fn(&Thread<'_, Recorder>, Node);

/// Cuts the power at every fence of `change`, tears lines, and passes the state after each recovery
/// to `look`.
fn tear(before: Change, change: Change, look: &dyn Fn(&Thread<'_, pmem::Direct>, Node, &str)) {
    let image = Image::new(IMAGE_BYTES);
    let attached = image.attach_with(Recorder::new(), AttachOptions::default(), 1).expect("attaches");
    let thread = attached.enter();
    let root = thread.root().expect("a root");
    before(&thread, root);
    let recorder = attached.fs.pm().memory();
    let mut initial = vec![0; IMAGE_BYTES as usize];
    attached.fs.pm().read_bytes(0, &mut initial).expect("all of it");
    recorder.start();
    change(&thread, root);
    recorder.stop();
    let log = recorder.take();
    let mut crash = CrashImage::new(initial, &log);
    loop {
        let mut bytes = crash.durable().to_vec();
        for state in crash.states(Grain::Word, 9, SAMPLE, 3) {
            state.apply(&mut bytes);
            let copy = Image { mapping: Arc::new(Mapping::anonymous(IMAGE_BYTES).expect("memory")) };
            let _ = copy.region(pmem::Direct).write_bytes(0, &bytes).expect("the same length");
            let recovered = copy.attach();
            let thread = recovered.enter();
            look(&thread, thread.root().expect("a root"), &state.id().to_string());
            state.undo(&mut bytes);
        }
        if !crash.advance() {
            return;
        }
    }
}

fn is_there<M: Memory>(thread: &Thread<'_, M>, directory: Node, name: &[u8]) -> bool {
    thread.stat_name(directory, name).is_ok()
}

/// The seal of a dentry does not cover its valid word. Replay must not complete a rename whose new
/// dentry lost that word in the crash: it would remove the old name and leave the file without one.
#[test]
fn a_torn_rename_leaves_one_name() {
    let look = |thread: &Thread<'_, pmem::Direct>, root: Node, state: &str| {
        let names = [is_there(thread, root, b"old"), is_there(thread, root, b"new")];
        assert_eq!(names.into_iter().filter(|there| *there).count(), 1, "{state}: {names:?}");
    };
    tear(
        |thread, root| {
            touch(thread, root, "old");
        },
        |thread, root| {
            thread.rename((root, b"old"), (root, b"new"), RenameFlags::default(), permit_rename).expect("renames")
        },
        &look,
    );
}

/// No checksum covers the line of a short target. So the target must be durable before the name, or
/// a crash could leave links without a target.
#[test]
fn a_torn_symbolic_link_has_its_target_or_is_not_there() {
    const TARGET: &[u8] = b"a target of forty bytes, thus five words";
    let look = |thread: &Thread<'_, pmem::Direct>, root: Node, state: &str| {
        if let Ok(node) = thread.lookup(root, b"link") {
            let mut target = [0; 64];
            let length = thread.read_link(node, &mut target).expect("a target");
            assert_eq!(&target[..length], TARGET, "{state}");
        }
    };
    tear(
        |_, _| (),
        |thread, root| {
            let new = NewNode { kind: FileKind::Symlink, target: TARGET, ..new_file() };
            let node = thread.create(root, b"link", &new).expect("a link");
            thread.release(node, 1);
        },
        &look,
    );
}

/// The lines of a dentry may still hold the valid word of an earlier one, or a part of a long name.
/// A torn create may leave that word, which must not pass for the time of a removal.
#[test]
fn a_torn_create_does_not_move_the_times_of_its_directory() {
    let look = |thread: &Thread<'_, pmem::Direct>, root: Node, state: &str| {
        let still = thread.stat_name(root, b"still").expect("a directory");
        let node = thread.lookup(root, b"still").expect("a directory");
        let expected = match thread.stat_name(node, b"new") {
            Ok(new) => new.modified_ns,
            Err(_) => thread.born_ns(node).expect("a birth"),
        };
        assert_eq!(still.modified_ns, expected, "{state}");
    };
    tear(
        |thread, root| {
            let old = make_directory(thread, root, "old");
            make_directory(thread, root, "still");
            let name = |index: usize| ["q", "u", "}"][index % 3].repeat(250 - index);
            (0..12).for_each(|index| {
                touch(thread, old, &name(index));
            });
            (0..12).for_each(|index| thread.unlink(old, name(index).as_bytes(), permit).expect("unlinks"));
            thread.release(old, 1);
            thread.remove_directory(root, b"old", permit).expect("is empty");
            while thread.recycler().recycle(usize::MAX).expect("recycles") > 0 {}
        },
        |thread, root| {
            let still = thread.lookup(root, b"still").expect("a directory");
            touch(thread, still, "new");
        },
        &look,
    );
}

/// A removed file's inode is not erased before it is reused. A create that is torn on top of it is
/// whole or absent, and never has attributes of the removed file.
#[test]
fn a_torn_create_in_the_place_of_a_removed_file_does_not_bring_it_back() {
    let look = |thread: &Thread<'_, pmem::Direct>, root: Node, state: &str| {
        assert!(!is_there(thread, root, b"old"), "{state}");
        if let Ok(new) = thread.stat_name(root, b"new") {
            assert_eq!((new.mode & 0o7777, new.uid, new.size_bytes), (0o600, 7, 0), "{state}");
        }
    };
    tear(
        |thread, root| {
            let node = thread.create(root, b"old", &new_file()).expect("a file");
            thread.files().write(node, 0, b"content").expect("writes");
            thread.release(node, 1);
            thread.unlink(root, b"old", permit).expect("unlinks");
            while thread.recycler().recycle(usize::MAX).expect("recycles") > 0 {}
        },
        |thread, root| {
            // This thread has no inode numbers in its magazine and takes the first free ones.
            let thread = thread.fs().enter().expect("enters");
            let new = NewNode { permissions: 0o600, uid: 7, ..new_file() };
            let node = thread.create(root, b"new", &new).expect("a file");
            thread.release(node, 1);
        },
        &look,
    );
}

/// A torn create of a directory: an inode's birth does not certify `..`.
#[test]
fn a_torn_creation_in_the_place_of_a_removed_directory_has_its_own_parent() {
    let look = |thread: &Thread<'_, pmem::Direct>, root: Node, state: &str| {
        assert!(!is_there(thread, root, b"old"), "{state}");
        let above = thread.lookup(root, b"above").expect("a directory");
        if let Ok(node) = thread.lookup(above, b"new") {
            assert_eq!(thread.parent(node), Ok(above.number), "{state}");
        }
        if let Ok(node) = thread.lookup(root, b"file") {
            assert_eq!(thread.stat(node).expect("a file").kind, FileKind::Regular, "{state}");
        }
    };
    tear(
        |thread, root| {
            make_directory(thread, root, "above");
            for name in ["old", "older"] {
                let node = make_directory(thread, root, name);
                thread.release(node, 1);
            }
            for name in ["old", "older"] {
                thread.remove_directory(root, name.as_bytes(), permit).expect("is empty");
            }
            while thread.recycler().recycle(usize::MAX).expect("recycles") > 0 {}
        },
        |thread, root| {
            let thread = thread.fs().enter().expect("enters");
            let above = thread.lookup(root, b"above").expect("a directory");
            make_directory(&thread, above, "new");
            touch(&thread, root, "file");
        },
        &look,
    );
}
