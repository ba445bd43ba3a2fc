//! `directfs man`: manual pages, made from the declaration of the arguments.
//!
//! The paragraphs of a help text go to the sections of a page by their first words; options of `-o`
//! come from the list that `--help` prints. Only what help does not say is written here: variables,
//! files and other pages.

use crate::arguments::{Cli, MOUNT_OPTIONS, Man, MountHelper};
use crate::output;
use anyhow::{Context, Result};
use clap::{Arg, Command, CommandFactory};
use clap_mangen::roff::{Inline, Roff, bold, italic, roman};
use std::path::Path;

/// The day of the last change to the pages, which their foot shows.
const REVISED: &str = "2026-11-28";

/// Commands, variable, and what it does.
const ENVIRONMENT: &[(&[&str], &str, &str)] = &[
    (&["run", "profile"], "DIRECTFS_MOUNT", "Set for the programs of the run: the path at which they see the image."),
    (&["run", "profile"], "SHELL", "The program to start if no command is given."),
    (
        &["run", "profile"],
        "XDG_CACHE_HOME, HOME",
        "The directory of the cache, if other users cannot write on its path: directfs in XDG_CACHE_HOME, or in .cache \
         of HOME.",
    ),
    (&["bench"], "TMPDIR", "The directory on the disk that is measured."),
    (&[], "NO_COLOR", "If it is not empty, output has no colours."),
];

/// Commands that bring an image into use.
const USERS: &[&str] = &["run", "profile", "mount", "mount.directfs"];

/// Commands that mount.
const MOUNTING: &[&str] = &["mount", "mount.directfs"];

/// Commands that use object stores.
const STORING: &[&str] = &["push", "pull", "replicate", "run", "mount"];

/// Commands, path, and what is there.
const FILES: &[(&[&str], &str, &str)] = &[
    (USERS, "/dev/shm/directfs-*", "What the processes of an image in use share, and the copy on which they work."),
    (USERS, ".directfs-*", "Beside an image: its copy, if that needs more memory than is allowed."),
    (
        &["run", "profile"],
        "/var/cache/directfs, ~/.cache/directfs",
        "The library that is loaded into programs, and tables about the files of the machine. It can be removed.",
    ),
    (STORING, "~/.cache/directfs/store", "States of images in stores, and indexes of layers. It can be removed."),
    (
        &["run"],
        "~/.local/state/directfs",
        "Images of runs with --atomic on a store: those that could not be pushed stay.",
    ),
    (
        &["replicate"],
        "/etc/directfs/NAME.conf",
        "Image and URL of the service directfs-replicate@NAME; for example in /usr/share/doc/directfs/examples.",
    ),
    (&["mount.directfs"], "/etc/fstab", "Images that are mounted at start-up."),
    (MOUNTING, "/etc/fuse.conf", "The line user_allow_other permits -o allow_other to all users."),
    (
        MOUNTING,
        "/etc/directfs/NAME.conf",
        "Image, directory and options of the service directfs@NAME; for example in /usr/share/doc/directfs/examples.",
    ),
    (MOUNTING, "/dev/log", "Receives messages of a server in the background."),
    (
        MOUNTING,
        "/sys/module/fuse/parameters/enable_uring",
        "If it holds Y, new mounts use io_uring, which is faster. The kernel's default is N.",
    ),
];

/// Commands and the pages to read next.
const SEE_ALSO: &[(&[&str], &[&str])] = &[
    (&["mkfs", "resize", "tune", "trim"], &["directfs-info(8)", "mkfs(8)", "df(1)"]),
    (&["run", "profile"], &["directfs-mkfs(8)", "directfs-mount(8)", "directfs-ps(8)", "unshare(1)"]),
    (&["mount", "umount"], &["mount.directfs(8)", "directfs-run(8)", "fusermount3(1)"]),
    (&["mount.directfs"], &["directfs-mount(8)", "mount(8)", "fstab(5)", "mount.fuse(8)"]),
    (&["info", "ps", "stats", "top"], &["directfs-info(8)", "directfs-ps(8)", "directfs-stats(8)", "directfs-top(8)"]),
    (&["snapshot", "clone"], &["directfs-export(8)", "directfs-tune(8)"]),
    (
        &["push", "pull", "replicate", "store"],
        &["directfs-push(8)", "directfs-pull(8)", "directfs-replicate(8)", "directfs-run(8)"],
    ),
    (&["export", "import"], &["directfs-snapshot(8)", "tar(1)"]),
    (&["fsck", "dump"], &["directfs-info(8)", "fsck(8)"]),
    (&["bench", "demo"], &["directfs-run(8)", "directfs-profile(8)"]),
    (&["directfs"], &["directfs(3)", "mount.directfs(8)"]),
];

