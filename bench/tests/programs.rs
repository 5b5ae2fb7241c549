//! `selfpage bench programs` with little to do: that a program runs in its arms, that what cannot run
//! is named, and that nothing is left behind. What the figures are is not asked here.

use serde_json::Value;
use std::path::Path;
use std::process::{Command, Output};

fn bench(folder: &Path, words: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_selfpage-bench"))
        .args(["programs", "--repeats", "1", "--limit", "60", "--folder"])
        .arg(folder)
        .args(words)
        .output()
        .expect("the command starts")
}

#[test]
fn a_program_has_a_time_and_a_peak_or_the_reason_and_no_file_is_left() {
    let work = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder on a disk");
    let results = tempfile::tempdir().expect("a folder");
    let (json, svg) = (
        results.path().join("all.json"),
        results.path().join("all.svg"),
    );
    let options = ["--only", "sort", "--memory", "half", "--mib", "64"];
    let outputs = [
        "--json",
        &json.to_string_lossy(),
        "--svg",
        &svg.to_string_lossy(),
    ]
    .map(String::from);
    let outputs: Vec<&str> = outputs.iter().map(String::as_str).collect();
    let arms = ["--arms", "alone,alone-mimalloc"];
    let out = bench(
        work.path(),
        &[&options[..], &arms[..], &outputs[..]].concat(),
    );
    let said = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "{said}");
    let report: Value =
        serde_json::from_slice(&std::fs::read(&json).expect("the figures")).expect("they are JSON");
    let lacking = report["rows"].as_array().expect("rows");
    match report["parts"].as_array() {
        Some(parts) => {
            let alone = &parts[0]["arms"][0];
            assert_eq!(alone["arm"], "alone");
            assert!(alone["failure"].is_null(), "{alone}");
            assert!(alone["peak_mib"].as_f64() > Some(32.0), "{alone}");
            assert!(alone["runs"][0]["done"]["digest"].is_u64(), "{alone}");
        }
        // Control groups are root's.
        None => assert!(!lacking.is_empty() && lacking[0]["failure"].is_string()),
    }
    let picture = std::fs::read_to_string(&svg).expect("the picture");
    assert!(picture.starts_with("<svg"));
    let left = std::fs::read_dir(work.path()).expect("it is there").count();
    assert_eq!(left, 0);
}

#[test]
fn a_program_that_is_not_here_is_skipped_with_the_reason() {
    let work = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder on a disk");
    let out = bench(
        work.path(),
        &["--only", "python", "--python", "/no/such/python"],
    );
    let text = String::from_utf8_lossy(&out.stdout);
    assert!(
        out.status.success(),
        "{}",
        String::from_utf8_lossy(&out.stderr)
    );
    assert!(text.contains("skipped: python: /no/such/python"), "{text}");
}
