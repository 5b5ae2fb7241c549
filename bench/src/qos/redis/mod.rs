//! A real program that must answer beside a real one that pages hard: redis-server, whose values are
//! twice its memory, and `stress-ng --vm` with four times its own.
//!
//! Requests come by a schedule that was made beforehand, a read or, one in eleven, a write, of keys at
//! random; the time of each is from when it was due. Every value that comes back is compared.

mod analysis;
mod client;
mod stress;

use super::QosOptions;
use super::pair::{Allotment, Limits, Side, WARM, alone_and_beside, run_arms};
use super::subject::Latency;
use crate::prelude::*;
use crate::process::gated;
use crate::redis_server::RedisServer;
use client::RedisClient;
use stress::Stress;

/// Times as much data as memory.
const VALUES_OVER: u64 = 2;

/// The neighbour's memory is the same part of its option as in `neighbour`.
const NEIGHBOUR_OVER: u64 = 8;

/// Times as much memory as it has that the neighbour changes.
const STRESS_OVER: u64 = 4;

/// One run of an arm.
#[derive(Clone, Copy, Debug)]
struct ArmRun {
    alone: Latency,
    beside: Latency,
    /// The neighbour's operations a second.
    neighbour: f64,
}

/// Runs every arm in turn.
pub fn rows(env: &TestEnv, options: &QosOptions) -> Vec<Row> {
    let memory = [
        options.victim / VALUES_OVER,
        options.neighbour / NEIGHBOUR_OVER,
    ]
    .map(|mib| mib << 20);
    let of = [
        Allotment {
            memory: memory[0],
            swap: memory[0] * VALUES_OVER * 2,
        },
        Allotment {
            memory: memory[1],
            swap: memory[1] * STRESS_OVER * 2,
        },
    ];
    let run = |arm, repeat| {
        let limits = Limits::new(env, arm, of)?;
        Pair { env, of, limits }.run(options, repeat)
    };
    analysis::judged(run_arms("redis", options, run))
}

/// The two programs, within their limits.
struct Pair<'a> {
    env: &'a TestEnv,
    of: [Allotment; 2],
    limits: Limits,
}

impl Pair<'_> {
    fn run(mut self, options: &QosOptions, repeat: u64) -> Result<ArmRun> {
        let server = RedisServer::new(self.env, options.victim)?;
        let mut process = self.start(Side::Victim, &server.command)?;
        let stream = server.connect(&mut process)?;
        let mut client = RedisClient::new(stream, server.keys)?;
        client.fill()?;
        client.open(WARM, options.rate, 0)?;
        if self.limits.throttles() {
            let mut stress = self.begin_stress()?;
            self.limits.throttle(|| {
                std::thread::sleep(WARM);
                Ok(WARM)
            })?;
            stress.end()?;
        }
        let during = Duration::from_secs_f64(options.phase);
        let phase = |client: &mut RedisClient| client.open(during, options.rate, repeat + 1);
        let mut operations = 0.0;
        let [alone, beside] = alone_and_beside(repeat, &mut client, phase, |client| {
            let mut stress = self.begin_stress()?;
            let latency = phase(client)?;
            operations = stress.end()?;
            Ok(latency)
        })?;
        client.end()?;
        process.end()?;
        Ok(ArmRun {
            alone,
            beside,
            neighbour: operations,
        })
    }

    /// Starts the neighbour, and waits until it is at work.
    fn begin_stress(&mut self) -> Result<Stress> {
        let bytes = self.of[1].memory * STRESS_OVER;
        let stress = Stress::start(self.env, bytes, |command| {
            self.start(Side::Neighbour, command)
        })?;
        std::thread::sleep(WARM);
        Ok(stress)
    }

    fn start(&mut self, side: Side, program: &Command) -> Result<Worker> {
        let of = self.of[side as usize];
        let begin = |command: Command| Worker::start(gated(&command));
        let mut worker = self.limits.start(self.env, side, of, program, begin)?;
        worker.go()?;
        Ok(worker)
    }
}
