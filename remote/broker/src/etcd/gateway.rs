//! The part of etcd's JSON gateway that a lease needs: leases, and one key that a lease holds.
//!
//! Keys and values are in base64, and 64-bit numbers are texts that are absent where they are zero, as
//! protocol buffers have it in JSON. The gateway is part of every etcd from 3.4 on.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::de::{DeserializeOwned, Error as _};
use serde::{Deserialize, Deserializer};
use serde_json::{Value, json};
use std::time::Duration;

/// How long etcd may take to answer: with it stopped, the next endpoint is tried.
const ANSWER: Duration = Duration::from_secs(1);

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum GatewayError {
    /// The endpoint does not answer, or not with success.
    #[error("{endpoint}: {why}")]
    Endpoint {
        /// HOST:PORT.
        endpoint: String,
        /// Why.
        why: Box<ureq::Error>,
    },
    /// The key has a value of something else.
    #[error(
        "the key {0} has a value that is no host's of this version of selfpage: it is left alone; choose another key by --seat etcd:HOST:PORT/KEY"
    )]
    Foreign(String),
    /// It answers what etcd does not.
    #[error("{endpoint}: the answer is not etcd's: {what}")]
    Answer {
        /// HOST:PORT.
        endpoint: String,
        /// What is wrong.
        what: String,
    },
}

/// The holder of the key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// What it wrote.
    pub value: Vec<u8>,
    /// Its lease; 0 for a key that has none.
    pub lease: i64,
    /// The store's revision when it took the key.
    pub revision: u64,
}

/// The outcome of an attempt to take the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taken {
    /// It is taken, at this revision.
    At(u64),
    /// Another host was faster.
    Lost,
}

/// A protocol buffer's 64-bit number.
#[derive(Clone, Copy, Default)]
struct Number(i64);

impl<'de> Deserialize<'de> for Number {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = String::deserialize(from)?;
        text.parse().map(Self).map_err(D::Error::custom)
    }
}

#[derive(Deserialize)]
struct ResponseHeader {
    #[serde(default)]
    revision: Number,
}

#[derive(Deserialize)]
struct Lease {
    #[serde(default, rename = "ID")]
    id: Number,
    #[serde(default, rename = "TTL")]
    ttl: Number,
}

#[derive(Deserialize)]
struct KeptAlive {
    result: Lease,
}

#[derive(Deserialize)]
struct Pair {
    #[serde(default)]
    value: String,
    #[serde(default)]
    lease: Number,
    #[serde(default)]
    create_revision: Number,
}

#[derive(Deserialize)]
struct Range {
    #[serde(default)]
    kvs: Vec<Pair>,
}

#[derive(Deserialize)]
struct Transaction {
    header: ResponseHeader,
    #[serde(default)]
    succeeded: bool,
}

/// Some etcd, and the key in it.
pub struct Gateway {
    agent: ureq::Agent,
    endpoints: Vec<String>,
    /// The endpoint that answered last.
    current: usize,
    /// In base64.
    key: String,
}

impl Gateway {
    /// The etcd whose members are at `endpoints`, HOST:PORT.
    pub fn new(endpoints: Vec<String>, key: &str) -> Self {
        let config = ureq::Agent::config_builder()
            .timeout_global(Some(ANSWER))
            // A proxy of the environment is for what is outside.
            .proxy(None)
            .build();
        Self {
            agent: config.into(),
            endpoints,
            current: 0,
            key: STANDARD.encode(key),
        }
    }

    /// Makes a lease that ends `ttl` after it was renewed last, rounded up to seconds.
    ///
    /// # Errors
    /// [`GatewayError`], as for all that follow.
    pub fn grant(&mut self, ttl: Duration) -> Result<i64, GatewayError> {
        let body = json!({ "TTL": ttl.as_secs().max(1).to_string() });
        let lease: Lease = self.post("lease/grant", &body)?;
        match lease.id.0 {
            0 => Err(self.wrong("a lease without a number")),
            id => Ok(id),
        }
    }

