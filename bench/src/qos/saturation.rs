//! A device that is promised whole: clients whose contracts sum to all of its capacity, each
//! with many requests outstanding.
//!
//! Not in the paper, whose disk does one thing at a time. What must hold: each client has
//! its share as if it had a slower disk of its own, the total is hardly less than the
//! unscheduled device gives, and a client that was idle is served at once when it returns.

use super::progress::{Progress, ReportedRun};
use super::reader::ReaderPlan;
use super::{QosOptions, direct_disk, progress, shares};
use crate::prelude::*;
use disk::cost_model::CostModel;
use protocol::TenantInfo;

/// Parts of the disk's capacity, in percent; with [`NEWCOMER`] all of it.
const PARTS: [u64; 3] = [14, 28, 57];
const PERIOD: Duration = Duration::from_millis(250);

/// Of the client that sends a request now and then.
const NEWCOMER: u64 = 1;

/// How often it comes: every time long after its last period began.
const PAUSE: Duration = Duration::from_millis(300);

/// Requests that each has outstanding. The largest has little more than half of what the disk
/// has in flight, which its requests have to be enough for, with those whose answers it has not
/// looked at: of 64 each it had 94 % of its promise where the disk was given 64 at once, of 16
/// each 80 %.
const DEPTH: u32 = 128;

/// Part of the time in which all are at work: what is charged later is not of all.
const WATCHED: f64 = 0.95;

/// MiB of the file that all read.
const FILE: u64 = 256;

/// The figures of the clients.
struct SharedDisk {
    charged: Vec<f64>,
    bytes: Vec<f64>,
    /// The newcomer's first requests, each.
    first: super::subject::Latency,
}

/// Measures the saturated device, with contracts and unscheduled.
pub fn rows(env: &TestEnv, options: &QosOptions) -> Result<Vec<Row>> {
    let file = super::data(env, FILE)?;
    // The first measures the disk.
    drop(DaemonFixture::start(env, DaemonConfig::of(16))?);
    let disk = env.disk.as_ref();
    let model = disk.ok_or_else(|| anyhow!("there is no disk"))?.model()?;
    let depth = DEPTH * PARTS.len() as u32;
    let seconds = options.seconds / f64::from(2 * options.repeats as u32);
    let during = Duration::from_secs_f64(seconds);
    let (mut plays, mut samples) = (Vec::new(), Vec::new());
    // In turn, so that what else the machine does is in both.
    for repeat in 0..options.repeats {
        progress(&format!("saturation, repeat {}", repeat + 1));
        let free = direct_disk::read(&file, FILE << 20, depth, during)?;
        let shared = share(env, options, (&file, &model), seconds)?;
        let rate = shared.bytes.iter().sum::<f64>() / 4096.0 / seconds;
        samples.push((rate, free.rate()));
        plays.push(shared);
    }
    let promised = PARTS.map(|part| part as f64);
    let sum = |of: fn(&SharedDisk) -> &Vec<f64>| -> Vec<f64> {
        let each = |k: usize| plays.iter().map(|play| of(play)[k]).sum();
        (0..PARTS.len()).map(each).collect()
    };
    let (charged, bytes) = (sum(|play| &play.charged), sum(|play| &play.bytes));
    let row = |what, bound, value| Row::fact(format!("saturation: {what}"), bound, value);
    let whole = seconds * WATCHED * options.repeats as f64 * f64::from(model.capacity);
    let of_promised = charged.iter().zip(PARTS).map(|(charged, part)| {
        let promise = whole * part as f64 / 100.0;
        (
            format!("{}: charged of promised", name(part)),
            charged / promise,
        )
    });
    let far = shares::worst(&charged, &promised);
    let jain = shares::jain(&charged, &promised);
    let bytes = shares::worst(&bytes, &promised);
    let what = "saturation: reads a second, contracts for all of the device";
    let throughput = Row::new(what, "1/s", Bound::AtLeast(0.85)).beside("unscheduled");
    let rates = samples.iter().map(|(o, f)| Sample::new(*o, *f));
    Ok(vec![
        row(
            "charged time, farthest from the shares",
            Bound::AtMost(0.02),
            far,
        )
        .notes(of_promised)
        .notes([("capacity", f64::from(model.capacity))]),
        row("charged time, Jain's index", Bound::AtLeast(0.999), jain),
        row(
            "bytes, farthest from the shares",
            Bound::AtMost(0.05),
            bytes,
        ),
        throughput.samples(rates),
        first(&plays, &samples, &model),
    ])
}

