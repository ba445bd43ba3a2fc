//! How long programs take on a tree of sources: DirectFS Table III, ByVFS Fig. 4. The programs are
//! in [`super::programs`].

use super::findings::{Claim, Findings, Measure, Sense, Series, less};
use super::machine::{Result, Subject, machine};
use super::programs::{BYVFS_STEPS, Program, Step, Tree, directories, plan, time};
use super::recorded::image_of;
use super::recorded_calls::RecordedCalls;
use super::{Bench, Experiment, MEMORIES, Size, memory_name};
use crate::ablation::Variant;
use crate::virtual_time::memories::{self, Memory};
use crate::virtual_time::{Before, Recorder};

/// Minimum times of all steps: `[memory][subject][step]`. The first step creates the tree, the last
/// removes it.
fn all_times(bench: &Bench<'_>, subjects: &[Subject], steps: &[Step]) -> Result<Vec<Vec<Vec<f64>>>> {
    if !bench.is_clocked() {
        return Ok(vec![vec![vec![f64::NAN; steps.len()]; subjects.len()]; MEMORIES.len()]);
    }
    let tree = Tree::new("/linux", directories(bench.size));
    let mut machines = Vec::new();
    for subject in subjects {
        machines.push(machine(*subject, plan(bench.size))?);
    }
    let mut all = Vec::new();
    for delays in MEMORIES {
        let mut least = vec![vec![f64::MAX; steps.len()]; subjects.len()];
        for number in 0..bench.rounds().min(3) {
            for ((machine, subject), least) in machines.iter_mut().zip(subjects).zip(&mut least) {
                bench.step(&format!("{}, {}, round {}", subject.name(), memory_name(delays), number + 1))?;
                for ((_, program, cold), least) in steps.iter().zip(least) {
                    if *cold {
                        machine.remount(delays)?;
                    }
                    *least = least.min(time(&**machine, *program, &tree)?);
                    bench.check_stop()?;
                }
            }
        }
        all.push(least);
    }
    Ok(all)
}

/// Directories of the tree in virtual time.
const fn directories_recorded(size: Size) -> u64 {
    size.pick(1, 2, 4)
}

/// Milliseconds of all steps in virtual time, as for the whole tree: `[memory][subject][step]`. All
/// calls of a small tree are recorded.
fn virtual_times(bench: &Bench<'_>, subjects: &[Subject], steps: &[Step]) -> Result<Vec<Vec<Vec<f64>>>> {
    let memories: &[Memory] = bench.virtual_memories(&memories::MEMORIES);
    let mut all = vec![vec![Vec::new(); subjects.len()]; memories.len()];
    if memories.is_empty() {
        return Ok(all);
    }
    let recorded = directories_recorded(bench.size);
    let times = directories(bench.size) as f64 / recorded as f64;
    for (index, subject) in subjects.iter().enumerate() {
        let mut recorder = Recorder::new(memories)?;
        let tree = Tree::new("/linux", recorded);
        let mut machine = machine(*subject, plan(Size::Tiny))?;
        for (name, program, is_cold) in steps {
            bench.step(&format!("{}, {name}, virtual time", subject.name()))?;
            if *is_cold {
                machine.remount(MEMORIES[0])?;
            }
            let before = if *is_cold { Before::Mount } else { Before::Same };
            recorder.set_up(&image_of(&*machine), before);
            machine.with(&mut |calls| {
                RecordedCalls::new(calls, &mut recorder).run(|calls| program.run(calls, &tree)).map(drop)
            })?;
            let taken = recorder.take();
            let all_calls = (taken.calls as f64 * times) as u64;
            for (memory, ps) in taken.ps(all_calls, memories.len()).iter().enumerate() {
                all[memory][index].push(*ps as f64 * times / 1e9);
            }
        }
    }
    Ok(all)
}

fn add_times(findings: &mut Findings, times: &[Vec<Vec<f64>>], subjects: &[Subject], steps: &[Step], rows: &[&str]) {
    for row in rows {
        let Some(step) = steps.iter().position(|(name, _, _)| name == row) else { continue };
        for (index, subject) in subjects.iter().enumerate() {
            let known = |ms: f64| ms.is_finite().then_some(ms);
            let here = times.iter().map(|memory| known(memory[index][step])).collect();
            findings.measures.push(Measure {
                row: (*row).to_owned(),
                subject: subject.name().to_owned(),
                paper: None,
                here,
            });
        }
    }
}

// --- DirectFS, Table III ----------------------------------------------------------------------

const TABLE_3_SUBJECTS: [Subject; 4] =
    [Subject::Pmfs, Subject::Nova, Subject::Ablated(Variant::NoQuickPath), Subject::DirectFs];