/// The first words of a paragraph of help, and its section of a page. All others are description.
const SECTIONS: &[(&str, &str)] = &[
    (MOUNT_OPTIONS, "OPTIONS"),
    ("Keys of --json", "JSON OUTPUT"),
    ("With --json", "JSON OUTPUT"),
    ("Exit codes", "EXIT STATUS"),
    ("Example", "EXAMPLES"),
    ("In /etc/fstab", "EXAMPLES"),
];

/// Prints the page of the program, or writes a page for each command.
pub fn run(arguments: &Man) -> Result<()> {
    let mut pages = pages()?.into_iter();
    let Some(directory) = &arguments.to else {
        output::write(pages.next().map(|(_, text)| text).unwrap_or_default().as_bytes());
        return Ok(());
    };
    for (name, text) in pages {
        let path = Path::new(directory).join(format!("{name}.8"));
        std::fs::write(&path, text).with_context(|| {
            format!("cannot write {}; use an existing directory that you may write", path.display())
        })?;
    }
    Ok(())
}

/// All pages with their names; first that of the program.
fn pages() -> Result<Vec<(String, String)>> {
    let mut program = Cli::command();
    program.build();
    let mut helper = MountHelper::command();
    helper.build();
    let exit_codes = Help::of(&program).section("EXIT STATUS");
    let commands = visible_commands(&program).flat_map(|command| {
        let parts = visible_commands(command).map(|part| (vec![command.get_name(), part.get_name()], part));
        std::iter::once((vec![command.get_name()], command)).chain(parts)
    });
    let commands = commands.map(|(names, command)| Page {
        name: format!("directfs-{}", names.join("-")),
        call: format!("directfs {}", names.join(" ")),
        command,
    });
    let alone = |command| Page { name: name_of(command), call: name_of(command), command };
    let pages = [alone(&program), alone(&helper)].into_iter().chain(commands);
    pages.map(|page| Ok((page.name.clone(), page.render(&exit_codes)?))).collect()
}

fn name_of(command: &Command) -> String {
    command.get_name().to_owned()
}

fn visible_commands(program: &Command) -> impl Iterator<Item = &Command> {
    program.get_subcommands().filter(|command| !command.is_hide_set() && command.get_name() != "help")
}

/// The paragraphs behind the options of a help text.
struct Help(Vec<String>);

impl Help {
    fn of(command: &Command) -> Help {
        let text = command.get_after_help().map(ToString::to_string).unwrap_or_default();
        Help(text.split("\n\n").map(str::to_owned).filter(|paragraph| !paragraph.is_empty()).collect())
    }

    /// The paragraphs of a section.
    fn section(&self, section: &str) -> Vec<String> {
        let of = |paragraph: &str| SECTIONS.iter().find(|(begin, _)| paragraph.starts_with(begin));
        let belongs = |paragraph: &&String| of(paragraph).map_or("DESCRIPTION", |(_, section)| section) == section;
        self.0.iter().filter(belongs).cloned().collect()
    }
}

/// A page to be made.
struct Page<'a> {
    name: String,
    /// How the command is called.
    call: String,
    command: &'a Command,
}

