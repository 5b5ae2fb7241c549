//! Starts and ends a host's broker.

use crate::directory::Directory;
use crate::host::{Event, Host};
use crate::introduction::Introduction;
use crate::link::ControlLinks;
use crate::membership::Membership;
use crate::membership_socket::MembershipSocket;
use crate::own_address::{ListenAddresses, now_millis, of_interface};
use crate::paging_server::PagingServer;
use crate::peer_log::PeerLog;
use crate::peers::Peers;
use crate::permits::PermitDesk;
use crate::protocol::Member;
use crate::seat::SeatConfig;
use crate::{discovery, listener};
use remote_keys::{Keyring, KeyringError};
use remote_policy::identity::Incarnation;
use remote_server::ServerHandle;
use remote_wire::control::short_name;
use std::collections::BTreeSet;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::thread::JoinHandle;
use tokio::net::{TcpListener, UdpSocket};
use tokio::sync::mpsc::{channel, unbounded_channel};
use tokio::sync::{oneshot, watch};

/// Events that wait for the host's task at most: senders wait then.
const QUEUED: usize = 1024;

/// What a host's broker is started with.
#[derive(Clone)]
pub struct BrokerConfig {
    /// The paging server beside it.
    pub server: Incarnation,
    /// Its host's name, for people.
    pub name: String,
    /// Where the paging server listens.
    pub paging: SocketAddr,
    /// Where the control port is: TCP and UDP.
    pub control: SocketAddr,
    /// The address at which other hosts reach this one; `None` to take the one of an interface.
    pub advertise: Option<IpAddr>,
    /// Control ports of other hosts, HOST:PORT.
    pub peers: Vec<String>,
    /// Whether hosts on the link are asked for, and answered.
    pub uses_discovery: bool,
    /// What decides which host has the broker: the same for all hosts of a cluster.
    pub seat: SeatConfig,
    /// This host's key and the members of its cluster; `None` for links in the clear.
    pub keys: Option<Arc<Keyring>>,
}

/// Why it does not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The control port.
    #[error("cannot listen at {address}, the control port: {why}; choose another by --control")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// Why.
        why: io::Error,
    },
    /// Memory, descriptors or threads are missing.
    #[error("cannot start the broker: {0}")]
    Resources(#[from] io::Error),
    /// The cluster's list, or this host is no member any more.
    #[error(transparent)]
    Keys(#[from] KeyringError),
}

/// A host's broker whose thread runs. It ends with this.
pub struct RunningBroker {
    own: watch::Receiver<Member>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl RunningBroker {
    /// Starts it.
    ///
    /// # Errors
    /// [`StartError`].
    pub fn start(config: BrokerConfig, server: ServerHandle) -> Result<Self, StartError> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let (listener, socket) =
            runtime
                .block_on(bind(config.control))
                .map_err(|why| StartError::Listen {
                    address: config.control,
                    why,
                })?;
        let listens = ListenAddresses {
            paging: config.paging,
            control: listener.local_addr()?,
            advertise: config.advertise,
        };
        let (paging, control) = listens.advertised(of_interface());
        let named_keys = config.keys.clone().map(|keys| (keys, config.name.clone()));
        // Before other hosts know of this one: one that is introduced to it asks for its address.
        if let Some((keys, name)) = &named_keys {
            listens.set_listed(keys, name, paging)?;
        }
        let (renewed, own) = watch::channel(Member {
            server: config.server,
            name: short_name(&config.name),
            paging,
            control,
            since: now_millis(),
        });
        let links = ControlLinks::new(config.keys.clone())?;
        let (stop, stopped) = oneshot::channel();
        let known = own.clone();
        let thread = std::thread::Builder::new()
            .name("selfpage-broker".to_owned())
            .spawn(move || {
                runtime.block_on(async move {
                    tokio::spawn(listens.watch(renewed, named_keys));
                    tokio::select! {
                        () = run(config, links, own, server, listener, socket) => {}
                        _ = stopped => {}
                    }
                });
                // A host that does not share its list, or a name server, delays no end.
                runtime.shutdown_background();
            })?;
        Ok(Self {
            own: known,
            stop: Some(stop),
            thread: Some(thread),
        })
    }

    /// How other hosts know it now.
    pub fn member(&self) -> Member {
        self.own.borrow().clone()
    }
}

impl Drop for RunningBroker {
    fn drop(&mut self) {
        self.stop = None;
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

async fn bind(address: SocketAddr) -> io::Result<(TcpListener, UdpSocket)> {
    let listener = TcpListener::bind(address).await?;
    let socket = UdpSocket::bind(listener.local_addr()?).await?;
    Ok((listener, socket))
}

async fn run(
    config: BrokerConfig,
    links: ControlLinks,
    own: watch::Receiver<Member>,
    server: ServerHandle,
    listener: TcpListener,
    socket: UdpSocket,
) {
    let (events, received) = channel(QUEUED);
    let (answers, answered) = unbounded_channel();
    let (introduced, introductions) = channel(QUEUED);
    let (addresses, named) = watch::channel(Vec::new());
    let (known_members, known) = watch::channel(BTreeSet::new());
    let introduction = Introduction {
        own: own.clone(),
        links: links.clone(),
        peers: config.peers,
        asks_on_link: config.uses_discovery,
        named,
        known,
        introduced,
    };
    if config.uses_discovery {
        let port = own.borrow().control.port();
        tokio::spawn(async move {
            if let Err(why) = discovery::answer(port).await {
                tracing::warn!(
                    "clients on the link do not find this server by themselves ({why}): they name it by --remote"
                );
            }
        });
    }
    // The membership's news goes to the introduction, too.
    let (members, mut changes) = channel(QUEUED);
    let forwarded = events.clone();
    tokio::spawn(async move {
        while let Some(Event::Members(members)) = changes.recv().await {
            let ports = members.iter().map(|member: &Member| member.control);
            known_members.send_replace(ports.collect());
            if forwarded.send(Event::Members(members)).await.is_err() {
                return;
            }
        }
    });
    let socket = MembershipSocket::new(socket, config.keys);
    tokio::spawn(Membership::new(own.clone(), socket, members).run(introductions));
    tokio::spawn(listener::listen(listener, links.clone(), events));
    tokio::spawn(introduction.run());
    let (seat, first) = match config.seat.start(&own, answers.clone()) {
        Ok(started) => started,
        Err(why) => {
            tracing::error!(
                "this host lends without a broker: cannot start a thread for its seat: {why}"
            );
            return;
        }
    };
    let host = Host {
        directory: Directory::new(own.borrow().clone()),
        seat,
        server: PagingServer::new(server, answers.clone()),
        peers: Peers::new(own.borrow().clone(), links, answers),
        periods: 0,
        desk: PermitDesk::default(),
        addresses,
        log: PeerLog::default(),
    };
    host.run(own, first, received, answered).await;
}
