//! The limits (`ulimit`) that are too low for `run`: which limit, its value, and a value that is
//! high enough. A call that fails by a limit does not name it.

use pageclient::PagingFile;
use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use store::{DiskConfig, DiskLocation, StoreConfig};
use wired::Bytes;

/// Descriptors that `run` opens beside those that it was started with. With two processors a
/// program starts from 20 on; its pager opens more with more processors (at most eight are
/// used), and the supervisor five for each further process, beside a reserve of 19.
const DESCRIPTORS: u64 = 48;

/// Further descriptors for a daemon's channels and bells.
const DAEMON_DESCRIPTORS: u64 = 8;

/// Address space of a pager beside the tables it shares: stacks, staging, a first arena.
const PAGER_SPACE: u64 = 256 << 20;

/// The field of /proc/PID/statm that counts data and stacks.
const DATA_FIELD: usize = 5;

/// More bytes than a thread's stack with its guard takes.
const STACK: u64 = 4 << 20;

/// A limit that is too low. Sizes are in bytes.
#[derive(Debug, thiserror::Error)]
pub enum Limit {
    /// `ulimit -n`.
    #[error(
        "`ulimit -n` allows {there} open files here; {open} are open, and `selfpage run` needs {needed} more, and \
         five for each further process of the tree: set it to {} or higher",
        open + needed
    )]
    Files {
        /// The limit.
        there: u64,
        /// Descriptors open at the start.
        open: u64,
        /// Descriptors needed beside them.
        needed: u64,
    },
    /// `ulimit -f`, below the size of a requested swap file.
    #[error(
        "`ulimit -f` allows files of at most {} here, less than the swap file of {} that --store asks for: raise \
         it (ulimit -f unlimited), or ask for less",
        Bytes(*.there), Bytes(*.needed)
    )]
    SwapFile {
        /// The limit.
        there: u64,
        /// The file's size.
        needed: u64,
    },
    /// `ulimit -f`, exceeded by another file.
    #[error(
        "`ulimit -f` allows files of at most {} here, and to the kernel the memory that processes share is a file, \
         too: raise it (ulimit -f unlimited)",
        Bytes(*.there)
    )]
    SharedMemory {
        /// The limit.
        there: u64,
    },
    /// `ulimit -v`.
    #[error(
        "`ulimit -v` allows each process {} of address space here, and a process needs {} beside the program's own \
         for the tables of its pager and this store: raise it (ulimit -v unlimited), or ask for a smaller store",
        Bytes(*.there), .needed.map_or("more".to_owned(), |needed| format!("at least {}", Bytes(needed)))
    )]
    Space {
        /// The limit.
        there: u64,
        /// The least sufficient value, where it is known.
        needed: Option<u64>,
    },
    /// `ulimit -d`.
    #[error(
        "`ulimit -d` allows each process {} of data here, and to the kernel the stacks and reserved addresses of a \
         pager are data: raise it (ulimit -d unlimited)",
        Bytes(*.there)
    )]
    Data {
        /// The limit.
        there: u64,
    },
}

/// Checks the limits before any process starts. `store` is the requested store, `open` the number
/// of open descriptors, and `has_daemon` is true if a daemon grants the contract.
pub fn check(store: Option<&StoreConfig>, open: u64, has_daemon: bool) -> Result<(), Limit> {
    let needed = DESCRIPTORS + if has_daemon { DAEMON_DESCRIPTORS } else { 0 };
    if let Some(there) = current(Resource::Nofile).filter(|there| *there < open + needed) {
        return Err(Limit::Files {
            there,
            open,
            needed,
        });
    }
    let needed = store
        .and_then(|store| store.disk.as_ref())
        .map_or(0, file_bytes);
    match current(Resource::Fsize) {
        Some(there) if there < needed => Err(Limit::SwapFile { there, needed }),
        _ => Ok(()),
    }
}

/// Bytes of the file that a store makes.
fn file_bytes(disk: &DiskConfig) -> u64 {
    match (disk.file(), &disk.place) {
        (Some(file), DiskLocation::Remote | DiskLocation::Objects(_)) => {
            PagingFile::bytes(file.size)
        }
        (file, _) => file.map_or(0, |file| file.size),
    }
}

/// Checks the address space once the supervisor has mapped the tables, before it starts the program, which maps them, too.
pub fn check_space() -> Result<(), Limit> {
    if let Some(limit) = data() {
        return Err(limit);
    }
    let Some(there) = current(Resource::As) else {
        return Ok(());
    };
    // A quarter of the limit is the program's first arena (`preload::space::fit_arenas`).
    let needed = (mapped() + PAGER_SPACE) / 3 * 4;
    match there < needed {
        true => Err(Limit::Space {
            there,
            needed: Some(needed.next_multiple_of(1 << 20)),
        }),
        false => Ok(()),
    }
}

/// Raises this process's limit on processor time as far as permitted: the limit is meant for single processes, and this
/// one works for a whole tree.
pub fn raise_processor_time() {
    let hard = getrlimit(Resource::Cpu).maximum;
    for limit in [None, hard] {
        let raised = Rlimit {
            current: limit,
            maximum: limit,
        };
        if setrlimit(Resource::Cpu, raised).is_ok() {
            return;
        }
    }
}

/// The seconds of processor time after which the kernel kills a process; `None` for no limit.
pub fn processor_time() -> Option<u64> {
    getrlimit(Resource::Cpu).maximum
}

/// The limit that made a call fail, if a limit did.
pub fn behind(errno: Option<Errno>) -> Option<Limit> {
    match errno? {
        Errno::FBIG => current(Resource::Fsize).map(|there| Limit::SharedMemory { there }),
        Errno::NOMEM => current(Resource::As)
            .map(|there| Limit::Space {
                there,
                needed: None,
            })
            .or_else(data),
        // The error of a thread whose stack cannot be mapped.
        Errno::AGAIN => data(),
        _ => None,
    }
}

/// The limit on data, where it leaves no room for a thread's stack.
fn data() -> Option<Limit> {
    let there = current(Resource::Data)?;
    let used = statm(DATA_FIELD).saturating_mul(wired::PAGE as u64);
    (there < used + STACK).then_some(Limit::Data { there })
}

fn current(what: Resource) -> Option<u64> {
    getrlimit(what).current
}

/// Bytes of address space that this process has mapped.
fn mapped() -> u64 {
    statm(0) * wired::PAGE as u64
}

/// A field of /proc/self/statm, in pages.
fn statm(at: usize) -> u64 {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = text.split(' ').nth(at).and_then(|word| word.parse().ok());
    pages.unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn too_few_descriptors_are_reported_with_the_figures() {
        let Some(there) = current(Resource::Nofile) else {
            return;
        };
        check(None, 3, true).unwrap();
        // As many as it needs without a daemon.
        let error = check(None, there - DESCRIPTORS, true)
            .unwrap_err()
            .to_string();
        assert!(
            error.contains(&(there + DAEMON_DESCRIPTORS).to_string()),
            "{error}"
        );
        check(None, there - DESCRIPTORS, false).unwrap();
        let error = check(None, there, false).unwrap_err().to_string();
        assert!(
            error.contains(&format!("allows {there} open files")),
            "{error}"
        );
        assert!(
            error.contains(&(there + DESCRIPTORS).to_string()),
            "{error}"
        );
    }

    #[test]
    fn only_errors_that_a_limit_can_cause_are_attributed_to_one() {
        assert!(behind(Some(Errno::NOENT)).is_none() && behind(None).is_none());
        assert_eq!(
            behind(Some(Errno::NOMEM)).is_some(),
            current(Resource::As).is_some()
        );
    }
}
