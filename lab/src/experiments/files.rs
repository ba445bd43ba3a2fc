//! Applications with files: small files (DirectFS Fig. 8), varmail and fileserver (DirectFS Fig. 9,
//! SoupFS Fig. 5), Postmark (SoupFS Fig. 4). The applications are in [`super::filebench`].

use super::filebench::{Application, SetFile, ThreadFiles};
use super::findings::{Claim, Findings, MEASURED, Measure, Plot, Range, Series, more};
use super::fxmark::thread_counts;
use super::loops::{Clock, Watch, read_once, write_file};
use super::machine::{Machine, Plan, Result, Subject, machine};
use super::modelled;
use super::recorded::{Work, image_of};
use super::recorded_calls::RecordedCalls;
use super::{Bench, Experiment, MEMORIES, Size, memory_name};
use crate::ablation::Variant;
use crate::multicore::coherence::Costs;
use crate::virtual_time::clock::Content;
use crate::virtual_time::memories::{self, Memory};
use crate::virtual_time::{Before, Recorder};
use pmem::Delays;

/// A subject with an application's files.
struct Site {
    subject: Subject,
    application: Application,
    machine: Box<dyn Machine>,
    files: Vec<SetFile>,
}

/// The most threads of the paper's figure.
const THREADS_MAX: u64 = 16;

/// Numbers of threads: those of the machine's processors, and for the model those of the paper.
fn real_threads() -> Vec<u64> {
    thread_counts().into_iter().filter(|count| *count <= THREADS_MAX).collect()
}
const MODELLED_THREADS: [u64; 5] = [1, 2, 4, 8, THREADS_MAX];
const MODELLED_SUBJECTS: [Subject; 2] = [Subject::Nova, Subject::DirectFs];

impl Site {
    /// SoupFS's persister runs every 20 ms: often enough that its work is part of a short run.
    fn new(subject: Subject, application: Application, files: u64) -> Result<Site> {
        Site::with_period(subject, application, files, 20)
    }

    fn with_period(subject: Subject, application: Application, files: u64, persist_period_ms: u64) -> Result<Site> {
        let content_bytes = files * application.mean_bytes() * 3;
        let plan = Plan { content_bytes, persist_period_ms, ..Plan::of_files(files * 2 + 1000) };
        let machine = machine(subject, plan)?;
        let set = application.file_set(files);
        machine.with(&mut |calls| set.make(calls))?;
        Ok(Site { subject, application, machine, files: set.files })
    }

    /// Thousands of operations per second. Each thread has its part of the files. One thread is
    /// timed in its processor time, of several the slowest by the clock, without the time for which
    /// it waited for a processor.
    fn rate(&mut self, delays: Delays, turns: u64, threads: u64) -> Result<f64> {
        self.machine.remount(delays)?;
        let (application, machine) = (self.application, &*self.machine);
        let part = self.files.len().div_ceil(threads as usize).max(1);
        let parts: Vec<Vec<SetFile>> = self.files.chunks(part).map(<[_]>::to_vec).collect();
        let ends: Vec<Result<(Vec<SetFile>, f64)>> = std::thread::scope(|scope| {
            let mut running = Vec::new();
            for (thread, files) in (0..threads).zip(parts) {
                running.push(scope.spawn(move || {
                    let mut end = (files, 0.0);
                    machine.with(&mut |calls| {
                        let files = std::mem::take(&mut end.0);
                        let mut own = ThreadFiles::new(calls, application, files, thread + 100);
                        let (clock, watch) = (Clock::start(), Watch::start());
                        let done = (0..turns / threads).try_for_each(|_| own.turn());
                        let ns = if threads == 1 { watch.ns() } else { clock.ns() };
                        end = (own.files, ns);
                        done
                    })?;
                    Ok(end)
                }));
            }
            running.into_iter().map(|thread| thread.join().unwrap_or(Err(posix::Errno::EIO.into()))).collect()
        });
        self.files.clear();
        let mut most_ns = 0.0f64;
        for end in ends {
            let (files, ns) = end?;
            self.files.extend(files);
            most_ns = most_ns.max(ns);
        }
        Ok((turns / threads * threads) as f64 * self.application.operations() * 1e6 / most_ns.max(1.0))
    }
}

