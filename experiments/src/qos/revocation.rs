//! Frames asked back, thousands of times, of holders of every kind.
//!
//! Nemesis, section 6.2: frames beyond the guarantees are lent, and come back when somebody
//! claims what he was guaranteed: "if the victim fails to produce the frames by the deadline
//! it is killed". One program claims and drops its guaranteed memory over and over; what it
//! does not use is with holders that are clean, that are dirty and have little disk time, and
//! that refuse.
//!
//! Rule: a claim is served by the deadline and 50 ms; only who refuses is killed.

use super::daemon::{Setup, System};
use super::guest::{Claims, Done, Latency, Order};
use super::{Grounds, Options, fact, failed, lacking, sample};
use crate::ExperimentError;
use crate::process::Process;
use crate::real::goal::{Bound, Row};
use std::time::Duration;

/// MiB in all; of the claimer's guarantee; that a holder is guaranteed, and may have on top.
const MANAGED: u64 = 96;
const CLAIMED: u64 = 16;
const HELD: u64 = 2;
const LENT: u64 = 48;

/// MiB of swap of all who take part.
pub const SWAP: u64 = 2 * (3 * 64 + CLAIMED + 32);

/// Pages of a claim: all that is guaranteed.
const PAGES: u64 = CLAIMED << 8;

/// The daemon's deadline, and what it may take on top.
const SERVED: Duration = Duration::from_millis(150);

/// Claims between two looks at how often frames were asked back.
const BATCH: u64 = 20;

/// Rounds without one revocation before it is said that there are none.
const BARREN: u64 = 50;

/// Who takes part: name, MiB of data, MiB guaranteed and on top, disk time.
const CLEAN: Role = Role("clean", 64, HELD, LENT, "60ms/250ms");
const DIRTY: Role = Role("dirty", 64, HELD, LENT, "5ms/250ms");
const REFUSER: Role = Role("refuser", 64, HELD, LENT, "10ms/250ms");
const CLAIMER: Role = Role("claimer", CLAIMED, CLAIMED, 0, "10ms/250ms");
const BYSTANDER: Role = Role("bystander", 32, 4, 0, "60ms/250ms");

struct Role(&'static str, u64, u64, u64, &'static str);

impl Role {
    fn start(
        &self,
        grounds: &Grounds<'_>,
        system: &System,
        orders: &[Order],
    ) -> Result<Process, ExperimentError> {
        let Self(name, data, held, lent, disk) = *self;
        let mut command = grounds.myself.command("guest");
        command.arg("--system").arg(system.socket());
        command.args(["--name", name, "--disk", disk]);
        for (option, value) in [
            ("--mib", data),
            ("--swap", data * 2),
            ("--frames", held << 10),
            ("--extra", lent << 10),
        ] {
            command.args([option, &value.to_string()]);
        }
        if name == REFUSER.0 {
            command.arg("--refuses");
        }
        let mut process = Process::start(command)?;
        for order in orders {
            process.tell(&order.to_string())?;
            if *order == Order::Fill {
                process.hear_as::<Done>()?;
            }
        }
        Ok(process)
    }
}

/// Everybody but those who refuse: they come and go.
struct Crowd {
    claimer: Process,
    bystander: Process,
    holders: [Process; 2],
}

/// What was seen so far.
#[derive(Default)]
struct Seen {
    claims: Vec<Claims>,
    /// Of the bystander: while nobody claims, and while somebody does.
    bystander: Vec<[Latency; 2]>,
    /// Revocations that the holders know of.
    rounds: u64,
    refused: u64,
    killed: u64,
}

/// Claims until frames were asked back as often as wanted.
pub fn rows(grounds: &Grounds<'_>, options: &Options) -> Vec<Row> {
    match take(grounds, options) {
        Ok((seen, honest)) => judged(&seen, honest),
        Err(failure) => vec![lacking("revocation".into(), failure)],
    }
}

fn take(grounds: &Grounds<'_>, options: &Options) -> Result<(Seen, u64), ExperimentError> {
    let system = System::start(grounds, Setup::of(MANAGED))?;
    run(grounds, options, &system).map_err(|failure| system.explain(failure))
}

fn run(
    grounds: &Grounds<'_>,
    options: &Options,
    system: &System,
) -> Result<(Seen, u64), ExperimentError> {
    let start = |role: &Role, orders: &[Order]| role.start(grounds, system, orders);
    let holders = [
        start(&CLEAN, &[Order::Fill, Order::Roam(1)])?,
        start(&DIRTY, &[Order::Fill, Order::Churn(1)])?,
    ];
    let (bystander, claimer) = (start(&BYSTANDER, &[Order::Fill])?, start(&CLAIMER, &[])?);
    let mut crowd = Crowd {
        holders,
        bystander,
        claimer,
    };
    let mut seen = Seen::default();
    let mut barren = 0;
    for turn in 0u64.. {
        super::say(&format!(
            "revocation: {} of {} rounds",
            seen.rounds, options.rounds
        ));
        let before = seen.rounds;
        let alone = watch(&mut crowd, options, turn, None)?;
        let beside = watch(&mut crowd, options, turn, Some(&mut seen))?;
        seen.bystander.push([alone, beside]);
        if seen.refused * options.rounds <= seen.rounds * options.refusals {
            refuse(grounds, system, &mut crowd, &mut seen)?;
        }
        barren = if seen.rounds == before { barren + 1 } else { 0 };
        if seen.rounds >= options.rounds && seen.refused >= options.refusals {
            break;
        }
        if barren > BARREN {
            return Err(failed(format_args!(
                "no frames were asked back in {BARREN} turns of claims, {} rounds before them",
                seen.rounds
            )));
        }
    }
    let honest = alive(crowd);
    Ok((seen, honest))
}

