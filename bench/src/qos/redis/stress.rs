//! The neighbour: `stress-ng --vm`, which writes its memory over and over, and counts its operations.

use crate::env::find_program;
use crate::prelude::*;
use rustix::process::{Pid, Signal, kill_process};

/// Its processes that write.
const PROCESSES: u64 = 4;

/// Until it ends by itself, should this program not end it: a day.
const LIMIT: &str = "86400s";

/// A running one.
pub struct Stress {
    process: Worker,
    /// Its counts, in YAML.
    counts: OwnedFile,
}

impl Stress {
    /// Starts one that writes so many bytes, as `start` starts a command.
    pub fn start(
        env: &TestEnv,
        bytes: u64,
        start: impl FnOnce(&Command) -> Result<Worker>,
    ) -> Result<Self> {
        let counts = env.file("stress.yaml")?;
        let mut command = Command::new(find_program("stress-ng", "stress-ng")?);
        command.args(["--vm", &PROCESSES.to_string()]);
        command.args(["--vm-bytes", &bytes.to_string()]);
        command.args(["--vm-keep", "--vm-method", "rand-set"]);
        command.args(["--timeout", LIMIT, "--metrics", "--yaml"]);
        command.arg(&*counts).arg("--temp-path").arg(&env.folder);
        let process = start(&command)?;
        Ok(Self { process, counts })
    }

    /// Ends it. Its operations a second.
    pub fn end(&mut self) -> Result<f64> {
        let pid = Pid::from_raw(self.process.id() as i32);
        let pid = pid.ok_or_else(|| anyhow!("it has no pid"))?;
        kill_process(pid, Signal::INT).doing("end stress-ng")?;
        self.process.close();
        if !self.process.wait()?.success() {
            return Err(self.process.failure());
        }
        let text = std::fs::read_to_string(&self.counts).at("read", &self.counts)?;
        rate(&text).ok_or_else(|| anyhow!("stress-ng counted nothing: {text:?}"))
    }
}

/// The operations a second of a report.
fn rate(text: &str) -> Option<f64> {
    let line = |line: &str| {
        let (name, value) = line.trim().split_once(':')?;
        let is_rate = name == "bogo-ops-per-second-real-time";
        is_rate.then(|| value.trim().parse().ok())?
    };
    text.lines().find_map(line)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_has_its_rate() {
        let text = "metrics:\n    - stressor: vm\n      bogo-ops: 6\n\
                    \x20     bogo-ops-per-second-real-time: 62.5\n";
        assert_eq!(rate(text), Some(62.5));
        assert_eq!(rate("metrics:\n"), None);
    }
}
