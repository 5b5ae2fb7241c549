//! Commands that look, or are wrong, leave the machine as it was.

use std::process::Command;

/// Runs `selfpage` with its state in `folder`: its status, output and errors.
fn selfpage(folder: &std::path::Path, arguments: &[&str]) -> (Option<i32>, String, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_selfpage"))
        .args(arguments)
        .env("XDG_STATE_HOME", folder)
        .output()
        .unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (
        output.status.code(),
        text(&output.stdout),
        text(&output.stderr),
    )
}

#[test]
fn what_shows_a_cluster_makes_no_key() {
    let folder = tempfile::tempdir().unwrap();
    let (status, shown, _) = selfpage(folder.path(), &["cluster", "show"]);
    assert_eq!(status, Some(0));
    assert!(shown.contains("no key yet"), "{shown}");
    let (_, shown, _) = selfpage(folder.path(), &["cluster", "show", "--json"]);
    assert_eq!(shown, "[]\n");
    for command in [
        &["remote", "status"][..],
        &["cluster", "leave"],
        &["cluster", "remove", "x"],
    ] {
        let (status, _, errors) = selfpage(folder.path(), command);
        assert_eq!(status, Some(125));
        assert!(errors.contains("no key yet"), "{errors}");
    }
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
fn a_trace_without_a_daemon_leaves_an_older_one_as_it_is() {
    let folder = tempfile::tempdir().unwrap();
    let (file, socket) = (folder.path().join("old.json"), folder.path().join("none"));
    std::fs::write(&file, "precious").unwrap();
    let [file_name, socket] = [&file, &socket].map(|path| path.to_str().unwrap());
    let (status, _, errors) = selfpage(
        folder.path(),
        &["trace", "-o", file_name, "--system", socket],
    );
    assert_eq!(status, Some(125));
    assert!(errors.contains("no daemon listens"), "{errors}");
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "precious");
}

#[test]
fn a_check_refuses_what_the_daemon_would_make_in_the_wrong_place() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("config.toml");
    let check = |socket: &str, swap: &str| {
        let at = folder.path().display();
        let text =
            format!("socket = \"{at}/{socket}\"\n[disk]\nswap = \"{at}/{swap}\"\nsize = \"64M\"\n");
        std::fs::write(&file, text).unwrap();
        selfpage(
            folder.path(),
            &["system", "check", "--config", file.to_str().unwrap()],
        )
    };
    for (socket, swap, part) in [
        ("s", "none/swap", "none is not there"),
        ("none/s", "swap", "none is not there"),
        ("config.toml", "swap", "no socket"),
    ] {
        let (status, _, errors) = check(socket, swap);
        assert_eq!(status, Some(125), "{errors}");
        assert!(errors.contains(part), "{errors}");
    }
    let (status, shown, errors) = check("selfpage/s", "selfpage/swap");
    assert_eq!(status, Some(0), "{errors}");
    assert!(shown.contains("64MiB: 62MiB for contracts"), "{shown}");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
}

#[test]
fn a_request_that_cannot_be_meant_is_refused_with_what_was_expected() {
    let folder = tempfile::tempdir().unwrap();
    for (arguments, part) in [
        (&["contract", "set", "1"][..], "--frames"),
        (
            &["contract", "set", "one", "--frames", "64M"],
            "tenant's number",
        ),
        (&["contract", "set", "1", "--frames", "32"], "32M?"),
        (&["serve", "--listen", "4763"], "ADDRESS:PORT"),
        (&["serve", "--ram", "64", "--keep-free", "64"], "64M?"),
        (&["system", "--config", "/no/such.toml"], "--config"),
    ] {
        let (status, _, errors) = selfpage(folder.path(), arguments);
        assert_eq!(status, Some(125), "{arguments:?}: {errors}");
        assert!(errors.contains(part), "{arguments:?}: {errors}");
    }
}

#[test]
fn a_second_daemon_says_at_once_what_it_waits_for() {
    use rustix::net::{AddressFamily, SocketAddrUnix, SocketType, bind, listen, socket};
    let folder = tempfile::tempdir().unwrap();
    let (path, file) = (folder.path().join("s"), folder.path().join("config.toml"));
    let first = socket(AddressFamily::UNIX, SocketType::SEQPACKET, None).unwrap();
    bind(&first, &SocketAddrUnix::new(&path).unwrap()).unwrap();
    listen(&first, 4).unwrap();
    let at = folder.path().display();
    let text = format!("socket = \"{at}/s\"\n[disk]\nswap = \"{at}/swap\"\nsize = \"64M\"\n");
    std::fs::write(&file, text).unwrap();
    let config = file.to_str().unwrap();
    let (status, _, errors) = selfpage(folder.path(), &["system", "--config", config]);
    assert_eq!(status, Some(125), "{errors}");
    let lines: Vec<_> = errors.lines().collect();
    assert!(lines[0].contains("another daemon listens at"), "{errors}");
    assert!(lines[1].contains("stop that one first"), "{errors}");
}
