//! A disk with its thread, and clients of it in this process.

#![allow(dead_code, reason = "no test file uses all of it")]

use disk::atropos::{ClientId, DiskContract, Utilization};
use disk::cost_model::{CostModel, OpCost};
use disk::swapfs::{Device, FileName, FormatOptions, SwapFs};
use disk::time::Nanos;
use disk::usd::{ChannelId, IoTarget, Usd, UsdConfig, UsdEvent};
use iochannel::{ChannelClient, ChannelGeometry, ChannelServer, Doorbell, IoVec, create};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::fcntl_dupfd_cloexec;
use std::time::Duration;
use tempfile::TempDir;

pub const PAGE: usize = 4096;
pub const MIB: u64 = 1 << 20;

/// A page, aligned as channels require.
#[repr(C, align(4096))]
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Page(pub [u8; PAGE]);

impl std::fmt::Debug for Page {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "page {:?}", &self.0[..8])
    }
}

/// Pages that contain their owner and their place.
pub fn pages(of: u64, first: u64, count: usize) -> Vec<Page> {
    let page = |at| {
        let mut page = Page([0; PAGE]);
        for (number, word) in page.0.chunks_mut(8).enumerate() {
            let value: u64 = (of << 40) + ((first + at) << 10) + number as u64;
            word.copy_from_slice(&value.to_le_bytes());
        }
        page
    };
    (0..count as u64).map(page).collect()
}

/// A disk on a file.
pub struct Machine {
    pub fs: SwapFs<Device>,
    directory: TempDir,
}

/// Transactions with a negligible modelled time.
pub fn quick() -> UsdConfig {
    let class = OpCost {
        base: Nanos::micros(10),
        per_kib: Nanos(250),
    };
    UsdConfig {
        model: CostModel {
            read: class,
            write: class,
            bound: Nanos::micros(400),
            capacity: Utilization::WHOLE,
        },
        bound: Nanos::micros(400),
        spin: Duration::from_micros(20),
    }
}

pub fn contract(slice: u64, period: u64) -> DiskContract {
    DiskContract {
        period: Nanos::millis(period),
        slice: Nanos::millis(slice),
        extra: false,
        laxity: Nanos::millis(period.min(5)),
    }
}

/// A contract whose client never waits for time.
pub fn plenty() -> DiskContract {
    DiskContract::new(Nanos::millis(10), Nanos::millis(100)).with_slack()
}

impl Machine {
    pub fn new() -> Self {
        let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let format = FormatOptions {
            size: Some(32 * MIB),
            force: false,
        };
        let fs = SwapFs::format(&directory.path().join("swap"), &format).unwrap();
        Self { fs, directory }
    }

    pub fn path(&self, name: &str) -> std::path::PathBuf {
        self.directory.path().join(name)
    }

    pub fn start(&self, settings: UsdConfig) -> Usd {
        Usd::start(self.fs.medium().clone(), settings).unwrap()
    }

    /// A swap file of `size` bytes whose second MiB does not follow its first.
    pub fn file(&mut self, size: u64) -> IoTarget {
        let file = self.fs.create(self.unused_name(), MIB, &[]).unwrap();
        self.fs.create(self.unused_name(), MIB, &[]).unwrap();
        self.fs.grow(file, size).unwrap();
        while let Some(mut scrub) = self.fs.scrub(file).unwrap() {
            scrub.run().unwrap();
            self.fs.complete_scrub(scrub).unwrap();
        }
        IoTarget::Swap(self.fs.extents(file).unwrap())
    }

    fn unused_name(&self) -> FileName {
        FileName::new(format!("{:-<16}", self.fs.files().len()).as_bytes()).unwrap()
    }
}

/// A client's side: its contract, and one channel at first.
pub struct Tenant {
    pub id: ClientId,
    pub doorbell: Doorbell,
    pub channel: Channel,
}

pub struct Channel {
    pub id: ChannelId,
    pub client: ChannelClient,
    /// State that a tenant keeps for the disk's successor.
    pub memory: OwnedFd,
    pub server_bell: OwnedFd,
}

pub fn duplicate(fd: impl AsFd) -> OwnedFd {
    fcntl_dupfd_cloexec(fd, 0).unwrap()
}

pub fn same(doorbell: &Doorbell) -> Doorbell {
    Doorbell::attach(doorbell.share().unwrap()).unwrap()
}

impl Tenant {
    pub fn new(usd: &Usd, contract: DiskContract, backing: Option<IoTarget>) -> Self {
        let id = usd.admit(contract).unwrap();
        let doorbell = Doorbell::new().unwrap();
        if let Some(backing) = backing {
            usd.set_target(id, backing, same(&doorbell));
        }
        let channel = Channel::new(usd, id, &doorbell);
        Self {
            id,
            doorbell,
            channel,
        }
    }
}

impl Channel {
    pub fn new(usd: &Usd, client: ClientId, doorbell: &Doorbell) -> Self {
        let (server, ends) = create(ChannelGeometry::for_depth(16)).unwrap();
        let memory = duplicate(&ends.memory);
        let asking =
            ChannelClient::attach(ends.memory, doorbell.share().unwrap(), ends.bell).unwrap();
        Self {
            id: usd.add_channel(client, server),
            client: asking,
            memory,
            server_bell: ends.server_bell,
        }
    }

    /// The disk's end for its successor.
    pub fn succeed(&self) -> ChannelServer {
        ChannelServer::attach(duplicate(&self.memory), duplicate(&self.server_bell)).unwrap()
    }

    /// Performs one operation and waits: pages to or from page number `first`.
    pub fn transfer(&mut self, write: bool, pages: &mut [Page], first: u64) -> i32 {
        let pieces = pieces(pages);
        // SAFETY: the pages outlive the operation, which ends here.
        unsafe { self.client.begin(0, write, &pieces, first * PAGE as u64) };
        self.client.flush();
        let (op, result) = self.client.reap(true).unwrap();
        assert_eq!(op, 0);
        result
    }

    pub fn write(&mut self, of: u64, first: u64, count: usize) {
        let moved = self.transfer(true, &mut pages(of, first, count), first);
        assert_eq!(moved, (count * PAGE) as i32);
    }

    pub fn check(&mut self, of: u64, first: u64, count: usize) {
        let mut read = vec![Page([7; PAGE]); count];
        let moved = self.transfer(false, &mut read, first);
        assert_eq!(moved, (count * PAGE) as i32);
        assert_eq!(read, pages(of, first, count));
    }
}

pub fn pieces(pages: &mut [Page]) -> Vec<IoVec> {
    let piece = |page: &mut Page| IoVec::page(page.0.as_mut_ptr());
    pages.iter_mut().map(piece).collect()
}

/// Waits for the next event.
pub fn news(usd: &Usd) -> UsdEvent {
    loop {
        if let Some(news) = usd.next_event() {
            return news;
        }
        let mut fds = [PollFd::from_borrowed_fd(usd.event_fd(), PollFlags::IN)];
        let limit = Timespec {
            tv_sec: 20,
            tv_nsec: 0,
        };
        assert_eq!(poll(&mut fds, Some(&limit)).unwrap(), 1, "no news");
    }
}
