//! A host between a client and its server that changes what passes: a server that lies, a link that
//! delays, and a network that loses one of them.

use remote_wire::{FrameReader, Header, Link};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Which way a frame goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    ToServer,
    ToClient,
}

/// What a rule decides about a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The frame goes on, as the rule left it.
    Forward,
    /// The frame goes back to its sender, as the rule left it.
    Return,
    /// The frame goes on after that time, and later ones may go on before it.
    Delay(Duration),
    /// The frame is lost.
    Drop,
    /// Its first half goes on, and what follows is lost.
    Half,
    /// Its first half goes on, then both connections end.
    HalfAndClose,
    /// Bytes that are no frame go on in its place.
    Garbage,
    /// Both connections end.
    Close,
}

/// What passes at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Network {
    Connected,
    /// Nothing passes, and nothing ends.
    Partitioned,
}

type Rule = Box<dyn FnMut(Direction, &mut Header, &mut Vec<u8>) -> Verdict + Send>;

struct Shared {
    server: Mutex<SocketAddr>,
    rule: Mutex<Rule>,
    network: Mutex<Network>,
    /// Frames of no server that go to the client.
    inserted: Mutex<Vec<u8>>,
}

/// Passes frames between clients and one server, by a rule that may change.
pub struct Interposer {
    pub address: SocketAddr,
    shared: Arc<Shared>,
}

impl Interposer {
    /// Starts an interposer before `server` that changes nothing.
    pub fn new(server: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let shared = Arc::new(Shared {
            server: Mutex::new(server),
            rule: Mutex::new(Box::new(|_, _, _| Verdict::Forward)),
            network: Mutex::new(Network::Connected),
            inserted: Mutex::default(),
        });
        let of_threads = Arc::clone(&shared);
        // Both threads end with the test's process.
        std::thread::spawn(move || {
            for client in listener.incoming() {
                let shared = Arc::clone(&of_threads);
                // Its error is the end of a connection.
                std::thread::spawn(move || pass(client?, &shared));
            }
        });
        Self { address, shared }
    }

    /// Replaces the rule from the next frame on.
    pub fn set(
        &self,
        rule: impl FnMut(Direction, &mut Header, &mut Vec<u8>) -> Verdict + Send + 'static,
    ) {
        *self.shared.rule.lock().unwrap() = Box::new(rule);
    }

    /// Forwards frames unchanged from the next one on.
    pub fn clear(&self) {
        self.set(|_, _, _| Verdict::Forward);
    }

    /// Sends the client a frame that its server did not send.
    pub fn insert(&self, header: &Header, body: &[u8]) {
        self.inserter()(header, body);
    }

    /// Likewise, for a rule or another thread.
    pub fn inserter(&self) -> impl Fn(&Header, &[u8]) + Send + 'static + use<> {
        let shared = Arc::clone(&self.shared);
        move |header, body| {
            let mut inserted = shared.inserted.lock().unwrap();
            inserted.extend(header.encode(body));
            inserted.extend(body);
        }
    }

    /// Passes what comes from now on to another server. Connections to the one before end.
    pub fn point_to(&self, server: SocketAddr) {
        *self.shared.server.lock().unwrap() = server;
    }

    /// Changes what passes at all.
    pub fn set_network(&self, network: Network) {
        *self.shared.network.lock().unwrap() = network;
    }
}

/// One end of a connection.
struct End {
    link: Link,
    reader: FrameReader,
    /// Bytes to be written, in order.
    queued: Vec<u8>,
    /// Frames that go on later.
    delayed: Vec<(Instant, Vec<u8>)>,
    /// Nothing that is to go to it goes on any more.
    is_cut: bool,
    /// It ends when what is queued is written.
    is_closing: bool,
}

impl End {
    fn new(stream: TcpStream) -> io::Result<Self> {
        Ok(Self {
            link: Link::plain(stream)?,
            reader: FrameReader::new()?,
            queued: Vec::new(),
            delayed: Vec::new(),
            is_cut: false,
            is_closing: false,
        })
    }

    fn send(&mut self, bytes: &[u8]) {
        if !self.is_cut {
            self.queued.extend(bytes);
        }
    }

    /// Writes what is due. Returns false at its end.
    fn flush(&mut self) -> io::Result<bool> {
        let now = Instant::now();
        let mut at = 0;
        while at < self.delayed.len() {
            match self.delayed[at].0 <= now {
                true => {
                    let (_, bytes) = self.delayed.remove(at);
                    self.send(&bytes);
                }
                false => at += 1,
            }
        }
        while !self.queued.is_empty() {
            match self.link.write(&self.queued) {
                Ok(written) => drop(self.queued.drain(..written)),
                Err(why) if why.kind() == io::ErrorKind::WouldBlock => return Ok(true),
                Err(why) => return Err(why),
            }
        }
        Ok(!self.is_closing)
    }
}

fn pass(client: TcpStream, shared: &Shared) -> io::Result<()> {
    while *shared.network.lock().unwrap() == Network::Partitioned {
        std::thread::sleep(Duration::from_millis(10));
    }
    let address = *shared.server.lock().unwrap();
    let (mut client, mut server) = (End::new(client)?, End::new(TcpStream::connect(address)?)?);
    let pause = Timespec {
        tv_sec: 0,
        tv_nsec: 1_000_000,
    };
    while *shared.server.lock().unwrap() == address {
        match *shared.network.lock().unwrap() {
            Network::Connected => {}
            Network::Partitioned => {
                std::thread::sleep(Duration::from_millis(10));
                continue;
            }
        }
        let mut fds = [&client, &server].map(|end| PollFd::new(&end.link, PollFlags::IN));
        poll(&mut fds, Some(&pause))?;
        let is_open = pass_frames(Direction::ToServer, &mut client, &mut server, shared)?
            && pass_frames(Direction::ToClient, &mut server, &mut client, shared)?;
        client.send(&std::mem::take(&mut *shared.inserted.lock().unwrap()));
        let are_open = [client.flush()?, server.flush()?];
        if !is_open || are_open != [true; 2] {
            return Ok(());
        }
    }
    Ok(())
}

/// Passes what has arrived. Returns false at the end of the stream.
fn pass_frames(
    direction: Direction,
    from: &mut End,
    to: &mut End,
    shared: &Shared,
) -> io::Result<bool> {
    let is_open = from.reader.fill(&mut from.link)?;
    while let Some(frame) = from.reader.next_frame().map_err(io::Error::other)? {
        let (mut header, mut body) = (frame.header, frame.body.to_vec());
        let verdict = shared.rule.lock().unwrap()(direction, &mut header, &mut body);
        let mut bytes = header.encode(&body).to_vec();
        bytes.append(&mut body);
        let half = bytes.len() / 2;
        match verdict {
            Verdict::Forward => to.send(&bytes),
            Verdict::Return => from.send(&bytes),
            Verdict::Delay(time) => to.delayed.push((Instant::now() + time, bytes)),
            Verdict::Drop => {}
            Verdict::Half => {
                to.send(&bytes[..half]);
                to.is_cut = true;
            }
            Verdict::HalfAndClose => {
                to.send(&bytes[..half]);
                to.is_closing = true;
            }
            Verdict::Garbage => to.send(&[0x5a; 4096]),
            Verdict::Close => to.is_closing = true,
        }
    }
    Ok(is_open)
}
