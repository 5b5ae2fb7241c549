//! Undoes changes to the machine, such as swap that is on, also after kill -9, a panic or
//! ctrl-C of the benchmark.
//!
//! A small process beside the benchmark, in a session of its own, does it. The benchmark
//! registers each undo action before it makes the change. The cleanup process undoes a change
//! on request, and all that are left when the benchmark's end of the pipe closes, for
//! whatever reason.

use crate::error::{checked, in_words};
use crate::prelude::*;
use crate::worker::{orders, own_program};
use std::cell::RefCell;
use std::ffi::CString;
use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt;
use std::rc::Rc;
use std::time::{Duration, Instant};

/// How long killed processes may take to leave their group.
const LEAVES: Duration = Duration::from_secs(5);

/// A change to undo.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum UndoAction {
    /// A swap area to be switched off.
    Swap(PathBuf),
    /// A zram device to be reset and removed, by its number.
    Zram(u32),
    /// A cgroup whose processes are to be killed, and which is then to be removed.
    Cgroup(PathBuf),
    /// A file to be deleted.
    File(PathBuf),
    /// A setting of the kernel's to be put back.
    Setting {
        /// Its file.
        path: PathBuf,
        /// What it was.
        value: String,
    },
}

#[derive(Debug, Serialize, Deserialize)]
enum CleanupMessage {
    Register(UndoAction),
    Undo(UndoAction),
}

/// Tries at undoing one change, and the pause between: a killed process leaves its cgroup,
/// and swap its device, a moment later.
const TRIES: u32 = 100;
const PAUSE: Duration = Duration::from_millis(50);

/// The main function of the cleanup process: it receives orders on standard input and answers on
/// standard output.
pub fn serve() {
    // Ctrl-C reaches all processes in the terminal's session.
    let _ = rustix::process::setsid();
    let mut actions: Vec<UndoAction> = Vec::new();
    for message in orders::<CleanupMessage>() {
        let outcome = message.and_then(|message| match message {
            CleanupMessage::Register(action) => {
                actions.push(action);
                Ok(())
            }
            CleanupMessage::Undo(action) => {
                undo(&action)?;
                actions.retain(|registered| *registered != action);
                Ok(())
            }
        });
        if reply(&outcome.err().as_ref().map(in_words)).is_err() {
            break;
        }
    }
    for action in actions.iter().rev() {
        // The parent has exited: errors have no receiver.
        let _ = undo(action);
    }
    // A program that ends with the benchmark may write its figures after that.
    let is_file = |action: &&UndoAction| matches!(action, UndoAction::File(_));
    let files: Vec<_> = actions.iter().filter(is_file).collect();
    let rounds = if files.is_empty() { 0 } else { TRIES };
    for _ in 0..rounds {
        std::thread::sleep(PAUSE);
        for file in &files {
            let _ = attempt(file);
        }
    }
}

fn undo(action: &UndoAction) -> Result<()> {
    let mut tries = 0;
    loop {
        match attempt(action) {
            Err(_) if tries < TRIES => std::thread::sleep(PAUSE),
            outcome => return outcome,
        }
        tries += 1;
    }
}

fn attempt(action: &UndoAction) -> Result<()> {
    match action {
        UndoAction::Swap(path) => swap_off(path),
        UndoAction::Zram(number) => remove_zram(*number),
        UndoAction::Cgroup(path) => remove_cgroup(path),
        UndoAction::Setting { path, value } => std::fs::write(path, value).at("set", path),
        UndoAction::File(path) if !path.exists() => Ok(()),
        UndoAction::File(path) if path.is_dir() => std::fs::remove_dir_all(path).at("remove", path),
        UndoAction::File(path) => std::fs::remove_file(path).at("remove", path),
    }
}

fn swap_off(path: &Path) -> Result<()> {
    let swaps = std::fs::read_to_string("/proc/swaps").unwrap_or_default();
    if !swaps.lines().any(|line| {
        line.split_whitespace()
            .next()
            .is_some_and(|w| Path::new(w) == path)
    }) {
        return Ok(());
    }
    let name = CString::new(path.as_os_str().as_bytes())?;
    // SAFETY: a terminated string.
    let status = unsafe { libc::swapoff(name.as_ptr()) };
    checked(status).at("switch off swap on", path)
}

