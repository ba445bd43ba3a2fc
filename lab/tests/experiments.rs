//! Every experiment works and reports measurements and the paper's numbers. Tests do not judge the
//! numbers: that needs a quiet machine.

use lab::experiments::applications::program;
use lab::experiments::machine::machine_for;
use lab::experiments::report::{Circumstances, Part, html, text, tsv};
use lab::experiments::{Bench, CATALOGUE, Experiment, Failure, Findings, Plan, Size, Subject, Times, find, machine};
use lab::physical::assume_processors;
use pmem::Delays;
use std::cell::Cell;
use std::collections::BTreeSet;

fn tiny(name: &str) -> Findings {
    let experiment = find(name).expect("it is in the catalogue");
    let bench = Bench { size: Size::Tiny, times: Times::Clock, stop: &|| false, progress: &|_| {} };
    experiment.carry_out(&bench).unwrap_or_else(|failure| panic!("{name}: {failure}"))
}

#[test]
fn every_experiment_measures_all_that_its_table_shows() {
    for experiment in CATALOGUE {
        let findings = tiny(experiment.name);
        assert!(!findings.measures.is_empty(), "{}", experiment.name);
        let lacks_program = experiment.name == "applications" && !has_directfs();
        assert!(lacks_program || !findings.plots.is_empty() || !findings.maps.is_empty(), "{}", experiment.name);
        for measure in &findings.measures {
            assert_eq!(measure.here.len(), findings.memories.len(), "{}: {measure:?}", experiment.name);
            for value in measure.here.iter().flatten() {
                assert!(value.is_finite() && *value >= 0.0, "{}: {measure:?}", experiment.name);
            }
        }
        for claim in &findings.claims {
            assert!(!claim.here.is_empty(), "{}: nothing was measured for {claim:?}", experiment.name);
            assert!(claim.here.iter().all(|value| value.is_finite()), "{}: {claim:?}", experiment.name);
            assert!(claim.sentence(&findings.memories).ends_with('.'), "{claim:?}");
            assert!(claim.reason.ends_with('.'), "a claim without a reason: {claim:?}");
        }
    }
}

/// The claim is about this part of a mount, and a mount has others.
#[test]
fn the_scan_of_a_recovery_is_timed_alone_with_one_thread_and_with_all() {
    let findings = tiny("directfs-recovery");
    let ms = |row: &str| findings.here(row, "DirectFS", 0).unwrap_or_else(|| panic!("no {row}"));
    let processors = std::thread::available_parallelism().expect("a number").get();
    for threads in [1, processors] {
        let row = format!("scan alone, {threads} threads");
        assert!(ms(&row) > 0.0, "{row}");
        assert!(findings.ranges.contains_key(&(row.clone(), "DirectFS".to_owned())), "{row} has no range");
    }
    let claim = &findings.claims[0];
    let scan = ms(&format!("scan alone, {processors} threads"));
    assert!((claim.here[0] - scan * processors as f64 / 24.0).abs() < 1e-9 * scan, "{claim:?}");

    let of = |subject| {
        let mut machine = machine(subject, Plan::of_names(100)).expect("a machine");
        machine.crash(Delays::default(), 2).expect("a mount")
    };
    let directfs = of(Subject::DirectFs);
    assert!(directfs.scan_ns.is_some_and(|ns| 0 < ns && ns < directfs.mount_ns), "{directfs:?}");
    assert_eq!(of(Subject::Nova).scan_ns, None, "its recovery is one thread's");
}

#[test]
fn what_is_measured_in_rounds_by_the_clock_has_whiskers_about_its_value() {
    for name in ["directfs-fig1", "directfs-fig2", "directfs-fig10"] {
        let findings = tiny(name);
        for measure in &findings.measures {
            let ranges = findings.ranges.get(&(measure.row.clone(), measure.subject.clone()));
            let ranges = ranges.unwrap_or_else(|| panic!("{name}: {measure:?} has no ranges"));
            for (value, range) in measure.here.iter().zip(ranges) {
                let value = value.unwrap_or(f64::NAN);
                assert!(range.least <= value && value <= range.most, "{name}: {measure:?} {range:?}");
            }
        }
        let series = findings.plots.iter().flat_map(|plot| &plot.here);
        assert!(series.into_iter().all(|series| series.ranges.iter().all(Option::is_some)), "{name}");
    }
}

