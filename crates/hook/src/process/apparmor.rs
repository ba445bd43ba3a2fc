//! The AppArmor profile that a program gets when it is started, and whether that profile lets the
//! program map the preload library.
//!
//! A program whose profile forbids the library would start without it, and work on the machine's
//! files. A program that the library's loader runs in its place would not get its profile at all,
//! because profiles are attached to paths. Both are found here before the start.
//!
//! The kernel shows what decides to every user: each profile's name, mode and attachment below
//! `policy/profiles`, and what a profile permits by a query (`.access`). Three things are less
//! certain than the kernel's own decision, and are judged as follows:
//!
//! - Profiles compiled by older parsers hide their attachment (`<unknown>`). If the profile's name
//!   is a path, that is the attachment. Otherwise the profile counts if it lets a program map this
//!   file without executing it, as profiles do for their own program; and in any case if it permits
//!   that and has the program's name in its own.
//! - Several profiles can match a path. The kernel takes the most specific one; here each counts.
//! - A confined process may start programs under a profile that its own profile names
//!   (`px -> name`). These rules are not shown, so they are not seen; children of its profile are.
//!
//! Where the policy is hidden, as in most containers, nothing is found. The profiles of containers
//! leave programs under the profile that the library was loaded under.
//!
//! The launcher finds out once whether AppArmor is enabled, and hands that over.

use crate::abi::sys::{self, Fd};

/// What a query returns for a profile and a path: bits of permissions.
pub type Ask<'a> = &'a dyn Fn(&[u8], &[u8]) -> Option<u32>;

const EXECUTE: u32 = 1;
const READ: u32 = 1 << 2;
const MAP_CODE: u32 = 1 << 16;

/// Maximum length of a profile's name and of an attachment. Longer ones are cut off.
const TEXT_BYTES_MAX: usize = 512;
/// Maximum length of paths below the policy.
const PATH_BYTES_MAX: usize = 1024;
/// The attachment that is not shown.
const UNKNOWN: &[u8] = b"<unknown>";

/// Where the kernel shows its policy, and the profile of this thread.
pub struct Policy<'p> {
    /// The directory with the profiles.
    pub profiles: &'p [u8],
    /// The file with the name and the mode of this thread's profile, with a zero byte.
    pub current: &'p [u8],
    /// Asks the kernel what a profile permits.
    pub ask: Ask<'p>,
}

/// The kernel's policy.
pub const POLICY: Policy<'static> = Policy {
    profiles: b"/sys/kernel/security/apparmor/policy/profiles",
    current: b"/proc/thread-self/attr/apparmor/current\0",
    ask: &query,
};

/// The name of a profile.
#[derive(Clone, Copy)]
pub struct ProfileName {
    bytes: [u8; TEXT_BYTES_MAX],
    length: usize,
}

impl ProfileName {
    fn new(parts: &[&[u8]]) -> ProfileName {
        let mut name = ProfileName { bytes: [0; TEXT_BYTES_MAX], length: 0 };
        for part in parts {
            let room = &mut name.bytes[name.length..];
            let fits = part.len().min(room.len());
            room[..fits].copy_from_slice(&part[..fits]);
            name.length += fits;
        }
        name
    }

    /// Its text.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.length]
    }
}

/// Whether AppArmor is enabled in this kernel.
pub fn is_enabled() -> bool {
    let mut text = [0u8; 1];
    let file = sys::open(b"/sys/module/apparmor/parameters/enabled\0", libc::O_RDONLY);
    file.is_ok_and(|file| file.read(&mut text) == Ok(1)) && text == *b"Y"
}

impl Policy<'_> {
    /// The enforced profile that keeps the library out of a program that is started now. Paths are
    /// absolute, without symbolic links. `library`: `None` if the program would run in the loader's
    /// place: then every enforced profile counts.
    #[cold]
    #[inline(never)]
    pub fn find_obstacle(&self, program: &[u8], library: Option<&[u8]>) -> Option<ProfileName> {
        let current = self.current_profile();
        let mut search = Search { policy: self, program, library, found: None };
        let mut path = PathText::new(self.profiles)?;
        search.visit(&mut path, b"", current.as_ref().map(ProfileName::as_bytes));
        search.found
    }

    /// The profile of this thread. `None`: it has none, or that is not known.
    fn current_profile(&self) -> Option<ProfileName> {
        let mut text = [0u8; TEXT_BYTES_MAX];
        let length = sys::open(self.current, libc::O_RDONLY).ok()?.read(&mut text).ok()?;
        let text = text[..length].trim_ascii_end();
        let end = text.windows(2).rposition(|pair| pair == b" (").unwrap_or(text.len());
        (!text.is_empty() && text != b"unconfined").then(|| ProfileName::new(&[&text[..end]]))
    }
}

