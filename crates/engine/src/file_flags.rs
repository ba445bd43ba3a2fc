//! Flags of files that programs set (chattr): append-only, immutable, and hints.
//!
//! Invariant: an image has [`FEATURE_FILE_FLAGS`], durably, before a file has a flag. So programs
//! that do not know the flags refuse to write the image.
//!
//! Decision: docs/decisions/files.md, "Flags of files are bits announced by a feature".

use crate::error::Result;
use crate::format::{
    FEATURE_FILE_FLAGS, PROPERTY_ACCESS_LIST, PROPERTY_APPEND_ONLY, PROPERTY_FILE_FLAGS, PROPERTY_IMMUTABLE,
    PROPERTY_NO_ACCESS_TIME, PROPERTY_NO_DUMP, Superblock,
};
use crate::fs::{Fs, Thread};
use pmem::{BLOCK_BYTES, Memory, Pm};

/// Shift from the property flags that programs set to FS_*_FL of Linux.
const LINUX_SHIFT: u32 = 2;

/// A set of flags of a file: property flags as they are stored. So calls copy the word, and only
/// those that look at a flag take it apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FileFlags(u32);

impl FileFlags {
    /// None.
    pub const NONE: FileFlags = FileFlags(0);
    /// The file cannot be changed, and gets no other names.
    pub const IMMUTABLE: FileFlags = FileFlags(PROPERTY_IMMUTABLE);
    /// The file only grows; a directory only gets more names.
    pub const APPEND_ONLY: FileFlags = FileFlags(PROPERTY_APPEND_ONLY);
    /// Backups leave the file out.
    pub const NO_DUMP: FileFlags = FileFlags(PROPERTY_NO_DUMP);
    /// Reads leave the access time as it is.
    pub const NO_ACCESS_TIME: FileFlags = FileFlags(PROPERTY_NO_ACCESS_TIME);

    /// All that programs set. Only regular files and directories have them.
    pub const SETTABLE: FileFlags = FileFlags(PROPERTY_FILE_FLAGS);
    /// The extended attributes may hold an access control list. The layer above sets this flag and
    /// ensures that no file has a list without it.
    pub const ACCESS_LIST: FileFlags = FileFlags(PROPERTY_ACCESS_LIST);

    /// The flags in a property entry.
    #[inline(always)]
    pub(crate) const fn of_property(flags: u32) -> FileFlags {
        FileFlags(flags)
    }

    /// The flags of a property entry with the settable ones of these in place of its own.
    #[inline(always)]
    pub(crate) const fn within(self, flags: u32) -> u32 {
        flags & !PROPERTY_FILE_FLAGS | self.0 & PROPERTY_FILE_FLAGS
    }

    /// The flags of a new property entry.
    #[inline(always)]
    pub(crate) const fn of_new(self) -> u32 {
        self.0 & (PROPERTY_FILE_FLAGS | PROPERTY_ACCESS_LIST)
    }

    /// The settable flags as FS_*_FL of Linux; STATX_ATTR_* has the same values.
    #[inline(always)]
    pub const fn to_linux(self) -> u32 {
        (self.0 & PROPERTY_FILE_FLAGS) << LINUX_SHIFT
    }

    /// The inverse; `None` for bits that no file can have.
    pub const fn from_linux(bits: u32) -> Option<FileFlags> {
        let flags = FileFlags(bits >> LINUX_SHIFT);
        if flags.to_linux() == bits { Some(flags) } else { None }
    }

    /// Whether any of `wanted` is in the set.
    #[inline(always)]
    pub const fn has_any(self, wanted: FileFlags) -> bool {
        self.0 & wanted.0 != 0
    }

    /// The union of both sets.
    #[inline(always)]
    pub const fn with(self, more: FileFlags) -> FileFlags {
        FileFlags(self.0 | more.0)
    }

    /// What is in both sets.
    #[inline(always)]
    pub const fn only(self, others: FileFlags) -> FileFlags {
        FileFlags(self.0 & others.0)
    }

    /// What is in one of the sets only.
    pub const fn difference(self, other: FileFlags) -> FileFlags {
        FileFlags(self.0 ^ other.0)
    }
}

impl<M: Memory> Thread<'_, M> {
    /// Gives the image the feature. Meanwhile its description is not replaced as a whole.
    pub(crate) fn announce_flags(&self) -> Result<()> {
        let _held = self.lock_commits()?;
        self.fs.set_feature_of_flags()
    }
}

impl<M: Memory> Fs<M> {
    /// Whether files of the image may have flags.
    pub fn has_file_flags(&self) -> bool {
        self.superblock().is_ok_and(Superblock::has_file_flags)
    }

