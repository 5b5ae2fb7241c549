//! Kill -9 at random moments: no process, no file, no lock is left.

use e2e::contract::{Contract, MIB, Size, Under};
use e2e::noise::Noise;
use e2e::processes::Process;
use e2e::verdict::{Verdict, ensure};
use e2e::{Launch, Running, Sandbox, hazard};
use libtest_mimic::Trial;
use rustix::process::{Pid, Signal, kill_process};
use std::time::{Duration, Instant};

/// How long a tree may take to end after `selfpage run` was killed. A tree that ends sooner is not
/// waited for.
const PATIENCE: Duration = Duration::from_secs(30);

/// The process to kill: `selfpage run` is two processes that watch each other, with the
/// program below them.
#[derive(Clone, Copy)]
enum Victim {
    /// The one the user started.
    First,
    /// The same, while the one below it is stopped.
    FirstOfStopped,
    /// The one below it.
    Second,
    /// Both, in one instant.
    Both,
    /// The program itself.
    Program,
    /// Any of them all.
    Anyone,
}

pub fn trials(size: Size) -> Vec<Trial> {
    let rounds = size.scale(60, 8);
    let case = |program, victim| move || storm(program, victim, rounds);
    let in_threads = |victim| case("eight_threads_write_and_check", victim);
    let in_forks = |victim| case("fork_storm", victim);
    trials![
        "kill":
        selfpage_run_killed_while_threads_page => in_threads(Victim::First),
        selfpage_run_killed_in_a_storm_of_forks => in_forks(Victim::First),
        selfpage_run_killed_while_its_second_process_is_stopped => in_threads(Victim::FirstOfStopped),
        its_second_process_killed_while_threads_page => in_threads(Victim::Second),
        its_second_process_killed_in_a_storm_of_forks => in_forks(Victim::Second),
        both_killed_at_once_while_threads_page => in_threads(Victim::Both),
        both_killed_at_once_in_a_storm_of_forks => in_forks(Victim::Both),
        the_program_killed_while_threads_page => in_threads(Victim::Program),
        the_program_killed_in_a_storm_of_forks => in_forks(Victim::Program),
        anyone_killed_in_a_storm_of_forks => in_forks(Victim::Anyone),
        anyone_killed_while_direct_io_is_in_flight =>
            case("direct_io_under_heavy_paging", Victim::Anyone),
        siblings_of_a_killed_process_keep_their_pages => move || survivors(size),
    ]
}

/// Starts, waits for a random moment, kills, and looks for what is left.
fn storm(hazard_name: &str, victim: Victim, rounds: u64) -> Verdict {
    let sandbox = Sandbox::new("storm")?;
    let program = hazard::build(&sandbox, hazard_name, &[])?;
    let mut noise = Noise::new(hazard_name.len() as u64 * 31 + victim as u64);
    for round in 0..rounds {
        // Every other round over a disk of its own: its file must go as well.
        let contract = match round % 2 {
            0 => Contract::new(8 * MIB),
            _ => Contract::new(8 * MIB).over(8 * MIB, 1024 * MIB),
        };
        let running = Launch::new(&sandbox, &program)
            .arg("for-ever")
            .variable("HAZARD_MB", "96")
            .variable("KILLS", "1")
            .limit(Duration::from_secs(40))
            .spawn(&Under::Contract(contract))?;
        // From the first moments of the start to the middle of the work.
        let scale = 10 + noise.below(11);
        std::thread::sleep(Duration::from_micros(noise.below(1 << scale)));
        let before = running.processes();
        let chosen = choose(&running, &before, victim, &mut noise);
        if matches!(victim, Victim::FirstOfStopped) {
            let second = choose(&running, &before, Victim::Second, &mut noise);
            let pid = second.first().and_then(|second| Pid::from_raw(second.pid));
            // It may have no name of its own yet, and may have ended.
            let _ = pid.map(|pid| kill_process(pid, Signal::STOP));
        }
        chosen.iter().for_each(Process::kill);
        let begin = Instant::now();
        if matches!(victim, Victim::Anyone) {
            // The tree may live on without that one: end it in the same way.
            std::thread::sleep(Duration::from_millis(50));
            end(&running);
        }
        let outcome = running.wait()?;
        ensure(outcome.left.is_empty(), || {
            format!(
                "round {round}: {:?} after the kill these still run: {:?}",
                begin.elapsed(),
                outcome.left
            )
        })?;
        ensure(begin.elapsed() < PATIENCE * 2, || {
            format!("round {round}: the tree took {:?} to end", begin.elapsed())
        })?;
        let survivors: Vec<_> = before
            .iter()
            .filter(|p| p.runs())
            .map(Process::command)
            .collect();
        ensure(survivors.is_empty(), || {
            format!("round {round}: these still run: {survivors:?}")
        })?;
        settled(&sandbox).map_err(|halt| e2e::Halt::Failed(format!("round {round}: {halt}")))?;
    }
    Ok(())
}

