//! Processes as /proc has them.

use super::*;
use crate::procfs;
use rustix::process::{Resource, Rlimit, setrlimit};

#[test]
fn a_process_counts_as_running_though_no_descriptor_is_free_to_read_its_state() {
    const LIMITED: &str = "SELFPAGE_TEST_LIMITED";
    let me = process(rustix::process::getpid());
    if std::env::var_os(LIMITED).is_some() {
        let none = Rlimit {
            current: Some(0),
            maximum: Some(0),
        };
        setrlimit(Resource::Nofile, none).unwrap();
        let pid = rustix::process::getpid();
        assert!(ProcStat::read(pid).is_err());
        assert!(is_running(pid, me.start) && is_alive(me));
        assert!(try_below(pid).is_err());
        assert!(procfs::anonymous(pid).is_err() && procfs::rollup(pid).is_err());
        let ended = Pid::from_raw(i32::MAX).unwrap();
        assert!(!is_running(ended, me.start));
        return;
    }
    // The limit is of all threads.
    let limited = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["though_no_descriptor", "--test-threads=1"])
        .env(LIMITED, "1")
        .output()
        .unwrap();
    assert!(limited.status.success(), "{limited:?}");
}

#[test]
fn a_name_with_brackets_and_spaces_is_skipped() {
    let stat =
        ProcStat::parse(b"12 (a) b (c) T 7 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 999 23")
            .unwrap();
    assert_eq!(
        (stat.state, stat.parent, stat.start),
        (b'T', Pid::from_raw(7), 999)
    );
    assert!(stat.is_stopped_or_dead() && !stat.is_dead());
    assert!(ProcStat::parse(b"12 (a").is_none());
}

#[test]
fn a_thread_that_is_ending_is_distinguished_from_a_running_one() {
    let line = |state, flags| format!("7 (a) 3) Z) {state} 1 7 7 0 -1 {flags} 90 0 12 0 0\n");
    let exits =
        |state, flags| ProcStat::parse(line(state, flags).as_bytes()).map(|stat| stat.is_exiting());
    assert_eq!(exits('S', 0x40_0000), Some(false));
    assert_eq!(exits('R', 0x40_0000 | EXITING), Some(true));
    assert_eq!(exits('Z', 0), Some(true));
}

#[test]
fn a_process_whose_first_thread_alone_has_ended_is_not_dead() {
    let line = |threads| format!("7 (a) Z 1 7 7 0 -1 4 90 0 12 0 0 0 0 0 20 0 {threads} 0 999 0");
    let stat = |threads| ProcStat::parse(line(threads).as_bytes()).unwrap();
    assert!(!stat(2).is_dead() && !stat(2).is_stopped_or_dead() && stat(2).is_exiting());
    assert!(stat(1).is_dead() && stat(1).is_stopped_or_dead());
    assert_eq!(stat(2).start, 999);
}

#[test]
fn the_kernel_marks_a_first_thread_that_has_ended() {
    let own = ProcStat::of(rustix::process::getpid()).unwrap();
    assert!(!own.is_exiting());
    let mut child = std::process::Command::new("true").spawn().unwrap();
    let pid = Pid::from_child(&child);
    while !ProcStat::of(pid).unwrap().is_exiting() {
        std::thread::yield_now();
    }
    let ended = ProcStat::of(pid).unwrap();
    assert_ne!(ended.flags & EXITING, 0, "{ended:?}");
    child.wait().unwrap();
}

#[test]
fn a_pidfd_and_proc_name_the_same_parent_and_users() {
    let us = rustix::process::getpid();
    let pidfd = pidfd_open(us, PidfdFlags::empty()).unwrap();
    let by_proc = ProcStatus::of_proc(us).unwrap().unwrap();
    match ProcStatus::of_pidfd(&pidfd) {
        Some(by_pidfd) => assert_eq!(by_pidfd, by_proc),
        None => println!("SKIPPED: this kernel has no PIDFD_GET_INFO"),
    }
    assert_eq!(by_proc.parent, rustix::process::getppid());
}

#[test]
fn a_child_is_below_us_and_we_are_not_below_it() {
    let mut child = std::process::Command::new("sleep")
        .arg("1000")
        .spawn()
        .unwrap();
    let (us, pid) = (rustix::process::getpid(), Pid::from_child(&child));
    assert!(descends(pid, us) && !descends(us, pid) && below(us).contains(&pid));
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(!below(us).contains(&pid));
}
