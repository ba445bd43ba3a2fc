//! The handoff protocol between the launcher and the programs that it starts: how a process finds
//! the file system.
//!
//! The launcher opens the image (`image`), keeps it open until the last program has ended,
//! and passes down these descriptors. Their numbers are high and hidden from programs, which can
//! neither close nor see them by number. In every process they are close-on-exec. Only an exec of a
//! program that loads the library lets that inherit them, for the length of the call:
//!
//! | descriptor | what | opened |
//! | --- | --- | --- |
//! | image | the memory that holds the image: the image's file, or the working copy of an image on a disk | as by the launcher |
//! | journal | only with a working copy: the image's file, with its journal | for reading and writing |
//! | region | the file of the DRAM region (`/dev/shm`, or a memfd if the image is in memory) | for reading and writing |
//! | placeholder | the kernel's object behind the descriptors of open files: see [`placeholder`](crate::launch::placeholder) | neither reading nor writing |
//! | meeting | the directory in which the image's processes meet (`image`): each process has its own open file description, with its liveness lock (`engine::Liveness`) | for reading |
//!
//! The *image's file* has the same open file description on which the launcher holds the locks, so
//! that the image stays in use while any program lives.
//!
//! There are also these entries of the environment, which a program that clears its environment
//! passes on all the same:
//!
//! | entry | meaning |
//! | --- | --- |
//! | `LD_PRELOAD` | the library first, then the user's own value |
//! | `LD_AUDIT`, `DIRECTFS_EARLY` | if the loader needs the mount before the program starts (`hook::loading::early`): the library first, then the user's own value; and room for an address |
//! | `DIRECTFS_RUN` | path of the library; the tables of call sites lie beside it |
//! | `DIRECTFS_IMAGE` | [`HandoffRecord`] as text: version, descriptors, lengths, limits |
//! | `DIRECTFS_MOUNT` | the mount directory: absolute, in normal form, not `/`. It need not exist |
//! | `DIRECTFS_START` | only from the launcher: the first program's working directory, if that is in the mount: its path below the mount directory, beginning with a slash. Later programs do not get it |
//! | `DIRECTFS_PROCESS` | only from a program: the index of its process slot, which it keeps across exec; the descriptor of its meeting directory; and 1 if it has no descriptor, directory or mapping of the image (`slot,meeting,1`). Absent for the first program, which takes its own slot |
//! | `DIRECTFS_IDS` | only from a program in a user namespace below the launcher's: its ids in the image, and the maps between ids there and in the image (`hook::process::user_namespace`) |
//! | `DIRECTFS_TEXT` | optional: directory of the patched code that processes share (`hook::loading::shared_text`) |
//! | `DIRECTFS_PROGRAM` | only from a program: the path of the executed file, if that lies in the mount: the kernel runs a copy in memory |
//! | `DIRECTFS_NAME` | only from a program: the path by which a program or a script of the mount was started: it gets its name and `AT_EXECFN` from that |
//! | `DIRECTFS_LOADED` | only for the library as a program that loads another one (`hook::loading::program_loader`): a descriptor of that, one of its interpreter if that lies in the mount, and the path by which it was started (`fd,[fd],path`) |
//! | `DIRECTFS_HIDE`, `DIRECTFS_FILL` | the program does not see the entries that are not its own (`hook::process::environment`); `mount`: nor `DIRECTFS_MOUNT`, which its own environment lacks. The second makes the number of hidden ones even |
//! | `DIRECTFS_BINARY` | optional: path of the `directfs` binary. A program that the library cannot be in (set-id, unreadable) is started as `directfs run-static -- PATH ARGUMENT0 ARGUMENTS`, if any of its arguments names the mount; without this entry it is refused with a message on standard error |
//!
//! In each program the library's constructor maps image and region completely, the image with the
//! addresses into which it may grow, attaches (`Fs::attach_shared`) and enters its process slot
//! (`tables::process`). A program that has nothing of the image does so at its first call that may
//! concern the file system. Without `DIRECTFS_IMAGE` the library is loaded but serves nothing.
//!
//! Invariant: a number or length here counts only if fstat of the descriptor agrees; otherwise the
//! program ends with a message.

/// Maximum length of an entry of the environment, name and value.
pub const ENTRY_BYTES_MAX: usize = 4096 + 32;
/// The entry with the descriptors.
pub const IMAGE: &[u8] = b"DIRECTFS_IMAGE=";
/// The entry with the mount directory.
pub const MOUNT: &[u8] = b"DIRECTFS_MOUNT=";
/// The entry with the first working directory.
pub const START: &[u8] = b"DIRECTFS_START=";
/// The entry with the process slot.
pub const PROCESS: &[u8] = b"DIRECTFS_PROCESS=";
/// The entry with the path of the program's own file.
pub const PROGRAM: &[u8] = b"DIRECTFS_PROGRAM=";
/// The entry with the path by which the program was started.
pub const NAME: &[u8] = b"DIRECTFS_NAME=";
/// The entry with the descriptor and the path of a program that the library loads.
pub const LOADED: &[u8] = b"DIRECTFS_LOADED=";
/// The entry with the ids in a user namespace.
pub const IDS: &[u8] = b"DIRECTFS_IDS=";
/// The entry with the path of the binary.
pub const BINARY: &[u8] = b"DIRECTFS_BINARY=";

