//! How long programs take on a tree of sources: DirectFS Table III, ByVFS Fig. 4. The programs are
//! in [`super::programs`].

use super::findings::{Claim, Findings, Measure, Series, less};
use super::machine::{Result, Subject, machine};
use super::programs::{BYVFS_STEPS, Program, Step, Tree, directories, plan, time};
use super::recorded::{Work, image_of};
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
    size.pick(1, 4, 4)
}

/// Adds the columns of virtual time, in milliseconds as for the whole tree, and what the programs
/// do for a tree of [`directories_recorded`]. All its calls are recorded.
fn add_virtual_times(findings: &mut Findings, bench: &Bench<'_>, subjects: &[Subject], steps: &[Step]) -> Result<()> {
    let memories: &[Memory] = bench.virtual_memories(&memories::MEMORIES);
    if memories.is_empty() {
        return Ok(());
    }
    let recorded = directories_recorded(bench.size);
    let times = directories(bench.size) as f64 / recorded as f64;
    for subject in subjects {
        let mut recorder = Recorder::new(memories)?;
        let tree = Tree::new("/linux", recorded);
        let mut machine = machine(*subject, plan(Size::Tiny))?;
        for (row, program, is_cold) in steps {
            bench.step(&format!("{}, {row}, virtual time", subject.name()))?;
            if *is_cold {
                machine.remount(MEMORIES[0])?;
            }
            let before = if *is_cold { Before::Mount } else { Before::Same };
            recorder.set_up(&image_of(&*machine), before);
            machine.with(&mut |calls| {
                RecordedCalls::new(calls, &mut recorder).run(|calls| program.run(calls, &tree)).map(drop)
            })?;
            let taken = recorder.take();
            let spent = taken.spent((taken.calls as f64 * times) as u64, memories);
            let key = ((*row).to_owned(), subject.name().to_owned());
            let of_row = |measure: &&mut Measure| measure.row == key.0 && measure.subject == key.1;
            if let Some(measure) = findings.measures.iter_mut().find(of_row) {
                measure.here.extend(spent.iter().map(|(ps, _)| Some(*ps as f64 * times / 1e9)));
            }
            let each = spent.into_iter().map(|(_, content)| content).collect();
            findings.work.insert(key, Work { calls: recorded, each });
        }
    }
    Ok(())
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

const TABLE_3_SUBJECTS: [Subject; 5] = [
    Subject::Pmfs,
    Subject::Nova,
    Subject::Ablated(Variant::NoQuickPath),
    Subject::Ablated(Variant::AsPrinted),
    Subject::DirectFs,
];
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

/// DirectFS, Table III: seconds, subjects in the order above without the last one, which has the
/// paper's values, too.
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

/// The paper: "DirectFS nqp performs worse than DirectFS".
fn quick_path_claims(findings: &mut Findings, rows: &[&str]) {
    let paper = |row: &&str| {
        let of = |subject| findings.paper(row, subject).unwrap_or(f64::NAN);
        less(of("DirectFS"), of("DirectFS_nqp"))
    };
    let (mean, of_du) = (rows.iter().map(paper).sum::<f64>() / rows.len() as f64, paper(&"du_c"));
    let here = findings.mean_reductions(rows, "DirectFS", "DirectFS_nqp");
    let reason = findings.mean_of(rows, "DirectFS", "DirectFS_nqp");
    findings.claims.push(Claim::gain("the inode quick path saves time, on average".to_owned(), mean, here, reason));
    let here = findings.reductions("du_c", "DirectFS", "DirectFS_nqp");
    let reason = findings.because("du_c", "DirectFS", "DirectFS_nqp");
    let what = "the inode quick path saves time for du with warm caches".to_owned();
    findings.claims.push(Claim::gain(what, of_du, here, reason));
}

/// Programs.
pub const TABLE_3: Experiment = Experiment {
    name: "directfs-table3",
    question: "How long do programs that work on many files take?",
    source: "DirectFS, Table III (section V-B2): in Linux's sources",
    method: "The file system calls of the programs, on a synthetic tree of 12 files per directory (14,400 files in the full size). Compression is left out, so tar and gzip are only their input and output. The paper's seconds are given as milliseconds. In virtual time all calls of a tree of four directories are recorded, and their time is scaled to the whole tree. Cold: right after mounting. Warm (_c): repeated. _nqp: DirectFS without the inode quick path. _paper: Algorithm 1 as printed, see directfs-table2.",
    is_alone: false,
    needs_bytes: |size| TABLE_3_SUBJECTS.len() as u64 * plan(size).image_bytes(),
    run: |bench| {
        let times = all_times(bench, &TABLE_3_SUBJECTS, &TABLE_3_STEPS)?;
        let rows = TABLE_3_PAPER.map(|(row, _)| row);
        let mut findings =
            Findings::new("ms", &MEMORIES).with_virtual(bench.virtual_memories(&memories::MEMORIES), &memories::OPTANE);
        add_times(&mut findings, &times, &TABLE_3_SUBJECTS, &TABLE_3_STEPS, &rows);
        add_virtual_times(&mut findings, bench, &TABLE_3_SUBJECTS, &TABLE_3_STEPS)?;
        for measure in &mut findings.measures {
            let column = TABLE_3_SUBJECTS.iter().position(|subject| subject.name() == measure.subject);
            let paper = TABLE_3_PAPER.iter().find(|(row, _)| *row == measure.row);
            measure.paper = column.zip(paper).map(|(column, (_, seconds))| seconds[column.min(3)] * 1000.0);
        }
        for row in rows {
            let paper = |subject| findings.paper(row, subject).unwrap_or(f64::NAN);
            findings.claims.push(Claim::gain(
                format!("DirectFS takes less time than NOVA for {row}"),
                less(paper("DirectFS"), paper("NOVA")),
                findings.reductions(row, "DirectFS", "NOVA"),
                findings.because(row, "DirectFS", "NOVA"),
            ));
        }
        let cold = ["du", "tar", "find", "gzip", "rm"];
        for (what, base, paper) in [
            ("DirectFS takes less time than NOVA with cold caches, on average", "NOVA", 32.8),
            ("DirectFS takes less time than PMFS with cold caches, on average", "PMFS", 14.3),
        ] {
            let here = findings.mean_reductions(&cold, "DirectFS", base);
            let reason = findings.mean_of(&cold, "DirectFS", base);
            findings.claims.push(Claim::gain(what.to_owned(), paper, here, reason));
        }
        let what = "the design as printed takes less time than NOVA with cold caches, on average".to_owned();
        let here = findings.mean_reductions(&cold, "DirectFS_paper", "NOVA");
        findings.claims.push(Claim::gain(what, 32.8, here, findings.mean_of(&cold, "DirectFS_paper", "NOVA")));
        let shown = ["PMFS", "NOVA", "DirectFS_nqp", "DirectFS_paper", "DirectFS"];
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
    is_alone: false,
    needs_bytes: |size| BYVFS_SUBJECTS.len() as u64 * plan(size).image_bytes(),
    run: |bench| {
        let times = all_times(bench, &BYVFS_SUBJECTS, &BYVFS_STEPS)?;
        let rows = BYVFS_PAPER.map(|(row, _)| row);
        let mut findings =
            Findings::new("ms", &MEMORIES).with_virtual(bench.virtual_memories(&memories::MEMORIES), &memories::REMOTE);
        add_times(&mut findings, &times, &BYVFS_SUBJECTS, &BYVFS_STEPS, &rows);
        add_virtual_times(&mut findings, bench, &BYVFS_SUBJECTS, &BYVFS_STEPS)?;
        for (row, paper) in BYVFS_PAPER {
            let here = findings.reductions(row, "ByVFS", "NOVA");
            let what = format!("ByVFS takes less time than the conventional VFS for {row} (negative: more)");
            findings.claims.push(Claim::gain(what, paper, here, findings.because(row, "ByVFS", "NOVA")));
        }
        let mut plot =
            findings.relative_plot("Time of programs, conventional VFS = 100 %", &rows, &["NOVA", "ByVFS"], "NOVA");
        plot.paper = vec![
            Series::new("NOVA", vec![Some(100.0); rows.len()]),
            Series::new("ByVFS", BYVFS_PAPER.map(|(_, less)| Some(100.0 - less)).to_vec()),
        ];
        findings.plots.push(plot);
        Ok(findings)
    },
};
