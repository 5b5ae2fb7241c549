//! The limit on the open descriptors of this process.

use rustix::event::{EventfdFlags, eventfd};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Raises the limit as far as the kernel permits, and returns it; `None` for no limit. On failure it stays as it is.
pub fn raise() -> Option<u64> {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        maximum: limit.maximum,
    };
    let _ = setrlimit(Resource::Nofile, raised);
    getrlimit(Resource::Nofile).current
}

/// Returns true if this process can open `count` more descriptors.
pub fn can_open(count: usize) -> bool {
    let Ok(first) = eventfd(0, EventfdFlags::CLOEXEC) else {
        return count == 0;
    };
    let others: Vec<_> = (1..count).map_while(|_| first.try_clone().ok()).collect();
    others.len() + 1 >= count
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;

    /// In a process of its own, since the limit applies to all threads.
    #[test]
    fn descriptors_are_counted_up_to_the_limit() {
        const LIMITED: &str = "SELFPAGE_TEST_LIMITED";
        if std::env::var_os(LIMITED).is_none() {
            let name = "descriptor_limit::tests::descriptors_are_counted_up_to_the_limit";
            let mut test = std::process::Command::new(std::env::current_exe().unwrap());
            test.args(["--exact", name]).env(LIMITED, "1");
            assert!(test.status().unwrap().success());
            return;
        }
        let limit = getrlimit(Resource::Nofile);
        let next = eventfd(0, EventfdFlags::CLOEXEC).unwrap().as_raw_fd() as u64;
        let current = Some(next + 7);
        setrlimit(Resource::Nofile, Rlimit { current, ..limit }).unwrap();
        assert!(can_open(7) && !can_open(8));
        let _open = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
        assert!(can_open(6) && !can_open(7));
    }
}