/// What a newly active client's first request takes beside what it may: the cost that may be
/// in flight before it, and what a transaction takes at that depth.
fn first(plays: &[SharedDisk], samples: &[(f64, f64)], model: &CostModel) -> Row {
    let us = |ns: u64| ns as f64 / 1e3;
    let one = |(play, (_, free)): (&SharedDisk, &(f64, f64))| {
        let device = f64::from(DEPTH * PARTS.len() as u32) * 1e6 / free;
        Sample::new(us(play.first.p50_ns), us(model.bound.0) + device).notes([
            ("bound us", us(model.bound.0)),
            ("p99 us", us(play.first.p99_ns)),
            ("most us", us(play.first.most_ns)),
            ("requests", play.first.due as f64),
        ])
    };
    let what = "saturation: a newly active client's first request";
    let row = Row::new(what, "us", Bound::AtMost(1.0)).beside("the bound and a transaction");
    row.samples(plays.iter().zip(samples).map(one))
}

/// The name of a client.
fn name(part: u64) -> String {
    format!("{part} %")
}

fn share(
    env: &TestEnv,
    options: &QosOptions,
    (file, model): (&Path, &CostModel),
    seconds: f64,
) -> Result<SharedDisk> {
    let system = DaemonFixture::start(env, DaemonConfig::of(16))?;
    let reader = |part: u64, depth: usize, pause: Option<Duration>| {
        let slice = PERIOD.mul_f64(f64::from(model.capacity) * part as f64 / 100.0);
        let (slice, period) = (slice.as_micros(), PERIOD.as_micros());
        let plan = ReaderPlan {
            file: file.to_owned(),
            system: system.socket().to_owned(),
            name: name(part),
            disk: format!("{slice}us/{period}us,laxity=0ms"),
            depth,
            random: true,
            pause,
            run: ReportedRun {
                seconds,
                every: options.every,
            },
        };
        WorkerPlan::Reader(plan).start()
    };
    let all = PARTS
        .map(|part| reader(part, DEPTH as usize, None))
        .into_iter();
    let all = all.chain([reader(NEWCOMER, 1, Some(PAUSE))]);
    let mut readers = all.collect::<Result<Vec<_>>>()?;
    let before = system.tenants()?;
    for reader in &mut readers {
        reader.go()?;
    }
    std::thread::sleep(Duration::from_secs_f64(seconds * WATCHED));
    let after = system.tenants()?;
    let charged = PARTS.map(|part| {
        let of = |all: &[TenantInfo]| {
            let one = all.iter().find(|tenant| tenant.name == name(part));
            one.map_or(0.0, |tenant| tenant.charged.as_secs_f64())
        };
        of(&after) - of(&before)
    });
    let ended = readers.into_iter().map(Worker::end);
    let mut said = ended.collect::<Result<Vec<_>>>()?;
    let newcomer = said.pop().unwrap_or_default();
    let first = last(&newcomer).ok_or_else(|| anyhow!("the newcomer sent no latencies"))?;
    let bytes = said
        .iter()
        .map(|lines| last::<Progress>(lines).map_or(0.0, |p| p.bytes as f64));
    Ok(SharedDisk {
        charged: charged.to_vec(),
        bytes: bytes.collect(),
        first,
    })
}

/// What was said last.
fn last<T: serde::de::DeserializeOwned>(lines: &[String]) -> Option<T> {
    serde_json::from_str(lines.last()?).ok()
}
