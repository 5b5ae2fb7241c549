//! Thousands of revocations, from holders of every kind.
//!
//! Nemesis, section 6.2: frames beyond the guarantees are optimistic, and are revoked when a
//! domain claims its guarantee: "if the victim fails to produce the frames by the deadline
//! it is killed". The guarantee of one program, the claimer, is lowered and raised over and
//! over. Holders take the frames that it does not need meanwhile: a clean one, a dirty one
//! with little disk time, and one that refuses revocations. The claimer claims its guarantee
//! when it is raised again.
//!
//! Rule: a claim is served within the deadline and 50 ms; only a refuser is killed.

use super::guest::{Done, Latency, Order};
use super::{Grounds, Options, fact, lacking, sample};
use crate::ExperimentError;
use crate::error::failed;
use crate::process::Process;
use crate::real::goal::{Bound, Row};
use crate::statistics::median;
use crate::system::{Setup, System};
use protocol::TenantInfo;
use protocol::contract_spec::FrameSpec;
use std::time::{Duration, Instant};
use tenant::set;

/// MiB of managed memory; MiB guaranteed to each tenant, to the claimer while its guarantee
/// is lowered; MiB guaranteed to the claimer while it is raised.
const MANAGED: u64 = 64;
const HELD: u64 = 2;
const CLAIMED: u64 = 3;

/// Optimistic MiB of a holder that makes room for a refuser.
const SCANT: u64 = 2;

/// Pages of a claim. The daemon grants by the MiB: the claim beyond [`HELD`] is one request,
/// and small enough that the pager has no reason to write pages out.
const PAGES: u64 = (CLAIMED << 8) * 7 / 8;

/// MiB of swap of all tenants.
pub const SWAP: u64 = 2 * (3 * 64 + CLAIMED + 32);

/// The daemon's deadline, and what it may take on top.
const SERVED: Duration = Duration::from_millis(150);

/// Time between the lowered guarantee and the claim. The holders request frames all the
/// time, so they take what the claimer does not need.
const LENDING: Duration = Duration::from_millis(5);

/// Turns without a revocation after which the experiment fails.
const BARREN: u64 = 10;

/// How long the claimer claims, so that a revocation reaches the refuser and its deadline
/// passes.
const CHANCE: Duration = Duration::from_secs(3);

/// How long a refuser has to take the room that was made for it.
const SPREADING: Duration = Duration::from_secs(3);

/// The tenants: name, MiB of data, guaranteed MiB, optimistic MiB, disk time. The daemon
/// revokes from the tenant with the most optimistic frames: from the clean one until it has
/// as few as the dirty one, and from a refuser that has the clean one's. The laxity is short
/// because infrequent accesses would each spend a long one.
const CLEAN: Role = Role("clean", 64, HELD, 42, "60ms/250ms,laxity=500us");
const DIRTY: Role = Role("dirty", 64, HELD, 18, "5ms/250ms,laxity=500us");
const REFUSER: Role = Role("refuser", 64, HELD, 40, "40ms/250ms,laxity=500us");
const CLAIMER: Role = Role("claimer", CLAIMED, CLAIMED, 0, "10ms/250ms,laxity=500us");
const BYSTANDER: Role = Role("bystander", 32, 4, 0, "60ms/250ms,laxity=500us");

struct Role(&'static str, u64, u64, u64, &'static str);

