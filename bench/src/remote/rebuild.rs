//! Reads of a remote client before a server is killed, while what it had is made again, and after that.
//!
//! One thread reads pages in no order, one at a time, so it always has a read under way while the client makes copies.
//! What a killed server had is read elsewhere: at another copy, or from the rest of its stripe. The rebuild is over with
//! the last copy before a pause in which none is made; its time has the second in it for which a server is waited for.

use super::channel::ChannelReader;
use super::server_process::ServerProcess;
use super::source::{Figures, PageSource};
use super::{Amount, Series};
use crate::prelude::*;
use crate::process_tree::TreeUsage;
use crate::table::digits;
use remote_client::ClientProgress;
use rustix::process::{Pid, Signal, kill_process};
use std::net::SocketAddr;
use std::sync::Arc;

/// How long pages are read before, and after.
const PHASE: Duration = Duration::from_secs(3);
/// No copy is made for as long: the rebuild is over.
const QUIET: Duration = Duration::from_secs(4);
/// How long a stripe, or a rebuild, may take.
const PATIENCE: Duration = Duration::from_secs(90);
/// How long an object is not used before it may be part of a stripe.
const COLD: Duration = Duration::from_secs(1);

/// How the pages are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Redundancy {
    /// Two copies, on three servers.
    Copies,
    /// A stripe of four and a parity, on five servers.
    Stripe,
}

impl Redundancy {
    fn servers(self) -> usize {
        match self {
            Self::Copies => 3,
            Self::Stripe => 5,
        }
    }
}

/// What a worker is to do.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RebuildPlan {
    redundancy: Redundancy,
    servers: Vec<SocketAddr>,
    /// Their pids: the one that most reads went to is killed.
    pids: Vec<u32>,
    pages: u64,
    seed: u64,
    /// It is stopped, not killed.
    is_stopped: bool,
}

/// Reads of one phase.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct PhaseFigures {
    p50_us: f64,
    p99_us: f64,
    longest_us: f64,
    seconds: f64,
    reads: usize,
}

/// One run: before, while and after what a server had is made again.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct RebuildFigures {
    phases: [PhaseFigures; 3],
    /// Objects that were copied or made again.
    copies: u64,
}

const PHASES: [&str; 3] = ["before", "during", "after"];

/// Runs an arm once.
pub fn run(env: &TestEnv, amount: Amount, redundancy: Redundancy) -> Result<Figures> {
    let start = |_| ServerProcess::paging(env, amount.pages);
    let servers: Vec<_> = (0..redundancy.servers())
        .map(start)
        .collect::<Result<_>>()?;
    let plan = WorkerPlan::Rebuild(RebuildPlan {
        redundancy,
        servers: servers.iter().map(|server| server.address).collect(),
        pids: servers.iter().map(ServerProcess::id).collect(),
        pages: amount.pages,
        seed: amount.seed,
        is_stopped: amount.is_stopped,
    });
    plan.start()?.finish()
}

/// Reads with the time at which each began.
struct Reads {
    reader: ChannelReader,
    began: Instant,
    times: Vec<(Duration, u64)>,
    pages: u64,
    seed: u64,
}

impl Reads {
    /// Reads pages until `is_over`, which is asked after each.
    fn until(&mut self, mut is_over: impl FnMut(Duration) -> bool) -> Result<()> {
        loop {
            let at = self.times.len() as u64;
            let page = mix(self.seed << 40 ^ at) % self.pages;
            let begun = Instant::now();
            self.reader.request(page)?;
            while self.reader.receive()? == 0 {}
            let since = begun - self.began;
            self.times.push((since, begun.elapsed().as_nanos() as u64));
            if is_over(self.began.elapsed()) {
                return Ok(());
            }
        }
    }

    fn phase(&self, from: Duration, to: Duration) -> PhaseFigures {
        let of_phase = self.times.iter().filter(|(at, _)| (from..to).contains(at));
        let times: Vec<u64> = of_phase.map(|(_, ns)| *ns).collect();
        let longest = times.iter().max().copied().unwrap_or(0);
        let reads = times.len();
        let figures = Figures::of(times, None);
        PhaseFigures {
            p50_us: figures.p50_us,
            p99_us: figures.p99_us,
            longest_us: longest as f64 / 1000.0,
            seconds: (to - from).as_secs_f64(),
            reads,
        }
    }
}

