//! redis-server within its frames, filled and then worked by redis-benchmark, which itself
//! is not paged. What it holds of the fill is compared at the end by its own digest.

use super::goal::Bound;
use super::ground::{Grounds, Medium, found};
use super::launch::{self, Digest, Done, Running, Start};
use super::{Case, FITS, Side};
use crate::ExperimentError;
use crate::contents::mix;
use crate::error::while_doing;
use crate::keeper::Owed;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Requests of each of four kinds in a second here.
const PACE: u64 = 15_000;
/// Keys of the fill, of 1,000 bytes each.
const KEYS: u64 = 100_000;
/// More than the server needs for the fill and what the benchmark makes.
const FRAMES: u64 = 2 << 30;
/// How long a server may take to answer for the first time, or to end.
const PATIENCE: Duration = Duration::from_secs(30);

/// The server's and the clients' programs, and what the server is filled with.
pub struct Redis {
    server: PathBuf,
    client: PathBuf,
    benchmark: PathBuf,
    socket: PathBuf,
    fill: PathBuf,
    requests: u64,
    _files: [Owed; 3],
}

impl Redis {
    /// As many requests as take about so long.
    pub fn new(grounds: &Grounds<'_>, seconds: u64) -> Result<Self, ExperimentError> {
        // Debian's redis-tools has the server's program under this name, and it is a
        // server by any other; the server's own package would start one on this machine.
        let program = found("redis-check-rdb", "redis-tools")?;
        let (server, a) = grounds.base.file("redis-server")?;
        let (socket, b) = grounds.base.file("redis.sock")?;
        let (fill, c) = grounds.base.file("redis.fill")?;
        std::os::unix::fs::symlink(&program, &server)
            .map_err(while_doing(format!("link {}", server.display())))?;
        write_fill(&fill).map_err(while_doing(format!("write {}", fill.display())))?;
        Ok(Self {
            server,
            client: found("redis-cli", "redis-tools")?,
            benchmark: found("redis-benchmark", "redis-tools")?,
            socket,
            fill,
            requests: seconds * PACE,
            _files: [a, b, c],
        })
    }

    fn command(&self) -> Command {
        let mut command = Command::new(&self.server);
        command.args(["--port", "0", "--save", "", "--databases", "2"]);
        command.args(["--daemonize", "no", "--enable-debug-command", "yes"]);
        command
            .args(["--loglevel", "warning", "--unixsocket"])
            .arg(&self.socket);
        command
    }

    /// A client's output for one command.
    fn client(
        &self,
        program: &Path,
        args: &[&str],
        stdin: Stdio,
    ) -> Result<String, ExperimentError> {
        let mut command = Command::new(program);
        command.arg("-s").arg(&self.socket).args(args);
        launch::ends_with_us(&mut command);
        let done = command
            .stdin(stdin)
            .output()
            .map_err(while_doing(format!("start {}", program.display())))?;
        match done.status.success() {
            true => Ok(String::from_utf8_lossy(&done.stdout).into_owned()),
            false => Err(ExperimentError::Worker(format!(
                "{} {args:?}: {}",
                program.display(),
                launch::last_words(&done.stderr)
            ))),
        }
    }

    fn ask(&self, args: &[&str]) -> Result<String, ExperimentError> {
        self.client(&self.client, args, Stdio::null())
    }

    fn wait_for(&self, server: &mut Running) -> Result<(), ExperimentError> {
        let begin = Instant::now();
        while !self.ask(&["PING"]).is_ok_and(|said| said.contains("PONG")) {
            if server.ended() || begin.elapsed() > PATIENCE {
                return Err(server.failure());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    /// The work that is timed.
    fn work(&self) -> Result<Duration, ExperimentError> {
        let fill =
            File::open(&self.fill).map_err(while_doing(format!("open {}", self.fill.display())))?;
        let requests = self.requests.to_string();
        let begin = Instant::now();
        let said = self.client(&self.client, &["--pipe"], fill.into())?;
        if !said.contains("errors: 0") {
            return Err(ExperimentError::Worker(format!("redis-cli --pipe: {said}")));
        }
        // Random keys, so in a database of its own.
        let args = ["--dbnum", "1", "-q", "-n", &requests, "-r", &requests];
        let kinds = ["-d", "200", "-t", "set,get,lpush,hset"];
        self.client(
            &self.benchmark,
            &[&args[..], &kinds[..]].concat(),
            Stdio::null(),
        )?;
        Ok(begin.elapsed())
    }

    fn digest(&self) -> Result<u64, ExperimentError> {
        self.ask(&["-n", "1", "FLUSHDB", "SYNC"])?;
        let said = self.ask(&["DEBUG", "DIGEST"])?;
        let mut digest = Digest::default();
        digest.add(said.trim().as_bytes());
        match said.trim().len() {
            40 => Ok(digest.0),
            _ => Err(ExperimentError::Worker(format!("DEBUG DIGEST: {said}"))),
        }
    }
}

impl Case for Redis {
    fn about(&self) -> (String, String, Bound) {
        ("redis within frames".into(), "without us".into(), FITS)
    }

    fn run(&self, grounds: &Grounds<'_>, side: Side) -> Result<Done, ExperimentError> {
        let before = launch::processor_time();
        let ours = grounds.ours(Medium::Ram, FRAMES / 8)?;
        let command = match side {
            Side::Ours => grounds.paged(FRAMES, &ours.store, &self.command())?,
            Side::Beside => grounds.alone(self.command())?,
        };
        let mut server = Running::start(command, Start::Now, grounds.limit)?;
        self.wait_for(&mut server)?;
        let elapsed = self.work()?;
        let digest = self.digest()?;
        // The server closes the connection instead of answering.
        let _ = self.ask(&["SHUTDOWN", "NOSAVE"]);
        server.finish()?;
        Ok(Done {
            elapsed,
            processor: launch::processor_time().saturating_sub(before),
            digest,
            killed: 0,
        })
    }
}

/// SET commands in Redis's own protocol, as `redis-cli --pipe` wants them.
fn write_fill(path: &Path) -> std::io::Result<()> {
    let mut out = BufWriter::with_capacity(1 << 20, File::create(path)?);
    for key in 0..KEYS {
        write!(out, "*3\r\n$3\r\nSET\r\n$16\r\nkey:{key:012}\r\n$1000\r\n")?;
        for word in 0..125 {
            out.write_all(&mix(key << 8 ^ word).to_le_bytes())?;
        }
        out.write_all(b"\r\n")?;
    }
    out.flush()
}