const TABLE_3_STEPS: [Step; 10] = [
    ("tar", Program::Tar, true),
    ("du", Program::Du, true),
    ("du_c", Program::Du, false),
    ("find", Program::Find, true),
    ("find_c", Program::Find, false),
    ("gzip", Program::Gzip, true),
    ("gzip_c", Program::Gzip, false),
    ("rm", Program::Rm, true),
    ("tar_c", Program::Tar, false),
    ("rm_c", Program::Rm, false),
];

/// DirectFS, Table III: seconds, subjects in the order above.
const TABLE_3_PAPER: [(&str, [f64; 4]); 10] = [
    ("du", [0.30, 0.54, 0.38, 0.38]),
    ("tar", [8.93, 7.66, 7.65, 7.63]),
    ("find", [0.18, 0.26, 0.17, 0.16]),
    ("gzip", [22.96, 21.91, 21.41, 21.30]),
    ("rm", [1.03, 1.15, 0.44, 0.43]),
    ("du_c", [0.14, 0.16, 0.20, 0.14]),
    ("tar_c", [8.43, 7.13, 7.14, 7.06]),
    ("find_c", [0.10, 0.10, 0.09, 0.09]),
    ("gzip_c", [22.94, 21.67, 21.37, 21.26]),
    ("rm_c", [1.04, 1.01, 0.35, 0.34]),
];

pub(super) const SMALL_DIRECTORIES: &str = "A directory of DirectFS is read through a log of slots and the entries that they refer to: a page's header and its used lines are read, and each name has its own lines. NOVA's names are contiguous. The tree's directories have 12 to 20 names.";
pub(super) const WHOLE_FILES: &str = "File content is read and written alike by both. Removal frees the blocks within the call, which the paper's DirectFS leaves to a background thread.";

/// Why a row may differ from the paper.
fn table_3_reason(row: &str) -> &'static str {
    match row.trim_end_matches("_c") {
        "tar" | "rm" => WHOLE_FILES,
        "gzip" => "Most of the time goes into reading content, which both do alike.",
        _ => SMALL_DIRECTORIES,
    }
}

const QUICK_PATH: &str = "The quick path saves one table lookup and one line of the inode, which is read anyway with cold caches. The tree here has fewer files than Linux's sources, and with warm caches these lines are in the processor's cache. A lookup without the quick path then takes some nanoseconds more and waits for no memory. Reading directories and content, most of the programs' work, is the same.";

/// The paper: "DirectFS nqp performs worse than DirectFS".
fn quick_path_claims(findings: &mut Findings, rows: &[&str]) {
    let paper = |row: &&str| {
        let of = |subject| findings.paper(row, subject).unwrap_or(f64::NAN);
        less(of("DirectFS"), of("DirectFS_nqp"))
    };
    let mean = rows.iter().map(paper).sum::<f64>() / rows.len() as f64;
    let claims = [
        (
            "the inode quick path saves time, on average",
            mean,
            findings.mean_reductions(rows, "DirectFS", "DirectFS_nqp"),
        ),
        (
            "the inode quick path saves time for du with warm caches",
            paper(&"du_c"),
            findings.reductions("du_c", "DirectFS", "DirectFS_nqp"),
        ),
    ];
    for (what, paper, here) in claims {
        findings.claims.push(Claim {
            what: what.to_owned(),
            unit: "%",
            paper,
            here,
            sense: Sense::AtLeast,
            reason: QUICK_PATH,
        });
    }
}

