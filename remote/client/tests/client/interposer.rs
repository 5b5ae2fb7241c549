//! A host between a client and its server that changes what passes: a server that lies.

use remote_wire::{FrameReader, FrameWriter, Header, Link};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

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
}

type Rule = Box<dyn FnMut(Direction, &mut Header, &mut Vec<u8>) -> Verdict + Send>;

/// Passes frames between clients and one server, by a rule that may change.
pub struct Interposer {
    pub address: SocketAddr,
    rule: Arc<Mutex<Rule>>,
}

impl Interposer {
    /// Starts an interposer before `server` that changes nothing.
    pub fn new(server: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let rule: Arc<Mutex<Rule>> = Arc::new(Mutex::new(Box::new(|_, _, _| Verdict::Forward)));
        let applied = Arc::clone(&rule);
        // Both threads end with the test's process.
        std::thread::spawn(move || {
            for client in listener.incoming() {
                let rule = Arc::clone(&applied);
                // Its error is the end of a connection.
                std::thread::spawn(move || pass(client?, TcpStream::connect(server)?, &rule));
            }
        });
        Self { address, rule }
    }

    /// Replaces the rule from the next frame on.
    pub fn set(
        &self,
        rule: impl FnMut(Direction, &mut Header, &mut Vec<u8>) -> Verdict + Send + 'static,
    ) {
        *self.rule.lock().unwrap() = Box::new(rule);
    }

    /// Forwards frames unchanged from the next one on.
    pub fn clear(&self) {
        self.set(|_, _, _| Verdict::Forward);
    }
}

/// One end of a connection.
struct End {
    link: Link,
    reader: FrameReader,
    writer: FrameWriter,
}

impl End {
    fn new(stream: TcpStream) -> io::Result<Self> {
        Ok(Self {
            link: Link::plain(stream)?,
            reader: FrameReader::new()?,
            writer: FrameWriter::new(64)?,
        })
    }
}

fn pass(client: TcpStream, server: TcpStream, rule: &Mutex<Rule>) -> io::Result<()> {
    let (mut client, mut server) = (End::new(client)?, End::new(server)?);
    let pause = Timespec {
        tv_sec: 0,
        tv_nsec: 10_000_000,
    };
    loop {
        let mut fds = [&client, &server].map(|end| PollFd::new(&end.link, PollFlags::IN));
        poll(&mut fds, Some(&pause))?;
        let is_open = pass_frames(Direction::ToServer, &mut client, &mut server, rule)?
            && pass_frames(Direction::ToClient, &mut server, &mut client, rule)?;
        for end in [&mut client, &mut server] {
            end.writer.flush(&mut end.link)?;
        }
        if !is_open {
            return Ok(());
        }
    }
}

/// Passes what has arrived. Returns false at the end of the stream.
fn pass_frames(
    direction: Direction,
    from: &mut End,
    to: &mut End,
    rule: &Mutex<Rule>,
) -> io::Result<bool> {
    let is_open = from.reader.fill(&mut from.link)?;
    while let Some(frame) = from.reader.next_frame().map_err(io::Error::other)? {
        let (mut header, mut body) = (frame.header, frame.body.to_vec());
        let verdict = rule.lock().unwrap()(direction, &mut header, &mut body);
        let writer = match verdict {
            Verdict::Forward => &mut to.writer,
            Verdict::Return => &mut from.writer,
        };
        writer.push(&header, &body).map_err(io::Error::other)?;
    }
    Ok(is_open)
}
