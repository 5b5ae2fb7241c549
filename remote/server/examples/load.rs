//! Random reads of 4 KiB from a paging server over loopback, in the clear and with keys.
//!
//! `cargo run --release -p selfpage-remote-server --example load [PAGES [SECONDS]]`. Client and server poll, as they do
//! where each has a processor. Reported for one connection in the clear and one with keys, each with 1 and with 32
//! requests outstanding: the median and the 99th percentile of the time from a request to its reply, and pages a
//! second. The two take turns, ten times. `selfpage bench remote` is beside a raw TCP echo.

#[path = "../tests/server/common.rs"]
#[allow(dead_code, reason = "the tests have the rest")]
mod common;

use common::{Client, incarnation, keyed_link, keyring, page, start, start_keyed};
use remote_policy::identity::ObjectId;
use remote_wire::{Kind, Link};
use std::net::TcpStream;
use std::time::{Duration, Instant};

/// How often the two kinds of link take turns, so that what else the machine does meets both.
const TURNS: u32 = 10;

fn main() {
    let mut arguments = std::env::args().skip(1);
    let mut number = |or: u64| {
        arguments
            .next()
            .map_or(or, |text| text.parse().expect("a number"))
    };
    let (pages, seconds) = (number(16384), number(3));
    let length = Duration::from_secs(seconds);
    let (_folder, keyring) = keyring();
    let (plain, keyed) = (start(pages), start_keyed(pages, &keyring));
    let stream = TcpStream::connect(plain.address()).expect("the server listens");
    let mut in_the_clear = PageReader::over(Link::plain(stream).expect("a link"), pages);
    let mut with_keys = PageReader::over(keyed_link(keyed.address(), &keyring), pages);
    let processors = std::thread::available_parallelism().expect("the processors are known");
    println!("{pages} pages, {seconds} s each, {processors} processors for both ends");
    println!(
        "{:<22} {:>9} {:>9} {:>12}",
        "", "p50 us", "p99 us", "pages/s"
    );
    for depth in [1, 32] {
        let (mut clear, mut keys) = (Measured::default(), Measured::default());
        for _ in 0..TURNS {
            clear.add(measure(&mut in_the_clear, depth, length / TURNS));
            keys.add(measure(&mut with_keys, depth, length / TURNS));
        }
        report("in the clear", depth, clear);
        report("with keys", depth, keys);
    }
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

fn measure(of: &mut PageReader, depth: usize, length: Duration) -> Measured {
    let mut sent = std::collections::VecDeque::new();
    let mut times = Vec::new();
    let begun = Instant::now();
    loop {
        let is_over = begun.elapsed() >= length;
        while !is_over && sent.len() < depth {
            of.send();
            sent.push_back(Instant::now());
        }
        if is_over && sent.is_empty() {
            break;
        }
        let replies = of.client.received() as usize;
        let now = Instant::now();
        // Both servers reply in order where all pages are in RAM.
        times.extend(sent.drain(..replies).map(|at| now - at));
        if replies == 0 {
            rustix::thread::sched_yield();
        }
    }
    let elapsed = begun.elapsed();
    Measured { times, elapsed }
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
    client: Client,
    object: ObjectId,
    pages: u64,
    random: u64,
}

impl PageReader {
    fn over(link: Link, pages: u64) -> Self {
        let mut client = Client::over(link, incarnation(2, 1));
        client.hello().expect("the server has a place");
        let (mut client, object) = client.and_object(pages);
        for number in 0..pages {
            let written = client.write(object, number, 1, &page(number as u8));
            written.expect("the server has room");
        }
        assert_eq!(client.read(object, 0, 1), Ok((vec![1], page(0))));
        Self {
            client,
            object,
            pages,
            random: 1,
        }
    }

    /// Queues a request.
    fn send(&mut self) {
        // xorshift64: any page, in no order.
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        let page = self.random % self.pages;
        let header = self.client.header(Kind::Read, self.object, page, 1);
        self.client.queue(&header, &[]);
    }
}
