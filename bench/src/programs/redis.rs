//! redis-server, filled and read by one client over a UNIX socket.

use super::program::Workload;
use crate::prelude::*;
use crate::redis_server::{RedisServer, get, pipeline, set, shut_down};
use std::hash::Hasher;
use std::io::BufReader;
use twox_hash::XxHash3_64;

/// The server's requests.
pub struct RedisClient(RedisServer);

/// The server and its client.
pub fn prepare(env: &TestEnv, mib: u64) -> Result<Workload> {
    let mut server = RedisServer::new(env, mib)?;
    let command = std::mem::replace(&mut server.command, Command::new(""));
    Ok(Workload {
        client: Some(RedisClient(server)),
        ..Workload::of(command)
    })
}

impl RedisClient {
    /// Sets every key, reads as many out of order, and ends the server. The digest of all it replied.
    pub fn drive(&self, server: &mut Worker) -> Result<u64> {
        let stream = self.0.connect(server)?;
        let mut replies = BufReader::new(stream.try_clone()?);
        let mut digest = XxHash3_64::default();
        let keys = self.0.keys;
        let mut on_reply = |_, reply: &[u8]| {
            digest.write(reply);
            Ok(())
        };
        pipeline(&stream, &mut replies, keys, set, &mut on_reply)?;
        let out_of_order = |out: &mut Vec<u8>, n| get(out, mix(n ^ 1 << 40) % keys);
        pipeline(&stream, &mut replies, keys, out_of_order, on_reply)?;
        shut_down(&stream)?;
        Ok(digest.finish())
    }
}
