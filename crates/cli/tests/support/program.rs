//! Programs that work on an image while a test looks at them.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// A program that works on an image until it is dropped.
pub struct Program {
    pub child: Child,
    output: BufReader<std::process::ChildStdout>,
}

impl Program {
    /// Starts a Python program under `run`, and waits for its first line.
    pub fn under_run(image: &Path, script: &str) -> Program {
        let mut command = Command::new(env!("CARGO_BIN_EXE_directfs"));
        command.args(["run", "--image"]).arg(image).args(["--at", "/mnt/ps", "-C", "/mnt/ps", "--", "python3", "-c"]);
        Program::start(command.arg(script))
    }

    pub fn start(command: &mut Command) -> Program {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("it starts");
        let output = BufReader::new(child.stdout.take().unwrap());
        let mut program = Program { child, output };
        assert_eq!(program.line(), "ready\n");
        program
    }

    /// The next line that it prints.
    pub fn line(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        line
    }

    /// Lets it end: it reads its standard input until then.
    pub fn end(mut self) {
        drop(self.child.stdin.take());
        assert!(self.child.wait().unwrap().success());
    }
}

/// Whether there is python3; says so if not.
pub fn has_python() -> bool {
    let has = Command::new("python3").arg("-V").output().is_ok_and(|output| output.status.success());
    if !has {
        eprintln!("\n*** SKIPPED: there is no python3 here ***\n");
    }
    has
}
