//! Machines with persistent memory: QEMU without acceleration, the kernel of a distribution, and a
//! root file system in memory with `directfs` and a few tools of this machine.
//!
//! A machine runs a script in its first process, writes to its console, and turns itself off. The
//! script consists of steps (see `PRELUDE`), each of which prints a line "ok: ..." or
//! "FAILED: ...".

use crate::archive::Archive;
use crate::hardware::{Hardware, QEMU};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// Longer than any script takes on a busy machine.
const LIMIT: Duration = Duration::from_secs(900);
/// Printed after the last step.
const END: &str = "the script has ended";
/// What every machine can load besides the drivers of its hardware: `drivers NAME...` in a script.
const FILE_SYSTEMS: &[&str] = &["ext4", "xfs", "fuse", "crc32c_generic"];
const TOOLS: &[&str] =
    &["ndctl", "daxctl", "mkfs.ext4", "mkfs.xfs", "filefrag", "sh", "cp", "cat", "diff", "ls", "dd", "tar"];
const OPTIONAL_TOOLS: &[&str] = &["sqlite3", "cxl", APPARMOR_PARSER];
const APPARMOR_PARSER: &str = "apparmor_parser";

const INIT: &str = r#"#!/bin/busybox sh
/bin/busybox --install -s /bin
export PATH=/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root
mount -t proc proc /proc; mount -t sysfs sys /sys; mount -t devtmpfs dev /dev
mkdir -p /dev/shm /dev/pts; mount -t tmpfs shm /dev/shm; mount -t devpts pts /dev/pts; mount -t tmpfs tmp /tmp
. /prelude
drivers fuse crc32c_generic $(cat /hardware)
. /script
echo "the script has ended"
sync; echo o > /proc/sysrq-trigger; sleep 1000
"#;

/// What scripts are made of.
const PRELUDE: &str = r#"
# drivers NAME...: loads drivers, and what they need. A driver without a list is in the kernel.
drivers() {
    for module in $(for name in "$@"; do cat /drivers/$name.list 2> /dev/null; done); do
        insmod /drivers/$module 2> /dev/null || grep -q "^$(basename $module .ko | tr - _) " /proc/modules || echo "FAILED: insmod $module"
    done
}
# ok WHAT: the line of a step that was right, with the seconds since the start.
ok() { read seconds rest < /proc/uptime; echo "ok: $1 ($seconds s)"; } 2> /dev/null
# step WHAT COMMAND...: the command succeeds.
step() {
    what=$1; shift
    if output=$("$@" 2>&1); then ok "$what"; else echo "FAILED: $what: code $?: $output"; fi
}
# says WHAT TEXT COMMAND...: the command succeeds, and its output holds the text.
says() {
    what=$1 text=$2; shift 2
    output=$("$@" 2>&1); code=$?
    case "$code $output" in "0 "*"$text"*) ok "$what" ;; *) echo "FAILED: $what: code $code: $output" ;; esac
}
# refuses WHAT TEXT COMMAND...: the command fails by itself, and its output holds the text.
refuses() {
    what=$1 text=$2; shift 2
    output=$("$@" 2>&1); code=$?
    case "$code $output" in "0 "* | 1[3-9][0-9]" "*) false ;; *"$text"*) true ;; *) false ;; esac &&
        ok "$what" || echo "FAILED: $what: code $code: $output"
}
# await COMMAND...: until the command succeeds, or minutes have passed.
await() { tries=0; until "$@" || [ $tries -gt 1500 ]; do sleep 0.2; tries=$((tries + 1)); done; }
# namespace WORDS: a new namespace of the NVDIMM.
namespace() { step "namespace $*" ndctl create-namespace -M mem "$@"; }
# labels: the NVDIMM gets a label area without namespaces.
labels() { ndctl disable-region all; ndctl init-labels -f all; ndctl enable-region all; } > /dev/null 2>&1
"#;

/// What this machine has of what a virtual one needs.
struct Parts {
    kernel: PathBuf,
    root: Vec<u8>,
}

/// A machine that has not been started.
pub struct Machine {
    parts: &'static Parts,
    hardware: Vec<Hardware>,
    kernel_options: &'static str,
}

