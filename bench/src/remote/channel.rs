//! Pages of a remote client, through an IO channel as a pager has it, without a fault.

use super::source::{PageBuffer, PageSource};
use crate::prelude::*;
use host::seqpacket::{self, Received};
use iochannel::{ChannelClient, IoVec};
use pageclient::protocol::{self, ClientEvent, ClientRequest};
use remote_client::{ClientProgress, RemoteConfig, ServerSource, run};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::OwnedFd;
use rustix::net::RecvFlags;
use std::net::SocketAddr;
use std::sync::Arc;

/// How long the client may take to answer.
const LIMIT: Timespec = Timespec {
    tv_sec: 20,
    tv_nsec: 0,
};
/// Requests of a channel.
const DEPTH: u16 = 64;

/// A channel to a client whose threads are this process's.
pub struct ChannelReader {
    channel: ChannelClient,
    buffers: Vec<Box<PageBuffer>>,
    pieces: Vec<[IoVec; 1]>,
    /// The page that each operation reads.
    pages: Vec<Option<u64>>,
    /// The client ends with it.
    _socket: OwnedFd,
}

// SAFETY: its pointers are to its own buffers.
unsafe impl Send for ChannelReader {}

impl ChannelReader {
    /// Starts a client of one server and writes every page.
    pub fn connect(server: SocketAddr, pages: u64) -> Result<Self> {
        Self::with(&[server], pages, 1, None, &Arc::default())
    }

    /// The same with several servers and copies, and stripes of what is not used for a while.
    pub fn with(
        servers: &[SocketAddr],
        pages: u64,
        replicas: u8,
        stripe_after: Option<Duration>,
        progress: &Arc<ClientProgress>,
    ) -> Result<Self> {
        let config = RemoteConfig {
            servers: ServerSource::Alone(servers.iter().map(SocketAddr::to_string).collect()),
            size: pages * PAGE as u64,
            paging_file: None,
            replicas,
            // As the arms beside it: in the clear.
            keys: None,
            is_encrypted: false,
            stripe_after,
            progress: Arc::clone(progress),
        };
        let (own, theirs) = seqpacket::pair()?;
        std::thread::spawn(move || run(&config, &theirs));
        let mut ready = receive(&own)?;
        let event = protocol::decode(ready.as_slice());
        let (Some(ClientEvent::Ready { generation, .. }), Some(doorbell)) =
            (&event, ready.fds[0].take())
        else {
            bail!("the remote client does not start: {event:?}");
        };
        let open = ClientRequest::Open {
            cookie: 1,
            depth: DEPTH,
        };
        protocol::send(&own, &open.addressed_to(*generation), &[])?;
        let mut opened = receive(&own)?;
        let [Some(memory), Some(bell)] = [0, 1].map(|at| opened.fds[at].take()) else {
            bail!("the remote client opens no channel");
        };
        let channel = ChannelClient::attach(memory, doorbell, bell)?;
        let mut buffers: Vec<_> = (0..channel.slots()).map(|_| PageBuffer::of(0)).collect();
        let piece = |buffer: &mut Box<PageBuffer>| [IoVec::page(buffer.0.as_mut_ptr())];
        let pieces = buffers.iter_mut().map(piece).collect();
        let mut this = Self {
            pages: vec![None; buffers.len()],
            channel,
            buffers,
            pieces,
            _socket: own,
        };
        for page in 0..pages {
            this.buffers[0].0.copy_from_slice(&PageBuffer::of(page).0);
            this.begin(0, true, page);
            this.end()?;
        }
        Ok(this)
    }

    fn begin(&mut self, op: usize, write: bool, page: u64) {
        let at = page * PAGE as u64;
        self.pages[op] = Some(page);
        // SAFETY: piece and buffer are this value's, and stay until the operation is reaped.
        unsafe { self.channel.begin(op, write, &self.pieces[op], at) };
    }

    /// Waits for an operation.
    fn end(&mut self) -> Result<(usize, u64)> {
        self.channel.flush();
        let ended = self.channel.reap(true);
        let (op, moved) = ended.ok_or_else(|| anyhow!("nothing is under way"))?;
        if moved != PAGE as i32 {
            bail!("the remote client answers {moved}");
        }
        let page = self.pages[op].take().unwrap_or_default();
        Ok((op, page))
    }
}

impl PageSource for ChannelReader {
    fn request(&mut self, page: u64) -> Result<()> {
        let free = self.pages.iter().position(Option::is_none);
        let op = free.ok_or_else(|| anyhow!("too many requests under way"))?;
        self.begin(op, false, page);
        Ok(())
    }

    fn receive(&mut self) -> Result<usize> {
        let (op, page) = self.end()?;
        // SAFETY: a page of this buffer's, which nothing writes now.
        unsafe { PageAt::at(self.buffers[op].0.as_mut_ptr(), page) }.probe(1)?;
        Ok(1)
    }
}

fn receive(socket: &OwnedFd) -> Result<Received> {
    let mut fds = [PollFd::new(socket, PollFlags::IN)];
    if poll(&mut fds, Some(&LIMIT))? == 0 {
        bail!("the remote client does not answer");
    }
    Ok(seqpacket::receive(socket, RecvFlags::DONTWAIT)?)
}
