//! The findings of a check: one kind per invariant, each with a name that never changes.

use std::fmt;

/// The severity of a finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Severity {
    /// Expected after a crash; the next attach recovers it.
    Note,
    /// No reachable data is lost, but space or redundancy is.
    Warning,
    /// An invariant is violated.
    Error,
}

impl Severity {
    /// The word for messages and for JSON.
    pub fn name(self) -> &'static str {
        match self {
            Severity::Note => "note",
            Severity::Warning => "warning",
            Severity::Error => "error",
        }
    }
}

impl fmt::Display for Severity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// How a kind's severity depends on whether the image was cleanly detached.
#[derive(Clone, Copy)]
enum SeverityRule {
    Always(Severity),
    /// A crash may leave it: a note then, an error on a clean image.
    ErrorIfClean,
    /// A crash may leave it: a note then, a warning on a clean image.
    WarningIfClean,
}

/// When a kind is repaired: each stage must be complete before the following ones can be checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Stage {
    Superblock,
    Segments,
    Inodes,
    Journal,
    Names,
    Bodies,
    /// Directories in cycles come before files without names, which may get their names back.
    Tree,
    Orphans,
    Counts,
    Snapshot,
}

macro_rules! kinds {
    ($($(#[doc = $doc:literal])+ $kind:ident = $name:literal, $weight:expr, $stage:ident;)+) => {
        /// The invariant that a finding violates.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[non_exhaustive]
        pub enum FindingKind {
            $($(#[doc = $doc])+ $kind,)+
        }

        impl FindingKind {
            /// All kinds, in the order in which they are checked.
            pub const ALL: &[FindingKind] = &[$(FindingKind::$kind,)+];

            /// The name, stable for programs, tests and searches.
            pub const fn name(self) -> &'static str {
                match self { $(FindingKind::$kind => $name,)+ }
            }

            /// The violated invariant in one sentence.
            pub const fn description(self) -> &'static str {
                match self { $(FindingKind::$kind => concat!($($doc),+).trim_ascii(),)+ }
            }

            /// When it is repaired.
            pub(crate) const fn stage(self) -> Stage {
                match self { $(FindingKind::$kind => Stage::$stage,)+ }
            }

            const fn weight(self) -> SeverityRule {
                use Severity::*;
                use SeverityRule::*;
                match self { $(FindingKind::$kind => $weight,)+ }
            }
        }
    };
}

kinds! {
    /// The region is shorter than any image.
    ImageTooShort = "image-too-short", Always(Error), Superblock;
    /// There is no magic at the start: not an image, or mkfs was interrupted.
    NotAnImage = "not-an-image", Always(Error), Superblock;
    /// The image has a format version that this program does not support.
    UnknownVersion = "unknown-version", Always(Error), Superblock;
    /// The image uses incompatible features that this program does not support.
    UnknownFeatures = "unknown-features", Always(Error), Superblock;
    /// The superblock's checksum does not match.
    SuperblockChecksum = "superblock-checksum", Always(Error), Superblock;
    /// The image is longer than its file.
    ImageTruncated = "image-truncated", Always(Error), Superblock;
    /// The areas in the superblock are not laid out as mkfs does it.
    SuperblockGeometry = "superblock-geometry", Always(Error), Superblock;
    /// The copy of the superblock in the last block is damaged.
    SuperblockCopy = "superblock-copy", Always(Warning), Superblock;
    /// Reserved bytes are not zero.
    ReservedNotZero = "reserved-not-zero", Always(Warning), Inodes;

    /// A journal slot has an incompletely written record, which never took effect.
    JournalTorn = "journal-torn", ErrorIfClean, Journal;
    /// A journal slot has a complete record: a rename that the next attach completes.
    JournalPending = "journal-pending", ErrorIfClean, Journal;
    /// A journal slot has a finished record whose clearing was lost.
    JournalStale = "journal-stale", ErrorIfClean, Journal;
    /// A journal record refers to structures that cannot exist.
    JournalRecord = "journal-record", Always(Error), Journal;

    /// An entry of the segment table is not the offset of a block in the data area.
    SegmentOffset = "segment-offset", Always(Error), Segments;
    /// The list of a segment's blocks does not verify, or has blocks that cannot be the segment's.
    SegmentList = "segment-list", Always(Error), Inodes;
    /// Two segments of inodes share blocks.
    SegmentOverlap = "segment-overlap", Always(Error), Segments;
    /// A segment follows an empty entry of the table; segments are added in order.
    SegmentGap = "segment-gap", Always(Error), Segments;

    /// Metadata lies in memory that has an error.
    MetadataLost = "metadata-lost", Always(Error), Inodes;
    /// Content of a file lies in memory that has an error: reads of it return EIO.
    ContentLost = "content-lost", Always(Error), Inodes;

    /// An inode has another inode's number.
    InodeNumber = "inode-number", Always(Error), Inodes;
    /// An inode's identity does not match its checksum.
    InodeChecksum = "inode-checksum", ErrorIfClean, Inodes;
    /// An inode's identity does not match its checksum, although its attributes show a finished
    /// creation.
    InodeDamaged = "inode-damaged", Always(Error), Inodes;
    /// An inode has an unknown kind.
    InodeKind = "inode-kind", Always(Error), Inodes;
    /// An inode in use has generation zero, which is never assigned.
    InodeGeneration = "inode-generation", Always(Error), Inodes;
    /// Inode number zero is in use.
    InodeZero = "inode-zero", Always(Error), Inodes;
    /// A free inode has an access time or an inline body, which the next file would inherit.
    FreeInodeNotZero = "free-inode-not-zero", ErrorIfClean, Inodes;
    /// An inode's pointer into memory has an epoch later than the image's.
    PointerEpoch = "pointer-epoch", Always(Error), Inodes;
    /// An inode that is not a device has a device number.
    InodeDevice = "inode-device", Always(Warning), Inodes;
    /// An inode that is not a directory has directory fields.
    DirectoryFields = "directory-fields", WarningIfClean, Inodes;
    /// An inode has no property entry that verifies.
    NoProperty = "no-property", ErrorIfClean, Inodes;
    /// The mode and the inode's identity have different file kinds.
    PropertyKind = "property-kind", Always(Error), Inodes;
    /// One of the two property entries was in use and does not verify: a change interrupted by a
    /// crash.
    PropertyTorn = "property-torn", Always(Note), Inodes;
    /// The sequence numbers of the two property entries are not adjacent.
    PropertySequence = "property-sequence", Always(Error), Inodes;
    /// A property entry has unknown flags, or flags that do not fit its kind.
    PropertyFlags = "property-flags", Always(Error), Inodes;
    /// The size is impossible for a file of this kind.
    PropertySize = "property-size", Always(Error), Inodes;
    /// Owner or group is 4294967295, which means "no change" to programs that copy owners.
    PropertyOwner = "property-owner", Always(Error), Inodes;
    /// A file has a body although its kind has none, or a block map in addition to its inline body.
    PropertyRoot = "property-root", Always(Error), Inodes;

    /// A directory's log links to an offset where no page can be.
    LogOffset = "log-offset", Always(Error), Names;
    /// A directory's log links to a page of another owner, or with a header that does not verify.
    LogPage = "log-page", Always(Error), Names;
    /// A directory's log links to the same page twice.
    LogLoop = "log-loop", Always(Error), Names;
    /// A page's first cookie is not above all cookies of the earlier pages.
    LogCookies = "log-cookies", Always(Error), Names;
    /// A page's bound of used slots is damaged, or below a slot that is used.
    LogUsed = "log-used", ErrorIfClean, Inodes;
    /// A directory's log ends with a compacted page, to which nothing can be appended.
    LogEnd = "log-end", Always(Warning), Names;
    /// A slot has an unknown tag.
    SlotTag = "slot-tag", Always(Error), Names;
    /// A slot refers to an offset where no dentry can be.
    SlotOffset = "slot-offset", Always(Error), Names;
    /// A slot refers to a dentry that does not verify: an unfinished creation.
    SlotHalfMade = "slot-half-made", ErrorIfClean, Names;
    /// A compacted page refers to a dentry that does not verify; compaction copies only dentries
    /// that do.
    DentryDamaged = "dentry-damaged", Always(Error), Names;
    /// A dentry is in the log of another directory than its own.
    DentryParent = "dentry-parent", Always(Error), Names;
    /// A dentry's cookie does not match its place in the log.
    DentryCookie = "dentry-cookie", Always(Error), Names;
    /// Two dentries share cache lines, or two slots refer to the same dentry.
    DentryOverlap = "dentry-overlap", Always(Error), Names;
    /// A name contains a slash or a zero byte, or is `.` or `..`.
    NameInvalid = "name-invalid", Always(Error), Names;
    /// A directory has the same name twice.
    NameTwice = "name-twice", Always(Error), Names;
    /// A name refers to an inode number that the image does not have.
    DentryTarget = "dentry-target", Always(Error), Names;
    /// A name refers to an inode that is free or damaged.
    DentryDangling = "dentry-dangling", ErrorIfClean, Names;
    /// A name and its inode have different file kinds.
    DentryKind = "dentry-kind", Always(Error), Names;
    /// A dentry's valid word and its seal have different reuse generations.
    DentryTurn = "dentry-turn", ErrorIfClean, Names;

    /// There is no root directory.
    RootMissing = "root-missing", Always(Error), Inodes;
    /// The root directory has a name.
    RootNamed = "root-named", Always(Error), Names;
    /// A directory has more than one name.
    DirectoryNames = "directory-names", Always(Error), Tree;
    /// A directory's `..` is not the directory of its name.
    DirectoryParent = "directory-parent", ErrorIfClean, Tree;
    /// A directory is not below the root, but below itself.
    DirectoryCycle = "directory-cycle", Always(Error), Tree;
    /// A file has no name: it was unlinked while open, or its creation is incomplete.
    Orphan = "orphan", ErrorIfClean, Orphans;
    /// A directory with names has no name itself. No crash leaves that: a directory is removed only
    /// while it is empty.
    OrphanDirectory = "orphan-directory", Always(Error), Orphans;
    /// A file's link count is not the number of its names (for a directory: of its subdirectories
    /// plus two).
    LinksWrong = "links-wrong", ErrorIfClean, Counts;

    /// A body's block map has an impossible height or shape.
    MapShape = "map-shape", Always(Error), Bodies;
    /// A body refers to a block outside the data area.
    BlockOutside = "block-outside", Always(Error), Bodies;
    /// A block has two owners.
    BlockTwice = "block-twice", Always(Error), Bodies;
    /// A body has blocks beyond the end of the file.
    BeyondEnd = "beyond-end", ErrorIfClean, Bodies;
    /// A file's block count differs from the blocks of its body.
    BlocksWrong = "blocks-wrong", ErrorIfClean, Counts;
    /// The target of a symbolic link has a zero byte, or no content where one should be.
    LinkTarget = "link-target", Always(Error), Counts;
    /// The extended attributes do not verify or do not parse, or a name among them has a zero byte.
    XattrBody = "xattr-body", Always(Error), Bodies;

    /// There are no free-space maps: a repair discarded them, or the list of shared blocks had no
    /// room. The next attach rebuilds them.
    SnapshotDropped = "snapshot-dropped", Always(Note), Snapshot;
    /// The image is marked as cleanly detached, but its free-space maps do not match their
    /// checksum.
    SnapshotChecksum = "snapshot-checksum", Always(Error), Snapshot;
    /// A figure saved by the clean detach is wrong.
    SnapshotFigure = "snapshot-figure", Always(Error), Snapshot;
    /// The list of shared blocks and of dentry blocks with free lines is broken.
    SnapshotSlabs = "snapshot-slabs", Always(Error), Snapshot;
    /// A shared block has another number of pointers than saved: it would be freed too early or
    /// never.
    SnapshotShares = "snapshot-shares", Always(Error), Snapshot;
    /// The block map marks a block in use as free: it would be allocated again.
    BlockNotMarked = "block-not-marked", Always(Error), Snapshot;
    /// The block map marks an unused block as in use.
    BlockLeaked = "block-leaked", WarningIfClean, Snapshot;
    /// The inode map marks an inode in use as free: it would be allocated again.
    InodeNotMarked = "inode-not-marked", Always(Error), Snapshot;
    /// The inode map marks a free inode as in use.
    InodeLeaked = "inode-leaked", WarningIfClean, Snapshot;
    /// A cache line of a dentry is listed as free: it would be allocated again.
    LineNotMarked = "line-not-marked", Always(Error), Snapshot;
    /// Free cache lines of dentry blocks are not listed as free.
    LineLeaked = "line-leaked", WarningIfClean, Snapshot;
}

impl FindingKind {
    /// The severity on an image that was cleanly detached, or was not.
    pub const fn severity(self, clean: bool) -> Severity {
        match self.weight() {
            SeverityRule::Always(severity) => severity,
            SeverityRule::ErrorIfClean if clean => Severity::Error,
            SeverityRule::WarningIfClean if clean => Severity::Warning,
            SeverityRule::ErrorIfClean | SeverityRule::WarningIfClean => Severity::Note,
        }
    }
}

impl fmt::Display for FindingKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The repair for a finding, with its parameters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Repair {
    /// No automatic repair: restore from a backup.
    None,
    /// Recovery at the next attach.
    Recover,
    /// Rewrite the superblock's description from the copy in block `copy`.
    RestoreSuperblock {
        /// Number of the block.
        copy: u64,
    },
    /// Rewrite the copy in block `copy` from the superblock.
    RewriteCopy {
        /// Number of the block.
        copy: u64,
    },
    /// Discard the free-space maps: the next attach scans the image and rebuilds them.
    DropSnapshot,
    /// Set bytes to zero.
    Zero {
        /// Offset of the first byte.
        offset: u64,
        /// Number of bytes.
        length: u64,
    },
    /// Set a word to zero: a journal slot's seal, or a log slot. Without another name the slot's
    /// file becomes an orphan.
    ClearWord {
        /// Its offset.
        offset: u64,
    },
    /// Set a word to the value that matches a checksum, or that follows from its context.
    SetWord {
        /// Its offset.
        offset: u64,
        /// The right value.
        word: u64,
    },
    /// Complete a rename and end its record.
    CompleteRename {
        /// Offset of the journal slot.
        slot: u64,
    },
    /// Search for the inodes of a segment whose location is unknown; if there are none, allocate
    /// new ones.
    FindSegment {
        /// Its number.
        segment: u64,
    },
    /// Rebuild identity or attributes from the other.
    RepairInode {
        /// Its number.
        number: u64,
    },
    /// Free an unreadable inode.
    FreeInode {
        /// Its number.
        number: u64,
    },
    /// Mark a dentry invalid.
    Invalidate {
        /// Its offset.
        dentry: u64,
    },
    /// Write the name again in the same directory, spelled differently if the present spelling is
    /// invalid or taken.
    Rename {
        /// The offset of its dentry.
        dentry: u64,
    },
    /// Rebuild the header of a page from the names in it.
    RepairPage {
        /// Its offset.
        page: u64,
        /// Inode number of the directory.
        directory: u64,
        /// Its first cookie.
        first_cookie: u64,
        /// Whether it is a compacted page.
        compacted: bool,
    },
    /// End the log before a page; the files of its names become orphans.
    CutLog {
        /// The word that links to the page.
        offset: u64,
    },
    /// Append an empty page to a log.
    AppendPage {
        /// Inode number of the directory.
        number: u64,
    },
    /// Give a file a name in `lost+found`.
    Reconnect {
        /// Its inode number.
        number: u64,
    },
    /// Set a directory's `..`.
    SetParent {
        /// Its inode number.
        number: u64,
        /// The right parent.
        parent: u64,
    },
    /// Write a property entry with the right number of links.
    SetLinks {
        /// Inode number.
        number: u64,
        /// The right number.
        links: u32,
    },
    /// Write a property entry with the right number of blocks.
    SetBlocks {
        /// Inode number.
        number: u64,
        /// The right number.
        blocks: u64,
    },
    /// Write a property entry whose size, flags or root fit the kind.
    RepairProperty {
        /// Inode number.
        number: u64,
    },
    /// Put an underscore in place of each zero byte in the target of a symbolic link.
    SpellTarget {
        /// Inode number.
        number: u64,
    },
    /// Give the file a separate body with the readable contents of the present one.
    CopyBody {
        /// Inode number.
        number: u64,
    },
    /// Remove all extended attributes.
    DropXattrs {
        /// Inode number.
        number: u64,
    },
}

impl Repair {
    /// The repair as the end of "Shall I ...?"; none if there is no repair.
    pub fn question(&self) -> Option<String> {
        Some(match *self {
            Repair::None => return None,
            Repair::Recover => "recover the image".into(),
            Repair::RestoreSuperblock { .. } => "restore the superblock from its copy".into(),
            Repair::RewriteCopy { .. } => "rewrite the copy".into(),
            Repair::DropSnapshot => "have the free-space maps rebuilt".into(),
            Repair::Zero { .. } => "set the bytes to zero".into(),
            Repair::ClearWord { .. } => "clear it".into(),
            Repair::SetWord { .. } => "correct the word".into(),
            Repair::CompleteRename { .. } => "complete the rename".into(),
            Repair::FindSegment { segment } => format!("search for the inodes of segment {segment}"),
            Repair::RepairInode { .. } => "rebuild its damaged half from the other".into(),
            Repair::FreeInode { .. } => "free it".into(),
            Repair::Invalidate { .. } => "remove the name".into(),
            Repair::Rename { .. } => "rename the file".into(),
            Repair::RepairPage { .. } => "rebuild the header of the page".into(),
            Repair::CutLog { .. } => "cut the directory there and move its files to /lost+found".into(),
            Repair::AppendPage { .. } => "append an empty page".into(),
            Repair::Reconnect { .. } => "give it a name in /lost+found".into(),
            Repair::SetParent { parent, .. } => format!("set its `..` to inode {parent}"),
            Repair::SetLinks { links, .. } => format!("set its link count to {links}"),
            Repair::SetBlocks { blocks, .. } => format!("set its block count to {blocks}"),
            Repair::RepairProperty { .. } => "correct its attributes".into(),
            Repair::SpellTarget { .. } => "replace zero bytes in its target by underscores".into(),
            Repair::CopyBody { .. } => "give it a separate body with its readable contents".into(),
            Repair::DropXattrs { .. } => "remove its extended attributes".into(),
        })
    }

    /// Whether the repair may be done without asking: no reachable data is removed, and the written
    /// value is certain.
    pub fn is_safe(&self) -> bool {
        match self {
            Repair::Recover
            | Repair::RestoreSuperblock { .. }
            | Repair::RewriteCopy { .. }
            | Repair::DropSnapshot
            | Repair::Zero { .. }
            | Repair::SetWord { .. }
            | Repair::AppendPage { .. }
            | Repair::SetParent { .. }
            | Repair::SetLinks { .. }
            | Repair::SetBlocks { .. } => true,
            Repair::None
            | Repair::ClearWord { .. }
            | Repair::CompleteRename { .. }
            | Repair::FindSegment { .. }
            | Repair::RepairInode { .. }
            | Repair::FreeInode { .. }
            | Repair::Invalidate { .. }
            | Repair::Rename { .. }
            | Repair::RepairPage { .. }
            | Repair::CutLog { .. }
            | Repair::Reconnect { .. }
            | Repair::RepairProperty { .. }
            | Repair::SpellTarget { .. }
            | Repair::CopyBody { .. }
            | Repair::DropXattrs { .. } => false,
        }
    }
}

impl Finding {
    /// Whether the repair of this finding may be done without asking. Besides [`Repair::is_safe`],
    /// finished and incomplete journal records may be removed.
    pub fn is_safe_to_repair(&self) -> bool {
        self.repair.is_safe() || matches!(self.kind, FindingKind::JournalTorn | FindingKind::JournalStale)
    }
}

/// A violated invariant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// The invariant.
    pub kind: FindingKind,
    /// Its severity on this image.
    pub severity: Severity,
    /// The affected inode.
    pub inode: Option<u64>,
    /// That inode's path, if it has one. Non-UTF-8 bytes and control characters are escaped.
    pub path: Option<String>,
    /// The affected offset on the image.
    pub offset: Option<u64>,
    /// Description without inode and path.
    pub sentence: String,
    /// The repair.
    pub repair: Repair,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.severity)?;
        if let Some(inode) = self.inode {
            write!(f, "inode {inode}")?;
            if let Some(path) = &self.path {
                write!(f, " ({path})")?;
            }
            f.write_str(": ")?;
        }
        write!(f, "{} [{}", self.sentence, self.kind)?;
        if let Some(offset) = self.offset {
            write!(f, " at {offset:#x}")?;
        }
        f.write_str("]")
    }
}
