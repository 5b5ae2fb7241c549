//! redis-server holding its data set in memory: filled, benchmarked, saved by a forked
//! child while clients go on writing, and its dump loaded again.

use super::{Product, Workload, found};
use crate::contract::{MIB, Size, Under};
use crate::launch::{Launch, Running};
use crate::noise::Noise;
use crate::outcome::Outcome;
use crate::sandbox::Sandbox;
use crate::verdict::{Doing, Verdict, ensure, failed, wait_for};
use std::io::Write;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// A server of 600 MB.
pub const REDIS: Workload = Workload {
    name: "redis",
    about: |size| {
        format!(
            "redis-server holds {} MiB, forks to save them, loads them again",
            bytes(size) / MIB
        )
    },
    // Debian's redis-tools has the server's program too, as redis-check-rdb: the
    // server's own package would start one on this machine.
    needs: &[
        ("redis-check-rdb", "redis-tools"),
        ("redis-cli", "redis-tools"),
        ("redis-benchmark", "redis-tools"),
    ],
    prepare,
    run,
};

fn prepare(sandbox: &Sandbox, size: Size) -> Verdict {
    let server = sandbox.join("redis-server");
    std::os::unix::fs::symlink(found("redis-check-rdb")?, &server).at("link", &server)?;
    let keys = bytes(size) / VALUE as u64;
    commands(sandbox, "fill", 1, 0..keys)?;
    // Written while the child saves: every third value is replaced.
    commands(sandbox, "change", 2, (0..keys).step_by(3))
}

fn run(sandbox: &Sandbox, size: Size, under: &Under) -> Verdict<Product> {
    let dump = sandbox.join("dump.rdb");
    let _ = std::fs::remove_file(&dump);
    let server = Server::start(sandbox, size, under)?;
    server.pipe("fill")?;
    server.benchmark(size)?;
    let saved = server.digest()?;
    ensure(server.cli(&["BGSAVE"])?.contains("started"), || {
        "BGSAVE did not start".into()
    })?;
    server.pipe("change")?;
    server.wait_for_save(size)?;
    let changed = server.digest()?;
    let outcome = server.stop()?;

    // The dump shows the moment of the fork, under any loader.
    let reader = match size {
        Size::Quick => &Under::Nothing,
        Size::Full => under,
    };
    let again = Server::start(sandbox, size, reader)?;
    let loaded = again.digest()?;
    again.stop()?;
    ensure(loaded == saved, || {
        format!("the dump holds {loaded}, at the fork the server held {saved}")
    })?;
    Ok(Product {
        result: format!("{saved} then {changed}"),
        outcome,
    })
}

/// Bytes of one value.
const VALUE: usize = 1000;

fn bytes(size: Size) -> u64 {
    size.scale(600, 80) * MIB
}

/// Writes SET commands in Redis's own protocol, as `redis-cli --pipe` wants them.
fn commands(sandbox: &Sandbox, name: &str, seed: u64, keys: impl Iterator<Item = u64>) -> Verdict {
    let path = sandbox.join(name);
    let file = std::fs::File::create(&path).at("make", &path)?;
    let mut out = std::io::BufWriter::with_capacity(1 << 20, file);
    let (mut noise, mut value) = (Noise::new(seed), Vec::new());
    for key in keys {
        value.clear();
        noise.text(VALUE, &mut value);
        let key = format!("key:{key:012}");
        write!(
            out,
            "*3\r\n$3\r\nSET\r\n${}\r\n{key}\r\n${VALUE}\r\n",
            key.len()
        )
        .and_then(|()| out.write_all(&value))
        .and_then(|()| out.write_all(b"\r\n"))
        .at("write", &path)?;
    }
    out.flush().at("write", &path)
}

struct Server<'a> {
    sandbox: &'a Sandbox,
    running: Running,
}

impl<'a> Server<'a> {
    fn start(sandbox: &'a Sandbox, size: Size, under: &Under) -> Verdict<Self> {
        let limit = Duration::from_secs(size.scale(1800, 400));
        let running = Launch::new(sandbox, sandbox.join("redis-server"))
            .args("--port 0 --unixsocket redis.sock --databases 2 --daemonize no".split(' '))
            .args("--enable-debug-command yes --dbfilename dump.rdb".split(' '))
            .args(["--save", ""])
            .limit(limit)
            .spawn(under)?;
        let mut server = Self { sandbox, running };
        let begin = Instant::now();
        while !server
            .cli(&["PING"])
            .is_ok_and(|said| said.contains("PONG"))
        {
            if server.running.ended() || begin.elapsed() > limit {
                return failed(format!(
                    "redis-server did not start:\n{}",
                    server.running.stderr()
                ));
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(server)
    }

    fn tool(&self, name: &str, args: &[&str], stdin: Stdio) -> Verdict<String> {
        let done = Command::new(found(name)?)
            .args(["-s", "redis.sock"])
            .args(args)
            .current_dir(self.sandbox.path())
            .stdin(stdin)
            .output()
            .doing(|| format!("run {name}"))?;
        let said = String::from_utf8_lossy(&done.stdout).into_owned();
        ensure(done.status.success(), || {
            format!(
                "{name} {args:?} failed: {said}{}",
                String::from_utf8_lossy(&done.stderr)
            )
        })?;
        Ok(said)
    }

    fn cli(&self, args: &[&str]) -> Verdict<String> {
        self.tool("redis-cli", args, Stdio::null())
    }

    fn pipe(&self, file: &str) -> Verdict {
        let path = self.sandbox.join(file);
        let input = std::fs::File::open(&path).at("open", &path)?;
        let said = self.tool(
            "redis-cli",
            &["--pipe", "--pipe-timeout", "0"],
            input.into(),
        )?;
        ensure(said.contains("errors: 0"), || {
            format!("redis-cli --pipe: {said}")
        })
    }

    /// Random keys, so in a database of its own that is emptied afterwards: the digest is
    /// over all of them.
    fn benchmark(&self, size: Size) -> Verdict {
        let requests = size.scale(200_000, 20_000).to_string();
        self.tool(
            "redis-benchmark",
            &[
                "--dbnum",
                "1",
                "-q",
                "-n",
                &requests,
                "-r",
                &requests,
                "-d",
                "200",
                "-t",
                "set,get,lpush,hset",
            ],
            Stdio::null(),
        )?;
        self.cli(&["-n", "1", "FLUSHDB", "SYNC"]).map(drop)
    }

    fn digest(&self) -> Verdict<String> {
        let said = self.cli(&["DEBUG", "DIGEST"])?.trim().to_owned();
        ensure(said.len() == 40, || {
            format!("DEBUG DIGEST printed {said:?}")
        })?;
        Ok(said)
    }

    fn wait_for_save(&self, size: Size) -> Verdict {
        let limit = Duration::from_secs(size.scale(900, 300));
        let text = || format!("BGSAVE still runs after {limit:?}");
        let said = wait_for(limit, text, || {
            let said = self.cli(&["INFO", "persistence"])?;
            Ok(said.contains("rdb_bgsave_in_progress:0").then_some(said))
        })?;
        ensure(said.contains("rdb_last_bgsave_status:ok"), || {
            format!("BGSAVE failed: {said}{}", self.running.stderr())
        })
    }

    fn stop(self) -> Verdict<Outcome> {
        // The server closes the connection instead of answering.
        let _ = self.cli(&["SHUTDOWN", "NOSAVE"]);
        self.running.wait()?.succeeded()
    }
}
