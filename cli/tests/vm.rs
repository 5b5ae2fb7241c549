//! `selfpage vm` towards the shell: it serves this process's memory, shows it, saves it, and ends.

use rustix::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use rustix::io::IoSlice;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use std::io::{BufRead, BufReader};
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

const PAGE: usize = 4096;
const PAGES: usize = 64;

fn vm(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_selfpage"));
    command.arg("vm").args(arguments).env_remove("SELFPAGE_LOG");
    command
}

fn text(path: &Path) -> &str {
    path.to_str().expect("a path of text")
}

/// Starts a manager and waits until it serves.
fn start(arguments: &[&str]) -> (Child, impl Iterator<Item = String>) {
    let mut child = vm(&["serve"])
        .args(arguments)
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stderr.take().unwrap()).lines();
    let mut lines = lines.map_while(Result::ok);
    let begins = lines.find(|line| line.contains("serves guests"));
    assert!(begins.is_some(), "the manager starts");
    (child, lines)
}

fn userfaultfd() -> OwnedFd {
    // SAFETY: an unregistered descriptor affects no memory.
    let fd = unsafe { libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC | libc::O_NONBLOCK) };
    assert!(fd >= 0, "userfaultfd: {}", std::io::Error::last_os_error());
    // SAFETY: a descriptor that the kernel just returned.
    let fd = unsafe { OwnedFd::from_raw_fd(fd as i32) };
    const EVENT_REMOVE: u64 = 1 << 3;
    let mut api = [0xAAu64, EVENT_REMOVE, 0];
    // SAFETY: struct uffdio_api is three words.
    let outcome = unsafe { libc::ioctl(fd.as_raw_fd(), 0xC018_AA3F, api.as_mut_ptr()) };
    assert_eq!(
        outcome,
        0,
        "UFFDIO_API: {}",
        std::io::Error::last_os_error()
    );
    fd
}

/// Memory of this process, handed over as a VMM does.
fn hand_over(socket: &Path) -> (*mut u8, OwnedFd, UnixStream) {
    let access = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: a new mapping, where the kernel chooses.
    let memory = unsafe { libc::mmap(std::ptr::null_mut(), PAGES * PAGE, access, flags, -1, 0) };
    let uffd = userfaultfd();
    let mut range = [memory as u64, (PAGES * PAGE) as u64, 1, 0];
    // SAFETY: struct uffdio_register is four words; the memory is this process's own.
    let registered = unsafe { libc::ioctl(uffd.as_raw_fd(), 0xC020_AA00, range.as_mut_ptr()) };
    assert_eq!(registered, 0);
    let json = format!(
        r#"[{{"base_host_virt_addr":{},"size":{},"offset":0,"page_size":4096}}]"#,
        memory as usize,
        PAGES * PAGE
    );
    let connection = UnixStream::connect(socket).unwrap();
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let fds = [uffd.as_fd()];
    assert!(control.push(SendAncillaryMessage::ScmRights(&fds)));
    let bytes = [IoSlice::new(json.as_bytes())];
    sendmsg(&connection, &bytes, &mut control, SendFlags::empty()).unwrap();
    (memory.cast(), uffd, connection)
}

fn succeeded(output: &Output) -> String {
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{error}");
    String::from_utf8(output.stdout.clone()).unwrap()
}

