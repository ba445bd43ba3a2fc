//! Calls by path that read or change attributes: modes, owners, times, lengths, extended
//! attributes.

use crate::abi::entry::{NATIVE, Verdict, done};
use crate::abi::user_memory;
use crate::call::Call;
use crate::calls::files::with_open_file;
use crate::calls::kernel_objects;
use crate::calls::names::{
    Ids, PathArguments, at, by_node, check_flags, follow, is_empty_or_none, on_directory, path, query_fast,
};
use crate::descriptors;
use crate::extensions;
use crate::paths::Directory;
use crate::process::limits;
use crate::process::session::Calling;
use engine::{Node, Protection};
use libc::{AT_EMPTY_PATH, AT_SYMLINK_NOFOLLOW};
use pmem::UserBytesMut;
use posix::path::LastLink;
use posix::{Errno, ExtendedFlags, Result, TimeToSet};

fn chmod_by(call: &mut Call<'_>, by: PathArguments, mode: u64, flags: i32) -> Result<Verdict> {
    let last_link = follow(flags, AT_SYMLINK_NOFOLLOW, LastLink::Stay);
    by_node(call, by, flags, last_link, &mut |caller, node| {
        check_flags(flags, AT_SYMLINK_NOFOLLOW | AT_EMPTY_PATH)?;
        change_mode(caller, node, mode as u32)
    })
}

/// chmod for a file. The kernel's object behind a FIFO or a socket follows.
pub fn change_mode(caller: &Calling<'_>, node: Node, mode: u32) -> Result<i64> {
    let changed = caller.chmod(node, mode)?;
    kernel_objects::follow_rights(caller, &changed.protection());
    Ok(0)
}

/// chown for a file, likewise.
pub fn change_owner(caller: &Calling<'_>, node: Node, (user, group): (u64, u64)) -> Result<i64> {
    let changed = caller.chown(node, id(user), id(group))?;
    kernel_objects::follow_rights(caller, &changed.protection());
    Ok(0)
}

/// chmod(path, mode).
pub fn chmod(call: &mut Call<'_>) -> Result<Verdict> {
    let mode = call.frame.rsi;
    chmod_by(call, path(0), mode, 0)
}

/// fchmodat(directory, path, mode).
pub fn fchmodat(call: &mut Call<'_>) -> Result<Verdict> {
    let mode = call.frame.rdx;
    chmod_by(call, at(0), mode, 0)
}

/// fchmodat2(directory, path, mode, flags).
pub fn fchmodat2(call: &mut Call<'_>) -> Result<Verdict> {
    let (mode, flags) = (call.frame.rdx, call.frame.r10 as i32);
    chmod_by(call, at(0), mode, flags)
}

/// Parses an id to set; -1 leaves the id unchanged.
fn id(argument: u64) -> Option<u32> {
    Some(argument as u32).filter(|&id| id != u32::MAX)
}

fn chown_by(call: &mut Call<'_>, by: PathArguments, owner: (u64, u64), flags: i32) -> Result<Verdict> {
    let last_link = follow(flags, AT_SYMLINK_NOFOLLOW, LastLink::Stay);
    by_node(call, by, flags, last_link, &mut |caller, node| {
        check_flags(flags, AT_SYMLINK_NOFOLLOW | AT_EMPTY_PATH)?;
        change_owner(caller, node, owner)
    })
}

/// chown(path, user, group).
pub fn chown(call: &mut Call<'_>) -> Result<Verdict> {
    let owner = (call.frame.rsi, call.frame.rdx);
    chown_by(call, path(0), owner, 0)
}

/// lchown(path, user, group).
pub fn lchown(call: &mut Call<'_>) -> Result<Verdict> {
    let owner = (call.frame.rsi, call.frame.rdx);
    chown_by(call, path(0), owner, AT_SYMLINK_NOFOLLOW)
}

