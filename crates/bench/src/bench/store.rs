//! Trees of small files from one machine to another, by an object store: DirectFS, an archive of
//! tar, an image of SquashFS, and JuiceFS, with the programs that this machine has.
//!
//! The store is a directory of this machine, so what is measured is the work beside the link. Each
//! cold step is a new machine: it has nothing but the store. All systems perform a step before the
//! next step, and their work is written as the commands that people use ([`SYSTEMS`]).

use super::Meter;
use super::measure::Latencies;
use super::plan::Section;
use super::report::SectionReport;
use super::scratch::{Scratch, SpaceNeeded};
use super::statistics::TaskRepeats;
use super::task::{Outcome, PhaseName};
use super::workloads::tree::has;
use anyhow::{Context, Result, bail, ensure};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

/// Bytes of a file on average: those of BEYOND are 20 KB.
const FILE_BYTES: u64 = 20 << 10;
/// Files in a directory.
const PER_DIRECTORY: u64 = 100;

/// The steps, in the order in which they are performed.
const STEPS: [&str; 9] = [
    "send, the first time",
    "send again after a change of 1 file in 100",
    "fetch all",
    "start a program, cold",
    "start a program, warm",
    "start a program that may change files, cold",
    "list all names, cold",
    "read 1 file in 100, cold",
    "read all files, cold",
];
/// Programs read all names, some files, and all files below `$AT`.
const LIST: &str = "find \"$AT\" -type f | wc -l > names";
const SOME: &str = "sed \"s,^,$AT/,\" \"$SOME\" | xargs cat > /dev/null";
const ALL: &str = "find \"$AT\" -type f -print0 | xargs -0 cat > /dev/null";

/// A system, and a command for each step: empty where it has nothing of the kind.
struct System {
    name: &'static str,
    /// Programs that the machine must have.
    needs: &'static [&'static str],
    /// Once before all steps, with the tree in `$TREE`.
    prepare: &'static str,
    /// Shell commands. `$WORK` is the work of a step, on the tree at `$AT`.
    steps: [&'static str; 9],
    /// `$AT`.
    at: &'static str,
    /// After each step.
    clean: &'static str,
}

