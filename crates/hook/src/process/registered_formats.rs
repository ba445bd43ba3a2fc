//! Formats of programs that the machine's administrator registered with the kernel (binfmt_misc):
//! programs of other processors for an emulator, archives for a virtual machine. The kernel starts
//! an interpreter for them. A static one would come without the library, and the kernel finds no
//! file of the image. So the interpreter is found here, as that of a script.
//!
//! The interpreter gets the program's path in place of its name, also if the registration asks for
//! both (flag P), and no descriptor (flag O).

use crate::abi::sys;

const DIRECTORY: &[u8] = b"/proc/sys/fs/binfmt_misc/";
/// Maximum length of a registration's name.
const NAME_BYTES_MAX: usize = 255;
/// Maximum length of a registration, as text.
const TEXT_BYTES_MAX: usize = 2048;
/// Number of bytes of a program that the kernel compares.
const COMPARED_BYTES: usize = 256;

/// Replaces the first bytes of a program by the path of the interpreter that is registered for it,
/// with a zero byte; returns the path's length. `file`: the program's path.
#[cold]
#[inline(never)]
pub fn find_interpreter(head: &mut [u8], file: &[u8]) -> Option<usize> {
    let mut path = [0u8; DIRECTORY.len() + NAME_BYTES_MAX + 1];
    path[..DIRECTORY.len()].copy_from_slice(DIRECTORY);
    let directory = sys::open(&path[..=DIRECTORY.len()], libc::O_RDONLY | libc::O_DIRECTORY).ok()?;
    let mut found = None;
    directory.each_name(&mut |name| {
        let Some(room) = path.get_mut(DIRECTORY.len()..=DIRECTORY.len() + name.len()) else { return true };
        room[..name.len()].copy_from_slice(name);
        room[name.len()] = 0;
        let mut text = [0u8; TEXT_BYTES_MAX];
        let opened = sys::open(&path[..=DIRECTORY.len() + name.len()], libc::O_RDONLY).ok();
        let length = opened.and_then(|opened| opened.read(&mut text).ok()).unwrap_or(0);
        if name == b"status" && text.starts_with(b"disabled") {
            return false;
        }
        if let Some(interpreter) = interpreter_for(&text[..length], &head[..COMPARED_BYTES.min(head.len())], file)
            && let Some(room) = head.get_mut(..=interpreter.len())
        {
            room[..interpreter.len()].copy_from_slice(interpreter);
            room[interpreter.len()] = 0;
            found = Some(interpreter.len());
        }
        found.is_none()
    });
    found
}

/// The interpreter of a registration, if it is for this program.
fn interpreter_for<'t>(text: &'t [u8], head: &[u8], file: &[u8]) -> Option<&'t [u8]> {
    let mut lines = text.split(|&byte| byte == b'\n');
    if lines.next()? != b"enabled" {
        return None;
    }
    let value = |key: &[u8]| {
        let mut lines = text.split(|&byte| byte == b'\n');
        lines.find_map(|line| line.strip_prefix(key)).filter(|value| !value.is_empty())
    };
    let is_for = match (value(b"extension ."), value(b"magic ")) {
        (Some(extension), _) => {
            let name = file.rsplit(|&byte| byte == b'/').next()?;
            name.rsplit(|&byte| byte == b'.').next() == Some(extension) && name.len() > extension.len()
        }
        (None, Some(magic)) => {
            let offset = core::str::from_utf8(value(b"offset ")?).ok()?.parse::<usize>().ok()?;
            is_masked_part(head.get(offset..)?, magic, value(b"mask "))?
        }
        (None, None) => false,
    };
    value(b"interpreter ").filter(|_| is_for)
}

/// Whether bytes begin with those of a hexadecimal text, where the mask has bits. `None`: the text
/// is malformed, or longer than the bytes.
fn is_masked_part(bytes: &[u8], magic: &[u8], mask: Option<&[u8]>) -> Option<bool> {
    let byte = |text: &[u8], at: usize| {
        let digits = core::str::from_utf8(text.get(2 * at..2 * at + 2)?).ok()?;
        u8::from_str_radix(digits, 16).ok()
    };
    for at in 0..magic.len() / 2 {
        let bits = mask.map_or(Some(0xff), |mask| byte(mask, at))?;
        if (bytes.get(at)? ^ byte(magic, at)?) & bits != 0 {
            return Some(false);
        }
    }
    Some(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_registration_is_for_programs_with_its_bytes_or_its_ending() {
        let text = b"enabled\ninterpreter /usr/bin/emulator\nflags: OCF\noffset 1\nmagic 454c46ff\nmask ffffff0f\n";
        let wanted = Some(&b"/usr/bin/emulator"[..]);
        assert_eq!(interpreter_for(text, b"\x7fELF\x3f-----", b"/x"), wanted);
        assert_eq!(interpreter_for(text, b"\x7fELF\x3e-----", b"/x"), None);
        assert_eq!(interpreter_for(text, b"\x7fEL", b"/x"), None, "a short program");
        assert_eq!(interpreter_for(&[b"dis", &text[2..]].concat(), b"\x7fELF\x3f", b"/x"), None);
        let text = b"enabled\ninterpreter /usr/bin/java\nflags: \nextension .jar\n";
        let wanted = Some(&b"/usr/bin/java"[..]);
        assert_eq!(interpreter_for(text, b"PK", b"/dir.x/a.b.jar"), wanted);
        for name in ["/dir/a.jarx", "/dir.jar/a", "/dir/jar", "a"] {
            assert_eq!(interpreter_for(text, b"PK", name.as_bytes()), None, "{name}");
        }
        for text in ["", "enabled", "enabled\n", "enabled\ninterpreter /x\noffset x\nmagic 00\n"] {
            assert_eq!(interpreter_for(text.as_bytes(), b"PK", b"/a.jar"), None, "{text}");
        }
        let odd = b"enabled\ninterpreter /x\noffset 0\nmagic zz\n";
        assert_eq!(interpreter_for(odd, b"PK", b"/a"), None);
    }
}
