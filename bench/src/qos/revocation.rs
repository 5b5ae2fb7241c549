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

use super::backing::Backing;
use super::subject::{Done, Latency, Order, SubjectPlan};
use super::{QosOptions, progress};
use crate::prelude::*;
use crate::process::poll;
use protocol::TenantInfo;
use protocol::contract_spec::FrameSpec;
use tenant::set;

/// MiB of managed memory; MiB guaranteed to each tenant, to the claimer while its guarantee
/// is lowered; MiB guaranteed to the claimer while it is raised.
const MANAGED: u64 = 64;
const HELD: u64 = 2;
const CLAIMED: u64 = 3;

/// Optimistic MiB of a holder that makes room for a refuser.
const SMALL_LOAN: u64 = 2;

/// Pages of a claim. The daemon grants by the MiB: the claim beyond [`HELD`] is one request,
/// and small enough that the pager has no reason to write pages out.
const PAGES: u64 = (CLAIMED << 8) * 7 / 8;

/// MiB of swap of all tenants.
pub const SWAP: u64 = 2 * (3 * 64 + CLAIMED + 32);

/// The daemon's deadline, and what it may take on top.
const SERVED: Duration = Duration::from_millis(150);

/// Time between the lowered guarantee and the claim. The holders request frames all the
/// time, so they take what the claimer does not need.
const LOAN_TIME: Duration = Duration::from_millis(5);

/// Turns without a revocation after which the experiment fails.
const MAX_IDLE_TURNS: u64 = 10;

/// How long the claimer claims, so that a revocation reaches the refuser and its deadline
/// passes.
const CLAIM_TIME: Duration = Duration::from_secs(3);

/// How long a refuser has to take the room that was made for it.
const FILL_TIME: Duration = Duration::from_secs(3);

/// The tenants: name, MiB of data, guaranteed MiB, optimistic MiB, disk time. The daemon
/// revokes from the tenant with the most optimistic frames: from the clean one until it has
/// as few as the dirty one, and from a refuser that has the clean one's.
const CLEAN: TenantSpec = TenantSpec("clean", 64, HELD, 42, "60ms/250ms");
const DIRTY: TenantSpec = TenantSpec("dirty", 64, HELD, 18, "5ms/250ms");
const REFUSER: TenantSpec = TenantSpec("refuser", 64, HELD, 40, "40ms/250ms");
const CLAIMER: TenantSpec = TenantSpec("claimer", CLAIMED, CLAIMED, 0, "10ms/250ms");
const BYSTANDER: TenantSpec = TenantSpec("bystander", 32, 4, 0, "60ms/250ms");

struct TenantSpec(&'static str, u64, u64, u64, &'static str);

impl TenantSpec {
    fn start(&self, system: &DaemonFixture, orders: &[Order]) -> Result<Worker> {
        let Self(name, data, held, lent, disk) = *self;
        let mut process = SubjectPlan::start(
            data,
            Backing {
                name: name.into(),
                extra: lent << 10,
                refuses: name == REFUSER.0,
                greedy: lent > 0,
                ..Backing::of(system, disk, data * 2, held << 10)
            },
        )?;
        for order in orders {
            process.send(order)?;
            if *order == Order::Fill {
                process.recv::<Done>()?;
            }
        }
        Ok(process)
    }
}

/// All tenants but the refusers, which come and go.
struct CooperativeTenants<'a> {
    system: &'a DaemonFixture,
    claimer: Worker,
    bystander: Worker,
    holders: [Worker; 2],
}

