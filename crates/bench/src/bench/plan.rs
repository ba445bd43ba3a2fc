//! The plan of a run, from the user's request: the sections of the report with their tasks, sizes
//! and repeats, and the room that they need.

use super::engine;
use super::scratch::SpaceNeeded;
use super::task::{Materials, PhaseName, Task, Work, WorkerKind, Workers};
use super::workloads::filebench::SERVED_BYTES;
use super::workloads::postmark::BYTES_MAX;
use super::workloads::{mounted, tree};
use crate::arguments::{Bench, BenchGroup as Group};
use crate::units::{count, counted};
use anyhow::{Context, Result, ensure};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Repeats with this many files take minutes, and more than three add little accuracy.
const LARGE_FILES: u64 = 100_000;
const REPEATS_MAX_LARGE: u32 = 3;
/// Default number of files for workloads with several members.
const WORKERS_FILES: u64 = 10_000;
/// Minimum number of files per member.
const MEMBER_FILES: u64 = 16;
/// Files and threads of a mail server that waits for the disk.
const DURABLE_FILES: u64 = 1000;
const DURABLE_MEMBERS: u32 = 4;
const DEPTH_MAX: u32 = 8;
const TIMEOUT: Duration = Duration::from_secs(300);
const TIMEOUT_QUICK: Duration = Duration::from_secs(3);
/// Default trees to copy: for a full run and for a quick one.
const TREES: [&str; 2] = ["/usr/include", "/usr/include/linux"];
/// Bytes per name: on a disk at most (a directory takes a block), in memory, in an image (including
/// a removed name that is not recycled yet), and in the memory of an image's region.
const NAME_DISK_BYTES: u64 = 4600;
const NAME_MEMORY_BYTES: u64 = 1300;
const NAME_IMAGE_BYTES: u64 = 2048;
const NAME_REGION_BYTES: u64 = 512;
/// Tests of a script, and files to compile.
const WORK_ROUNDS: u64 = 300;
/// What compilers and Python's environments take.
const BUILT_BYTES: u64 = 256 << 20;
/// Additional room for everything else.
const BESIDE_BYTES: u64 = 128 << 20;

/// Sections that are measured on the same subjects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Set {
    /// Subjects that the user has chosen, or the usual ones.
    Usual,
    /// Images and directories on the disk.
    Durable,
    /// Mounts.
    Mount,
}

impl Set {
    /// All, in the order of the report.
    pub const ALL: [Set; 3] = [Set::Usual, Set::Durable, Set::Mount];

    fn of(group: Group) -> Set {
        match group {
            Group::Durable => Set::Durable,
            Group::Mount => Set::Mount,
            _ => Set::Usual,
        }
    }
}

/// A table of the report.
#[derive(Clone)]
pub struct Section {
    /// Its group.
    pub group: Group,
    /// Its heading.
    pub title: String,
    /// An explanation for the reader.
    pub note: Option<String>,
    /// Files in the directory, where that distinguishes the section.
    pub files: Option<u64>,
    /// Whether rows of several members are compared with those of one.
    pub scaling: bool,
    /// Its workloads.
    pub tasks: Vec<Task>,
    /// Number of repeats.
    pub repeats: u32,
    /// Whether an uncounted run comes first.
    pub warm_up: bool,
    /// Longest round in a directory that is repeated, where the duration is known: some disks take
    /// milliseconds per call.
    pub timeout: Duration,
}

/// Everything that is measured.
pub struct Plan {
    /// Measured by workers, on all subjects.
    pub sections: Vec<Section>,
    /// Measured by commands, on the systems that send trees to a store.
    pub store: Option<Section>,
    /// Measured in this process: numbers of files; empty means not at all.
    pub engine_sizes: Vec<u64>,
    repeats: u32,
}

/// The room that a plan needs.
#[derive(Debug, Clone, Default)]
pub struct SpaceNeeds {
    /// Names and bytes of data of each task. Tasks run one after the other, so the maximum counts.
    tasks: Vec<(u64, u64)>,
    /// What is created for the tasks, beside an image.
    materials_bytes: u64,
    engine_bytes: u64,
}

