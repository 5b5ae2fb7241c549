//! A run within another.

use crate::common::{output, selfpage};

#[test]
fn a_run_within_another_names_each_option_that_it_does_not_use() {
    let inner = env!("CARGO_BIN_EXE_selfpage");
    let mut command = selfpage(&["run", "--frames", "64M", "--", inner, "run"]);
    command.args([
        "--frames",
        "64M",
        "--ram",
        "1M",
        "--fault-rate",
        "100/10ms",
        "--cpu",
        "1ms/100ms",
        "true",
    ]);
    let (output, errors) = output(command);
    assert!(output.status.success(), "{errors}");
    let unused = "--frames, --ram and --fault-rate given here are not used";
    assert!(errors.contains(unused), "{errors}");
}