/// The main function of a worker.
pub fn serve(plan: &RebuildPlan) -> Result<()> {
    let progress = Arc::new(ClientProgress::default());
    let stripe_after = (plan.redundancy == Redundancy::Stripe).then_some(COLD);
    let reader = ChannelReader::with(&plan.servers, plan.pages, 2, stripe_after, &progress)?;
    let begun = Instant::now();
    while stripe_after.is_some() && progress.stripes_made() == 0 {
        if begun.elapsed() > PATIENCE {
            bail!("no stripe within {PATIENCE:?}");
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    ready()?;
    let mut reads = Reads {
        reader,
        began: Instant::now(),
        times: Vec::new(),
        pages: plan.pages,
        seed: plan.seed,
    };
    let idle = processor_times(&plan.pids)?;
    reads.until(|now| now >= PHASE)?;
    let busy = processor_times(&plan.pids)?;
    let spent = |at: &usize| busy[*at] - idle[*at];
    let busiest = (0..plan.pids.len()).max_by_key(spent).unwrap_or(0);
    let before = progress.copies_made();
    let victim =
        Pid::from_raw(plan.pids[busiest] as i32).ok_or_else(|| anyhow!("no server to kill"))?;
    let signal = match plan.is_stopped {
        true => Signal::STOP,
        false => Signal::KILL,
    };
    kill_process(victim, signal).doing("end a server")?;
    let killed = reads.began.elapsed();
    let (mut made, mut last) = (before, killed);
    reads.until(|now| {
        if progress.copies_made() > made {
            (made, last) = (progress.copies_made(), now);
        }
        let is_over = made > before && now >= last + QUIET.max(PHASE);
        is_over || now >= killed + PATIENCE
    })?;
    if made == before {
        bail!("nothing was made again within {PATIENCE:?}");
    }
    let end = reads.began.elapsed();
    let phases = [
        reads.phase(Duration::ZERO, killed),
        reads.phase(killed, last),
        reads.phase(last, end),
    ];
    let rebuild = RebuildFigures {
        phases,
        copies: made - before,
    };
    reply(&Figures {
        p50_us: phases[1].p50_us,
        p99_us: phases[1].p99_us,
        pipelined_us: None,
        rebuild: Some(rebuild),
    })
}

/// Processor time of processes.
fn processor_times(pids: &[u32]) -> Result<Vec<Duration>> {
    let time = |pid: &u32| Ok(TreeUsage::of_one(*pid)?.processor);
    pids.iter().map(time).collect()
}

/// The medians of the runs, a table for each arm that has a server killed.
pub fn table(all: &[Series]) -> Vec<Table> {
    let rebuilds = all.iter().filter(|one| one.arm.is_rebuild());
    let ran = rebuilds.filter(|one| !one.runs.is_empty());
    ran.map(|one| {
        let title = format!("{}, medians of {} runs", one.arm.name(), one.runs.len());
        let mut table = Table::new(
            &title,
            ["p50 us", "p99 us", "longest us", "seconds", "reads"],
        );
        for (at, name) in PHASES.into_iter().enumerate() {
            let of = |figure: fn(&PhaseFigures) -> f64| {
                let runs = one.runs.iter().filter_map(|run| run.rebuild.as_ref());
                let values: Vec<f64> = runs.map(|run| figure(&run.phases[at])).collect();
                median(&values).map_or("-".to_owned(), digits)
            };
            let cells = [
                of(|phase| phase.p50_us),
                of(|phase| phase.p99_us),
                of(|phase| phase.longest_us),
                of(|phase| phase.seconds),
                of(|phase| phase.reads as f64),
            ];
            let copies = one.runs.iter().filter_map(|run| Some(run.rebuild?.copies));
            let copies: Vec<_> = copies.map(|count| count.to_string()).collect();
            let about = match at {
                1 => format!("objects of 16 MiB made again: {}", copies.join(", ")),
                _ => String::new(),
            };
            table.row(name, cells, &about);
        }
        table
    })
    .collect()
}