/// fchownat(directory, path, user, group, flags).
pub fn fchownat(call: &mut Call<'_>) -> Result<Verdict> {
    let (owner, flags) = ((call.frame.rdx, call.frame.r10), call.frame.r8 as i32);
    chown_by(call, at(0), owner, flags)
}

type Times = (TimeToSet, TimeToSet);
const NOW: Times = (TimeToSet::Now, TimeToSet::Now);

/// Reads the times of utimes and futimesat; null means now.
fn microseconds(address: u64) -> Result<Times> {
    if address == 0 {
        return Ok(NOW);
    }
    let times: [[i64; 2]; 2] = user_memory::read(address)?;
    let moment = |[seconds, micro]: [i64; 2]| match micro {
        0..=999_999 => TimeToSet::from_timespec(seconds, micro * 1000),
        _ => Err(Errno::EINVAL),
    };
    Ok((moment(times[0])?, moment(times[1])?))
}

fn utime_by(call: &mut Call<'_>, by: PathArguments, times: Result<Times>) -> Result<Verdict> {
    by_node(call, by, 0, LastLink::Follow, &mut |caller, node| {
        let (accessed, modified) = times?;
        caller.set_times(node, accessed, modified).map(|_| 0)
    })
}

/// utime(path, times).
pub fn utime(call: &mut Call<'_>) -> Result<Verdict> {
    let address = call.frame.rsi;
    let times = match address {
        0 => Ok(NOW),
        address => user_memory::read::<[i64; 2]>(address).and_then(|[accessed, modified]| {
            Ok((TimeToSet::from_timespec(accessed, 0)?, TimeToSet::from_timespec(modified, 0)?))
        }),
    };
    utime_by(call, path(0), times)
}

/// utimes(path, times).
pub fn utimes(call: &mut Call<'_>) -> Result<Verdict> {
    let times = microseconds(call.frame.rsi);
    utime_by(call, path(0), times)
}

/// futimesat(directory, path, times).
pub fn futimesat(call: &mut Call<'_>) -> Result<Verdict> {
    let times = microseconds(call.frame.rdx);
    utime_by(call, at(0), times)
}

/// utimensat(directory, path, times, flags). Without a path it acts on the descriptor.
pub fn utimensat(call: &mut Call<'_>) -> Result<Verdict> {
    let (address, times, flags) = (call.frame.rsi, call.frame.rdx, call.frame.r10 as i32);
    let times: Result<Times> = match times {
        0 => Ok(NOW),
        times => user_memory::read::<[[i64; 2]; 2]>(times).and_then(|[accessed, modified]| {
            Ok((
                TimeToSet::from_timespec(accessed[0], accessed[1])?,
                TimeToSet::from_timespec(modified[0], modified[1])?,
            ))
        }),
    };
    let mut set = |caller: &Calling<'_>, node| {
        let (accessed, modified) = times?;
        check_flags(flags, AT_SYMLINK_NOFOLLOW | AT_EMPTY_PATH)?;
        caller.set_times(node, accessed, modified).map(|_| 0)
    };
    if address == 0 {
        let Directory::Descriptor(fd) = Directory::from_raw(call.frame.rdi) else { return Ok(NATIVE) };
        if flags & !AT_EMPTY_PATH != 0 {
            return Err(Errno::EINVAL);
        }
        descriptors::kernel_verdict(call, fd.into())?;
        return on_directory(call, Directory::Descriptor(fd), &mut set);
    }
    // With both omitted the kernel does not even read the path.
    if times == Ok((TimeToSet::Omit, TimeToSet::Omit)) {
        return Ok(done(0));
    }
    by_node(call, at(0), flags, follow(flags, AT_SYMLINK_NOFOLLOW, LastLink::Stay), &mut set)
}

/// truncate(path, length).
pub fn truncate(call: &mut Call<'_>) -> Result<Verdict> {
    let length = call.frame.rsi as i64;
    let mut is_leased = false;
    let verdict = by_node(call, path(0), 0, LastLink::Follow, &mut |caller, node| {
        limits::permit_growth(caller, node, length)?;
        is_leased = !caller.data().truncate_unless_leased(node, length)?;
        Ok(0)
    })?;
    if is_leased { extensions::truncate(call, length) } else { Ok(verdict) }
}