    /// Gives the image the feature, durably: first in the copy of the superblock, then in the
    /// superblock. Idempotent, also for several processes at once, which store the same words.
    ///
    /// Crash points: the feature is stored before its checksum, and a description with the checksum
    /// of the one without the feature counts ([`Superblock::description_verifies`]).
    pub(crate) fn set_feature_of_flags(&self) -> Result<()> {
        let superblock = self.superblock()?;
        let copy = self.pm.get(Pm::<Superblock>::new(self.geometry().copy_block() * BLOCK_BYTES))?;
        // A damaged copy stays one.
        let copy = copy.description_verifies().then_some(copy);
        for description in copy.into_iter().chain([superblock]) {
            let features = description.features_ro_compat.load();
            if features & FEATURE_FILE_FLAGS == 0 {
                self.pm.persist(self.pm.set64(&description.features_ro_compat, features | FEATURE_FILE_FLAGS));
            }
            let checksum = description.description_checksum();
            if description.checksum.load() != checksum {
                self.pm.persist(self.pm.set64(&description.checksum, checksum));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attributes::Changes;
    use crate::directory::NewNode;
    use crate::error::Error;
    use crate::format::{FEATURE_USED_SLOTS, FileKind};
    use crate::testing::{Attached, Memory, new_image, new_node};
    use pmem::{BadOffset, Direct, Region};

    const MIB: u64 = 1 << 20;
    const ALL: FileFlags = FileFlags::SETTABLE;

    fn set(flags: FileFlags) -> impl FnOnce(&crate::Attributes) -> Result<Changes> {
        move |_| Ok(Changes { flags: Some(flags), ..Changes::default() })
    }

    /// The features of the superblock and its copy, and whether their checksums are those of the
    /// whole description.
    fn descriptions(image: &Memory) -> [(u64, bool); 2] {
        let region = image.region();
        [region.first::<Superblock>(), copy(&region)].map(|superblock| {
            let superblock = superblock.expect("a superblock");
            (superblock.features_ro_compat.load(), superblock.checksum.load() == superblock.description_checksum())
        })
    }

    fn copy(region: &Region<Direct>) -> core::result::Result<&Superblock, BadOffset> {
        region.get(Pm::new((region.length() / BLOCK_BYTES - 1) * BLOCK_BYTES))
    }

    #[test]
    fn flags_stay_and_the_image_gets_its_feature_with_the_first() {
        let image = new_image(8 * MIB, 0);
        let fs = Attached::new(&image).expect("attaches");
        let thread = fs.enter().expect("enters");
        let root = thread.root().expect("a root");
        let file = thread.create(root, b"file", &new_node(FileKind::Regular)).expect("a file");
        thread.change(file, set(FileFlags::NONE)).expect("no flags");
        assert_eq!(descriptions(&image), [(FEATURE_USED_SLOTS, true); 2], "no flags need no feature");
        assert_eq!(thread.change(file, set(ALL)).map(|file| file.flags), Ok(ALL));
        assert_eq!(descriptions(&image), [(FEATURE_USED_SLOTS | FEATURE_FILE_FLAGS, true); 2]);
        thread.files().write(file, 0, b"content").expect("the engine does not enforce flags");
        let heir = NewNode { flags: FileFlags::NO_DUMP, ..new_node(FileKind::Directory) };
        thread.create(root, b"heir", &heir).expect("a directory");
        drop(thread);
        fs.detach().expect("detaches");
        let fs = Attached::new(&image).expect("attaches");
        let thread = fs.enter().expect("enters");
        let root = thread.root().expect("a root");
        let found = thread.stat_name(root, b"file").expect("a file");
        assert_eq!((found.flags, found.size_bytes, found.protection().flags), (ALL, 7, ALL));
        assert_eq!(thread.stat_name(root, b"heir").map(|heir| heir.flags), Ok(FileFlags::NO_DUMP));
        let file = thread.lookup(root, b"file").expect("a file");
        let changes = Changes { permissions: Some(0o600), access_list: Some(true), ..Changes::default() };
        let changed = thread.change(file, |_| Ok(changes)).expect("another change");
        assert_eq!(changed.flags, ALL.with(FileFlags::ACCESS_LIST));
        assert_eq!(thread.change(file, set(FileFlags::NONE)).map(|file| file.flags), Ok(FileFlags::ACCESS_LIST));
        assert_eq!(descriptions(&image), [(FEATURE_USED_SLOTS | FEATURE_FILE_FLAGS, true); 2]);
    }

    #[test]
    fn only_files_and_directories_have_flags() {
        let image = new_image(8 * MIB, 0);
        let fs = Attached::new(&image).expect("attaches");
        let thread = fs.enter().expect("enters");
        let root = thread.root().expect("a root");
        let pipe = thread.create(root, b"pipe", &new_node(FileKind::Fifo)).expect("a pipe");
        assert_eq!(thread.change(pipe, set(FileFlags::NO_DUMP)), Err(Error::NotSupported));
        assert_eq!(descriptions(&image), [(FEATURE_USED_SLOTS, true); 2]);
        assert!(thread.change(root, set(FileFlags::NO_DUMP)).is_ok());
    }

    #[test]
    fn a_feature_whose_checksum_a_crash_left_counts_and_is_completed() {
        let image = new_image(8 * MIB, 0);
        let region = image.region();
        let (copy, superblock) = (copy(&region), region.first::<Superblock>());
        for (description, counts) in [(copy, false), (superblock, true)] {
            let description = description.expect("a superblock");
            region.persist(region.set64(&description.features_ro_compat, FEATURE_USED_SLOTS | FEATURE_FILE_FLAGS));
            let fs = Attached::new(&image).expect("attaches");
            assert_eq!(fs.has_file_flags(), counts);
            fs.detach().expect("detaches");
        }
        assert_eq!(descriptions(&image), [(FEATURE_USED_SLOTS | FEATURE_FILE_FLAGS, true); 2]);
        let superblock = region.first::<Superblock>().expect("a superblock");
        region.persist(region.set64(&superblock.features_ro_compat, 4));
        assert!(Attached::new(&image).is_err(), "another feature does not count without its checksum");
    }
}
