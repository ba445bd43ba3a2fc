//! Flags of files: FS_IOC_GETFLAGS, FS_IOC_SETFLAGS, FS_IOC_FSGETXATTR, FS_IOC_FSSETXATTR,
//! file_getattr and file_setattr, with the flags and the errors of tmpfs.
//!
//! The calls that the flags forbid check them where they read the file's protection or attributes.

use crate::caller::Caller;
use crate::credentials::Capabilities;
use engine::format::FileKind;
use engine::{Changes, FileFlags, Node};
use pmem::Memory;
use tables::{Errno, Result};

/// A file with one of these keeps its names, and gets no others.
pub(crate) const KEEP_NAME: FileFlags = FileFlags::IMMUTABLE.with(FileFlags::APPEND_ONLY);
/// A file with one of these keeps mode, owner, extended attributes, and times but the present.
pub(crate) const KEEP_ATTRIBUTES: FileFlags = KEEP_NAME;
/// New files have these from their directory.
pub(crate) const INHERITED: FileFlags = FileFlags::NO_DUMP.with(FileFlags::NO_ACCESS_TIME);

/// Each flag with its FS_XFLAG_*.
const EXTENDED_BITS: [(FileFlags, u32); 4] = [
    (FileFlags::IMMUTABLE, 0x08),
    (FileFlags::APPEND_ONLY, 0x10),
    (FileFlags::NO_DUMP, 0x80),
    (FileFlags::NO_ACCESS_TIME, 0x40),
];

/// FS_XFLAG_PROJINHERIT: new files get the project of their directory.
const INHERIT_PROJECT: u32 = 0x200;
/// FS_XFLAG_EXTSIZE: the file has a hint of the length of its extents.
const EXTENT_HINT: u32 = 0x800;
/// FS_XFLAG_EXTSZINHERIT: the same for new files of a directory.
const INHERITED_EXTENT_HINT: u32 = 0x1000;
/// FS_XFLAG_* that may be set without an effect: PREALLOC and HASATTR, which programs only read,
/// and the hints of a length that is zero.
const WITHOUT_EFFECT: u32 = 0x8000_0002 | EXTENT_HINT | INHERITED_EXTENT_HINT | 0x1_0000;

/// Attributes of a file as in `struct fsxattr` and `struct file_attr`, but for its extents.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ExtendedFlags {
    /// FS_XFLAG_*.
    pub flags: u64,
    /// Hint of the length of extents.
    pub extent_bytes: u32,
    /// Project.
    pub project: u32,
    /// Hint of the length of extents when shared ones are written.
    pub shared_extent_bytes: u32,
}

/// ioctl: FS_*_FL of a file, in 32 bits, whatever the number says.
pub const FS_IOC_GETFLAGS: u32 = 0x8008_6601;
/// ioctl: sets FS_*_FL.
pub const FS_IOC_SETFLAGS: u32 = 0x4008_6602;
/// ioctl: `struct fsxattr` of a file.
pub const FS_IOC_FSGETXATTR: u32 = 0x801c_581f;
/// ioctl: sets it.
pub const FS_IOC_FSSETXATTR: u32 = 0x401c_5820;
/// Words of 32 bits in `struct fsxattr`: flags, hint of extents, number of extents, project, hint
/// of shared extents, and two of padding.
pub const FSXATTR_WORDS: usize = 7;

impl ExtendedFlags {
    /// `struct fsxattr`.
    pub fn to_fsxattr(&self) -> [u32; FSXATTR_WORDS] {
        [self.flags as u32, self.extent_bytes, 0, self.project, self.shared_extent_bytes, 0, 0]
    }

    /// From `struct fsxattr`.
    pub fn from_fsxattr(words: &[u32; FSXATTR_WORDS]) -> ExtendedFlags {
        let [flags, extent_bytes, _, project, shared_extent_bytes, ..] = *words;
        ExtendedFlags { flags: flags.into(), extent_bytes, project, shared_extent_bytes }
    }

    /// Words of 64 bits in the first version of `struct file_attr`.
    pub const FILE_ATTR_WORDS: usize = 3;

    /// `struct file_attr`.
    pub fn to_file_attr(&self) -> [u64; Self::FILE_ATTR_WORDS] {
        let shared = u64::from(self.project) | u64::from(self.shared_extent_bytes) << 32;
        [self.flags, self.extent_bytes.into(), shared]
    }

