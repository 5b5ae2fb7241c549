//! Redis, in OpenDAL's place: its own service gives each answer 500 ms, which a segment on a slow link takes longer than,
//! and makes five round trips for a range.
//!
//! | operation | commands |
//! |---|---|
//! | a range | `GETRANGE` |
//! | a write | `SET` |
//! | deletions, many | `DEL` |
//! | the size | `EXISTS` and `STRLEN`, at once |
//!
//! Rule: URLs and the names of keys are OpenDAL's: its own code has parsed the one, and makes the other. A cluster
//! (`cluster_endpoints`) is OpenDAL's service still.

mod byte_count;
mod connection;
mod endpoint;

pub(crate) use connection::{Lane, RedisConnections};

use endpoint::Endpoint;
use opendal::raw::{
    OpCopy, OpCreateDir, OpDelete, OpList, OpPresign, OpRead, OpRename, OpStat, OpWrite,
    RpCreateDir, RpPresign, RpRead, RpRename, RpStat, Service, ServiceInfo, build_abs_path,
    normalize_root, oio,
};
use opendal::services::RedisConfig;
use opendal::{
    Buffer, Builder, BytesRange, Capability, Error, ErrorKind, Metadata, MetadataBuilder,
    OperationContext, Operator, Result,
};
use redis::{Cmd, FromRedisValue, RedisConnectionInfo, cmd};
use std::sync::Arc;

/// Keys of one `DEL`.
const DELETED_AT_ONCE: usize = 256;

/// A server's keys below a root.
#[derive(Clone, Debug, Default)]
struct RedisService {
    connections: Arc<RedisConnections>,
    /// Begins and ends with a slash.
    root: String,
    /// Seconds that a key lives.
    lives_for: Option<i64>,
}

/// One object.
struct RedisObject {
    service: RedisService,
    key: String,
}

/// The operator of a server, and its connections.
pub(crate) fn operator(config: &RedisConfig) -> Result<(Operator, Arc<RedisConnections>)> {
    let endpoint: Endpoint = config.endpoint.as_deref().unwrap_or_default().parse()?;
    let mut login = RedisConnectionInfo::default().set_db(config.db);
    if let Some(username) = &config.username {
        login = login.set_username(username);
    }
    if let Some(password) = &config.password {
        login = login.set_password(password);
    }
    let connections = Arc::new(RedisConnections::new(endpoint, login));
    let service = RedisService {
        connections: Arc::clone(&connections),
        root: normalize_root(config.root.as_deref().unwrap_or_default()),
        lives_for: config.default_ttl.map(|time| time.as_secs()),
    };
    Ok((Operator::new(service)?, connections))
}

fn unsupported() -> Error {
    Error::new(ErrorKind::Unsupported, "Redis cannot do that")
}

fn not_found() -> Error {
    Error::new(ErrorKind::NotFound, "it has no such key")
}

impl RedisService {
    fn key(&self, path: &str) -> String {
        build_abs_path(&self.root, path)
    }

    fn object(&self, path: &str) -> RedisObject {
        RedisObject {
            key: self.key(path),
            service: self.clone(),
        }
    }

    async fn query<T: FromRedisValue>(&self, lane: Lane, command: &Cmd) -> Result<T> {
        self.connections.query(lane, command).await
    }

    async fn delete(&self, keys: &[String]) -> Result<()> {
        let mut command = cmd("DEL");
        let deleted = self.query::<u64>(Lane::Others, command.arg(keys));
        deleted.await.map(drop)
    }
}

impl RedisObject {
    async fn read(&self, range: BytesRange) -> Result<Buffer> {
        let (first, last) = match (range.offset(), range.size()) {
            (_, Some(0)) => return Ok(Buffer::new()),
            (first, Some(size)) => (first, (first + size - 1) as i64),
            (first, None) => (first, -1),
        };
        let mut command = cmd("GETRANGE");
        let command = command.arg(&self.key).arg(first).arg(last);
        let bytes: Vec<u8> = self.service.query(Lane::Reads, command).await?;
        match bytes.is_empty() {
            // Nothing that was written has no bytes.
            true => Err(not_found()),
            false => Ok(bytes.into()),
        }
    }
}

