//! Frames asked back, thousands of times, of holders of every kind.
//!
//! Nemesis, section 6.2: frames beyond the guarantees are lent, and come back when somebody
//! claims what he was guaranteed: "if the victim fails to produce the frames by the deadline
//! it is killed". One program's guarantee is lowered and raised over and over; what it does
//! not need meanwhile is with holders that are clean, that are dirty and have little disk
//! time, and that refuse. When its guarantee is there again it claims it.
//!
//! Rule: a claim is served by the deadline and 50 ms; only who refuses is killed.

use super::daemon::{Setup, System};
use super::guest::{Done, Latency, Order};
use super::{Grounds, Options, fact, failed, lacking, sample};
use crate::ExperimentError;
use crate::process::Process;
use crate::real::goal::{Bound, Row};
use crate::statistics::median;
use std::time::{Duration, Instant};
use system::control::Listed;
use system::tenant::set;
use system::terms::FrameTerms;

/// MiB in all; of the claimer's guarantee; that others are guaranteed, and the claimer while
/// its own is lowered; that a holder may have on top.
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

/// How long holders have to take what the claimer does not need, before it is claimed: they
/// want it all the time.
const LENDING: Duration = Duration::from_millis(20);
const LOOK: Duration = Duration::from_micros(500);

/// Turns without one revocation before it is said that there are none.
const BARREN: u64 = 10;

/// Claims that a holder is given to be asked in, where he refuses.
const CHANCES: u64 = 20;

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
struct Crowd<'a> {
    system: &'a System,
    claimer: Process,
    /// The claimer's number.
    number: u32,
    bystander: Process,
    holders: [Process; 2],
}

/// What was seen so far.
#[derive(Default)]
struct Seen {
    /// Milliseconds until a claim was served.
    claims: Vec<f64>,
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
        number: number(system)?,
        system,
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
            refuse(grounds, &mut crowd, &mut seen)?;
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
    crowd: &mut Crowd<'_>,
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
        let began = Instant::now();
        while began.elapsed() < during {
            seen.claims.push(claim(crowd)?);
        }
        seen.rounds = asked(&mut crowd.holders)?;
    }
    crowd.bystander.hear_as()
}

/// Lowers the claimer's guarantee, so that others take what it does not need, raises it again
/// and has it claimed. Milliseconds until it was there.
fn claim(crowd: &mut Crowd<'_>) -> Result<f64, ExperimentError> {
    let guarantee = |mib: u64| {
        let frames = FrameTerms {
            g: (mib << 8) as u32,
            x: PAGES as u32,
        };
        set(crowd.system.socket(), crowd.number, Some(frames), None).map_err(failed)
    };
    let began = Instant::now();
    let mut claimer = guarantee(HELD)?;
    while claimer.n > claimer.terms.frames.g && began.elapsed() < LENDING {
        std::thread::sleep(LOOK);
        claimer = of(crowd.system, crowd.number)?;
    }
    guarantee(CLAIMED)?;
    crowd.claimer.tell(&Order::Claim(PAGES).to_string())?;
    let claimed: Done = crowd.claimer.hear_as()?;
    Ok(claimed.ns as f64 / 1e6)
}

fn number(system: &System) -> Result<u32, ExperimentError> {
    let all = system.tenants()?;
    let claimer = all.iter().find(|tenant| tenant.name == CLAIMER.0);
    claimer
        .map(|tenant| tenant.tenant)
        .ok_or_else(|| failed("the claimer has no contract"))
}

fn of(system: &System, number: u32) -> Result<Listed, ExperimentError> {
    let mut all = system.tenants()?.into_iter();
    all.find(|tenant| tenant.tenant == number)
        .ok_or_else(|| failed("the claimer has no contract any more"))
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
    crowd: &mut Crowd<'_>,
    seen: &mut Seen,
) -> Result<(), ExperimentError> {
    let orders = [Order::Fill, Order::Churn(1)];
    seen.refused += 1;
    let Ok(mut refuser) = REFUSER.start(grounds, crowd.system, &orders) else {
        // He may be asked, and killed, before he has filled his memory.
        seen.killed += 1;
        return Ok(());
    };
    for _ in 0..CHANCES {
        seen.claims.push(claim(crowd)?);
        if refuser.has_ended() {
            seen.killed += 1;
            return Ok(());
        }
    }
    Ok(())
}

/// Honest programs that were killed, or went wrong.
fn alive(crowd: Crowd<'_>) -> u64 {
    let Crowd {
        claimer,
        bystander,
        holders,
        ..
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
    let late = seen
        .claims
        .iter()
        .filter(|ms| **ms > SERVED.as_secs_f64() * 1e3);
    let late = late.count();
    let mut rounds = row(
        "times that frames were asked back",
        Bound::Open,
        seen.rounds as f64,
    );
    rounds.samples[0].notes.extend([
        ("claims".into(), seen.claims.len() as f64),
        ("p50 ms".into(), median(&seen.claims).unwrap_or(0.0)),
        (
            "most ms".into(),
            seen.claims.iter().copied().fold(0.0, f64::max),
        ),
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
