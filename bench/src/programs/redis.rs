//! redis-server, filled and read by one client over a UNIX socket. The client is this process, which
//! is in no cgroup and is not paged.

use super::program::Workload;
use crate::env::find_program;
use crate::prelude::*;
use crate::process::poll;
use std::hash::Hasher;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use twox_hash::XxHash3_64;

/// Bytes of a value: half of them noise, so that pages compress 2:1.
const VALUE: usize = 1_000;

/// Keys for each MiB that the server takes, with what it adds to a value.
const KEYS_PER_MIB: u64 = 850;

/// Requests under way at a time, as redis-benchmark -P 16 has them.
const PIPELINE: u64 = 16;

/// How long a server may take to listen.
const TIMEOUT: Duration = Duration::from_secs(30);

/// The server's requests.
pub struct RedisClient {
    socket: OwnedFile,
    keys: u64,
}

/// The server and its client.
pub fn prepare(env: &TestEnv, mib: u64) -> Result<Workload> {
    let (socket, mut files) = (env.file("redis.sock")?, Vec::new());
    let server = match find_program("redis-server", "redis-server") {
        Ok(path) => path,
        Err(why) => {
            // Debian's redis-tools has the same program under another name, by which it serves
            // nothing; the server's own package starts one on this machine.
            let program = find_program("redis-check-rdb", "redis-tools").map_err(|_| why)?;
            let link = env.file("redis-server")?;
            std::os::unix::fs::symlink(program, &link).at("link", &link)?;
            let path = link.to_path_buf();
            files.push(link);
            path
        }
    };
    let mut command = Command::new(server);
    command.args(["--port", "0", "--save", "", "--daemonize", "no"]);
    command.args(["--loglevel", "warning", "--unixsocket"]);
    command.arg(&*socket);
    let keys = mib * KEYS_PER_MIB;
    Ok(Workload {
        client: Some(RedisClient { socket, keys }),
        files,
        ..Workload::of(command)
    })
}

impl RedisClient {
    /// Sets every key, reads as many out of order, and ends the server. The digest of all it replied.
    pub fn drive(&self, server: &mut Worker) -> Result<u64> {
        let stream = self.connect(server)?;
        let mut replies = BufReader::new(stream.try_clone()?);
        let mut digest = XxHash3_64::default();
        for of_kind in [set, get] {
            for first in (0..self.keys).step_by(PIPELINE as usize) {
                let batch = first..(first + PIPELINE).min(self.keys);
                let mut requests = Vec::new();
                batch
                    .clone()
                    .for_each(|n| of_kind(&mut requests, n, self.keys));
                (&stream)
                    .write_all(&requests)
                    .doing("send requests to redis-server")?;
                for _ in batch {
                    digest.write(&reply(&mut replies)?);
                }
            }
        }
        (&stream)
            .write_all(b"SHUTDOWN NOSAVE\r\n")
            .doing("end redis-server")?;
        Ok(digest.finish())
    }

    fn connect(&self, server: &mut Worker) -> Result<UnixStream> {
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

/// The nth of a pass over all keys in order.
fn set(out: &mut Vec<u8>, n: u64, _keys: u64) {
    out.extend(format!("*3\r\n$3\r\nSET\r\n$14\r\nkey:{n:010}\r\n${VALUE}\r\n").bytes());
    for word in 0..(VALUE / 16) as u64 {
        let noise = mix(n << 8 ^ word).to_le_bytes();
        out.extend(noise);
        out.extend([b'='; 8]);
    }
    out.extend([b'='; VALUE % 16]);
    out.extend(b"\r\n");
}

/// The nth of as many reads out of order.
fn get(out: &mut Vec<u8>, n: u64, keys: u64) {
    let key = mix(n ^ 1 << 40) % keys;
    out.extend(format!("*2\r\n$3\r\nGET\r\n$14\r\nkey:{key:010}\r\n").bytes());
}

/// A status or a value. An error of the server's fails, as a key that is not there does.
fn reply(from: &mut impl BufRead) -> Result<Vec<u8>> {
    let mut line = String::new();
    from.read_line(&mut line)
        .doing("read redis-server's reply")?;
    let text = line.trim_end();
    match text.split_at_checked(1) {
        Some(("+", status)) => Ok(status.into()),
        Some(("$", length)) if length != "-1" => {
            let mut value = vec![0; length.parse::<usize>()? + 2];
            from.read_exact(&mut value)
                .doing("read redis-server's value")?;
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
        set(&mut request, 7, 10);
        let text = String::from_utf8_lossy(&request);
        let (head, _) = text.split_once("$1000\r\n").expect("its length");
        assert_eq!(request.len(), head.len() + 7 + VALUE + 2);
    }

    #[test]
    fn replies_are_told_apart() {
        let of = |text: &str| reply(&mut text.as_bytes());
        assert_eq!(of("+OK\r\n").unwrap(), b"OK");
        assert_eq!(of("$2\r\nab\r\n").unwrap(), b"ab\r\n");
        for lost in ["$-1\r\n", "-OOM command not allowed\r\n", ""] {
            assert!(of(lost).is_err(), "{lost:?}");
        }
    }
}