/// Rates of some subjects, the maximum of several rounds: `[threads][memory][subject]`.
fn rates(
    bench: &Bench<'_>,
    subjects: &[Subject],
    application: Application,
    (files, turns): (u64, u64),
    threads: &[u64],
) -> Result<Vec<Vec<Vec<f64>>>> {
    if !bench.is_clocked() {
        return Ok(vec![vec![vec![f64::NAN; subjects.len()]; MEMORIES.len()]; threads.len()]);
    }
    let mut sites = Vec::new();
    for subject in subjects {
        bench.step(&format!("{application:?}, {files} files in {}", subject.name()))?;
        sites.push(Site::new(*subject, application, files)?);
    }
    let mut all = Vec::new();
    for &threads in threads {
        let mut of_memories = Vec::new();
        for delays in MEMORIES {
            let mut most = vec![0.0f64; subjects.len()];
            for _ in 0..bench.rounds().min(3) {
                for (site, most) in sites.iter_mut().zip(&mut most) {
                    let name = site.subject.name();
                    bench.step(&format!("{application:?}, {threads} threads, {name}, {}", memory_name(delays)))?;
                    *most = most.max(site.rate(delays, turns, threads)?);
                }
            }
            of_memories.push(most);
        }
        all.push(of_memories);
    }
    Ok(all)
}

/// Files in virtual time, and turns that fill the caches and that count.
const fn turns_recorded(size: Size) -> (u64, u64, u64) {
    match size {
        Size::Tiny => (8, 0, 1),
        Size::Quick | Size::Full => (100, 4, 24),
    }
}

/// One thread in virtual time.
#[derive(Default)]
struct VirtualRates {
    /// Rates: `[memory][subject]`.
    rates: Vec<Vec<f64>>,
    /// What a turn of each subject does.
    work: Vec<Work>,
    notes: Vec<String>,
}

/// Rates of one thread in virtual time. Lines of the image come from memory at first: each turn
/// uses other files.
fn virtual_rates(bench: &Bench<'_>, subjects: &[Subject], application: Application) -> Result<VirtualRates> {
    let memories = bench.virtual_memories(&memories::MEMORIES);
    let mut all = VirtualRates { rates: vec![Vec::new(); memories.len()], ..VirtualRates::default() };
    if memories.is_empty() {
        return Ok(all);
    }
    let (files, filling, counted) = turns_recorded(bench.size);
    for subject in subjects {
        bench.step(&format!("{application:?}, {}, virtual time", subject.name()))?;
        let mut recorder = Recorder::new(memories)?;
        let site = Site::with_period(*subject, application, files, 0)?;
        let mut own_files = site.files.clone();
        let mut turns = Vec::new();
        site.machine.with(&mut |calls| {
            calls.sync()?;
            recorder.set_up(&image_of(&*site.machine), Before::Others);
            for count in [filling, counted] {
                recorder.take();
                RecordedCalls::new(calls, &mut recorder).run(|calls| {
                    let mut own = ThreadFiles::new(calls, application, std::mem::take(&mut own_files), count + 100);
                    let done = (0..count).try_for_each(|_| own.turn());
                    own_files = own.files;
                    done
                })?;
            }
            turns = recorder.take().spent(counted, memories);
            // All that is pending: the work of a persister.
            RecordedCalls::new(calls, &mut recorder).run(|calls| Ok(calls.sync()?))
        })?;
        let later = recorder.take().spent(counted, memories);
        if *subject == Subject::SoupFs {
            all.notes.push(persister_note(application, memories, &turns, &later, counted, filling));
        }
        let rate = |(ps, _): &(u64, Content)| counted as f64 * application.operations() * 1e9 / *ps as f64;
        all.rates.iter_mut().zip(turns.iter().map(rate)).for_each(|(memory, rate)| memory.push(rate));
        all.work.push(Work { calls: counted, each: turns.into_iter().map(|(_, content)| content).collect() });
    }
    Ok(all)
}

/// How long SoupFS's persister would run for some turns, on another processor.
fn persister_note(
    application: Application,
    memories: &[Memory],
    turns: &[(u64, Content)],
    later: &[(u64, Content)],
    counted: u64,
    filling: u64,
) -> String {
    let share = counted as f64 / (counted + filling) as f64;
    let busy = |(later, turns): (&(u64, Content), &(u64, Content))| {
        format!("{:.0} %", later.0 as f64 * 100.0 * share / turns.0 as f64)
    };
    let each: Vec<String> = later.iter().zip(turns).map(busy).collect();
    let names: Vec<&str> = memories.iter().map(|memory| memory.name).collect();
    format!(
        "{application:?}, virtual time: if SoupFS's persister runs after these few turns, it takes {} of their time with {}, on another processor. With a longer period most of these files are removed before it comes.",
        each.join(", "),
        names.join(", ")
    )
}

