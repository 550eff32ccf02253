//! The measuring end: measures every transport, way of waiting and size in turn.

use std::io::{BufRead, BufReader};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, bail};

use crate::address::Address;
use crate::arguments::{Output, Plan, Test};
use crate::end::{End, MESSAGE_LEN_MAX, Waiting};
use crate::measure::Client;
use crate::report::{Point, header};
use crate::socket_end::SocketEnd;
use crate::usage::stay_on;
use crate::vi_end::ViEnd;

fn connect(address: &Address) -> Result<Client> {
    let at = || format!("cannot connect to {address}");
    let end: Box<dyn End> = match address {
        Address::Vi(kind, vi) => Box::new(ViEnd::connect(*kind, vi)?),
        Address::Tcp(ip) => Box::new(SocketEnd::tcp(TcpStream::connect(ip).with_context(at)?)?),
        Address::Unix(path) => Box::new(SocketEnd::unix(UnixStream::connect(path).with_context(at)?)),
    };
    Ok(Client::new(end))
}

/// Measures at each address as specified by `plan`, and prints the results.
pub fn run(addresses: &[Address], plan: &Plan) -> Result<()> {
    plan.check()?;
    stay_on(plan.cpus.first().copied())?;
    let mut clients: Vec<_> = addresses.iter().map(connect).collect::<Result<_>>()?;
    let mut records = Vec::new();
    for &test in &plan.tests {
        if plan.output == Output::Text {
            println!("{}\n{}", test.title(plan), header(addresses.len() > 1));
        }
        for &waiting in &plan.wait {
            for &size in &plan.sizes {
                let mut first: Option<Point> = None;
                for (client, address) in clients.iter_mut().zip(addresses) {
                    client.set_waiting(waiting)?;
                    let point = measure(client, test, size, plan).with_context(|| address.to_string())?;
                    if addresses.len() > 1 {
                        // A polling server that is not being measured would take processor time from the
                        // measured one.
                        client.set_waiting(Waiting::Block)?;
                    }
                    match plan.output {
                        Output::Json => records.push(point.json(address.kind())?),
                        Output::Text => {
                            let several = addresses.len() > 1;
                            let beside = several.then(|| first.as_ref().unwrap_or(&point));
                            println!("{}", point.line(address.kind(), beside));
                            if plan.histogram {
                                print!("{}", point.bars());
                            }
                        }
                    }
                    first.get_or_insert(point);
                }
            }
        }
    }
    if plan.output == Output::Json {
        println!("{}", serde_json::to_string_pretty(&records)?);
    }
    Ok(())
}

fn measure(client: &mut Client, test: Test, size: u32, plan: &Plan) -> Result<Point> {
    match test {
        Test::Latency => client.transactions(size, size, plan.seconds),
        Test::Transaction => client.transactions(plan.request, size, plan.seconds),
        Test::Bandwidth => client.stream(size, plan.seconds),
    }
}

/// A server process, terminated when dropped.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn local_address(kind: &str, folder: &Path, index: usize) -> Result<Address> {
    let text = match kind {
        "shm" | "unix" => format!("{kind}:{}", folder.join(format!("{index}.sock")).display()),
        "vi-tcp" | "ucx" | "tcp" => {
            // A port that is free now; the server binds it a moment later.
            let port = std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
            format!("{kind}:127.0.0.1:{port}")
        }
        other => {
            bail!("{other:?} cannot be measured within one host; allowed are shm, vi-tcp, ucx, tcp, unix")
        }
    };
    text.parse().map_err(anyhow::Error::msg)
}

/// Starts a server process on this host, and measures.
pub fn run_local(kinds: &[String], plan: &Plan) -> Result<()> {
    let folder = std::env::temp_dir().join(format!("csp-perf-{}", std::process::id()));
    std::fs::create_dir_all(&folder)?;
    let result = serve_and_run(kinds, plan, &folder);
    let _ = std::fs::remove_dir_all(&folder);
    result
}

fn serve_and_run(kinds: &[String], plan: &Plan, folder: &Path) -> Result<()> {
    let addresses: Vec<_> = kinds
        .iter()
        .enumerate()
        .map(|(index, kind)| local_address(kind, folder, index))
        .collect::<Result<_>>()?;
    let mut server = Server(
        Command::new(std::env::current_exe()?)
            .arg("serve")
            .args(plan.cpus.get(1).map(|cpu| format!("--cpu={cpu}")))
            .args(addresses.iter().map(ToString::to_string))
            .stdout(Stdio::piped())
            .spawn()?,
    );
    let output = server.0.stdout.take().context("the server has no output")?;
    if !BufReader::new(output).lines().map_while(Result::ok).any(|line| line == "ready") {
        bail!("the server did not start");
    }
    run(&addresses, plan)
}

impl Plan {
    fn check(&self) -> Result<()> {
        let longest = self.sizes.iter().chain([&self.request]).max().copied().unwrap_or(0);
        if longest as usize > MESSAGE_LEN_MAX {
            bail!("{longest} bytes are too long; the longest message has {MESSAGE_LEN_MAX}");
        }
        if !(self.seconds > 0.0 && self.seconds <= 3600.0) {
            bail!("--seconds is above 0 and at most 3600");
        }
        Ok(())
    }
}