/// Whether the program `directfs` is there. CI reports the skip.
fn has_directfs() -> bool {
    let is_there = program("directfs").is_some();
    if !is_there {
        eprintln!("\n*** SKIPPED: applications under directfs run: the program directfs is not built ***\n");
    }
    is_there
}

#[test]
fn applications_run_under_directfs_beside_the_kernels_file_systems() {
    let findings = tiny("applications");
    let us = |row: &str, subject: &str| findings.here(row, subject, 0);
    for row in ["varmail", "ycsb-a"] {
        assert!(us(row, "tmpfs").is_some_and(|us| us > 0.0), "{row} in tmpfs: {:?}", findings.notes);
        // Either there is a disk with ext4, or the report says that there is none.
        let is_reported = findings.notes.iter().any(|note| note.contains("Not measured on a disk"));
        assert!(us(row, "ext4").is_some() != is_reported, "{:?}", findings.notes);
    }
    if !has_directfs() {
        assert!(findings.plots.is_empty(), "there is nothing beside the kernel's file systems");
        return;
    }
    for row in ["varmail", "ycsb-a"] {
        assert!(us(row, "DirectFS").is_some_and(|us| us > 0.0), "{row} in DirectFS: {:?}", findings.notes);
        let on_disk = us(row, "DirectFS, image on ext4");
        assert_eq!(on_disk.is_some(), us(row, "ext4").is_some(), "{row}: {:?}", findings.notes);
    }
    assert_eq!(findings.plots.len(), if us("varmail", "ext4").is_some() { 2 } else { 1 });
}

/// Images have one size on all machines, and space for each processor. The processes of
/// `applications` have the machine's processors whatever is assumed here.
#[test]
fn no_experiment_ends_early_with_1_16_or_64_processors() {
    for processors in [1, 16, 64] {
        assume_processors(processors);
        let affected = CATALOGUE.iter().filter(|experiment| experiment.name != "applications");
        affected.for_each(|experiment| drop(tiny(experiment.name)));
    }
    assume_processors(0);
}

#[test]
fn names_are_unique_and_name_their_paper() {
    let names: BTreeSet<&str> = CATALOGUE.iter().map(|experiment| experiment.name).collect();
    assert_eq!(names.len(), CATALOGUE.len());
    for experiment in CATALOGUE {
        let of_a_paper =
            ["directfs-", "byvfs-", "soupfs-", "squirrelfs-"].iter().any(|paper| experiment.name.starts_with(paper));
        let of_the_lab = ["multicore", "fxmark", "applications", "kernel", "sensitivity"].contains(&experiment.name);
        assert!(of_a_paper || of_the_lab, "{}", experiment.name);
        assert!(experiment.question.ends_with('?'), "{}", experiment.question);
        assert!((experiment.needs_bytes)(Size::Full) >= (experiment.needs_bytes)(Size::Quick));
    }
    assert!(find("directfs-table4").is_none());
}

#[test]
fn the_papers_table_is_typed_in_whole() {
    let findings = tiny("directfs-table2");
    assert_eq!(findings.measures.len(), 14 * 8);
    assert!(findings.measures.iter().all(|measure| measure.paper.is_some()));
    // The paper's own averages follow from its table.
    let rows: BTreeSet<&str> = findings.measures.iter().map(|measure| measure.row.as_str()).collect();
    let reduction = |row: &&str| {
        let of = |subject| findings.paper(row, subject).expect("in the table");
        100.0 * (1.0 - of("DirectFS") / of("NOVA"))
    };
    let mean = rows.iter().map(reduction).sum::<f64>() / rows.len() as f64;
    assert!((30.0..50.0).contains(&mean), "the abstract says 36.86 on average; the table gives {mean:.1}");
}

