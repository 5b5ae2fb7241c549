//! redis-server within its frames, filled and then worked by redis-benchmark, which itself
//! is not paged. What it holds of the fill is compared at the end by its own digest.

use super::child::{self, Child, Done, Start};
use super::medium::Medium;
use super::{Benchmark, FITS, System};
use crate::env::find_program;
use crate::prelude::*;
use crate::process::{output, poll};
use std::fs::File;
use std::io::{BufWriter, Write};
use std::process::Stdio;
use twox_hash::XxHash3_64;

/// Requests of each of four kinds in a second here.
const PACE: u64 = 15_000;
/// Keys of the fill, of 1,000 bytes each.
const KEYS: u64 = 100_000;
/// More than the server needs for the fill and what the benchmark makes.
const FRAMES: u64 = 2 << 30;
/// How long a server may take to answer for the first time, or to end.
const TIMEOUT: Duration = Duration::from_secs(30);

/// The server's and the clients' programs, and what the server is filled with.
pub struct Redis {
    server: OwnedFile,
    client: PathBuf,
    benchmark: PathBuf,
    socket: OwnedFile,
    fill: OwnedFile,
    requests: u64,
}

impl Redis {
    /// As many requests as take about so long.
    pub fn new(env: &TestEnv, seconds: u64) -> Result<Self> {
        // Debian's redis-tools has the server's program under this name, and it is a
        // server by any other; the server's own package would start one on this machine.
        let program = find_program("redis-check-rdb", "redis-tools")?;
        let server = env.file("redis-server")?;
        let fill = env.file("redis.fill")?;
        std::os::unix::fs::symlink(&program, &server).at("link", &server)?;
        write_fill(&fill).at("write", &fill)?;
        Ok(Self {
            server,
            client: find_program("redis-cli", "redis-tools")?,
            benchmark: find_program("redis-benchmark", "redis-tools")?,
            socket: env.file("redis.sock")?,
            fill,
            requests: seconds * PACE,
        })
    }

    fn command(&self) -> Command {
        let mut command = Command::new(&*self.server);
        command.args(["--port", "0", "--save", "", "--databases", "2"]);
        command.args(["--daemonize", "no", "--enable-debug-command", "yes"]);
        command
            .args(["--loglevel", "warning", "--unixsocket"])
            .arg(&*self.socket);
        command
    }

    /// A client's output for one command.
    fn client(&self, program: &Path, args: &[&str], stdin: Stdio) -> Result<String> {
        let mut command = Command::new(program);
        command.arg("-s").arg(&*self.socket).args(args);
        let said = output(command, stdin)?;
        Ok(String::from_utf8_lossy(&said).into_owned())
    }

    fn query(&self, args: &[&str]) -> Result<String> {
        self.client(&self.client, args, Stdio::null())
    }

    fn wait_for(&self, server: &mut Worker) -> Result<()> {
        let answers = || {
            if server.has_ended() {
                return Err(server.stop());
            }
            Ok(self
                .query(&["PING"])
                .is_ok_and(|said| said.contains("PONG")))
        };
        match poll(TIMEOUT, Duration::from_millis(20), answers)? {
            true => Ok(()),
            false => Err(server.stop()),
        }
    }

    /// The work that is timed.
    fn work(&self) -> Result<Duration> {
        let fill = File::open(&self.fill).at("open", &self.fill)?;
        let requests = self.requests.to_string();
        let begin = Instant::now();
        let said = self.client(&self.client, &["--pipe"], fill.into())?;
        if !said.contains("errors: 0") {
            bail!("redis-cli --pipe: {said}");
        }
        // Random keys, so in a database of its own.
        let args = ["--dbnum", "1", "-q", "-n", &requests, "-r", &requests];
        let kinds = ["-d", "200", "-t", "set,get,lpush,hset"];
        let args = [&args[..], &kinds[..]].concat();
        self.client(&self.benchmark, &args, Stdio::null())?;
        Ok(begin.elapsed())
    }

    fn digest(&self) -> Result<u64> {
        self.query(&["-n", "1", "FLUSHDB", "SYNC"])?;
        let said = self.query(&["DEBUG", "DIGEST"])?;
        match said.trim().len() {
            40 => Ok(XxHash3_64::oneshot(said.trim().as_bytes())),
            _ => Err(anyhow!("DEBUG DIGEST: {said}")),
        }
    }
}

impl Benchmark for Redis {
    fn about(&self) -> (String, &'static str, Bound) {
        ("redis within frames".into(), "without us", FITS)
    }

    fn run(&self, env: &TestEnv, side: System) -> Result<Done> {
        let before = child::processor_time();
        let (store, _guard) = Medium::Ram.store(env, FRAMES / 8)?;
        let command = match side {
            System::Ours => env.paged(FRAMES, &store, &self.command())?,
            System::Beside => env.alone(self.command())?,
        };
        let mut server = Child::start(command, Start::Now, env.limit)?;
        self.wait_for(&mut server.worker)?;
        let elapsed = self.work()?;
        let digest = self.digest()?;
        // The server closes the connection instead of answering.
        let _ = self.query(&["SHUTDOWN", "NOSAVE"]);
        server.finish()?;
        Ok(Done {
            elapsed,
            processor: child::processor_time().saturating_sub(before),
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