/// The amount of each workload.
struct Scale {
    depth_files: u64,
    small_files: u64,
    cold_files: u64,
    mdtest_files: u64,
    mail_files: u64,
    served_files: u64,
    postmark: (u64, u64),
    run_ms: u64,
    data_bytes: u64,
    syncs: u64,
    store_files: u64,
}

const FULL: Scale = Scale {
    depth_files: 1000,
    small_files: 4000,
    cold_files: 100_000,
    mdtest_files: 1_000_000,
    mail_files: 10_000,
    served_files: 10_000,
    postmark: (10_000, 50_000),
    run_ms: 5000,
    data_bytes: 256 << 20,
    syncs: 1000,
    store_files: 20_000,
};

const QUICK: Scale = Scale {
    depth_files: 1000,
    small_files: 1000,
    cold_files: 10_000,
    mdtest_files: 20_000,
    mail_files: 1000,
    served_files: 400,
    postmark: (1000, 5000),
    run_ms: 300,
    data_bytes: 64 << 20,
    syncs: 200,
    store_files: 2000,
};

impl Plan {
    /// The maximum number of members in a comparison with one; zero without comparisons.
    pub fn members_max(&self) -> u32 {
        let scaled = self.sections.iter().filter(|section| section.scaling);
        scaled.flat_map(|section| &section.tasks).map(|task| task.crew.members).max().unwrap_or(0)
    }

    /// Makes the plan of a request. Impossible requests are refused here, before anything is
    /// measured.
    pub fn make(arguments: &Bench) -> Result<Plan> {
        let mut maker = PlanBuilder::new(arguments);
        let is_wanted = |group: Group| arguments.only.is_empty() || arguments.only.contains(&group);
        ensure!(
            arguments.directories.is_empty()
                || Group::ALL.into_iter().any(|group| group != Group::Engine && is_wanted(group)),
            "the engine is measured in this process, not in a directory: leave {} out, or add other measurements (--only)",
            arguments.directories[0].display()
        );
        for group in Group::ALL.into_iter().filter(|&group| is_wanted(group)) {
            maker.add(group)?;
        }
        let PlanBuilder { plan, .. } = maker;
        Ok(plan)
    }

    /// The number of repeats for this many files.
    pub fn repeats(&self, files: u64) -> u32 {
        repeats_over(self.repeats, files)
    }

    /// The sections on one set of subjects.
    pub fn sections(&self, set: Set) -> impl Iterator<Item = &Section> {
        self.sections.iter().filter(move |section| Set::of(section.group) == set)
    }

    /// The room for the sections on one set of subjects.
    pub fn needs(&self, set: Set) -> Result<SpaceNeeds> {
        let largest = self.engine_sizes.last().copied();
        let engine_bytes = largest.map_or(0, |files| engine::image_bytes(files) + files * NAME_REGION_BYTES);
        let tasks = self.sections(set).flat_map(|section| &section.tasks);
        let tasks = tasks.map(|task| task.work.size()).collect::<Result<Vec<_>>>()?;
        // A tree, an archive and a repository.
        let largest = tasks.iter().map(|(names, data)| names * NAME_MEMORY_BYTES + data).max().unwrap_or(0);
        let materials_bytes = if set == Set::Mount { largest } else { 0 };
        Ok(SpaceNeeds { tasks, materials_bytes, engine_bytes })
    }

    /// Steps of the progress bar: each task on each subject of a set, for each repeat.
    pub fn steps(&self, set: Set, subjects: usize) -> u64 {
        let of =
            |section: &Section| section.tasks.len() as u64 * u64::from(section.repeats + u32::from(section.warm_up));
        self.sections(set).map(of).sum::<u64>() * subjects as u64
    }
}

fn repeats_over(repeats: u32, files: u64) -> u32 {
    if files > LARGE_FILES { repeats.min(REPEATS_MAX_LARGE) } else { repeats }
}

struct PlanBuilder<'a> {
    arguments: &'a Bench,
    scale: Scale,
    sizes: Vec<u64>,
    members: Vec<u32>,
    plan: Plan,
}