    /// Renews a lease. Returns true if it has not ended.
    ///
    /// # Errors
    /// [`GatewayError`].
    pub fn keep_alive(&mut self, lease: i64) -> Result<bool, GatewayError> {
        let body = json!({ "ID": lease.to_string() });
        let kept: KeptAlive = self.post("lease/keepalive", &body)?;
        Ok(kept.result.ttl.0 > 0)
    }

    /// Ends a lease, and its key with it.
    ///
    /// # Errors
    /// [`GatewayError`].
    pub fn revoke(&mut self, lease: i64) -> Result<(), GatewayError> {
        let body = json!({ "ID": lease.to_string() });
        self.post::<Value>("lease/revoke", &body).map(drop)
    }

    /// The holder of the key, as a majority of etcd's members has it.
    ///
    /// # Errors
    /// [`GatewayError`].
    pub fn holder(&mut self) -> Result<Option<Holder>, GatewayError> {
        let range: Range = self.post("kv/range", &json!({ "key": self.key }))?;
        let Some(pair) = range.kvs.into_iter().next() else {
            return Ok(None);
        };
        let value = STANDARD.decode(pair.value);
        Ok(Some(Holder {
            value: value.map_err(|why| self.wrong(&why.to_string()))?,
            lease: pair.lease.0,
            revision: pair.create_revision.0.unsigned_abs(),
        }))
    }

    /// Takes the key under a lease, if it has no holder.
    ///
    /// # Errors
    /// [`GatewayError`]. The key may be taken: [`Gateway::holder`] has it then.
    pub fn take(&mut self, lease: i64, value: &[u8]) -> Result<Taken, GatewayError> {
        let put = json!({
            "key": self.key, "value": STANDARD.encode(value), "lease": lease.to_string(),
        });
        let done = self.if_created_at(0, &json!({ "request_put": put }))?;
        match done.succeeded {
            true => Ok(Taken::At(done.header.revision.0.unsigned_abs())),
            false => Ok(Taken::Lost),
        }
    }

    /// Removes the key, if it has the holder of this revision still.
    ///
    /// # Errors
    /// [`GatewayError`].
    pub fn remove(&mut self, revision: u64) -> Result<(), GatewayError> {
        let delete = json!({ "request_delete_range": { "key": self.key } });
        self.if_created_at(revision, &delete).map(drop)
    }

    fn if_created_at(&mut self, revision: u64, act: &Value) -> Result<Transaction, GatewayError> {
        let compare = json!({
            "key": self.key, "target": "CREATE", "result": "EQUAL",
            "create_revision": revision.to_string(),
        });
        self.post("kv/txn", &json!({ "compare": [compare], "success": [act] }))
    }

    /// Asks the endpoint that answered last, and the others where it does not.
    fn post<T: DeserializeOwned>(&mut self, what: &str, body: &Value) -> Result<T, GatewayError> {
        let mut outcome = self.post_to_current(what, body);
        for _ in 1..self.endpoints.len() {
            if outcome.is_ok() {
                break;
            }
            self.current = (self.current + 1) % self.endpoints.len();
            outcome = self.post_to_current(what, body);
        }
        outcome
    }

    fn post_to_current<T: DeserializeOwned>(
        &self,
        what: &str,
        body: &Value,
    ) -> Result<T, GatewayError> {
        let endpoint = &self.endpoints[self.current];
        let url = format!("http://{endpoint}/v3/{what}");
        let failed = |why| GatewayError::Endpoint {
            endpoint: endpoint.clone(),
            why: Box::new(why),
        };
        let request = self.agent.post(url).content_type("application/json");
        let mut answer = request.send(body.to_string()).map_err(failed)?;
        let text = answer.body_mut().read_to_string().map_err(failed)?;
        serde_json::from_str(&text).map_err(|why| self.wrong(&why.to_string()))
    }

    fn wrong(&self, what: &str) -> GatewayError {
        GatewayError::Answer {
            endpoint: self.endpoints[self.current].clone(),
            what: what.to_owned(),
        }
    }
}
