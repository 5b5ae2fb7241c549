//! The system domain as a process of the benchmark's: its configuration, its start, its
//! end. It dies with the benchmark, and its files are removed by the keeper.

use super::Grounds;
use crate::ExperimentError;
use crate::error::while_doing;
use crate::keeper::Owed;
use crate::real::launch::{ends_with_us, last_words};
use std::fmt::Write;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// How long it may take to start: it makes its swap file and measures the disk.
const PATIENCE: Duration = Duration::from_secs(120);

/// How often its socket is looked for.
const LOOK: Duration = Duration::from_millis(20);

/// What a system domain is to promise.
#[derive(Clone, Debug)]
pub struct Setup {
    /// MiB of memory.
    pub managed: u64,
    /// MiB of swap.
    pub swap: u64,
    /// Share of the disk's time.
    pub capacity: f64,
    /// Requests at a time; by calibration where nothing is said.
    pub depth: Option<u32>,
    /// How long the disk's thread looks for work before it sleeps.
    pub spin: Duration,
}

impl Setup {
    /// With the daemon's own choices for the disk.
    pub fn of(managed: u64, swap: u64) -> Self {
        Self {
            managed,
            swap,
            capacity: 1.0,
            depth: None,
            spin: Duration::from_micros(20),
        }
    }

    fn text(&self, socket: &Path, swap: &Path, calibration: &Path) -> String {
        let mut text = String::new();
        let _ = writeln!(text, "socket = {:?}", socket);
        let _ = writeln!(text, "[memory]\nmanaged = \"{}M\"", self.managed);
        let _ = writeln!(text, "[disk]\nswap = {:?}\nsize = \"{}M\"", swap, self.swap);
        let _ = writeln!(
            text,
            "capacity = {:?}\nspin = \"{}us\"",
            self.capacity,
            self.spin.as_micros()
        );
        let _ = writeln!(text, "calibration = {:?}", calibration);
        if let Some(depth) = self.depth {
            let _ = writeln!(text, "depth = {depth}");
        }
        text
    }
}

/// A running system domain; ended when dropped.
pub struct System {
    process: Child,
    selfpage: PathBuf,
    socket: PathBuf,
    _files: Vec<Owed>,
}

impl System {
    /// Starts one, and waits until it listens.
    pub fn start(grounds: &Grounds<'_>, setup: &Setup) -> Result<Self, ExperimentError> {
        let selfpage = grounds.selfpage()?.to_owned();
        let mut files = Vec::new();
        let mut file = |name| {
            let (path, owed) = grounds.file(name)?;
            files.push(owed);
            Ok::<PathBuf, ExperimentError>(path)
        };
        let (config, socket, swap) = (file("toml")?, file("sock")?, file("system")?);
        // Measured once for all the system domains of a benchmark.
        let text = setup.text(&socket, &swap, &grounds.calibration);
        std::fs::write(&config, text)
            .map_err(while_doing(format!("write {}", config.display())))?;
        let mut command = Command::new(&selfpage);
        command.arg("system").arg("--config").arg(&config);
        command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        ends_with_us(&mut command);
        let process = command
            .spawn()
            .map_err(while_doing("start selfpage system"))?;
        let mut system = Self {
            process,
            selfpage,
            socket,
            _files: files,
        };
        system.wait_for_socket()?;
        Ok(system)
    }

    fn wait_for_socket(&mut self) -> Result<(), ExperimentError> {
        let began = Instant::now();
        while !self.socket.exists() {
            let ended = self
                .process
                .try_wait()
                .map_err(while_doing("wait for selfpage system"))?;
            if let Some(status) = ended {
                return Err(ExperimentError::Worker(format!(
                    "selfpage system: {status}: {}",
                    self.last_words()
                )));
            }
            if began.elapsed() > PATIENCE {
                return Err(ExperimentError::Worker(
                    "selfpage system does not listen".into(),
                ));
            }
            std::thread::sleep(LOOK);
        }
        Ok(())
    }

    fn last_words(&mut self) -> String {
        let mut said = Vec::new();
        if let Some(mut pipe) = self.process.stderr.take() {
            let _ = pipe.read_to_end(&mut said);
        }
        last_words(&said)
    }

    /// Where it listens.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// Its process number.
    pub fn id(&self) -> u32 {
        self.process.id()
    }

    /// A command of `selfpage`'s that speaks with it.
    pub fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(&self.selfpage);
        command.args(words);
        command
    }
}

impl Drop for System {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_configuration_names_what_was_chosen_and_leaves_the_rest() {
        let setup = Setup {
            capacity: 0.5,
            ..Setup::of(64, 32)
        };
        let text = setup.text(Path::new("/a"), Path::new("/b"), Path::new("/c"));
        assert!(text.contains("managed = \"64M\"") && text.contains("capacity = 0.5"));
        assert!(!text.contains("depth"));
    }
}
