//! The client of redis-server: requests when they are due, whatever became of those before.
//!
//! Rule: what the client's own threads wait for a processor is none of the server's time: a client is on another
//! machine, as a rule. So they have a real-time priority above all that they measure, in every arm. Without
//! it p99 was 6.3 ms beside the neighbour, in which redis-server itself had waited 11 ms in 12 s for a processor
//! and the client 1,300 (`/proc/PID/task/TID/schedstat`).

use crate::prelude::*;
use crate::process::joined;
use crate::qos::subject::{Latency, latencies, schedule, wait_until};
use crate::redis_server::{get, pipeline, reply, send, set, shut_down, value};
use std::io::BufReader;
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{Receiver, Sender, channel};
use wired::sched_class::set_real_time;

/// One request in so many is a write: the ratio of memtier_benchmark.
const WRITE_EVERY: u64 = 11;

/// The client's priority: above what a daemon lends.
const PRIORITY: i32 = 10;

/// How many times as long as its schedule a phase may take before no more is sent.
const MAX_OVERTIME: u32 = 2;

/// A connection to a server that has, or is to have, these keys.
pub struct RedisClient {
    stream: UnixStream,
    replies: BufReader<UnixStream>,
    keys: u64,
}

/// A request: its key, and whether it writes.
#[derive(Clone, Copy)]
struct KeyRequest {
    key: u64,
    is_write: bool,
}

impl KeyRequest {
    /// The nth of a phase.
    fn of(seed: u64, n: u64, keys: u64) -> Self {
        Self {
            key: mix(mix(seed) ^ n) % keys,
            is_write: n % WRITE_EVERY == WRITE_EVERY - 1,
        }
    }

    fn encode(self, out: &mut Vec<u8>) {
        match self.is_write {
            true => set(out, self.key),
            false => get(out, self.key),
        }
    }

    fn check(self, reply: &[u8]) -> Result<()> {
        let mut wanted = Vec::new();
        match self.is_write {
            true => wanted.extend(b"OK"),
            false => value(&mut wanted, self.key),
        }
        match reply == wanted {
            true => Ok(()),
            false => Err(anyhow!(
                "redis-server replied something else of key {}",
                self.key
            )),
        }
    }
}

impl RedisClient {
    /// Over a connection.
    pub fn new(stream: UnixStream, keys: u64) -> Result<Self> {
        let replies = BufReader::new(stream.try_clone()?);
        Ok(Self {
            stream,
            replies,
            keys,
        })
    }

    /// Sets every key.
    pub fn fill(&mut self) -> Result<()> {
        pipeline(&self.stream, &mut self.replies, self.keys, set, |_, _| {
            Ok(())
        })
    }

    /// Sends requests when they are due, so many a second, and waits for all replies.
    pub fn open(&mut self, during: Duration, rate: f64, seed: u64) -> Result<Latency> {
        let schedule = schedule(during, rate, seed);
        let mut times = latencies()?;
        let (sent, arrived) = channel();
        let (stream, keys, began) = (&self.stream, self.keys, Instant::now());
        let late = |due: Duration| began.elapsed().saturating_sub(due).as_nanos() as u64;
        let (replies, times_of) = (&mut self.replies, &mut times);
        let due_times = &schedule;
        let done = std::thread::scope(|scope| {
            let limit = began + during * MAX_OVERTIME;
            let due = due_times.iter().map(|due| began + *due);
            let requests = (0..).map(|n| KeyRequest::of(seed, n, keys));
            let sender = scope.spawn(move || send_all(stream, due.zip(requests), limit, &sent));
            let receiver = scope.spawn(move || {
                receive_all(replies, &arrived, |n| {
                    times_of.saturating_record(late(due_times[n]));
                })
            });
            let done = joined(receiver);
            joined(sender).and(done)
        })?;
        for due in &schedule[done..] {
            times.saturating_record(late(*due));
        }
        Ok(Latency::of(&times, schedule.len() as u64, done as u64))
    }

    /// Has the server end.
    pub fn end(self) -> Result<()> {
        shut_down(&self.stream)
    }
}

/// Receives the reply of each request that was sent, and calls `answered` with its number. Returns how many there were.
fn receive_all(
    replies: &mut BufReader<UnixStream>,
    sent: &Receiver<KeyRequest>,
    mut answered: impl FnMut(usize),
) -> Result<usize> {
    // Where the kernel refuses, the client waits with all others.
    let _ = set_real_time(0, PRIORITY);
    let mut done = 0;
    for request in sent {
        request_is_answered(replies, request)?;
        answered(done);
        done += 1;
    }
    Ok(done)
}

fn request_is_answered(replies: &mut BufReader<UnixStream>, request: KeyRequest) -> Result<()> {
    request.check(&reply(replies)?)
}

/// Sends each request when it is due, none after `limit`.
fn send_all(
    mut stream: &UnixStream,
    requests: impl Iterator<Item = (Instant, KeyRequest)>,
    limit: Instant,
    sent: &Sender<KeyRequest>,
) -> Result<()> {
    let _ = set_real_time(0, PRIORITY);
    let mut bytes = Vec::new();
    for (due, request) in requests {
        wait_until(due);
        if Instant::now() > limit {
            break;
        }
        bytes.clear();
        request.encode(&mut bytes);
        send(&mut stream, &bytes)?;
        if sent.send(request).is_err() {
            // A reply was wrong, or none.
            break;
        }
    }
    Ok(())
}
