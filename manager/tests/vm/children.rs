//! Children of the process whose memory is served.

use super::Memory;

/// Forks so many children, which end or stay, and then another one, which reads a page. Returns how that one ended.
pub fn read_in_child(memory: &Memory, others: usize, stay: bool, page: usize) -> String {
    let mut staying = Vec::new();
    for _ in 0..others {
        // SAFETY: this process has one thread; the child calls the kernel alone.
        match unsafe { libc::fork() } {
            0 => wait_to_be_killed(stay),
            child if stay => staying.push(child),
            child => drop(status(child)),
        }
    }
    // SAFETY: as above, and reads the memory.
    let child = unsafe {
        match libc::fork() {
            0 => {
                // What waits for ever ends so.
                libc::alarm(1);
                libc::_exit((memory.at(page, 1).read_volatile() == 0).into());
            }
            child => child,
        }
    };
    let status = status(child);
    for child in staying {
        // SAFETY: a child that was not waited for.
        unsafe { libc::kill(child, libc::SIGKILL) };
        self::status(child);
    }
    match libc::WIFSIGNALED(status) {
        true => format!("signal {}", libc::WTERMSIG(status)),
        false => format!("exit {}", libc::WEXITSTATUS(status)),
    }
}

fn wait_to_be_killed(stay: bool) -> ! {
    // SAFETY: changes this process alone.
    unsafe {
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
        if !stay {
            libc::_exit(0);
        }
        loop {
            libc::pause();
        }
    }
}

fn status(child: i32) -> i32 {
    let mut status = 0;
    // SAFETY: waits for a child of this process.
    unsafe { libc::waitpid(child, &raw mut status, 0) };
    status
}