/// The bystander's accesses while nobody claims, or while somebody does.
fn watch(
    crowd: &mut Crowd,
    options: &Options,
    turn: u64,
    seen: Option<&mut Seen>,
) -> Result<Latency, ExperimentError> {
    let during = Duration::from_secs_f64(options.phase.min(1.0));
    let open = Order::Open {
        during,
        rate: options.rate.min(500.0),
        seed: turn + 1,
    };
    crowd.bystander.tell(&open.to_string())?;
    if let Some(seen) = seen {
        let began = std::time::Instant::now();
        while began.elapsed() < during {
            seen.claims.push(claim(&mut crowd.claimer, BATCH)?);
        }
        seen.rounds = asked(&mut crowd.holders)?;
    }
    crowd.bystander.hear_as()
}

fn claim(claimer: &mut Process, times: u64) -> Result<Claims, ExperimentError> {
    let claim = Order::Claim {
        times,
        pages: PAGES,
        most: SERVED,
    };
    claimer.tell(&claim.to_string())?;
    claimer.hear_as()
}

fn asked(holders: &mut [Process]) -> Result<u64, ExperimentError> {
    let mut sum = 0;
    for holder in holders {
        holder.tell(&Order::Asked.to_string())?;
        sum += holder.hear_as::<u64>()?;
    }
    Ok(sum)
}

/// Somebody who gives nothing back, until he is killed or is never asked.
fn refuse(
    grounds: &Grounds<'_>,
    system: &System,
    crowd: &mut Crowd,
    seen: &mut Seen,
) -> Result<(), ExperimentError> {
    let orders = [Order::Fill, Order::Churn(1)];
    seen.refused += 1;
    let Ok(mut refuser) = REFUSER.start(grounds, system, &orders) else {
        // He may be asked, and killed, before he has filled his memory.
        seen.killed += 1;
        return Ok(());
    };
    for _ in 0..BARREN {
        seen.claims.push(claim(&mut crowd.claimer, 1)?);
        if refuser.has_ended() {
            seen.killed += 1;
            return Ok(());
        }
    }
    Ok(())
}

/// Honest programs that were killed, or went wrong.
fn alive(crowd: Crowd) -> u64 {
    let Crowd {
        claimer,
        bystander,
        holders,
    } = crowd;
    let mut lost = 0;
    for mut holder in holders {
        let rested = holder.tell(&Order::Rest.to_string());
        let done = rested.and_then(|()| holder.hear_as::<Done>());
        lost += u64::from(done.and_then(|_| holder.end()).is_err());
    }
    for guest in [claimer, bystander] {
        lost += u64::from(guest.end().is_err());
    }
    lost
}

fn judged(seen: &Seen, honest: u64) -> Vec<Row> {
    let row = |what: &str, bound, value| fact(format!("revocation: {what}"), bound, value);
    let of = |value: fn(&Latency) -> u64| {
        let each = seen.claims.iter().map(|claims| value(&claims.latency));
        each.max().unwrap_or(0) as f64 / 1e6
    };
    let typical: Vec<f64> = seen
        .claims
        .iter()
        .map(|c| c.latency.p50_ns as f64 / 1e6)
        .collect();
    let late: u64 = seen.claims.iter().map(|claims| claims.late).sum();
    let mut rounds = row(
        "times that frames were asked back",
        Bound::Open,
        seen.rounds as f64,
    );
    rounds.samples[0].notes.extend([
        (
            "claims".into(),
            seen.claims.iter().map(|c| c.latency.due).sum::<u64>() as f64,
        ),
        (
            "p50 ms".into(),
            crate::statistics::median(&typical).unwrap_or(0.0),
        ),
        ("most ms".into(), of(|latency| latency.most_ns)),
    ]);
    let mut bystander = row(
        "a bystander's p99 while frames are asked back",
        Bound::Open,
        0.0,
    );
    bystander.beside = Some("while none are".into());
    bystander.unit = "us";
    let us = |latency: &Latency| latency.p99_ns as f64 / 1e3;
    let pairs = seen.bystander.iter();
    bystander.samples = pairs
        .map(|[alone, beside]| sample(us(beside), Some(us(alone)), &[]))
        .collect();
    vec![
        rounds,
        row(
            "claims served later than the deadline and 50 ms",
            Bound::AtMost(0.0),
            late as f64,
        ),
        row(
            "those who refused and were killed, of all who refused",
            Bound::AtLeast(1.0),
            seen.killed as f64 / seen.refused.max(1) as f64,
        ),
        row(
            "honest programs killed or gone wrong",
            Bound::AtMost(0.0),
            honest as f64,
        ),
        bystander,
    ]
}
