//! A redis-server under test: how it is started, over which socket, and its requests. Its client is this
//! process, which is in no cgroup and is not paged.

use crate::env::find_program;
use crate::prelude::*;
use crate::process::poll;
use std::io::{BufRead, Write};
use std::os::unix::net::UnixStream;

/// Bytes of a value: half of them noise, so that pages compress 2:1.
const VALUE: usize = 1_000;

/// Keys for each MiB that the server takes, with what it adds to a value.
const KEYS_PER_MIB: u64 = 850;

/// Requests under way at a time, as redis-benchmark -P 16 has them.
const PIPELINE: u64 = 16;

/// How long a server may take to listen.
const TIMEOUT: Duration = Duration::from_secs(30);

/// A server that is to have so many keys.
pub struct RedisServer {
    socket: OwnedFile,
    /// Where the machine has no program of the server's name.
    _link: Option<OwnedFile>,
    /// Its program.
    pub command: Command,
    /// Its keys: numbers below this.
    pub keys: u64,
}

impl RedisServer {
    /// One that takes so many MiB.
    pub fn new(env: &TestEnv, mib: u64) -> Result<Self> {
        let socket = env.file("redis.sock")?;
        let (program, _link) = match find_program("redis-server", "redis-server") {
            Ok(path) => (path, None),
            Err(why) => {
                // Debian's redis-tools has the same program under another name, by which it serves
                // nothing; the server's own package starts one on this machine.
                let program = find_program("redis-check-rdb", "redis-tools").map_err(|_| why)?;
                let link = env.file("redis-server")?;
                std::os::unix::fs::symlink(program, &link).at("link", &link)?;
                (link.to_path_buf(), Some(link))
            }
        };
        let mut command = Command::new(program);
        command.args(["--port", "0", "--save", "", "--daemonize", "no"]);
        command.args(["--loglevel", "warning", "--unixsocket"]);
        command.arg(&*socket);
        let keys = mib * KEYS_PER_MIB;
        Ok(Self {
            socket,
            _link,
            command,
            keys,
        })
    }

    /// Connects to the server that runs as this process.
    pub fn connect(&self, server: &mut Worker) -> Result<UnixStream> {
        let mut stream = None;
        let listens = poll(TIMEOUT, Duration::from_millis(5), || {
            if server.has_ended() {
                return Err(server.stop());
            }
            stream = UnixStream::connect(&*self.socket).ok();
            Ok(stream.is_some())
        })?;
        match stream.filter(|_| listens) {
            Some(stream) => Ok(stream),
            None => Err(server.stop()),
        }
    }
}

/// Makes a request of each number below `count`, several at a time; `on_reply` is called with each
/// reply, in order.
pub fn pipeline(
    mut stream: &UnixStream,
    replies: &mut impl BufRead,
    count: u64,
    request: impl Fn(&mut Vec<u8>, u64),
    mut on_reply: impl FnMut(u64, &[u8]) -> Result<()>,
) -> Result<()> {
    for first in (0..count).step_by(PIPELINE as usize) {
        let batch = first..(first + PIPELINE).min(count);
        let mut requests = Vec::new();
        batch.clone().for_each(|n| request(&mut requests, n));
        send(&mut stream, &requests)?;
        for n in batch {
            on_reply(n, &reply(replies)?)?;
        }
    }
    Ok(())
}

/// Sends requests.
pub fn send(stream: &mut impl Write, requests: &[u8]) -> Result<()> {
    stream
        .write_all(requests)
        .doing("send requests to redis-server")
}

/// Has the server end.
pub fn shut_down(mut stream: &UnixStream) -> Result<()> {
    stream
        .write_all(b"SHUTDOWN NOSAVE\r\n")
        .doing("end redis-server")
}

/// A request that sets a key to its value, always the same.
pub fn set(out: &mut Vec<u8>, key: u64) {
    out.extend(format!("*3\r\n$3\r\nSET\r\n$14\r\nkey:{key:010}\r\n${VALUE}\r\n").bytes());
    value(out, key);
    out.extend(b"\r\n");
}

/// The value of a key.
pub fn value(out: &mut Vec<u8>, key: u64) {
    for word in 0..(VALUE / 16) as u64 {
        let noise = mix(key << 8 ^ word).to_le_bytes();
        out.extend(noise);
        out.extend([b'='; 8]);
    }
    out.extend([b'='; VALUE % 16]);
}

/// A request for a key's value.
pub fn get(out: &mut Vec<u8>, key: u64) {
    out.extend(format!("*2\r\n$3\r\nGET\r\n$14\r\nkey:{key:010}\r\n").bytes());
}

/// A status or a value. An error of the server's fails, as a key that is not there does.
pub fn reply(from: &mut impl BufRead) -> Result<Vec<u8>> {
    let mut line = String::new();
    from.read_line(&mut line)
        .doing("read redis-server's reply")?;
    let text = line.trim_end();
    match text.split_at_checked(1) {
        Some(("+", status)) => Ok(status.into()),
        Some(("$", length)) if length != "-1" => {
            let length: usize = length.parse()?;
            let mut value = vec![0; length + 2];
            from.read_exact(&mut value)
                .doing("read redis-server's value")?;
            value.truncate(length);
            Ok(value)
        }
        _ => Err(anyhow!("redis-server replied {text:?}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_has_a_value_of_the_length_that_it_announces() {
        let mut request = Vec::new();
        set(&mut request, 7);
        let text = String::from_utf8_lossy(&request);
        let (head, _) = text.split_once("$1000\r\n").expect("its length");
        assert_eq!(request.len(), head.len() + 7 + VALUE + 2);
    }

    #[test]
    fn replies_are_told_apart() {
        let of = |text: &str| reply(&mut text.as_bytes());
        assert_eq!(of("+OK\r\n").unwrap(), b"OK");
        assert_eq!(of("$2\r\nab\r\n").unwrap(), b"ab");
        for lost in ["$-1\r\n", "-OOM command not allowed\r\n", ""] {
            assert!(of(lost).is_err(), "{lost:?}");
        }
    }
}
