//! A server that is started for one run, on loopback, and killed after it.

use super::fixed_reply::Protocol;
use crate::env::find_program;
use crate::prelude::*;
use crate::process::{ends_with_us, poll};
use std::io::{BufRead, BufReader};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::process::CommandExt;
use std::process::{Child, Stdio};

/// How long a server may take to listen.
const TIMEOUT: Duration = Duration::from_secs(20);

/// MiB of a paging server beyond its pages: a client asks for some objects of 16 MiB more than it needs.
const MARGIN_MIB: u64 = 64;

/// The user of a server that refuses to be root: the kernel's overflow id, which owns nothing.
const UNPRIVILEGED: u32 = 65534;

/// A server, until it is dropped.
pub struct ServerProcess {
    child: Child,
    /// Where it listens.
    pub address: SocketAddr,
}

impl ServerProcess {
    /// `selfpage serve` with room for more than twice that many pages.
    pub fn paging(env: &TestEnv, pages: u64) -> Result<Self> {
        let mut command = Command::new(env.selfpage()?);
        let ram = format!("{}M", ((pages * 2) >> 8) + MARGIN_MIB);
        command.args(["serve", "--ram", &ram, "--listen", "127.0.0.1:0"]);
        command.arg("--insecure");
        command.stderr(Stdio::piped());
        let mut child = start(command)?;
        let said = child
            .stderr
            .take()
            .ok_or_else(|| anyhow!("it has no pipe"))?;
        let mut lines = BufReader::new(said).lines();
        let mut all = Vec::new();
        let address = loop {
            let Some(Ok(line)) = lines.next() else {
                let _ = child.kill();
                let _ = child.wait();
                bail!("selfpage serve does not start: {}", all.join("; "));
            };
            let after = line.split(" at ").nth(1);
            let address = after.and_then(|rest| rest.split(',').next());
            if let Some(address) = address.and_then(|text| text.parse().ok()) {
                break address;
            }
            all.push(line);
        };
        // A pipe that nothing reads would stop it.
        std::thread::spawn(move || lines.for_each(drop));
        Ok(Self { child, address })
    }

    /// Its pid.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// memcached or redis-server with room for that many pages.
    pub fn key_value(protocol: Protocol, pages: u64) -> Result<Self> {
        let address = free_address()?;
        let (port, mib) = (
            address.port().to_string(),
            ((pages * 2) >> 8).max(64).to_string(),
        );
        let mut command = match protocol {
            Protocol::Memcached => {
                let mut command = Command::new(find_program("memcached", "memcached")?);
                command.args(["-l", "127.0.0.1", "-p", &port, "-U", "0", "-m", &mib]);
                // It refuses to be root.
                if rustix::process::geteuid().is_root() {
                    command.uid(UNPRIVILEGED);
                }
                command
            }
            _ => {
                let mut command = Command::new(find_program("redis-server", "redis-server")?);
                command.args(["--bind", "127.0.0.1", "--port", &port, "--save", ""]);
                command.args(["--appendonly", "no", "--daemonize", "no"]);
                command
            }
        };
        command.stderr(Stdio::null());
        let mut server = Self {
            child: start(command)?,
            address,
        };
        let child = &mut server.child;
        let listens = poll(TIMEOUT, Duration::from_millis(5), || {
            if let Some(status) = child.try_wait()? {
                bail!("{protocol:?} has ended: {status}");
            }
            Ok(TcpStream::connect(address).is_ok())
        })?;
        match listens {
            true => Ok(server),
            false => Err(anyhow!("{protocol:?} does not listen at {address}")),
        }
    }
}

impl Drop for ServerProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn start(mut command: Command) -> Result<Child> {
    ends_with_us(&mut command);
    command.stdin(Stdio::null()).stdout(Stdio::null());
    let program = command.get_program().to_owned();
    command.spawn().at("start", &program)
}

/// A port that was free a moment ago.
fn free_address() -> Result<SocketAddr> {
    let listener = TcpListener::bind("127.0.0.1:0").doing("find a free port")?;
    Ok(listener.local_addr()?)
}
