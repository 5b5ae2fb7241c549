//! A server to test, and a client that speaks the wire as plainly as it can be spoken.

use disk::atropos::DiskContract;
use disk::time::Nanos;
use remote_keys::{Handshake, Keyring, Protocol, Trust, client_config};
use remote_policy::identity::{
    Generation, HostId, Incarnation, ObjectId, PageNumber, RequestId, Version,
};
use remote_policy::permit::PermitId;
use remote_wire::control::{self, ControlReply, ControlRequest, SealedPermit, ServerNotice};
use remote_wire::identity::id_of_key;
use remote_wire::{FrameReader, FrameWriter, Header, Kind, Link, Status};
use selfpage_remote_server::{KeyedAcceptor, Server, ServerConfig};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tempfile::TempDir;
use wired::PAGE;

/// How long a reply is waited for before the test fails.
const LIMIT: Duration = Duration::from_secs(20);

pub fn incarnation(host: u64, start_ticks: u64) -> Incarnation {
    Incarnation::new(HostId(host), 1, start_ticks)
}

pub fn config(pages: u64) -> ServerConfig {
    ServerConfig {
        listen: ([127, 0, 0, 1], 0).into(),
        server: incarnation(1000, 1),
        name: "server".to_owned(),
        ram: pages * PAGE as u64,
        disk: None,
        capacity: ServerConfig::default_capacity(),
        host: None,
        most_connections: selfpage_remote_server::MAX_CONNECTIONS,
        patience: Duration::from_secs(5),
        acceptor: Box::new(Link::plain),
    }
}

/// A host's key and the list of members, which has its own key.
pub fn keyring() -> (TempDir, Arc<Keyring>) {
    let folder = tempfile::tempdir().unwrap();
    let keyring = Keyring::open(folder.path()).unwrap();
    keyring.set_own("host", None).unwrap();
    (folder, Arc::new(keyring))
}

/// A life of a client of that host.
pub fn client_of(host: &Keyring, number: u64, start_ticks: u64) -> Incarnation {
    let life = incarnation(number, start_ticks);
    let host = id_of_key(life.host, Some(host.fingerprint()));
    Incarnation { host, ..life }
}

/// A server that accepts the members of a list.
pub fn start_keyed(pages: u64, keyring: &Arc<Keyring>) -> Server {
    let acceptor = KeyedAcceptor::new(Arc::clone(keyring)).unwrap();
    Server::start(ServerConfig {
        acceptor: Box::new(acceptor),
        ..config(pages)
    })
    .unwrap()
}

/// A link with a host's key to a server that is a member of its list.
pub fn keyed_link(server: SocketAddr, keyring: &Arc<Keyring>) -> Link {
    let trust = Trust::Members(Arc::clone(keyring));
    let config = client_config(keyring.key(), trust, Protocol::Pages).unwrap();
    let stream = TcpStream::connect(server).unwrap();
    let handshake = Handshake::client(&config).unwrap();
    Link::keyed(handshake.complete(stream, LIMIT).unwrap()).unwrap()
}

pub fn start(pages: u64) -> Server {
    Server::start(config(pages)).unwrap()
}

/// A tenth of the server's time, and what is left.
pub const QOS: DiskContract = DiskContract::new(Nanos::millis(10), Nanos::millis(100)).with_slack();

/// Ends an object of the first generation, which all objects of these tests have.
#[allow(dead_code, reason = "the tests of the server alone")]
pub fn terminate(object: ObjectId) -> ControlRequest {
    let before = Generation(2);
    ControlRequest::Terminate { object, before }
}

pub fn page(fill: u8) -> Vec<u8> {
    vec![fill; PAGE]
}

/// An error reply.
#[derive(Debug, PartialEq, Eq)]
pub struct Refused(pub Status, pub String);

/// A reply, or the end of the connection.
pub type Reply = Option<(Header, Vec<u8>)>;

pub struct Client {
    pub link: Link,
    reader: FrameReader,
    writer: FrameWriter,
    pub incarnation: Incarnation,
    next: u32,
    pub notices: Vec<ServerNotice>,
}

impl Client {
    pub fn connect(server: SocketAddr, incarnation: Incarnation) -> Self {
        let link = Link::plain(TcpStream::connect(server).unwrap()).unwrap();
        Self::over(link, incarnation)
    }

    pub fn over(link: Link, incarnation: Incarnation) -> Self {
        Self {
            link,
            reader: FrameReader::new().unwrap(),
            writer: FrameWriter::new(40).unwrap(),
            incarnation,
            next: 1,
            notices: Vec::new(),
        }
    }

    /// A connection that has said hello.
    pub fn greeted(server: SocketAddr, incarnation: Incarnation) -> Self {
        let mut client = Self::connect(server, incarnation);
        client.hello().unwrap();
        client
    }

    /// A client with a permit for `pages` and an object of that size.
    #[allow(dead_code, reason = "the test of allocations has its own links")]
    pub fn with_object(server: SocketAddr, host: u64, pages: u64) -> (Self, ObjectId) {
        Self::greeted(server, incarnation(host, 1)).and_object(pages)
    }

    /// This client with a permit for `pages` and an object of that size.
    pub fn and_object(self, pages: u64) -> (Self, ObjectId) {
        let mut client = self;
        let sealed = client.allocate(1, pages, QOS).unwrap();
        client.present(sealed).unwrap();
        let object = client.object(1);
        client.create(object, sealed.permit.id, pages).unwrap();
        (client, object)
    }

