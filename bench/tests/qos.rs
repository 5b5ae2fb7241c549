//! `selfpage bench qos` in a few seconds: that every process comes up under a daemon of
//! its own, ends well, and leaves nothing behind. What the figures say is not asked here.

use std::path::Path;
use std::process::Command;

fn bench(folder: &Path, words: &[&str]) -> (bool, String) {
    let out = Command::new(env!("CARGO_BIN_EXE_selfpage-bench"))
        .args(["qos", "--repeats", "1", "--folder"])
        .arg(folder)
        .args(words)
        .output()
        .expect("the command starts");
    let said = [out.stdout, out.stderr].concat();
    (
        out.status.success(),
        String::from_utf8_lossy(&said).into_owned(),
    )
}

fn left(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).expect("it is there");
    entries
        .map(|entry| {
            entry
                .expect("it can be read")
                .file_name()
                .to_string_lossy()
                .into_owned()
        })
        .collect()
}

#[test]
fn the_papers_figures_are_drawn_and_nothing_is_left_behind() {
    let (work, pictures) = (
        tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")),
        tempfile::tempdir(),
    );
    let (work, pictures) = (
        work.expect("a folder on a disk"),
        pictures.expect("a folder"),
    );
    let svg = pictures.path().to_string_lossy();
    let short = [
        "--seconds",
        "2",
        "--every",
        "0.5",
        "--victim",
        "32",
        "--neighbour",
        "32",
    ];
    let figures = ["--only", "figure7,figure8,figure9", "--svg", &svg];
    let (well, said) = bench(work.path(), &[&short[..], &figures[..]].concat());
    assert!(well, "{said}");
    for figure in ["figure 7", "figure 8", "figure 9"] {
        let row = format!("{figure}: longest lax time / laxity");
        assert!(said.contains(&row), "{said}");
    }
    assert!(!said.contains("cannot:"), "{said}");
    for number in 7..=9 {
        assert!(
            pictures
                .path()
                .join(format!("figure-{number}.svg"))
                .exists()
        );
    }
    assert_eq!(left(work.path()), [""; 0]);
}

#[test]
fn real_programs_and_adversaries_end_well_beside_a_victim() {
    // The library that pages a program is of the release build.
    let selfpage = Path::new(env!("CARGO_TARGET_TMPDIR")).join("../release/selfpage");
    if !selfpage.exists() {
        return println!("SKIPPED: programs beside a victim: cargo build --release --workspace");
    }
    let work = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder on a disk");
    let is_here = |program: &&str| Path::new("/usr/bin").join(program).exists();
    let mut words = vec!["--phase", "0.3", "--victim", "32", "--neighbour", "32"];
    let selfpage = selfpage.to_string_lossy();
    words.extend(["--selfpage", &selfpage, "--arms", "run", "--only"]);
    let lacking: Vec<_> = ["redis-server", "stress-ng"]
        .into_iter()
        .filter(|it| !is_here(it))
        .collect();
    if lacking.is_empty() {
        words.push("adversary,redis");
    } else {
        println!("SKIPPED: redis beside stress-ng: install {lacking:?}");
        words.push("adversary");
    }
    let (well, said) = bench(work.path(), &words);
    assert!(well || said.contains("MISSED"), "{said}");
    assert!(!said.contains("cannot:"), "{said}");
    assert!(said.contains("throughput kept beside stopped"), "{said}");
    assert_eq!(left(work.path()), [""; 0]);
}
