//! Compressed RAM that is part of a tree's frames: under contract with the daemon, or by `--ram`.
//!
//! *Self-Paging in the Nemesis Operating System*, section 6.2, has one kind of frame and one way to
//! take it back. So compressed RAM is a domain of the tree's ledger like a process's: its frames
//! are owned, limited, counted and revoked as those of a process are. One thread is its pager. To
//! grow it takes frames, demanding them from the processes where none is free, and then raises the
//! store's limit on segments (`store::RamResizer`). To shrink it lowers that limit, demotes the
//! oldest segments through a channel of its own, under the daemon in the tenant's disk time, gives the memory
//! back, and then releases the frames. So compressed pages of an idle program are revoked, too.
//!
//! A revocation by the daemon takes frames from all domains in proportion, and from compressed RAM
//! in parallel with the processes' own evictions. A frame of it holds several pages to write, but in
//! runs; the deadline allows for each frame sixteen times the cost of a page of a run
//! (`daemon/src/backing.rs`). `store::RamSizing` decides the size of compressed RAM, which is at most
//! half of the frames that the tree may own now.
//!
//! Rule: the limit on segments never exceeds the frames owned here, so memory that holds compressed
//! pages is always counted.

use crate::config::StartError;
use crate::links::Links;
use crate::sockets::own_uid;
use frames::{Contract, DomainFrames, DomainId, Frame, Ledger, Millis};
use host::fd_reaper::PeerFd;
use host::seqpacket;
use iochannel::ChannelClient;
use link::handshake::{Message, Reply, SlotIndex, slot_of};
use rustix::fd::OwnedFd;
use rustix::io::{self, Errno};
use rustix::net::RecvFlags;
use std::sync::Mutex;
use std::time::{Duration, Instant};
use store::{DiskTransport, RamResizer, RamSizing, RamUse, SharedStore, StoreError};
use wired::PAGE;

/// The pause between two samples of the counters while pages move, and while no page moves.
const TICK: Duration = Duration::from_millis(5);
const IDLE_TICK: Duration = Duration::from_millis(100);
/// The pause before another attempt to give a segment back that another channel is emptying.
const RETRY: Duration = Duration::from_millis(1);
/// How long compressed RAM does not grow after a revocation, since others need the frames.
const HOLD_OFF: Duration = Duration::from_secs(1);

/// The parts that the thread works with.
struct CompressedRamParts {
    /// A view of the tree's ledger; under the daemon one that rings it.
    ledger: Ledger,
    store: SharedStore,
    /// A channel to the daemon or the remote client arrives here; `None` where the store has a file of its own.
    channel: Option<OwnedFd>,
    /// The most frames that compressed RAM may own.
    max_frames: u32,
}

/// Starts the thread that sizes the compressed RAM of this store, of at most `ram` bytes, with a
/// domain of its own in the ledger.
pub(crate) fn start(
    ledger: &OwnedFd,
    store: &SharedStore,
    ram: u64,
    links: &mut Links,
) -> Result<(), StartError> {
    let call = StartError::call;
    let mut parts = CompressedRamParts {
        ledger: Ledger::attach(ledger)?,
        store: store.clone(),
        channel: None,
        max_frames: (ram / PAGE as u64) as u32,
    };
    if let Some(bell) = links.pressure_bell() {
        let bell = io::fcntl_dupfd_cloexec(bell, 0).map_err(call("copy a descriptor"))?;
        parts.ledger.set_bell(bell);
    }
    if !links.has_channels() {
        return admit(parts).map(drop);
    }
    let (ours, theirs) = seqpacket::pair().map_err(call("make a socket"))?;
    parts.channel = Some(ours);
    let slot = admit(parts)?;
    let ops = store.channel_ops(RamResizer::DEPTH);
    links.open(slot, ops, PeerFd::new(theirs, own_uid()));
    Ok(())
}

/// Admits the domain and starts its thread, which lasts as long as the supervisor. Returns the
/// domain's slot.
fn admit(parts: CompressedRamParts) -> Result<SlotIndex, StartError> {
    let contract = Contract {
        g: 0,
        x: parts.max_frames,
    };
    let domain = parts.ledger.admit(contract)?;
    parts.ledger.adopt(domain)?;
    let slot = slot_of(domain.raw());
    let thread = std::thread::Builder::new().name("selfpage-ram".into());
    let mut parts = parts;
    let channel = parts.channel.take();
    let spawned = thread.spawn(move || match serve(&parts, channel, domain) {
        Ok(never) => match never {},
        Err(why) => tracing::warn!("pages are not compressed in RAM: {why}"),
    });
    spawned.map(|_| slot).map_err(|error| {
        StartError::call("start a thread")(Errno::from_io_error(&error).unwrap_or(Errno::AGAIN))
    })
}

/// A type without values: the thread does not return.
enum Never {}

fn serve(
    parts: &CompressedRamParts,
    channel: Option<OwnedFd>,
    domain: DomainId,
) -> Result<Never, StoreError> {
    let lost = |errno: Errno| StoreError::Channel {
        what: "its IO channel",
        errno: errno.raw_os_error(),
    };
    if let Some(channel) = channel {
        parts
            .store
            .set_transport(Box::new(AwaitedChannel::new(channel)));
    }
    parts
        .store
        .set_holder(slot_of(domain.raw()))
        .map_err(|_| lost(Errno::INVAL))?;
    let resizer = parts.store.ram_resizer()?;
    let frames = parts.ledger.client(domain).map_err(|_| lost(Errno::SRCH))?;
    CompressedRam::new(parts, frames, resizer).run()
}

/// A transport with one channel, which arrives by a socket: the daemon may take long to open it.
pub(crate) struct AwaitedChannel(Mutex<Option<OwnedFd>>);

