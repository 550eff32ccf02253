//! A client of HTTP/2 by prior knowledge, to try members by hand: `get ADDRESS PATH...` opens a stream for
//! each path and prints the responses.
#![allow(clippy::disallowed_types, reason = "a program with a socket, to try the crate by hand")]

use std::io::{self, Read as _, Write as _};
use std::net::TcpStream;

use csp_http::head::Scheme;
use csp_http2::{ClientConnection, ClientEvent, Limits};
use csp_types::Instant;

fn main() -> io::Result<()> {
    let mut arguments = std::env::args().skip(1);
    let address = arguments.next().unwrap_or_else(|| "127.0.0.1:8080".to_owned());
    let mut member = TcpStream::connect(&address)?;
    let mut connection = ClientConnection::new(&Limits::default());
    for path in arguments {
        let head = format!("GET {path} HTTP/1.1\r\nHost: {address}\r\n\r\n");
        let stream =
            connection.request_text(head.as_bytes(), Scheme::Http, true).map_err(io::Error::other)?;
        println!("{stream}: {path}");
    }
    connection.go_away();
    let mut bytes = vec![0; 16 << 10];
    loop {
        let mut is_open = print(&mut connection);
        while !connection.output().is_empty() {
            let len = member.write(connection.output())?;
            connection.sent(len);
            is_open &= print(&mut connection);
        }
        if !is_open {
            return Ok(());
        }
        let len = member.read(&mut bytes)?;
        if len == 0 {
            connection.receive_end();
        }
        let mut left = &bytes[..len];
        while !left.is_empty() {
            left = &left[connection.receive(Instant::ZERO, &[left])..];
            connection.poll();
        }
    }
}

/// Prints what has happened; returns whether the connection goes on.
fn print(connection: &mut ClientConnection) -> bool {
    connection.poll();
    let (mut readable, mut is_open) = (None, true);
    while let Some(event) = connection.next_event() {
        match event {
            ClientEvent::Response { stream, head, .. } => {
                println!("{stream}: {}", String::from_utf8_lossy(head).trim_end());
            }
            ClientEvent::Readable { stream } => readable = Some(stream),
            ClientEvent::Closed { cause } => {
                println!("closed: {cause:?}");
                is_open = false;
            }
            other => println!("{other:?}"),
        }
        while let Some(stream) = readable {
            let len = connection.data(stream).len();
            connection.release(stream, len);
            println!("{stream}: {len} bytes");
            readable = readable.filter(|stream| !connection.data(*stream).is_empty());
        }
    }
    is_open
}
