//! Two ends in one process, and what carries bytes between them.
#![allow(dead_code, reason = "each test uses a part")]

use rustls::{ClientConfig, ServerConfig};
use selfpage_remote_keys::{
    Handshake, HandshakeError, HostKey, KeyedStream, Progress, Protocol, Trust, client_config,
    server_config,
};
use std::cell::RefCell;
use std::collections::VecDeque;
use std::io::{self, ErrorKind, Read, Write};
use std::rc::Rc;
use std::sync::Arc;

/// One direction.
#[derive(Default)]
pub struct Wire {
    pub bytes: VecDeque<u8>,
    pub is_cut: bool,
}

/// One end: it reads and writes at most as many bytes at once as its sizes say, in turn.
#[derive(Clone)]
pub struct End {
    pub input: Rc<RefCell<Wire>>,
    pub output: Rc<RefCell<Wire>>,
    sizes: Rc<RefCell<VecDeque<usize>>>,
}

impl End {
    fn next_size(&self) -> usize {
        let mut sizes = self.sizes.borrow_mut();
        let Some(size) = sizes.pop_front() else {
            return usize::MAX;
        };
        sizes.push_back(size);
        size
    }
}

/// Two ends.
pub fn ends(sizes: &[usize]) -> [End; 2] {
    let [one, other] = [(); 2].map(|()| Rc::new(RefCell::new(Wire::default())));
    let sizes = || Rc::new(RefCell::new(sizes.iter().copied().collect()));
    let near = End {
        input: one.clone(),
        output: other.clone(),
        sizes: sizes(),
    };
    let far = End {
        input: other,
        output: one,
        sizes: sizes(),
    };
    [near, far]
}

impl Read for End {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let size = self.next_size().min(into.len());
        let mut input = self.input.borrow_mut();
        let len = size.min(input.bytes.len());
        if len == 0 && size > 0 {
            return match input.is_cut {
                true => Ok(0),
                false => Err(ErrorKind::WouldBlock.into()),
            };
        }
        for (place, byte) in into.iter_mut().zip(input.bytes.drain(..len)) {
            *place = byte;
        }
        Ok(len)
    }
}

impl Write for End {
    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        let len = self.next_size().min(from.len());
        self.output.borrow_mut().bytes.extend(&from[..len]);
        Ok(len)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

pub fn key() -> HostKey {
    HostKey::decode(&HostKey::generate().unwrap()).unwrap()
}

/// The configurations of a client and a server that accept each other's keys alone.
pub fn configs() -> (Arc<ClientConfig>, Arc<ServerConfig>) {
    let (client, server) = (key(), key());
    let [of_client, of_server] = [&client, &server].map(|key| Trust::Only(key.fingerprint()));
    (
        client_config(&client, of_server, Protocol::Pages).unwrap(),
        server_config(&server, of_client, &[Protocol::Pages]).unwrap(),
    )
}

type Ends = (KeyedStream<End>, KeyedStream<End>);

/// A client and a server after their handshake, or what each of them failed with.
pub fn establish(
    client: &Arc<ClientConfig>,
    server: &Arc<ServerConfig>,
    sizes: &[usize],
) -> Result<Ends, Box<[Option<HandshakeError>; 2]>> {
    let [mut near, mut far] = ends(sizes);
    let mut one = Handshake::client(client).unwrap();
    let mut other = Handshake::server(server).unwrap();
    for _ in 0..100_000 {
        let (a, b) = (one.advance(&mut near), other.advance(&mut far));
        match (a, b) {
            (Ok(Progress::Done), Ok(Progress::Done)) => {
                let near = one.into_stream(near).unwrap();
                return Ok((near, other.into_stream(far).unwrap()));
            }
            (Ok(_), Ok(_)) => {}
            (Err(a), b) => {
                let b = b.err().or_else(|| other.advance(&mut far).err());
                return Err(Box::new([Some(a), b]));
            }
            (Ok(_), Err(b)) => return Err(Box::new([one.advance(&mut near).err(), Some(b)])),
        }
    }
    panic!("the handshake does not end");
}

/// All that has arrived at an end.
pub fn read_all(stream: &mut KeyedStream<End>, into: &mut Vec<u8>) -> io::Result<bool> {
    let mut bytes = [0; 5000];
    loop {
        match stream.read(&mut bytes) {
            Ok(0) => return Ok(false),
            Ok(len) => into.extend(&bytes[..len]),
            Err(why) if why.kind() == ErrorKind::WouldBlock => {
                let input = stream.stream().input.borrow();
                if input.bytes.is_empty() && !input.is_cut {
                    return Ok(true);
                }
            }
            Err(why) => return Err(why),
        }
    }
}

pub fn write_all(stream: &mut KeyedStream<End>, mut from: &[u8]) {
    while !from.is_empty() {
        let len = stream.write(from).unwrap();
        from = &from[len..];
    }
    while !stream.flush().unwrap() {}
}