/// What a power cut leaves.
pub struct Cut {
    /// A copy of the bytes of the NVDIMM.
    pub nvdimm: PathBuf,
    /// Calls that had returned.
    pub calls: u64,
}

/// Numbers that differ from run to run.
pub struct Random(u64);

impl Default for Random {
    fn default() -> Random {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        Random(now.as_nanos() as u64)
    }
}

impl Random {
    pub fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
}

/// What a machine printed.
pub struct Console(pub String);

/// A program of this machine.
pub fn program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    let more = ["/usr/sbin", "/sbin"].map(PathBuf::from);
    std::env::split_paths(&path).chain(more).map(|folder| folder.join(name)).find(|file| file.is_file())
}

/// A machine without further hardware for each kernel, or why there is none here.
pub fn machines() -> Result<Vec<Machine>, String> {
    static PARTS: OnceLock<Result<Vec<Parts>, String>> = OnceLock::new();
    let parts = PARTS.get_or_init(find_parts).as_ref().map_err(Clone::clone)?;
    let machine = |parts| Machine { parts, hardware: Vec::new(), kernel_options: "" };
    Ok(parts.iter().map(machine).collect())
}

impl Machine {
    /// With this, or why not.
    pub fn with(mut self, hardware: Hardware) -> Result<Machine, String> {
        hardware.check()?;
        self.hardware.push(hardware);
        Ok(self)
    }

    /// With an NVDIMM of this size.
    pub fn with_nvdimm(mut self, bytes: u64) -> Machine {
        self.hardware.push(Hardware::Nvdimm { bytes, keeps_without_power: true });
        self
    }

    /// With AppArmor, and the program that loads its profiles.
    pub fn with_apparmor(mut self) -> Result<Machine, String> {
        program(APPARMOR_PARSER).ok_or("there is no apparmor_parser (Debian: apparmor)")?;
        self.kernel_options = "apparmor=1 security=apparmor";
        Ok(self)
    }

    /// Runs a script, and returns when the machine is off.
    pub fn run(self, script: &str) -> Console {
        let place = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        self.run_in(place.path(), script)
    }

    /// Runs a script, and leaves the files of the hardware in a directory.
    pub fn run_in(self, place: &Path, script: &str) -> Console {
        let mut running = self.start(script, place);
        let is_over = running.ends_within(LIMIT);
        drop(running);
        let console = console(place);
        assert!(is_over && console.contains(END), "the machine did not end its script:\n{console}");
        Console(console)
    }

    /// Runs a script that works and reports calls until the machine is ended, and stops the machine
    /// at `count` random instants. Each time `check` gets what a power cut would leave.
    pub fn cut(self, script: &str, count: usize, mut check: impl FnMut(Cut)) {
        let place = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let mut running = self.start(script, place.path());
        let calls = || std::fs::metadata(place.path().join("calls")).map_or(0, |calls| calls.len());
        let mut random = Random::default();
        let mut wanted = 1;
        for number in 0..count {
            // So many calls later than the last time, and then between two instructions.
            wanted += random.below(512);
            let pause = Duration::from_micros(100 + random.below(4096));
            let start = Instant::now();
            while calls() < wanted {
                let ended = running.0.try_wait().expect("it is a child");
                assert!(ended.is_none() && start.elapsed() < LIMIT, "it did not work:\n{}", console(place.path()));
                std::thread::sleep(pause);
            }
            running.signal(libc::SIGSTOP);
            let nvdimm = place.path().join(format!("cut-{number}"));
            std::fs::copy(place.path().join("nvdimm"), &nvdimm).unwrap();
            let cut = Cut { nvdimm: nvdimm.clone(), calls: calls() };
            running.signal(libc::SIGCONT);
            wanted = cut.calls;
            check(cut);
            std::fs::remove_file(nvdimm).unwrap();
        }
    }