const SYSTEMS: [System; 4] = [
    System {
        name: "directfs",
        needs: &[],
        prepare: "\"$DIRECTFS\" mkfs ../image --size $IMAGE_BYTES --sparse && \
                  \"$DIRECTFS\" run --image ../image -- cp -r \"$TREE\" /mnt/directfs/tree",
        steps: [
            "\"$DIRECTFS\" push ../image $URL",
            "\"$DIRECTFS\" push ../image $URL",
            "\"$DIRECTFS\" pull $URL image",
            "\"$DIRECTFS\" run --image $URL --read-only -- true",
            "\"$DIRECTFS\" run --image $URL --read-only -- true",
            "\"$DIRECTFS\" run --image $URL --discard -- true",
            "\"$DIRECTFS\" run --image $URL --read-only -- sh -c \"$WORK\"",
            "\"$DIRECTFS\" run --image $URL --read-only -- sh -c \"$WORK\"",
            "\"$DIRECTFS\" run --image $URL --read-only -- sh -c \"$WORK\"",
        ],
        at: "/mnt/directfs/tree",
        // The process that fetched for the run ends. Its mount is not read: it may be ending.
        clean: "while [ \"$(ls -A cache/directfs/store/mounts 2> /dev/null)\" ]; do sleep 0.01; done",
    },
    System {
        name: "tar",
        needs: &["tar"],
        prepare: "",
        steps: [
            "tar -C \"$TREE\" -cf \"$STORE/tree.tar\" .",
            "tar -C \"$TREE\" -cf \"$STORE/tree.tar\" .",
            "cp \"$STORE/tree.tar\" .",
            "mkdir at && cp \"$STORE/tree.tar\" . && tar -C at -xf tree.tar && true",
            "true",
            "mkdir at && cp \"$STORE/tree.tar\" . && tar -C at -xf tree.tar && true",
            "mkdir at && cp \"$STORE/tree.tar\" . && tar -C at -xf tree.tar && sh -c \"$WORK\"",
            "mkdir at && cp \"$STORE/tree.tar\" . && tar -C at -xf tree.tar && sh -c \"$WORK\"",
            "mkdir at && cp \"$STORE/tree.tar\" . && tar -C at -xf tree.tar && sh -c \"$WORK\"",
        ],
        at: "at",
        clean: "",
    },
    System {
        name: "squashfuse",
        needs: &["squashfuse", "mksquashfs", "fusermount3"],
        prepare: "",
        steps: [
            "mksquashfs \"$TREE\" \"$STORE/tree.sqfs\" -comp zstd -noappend -quiet -no-progress",
            "mksquashfs \"$TREE\" \"$STORE/tree.sqfs\" -comp zstd -noappend -quiet -no-progress",
            "cp \"$STORE/tree.sqfs\" .",
            "mkdir at && cp \"$STORE/tree.sqfs\" . && squashfuse tree.sqfs at && true",
            "squashfuse tree.sqfs at && true",
            "",
            "mkdir at && cp \"$STORE/tree.sqfs\" . && squashfuse tree.sqfs at && sh -c \"$WORK\"",
            "mkdir at && cp \"$STORE/tree.sqfs\" . && squashfuse tree.sqfs at && sh -c \"$WORK\"",
            "mkdir at && cp \"$STORE/tree.sqfs\" . && squashfuse tree.sqfs at && sh -c \"$WORK\"",
        ],
        at: "at",
        clean: "fusermount3 -u -z at",
    },
    System {
        name: "JuiceFS",
        needs: &["juicefs", "fusermount3"],
        prepare: "juicefs format --storage file --bucket \"$STORE/\" \"sqlite3://$STORE/meta.db\" bench && mkdir at",
        steps: [
            "juicefs mount -d --cache-dir \"$PWD/cache\" \"sqlite3://$STORE/meta.db\" at && cp -r \"$TREE\" at/tree && juicefs umount --flush at",
            "juicefs mount -d --cache-dir \"$PWD/cache\" \"sqlite3://$STORE/meta.db\" at && cp -ru \"$TREE/.\" at/tree && juicefs umount --flush at",
            "",
            "mkdir at && juicefs mount -d --cache-dir \"$PWD/cache\" \"sqlite3://$STORE/meta.db\" at && true",
            "juicefs mount -d --cache-dir \"$PWD/cache\" \"sqlite3://$STORE/meta.db\" at && true",
            "mkdir at && juicefs mount -d --cache-dir \"$PWD/cache\" \"sqlite3://$STORE/meta.db\" at && true",
            "mkdir at && juicefs mount -d --cache-dir \"$PWD/cache\" \"sqlite3://$STORE/meta.db\" at && sh -c \"$WORK\"",
            "mkdir at && juicefs mount -d --cache-dir \"$PWD/cache\" \"sqlite3://$STORE/meta.db\" at && sh -c \"$WORK\"",
            "mkdir at && juicefs mount -d --cache-dir \"$PWD/cache\" \"sqlite3://$STORE/meta.db\" at && sh -c \"$WORK\"",
        ],
        at: "at/tree",
        clean: "fusermount3 -u -z at",
    },
];

/// The number of the step after which files are changed, and of that which uses what the one before
/// left.
const CHANGED: usize = 1;
const WARM: usize = 4;

/// The section, and reasons for the systems that the machine does not have.
pub fn measure(section: &Section, directory: &Path, meter: &mut Meter) -> Result<(SectionReport, Vec<String>)> {
    meter.describe(&section.title);
    let files = section.files.unwrap_or_default();
    // The tree, an image, a store for each system, and what a new machine has of one.
    let bytes = files * FILE_BYTES * 8 + (256 << 20);
    SpaceNeeded { bytes, files: files * 3 }.require(directory)?;
    let (mut present, mut absent) = (Vec::new(), Vec::new());
    for system in &SYSTEMS {
        match system.needs.iter().find(|program| !has(program)) {
            Some(missing) => absent.push(format!("{}: the program {missing} is not installed", system.name)),
            None => present.push(system),
        }
    }
    let mut measured: Vec<TaskRepeats> = present.iter().map(|_| TaskRepeats::default()).collect();
    for _ in 0..section.repeats {
        let scratch = Scratch::beside_others(directory, "store")?;
        let mut outcomes: Vec<Vec<Outcome>> = present.iter().map(|_| Vec::new()).collect();
        let places = present.iter().map(|system| Place::make(&scratch, system, files)).collect::<Result<Vec<_>>>()?;
        for (step, label) in STEPS.iter().enumerate() {
            for (place, outcomes) in places.iter().zip(&mut outcomes) {
                crate::interrupt::check()?;
                outcomes.push(place.perform(step).with_context(|| format!("{label}, with {}", place.system.name))?);
                meter.tick();
            }
        }
        measured.iter_mut().zip(&outcomes).for_each(|(repeats, outcomes)| repeats.add(outcomes));
        meter.step();
    }
    let names: Vec<String> = present.iter().map(|system| system.name.to_owned()).collect();
    Ok((SectionReport::of_store(section, &names, &measured), absent))
}