fn add_rates(
    findings: &mut Findings,
    row: &str,
    subjects: &[Subject],
    rates: &[Vec<f64>],
    recorded: Option<&VirtualRates>,
) {
    let unknown = vec![vec![f64::NAN; subjects.len()]; findings.memories.len() - MEMORIES.len()];
    let columns = || rates.iter().chain(recorded.map_or(&unknown, |recorded| &recorded.rates));
    for (index, subject) in subjects.iter().enumerate() {
        let known = |rate: f64| rate.is_finite().then_some(rate);
        let here = columns().map(|memory| known(memory[index])).collect();
        let (row, subject) = (row.to_owned(), subject.name().to_owned());
        if let Some(work) = recorded.and_then(|recorded| recorded.work.get(index)) {
            findings.work.insert((row.clone(), subject.clone()), work.clone());
        }
        findings.measures.push(Measure { row, subject, paper: None, here });
    }
}

/// By how much a subject's rate exceeds another's, in per cent.
fn gains(findings: &Findings, row: &str, subject: &str, base: &str) -> Vec<f64> {
    let of = |memory| Some(more(findings.here(row, subject, memory)?, findings.here(row, base, memory)?));
    (0..findings.memories.len()).map(|memory| of(memory).unwrap_or(f64::NAN)).collect()
}

fn bars(findings: &Findings, title: &str, subjects: &[Subject]) -> Plot {
    let mut labels: Vec<String> = findings.measures.iter().map(|measure| measure.row.clone()).collect();
    labels.dedup();
    let (memory, basis) = findings.plotted();
    let series = |subject: &Subject| findings.series(&labels, subject.name(), memory);
    let here = subjects.iter().map(series).collect();
    Plot {
        title: title.to_owned(),
        unit: findings.unit.to_owned(),
        x_labels: labels,
        lines: false,
        basis,
        here,
        paper: Vec::new(),
    }
}

// --- DirectFS, Fig. 9 -------------------------------------------------------------------------

const FIGURE_9_SUBJECTS: [Subject; 5] =
    [Subject::Nova, Subject::Pmfs, Subject::SquirrelFs, Subject::Ablated(Variant::AsPrinted), Subject::DirectFs];

fn figure_9_files(size: Size) -> u64 {
    // Each thread has some.
    size.pick(20, 200, 10_000).max(10 * real_threads().last().copied().unwrap_or(1))
}

/// The row of a number of threads in the model.
fn modelled_row(name: &str, threads: u64) -> String {
    format!("{name}, {threads} (model)")
}

/// Adds the model's rates, and a plot of them beside the measured ones. Returns the part of their
/// time that each subject's threads wait for each other, where there are most.
fn add_model(
    bench: &Bench<'_>,
    findings: &mut Findings,
    (name, application): (&str, Application),
    costs: &Costs,
) -> Result<Vec<f64>> {
    let mut waited = Vec::new();
    for subject in MODELLED_SUBJECTS {
        let rate = findings.here(&format!("{name}, 1"), subject.name(), 0).unwrap_or(0.0);
        let modelled = modelled::rates(bench, (subject, application), &MODELLED_THREADS, (rate, costs))?;
        waited.push(modelled.waited);
        for (threads, rate) in MODELLED_THREADS.into_iter().zip(modelled.rates) {
            let mut here = vec![None; findings.memories.len()];
            here[0] = Some(rate);
            let (row, subject) = (modelled_row(name, threads), subject.name().to_owned());
            findings.measures.push(Measure { row, subject, paper: None, here });
        }
    }
    let measured = |subject: &Subject| {
        let at = |threads: u64| findings.here(&format!("{name}, {threads}"), subject.name(), 0);
        Series::new(subject.name(), MODELLED_THREADS.into_iter().map(at).collect())
    };
    let model = |subject: &Subject| {
        let at = |threads: u64| findings.here(&modelled_row(name, threads), subject.name(), 0);
        let name = format!("{}, model", subject.name());
        Series { is_modelled: true, ..Series::new(&name, MODELLED_THREADS.into_iter().map(at).collect()) }
    };
    let plot = Plot {
        title: format!("{name}, by threads"),
        unit: findings.unit.to_owned(),
        x_labels: MODELLED_THREADS.map(|threads| threads.to_string()).to_vec(),
        lines: true,
        basis: format!("{MEASURED}; dashed: the model"),
        here: MODELLED_SUBJECTS.iter().map(measured).chain(MODELLED_SUBJECTS.iter().map(model)).collect(),
        paper: Vec::new(),
    };
    findings.plots.push(plot);
    Ok(waited)
}