/// A search for a profile among those of a policy.
struct Search<'s> {
    policy: &'s Policy<'s>,
    program: &'s [u8],
    library: Option<&'s [u8]>,
    found: Option<ProfileName>,
}

impl Search<'_> {
    /// Looks at all profiles in a directory. `parent`: what precedes their names. `current`: the
    /// profile of which the children are looked at, too.
    fn visit(&mut self, path: &mut PathText, parent: &[u8], current: Option<&[u8]>) {
        let Ok(directory) = path.open(libc::O_RDONLY | libc::O_DIRECTORY) else { return };
        directory.each_name(&mut |entry| {
            if !matches!(entry, b"." | b"..") {
                path.with(entry, |path| self.look_at(path, parent, current));
            }
            self.found.is_none()
        });
    }

    /// Looks at a profile, by its directory.
    fn look_at(&mut self, path: &mut PathText, parent: &[u8], current: Option<&[u8]>) {
        let Some(attachment) = path.read(b"attach") else { return };
        let is_hidden = attachment.as_bytes() == UNKNOWN;
        let is_candidate = is_hidden || is_match(attachment.as_bytes(), self.program);
        if !is_candidate && current.is_none() {
            return;
        }
        let Some(own) = path.read(b"name") else { return };
        let name = ProfileName::new(&[parent, own.as_bytes()]);
        let is_for_program = is_candidate && (!is_hidden || self.may_be_of_program(name.as_bytes()));
        if is_for_program && is_enforced(path) && !self.lets_in(&name) {
            self.found = Some(name);
            return;
        }
        if current == Some(name.as_bytes()) {
            let parent = ProfileName::new(&[name.as_bytes(), b"//"]);
            path.with(b"profiles", |path| self.visit(path, parent.as_bytes(), None));
        }
    }

    /// Whether a profile with a hidden attachment may be the program's.
    fn may_be_of_program(&self, name: &[u8]) -> bool {
        if name.starts_with(b"/") {
            return is_match(name, self.program);
        }
        let last = self.program.rsplit(|&byte| byte == b'/').next().unwrap_or(self.program);
        let is_named = || !last.is_empty() && name.windows(last.len()).any(|part| part == last);
        let permitted = (self.policy.ask)(name, self.program).unwrap_or(0);
        permitted & (READ | MAP_CODE) == READ | MAP_CODE && (permitted & EXECUTE == 0 || is_named())
    }

    fn lets_in(&self, name: &ProfileName) -> bool {
        const NEEDED: u32 = READ | MAP_CODE;
        self.library.is_some_and(|library| {
            (self.policy.ask)(name.as_bytes(), library).is_some_and(|permitted| permitted & NEEDED == NEEDED)
        })
    }
}

/// Whether the profile with this directory is enforced.
fn is_enforced(path: &mut PathText) -> bool {
    let mode = path.read(b"mode");
    mode.is_none_or(|mode| !matches!(mode.as_bytes(), b"complain" | b"unconfined"))
}

/// A path that grows and shrinks.
struct PathText {
    bytes: [u8; PATH_BYTES_MAX],
    length: usize,
}

impl PathText {
    fn new(path: &[u8]) -> Option<PathText> {
        let mut text = PathText { bytes: [0; PATH_BYTES_MAX], length: path.len() };
        text.bytes.get_mut(..path.len())?.copy_from_slice(path);
        Some(text)
    }