impl oio::StreamRead for RedisObject {
    async fn open(&self, range: BytesRange) -> Result<(RpRead, Box<dyn oio::ReadStreamDyn>)> {
        let bytes = self.read(range).await?;
        Ok((RpRead::default(), Box::new(bytes)))
    }
}

impl oio::OneShotWrite for RedisObject {
    async fn write_once(&self, bytes: Buffer) -> Result<Metadata> {
        let size = bytes.len() as u64;
        let mut command = cmd("SET");
        command.arg(&self.key).arg(bytes.to_vec());
        if let Some(seconds) = self.service.lives_for {
            command.arg("EX").arg(seconds);
        }
        let () = self.service.query(Lane::Others, &command).await?;
        Ok(MetadataBuilder::file(size).build())
    }
}

impl oio::BatchDelete for RedisService {
    async fn delete_once(&self, path: String, _: OpDelete) -> Result<()> {
        self.delete(&[self.key(&path)]).await
    }

    async fn delete_batch(&self, batch: Vec<(String, OpDelete)>) -> Result<oio::BatchDeleteResult> {
        let keys: Vec<String> = batch.iter().map(|(path, _)| self.key(path)).collect();
        self.delete(&keys).await?;
        Ok(oio::BatchDeleteResult {
            succeeded: batch,
            failed: Vec::new(),
        })
    }
}

/// It is made by [`operator`].
impl Builder for RedisService {
    type Config = ();

    fn build(self) -> Result<impl Service> {
        Ok(self)
    }
}

impl Service for RedisService {
    type Reader = oio::StreamReader<RedisObject>;
    type Writer = oio::OneShotWriter<RedisObject>;
    type Lister = ();
    type Deleter = oio::BatchDeleter<Self>;
    type Copier = ();
    type Composer = ();

    fn info(&self) -> ServiceInfo {
        ServiceInfo::new("redis", &self.root, "")
    }

    fn capability(&self) -> Capability {
        Capability {
            read: true,
            write: true,
            write_can_empty: true,
            delete: true,
            delete_max_size: Some(DELETED_AT_ONCE),
            stat: true,
            shared: true,
            ..Capability::default()
        }
    }

    async fn stat(&self, _: &OperationContext, path: &str, _: OpStat) -> Result<RpStat> {
        let key = self.key(path);
        let mut commands = redis::pipe();
        commands.cmd("EXISTS").arg(&key).cmd("STRLEN").arg(&key);
        let (is_there, size): (bool, u64) =
            self.connections.query_all(Lane::Others, &commands).await?;
        match is_there {
            true => Ok(RpStat::new(MetadataBuilder::file(size).build())),
            false => Err(not_found()),
        }
    }

    fn read(&self, _: &OperationContext, path: &str, _: OpRead) -> Result<Self::Reader> {
        Ok(oio::StreamReader::new(self.object(path)))
    }

    fn write(&self, _: &OperationContext, path: &str, _: OpWrite) -> Result<Self::Writer> {
        Ok(oio::OneShotWriter::new(self.object(path)))
    }

    fn delete(&self, _: &OperationContext) -> Result<Self::Deleter> {
        let most = Some(DELETED_AT_ONCE);
        Ok(oio::BatchDeleter::new(self.clone(), most))
    }

    async fn create_dir(
        &self,
        _: &OperationContext,
        _: &str,
        _: OpCreateDir,
    ) -> Result<RpCreateDir> {
        Err(unsupported())
    }

    fn list(&self, _: &OperationContext, _: &str, _: OpList) -> Result<Self::Lister> {
        Err(unsupported())
    }

    fn copy(&self, _: &OperationContext, _: &str, _: &str, _: OpCopy) -> Result<Self::Copier> {
        Err(unsupported())
    }

    async fn rename(
        &self,
        _: &OperationContext,
        _: &str,
        _: &str,
        _: OpRename,
    ) -> Result<RpRename> {
        Err(unsupported())
    }

    async fn presign(&self, _: &OperationContext, _: &str, _: OpPresign) -> Result<RpPresign> {
        Err(unsupported())
    }
}