#[test]
fn a_manager_serves_shows_and_saves_a_guest() {
    let folder = tempfile::tempdir().unwrap();
    let (socket, snapshot) = (folder.path().join("socket"), folder.path().join("snapshot"));
    std::fs::write(&snapshot, vec![7; PAGES * PAGE]).unwrap();
    let serve = ["--socket", text(&socket), "--snapshot", text(&snapshot)];
    let (mut manager, mut log) = start(&serve);
    let (memory, _uffd, _connection) = hand_over(&socket);
    // SAFETY: the memory handed over, whose faults the manager answers.
    unsafe {
        assert_eq!(memory.add(5 * PAGE).read_volatile(), 7);
        memory.add(6 * PAGE).write_volatile(8);
    }
    let shown = succeeded(&vm(&["show", "--socket", text(&socket)]).output().unwrap());
    assert!(shown.contains("client 1"), "{shown}");
    assert!(
        shown.contains(&format!("process {}", std::process::id())),
        "{shown}"
    );
    assert!(shown.contains("demand_pages 2"), "{shown}");
    let to = folder.path().join("differential");
    let save = [
        "save",
        "--socket",
        text(&socket),
        "--client",
        "1",
        "--to",
        text(&to),
    ];
    let saved = succeeded(&vm(&save).output().unwrap());
    assert!(
        saved.contains("protected") && saved.contains("saved 1 pages"),
        "{saved}"
    );
    let saved = std::fs::read(&to).unwrap();
    assert_eq!(
        (saved.len(), saved[6 * PAGE], saved[6 * PAGE + 1]),
        (PAGES * PAGE, 8, 7)
    );
    // SAFETY: sends a signal to the child, which has not been waited for.
    unsafe { libc::kill(manager.id() as i32, libc::SIGTERM) };
    assert_eq!(manager.wait().unwrap().code(), Some(0));
    assert!(log.any(|line| line.contains("1 guests that still run")));
    assert!(!socket.exists());
}

#[test]
fn a_manager_that_is_killed_is_followed_by_another() {
    followed_by_another(|snapshot, _| vec![snapshot.to_owned()]);
}

#[test]
fn a_killed_manager_of_a_snapshot_in_a_store_is_followed_by_another() {
    followed_by_another(|snapshot, folder| {
        let url = format!("opendal:fs://{snapshot}");
        [&url, "--snapshot-folder", folder]
            .map(str::to_owned)
            .into()
    });
}

/// `options` are those of `--snapshot`, for the snapshot's path and its folder.
fn followed_by_another(options: impl Fn(&str, &str) -> Vec<String>) {
    let folder = tempfile::tempdir().unwrap();
    let (socket, snapshot) = (folder.path().join("socket"), folder.path().join("snapshot"));
    std::fs::write(&snapshot, vec![7; PAGES * PAGE]).unwrap();
    let options = options(text(&snapshot), text(folder.path()));
    let mut serve = vec!["--socket", text(&socket), "--snapshot"];
    serve.extend(options.iter().map(String::as_str));
    let (mut keeper, mut log) = start(&serve);
    let (memory, _uffd, _connection) = hand_over(&socket);
    // SAFETY: the memory handed over, whose faults the manager answers.
    unsafe {
        assert_eq!(memory.add(5 * PAGE).read_volatile(), 7);
        memory.add(6 * PAGE).write_volatile(8);
    }
    let children = format!("/proc/{0}/task/{0}/children", keeper.id());
    let child: i32 = std::fs::read_to_string(children)
        .unwrap()
        .trim()
        .parse()
        .unwrap();
    // SAFETY: sends a signal to the keeper's child, which the keeper waits for.
    unsafe { libc::kill(child, libc::SIGKILL) };
    // SAFETY: as above; the first waits for the next manager.
    unsafe {
        assert_eq!(memory.add(7 * PAGE).read_volatile(), 7);
        assert_eq!(memory.add(6 * PAGE).read_volatile(), 8);
    }
    assert!(log.any(|line| line.contains("(signal 9): another one goes on with 1 guests")));
    let shown = succeeded(&vm(&["show", "--socket", text(&socket)]).output().unwrap());
    assert!(
        shown.contains("client 1") && shown.contains("restarts 1"),
        "{shown}"
    );
    // SAFETY: sends a signal to the child, which has not been waited for.
    unsafe { libc::kill(keeper.id() as i32, libc::SIGTERM) };
    assert_eq!(keeper.wait().unwrap().code(), Some(0));
    assert!(log.any(|line| line.contains("1 guests that still run")));
    assert!(!socket.exists());
}

