//! Manual pages and completions, as packages hold them.

use crate::{built, has, run, skipped, sources, text};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Writes all pages into a directory, and returns their files with that of the C library.
fn pages(directory: &Path) -> Vec<PathBuf> {
    run(Command::new(built().join("directfs")).args(["man", "--to"]).arg(directory)).expect("directfs man");
    let found = std::fs::read_dir(directory).expect("pages").map(|entry| entry.expect("an entry").path());
    found.chain([sources().join("crates/c/man/directfs.3")]).collect()
}

fn page(directory: &Path, name: &str) -> String {
    std::fs::read_to_string(directory.join(name)).expect(name)
}

#[test]
fn mandoc_finds_nothing_to_improve_in_the_manual_pages() {
    let directory = tempfile::tempdir().expect("a scratch directory");
    let pages = pages(directory.path());
    assert!(pages.len() > 20, "{pages:?}");
    let Ok(output) = Command::new("mandoc").args(["-T", "lint", "-W", "style"]).args(&pages).output() else {
        return skipped("the check of manual pages", "it needs mandoc");
    };
    // mandoc also names pages of SEE ALSO that this machine does not have.
    let remarks: Vec<_> = text(&output.stdout).lines().chain(text(&output.stderr).lines()).map(str::to_owned).collect();
    let own = remarks.iter().filter(|line| !line.contains("referenced manual not found")).collect::<Vec<_>>();
    assert!(own.is_empty(), "{own:#?}");
}

#[test]
fn every_option_of_a_mount_is_in_its_page_and_its_help() {
    let directory = tempfile::tempdir().expect("a scratch directory");
    pages(directory.path());
    let [helper, mount] = ["mount.directfs.8", "directfs-mount.8"].map(|name| page(directory.path(), name));
    let help = run(Command::new(built().join("directfs")).args(["mount", "--help"])).expect("help");
    for (names, _) in fuse::OPTION_DESCRIPTIONS {
        let heading = format!("\n.TP\n\\fB{}\\fR\n", names.replace('-', "\\-"));
        assert!(helper.contains(&heading) && mount.contains(&heading), "{names}: {helper}");
        assert!(text(&help.stdout).contains(names), "{names}");
    }
}

#[test]
fn every_option_of_a_command_is_in_its_page() {
    let directory = tempfile::tempdir().expect("a scratch directory");
    pages(directory.path());
    for command in ["mkfs", "run", "mount", "fsck", "stats", "bench", "snapshot"] {
        let help = run(Command::new(built().join("directfs")).args([command, "--help"])).expect("help");
        let page = page(directory.path(), &format!("directfs-{command}.8")).replace("\\-", "-");
        let help = text(&help.stdout);
        let options: Vec<_> = help.lines().map(str::trim_start).filter(|line| line.starts_with('-')).collect();
        assert!(options.len() > 1, "{help}");
        let words = options.iter().flat_map(|line| line.split([' ', ',', ':', '[']));
        for option in words.filter(|word| word.starts_with('-') && word.len() > 1) {
            assert!(page.contains(&format!("\\fB{option}\\fR")), "{command} {option}: {page}");
        }
    }
}

/// What a shell proposes for the last of these words of a command line.
fn proposed_by_bash(words: &str, with_bash_completion: bool) -> Result<String, String> {
    let script = r#"
$1
source <("$PROGRAM" completions bash)
COMP_WORDS=($2) COMP_CWORD=$((${#COMP_WORDS[@]} - 1)) COMP_LINE=$2 COMP_POINT=${#2}
_directfs_words directfs "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD - 1]}" 2>/dev/null
printf '%s\n' "${COMPREPLY[@]}"
"#;
    let before = if with_bash_completion { "source /usr/share/bash-completion/bash_completion" } else { ":" };
    let mut bash = Command::new("bash");
    bash.args(["--norc", "-c", &script.replace("$1", before), "bash", "", words]);
    run(bash.env("PROGRAM", built().join("directfs"))).map(|output| text(&output.stdout))
}

#[test]
fn bash_completes_programs_behind_the_dashes_and_options_of_a_mount() {
    let proposed = |words: &str| proposed_by_bash(words, false).expect("bash");
    assert!(proposed("directfs run -- mkfif").contains("mkfifo"), "{}", proposed("directfs run -- mkfif"));
    assert!(proposed("directfs run --image work.img -- mkfif").contains("mkfifo"));
    assert_eq!(proposed("directfs run --ima"), "--image\n");
    assert_eq!(proposed("directfs mkf"), "mkfs\n");
    assert_eq!(proposed("directfs mount work.img /mnt -o ro,cach"), "ro,cache=\nro,cached_files=\n");
}

#[test]
fn bash_leaves_the_arguments_of_a_program_to_its_own_completion() {
    if !Path::new("/usr/share/bash-completion/bash_completion").exists() {
        return skipped("completion of a program's arguments", "it needs bash-completion");
    }
    let proposed = proposed_by_bash("directfs run --image work.img -- git sta", true).expect("bash");
    assert!(proposed.contains("status"), "{proposed}");
}

#[test]
fn zsh_and_fish_complete_programs_behind_the_dashes() {
    let script = |shell: &str| {
        text(&run(Command::new(built().join("directfs")).args(["completions", shell])).expect("completions").stdout)
    };
    assert!(script("zsh").contains("_cmdambivalent"));
    if !has("fish", &["--version"]) {
        return skipped("the completion of fish", "there is no fish here");
    }
    let directory = tempfile::tempdir().expect("a scratch directory");
    let file = directory.path().join("directfs.fish");
    std::fs::write(&file, script("fish")).expect("writes the script");
    let ask = format!("source {}; complete -C 'directfs run --image work.img -- mkfif'", file.display());
    let output =
        run(Command::new("fish").args(["--no-config", "-c", &ask]).env("HOME", directory.path())).expect("fish");
    assert!(text(&output.stdout).contains("mkfifo"), "{}", text(&output.stdout));
}