impl Page<'_> {
    fn render(&self, exit_codes: &[String]) -> Result<String> {
        let help = Help::of(self.command);
        let mut page = Roff::new();
        let source = format!("DirectFS {}", env!("CARGO_PKG_VERSION"));
        page.control("TH", [self.name.to_uppercase().as_str(), "8", REVISED, &source, "DirectFS"]);
        self.names(&mut page);
        self.synopsis(&mut page);
        page.control("SH", ["DESCRIPTION"]);
        let about = self.command.get_long_about().or_else(|| self.command.get_about());
        paragraphs(
            &mut page,
            &[format!("{}.", about.map(ToString::to_string).unwrap_or_default().trim_end_matches('.'))],
        );
        let description = help.section("DESCRIPTION");
        if !description.is_empty() {
            page.control("PP", []);
            paragraphs(&mut page, &description);
        }
        self.commands(&mut page);
        let mut text = page.to_roff();
        let mut options = Vec::new();
        clap_mangen::Man::new(self.command.clone()).render_options_section(&mut options)?;
        text += &String::from_utf8(options)?;
        let mut page = Roff::new();
        if !help.section("OPTIONS").is_empty() {
            page.control("SS", ["Options of -o, separated by commas"]);
            fuse::OPTION_DESCRIPTIONS.iter().for_each(|(names, meaning)| item(&mut page, names, meaning));
        }
        let named = |section| (section, help.section(section));
        let own = named("EXIT STATUS");
        let exit_status = if own.1.is_empty() { ("EXIT STATUS", exit_codes.to_vec()) } else { own };
        let [json, examples] = ["JSON OUTPUT", "EXAMPLES"].map(named);
        for (section, content) in [json, exit_status] {
            titled(&mut page, section, &content);
        }
        self.table(&mut page, "ENVIRONMENT", ENVIRONMENT);
        self.table(&mut page, "FILES", FILES);
        titled(&mut page, examples.0, &examples.1);
        self.see_also(&mut page);
        Ok(tidy(&(text + &page.to_roff())))
    }

    /// The name, and in one phrase what the command does.
    fn names(&self, page: &mut Roff) {
        let about = self.command.get_about().map(ToString::to_string).unwrap_or_default();
        let phrase = about.split([':', ';']).next().unwrap_or_default().split(". ").next().unwrap_or_default();
        let mut letters = phrase.trim_end_matches('.').chars();
        let first = letters.next().map(|letter| letter.to_ascii_lowercase());
        let phrase: String = first.into_iter().chain(letters).collect();
        page.control("SH", ["NAME"]);
        page.text([roman(format!("{} \u{2010} {phrase}", self.name))]);
    }

    fn synopsis(&self, page: &mut Roff) {
        page.control("SH", ["SYNOPSIS"]);
        page.control("SY", [self.call.as_str()]);
        if self.command.has_subcommands() {
            page.text([italic("COMMAND"), roman(" ["), italic("ARGUMENT"), roman("...]")]);
        }
        let shown = |arg: &&Arg| !arg.is_hide_set() && !["help", "version"].contains(&arg.get_id().as_str());
        for arg in self.command.get_arguments().filter(shown).filter(|arg| !arg.is_positional()) {
            page.text(option_as_written(arg));
        }
        for arg in self.command.get_positionals().filter(shown) {
            page.text(positional_as_written(arg));
        }
        page.control("YS", []);
    }

    /// The commands of the program.
    fn commands(&self, page: &mut Roff) {
        if self.command.has_subcommands() {
            page.control("SH", ["COMMANDS"]);
        }
        for command in visible_commands(self.command) {
            let about = command.get_about().map(ToString::to_string).unwrap_or_default();
            item(page, &format!("directfs-{}(8)", command.get_name()), &format!("{}.", about.trim_end_matches('.')));
        }
    }

    /// The lines of a table that concern this command.
    fn table(&self, page: &mut Roff, section: &str, lines: &[(&[&str], &str, &str)]) {
        let concerns = |commands: &[&str]| commands.is_empty() || commands.contains(&self.short_name());
        let mut lines = lines.iter().filter(|(commands, ..)| concerns(commands)).peekable();
        if lines.peek().is_some() {
            page.control("SH", [section]);
        }
        lines.for_each(|(_, names, meaning)| item(page, names, meaning));
    }

    fn see_also(&self, page: &mut Roff) {
        let own = SEE_ALSO.iter().filter(|(commands, _)| commands.contains(&self.short_name()));
        let pages = ["directfs(8)"].iter().chain(own.flat_map(|(_, pages)| *pages));
        let others: Vec<_> = pages.filter(|page| **page != format!("{}(8)", self.name)).copied().collect();
        page.control("SH", ["SEE ALSO"]);
        page.text([roman(others.join(", "))]);
        page.control("PP", []);
        page.text([roman("The user guide is docs/guide.md in /usr/share/doc/directfs.")]);
    }

    fn short_name(&self) -> &str {
        self.name.strip_prefix("directfs-").unwrap_or(&self.name)
    }
}