/// Figures so far.
#[derive(Default)]
struct RevocationFigures {
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
pub fn rows(env: &TestEnv, options: &QosOptions) -> Result<Vec<Row>> {
    let system = DaemonFixture::start(env, DaemonConfig::of(MANAGED))?;
    let outcome = run(options, &system).map_err(|failure| system.explain(failure));
    outcome.map(|(seen, honest)| judged(&seen, honest))
}

fn run(options: &QosOptions, system: &DaemonFixture) -> Result<(RevocationFigures, u64)> {
    let start = |role: &TenantSpec, orders: &[Order]| role.start(system, orders);
    let holders = [
        start(&CLEAN, &[Order::Fill, Order::Roam(1)])?,
        start(&DIRTY, &[Order::Fill, Order::Churn(1)])?,
    ];
    let (bystander, claimer) = (start(&BYSTANDER, &[Order::Fill])?, start(&CLAIMER, &[])?);
    let mut tenants = CooperativeTenants {
        holders,
        bystander,
        claimer,
        system,
    };
    let mut seen = RevocationFigures::default();
    let mut idle_turns = 0;
    for turn in 0u64.. {
        progress(&format!(
            "revocation: {} of {} rounds",
            seen.rounds, options.rounds
        ));
        let before = seen.rounds;
        let alone = watch(&mut tenants, options, turn, None)?;
        let beside = watch(&mut tenants, options, turn, Some(&mut seen))?;
        seen.bystander.push([alone, beside]);
        if seen.refused * options.rounds <= seen.rounds * options.refusals {
            refuse(&mut tenants, &mut seen)?;
        }
        idle_turns = (idle_turns + 1) * u64::from(seen.rounds == before);
        if seen.rounds >= options.rounds && seen.refused >= options.refusals {
            break;
        }
        if idle_turns > MAX_IDLE_TURNS {
            bail!(
                "no frames were asked back in {MAX_IDLE_TURNS} turns of claims, {} rounds before them",
                seen.rounds
            );
        }
    }
    let honest = alive(tenants);
    Ok((seen, honest))
}

/// The bystander's accesses, between claims or during claims.
fn watch(
    tenants: &mut CooperativeTenants<'_>,
    options: &QosOptions,
    turn: u64,
    seen: Option<&mut RevocationFigures>,
) -> Result<Latency> {
    let during = Duration::from_secs_f64(options.phase.min(1.0));
    let open = Order::Open {
        during,
        rate: options.rate.min(500.0),
        seed: turn + 1,
    };
    tenants.bystander.send(&open)?;
    if let Some(seen) = seen {
        let began = Instant::now();
        while began.elapsed() < during {
            seen.claims.push(claim(tenants)?);
        }
        seen.rounds = revocations(&mut tenants.holders)?;
    }
    tenants.bystander.recv()
}

/// Lowers the claimer's guarantee, so that others take what it does not need, raises it again
/// and has it claimed. Milliseconds until it was there.
fn claim(tenants: &mut CooperativeTenants<'_>) -> Result<f64> {
    contract(tenants.system, &CLAIMER, HELD, 0)?;
    std::thread::sleep(LOAN_TIME);
    contract(tenants.system, &CLAIMER, CLAIMED, 0)?;
    let claimed: Done = tenants.claimer.call(&Order::Claim(PAGES))?;
    Ok(claimed.ns as f64 / 1e6)
}

fn revocations(holders: &mut [Worker]) -> Result<u64> {
    holders
        .iter_mut()
        .map(|holder| holder.call::<u64>(&Order::Revocations))
        .sum()
}

/// Runs a tenant that ignores revocations, until it is killed or no revocation reaches it.
fn refuse(tenants: &mut CooperativeTenants<'_>, seen: &mut RevocationFigures) -> Result<()> {
    let system = tenants.system;
    contract(system, &CLEAN, HELD, SMALL_LOAN)?;
    let orders = [Order::Fill, Order::Churn(1)];
    seen.refused += 1;
    // A revocation may reach it, and kill it, before it has filled its memory.
    let refuser = REFUSER.start(system, &orders);
    seen.killed += match refuser {
        Ok(mut refuser) => {
            poll(FILL_TIME, LOAN_TIME, || {
                let is_full = surplus(system, &REFUSER)? > surplus(system, &DIRTY)?;
                Ok(refuser.has_ended() || is_full)
            })?;
            let began = Instant::now();
            while began.elapsed() < CLAIM_TIME && !refuser.has_ended() {
                seen.claims.push(claim(tenants)?);
            }
            u64::from(refuser.has_ended())
        }
        Err(_) => 1,
    };
    contract(system, &CLEAN, CLEAN.2, CLEAN.3)
}

/// Changes a contract for frames: guaranteed and optimistic MiB.
fn contract(
    system: &DaemonFixture,
    TenantSpec(name, ..): &TenantSpec,
    held: u64,
    lent: u64,
) -> Result<()> {
    let [g, x] = [held, held + lent].map(|mib| (mib << 8) as u32);
    let number = tenant(system, name)?
        .ok_or_else(|| anyhow!("the {name} has no contract"))?
        .tenant;
    set(system.socket(), number, Some(FrameSpec { g, x }), None)?;
    Ok(())
}

/// Frames of a tenant beyond its guarantee.
fn surplus(system: &DaemonFixture, TenantSpec(name, ..): &TenantSpec) -> Result<u32> {
    let tenant = tenant(system, name)?;
    Ok(tenant.map_or(0, |tenant| tenant.n.saturating_sub(tenant.terms.frames.g)))
}

fn tenant(system: &DaemonFixture, name: &str) -> Result<Option<TenantInfo>> {
    Ok(system
        .tenants()?
        .into_iter()
        .find(|tenant| tenant.name == name))
}

/// Honest programs that were killed, or went wrong.
fn alive(tenants: CooperativeTenants<'_>) -> u64 {
    let CooperativeTenants {
        claimer,
        bystander,
        holders,
        ..
    } = tenants;
    let mut lost = 0;
    for mut holder in holders {
        let done = holder.call::<Done>(&Order::Rest);
        lost += u64::from(done.and_then(|_| holder.end()).is_err());
    }
    for tenant in [claimer, bystander] {
        lost += u64::from(tenant.end().is_err());
    }
    lost
}

fn judged(seen: &RevocationFigures, honest: u64) -> Vec<Row> {
    let row = |what, bound, value| Row::fact(format!("revocation: {what}"), bound, value);
    let served_ms = SERVED.as_secs_f64() * 1e3;
    let late = seen.claims.iter().filter(|ms| **ms > served_ms).count();
    let rounds = seen.rounds as f64;
    let killed = seen.killed as f64 / seen.refused.max(1) as f64;
    let us = |latency: &Latency| latency.p99_ns as f64 / 1e3;
    let pairs = seen.bystander.iter();
    let samples = pairs.map(|[alone, beside]| Sample::new(us(beside), us(alone)));
    let none = Bound::AtMost(0.0);
    let bystander = "revocation: a bystander's p99 while frames are asked back";
    vec![
        row("times that frames were asked back", Bound::Open, rounds).notes([
            ("claims", seen.claims.len() as f64),
            ("p50 ms", median(&seen.claims).unwrap_or(0.0)),
            ("most ms", seen.claims.iter().copied().fold(0.0, f64::max)),
        ]),
        row(
            "claims served later than the deadline and 50 ms",
            none,
            late as f64,
        ),
        row(
            "refusers that were killed, of all refusers",
            Bound::AtLeast(1.0),
            killed,
        ),
        row("honest programs killed or gone wrong", none, honest as f64),
        Row::new(bystander, "us", Bound::Open)
            .beside("while none are")
            .samples(samples),
    ]
}