// Extended attributes.

/// Maximum length of an attribute's name with its zero byte.
const NAME_ROOM_BYTES: usize = posix::XATTR_NAME_BYTES_MAX + 1;

/// The name of an attribute.
pub struct AttributeName {
    bytes: [u8; NAME_ROOM_BYTES],
    length: usize,
}

impl AttributeName {
    /// Copies it from the program.
    pub fn copy(address: u64) -> Result<AttributeName> {
        let mut bytes = [0; NAME_ROOM_BYTES];
        match user_memory::copy_string(address, &mut bytes) {
            Ok(length) => Ok(AttributeName { bytes, length }),
            Err(Errno::ENAMETOOLONG) => Err(Errno::ERANGE),
            Err(other) => Err(other),
        }
    }

    /// The name without the zero byte.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.length]
    }
}

/// setxattr for a file.
pub fn set_attribute(caller: &Calling<'_>, node: Node, [name, value, length, flags]: [u64; 4]) -> Result<i64> {
    let name = AttributeName::copy(name)?;
    if length > posix::VALUE_BYTES_MAX as u64 {
        return Err(Errno::E2BIG);
    }
    let value = user_memory::readable(value, length)?;
    caller.xattrs().set_attribute(node, name.bytes(), value, flags as i32)?;
    follow_access_list(caller, node, name.bytes())
}

/// The kernel's object behind a FIFO or a socket follows a change of its access list.
fn follow_access_list(caller: &Calling<'_>, node: Node, attribute: &[u8]) -> Result<i64> {
    if attribute == b"system.posix_acl_access" {
        kernel_objects::follow_rights(caller, &caller.thread.protection(node)?);
    }
    Ok(0)
}

/// getxattr for a file.
pub fn get_attribute(caller: &Calling<'_>, node: Node, [name, value, room]: [u64; 3]) -> Result<i64> {
    let name = AttributeName::copy(name)?;
    into_part(value, room, |value| caller.xattrs().get_attribute(node, name.bytes(), value))
}

