//! People's work: scripts, builds, version control, packages, tests and databases, each with the
//! programs of the machine. Nothing is downloaded: what the programs work on is generated.

use super::system::Outcomes;
use super::tree::{self, run_program};
use crate::bench::task::{PhaseName, Workers};
use crate::bench::workers::{self, Member, PhaseResult};
use anyhow::{Context, Result};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

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

/// Scripts that do or prepare work, as files in the directory `work`.
macro_rules! scripts {
    ($($name:literal),+) => { &[$(($name, include_str!(concat!("work/", $name)))),+] };
}
const SCRIPTS: &[(&str, &str)] = scripts!(
    "loop.sh",
    "history.sh",
    "autoconf.sh",
    "package.sh",
    "archive.sh",
    "modules.sh",
    "wheel.py",
    "tests.py",
    "lmdb_transactions.py",
    "leveldb_puts.py",
    "postgres.sh"
);

/// A need that is no program: the user is not root.
const NOT_ROOT: &str = "not root";
/// Before the name of a module that is needed.
const MODULE: &str = "python3 ";

/// A program of the work: the label, what the machine needs (programs, modules of Python), and the
/// command line, in which ROUNDS stands for the amount.
struct Step {
    label: &'static str,
    needs: &'static [&'static str],
    words: &'static [&'static str],
    /// Run before, and not measured.
    before: &'static [&'static [&'static str]],
}

const STEPS: &[Step] = &[
    // First, since no block of the image was used before.
    Step {
        label: "tar -xf, fresh",
        needs: &["tar"],
        words: &["tar", "-xf", "tree.tar", "-C", "fresh"],
        before: &[&["tar", "-C", "SOURCE", "-cf", "tree.tar", "."], &["mkdir", "fresh"]],
    },
    Step { label: "bash, small steps", needs: &["bash"], words: &["bash", "work/loop.sh", "ROUNDS"], before: &[] },
    Step { label: "dash, small steps", needs: &["dash"], words: &["dash", "work/loop.sh", "ROUNDS"], before: &[] },
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
        before: &[&["mkdir", "unpacked"]],
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
    Step {
        label: "git clone, 2,000 commits",
        needs: &["git"],
        words: &["git", "clone", "--quiet", "--no-local", "history", "with-history"],
        before: &[&["sh", "work/history.sh", "2000"]],
    },
    Step {
        label: "configure of autoconf",
        needs: &["autoconf", "cc"],
        words: &["sh", "-c", "cd configured && ./configure --quiet"],
        before: &[&["sh", "work/autoconf.sh"]],
    },
    Step {
        label: "dpkg-buildpackage",
        needs: &["dpkg-buildpackage", "cc"],
        words: &["sh", "-c", "cd package && dpkg-buildpackage -b -us -uc -d 2> log"],
        before: &[&["sh", "work/package.sh", "ROUNDS"]],
    },
    Step {
        label: "dpkg --unpack",
        needs: &["dpkg", "dpkg-deb"],
        words: &["dpkg", "--root=root", "--force-not-root", "--log=/dev/null", "--unpack", "tree.deb"],
        before: &[&["sh", "work/archive.sh", "SOURCE"]],
    },
    Step {
        label: "npm ci",
        needs: &["npm"],
        words: &["npm", "ci", "--prefix", "modules", "--offline", "--no-audit", "--no-fund", "--ignore-scripts"],
        before: &[&["sh", "work/modules.sh", "ROUNDS"]],
    },
    Step {
        label: "pip install",
        needs: &["python3 pip"],
        words: &[
            "python3",
            "-m",
            "pip",
            "install",
            "--quiet",
            "--no-index",
            "--no-deps",
            "--root-user-action=ignore",
            "--target",
            "site",
            "generated-1-py3-none-any.whl",
        ],
        before: &[&["python3", "work/wheel.py", "ROUNDS"]],
    },
    Step {
        label: "pytest",
        needs: &["python3 pytest"],
        words: &["python3", "-m", "pytest", "-q", "tests"],
        before: &[&["python3", "work/tests.py", "ROUNDS"]],
    },
    Step {
        label: "LMDB, synced",
        needs: &["python3 lmdb"],
        words: &["python3", "work/lmdb_transactions.py", "1000"],
        before: &[],
    },
    Step {
        label: "LevelDB",
        needs: &["python3 plyvel"],
        words: &["python3", "work/leveldb_puts.py", "20000"],
        before: &[],
    },
    Step {
        label: "initdb, pgbench",
        needs: &[NOT_ROOT, "initdb", "pg_ctl", "pgbench"],
        words: &["sh", "work/postgres.sh", "1000"],
        before: &[],
    },
];