/// What more threads gain in varmail: as measured, and in the model, where they wait for each other
/// for these parts of their time.
fn threads_claims(findings: &mut Findings, waited: &[f64]) {
    let most = real_threads().last().copied().unwrap_or(1);
    let here = gains(findings, &format!("varmail, {most}"), "DirectFS", "NOVA");
    let what = format!("DirectFS runs more varmail operations than NOVA with 16 threads (here: {most})");
    let reason = "The threads share the machine's processors here; the paper has 24.".to_owned();
    findings.claims.push(Claim::gain(what, 66.0, here, reason));
    let row = modelled_row("varmail", THREADS_MAX);
    let rates = ["DirectFS", "NOVA"].map(|subject| findings.here(&row, subject, 0));
    if let ([Some(own), Some(other)], [nova, directfs]) = (rates, waited) {
        let [nova, directfs] = [nova, directfs].map(|part| 100.0 * part);
        let reason = format!(
            "In the model the waits for locks and lines of other threads, with those of buffered stores, are {nova:.1} % of the threads' time under NOVA and {directfs:.1} % under DirectFS. Each thread has its own files; the bandwidth of the memory is not in the model."
        );
        findings.claims.push(Claim::gain(
            "DirectFS runs more varmail operations than NOVA with 16 threads (in the model)".to_owned(),
            66.0,
            vec![more(own, other)],
            reason,
        ));
    }
}

/// Applications with several threads.
pub const DIRECTFS_FIGURE_9: Experiment = Experiment {
    name: "directfs-fig9",
    question: "What do applications gain?",
    source: "DirectFS, Fig. 9 and section V-D: filebench, 10,000 files, 1 to 16 threads",
    method: "The operations, sizes (gamma distributed, 16 and 128 KiB on average) and trees of filebench's varmail.f and fileserver.f (1.5-alpha3), where four fifths of the files exist at first. varmail: remove; create, append, sync; read, append, sync; read; all in one directory. fileserver: create and write, append, read, remove, stat; on average 20 files in a directory, at several depths (2,000 files in the full size). Each thread has its own files. As many threads as there are processors, at most 16. \"Model\": NOVA and DirectFS on up to 16 processors in the model of the experiment multicore, without the bandwidth of the memory. Each thread is recorded with 20 files, but the measured rate of one thread with all of them (1,600 or more in the full size) sets the time of an instruction. _paper: Algorithm 1 as printed, see directfs-table2.",
    is_alone: true,
    needs_bytes: |size| {
        let files = figure_9_files(size).min(2000);
        let plan = Plan { content_bytes: files * (128 << 10) * 3, ..Plan::of_files(files * 2) };
        plan.image_bytes() * FIGURE_9_SUBJECTS.len() as u64
    },
    run: |bench| {
        let virtual_memories = bench.virtual_memories(&memories::MEMORIES);
        let mut findings =
            Findings::new("thousand operations/s", &MEMORIES).with_virtual(virtual_memories, &memories::OPTANE);
        for (name, application, files) in [
            ("varmail", Application::Varmail, figure_9_files(bench.size)),
            ("fileserver", Application::FileServer, figure_9_files(bench.size).min(2000)),
        ] {
            let turns = bench.size.pick(10, 120, 5000);
            let threads = real_threads();
            let rates = rates(bench, &FIGURE_9_SUBJECTS, application, (files, turns), &threads)?;
            let recorded = virtual_rates(bench, &FIGURE_9_SUBJECTS, application)?;
            for (threads, rates) in threads.iter().zip(&rates) {
                let recorded = (*threads == 1).then_some(&recorded);
                add_rates(&mut findings, &format!("{name}, {threads}"), &FIGURE_9_SUBJECTS, rates, recorded);
            }
        }
        for (subject, what, row, paper) in [
            ("DirectFS", "DirectFS runs more varmail operations than NOVA with one thread", "varmail, 1", 27.0),
            ("DirectFS", "DirectFS runs more fileserver operations than NOVA with one thread", "fileserver, 1", 42.3),
            ("DirectFS_paper", "the design as printed runs more varmail operations, one thread", "varmail, 1", 27.0),
            (
                "DirectFS_paper",
                "the design as printed runs more fileserver operations, one thread",
                "fileserver, 1",
                42.3,
            ),
        ] {
            let here = gains(&findings, row, subject, "NOVA");
            let reason = findings.because(row, subject, "NOVA");
            findings.claims.push(Claim::gain(what.to_owned(), paper, here, reason));
        }
        findings.plots.push(bars(&findings, "Operations by application and threads", &FIGURE_9_SUBJECTS));
        let mut waited = Vec::new();
        if bench.is_clocked() {
            bench.step("costs of memory operations")?;
            let costs = modelled::costs(bench.size)?;
            waited = add_model(bench, &mut findings, ("varmail", Application::Varmail), &costs)?;
            // Tests of function need one application, and varmail is recorded sooner.
            if bench.size != Size::Tiny {
                add_model(bench, &mut findings, ("fileserver", Application::FileServer), &costs)?;
            }
        }
        threads_claims(&mut findings, &waited);
        Ok(findings)
    },
};