    fn start(self, script: &str, place: &Path) -> Running {
        let at = |name: &str| place.join(name);
        let mut root = Archive::default();
        root.add("script", script.as_bytes(), 0o644);
        let drivers: Vec<&str> = self.hardware.iter().flat_map(|one| one.drivers()).copied().collect();
        root.add("hardware", drivers.join(" ").as_bytes(), 0o644);
        // The kernel unpacks both, one after the other.
        std::fs::write(at("root"), [&self.parts.root[..], &root.finish()].concat()).unwrap();
        let mut command = Command::new(QEMU);
        command.args(["-nodefaults", "-no-user-config", "-no-reboot", "-display", "none"]);
        let has_cxl = self.hardware.iter().any(|&one| matches!(one, Hardware::CxlPersistent | Hardware::CxlVolatile));
        // In a virtual machine that shows itself as one the kernel sets up no CXL memory.
        let (board, processor) = if has_cxl { ("q35", "max,hypervisor=off") } else { ("pc", "max") };
        let board: Vec<&str> =
            [board].into_iter().chain(self.hardware.iter().filter_map(|one| one.machine())).collect();
        // One processor: emulated ones wait for each other.
        command.args(["-accel", "tcg", "-smp", "1", "-m", "1G,slots=4,maxmem=16G"]);
        command.args(["-cpu", processor, "-machine", &board.join(",")]);
        command.args(self.hardware.iter().flat_map(|one| one.options(place)));
        command.arg("-kernel").arg(&self.parts.kernel).arg("-initrd").arg(at("root"));
        // Under load the kernel takes a late timer for a broken one. Mitigations and tests of
        // ciphers, and zeros in pages that are overwritten, cost an emulated processor seconds.
        let options =
            "console=ttyS0 no_timer_check loglevel=3 panic=-1 mitigations=off cryptomgr.notests init_on_alloc=0";
        let options = format!("{options} {}", self.kernel_options);
        command.args(["-append", &options]);
        command.arg("-serial").arg(format!("file:{}", at("console").display()));
        command.arg("-debugcon").arg(format!("file:{}", at("calls").display()));
        Running(command.stdin(Stdio::null()).spawn().expect("QEMU starts"))
    }
}

/// What the machine printed so far.
fn console(place: &Path) -> String {
    String::from_utf8_lossy(&std::fs::read(place.join("console")).unwrap_or_default()).into_owned()
}

impl Console {
    /// Fails unless each step of the script was right.
    pub fn assert_all_steps(&self) {
        println!("{}", self.0);
        assert!(!self.0.contains("FAILED"), "a step failed:\n{}", self.0);
        assert!(self.0.contains("ok: "), "no step was taken:\n{}", self.0);
    }
}

/// A machine that ends with this value at the latest.
struct Running(Child);

impl Running {
    /// Stops all threads of the machine, and waits until they are, or continues them.
    fn signal(&self, signal: i32) {
        let pid = self.0.id() as i32;
        // SAFETY: a child that has not been waited for; the status is not wanted.
        unsafe {
            assert_eq!(libc::kill(pid, signal), 0);
            if signal == libc::SIGSTOP {
                libc::waitpid(pid, std::ptr::null_mut(), libc::WUNTRACED);
            }
        }
    }

