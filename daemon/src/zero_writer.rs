//! Writes zeros to the disk as a client of its schedule.
//!
//! *Self-Paging in the Nemesis Operating System* (OSDI 1999), section 6.7: every client of the
//! disk has a contract, and so has the daemon. Its own is [`contract`]: one part in twenty of the time, beside
//! what tenants may be promised, and slack time while there is some. So writes of zeros are never served
//! before a tenant's request by more than the schedule permits, and do not depend on kernel threads, which
//! made them twenty times slower where these waited for a processor.

use disk::atropos::{DiskContract, Utilization};
use disk::swapfs::{BlockDevice, Device};
use disk::time::Nanos;
use disk::usd::{IoTarget, Usd};
use iochannel::{ChannelClient, ChannelGeometry, Doorbell, IoVec, MAX_RUN};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::{Errno, fcntl_dupfd_cloexec};
use wired::{PAGE, WiredMemory};

/// Requests in a step.
const REQUESTS: usize = 2;
/// Bytes of a request.
const REQUEST: u64 = (MAX_RUN * PAGE) as u64;
/// Bytes of a step. The release of a file waits for its current step, so a step is small.
pub(crate) const STEP: u64 = REQUESTS as u64 * REQUEST;

/// The daemon's contract for disk time. The period is short, so that a step takes a short time, too.
pub(crate) fn contract() -> DiskContract {
    DiskContract::new(Nanos::millis(1), Nanos::millis(20)).with_slack()
}

/// The share of the disk that is the daemon's, beyond what tenants may be promised.
pub(crate) fn share() -> Utilization {
    contract().share()
}

/// Why there is no channel to the disk.
#[derive(Debug, thiserror::Error)]
pub(crate) enum WriterError {
    #[error("the disk does not admit the daemon: {0}")]
    Contract(#[from] disk::atropos::AdmissionError),
    #[error(transparent)]
    Channel(#[from] iochannel::ChannelError),
    #[error("no memory: {0}")]
    Memory(#[from] std::io::Error),
    #[error("no descriptor: {0}")]
    Descriptor(#[from] Errno),
}

/// A client of the disk's thread that may write anywhere on the device.
pub(crate) struct ZeroWriter {
    client: ChannelClient,
    /// The pages of a request, all of them the same page of zeros.
    pieces: Box<[IoVec; MAX_RUN]>,
    /// True once the disk's thread has ended and left a request incomplete.
    has_disk_ended: bool,
    /// The page that `pieces` point to.
    _page: WiredMemory,
}

// SAFETY: its pieces point to memory of its own.
unsafe impl Send for ZeroWriter {}

impl ZeroWriter {
    /// Admits the client. The disk's capacity must have room for [`contract`].
    pub fn new(usd: &Usd, device: &Device) -> Result<Self, WriterError> {
        let client = usd.admit(contract())?;
        let doorbell = Doorbell::new()?;
        let rung = doorbell.share()?;
        let target = IoTarget::File {
            fd: fcntl_dupfd_cloexec(device, 0)?,
            size: device.size(),
            writable: true,
        };
        usd.set_target(client, target, doorbell);
        let geometry = ChannelGeometry::for_depth(REQUESTS);
        // The server's end of the bell is not kept here, so the client's hangs up when the disk's thread has ended.
        let (server, ends) = iochannel::create(geometry)?;
        usd.add_channel(client, server);
        let page = WiredMemory::private(PAGE)?;
        let piece = IoVec::page(page.as_ptr());
        Ok(Self {
            client: ChannelClient::attach(ends.memory, rung, ends.bell)?,
            pieces: Box::new([piece; MAX_RUN]),
            has_disk_ended: false,
            _page: page,
        })
    }

    /// Writes zeros to the `len` bytes at `at`, at most [`STEP`], and returns when they are written.
    /// `ECANCELED` if the disk's thread has ended.
    pub fn write(&mut self, at: u64, len: u64) -> Result<(), Errno> {
        if self.has_disk_ended {
            return Err(Errno::CANCELED);
        }
        let requests = len.div_ceil(REQUEST) as usize;
        let asked = |op: usize| (len - op as u64 * REQUEST).min(REQUEST);
        for op in 0..requests {
            let pieces = &self.pieces[..asked(op) as usize / PAGE];
            // SAFETY: the pieces and their page stay as they are as long as the client.
            unsafe {
                self.client
                    .begin(op, true, pieces, at + op as u64 * REQUEST)
            };
        }
        self.client.flush();
        let mut result = Ok(());
        for _ in 0..requests {
            let (op, written) = self.wait()?;
            result = result.and(match u64::try_from(written) {
                Err(_) => Err(Errno::from_raw_os_error(-written)),
                Ok(written) if written < asked(op) => Err(Errno::IO),
                Ok(_) => Ok(()),
            });
        }
        result
    }

    /// The next completion.
    fn wait(&mut self) -> Result<(usize, i32), Errno> {
        let mut has_hung_up = false;
        loop {
            if let Some(completed) = self.client.reap(false) {
                return Ok(completed);
            }
            if has_hung_up {
                self.has_disk_ended = true;
                return Err(Errno::CANCELED);
            }
            let bell = self.client.poll_fd();
            let mut fds = [PollFd::from_borrowed_fd(bell, PollFlags::IN)];
            match poll(&mut fds, None) {
                Ok(_) | Err(Errno::INTR) => {
                    has_hung_up = fds[0].revents().contains(PollFlags::HUP);
                }
                Err(errno) => return Err(errno),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use disk::cost_model::{CostModel, OpCost};
    use disk::swapfs::{FormatOptions, SwapFs, UNIT};
    use disk::usd::UsdConfig;
    use std::fs::File;
    use std::os::unix::fs::FileExt;
    use std::time::Duration;

    const CONFIG: UsdConfig = UsdConfig {
        model: CostModel {
            read: COST,
            write: COST,
            bound: Nanos::millis(1),
            capacity: Utilization::WHOLE,
        },
        bound: Nanos::millis(1),
        spin: Duration::ZERO,
    };
    const COST: OpCost = OpCost {
        base: Nanos(10_000),
        per_kib: Nanos(1_000),
    };

    #[test]
    fn it_writes_zeros_and_fails_once_the_disks_thread_has_ended() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("swap");
        let options = FormatOptions {
            size: Some(8 * UNIT),
            force: false,
        };
        let swap = SwapFs::format(&path, &options).unwrap();
        let usd = Usd::start(swap.medium().clone(), CONFIG).unwrap();
        let mut writer = ZeroWriter::new(&usd, swap.medium()).unwrap();
        let file = File::options().read(true).write(true).open(&path).unwrap();
        let (at, page) = (2 * UNIT, PAGE as u64);
        file.write_all_at(&vec![7; 2 * STEP as usize], at).unwrap();
        file.sync_all().unwrap();

        writer.write(at + page, STEP).unwrap();
        let mut bytes = vec![1; STEP as usize + 2 * PAGE];
        file.read_exact_at(&mut bytes, at).unwrap();
        let zeros = PAGE..PAGE + STEP as usize;
        assert!(bytes[zeros.clone()].iter().all(|&byte| byte == 0));
        assert_eq!((bytes[zeros.start - 1], bytes[zeros.end]), (7, 7));
        let outside = writer.write(swap.medium().size(), page);
        assert_eq!(outside, Err(Errno::FBIG));

        drop(usd);
        assert_eq!(writer.write(at, STEP), Err(Errno::CANCELED));
        assert_eq!(writer.write(at, STEP), Err(Errno::CANCELED));
    }
}