/// First field of `DIRECTFS_IMAGE`; incremented whenever anything here changes its meaning.
pub const VERSION: u64 = 9;
/// Maximum length of a record's text, with its zero byte.
pub const TEXT_BYTES_MAX: usize = 184;
/// Where the search for free descriptor numbers starts, downwards if the limit is lower. It is not
/// higher because each fork copies the kernel's table up to the highest number.
pub const DESCRIPTORS_FROM: i32 = 1000;

/// Content of `DIRECTFS_IMAGE`, in decimal and separated by commas: version, image, image_bytes,
/// region, region_bytes, placeholder, meeting, cached_files_max, read_only, image_read_only,
/// journal, processor, flushes, memory_errors, apparmor, in_place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HandoffRecord {
    /// Descriptor of the image.
    pub image: i32,
    /// Bytes of the image when it was handed off. Its present ones are in the DRAM region, with
    /// those that it can get.
    pub image_bytes: u64,
    /// Descriptor of the DRAM region.
    pub region: i32,
    /// Number of its bytes to map.
    pub region_bytes: u64,
    /// Descriptor whose duplicates stand behind open files.
    pub placeholder: i32,
    /// Descriptor of the meeting directory.
    pub meeting: i32,
    /// As at the DRAM region's creation (`AttachOptions`).
    pub cached_files_max: u64,
    /// Programs may change nothing.
    pub read_only: bool,
    /// The image's descriptor does not allow writing.
    pub image_read_only: bool,
    /// Lines of the image must leave the cache to be durable (`pmem::Backing::needs_flushes`).
    pub flushes: bool,
    /// The memory of the image is known to have errors (`pmem::expect_memory_errors`).
    pub memory_errors: bool,
    /// Descriptor of the image's file, if the image is a working copy of it; zero otherwise.
    pub journal: i32,
    /// What the processor can do: see [`pmem::features`].
    pub processor: u8,
    /// AppArmor is enabled in this kernel (`hook::process::apparmor`).
    pub apparmor: bool,
    /// The image lies on a disk, and its file is used in place: see [`posix::Storage::InPlace`].
    pub in_place: bool,
}

/// Fields of the text.
const FIELDS: usize = 16;

impl HandoffRecord {
    /// Parses the value of the entry; `None` if it has another version or is incomplete.
    pub fn parse(text: &[u8]) -> Option<HandoffRecord> {
        let mut fields = [0u64; FIELDS];
        let mut count = 0;
        for part in text.split(|&byte| byte == b',') {
            *fields.get_mut(count)? = number(part)?;
            count += 1;
        }
        let [
            version,
            image,
            image_bytes,
            region,
            region_bytes,
            placeholder,
            meeting,
            cached_files_max,
            read_only,
            image_read_only,
            journal,
            processor,
            flushes,
            memory_errors,
            apparmor,
            in_place,
        ] = fields;
        let is_flag = |field: u64| field <= 1;
        let are_flags =
            [read_only, image_read_only, flushes, memory_errors, apparmor, in_place].into_iter().all(is_flag);
        if count != FIELDS || version != VERSION || !are_flags {
            return None;
        }
        Some(HandoffRecord {
            image: i32::try_from(image).ok()?,
            image_bytes,
            region: i32::try_from(region).ok()?,
            region_bytes,
            placeholder: i32::try_from(placeholder).ok()?,
            meeting: i32::try_from(meeting).ok()?,
            cached_files_max,
            read_only: read_only == 1,
            image_read_only: image_read_only == 1,
            flushes: flushes == 1,
            memory_errors: memory_errors == 1,
            apparmor: apparmor == 1,
            in_place: in_place == 1,
            journal: i32::try_from(journal).ok()?,
            processor: u8::try_from(processor).ok()?,
        })
    }

    /// The numbers of descriptors; a journal that is absent has number zero.
    pub fn numbers(&mut self) -> [&mut i32; 5] {
        let HandoffRecord { image, region, placeholder, meeting, journal, .. } = self;
        [image, region, placeholder, meeting, journal]
    }

    /// The numbers of the descriptors that are there.
    pub fn present(mut self) -> impl Iterator<Item = i32> {
        self.numbers().map(|number| *number).into_iter().filter(|&fd| fd != 0)
    }

    /// The descriptor of the image's file.
    pub fn image_file(&self) -> i32 {
        if self.journal == 0 { self.image } else { self.journal }
    }