/// Measures with this tree; `rounds` is the amount of the generated work.
pub fn run(source: &Path, rounds: u64, timer_ns: u64) -> Outcomes {
    tree::read_all(source)?;
    prepare(rounds)?;
    let mut environment = vec![("CC".into(), if tree::has("cc") { "cc".into() } else { PathBuf::new() })];
    environment.extend(toolchain());
    let (amount, python) = (rounds.to_string(), interpreter());
    let filled_in = |words: &'static [&'static str]| -> Vec<&str> {
        let filled_in = |word: &&'static str| match *word {
            "ROUNDS" => amount.as_str(),
            "python3" => python.as_str(),
            word => word,
        };
        words.iter().map(filled_in).collect()
    };
    workers::run(Workers::ONE, timer_ns, &|member: &mut Member| {
        for step in STEPS {
            let what = PhaseName::Once(step.label.into());
            if let Some(lack) = step.needs.iter().find_map(|need| lack_of(need)) {
                let refused = Some(format!("{}: {lack}", step.label));
                member.phase(what, |_| Ok(PhaseResult { refused, ..PhaseResult::default() }))?;
                continue;
            }
            for words in step.before {
                run_program(&filled_in(words), source, &environment)?;
            }
            member.phase(what, |_| {
                let usage = run_program(&filled_in(step.words), source, &environment)?;
                let (user_ns, system_ns) = (Some(usage.user_ns), Some(usage.system_ns));
                Ok(PhaseResult { calls: 1, user_ns, system_ns, ..PhaseResult::default() })
            })?;
        }
        Ok(())
    })
}

/// Why a need is not met. `None`: it is.
fn lack_of(need: &str) -> Option<String> {
    if need == NOT_ROOT {
        // SAFETY: only a query.
        let is_root = unsafe { libc::geteuid() } == 0;
        return is_root.then(|| "its server does not start as root".to_owned());
    }
    let Some(module) = need.strip_prefix(MODULE) else {
        return (!tree::has(need)).then(|| format!("the program {need} is not installed"));
    };
    let mut import = Command::new("python3");
    import.args(["-c", &format!("import {module}")]).stderr(Stdio::null());
    let is_there = import.status().is_ok_and(|status| status.success());
    (!is_there).then(|| format!("the module {module} of python3 is not installed"))
}

/// The program of Python itself. `python3` may be a script that looks for it, and starts more
/// programs than the work that is measured.
fn interpreter() -> String {
    let output = Command::new("python3").args(["-c", "import sys; print(sys.executable)"]).output();
    let path = output.ok().and_then(|output| String::from_utf8(output.stdout).ok()).unwrap_or_default();
    if path.trim().is_empty() { "python3".to_owned() } else { path.trim().to_owned() }
}

/// Where a toolchain of rustup is, and the caches of programs, which get another home directory.
fn toolchain() -> Vec<(String, PathBuf)> {
    let here = std::env::current_dir().unwrap_or_default();
    let home = std::env::var_os("HOME").map(PathBuf::from);
    let rustup = std::env::var_os("RUSTUP_HOME").map(PathBuf::from).or_else(|| home.map(|home| home.join(".rustup")));
    let cargo = ("CARGO_HOME".to_owned(), here.join("cargo-home"));
    let rustup = rustup.filter(|home| home.is_dir()).map(|home| ("RUSTUP_HOME".to_owned(), home));
    let npm = ("npm_config_cache".to_owned(), here.join("npm-cache"));
    [cargo, npm].into_iter().chain(rustup).collect()
}

/// Creates the scripts, a project in C and one in Rust.
fn prepare(rounds: u64) -> Result<()> {
    let write = |path: &str, text: &str| {
        let path = Path::new(path);
        let parent = path.parent().context("a path with a directory")?;
        std::fs::create_dir_all(parent).with_context(|| format!("cannot create {}", parent.display()))?;
        std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
    };
    write("./configure", &CONFIGURE.replace("ROUNDS", &rounds.to_string()))?;
    for (name, text) in SCRIPTS {
        write(&format!("work/{name}"), text)?;
    }
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