impl AwaitedChannel {
    pub fn new(from: OwnedFd) -> Self {
        Self(Mutex::new(Some(from)))
    }
}

impl DiskTransport for AwaitedChannel {
    fn open(&self, _: usize) -> Result<ChannelClient, Errno> {
        let mut from = self.0.lock().map_err(|_| Errno::NOTCONN)?;
        receive_channel(&from.take().ok_or(Errno::NOTCONN)?)
    }

    /// The supervisor retires a process when none of its I/O is in flight.
    fn wait_for_io(&self) {}
}

fn receive_channel(from: &OwnedFd) -> Result<ChannelClient, Errno> {
    let message = seqpacket::receive(from, RecvFlags::empty())?;
    let opened = Reply::decode(message.as_slice()) == Some(Reply::Channel);
    let [memory, doorbell, bell, ..] = message.fds;
    match (opened, memory, doorbell, bell) {
        (true, Some(memory), Some(doorbell), Some(bell)) => {
            ChannelClient::attach(memory, doorbell, bell).map_err(|_| Errno::PROTO)
        }
        _ => Err(Errno::NOTCONN),
    }
}

/// The domain's pager.
struct CompressedRam<'a> {
    ledger: &'a Ledger,
    frames: DomainFrames<'a>,
    resizer: RamResizer,
    sizing: RamSizing,
    /// Frames owned: at least those of the segments that may have memory.
    owned: Vec<Frame>,
    /// The counters at the last sample.
    seen: RamUse,
    revoked_at: Option<Instant>,
    is_demanding: bool,
}

impl<'a> CompressedRam<'a> {
    fn new(parts: &'a CompressedRamParts, frames: DomainFrames<'a>, resizer: RamResizer) -> Self {
        Self {
            ledger: &parts.ledger,
            frames,
            sizing: RamSizing::new(resizer.segments()),
            resizer,
            owned: Vec::new(),
            seen: RamUse::default(),
            revoked_at: None,
            is_demanding: false,
        }
    }

    fn run(mut self) -> ! {
        loop {
            let seq = self.frames.bell_seq();
            let gave_all = self.serve_revocation();
            let used = self.resizer.sample();
            let is_idle = used == self.seen;
            // Pages stored count as pages read do: compressed RAM that has just begun to fill has no hits yet, and
            // a process would trim it for idleness.
            if used.traffic() != self.seen.traffic() {
                self.frames.note_use(Millis::now());
            }
            self.seen = used;
            self.resize(used);
            let tick = match (gave_all, is_idle) {
                (false, _) => RETRY,
                (true, false) => TICK,
                (true, true) => IDLE_TICK,
            };
            self.frames.wait_bell(seq, Some(tick));
        }
    }

    /// Gives back the frames that the daemon or a process demands, and those that other domains trim.
    /// Returns false if some could not be given back yet.
    fn serve_revocation(&mut self) -> bool {
        let (demanded, trimmed) = (self.frames.demanded(), self.frames.trimmed());
        if demanded + trimmed == 0 {
            return true;
        }
        self.revoked_at = Some(Instant::now());
        // Frames that are given up must not be reserved for this domain, which takes none for a while.
        self.demand(0);
        let owned = self.owned.len() as u32;
        self.shrink_to(owned.saturating_sub(demanded + trimmed));
        if demanded > 0 {
            self.frames.release_demanded(demanded);
        }
        if trimmed > 0 {
            self.frames.release_trimmed(trimmed, Millis::now());
        }
        self.frames.demanded() == 0 || self.owned.is_empty()
    }

    /// Moves the limit towards the policy's target.
    fn resize(&mut self, used: RamUse) {
        let target = self.sizing.update(used, self.resizer.limit());
        // No frames for segments that no page needs yet.
        let needed = match used.written {
            0 => 0,
            _ => self.resizer.in_use() * 2 + RamSizing::LEAST,
        };
        let pages = self.resizer.segment_pages();
        let half = self.ledger.limit() / 2 / pages;
        let segments = target.min(needed).min(half);
        let segments = if segments < RamSizing::LEAST {
            0
        } else {
            segments
        };
        let want = segments * pages;
        if want < self.owned.len() as u32 {
            self.demand(0);
            self.shrink_to(want);
            self.frames.release(self.frames.unused());
        } else if self.revoked_at.is_none_or(|at| at.elapsed() > HOLD_OFF) {
            self.grow_to(want);
        }
    }

    /// Takes frames, and demands those that are not free from the processes, which give them back later.
    fn grow_to(&mut self, want: u32) {
        while (self.owned.len() as u32) < want
            && let Some(frame) = self.frames.take()
        {
            self.owned.push(frame);
        }
        self.demand(want - self.owned.len() as u32);
        let segments = self.owned.len() as u32 / self.resizer.segment_pages();
        if segments > self.resizer.limit() {
            self.resizer.raise(segments);
            self.frames.note_use(Millis::now());
        }
    }

    fn demand(&mut self, missing: u32) {
        if missing > 0 || self.is_demanding {
            self.ledger.demand(self.frames.id(), missing);
            self.is_demanding = missing > 0;
        }
    }

    /// Lowers the limit to the segments that `keep` frames hold, and puts the frames of the emptied
    /// segments back: of all of them, or of fewer for now.
    fn shrink_to(&mut self, keep: u32) {
        let pages = self.resizer.segment_pages();
        let held = self.resizer.lower(keep / pages) * pages;
        let kept = self.owned.len().min(held.max(keep) as usize);
        let free = self.owned.split_off(kept);
        if let Err(why) = self.frames.put_batch(&free) {
            tracing::error!("compressed RAM: {why}");
        }
    }
}
