//! The figures at the end of `run`, and what becomes of a file of earlier ones.

use crate::common::{output, selfpage};

fn run(options: &[&str], program: &str) -> (Option<i32>, String) {
    let mut command = selfpage(&["run"]);
    command.args(options).args(["--", program]);
    let (output, errors) = output(command);
    (output.status.code(), errors)
}

#[test]
fn figures_of_an_earlier_run_stay_where_no_program_is_started() {
    let folder = tempfile::tempdir().unwrap();
    let (file, socket) = (folder.path().join("figures.json"), folder.path().join("s"));
    std::fs::write(&file, "of an earlier run").unwrap();
    let system = format!("--system={}", socket.display());
    let options = [&system, "--stats-json", file.to_str().unwrap()];
    let (status, errors) = run(&options, "true");
    assert_eq!(status, Some(125), "{errors}");
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "of an earlier run");
}

#[test]
fn figures_replace_longer_ones() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("figures.json");
    std::fs::write(&file, vec![b'x'; 1 << 20]).unwrap();
    let options = ["--frames", "64M", "--stats-json", file.to_str().unwrap()];
    let (status, errors) = run(&options, "true");
    assert_eq!(status, Some(0), "{errors}");
    let figures: serde_json::Value =
        serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    assert_eq!(figures["status"], 0);
}

#[test]
fn figures_that_cannot_be_written_are_a_failure_of_run_where_the_program_has_none() {
    let options = ["--frames", "64M", "--stats-json", "/dev/full"];
    for (program, expected) in [("true", 125), ("false", 1)] {
        let (status, errors) = run(&options, program);
        assert_eq!(status, Some(expected), "{errors}");
        assert!(
            errors.contains("cannot write the figures to /dev/full"),
            "{errors}"
        );
    }
}
