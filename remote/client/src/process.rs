//! The process of a remote client.
//!
//! It is wired, since the pages of programs come through it: a page of its own that had to be read
//! from where it puts others' would wait for itself. Its main thread opens and closes channels, one
//! thread a server connects, and the disk's thread does the rest (`pageclient`).

use crate::arrival::Arrivals;
use crate::background;
use crate::broker_link::ServerSource;
use crate::client_state::ClientState;
use crate::connector::Connectors;
use crate::degraded::DegradedReads;
use crate::objects::{ObjectMap, SpaceSize};
use crate::page_cipher::PageCipher;
use crate::progress::ClientProgress;
use crate::restore::REQUESTS;
use crate::start::{first_servers, new_client, resumed_broker};
use crate::stripes::Stripes;
use crate::transport::RemoteTransport;
use disk::usd::Transport;
use iochannel::Doorbell;
use pageclient::{KeptHeader, PageClient, PagingFile, ServeError, Serving, start_usd};
use remote_keys::Keyring;
use remote_wire::control::short_name;
use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Duration;
use wired::WiredMemory;

/// Most servers: they are counted by the bits of a word.
pub const MAX_SERVERS: usize = 32;

/// What a client is started for.
#[derive(Clone, Debug)]
pub struct RemoteConfig {
    /// Where its servers are.
    pub servers: ServerSource,
    /// Bytes of pages at its servers: of the space, where there is no larger paging file.
    pub size: u64,
    /// Where pages are that no server takes.
    pub paging_file: Option<PagingFile>,
    /// Copies of each page, as far as there are servers.
    pub replicas: u8,
    /// This host's key and the members of its cluster; `None` for links in the clear.
    pub keys: Option<Arc<Keyring>>,
    /// Pages are encrypted before they leave this host.
    pub is_encrypted: bool,
    /// Objects that are not used for as long become parts of stripes; `None` for copies alone.
    pub stripe_after: Option<Duration>,
    /// Where the client counts what it does by itself.
    pub progress: Arc<ClientProgress>,
}

impl RemoteConfig {
    fn space(&self) -> SpaceSize {
        SpaceSize {
            bytes: (self.paging_file.as_ref()).map_or(self.size, |file| file.size.max(self.size)),
            has_stripes: self.stripe_after.is_some(),
        }
    }
}

/// Why a client cannot serve.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// No server answers.
    #[error(
        "no paging server answers: {0}; start one there with `selfpage serve`, or name others with --remote HOST[:PORT],..."
    )]
    NoServer(String),
    /// No host answers on the link.
    #[error(
        "no host on this link lends memory to this one ({0}): start `selfpage serve` on one, or name hosts elsewhere with --remote HOST,..."
    )]
    NoHost(String),
    /// None of the hosts that were named has a control port.
    #[error(
        "no `selfpage serve` lends memory at {0}, where its control port is: {1}; start one there, or name others with --remote HOST[:PORT],... (the control port is two above PORT)"
    )]
    NoNamedHost(String, String),
    /// Too many, or none.
    #[error("{0} paging servers are named: name 1 to {MAX_SERVERS}")]
    Servers(usize),
    /// The process.
    #[error(transparent)]
    Serve(#[from] ServeError),
}

pub(crate) fn call(what: &'static str) -> impl Fn(Errno) -> ClientError {
    move |errno| ServeError::Call { what, errno }.into()
}

/// What outlives a client's process.
struct RemoteClient<'a> {
    config: &'a RemoteConfig,
    state: ClientState,
    doorbell: Doorbell,
    /// Which pages the paging file has.
    places: Option<Arc<WiredMemory>>,
}

impl<'a> RemoteClient<'a> {
    /// Of a client that has not begun.
    fn new(config: &'a RemoteConfig) -> Result<Self, ClientError> {
        let memory = |error: std::io::Error| {
            let errno = Errno::from_io_error(&error).unwrap_or(Errno::NOMEM);
            call("get memory for the table of versions")(errno)
        };
        let state = ObjectMap::new_state(config.space(), config.is_encrypted).map_err(memory)?;
        let places = config.paging_file.as_ref();
        let places = places.map(|file| file.new_places(config.size));
        let places = places.transpose().map_err(memory)?;
        if config.is_encrypted {
            state.set_key(&PageCipher::new_key().map_err(|why| thread(&why))?);
        }
        let doorbell = Doorbell::new().map_err(|why| thread(&why))?;
        Ok(Self {
            config,
            state,
            doorbell,
            places,
        })
    }
}