    /// From `struct file_attr`; EINVAL for flags that the kernel does not know.
    pub fn from_file_attr(words: &[u64; Self::FILE_ATTR_WORDS]) -> Result<ExtendedFlags> {
        /// FS_XFLAG_*.
        const KNOWN: u64 = 0x8001_fffb;
        let [flags, extents, shared] = *words;
        if flags & !KNOWN != 0 {
            return Err(Errno::EINVAL);
        }
        let (extent_bytes, project, shared_extent_bytes) = (extents as u32, shared as u32, (shared >> 32) as u32);
        Ok(ExtendedFlags { flags, extent_bytes, project, shared_extent_bytes })
    }
}

impl<M: Memory> Caller<'_, '_, M> {
    /// The flags of a regular file or directory; ENOTTY for others.
    pub fn file_flags(&self, node: Node) -> Result<FileFlags> {
        let file = self.thread.protection(node)?;
        match file.kind() {
            Some(FileKind::Regular | FileKind::Directory) => Ok(file.flags.only(FileFlags::SETTABLE)),
            _ => Err(Errno::ENOTTY),
        }
    }

    /// FS_IOC_GETFLAGS: FS_*_FL.
    pub fn flag_bits(&self, node: Node) -> Result<u32> {
        Ok(self.file_flags(node)?.to_linux())
    }

    /// FS_IOC_FSGETXATTR.
    pub fn extended_flags(&self, node: Node) -> Result<ExtendedFlags> {
        let flags = self.file_flags(node)?;
        let has = EXTENDED_BITS.iter().filter(|(flag, _)| flags.has_any(*flag));
        let bits = has.fold(0, |bits, (_, bit)| bits | u64::from(*bit));
        Ok(ExtendedFlags { flags: bits, ..ExtendedFlags::default() })
    }

    /// Sets the flags of a file. EPERM unless the caller owns the file and, to change what forbids
    /// other changes, has CAP_LINUX_IMMUTABLE.
    pub fn set_file_flags(&self, node: Node, flags: FileFlags) -> Result<()> {
        self.set_flags_if(node, flags, Ok(()))
    }

    /// FS_IOC_SETFLAGS, by FS_*_FL; EOPNOTSUPP for flags that files cannot have.
    pub fn set_flag_bits(&self, node: Node, bits: u32) -> Result<()> {
        let flags = FileFlags::from_linux(bits);
        self.set_flags_if(node, flags.unwrap_or_default(), flags.map(drop).ok_or(Errno::EOPNOTSUPP))
    }

    /// FS_IOC_FSSETXATTR; EOPNOTSUPP for attributes that files cannot have, such as projects.
    pub fn set_extended_flags(&self, node: Node, wanted: &ExtendedFlags) -> Result<()> {
        let bits = wanted.flags as u32;
        let supported = self.check_extended(self.thread.protection(node)?.is_directory(), wanted);
        let has = EXTENDED_BITS.iter().filter(|(_, bit)| bits & bit != 0);
        self.set_flags_if(node, has.fold(FileFlags::NONE, |flags, (flag, _)| flags.with(*flag)), supported)
    }

    fn check_extended(&self, is_directory: bool, wanted: &ExtendedFlags) -> Result<()> {
        let known = EXTENDED_BITS.iter().fold(WITHOUT_EFFECT, |known, (_, bit)| known | bit);
        let bits = wanted.flags as u32;
        let wrong_kind = if is_directory { EXTENT_HINT } else { INHERITED_EXTENT_HINT };
        let changes_project = wanted.project != 0 || bits & INHERIT_PROJECT != 0;
        let no_project = wanted.project == u32::MAX || self.credentials.namespace.is_some() && changes_project;
        if bits & wrong_kind != 0 || no_project {
            return Err(Errno::EINVAL);
        }
        let others = wanted.extent_bytes != 0 || wanted.project != 0 || wanted.shared_extent_bytes != 0;
        if bits & !known != 0 || others { Err(Errno::EOPNOTSUPP) } else { Ok(()) }
    }

    /// `supported`: the result for a caller that may set the flags.
    fn set_flags_if(&self, node: Node, flags: FileFlags, supported: Result<()>) -> Result<()> {
        self.permissions().check_writable()?;
        self.file_flags(node)?;
        let credentials = self.credentials;
        self.thread.change(node, |file| {
            let guarded = file.flags.difference(flags).has_any(KEEP_NAME);
            if !credentials.owns(file.uid) || guarded && !credentials.may(Capabilities::LINUX_IMMUTABLE) {
                return Err(Errno::EPERM.refusal());
            }
            supported.map_err(Errno::refusal)?;
            Ok(Changes { flags: Some(flags), ..Changes::default() })
        })?;
        Ok(())
    }
}
