//! The daemon as a process of the benchmark's: its configuration, its start, its
//! end. It dies with the benchmark, and its files are removed by the cleanup process.

use crate::machine::read;
use crate::prelude::*;
use crate::process::{ends_with_us, last_lines, poll};
use crate::process_tree::TreeUsage;
use disk::calibrate::Calibration;
use disk::cost_model::CostModel;
use protocol::{TenantInfo, TenantNumber};
use rustix::process::{Pid, Signal, kill_process};
use std::fs::File;
use std::process::{Child, Stdio};
use tenant::trace::Tracer;
use tenant::{list, set};

/// How long it may take to start: it makes its swap file and measures the disk.
const START_TIMEOUT: Duration = Duration::from_secs(120);

/// Interval of the checks for its socket or its exit.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Lines of its log beside a failure.
const LOG_LINES: usize = 10;

/// How long it may take to end.
const EXIT_TIMEOUT: Duration = Duration::from_secs(10);

/// What a daemon is configured to promise.
#[derive(Clone, Copy, Debug)]
pub struct DaemonConfig {
    /// MiB of memory.
    pub managed: u64,
    /// Requests in flight; from the calibration without a value.
    pub depth: Option<u32>,
    /// How long the disk's thread polls before it sleeps; the daemon's default without a value.
    pub spin: Option<Duration>,
}

impl DaemonConfig {
    /// With the daemon's own choices for the disk.
    pub fn of(managed: u64) -> Self {
        Self {
            managed,
            depth: None,
            spin: None,
        }
    }

    fn text(&self, socket: &Path, swap: &Path, mib: u64, calibration: &Path) -> String {
        let mut text = format!(
            "socket = {socket:?}\n\
             [memory]\nframes = \"{}M\"\nrestart_grace = \"0ms\"\nreduction_notice = \"0ms\"\n\
             [disk]\nswap = {swap:?}\nsize = \"{mib}M\"\ncalibration = {calibration:?}\n\
             capacity = 1.0\nprocessor_time = true\n",
            self.managed,
        );
        if let Some(spin) = self.spin {
            text.push_str(&format!("poll_time = \"{}us\"\n", spin.as_micros()));
        }
        if let Some(depth) = self.depth {
            text.push_str(&format!("depth = {depth}\n"));
        }
        text
    }
}

/// The disk of all the daemons of a benchmark: measured once.
pub struct DaemonDisk {
    swap: OwnedFile,
    mib: u64,
    calibration: OwnedFile,
}

impl DaemonDisk {
    /// With so many MiB of swap.
    pub fn new(env: &TestEnv, mib: u64) -> Result<Self> {
        let (swap, calibration) = (env.file("system")?, env.file("calibration")?);
        Ok(Self {
            swap,
            mib,
            calibration,
        })
    }

    /// What was measured of it, once a daemon has started.
    pub fn model(&self) -> Result<CostModel> {
        let text = std::fs::read_to_string(&self.calibration).at("read", &self.calibration)?;
        Ok(toml::from_str::<SavedCalibration>(&text)?.figures.model)
    }
}

/// As the daemon keeps it.
#[derive(serde::Deserialize)]
struct SavedCalibration {
    figures: Calibration,
}

/// A running daemon; ended when dropped.
pub struct DaemonFixture {
    process: Child,
    socket: OwnedFile,
    log: OwnedFile,
    _config: OwnedFile,
    /// The daemon's own, beside its socket.
    _lock: OwnedFile,
}

impl DaemonFixture {
    /// Starts one, and waits until it listens.
    pub fn start(env: &TestEnv, settings: DaemonConfig) -> Result<Self> {
        let disk = env
            .disk
            .as_ref()
            .ok_or_else(|| anyhow!("there is no disk for a daemon"))?;
        let (config, socket, log) = (env.file("toml")?, env.file("sock")?, env.file("log")?);
        let lock = env.file("sock.lock")?;
        let said = File::create(&log).at("make", &log)?;
        let text = settings.text(&socket, &disk.swap, disk.mib, &disk.calibration);
        std::fs::write(&config, text).at("write", &config)?;
        let mut command = Command::new(env.selfpage()?);
        command.args(["system", "--config"]).arg(&*config);
        command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(said);
        ends_with_us(&mut command);
        let process = command.spawn().doing("start selfpage system")?;
        let mut system = Self {
            process,
            socket,
            log,
            _config: config,
            _lock: lock,
        };
        system.wait_for_socket()?;
        Ok(system)
    }

    fn wait_for_socket(&mut self) -> Result<()> {
        let listens = poll(START_TIMEOUT, POLL_INTERVAL, || {
            let ended = self.process.try_wait().doing("wait for selfpage system")?;
            if let Some(status) = ended {
                bail!("selfpage system: {status}: {}", self.last_words());
            }
            Ok(self.socket.exists())
        });
        match listens? {
            true => Ok(()),
            false => bail!("selfpage system does not listen"),
        }
    }

    /// The end of its log.
    fn last_words(&self) -> String {
        last_lines(&read(&self.log), LOG_LINES)
    }

    /// A failure together with the last lines of its log, which may explain it.
    pub fn explain(&self, failure: Error) -> Error {
        anyhow!(
            "{failure:#}; the log of selfpage system: {}",
            self.last_words()
        )
    }

    /// Where it listens.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// The contracts it keeps.
    pub fn tenants(&self) -> Result<Vec<TenantInfo>> {
        Ok(list(&self.socket)?)
    }

    /// Changes a contract's disk time, in the words of `contract set --disk`.
    pub fn set_disk(&self, tenant: TenantNumber, share: &str) -> Result<()> {
        set(&self.socket, tenant, None, Some(share.parse()?))?;
        Ok(())
    }

    /// A way to its scheduler's trace, from now on.
    pub fn tracer(&self) -> Result<Tracer> {
        let mut tracer = Tracer::open(&self.socket, 0)?;
        tracer.read()?;
        Ok(tracer)
    }

    /// Processor time it has used.
    pub fn processor(&self) -> Duration {
        TreeUsage::of_one(self.process.id()).map_or(Duration::ZERO, |usage| usage.processor)
    }
}

impl Drop for DaemonFixture {
    fn drop(&mut self) {
        // In its own time: it writes down what it knows.
        let _ = kill_process(Pid::from_child(&self.process), Signal::TERM);
        let ended = || Ok(!matches!(self.process.try_wait(), Ok(None)));
        let _ = poll(EXIT_TIMEOUT, POLL_INTERVAL, ended);
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_configuration_is_one_that_the_daemon_reads() {
        let settings = DaemonConfig {
            depth: Some(1),
            ..DaemonConfig::of(64)
        };
        let text = settings.text(Path::new("/a"), Path::new("/b"), 16, Path::new("/c"));
        let config = daemon::config::Config::parse(&text, Path::new("x.toml")).unwrap();
        assert_eq!((config.socket, config.disk.depth), ("/a".into(), Some(1)));
        assert_eq!(config.disk.swap, Path::new("/b"));
    }
}
