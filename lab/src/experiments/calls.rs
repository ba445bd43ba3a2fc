//! Time per system call with one thread and names in one directory: DirectFS Table II and Fig. 2,
//! ByVFS Fig. 3.

use super::bare::Bare;
use super::findings::{Claim, Findings, MEASURED, Plot, Range, Series, less, more};
use super::loops::{
    Act, Measured, Meter, Times, access, create, keep_least, lines_notes, measures, mkdir, per_call, rmdir, shuffled,
    stat, time, unlink,
};
use super::machine::{Machine, Plan, Result, Slow, Subject, machine, populated};
use super::recorded::{VirtualTimes, add_columns, names_recorded, virtual_times};
use super::{Bench, Experiment, MEMORIES, Size, memory_name};
use crate::ablation::Variant;
use crate::nova::Nova;
use crate::physical::{MkfsOptions, PhysicalFs};
use crate::virtual_time::memories;
use engine::format::FileKind;
use pmem::{Delays, Mapping};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Directories with existing files one, two and three levels down, and one for creating and
/// removing names.
const PLACES: [&str; 3] = ["/one", "/a/two", "/a/b/three"];
const EMPTY: &str = "/empty";

struct Paths {
    by_level: [Vec<Vec<u8>>; 3],
    new: Vec<Vec<u8>>,
    /// The order of stats and removals of files.
    order: Vec<u64>,
    /// Directories in place of files. Each subdirectory is a link of its parent, so their number is
    /// limited.
    directory_order: Vec<u64>,
}

/// Maximum number of subdirectories created in one directory.
const DIRECTORIES_MAX: u64 = 60_000;
const _: () = assert!(DIRECTORIES_MAX < posix::LINKS_MAX as u64);

impl Paths {
    fn new(files: u64) -> Paths {
        let named = |place: &str| (0..files).map(|index| format!("{place}/file{index:07}").into_bytes()).collect();
        let directory_order = shuffled(files.min(DIRECTORIES_MAX));
        Paths { by_level: PLACES.map(named), new: named(EMPTY), order: shuffled(files), directory_order }
    }

    fn count(&self) -> u64 {
        self.order.len() as u64
    }

    fn plan(&self) -> Plan {
        Plan::of_files(self.count() * 4 + 100)
    }
}

/// Creates the directories and the existing files.
fn populate(machine: &dyn Machine, paths: &Paths) -> Result<()> {
    machine.with(&mut |calls| {
        for directory in ["/one", "/a", "/a/two", "/a/b", "/a/b/three", EMPTY] {
            calls.mkdir(directory.as_bytes(), 0o755)?;
        }
        for path in paths.by_level.iter().flatten() {
            calls.create(path, 0o644)?;
        }
        Ok(calls.sync()?)
    })
}

const COLD_STATS: [&str; 3] = ["stat", "stat_2", "stat_3"];
const WARM_STATS: [&str; 3] = ["stat_c", "stat_2_c", "stat_3_c"];

/// Measurements of warm calls per round. One lasts some milliseconds, so interference can affect
/// all of it.
const WARM_LOOKS: usize = 4;
/// `WARM_LOOKS` for calls that change something, which take longer.
const WARM_CHANGES: usize = 2;

