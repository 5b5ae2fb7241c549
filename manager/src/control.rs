//! The control socket: lists clients and saves them, for `selfpage vm`.
//!
//! Beside the socket for hand-offs, under its name with `.control` appended, and open to its owner only. A
//! request is one line of JSON; each reply is one line.

use crate::arrivals::{ACCEPT_PAUSE, await_arrival};
use crate::manager_state::{ClientEntry, ManagerState};
use crate::save::{SaveEvent, SaveProgress, SaveRequest};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Duration;

/// Bytes of a request at most.
const MAX_REQUEST: u64 = 64 << 10;
/// How long a request may take to arrive, and a reply to be taken.
const PATIENCE: Duration = Duration::from_secs(10);

/// A request.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ControlRequest {
    /// List the clients.
    Show,
    /// Save a client's memory as the difference to its snapshot.
    Save {
        /// Its number.
        client: u64,
        /// The file, by its whole path.
        to: PathBuf,
    },
}

/// A reply.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ControlReply {
    /// The clients.
    Clients(Vec<ClientReport>),
    /// What happens to a save.
    Save(SaveEvent),
    /// The request was refused.
    Refused(String),
}

/// A client's state.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ClientReport {
    /// Its number.
    pub number: u64,
    /// The process that connected.
    pub pid: i32,
    /// Bytes of its memory.
    pub bytes: u64,
    /// Its counters.
    pub counters: BTreeMap<String, u64>,
}

/// The control socket beside a socket for hand-offs.
pub fn control_path(socket: &Path) -> PathBuf {
    let mut path = socket.as_os_str().to_owned();
    path.push(".control");
    PathBuf::from(path)
}

/// Sends a request to the manager at `socket` and returns its replies.
pub fn request(
    socket: &Path,
    request: &ControlRequest,
) -> io::Result<impl Iterator<Item = io::Result<ControlReply>>> {
    let line = serde_json::to_string(request)?;
    let mut stream = UnixStream::connect(control_path(socket))?;
    // A save takes as long as its guest's memory; the list is there at once.
    if matches!(request, ControlRequest::Show) {
        stream.set_read_timeout(Some(PATIENCE))?;
    }
    writeln!(stream, "{line}")?;
    let lines = BufReader::new(stream).lines();
    let late = |why: io::Error| match why.kind() {
        io::ErrorKind::WouldBlock => io::Error::new(
            io::ErrorKind::TimedOut,
            format!(
                "the manager has not replied in {PATIENCE:?}: it is stopped, or gets no processor; try again"
            ),
        ),
        _ => why,
    };
    Ok(lines.map(move |line| Ok(serde_json::from_str(&line.map_err(late)?)?)))
}

/// Serves requests until the server stops, one thread for each.
pub(crate) fn serve(shared: &Arc<ManagerState>, listener: &UnixListener) {
    while await_arrival(shared, listener) {
        let stream = match listener.accept() {
            Ok((stream, _)) => stream,
            Err(why) => {
                tracing::warn!("a control connection cannot be accepted: {why}; pausing");
                std::thread::sleep(ACCEPT_PAUSE);
                continue;
            }
        };
        // Joined at the end: a process that ends while a save is made durable would leave its part.
        let started = shared.spawn("selfpage-control", move |shared| {
            if let Err(why) = answer(shared, &stream) {
                tracing::debug!("a control connection failed: {why}");
            }
        });
        if let Err(why) = started {
            tracing::warn!("a control connection gets no thread: {why}");
        }
    }
}

fn answer(shared: &ManagerState, stream: &UnixStream) -> io::Result<()> {
    // The server's end waits for no peer that is silent, or does not read.
    if !await_arrival(shared, stream) {
        return Ok(());
    }
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let mut line = String::new();
    BufReader::new(stream.take(MAX_REQUEST)).read_line(&mut line)?;
    let reply = |reply: ControlReply| -> io::Result<()> {
        let line = serde_json::to_string(&reply)?;
        let mut stream = stream;
        writeln!(stream, "{line}")
    };
    match serde_json::from_str(&line) {
        Err(why) => reply(ControlReply::Refused(format!("no request: {why}"))),
        Ok(ControlRequest::Show) => {
            let clients = shared.clients().clone();
            let report = |it: ClientEntry| ClientReport {
                number: it.number,
                pid: it.pid,
                bytes: it.bytes,
                counters: it
                    .counters
                    .all()
                    .map(|(name, value)| (name.to_owned(), value))
                    .collect(),
            };
            reply(ControlReply::Clients(
                clients.into_iter().map(report).collect(),
            ))
        }
        Ok(ControlRequest::Save { client, to }) => {
            let found = shared
                .clients()
                .iter()
                .find(|it| it.number == client)
                .cloned();
            let Some(found) = found else {
                let why = format!("there is no client {client}; `selfpage vm show` lists them");
                return reply(ControlReply::Refused(why));
            };
            let (progress, received) = channel();
            found.commands.send(SaveRequest { path: to, progress });
            // A client that ends drops its sender.
            drop(found);
            let mut last = None;
            for progress in received {
                let event = match progress {
                    SaveProgress::Event(event) => event,
                    SaveProgress::Written(written) => written.finish(),
                };
                last = Some(event.clone());
                reply(ControlReply::Save(event))?;
            }
            match last {
                Some(SaveEvent::Saved { .. } | SaveEvent::Failed { .. }) => Ok(()),
                _ => reply(ControlReply::Refused(
                    "the client has ended; there is no file".into(),
                )),
            }
        }
    }
}