    fn ends_within(&mut self, limit: Duration) -> bool {
        let start = Instant::now();
        while self.0.try_wait().expect("it is a child").is_none() {
            if start.elapsed() > limit {
                return false;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        true
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn find_parts() -> Result<Vec<Parts>, String> {
    for needed in ["qemu-system-x86_64", "busybox", "cc"].iter().chain(TOOLS) {
        program(needed).ok_or_else(|| {
            format!("there is no {needed} (Debian: qemu-system-x86 busybox-static ndctl daxctl e2fsprogs xfsprogs)")
        })?;
    }
    let kernels = find_kernels();
    if let (Err(why), Some(named)) = (&kernels, std::env::var_os("TEST_KERNEL")) {
        panic!("TEST_KERNEL={}: {why}", named.display());
    }
    let kernels = kernels?;
    let mut root = Archive::default();
    for directory in ["dev", "proc", "sys", "tmp", "root", "mnt/a", "mnt/b", "sbin", "var/cache", "run"] {
        root.add_directory(directory);
    }
    let busybox = program("busybox").unwrap_or_default();
    root.add_program(&busybox, Path::new("bin/busybox"));
    let optional = OPTIONAL_TOOLS.iter().filter(|tool| program(tool).is_some());
    for tool in TOOLS.iter().chain(optional) {
        let tool = program(tool).unwrap_or_default();
        root.add_program(&tool, &tool);
    }
    let directfs = Path::new(env!("CARGO_BIN_EXE_directfs"));
    root.add_program(directfs, Path::new("usr/local/bin/directfs"));
    for name in ["mapping", "worker"] {
        let compiled = compile(name);
        root.add_program(&compiled, &Path::new("usr/local/bin").join(name));
    }
    root.add("init", INIT.as_bytes(), 0o755);
    root.add("prelude", PRELUDE.as_bytes(), 0o644);
    kernels
        .into_iter()
        .map(|Kernel { image, modules }| {
            let mut root = root.clone();
            add_drivers(&mut root, &modules)?;
            Ok(Parts { kernel: image, root: root.finish() })
        })
        .collect()
}

/// Adds the modules of all drivers that machines use, and for each driver a list of those that it
/// needs, in the order in which they are loaded.
fn add_drivers(root: &mut Archive, modules: &Path) -> Result<(), String> {
    let index =
        std::fs::read_to_string(modules.join("modules.dep")).map_err(|error| format!("modules.dep: {error}"))?;
    let lines = || index.lines().filter_map(|line| line.split_once(':'));
    for driver in Hardware::DRIVERS.iter().chain(FILE_SYSTEMS) {
        let Some((module, needs)) = lines().find(|(module, _)| module_name(module) == *driver) else { continue };
        let mut list = String::new();
        for needed in needs.split_whitespace().rev().chain([module]) {
            let name = format!("{}.ko", module_name(needed));
            root.add(format!("drivers/{name}"), &decompressed(&modules.join(needed))?, 0o644);
            list += &format!("{name}\n");
        }
        root.add(format!("drivers/{driver}.list"), list.as_bytes(), 0o644);
    }
    Ok(())
}

/// Compiles a program of this test.
pub fn compile(name: &str) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/devices").join(format!("{name}.c"));
    let compiled = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("devices-{name}-{}", std::process::id()));
    let status = Command::new("cc").args(["-O1", "-Wall", "-o"]).arg(&compiled).arg(source).status();
    assert!(status.expect("cc starts").success());
    compiled
}

/// A kernel, and the folder with its modules.
struct Kernel {
    image: PathBuf,
    modules: PathBuf,
}

/// The kernels that `TEST_KERNEL` names, with colons between them, or the newest that is installed.
/// A kernel is a package of Debian, or what one was unpacked to; a folder with packages stands for
/// all of them.
fn find_kernels() -> Result<Vec<Kernel>, String> {
    let named = std::env::var_os("TEST_KERNEL").unwrap_or("/".into());
    let packages_in = |place: &Path| {
        let entries = std::fs::read_dir(place).into_iter().flatten().flatten().map(|entry| entry.path());
        let is_package = |path: &PathBuf| path.extension().is_some_and(|extension| extension == "deb");
        let mut packages: Vec<PathBuf> = entries.filter(is_package).collect();
        packages.sort();
        packages
    };
    let mut kernels = Vec::new();
    for place in std::env::split_paths(&named) {
        match packages_in(&place) {
            packages if packages.is_empty() => kernels.push(find_kernel(place)?),
            packages => {
                for package in packages {
                    kernels.push(find_kernel(package)?);
                }
            }
        }
    }
    Ok(kernels)
}

/// The kernel of a package or folder. Newer packages have no `/lib`, or the image beside modules.
fn find_kernel(mut place: PathBuf) -> Result<Kernel, String> {
    let none = "there is no kernel: install one, or set TEST_KERNEL to a package that \
                `apt-get download linux-image-...` brings";
    if place.is_file() {
        let unpacked = Path::new(env!("CARGO_TARGET_TMPDIR")).join(place.file_stem().unwrap_or_default());
        let status = Command::new("dpkg-deb").arg("-x").arg(&place).arg(&unpacked).status();
        status.map_err(|error| format!("dpkg-deb: {error}"))?;
        place = unpacked;
    }
    if !place.join("lib").exists() && place.join("usr/lib/modules").is_dir() {
        // Another test may make it at the same moment.
        let _ = std::os::unix::fs::symlink("usr/lib", place.join("lib"));
    }
    let versions = std::fs::read_dir(place.join("lib/modules")).map_err(|_| none)?;
    let mut versions: Vec<String> =
        versions.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    versions.sort_by_key(|version| numbers(version));
    for version in versions.iter().rev() {
        let modules = place.join("lib/modules").join(version);
        let images = [place.join("boot").join(format!("vmlinuz-{version}")), modules.join("vmlinuz")];
        let Some(image) = images.into_iter().find(|image| image.is_file()) else { continue };
        if !modules.join("modules.dep").is_file() {
            // A package is indexed when it is installed.
            let depmod = program("depmod").ok_or("there is no depmod (Debian: kmod)")?;
            let indexed = Command::new(depmod).arg("-b").arg(&place).arg(version).status();
            indexed.map_err(|error| format!("depmod: {error}"))?;
        }
        return Ok(Kernel { image: unpacked(&image).unwrap_or(image), modules });
    }
    Err(none.to_owned())
}

/// The kernel itself, from its image, which is compressed: an emulated processor takes seconds for
/// that in each machine. `None`: it is of an unknown form, and the machine boots the image.
fn unpacked(image: &Path) -> Option<PathBuf> {
    let bytes = std::fs::read(image).ok()?;
    let number = |at: usize| Some(u32::from_le_bytes(*bytes.get(at..)?.first_chunk()?) as usize);
    // Sectors of the part in real mode; place and length of the rest (boot protocol 2.08).
    let start = (usize::from(*bytes.get(0x1f1)?) + 1) * 512 + number(0x248)?;
    // Four bytes with the length of the kernel follow.
    let packed = bytes.get(start..start + number(0x24c)?.checked_sub(4)?)?;
    let extension = match packed {
        [0xfd, b'7', b'z', ..] => "xz",
        [0x28, 0xb5, 0x2f, 0xfd, ..] => "zst",
        _ => return None,
    };
    let place = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).ok()?;
    let file = place.path().join(format!("kernel.{extension}"));
    std::fs::write(&file, packed).ok()?;
    let kernel = decompressed(&file).ok().filter(|kernel| boots_unpacked(kernel))?;
    std::fs::write(&file, kernel).ok()?;
    // Another process may boot the one that is there.
    let name = format!("{}.unpacked", image.file_name()?.display());
    let kept = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::rename(&file, &kept).ok()?;
    Some(kept)
}

/// Whether QEMU boots a kernel that is not packed: by an entry that a note of Xen (18) names.
fn boots_unpacked(kernel: &[u8]) -> bool {
    let is_note = |note: &[[u8; 4]]| note[0] == [4, 0, 0, 0] && note[2] == [18, 0, 0, 0] && note[3] == *b"Xen\0";
    kernel.starts_with(b"\x7fELF") && kernel.as_chunks().0.windows(4).any(is_note)
}

/// The numbers of a version, by which it is compared.
fn numbers(version: &str) -> Vec<u64> {
    version.split(|c: char| !c.is_ascii_digit()).filter_map(|number| number.parse().ok()).collect()
}

fn module_name(path: &str) -> String {
    let file = path.rsplit('/').next().unwrap_or_default();
    file.split(".ko").next().unwrap_or_default().replace('-', "_")
}

fn decompressed(module: &Path) -> Result<Vec<u8>, String> {
    let by = match module.extension().and_then(|extension| extension.to_str()) {
        Some("xz") => "xz",
        Some("zst") => "zstd",
        Some("gz") => "gzip",
        _ => return std::fs::read(module).map_err(|error| format!("{}: {error}", module.display())),
    };
    let output = Command::new(by).arg("-dc").arg(module).output().map_err(|error| format!("{by}: {error}"))?;
    Ok(output.stdout)
}