// --- SoupFS, Fig. 4 and 5 ---------------------------------------------------------------------

const SOUPFS_SUBJECTS: [Subject; 4] = [Subject::Nova, Subject::Pmfs, Subject::SquirrelFs, Subject::SoupFs];

fn soupfs(bench: &Bench<'_>, row: &str, application: Application, (paper, what): (f64, &str)) -> Result<Findings> {
    let virtual_memories = bench.virtual_memories(&memories::MEMORIES);
    let mut findings =
        Findings::new("thousand operations/s", &MEMORIES).with_virtual(virtual_memories, &memories::NVDIMM);
    let (files, turns) = (bench.size.pick(20, 200, 2000), bench.size.pick(10, 250, 10_000));
    let rates = rates(bench, &SOUPFS_SUBJECTS, application, (files, turns), &[1])?;
    let recorded = virtual_rates(bench, &SOUPFS_SUBJECTS, application)?;
    add_rates(&mut findings, row, &SOUPFS_SUBJECTS, &rates[0], Some(&recorded));
    findings.notes.extend(recorded.notes);
    let here = gains(&findings, row, "SoupFS", "NOVA");
    let reason = findings.because(row, "SoupFS", "NOVA");
    findings.claims.push(Claim::gain(what.to_owned(), paper, here, reason));
    findings.plots.push(bars(&findings, row, &SOUPFS_SUBJECTS));
    Ok(findings)
}

fn soupfs_needs(size: Size) -> u64 {
    let files = size.pick(20, 200, 2000);
    let plan = Plan { content_bytes: files * (16 << 10) * 3, ..Plan::of_files(files * 2) };
    plan.image_bytes() * SOUPFS_SUBJECTS.len() as u64
}

/// Postmark.
pub const SOUPFS_FIGURE_4: Experiment = Experiment {
    name: "soupfs-fig4",
    question: "What does Postmark gain by soft updates?",
    source: "SoupFS, Fig. 4 and section 3: \"about 50 %\" above the other file systems",
    method: "Transactions of one thread on small files (500 to 9,770 bytes, Postmark's own) in ten directories: one file is created and one removed, then one is read or appended to. SoupFS's persister runs every 20 ms.",
    is_alone: false,
    needs_bytes: soupfs_needs,
    run: |bench| {
        let what = "SoupFS runs more Postmark transactions than NOVA";
        soupfs(bench, "Postmark", Application::Postmark, (50.0, what))
    },
};

/// varmail.
pub const SOUPFS_FIGURE_5: Experiment = Experiment {
    name: "soupfs-fig5",
    question: "What does varmail gain by soft updates?",
    source: "SoupFS, Fig. 5 and section 3: up to 75 % above NOVA",
    method: "varmail as in directfs-fig9, one thread. Each mail is synced, so the application itself does the persister's work here. SoupFS's sync makes the file's own changes durable, as in the paper; the lab has an option for its names, too.",
    is_alone: false,
    needs_bytes: soupfs_needs,
    run: |bench| {
        soupfs(bench, "varmail", Application::Varmail, (75.0, "SoupFS runs more varmail operations than NOVA"))
    },
};

// --- DirectFS, Fig. 8 -------------------------------------------------------------------------

const FIGURE_8_SUBJECTS: [Subject; 2] = [Subject::Nova, Subject::DirectFs];
const FIGURE_8_KIB: [usize; 6] = [1, 2, 4, 8, 16, 32];

fn figure_8_files(size: Size) -> u64 {
    size.pick(10, 200, 1000)
}

fn figure_8_plan(size: Size) -> Plan {
    let files = figure_8_files(size);
    Plan { content_bytes: files * (32 << 10) * 2, ..Plan::of_files(files * 2 + 100) }
}