impl Role {
    fn start(
        &self,
        grounds: &Grounds<'_>,
        system: &System,
        orders: &[Order],
    ) -> Result<Process, ExperimentError> {
        let Self(name, data, held, lent, disk) = *self;
        let mut command = grounds.base.myself.command("guest");
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
        if lent > 0 {
            command.arg("--greedy");
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

/// All tenants but the refusers, which come and go.
struct Crowd<'a> {
    system: &'a System,
    claimer: Process,
    bystander: Process,
    holders: [Process; 2],
}

/// Figures so far.
#[derive(Default)]
struct Seen {
    /// Milliseconds until a claim was served.
    claims: Vec<f64>,
    /// Of the bystander: between claims, and during claims.
    bystander: Vec<[Latency; 2]>,
    /// Revocations that the holders received.
    rounds: u64,
    refused: u64,
    killed: u64,
}

/// Claims until the wanted number of revocations is reached.
pub fn rows(grounds: &Grounds<'_>, options: &Options) -> Vec<Row> {
    match take(grounds, options) {
        Ok((seen, honest)) => judged(&seen, honest),
        Err(failure) => vec![lacking("revocation".into(), failure)],
    }
}

fn take(grounds: &Grounds<'_>, options: &Options) -> Result<(Seen, u64), ExperimentError> {
    let system = System::start(&grounds.base, &grounds.disk, Setup::of(MANAGED))?;
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

/// The bystander's accesses, between claims or during claims.
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
    contract(crowd.system, &CLAIMER, HELD, 0)?;
    std::thread::sleep(LENDING);
    contract(crowd.system, &CLAIMER, CLAIMED, 0)?;
    crowd.claimer.tell(&Order::Claim(PAGES).to_string())?;
    let claimed: Done = crowd.claimer.hear_as()?;
    Ok(claimed.ns as f64 / 1e6)
}

fn asked(holders: &mut [Process]) -> Result<u64, ExperimentError> {
    let mut sum = 0;
    for holder in holders {
        holder.tell(&Order::Asked.to_string())?;
        sum += holder.hear_as::<u64>()?;
    }
    Ok(sum)
}

/// Runs a tenant that ignores revocations, until it is killed or no revocation reaches it.
fn refuse(
    grounds: &Grounds<'_>,
    crowd: &mut Crowd<'_>,
    seen: &mut Seen,
) -> Result<(), ExperimentError> {
    let system = crowd.system;
    contract(system, &CLEAN, HELD, SCANT)?;
    let orders = [Order::Fill, Order::Churn(1)];
    seen.refused += 1;
    // A revocation may reach it, and kill it, before it has filled its memory.
    let refuser = REFUSER.start(grounds, system, &orders);
    seen.killed += match refuser {
        Ok(mut refuser) => {
            let began = Instant::now();
            let spread =
                || Ok::<_, ExperimentError>(surplus(system, &REFUSER)? > surplus(system, &DIRTY)?);
            while began.elapsed() < SPREADING && !refuser.has_ended() && !spread()? {
                std::thread::sleep(LENDING);
            }
            let began = Instant::now();
            while began.elapsed() < CHANCE && !refuser.has_ended() {
                seen.claims.push(claim(crowd)?);
            }
            u64::from(refuser.has_ended())
        }
        Err(_) => 1,
    };
    contract(system, &CLEAN, CLEAN.2, CLEAN.3)
}

/// Changes a contract for frames: guaranteed and optimistic MiB.
fn contract(
    system: &System,
    Role(name, ..): &Role,
    held: u64,
    lent: u64,
) -> Result<(), ExperimentError> {
    let frames = FrameSpec {
        g: (held << 8) as u32,
        x: ((held + lent) << 8) as u32,
    };
    let number = tenant(system, name)?
        .ok_or_else(|| failed(format_args!("the {name} has no contract")))?
        .tenant;
    set(system.socket(), number, Some(frames), None)
        .map(|_| ())
        .map_err(failed)
}

/// Frames of a tenant beyond its guarantee.
fn surplus(system: &System, Role(name, ..): &Role) -> Result<u32, ExperimentError> {
    let tenant = tenant(system, name)?;
    Ok(tenant.map_or(0, |tenant| tenant.n.saturating_sub(tenant.terms.frames.g)))
}

fn tenant(system: &System, name: &str) -> Result<Option<TenantInfo>, ExperimentError> {
    Ok(system
        .tenants()?
        .into_iter()
        .find(|tenant| tenant.name == name))
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
            "refusers that were killed, of all refusers",
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