    /// Writes the value of the entry; returns its length. The buffer must have at least
    /// [`TEXT_BYTES_MAX`].
    pub fn write(&self, into: &mut [u8]) -> usize {
        let fields = [
            VERSION,
            self.image as u64,
            self.image_bytes,
            self.region as u64,
            self.region_bytes,
            self.placeholder as u64,
            self.meeting as u64,
            self.cached_files_max,
            u64::from(self.read_only),
            u64::from(self.image_read_only),
            self.journal as u64,
            self.processor.into(),
            u64::from(self.flushes),
            u64::from(self.memory_errors),
            u64::from(self.apparmor),
            u64::from(self.in_place),
        ];
        let mut length = 0;
        for (index, field) in fields.into_iter().enumerate() {
            if index > 0 {
                into[length] = b',';
                length += 1;
            }
            length += write_number(field, &mut into[length..]);
        }
        length
    }
}

/// Parses a decimal number; `None` if the text is invalid or the number too large.
pub fn number(text: &[u8]) -> Option<u64> {
    if text.is_empty() {
        return None;
    }
    text.iter().try_fold(0u64, |sum, &byte| {
        let digit = byte.checked_sub(b'0').filter(|&digit| digit < 10)?;
        sum.checked_mul(10)?.checked_add(u64::from(digit))
    })
}

/// Writes a number as sixteen hexadecimal digits.
pub fn write_hexadecimal(number: u64, into: &mut [u8; 16]) {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    for (index, digit) in into.iter_mut().enumerate() {
        *digit = DIGITS[(number >> (60 - 4 * index) & 15) as usize];
    }
}

/// Writes a decimal number; returns its length (20 at most).
pub fn write_number(number: u64, into: &mut [u8]) -> usize {
    let mut digits = [0u8; 20];
    let mut at = digits.len();
    let mut rest = number;
    loop {
        at -= 1;
        digits[at] = b'0' + (rest % 10) as u8;
        rest /= 10;
        if rest == 0 {
            break;
        }
    }
    let length = digits.len() - at;
    into[..length].copy_from_slice(&digits[at..]);
    length
}

/// Whether a path can be a mount directory: absolute, in normal form, not the root, and within the
/// filter's limit.
pub fn is_mount_directory(path: &[u8]) -> bool {
    path.len() > 1
        && path.len() < 4096
        && path[0] == b'/'
        && !path.contains(&0)
        && path[1..].split(|&byte| byte == b'/').all(|part| !part.is_empty() && part != b"." && part != b"..")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handoff_record_round_trips() {
        let handoff = HandoffRecord {
            image: 1000,
            image_bytes: u64::MAX,
            region: 1001,
            region_bytes: 1 << 40,
            placeholder: i32::MAX,
            meeting: 1003,
            cached_files_max: 0,
            read_only: true,
            image_read_only: false,
            flushes: true,
            memory_errors: true,
            journal: 1004,
            processor: 255,
            apparmor: true,
            in_place: true,
        };
        let mut text = [0; TEXT_BYTES_MAX];
        let length = handoff.write(&mut text);
        assert_eq!(HandoffRecord::parse(&text[..length]), Some(handoff));
        for end in 0..length {
            let cut = HandoffRecord::parse(&text[..end]);
            assert!(cut.is_none(), "{cut:?}");
        }
    }

    #[test]
    fn what_is_no_handoff_record_is_rejected() {
        let valid = "9,3,4,5,6,7,8,0,0,0,0,1,0,0,0,0";
        assert!(HandoffRecord::parse(valid.as_bytes()).is_some());
        let with = |field: usize, value: &str| {
            let mut fields: Vec<&str> = valid.split(',').collect();
            fields[field] = value;
            fields.join(",")
        };
        // Another version, a flag of 2 in each place, a sign, numbers that are too large.
        let fields = [(0, "8"), (8, "2"), (9, "2"), (12, "2"), (13, "2"), (14, "2"), (15, "2"), (1, "-3"), (1, "")];
        let large = [(1, "2147483648"), (2, "99999999999999999999"), (11, "256")];
        let changed = fields.into_iter().chain(large).map(|(field, value)| with(field, value));
        let lengths = ["", ",", &valid[2..], &format!("{valid},0")].map(str::to_owned);
        for text in changed.chain(lengths) {
            assert_eq!(HandoffRecord::parse(text.as_bytes()), None, "{text}");
        }
    }

    #[test]
    fn a_mount_directory_is_in_normal_form() {
        assert!(is_mount_directory(b"/mnt/directfs") && is_mount_directory(b"/m"));
        for path in ["", "/", "mnt", "/mnt/", "//mnt", "/mnt/../x", "/mnt/.", "/mnt\0x"] {
            assert!(!is_mount_directory(path.as_bytes()), "{path}");
        }
    }
}
