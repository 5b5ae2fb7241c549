//! Pages of a paging server, by its own protocol, without a remote client.

use super::source::{PageBuffer, PageSource};
use crate::prelude::*;
use disk::atropos::DiskContract;
use disk::time::Nanos;
use remote_policy::identity::{
    Generation, HostId, Incarnation, ObjectId, PageNumber, RequestId, Version,
};
use remote_wire::control::{self, ControlReply, ControlRequest};
use remote_wire::{FrameReader, FrameWriter, Header, Kind, Link};
use std::net::{SocketAddr, TcpStream};

/// What is asked of the server: all of its time that no other client uses.
const QOS: DiskContract = DiskContract::new(Nanos::millis(50), Nanos::millis(100)).with_slack();

/// A client with one object, all written. It polls.
pub struct PageReader {
    link: Link,
    reader: FrameReader,
    writer: FrameWriter,
    object: ObjectId,
    page: Box<PageBuffer>,
}

impl PageReader {
    /// Connects to a server and writes every page.
    pub fn connect(server: SocketAddr, pages: u64) -> Result<Self> {
        let client = Incarnation::new(HostId(u64::from(std::process::id())), 1, 1);
        let stream = TcpStream::connect(server).doing(format_args!("connect to {server}"))?;
        let mut this = Self {
            link: Link::plain(stream)?,
            reader: FrameReader::new()?,
            writer: FrameWriter::new(4)?,
            object: ObjectId {
                client: client.host,
                number: 1,
            },
            page: PageBuffer::of(0),
        };
        let name = "bench".to_owned();
        this.control(&ControlRequest::Hello { client, name })?;
        let reply = this.control(&ControlRequest::Allocate {
            request: RequestId { client, number: 1 },
            pages,
            object: None,
            qos: QOS,
        })?;
        let ControlReply::Permit(sealed) = reply else {
            bail!("the server gave no permit");
        };
        this.control(&ControlRequest::Present(sealed))?;
        this.control(&ControlRequest::Create {
            object: this.object,
            permit: sealed.permit.id,
            pages,
            generation: Generation(1),
        })?;
        for page in 0..pages {
            let header = this.header(Kind::Write, page);
            this.writer.push(&header, &PageBuffer::of(page).0)?;
            this.wait()?;
        }
        Ok(this)
    }

    fn header(&self, kind: Kind, page: u64) -> Header {
        Header {
            pages: 1,
            object: self.object,
            page: PageNumber(page),
            version: Version(u64::from(kind == Kind::Write)),
            generation: Generation(1),
            ..Header::control(kind, 1)
        }
    }

    fn control(&mut self, request: &ControlRequest) -> Result<ControlReply> {
        let header = Header::control(Kind::Control, 1);
        self.writer.push(&header, &control::encode(request)?)?;
        Ok(control::decode(&self.wait()?)?)
    }

    /// The body of the only reply under way.
    fn wait(&mut self) -> Result<Vec<u8>> {
        loop {
            self.exchange()?;
            if let Some(frame) = self.reader.next_frame()? {
                let text = || String::from_utf8_lossy(frame.body).into_owned();
                return match frame.header.kind {
                    Kind::ErrorReply => Err(anyhow!("the server refuses: {}", text())),
                    _ => Ok(frame.body.to_vec()),
                };
            }
            rustix::thread::sched_yield();
        }
    }

    fn exchange(&mut self) -> Result<()> {
        self.writer.flush(&mut self.link)?;
        match self.reader.fill(&mut self.link)? {
            true => Ok(()),
            false => bail!("the server has closed the connection"),
        }
    }
}

impl PageSource for PageReader {
    fn request(&mut self, page: u64) -> Result<()> {
        let header = self.header(Kind::Read, page);
        Ok(self.writer.push(&header, &[])?)
    }

    fn receive(&mut self) -> Result<usize> {
        self.exchange()?;
        let mut pages = 0;
        while let Some(frame) = self.reader.next_frame()? {
            if frame.header.kind != Kind::ReadReply {
                bail!(
                    "the server refuses: {}",
                    String::from_utf8_lossy(frame.body)
                );
            }
            self.page.check(frame.header.page.0, &frame.body[8..])?;
            pages += 1;
        }
        if pages == 0 {
            rustix::thread::sched_yield();
        }
        Ok(pages)
    }
}