fn remove_zram(number: u32) -> Result<()> {
    let folder = PathBuf::from(format!("/sys/block/zram{number}"));
    if !folder.exists() {
        return Ok(());
    }
    std::fs::write(folder.join("reset"), "1").doing(format_args!("reset zram{number}"))?;
    std::fs::write("/sys/class/zram-control/hot_remove", number.to_string())
        .doing(format_args!("remove zram{number}"))
}

fn remove_cgroup(path: &Path) -> Result<()> {
    if !path.exists() {
        return Ok(());
    }
    // Version 2 kills as one; for version 1, one by one.
    if std::fs::write(path.join("cgroup.kill"), "1").is_err() {
        let inside = std::fs::read_to_string(path.join("cgroup.procs")).unwrap_or_default();
        for pid in inside
            .lines()
            .filter_map(|l| l.parse().ok())
            .filter_map(rustix::process::Pid::from_raw)
        {
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
        }
    }
    // What is killed leaves the group a moment later.
    let begin = Instant::now();
    loop {
        match std::fs::remove_dir(path) {
            Err(why) if why.kind() == ErrorKind::ResourceBusy && begin.elapsed() < LEAVES => {
                std::thread::sleep(Duration::from_millis(10));
            }
            outcome => return outcome.at("remove the cgroup", path),
        }
    }
}

/// The benchmark's end of the cleanup process. Cheap to clone.
#[derive(Clone)]
pub struct CleanupProcess(Rc<RefCell<Worker>>);

impl CleanupProcess {
    /// Starts one.
    pub fn start() -> Result<Self> {
        let worker = Worker::spawn_lasting(own_program("cleanup")?)?;
        Ok(Self(Rc::new(RefCell::new(worker))))
    }

    /// Registers an undo action before the change is made. The cleanup process undoes the change
    /// when the value is dropped or the benchmark ends.
    pub fn register(&self, action: UndoAction) -> Result<UndoGuard> {
        self.send(&CleanupMessage::Register(action.clone()))?;
        Ok(UndoGuard {
            cleanup: self.clone(),
            action,
        })
    }

    /// Sets a setting of the kernel's for one arm: it is `before` again when the guard is dropped.
    pub fn set(&self, path: &Path, value: &str, before: String) -> Result<UndoGuard> {
        let (path, value) = (path.to_owned(), value.to_owned());
        let guard = self.register(UndoAction::Setting {
            path: path.clone(),
            value: before,
        })?;
        std::fs::write(&path, value).at_as_root("set", &path)?;
        Ok(guard)
    }

    fn send(&self, message: &CleanupMessage) -> Result<()> {
        match self.0.borrow_mut().call::<Option<String>>(message)? {
            None => Ok(()),
            Some(failure) => Err(anyhow!(failure)),
        }
    }
}

/// A registered change: undone when dropped.
pub struct UndoGuard {
    cleanup: CleanupProcess,
    action: UndoAction,
}

impl Drop for UndoGuard {
    fn drop(&mut self) {
        if let Err(failure) = self
            .cleanup
            .send(&CleanupMessage::Undo(self.action.clone()))
        {
            eprintln!("selfpage bench: {failure:#}; please undo {:?}", self.action);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_setting_is_put_back_and_a_file_is_gone_once_undone() {
        let path = std::env::temp_dir().join(format!(
            "selfpage-bench-test-cleanup-{}",
            std::process::id()
        ));
        std::fs::write(&path, "changed").unwrap();
        let setting = UndoAction::Setting {
            path: path.clone(),
            value: "as it was".into(),
        };
        undo(&setting).unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "as it was");
        let file = UndoAction::File(path.clone());
        undo(&file).unwrap();
        assert!(!path.exists());
        undo(&file).unwrap();
    }
}
