//! `directfs stats` and `directfs top`: what programs and mounts on an image called.

mod support;

use serde_json::Value;
use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::Stdio;
use support::program::{Program, has_python};
use support::terminal::Terminal;
use support::{can_mount, directfs, image_in, mount, scratch, stderr, stdout, unmount};

/// Runs a command on an image, and parses each line that it prints.
fn reports(command: &str, image: &Path, options: &[&str]) -> Vec<Value> {
    let arguments = [&[command, image.to_str().unwrap(), "--json"], options].concat();
    let output = directfs(&arguments);
    assert!(output.status.success(), "{}", stderr(&output));
    stdout(&output).lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

fn stats(image: &Path) -> Value {
    reports("stats", image, &[]).remove(0)
}

fn count(report: &Value, call: &str) -> u64 {
    report["calls"][call]["count"].as_u64().unwrap_or(0)
}

const CALLER: &str = "
import os, sys, time
print('ready', flush=True)
for line in sys.stdin:
    if line == 'names\\n':
        for number in range(700): os.mkdir(f'd{number}')
        for number in range(600): os.rmdir(f'd{number}')
        for number in range(5000): os.stat('d650')
    else:
        end = time.monotonic() + 600
        while os.path.exists('d650') and time.monotonic() < end: pass
    print('done', flush=True)
";

#[test]
fn calls_of_programs_are_counted_by_kind_and_process() {
    if !has_python() {
        return;
    }
    let directory = scratch();
    let image = image_in(directory.path());
    assert_eq!(stats(&image)["calls"], Value::Object(Default::default()), "no process uses it");
    let mut program = Program::under_run(&image, CALLER);
    let before = stats(&image);
    let mut input = program.child.stdin.take().unwrap();
    input.write_all(b"names\n").unwrap();
    assert_eq!(program.line(), "done\n");
    let after = stats(&image);
    let added = |call| count(&after, call) - count(&before, call);
    assert_eq!((added("mkdir"), added("remove"), added("stat")), (700, 600, 5000), "{after}");
    let stat = &after["calls"]["stat"];
    let [half, most] = [&stat["half_below_ns"], &stat["p99_below_ns"]].map(|ns| ns.as_u64().expect("a time"));
    assert!(half.is_power_of_two() && half <= most, "{stat}");
    assert!(after["processes"].as_u64() >= Some(1) && after["threads"].as_u64() >= Some(1), "{after}");
    assert!(after["space"]["used_bytes"].as_u64() > Some(0), "{after}");
    assert!(after["space"]["files_cached"].as_u64() > Some(1), "{after}");

    // It stats until the directory is gone.
    input.write_all(b"loop\n").unwrap();
    let pid = |process: &Value| process["command"].as_str().is_some_and(|name| name.starts_with("python"));
    // The option without a value, in front of the image, too.
    let watched =
        directfs(&["stats", "--interval", "0.2", "--count", "2", "--json", "--watch", image.to_str().unwrap()]);
    let watched: Vec<Value> = stdout(&watched).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(watched.len(), 2);
    for interval in &watched {
        assert!(interval["calls"]["stat"]["per_second"].as_f64() > Some(100.0), "{interval}");
        assert!(interval["interval_ms"].as_u64() >= Some(1), "{interval}");
        assert_eq!(count(interval, "mkdir"), 0, "only what happened in the interval: {interval}");
    }
    let top = reports("top", &image, &["--interval", "0.2", "--count", "1"]).remove(0);
    let busiest = &top["processes"][0];
    assert!(pid(busiest) && busiest["calls"]["stat"].as_f64() > Some(100.0), "{top}");
    let text = stdout(&directfs(&["top", image.to_str().unwrap(), "--interval", "0.1", "--count", "1"]));
    assert!(text.contains("python") && text.contains("stat ") && text.contains(" calls/s, "), "{text}");

    let removed =
        directfs(&["run", "--image", image.to_str().unwrap(), "--at", "/mnt/ps", "--", "rmdir", "/mnt/ps/d650"]);
    assert!(removed.status.success(), "{}", stderr(&removed));
    assert_eq!(program.line(), "done\n");
    let exported = stdout(&directfs(&["stats", image.to_str().unwrap(), "--prometheus"]));
    let line = format!("directfs_calls_total{{image=\"{}\",call=\"mkdir\"}} 700\n", image.display());
    assert!(exported.contains(&line), "{exported}");
    let infinite = exported.lines().filter(|line| line.contains("call=\"stat\",le=\"+Inf\"")).count();
    assert_eq!(infinite, 1, "{exported}");
    let info = exported.lines().find(|line| line.starts_with("directfs_image_info{")).expect("the image");
    assert!(info.contains("label=\"tests\",uuid=\"") && info.ends_with("} 1"), "{info}");
    drop(input);
    assert!(program.child.wait().unwrap().success());
    let check = directfs(&["fsck", "-n", image.to_str().unwrap()]);
    assert_eq!(check.status.code(), Some(0), "{}", stdout(&check));
}

#[test]
fn requests_of_mounts_are_counted_by_kind() {
    if !can_mount("requests of mounts") {
        return;
    }
    let directory = scratch();
    let (image, point) = (image_in(directory.path()), directory.path().join("mount"));
    fs::create_dir(&point).unwrap();
    for options in ["rw", "cache=0"] {
        mount(&image, &point, options);
        for number in 0..50 {
            fs::create_dir(point.join(format!("{options}{number}"))).unwrap();
        }
        let report = stats(&image);
        let reported = &report["mounts"][0];
        assert_eq!(reported["point"], point.to_str().unwrap(), "{report}");
        assert_eq!(reported["requests"]["MKDIR"]["count"], 50, "{report}");
        assert!(reported["requests"]["MKDIR"]["half_below_ns"].is_u64(), "{report}");
        let exported = stdout(&directfs(&["stats", image.to_str().unwrap(), "--prometheus"]));
        assert!(exported.contains(",request=\"MKDIR\"} 50\n"), "{exported}");
        unmount(&point);
    }
}

#[test]
fn an_image_has_one_series_however_it_is_named() {
    let directory = scratch();
    let image = image_in(directory.path());
    let absolute = stdout(&directfs(&["stats", image.to_str().unwrap(), "--prometheus"]));
    let mut relative = std::process::Command::new(env!("CARGO_BIN_EXE_directfs"));
    let relative = relative.args(["stats", "./image", "--prometheus"]).current_dir(directory.path()).output().unwrap();
    assert_eq!(stdout(&relative), absolute);
}

#[test]
fn prometheus_reads_the_figures_and_knows_the_alerts() {
    let promtool = |arguments: &[&str], text: &[u8]| {
        let mut command = std::process::Command::new("promtool");
        command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().ok()?;
        child.stdin.take().unwrap().write_all(text).unwrap();
        Some(child.wait_with_output().unwrap())
    };
    if promtool(&["--version"], b"").is_none() {
        return eprintln!("\n*** SKIPPED: the figures for Prometheus: promtool is not on this machine ***\n");
    }
    let directory = scratch();
    // A name that has to be quoted in a label.
    let image = directory.path().join("an \"image\" \\ of\ntwo lines");
    let made = directfs(&["mkfs", image.to_str().unwrap(), "--size", "16M"]);
    assert!(made.status.success(), "{}", stderr(&made));
    let figures = directfs(&["stats", image.to_str().unwrap(), "--prometheus"]).stdout;
    let checked = promtool(&["check", "metrics"], &figures).unwrap();
    assert!(checked.status.success(), "{}{}", stdout(&checked), stderr(&checked));
    let broken = promtool(&["check", "metrics"], &figures[..figures.len() - 3]).unwrap();
    assert!(!broken.status.success(), "what is cut off is found");
    let monitoring = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap().join("packaging/monitoring");
    let [alerts, story] = ["alerts.yml", "alerts_test.yml"].map(|name| monitoring.join(name));
    let checked = promtool(&["check", "rules", alerts.to_str().unwrap()], b"").unwrap();
    assert!(checked.status.success(), "{}{}", stdout(&checked), stderr(&checked));
    let tested = promtool(&["test", "rules", story.to_str().unwrap()], b"").unwrap();
    assert!(tested.status.success(), "{}{}", stdout(&tested), stderr(&tested));
}

#[test]
fn a_process_that_calls_nothing_has_zero_calls() {
    if !has_python() {
        return;
    }
    let directory = scratch();
    let image = image_in(directory.path());
    let program = Program::under_run(&image, "import sys; print('ready', flush=True); sys.stdin.read()");
    let output = directfs(&["top", image.to_str().unwrap(), "--json", "--interval", "0.05", "--count", "1"]);
    let text = stdout(&output);
    assert!(text.contains("\"per_second\":0.0") && !text.contains("-0.0"), "{text}");
    program.end();
}

#[test]
fn what_is_no_image_is_an_error() {
    let directory = scratch();
    let file = directory.path().join("file");
    fs::write(&file, "no image").unwrap();
    for arguments in [["stats", file.to_str().unwrap()], ["top", file.to_str().unwrap()], ["stats", "/nonexistent"]] {
        let output = directfs(&arguments);
        assert_eq!(output.status.code(), Some(1), "{}", stdout(&output));
        assert!(stderr(&output).starts_with("error: "), "{}", stderr(&output));
    }
    let image = image_in(directory.path());
    let refused = directfs(&["stats", image.to_str().unwrap(), "--watch", "--interval", "0"]);
    assert_eq!(refused.status.code(), Some(2));
    assert!(stderr(&refused).contains("0.05 to 3600 seconds"), "{}", stderr(&refused));
}

/// `top` on a terminal, beside two programs that call without an end.
fn top_of_two(columns: u16, check: impl FnOnce(&mut Terminal)) {
    if !has_python() {
        return;
    }
    let directory = scratch();
    let image = image_in(directory.path());
    let calling = "import os, sys, threading\nprint('ready', flush=True)\n\
                   end = threading.Thread(target=sys.stdin.read); end.start()\nwhile end.is_alive(): os.stat('.')";
    let programs = [(); 2].map(|()| Program::under_run(&image, calling));
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_directfs"));
    let mut terminal = Terminal::start(command.arg("top").arg(&image).args(["--interval", "0.1"]), columns, 20);
    terminal.wait_for("both programs", |terminal| rows(terminal).len() >= 2);
    check(&mut terminal);
    programs.into_iter().for_each(Program::end);
}

/// The numbers of the processes on the screen.
fn rows(terminal: &Terminal) -> Vec<u32> {
    let lines = terminal.lines();
    let of_program = lines.iter().filter(|line| line.contains("python"));
    of_program.filter_map(|line| line.split_whitespace().next()?.parse().ok()).collect()
}

#[test]
fn top_sorts_by_keys_and_leaves_the_terminal_as_it_was_however_it_ends() {
    for end in ["q", "\x03", "SIGTERM"] {
        top_of_two(100, |terminal| {
            assert!(terminal.screen().hide_cursor());
            terminal.press(b"p");
            terminal.wait_for("the order", |terminal| terminal.lines().last().unwrap().contains("sort by pid"));
            terminal.wait_for("sorted processes", |terminal| rows(terminal).is_sorted() && rows(terminal).len() == 2);
            let lines = terminal.lines();
            assert!(lines[1].contains(" calls/s, ") && lines[1].contains(" threads"), "{lines:#?}");
            assert!(lines.last().unwrap().starts_with("q quit "), "{lines:#?}");
            match end {
                "SIGTERM" => {
                    let pid = rustix::process::Pid::from_child(&terminal.child);
                    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
                    assert_eq!(terminal.end().code(), Some(130));
                }
                key => {
                    terminal.press(key.as_bytes());
                    assert!(terminal.end().success());
                }
            }
            assert!(!terminal.screen().hide_cursor(), "{end:?}");
            let modes = terminal.modes();
            let usual = rustix::termios::LocalModes::ICANON
                | rustix::termios::LocalModes::ECHO
                | rustix::termios::LocalModes::ISIG;
            assert!(modes.local_modes.contains(usual), "{end:?}: {modes:?}");
        });
    }
}

#[test]
fn top_is_readable_in_forty_columns() {
    top_of_two(40, |terminal| {
        let lines = terminal.lines();
        assert_eq!(lines.len(), 20, "{lines:#?}");
        assert!((0..20).all(|row| !terminal.screen().row_wrapped(row)), "{lines:#?}");
        assert!(lines[2].contains("pid") && lines[2].contains("command") && lines[2].contains("calls/s"), "{lines:#?}");
        assert!(lines[19].starts_with("q quit") && lines[19].contains("calls"), "{lines:#?}");
        terminal.press(b"q");
        assert!(terminal.end().success());
    });
}