#[test]
fn what_cannot_be_served_is_refused_with_the_reason() {
    let folder = tempfile::tempdir().unwrap();
    let (socket, snapshot) = (folder.path().join("socket"), folder.path().join("snapshot"));
    std::fs::write(&snapshot, vec![7; PAGES * PAGE]).unwrap();
    let (socket, snapshot) = (text(&socket), text(&snapshot));
    let none = text(folder.path()).to_owned() + "/none";
    let nowhere = format!("disk:{none}/swap,size=8M");
    let [object, there] = [&*none, snapshot].map(|path| format!("opendal:fs://{path}"));
    let pipe = folder.path().join("pipe");
    let status = Command::new("mkfifo").arg(&pipe).status().unwrap();
    assert!(status.success());
    let base = ["serve", "--socket", socket, "--snapshot", snapshot];
    let empty = ["serve", "--socket", socket, "--empty", "1M"];
    for (arguments, why) in [
        (
            vec!["serve", "--socket", socket, "--snapshot", &none],
            "cannot be opened",
        ),
        (vec!["serve", "--socket", socket], "--snapshot"),
        ([&base[..], &["--frames", "8M"]].concat(), "--store"),
        (
            [&base[..], &["--frames", "4K", "--store", "ram:1M"]].concat(),
            "too few",
        ),
        (
            [&base[..], &["--frames", "8M", "--store", "remote:1M"]].concat(),
            "remote",
        ),
        ([&base[..], &["--shared-cache", &none]].concat(), "tmpfs"),
        (
            [&base[..], &["--frames", "8M", "--store", &nowhere]].concat(),
            "/none/swap",
        ),
        ([&base[..4], &[text(&pipe)]].concat(), "regular file"),
        (
            [&base[..4], &[&object]].concat(),
            "cannot find none at fs://",
        ),
        (
            vec![
                "serve",
                "--socket",
                socket,
                "--snapshot",
                "opendal:s3://bucket",
            ],
            "the name of an object",
        ),
        (
            [&base[..4], &[&there, "--snapshot-folder", &none]].concat(),
            "--snapshot-folder",
        ),
        ([&empty[..], &["--differential", &none]].concat(), "--empty"),
        ([&empty[..], &["--shared-cache", &none]].concat(), "--empty"),
        (
            [&empty[..], &["--snapshot-folder", &none]].concat(),
            "--empty",
        ),
        (vec!["show", "--socket", socket], "vm serve"),
        (
            vec!["save", "--socket", socket, "--client", "1", "--to", &none],
            "vm serve",
        ),
    ] {
        let output = vm(&arguments).output().unwrap();
        assert_eq!(output.status.code(), Some(125), "{arguments:?}");
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(error.contains(why), "{arguments:?}: {error}");
    }
}

#[test]
fn guests_are_as_many_as_descriptors_allow() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("socket");
    let serve = |limit: u32| {
        let mut command = Command::new("sh");
        let exec = format!("ulimit -n {limit} && exec \"$0\" vm serve --empty 1M --socket \"$1\"");
        let selfpage = env!("CARGO_BIN_EXE_selfpage");
        command.args(["-c", &exec, selfpage, text(&socket)]);
        command.env_remove("SELFPAGE_LOG").stderr(Stdio::piped());
        command
    };
    let output = serve(500).output().unwrap();
    assert_eq!(output.status.code(), Some(125));
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(error.contains("ulimit -n"), "{error}");
    let mut manager = serve(696).spawn().unwrap();
    let lines = BufReader::new(manager.stderr.take().unwrap()).lines();
    let mut lines = lines.map_while(Result::ok);
    assert!(lines.any(|line| line.contains("10 guests at most")));
    assert!(lines.any(|line| line.contains("serves guests")));
    // SAFETY: sends a signal to the child, which has not been waited for.
    unsafe { libc::kill(manager.id() as i32, libc::SIGTERM) };
    assert_eq!(manager.wait().unwrap().code(), Some(0));
}

#[test]
fn a_list_of_guests_into_a_closed_pipe_ends_quietly() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("socket");
    let serve = ["--socket", text(&socket), "--empty", "1M"];
    let (mut manager, _log) = start(&serve);
    let (read, write) = std::io::pipe().unwrap();
    drop(read);
    let mut show = vm(&["show", "--socket", text(&socket)]);
    let output = show.stdout(write).stderr(Stdio::piped()).output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.signal(), Some(libc::SIGPIPE), "{errors}");
    assert!(output.stderr.is_empty(), "{errors}");
    // SAFETY: sends a signal to the child, which has not been waited for.
    unsafe { libc::kill(manager.id() as i32, libc::SIGTERM) };
    assert_eq!(manager.wait().unwrap().code(), Some(0));
}