    /// Runs something with a name at the end; nothing if there is no room for it.
    fn with(&mut self, name: &[u8], run: impl FnOnce(&mut PathText)) {
        let length = self.length;
        // One byte more stays zero.
        if length + 1 + name.len() < PATH_BYTES_MAX {
            self.bytes[length] = b'/';
            self.bytes[length + 1..][..name.len()].copy_from_slice(name);
            self.length += 1 + name.len();
            run(self);
            self.bytes[length..self.length].fill(0);
            self.length = length;
        }
    }

    fn open(&self, flags: i32) -> Result<Fd, i64> {
        sys::open(&self.bytes[..=self.length], flags)
    }

    /// The first line of a file in this directory.
    fn read(&mut self, name: &[u8]) -> Option<ProfileName> {
        let mut found = None;
        self.with(name, |path| {
            let mut text = [0u8; TEXT_BYTES_MAX];
            let length = path.open(libc::O_RDONLY).ok().and_then(|file| file.read(&mut text).ok());
            found = length.map(|length| ProfileName::new(&[text[..length].trim_ascii_end()]));
        });
        found
    }
}

/// Asks the kernel what a profile permits for a path.
fn query(profile: &[u8], path: &[u8]) -> Option<u32> {
    const FILES: &[u8] = &[2];
    let mut text = [0u8; TEXT_BYTES_MAX + 2 * PATH_BYTES_MAX];
    let mut length = 0;
    for part in [b"label\0", profile, b"\0", FILES, path] {
        text.get_mut(length..length + part.len())?.copy_from_slice(part);
        length += part.len();
    }
    let file = sys::open(b"/sys/kernel/security/apparmor/.access\0", libc::O_RDWR).ok()?;
    file.write_all(&text[..length]).ok()?;
    let length = file.read(&mut text).ok()?;
    let digits = text[..length].strip_prefix(b"allow 0x")?.first_chunk::<8>()?;
    u32::from_str_radix(core::str::from_utf8(digits).ok()?, 16).ok()
}

/// Writes the path of a file that is open, without symbolic links; returns its length.
pub fn path_of(fd: &Fd, into: &mut [u8]) -> Option<usize> {
    let path = crate::proc_links::descriptor_path(fd.number() as u32);
    sys::read_link(&path, into).ok().filter(|&length| length < into.len() && into.first() == Some(&b'/'))
}

/// What follows in a pattern.
#[derive(Clone, Copy)]
struct Pattern<'t> {
    text: &'t [u8],
    /// What follows the text: behind an alternative.
    then: Option<&'t Pattern<'t>>,
}

/// Whether an attachment is that of a path: `*` and `?` match inside of a component, `**` across
/// them, `[...]` one byte, `{a,b}` either. A pattern that takes too long counts as a match.
fn is_match(attachment: &[u8], path: &[u8]) -> bool {
    let mut steps = 100_000;
    fits(Pattern { text: attachment, then: None }, path, &mut steps)
}

fn fits(pattern: Pattern<'_>, path: &[u8], steps: &mut u32) -> bool {
    *steps = steps.saturating_sub(1);
    if *steps == 0 {
        return true;
    }
    let Some((&first, behind)) = pattern.text.split_first() else {
        return pattern.then.map_or(path.is_empty(), |then| fits(*then, path, steps));
    };
    let mut one = |behind: &[u8], accepts: &dyn Fn(u8) -> bool| {
        let rest = path.split_first().filter(|(byte, _)| accepts(**byte));
        rest.is_some_and(|(_, rest)| fits(Pattern { text: behind, ..pattern }, rest, steps))
    };
    match first {
        b'*' => {
            let crosses = behind.first() == Some(&b'*');
            let behind = Pattern { text: behind.strip_prefix(b"*").unwrap_or(behind), ..pattern };
            let reach = path.iter().position(|&byte| !crosses && byte == b'/').unwrap_or(path.len());
            (0..=reach).any(|count| fits(behind, &path[count..], steps))
        }
        b'?' => one(behind, &|byte| byte != b'/'),
        b'[' => {
            let Some(end) = behind.iter().skip(1).position(|&byte| byte == b']').map(|end| end + 1) else {
                return false;
            };
            let class = &behind[..end];
            one(&behind[end + 1..], &|byte| byte != b'/' && is_in_class(class, byte))
        }
        b'{' => {
            let Some(end) = end_of_group(behind) else { return false };
            let rest = Pattern { text: &behind[end + 1..], ..pattern };
            alternatives(&behind[..end]).any(|text| fits(Pattern { text, then: Some(&rest) }, path, steps))
        }
        b'\\' => behind.split_first().is_some_and(|(&wanted, behind)| one(behind, &|byte| byte == wanted)),
        wanted => one(behind, &|byte| byte == wanted),
    }
}

