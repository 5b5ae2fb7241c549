//! Simulates paging servers, brokers and clients by the thousands.

use clap::Parser;
use remote_policy::election::PERIOD;
use selfpage_remote_simulation::{Config, Scenario, ScenarioReport};
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Simulates paging servers, brokers and clients over the policy of remote paging.
#[derive(Parser)]
#[command(name = "selfpage-simulate")]
struct SimulationOptions {
    /// Paging servers.
    #[arg(long, default_value_t = 100)]
    servers: usize,
    /// Clients; ten for each server unless given.
    #[arg(long)]
    clients: Option<usize>,
    /// Seed of everything random.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Period of candidates in milliseconds.
    #[arg(long, default_value_t = PERIOD.as_millis() as u64)]
    period_ms: u64,
    /// What a host spends on a message, in microseconds.
    #[arg(long, default_value_t = 5)]
    message_cost_us: u64,
    /// Keeps no two copies apart by rack.
    #[arg(long)]
    ignore_racks: bool,
    /// Prints the result as JSON, one scenario a line.
    #[arg(long)]
    json: bool,
    /// Scenarios; all if none is given.
    scenarios: Vec<Scenario>,
}

fn main() -> ExitCode {
    let options = SimulationOptions::parse();
    if options.servers == 0 {
        eprintln!("invalid --servers: expected at least 1");
        return ExitCode::FAILURE;
    }
    let clients = options.clients.unwrap_or(options.servers * 10);
    let config = Config {
        period: Duration::from_millis(options.period_ms.max(1)),
        message_cost: Duration::from_micros(options.message_cost_us),
        rack_aware: !options.ignore_racks,
        ..Config::new(options.servers, clients, options.seed)
    };
    let scenarios = match options.scenarios.is_empty() {
        true => Scenario::ALL.to_vec(),
        false => options.scenarios,
    };
    let mut broken = 0;
    for scenario in scenarios {
        let start = Instant::now();
        let report = scenario.run(config.clone());
        broken += report.violations;
        print(&report, options.json, start.elapsed());
    }
    match broken {
        0 => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    }
}

fn print(report: &ScenarioReport, is_json: bool, took: Duration) {
    if is_json {
        // Maps of a report have strings as keys, and nothing else in it can fail.
        println!("{}", serde_json::to_string(report).unwrap_or_default());
    } else {
        println!("{report}  took {:.1} s here\n", took.as_secs_f64());
    }
}
