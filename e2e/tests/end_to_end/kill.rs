//! Kill -9 at random moments: no process, no file, no lock is left.

use crate::trial;
use e2e::contract::{Contract, MIB, Size, Under};
use e2e::noise::Noise;
use e2e::processes::Process;
use e2e::verdict::{Verdict, ensure};
use e2e::{Launch, Running, Sandbox, hazard};
use libtest_mimic::Trial;
use std::time::{Duration, Instant};

/// How long a tree may take to end after `selfpage run` was killed.
const PATIENCE: Duration = Duration::from_secs(5);

/// Who is killed.
#[derive(Clone, Copy)]
enum Victim {
    Supervisor,
    Program,
    Anyone,
}

pub fn trials(size: Size) -> Vec<Trial> {
    let cases = [
        (
            "the_supervisor_killed_while_threads_page",
            "eight_threads_write_and_check",
            Victim::Supervisor,
        ),
        (
            "the_supervisor_killed_in_a_storm_of_forks",
            "fork_storm",
            Victim::Supervisor,
        ),
        (
            "the_program_killed_while_threads_page",
            "eight_threads_write_and_check",
            Victim::Program,
        ),
        (
            "the_program_killed_in_a_storm_of_forks",
            "fork_storm",
            Victim::Program,
        ),
        (
            "anyone_killed_in_a_storm_of_forks",
            "fork_storm",
            Victim::Anyone,
        ),
        (
            "anyone_killed_while_direct_io_is_in_flight",
            "direct_io_under_heavy_paging",
            Victim::Anyone,
        ),
    ];
    let rounds = size.scale(60, 8);
    let case =
        |(name, program, victim)| trial("kill", name, move || storm(program, victim, rounds));
    let mut trials: Vec<_> = cases.into_iter().map(case).collect();
    trials.push(trial(
        "kill",
        "siblings_of_a_killed_process_keep_their_pages",
        move || survivors(size),
    ));
    trials
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
        chosen.iter().for_each(Process::kill);
        let begin = Instant::now();
        let outcome = if matches!(victim, Victim::Anyone) && !is_first_two(&running, &chosen) {
            // The tree may live on without that one: end it in the ordinary way.
            std::thread::sleep(Duration::from_millis(50));
            running
                .processes()
                .iter()
                .filter(|p| p.pid == running.pid())
                .for_each(Process::kill);
            running.wait()?
        } else {
            running.wait()?
        };
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
    let supervisor = now.iter().filter(|p| p.pid == running.pid());
    let mut others = now.iter().filter(|p| p.pid != running.pid());
    match victim {
        Victim::Supervisor => supervisor.copied().collect(),
        // The first below the supervisor is the oldest: the program, or a helper of ours.
        Victim::Program => others.next().or(now.first()).copied().into_iter().collect(),
        Victim::Anyone => {
            let index = noise.below(now.len() as u64) as usize;
            now.get(index).copied().into_iter().collect()
        }
    }
}

fn is_first_two(running: &Running, chosen: &[Process]) -> bool {
    chosen.iter().any(|p| p.pid == running.pid())
}

/// What the killed could not clean up itself, whoever does has a moment for.
fn settled(sandbox: &Sandbox) -> Verdict {
    let begin = Instant::now();
    loop {
        match sandbox.check_clean() {
            Err(halt) if begin.elapsed() > PATIENCE => return Err(halt),
            Err(_) => std::thread::sleep(Duration::from_millis(20)),
            Ok(()) => return Ok(()),
        }
    }
}

/// A storm in which children are killed all the time: everyone else's pages hold, and
/// frames, store and slots of the dead come back (the storm goes on for ever in a store
/// it would otherwise fill).
fn survivors(size: Size) -> Verdict {
    let sandbox = Sandbox::new("survivors")?;
    let program = hazard::build(&sandbox, "fork_storm", &[])?;
    let contract = Contract::new(16 * MIB).over(32 * MIB, 256 * MIB);
    let mut running = Launch::new(&sandbox, &program)
        .arg("for-ever")
        .variable("HAZARD_MB", "96")
        .variable("KILLS", "1")
        .limit(Duration::from_secs(size.scale(600, 60)))
        .spawn(&Under::Contract(contract))?;
    let mut noise = Noise::new(7);
    let end = Instant::now() + Duration::from_secs(size.scale(120, 12));
    while Instant::now() < end {
        let now = running.processes();
        // Not the supervisor, nor the program itself or a helper beside it.
        if let Some(chosen) = now.get(2 + noise.below(now.len().saturating_sub(2) as u64) as usize)
            && parent(chosen.pid) != Some(running.pid())
        {
            chosen.kill();
        }
        std::thread::sleep(Duration::from_millis(noise.below(40)));
        ensure(!running.ended(), || {
            format!("the storm ended by itself; it said:\n{}", running.stderr())
        })?;
    }
    running
        .processes()
        .iter()
        .filter(|p| p.pid == running.pid())
        .for_each(Process::kill);
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
