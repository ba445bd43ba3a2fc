//! The program `lab`.

use image::{Image, OpenImage};
use std::fs::{self, File};
use std::path::Path;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

/// Maximum time until a server has closed its image after an unmount.
const TIMEOUT: Duration = Duration::from_secs(600);

fn lab<S: AsRef<std::ffi::OsStr>>(arguments: &[S]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_lab")).args(arguments).output().expect("the program starts")
}

fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// A scratch directory in memory.
fn scratch() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm").expect("/dev/shm can be written")
}

/// A mount point that is unmounted at the end.
struct MountPoint<'a> {
    point: &'a Path,
    image: &'a Path,
}

impl Drop for MountPoint<'_> {
    fn drop(&mut self) {
        let unmount = || Command::new("umount").arg(self.point).status().unwrap().success();
        if std::thread::panicking() {
            unmount();
            return;
        }
        // Processes that other tests start have this test's files until their exec.
        let end = Instant::now() + TIMEOUT;
        while !unmount() {
            assert!(Instant::now() < end, "the mount is in use");
        }
        // The server has the image locked until it has closed it.
        let image = File::open(self.image).unwrap();
        while image.try_lock().is_err() {
            assert!(Instant::now() < end, "the server still runs");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

#[test]
fn the_list_names_every_experiment_and_an_unknown_one_is_answered_with_it() {
    let listed = lab(&["list"]);
    assert!(listed.status.success(), "{}", stderr(&listed));
    let unknown = lab(&["directfs-table9"]);
    assert_eq!(unknown.status.code(), Some(1));
    for experiment in ::lab::experiments::CATALOGUE {
        assert!(stdout(&listed).contains(experiment.name), "{}", stdout(&listed));
        assert!(stderr(&unknown).contains(experiment.name), "{}", stderr(&unknown));
    }
}

#[test]
fn all_experiments_need_a_place_for_their_report() {
    let refused = lab(&["all"]);
    assert_eq!(refused.status.code(), Some(2));
    assert!(stderr(&refused).contains("--out"), "{}", stderr(&refused));
}

#[test]
fn an_experiment_prints_its_numbers_and_leaves_a_report_that_is_not_overwritten() {
    let directory = scratch();
    let out = directory.path().join("report");
    let arguments = ["soupfs-fig3", "--quick", "--clock", "--out", out.to_str().unwrap()];
    let done = lab(&arguments);
    assert!(done.status.success(), "{}", stderr(&done));
    assert!(stdout(&done).contains("unlink") && stdout(&done).contains("SoupFS"), "{}", stdout(&done));
    let report = fs::read_to_string(out.join("index.html")).unwrap();
    assert!(report.contains("<svg") && report.contains("soupfs-fig3"));
    let numbers = fs::read_to_string(out.join("soupfs-fig3.tsv")).unwrap();
    assert!(numbers.lines().count() > 12, "{numbers}");

    let again = lab(&arguments);
    assert_eq!(again.status.code(), Some(1));
    assert!(stderr(&again).contains("--force"), "{}", stderr(&again));
    assert_eq!(fs::read_to_string(out.join("index.html")).unwrap(), report, "as it was");
    let forced = lab(&[&arguments[..], &["--force"]].concat());
    assert!(forced.status.success(), "{}", stderr(&forced));
}

/// The report of two processes is that of one, and what one process left is not done again.
#[test]
fn jobs_make_one_report_and_an_interrupted_one_continues() {
    let directory = scratch();
    let out = directory.path().join("report");
    let kept = out.join("soupfs-fig3.kept");
    let part = ["soupfs-fig3", "--quick", "--virtual", "--part", "--out", out.to_str().unwrap()];
    assert!(lab(&part).status.success());
    let before = fs::read_to_string(&kept).unwrap();
    assert!(!out.join("index.html").exists(), "a part is no report");

    let report = ["soupfs-fig3", "--quick", "--virtual", "--resume", "--jobs", "2", "--out", out.to_str().unwrap()];
    let resumed = lab(&report);
    assert!(resumed.status.success(), "{}", stderr(&resumed));
    assert!(!stderr(&resumed).contains("soupfs-fig3"), "done again: {}", stderr(&resumed));
    let section = before.split_once("<h2").unwrap().1;
    assert!(fs::read_to_string(out.join("index.html")).unwrap().contains(section));
    assert!(!kept.exists(), "nothing is left to continue");

    let again = lab(&report);
    assert!(again.status.success() && stderr(&again).contains("soupfs-fig3"), "{}", stderr(&again));
    assert!(lab(&[&part[..], &["--force"]].concat()).status.success());
    let other = lab(&[&report[..1], &["--quick", "--clock"], &report[3..]].concat());
    assert!(other.status.success() && stderr(&other).contains("soupfs-fig3"), "of other times: {}", stderr(&other));
    assert!(stderr(&other).contains("another build, size or clock"), "why again: {}", stderr(&other));
}

#[test]
fn a_workload_runs_in_a_new_directory_and_prints_its_rate() {
    let directory = scratch();
    for name in ["varmail", "fileserver", "webserver", "webproxy", "postmark", "ycsb-a", "ycsb-e"] {
        let place = directory.path().join(name);
        let run = || lab(&["workload", name, place.to_str().unwrap(), "--count", "50", "--turns", "20"]);
        let done = run();
        assert!(done.status.success(), "{name}: {}", stderr(&done));
        let printed = stdout(&done);
        assert!(printed.starts_with(&format!("{name} ")) && printed.contains("operations per second"), "{printed}");
        assert!(fs::read_dir(&place).unwrap().count() > 0, "{name} left no file");
        let again = run();
        assert_eq!(again.status.code(), Some(1), "{name} would measure other files");
        assert!(stderr(&again).contains("name a new directory"), "{}", stderr(&again));
    }
    let unknown = lab(&["workload", "ycsb-g", directory.path().join("g").to_str().unwrap()]);
    assert!(!unknown.status.success() && stderr(&unknown).contains("ycsb-f"), "{}", stderr(&unknown));
    assert!(!directory.path().join("g").exists(), "nothing was begun");
}

#[test]
fn an_image_of_each_system_is_made_recognised_and_mounted() {
    if fuse::open_device().is_err() {
        eprintln!("\n*** SKIPPED: mounts of the lab's systems: /dev/fuse cannot be opened here ***\n");
        return;
    }
    for system in ["byvfs", "soupfs", "nova", "pmfs", "squirrelfs"] {
        let directory = scratch();
        let (image, point) = (directory.path().join("image"), directory.path().join("mount"));
        fs::create_dir(&point).unwrap();
        let (path, place) = (image.to_str().unwrap(), point.to_str().unwrap());
        let made = lab(&["mkfs", path, "--size", "32M", "--system", system]);
        assert!(made.status.success(), "{system}: {}", stderr(&made));
        let again = lab(&["mkfs", path, "--size", "32M", "--system", system]);
        assert!(!again.status.success() && stderr(&again).contains("--force"), "{system}: {}", stderr(&again));
        for options in [&[][..], &["-o", "nosuid,vfs=conventional,fsync=names"], &["-o", "vfs=cachelet,nodev"]] {
            let mounted = lab(&[&["mount", path, place], options].concat());
            assert!(mounted.status.success(), "{system}: {}", stderr(&mounted));
            let _mount = MountPoint { point: &point, image: &image };
            if options.is_empty() {
                fs::write(point.join("file"), system).unwrap();
            }
            assert_eq!(fs::read_to_string(point.join("file")).unwrap(), system);
        }
    }
}

#[test]
fn an_unknown_system_is_answered_with_the_known_ones() {
    let directory = scratch();
    let image = directory.path().join("image");
    let made = lab(&["mkfs", image.to_str().unwrap(), "--size", "32M", "--system", "ext4"]);
    assert_eq!(made.status.code(), Some(2));
    for name in ["nova", "pmfs", "soupfs", "squirrelfs", "byvfs"] {
        assert!(stderr(&made).contains(name), "{}", stderr(&made));
    }
    assert!(!image.exists());
}

#[test]
fn a_failing_mount_reports_the_cause() {
    let directory = scratch();
    let (image, other) = (directory.path().join("image"), directory.path().join("other"));
    let (path, place) = (image.to_str().unwrap(), directory.path().to_str().unwrap());
    assert!(lab(&["mkfs", path, "--size", "32M", "--system", "nova"]).status.success());
    fs::write(&other, [7; 8192]).unwrap();
    for (arguments, cause) in [
        (&["mount", path, place, "-o", "vfs=ext4"][..], "expected conventional"),
        (&["mount", path, place, "-o", "ro"], "remove the option ro"),
        (&["mount", path, place, "-o", "nosuit"], "nosuit"),
        (&["mount", path, "/nowhere"], "create the directory first"),
        (&["mount", "/nowhere/image", place], "cannot find the image"),
        (&["mount", other.to_str().unwrap(), place], "not an image of the lab"),
    ] {
        let output = lab(arguments);
        assert_eq!(output.status.code(), Some(1), "{arguments:?}");
        assert!(stderr(&output).contains(cause), "{arguments:?} prints {}", stderr(&output));
    }
}

#[test]
fn directfs_does_not_recognise_an_image_of_another_system() {
    for system in ["nova", "pmfs", "soupfs", "squirrelfs"] {
        let directory = scratch();
        let image = directory.path().join("image");
        let made = lab(&["mkfs", image.to_str().unwrap(), "--size", "32M", "--system", system]);
        assert!(made.status.success(), "{}", stderr(&made));
        let before = fs::read(&image).unwrap();
        let refused = Image::open(&image, &OpenImage::default()).map(drop).unwrap_err();
        assert!(refused.to_string().contains("not a DirectFS image"), "{system}: {refused}");
        assert!(fs::read(&image).unwrap() == before, "{system}: the image was changed");
    }
}
