//! A server of HTTP/2 by prior knowledge that answers with what it receives, for h2spec and curl:
//!
//! ```sh
//! cargo run --release -p csp-http2 -p csp-features --example echo 127.0.0.1:8080
//! ```
#![allow(clippy::disallowed_types, reason = "a program with sockets and a clock, to try the crate by hand")]

use std::io::{self, Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};

use csp_http2::{Event, Limits, Remedy, ServerConnection};
use csp_types::Instant;

fn main() -> io::Result<()> {
    let address = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:8080".to_owned());
    let listener = TcpListener::bind(&address)?;
    println!("listening on {}", listener.local_addr()?);
    for client in listener.incoming() {
        let client = client?;
        std::thread::spawn(move || {
            if let Err(error) = serve(client) {
                eprintln!("{error}");
            }
        });
    }
    Ok(())
}

fn serve(mut client: TcpStream) -> io::Result<()> {
    client.set_nodelay(true)?;
    let start = std::time::Instant::now();
    let mut connection = ServerConnection::new(&Limits::default(), 1);
    let mut bytes = vec![0; 64 << 10];
    let (mut sends, mut is_open) = (Vec::new(), true);
    while is_open {
        // SETTINGS go out before the preface comes.
        is_open &= turn(&mut connection, &mut sends);
        flush(&mut client, &mut connection, &mut sends)?;
        let len = client.read(&mut bytes)?;
        if len == 0 {
            connection.receive_end();
        }
        let mut left = &bytes[..len];
        while !left.is_empty() && is_open {
            let now = Instant::from_nanos(start.elapsed().as_nanos() as u64);
            left = &left[connection.receive(now, &[left])..];
            is_open &= turn(&mut connection, &mut sends);
            flush(&mut client, &mut connection, &mut sends)?;
        }
    }
    client.shutdown(Shutdown::Write)?;
    // A client that still sends must not lose what it has not read.
    while client.read(&mut bytes)? > 0 {}
    Ok(())
}

fn flush(client: &mut TcpStream, connection: &mut ServerConnection, sends: &mut Sends) -> io::Result<()> {
    while !connection.output().is_empty() {
        let len = client.write(connection.output())?;
        connection.sent(len);
        connection.poll();
        send(connection, sends);
    }
    Ok(())
}

/// Streams with what is to be sent on them, and whether that is all.
type Sends = Vec<(u32, Vec<u8>, bool)>;

/// Processes events; returns whether the connection goes on.
fn turn(connection: &mut ServerConnection, sends: &mut Sends) -> bool {
    connection.poll();
    let mut is_open = true;
    while let Some(event) = connection.next_event() {
        match event {
            Event::Request { stream, end, head, .. } => {
                let head = head.to_vec();
                if head.windows(23).any(|text| text == b"\r\nexpect: 100-continue\r") {
                    let _ = connection.respond_text(stream, b"HTTP/1.1 100 Continue\r\n\r\n", false);
                }
                let text = b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\n\r\n";
                if connection.respond_text(stream, text, false).is_ok() {
                    sends.push((stream, head, end));
                }
            }
            Event::Refused { stream, fault } => {
                if let Remedy::Answer(status) = fault.remedy() {
                    let text = format!("HTTP/1.1 {status} Refused\r\ncontent-length: 0\r\n\r\n");
                    let _ = connection.respond_text(stream, text.as_bytes(), true);
                }
            }
            Event::Readable { stream } => {
                while !connection.data(stream).is_empty() {
                    let data = connection.data(stream).to_vec();
                    connection.release(stream, data.len());
                    if let Some((_, bytes, _)) = sends.iter_mut().find(|(id, ..)| *id == stream) {
                        bytes.extend_from_slice(&data);
                    }
                }
            }
            Event::End { stream, .. } => {
                if let Some((.., end)) = sends.iter_mut().find(|(id, ..)| *id == stream) {
                    *end = true;
                }
            }
            Event::Reset { stream, .. } | Event::Done { stream } => sends.retain(|(id, ..)| *id != stream),
            Event::Room { .. } => {}
            Event::Closed { cause } => {
                println!("closed: {cause:?}");
                is_open = false;
            }
        }
    }
    send(connection, sends);
    is_open
}

fn send(connection: &mut ServerConnection, sends: &mut Sends) {
    for (stream, bytes, end) in sends {
        let taken = connection.send(*stream, bytes, *end);
        bytes.drain(..taken);
    }
    connection.poll();
}
