//! The kernel's limit on a user's descriptors in flight, which binds users without privileges.

use host::seqpacket;
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::Duration;

const ROLE: &str = "SELFPAGE_TEST_IN_FLIGHT";
/// A user that has no processes otherwise.
const USER: u32 = 65_521;

#[test]
fn a_message_waits_while_the_user_has_too_many_descriptors_in_flight() {
    if !rustix::process::getuid().is_root() {
        eprintln!(
            "SKIPPED: the limit counts all processes of a user, and only root can be another user"
        );
        return;
    }
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "as_a_user_without_privileges"]);
    command.uid(USER).gid(USER);
    assert!(command.env(ROLE, "1").status().unwrap().success());
}

#[test]
fn as_a_user_without_privileges() {
    if std::env::var_os(ROLE).is_none() {
        return;
    }
    let current = Some(64);
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current, ..limit }).unwrap();
    let (to, from) = seqpacket::pair().unwrap();
    while send(&to) == Ok(()) {}
    assert_eq!(send(&to), Err(Errno::TOOMANYREFS));
    let receiver = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(100));
        while seqpacket::receive(&from, RecvFlags::DONTWAIT).is_ok_and(|it| it.len > 0) {}
        from
    });
    let (other, peer) = seqpacket::pair().unwrap();
    assert_eq!(send(&other), Ok(()));
    assert_eq!(
        seqpacket::receive(&peer, RecvFlags::empty()).unwrap().len,
        1
    );
    receiver.join().unwrap();
}

fn send(to: &OwnedFd) -> Result<(), Errno> {
    seqpacket::send(to, b"x", &[to.as_fd(); 8], SendFlags::DONTWAIT)
}