/// A space at which no line is broken.
const TIED: &str = "\u{a0}";

fn value_name(arg: &Arg) -> String {
    match arg.get_value_names() {
        Some(names) => names.join(TIED),
        None => arg.get_id().as_str().to_uppercase(),
    }
}

/// An option of a synopsis: `[--image IMAGE]`.
fn option_as_written(arg: &Arg) -> Vec<Inline> {
    let short = || arg.get_short().map(|letter| format!("-{letter}"));
    let name = arg.get_long().map(|name| format!("--{name}")).or_else(short).unwrap_or_default();
    let mut parts = vec![bold(name)];
    if arg.get_num_args().is_some_and(|count| count.takes_values()) {
        parts.extend([roman(TIED), italic(value_name(arg))]);
    }
    bracketed(parts, arg.is_required_set())
}

/// An argument by place: `IMAGE`, `[DIR]...`, `[-- COMMAND [ARGUMENT]...]`.
fn positional_as_written(arg: &Arg) -> Vec<Inline> {
    let mut parts = vec![italic(value_name(arg))];
    if arg.is_trailing_var_arg_set() {
        parts.insert(0, bold("--"));
        parts.insert(1, roman(TIED));
        parts.extend([roman(format!("{TIED}[")), italic("ARGUMENT"), roman("]...")]);
    } else if arg.get_num_args().is_some_and(|count| count.max_values() > 1) {
        parts.push(roman("..."));
    }
    bracketed(parts, arg.is_required_set())
}

fn bracketed(parts: Vec<Inline>, is_required: bool) -> Vec<Inline> {
    match is_required {
        true => parts,
        false => [roman("[")].into_iter().chain(parts).chain([roman("]")]).collect(),
    }
}

/// A line of a list: names and their meaning.
fn item(page: &mut Roff, names: &str, meaning: &str) {
    page.control("TP", []);
    page.text([bold(names)]);
    prose(page, meaning);
}

/// A section, unless it is empty.
fn titled(page: &mut Roff, title: &str, content: &[String]) {
    if !content.is_empty() {
        page.control("SH", [title]);
        paragraphs(page, content);
    }
}

/// Paragraphs of help: lines that begin with spaces stay as they are, others are filled.
fn paragraphs(page: &mut Roff, content: &[String]) {
    for (at, paragraph) in content.iter().enumerate() {
        if at > 0 {
            page.control("PP", []);
        }
        let mut lines = paragraph.lines().filter(|line| !matches!(*line, "Example:" | "Examples:")).peekable();
        while let Some(line) = lines.next() {
            let Some(literal) = line.strip_prefix("  ") else {
                prose(page, line);
                continue;
            };
            page.control("RS", ["4"]);
            page.control("nf", []);
            example(page, literal);
            while let Some(literal) = lines.next_if(|line| line.starts_with("  ")) {
                example(page, &literal[2..]);
            }
            page.control("fi", []);
            page.control("RE", []);
        }
    }
}

/// A command; the remark that help has in a column beside it becomes a comment of the shell above.
fn example(page: &mut Roff, line: &str) {
    let (command, remark) = line.split_once("   ").unwrap_or((line, ""));
    if !remark.is_empty() {
        page.text([italic(format!("# {}", remark.trim()))]);
    }
    page.text([roman(command)]);
}

/// Text in which what stands in backquotes is bold.
fn prose(page: &mut Roff, text: &str) {
    let parts = text.split('`').enumerate();
    page.text(parts.map(|(at, part)| if at % 2 == 0 { roman(part) } else { bold(part) }).collect::<Vec<_>>());
}