impl PlanBuilder<'_> {
    fn new(arguments: &Bench) -> PlanBuilder<'_> {
        let quick = arguments.quick;
        let sizes: &[u64] = if quick { &[10_000] } else { &[10_000, 100_000, 1_000_000] };
        let sizes = sorted(if arguments.sizes.is_empty() { sizes.to_vec() } else { arguments.sizes.clone() });
        let processors = std::thread::available_parallelism().map_or(1, |count| count.get() as u32);
        let members = if quick { vec![1, 2] } else { vec![1, 2, processors] };
        let members = sorted(if arguments.threads.is_empty() { members } else { arguments.threads.clone() });
        let repeats = arguments.repeat.unwrap_or(if quick { 2 } else { 5 });
        let plan = Plan { sections: Vec::new(), store: None, engine_sizes: Vec::new(), repeats };
        let scale = if quick { QUICK } else { FULL };
        let mut maker = PlanBuilder { arguments, scale, sizes, members, plan };
        maker.bound();
        maker
    }

    /// Limits all workloads to the requested number of files, but to no fewer than their members
    /// need.
    fn bound(&mut self) {
        let most = self.arguments.sizes.iter().copied().max().unwrap_or(u64::MAX);
        let fewest = self.fewest_files();
        let scale = &mut self.scale;
        for number in [
            &mut scale.depth_files,
            &mut scale.small_files,
            &mut scale.cold_files,
            &mut scale.mdtest_files,
            &mut scale.mail_files,
            &mut scale.served_files,
            &mut scale.postmark.0,
            &mut scale.postmark.1,
            &mut scale.syncs,
            &mut scale.store_files,
        ] {
            *number = (*number).min(most).max(fewest);
        }
    }

    fn add(&mut self, group: Group) -> Result<()> {
        match group {
            Group::Calls => self.sizes.clone().into_iter().for_each(|files| self.add_calls(files)),
            Group::Threads => self.add_workers(group, WorkerKind::Threads)?,
            Group::Processes => self.add_workers(group, WorkerKind::Processes)?,
            Group::Depth => self.add_depth(),
            Group::Small => self.add_small(),
            Group::Cold => self.add_cold(),
            Group::Mdtest | Group::Varmail | Group::Fileserver | Group::Postmark => self.add_mix(group),
            Group::Tree => self.add_tree()?,
            Group::Data => self.add_data(),
            Group::Durable => self.add_durable()?,
            Group::Programs => self.add_programs()?,
            Group::Mount => self.add_mount()?,
            Group::Store => self.add_store(),
            Group::Engine => self.plan.engine_sizes = self.sizes.clone(),
        }
        Ok(())
    }

    fn section(&mut self, group: Group, title: String, tasks: Vec<Task>) -> &mut Section {
        let repeats = self.plan.repeats;
        let timeout = if self.arguments.quick { TIMEOUT_QUICK } else { TIMEOUT };
        let (note, files) = (None, None);
        let section = Section { group, title, note, files, scaling: false, tasks, repeats, warm_up: true, timeout };
        self.plan.sections.push(section);
        self.plan.sections.last_mut().expect("just pushed")
    }

    fn add_calls(&mut self, files: u64) {
        let title = format!("{} files in one directory, 1 thread", count(files));
        let repeats = self.plan.repeats(files);
        let section = self.section(Group::Calls, title, vec![Task { work: Work::Calls { files }, crew: Workers::ONE }]);
        section.files = Some(files);
        section.repeats = repeats;
    }

    fn add_workers(&mut self, group: Group, kind: WorkerKind) -> Result<()> {
        let files = self.sizes.first().copied().unwrap_or(WORKERS_FILES);
        let repeats = self.plan.repeats(files);
        let user = if kind == WorkerKind::Threads { "threads" } else { "processes" };
        let fewest = self.fewest_files();
        ensure!(
            files >= fewest,
            "{files} files are too few for so many {user}, which need {MEMBER_FILES} each: use {fewest} files (--sizes) or fewer {user} (--threads)"
        );
        for private in [false, true] {
            let wheres = if private { "each in its own directory" } else { "in one shared directory" };
            let title = format!("{user} {wheres}, {} files in all", count(files));
            // One member is measured here, too, so that scaling is relative to the same table.
            let members = [1].into_iter().chain(self.members.iter().copied().filter(|&members| members > 1));
            let workers = |members| Workers { members, kind, private };
            let tasks = members.map(|members| Task { work: Work::Calls { files }, crew: workers(members) }).collect();
            let section = self.section(group, title, tasks);
            section.files = Some(files);
            section.scaling = true;
            section.repeats = repeats;
        }
        Ok(())
    }

    /// Enough for every member of the largest workload.
    fn fewest_files(&self) -> u64 {
        u64::from(self.members.last().copied().unwrap_or(1)) * MEMBER_FILES
    }

    fn add_depth(&mut self) {
        let files = self.scale.depth_files;
        let work = Work::Depth { depth: DEPTH_MAX, files };
        let title = format!("stat by path depth, {} files", count(files));
        let section = self.section(Group::Depth, title, vec![Task { work, crew: Workers::ONE }]);
        section.note = Some(
            "depth 1 is a name in the current directory; the cost of a further level is computed from medians of single calls"
                .into(),
        );
    }

    fn add_small(&mut self) {
        let files = self.scale.small_files;
        let members: Vec<u32> = self.members.iter().copied().filter(|&members| members <= 2).collect();
        let tasks = members.iter().flat_map(|&members| {
            let work = |kib: u64| Work::SmallFiles { bytes: kib << 10, files };
            [1, 8, 32].map(|kib| Task { work: work(kib), crew: Workers::threads(members) })
        });
        let tasks = tasks.collect();
        let title = format!("small files: create, write, close, open, read, close; {} of them", count(files));
        self.section(Group::Small, title, tasks).scaling = true;
    }

    fn add_cold(&mut self) {
        let files = self.scale.cold_files;
        let title = format!("cold: a program's first calls on {} files of 4 KiB", count(files));
        let repeats = self.plan.repeats.min(REPEATS_MAX_LARGE);
        let section = self.section(Group::Cold, title, vec![Task { work: Work::Cold { files }, crew: Workers::ONE }]);
        section.repeats = repeats;
        section.warm_up = false;
    }

    fn add_mix(&mut self, group: Group) {
        let Scale { mdtest_files, mail_files, served_files, postmark: (pooled, transactions), run_ms, .. } = self.scale;
        let (work, title, note) = match group {
            Group::Mdtest => (
                Work::Mdtest { files: mdtest_files },
                format!("mdtest-like: {} files in one shared directory", count(mdtest_files)),
                "each member works on its neighbour's files",
            ),
            Group::Varmail => (
                Work::Varmail { files: mail_files, run_ms },
                format!("varmail-like: {} files of 16 KiB on average", count(mail_files)),
                "remove; create, append, fsync; read, append, fsync; read",
            ),
            Group::Fileserver => (
                Work::Fileserver { files: served_files, run_ms },
                format!("fileserver-like: {} files of 128 KiB on average", count(served_files)),
                "create and write; append; read; remove; stat; directories of 20 files",
            ),
            _ => (
                Work::Postmark { files: pooled, transactions },
                format!(
                    "postmark-like: {} files of 500 bytes to 9.77 KiB, {} transactions",
                    count(pooled),
                    count(transactions)
                ),
                "create or remove, and read or append, in pieces of 512 bytes",
            ),
        };
        let tasks = self.members.iter().map(|&members| Task { work: work.clone(), crew: Workers::threads(members) });
        let tasks = tasks.collect();
        let repeats =
            if group == Group::Mdtest { repeats_over(self.plan.repeats, mdtest_files) } else { self.plan.repeats };
        let section = self.section(group, title, tasks);
        section.note = Some(note.into());
        section.scaling = true;
        // Each repeat creates its files again, which is a sufficient warm-up.
        section.warm_up = false;
        section.repeats = repeats.min(REPEATS_MAX_LARGE);
    }

    fn add_tree(&mut self) -> Result<()> {
        let Some(source) = self.tree()? else { return Ok(()) };
        let (names, bytes) = size_of_tree(&source)?;
        let shown = source.display();
        let title =
            format!("programs on a real tree: {shown}, {}, {}", counted(names, "file"), crate::units::size(bytes));
        let repeats = self.plan.repeats.min(REPEATS_MAX_LARGE);
        let section = self.section(Group::Tree, title, vec![Task { work: Work::Tree { source }, crew: Workers::ONE }]);
        section.note = Some(
            "whole programs, started each time; \"beyond own\": without the program's own time (its time outside the kernel on tmpfs)".into(),
        );
        section.repeats = repeats;
        section.warm_up = false;
        Ok(())
    }

    /// The tree to copy: the user's, else a common one, or none.
    fn tree(&self) -> Result<Option<PathBuf>> {
        let Some(named) = &self.arguments.tree else {
            let tree = Path::new(TREES[usize::from(self.arguments.quick)]);
            let asked_for = self.arguments.only.contains(&Group::Tree);
            ensure!(!asked_for || tree.is_dir(), "{} does not exist; specify a tree with --tree", tree.display());
            return Ok(tree.is_dir().then(|| tree.to_owned()));
        };
        let tree = named
            .canonicalize()
            .with_context(|| format!("cannot find the tree {}; specify another with --tree", named.display()))?;
        ensure!(tree.is_dir(), "{} is not a directory; specify another with --tree", named.display());
        Ok(Some(tree))
    }

    fn add_programs(&mut self) -> Result<()> {
        let Some(source) = self.tree()? else { return Ok(()) };
        let most = self.arguments.sizes.iter().copied().max().unwrap_or(u64::MAX);
        let rounds = if self.arguments.quick { 20 } else { WORK_ROUNDS }.min(most / 16 + 1);
        let title = format!("work: {rounds} tests of a script, {rounds} files to compile, and {}", source.display());
        let tasks = vec![Task { work: Work::Programs { source, rounds }, crew: Workers::ONE }];
        let repeats = self.plan.repeats.min(REPEATS_MAX_LARGE);
        let section = self.section(Group::Programs, title, tasks);
        section.note = Some("processor times include all programs that were started".into());
        section.repeats = repeats;
        section.warm_up = false;
        Ok(())
    }

    fn add_mount(&mut self) -> Result<()> {
        // Machines without headers get a generated tree.
        let most = self.arguments.sizes.iter().copied().max().unwrap_or(u64::MAX);
        let (source, names, shown) = match self.tree()? {
            Some(source) => (source.clone(), size_of_tree(&source)?.0, source.display().to_string()),
            None => {
                let names = if self.arguments.quick { mounted::GENERATED_FILES / 10 } else { mounted::GENERATED_FILES };
                (PathBuf::new(), names.min(most), "a generated tree".to_owned())
            }
        };
        let title = format!("programs on mounts: {shown}, {}", counted(names, "file"));
        let repeats = self.plan.repeats.min(REPEATS_MAX_LARGE);
        let materials = Materials { source, names, ..Materials::default() };
        let tasks = vec![Task { work: Work::Mounted { materials }, crew: Workers::ONE }];
        let section = self.section(Group::Mount, title, tasks);
        section.note = Some(
            "whole programs, started each time; du and find come after cp and diff, so the kernel already knows names and attributes"
                .into(),
        );
        section.repeats = repeats;
        section.warm_up = false;
        Ok(())
    }

    fn add_store(&mut self) {
        let files = self.scale.store_files;
        let title = format!("a tree of {} of 20 KiB on average, by a store", counted(files, "file"));
        let repeats = self.plan.repeats.min(REPEATS_MAX_LARGE);
        let section = self.section(Group::Store, title, Vec::new());
        section.note = Some(
            "the store is a directory here; each cold step is a machine that has only the store: DirectFS and JuiceFS fetch what \
             they use, squashfuse mounts a downloaded image, and tar unpacks an archive"
                .into(),
        );
        (section.files, section.repeats, section.warm_up) = (Some(files), repeats, false);
        self.plan.store = self.plan.sections.pop();
    }

    fn add_data(&mut self) {
        let bytes = self.scale.data_bytes;
        let title = format!("data: one file of {}, compared with memcpy", crate::units::size(bytes));
        let section = self.section(Group::Data, title, vec![Task { work: Work::Data { bytes }, crew: Workers::ONE }]);
        section.note = Some("the goal is 90 % of memcpy for 1 MiB; there is none for random access".into());
        section.warm_up = false;
    }

    fn add_durable(&mut self) -> Result<()> {
        let Scale { mail_files, run_ms, syncs, .. } = self.scale;
        let mail_files = mail_files.min(DURABLE_FILES);
        let mut tasks = vec![
            Task { work: Work::Syncs { files: syncs }, crew: Workers::ONE },
            Task { work: Work::Sqlite { transactions: syncs }, crew: Workers::ONE },
        ];
        let varmail =
            |members| Task { work: Work::Varmail { files: mail_files, run_ms }, crew: Workers::threads(members) };
        if mail_files >= u64::from(DURABLE_MEMBERS) * MEMBER_FILES {
            tasks.extend([1, DURABLE_MEMBERS].map(varmail));
        }
        if let Some(source) = self.tree()? {
            tasks.push(Task { work: Work::Untar { source }, crew: Workers::ONE });
        }
        let repeats = self.plan.repeats.min(REPEATS_MAX_LARGE);
        let section = self.section(Group::Durable, "what waits for the disk".into(), tasks);
        section.note = Some(
            "on an image on the disk, which is journaled; on the disk; and on an image in memory, where no sync waits"
                .into(),
        );
        section.warm_up = false;
        section.repeats = repeats;
        Ok(())
    }
}

