//! Starts and ends a paging server, and reaches its parts from other threads.

use crate::config::{HostThresholds, ServerConfig};
use crate::event_loop::EventLoop;
use crate::host_memory;
use crate::page_service::PageService;
use crate::permit_issuer::PermitIssuer;
use remote_keys::MemberList;
use remote_wire::Link;
use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::OwnedFd;
use std::io::{self, ErrorKind};
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;
use wired::PAGE;

/// Why a server does not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The address is in use.
    #[error(
        "cannot listen at {0}: another server does; end that one, or choose another port by --listen"
    )]
    InUse(SocketAddr),
    /// The address is not this host's, or may not be used.
    #[error("cannot listen at {address}: {why}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// Why.
        why: io::Error,
    },
    /// A size that cannot be served.
    #[error("{0}")]
    Size(String),
    /// The disk file cannot be used.
    #[error("{0}")]
    Disk(String),
    /// Memory, descriptors or threads are missing.
    #[error("cannot start: {0}")]
    Resources(#[from] io::Error),
}

/// What another thread wants of the server's.
pub(crate) enum ServerCommand {
    /// End.
    Stop,
    /// How many frames the host can spare.
    Usage(host_memory::HostMemory, HostThresholds),
    /// Serve a link whose handshake is over.
    Link(Box<Link>),
    /// Close the links of hosts that are no members.
    Members(MemberList),
    /// Do something with the permits.
    Issuer(Box<dyn FnOnce(&mut PermitIssuer) + Send>),
}

/// Reaches a running server, from any thread.
#[derive(Clone)]
pub struct ServerHandle {
    commands: Sender<ServerCommand>,
    doorbell: Arc<OwnedFd>,
}

impl ServerHandle {
    /// Has the server's thread call `act` with the owner of its capacity and its permits: for a broker's
    /// messages. What the capacity demands afterwards is carried out. A server that has ended
    /// drops `act`.
    pub fn with_issuer(&self, act: impl FnOnce(&mut PermitIssuer) + Send + 'static) {
        self.send(ServerCommand::Issuer(Box::new(act)));
    }

    /// Has the server serve a link whose handshake is over.
    pub fn add_link(&self, link: Link) {
        self.send(ServerCommand::Link(Box::new(link)));
    }

    /// Closes the links with keys of hosts that are no members.
    pub fn retain_members(&self, members: MemberList) {
        self.send(ServerCommand::Members(members));
    }

    /// Ends the server: clients see their connections closed.
    pub fn stop(&self) {
        self.send(ServerCommand::Stop);
    }

    /// Sends a command. Returns false if the server has ended.
    fn send(&self, command: ServerCommand) -> bool {
        let is_sent = self.commands.send(command).is_ok();
        // It fails only where the counter is full, and then the bell rings anyway.
        let _ = rustix::io::write(&*self.doorbell, &1u64.to_ne_bytes());
        is_sent
    }
}

/// A paging server whose thread runs.
pub struct Server {
    handle: ServerHandle,
    address: SocketAddr,
    notes: Vec<String>,
    thread: Option<JoinHandle<io::Result<()>>>,
}

impl Server {
    /// Starts a server.
    ///
    /// # Errors
    /// [`StartError`].
    pub fn start(config: ServerConfig) -> Result<Self, StartError> {
        let host = config.host;
        let doorbell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let doorbell = Arc::new(doorbell.map_err(io::Error::from)?);
        let (sender, commands) = channel();
        let handle = ServerHandle {
            commands: sender,
            doorbell: Arc::clone(&doorbell),
        };
        let mut event_loop = EventLoop::new(config, doorbell, commands)?;
        event_loop.acceptor.start(handle.clone())?;
        let address = event_loop.address()?;
        let notes = notes(&mut event_loop.service);
        let thread = std::thread::Builder::new()
            .name("selfpage-serve".to_owned())
            .spawn(move || event_loop.run())?;
        if let Some(thresholds) = host {
            watch_host(handle.clone(), thresholds)?;
        }
        Ok(Self {
            handle,
            address,
            notes,
            thread: Some(thread),
        })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// What its operator should know of it: one sentence each.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// Reaches it from other threads.
    pub fn handle(&self) -> ServerHandle {
        self.handle.clone()
    }

    /// Waits until it has ended.
    ///
    /// # Errors
    /// What ended it, if it was not [`ServerHandle::stop`].
    pub fn join(mut self) -> io::Result<()> {
        match self.thread.take().map(JoinHandle::join) {
            Some(Ok(outcome)) => outcome,
            _ => Err(io::Error::other("the server's thread has panicked")),
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.handle.stop();
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

/// What the operator of a server should know.
fn notes(service: &mut PageService) -> Vec<String> {
    let mut notes = Vec::new();
    if let Err(why) = service.memory.lock() {
        notes.push(format!(
            "the kernel may page out this server's pages ({why}): run as root, or raise `ulimit -l` above {}",
            wired::Bytes(u64::from(service.memory.frames()) * PAGE as u64)
        ));
    }
    if let Some(disk) = &service.disk
        && !disk.file().is_direct()
    {
        notes.push("the file system of --disk has no direct I/O: its pages are in the kernel's page cache, too".to_owned());
    }
    notes
}

/// Measures what the host can spare once a second, in a thread of its own: /proc takes longer than
/// many requests.
fn watch_host(server: ServerHandle, thresholds: HostThresholds) -> io::Result<()> {
    let watch = move || {
        loop {
            let measured = host_memory::HostMemory::measure();
            if !server.send(ServerCommand::Usage(measured, thresholds)) {
                return;
            }
            std::thread::sleep(Duration::from_secs(1));
        }
    };
    std::thread::Builder::new()
        .name("selfpage-host".to_owned())
        .spawn(watch)?;
    Ok(())
}

/// Listens without blocking.
pub(crate) fn listen(address: SocketAddr) -> Result<TcpListener, StartError> {
    let listener = TcpListener::bind(address).map_err(|why| match why.kind() {
        ErrorKind::AddrInUse => StartError::InUse(address),
        _ => StartError::Listen { address, why },
    })?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}
