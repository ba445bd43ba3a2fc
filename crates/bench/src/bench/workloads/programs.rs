//! People's work: scripts, builds, version control, archives and environments, each with the
//! programs of the machine. Nothing is downloaded.

use super::system::Outcomes;
use super::tree::{self, run_program};
use crate::bench::task::{PhaseName, Workers};
use crate::bench::workers::{self, Member, PhaseResult};
use anyhow::{Context, Result};
use std::path::{Path, PathBuf};

/// Tests of a configure script, in the way of autoconf: short programs and small files.
const CONFIGURE: &str = r##"
i=0
while [ $i -lt ROUNDS ]; do
  i=$((i + 1))
  printf 'int main(void) { return %s; }\n' $i > conftest.c
  echo "checking for function $i" >> config.log
  if test -n "$CC"; then $CC -E conftest.c > conftest.i 2> conftest.err || exit 1; fi
  if grep main conftest.c > conftest.out 2> /dev/null; then
    sed -e "s/main/test$i/" conftest.c > conftest.h
    echo "#define HAVE_$i 1" >> confdefs.h
  fi
  rm -f conftest.c conftest.i conftest.err conftest.out conftest.h
done
"##;

/// Builds all objects and links them.
const MAKEFILE: &str = "OBJECTS = $(patsubst %.c,%.o,$(wildcard *.c))\nprogram: $(OBJECTS)\n\tcc -o $@ $(OBJECTS)\n";

/// A program of the work: the label, the programs that the machine needs, and the command line.
struct Step {
    label: &'static str,
    needs: &'static [&'static str],
    words: &'static [&'static str],
    /// Run before, and not measured.
    before: &'static [&'static [&'static str]],
}

const STEPS: [Step; 9] = [
    Step { label: "sh, like configure", needs: &["sh"], words: &["sh", "configure"], before: &[] },
    Step { label: "make -j2", needs: &["make", "cc"], words: &["make", "-s", "-j2", "-C", "project"], before: &[] },
    Step {
        label: "git clone",
        needs: &["git"],
        words: &["git", "clone", "--quiet", "--no-hardlinks", "repository", "clone"],
        before: &[
            &["cp", "-r", "SOURCE", "repository"],
            &["git", "init", "--quiet", "repository"],
            &["git", "-C", "repository", "add", "--all", "--force"],
            &["git", "-C", "repository", "commit", "--quiet", "--message", "all"],
            &["git", "-C", "repository", "tag", "all"],
            &["git", "-C", "repository", "rm", "-r", "--quiet", "."],
            &["git", "-C", "repository", "commit", "--quiet", "--allow-empty", "--message", "none"],
        ],
    },
    Step {
        label: "git checkout",
        needs: &["git"],
        words: &["git", "-C", "clone", "checkout", "--quiet", "all"],
        before: &[],
    },
    Step { label: "git status", needs: &["git"], words: &["git", "-C", "clone", "status", "--short"], before: &[] },
    Step { label: "git gc", needs: &["git"], words: &["git", "-C", "clone", "gc", "--quiet"], before: &[] },
    Step {
        label: "tar -xf",
        needs: &["tar"],
        words: &["tar", "-xf", "tree.tar", "-C", "unpacked"],
        before: &[&["tar", "-C", "SOURCE", "-cf", "tree.tar", "."], &["mkdir", "unpacked"]],
    },
    Step {
        label: "python3 -m venv",
        needs: &["python3"],
        words: &["python3", "-m", "venv", "--without-pip", "environment"],
        before: &[],
    },
    Step {
        label: "cargo build",
        needs: &["cargo", "cc"],
        words: &["cargo", "build", "--quiet", "--offline", "--manifest-path", "crate/Cargo.toml"],
        before: &[],
    },
];

/// Measures with this tree; `rounds` is the amount of the generated work.
pub fn run(source: &Path, rounds: u64, timer_ns: u64) -> Outcomes {
    tree::read_all(source)?;
    prepare(rounds)?;
    let mut environment = vec![("CC".into(), if tree::has("cc") { "cc".into() } else { PathBuf::new() })];
    environment.extend(toolchain());
    workers::run(Workers::ONE, timer_ns, &|member: &mut Member| {
        for step in &STEPS {
            let what = PhaseName::Once(step.label.into());
            if let Some(missing) = step.needs.iter().find(|program| !tree::has(program)) {
                let refused = Some(format!("{}: the program {missing} is not installed", step.label));
                member.phase(what, |_| Ok(PhaseResult { refused, ..PhaseResult::default() }))?;
                continue;
            }
            for words in step.before {
                run_program(words, source, &environment)?;
            }
            member.phase(what, |_| {
                let usage = run_program(step.words, source, &environment)?;
                let (user_ns, system_ns) = (Some(usage.user_ns), Some(usage.system_ns));
                Ok(PhaseResult { calls: 1, user_ns, system_ns, ..PhaseResult::default() })
            })?;
        }
        Ok(())
    })
}

/// Where a toolchain of rustup is: programs get another home directory.
fn toolchain() -> Vec<(String, PathBuf)> {
    let here = std::env::current_dir().unwrap_or_default();
    let home = std::env::var_os("HOME").map(PathBuf::from);
    let rustup = std::env::var_os("RUSTUP_HOME").map(PathBuf::from).or_else(|| home.map(|home| home.join(".rustup")));
    let cargo = ("CARGO_HOME".to_owned(), here.join("cargo-home"));
    let rustup = rustup.filter(|home| home.is_dir()).map(|home| ("RUSTUP_HOME".to_owned(), home));
    [cargo].into_iter().chain(rustup).collect()
}

/// Creates a script, a project in C and one in Rust.
fn prepare(rounds: u64) -> Result<()> {
    let write = |path: &str, text: &str| {
        let path = Path::new(path);
        let parent = path.parent().context("a path with a directory")?;
        std::fs::create_dir_all(parent).with_context(|| format!("cannot create {}", parent.display()))?;
        std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
    };
    write("./configure", &CONFIGURE.replace("ROUNDS", &rounds.to_string()))?;
    write("project/Makefile", MAKEFILE)?;
    write(
        "crate/Cargo.toml",
        "[package]\nname = \"generated\"\nversion = \"0.1.0\"\nedition = \"2021\"\n[workspace]\n",
    )?;
    let (mut main, mut modules) = (String::new(), String::new());
    for number in 0..rounds {
        let code = format!("int function_{number}(int x) {{ return x * {number}; }}\n");
        write(&format!("project/file_{number}.c"), &code)?;
        main += &format!("int function_{number}(int);\n");
        modules += &format!("mod module_{number};\n");
        let code = format!("pub fn function(x: u64) -> u64 {{ (0..x).map(|y| y * {number}).sum() }}\n");
        write(&format!("crate/src/module_{number}.rs"), &code)?;
    }
    write("project/main.c", &format!("{main}int main(void) {{ return function_0(0); }}\n"))?;
    let calls: Vec<String> = (0..rounds).map(|number| format!("module_{number}::function(9)")).collect();
    write("crate/src/main.rs", &format!("{modules}fn main() {{ println!(\"{{}}\", {}); }}\n", calls.join(" + ")))
}
