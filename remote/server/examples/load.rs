//! Random reads of 4 KiB from a paging server over loopback, in the clear and with keys.
//!
//! `cargo run --release -p selfpage-remote-server --example load [PAGES [SECONDS]]`. Client and server poll, as they do
//! where each has a processor. Reported for one connection in the clear and one with keys, each with 1 and with 32
//! requests outstanding: the median and the 99th percentile of the time from a request to its reply, and pages a
//! second. The two take turns, ten times. `selfpage bench remote` is beside a raw TCP echo.

use disk::atropos::DiskContract;
use disk::time::Nanos;
use remote_keys::{Handshake, Keyring, Protocol, Trust, client_config};
use remote_policy::identity::{
    Generation, HostId, Incarnation, ObjectId, PageNumber, RequestId, Version,
};
use remote_wire::control::{self, ControlReply, ControlRequest};
use remote_wire::{FrameReader, FrameWriter, Header, Kind, Link};
use selfpage_remote_server::{Acceptor, KeyedAcceptor, Server, ServerConfig};
use std::error::Error;
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};
use wired::PAGE;

type Outcome<T> = Result<T, Box<dyn Error>>;

/// How often the two kinds of link take turns, so that what else the machine does meets both.
const TURNS: u32 = 10;
/// How long a handshake may take.
const LIMIT: Duration = Duration::from_secs(5);

fn main() -> Outcome<()> {
    let mut arguments = std::env::args().skip(1);
    let pages: u64 = arguments.next().map_or(Ok(16384), |text| text.parse())?;
    let seconds: u64 = arguments.next().map_or(Ok(3), |text| text.parse())?;
    let length = Duration::from_secs(seconds);
    let client = incarnation(2);
    let folder = tempfile::tempdir()?;
    let keyring = Arc::new(Keyring::open(folder.path())?);
    keyring.set_own("load", None)?;
    let plain = start(pages, Box::new(Link::plain))?;
    let keyed = start(pages, Box::new(KeyedAcceptor::new(Arc::clone(&keyring))?))?;
    let mut in_the_clear = PageReader::connect(plain.address(), client, pages, None)?;
    let mut with_keys = PageReader::connect(keyed.address(), client, pages, Some(&keyring))?;
    let processors = std::thread::available_parallelism()?;
    println!("{pages} pages, {seconds} s each, {processors} processors for both ends");
    println!(
        "{:<22} {:>9} {:>9} {:>12}",
        "", "p50 us", "p99 us", "pages/s"
    );
    for depth in [1, 32] {
        let (mut clear, mut keys) = (Measured::default(), Measured::default());
        for _ in 0..TURNS {
            clear.add(measure(&mut in_the_clear, depth, length / TURNS)?);
            keys.add(measure(&mut with_keys, depth, length / TURNS)?);
        }
        report("in the clear", depth, clear);
        report("with keys", depth, keys);
    }
    Ok(())
}

/// A server of `pages` that this process runs.
fn start(pages: u64, acceptor: Acceptor) -> Outcome<Server> {
    Ok(Server::start(ServerConfig {
        listen: ([127, 0, 0, 1], 0).into(),
        server: incarnation(1),
        name: "load".to_owned(),
        ram: pages * PAGE as u64,
        disk: None,
        capacity: ServerConfig::default_capacity(),
        host: None,
        most_connections: selfpage_remote_server::MAX_CONNECTIONS,
        patience: Duration::from_secs(10),
        acceptor,
    })?)
}

#[derive(Default)]
struct Measured {
    times: Vec<Duration>,
    elapsed: Duration,
}

impl Measured {
    fn add(&mut self, other: Self) {
        self.times.extend(other.times);
        self.elapsed += other.elapsed;
    }
}

fn measure(of: &mut PageReader, depth: usize, length: Duration) -> Outcome<Measured> {
    let mut sent = std::collections::VecDeque::new();
    let mut times = Vec::new();
    let begun = Instant::now();
    loop {
        let is_over = begun.elapsed() >= length;
        while !is_over && sent.len() < depth {
            of.send()?;
            sent.push_back(Instant::now());
        }
        if is_over && sent.is_empty() {
            break;
        }
        let replies = of.poll()?;
        let now = Instant::now();
        // Both servers reply in order where all pages are in RAM.
        times.extend(sent.drain(..replies).map(|at| now - at));
        if replies == 0 {
            rustix::thread::sched_yield();
        }
    }
    let elapsed = begun.elapsed();
    Ok(Measured { times, elapsed })
}

