//! The kernel's host: serves the same [`Session`]s on sockets, with CUBIC.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::mpsc;
use std::thread::JoinHandle;

use anyhow::{Context, Result, ensure};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::JoinSet;

use crate::host;
use crate::session::{Session, Tally, Want};

/// The congestion control of both kernels.
pub const CONGESTION_CONTROL: &str = "cubic";
const BACKLOG: u32 = 4_096;
const READ_LEN: usize = 256 * 1024;

/// Creates a socket with [`CONGESTION_CONTROL`]. It is set per socket, because not every namespace can make
/// it its default.
pub fn socket() -> Result<TcpSocket> {
    let socket = TcpSocket::new_v4()?;
    rustix::net::sockopt::set_tcp_congestion(&socket, CONGESTION_CONTROL)
        .with_context(|| format!("congestion control {CONGESTION_CONTROL}"))?;
    let set = rustix::net::sockopt::tcp_congestion(&socket)?;
    ensure!(set == CONGESTION_CONTROL, "congestion control is {set}, not {CONGESTION_CONTROL}");
    socket.set_nodelay(true)?;
    Ok(socket)
}

/// The kernel's host, controlled by commands.
pub struct KernelHost {
    orders: Option<UnboundedSender<mpsc::Sender<()>>>,
    thread: Option<JoinHandle<()>>,
}

impl KernelHost {
    /// Starts the host in the calling thread's namespace.
    pub fn start(address: SocketAddr, tally: Arc<Tally>) -> Result<Self> {
        let (orders, inbox) = unbounded_channel();
        let (ready, is_ready) = mpsc::channel();
        let thread = std::thread::Builder::new().name("server".into()).spawn(move || {
            let _ = host::raise_priority(host::HOST_PRIORITY);
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            match runtime {
                Ok(runtime) => {
                    tokio::task::LocalSet::new().block_on(&runtime, serve(address, tally, inbox, &ready))
                }
                Err(error) => drop(ready.send(Err(error.into()))),
            }
        })?;
        is_ready.recv().context("the server has ended")??;
        Ok(KernelHost { orders: Some(orders), thread: Some(thread) })
    }

    /// Closes all connections.
    pub fn reset(&self) -> Result<()> {
        let (reply, answer) = mpsc::channel();
        let orders = self.orders.as_ref().context("the server was stopped")?;
        orders.send(reply).ok().context("the server has ended")?;
        answer.recv().context("the server has ended")
    }
}

impl Drop for KernelHost {
    fn drop(&mut self) {
        self.orders = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn listen(address: SocketAddr) -> Result<TcpListener> {
    let socket = socket()?;
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    Ok(socket.listen(BACKLOG)?)
}

async fn serve(
    address: SocketAddr,
    tally: Arc<Tally>,
    mut inbox: UnboundedReceiver<mpsc::Sender<()>>,
    ready: &mpsc::Sender<Result<()>>,
) {
    let listener = match listen(address) {
        Ok(listener) => listener,
        Err(error) => return drop(ready.send(Err(error))),
    };
    let _ = ready.send(Ok(()));
    let mut sessions = JoinSet::new();
    loop {
        tokio::select! {
            order = inbox.recv() => {
                let Some(reply) = order else { return };
                sessions.shutdown().await;
                let _ = reply.send(());
            }
            Some(_) = sessions.join_next() => {}
            accepted = listener.accept() => {
                if let Ok((stream, _)) = accepted {
                    sessions.spawn_local(session(stream, Arc::clone(&tally)));
                }
            }
        }
    }
}

/// Serves one connection until the session or the client closes it.
async fn session(mut stream: TcpStream, tally: Arc<Tally>) {
    let _ = stream.set_nodelay(true);
    let mut session = Session::default();
    let mut buffer = vec![0; 4_096];
    loop {
        match session.want() {
            Want::Read => {
                let Ok(n) = stream.read(&mut buffer).await else { return };
                if n == 0 {
                    return;
                }
                let mut rest = &buffer[..n];
                while !rest.is_empty() && session.want() == Want::Read {
                    rest = &rest[session.on_bytes(rest, &tally)..];
                }
                if n == buffer.len() {
                    buffer.resize(READ_LEN, 0);
                }
            }
            Want::Write => match stream.write(session.to_send()).await {
                Ok(n) => session.on_sent(n),
                Err(_) => return,
            },
            Want::Close => {
                let _ = stream.shutdown().await;
                // Read what the client still sends, so that the close does not become a reset.
                while matches!(stream.read(&mut buffer).await, Ok(n) if n > 0) {}
                return;
            }
        }
    }
}
