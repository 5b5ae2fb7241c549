//! Direct I/O of a program makes the tree check for pinned pages.

use crate::common::{output, run};
use std::path::Path;

/// Opens a file for direct I/O; the tree must be careful from then on.
const DIRECT: &str = "import os,sys; fd=os.open(sys.argv[1], os.O_RDWR|os.O_CREAT|os.O_DIRECT); \
                      os.environ['JOINER_REPORT']='1'; os.execv('/bin/true', ['true'])";

#[test]
fn direct_io_makes_the_tree_careful_before_the_call_returns() {
    if !Path::new("/usr/bin/python3").exists() {
        eprintln!("skipped: no python3");
        return;
    }
    let folder = tempfile::tempdir_in("/var/tmp").unwrap();
    let file = folder.path().join("file");
    let mut command = run(&["/usr/bin/python3", "-c", DIRECT, file.to_str().unwrap()]);
    command.env("JOINER_ACK", "1");
    let (done, errors) = output(command);
    assert!(done.status.success(), "{errors}");
    assert!(errors.contains("careful 1"), "{errors}");
    let (before, errors) = output({
        let mut command = run(&["/bin/true"]);
        command.env("JOINER_REPORT", "1");
        command
    });
    assert!(
        before.status.success() && errors.contains("careful 0"),
        "{errors}"
    );
}

#[test]
fn direct_io_is_refused_where_a_pager_never_answers() {
    if !Path::new("/usr/bin/python3").exists() {
        eprintln!("skipped: no python3");
        return;
    }
    let folder = tempfile::tempdir_in("/var/tmp").unwrap();
    let file = folder.path().join("file");
    let (output, errors) = output(run(&[
        "/usr/bin/python3",
        "-c",
        DIRECT,
        file.to_str().unwrap(),
    ]));
    assert_eq!(output.status.code(), Some(1), "{errors}");
    assert!(
        errors.contains("Invalid argument") && errors.contains("direct I/O was refused"),
        "{errors}"
    );
}

#[test]
fn a_program_stopped_forever_does_not_hold_up_direct_io() {
    if !Path::new("/usr/bin/python3").exists() {
        eprintln!("skipped: no python3");
        return;
    }
    let folder = tempfile::tempdir_in("/var/tmp").unwrap();
    let file = folder.path().join("file");
    // The stopped one never acknowledges; only the python that opens does.
    let script = format!(
        "sh -c 'kill -STOP $$' & JOINER_ACK=1 /usr/bin/python3 -c \"$0\" {}; e=$?; kill -9 $!; exit $e",
        file.display()
    );
    let mut command = run(&["bash", "-c", &script, DIRECT]);
    command.env("JOINER_ACK", "1");
    let (output, errors) = output(command);
    assert!(
        output.status.success() && !errors.contains("refused"),
        "{errors}"
    );
}
