//! Ordinary programs behave the same with and without the library, byte for byte.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;

/// Mode of the library: only the filter's calls, or every call reaches the dispatcher.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Mode {
    Filter,
    Dispatcher,
}

fn scratch() -> &'static Path {
    static SCRATCH: OnceLock<PathBuf> = OnceLock::new();
    SCRATCH.get_or_init(|| {
        let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("launcher-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        path
    })
}

fn is_there(program: &str) -> bool {
    let there = Command::new("sh").args(["-c", "command -v \"$0\" >/dev/null", program]).status().unwrap().success();
    if !there {
        eprintln!("SKIPPED: {program} is not on this machine");
    }
    there
}

fn counts_file(name: &str) -> PathBuf {
    let path = scratch().join(format!("counts-{name}"));
    std::fs::write(&path, vec![0u8; hook::call_counts::BYTES]).unwrap();
    path
}

fn counts(path: &Path) -> Vec<u64> {
    std::fs::read(path).unwrap().chunks_exact(8).map(|word| u64::from_ne_bytes(word.try_into().unwrap())).collect()
}

fn run(mut command: Command) -> Output {
    command.stdin(Stdio::null()).output().unwrap()
}

fn run_plain(program: &str, arguments: &[&str]) -> Output {
    let mut plain = Command::new(program);
    plain.args(arguments);
    run(plain)
}

/// Runs a command without and with the library. Repeats that while the result without it changes,
/// because another program changes the files that the command shows.
fn compare(program: &str, arguments: &[&str]) {
    if !is_there(program) {
        return;
    }
    for mode in [Mode::Filter, Mode::Dispatcher] {
        let file = counts_file(&format!("{}-{:?}", program.replace('/', "_"), std::thread::current().id()));
        let counted = (mode == Mode::Dispatcher).then_some(file.as_path());
        let mut plain = run_plain(program, arguments);
        let hooked = loop {
            let mut hooked = launcher::launch::command(program.as_ref(), counted).unwrap();
            hooked.args(arguments);
            let hooked = run(hooked);
            if hooked == plain {
                break hooked;
            }
            let again = run_plain(program, arguments);
            if again == plain {
                break hooked;
            }
            plain = again;
        };
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        assert_eq!(text(&hooked.stderr), text(&plain.stderr), "{program} {arguments:?} {mode:?}");
        assert_eq!(text(&hooked.stdout), text(&plain.stdout), "{program} {arguments:?} {mode:?}");
        assert_eq!(hooked.status, plain.status, "{program} {arguments:?} {mode:?}");
        if mode == Mode::Dispatcher {
            let counts = counts(&file);
            assert!(counts.iter().sum::<u64>() > 0, "{program}: no call came to the dispatcher");
        }
    }
}

fn shell(script: &str) {
    compare("bash", &["-c", script]);
}

#[test]
fn files_are_listed_and_found() {
    compare("ls", &["-lR", "/usr/share/doc/bash", "/usr/include/linux"]);
    compare("find", &["/usr/include", "-newer", "/etc/passwd", "-ls"]);
}

#[test]
fn shells_run_pipes_and_jobs() {
    shell(
        "for i in 1 2 3; do echo $i | cat | sed s/1/x/; done; (cd /tmp; pwd); x=$(ls /etc | wc -l); echo $x; sleep 0.1 & wait; cat <<X\nhere $((1+2))\nX",
    );
    shell("trap 'echo got' USR1; kill -USR1 $$; read -t 0.1 x </dev/zero; sleep 5 & p=$!; kill $p; wait $p; echo $?");
    shell(
        "echo $BASH_SUBSHELL; exec 3</etc/passwd; read -u 3 line; echo $line; exec 3<&-; set -o pipefail; false | true; echo $?",
    );
}

#[test]
fn programs_with_a_cleared_environment_get_the_library() {
    let file = counts_file("cleared");
    let mut hooked = launcher::launch::command("bash".as_ref(), Some(&file)).unwrap();
    hooked.args(["-c", "env -i /bin/sh -c 'cat /proc/self/maps'; env -i /usr/bin/env"]);
    let text = String::from_utf8(run(hooked).stdout).unwrap();
    assert!(text.contains("/preload-"), "{text}");
    assert!(!text.contains("LD_PRELOAD=") && !text.contains("DIRECTFS_"), "{text}");
    assert!(counts(&file)[59] >= 2, "execve is seen");
}

#[test]
fn compilers_and_archives_work() {
    let scratch = scratch().display();
    compare(
        "sh",
        &["-c", &format!("cd {scratch} && echo 'int main(){{return 3;}}' >x.c && cc -O1 -o x x.c && ./x; echo $?")],
    );
    compare("sh", &["-c", "tar cf - -C /usr/include linux | tar tvf - | sort | cksum"]);
    compare("git", &["-C", env!("CARGO_MANIFEST_DIR"), "status"]);
}

#[test]
fn interpreters_work() {
    compare(
        "perl",
        &[
            "-e",
            "my $p=fork(); if(!$p){exit 3} waitpid($p,0); print $?>>8,\"\\n\"; print `echo hi`; opendir(D,'/usr/include'); print join(',',sort readdir D);",
        ],
    );
    let threads = "
import threading,subprocess,os,multiprocessing
def f(i,o): o[i]=subprocess.run(['/bin/echo',str(i)],capture_output=True,env={}).stdout
o=[None]*8
ts=[threading.Thread(target=f,args=(i,o)) for i in range(8)]
[t.start() for t in ts];[t.join() for t in ts];print(o)
p=os.fork()
if p==0: os._exit(5)
print(os.waitpid(p,0)[1]>>8)
with multiprocessing.Pool(2) as p: print(p.map(abs,[-1,-2,3]))
";
    compare("/usr/bin/python3", &["-c", threads]);
    compare(
        "node",
        &[
            "-e",
            "require('fs').readdir('/usr',(e,d)=>{console.log(d); require('child_process').exec('echo hi',(e,o)=>console.log(o))})",
        ],
    );
}

/// Signals that interrupt, cancellation, registers, threads, every way to start a program:
/// tests/programs/calls.c.
#[test]
fn what_a_program_may_rely_on_holds() {
    if !is_there("cc") {
        return;
    }
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/programs/calls.c");
    let binary = scratch().join("calls");
    let status =
        Command::new("cc").args(["-O2", "-fexceptions", "-pthread", "-o"]).arg(&binary).arg(source).status().unwrap();
    assert!(status.success());
    compare(binary.to_str().unwrap(), &[]);
}

#[test]
fn what_cannot_be_served_is_refused_in_one_line() {
    if !is_there("cc") {
        return;
    }
    let (source, binary) = (scratch().join("s.c"), scratch().join("s"));
    std::fs::write(&source, "int main(void){return 0;}").unwrap();
    let built = Command::new("cc").args(["-static", "-o"]).arg(&binary).arg(&source).status().unwrap();
    if built.success() {
        let error = launcher::launch::command(binary.as_os_str(), None).unwrap_err().to_string();
        assert!(error.contains("static program") && error.lines().count() == 1, "{error}");
    }
    let error = launcher::launch::command("no-such-program".as_ref(), None).unwrap_err().to_string();
    assert_eq!(error, "no-such-program: command not found");
    let error = launcher::launch::command(source.as_os_str(), None).unwrap_err().to_string();
    assert!(error.contains("neither"), "{error}");
}