fn sorted<T: Ord>(mut numbers: Vec<T>) -> Vec<T> {
    numbers.sort_unstable();
    numbers.dedup();
    numbers
}

/// Files and directories in a tree, and their bytes in whole blocks.
fn size_of_tree(root: &Path) -> Result<(u64, u64)> {
    let (mut names, mut bytes) = (0, 0);
    tree::walk(root, &mut |_, metadata| {
        names += 1;
        bytes += metadata.len().next_multiple_of(4096);
        Ok(())
    })?;
    Ok((names, bytes))
}

impl Work {
    /// The maximum of names and bytes of data at a time.
    fn size(&self) -> Result<(u64, u64)> {
        Ok(match self {
            Work::Calls { files } | Work::Mdtest { files } => (*files, 0),
            Work::Depth { depth, files } => (u64::from(*depth) * files, 0),
            Work::SmallFiles { bytes, files } => (*files, files * bytes.next_multiple_of(4096)),
            Work::Prepare { files } | Work::Cold { files } => (*files, files * 4096),
            Work::Varmail { files, .. } => (*files, files * (64 << 10)),
            Work::Fileserver { files, .. } => (*files, files * SERVED_BYTES * 3 / 2),
            Work::Postmark { files, transactions } => {
                let names = files + transactions;
                (names, names * 2 * BYTES_MAX.next_multiple_of(4096))
            }
            Work::Data { bytes } => (1, bytes * 2),
            Work::Syncs { files } => (*files, files * 4096 + (1 << 20)),
            Work::Sqlite { .. } => (8, 64 << 20),
            Work::Untar { source } => {
                let (names, bytes) = size_of_tree(source)?;
                (names * 2, bytes * 2)
            }
            Work::Programs { source, rounds } => {
                let (names, bytes) = size_of_tree(source)?;
                (names * 6 + rounds * 16 + 20_000, bytes * 6 + BUILT_BYTES)
            }
            Work::Mounted { materials } => {
                let (names, bytes) = match materials.source.as_os_str().is_empty() {
                    true => (materials.names, mounted::GENERATED_BYTES),
                    false => size_of_tree(&materials.source)?,
                };
                // The tree, what was unpacked, a clone with its objects.
                (names * 4, bytes * 4)
            }
            Work::Tree { source } => {
                let (names, bytes) = size_of_tree(source)?;
                // The tree, two copies of it, an archive, and a repository.
                (names * 5, bytes * 5)
            }
        })
    }
}

