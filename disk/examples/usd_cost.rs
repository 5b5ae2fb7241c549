//! What the disk's thread costs on a real disk, and whether promises of all of it are kept.
//!
//!     cargo run --release -p disk --example usd_cost -- DIRECTORY
//!
//! The disk is measured first. Then: one read at a time by a channel beside the same reads
//! without one, in turn; three clients with promises of 1:2:4 of nearly all of it and sixteen
//! requests each, beside what the disk did unscheduled at the same depth; and a fourth that
//! comes from idleness every now and then.

use disk::atropos::{ClientId, Contract, Share};
use disk::calibrate::{Calibration, Sample};
use disk::model::Op;
use disk::swapfs::{Extents, FileName, Format, SwapFs};
use disk::time::Nanos;
use disk::usd::{Backing, Settings, Usd};
use iochannel::{Client, Doorbell, Piece, Shape, create};
use rustix::fd::AsFd;
use std::error::Error;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use wired::{PAGE, Region};

const FILE: u64 = 256 << 20;
/// Requests that each client has outstanding.
const DEPTH: u32 = 16;
const RUNNING: Duration = Duration::from_secs(4);

fn main() -> Result<(), Box<dyn Error>> {
    let directory = std::env::args_os()
        .nth(1)
        .map_or_else(std::env::temp_dir, PathBuf::from);
    let path = directory.join(format!("usd_cost.{}", std::process::id()));
    let result = run(&path);
    std::fs::remove_file(&path)?;
    result
}

fn run(path: &std::path::Path) -> Result<(), Box<dyn Error>> {
    let format = Format {
        size: Some(2 * FILE),
        force: false,
    };
    let mut fs = SwapFs::format(path, &format)?;
    let calibration = Calibration::of(&mut fs, Duration::from_secs(4), &mut |_| {})?;
    println!("{calibration}");
    let file = fs.create(FileName::new(b"of all the clients")?, FILE, &[])?;
    while let Some(mut scrub) = fs.scrub(file)? {
        scrub.run()?;
        fs.scrubbed(scrub)?;
    }
    let extents = fs.extents(file)?;
    // What was never written costs no disk.
    let buffer = Region::private(1 << 20)?;
    // SAFETY: fresh memory of that size, used only here.
    let bytes = unsafe { std::slice::from_raw_parts_mut(buffer.as_ptr(), 1 << 20) };
    bytes
        .iter_mut()
        .enumerate()
        .for_each(|(at, byte)| *byte = at as u8);
    for extent in extents.list() {
        for at in (0..extent.len).step_by(1 << 20) {
            rustix::io::pwrite(fs.medium().as_fd(), &*bytes, extent.device + at)?;
        }
    }
    latency(&fs, &extents, &calibration)?;
    shares(&fs, &extents, &calibration)
}

struct Asker {
    id: ClientId,
    client: Client,
    memory: Region,
    random: u64,
}

impl Asker {
    fn new(usd: &Usd, contract: Contract, extents: &Extents) -> Result<Self, Box<dyn Error>> {
        let id = usd.admit(contract)?;
        let doorbell = Doorbell::new()?;
        let (server, ends) = create(Shape::for_depth(16))?;
        let client = Client::attach(ends.memory, doorbell.share()?, ends.bell)?;
        usd.back(id, Backing::Swap(extents.clone()), doorbell);
        usd.add_channel(id, server);
        let random = u64::from(id.number()) + 1;
        Ok(Self {
            id,
            client,
            memory: Region::private(16 * PAGE)?,
            random,
        })
    }

    fn read(&mut self, op: usize, pieces: &[Piece; 16]) {
        let page = draw(&mut self.random) % (FILE / PAGE as u64);
        let piece = std::slice::from_ref(&pieces[op]);
        // SAFETY: the pieces and the memory outlive the operations of every caller here.
        unsafe { self.client.begin(op, false, piece, page * PAGE as u64) };
    }

    fn pieces(&self) -> [Piece; 16] {
        let start = self.memory.as_ptr();
        std::array::from_fn(|op| Piece {
            start: start.wrapping_add(op * PAGE),
            len: PAGE,
        })
    }
}

fn draw(random: &mut u64) -> u64 {
    *random ^= *random << 13;
    *random ^= *random >> 7;
    *random ^= *random << 17;
    *random
}

fn contract(share: Share, period: u64, extra: bool) -> Contract {
    let period = Nanos::millis(period);
    Contract {
        period,
        slice: share.in_period(period),
        extra,
        laxity: Nanos::ZERO,
    }
}

fn median(mut all: Vec<Duration>) -> f64 {
    all.sort_unstable();
    all[all.len() / 2].as_secs_f64() * 1e6
}

