//! The round trip of a request to a server that completes it at once: with
//! the server spinning, and with it asleep between requests; of one page and of a run.
//!
//! `cargo run --release -p iochannel --example roundtrip [ROUNDS]` prints, for each round,
//! the median of 2000 round trips in nanoseconds, and how many processors the process used
//! meanwhile. The client sleeps for each completion, as a faulting thread does.

use iochannel::{
    ChannelClient, ChannelGeometry, ChannelServer, ClientFds, Doorbell, IoVec, MAX_RUN, create,
};
use rustix::event::{PollFd, PollFlags, poll};
use std::time::{Duration, Instant};

const PAGE: usize = 4096;
const TRIPS: usize = 2000;
/// The offset of the last request.
const LAST: u64 = 1 << 40;

#[repr(align(4096))]
struct Pages([u8; PAGE * MAX_RUN]);

fn main() {
    let rounds = std::env::args()
        .nth(1)
        .and_then(|text| text.parse().ok())
        .unwrap_or(3);
    println!("round  server    pages  op     ns/trip  processors");
    for round in 0..rounds {
        for spins in [true, false] {
            for pages in [1, MAX_RUN] {
                for write in [false, true] {
                    let (median, processors) = measure(spins, pages, write);
                    println!(
                        "{round:>5}  {:<8}  {pages:>5}  {:<5}  {:>7}  {processors:.2}",
                        if spins { "spins" } else { "sleeps" },
                        if write { "write" } else { "read" },
                        median.as_nanos(),
                    );
                }
            }
        }
    }
}

fn measure(spins: bool, pages: usize, write: bool) -> (Duration, f64) {
    let doorbell = Doorbell::new().expect("a doorbell");
    let (mut server, ends) = create(ChannelGeometry::for_depth(4)).expect("a channel");
    let ClientFds { memory, bell, .. } = ends;
    let rope = doorbell.share().expect("a descriptor");
    let mut client = ChannelClient::attach(memory, rope, bell).expect("a client");
    std::thread::scope(|scope| {
        scope.spawn(|| answer(&mut server, &doorbell, spins));
        let mut memory = Box::new(Pages([0; PAGE * MAX_RUN]));
        let mut trips: Vec<Duration> = Vec::with_capacity(TRIPS);
        let (began, used) = (Instant::now(), processor_time());
        for _ in 0..TRIPS {
            trips.push(trip(&mut client, &mut memory, pages, write, 0));
        }
        let processors = (processor_time() - used).as_secs_f64() / began.elapsed().as_secs_f64();
        trip(&mut client, &mut memory, 1, write, LAST);
        trips.sort();
        (trips[TRIPS / 2], processors)
    })
}

fn trip(
    client: &mut ChannelClient,
    memory: &mut Pages,
    pages: usize,
    write: bool,
    offset: u64,
) -> Duration {
    let pieces: Vec<IoVec> = (memory.0.chunks_mut(PAGE).take(pages))
        .map(|page| IoVec::page(page.as_mut_ptr()))
        .collect();
    let began = Instant::now();
    // SAFETY: the memory is not used until the operation is over, which is below.
    unsafe { client.begin(0, write, &pieces, offset) };
    client.flush();
    client.reap(true);
    began.elapsed()
}

fn answer(server: &mut ChannelServer, doorbell: &Doorbell, spins: bool) {
    loop {
        while let Some(request) = server.take().expect("an honest client") {
            server.complete(request.slot, request.len() as i32);
            server.notify_completions();
            if request.offset == LAST {
                return;
            }
        }
        if spins {
            std::hint::spin_loop();
        } else if server.arm() {
            let _ = poll(&mut [PollFd::new(doorbell, PollFlags::IN)], None);
            server.disarm();
            doorbell.drain();
        }
    }
}

fn processor_time() -> Duration {
    use rustix::time::{ClockId, clock_gettime};
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}
