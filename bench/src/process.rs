//! A worker process: it receives orders and sends answers as lines. It is killed when it is
//! dropped before its end, and when the benchmark ends for any reason.

use crate::ExperimentError;
use crate::error::while_doing;
use crate::real::launch::{ends_with_us, last_words};
use crate::worker::READY;
use serde::de::DeserializeOwned;
use std::io::{BufRead, BufReader, Lines, Read, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// A worker, from its start to its end.
pub struct Process {
    child: Child,
    orders: Option<ChildStdin>,
    answers: Lines<BufReader<ChildStdout>>,
}

impl Process {
    /// Starts a worker, and waits for its ready line.
    pub fn start(mut command: Command) -> Result<Self, ExperimentError> {
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        ends_with_us(&mut command);
        let mut child = command
            .spawn()
            .map_err(while_doing(format!("start {:?}", command.get_program())))?;
        let orders = child.stdin.take();
        let Some(answers) = child.stdout.take() else {
            return Err(ExperimentError::Worker("it has no pipes".into()));
        };
        let mut process = Self {
            child,
            orders,
            answers: BufReader::new(answers).lines(),
        };
        match process.hear()?.as_str() {
            READY => Ok(process),
            other => Err(ExperimentError::Worker(format!(
                "expected the ready line, got {other:?}"
            ))),
        }
    }

    /// Its pid.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Sends it a line.
    pub fn tell(&mut self, order: &str) -> Result<(), ExperimentError> {
        let told = match &mut self.orders {
            Some(orders) => orders.write_all(format!("{order}\n").as_bytes()),
            None => Err(std::io::ErrorKind::BrokenPipe.into()),
        };
        // EPIPE: the worker exited; its last message may explain.
        told.map_err(|_| self.failure())
    }

    /// Returns true if it has ended by itself, or was killed.
    pub fn has_ended(&mut self) -> bool {
        !matches!(self.child.try_wait(), Ok(None))
    }

    /// Its next line.
    pub fn hear(&mut self) -> Result<String, ExperimentError> {
        match self.answers.next() {
            Some(Ok(line)) => Ok(line),
            _ => Err(self.failure()),
        }
    }

    /// Its next line, as a value.
    pub fn hear_as<T: DeserializeOwned>(&mut self) -> Result<T, ExperimentError> {
        let line = self.hear()?;
        serde_json::from_str(&line)
            .map_err(|why| ExperimentError::Worker(format!("invalid answer {line:?}: {why}")))
    }

    /// Its output until it ends, and its exit status. The status is part of the check, since a
    /// pager may fail at the very end.
    pub fn end(mut self) -> Result<Vec<String>, ExperimentError> {
        self.orders = None;
        let rest = self.answers.by_ref().map_while(Result::ok).collect();
        let status = self
            .child
            .wait()
            .map_err(while_doing("wait for the worker"))?;
        match status.success() {
            true => Ok(rest),
            false => Err(self.failure()),
        }
    }

    fn failure(&mut self) -> ExperimentError {
        self.orders = None;
        let status = self.child.wait();
        let status = status.map_or_else(|e| e.to_string(), |s| s.to_string());
        let mut said = Vec::new();
        if let Some(mut pipe) = self.child.stderr.take() {
            let _ = pipe.read_to_end(&mut said);
        }
        ExperimentError::Worker(format!("{status}: {}", last_words(&said)))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