#[test]
fn a_report_holds_numbers_plots_and_sentences_and_needs_nothing_else() {
    let experiment = find("soupfs-fig3").expect("it is in the catalogue");
    let findings = tiny("soupfs-fig3");
    let part = Part::new(experiment, Ok(&findings), 1.5);
    let report = html(&Circumstances::default(), std::slice::from_ref(&part));
    assert!(report.contains("<svg") && report.contains("soupfs-fig3") && report.contains("18.0"));
    for outside in ["http://", "https://", "src=", "<script", "<link"] {
        let places: Vec<_> = report.match_indices(outside).collect();
        let own = outside == "http://" && places.len() == report.matches("http://www.w3.org/2000/svg").count();
        assert!(places.is_empty() || own, "{outside}");
    }
    let failed = html(&Circumstances::default(), &[part.clone(), Part::new(experiment, Err("no <room>"), 0.0)]);
    assert!(
        failed.contains("class=\"fails\">It failed: no &lt;room&gt;.") && failed.contains("Experiments that failed: 1")
    );
    assert!(failed.contains("<svg"), "the others go on");
    let kept = part.to_text("program");
    assert_eq!(Part::from_text(&kept, "program"), Some(part), "a kept part is the same part");
    assert_eq!(Part::from_text(&kept, "another program"), None);
    assert!(text(experiment, &findings).contains("unlink"));
    assert_eq!(tsv(&findings).lines().count(), findings.measures.len() + 1);
    assert!(report.matches("unlink by delay").count() >= 2, "the plot has a heading and an accessible name");
    let notes = |name| {
        let (experiment, findings) = (find(name).expect("it is in the catalogue"), tiny(name));
        html(&Circumstances::default(), &[Part::new(experiment, Ok(&findings), 1.0)]).matches("no numbers for").count()
    };
    assert_eq!(notes("directfs-fig3"), 1, "several plots of a paper that only draws them share one note");
    assert_eq!(notes("fxmark"), 0, "none of the papers has these plots");
}

/// An image has one size on all machines, and as many lists of free blocks as there are processors.
/// What a plan promises fits, although files come and go.
#[test]
fn as_many_files_fit_with_64_processors_as_with_one() {
    const FILES: u64 = 2000;
    let plan = Plan { content_bytes: FILES * 4096, ..Plan::of_files(FILES) };
    for subject in [Subject::Nova, Subject::CacheletNova, Subject::Pmfs, Subject::SoupFs, Subject::SquirrelFs] {
        for shards in [1, 2, 16, 64] {
            let machine = machine_for(subject, plan, shards).expect("the image is large enough");
            let filled = machine.with(&mut |calls| {
                let path = |number: u64| format!("/file{number}").into_bytes();
                for number in 0..FILES {
                    let file = calls.open(&path(number), libc::O_CREAT | libc::O_RDWR, 0o644)?;
                    calls.write(file, 0, &[7; 4096])?;
                    calls.close(file)?;
                    if number % 4 == 3 {
                        calls.unlink(&path(number - 2))?;
                        calls.create(&path(number - 2), 0o644)?;
                    }
                }
                Ok(())
            });
            filled.unwrap_or_else(|failure| panic!("{}, {shards} shards: {failure}", subject.name()));
        }
    }
}

#[test]
fn an_experiment_without_enough_memory_reports_its_needs_and_does_nothing() {
    let experiment = Experiment {
        name: "huge",
        question: "Is there so much?",
        source: "",
        method: "",
        is_alone: false,
        needs_bytes: |_| 1 << 60,
        run: |_| panic!("the experiment was started"),
    };
    let bench = Bench { size: Size::Tiny, times: Times::Clock, stop: &|| false, progress: &|_| {} };
    let refused = experiment.carry_out(&bench).expect_err("no machine has this much memory").to_string();
    assert!(refused.contains("huge needs 1099511627776 MiB") && refused.contains("--quick"), "{refused}");
}

#[test]
fn an_experiment_ends_when_stopped() {
    let asked = Cell::new(0);
    let stop = || {
        asked.set(asked.get() + 1);
        asked.get() > 3
    };
    let bench = Bench { size: Size::Tiny, times: Times::Clock, stop: &stop, progress: &|_| {} };
    let ended = find("directfs-table2").expect("it is in the catalogue").carry_out(&bench);
    assert!(matches!(ended, Err(Failure::Interrupted)), "{ended:?}");
}