impl SpaceNeeds {
    /// In a directory of the kernel's file systems.
    pub fn kernel(&self, in_memory: bool) -> SpaceNeeded {
        let name_bytes = if in_memory { NAME_MEMORY_BYTES } else { NAME_DISK_BYTES };
        SpaceNeeded { bytes: self.most(|names, data| data + names * name_bytes), files: self.most(|names, _| names) }
    }

    /// In the image.
    pub fn image(&self) -> SpaceNeeded {
        let bytes = self.most(|names, data| data * 5 / 4 + names * NAME_IMAGE_BYTES);
        SpaceNeeded { bytes: bytes + BESIDE_BYTES, files: self.most(|names, _| names) * 3 + 4096 }
    }

    /// What is created for the tasks, beside an image.
    pub fn materials_bytes(&self) -> u64 {
        self.materials_bytes
    }

    /// In memory outside file systems: for the engine in this process and for the workers, and for
    /// the region of an image.
    pub fn memory(&self, with_image: bool) -> u64 {
        let region = if with_image { self.most(|names, _| names) * NAME_REGION_BYTES } else { 0 };
        self.engine_bytes + region + BESIDE_BYTES * 4
    }

    fn most(&self, of: impl Fn(u64, u64) -> u64) -> u64 {
        self.tasks.iter().map(|&(names, data)| of(names, data)).max().unwrap_or(0)
    }
}

