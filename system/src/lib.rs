//! The system domain: the contract of a process tree and its control socket.
