//! A process that owns a swap filesystem is killed at a random moment, and the next owner finds
//! every extent where it was.

use disk::swapfs::{FileName, FormatOptions, SwapFs, UNIT};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// Path of the filesystem for the process that is killed.
const PLACE: &str = "SWAPFS_KILLED_AT";

const ROUNDS: usize = 24;

/// Extents of each file, by name and size: `name size device+len,...`.
type State = BTreeMap<String, String>;

fn name(step: u64) -> FileName {
    FileName::new(format!("file of step {step:04}").as_bytes()).unwrap()
}

/// In each step a file is made, grown, and the file of two steps before released.
fn take(fs: &mut SwapFs, step: u64) {
    match step % 3 {
        0 => {
            let file = fs.create(name(step), (1 + step % 4) * UNIT, &[1]).unwrap();
            let mut scrub = fs.scrub(file).unwrap().unwrap();
            scrub.run().unwrap();
            fs.complete_scrub(scrub).unwrap();
        }
        1 => {
            let file = fs.find(&name(step - 1)).unwrap().id();
            fs.set_blob(file, &step.to_le_bytes()).unwrap();
        }
        _ if step > 3 => {
            let file = fs.find(&name(step - 5)).unwrap().id();
            fs.release(file).unwrap();
        }
        _ => {}
    }
}

/// The names that exist after so many steps.
fn names_after(steps: u64) -> Vec<String> {
    let released = (0..steps).filter(|step| step % 3 == 2 && *step > 3);
    let gone: Vec<u64> = released.map(|step| step - 5).collect();
    let made = (0..steps).filter(|step| step % 3 == 0 && !gone.contains(step));
    made.map(|step| name(step).to_string()).collect()
}

fn state(fs: &SwapFs) -> State {
    let of = |file: &disk::swapfs::File| {
        let extents = fs.extents(file.id()).unwrap();
        let list = extents
            .list()
            .iter()
            .map(|e| format!("{}+{}", e.device, e.len));
        (file.name().to_string(), list.collect::<Vec<_>>().join(","))
    };
    fs.files().iter().map(of).collect()
}

#[test]
#[ignore = "the other test starts and kills it"]
fn owner() {
    let Some(path) = std::env::var_os(PLACE) else {
        return;
    };
    let mut fs = SwapFs::open(Path::new(&path)).unwrap();
    for step in 0..1000 {
        take(&mut fs, step);
        let files: Vec<String> = (state(&fs).iter())
            .map(|(name, list)| format!("{name}={list}"))
            .collect();
        println!("STEP {step} {}", files.join(";"));
    }
}

fn start(path: &Path) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "owner", "--ignored", "--nocapture"])
        .env(PLACE, path)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

/// The last step that was reported, and the state after it.
fn parse(line: &str) -> Option<(u64, State)> {
    let (step, files) = line.split_once("STEP ")?.1.split_once(' ')?;
    let files = files.split(';').filter_map(|file| file.split_once('='));
    let files = files.map(|(name, list)| (name.to_owned(), list.to_owned()));
    Some((step.parse().ok()?, files.collect()))
}

#[test]
fn killed_at_any_moment_it_leaves_every_extent_where_it_was() {
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path: PathBuf = directory.path().join("swap");
    let options = FormatOptions {
        size: Some(40 * UNIT),
        force: false,
    };
    for round in 0..ROUNDS {
        let _ = std::fs::remove_file(&path);
        drop(SwapFs::format(&path, &options).unwrap());
        let mut child = start(&path);
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut last = None;
        for line in lines.by_ref() {
            last = parse(&line.unwrap()).or(last);
            if last
                .as_ref()
                .is_some_and(|(step, _)| *step as usize >= round)
            {
                break;
            }
        }
        // Kills it at a random point of the next steps.
        std::thread::sleep(std::time::Duration::from_micros(round as u64 * 397 % 3000));
        child.kill().unwrap();
        child.wait().unwrap();
        // Its output until it died.
        for line in lines {
            last = parse(&line.unwrap()).or(last);
        }
        let (step, reported) = last.expect("the process printed nothing");

        let fs = SwapFs::open(&path).unwrap();
        let found = state(&fs);
        let names: Vec<String> = found.keys().cloned().collect();
        assert!(
            names == names_after(step + 1) || names == names_after(step + 2),
            "after step {step}: {names:?}"
        );
        for (name, list) in found
            .iter()
            .filter(|(name, _)| reported.contains_key(*name))
        {
            assert_eq!(*list, reported[name], "{name} after step {step}");
        }
        let files = fs.files().iter().map(|file| file.size()).sum::<u64>();
        assert_eq!(fs.usage().free + files, fs.usage().total);
    }
}