/// One round of all calls: each first cold, right after mounting, then warm.
fn round(machine: &mut dyn Machine, delays: Delays, paths: &Paths, measured: &mut dyn Meter) -> Result<()> {
    let order = Some(&paths.order[..]);
    for ((paths, cold), warm) in paths.by_level.iter().zip(COLD_STATS).zip(WARM_STATS) {
        machine.remount(delays)?;
        measured.remounted();
        measured.act(cold, machine, paths, order, stat)?;
        for _ in 0..WARM_LOOKS {
            measured.act(warm, machine, paths, order, stat)?;
        }
    }
    machine.remount(delays)?;
    measured.remounted();
    measured.act("access", machine, &paths.by_level[0], order, access)?;
    for _ in 0..WARM_LOOKS {
        measured.act("access_c", machine, &paths.by_level[0], order, access)?;
    }
    let pairs: [(Act, Act, &[u64], [&'static str; 4]); 2] = [
        (create, unlink, &paths.order, ["open", "unlink", "open_c", "unlink_c"]),
        (mkdir, rmdir, &paths.directory_order, ["mkdir", "rmdir", "mkdir_c", "rmdir_c"]),
    ];
    for (make, remove, order, [cold_make, cold_remove, warm_make, warm_remove]) in pairs {
        let (names, order) = (&paths.new[..order.len()], Some(order));
        machine.remount(delays)?;
        measured.remounted();
        measured.act(cold_make, machine, names, None, make)?;
        machine.remount(delays)?;
        measured.remounted();
        measured.act(cold_remove, machine, names, order, remove)?;
        for _ in 0..WARM_CHANGES {
            measured.act(warm_make, machine, names, None, make)?;
            measured.act(warm_remove, machine, names, order, remove)?;
        }
    }
    Ok(())
}

/// Measures all subjects with all memories: `[memory][subject]`.
fn measure(
    bench: &Bench<'_>,
    subjects: &[Subject],
    files: u64,
    is_left_out: &dyn Fn(Subject, Delays) -> bool,
) -> Result<Vec<Vec<Measured>>> {
    if !bench.is_clocked() {
        return Ok(vec![vec![Measured::default(); subjects.len()]; MEMORIES.len()]);
    }
    let paths = Paths::new(files);
    let mut machines = Vec::new();
    for subject in subjects {
        bench.step(&format!("{files} files in {}", subject.name()))?;
        let machine = machine(*subject, paths.plan())?;
        populate(&*machine, &paths)?;
        machines.push(machine);
    }
    let mut all = Vec::new();
    for delays in MEMORIES {
        let mut measured = vec![Measured::default(); subjects.len()];
        for number in 0..bench.rounds() {
            for ((machine, subject), measured) in machines.iter_mut().zip(subjects).zip(&mut measured) {
                if !is_left_out(*subject, delays) {
                    bench.step(&format!("{}, {}, round {}", subject.name(), memory_name(delays), number + 1))?;
                    round(&mut **machine, delays, &paths, measured)?;
                }
            }
        }
        all.push(measured);
    }
    Ok(all)
}

/// The calls in virtual time, by subject.
fn measure_virtual(bench: &Bench<'_>, subjects: &[Subject], files: u64) -> Result<Vec<VirtualTimes>> {
    let paths = Paths::new(names_recorded(bench.size).min(files));
    virtual_times(bench, &memories::MEMORIES, subjects, files, &|subject, meter| {
        let mut machine = machine(subject, paths.plan())?;
        populate(&*machine, &paths)?;
        round(&mut *machine, Delays::default(), &paths, meter)
    })
}

// --- DirectFS, Table II -----------------------------------------------------------------------

const TABLE_2_SUBJECTS: [Subject; 8] = [
    Subject::Pmfs,
    Subject::CacheletPmfsSlow,
    Subject::CacheletPmfs,
    Subject::Nova,
    Subject::CacheletNovaSlow,
    Subject::CacheletNova,
    Subject::Ablated(Variant::AsPrinted),
    Subject::DirectFs,
];

/// DirectFS, Table II: microseconds, subjects in the order above without the last one, which has
/// the paper's values, too.
const TABLE_2_PAPER: [(&str, [f64; 7]); 14] = [
    ("stat", [37.5, 1.2, 1.1, 4.5, 2.2, 2.1, 2.1]),
    ("stat_2", [37.7, 1.2, 1.2, 5.2, 2.2, 2.2, 2.2]),
    ("stat_3", [37.7, 1.3, 1.3, 5.2, 2.3, 2.3, 2.3]),
    ("stat_c", [0.8, 0.9, 0.9, 1.1, 1.2, 0.8, 0.8]),
    ("stat_2_c", [0.9, 0.9, 0.9, 1.0, 1.2, 0.8, 0.8]),
    ("stat_3_c", [0.9, 0.9, 0.9, 1.0, 1.3, 0.9, 0.9]),
    ("open", [63.0, 10.9, 10.9, 12.8, 9.5, 9.4, 8.0]),
    ("mkdir", [59.8, 11.2, 11.1, 14.0, 12.0, 11.9, 10.6]),
    ("open_c", [61.6, 10.8, 10.4, 12.1, 9.2, 9.0, 6.9]),
    ("mkdir_c", [23.0, 11.0, 11.0, 12.6, 10.1, 10.0, 8.7]),
    ("unlink", [29.6, 5.2, 5.1, 11.6, 5.6, 5.5, 3.4]),
    ("rmdir", [48.6, 5.8, 5.7, 15.0, 8.1, 8.1, 4.8]),
    ("unlink_c", [10.4, 5.2, 5.1, 9.1, 4.0, 3.7, 2.3]),
    ("rmdir_c", [29.3, 5.7, 5.5, 10.4, 5.7, 5.3, 2.6]),
];

fn table_2_files(size: Size) -> u64 {
    size.pick(40, 600, 10_000)
}

/// Table II.
pub const TABLE_2: Experiment = Experiment {
    name: "directfs-table2",
    question: "How long does each system call take, cold and warm?",
    source: "DirectFS, Table II (section V-B1): 10,000 files, Optane DC memory",
    method: "Names in one directory; stat also two and three levels down. Cold: right after mounting. Warm (_c): repeated. \"open\" creates a file and closes it. _N and _Nnqp: the paper's index and cachelets over the other file system, with and without the inode quick path. DirectFS_paper: Algorithm 1 as printed (two fences, persisted tail of the log, no parent kept, garbage left to another thread); DirectFS: the product. In the full size PMFS runs without delays only, because its linear searches would take minutes per row. In virtual time a directory has at most 500 names.",
    is_alone: false,
    needs_bytes: |size| TABLE_2_SUBJECTS.len() as u64 * Plan::of_files(table_2_files(size) * 4 + 100).image_bytes(),
    run: |bench| {
        let left_out =
            |subject, delays| bench.size == Size::Full && subject == Subject::Pmfs && delays != Delays::default();
        let measured = measure(bench, &TABLE_2_SUBJECTS, table_2_files(bench.size), &left_out)?;
        let rows = TABLE_2_PAPER.map(|(row, _)| row);
        let paper = |row: &str, subject| {
            let column = TABLE_2_SUBJECTS.iter().position(|known| *known == subject)?.min(6);
            TABLE_2_PAPER.iter().find(|(name, _)| *name == row).map(|(_, values)| values[column])
        };
        let times = measure_virtual(bench, &TABLE_2_SUBJECTS, table_2_files(bench.size))?;
        let mut findings = Findings::new("µs per call", &MEMORIES)
            .with_virtual(bench.virtual_memories(&memories::MEMORIES), &memories::OPTANE)
            .with_kernel();
        findings.measures = measures(&measured, &TABLE_2_SUBJECTS, &rows, &paper);
        add_columns(&mut findings, &times, &TABLE_2_SUBJECTS);
        table_2_claims(&mut findings, &rows);
        findings.notes.extend(lines_notes(
            &measured,
            &TABLE_2_SUBJECTS,
            &[Subject::Nova, Subject::CacheletNova, Subject::DirectFs],
            &rows,
        ));
        let shown = ["NOVA", "NOVA_Nnqp", "NOVA_N", "DirectFS_paper", "DirectFS"];
        findings.plots.push(findings.relative_plot("Time per call, NOVA = 100 %", &rows, &shown, "NOVA"));
        Ok(findings)
    },
};

fn table_2_claims(findings: &mut Findings, rows: &[&str]) {
    for row in rows {
        let of = |subject| findings.paper(row, subject).unwrap_or(f64::NAN);
        findings.claims.push(Claim::gain(
            format!("DirectFS takes less time than NOVA for {row}"),
            less(of("DirectFS"), of("NOVA")),
            findings.reductions(row, "DirectFS", "NOVA"),
            findings.because(row, "DirectFS", "NOVA"),
        ));
    }
    let writes = ["open", "mkdir", "open_c", "mkdir_c", "unlink", "rmdir", "unlink_c", "rmdir_c"];
    let best = |values: &dyn Fn(&str) -> Vec<f64>| {
        let each: Vec<Vec<f64>> = rows.iter().map(|row| values(row)).collect();
        let columns = each.first().map_or(0, Vec::len);
        (0..columns).map(|memory| each.iter().map(|row| row[memory]).reduce(f64::max).unwrap_or(f64::NAN)).collect()
    };
    let mean = |rows: &[&str], subject: &str, base: &str| {
        (findings.mean_reductions(rows, subject, base), findings.mean_of(rows, subject, base))
    };
    let one = |row: &str, subject: &str, base: &str| {
        (findings.reductions(row, subject, base), findings.because(row, subject, base))
    };
    let claims = [
        ("DirectFS takes less time than NOVA on average (abstract, section I)", 36.86, mean(rows, "DirectFS", "NOVA")),
        ("the design as printed takes less time than NOVA on average", 36.86, mean(rows, "DirectFS_paper", "NOVA")),
        (
            "DirectFS takes less time than NOVA at best (abstract)",
            59.2,
            (best(&|row| findings.reductions(row, "DirectFS", "NOVA")), findings.mean_of(rows, "DirectFS", "NOVA")),
        ),
        ("index and cachelets make cold stat over NOVA faster", 53.5, one("stat", "NOVA_N", "NOVA")),
        ("index and cachelets make cold stat over PMFS faster", 96.9, one("stat", "PMFS_N", "PMFS")),
        (
            "index and cachelets make metadata writes over NOVA faster, on average",
            36.8,
            mean(&writes, "NOVA_N", "NOVA"),
        ),
        (
            "index and cachelets make metadata writes over PMFS faster, on average",
            75.3,
            mean(&writes, "PMFS_N", "PMFS"),
        ),
        (
            "DirectFS's own log makes metadata writes faster than index and cachelets over NOVA, on average",
            28.9,
            mean(&writes, "DirectFS", "NOVA_N"),
        ),
        (
            "the log as printed makes metadata writes faster than index and cachelets over NOVA, on average",
            28.9,
            mean(&writes, "DirectFS_paper", "NOVA_N"),
        ),
        ("the inode quick path makes warm stat over NOVA faster", 19.0, one("stat_c", "NOVA_N", "NOVA_Nnqp")),
    ];
    let claims = claims.map(|(what, paper, (here, reason))| Claim::gain(what.to_owned(), paper, here, reason));
    findings.claims.extend(claims);
}

// --- ByVFS, Fig. 3 ----------------------------------------------------------------------------

/// ByVFS, section 4.2 (the text about Fig. 3): reduction against the conventional VFS in per cent.
const BYVFS_PAPER: [(&str, f64); 6] =
    [("open", 12.7), ("stat", 48.1), ("access", 28.4), ("unlink", 50.8), ("mkdir", 7.4), ("rmdir", 18.4)];
const BYVFS_SUBJECTS: [Subject; 2] = [Subject::Nova, Subject::ByVfs];

fn byvfs_files(size: Size) -> u64 {
    size.pick(40, 2000, 100_000)
}

/// ByVFS's calls.
pub const BYVFS_FIGURE_3: Experiment = Experiment {
    name: "byvfs-fig3",
    question: "What does a VFS without a dentry cache save, cold and warm?",
    source: "ByVFS, Fig. 3 and section 4.2: 100,000 files in one directory, NOVA below, 30 to 40 ns added to reads and 600 ns to writes",
    method: "The conventional VFS and ByVFS over the same NOVA-like file system. Cold: right after mounting. Warm (_c): repeated. \"open\" creates a file and closes it. 60,000 directories are created, since a directory has at most 65,000 links here. In virtual time a directory has at most 500 names.",
    is_alone: false,
    needs_bytes: |size| BYVFS_SUBJECTS.len() as u64 * Plan::of_files(byvfs_files(size) * 4 + 100).image_bytes(),
    run: |bench| {
        let measured = measure(bench, &BYVFS_SUBJECTS, byvfs_files(bench.size), &|_, _| false)?;
        let rows = ["open", "stat", "access", "unlink", "mkdir", "rmdir", "access_c", "unlink_c"];
        let times = measure_virtual(bench, &BYVFS_SUBJECTS, byvfs_files(bench.size))?;
        let mut findings = Findings::new("µs per call", &MEMORIES)
            .with_virtual(bench.virtual_memories(&memories::MEMORIES), &memories::REMOTE)
            .with_kernel();
        findings.measures = measures(&measured, &BYVFS_SUBJECTS, &rows, &|_, _| None);
        add_columns(&mut findings, &times, &BYVFS_SUBJECTS);
        let warm = [("unlink_c", 38.1)];
        for (row, paper) in BYVFS_PAPER.iter().chain(&warm) {
            findings.claims.push(Claim::gain(
                format!("ByVFS takes less time than the conventional VFS for {row}"),
                *paper,
                findings.reductions(row, "ByVFS", "NOVA"),
                findings.because(row, "ByVFS", "NOVA"),
            ));
        }
        let mut plot =
            findings.relative_plot("Time per call, conventional VFS = 100 %", &rows, &["NOVA", "ByVFS"], "NOVA");
        let known =
            |row: &&str| BYVFS_PAPER.iter().chain(&warm).find(|(name, _)| name == row).map(|(_, less)| 100.0 - less);
        plot.paper = vec![
            Series::new("NOVA", rows.iter().map(|row| known(row).map(|_| 100.0)).collect()),
            Series::new("ByVFS", rows.iter().map(known).collect()),
        ];
        findings.plots.push(plot);
        findings.notes.extend(lines_notes(&measured, &BYVFS_SUBJECTS, &BYVFS_SUBJECTS, &rows));
        findings.notes.push(
            "The paper gives no number for access with a warm cache; it says that ByVFS is slightly worse there."
                .to_owned(),
        );
        Ok(findings)
    },
};

// --- DirectFS, Fig. 2 -------------------------------------------------------------------------

fn figure_2_files(size: Size) -> u64 {
    size.pick(40, 1000, 10_000)
}

const FIGURE_2_ROWS: [[&str; 6]; 3] = [
    ["create", "stat", "remove", "create_c", "stat_c", "remove_c"],
    ["create_2", "stat_2", "remove_2", "create_2_c", "stat_2_c", "remove_2_c"],
    ["create_3", "stat_3", "remove_3", "create_3_c", "stat_3_c", "remove_3_c"],
];

/// With and without a VFS.
pub const DIRECTFS_FIGURE_2: Experiment = Experiment {
    name: "directfs-fig2",
    question: "What do the VFS's caches cost, and what do they save?",
    source: "DirectFS, Fig. 2 and section II-C: NOVA with the VFS and without",
    method: "create, stat and remove in directories one, two and three levels down. VFS: the conventional layer over the NOVA-like file system. PFS: its operations called without any cache of names or file attributes; directories in use keep NOVA's own index. Cold: right after mounting. Warm (_c): repeated.",
    is_alone: false,
    needs_bytes: |size| 2 * Plan::of_files(figure_2_files(size) + 100).image_bytes(),
    run: |bench| {
        let files = figure_2_files(bench.size);
        let mut vfs = machine(Subject::Nova, Plan::of_files(files + 100))?;
        vfs.with(&mut |calls| Ok(DIRECTORIES.iter().try_for_each(|path| calls.mkdir(path.as_bytes(), 0o755))?))?;
        let image = figure_2_image(files)?;
        let mut times = Vec::new();
        for delays in MEMORIES {
            let mut both = vec![BTreeMap::new(), BTreeMap::new()];
            for number in 0..bench.rounds() {
                bench.step(&format!("{}, round {}", memory_name(delays), number + 1))?;
                let mut round = [Times::new(), Times::new()];
                figure_2_vfs(&mut *vfs, files, delays, &mut round[0])?;
                figure_2_pfs(&image, files, delays, &mut round[1])?;
                for (all, round) in both.iter_mut().zip(round) {
                    for (row, ns) in round {
                        let range: &mut Range = all.entry(row).or_insert(Range::NONE);
                        *range = range.with(Range::of([ns / 1000.0]));
                    }
                }
            }
            times.push(both);
        }
        let mut findings = Findings::new("µs per call", &MEMORIES);
        let rows: Vec<&str> = FIGURE_2_ROWS.into_iter().flatten().collect();
        for row in &rows {
            for (index, subject) in ["VFS", "PFS"].into_iter().enumerate() {
                // The least of the rounds counts.
                let of = |memory: &Vec<BTreeMap<&str, Range>>| memory[index].get(row).copied().unwrap_or(Range::NONE);
                let rounds = times.iter().map(of).map(|range| (range.least, range)).collect();
                findings.add_rounds(row, subject, rounds);
            }
        }
        findings.claims.push(Claim::gain(
            "cold stat takes less time without the VFS".to_owned(),
            55.5,
            findings.reductions("stat", "PFS", "VFS"),
            "A dentry and an inode of the VFS layer have 128 bytes each here, in arrays; in a kernel 192 and about 1000, in slabs.".to_owned(),
        ));
        let of = |memory| {
            more(
                findings.here("stat_c", "PFS", memory).unwrap_or(0.0),
                findings.here("stat_c", "VFS", memory).unwrap_or(0.0),
            )
        };
        findings.claims.push(Claim::gain(
            "warm stat takes more time without the VFS".to_owned(),
            89.5,
            (0..MEMORIES.len()).map(of).collect(),
            "A warm stat under the VFS layer costs less here than in a kernel, which also checks hooks, counts references and copies the path.".to_owned(),
        ));
        let series = |name: &str| findings.series(&rows, name, 0);
        findings.plots.push(Plot {
            title: "Time per call with and without the VFS".to_owned(),
            unit: "µs".to_owned(),
            x_labels: rows.iter().map(|row| (*row).to_owned()).collect(),
            lines: false,
            basis: MEASURED.to_owned(),
            here: vec![series("VFS"), series("PFS")],
            paper: Vec::new(),
        });
        Ok(findings)
    },
};

const DIRECTORIES: [&str; 5] = ["/one", "/a", "/a/two", "/a/b", "/a/b/three"];

fn level_paths(level: usize, files: u64) -> Vec<Vec<u8>> {
    (0..files).map(|index| format!("{}/file{index:07}", PLACES[level]).into_bytes()).collect()
}

fn figure_2_vfs(machine: &mut dyn Machine, files: u64, delays: Delays, times: &mut Times) -> Result<()> {
    let order = shuffled(files);
    for (level, rows) in FIGURE_2_ROWS.iter().enumerate() {
        let paths = level_paths(level, files);
        machine.remount(delays)?;
        keep_least(times, rows[0], time(machine, &paths, None, create)?);
        machine.remount(delays)?;
        keep_least(times, rows[1], time(machine, &paths, Some(&order), stat)?);
        keep_least(times, rows[4], time(machine, &paths, Some(&order), stat)?);
        machine.remount(delays)?;
        keep_least(times, rows[2], time(machine, &paths, Some(&order), unlink)?);
        keep_least(times, rows[3], time(machine, &paths, None, create)?);
        keep_least(times, rows[5], time(machine, &paths, Some(&order), unlink)?);
    }
    Ok(())
}

/// Creates an image with the directories, for the physical file system alone.
fn figure_2_image(files: u64) -> Result<Arc<Mapping>> {
    let image = populated(Plan::of_files(files + 100).image_bytes())?;
    let region = || image.region(Slow::default());
    Nova::<Slow>::mkfs(&region()?, &MkfsOptions::default())?;
    let mut fs = Bare::<Nova<Slow>>::mount(region()?)?;
    DIRECTORIES.iter().try_for_each(|path| fs.create(path.as_bytes(), FileKind::Directory))?;
    fs.unmount()?;
    Ok(image)
}

fn figure_2_pfs(image: &Arc<Mapping>, files: u64, delays: Delays, times: &mut Times) -> Result<()> {
    let order = shuffled(files);
    let mount = || -> Result<Bare<Nova<Slow>>> {
        let memory = Slow::default();
        let fs = Bare::mount(image.region(memory.clone())?)?;
        memory.slow_down(delays);
        Ok(fs)
    };
    for (level, rows) in FIGURE_2_ROWS.iter().enumerate() {
        let paths = level_paths(level, files);
        let at = |index: u64| &paths[order[index as usize] as usize];
        let create =
            |fs: &mut Bare<Nova<Slow>>| per_call(files, |index| fs.create(&paths[index as usize], FileKind::Regular));
        let mut fs = mount()?;
        keep_least(times, rows[0], create(&mut fs)?);
        fs.unmount()?;
        let mut fs = mount()?;
        keep_least(times, rows[1], per_call(files, |index| fs.stat(at(index)))?);
        keep_least(times, rows[4], per_call(files, |index| fs.stat(at(index)))?);
        fs.unmount()?;
        let mut fs = mount()?;
        keep_least(times, rows[2], per_call(files, |index| fs.remove(at(index)))?);
        keep_least(times, rows[3], create(&mut fs)?);
        keep_least(times, rows[5], per_call(files, |index| fs.remove(at(index)))?);
        fs.unmount()?;
    }
    Ok(())
}
