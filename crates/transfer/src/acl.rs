//! Access control lists: as tar archives have them (text) and as files have them (an attribute).

/// The records of an archive, and the attributes for which they stand.
pub const LISTS: [(&str, &str); 2] =
    [("SCHILY.acl.access", "system.posix_acl_access"), ("SCHILY.acl.default", "system.posix_acl_default")];
/// Version of the attribute.
const VERSION: u32 = 2;
/// Tags: owner, user, owning group, group, mask, others.
const TAGS: [(u16, &str, bool); 6] = [
    (1, "user", false),
    (2, "user", true),
    (4, "group", false),
    (8, "group", true),
    (16, "mask", false),
    (32, "other", false),
];
/// The id of entries without one.
const NO_ID: u32 = u32::MAX;

/// The attribute for a list as text: entries "user:1000:rw-", separated by commas or newlines.
/// `None`: it is no list.
pub fn from_text(text: &[u8]) -> Option<Vec<u8>> {
    let text = std::str::from_utf8(text).ok()?;
    let mut entries = Vec::new();
    for line in text.split([',', '\n']).map(str::trim) {
        let line = line.split('#').next().unwrap_or_default().trim();
        if line.is_empty() {
            continue;
        }
        // Some programs write the number of a named user or group as a fourth field.
        let mut fields = line.split(':');
        let (kind, subject, permissions) = (fields.next()?, fields.next()?, fields.next()?);
        let id = match (subject, fields.next()) {
            ("", _) => NO_ID,
            (_, Some(number)) => number.parse().ok()?,
            (name, None) => id_of(kind, name)?,
        };
        let is_named = id != NO_ID;
        let (tag, ..) = TAGS.into_iter().find(|(_, name, named)| {
            *named == is_named && (*name == kind || kind.len() == 1 && name.starts_with(kind))
        })?;
        entries.push((tag, bits(permissions)?, id));
    }
    entries.sort_unstable();
    let mut bytes = VERSION.to_le_bytes().to_vec();
    for (tag, permissions, id) in entries {
        bytes.extend(tag.to_le_bytes());
        bytes.extend(permissions.to_le_bytes());
        bytes.extend(id.to_le_bytes());
    }
    Some(bytes)
}

/// The text for an attribute, with numbers for users and groups.
pub fn to_text(attribute: &[u8]) -> Option<String> {
    let (version, entries) = attribute.split_at_checked(4)?;
    if version != VERSION.to_le_bytes() || entries.len() % 8 != 0 {
        return None;
    }
    let mut lines = Vec::new();
    for entry in entries.as_chunks::<8>().0 {
        let (tag, permissions) = (u16::from_le_bytes([entry[0], entry[1]]), u16::from_le_bytes([entry[2], entry[3]]));
        let id = u32::from_le_bytes([entry[4], entry[5], entry[6], entry[7]]);
        let (_, name, is_named) = TAGS.into_iter().find(|(known, ..)| *known == tag)?;
        let subject = if is_named { id.to_string() } else { String::new() };
        let letter = |bit: u16, letter: char| if permissions & bit != 0 { letter } else { '-' };
        lines.push(format!("{name}:{subject}:{}{}{}", letter(4, 'r'), letter(2, 'w'), letter(1, 'x')));
    }
    Some(lines.join(","))
}

fn bits(text: &str) -> Option<u16> {
    text.chars().try_fold(0, |bits, letter| match letter {
        'r' => Some(bits | 4),
        'w' => Some(bits | 2),
        'x' => Some(bits | 1),
        '-' => Some(bits),
        _ => None,
    })
}

/// The number of a user or group of this machine.
fn id_of(kind: &str, name: &str) -> Option<u32> {
    if let Ok(number) = name.parse() {
        return Some(number);
    }
    let table = if kind.starts_with('u') { "/etc/passwd" } else { "/etc/group" };
    let known = std::fs::read_to_string(table).ok()?;
    known.lines().find_map(|line| {
        let mut fields = line.split(':');
        (fields.next()? == name).then(|| fields.nth(1)?.parse().ok())?
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_and_attribute_say_the_same() {
        let text = "user::rwx,user:1000:r--,group::r-x,group:7:---,mask::r-x,other::--x";
        let attribute = from_text(text.as_bytes()).unwrap();
        assert_eq!(attribute.len(), 4 + 6 * 8);
        assert_eq!(to_text(&attribute).as_deref(), Some(text));
        let variants = [
            "u::rw-\nu:root:r--\ng::r--\nm::r--\no::r--\n",
            "user::rw-,user:nobody:r--:0,group::r--,mask::r--,other::r--",
        ];
        for variant in variants {
            let attribute = from_text(variant.as_bytes()).unwrap();
            assert_eq!(to_text(&attribute).as_deref(), Some("user::rw-,user:0:r--,group::r--,mask::r--,other::r--"));
        }
        for damaged in ["user", "user::q", "nobody::rwx", "user:no such user:rwx"] {
            assert_eq!(from_text(damaged.as_bytes()), None, "{damaged}");
        }
        assert_eq!(to_text(&[2, 0, 0]), None);
    }
}
