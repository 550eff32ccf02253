//! The client: the kernel's TCP with CUBIC. It runs the workloads against the servers and checks every byte.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::JoinSet;

use crate::cell::Workload;
use crate::host;
use crate::kernel;
use crate::session::{Method, Request, Tally, is_pattern, pattern};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(30);
const BUFFER_LEN: usize = 256 * 1024;

/// A measurement to run.
#[derive(Clone, Copy, Debug)]
pub struct Job {
    /// Address of the server.
    pub target: SocketAddr,
    /// The workload.
    pub workload: Workload,
    /// Number of simultaneous connections.
    pub flows: u32,
    /// Duration of the measurement.
    pub time: Duration,
    /// Time over which the starts of the connections are spread, so that they are not synchronised.
    pub spread: Duration,
}

/// The client's thread, which runs one job at a time.
pub struct Client {
    jobs: Option<UnboundedSender<(Job, mpsc::Sender<Result<f64>>)>>,
    thread: Option<JoinHandle<()>>,
}

impl Client {
    /// Starts the client in the calling thread's namespace. `tally` is that of the servers.
    pub fn start(tally: Arc<Tally>) -> Result<Self> {
        let (jobs, mut inbox) = unbounded_channel();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let thread = std::thread::Builder::new().name("client".into()).spawn(move || {
            let _ = host::raise_priority(host::HOST_PRIORITY);
            tokio::task::LocalSet::new().block_on(&runtime, serve(&mut inbox, &tally));
        })?;
        Ok(Client { jobs: Some(jobs), thread: Some(thread) })
    }

    /// Runs a measurement. Returns bytes per second of a bulk workload, transactions per second of another.
    pub fn run(&self, job: Job) -> Result<f64> {
        let (reply, answer) = mpsc::channel();
        let jobs = self.jobs.as_ref().context("the client was stopped")?;
        jobs.send((job, reply)).ok().context("the client has ended")?;
        answer.recv().context("the client has ended")?
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.jobs = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

async fn serve(inbox: &mut UnboundedReceiver<(Job, mpsc::Sender<Result<f64>>)>, tally: &Tally) {
    while let Some((job, reply)) = inbox.recv().await {
        let _ = reply.send(measure(job, tally).await);
    }
}

async fn measure(job: Job, tally: &Tally) -> Result<f64> {
    let done = Arc::new(AtomicU64::new(0));
    let mut flows = JoinSet::new();
    for stream in connect_all(&job).await? {
        let (done, key) = (Arc::clone(&done), flows.len() as u64);
        flows.spawn_local(async move {
            tokio::time::sleep(job.spread * key as u32 / job.flows).await;
            match job.workload {
                Workload::Download => download(stream, key, &done).await,
                Workload::Upload => upload(stream, key).await,
                Workload::Request => requests(stream, key, &done).await,
                Workload::Short => short(stream, job.target, key, &done).await,
            }
        });
    }
    if !job.workload.is_bulk() {
        tokio::time::sleep(job.spread).await;
    }
    let count = || match job.workload {
        Workload::Upload => tally.received.load(Ordering::Relaxed),
        _ => done.load(Ordering::Relaxed),
    };
    let (before, start) = (count(), Instant::now());
    tokio::select! {
        () = tokio::time::sleep(job.time) => {}
        Some(ended) = flows.join_next() => {
            ended.context("a flow")?.with_context(|| format!("{:?} from {}", job.workload, job.target))?;
            bail!("{:?} from {} ended early", job.workload, job.target);
        }
    }
    let result = (count() - before) as f64 / start.elapsed().as_secs_f64();
    flows.shutdown().await;
    ensure!(tally.corrupt.load(Ordering::Relaxed) == 0, "the server received wrong bytes");
    Ok(result)
}

async fn connect(target: SocketAddr) -> Result<TcpStream> {
    let connecting = kernel::socket()?.connect(target);
    let connected = tokio::time::timeout(CONNECT_TIMEOUT, connecting).await;
    let connected =
        connected.with_context(|| format!("no connection to {target} within {CONNECT_TIMEOUT:?}"))?;
    connected.with_context(|| format!("no connection to {target}"))
}

/// Establishes all connections of a job. [`short`] makes the connections of its transactions itself.
async fn connect_all(job: &Job) -> Result<Vec<Option<TcpStream>>> {
    if job.workload == Workload::Short {
        return Ok((0..job.flows).map(|_| None).collect());
    }
    let mut connecting = JoinSet::new();
    for _ in 0..job.flows {
        connecting.spawn_local(connect(job.target));
    }
    let mut streams = Vec::new();
    while let Some(stream) = connecting.join_next().await {
        let stream = stream.context("a connection")??;
        // Close by RST, so that remaining data does not disturb the next measurement.
        rustix::net::sockopt::set_socket_linger(&stream, Some(Duration::ZERO))?;
        streams.push(Some(stream));
    }
    Ok(streams)
}

async fn download(stream: Option<TcpStream>, key: u64, done: &AtomicU64) -> Result<()> {
    let mut stream = stream.context("a bulk flow has its connection")?;
    let request = Request { method: Method::Get, close: false, key, len: u64::MAX };
    stream.write_all(&request.encode()).await?;
    let (mut buffer, mut offset) = (vec![0; BUFFER_LEN], 0);
    loop {
        let n = stream.read(&mut buffer).await?;
        ensure!(n > 0, "the server closed the connection");
        ensure!(is_pattern(key, offset, &buffer[..n]), "wrong bytes between {offset} and {n} bytes on");
        offset += n as u64;
        done.fetch_add(n as u64, Ordering::Relaxed);
    }
}

async fn upload(stream: Option<TcpStream>, key: u64) -> Result<()> {
    let mut stream = stream.context("a bulk flow has its connection")?;
    let request = Request { method: Method::Put, close: false, key, len: u64::MAX };
    stream.write_all(&request.encode()).await?;
    let mut offset = 0;
    loop {
        offset += stream.write(pattern(key, offset, BUFFER_LEN as u64)).await? as u64;
    }
}

async fn transaction(stream: &mut TcpStream, request: Request, buffer: &mut [u8]) -> Result<()> {
    stream.write_all(&request.encode()).await?;
    let answer = &mut buffer[..request.len as usize];
    stream.read_exact(answer).await?;
    ensure!(is_pattern(request.key, 0, answer), "wrong bytes in an answer");
    Ok(())
}

async fn requests(stream: Option<TcpStream>, mut key: u64, done: &AtomicU64) -> Result<()> {
    let mut stream = stream.context("a flow of requests has its connection")?;
    let len = Workload::Request.answer_len();
    let mut buffer = vec![0; len as usize];
    loop {
        key += 1_000;
        let request = Request { method: Method::Get, close: false, key, len };
        transaction(&mut stream, request, &mut buffer).await?;
        done.fetch_add(1, Ordering::Relaxed);
    }
}

async fn short(_: Option<TcpStream>, target: SocketAddr, mut key: u64, done: &AtomicU64) -> Result<()> {
    let len = Workload::Short.answer_len();
    let mut buffer = vec![0; len as usize];
    loop {
        key += 1_000;
        let request = Request { method: Method::Get, close: true, key, len };
        let mut stream = connect(target).await?;
        transaction(&mut stream, request, &mut buffer).await?;
        ensure!(stream.read(&mut buffer).await? == 0, "the server sent more than the answer");
        done.fetch_add(1, Ordering::Relaxed);
    }
}