/// Fills a buffer. Only the part that is filled must be accessible.
fn into_part(address: u64, room: u64, fill: impl FnOnce(UserBytesMut<'_>) -> Result<usize>) -> Result<i64> {
    let room = room.min(posix::VALUE_BYTES_MAX as u64);
    // A buffer of which nothing is accessible is empty: that suffices for an error and for a result
    // without bytes.
    let into = user_memory::writable_part(address, room).unwrap_or_default();
    match fill(into) {
        Err(Errno::ERANGE) if (into.len() as u64) < room => Err(user_memory::EFAULT),
        Ok(length) if length > into.len() && room > 0 => Err(user_memory::EFAULT),
        result => result.map(|length| length as i64),
    }
}

/// listxattr for a file.
pub fn list_attributes(caller: &Calling<'_>, node: Node, [names, room]: [u64; 2]) -> Result<i64> {
    let most = posix::LIST_BYTES_MAX as u64;
    match into_part(names, room.min(most), |names| caller.xattrs().list_attributes(node, names)) {
        // No buffer is large enough.
        Err(Errno::ERANGE) if room >= most => Err(Errno(libc::E2BIG)),
        result => result,
    }
}

/// removexattr for a file.
pub fn remove_attribute(caller: &Calling<'_>, node: Node, name: u64) -> Result<i64> {
    let name = AttributeName::copy(name)?;
    caller.xattrs().remove_attribute(node, name.bytes())?;
    follow_access_list(caller, node, name.bytes())
}

/// An operation on a file's extended attributes, by the call's arguments.
type ActOnXattrs = fn(&Calling<'_>, Node, &[u64; 6]) -> Result<i64>;

fn on_xattrs(call: &mut Call<'_>, last_link: LastLink, act: ActOnXattrs) -> Result<Verdict> {
    let arguments = call.arguments();
    by_node(call, path(0), 0, last_link, &mut |caller, node| act(caller, node, &arguments))
}

fn read_xattrs(call: &mut Call<'_>, last_link: LastLink, act: ActOnXattrs) -> Result<Verdict> {
    let arguments = call.arguments();
    let report = |caller: &Calling<'_>, node, _: &Protection| act(caller, node, &arguments);
    match query_fast(call, path(0), last_link, Ids::Effective, report)? {
        Some(verdict) => Ok(verdict),
        None => on_xattrs(call, last_link, act),
    }
}

macro_rules! xattr_calls {
    ($($name:ident, $link_name:ident, $way:ident, $act:expr, $text:literal;)*) => {
        $(
            #[doc = $text]
            pub fn $name(call: &mut Call<'_>) -> Result<Verdict> {
                $way(call, LastLink::Follow, $act)
            }
            #[doc = $text]
            #[doc = " Of a symbolic link itself."]
            pub fn $link_name(call: &mut Call<'_>) -> Result<Verdict> {
                $way(call, LastLink::Stay, $act)
            }
        )*
    };
}

xattr_calls! {
    setxattr, lsetxattr, on_xattrs, |caller, node, &[_, name, value, length, flags, _]| set_attribute(caller, node, [name, value, length, flags]),
        "setxattr(path, name, value, length, flags).";
    getxattr, lgetxattr, read_xattrs, |caller, node, &[_, name, value, room, ..]| get_attribute(caller, node, [name, value, room]),
        "getxattr(path, name, value, room).";
    listxattr, llistxattr, read_xattrs, |caller, node, &[_, names, room, ..]| list_attributes(caller, node, [names, room]),
        "listxattr(path, names, room).";
    removexattr, lremovexattr, on_xattrs, |caller, node, &[_, name, ..]| remove_attribute(caller, node, name),
        "removexattr(path, name).";
}

/// The calls with flags of Linux 6.13: by path, or by an open descriptor with AT_EMPTY_PATH. The
/// kernel checks the other arguments, if it has the calls.
fn xattr_at(call: &mut Call<'_>, mut act: impl FnMut(&Calling<'_>, Node) -> Result<i64>) -> Result<Verdict> {
    let (fd, address, flags) = (call.frame.rdi, call.frame.rsi, call.frame.rdx as i32);
    if check_flags(flags, AT_SYMLINK_NOFOLLOW | AT_EMPTY_PATH).is_err() {
        return Ok(NATIVE);
    }
    at_or_open(call, (fd, address, flags), &mut act)
}

/// Acts on the file of a path, or on an open descriptor with AT_EMPTY_PATH.
fn at_or_open(
    call: &mut Call<'_>,
    (fd, address, flags): (u64, u64, i32),
    mut act: &mut dyn FnMut(&Calling<'_>, Node) -> Result<i64>,
) -> Result<Verdict> {
    if is_empty_or_none(flags, address)? {
        return match Directory::from_raw(fd) {
            Directory::Descriptor(_) => with_open_file(call, |caller, file| act(caller, file.node())),
            working => on_directory(call, working, &mut act),
        };
    }
    by_node(call, at(0), flags, follow(flags, AT_SYMLINK_NOFOLLOW, LastLink::Stay), &mut act)
}

/// Reads the value's address, its length and the flags from the argument of setxattrat and
/// getxattrat.
fn value_of(structure: u64, length: u64) -> Result<(u64, u64, u32)> {
    /// Size of the structure's first version: two numbers.
    const BYTES: u64 = 16;
    if !(BYTES..=4096).contains(&length) {
        return Err(if length < BYTES { Errno::EINVAL } else { Errno::E2BIG });
    }
    check_rest(structure, BYTES, length)?;
    let [address, rest]: [u64; 2] = user_memory::read(structure)?;
    Ok((address, rest & u64::from(u32::MAX), (rest >> 32) as u32))
}

/// E2BIG if a structure says more than what `known` bytes of it say.
fn check_rest(structure: u64, known: u64, length: u64) -> Result<()> {
    for more in known..length {
        if user_memory::read::<u8>(structure.wrapping_add(more))? != 0 {
            return Err(Errno::E2BIG);
        }
    }
    Ok(())
}

/// setxattrat(directory, path, flags, name, value, length).
pub fn setxattrat(call: &mut Call<'_>) -> Result<Verdict> {
    let [_, _, _, name, structure, length] = call.arguments();
    let value = value_of(structure, length);
    xattr_at(call, |caller, node| {
        let (address, length, flags) = value?;
        set_attribute(caller, node, [name, address, length, flags.into()])
    })
}

/// getxattrat(directory, path, flags, name, value, length).
pub fn getxattrat(call: &mut Call<'_>) -> Result<Verdict> {
    let [_, _, _, name, structure, length] = call.arguments();
    let value = value_of(structure, length);
    xattr_at(call, |caller, node| match value? {
        (address, room, 0) => get_attribute(caller, node, [name, address, room]),
        _ => Err(Errno::EINVAL),
    })
}

/// listxattrat(directory, path, flags, names, room).
pub fn listxattrat(call: &mut Call<'_>) -> Result<Verdict> {
    let [_, _, _, names, room, _] = call.arguments();
    xattr_at(call, |caller, node| list_attributes(caller, node, [names, room]))
}

/// removexattrat(directory, path, flags, name).
pub fn removexattrat(call: &mut Call<'_>) -> Result<Verdict> {
    let name = call.frame.r10;
    xattr_at(call, |caller, node| remove_attribute(caller, node, name))
}

/// Bytes of the first version of `struct file_attr`.
const FILE_ATTR_BYTES: u64 = 8 * ExtendedFlags::FILE_ATTR_WORDS as u64;

/// file_getattr(directory, path, structure, length, flags).
pub fn file_getattr(call: &mut Call<'_>) -> Result<Verdict> {
    let [_, _, structure, length, flags, _] = call.arguments();
    file_attr(call, length, flags, |caller, node| {
        let found = caller.extended_flags(node).map_err(unsupported_by_path)?;
        user_memory::write(structure, &found.to_file_attr())?;
        (FILE_ATTR_BYTES..length).try_for_each(|more| user_memory::write(structure.wrapping_add(more), &0u8))?;
        Ok(0)
    })
}

/// file_setattr(directory, path, structure, length, flags).
pub fn file_setattr(call: &mut Call<'_>) -> Result<Verdict> {
    let [_, _, structure, length, flags, _] = call.arguments();
    file_attr(call, length, flags, |caller, node| {
        check_rest(structure, FILE_ATTR_BYTES, length)?;
        let wanted = ExtendedFlags::from_file_attr(&user_memory::read(structure)?)?;
        caller.set_extended_flags(node, &wanted).map_err(unsupported_by_path).map(|()| 0)
    })
}

/// By path a file without flags is EOPNOTSUPP.
fn unsupported_by_path(error: Errno) -> Errno {
    if error == Errno::ENOTTY { Errno::EOPNOTSUPP } else { error }
}

fn file_attr(
    call: &mut Call<'_>,
    length: u64,
    flags: u64,
    mut act: impl FnMut(&Calling<'_>, Node) -> Result<i64>,
) -> Result<Verdict> {
    let (fd, address, flags) = (call.frame.rdi, call.frame.rsi, flags as i32);
    // The kernel rejects a wrong length before it reads the path.
    let is_length = (FILE_ATTR_BYTES..=4096).contains(&length);
    if !is_length || check_flags(flags, AT_SYMLINK_NOFOLLOW | AT_EMPTY_PATH).is_err() {
        return Ok(NATIVE);
    }
    at_or_open(call, (fd, address, flags), &mut act)
}