    pub fn object(&self, number: u64) -> ObjectId {
        ObjectId {
            client: self.incarnation.host,
            number,
        }
    }

    pub fn hello(&mut self) -> Result<ControlReply, Refused> {
        let (client, name) = (self.incarnation, "client".to_owned());
        self.control(&ControlRequest::Hello { client, name })
    }

    pub fn allocate(
        &mut self,
        number: u64,
        pages: u64,
        qos: DiskContract,
    ) -> Result<SealedPermit, Refused> {
        let client = self.incarnation;
        let request = RequestId { client, number };
        let object = None;
        let reply = self.control(&ControlRequest::Allocate {
            request,
            pages,
            object,
            qos,
        })?;
        match reply {
            ControlReply::Permit(sealed) => Ok(sealed),
            other => panic!("{other:?}"),
        }
    }

    pub fn present(&mut self, sealed: SealedPermit) -> Result<ControlReply, Refused> {
        self.control(&ControlRequest::Present(sealed))
    }

    pub fn create(
        &mut self,
        object: ObjectId,
        permit: PermitId,
        pages: u64,
    ) -> Result<ControlReply, Refused> {
        let generation = Generation(1);
        self.control(&ControlRequest::Create {
            object,
            permit,
            pages,
            generation,
        })
    }

    pub fn control(&mut self, request: &ControlRequest) -> Result<ControlReply, Refused> {
        let header = Header::control(Kind::Control, self.number());
        let body = control::encode(request).unwrap();
        let (_, body) = self.call(&header, &body)?;
        Ok(control::decode(&body).unwrap())
    }

    pub fn write(
        &mut self,
        object: ObjectId,
        first: u64,
        version: u64,
        pages: &[u8],
    ) -> Result<(), Refused> {
        let header = Header {
            version: Version(version),
            ..self.header(Kind::Write, object, first, (pages.len() / PAGE) as u16)
        };
        self.call(&header, pages).map(drop)
    }

    /// Versions and bytes.
    pub fn read(
        &mut self,
        object: ObjectId,
        first: u64,
        pages: u16,
    ) -> Result<(Vec<u64>, Vec<u8>), Refused> {
        let header = self.header(Kind::Read, object, first, pages);
        let (_, body) = self.call(&header, &[])?;
        Ok(split(&body, pages))
    }

    pub fn discard(&mut self, object: ObjectId, first: u64, pages: u16) -> Result<(), Refused> {
        let header = self.header(Kind::Discard, object, first, pages);
        self.call(&header, &[]).map(drop)
    }

    pub fn header(&mut self, kind: Kind, object: ObjectId, first: u64, pages: u16) -> Header {
        Header {
            kind,
            pages,
            request: self.number(),
            object,
            page: PageNumber(first),
            version: Version(0),
            generation: Generation(1),
        }
    }

    /// Sends a request and waits for its reply, the only one outstanding.
    pub fn call(&mut self, header: &Header, body: &[u8]) -> Result<(Header, Vec<u8>), Refused> {
        self.send(header, body);
        let (reply, body) = self.receive().expect("the connection stays open");
        assert_eq!(reply.request, header.request);
        if reply.kind == Kind::ErrorReply {
            let status = Status::from_code(reply.pages).unwrap();
            return Err(Refused(status, String::from_utf8(body).unwrap()));
        }
        Ok((reply, body))
    }

    /// Has a request sent with the next one.
    pub fn queue(&mut self, header: &Header, body: &[u8]) {
        self.writer.push(header, body).unwrap();
    }

    /// Sends a request; waits only for the socket.
    pub fn send(&mut self, header: &Header, body: &[u8]) {
        self.queue(header, body);
        let begun = Instant::now();
        while !self.writer.flush(&mut self.link).unwrap() {
            assert!(begun.elapsed() < LIMIT, "the server does not read");
            std::thread::sleep(Duration::from_micros(100));
        }
    }

    /// The next reply; none where the server has closed the connection.
    pub fn receive(&mut self) -> Reply {
        let begun = Instant::now();
        loop {
            if let Some(frame) = self.reader.next_frame().unwrap() {
                let (header, body) = (frame.header, frame.body.to_vec());
                if header.kind == Kind::Notice {
                    self.notices.push(control::decode(&body).unwrap());
                    continue;
                }
                return Some((header, body));
            }
            assert!(begun.elapsed() < LIMIT, "no reply for {LIMIT:?}");
            match self.reader.fill(&mut self.link) {
                Ok(true) => std::thread::sleep(Duration::from_micros(20)),
                Ok(false) | Err(_) => return None,
            }
        }
    }

    /// Sends what is queued: replies that have arrived.
    #[allow(dead_code, reason = "one test and an example alone")]
    pub fn received(&mut self) -> u64 {
        let _ = self.writer.flush(&mut self.link);
        let _ = self.reader.fill(&mut self.link);
        let mut replies = 0;
        while self.reader.next_frame().unwrap().is_some() {
            replies += 1;
        }
        replies
    }

    fn number(&mut self) -> u32 {
        self.next += 1;
        self.next
    }
}

/// Versions and pages of a read's reply.
pub fn split(body: &[u8], pages: u16) -> (Vec<u64>, Vec<u8>) {
    let (versions, pages) = body.split_at(usize::from(pages) * 8);
    let versions = versions.as_chunks().0.iter().copied();
    (versions.map(u64::from_le_bytes).collect(), pages.to_vec())
}
