//! What can be wrong with an image: one kind of finding per invariant, each with a name that never changes.

use std::fmt;

/// How bad a finding is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Severity {
    /// To be expected after a crash; the next attach puts it in order.
    Note,
    /// Nothing that anybody could reach is lost, but space or a safety net is.
    Warning,
    /// An invariant does not hold.
    Error,
}

impl Severity {
    /// The word for people and programs.
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

/// How a kind's severity depends on whether the image was left cleanly.
#[derive(Clone, Copy)]
enum Weight {
    Always(Severity),
    /// A crash may leave it: a note then, an error on a clean image.
    ErrorIfClean,
    /// The same with a warning.
    WarningIfClean,
}

macro_rules! kinds {
    ($($(#[doc = $doc:literal])+ $kind:ident = $name:literal, $weight:expr;)+) => {
        /// The invariant that a finding is about.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[non_exhaustive]
        pub enum FindingKind {
            $($(#[doc = $doc])+ $kind,)+
        }

        impl FindingKind {
            /// All kinds, in the order in which they are looked for.
            pub const ALL: &[FindingKind] = &[$(FindingKind::$kind,)+];

            /// The name: stable, for programs, tests and searches.
            pub const fn name(self) -> &'static str {
                match self { $(FindingKind::$kind => $name,)+ }
            }

            /// What the invariant is, in words.
            pub const fn description(self) -> &'static str {
                match self { $(FindingKind::$kind => concat!($($doc),+).trim_ascii(),)+ }
            }

            const fn weight(self) -> Weight {
                use Severity::*;
                use Weight::*;
                match self { $(FindingKind::$kind => $weight,)+ }
            }
        }
    };
}

kinds! {
    /// The region is shorter than any image.
    ImageTooShort = "image-too-short", Always(Error);
    /// There is no magic at the start: not an image, or mkfs was interrupted.
    NotAnImage = "not-an-image", Always(Error);
    /// The image has a format version that this program does not know.
    UnknownVersion = "unknown-version", Always(Error);
    /// The image uses features that this program must know to read it, and does not.
    UnknownFeatures = "unknown-features", Always(Error);
    /// The superblock's checksum does not match.
    SuperblockChecksum = "superblock-checksum", Always(Error);
    /// The image is longer than the file that should hold it.
    ImageTruncated = "image-truncated", Always(Error);
    /// The superblock's areas do not lie as mkfs lays them.
    SuperblockGeometry = "superblock-geometry", Always(Error);
    /// The copy of the superblock in the last block is not a whole copy.
    SuperblockCopy = "superblock-copy", Always(Warning);
    /// Reserved bytes are not zero.
    ReservedNotZero = "reserved-not-zero", Always(Warning);

    /// A journal slot holds a record that was being written; it never counted.
    JournalTorn = "journal-torn", ErrorIfClean;
    /// A journal slot holds a whole record: a rename that the next attach completes.
    JournalPending = "journal-pending", ErrorIfClean;
    /// A journal slot holds a finished record whose clearing was lost.
    JournalStale = "journal-stale", ErrorIfClean;
    /// A journal record names things that cannot be.
    JournalRecord = "journal-record", Always(Error);

    /// An entry of the segment table is not the offset of a block in the data area.
    SegmentOffset = "segment-offset", Always(Error);
    /// The list of a segment's blocks does not verify, or names what cannot be its blocks.
    SegmentList = "segment-list", Always(Error);
    /// Two segments of inodes lie in the same blocks.
    SegmentOverlap = "segment-overlap", Always(Error);
    /// A segment follows an entry of the table that is empty; segments are added in order.
    SegmentGap = "segment-gap", Always(Error);

    /// An inode says that it has another number.
    InodeNumber = "inode-number", Always(Error);
    /// An inode's identity does not match its checksum.
    InodeChecksum = "inode-checksum", ErrorIfClean;
    /// An inode's identity does not match its checksum, though it has attributes that only a finished creation can have.
    InodeDamaged = "inode-damaged", Always(Error);
    /// An inode is of a kind that does not exist.
    InodeKind = "inode-kind", Always(Error);
    /// An inode is in use in generation zero, which no life has.
    InodeGeneration = "inode-generation", Always(Error);
    /// Inode number zero is in use.
    InodeZero = "inode-zero", Always(Error);
    /// A free inode has an access time or an inline body, which the next file would inherit.
    FreeInodeNotZero = "free-inode-not-zero", ErrorIfClean;
    /// An inode's pointer into memory is of an epoch that is still to come.
    PointerEpoch = "pointer-epoch", Always(Error);
    /// An inode that is no device has a device number.
    InodeDevice = "inode-device", Always(Warning);
    /// An inode that is no directory has a directory's fields.
    DirectoryFields = "directory-fields", WarningIfClean;
    /// An inode has no property entry that verifies.
    NoProperty = "no-property", ErrorIfClean;
    /// The mode says another kind of file than the inode's identity does.
    PropertyKind = "property-kind", Always(Error);
    /// One of the two property entries does not verify, though it was in use: a change that a crash tore.
    PropertyTorn = "property-torn", Always(Note);
    /// The two property entries are not one change apart.
    PropertySequence = "property-sequence", Always(Error);
    /// A property entry has unknown flags, or flags that do not go with its kind.
    PropertyFlags = "property-flags", Always(Error);
    /// A size that a file of this kind cannot have.
    PropertySize = "property-size", Always(Error);
    /// A file of a kind that has no body has one, or an inline one has another beside it.
    PropertyRoot = "property-root", Always(Error);

    /// A directory's log leads to an offset that no page can have.
    LogOffset = "log-offset", Always(Error);
    /// A directory's log leads to a page that is not its own, or whose header does not verify.
    LogPage = "log-page", Always(Error);
    /// A directory's log leads to a page for the second time.
    LogLoop = "log-loop", Always(Error);
    /// A page's first cookie is not above all cookies of the pages before it.
    LogCookies = "log-cookies", Always(Error);
    /// A directory's log ends with a compacted page, to which nothing can be appended.
    LogEnd = "log-end", Always(Warning);
    /// A slot has a tag that this format does not know.
    SlotTag = "slot-tag", Always(Error);
    /// A slot names an offset at which no dentry can be.
    SlotOffset = "slot-offset", Always(Error);
    /// A slot names a dentry that does not verify: a creation that was never finished.
    SlotHalfMade = "slot-half-made", ErrorIfClean;
    /// A compacted page names a dentry that does not verify; only whole ones ever come to such a page.
    DentryDamaged = "dentry-damaged", Always(Error);
    /// A dentry stands in the log of another directory than it says.
    DentryParent = "dentry-parent", Always(Error);
    /// A dentry's cookie does not belong to its place in the log.
    DentryCookie = "dentry-cookie", Always(Error);
    /// Two dentries lie in the same cache lines, or two slots name the same one.
    DentryOverlap = "dentry-overlap", Always(Error);
    /// A name has a slash or a zero byte in it, or is `.` or `..`.
    NameInvalid = "name-invalid", Always(Error);
    /// A directory has the same name twice.
    NameTwice = "name-twice", Always(Error);
    /// A name leads to an inode number that the image cannot have.
    DentryTarget = "dentry-target", Always(Error);
    /// A name leads to an inode that is free or not whole.
    DentryDangling = "dentry-dangling", ErrorIfClean;
    /// A name says another kind of file than its inode does.
    DentryKind = "dentry-kind", Always(Error);
    /// A dentry's valid word is of another use of its line than its seal.
    DentryTurn = "dentry-turn", ErrorIfClean;

    /// There is no root directory.
    RootMissing = "root-missing", Always(Error);
    /// The root directory has a name.
    RootNamed = "root-named", Always(Error);
    /// A directory has more than one name.
    DirectoryNames = "directory-names", Always(Error);
    /// A directory's `..` is not the directory that its name is in.
    DirectoryParent = "directory-parent", ErrorIfClean;
    /// A directory is not below the root, but below itself.
    DirectoryCycle = "directory-cycle", Always(Error);
    /// A file has no name: unlinked while open, or half-made.
    Orphan = "orphan", ErrorIfClean;
    /// A file's link count is not the number of its names (for a directory: two more than its subdirectories).
    LinksWrong = "links-wrong", ErrorIfClean;

    /// A body's block map is of an impossible height or shape.
    MapShape = "map-shape", Always(Error);
    /// A body leads to a block outside of the data area.
    BlockOutside = "block-outside", Always(Error);
    /// A block is used by two owners.
    BlockTwice = "block-twice", Always(Error);
    /// A body has blocks behind the end of the file.
    BeyondEnd = "beyond-end", ErrorIfClean;
    /// A file's count of blocks is not what its body has.
    BlocksWrong = "blocks-wrong", ErrorIfClean;
    /// The extended attributes do not verify or do not parse.
    XattrBody = "xattr-body", Always(Error);

    /// There are no maps of what is free: a repair threw them away, or there was no room for the list of shared blocks. The next attach builds them anew.
    SnapshotDropped = "snapshot-dropped", Always(Note);
    /// The image says that it was left cleanly, but what was left does not match its checksum.
    SnapshotChecksum = "snapshot-checksum", Always(Error);
    /// A figure that was left with a clean image is wrong.
    SnapshotFigure = "snapshot-figure", Always(Error);
    /// The list of dentry blocks with free lines and of shared blocks is broken.
    SnapshotSlabs = "snapshot-slabs", Always(Error);
    /// A shared block has more or fewer pointers than was left: it would be freed while a file has it, or never.
    SnapshotShares = "snapshot-shares", Always(Error);
    /// The block map says free of a block that is in use: it would be handed out again.
    BlockNotMarked = "block-not-marked", Always(Error);
    /// The block map says used of a block that nothing leads to.
    BlockLeaked = "block-leaked", WarningIfClean;
    /// The inode map says free of an inode that is in use: it would be handed out again.
    InodeNotMarked = "inode-not-marked", Always(Error);
    /// The inode map says used of an inode that is free.
    InodeLeaked = "inode-leaked", WarningIfClean;
    /// A cache line of a dentry is listed as free: it would be handed out again.
    LineNotMarked = "line-not-marked", Always(Error);
    /// Cache lines of dentry blocks are free, but not listed as free.
    LineLeaked = "line-leaked", WarningIfClean;
}

impl FindingKind {
    /// The severity on an image that was left cleanly, or not.
    pub const fn severity(self, clean: bool) -> Severity {
        match self.weight() {
            Weight::Always(severity) => severity,
            Weight::ErrorIfClean if clean => Severity::Error,
            Weight::WarningIfClean if clean => Severity::Warning,
            Weight::ErrorIfClean | Weight::WarningIfClean => Severity::Note,
        }
    }
}

impl fmt::Display for FindingKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What could be done about a finding, with all that a repair needs to know.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Repair {
    /// Nothing that a program should decide: restore from a backup.
    None,
    /// Attach: recovery does it.
    Recover,
    /// Write the superblock's description anew from the copy in block `copy`.
    RestoreSuperblock {
        /// Number of the block.
        copy: u64,
    },
    /// Write the copy in block `copy` anew from the superblock.
    RewriteCopy {
        /// Number of the block.
        copy: u64,
    },
    /// Throw the maps of what is free away: the next attach scans and builds all of them anew.
    DropSnapshot,
    /// Make bytes zero.
    Zero {
        /// Offset of the first.
        offset: u64,
        /// How many.
        length: u64,
    },
    /// Make a word zero: a journal slot's seal, or a log slot, whose file becomes an orphan if it has no other name.
    ClearWord {
        /// Its offset.
        offset: u64,
    },
    /// Give a word the value with which a checksum matches, or that follows from what is around it.
    SetWord {
        /// Its offset.
        offset: u64,
        /// The right value.
        word: u64,
    },
    /// Do what is left of a rename, and end its record.
    CompleteRename {
        /// Offset of the journal slot.
        slot: u64,
    },
    /// Look for the inodes of a segment whose place is not known; if they are gone, give the segment fresh ones.
    FindSegment {
        /// Its number.
        segment: u64,
    },
    /// Write identity or attributes anew from what is left of the other.
    MendInode {
        /// Its number.
        number: u64,
    },
    /// Free an inode of which nothing can be read.
    FreeInode {
        /// Its number.
        number: u64,
    },
    /// Make a dentry not count.
    Invalidate {
        /// Its offset.
        dentry: u64,
    },
    /// Make the name anew in the same directory, with another spelling if it cannot stay.
    Rename {
        /// The offset of its dentry.
        dentry: u64,
    },
    /// Write the header of a page anew, as the names in it say.
    MendPage {
        /// Its offset.
        page: u64,
        /// Inode number of the directory.
        directory: u64,
        /// Its first cookie.
        first_cookie: u64,
        /// Whether it is a compacted one.
        compacted: bool,
    },
    /// End the log before a page; the files of the names in it become orphans.
    CutLog {
        /// The word that leads to the page.
        offset: u64,
    },
    /// Add an empty page to a log.
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
    MendProperty {
        /// Inode number.
        number: u64,
    },
    /// Give the file a body of its own, with what can be read of the present one.
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
    /// What it does, as the end of "shall I ...?". None: there is no repair.
    pub fn question(&self) -> Option<String> {
        Some(match *self {
            Repair::None => return None,
            Repair::Recover => "recover the image".into(),
            Repair::RestoreSuperblock { .. } => "restore the superblock from its copy".into(),
            Repair::RewriteCopy { .. } => "write the copy anew".into(),
            Repair::DropSnapshot => "have the maps of what is free built anew".into(),
            Repair::Zero { .. } => "make the bytes zero".into(),
            Repair::ClearWord { .. } => "clear it".into(),
            Repair::SetWord { .. } => "set the word right".into(),
            Repair::CompleteRename { .. } => "complete the rename".into(),
            Repair::FindSegment { segment } => format!("look for the inodes of segment {segment}"),
            Repair::MendInode { .. } => "write what is lost of it anew from what is left".into(),
            Repair::FreeInode { .. } => "free it".into(),
            Repair::Invalidate { .. } => "remove the name".into(),
            Repair::Rename { .. } => "give the file another name there".into(),
            Repair::MendPage { .. } => "write the header of the page anew".into(),
            Repair::CutLog { .. } => "end the directory there and look for its files in lost+found".into(),
            Repair::AppendPage { .. } => "add an empty page".into(),
            Repair::Reconnect { .. } => "give it a name in /lost+found".into(),
            Repair::SetParent { parent, .. } => format!("set its `..` to inode {parent}"),
            Repair::SetLinks { links, .. } => format!("set its links to {links}"),
            Repair::SetBlocks { blocks, .. } => format!("set its blocks to {blocks}"),
            Repair::MendProperty { .. } => "make its attributes fit".into(),
            Repair::CopyBody { .. } => "give it a body of its own with what can be read".into(),
            Repair::DropXattrs { .. } => "remove its extended attributes".into(),
        })
    }

    /// Whether it may be done without asking: it takes nothing away that anybody could reach, and what it writes is certain.
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
            | Repair::MendInode { .. }
            | Repair::FreeInode { .. }
            | Repair::Invalidate { .. }
            | Repair::Rename { .. }
            | Repair::MendPage { .. }
            | Repair::CutLog { .. }
            | Repair::Reconnect { .. }
            | Repair::MendProperty { .. }
            | Repair::CopyBody { .. }
            | Repair::DropXattrs { .. } => false,
        }
    }
}

impl Finding {
    /// Whether the repair may be done without asking ([`Repair::is_safe`]; and records that ended, or never counted, can go).
    pub fn is_safe_to_repair(&self) -> bool {
        self.repair.is_safe() || matches!(self.kind, FindingKind::JournalTorn | FindingKind::JournalStale)
    }
}

/// One thing that is wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// The invariant.
    pub kind: FindingKind,
    /// How bad it is on this image.
    pub severity: Severity,
    /// The inode that it is about.
    pub inode: Option<u64>,
    /// That inode's path, if it has one. Bytes that are not UTF-8, and control characters, are escaped.
    pub path: Option<String>,
    /// Where on the image to look.
    pub offset: Option<u64>,
    /// What is wrong, in words, without inode and path.
    pub sentence: String,
    /// What could be done.
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
