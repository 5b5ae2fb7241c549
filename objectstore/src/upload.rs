//! Uploads over HTTP, whose bytes are counted as their connection takes them.
//!
//! A segment on a slow link takes longer than a store may be silent, so the time of an attempt cannot bound both. OpenDAL's
//! transport does not count, and has its body from a type that cannot: requests that are counted are sent from here, by
//! the same client, and all others by that transport.
//!
//! Rule: a byte counts once the connection has room for it, so those in the kernel's buffer count before the store has them.

use futures::stream;
use http::{Request, Response};
use opendal::{Buffer, Error, ErrorKind, HttpBody, HttpTransport, HttpTransporter, Result};
use opendal_http_transport_reqwest::ReqwestTransport;
use reqwest::{Body, Client};
use std::convert::Infallible;
use std::future::Future;
use std::sync::Arc;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes that a connection is given at once: it takes up to sixteen such parts ahead of the kernel's buffer.
const PART: usize = 4096;

tokio::task_local! {
    /// The count of the write that sends a request.
    static UPLOADED: UploadedBytes;
}

/// Bytes that the connections of one write have taken, in all its attempts.
#[derive(Clone, Default)]
pub(crate) struct UploadedBytes(Arc<AtomicU64>);

impl UploadedBytes {
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// Counts what a write sends.
    pub fn count_in<F: Future>(&self, write: F) -> impl Future<Output = F::Output> + use<F> {
        UPLOADED.scope(self.clone(), write)
    }

    /// The parts of a body, each counted when it is taken.
    fn body(self, bytes: Buffer) -> Body {
        let parts = (0..bytes.len()).step_by(PART).map(move |begin| {
            let part = bytes.slice(begin..bytes.len().min(begin + PART)).to_bytes();
            self.0.fetch_add(part.len() as u64, Ordering::Relaxed);
            Ok::<_, Infallible>(part)
        });
        Body::wrap_stream(stream::iter(parts))
    }
}

struct CountingTransport {
    client: Client,
    others: ReqwestTransport,
}

static TRANSPORT: LazyLock<CountingTransport> = LazyLock::new(|| {
    let client = Client::new();
    CountingTransport {
        others: ReqwestTransport::new(client.clone()),
        client,
    }
});

struct LazyTransport;

impl HttpTransport for LazyTransport {
    async fn fetch(&self, request: Request<Buffer>) -> Result<Response<HttpBody>> {
        match UPLOADED.try_with(Clone::clone) {
            Ok(uploaded) if !request.body().is_empty() => {
                TRANSPORT
                    .upload(request.map(|bytes| uploaded.body(bytes)))
                    .await
            }
            _ => TRANSPORT.others.fetch(request).await,
        }
    }
}

impl CountingTransport {
    async fn upload(&self, request: Request<Body>) -> Result<Response<HttpBody>> {
        let request = request.try_into().map_err(failed)?;
        let mut answer = self.client.execute(request).await.map_err(failed)?;
        let mut response = Response::new(());
        *response.status_mut() = answer.status();
        *response.headers_mut() = std::mem::take(answer.headers_mut());
        let bytes = answer.bytes().await.map_err(failed)?;
        let body = HttpBody::new(stream::iter([Ok(bytes.into())]), None);
        Ok(response.map(|()| body))
    }
}

fn failed(why: reqwest::Error) -> Error {
    let is_temporary = why.is_request() || why.is_body() || why.is_decode();
    let error = Error::new(ErrorKind::Unexpected, "send http request");
    error
        .with_temporary(is_temporary)
        .set_source(why.without_url())
}

/// Has OpenDAL send its requests from here. The client starts with the first one.
pub(crate) fn install() {
    HttpTransporter::install_default(LazyTransport);
}