/// Programs.
pub const TABLE_3: Experiment = Experiment {
    name: "directfs-table3",
    question: "How long do programs that work on many files take?",
    source: "DirectFS, Table III (section V-B2): in Linux's sources",
    method: "The file system calls of the programs, on a synthetic tree of 12 files per directory (14,400 files in the full size). Compression is left out, so tar and gzip are only their input and output. The paper's seconds are given as milliseconds. In virtual time all calls of a tree of four directories are recorded, and their time is scaled to the whole tree. Cold: right after mounting. Warm (_c): repeated. _nqp: DirectFS without the inode quick path.",
    needs_bytes: |size| TABLE_3_SUBJECTS.len() as u64 * plan(size).image_bytes(),
    run: |bench| {
        let mut times = all_times(bench, &TABLE_3_SUBJECTS, &TABLE_3_STEPS)?;
        times.extend(virtual_times(bench, &TABLE_3_SUBJECTS, &TABLE_3_STEPS)?);
        let rows = TABLE_3_PAPER.map(|(row, _)| row);
        let mut findings = Findings::new("ms", &MEMORIES).with_virtual(bench.virtual_memories(&memories::MEMORIES));
        add_times(&mut findings, &times, &TABLE_3_SUBJECTS, &TABLE_3_STEPS, &rows);
        for measure in &mut findings.measures {
            let column = TABLE_3_SUBJECTS.iter().position(|subject| subject.name() == measure.subject);
            let paper = TABLE_3_PAPER.iter().find(|(row, _)| *row == measure.row);
            measure.paper = column.zip(paper).map(|(column, (_, seconds))| seconds[column] * 1000.0);
        }
        for row in rows {
            let paper = |subject| findings.paper(row, subject).unwrap_or(f64::NAN);
            findings.claims.push(Claim {
                what: format!("DirectFS takes less time than NOVA for {row}"),
                unit: "%",
                paper: less(paper("DirectFS"), paper("NOVA")),
                here: findings.reductions(row, "DirectFS", "NOVA"),
                sense: Sense::AtLeast,
                reason: table_3_reason(row),
            });
        }
        let cold = ["du", "tar", "find", "gzip", "rm"];
        for (what, base, paper) in [
            ("DirectFS takes less time than NOVA with cold caches, on average", "NOVA", 32.8),
            ("DirectFS takes less time than PMFS with cold caches, on average", "PMFS", 14.3),
        ] {
            let here = findings.mean_reductions(&cold, "DirectFS", base);
            findings.claims.push(Claim {
                what: what.to_owned(),
                unit: "%",
                paper,
                here,
                sense: Sense::AtLeast,
                reason: "This is the mean of the rows above, of which du and find suffer from how DirectFS reads small directories.",
            });
        }
        let shown = ["PMFS", "NOVA", "DirectFS_nqp", "DirectFS"];
        quick_path_claims(&mut findings, &rows);
        findings.plots.push(findings.relative_plot("Time of programs, NOVA = 100 %", &rows, &shown, "NOVA"));
        Ok(findings)
    },
};

// --- ByVFS, Fig. 4 ----------------------------------------------------------------------------

const BYVFS_SUBJECTS: [Subject; 2] = [Subject::Nova, Subject::ByVfs];
/// ByVFS, section 4.3 (the text about Fig. 4): reduction against the conventional VFS in per cent.
const BYVFS_PAPER: [(&str, f64); 5] = [("du", 26.9), ("find", 11.6), ("rm", 21.4), ("ls", -6.4), ("cp", -3.8)];

/// Programs under ByVFS.
pub const BYVFS_FIGURE_4: Experiment = Experiment {
    name: "byvfs-fig4",
    question: "What do programs gain and lose without a dentry cache?",
    source: "ByVFS, Fig. 4 and section 4.3: in Linux's sources, cold caches",
    method: "As directfs-table3, each program right after mounting. ls and cp ask for a name more than once, and lose what a dentry cache would save.",
    needs_bytes: |size| BYVFS_SUBJECTS.len() as u64 * plan(size).image_bytes(),
    run: |bench| {
        let times = all_times(bench, &BYVFS_SUBJECTS, &BYVFS_STEPS)?;
        let rows = BYVFS_PAPER.map(|(row, _)| row);
        let mut findings = Findings::new("ms", &MEMORIES);
        add_times(&mut findings, &times, &BYVFS_SUBJECTS, &BYVFS_STEPS, &rows);
        for (row, paper) in BYVFS_PAPER {
            let sense = if paper > 0.0 { Sense::AtLeast } else { Sense::AtMost };
            let here = findings.reductions(row, "ByVFS", "NOVA");
            let what = format!("ByVFS takes less time than the conventional VFS for {row} (negative: more)");
            let reason = match row {
                "cp" => {
                    "Each name is asked for twice, once to check for existence and once to create it. The dentry cache saves less the second time than it costs to create a dentry."
                }
                "ls" => {
                    "Each name is looked up three times, from the root: ByVFS asks the image's index for every path component every time."
                }
                _ => {
                    "ByVFS saves a dentry for each name, which costs less here than in a kernel. Its cost, the pointer in each inode on the image, weighs more with slower memory."
                }
            };
            findings.claims.push(Claim { what, unit: "%", paper, here, sense, reason });
        }
        let mut plot =
            findings.relative_plot("Time of programs, conventional VFS = 100 %", &rows, &["NOVA", "ByVFS"], "NOVA");
        plot.paper = vec![
            Series { name: "NOVA".to_owned(), values: vec![Some(100.0); rows.len()] },
            Series { name: "ByVFS".to_owned(), values: BYVFS_PAPER.map(|(_, less)| Some(100.0 - less)).to_vec() },
        ];
        findings.plots.push(plot);
        Ok(findings)
    },
};