/// The project's goal: how many times faster than tmpfs, or than the disk for what waits for it.
pub fn times_wanted(group: Group, what: &PhaseName, workers: Workers) -> Option<f64> {
    let several = workers.members > 1;
    match (group, what) {
        (_, PhaseName::Call(call)) if !workers.private && workers.members <= 2 => {
            Some(call.times_wanted(workers.members))
        }
        (Group::Small, _) => Some(if several { 5.0 } else { 3.0 }),
        (Group::Varmail | Group::Fileserver, _) => Some(4.0),
        (Group::Postmark, _) => Some(3.0),
        (Group::Tree, _) => Some(2.0),
        (Group::Programs, _) => Some(1.0),
        (Group::Durable, PhaseName::Rate(words)) if words == "varmail" => Some(if several { 4.0 } else { 2.0 }),
        (Group::Durable, PhaseName::Rate(_)) => Some(1.5),
        _ => None,
    }
}

/// The project's goal on a mount: the most that a program may take, in multiples of tmpfs's time.
pub fn share_wanted(group: Group, what: &PhaseName) -> Option<f64> {
    let goals = [
        (mounted::COPY, 2.5),
        (mounted::COMPARE, 2.0),
        (mounted::USAGE, 4.0),
        (mounted::USAGE_AGAIN, 1.5),
        (mounted::FIND, 4.0),
        (mounted::FIND_AGAIN, 1.5),
        (mounted::REMOVE, 4.0),
        (mounted::UNPACK, 2.5),
        (mounted::STATUS, 2.0),
    ];
    let goal = |&(words, _): &(&str, f64)| group == Group::Mount && what.label() == words;
    goals.iter().find(|row| goal(row)).map(|row| row.1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::{Args, FromArgMatches};

    /// The arguments of a command line.
    fn arguments(words: &str) -> Bench {
        let command = Bench::augment_args(clap::Command::new("bench").no_binary_name(true));
        let matches = command.try_get_matches_from(words.split_whitespace()).unwrap();
        Bench::from_arg_matches(&matches).unwrap()
    }

    fn plan(words: &str) -> Plan {
        Plan::make(&arguments(words)).unwrap()
    }

    #[test]
    fn a_selection_is_all_that_is_measured() {
        let plan = plan("--only calls,engine --sizes 300,200 --repeat 1");
        let titles: Vec<_> = plan.sections.iter().map(|section| section.title.as_str()).collect();
        assert_eq!(titles, ["200 files in one directory, 1 thread", "300 files in one directory, 1 thread"]);
        assert_eq!(plan.engine_sizes, [200, 300]);
        assert_eq!(plan.steps(Set::Usual, 3), 2 * 3 * 2);
    }

    #[test]
    fn no_workload_has_more_files_than_the_largest_size() {
        let needs = plan("--sizes 200 --only mdtest,cold,varmail,fileserver,postmark,small").needs(Set::Usual).unwrap();
        assert!(needs.kernel(true).files <= 600, "{needs:?}");
    }

    #[test]
    fn every_member_has_something_to_do() {
        let crowd = plan("--quick --threads 64 --only fileserver,postmark,varmail,mdtest,small");
        assert!(crowd.needs(Set::Usual).unwrap().kernel(true).files >= 64 * MEMBER_FILES);
        let impossible = arguments("--only threads --sizes 100 --threads 64");
        let error = Plan::make(&impossible).err().map(|error| error.to_string()).unwrap_or_default();
        assert!(error.contains("--sizes") && error.contains("1024"), "{error}");
    }

    #[test]
    fn scaling_is_reported_relative_to_one_worker() {
        let plan = plan("--only threads --threads 2,3 --sizes 100");
        for section in &plan.sections {
            let members: Vec<_> = section.tasks.iter().map(|task| task.crew.members).collect();
            assert_eq!(members, [1, 2, 3]);
        }
    }
}