/// Whether a class, such as `a-z_` or `^s`, holds a byte.
fn is_in_class(class: &[u8], byte: u8) -> bool {
    let (is_inverted, mut class) = class.strip_prefix(b"^").map_or((false, class), |rest| (true, rest));
    let mut is_in = false;
    while let Some((&low, rest)) = class.split_first() {
        let range = match rest {
            [b'-', high, rest @ ..] => (*high, rest),
            rest => (low, rest),
        };
        is_in |= (low..=range.0).contains(&byte);
        class = range.1;
    }
    is_in != is_inverted
}

/// Where the group ends of which this is the inside.
fn end_of_group(text: &[u8]) -> Option<usize> {
    let mut depth = 0;
    text.iter().position(|&byte| {
        depth += i32::from(byte == b'{') - i32::from(byte == b'}');
        depth < 0
    })
}

/// The alternatives of a group.
fn alternatives(group: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut depth = 0;
    group.split(move |&byte| {
        depth += i32::from(byte == b'{') - i32::from(byte == b'}');
        depth == 0 && byte == b','
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::ffi::OsStrExt;
    use std::path::Path;

    const LIBRARY: &[u8] = b"/var/cache/directfs/preload.so";

    /// A profile of a policy: its directory, name, attachment and mode.
    fn add(place: &Path, name: &str, attachment: &str, mode: &str) {
        std::fs::create_dir_all(place).unwrap();
        for (file, text) in [("name", name), ("attach", attachment), ("mode", mode)] {
            std::fs::write(place.join(file), format!("{text}\n")).unwrap();
        }
    }

    /// A policy in which `open` lets the library in, and the others do not.
    fn policy() -> tempfile::TempDir {
        let place = tempfile::tempdir().unwrap();
        let at = |name: &str| place.path().join("profiles").join(name);
        add(&at("open.1"), "open", "/usr/bin/open", "enforce");
        add(&at("usr.bin.tee.2"), "/usr/bin/tee*", "/usr/bin/tee*", "enforce");
        add(&at("loose.3"), "loose", "/usr/bin/loose", "complain");
        add(&at("free.4"), "free", "/usr/bin/free", "unconfined");
        add(&at("hidden.5"), "hidden", "<unknown>", "enforce");
        add(&at("usr.sbin.hidden.9"), "/usr/sbin/hidden*", "<unknown>", "enforce");
        add(&at("outer.6"), "outer", "outer", "enforce");
        add(&at("outer.6/profiles/inner.7"), "inner", "/usr/bin/inner", "kill");
        add(&at("killing.8"), "killing", "/opt/{a,b/{c,d}}/**", "kill");
        place
    }

    fn ask(profile: &[u8], path: &[u8]) -> Option<u32> {
        match (profile, path) {
            (b"open", LIBRARY) => Some(READ | MAP_CODE),
            (b"hidden", b"/usr/bin/own") | (b"/usr/sbin/hidden*", b"/usr/sbin/other") => Some(READ | MAP_CODE),
            (b"hidden", b"/usr/bin/helper" | b"/usr/bin/hidden") => Some(READ | MAP_CODE | EXECUTE),
            (b"unasked", _) => None,
            _ => Some(READ),
        }
    }

    fn obstacle(place: &Path, current: &str, program: &str, library: Option<&[u8]>) -> Option<String> {
        std::fs::write(place.join("current"), current).unwrap();
        let path = |name: &str| place.join(name).as_os_str().as_bytes().to_vec();
        let (profiles, current) = (path("profiles"), [path("current"), vec![0]].concat());
        let policy = Policy { profiles: &profiles, current: &current, ask: &ask };
        let found = policy.find_obstacle(program.as_bytes(), library);
        found.map(|name| String::from_utf8(name.as_bytes().to_vec()).unwrap())
    }

    #[test]
    fn an_enforced_profile_that_keeps_the_library_out_is_an_obstacle() {
        let place = policy();
        for (program, found) in [
            ("/usr/bin/tee", Some("/usr/bin/tee*")),
            ("/opt/b/d/x/y", Some("killing")),
            ("/usr/bin/open", None),
            ("/usr/bin/loose", None),
            ("/usr/bin/free", None),
            ("/usr/bin/cat", None),
            // A profile with a hidden attachment counts for its own program, not for its helpers.
            ("/usr/bin/own", Some("hidden")),
            ("/usr/bin/helper", None),
            ("/usr/bin/hidden", Some("hidden")),
            ("/usr/sbin/hidden2", Some("/usr/sbin/hidden*")),
            ("/usr/sbin/other", None),
        ] {
            let obstacle = obstacle(place.path(), "unconfined\n", program, Some(LIBRARY));
            assert_eq!(obstacle.as_deref(), found, "{program}");
        }
    }

    #[test]
    fn every_enforced_profile_is_an_obstacle_for_a_program_in_the_loaders_place() {
        let place = policy();
        for (program, found) in [("/usr/bin/open", Some("open")), ("/usr/bin/loose", None), ("/usr/bin/cat", None)] {
            assert_eq!(obstacle(place.path(), "unconfined\n", program, None).as_deref(), found, "{program}");
        }
    }

    #[test]
    fn children_of_a_profile_count_for_its_own_processes() {
        let place = policy();
        let inner = |current: &str| obstacle(place.path(), current, "/usr/bin/inner", Some(LIBRARY));
        assert_eq!(inner("outer (enforce)\n").as_deref(), Some("outer//inner"));
        assert_eq!(inner("unconfined\n"), None);
        assert_eq!(inner("another (enforce)\n"), None);
    }

    #[test]
    fn where_the_policy_is_hidden_there_is_no_obstacle() {
        let place = tempfile::tempdir().unwrap();
        assert_eq!(obstacle(place.path(), "docker-default (enforce)\n", "/usr/bin/tee", Some(LIBRARY)), None);
        add(&place.path().join("profiles/unasked.1"), "unasked", "/usr/bin/tee", "enforce");
        let unasked = obstacle(place.path(), "unconfined\n", "/usr/bin/tee", Some(LIBRARY));
        assert_eq!(unasked.as_deref(), Some("unasked"), "a profile that attaches, and nobody can ask");
    }

    #[test]
    fn attachments_match_as_in_the_kernel() {
        for (pattern, yes, no) in [
            ("/usr/bin/ca{t,p}", &["/usr/bin/cat", "/usr/bin/cap"][..], &["/usr/bin/ca", "/usr/bin/cat2"][..]),
            ("/usr/*/x", &["/usr/bin/x"], &["/usr/x", "/usr/a/b/x"]),
            ("/usr/**/x", &["/usr/a/x", "/usr/a/b/x"], &["/usr/a/y"]),
            ("/{,usr/}bin/a?", &["/bin/ab", "/usr/bin/ab"], &["/bin/a", "/bin/a/"]),
            ("/a{b{c,d},e}[0-9x]", &["/abc1", "/abdx", "/ae0"], &["/abe1", "/aec", "/ab1"]),
            ("/fox{,*[^s][^h]}", &["/fox", "/foxy1"], &["/fox.sh", "/foxs"]),
            (r"/a\*", &["/a*"], &["/ab"]),
            ("named", &[], &["/named", "/usr/bin/named"]),
        ] {
            for path in yes {
                assert!(is_match(pattern.as_bytes(), path.as_bytes()), "{pattern} {path}");
            }
            for path in no {
                assert!(!is_match(pattern.as_bytes(), path.as_bytes()), "{pattern} {path}");
            }
        }
        assert!(!is_match(b"/a{b", b"/ab") && !is_match(b"/a[b", b"/ab") && !is_match(b"/a\\", b"/a"), "unfinished");
        let slow = "/".to_owned() + &"{a,a*}".repeat(40) + "x";
        assert!(is_match(slow.as_bytes(), format!("/{}", "a".repeat(200)).as_bytes()), "in doubt");
    }
}
