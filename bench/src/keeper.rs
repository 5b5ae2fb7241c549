//! Undoes changes to the machine, such as swap that is on, also after kill -9, a panic or
//! ctrl-C of the benchmark.
//!
//! A small process beside the benchmark, in a session of its own, does it. The benchmark
//! registers each undo action (a debt) before it makes the change. The keeper settles a debt
//! on request, and all that are left when the benchmark's end of the pipe closes, for
//! whatever reason.

use crate::error::while_doing;
use crate::{ExperimentError, Myself};
use serde::{Deserialize, Serialize};
use std::cell::RefCell;
use std::ffi::CString;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Stdio};
use std::rc::Rc;
use std::time::Duration;

/// A change to undo.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Debt {
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
enum Order {
    Owe(Debt),
    Settle(Debt),
}

/// Tries at settling one debt, and the pause between: a killed process leaves its cgroup,
/// and swap its device, a moment later.
const TRIES: u32 = 100;
const PAUSE: Duration = Duration::from_millis(50);

/// The main function of the keeper: it receives orders on standard input and answers on
/// standard output.
pub fn serve() {
    // Ctrl-C reaches all processes in the terminal's session.
    let _ = rustix::process::setsid();
    let mut debts: Vec<Debt> = Vec::new();
    for line in std::io::stdin().lock().lines().map_while(Result::ok) {
        let answer = match serde_json::from_str(&line) {
            Ok(Order::Owe(debt)) => {
                debts.push(debt);
                String::new()
            }
            Ok(Order::Settle(debt)) => match settle(&debt) {
                Ok(()) => {
                    debts.retain(|d| *d != debt);
                    String::new()
                }
                Err(failure) => failure.to_string(),
            },
            Err(failure) => failure.to_string(),
        };
        if writeln!(std::io::stdout(), "{answer}").is_err() {
            break;
        }
    }
    for debt in debts.iter().rev() {
        // The parent has exited: errors have no receiver.
        let _ = settle(debt);
    }
}

fn settle(debt: &Debt) -> Result<(), ExperimentError> {
    let mut tries = 0;
    loop {
        match attempt(debt) {
            Err(_) if tries < TRIES => std::thread::sleep(PAUSE),
            outcome => return outcome,
        }
        tries += 1;
    }
}

fn attempt(debt: &Debt) -> Result<(), ExperimentError> {
    match debt {
        Debt::Swap(path) => swap_off(path),
        Debt::Zram(number) => remove_zram(*number),
        Debt::Cgroup(path) => remove_cgroup(path),
        Debt::Setting { path, value } => {
            std::fs::write(path, value).map_err(while_doing(format!("set {}", path.display())))
        }
        Debt::File(path) if !path.exists() => Ok(()),
        Debt::File(path) => {
            std::fs::remove_file(path).map_err(while_doing(format!("remove {}", path.display())))
        }
    }
}

fn swap_off(path: &Path) -> Result<(), ExperimentError> {
    let swaps = std::fs::read_to_string("/proc/swaps").unwrap_or_default();
    if !swaps.lines().any(|line| {
        line.split_whitespace()
            .next()
            .is_some_and(|w| Path::new(w) == path)
    }) {
        return Ok(());
    }
    let name = CString::new(path.as_os_str().as_bytes())
        .map_err(|_| ExperimentError::Options("a path with a zero byte".into()))?;
    // SAFETY: a terminated string.
    if unsafe { libc::swapoff(name.as_ptr()) } == 0 {
        return Ok(());
    }
    Err(while_doing(format!(
        "switch off swap on {}",
        path.display()
    ))(std::io::Error::last_os_error()))
}

fn remove_zram(number: u32) -> Result<(), ExperimentError> {
    let folder = PathBuf::from(format!("/sys/block/zram{number}"));
    if !folder.exists() {
        return Ok(());
    }
    std::fs::write(folder.join("reset"), "1")
        .map_err(while_doing(format!("reset zram{number}")))?;
    std::fs::write("/sys/class/zram-control/hot_remove", number.to_string())
        .map_err(while_doing(format!("remove zram{number}")))
}

fn remove_cgroup(path: &Path) -> Result<(), ExperimentError> {
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
    std::fs::remove_dir(path).map_err(while_doing(format!("remove the cgroup {}", path.display())))
}

/// The benchmark's end of the keeper. Cheap to clone.
#[derive(Clone)]
pub struct Keeper(Rc<RefCell<Line>>);

struct Line {
    child: Child,
    orders: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
}

impl Keeper {
    /// Starts one.
    pub fn start(myself: &Myself) -> Result<Self, ExperimentError> {
        let mut child = myself
            .command("keeper")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(while_doing("start the keeper"))?;
        let (Some(orders), Some(answers)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(ExperimentError::Worker("the keeper has no pipes".into()));
        };
        Ok(Self(Rc::new(RefCell::new(Line {
            child,
            orders: Some(orders),
            answers: BufReader::new(answers),
        }))))
    }

    /// Registers a debt before the change is made. The keeper settles it when the value is
    /// dropped or the benchmark ends.
    pub fn owe(&self, debt: Debt) -> Result<Owed, ExperimentError> {
        self.order(&Order::Owe(debt.clone()))?;
        Ok(Owed {
            keeper: self.clone(),
            debt,
        })
    }

    fn order(&self, order: &Order) -> Result<(), ExperimentError> {
        let mut line = self.0.borrow_mut();
        let mut text =
            serde_json::to_string(order).map_err(|e| ExperimentError::Worker(e.to_string()))?;
        text.push('\n');
        let Some(orders) = line.orders.as_mut() else {
            return Err(ExperimentError::Worker("the keeper has exited".into()));
        };
        orders
            .write_all(text.as_bytes())
            .map_err(while_doing("send to the keeper"))?;
        let mut answer = String::new();
        let got = line
            .answers
            .read_line(&mut answer)
            .map_err(while_doing("receive from the keeper"))?;
        match answer.trim() {
            "" if got > 0 => Ok(()),
            "" => Err(ExperimentError::Worker("the keeper has exited".into())),
            failure => Err(ExperimentError::Worker(failure.to_owned())),
        }
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        // The closed pipe is its signal; wait, so that all is settled when we end.
        drop(self.orders.take());
        let _ = self.child.wait();
    }
}

/// A debt: settled when dropped.
pub struct Owed {
    keeper: Keeper,
    debt: Debt,
}

impl Drop for Owed {
    fn drop(&mut self) {
        if let Err(failure) = self.keeper.order(&Order::Settle(self.debt.clone())) {
            eprintln!("selfpage bench: {failure}; please undo {:?}", self.debt);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_setting_is_put_back_and_a_file_is_gone_once_settled() {
        let path =
            std::env::temp_dir().join(format!("selfpage-bench-test-keeper-{}", std::process::id()));
        std::fs::write(&path, "changed").unwrap();
        let setting = Debt::Setting {
            path: path.clone(),
            value: "as it was".into(),
        };
        settle(&setting).unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "as it was");
        let file = Debt::File(path.clone());
        settle(&file).unwrap();
        assert!(!path.exists());
        settle(&file).unwrap();
    }
}