fn thread(why: &dyn std::fmt::Display) -> ClientError {
    ServeError::Thread(why.to_string()).into()
}

/// Serves the supervisor at `socket` until it is gone, in another process, and in a further one where that one ends.
/// `begin` is called at the start of each process, and of this one.
///
/// # Errors
/// [`ClientError`], of this process, which has one thread.
pub fn keep(
    config: &RemoteConfig,
    socket: &OwnedFd,
    begin: impl Fn(),
) -> Result<bool, ClientError> {
    pageclient::keep(|| RemoteClient::new(config), socket, begin)
}

/// Serves channels until the supervisor at `socket` is gone.
///
/// # Errors
/// [`ClientError`].
pub fn run(config: &RemoteConfig, socket: &OwnedFd) -> Result<(), ClientError> {
    pageclient::serve(&RemoteClient::new(config)?, socket)
}

impl PageClient for RemoteClient<'_> {
    const NAME: &'static str = "remote client";
    type Error = ClientError;

    fn header(&self) -> KeptHeader<'_> {
        self.state.kept_header()
    }

    fn doorbell(&self) -> &Doorbell {
        &self.doorbell
    }

    fn size(&self) -> u64 {
        self.config.space().bytes
    }

    fn start(&self) -> Result<Serving, ClientError> {
        let (config, state) = (self.config, &self.state);
        let is_resumed = state.kept_header().served() > 0;
        let starts = state.kept_header().count_start();
        if !is_resumed {
            let key = config.keys.as_ref().map(|keys| keys.fingerprint());
            state.set_client(new_client(key)?);
        }
        let client = state.client();
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let bell = Arc::new(eventfd(0, flags).map_err(call("make an eventfd"))?);
        let (queue, arrived) = channel();
        let arrivals = Arrivals { queue, bell };
        let name = short_name(&rustix::system::uname().nodename().to_string_lossy());
        let connectors = Connectors {
            client,
            name,
            keys: config.keys.clone(),
            arrivals: arrivals.clone(),
        };
        let (broker, servers, connected) = match is_resumed {
            true => {
                let broker = resumed_broker(&config.servers, &state.servers(), &connectors)?;
                (broker, Vec::new(), 0)
            }
            false => first_servers(&config.servers, &connectors, &arrived)?,
        };
        let key = config.is_encrypted.then(|| state.key());
        let cipher = key.map(|key| PageCipher::with_key(&key)).transpose();
        let cipher = cipher.map_err(|why| thread(&why))?;
        let objects = ObjectMap::new(client.host, config.space(), cipher, state.clone());
        let named = servers.len().max(state.servers().len());
        let replicas = match &config.servers {
            // There may be more later.
            ServerSource::Broker(_) => config.replicas.max(1),
            ServerSource::Alone(_) => config.replicas.clamp(1, named as u8),
        };
        let mut transport =
            RemoteTransport::new(objects, servers, replicas, broker, connectors, arrived)
                .map_err(call("make an epoll"))?;
        transport.progress = Arc::clone(&config.progress);
        transport.degraded = DegradedReads::new(config.stripe_after.is_some());
        transport.stripes = Stripes::new(config.space().stripes(), config.stripe_after);
        if is_resumed {
            transport.restore(starts).map_err(|why| thread(&why))?;
        }
        transport.save();
        let transport: Box<dyn Transport> = match (&config.paging_file, &self.places) {
            (Some(file), Some(places)) => {
                let wrapped = file.wrap(transport, config.size, places);
                wrapped.map_err(call("take the paging file"))?
            }
            _ => Box::new(transport),
        };
        let usd = start_usd(transport)?;
        usd.admit_background(background::CONTRACT)
            .map_err(|why| thread(&why))?;
        Ok(Serving {
            usd,
            first_channel: starts * REQUESTS + 1,
            connected,
            named: named as u32,
        })
    }
}
