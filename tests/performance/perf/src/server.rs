//! The serving end: processes the request of each message.

use std::net::TcpListener;
use std::os::unix::net::UnixListener;

use anyhow::{Context, Result};

use crate::address::Address;
use crate::end::{End, MESSAGE_LEN_MAX, Request};
use crate::socket_end::SocketEnd;
use crate::usage::processor_time;
use crate::vi_end::ViListener;

enum Listener {
    Vi(ViListener),
    Tcp(TcpListener),
    Unix(UnixListener),
}

fn listen(address: &Address) -> Result<Listener> {
    let at = || format!("cannot listen at {address}");
    Ok(match address {
        Address::Vi(kind, vi) => Listener::Vi(ViListener::bind(*kind, vi)?),
        Address::Tcp(ip) => Listener::Tcp(TcpListener::bind(ip).with_context(at)?),
        Address::Unix(path) => Listener::Unix(SocketEnd::listen_unix(path).with_context(at)?),
    })
}

fn accept(listener: Listener) -> Result<Box<dyn End>> {
    Ok(match listener {
        Listener::Vi(listener) => Box::new(listener.accept()?),
        Listener::Tcp(listener) => Box::new(SocketEnd::tcp(listener.accept()?.0)?),
        Listener::Unix(listener) => Box::new(SocketEnd::unix(listener.accept()?.0)),
    })
}

/// Serves one peer after the other at each address, `count` peers each (without a limit if `None`). Prints a
/// line on standard output when all addresses listen.
pub fn serve(addresses: &[Address], count: Option<u32>) -> Result<()> {
    let listeners: Vec<_> = addresses.iter().map(listen).collect::<Result<_>>()?;
    println!("ready");
    std::thread::scope(|scope| {
        let threads: Vec<_> = addresses
            .iter()
            .zip(listeners)
            .map(|(address, listener)| scope.spawn(move || serve_at(address, listener, count)))
            .collect();
        threads.into_iter().try_for_each(|thread| match thread.join() {
            Ok(result) => result,
            Err(_) => anyhow::bail!("a serving thread panicked"),
        })
    })
}

fn serve_at(address: &Address, listener: Listener, count: Option<u32>) -> Result<()> {
    let mut listener = Some(listener);
    let mut served = 0;
    while count.is_none_or(|count| served < count) {
        let bound = match listener.take() {
            Some(bound) => bound,
            None => listen(address)?,
        };
        let mut end = accept(bound)?;
        if let Err(error) = converse(end.as_mut()) {
            eprintln!("csp-perf: {address}: {error:#}");
        }
        served += 1;
    }
    Ok(())
}

fn converse(end: &mut dyn End) -> Result<()> {
    let mut bytes = vec![0; MESSAGE_LEN_MAX];
    let answer = vec![0x5a; MESSAGE_LEN_MAX];
    while let Some((_, tag)) = end.receive(&mut bytes)? {
        match Request::from_tag(tag).with_context(|| format!("the peer's request {tag:#x} is unknown"))? {
            Request::Reply(len) => end.send(0, &answer[..len as usize])?,
            Request::Take => {}
            Request::Usage => end.send(0, &processor_time().to_le_bytes())?,
            Request::Wait(waiting) => {
                end.set_waiting(waiting)?;
                end.send(0, &[])?;
            }
        }
    }
    Ok(())
}