/// Thousands of files per second: read with cold caches, and newly written.
fn small_files(machine: &mut dyn Machine, delays: Delays, files: u64, bytes: usize) -> Result<[f64; 2]> {
    let named = |letter: char| (0..files).map(|index| format!("/pictures/{letter}{index:05}").into_bytes()).collect();
    let (old, new): (Vec<Vec<u8>>, Vec<Vec<u8>>) = (named('r'), named('w'));
    let mut buffer = vec![9; bytes];
    machine.with(&mut |calls| old.iter().try_for_each(|path| write_file(calls, path, &buffer, false)))?;
    machine.remount(delays)?;
    let mut seconds = [0.0; 2];
    machine.with(&mut |calls| {
        let watch = Watch::start();
        old.iter().try_for_each(|path| read_once(calls, path, &mut buffer))?;
        seconds[0] = watch.ns() / 1e9;
        Ok(())
    })?;
    machine.remount(delays)?;
    machine.with(&mut |calls| {
        let watch = Watch::start();
        new.iter().try_for_each(|path| write_file(calls, path, &buffer, false))?;
        seconds[1] = watch.ns() / 1e9;
        Ok(old.iter().chain(&new).try_for_each(|path| calls.unlink(path))?)
    })?;
    Ok(seconds.map(|seconds| files as f64 / seconds / 1000.0))
}

/// Small files.
pub const DIRECTFS_FIGURE_8: Experiment = Experiment {
    name: "directfs-fig8",
    question: "What do small files gain?",
    source: "DirectFS, Fig. 8 and section V-D: 1,000 files of 1 to 32 KiB, one thread",
    method: "r: open, read whole, close, right after mounting. w: create, write whole, close. All files are in one directory.",
    is_alone: false,
    needs_bytes: |size| FIGURE_8_SUBJECTS.len() as u64 * figure_8_plan(size).image_bytes(),
    run: |bench| {
        let mut findings = Findings::new("thousand files/s", &MEMORIES);
        let mut machines = Vec::new();
        for subject in FIGURE_8_SUBJECTS {
            let machine = machine(subject, figure_8_plan(bench.size))?;
            machine.with(&mut |calls| Ok(calls.mkdir(b"/pictures", 0o755)?))?;
            machines.push(machine);
        }
        for kib in FIGURE_8_KIB {
            let mut all = vec![vec![[Range::NONE; 2]; FIGURE_8_SUBJECTS.len()]; MEMORIES.len()];
            for (delays, all) in MEMORIES.iter().zip(&mut all) {
                bench.step(&format!("{kib} KiB, {}", memory_name(*delays)))?;
                for _ in 0..bench.rounds() {
                    for (machine, all) in machines.iter_mut().zip(all.iter_mut()) {
                        let rates = small_files(&mut **machine, *delays, figure_8_files(bench.size), kib << 10)?;
                        all.iter_mut().zip(rates).for_each(|(range, rate)| *range = range.with(Range::of([rate])));
                    }
                }
            }
            for (which, letter) in ["r", "w"].into_iter().enumerate() {
                for (index, subject) in FIGURE_8_SUBJECTS.iter().enumerate() {
                    let rates = all.iter().map(|memory| memory[index][which]).collect();
                    findings.add_rates(&format!("{kib} KiB {letter}"), subject.name(), rates);
                }
            }
        }
        for (what, row, paper) in [
            ("DirectFS reads more files of 1 KiB than NOVA", "1 KiB r", 38.3),
            ("DirectFS writes more files of 1 KiB than NOVA", "1 KiB w", 38.3),
            ("DirectFS reads more files of 32 KiB than NOVA", "32 KiB r", 17.7),
            ("DirectFS writes more files of 32 KiB than NOVA", "32 KiB w", 17.7),
        ] {
            let here = gains(&findings, row, "DirectFS", "NOVA");
            let what = format!("{what} (the paper does not say whether of reads or writes)");
            let bytes = row.split(' ').next().unwrap_or_default();
            let reason = format!(
                "The time for each file includes reading or writing {bytes} KiB of content, which both systems do alike."
            );
            findings.claims.push(Claim::gain(what, paper, here, reason));
        }
        findings
            .notes
            .push("The paper also compares with ext4-dax (35.6 and 35.0 %), which the lab does not have.".to_owned());
        findings.plots.push(bars(&findings, "Files read and written", &FIGURE_8_SUBJECTS));
        Ok(findings)
    },
};