/// A system at work, with a tree and a store of its own.
struct Place<'a> {
    system: &'a System,
    root: std::path::PathBuf,
    files: u64,
}

impl Place<'_> {
    fn make<'a>(scratch: &Scratch, system: &'a System, files: u64) -> Result<Place<'a>> {
        let root = scratch.path().join(system.name);
        for directory in ["store", "new"] {
            std::fs::create_dir_all(root.join(directory))?;
        }
        let place = Place { system, root, files };
        place.write_files(1, 0)?;
        let some: String = (0..files).step_by(100).map(|file| name_of(file) + "\n").collect();
        std::fs::write(place.root.join("some"), some)?;
        place.run(system.prepare, "")?;
        Ok(place)
    }

    /// Writes one file in so many, with content that hardly compresses.
    fn write_files(&self, every: usize, version: u64) -> Result<()> {
        for file in (0..self.files).step_by(every) {
            let path = self.root.join("tree").join(name_of(file));
            if file % PER_DIRECTORY == 0 {
                std::fs::create_dir_all(path.parent().unwrap_or(&self.root))?;
            }
            let mut state = (file * 31 + version).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
            let length = FILE_BYTES / 2 + file * 7919 % FILE_BYTES;
            let content: Vec<u8> = (0..length / 8)
                .flat_map(|_| {
                    state ^= state << 13;
                    state ^= state >> 7;
                    state ^= state << 17;
                    state.to_le_bytes()
                })
                .collect();
            std::fs::write(&path, content).with_context(|| format!("cannot write {}", path.display()))?;
        }
        Ok(())
    }

    /// Performs a step, on a machine that has nothing yet unless it is a warm one.
    fn perform(&self, step: usize) -> Result<Outcome> {
        let what = PhaseName::Once(STEPS[step].to_owned());
        let script = self.system.steps[step];
        if step == CHANGED {
            self.write_files(100, 1)?;
            if self.system.name == "directfs" {
                self.run("\"$DIRECTFS\" run --image ../image -- cp -r \"$TREE\" /mnt/directfs", "")?;
            }
        }
        if step != WARM {
            let new = self.root.join("new");
            std::fs::remove_dir_all(&new)
                .and_then(|()| std::fs::create_dir(&new))
                .context("cannot make a directory")?;
        }
        let begun = Instant::now();
        let work = [LIST, SOME, ALL].get(step.wrapping_sub(6)).copied().unwrap_or_default();
        let done = self.run(script, work);
        let elapsed_ns = begun.elapsed().as_nanos() as f64;
        if step > CHANGED + 1 && !script.is_empty() {
            done.and(self.run(self.system.clean, ""))?;
        } else {
            done?;
        }
        if step == 6 && !script.is_empty() {
            let names = std::fs::read_to_string(self.root.join("new/names")).unwrap_or_default();
            ensure!(names.trim() == self.files.to_string(), "{} files were found, not {}", names.trim(), self.files);
        }
        let refused = script.is_empty().then(|| format!("{}: it has nothing of the kind", STEPS[step]));
        let (calls, members, batch) = (u64::from(refused.is_none()), 1, 1);
        let latencies = Latencies::default();
        let (user_ns, system_ns, requests) = (None, None, None);
        Ok(Outcome { what, calls, elapsed_ns, members, latencies, batch, user_ns, system_ns, requests, refused })
    }

    fn run(&self, script: &str, work: &str) -> Result<()> {
        if script.is_empty() {
            return Ok(());
        }
        let store = self.root.join("store");
        let mut command = Command::new("sh");
        command.args(["-ec", script]).current_dir(self.root.join("new")).stdin(Stdio::null());
        command
            .env("LC_ALL", "C")
            .env("HOME", self.root.join("new"))
            .env("XDG_CACHE_HOME", self.root.join("new/cache"));
        command.env("DIRECTFS", std::env::current_exe().context("cannot find this program's own file")?);
        command.env("TREE", self.root.join("tree")).env("SOME", self.root.join("some"));
        command.env("URL", format!("file://{}", store.display())).env("STORE", store);
        command.env("AT", self.system.at).env("WORK", work);
        command.env("IMAGE_BYTES", (self.files * FILE_BYTES * 3 + (64 << 20)).to_string());
        let output = command.output().context("cannot start sh")?;
        if !output.status.success() {
            bail!("{script}: {}", String::from_utf8_lossy(&output.stderr).trim());
        }
        Ok(())
    }
}

fn name_of(file: u64) -> String {
    format!("d{}/f{file}", file / PER_DIRECTORY)
}
