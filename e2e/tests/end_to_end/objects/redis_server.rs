//! A Redis server of a test's own.

use super::wait_until;
use e2e::verdict::{Doing, Verdict, skipped};
use rustix::process::{Pid, Signal, kill_process};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};

/// A Redis of our own, without a file.
pub struct Redis {
    child: Child,
    pub port: u16,
}

impl Redis {
    pub fn start() -> Verdict<Self> {
        Self::start_with(&[])
    }

    pub fn start_with(options: &[&str]) -> Verdict<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").doing(|| "find a port".into())?;
        let port = listener.local_addr().doing(|| "find a port".into())?.port();
        drop(listener);
        Self::start_at(port, options)
    }

    pub fn start_at(port: u16, options: &[&str]) -> Verdict<Self> {
        let mut command = Command::new("redis-server");
        command.args(["--port", &port.to_string(), "--bind", "127.0.0.1"]);
        command.args(["--save", "", "--appendonly", "no"]);
        command.args(options);
        let Ok(child) = command.stdin(Stdio::null()).stdout(Stdio::null()).spawn() else {
            return skipped("no redis-server here: apt-get install redis-server");
        };
        let redis = Self { child, port };
        wait_until("redis-server listens", || {
            TcpStream::connect(("127.0.0.1", port)).is_ok()
        })?;
        Ok(redis)
    }

    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// Keys that there are, by Redis's own protocol.
    pub fn keys(&self) -> Option<String> {
        use std::io::{BufRead, BufReader, Write};
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).ok()?;
        stream.write_all(b"DBSIZE\r\n").ok()?;
        let mut line = String::new();
        BufReader::new(stream).read_line(&mut line).ok()?;
        Some(line.trim().to_owned())
    }

    pub fn signal(&self, signal: Signal) {
        let _ = kill_process(Pid::from_child(&self.child), signal);
    }

    pub fn has_pages(&self) -> bool {
        self.keys().is_some_and(|keys| keys.len() > 2)
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