fn choose(running: &Running, now: &[Process], victim: Victim, noise: &mut Noise) -> Vec<Process> {
    let own = |p: &&Process| p.command().contains("selfpage run");
    // The witness of signals is a child, too, and has no name of its own in its first moments.
    let second = |p: &&Process| parent(p.pid) == Some(running.pid()) && p.is_supervisor();
    let chosen = match victim {
        Victim::Both => {
            let is_own = |p: &&Process| p.pid == running.pid() || second(p);
            return now.iter().filter(is_own).copied().collect();
        }
        Victim::First | Victim::FirstOfStopped => now.iter().find(|p| p.pid == running.pid()),
        Victim::Second => now.iter().find(second),
        Victim::Program => {
            let is_program = |p: &&Process| !own(p) && !p.is_witness() && p.pid != running.pid();
            now.iter().find(is_program)
        }
        Victim::Anyone => now.get(noise.below(now.len() as u64) as usize),
    };
    // At the first moments there is only one.
    chosen.or(now.first()).copied().into_iter().collect()
}

/// Kills the process that was started, and with it the tree.
pub fn end(running: &Running) {
    let now = running.processes();
    now.iter()
        .filter(|p| p.pid == running.pid())
        .for_each(Process::kill);
}

/// Waits until the files and locks that a killed process left are cleaned up, for at most
/// [`PATIENCE`].
pub fn settled(sandbox: &Sandbox) -> Verdict {
    let begin = Instant::now();
    loop {
        match sandbox.check_clean() {
            Err(halt) if begin.elapsed() > PATIENCE => return Err(halt),
            Err(_) => std::thread::sleep(Duration::from_millis(20)),
            Ok(()) => return Ok(()),
        }
    }
}

/// A storm in which children are killed all the time: the pages of all other processes keep
/// their contents, and frames, store and slots of the dead are released (the storm goes on
/// for ever in a store that it would otherwise fill).
fn survivors(size: Size) -> Verdict {
    let sandbox = Sandbox::new("survivors")?;
    let program = hazard::build(&sandbox, "fork_storm", &[])?;
    let contract = Contract::new(16 * MIB).over(32 * MIB, 256 * MIB);
    let mut running = Launch::new(&sandbox, &program)
        .arg("for-ever")
        .variable("HAZARD_MB", "96")
        .variable("KILLS", "1")
        .limit(Duration::from_secs(size.scale(600, 180)))
        .spawn(&Under::Contract(contract))?;
    let mut noise = Noise::new(7);
    let until = Instant::now() + Duration::from_secs(size.scale(120, 12));
    let mut before = Vec::new();
    while Instant::now() < until {
        let mut now = running.processes();
        now.retain(|process| !process.is_pager() && !process.is_witness());
        let pids = now.iter().map(|process| process.pid).collect();
        let seen: Vec<i32> = std::mem::replace(&mut before, pids);
        // Only what the program has forked: the first three are ours and the program. A fourth
        // may be the program's pager process, which has no name of its own yet.
        let forked: Vec<_> = match now.len() {
            0..=4 => Vec::new(),
            // Not what starts a child's pager, for a millisecond: without it the fork fails.
            _ => now
                .iter()
                .skip(3)
                .filter(|it| seen.contains(&it.pid))
                .collect(),
        };
        if let Some(chosen) = forked.get(noise.below(forked.len().max(1) as u64) as usize) {
            chosen.kill();
        }
        std::thread::sleep(Duration::from_millis(noise.below(40)));
        ensure(!running.ended(), || {
            format!(
                "the storm ended by itself; its output:\n{}",
                running.stderr()
            )
        })?;
    }
    end(&running);
    let outcome = running.wait()?;
    ensure(outcome.left.is_empty(), || {
        format!("these outlived it: {:?}", outcome.left)
    })?;
    settled(&sandbox)
}

fn parent(pid: i32) -> Option<i32> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    text.get(text.rfind(')')? + 1..)?
        .split_whitespace()
        .nth(1)?
        .parse()
        .ok()
}