fn report(what: &str, depth: usize, mut measured: Measured) {
    measured.times.sort();
    let at = |hundredths: usize| {
        let rank = (measured.times.len() - 1) * hundredths / 100;
        measured.times[rank].as_nanos() as f64 / 1e3
    };
    let rate = measured.times.len() as f64 / measured.elapsed.as_secs_f64();
    println!(
        "{:<22} {:>9.1} {:>9.1} {:>12.0}",
        format!("{what}, {depth} deep"),
        at(50),
        at(99),
        rate
    );
}

/// A client with one object, all written.
struct PageReader {
    link: Link,
    reader: FrameReader,
    writer: FrameWriter,
    object: ObjectId,
    pages: u64,
    random: u64,
}

impl PageReader {
    fn connect(
        server: SocketAddr,
        client: Incarnation,
        pages: u64,
        keyring: Option<&Arc<Keyring>>,
    ) -> Outcome<Self> {
        let stream = TcpStream::connect(server)?;
        let link = match keyring {
            None => Link::plain(stream)?,
            Some(keyring) => {
                let trust = Trust::Members(Arc::clone(keyring));
                let config = client_config(keyring.key(), trust, Protocol::Pages)?;
                Link::keyed(Handshake::client(&config)?.complete(stream, LIMIT)?)?
            }
        };
        let mut this = Self {
            link,
            reader: FrameReader::new()?,
            writer: FrameWriter::new(4)?,
            object: ObjectId {
                client: client.host,
                number: 1,
            },
            pages,
            random: 1,
        };
        let name = "load".to_owned();
        this.control(&ControlRequest::Hello { client, name })?;
        let reply = this.control(&ControlRequest::Allocate {
            request: RequestId { client, number: 1 },
            pages,
            object: None,
            qos: DiskContract::new(Nanos::millis(50), Nanos::millis(100)).with_slack(),
        })?;
        let ControlReply::Permit(sealed) = reply else {
            return Err("no permit".into());
        };
        this.control(&ControlRequest::Present(sealed))?;
        this.control(&ControlRequest::Create {
            object: this.object,
            permit: sealed.permit.id,
            pages,
            generation: Generation(1),
        })?;
        for page in 0..pages {
            let header = this.header(Kind::Write, page);
            this.writer.push(&header, &[page as u8; PAGE])?;
            this.wait()?;
        }
        Ok(this)
    }

    fn header(&self, kind: Kind, page: u64) -> Header {
        Header {
            pages: 1,
            object: self.object,
            page: PageNumber(page),
            version: Version(u64::from(kind == Kind::Write)),
            generation: Generation(1),
            ..Header::control(kind, 1)
        }
    }

    fn control(&mut self, request: &ControlRequest) -> Outcome<ControlReply> {
        let header = Header::control(Kind::Control, 1);
        self.writer.push(&header, &control::encode(request)?)?;
        Ok(control::decode(&self.wait()?)?)
    }

    /// The body of the only reply outstanding.
    fn wait(&mut self) -> Outcome<Vec<u8>> {
        loop {
            self.writer.flush(&mut self.link)?;
            if !self.reader.fill(&mut self.link)? {
                return Err("the server has closed the connection".into());
            }
            if let Some(frame) = self.reader.next_frame()? {
                return match frame.header.kind {
                    Kind::ErrorReply => Err(String::from_utf8_lossy(frame.body).into()),
                    _ => Ok(frame.body.to_vec()),
                };
            }
            rustix::thread::sched_yield();
        }
    }

    /// Queues a request.
    fn send(&mut self) -> Outcome<()> {
        // xorshift64: any page, in no order.
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        let header = self.header(Kind::Read, self.random % self.pages);
        Ok(self.writer.push(&header, &[])?)
    }

    /// Writes what is queued, and reads: how many replies have come.
    fn poll(&mut self) -> Outcome<usize> {
        self.writer.flush(&mut self.link)?;
        if !self.reader.fill(&mut self.link)? {
            return Err("the server has closed the connection".into());
        }
        let mut replies = 0;
        while let Some(frame) = self.reader.next_frame()? {
            if frame.header.kind != Kind::ReadReply {
                return Err(String::from_utf8_lossy(frame.body).into());
            }
            // Each page is the one that was written.
            if frame.body[8] != frame.header.page.0 as u8 {
                return Err("another page".into());
            }
            replies += 1;
        }
        Ok(replies)
    }
}

fn incarnation(host: u64) -> Incarnation {
    Incarnation::new(HostId(host), 1, 1)
}
