//! Programs that found a defect once, and those of a fixed set of seeds, agree with and
//! without the pager.
//!
//! Needs the release build of `selfpage`, as the end-to-end tests do: `SELFPAGE` names
//! one elsewhere.

use fuzz::campaign::corpus;
use fuzz::execution::{Setup, compare};
use fuzz::{emit, generate, interpreter, program::Program};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Time after which no further seed is begun: what is left is a campaign's.
const SEEDS_FOR: Duration = Duration::from_secs(15);

fn setup(folder: &Path) -> Setup {
    let beside = || {
        let program = std::env::current_exe().expect("a test has a file");
        let target = program.ancestors().nth(3).expect("target/debug/deps/test");
        target.join("release/selfpage")
    };
    let selfpage = std::env::var_os("SELFPAGE").map_or_else(beside, PathBuf::from);
    assert!(
        selfpage.exists(),
        "no release build at {}: run `make build` first, or name one in SELFPAGE",
        selfpage.display()
    );
    Setup {
        interpreter: interpreter::build(folder).expect("a C compiler"),
        selfpage,
        patience: Duration::from_secs(30),
        folder: "/var/tmp".into(),
        written_pages: Arc::default(),
    }
}

/// Where unmodified programs cannot be paged nothing can be compared.
fn cannot_run(setup: &Setup) -> bool {
    let done = std::process::Command::new(&setup.selfpage)
        .args(["run", "--frames", "4M", "--store", "ram:16M", "--", "true"])
        .output()
        .expect("the release build starts");
    if !done.status.success() {
        eprintln!("SKIPPED: {}", String::from_utf8_lossy(&done.stderr));
    }
    !done.status.success()
}

#[test]
fn programs_that_found_a_defect_agree() {
    let folder = tempfile::tempdir_in("/var/tmp").expect("a folder");
    let setup = setup(folder.path());
    if cannot_run(&setup) {
        return;
    }
    let programs = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus");
    for (name, text) in corpus(&programs).expect("the corpus") {
        let program = Program::parse(&text).expect("a program");
        if let Some(difference) = compare(&setup, &program).expect("it runs") {
            panic!("corpus/{name}.program:\n{difference}");
        }
    }
}

#[test]
fn programs_of_fixed_seeds_agree() {
    let folder = tempfile::tempdir_in("/var/tmp").expect("a folder");
    let setup = setup(folder.path());
    if cannot_run(&setup) {
        return;
    }
    let began = Instant::now();
    let seeds = include_str!("seeds").split_whitespace();
    for seed in seeds.map(|seed| seed.parse().expect("a number")) {
        if began.elapsed() > SEEDS_FOR {
            break;
        }
        if let Some(difference) = compare(&setup, &generate::program(seed)).expect("it runs") {
            panic!("seed {seed}:\n{difference}");
        }
    }
    assert!(setup.written_pages.load(Ordering::Relaxed) > 0);
}

#[test]
fn a_program_written_out_in_c_logs_what_the_interpreter_logs() {
    let folder = tempfile::tempdir_in("/var/tmp").expect("a folder");
    let text = "map 1 30 3 0 0 0\nstamp 1 0 30 11\nfork_child 0\nthread 1\nsum_all\nend\n\
                stamp 1 5 2 9\nend\nunmap 1 3 4\nsum 1 0 30\n";
    let program = Program::parse(text).expect("a program");
    let (file, source) = (folder.path().join("program"), folder.path().join("all.c"));
    std::fs::write(&file, text).expect("a file");
    std::fs::write(&source, emit::source(&program)).expect("a file");
    let interpreter = interpreter::build(folder.path()).expect("a C compiler");
    let alone = interpreter::compile(&source, folder.path(), "alone").expect("it compiles");
    let log = |program: &Path, name: &str| -> Vec<String> {
        let log = folder.path().join(name);
        let status = std::process::Command::new(program)
            .args([&file, &log])
            .current_dir(folder.path())
            .status();
        assert!(status.expect("it starts").success());
        let text = std::fs::read_to_string(&log).expect("a log");
        // In C the arguments stand with commas, and a block as a function.
        let plain = |line: &str| {
            let words = line
                .split_whitespace()
                .filter(|word| !word.starts_with("PART"));
            words.collect::<Vec<_>>().join(" ").replace(',', "")
        };
        text.lines().map(plain).collect()
    };
    assert_eq!(log(&interpreter, "one"), log(&alone, "other"));
}
