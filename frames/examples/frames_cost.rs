//! The cost of a frame on the page path: take, mark and put, in nanoseconds.
//!
//! `cargo run --release -p frames --example frames_cost`

use frames::{Contract, Ledger, State};
use std::time::Instant;

const ROUNDS: u32 = 2_000_000;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let (ledger, _fd) = Ledger::create(16_384, 64)?;
    let contract = Contract { g: 64, x: 16_384 };
    let domain = ledger.admit(contract)?;
    let client = ledger.adopt(domain)?;
    let frame = client.take().ok_or("no frame")?;
    client.put(frame)?;
    let start = Instant::now();
    for _ in 0..ROUNDS {
        let frame = client.take().ok_or("no frame")?;
        client.mark(frame, State::Standby)?;
        client.put(frame)?;
    }
    let each = |start: Instant, rounds: u32| start.elapsed().as_nanos() as f64 / f64::from(rounds);
    println!(
        "take + mark + put, its own unused frame: {:.0} ns",
        each(start, ROUNDS)
    );

    let start = Instant::now();
    for _ in 0..ROUNDS {
        let frame = client.take().ok_or("no frame")?;
        client.put(frame)?;
        client.release(1);
    }
    println!(
        "take a free frame, put, give it back: {:.0} ns",
        each(start, ROUNDS)
    );

    let frames: Vec<_> = (0..16_384).map_while(|_| client.take()).collect();
    client.put_batch(&frames)?;
    let rounds = 16_384 - 64;
    let taker = ledger.admit(Contract { g: 0, x: 16_384 })?;
    let taker = ledger.adopt(taker)?;
    let start = Instant::now();
    let count = (0..rounds).map_while(|_| taker.take()).count();
    println!(
        "take over another's unused frame ({count} times): {:.0} ns",
        each(start, rounds)
    );

    let start = Instant::now();
    let back = ledger.retire(taker.id());
    println!(
        "retire a domain of {back} frames: {:.0} us",
        each(start, 1) / 1000.0
    );
    Ok(())
}
