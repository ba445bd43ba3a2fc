//! Memory for a cached file: DirectFS, section III-B.

use super::findings::{Claim, Findings, Measure, Plot, Sense, Series, Unit};
use super::machine::{Machine, Plan, Result, Subject, machine};
use super::{Bench, Experiment, MEMORIES, Size};
use crate::multicore::named_memory::NamedMemory;

const SUBJECTS: [Subject; 3] = [Subject::Nova, Subject::ByVfs, Subject::DirectFs];
const BUCKET: &str = "index bucket";
/// Rows, and the arrays with an element for each file: the starts of their names.
const PARTS: [(&str, &[&str]); 3] = [
    ("attributes", &["inode in memory", "inode hash chain", "cachelet"]),
    ("name", &["dentry", "dentry hash chain", BUCKET]),
    ("lock and own state", &["read-write lock of inode in memory"]),
];
const SUM: &str = "sum";
/// DirectFS, III-B.
const PAPER: [(&str, f64); 2] = [("NOVA", 768.0), ("DirectFS", 128.0)];
/// The index of DirectFS grows at three names for two buckets.
const NAMES_OF_BUCKET: f64 = 1.5;

const fn plan(size: Size) -> Plan {
    Plan::of_files(size.pick(20, 200, 1000))
}

/// Bytes of each part of a cached file. An array of one element has none for each file.
fn bytes(machine: &dyn Machine) -> [f64; PARTS.len()] {
    let areas = machine.named_memory();
    let of_file = |name: &&str| {
        let has_name = |area: &&NamedMemory| match area.name.strip_prefix(name) {
            // Chunks of an array are numbered.
            Some(rest) => rest.is_empty() || rest.ends_with('+'),
            None => false,
        };
        let area = areas.iter().find(has_name).filter(|area| area.range.end - area.range.start > area.stride);
        let files = if *name == BUCKET { NAMES_OF_BUCKET } else { 1.0 };
        area.map_or(0.0, |area| area.stride as f64 / files)
    };
    PARTS.map(|(_, names)| names.iter().map(of_file).sum())
}

/// Bytes of a dentry and an inode of the running kernel, for the file systems that it shows.
fn kernel_note() -> Option<String> {
    let info = std::fs::read_to_string("/proc/slabinfo").ok()?;
    let of = |cache: &str| info.lines().find_map(|line| line.strip_prefix(cache)?.split_whitespace().nth(2));
    let dentry = of("dentry ")?;
    let inodes = [("ext4", "ext4_inode_cache "), ("tmpfs", "shmem_inode_cache ")];
    let each: Vec<String> =
        inodes.iter().filter_map(|(name, cache)| Some(format!("{} ({name})", of(cache)?))).collect();
    Some(format!("In the running kernel a dentry has {dentry} bytes, an inode {}.", each.join(", ")))
}

/// Memory.
pub const CACHED_FILE: Experiment = Experiment {
    name: "directfs-cached",
    question: "How much memory does a cached file take?",
    source: "DirectFS, section III-B: 128 bytes in place of 768 for a dentry and an inode",
    method: "The sizes of the structures that a file in use occupies, and its share of hash tables at the size to which they grow. NOVA: dentry and inode of the lab's conventional layer; both are smaller than a kernel's. Names that do not fit into a dentry are left out, and the tree of names that NOVA keeps for each directory, which ByVFS needs as well.",
    is_alone: false,
    needs_bytes: |size| plan(size).image_bytes(),
    run: |bench: &Bench<'_>| -> Result<Findings> {
        let mut findings = Findings::new("bytes", &MEMORIES[..1]);
        let mut series = Vec::new();
        let labels: Vec<String> = PARTS.iter().map(|(row, _)| *row).chain([SUM]).map(str::to_owned).collect();
        for subject in SUBJECTS {
            bench.step(subject.name())?;
            let parts = bytes(&*machine(subject, plan(bench.size))?);
            let values: Vec<f64> = parts.into_iter().chain([parts.iter().sum()]).collect();
            for (row, value) in labels.iter().zip(&values) {
                let paper =
                    PAPER.iter().find(|(name, _)| row == SUM && *name == subject.name()).map(|(_, bytes)| *bytes);
                let (row, subject) = (row.clone(), subject.name().to_owned());
                findings.measures.push(Measure { row, subject, paper, here: vec![Some(*value)] });
            }
            series.push(Series::new(subject.name(), values.into_iter().map(Some).collect()));
        }
        findings.measures.sort_by_key(|measure| labels.iter().position(|row| *row == measure.row));
        let of = |subject| findings.here(SUM, subject, 0).unwrap_or(f64::NAN);
        findings.claims.push(Claim {
            what: "a cached file takes less memory in DirectFS than a dentry and an inode".to_owned(),
            unit: Unit::Times,
            paper: PAPER[0].1 / PAPER[1].1,
            here: vec![of("NOVA") / of("DirectFS")],
            sense: Sense::AtLeast(1.0),
            reason: "The lab's dentry and inode have the fields that its layer uses, a kernel's have those of all file systems. The paper's 128 bytes are the cachelet alone.".to_owned(),
        });
        findings.notes.extend(kernel_note());
        let paper = |(name, bytes): &(&str, f64)| {
            Series::new(name, labels.iter().map(|row| (row == SUM).then_some(*bytes)).collect())
        };
        findings.plots.push(Plot {
            title: "Memory for a cached file".to_owned(),
            unit: "bytes".to_owned(),
            paper: PAPER.iter().map(paper).collect(),
            x_labels: labels,
            lines: false,
            basis: "sizes of structures".to_owned(),
            here: series,
        });
        Ok(findings)
    },
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_part_of_a_cached_file_is_found_where_a_system_has_it() {
        let of = |subject| bytes(&*machine(subject, plan(Size::Tiny)).expect("a machine"));
        assert_eq!(of(Subject::DirectFs).map(f64::round), [128.0, 43.0, 0.0]);
        let [attributes, name, own] = of(Subject::Nova);
        assert!(attributes > 128.0 && name > 64.0 && own > 0.0, "{attributes} {name} {own}");
        let [by_pointer, no_name, same_state] = of(Subject::ByVfs);
        assert_eq!(
            (by_pointer, no_name, same_state),
            (attributes - 4.0, 0.0, own),
            "neither dentries nor a hash table"
        );
    }
}