/// Brings generated text into the form that `mandoc -T lint` accepts: short lines of text, no
/// spaces at their ends, and apostrophes and hyphens without macros of older programs.
fn tidy(text: &str) -> String {
    const COLUMNS: usize = 76;
    let mut tidied = String::new();
    let (mut is_literal, mut is_heading) = (false, false);
    for line in text.lines().map(str::trim_end).filter(|line| !line.is_empty()) {
        let is_second_break = line == ".br" && tidied.ends_with("\n.br\n");
        if line.starts_with(".ie \\n(.g") || line.starts_with(".el .ds Aq") || is_second_break {
            continue;
        }
        let line = line.replace("\\*(Aq", "\\(aq").replace('\u{a0}', "\\ ").replace('\u{2010}', "\\-");
        is_literal = (is_literal || line == ".nf") && line != ".fi";
        let may_be_broken = !is_literal && !is_heading;
        is_heading = line == ".TP";
        let mut rest = line.as_str();
        while may_be_broken && !rest.starts_with('.') && rest.len() > COLUMNS {
            // A space behind a backslash ties its neighbours. No line may begin as a request does.
            let may_break =
                |&(at, _): &(usize, &str)| !rest[..at].ends_with('\\') && !rest[at + 1..].starts_with(['.', '\'', ' ']);
            let Some((at, _)) = rest.match_indices(' ').filter(may_break).take_while(|(at, _)| *at <= COLUMNS).last()
            else {
                break;
            };
            tidied += &format!("{}\n", rest[..at].trim_end());
            rest = &rest[at + 1..];
        }
        tidied += &format!("{rest}\n");
    }
    tidied
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(name: &str) -> String {
        let pages = pages().expect("pages");
        pages.into_iter().find(|(found, _)| found == name).unwrap_or_else(|| panic!("no page {name}")).1
    }

    #[test]
    fn every_page_has_the_sections_of_a_manual() {
        for (name, text) in pages().expect("pages") {
            for section in
                ["NAME", "SYNOPSIS", "DESCRIPTION", "OPTIONS", "EXIT STATUS", "ENVIRONMENT", "EXAMPLES", "SEE ALSO"]
            {
                let line = format!("\n.SH \"{section}\"\n");
                let found = text.contains(&line) || text.contains(&line.replace('"', ""));
                assert!(found, "{name} has no section {section}:\n{text}");
            }
        }
        assert!(page("directfs-run").contains("\n.SH FILES\n"));
    }

    #[test]
    fn a_synopsis_is_what_people_write() {
        let run = page("directfs-run");
        assert!(run.contains(".SY \"directfs run\"\n[\\fB\\-\\-image\\fR\\ \\fIIMAGE\\fR]\n"), "{run}");
        assert!(run.contains("[\\fB\\-\\-\\fR\\ \\fICOMMAND\\fR\\ [\\fIARGUMENT\\fR]...]\n.YS\n"), "{run}");
        let info = page("directfs-info");
        assert!(info.contains(".SY \"directfs info\"\n[\\fB\\-\\-json\\fR]\n\\fIIMAGE\\fR\n.YS\n"), "{info}");
    }

    #[test]
    fn tables_name_commands_and_pages_that_exist() {
        let names: Vec<String> = pages().expect("pages").into_iter().map(|(name, _)| name).collect();
        let is_command = |name: &str| names.iter().any(|page| page.strip_prefix("directfs-").unwrap_or(page) == name);
        let lists = ENVIRONMENT.iter().chain(FILES).map(|(commands, ..)| *commands);
        for command in lists.chain(SEE_ALSO.iter().map(|(commands, _)| *commands)).flatten() {
            assert!(is_command(command), "{command}");
        }
        let own = SEE_ALSO.iter().flat_map(|(_, pages)| *pages).filter_map(|page| page.strip_suffix("(8)"));
        for page in own.filter(|page| page.contains("directfs")) {
            assert!(names.iter().any(|name| name == page), "{page}");
        }
    }

    #[test]
    fn long_text_is_broken_where_it_may_be() {
        let long =
            format!(".PP\n{} \\fBdirectfs\\ run\\fR .profile {}", "word ".repeat(14).trim_end(), "word ".repeat(9));
        let tidied = tidy(&long);
        assert!(tidied.lines().all(|line| line.len() <= 76), "{tidied}");
        assert!(!tidied.contains("\n.profile") && tidied.contains("directfs\\ run"), "{tidied}");
        assert_eq!(tidied.replace('\n', " ").trim(), long.replace('\n', " ").trim());
    }
}
