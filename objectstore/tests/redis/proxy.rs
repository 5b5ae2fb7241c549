//! A link to a server that carries little, or nothing.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::{sleep, spawn};
use std::time::Duration;

/// How a connection is carried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    Fast,
    /// 16 KiB each 8 ms: 2 MB a second.
    Slow,
    /// It takes what is sent, and answers nothing.
    Silent,
    /// It ends.
    Cut,
}

/// The link. Its threads end with the process, or with their connections.
pub struct Proxy {
    port: u16,
    connections: Arc<AtomicUsize>,
}

impl Proxy {
    /// A link to a port, with a way for each connection, from 0.
    pub fn start(to: u16, way: impl Fn(usize) -> Way + Send + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let connections = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&connections);
        spawn(move || {
            for client in listener.incoming() {
                let way = way(count.fetch_add(1, Ordering::SeqCst));
                carry(client.unwrap(), to, way);
            }
        });
        Self { port, connections }
    }

    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// Connections that were made.
    pub fn connections(&self) -> usize {
        self.connections.load(Ordering::SeqCst)
    }
}

fn carry(client: TcpStream, to: u16, way: Way) {
    match way {
        Way::Silent => {
            spawn(move || std::io::copy(&mut &client, &mut std::io::sink()));
            return;
        }
        Way::Cut => return,
        Way::Fast | Way::Slow => {}
    }
    let server = TcpStream::connect(("127.0.0.1", to)).unwrap();
    let ends = [(&client, &server), (&server, &client)];
    for (from, to) in ends.map(|(from, to)| (from.try_clone().unwrap(), to.try_clone().unwrap())) {
        spawn(move || copy(from, to, way));
    }
}

fn copy(mut from: TcpStream, mut to: TcpStream, way: Way) {
    let mut bytes = [0; 16 << 10];
    while let Ok(count @ 1..) = from.read(&mut bytes) {
        if way == Way::Slow {
            sleep(Duration::from_millis(8));
        }
        if to.write_all(&bytes[..count]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Both);
}