fn latency(
    fs: &SwapFs,
    extents: &Extents,
    calibration: &Calibration,
) -> Result<(), Box<dyn Error>> {
    for spin in [Duration::from_millis(1), Duration::ZERO] {
        let model = calibration.model;
        let settings = Settings {
            model,
            bound: model.bound,
            spin,
        };
        let usd = Usd::start(fs.medium().clone(), settings)?;
        let mut asker = Asker::new(&usd, contract(Share::percent(10), 100, true), extents)?;
        let pieces = asker.pieces();
        let (mut by_channel, mut direct) = (Vec::new(), Vec::new());
        let mut random = 99;
        let before = (Instant::now(), usd.whole().processor);
        for _ in 0..20 {
            for _ in 0..200 {
                let begun = Instant::now();
                asker.read(0, &pieces);
                asker.client.flush();
                assert_eq!(asker.client.over(true), Some((0, PAGE as i32)));
                by_channel.push(begun.elapsed());
            }
            for _ in 0..200 {
                let page = draw(&mut random) % (FILE / PAGE as u64);
                let place = extents
                    .translate(page * PAGE as u64, PAGE as u64)?
                    .next()
                    .ok_or("a place")?;
                // SAFETY: memory of the asker's that nothing is in flight to.
                let bytes = unsafe { std::slice::from_raw_parts_mut(asker.memory.as_ptr(), PAGE) };
                let begun = Instant::now();
                rustix::io::pread(fs.medium().as_fd(), bytes, place.device)?;
                direct.push(begun.elapsed());
            }
        }
        let used =
            (usd.whole().processor - before.1).as_secs_f64() / before.0.elapsed().as_secs_f64();
        let (by_channel, direct) = (median(by_channel), median(direct));
        println!(
            "spin {spin:?}: a read takes {by_channel:.1} us by the disk's thread, {direct:.1} us without \
             ({:.2} times), and {:.0} % of a processor",
            by_channel / direct,
            used * 100.0
        );
    }
    Ok(())
}

fn shares(fs: &SwapFs, extents: &Extents, calibration: &Calibration) -> Result<(), Box<dyn Error>> {
    let model = calibration.model;
    // All are reads of a page. Any one client can fill this bound: with one that only all of
    // them fill, who is alone with a slice left could not use the disk.
    let bound = Nanos(model.cost(Op::Read, PAGE as u32).0 * DEPTH as u64);
    let settings = Settings {
        model,
        bound,
        spin: Duration::from_micros(100),
    };
    let usd = Usd::start(fs.medium().clone(), settings)?;
    let all = model.capacity - Share::percent(3);
    let part = |parts: u64| Contract {
        slice: Nanos(all.in_period(Nanos::millis(250)).0 * parts / 7),
        ..contract(all, 250, false)
    };
    let mut askers = Vec::new();
    for parts in [1, 2, 4] {
        askers.push(Asker::new(&usd, part(parts), extents)?);
    }
    let ids: Vec<_> = askers.iter().map(|asker| asker.id).collect();
    let mut newcomer = Asker::new(&usd, contract(Share::percent(2), 100, false), extents)?;
    let stop = AtomicBool::new(false);
    let begun = Instant::now();
    let mut waits = Vec::new();
    let counts = std::thread::scope(|scope| {
        let threads: Vec<_> = askers
            .into_iter()
            .map(|mut asker| {
                let stop = &stop;
                scope.spawn(move || {
                    let pieces = asker.pieces();
                    (0..16).for_each(|op| asker.read(op, &pieces));
                    let mut count = 0u64;
                    asker.client.flush();
                    while let Some((op, moved)) = asker.client.over(true) {
                        assert_eq!(moved, PAGE as i32);
                        if !stop.load(Ordering::Relaxed) {
                            count += 1;
                            asker.read(op, &pieces);
                            asker.client.flush();
                        }
                    }
                    count
                })
            })
            .collect();
        let pieces = newcomer.pieces();
        while begun.elapsed() < RUNNING {
            std::thread::sleep(Duration::from_millis(130));
            let asked = Instant::now();
            newcomer.read(0, &pieces);
            newcomer.client.flush();
            newcomer.client.over(true);
            waits.push(asked.elapsed());
        }
        stop.store(true, Ordering::Relaxed);
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap_or(0))
            .collect::<Vec<_>>()
    });
    let elapsed = begun.elapsed().as_secs_f64();
    let total = counts.iter().sum::<u64>() as f64 / elapsed;
    let same = |sample: &&Sample| {
        sample.op == Op::Read && sample.bytes == PAGE as u32 && sample.depth == DEPTH
    };
    let unscheduled = calibration.samples.iter().find(same);
    let unscheduled = unscheduled.map_or(0.0, |sample| sample.rate);
    println!(
        "promised 1:2:4 of {all}: {:?} reads, {total:.0}/s, {:.2} of what the disk did at depth {DEPTH}; \
         correction {:.2}",
        counts,
        total / unscheduled,
        usd.whole().correction
    );
    for figures in ids.iter().filter_map(|&id| usd.figures(id)) {
        println!(
            "  charged {} in {} periods, modelled {}",
            figures.charged, figures.periods, figures.modelled
        );
    }
    waits.sort_unstable();
    println!(
        "a newcomer's first request took {:.0} us, {:.0} us at most, of {}; the bound is {}",
        waits[waits.len() / 2].as_secs_f64() * 1e6,
        waits[waits.len() - 1].as_secs_f64() * 1e6,
        waits.len(),
        bound
    );
    Ok(())
}
