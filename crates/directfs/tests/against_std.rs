//! Operations on std::fs and on the library have the same results.

use crate::support::{Scratch, scratch_directory};
use directfs::FileSystem;
use std::fs;
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::time::{Duration, UNIX_EPOCH};

#[derive(Debug, Clone)]
enum Operation {
    CreateDir(&'static str),
    CreateDirAll(&'static str),
    RemoveDir(&'static str),
    RemoveFile(&'static str),
    RemoveDirAll(&'static str),
    Rename(&'static str, &'static str),
    HardLink(&'static str, &'static str),
    Symlink(&'static str, &'static str),
    ReadLink(&'static str),
    Write(&'static str, usize),
    Read(&'static str),
    Metadata(&'static str),
    SymlinkMetadata(&'static str),
    SetPermissions(&'static str, u32),
    List(&'static str),
    Copy(&'static str, &'static str),
    SetTimes(&'static str, u64),
    Exists(&'static str),
    /// read, write, append, truncate, create, create_new; then 3 bytes are written, and all read.
    OpenWith(&'static str, [bool; 6]),
    SetLength(&'static str, u64),
}
use Operation::*;

/// The visible result: text, or the errno.
type Seen = Result<String, i32>;

fn content(length: usize) -> Vec<u8> {
    (0..length).map(|index| (index * 31 % 251) as u8).collect()
}

fn shown(bytes: &[u8]) -> String {
    let sum = bytes.iter().fold(0u64, |sum, &byte| sum.wrapping_mul(257).wrapping_add(byte.into()));
    format!("{} bytes, sum {sum}", bytes.len())
}

fn errno_of(error: io::Error) -> i32 {
    let invalid = |kind| if kind == io::ErrorKind::InvalidInput { libc::EINVAL } else { -1 };
    error.raw_os_error().unwrap_or_else(|| invalid(error.kind()))
}

fn on_std(root: &Path, operation: &Operation) -> Seen {
    let at = |path: &str| root.join(path);
    let attributes = |metadata: fs::Metadata| {
        let length = if metadata.is_dir() { 0 } else { metadata.len() };
        let (uid, gid) = (metadata.uid(), metadata.gid());
        format!("{:o} {length} links {} owner {uid} {gid}", metadata.mode(), metadata.nlink())
    };
    let done = |()| String::new();
    let result = match operation {
        CreateDir(path) => fs::create_dir(at(path)).map(done),
        CreateDirAll(path) => fs::create_dir_all(at(path)).map(done),
        RemoveDir(path) => fs::remove_dir(at(path)).map(done),
        RemoveFile(path) => fs::remove_file(at(path)).map(done),
        RemoveDirAll(path) => fs::remove_dir_all(at(path)).map(done),
        Rename(from, to) => fs::rename(at(from), at(to)).map(done),
        HardLink(from, to) => fs::hard_link(at(from), at(to)).map(done),
        Symlink(target, path) => symlink(target, at(path)).map(done),
        ReadLink(path) => fs::read_link(at(path)).map(|target| target.display().to_string()),
        Write(path, length) => fs::write(at(path), content(*length)).map(done),
        Read(path) => fs::read(at(path)).map(|bytes| shown(&bytes)),
        Metadata(path) => fs::metadata(at(path)).map(attributes),
        SymlinkMetadata(path) => fs::symlink_metadata(at(path)).map(attributes),
        SetPermissions(path, mode) => fs::set_permissions(at(path), fs::Permissions::from_mode(*mode)).map(done),
        List(path) => fs::read_dir(at(path)).map(|list| {
            let entry = |entry: io::Result<fs::DirEntry>| {
                let entry = entry.expect("an entry");
                let kind = entry.file_type().expect("a kind");
                (entry.file_name(), kind.is_dir(), kind.is_symlink())
            };
            let mut names: Vec<_> = list.map(entry).collect();
            names.sort();
            format!("{names:?}")
        }),
        Copy(from, to) => fs::copy(at(from), at(to)).map(|bytes| bytes.to_string()),
        SetTimes(path, seconds) => fs::File::open(at(path)).and_then(|file| {
            let time = UNIX_EPOCH + Duration::new(*seconds, 123_456_789);
            file.set_times(fs::FileTimes::new().set_modified(time))?;
            Ok(format!("{:?}", file.metadata()?.modified()?))
        }),
        Exists(path) => at(path).try_exists().map(|exists| exists.to_string()),
        OpenWith(path, [read, write, append, truncate, create, create_new]) => {
            let mut options = fs::OpenOptions::new();
            options.read(*read).write(*write).append(*append).truncate(*truncate);
            options.create(*create).create_new(*create_new).mode(0o641);
            options.open(at(path)).map(|file| use_file(&file, &file))
        }
        SetLength(path, length) => {
            fs::OpenOptions::new().write(true).open(at(path)).and_then(|file| file.set_len(*length)).map(done)
        }
    };
    result.map_err(errno_of)
}

fn on_image(fs: &FileSystem, operation: &Operation) -> Seen {
    let attributes = |metadata: directfs::Metadata| {
        let length = if metadata.is_dir() { 0 } else { metadata.len() };
        let (uid, gid) = (metadata.uid(), metadata.gid());
        format!("{:o} {length} links {} owner {uid} {gid}", metadata.mode(), metadata.nlink())
    };
    let done = |()| String::new();
    let result = match operation {
        CreateDir(path) => fs.create_dir(path).map(done),
        CreateDirAll(path) => fs.create_dir_all(path).map(done),
        RemoveDir(path) => fs.remove_dir(path).map(done),
        RemoveFile(path) => fs.remove_file(path).map(done),
        RemoveDirAll(path) => fs.remove_dir_all(path).map(done),
        Rename(from, to) => fs.rename(from, to).map(done),
        HardLink(from, to) => fs.hard_link(from, to).map(done),
        Symlink(target, path) => fs.symlink(target, path).map(done),
        ReadLink(path) => fs.read_link(path).map(|target| target.display().to_string()),
        Write(path, length) => fs.write(path, content(*length)).map(done),
        Read(path) => fs.read(path).map(|bytes| shown(&bytes)),
        Metadata(path) => fs.metadata(path).map(attributes),
        SymlinkMetadata(path) => fs.symlink_metadata(path).map(attributes),
        SetPermissions(path, mode) => fs.set_permissions(path, *mode).map(done),
        List(path) => fs.read_dir(path).map(|list| {
            let entry = |entry: directfs::Result<directfs::DirEntry>| {
                let entry = entry.expect("an entry");
                let kind = entry.file_type();
                (entry.file_name().to_owned(), kind.is_dir(), kind.is_symlink())
            };
            let mut names: Vec<_> = list.map(entry).collect();
            names.sort();
            format!("{names:?}")
        }),
        Copy(from, to) => fs.copy(from, to).map(|bytes| bytes.to_string()),
        SetTimes(path, seconds) => fs.open(path).and_then(|file| {
            let time = UNIX_EPOCH + Duration::new(*seconds, 123_456_789);
            file.set_times(directfs::FileTimes::new().set_modified(time))?;
            Ok(format!("{:?}", file.metadata()?.modified()))
        }),
        Exists(path) => fs.exists(path).map(|exists| exists.to_string()),
        OpenWith(path, [read, write, append, truncate, create, create_new]) => {
            let mut options = directfs::OpenOptions::new();
            options.read(*read).write(*write).append(*append).truncate(*truncate);
            options.create(*create).create_new(*create_new).mode(0o641);
            fs.open_with(path, &options).map(|file| use_file(&file, &file))
        }
        SetLength(path, length) => fs
            .open_with(path, directfs::OpenOptions::new().write(true))
            .and_then(|file| file.set_len(*length))
            .map(done),
    };
    result.map_err(|error| error.errno())
}

/// Writes, seeks and reads; returns every result.
fn use_file<F: io::Write + io::Seek>(mut file: F, mut again: impl io::Read) -> String {
    let code = |error: io::Error| {
        let own = error.get_ref().and_then(|inner| inner.downcast_ref::<directfs::Error>());
        own.map_or_else(|| error.raw_os_error(), |own| Some(own.errno()))
    };
    let written = file.write(b"abc").map_err(code);
    let position = file.stream_position().map_err(code);
    let end = file.seek(io::SeekFrom::End(-1)).map_err(code);
    let outside = file.seek(io::SeekFrom::Current(-1_000_000_000)).map_err(code);
    let start = file.seek(io::SeekFrom::Start(1)).map_err(code);
    let mut bytes = Vec::new();
    let read = again.read_to_end(&mut bytes).map_err(code);
    format!("{written:?} {position:?} {end:?} {outside:?} {start:?} {read:?} {}", shown(&bytes))
}

/// Applies operations to both, and compares results and, at the end, trees.
fn compare(operations: impl IntoIterator<Item = Operation>) {
    let (scratch, directory) = (Scratch::new(), scratch_directory());
    fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o777)).unwrap();
    for (step, operation) in operations.into_iter().enumerate() {
        let expected = on_std(directory.path(), &operation);
        let seen = on_image(&scratch.fs, &operation);
        assert_eq!(seen, expected, "step {step}: {operation:?}");
    }
    let expected = tree(&|path| on_std(directory.path(), path));
    assert_eq!(tree(&|path| on_image(&scratch.fs, path)), expected);
}

/// Attributes and content of a few levels of names.
fn tree(look: &dyn Fn(&Operation) -> Seen) -> Vec<(&'static str, Seen, Seen, Seen)> {
    NAMES.iter().map(|&path| (path, look(&SymlinkMetadata(path)), look(&Read(path)), look(&List(path)))).collect()
}

const NAMES: [&str; 16] = [
    "a", "b", "c", "link", "a/b", "a/c", "b/a", "a/b/c", "link/a", "a/", "b/", "./a", "a/../b", "a/.", "link/",
    "a/b/../c",
];

#[test]
fn each_operation_in_turn() {
    compare([
        CreateDir("a"),
        CreateDir("a"),
        CreateDir("a/"),
        CreateDir("missing/a"),
        CreateDirAll("a/b/c"),
        CreateDirAll("a/b/c"),
        Write("a/file", 10_000),
        CreateDirAll("a/file"),
        CreateDirAll("a/file/x"),
        CreateDir("a/file/x"),
        Read("a/file"),
        Read("a"),
        Read("missing"),
        Metadata("a"),
        Metadata("a/file"),
        Metadata("a/file/"),
        SetPermissions("a/file", 0o4751),
        Metadata("a/file"),
        Write("a/file", 3),
        Metadata("a/file"),
        SetPermissions("missing", 0o700),
        Symlink("file", "a/link"),
        Symlink("file", "a/link"),
        Symlink("nowhere", "a/dangling"),
        Symlink("loop", "a/loop"),
        Symlink("", "a/empty"),
        ReadLink("a/link"),
        ReadLink("a/file"),
        Read("a/link"),
        Read("a/dangling"),
        Read("a/loop"),
        Exists("a/link"),
        Exists("a/dangling"),
        Exists("a/loop"),
        Exists("a/file/x"),
        Metadata("a/link"),
        SymlinkMetadata("a/link"),
        Write("a/dangling", 5),
        Read("a/nowhere"),
        HardLink("a/file", "a/second"),
        HardLink("a/file", "a/second"),
        HardLink("a/link", "a/second link"),
        HardLink("a", "d"),
        SymlinkMetadata("a/second link"),
        Metadata("a/second"),
        List("a"),
        List("a/file"),
        List("missing"),
        Copy("a/file", "copy"),
        Copy("a/link", "copy"),
        Copy("a", "copy"),
        Copy("copy", "a"),
        Copy("missing", "copy"),
        Write("large", 3_000_000),
        Copy("large", "large copy"),
        Read("large copy"),
        Metadata("large copy"),
        Copy("a/file", "large copy"),
        Read("large copy"),
        SetLength("large", 5_000_001),
        Read("large"),
        SetLength("large", 7),
        Read("large"),
        SetLength("a", 7),
        SetTimes("large", 1_000_000_000),
        SetTimes("a", 10),
        Rename("a/file", "b"),
        Rename("a", "b"),
        Rename("b", "a"),
        Rename("a", "a/b/inside"),
        Rename("missing", "b"),
        Rename("b", "missing/b"),
        CreateDirAll("full/x"),
        CreateDir("empty"),
        Rename("a", "full"),
        Rename("a", "empty"),
        RemoveDir("full"),
        RemoveDir("b"),
        RemoveFile("full"),
        RemoveFile("missing"),
        RemoveFile("b/"),
        RemoveFile("empty/link"),
        RemoveDirAll("b"),
        RemoveDirAll("missing"),
        Symlink("full", "to full"),
        RemoveDirAll("to full"),
        Exists("full/x"),
        RemoveDirAll("full"),
        RemoveDirAll("empty"),
        List("."),
        RemoveDir("."),
        Rename(".", "x"),
        Rename("b", "."),
        CreateDir("."),
        CreateDir("b/.."),
    ]);
}

#[test]
fn all_options_of_open_on_all_kinds_of_files() {
    let options = (0..64u32).map(|bits| [0, 1, 2, 3, 4, 5].map(|bit| bits & 1 << bit != 0));
    let files = ["file", "missing", "directory", "link", "dangling", "directory/", "file/"];
    let operations = options.flat_map(|options| {
        let reset = [
            RemoveFile("missing"),
            RemoveFile("nowhere"),
            Write("file", 10),
            CreateDir("directory"),
            Symlink("file", "link"),
            Symlink("nowhere", "dangling"),
        ];
        let each = files.into_iter().flat_map(move |path| [OpenWith(path, options), Metadata(path), Read(path)]);
        reset.into_iter().chain(each)
    });
    compare(operations);
}

#[test]
fn random_sequences() {
    for seed in 1..=20u64 {
        println!("seed {seed}");
        compare(sequence(seed, 400));
    }
}

fn sequence(seed: u64, count: usize) -> Vec<Operation> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mut draw = move |below: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 33) as usize % below
    };
    let mut operations = Vec::new();
    for _ in 0..count {
        let (path, other) = (NAMES[draw(NAMES.len())], NAMES[draw(NAMES.len())]);
        operations.push(match draw(16) {
            0 | 1 => CreateDir(path),
            2 => CreateDirAll(path),
            3 => RemoveDir(path),
            4 => RemoveFile(path),
            5 if draw(4) == 0 => RemoveDirAll(path),
            5 | 6 => Rename(path, other),
            7 => HardLink(path, other),
            8 => Symlink(["a", "b", "a/b", "./b", "."][draw(5)], path),
            9 => ReadLink(path),
            10 | 11 => Write(path, draw(10_000)),
            12 => List(path),
            13 => SymlinkMetadata(path),
            14 => Read(path),
            _ => OpenWith(path, [0; 6].map(|_| draw(2) == 1)),
        });
    }
    operations
}

#[test]
fn names_and_paths_that_no_file_can_have() {
    let (scratch, directory) = (Scratch::new(), scratch_directory());
    let long = "n".repeat(256);
    let deep: PathBuf = ["d"; 2100].iter().collect();
    fs::write(directory.path().join("x"), "").unwrap();
    scratch.fs.write("x", "").unwrap();
    for path in [Path::new("a\0b"), Path::new(&long), &deep, Path::new(""), Path::new(&"n".repeat(255))] {
        let at = |path: &Path| if path.as_os_str().is_empty() { path.to_owned() } else { directory.path().join(path) };
        let expected = fs::File::create(at(path)).map(drop).map_err(errno_of);
        assert_eq!(scratch.fs.create(path).map(drop).map_err(|error| error.errno()), expected, "{path:?}");
        let expected = fs::rename(directory.path().join("x"), at(path)).map_err(errno_of);
        assert_eq!(scratch.fs.rename("x", path).map_err(|error| error.errno()), expected, "{path:?}");
        let expected = fs::metadata(at(path)).map(drop).map_err(errno_of);
        assert_eq!(scratch.fs.metadata(path).map(drop).map_err(|error| error.errno()), expected, "{path:?}");
    }
    let target = "t".repeat(4096);
    let expected = symlink(&target, directory.path().join("l")).map_err(errno_of);
    assert_eq!(scratch.fs.symlink(&target, "l").map_err(|error| error.errno()), expected);
}

#[test]
fn the_types_of_std_have_counterparts() {
    let (scratch, directory) = (Scratch::new(), scratch_directory());
    let fs = &scratch.fs;
    let at = |path: &str| directory.path().join(path);
    // Directories with options.
    for (recursive, path) in [(false, "x/y"), (true, "a/b/c"), (true, "a/b/c"), (false, "a"), (false, "d")] {
        use std::os::unix::fs::DirBuilderExt;
        let expected = fs::DirBuilder::new().recursive(recursive).mode(0o710).create(at(path)).map_err(errno_of);
        let seen = directfs::DirBuilder::new().recursive(recursive).mode(0o710).create(fs, path);
        assert_eq!(seen.map_err(|error| error.errno()), expected, "{path}");
    }
    for path in ["a", "a/b", "a/b/c", "d"] {
        let expected = fs::metadata(at(path)).unwrap().permissions().mode() & 0o7777;
        assert_eq!(fs.metadata(path).unwrap().permissions().mode(), expected, "{path}");
    }
    // Permissions of std, and what they say.
    fs::write(at("file"), "0123").unwrap();
    fs.write("file", "0123").unwrap();
    for mode in [0o400, 0o755, 0o444] {
        let permissions = fs::Permissions::from_mode(mode);
        fs::set_permissions(at("file"), permissions.clone()).unwrap();
        fs.set_permissions("file", permissions).unwrap();
        let (expected, mut seen) =
            (fs::metadata(at("file")).unwrap().permissions(), fs.metadata("file").unwrap().permissions());
        assert_eq!((seen.mode(), seen.readonly()), (expected.mode() & 0o7777, expected.readonly()));
        let mut expected = expected;
        #[allow(clippy::permissions_set_readonly_false, reason = "both do the same")]
        expected.set_readonly(!expected.readonly());
        seen.set_readonly(!seen.readonly());
        assert_eq!(seen.mode(), expected.mode() & 0o7777);
    }
    // Times, of which one stays.
    let time = UNIX_EPOCH + Duration::new(7, 9);
    let before = fs.metadata("file").unwrap().modified();
    fs.set_times("file", directfs::FileTimes::new().set_accessed(time)).unwrap();
    let after = fs.metadata("file").unwrap();
    assert_eq!((after.accessed(), after.modified()), (time, before));
    // The file was created after its directory, and setting times does not change that.
    let created = fs.created("file").unwrap();
    assert!(fs.created("a").unwrap() <= created && created > time);
    assert_eq!(fs.open("file").unwrap().created().unwrap(), created);
    assert!(fs.created("missing").is_err_and(|error| error.kind() == io::ErrorKind::NotFound));
    assert!(!fs.try_exists("missing").unwrap() && fs.try_exists("file").unwrap());
}

#[test]
fn generic_code_takes_files_of_both() {
    use std::os::unix::fs::FileExt;
    fn middle(file: &impl FileExt) -> io::Result<[u8; 2]> {
        file.write_all_at(b"abcd", 0)?;
        let mut bytes = [0; 2];
        file.read_exact_at(&mut bytes, 1)?;
        Ok(bytes)
    }
    let (scratch, directory) = (Scratch::new(), scratch_directory());
    let path = directory.path().join("file");
    let host = fs::OpenOptions::new().read(true).write(true).create_new(true).open(path).unwrap();
    let ours = scratch.fs.create_new("file").unwrap();
    assert_eq!(middle(&ours).unwrap(), middle(&host).unwrap());
    let end = |file: &dyn FileExt| file.read_exact_at(&mut [0; 2], 3).unwrap_err().kind();
    assert_eq!(end(&ours), end(&host));
}

#[test]
fn errors_have_the_kinds_of_std() {
    let (scratch, directory) = (Scratch::new(), scratch_directory());
    fs::write(directory.path().join("bytes"), [0xff]).unwrap();
    scratch.fs.write("bytes", [0xff]).unwrap();
    let expected = fs::read_to_string(directory.path().join("bytes")).unwrap_err().kind();
    let error = scratch.fs.read_to_string("bytes").unwrap_err();
    assert_eq!((error.kind(), io::Error::from(error).kind()), (expected, expected));
    let error = scratch.fs.remove_dir("bytes").unwrap_err();
    let expected = fs::remove_dir(directory.path().join("bytes")).unwrap_err();
    assert_eq!((error.raw_os_error(), error.kind()), (expected.raw_os_error(), expected.kind()));
    assert_eq!((error.path(), error.second_path()), (Some(Path::new("bytes")), None));
    // A remedy concerns the call, and has no words of one language's library.
    scratch.fs.create_dir_all("a/b").unwrap();
    let below = scratch.fs.rename("a", "a/b/c").unwrap_err();
    assert_eq!(below.second_path(), Some(Path::new("a/b/c")));
    assert!(below.remedy().contains("below itself") && below.to_string().ends_with(below.remedy()), "{below}");
    assert!(scratch.fs.metadata("a\0").unwrap_err().remedy().contains("zero byte"));
    assert!(!scratch.fs.remove_dir("a").unwrap_err().remedy().contains('_'));
}
