//! A Redis server of a test's own.

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// A server without a file, which ends with this.
pub struct Redis {
    child: Child,
    pub port: u16,
}

impl Redis {
    /// `None`, and a line, where there is no Redis here.
    pub fn start(options: &[&str]) -> Option<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        drop(listener);
        Self::start_at(port, options)
    }

    pub fn start_at(port: u16, options: &[&str]) -> Option<Self> {
        let mut command = Command::new("redis-server");
        command.args(["--port", &port.to_string(), "--bind", "127.0.0.1"]);
        command
            .args(["--save", "", "--appendonly", "no"])
            .args(options);
        let Ok(child) = command.stdin(Stdio::null()).stdout(Stdio::null()).spawn() else {
            println!("skipped: no redis-server here: apt-get install redis-server");
            return None;
        };
        let redis = Self { child, port };
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            std::thread::sleep(Duration::from_millis(5));
        }
        Some(redis)
    }

    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// The answers to commands, of one line each.
    pub fn ask(&self, commands: &[&str]) -> Vec<String> {
        let stream = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
        let mut reader = BufReader::new(stream);
        let answers = commands.iter().map(|command| {
            write!(reader.get_mut(), "{command}\r\n").unwrap();
            let mut line = String::new();
            reader.read_line(&mut line).unwrap();
            line.trim().to_owned()
        });
        answers.collect()
    }

    /// How often a command was called.
    pub fn calls(&self, command: &str) -> u64 {
        let stream = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
        let mut reader = BufReader::new(stream);
        reader
            .get_mut()
            .write_all(b"INFO commandstats\r\n")
            .unwrap();
        let mut lines = reader.lines().map(Result::unwrap);
        // The text's length, its first line, and its others.
        lines.next().unwrap();
        let prefix = format!("cmdstat_{command}:calls=");
        let mut lines = lines.take_while(|line| !line.is_empty());
        let calls = lines.find_map(|line| {
            let calls = line.strip_prefix(&prefix)?.split(',').next()?;
            Some(calls.parse().unwrap())
        });
        calls.unwrap_or(0)
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
