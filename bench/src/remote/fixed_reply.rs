//! Servers whose replies to a GET of 4 KiB all have the same length: memcached, redis, and a raw echo.

use super::source::{PageBuffer, PageSource};
use crate::prelude::*;
use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};

/// What is spoken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// memcached's text.
    Memcached,
    /// RESP.
    Redis,
    /// Bytes of the lengths of a paging server's frames.
    Echo,
}

/// How an end waits for bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// It sleeps in the kernel.
    Sleep,
    /// It tries again and yields the processor in between.
    Poll,
}

/// Bytes of the echo's request and reply: a paging server's frames.
const ECHO: [usize; 2] = [remote_wire::HEADER, remote_wire::HEADER + 8 + PAGE];
/// Most replies under way.
const MOST: usize = 64;

impl Protocol {
    /// Bytes of a reply, and of those before the page.
    fn reply(self) -> (usize, usize) {
        let (head, tail) = match self {
            Self::Memcached => (
                key(0).len() + "VALUE  0 4096\r\n".len(),
                "\r\nEND\r\n".len(),
            ),
            Self::Redis => ("$4096\r\n".len(), "\r\n".len()),
            Self::Echo => (ECHO[1] - PAGE, 0),
        };
        (head + PAGE + tail, head)
    }

    fn get(self, page: u64, out: &mut Vec<u8>) {
        match self {
            Self::Memcached => out.extend(format!("get {}\r\n", key(page)).bytes()),
            Self::Redis => {
                let key = key(page);
                let text = format!("*2\r\n$3\r\nGET\r\n${}\r\n{key}\r\n", key.len());
                out.extend(text.bytes());
            }
            Self::Echo => out.resize(out.len() + ECHO[0], 7),
        }
    }

    /// A SET, and its reply.
    fn set(self, page: u64, out: &mut Vec<u8>) -> &'static [u8] {
        let key = key(page);
        let head = match self {
            Self::Memcached => format!("set {key} 0 0 {PAGE}\r\n"),
            _ => format!("*3\r\n$3\r\nSET\r\n${}\r\n{key}\r\n${PAGE}\r\n", key.len()),
        };
        out.extend(head.bytes());
        out.extend(PageBuffer::of(page).0);
        out.extend(b"\r\n");
        match self {
            Self::Memcached => b"STORED\r\n",
            _ => b"+OK\r\n",
        }
    }
}

/// All keys have the same length.
fn key(page: u64) -> String {
    format!("page:{page:010}")
}

/// A connection to such a server.
pub struct FixedReply {
    stream: TcpStream,
    protocol: Protocol,
    wait: Wait,
    queued: Vec<u8>,
    /// What has come of replies that are not whole.
    arrived: Vec<u8>,
    held: usize,
    expected: VecDeque<u64>,
    page: Box<PageBuffer>,
}

impl FixedReply {
    /// Connects to a server.
    pub fn connect(server: SocketAddr, protocol: Protocol, wait: Wait) -> Result<Self> {
        let stream = TcpStream::connect(server).doing(format_args!("connect to {server}"))?;
        stream.set_nodelay(true)?;
        Ok(Self {
            stream,
            protocol,
            wait,
            queued: Vec::new(),
            arrived: vec![0; MOST * protocol.reply().0],
            held: 0,
            expected: VecDeque::new(),
            page: PageBuffer::of(0),
        })
    }

    /// A thread that answers each request by a reply's bytes, and a connection to it.
    pub fn echo(wait: Wait) -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").doing("listen")?;
        let this = Self::connect(listener.local_addr()?, Protocol::Echo, wait)?;
        let (far, _) = listener.accept().doing("accept")?;
        far.set_nodelay(true)?;
        let is_polled = wait == Wait::Poll;
        far.set_nonblocking(is_polled)?;
        this.stream.set_nonblocking(is_polled)?;
        // It ends with its connection.
        std::thread::spawn(move || answer(far));
        Ok(this)
    }

    /// Stores every page.
    pub fn fill(&mut self, pages: u64) -> Result<()> {
        self.stream.set_nonblocking(false)?;
        for page in 0..pages {
            let mut bytes = Vec::new();
            let expected = self.protocol.set(page, &mut bytes);
            self.stream.write_all(&bytes).doing("store a page")?;
            let mut reply = vec![0; expected.len()];
            self.stream.read_exact(&mut reply).doing("store a page")?;
            if reply != expected {
                bail!(
                    "page {page} is not stored: {}",
                    String::from_utf8_lossy(&reply)
                );
            }
        }
        self.stream.set_nonblocking(self.wait == Wait::Poll)?;
        Ok(())
    }
}

impl PageSource for FixedReply {
    fn request(&mut self, page: u64) -> Result<()> {
        self.protocol.get(page, &mut self.queued);
        self.expected.push_back(page);
        Ok(())
    }

    fn receive(&mut self) -> Result<usize> {
        // What is under way fits the socket's buffer.
        self.stream
            .write_all(&self.queued)
            .doing("send a request")?;
        self.queued.clear();
        let (length, head) = self.protocol.reply();
        match self.stream.read(&mut self.arrived[self.held..]) {
            Ok(0) => bail!("the server has closed the connection"),
            Ok(read) => self.held += read,
            Err(why) if why.kind() == ErrorKind::WouldBlock => {
                rustix::thread::sched_yield();
                return Ok(0);
            }
            Err(why) => return Err(why).doing("read a reply"),
        }
        let whole = self.held / length;
        for at in 0..whole {
            let page = self.expected.pop_front().unwrap_or_default();
            if self.protocol != Protocol::Echo {
                let reply = &self.arrived[at * length..][..length];
                self.page.check(page, &reply[head..head + PAGE])?;
            }
        }
        self.arrived.copy_within(whole * length..self.held, 0);
        self.held -= whole * length;
        Ok(whole)
    }
}

/// The far end of an echo.
fn answer(mut stream: TcpStream) {
    let [asked, replied] = ECHO;
    let (mut requests, replies) = (vec![0; asked * MOST], vec![7; replied * MOST]);
    let mut held = 0;
    loop {
        match stream.read(&mut requests[held..]) {
            Ok(0) => return,
            Ok(read) => held += read,
            Err(why) if why.kind() == ErrorKind::WouldBlock => {
                rustix::thread::sched_yield();
                continue;
            }
            Err(_) => return,
        }
        let (whole, mut written) = (held / asked, 0);
        held %= asked;
        while written < whole * replied {
            match stream.write(&replies[written..whole * replied]) {
                Ok(more) => written += more,
                Err(why) if why.kind() == ErrorKind::WouldBlock => rustix::thread::sched_yield(),
                Err(_) => return,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_echo_answers_each_request_however_it_waits() {
        for wait in [Wait::Sleep, Wait::Poll] {
            let mut echo = FixedReply::echo(wait).unwrap();
            (0..5).for_each(|page| echo.request(page).unwrap());
            let mut replies = 0;
            while replies < 5 {
                replies += echo.receive().unwrap();
            }
            assert_eq!((replies, echo.held), (5, 0));
        }
    }

    #[test]
    fn a_request_has_a_value_of_the_length_that_it_announces() {
        for protocol in [Protocol::Memcached, Protocol::Redis] {
            let mut bytes = Vec::new();
            protocol.set(7, &mut bytes);
            let head = bytes.len() - PAGE - 2;
            assert!(bytes[..head].ends_with(b"4096\r\n") && bytes.ends_with(b"\r\n"));
        }
    }
}
